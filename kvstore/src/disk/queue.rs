//! What may be written and what waits for it: the write budget, the queue and the pauses. Nothing here locks, waits or
//! touches a file.

use std::collections::HashSet;

use shared::{BlockName, Timestamp};

use super::catalog::Entry;
use super::retention::{Retention, Reuse};

/// Why a block was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// On disk for a while, or waiting for it.
    Known,
    /// The write budget has nothing left for it.
    Budget,
    /// The queue is full.
    Full,
    /// Writing is suspended after an error.
    Suspended,
}

/// A block that wants to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) name: BlockName,
    pub(super) bytes: u32,
    pub(super) reuse: Reuse,
    pub(super) unix_seconds: u64,
    /// Its copy on disk, as of a moment ago. The writer looks once more.
    pub(super) held: Option<Entry>,
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) objects: usize,
    pub(super) bytes: u64,
}

/// The whole state. Bounded by the queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) retention: Retention,
    waiting: HashSet<BlockName>,
    waiting_bytes: u64,
    /// Raised when everything is evicted: what was queued before is not written any more.
    pub(super) epoch: u64,
    /// Until when nothing is queued, after an error.
    pub(super) suspended_until: Option<Timestamp>,
}

impl Queue {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            waiting: HashSet::new(),
            waiting_bytes: 0,
            epoch: 0,
            suspended_until: None,
        }
    }

    /// Objects and payload bytes that wait to be written.
    pub(super) fn waiting(&self) -> (usize, u64) {
        (self.waiting.len(), self.waiting_bytes)
    }

    /// Whether a block that is expected to be used again lacks a copy on disk that lasts; `held` is the one it has.
    pub(super) fn wants(&self, name: BlockName, held: Option<&Entry>, unix_seconds: u64) -> bool {
        let lasts = held.is_some_and(|entry| {
            !self.retention.limits().is_ending(entry.written_unix_seconds, unix_seconds)
        });
        !lasts && !self.waiting.contains(&name)
    }

    /// Takes a place in the queue.
    pub(super) fn admit(
        &mut self,
        candidate: Candidate,
        bounds: QueueBounds,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let Candidate { name, bytes, reuse, unix_seconds, held } = candidate;
        let first = reuse == Reuse::Unknown;
        if first && held.is_some() || !self.wants(name, held.as_ref(), unix_seconds) {
            return Err(Refused::Known);
        }
        if self.suspended_until.is_some_and(|until| now < until) {
            return Err(Refused::Suspended);
        }
        let bytes = u64::from(bytes);
        if bounds.objects <= self.waiting.len() || bounds.bytes < self.waiting_bytes + bytes {
            return Err(Refused::Full);
        }
        if !self.retention.admits(name, reuse, self.waiting.len(), unix_seconds) {
            return Err(Refused::Budget);
        }
        self.waiting.insert(name);
        self.waiting_bytes += bytes;
        Ok(())
    }

    /// Gives the place in the queue back.
    pub(super) fn leave(&mut self, name: BlockName, bytes: u32) {
        if self.waiting.remove(&name) {
            self.waiting_bytes -= u64::from(bytes);
        }
    }
}
