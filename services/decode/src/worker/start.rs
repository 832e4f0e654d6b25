//! One start: from an admitted sequence to attached blocks and known windows.
//!
//! A start looks its objects up in the own pools and the store, lets the planner decide, fetches what the plan wants
//! from the store and from prefill at the same time, and decides again whenever something it counted on was lost. Each
//! decision after a loss knows one copy or one prefill attempt less, so there is an end; at the worst it is a start at
//! what is held, computed here.
//!
//! Invariants: all slots it holds or lent to a transport lie within the sequence's reservation; the store's and
//! prefill's tickets live until everything announced under them was read; dropping a start cancels its reads and its
//! prefill and returns what it holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvstore::{
    BlockFate, SealedSlot, StartPlan, StartQuery, StartRecord, StartRole, WindowCandidate,
    WindowPlan, fate_runs, plan_start, useful_window_floor,
};
use shared::{
    BLOCK_TOKENS, BlockName, Descriptor, Grouped, Lineage, LocateEvent, Miss, ObjectKey,
    ObjectKind, RequestContext, Root, StartReport, Ticket, Tier, Timestamp, TokenId, WindowSource,
    WorkerRank, group_of,
};

use crate::mailbox::OperationId;
use crate::scheduler::SequenceKey;
use crate::worker::basis::Basis;
use crate::worker::core::{Core, Run, count, index};
use crate::worker::gather::{Reads, Target, Wanted};
use crate::worker::rates::Origin;
use crate::worker::visit::Visit;

/// What a start needs to know about its request.
pub(super) struct Asked {
    pub(super) key: SequenceKey,
    pub(super) context: RequestContext,
    pub(super) root: Root,
    pub(super) lineage: Lineage,
    pub(super) basis: Basis,
    /// The tokens of `[0, S)`.
    pub(super) ids: Arc<[TokenId]>,
    /// The names of their blocks.
    pub(super) names: Arc<[BlockName]>,
    /// The prefill worker the router chose.
    pub(super) prefill: Option<WorkerRank>,
}

/// A start under way.
pub(super) struct Start {
    pub(super) asked: Asked,
    pub(super) reads: Reads,
    pub(super) visit: Visit,
    /// The blocks of `[0, S)` that lie in the own pool and are pinned.
    held: Run<Option<Held>>,
    /// Where the store has a copy of the others.
    stored: Vec<Option<Descriptor>>,
    /// How each block was come by so far.
    fates: Vec<BlockFate>,
    windows: BTreeMap<u32, WindowCopy>,
    lookup: Option<Lookup>,
    store: Option<Ticket>,
    plan: Option<StartPlan>,
}

/// A block in the own pool.
struct Held {
    slot: SealedSlot,
    /// Whether it existed before this request.
    cached: bool,
}

/// Where a window object lies.
enum WindowCopy {
    /// In the own pool, pinned.
    Own { slot: SealedSlot, from_prefill: bool },
    /// In the store.
    Stored(Descriptor),
}

/// A lookup in the store that was not answered yet.
struct Lookup {
    operation: OperationId,
    since: Timestamp,
    blocks: Vec<usize>,
    windows: Vec<u32>,
}

/// Everything a sequence starts with.
pub(super) struct Ready {
    /// X. Global KV is written from here on.
    pub(super) start: u32,
    /// First row computed; below X while windows are rebuilt.
    pub(super) first_row: u32,
    pub(super) window_floor: u32,
    /// The window object to restore and where it ends.
    pub(super) window: Option<(u32, SealedSlot)>,
    /// Whether the window object was computed by prefill for this request.
    pub(super) window_is_new: bool,
    /// The blocks of `[0, X)`.
    pub(super) blocks: Run<SealedSlot>,
    /// Whether blocks sealed from here on equal those of a cold run.
    pub(super) exact: bool,
    pub(super) report: StartReport,
    pub(super) record: StartRecord,
}

impl Start {
    /// Looks up what is cached. Names and ids cover exactly `[0, S)`.
    pub(super) fn begin(core: &mut Core, asked: Asked, now: Timestamp) -> Self {
        let blocks = asked.names.len();
        assert_eq!(blocks * index(BLOCK_TOKENS), asked.ids.len());
        assert_eq!(count(asked.ids.len()), asked.basis.boundary);
        let hold =
            |name: &BlockName| core.pool.lookup(*name).map(|slot| Held { slot, cached: true });
        let held = Run(asked.names.iter().map(hold).collect());
        let fates = held.0.iter().map(|held: &Option<Held>| match held {
            Some(_) => BlockFate::Held,
            None => BlockFate::Missed(Miss::NotAsked),
        });
        let fates = fates.collect();
        let mut start = Self {
            reads: Reads::new(asked.key, asked.context, now),
            visit: Visit::new(asked.prefill),
            held,
            stored: vec![None; blocks],
            fates,
            windows: BTreeMap::new(),
            lookup: None,
            store: None,
            plan: None,
            asked,
        };
        start.look_up(core, now);
        start
    }

