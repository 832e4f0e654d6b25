//! One walk over the blocks of a prefix, for all members at once. It touches only members that hold some of them.
//!
//! It begins plain: as long as no store has a block and each member has its blocks in the same tiers, a member is one
//! number, the end of its blocks. Members that hold no more than the first stretch of blocks are not even copied before the
//! end. The first block that is otherwise turns what is known so far into the general form.

use shared::{Tier, WorkerRank};

use super::Slot;
use super::matching::{Held, PlainMatch, PrefixMatch, PrefixMatches, TierCounts};
use super::sets::Holder;
use super::tiers::{TIERS, TierSet, tier_index};

/// Memory that one walk leaves to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    plain: Vec<PlainRow>,
    rows: Vec<Row>,
    /// By slot, the number of its row, or [`NO_ROW`].
    row_of: Vec<u16>,
}

const NO_ROW: u16 = u16::MAX;

/// A holder of the first stretch that holds more than this one. By ascending slots.
#[derive(Clone, Copy, Debug)]
struct PlainRow {
    /// Its number among the holders of the first stretch.
    number: usize,
    holder: Holder,
    end: u32,
}

/// A member in the general form. Where a store has a block, every member advances by it without being touched: such
/// blocks are counted once in [`Walk::common`], and members that hold the block nearer by correct that count for
/// themselves.
#[derive(Debug)]
struct Row {
    slot: Slot,
    leading: TierCounts,
    /// Blocks held by the member nearer than by any store, by tier.
    nearer: TierCounts,
    /// The tiers that `common` counted for those blocks.
    replaced: TierCounts,
    expected: u32,
    /// One more than the last position held; what keeps a member in the walk where no store helps.
    held_up_to: u32,
    /// Set when the member dropped out: `common` at that point.
    ended: Option<TierCounts>,
}

impl Row {
    fn new(slot: Slot) -> Self {
        let none = TierCounts::default();
        Self {
            slot,
            leading: none,
            nearer: none,
            replaced: none,
            expected: 0,
            held_up_to: 0,
            ended: None,
        }
    }

    fn step(&mut self, tiers: TierSet, store: Option<Tier>, position: u32, count: u32) {
        for tier in tiers.iter() {
            let leading = self.leading.at(tier);
            if *leading == position {
                *leading += count;
            }
        }
        if self.ended.is_some() {
            return;
        }
        self.held_up_to = position + count;
        // What is expected will be computed, or attached, in the memory of the worker's device.
        let own = tiers.nearest().unwrap_or(Tier::Device);
        if store.is_some_and(|tier| tier_index(tier) <= tier_index(own)) {
            return;
        }
        *self.nearer.at(own) += count;
        if let Some(tier) = store {
            *self.replaced.at(tier) += count;
        }
        if tiers.is_empty() {
            self.expected += count;
        }
    }
}

/// The state of a walk.
pub(super) struct Walk<'a> {
    scratch: &'a mut Scratch,
    is_plain: bool,
    /// The holders of the first stretch, and its length.
    first: (&'a [Holder], u32),
    position: u32,
    common: TierCounts,
    /// `common` when the members without a row dropped out.
    others: Option<TierCounts>,
}

impl<'a> Walk<'a> {
    /// A walk for members whose slots are all below `slots`.
    pub(super) fn new(scratch: &'a mut Scratch, slots: usize) -> Self {
        scratch.plain.clear();
        scratch.rows.clear();
        scratch.row_of.resize(slots, NO_ROW);
        Self {
            scratch,
            is_plain: true,
            first: (&[], 0),
            position: 0,
            common: TierCounts::default(),
            others: None,
        }
    }

    /// Takes the next `count` blocks: who holds them all, and the nearest tier of a store that does. False when no
    /// member can go on.
    pub(super) fn step(&mut self, holders: &'a [Holder], store: Option<Tier>, count: u32) -> bool {
        if self.is_plain {
            if store.is_none()
                && let Some(goes_on) = self.step_plain(holders, count)
            {
                return goes_on;
            }
            self.generalise();
        }
        self.step_general(holders, store, count)
    }

