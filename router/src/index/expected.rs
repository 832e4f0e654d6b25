//! Blocks that placed requests are expected to bring, until when. What counts is kept in the sets of holders; this is the
//! list of what has to be taken back.

use std::collections::BTreeMap;
use std::sync::Arc;

use shared::{BlockName, Timestamp};

use super::Slot;

/// What is expected of one member for one request.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) slot: Slot,
    pub(super) names: Arc<[BlockName]>,
}

/// All expectations that did not end, by their end.
#[derive(Debug)]
pub(super) struct Expectations {
    pending: BTreeMap<(Timestamp, u64), Expectation>,
    next: u64,
    blocks: usize,
    blocks_max: usize,
}

impl Expectations {
    pub(super) fn new(blocks_max: usize) -> Self {
        Self { pending: BTreeMap::new(), next: 0, blocks: 0, blocks_max }
    }

    /// Keeps an expectation. False when there is no room for its blocks.
    pub(super) fn push(&mut self, until: Timestamp, expectation: Expectation) -> bool {
        let blocks = self.blocks + expectation.names.len();
        if self.blocks_max < blocks {
            return false;
        }
        self.blocks = blocks;
        self.pending.insert((until, self.next), expectation);
        self.next += 1;
        true
    }

    /// The next one that ended.
    pub(super) fn pop_ended(&mut self, now: Timestamp) -> Option<Expectation> {
        let first = self.pending.first_entry().filter(|first| first.key().0 <= now)?;
        let ended = first.remove();
        self.blocks -= ended.names.len();
        Some(ended)
    }

    /// Forgets what is expected of one member.
    pub(super) fn forget(&mut self, slot: Slot) {
        let blocks = &mut self.blocks;
        self.pending.retain(|_, expectation| {
            let stays = expectation.slot != slot;
            if !stays {
                *blocks -= expectation.names.len();
            }
            stays
        });
    }

    /// Blocks of all expectations, those confirmed since among them.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }
}
