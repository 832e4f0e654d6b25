//! What may be written and what waits for it: the write budget, the queue and the pauses. Nothing here locks, waits or
//! touches a file.

use std::collections::HashMap;

use shared::{BlockName, TenantTag, Timestamp};

use super::catalog::Entry;
use super::retention::{Retention, Reuse};
use crate::tenants::{Evictions, fits};

/// Why a block was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// On disk for a while, or waiting for it.
    Known,
    /// The write budget has nothing left for it.
    Budget,
    /// Its tenant has as much as it may have.
    Quota,
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
    /// Whose it is, how much of that tenant is on disk, and how much may be; 0 is no bound.
    pub(super) tenant: TenantTag,
    pub(super) tenant_bytes: u64,
    pub(super) tenant_bytes_max: u64,
}

/// A place in the queue: tells whether what has it was evicted meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    epoch: u64,
    number: u64,
    tenant: TenantTag,
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
    waiting: HashMap<BlockName, TenantTag>,
    waiting_bytes: u64,
    /// Of the tenants that something of waits.
    tenant_bytes: HashMap<TenantTag, u64>,
    /// What was queued before its tenant was evicted is not written any more.
    pub(super) evictions: Evictions,
    /// Raised when everything is evicted: what was queued before is not written any more.
    pub(super) epoch: u64,
    /// Until when nothing is queued, after an error.
    pub(super) suspended_until: Option<Timestamp>,
}

impl Queue {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            waiting: HashMap::new(),
            waiting_bytes: 0,
            tenant_bytes: HashMap::new(),
            evictions: Evictions::default(),
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
        !lasts && !self.waiting.contains_key(&name)
    }

    /// Takes a place in the queue.
    pub(super) fn admit(
        &mut self,
        candidate: Candidate,
        bounds: QueueBounds,
        now: Timestamp,
    ) -> Result<Place, Refused> {
        let Candidate { name, bytes, reuse, unix_seconds, held, tenant, .. } = candidate;
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
        let theirs = self.tenant_bytes.get(&tenant).copied().unwrap_or(0);
        // A block that is written again takes the place of its copy.
        let more = if held.is_some() { 0 } else { bytes };
        if !fits(candidate.tenant_bytes + theirs, more, candidate.tenant_bytes_max) {
            return Err(Refused::Quota);
        }
        if !self.retention.admits(name, reuse, self.waiting.len(), unix_seconds) {
            return Err(Refused::Budget);
        }
        self.waiting.insert(name, tenant);
        self.waiting_bytes += bytes;
        *self.tenant_bytes.entry(tenant).or_default() += bytes;
        Ok(Place { epoch: self.epoch, number: self.evictions.begin(), tenant })
    }

    /// Gives the place in the queue back.
    pub(super) fn leave(&mut self, name: BlockName, bytes: u32) {
        let Some(tenant) = self.waiting.remove(&name) else { return };
        self.waiting_bytes -= u64::from(bytes);
        if let Some(theirs) = self.tenant_bytes.get_mut(&tenant) {
            *theirs -= u64::from(bytes);
            if *theirs == 0 {
                self.tenant_bytes.remove(&tenant);
            }
        }
    }

    /// Whether what has this place is not to be found any more.
    pub(super) fn is_evicted(&self, place: &Place) -> bool {
        self.epoch != place.epoch || self.evictions.is_lost(place.tenant, place.number)
    }
}