    /// Looks window objects up in the own pool, and everything that is missing in the store.
    fn look_up(&mut self, core: &mut Core, now: Timestamp) {
        let (boundary, device) = (self.asked.basis.boundary, self.leading(false));
        if boundary == 0 {
            return;
        }
        let (rows, lineage) = (bounded_rows(core), self.asked.lineage);
        let lowest = device * BLOCK_TOKENS;
        let floor = useful_window_floor(core.engine.geometry(), lineage, rows, lowest);
        let first = floor.next_multiple_of(BLOCK_TOKENS).max(BLOCK_TOKENS);
        let mut windows = Vec::new();
        for at in (first..=boundary).step_by(index(BLOCK_TOKENS)) {
            match core.windows.lookup(self.window_name(at)) {
                Some(slot) => {
                    self.windows.insert(at, WindowCopy::Own { slot, from_prefill: false });
                }
                None => windows.push(at),
            }
        }
        let blocks: Vec<_> = (0..self.held.0.len()).filter(|i| self.held.0[*i].is_none()).collect();
        if blocks.is_empty() && self.windows.contains_key(&boundary) {
            return;
        }
        let names = &self.asked.names;
        let key = |kind, block: usize| Grouped {
            item: ObjectKey { kind, name: names[block] },
            group: group_of(names, block),
        };
        let block = |i: &usize| key(ObjectKind::Block, *i);
        let window = |at: &u32| key(ObjectKind::Window, index(at / BLOCK_TOKENS) - 1);
        let keys = blocks.iter().map(block).chain(windows.iter().map(window)).collect();
        let (operation, ticket) = core.locate(self.asked.key, self.asked.context, keys);
        self.store = Some(ticket);
        self.lookup = Some(Lookup { operation, since: now, blocks, windows });
    }

    /// The store's answer; none when it gives up.
    pub(super) fn located(
        &mut self,
        core: &mut Core,
        operation: OperationId,
        event: Option<LocateEvent>,
    ) {
        if self.lookup.as_ref().is_none_or(|lookup| lookup.operation != operation) {
            return;
        }
        let Some(lookup) = self.lookup.take() else { return };
        let Some(event) = event else { return self.unanswered(&lookup) };
        if event.found.len() != lookup.blocks.len() + lookup.windows.len() {
            tracing::warn!("the store answered a lookup with a wrong number of objects");
            return self.unanswered(&lookup);
        }
        core.rates.looked_up(core.clock.now().since(lookup.since), event.brought);
        let (found_blocks, found_windows) = event.found.split_at(lookup.blocks.len());
        for (block, found) in lookup.blocks.into_iter().zip(found_blocks) {
            let name = self.asked.names[block];
            self.fates[block] = match found {
                Ok(copy) if is_copy(copy, ObjectKind::Block, name) => {
                    self.stored[block] = Some(*copy);
                    BlockFate::Unwanted
                }
                Ok(_) => BlockFate::Failed,
                Err(miss) => BlockFate::Missed(*miss),
            };
        }
        for (at, found) in lookup.windows.into_iter().zip(found_windows) {
            let name = self.window_name(at);
            if let Some(copy) = found.ok().filter(|copy| is_copy(copy, ObjectKind::Window, name)) {
                self.windows.insert(at, WindowCopy::Stored(copy));
            }
        }
    }

    fn unanswered(&mut self, lookup: &Lookup) {
        for block in &lookup.blocks {
            self.fates[*block] = BlockFate::Missed(Miss::NoAnswer);
        }
    }

