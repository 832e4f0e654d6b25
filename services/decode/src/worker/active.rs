//! A sequence that computes: its engine state, its blocks, and the window objects it may still have to publish.
//!
//! Invariants: the block table of the engine's sequence and `blocks` name the same slots in the same order; a private
//! slot is written by this sequence alone; a block is sealed once all its 128 rows were computed here, under the name of
//! its tokens.

use std::collections::VecDeque;

use engine::{Floors, Layers, RowPlan, Sequence};
use kvstore::{OwnedSlot, Seal, SealedSlot};
use shared::{BLOCK_TOKENS, BlockName, Grouped, RequestContext, TokenId};

use crate::scheduler::TailPlan;
use crate::worker::basis::Basis;
use crate::worker::core::{Core, Run, count, index};
use crate::worker::job::Chain;
use crate::worker::start::Ready;

/// See the module's documentation.
pub(super) struct Active {
    context: RequestContext,
    pub(super) sequence: Sequence,
    basis: Basis,
    blocks: Run<Block>,
    /// X: no global KV is written below it.
    write_floor: u32,
    window_floor: u32,
    /// Whether blocks and window objects made here equal those of a cold run.
    exact: bool,
    /// Leading blocks that are attached, sealed, or stay private for good.
    settled: usize,
    /// From this boundary on windows are kept.
    fine_from: u32,
    snapshots: Snapshots,
}

/// A slot in the block table.
enum Block {
    /// Immutable, shared by name.
    Sealed { _pin: SealedSlot },
    /// Written by this sequence.
    Private(OwnedSlot),
}

impl Active {
    /// Builds the engine's state from what a start brought, and says which rows are left.
    pub(super) fn begin(
        core: &Core,
        context: RequestContext,
        basis: Basis,
        ids: &[TokenId],
        ready: Ready,
    ) -> (Self, TailPlan) {
        let mut sequence = core.engine.sequence(ids);
        let mut attached = ready.blocks;
        let mut blocks = Run(Vec::with_capacity(attached.0.len() + 4));
        for slot in attached.0.drain(..) {
            sequence.push_block(slot.index());
            blocks.0.push(Block::Sealed { _pin: slot });
        }
        let window_bytes = core.engine.layout().window_bytes();
        match ready.window {
            Some((end, slot)) => {
                slot.read(&mut |bytes| sequence.import_window(end, &bytes[..window_bytes]));
            }
            None => sequence.begin(ready.first_row),
        }
        assert_eq!(sequence.processed(), ready.first_row, "windows end where the rows begin");
        let geometry = core.engine.geometry();
        let end = count(ids.len());
        let fine_from = geometry.boundary(end);
        let active = Self {
            context,
            sequence,
            basis,
            settled: blocks.0.len(),
            blocks,
            write_floor: ready.start,
            window_floor: ready.window_floor,
            exact: ready.exact,
            fine_from,
            snapshots: Snapshots::new(index(geometry.keep() / BLOCK_TOKENS) + 2),
        };
        (active, TailPlan { next: ready.first_row, end, fine_from })
    }

    /// Takes slots until rows below `rows_end` have room. Says whether they have: the reservation covers them, but a
    /// reader may hold a slot for a moment longer. Slots taken before that are kept for the next attempt.
    pub(super) fn make_room(&mut self, core: &Core, rows_end: u32) -> bool {
        let needed = index(rows_end.div_ceil(BLOCK_TOKENS));
        while self.blocks.0.len() < needed {
            let Some(slot) = core.pool.reserve(1).ok().and_then(|mut slots| slots.pop()) else {
                return false;
            };
            self.sequence.push_block(slot.index());
            self.blocks.0.push(Block::Private(slot));
        }
        true
    }

    /// The plan of one row. The last known token's row is the one whose logits are wanted.
    pub(super) fn row(&self, position: u32) -> RowPlan {
        let logits = index(position) + 1 == self.sequence.ids().len();
        let all = self.basis.decoder_floor <= position;
        RowPlan {
            position,
            layers: if all { Layers::All } else { Layers::Encoder },
            floors: Floors {
                window: self.window_floor,
                write: self.write_floor,
                decoder: self.basis.decoder_floor,
            },
            logits,
        }
    }

