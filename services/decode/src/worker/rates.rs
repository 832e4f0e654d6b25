//! What the worker measures for the router: times as moving averages in integers, and a number that rises with progress.

use std::time::Duration;

use shared::{Brought, MeanTime, RestoreTimes, WorkerRates};

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
    restores: RestoreTimes,
    restore_peer: MeanTime,
    handoff: MeanTime,
    /// Turns with nothing to compute: no request, or all of them wait for others.
    waits: u64,
}

impl Rates {
    pub(super) fn new() -> Self {
        Self {
            step: MeanTime::over(STEPS),
            restores: RestoreTimes::default(),
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
        match origin {
            Origin::Store => self.restores.read(took, blocks),
            Origin::Prefill => self.restore_peer.note(took, blocks),
        }
    }

    /// A lookup of the store was answered after this time.
    pub(super) fn looked_up(&mut self, took: Duration, brought: Brought) {
        self.restores.looked_up(took, brought);
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
        let mut rates = WorkerRates {
            step_ns: self.step.nanoseconds(),
            restore_peer_ns: self.restore_peer.nanoseconds(),
            handoff_ns: self.handoff.nanoseconds(),
            ..WorkerRates::default()
        };
        self.restores.tell(&mut rates);
        rates
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{Brought, WorkerRates};

    use super::{Origin, Rates};

    const US: fn(u64) -> Duration = Duration::from_micros;

    #[test]
    fn each_measurement_is_told_as_what_it_is() {
        type Measure = fn(&mut Rates);
        let none = WorkerRates::default();
        let cases: [(&str, Measure, WorkerRates); 8] = [
            ("nothing", |_| (), none),
            (
                "steps",
                |rates| (1..=3).for_each(|step| rates.step(US(step * 100))),
                WorkerRates { step_ns: 200_000, ..none },
            ),
            (
                "reads from the store",
                |rates| {
                    rates.reads(Origin::Store, US(10), 1);
                    rates.reads(Origin::Store, US(50), 2);
                },
                WorkerRates { restore_host_ns: 20_000, ..none },
            ),
            ("reads of less than a block", |rates| rates.reads(Origin::Store, US(10), 0), none),
            (
                "reads from prefill",
                |rates| rates.reads(Origin::Prefill, US(80), 4),
                WorkerRates { restore_peer_ns: 20_000, ..none },
            ),
            (
                "hand-offs",
                |rates| [3_000, 5_000].into_iter().for_each(|took| rates.handoff(US(took))),
                WorkerRates { handoff_ns: 4_000_000, ..none },
            ),
            (
                "lookups",
                |rates| {
                    rates.looked_up(US(700), Brought::default());
                    rates.looked_up(US(300), Brought { disk: 3, remote: 0 });
                    rates.looked_up(US(900), Brought { disk: 0, remote: 1 });
                },
                WorkerRates { restore_disk_ns: 100_000, restore_remote_ns: 900_000, ..none },
            ),
            ("turns without work", Rates::waited, none),
        ];
        for (case, measure, told) in cases {
            let mut rates = Rates::new();
            measure(&mut rates);
            assert_eq!(rates.told(), told, "{case}");
        }
    }

    #[test]
    fn a_change_of_speed_is_believed_within_a_window_or_two() {
        let mut rates = Rates::new();
        (0..1_000).for_each(|_| rates.step(US(100)));
        (0..128).for_each(|_| rates.step(US(900)));
        let told = rates.told().step_ns;
        assert!((600_000..900_000).contains(&told), "{told}");
        (0..512).for_each(|_| rates.step(US(900)));
        assert!(870_000 < rates.told().step_ns, "{}", rates.told().step_ns);
    }
}