    /// Moves the start on as far as it can go now.
    pub(super) fn advance(&mut self, core: &mut Core, now: Timestamp) -> Option<Ready> {
        if let Some(lookup) = &self.lookup {
            if now.since(lookup.since) < core.config.locate_wait() {
                return None;
            }
            core.stats.locates_failed += 1;
            core.operations.remove(&lookup.operation);
            if let Some(lookup) = self.lookup.take() {
                self.unanswered(&lookup);
            }
            self.store = None;
        }
        // Each turn of this loop follows a loss or a finished attempt; see the module's documentation.
        loop {
            if self.plan.is_none() {
                self.decide(core, now);
            }
            self.reads.pump(core, now);
            self.reads.watch(core, now);
            self.visit.watch(core, self.asked.context.id, now);
            self.take_losses();
            if self.reads.is_open() || self.visit.is_open() {
                return None;
            }
            let plan = self.plan.take().expect("decided above");
            if self.is_complete(&plan) {
                if let Some(finished_at) = self.visit.finished_at() {
                    core.rates.handoff(now.since(finished_at));
                }
                return Some(self.finish(&plan));
            }
            if self.visit.is_asked() {
                self.visit.lost(core);
            }
        }
    }

    /// Lets the planner decide from what is known now, and asks for what it wants.
    fn decide(&mut self, core: &mut Core, now: Timestamp) {
        loop {
            let plan = self.query_planner(core);
            if let Some(range) = &plan.ask
                && !self.visit.ask(core, &self.asked, range.start, now)
            {
                continue;
            }
            for block in plan.fetch_blocks.clone().map(index) {
                if self.held.0[block].is_none()
                    && let Some(source) = self.stored[block]
                {
                    let (target, origin) = (Target::Block(block), Origin::Store);
                    self.reads.want(Wanted { target, source, cached: true, origin });
                }
            }
            if let WindowPlan::Object { at, .. } | WindowPlan::Recompute { from: at, .. } =
                plan.window
                && let Some(WindowCopy::Stored(source)) = self.windows.get(&at)
            {
                let source = *source;
                let (target, origin) = (Target::Window(at), Origin::Store);
                self.reads.want(Wanted { target, source, cached: true, origin });
            }
            tracing::debug!(id = %self.asked.context.id, ?plan, "planned a start");
            self.plan = Some(plan);
            return;
        }
    }

    fn query_planner(&self, core: &Core) -> StartPlan {
        let windows: Vec<_> = self
            .windows
            .iter()
            .map(|(at, copy)| match copy {
                WindowCopy::Own { slot, .. } => {
                    WindowCandidate { at: *at, tier: Tier::Device, exact: slot.exact() }
                }
                WindowCopy::Stored(source) => {
                    WindowCandidate { at: *at, tier: Tier::Host, exact: source.exact }
                }
            })
            .collect();
        plan_start(&StartQuery {
            role: if self.visit.may_ask(core) {
                StartRole::DecodeWithPrefill
            } else {
                StartRole::DecodeAlone
            },
            geometry: core.engine.geometry(),
            lineage: self.asked.lineage,
            bounded_rows: bounded_rows(core),
            target: self.asked.basis.boundary,
            device_blocks: self.leading(false),
            reachable_blocks: self.leading(true),
            windows: &windows,
            costs: core.costs(),
        })
    }

    /// A sealed block was announced by prefill.
    pub(super) fn announced(&mut self, block: usize, source: Descriptor, cached: bool) -> bool {
        let known = self.asked.names.get(block);
        if !known.is_some_and(|name| is_copy(&source, ObjectKind::Block, *name)) {
            return false;
        }
        if self.held.0[block].is_none() {
            let (target, origin) = (Target::Block(block), Origin::Prefill);
            self.reads.want(Wanted { target, source, cached, origin });
        }
        true
    }

    /// The window object at S was announced by prefill.
    pub(super) fn window_announced(&mut self, source: Descriptor) -> bool {
        let at = self.asked.basis.boundary;
        if !is_copy(&source, ObjectKind::Window, self.window_name(at)) {
            return false;
        }
        // A copy from elsewhere may be inexact while this one is exact, so an exact one is preferred.
        let known = match self.windows.get(&at) {
            Some(WindowCopy::Own { slot, .. }) => slot.exact() || !source.exact,
            Some(WindowCopy::Stored(_)) | None => false,
        };
        if !known {
            let (target, origin) = (Target::Window(at), Origin::Prefill);
            self.reads.want(Wanted { target, source, cached: false, origin });
        }
        true
    }