    /// The answers. `names` are those of the slots; `in_order` says that they ascend.
    pub(super) fn finish(self, names: &[WorkerRank], in_order: bool) -> PrefixMatches {
        let others = self.others.unwrap_or(self.common);
        if self.is_plain {
            let (holders, end) = self.first;
            let first = holders.iter().map(|&Holder { slot, tiers, .. }| PlainMatch {
                worker: names[usize::from(slot)],
                tiers,
                end,
            });
            let mut held: Vec<PlainMatch> = first.collect();
            for row in &self.scratch.plain {
                held[row.number].end = row.end;
            }
            if !in_order {
                held.sort_unstable_by_key(|found| found.worker);
            }
            return PrefixMatches::new(Held::Plain(held), others);
        }
        for row in &self.scratch.rows {
            self.scratch.row_of[usize::from(row.slot)] = NO_ROW;
        }
        let rows = self.scratch.rows.iter().map(|row| {
            let mut reach_by_tier = row.ended.unwrap_or(self.common);
            for tier in TIERS {
                *reach_by_tier.at(tier) += row.nearer.of(tier);
                *reach_by_tier.at(tier) -= row.replaced.of(tier);
            }
            PrefixMatch {
                worker: names[usize::from(row.slot)],
                leading: row.leading,
                reach: reach_by_tier.total(),
                reach_by_tier,
                expected: row.expected,
            }
        });
        let mut held: Vec<PrefixMatch> = rows.collect();
        // Rows are in the order in which their members were met.
        held.sort_unstable_by_key(|found| found.worker);
        PrefixMatches::new(Held::General(held), others)
    }

    /// None, with nothing that counts changed, when a member that went on so far has the blocks in other tiers than before.
    fn step_plain(&mut self, holders: &'a [Holder], count: u32) -> Option<bool> {
        let (position, end) = (self.position, self.position + count);
        let plain = &mut self.scratch.plain;
        let goes_on = if position == 0 {
            self.first = (holders, end);
            !holders.is_empty()
        } else if position == self.first.1 {
            for (number, now) in in_both(self.first.0, holders) {
                let holder = self.first.0[number];
                if holder.tiers != now.tiers {
                    plain.clear();
                    return None;
                }
                plain.push(PlainRow { number, holder, end });
            }
            !plain.is_empty()
        } else {
            // Rows that ended before are found like the others.
            let mut goes_on = false;
            for holder in holders {
                let found = plain.binary_search_by_key(&holder.slot, |row| row.holder.slot);
                let Ok(at) = found else { continue };
                let row = &mut plain[at];
                if row.end != position {
                    continue;
                }
                if row.holder.tiers != holder.tiers {
                    plain.iter_mut().for_each(|row| row.end = row.end.min(position));
                    return None;
                }
                row.end = end;
                goes_on = true;
            }
            goes_on
        };
        self.others = Some(TierCounts::default());
        self.position = end;
        Some(goes_on)
    }

    fn generalise(&mut self) {
        self.is_plain = false;
        let Scratch { plain, rows, row_of } = &mut *self.scratch;
        let (holders, first_end) = self.first;
        for (number, holder) in (0..).zip(holders) {
            let mut row = Row::new(holder.slot);
            row.step(holder.tiers, None, 0, first_end);
            row_of[usize::from(holder.slot)] = number;
            rows.push(row);
        }
        for &PlainRow { number, holder, end } in &*plain {
            rows[number].step(holder.tiers, None, first_end, end - first_end);
        }
        for row in rows {
            row.ended = (row.held_up_to < self.position).then(TierCounts::default);
        }
    }

    fn step_general(&mut self, holders: &[Holder], store: Option<Tier>, count: u32) -> bool {
        let Scratch { rows, row_of, .. } = &mut *self.scratch;
        for part in holders {
            let number = &mut row_of[usize::from(part.slot)];
            if *number == NO_ROW {
                if self.others.is_some() {
                    continue;
                }
                *number = u16::try_from(rows.len()).expect("not more rows than slots");
                rows.push(Row::new(part.slot));
            }
            rows[usize::from(*number)].step(part.tiers, store, self.position, count);
        }
        let end = self.position + count;
        self.position = end;
        if let Some(tier) = store {
            *self.common.at(tier) += count;
            return true;
        }
        self.others.get_or_insert(self.common);
        let mut alive = false;
        for row in rows {
            if row.held_up_to == end {
                alive |= row.ended.is_none();
            } else {
                row.ended.get_or_insert(self.common);
            }
        }
        alive
    }
}

/// The members that are in both lists, by ascending slots: their number in the first, and what the second says.
fn in_both<'a>(
    first: &'a [Holder],
    second: &'a [Holder],
) -> impl Iterator<Item = (usize, Holder)> + 'a {
    let mut from = 0;
    second.iter().filter_map(move |holder| {
        let rest = &first[from..];
        // Few of many are looked for by halves, many of many one after the other.
        from += if second.len() * 8 < first.len() {
            rest.partition_point(|it| it.slot < holder.slot)
        } else {
            rest.iter().take_while(|it| it.slot < holder.slot).count()
        };
        let found = first.get(from).is_some_and(|it| it.slot == holder.slot);
        found.then_some((from, *holder))
    })
}