    /// After a step: seals full blocks and keeps or publishes the windows at a boundary just reached.
    pub(super) fn settle(&mut self, core: &mut Core, chain: &mut Chain) {
        let full = index(self.sequence.processed() / BLOCK_TOKENS);
        if self.settled < full {
            chain.name_through(self.sequence.ids(), full);
            let mut sealed = Vec::new();
            while self.settled < full {
                let Grouped { item: name, group } = chain.grouped(self.settled);
                let fresh = self.seal(core, self.settled, name);
                sealed.extend(fresh.map(|item| Grouped { item, group }));
                self.settled += 1;
            }
            core.offer(self.context, sealed);
        }
        let end = self.sequence.processed();
        if end < self.fine_from.max(BLOCK_TOKENS)
            || end < self.write_floor
            || !self.sequence.holds_window(end)
        {
            return;
        }
        let bytes = self.snapshots.take(end, core.engine.layout().window_bytes());
        self.sequence.export_window(end, bytes);
        if end == self.basis.boundary {
            core.publish_window(self.context, chain.grouped(full - 1), self.exact, bytes);
        }
    }

    /// Makes a full block immutable and findable. Returns it when it is new to the pool.
    ///
    /// A copy that is held already replaces this one only if both are exact, since only then their bytes are the same;
    /// otherwise this sequence goes on with its own bytes, so that its answer does not depend on what was cached.
    fn seal(&mut self, core: &mut Core, block: usize, name: BlockName) -> Option<SealedSlot> {
        if let Some(held) = core.pool.lookup(name) {
            core.stats.blocks_duplicate += 1;
            if held.exact() && self.exact {
                self.sequence.replace_block(block, held.index());
                self.blocks.0[block] = Block::Sealed { _pin: held };
            }
            return None;
        }
        let Block::Private(slot) = self.blocks.0.remove(block) else {
            unreachable!("blocks behind the settled ones are private");
        };
        let bytes = count(core.engine.layout().block_bytes());
        let sealed = core.pool.seal(slot, Seal { name, exact: self.exact, bytes });
        self.sequence.replace_block(block, sealed.index());
        self.blocks.0.insert(block, Block::Sealed { _pin: sealed.clone() });
        core.stats.blocks_sealed += 1;
        Some(sealed)
    }

    /// The sequence ends or gives way: publishes the windows from which its continuation will start.
    pub(super) fn publish_last(&self, core: &mut Core, chain: &Chain) {
        let boundary = core.engine.geometry().boundary(count(self.sequence.ids().len()));
        if let Some(bytes) = self.snapshots.at(boundary) {
            let block = index(boundary / BLOCK_TOKENS) - 1;
            core.publish_window(self.context, chain.grouped(block), self.exact, bytes);
        }
    }
}

/// Window objects at the last boundaries passed. The buffers are used again.
struct Snapshots {
    kept_max: usize,
    kept: VecDeque<(u32, Vec<u8>)>,
}

impl Snapshots {
    fn new(kept_max: usize) -> Self {
        Self { kept_max, kept: VecDeque::with_capacity(kept_max) }
    }

    /// A buffer for the windows at `end`; the oldest one makes room.
    fn take(&mut self, end: u32, bytes: usize) -> &mut [u8] {
        let mut buffer = if self.kept.len() < self.kept_max {
            Vec::new()
        } else {
            self.kept.pop_front().map_or_else(Vec::new, |(_, buffer)| buffer)
        };
        buffer.resize(bytes, 0);
        self.kept.push_back((end, buffer));
        let (_, buffer) = self.kept.back_mut().expect("pushed above");
        buffer
    }

    fn at(&self, end: u32) -> Option<&[u8]> {
        self.kept.iter().find(|(kept, _)| *kept == end).map(|(_, bytes)| bytes.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::Snapshots;

    #[test]
    fn the_last_boundaries_are_kept_in_the_same_buffers() {
        let mut snapshots = Snapshots::new(2);
        for end in [128, 256, 384] {
            snapshots.take(end, 4).fill(u8::try_from(end / 128).unwrap());
        }
        assert_eq!(snapshots.at(128), None);
        assert_eq!(snapshots.at(256), Some(&[2; 4][..]));
        assert_eq!(snapshots.at(384), Some(&[3; 4][..]));
    }
}