    /// One read came back with its sealed copy.
    pub(super) fn fetched(&mut self, target: Target, slot: SealedSlot, cached: bool) {
        match target {
            Target::Block(block) => {
                self.held.0[block] = Some(Held { slot, cached });
                self.fates[block] = match self.fates[block] {
                    BlockFate::Unwanted if cached => BlockFate::Read,
                    _ => BlockFate::HandedOver { cached },
                };
            }
            Target::Window(at) => {
                let from_prefill = !cached;
                self.windows.insert(at, WindowCopy::Own { slot, from_prefill });
            }
        }
    }

    /// Forgets copies that could not be read.
    fn take_losses(&mut self) {
        while let Some(lost) = self.reads.lost.pop() {
            match lost {
                Target::Block(block) => {
                    if self.stored[block].take().is_some() {
                        self.fates[block] = BlockFate::Failed;
                    }
                }
                Target::Window(at) => {
                    if matches!(self.windows.get(&at), Some(WindowCopy::Stored(_))) {
                        self.windows.remove(&at);
                    }
                }
            }
        }
    }

    fn is_complete(&self, plan: &StartPlan) -> bool {
        let own = |at: &u32| matches!(self.windows.get(at), Some(WindowCopy::Own { .. }));
        let window = match &plan.window {
            WindowPlan::Cold | WindowPlan::Replay { .. } => true,
            WindowPlan::FromPrefill => own(&plan.start),
            WindowPlan::Object { at, .. } | WindowPlan::Recompute { from: at, .. } => own(at),
        };
        let blocks = index(plan.start / BLOCK_TOKENS);
        window && self.held.0[..blocks].iter().all(Option::is_some)
    }

    fn finish(&mut self, plan: &StartPlan) -> Ready {
        let at = match plan.window {
            WindowPlan::Cold | WindowPlan::Replay { .. } => None,
            WindowPlan::FromPrefill => Some(plan.start),
            WindowPlan::Object { at, .. } | WindowPlan::Recompute { from: at, .. } => Some(at),
        };
        let mut window_is_new = false;
        let window = at.map(|at| match self.windows.remove(&at) {
            Some(WindowCopy::Own { slot, from_prefill }) => {
                window_is_new = from_prefill;
                (at, slot)
            }
            Some(WindowCopy::Stored(_)) | None => unreachable!("the plan is complete"),
        });
        let mut blocks = Run(Vec::with_capacity(index(plan.start / BLOCK_TOKENS)));
        let mut cached_tokens = 0;
        for held in self.held.0.drain(..).take(index(plan.start / BLOCK_TOKENS)) {
            let Held { slot, cached } = held.expect("the plan is complete");
            cached_tokens += if cached { BLOCK_TOKENS } else { 0 };
            blocks.0.push(slot);
        }
        let exact = window.as_ref().map_or(plan.windows_exact, |(_, slot)| slot.exact())
            && blocks.0.iter().all(SealedSlot::exact);
        let (prefill_rows, prefill_source) = self.visit.outcome();
        let window_source = match (plan.window, prefill_source) {
            (
                WindowPlan::FromPrefill,
                Some(source @ (WindowSource::Recomputed | WindowSource::Replayed(_))),
            ) => source,
            _ => plan.window_source(),
        };
        let report = StartReport {
            cached_tokens,
            replayed_tokens: plan.replayed_rows() + prefill_rows,
            window_source,
            exact: exact && self.asked.basis.original,
            bytes_fetched: self.reads.bytes_fetched,
            prefill: self.visit.took_part(),
        };
        Ready {
            start: plan.start,
            first_row: plan.first_row(),
            window_floor: plan.window_floor(),
            window,
            window_is_new,
            blocks,
            exact,
            record: StartRecord {
                request: self.asked.context.id,
                start: plan.start,
                window_source,
                replayed_rows: report.replayed_tokens,
                exact: report.exact,
                runs: fate_runs(&self.fates),
            },
            report,
        }
    }

    /// Blocks from the beginning that are held, or also can be had from the store.
    fn leading(&self, with_store: bool) -> u32 {
        let there =
            |i: &usize| self.held.0[*i].is_some() || (with_store && self.stored[*i].is_some());
        count((0..self.held.0.len()).take_while(there).count())
    }

    fn window_name(&self, at: u32) -> BlockName {
        self.asked.names[index(at / BLOCK_TOKENS) - 1]
    }
}

/// R: rows of a bounded replay.
pub(super) fn bounded_rows(core: &Core) -> u32 {
    core.config.replay_rows.unwrap_or_else(|| core.engine.geometry().window)
}

fn is_copy(copy: &Descriptor, kind: ObjectKind, name: BlockName) -> bool {
    copy.key == ObjectKey { kind, name }
}
