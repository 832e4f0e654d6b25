//! What the worker measures for the router: times as moving averages in integers, and a number that rises with progress.

use std::time::Duration;

use shared::{MeanTime, WorkerRates};

/// Steps remembered: a second or so of decoding.
const STEPS: u32 = 64;
/// Blocks remembered: some prompts.
const BLOCKS: u32 = 1_024;
/// Hand-offs remembered.
const HANDOFFS: u32 = 16;

/// Where an object is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Store,
    Prefill,
}

/// See the module's documentation.
pub(super) struct Rates {
    step: MeanTime,
    restore_host: MeanTime,
    restore_peer: MeanTime,
    handoff: MeanTime,
    /// Turns with nothing to compute: no request, or all of them wait for others.
    waits: u64,
}

impl Rates {
    pub(super) fn new() -> Self {
        Self {
            step: MeanTime::over(STEPS),
            restore_host: MeanTime::over(BLOCKS),
            restore_peer: MeanTime::over(BLOCKS),
            handoff: MeanTime::over(HANDOFFS),
            waits: 0,
        }
    }

    /// A step without prompt rows.
    pub(super) fn step(&mut self, took: Duration) {
        self.step.note(took, 1);
    }

    /// A batch of reads that came from one kind of place, counted in blocks by its bytes; a window object is some of them.
    pub(super) fn reads(&mut self, origin: Origin, took: Duration, blocks: u64) {
        let mean = match origin {
            Origin::Store => &mut self.restore_host,
            Origin::Prefill => &mut self.restore_peer,
        };
        mean.note(took, blocks);
    }

    /// From the end of prefill's work to all of it being here.
    pub(super) fn handoff(&mut self, took: Duration) {
        self.handoff.note(took, 1);
    }

    /// A turn without anything to compute.
    pub(super) fn waited(&mut self) {
        self.waits += 1;
    }

    /// What counts as progress besides rows and tokens.
    pub(super) fn waits(&self) -> u64 {
        self.waits
    }

    /// As the router is told.
    pub(super) fn told(&self) -> WorkerRates {
        WorkerRates {
            step_ns: self.step.nanoseconds(),
            restore_host_ns: self.restore_host.nanoseconds(),
            restore_peer_ns: self.restore_peer.nanoseconds(),
            handoff_ns: self.handoff.nanoseconds(),
        }
    }
}
