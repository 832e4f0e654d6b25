//! How busy each worker is: its last report, plus what was placed since and cannot be in that report yet.
//!
//! Rows are modelled as a queue that drains at the worker's measured pace: first the reported rows, then the requests
//! placed since, in order. Both the estimate and the request counts are corrected by the next report.

use std::time::Duration;

use shared::{LoadReport, RequestId, Timestamp, WorkerRank, WorkerRates};

use crate::config::{CostConfig, LoadConfig};
use crate::cost::Rates;
use crate::nanos::Nanos;
use crate::pace::Pace;
use crate::ranked::Ranked;
use crate::role::Role;

/// The load of all workers that compute, by role.
#[derive(Debug)]
pub(crate) struct Loads {
    config: LoadConfig,
    decode_rates: Rates,
    prefill_rates: Rates,
    decode: Ranked<WorkerLoad>,
    prefill: Ranked<WorkerLoad>,
}

/// The load of one worker.
#[derive(Debug)]
pub(crate) struct WorkerLoad {
    rates: Rates,
    measured: bool,
    report: Option<Reported>,
    /// Reported rows not drained yet at `settled_at`.
    reported_rows: u64,
    /// Requests placed, not in a report yet and not drained, oldest first. At most what this router has running.
    recent: Vec<Recent>,
    /// What `recent` comes to.
    sums: Sums,
    settled_at: Timestamp,
    /// Requests placed here and not finished.
    placed: u32,
    /// Whether this is a decode worker.
    holds_to_the_end: bool,
    /// When the blocks that placed requests are to bring here are all computed, as predicted.
    expected_at: Timestamp,
}

/// How a worker stands at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Time until a request that arrives now is reached.
    pub(crate) queue: Nanos,
    /// Requests expected to be in work or waiting.
    pub(crate) requests: u32,
    /// Time until the blocks of all requests placed there are computed, as predicted when they were placed.
    pub(crate) expected_in: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    at: Timestamp,
    requests: u32,
    pending: bool,
}

/// What decisions need of the requests placed: each decision looks at all workers, and changes two.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Rows of all of them.
    rows: u64,
    /// Those with rows.
    waiting: u32,
    /// Rows of the first of those.
    first_rows: u64,
}

#[derive(Clone, Copy, Debug)]
struct Recent {
    id: RequestId,
    rows: u64,
    placed_at: Timestamp,
}

impl Loads {
    /// No workers yet. Unmeasured ones get the configured rates.
    pub(crate) fn new(config: LoadConfig, cost: &CostConfig) -> Self {
        let rates = |rows| Rates::configured(Pace::from_rows_per_second(rows), cost);
        Self {
            config,
            decode_rates: rates(cost.decode_rows_per_second),
            prefill_rates: rates(cost.prefill_rows_per_second),
            decode: Ranked::default(),
            prefill: Ranked::default(),
        }
    }

    /// Takes a worker as idle. Stores carry no load and are ignored.
    pub(crate) fn join(&mut self, worker: WorkerRank, role: Role, now: Timestamp) {
        match role {
            Role::Decode => {
                self.decode.insert(worker, WorkerLoad::new(self.decode_rates, true, now));
            }
            Role::Prefill => {
                self.prefill.insert(worker, WorkerLoad::new(self.prefill_rates, false, now));
            }
            Role::Store => {}
        }
    }

    /// Forgets a worker and all that runs there.
    pub(crate) fn leave(&mut self, worker: WorkerRank) {
        self.decode.remove(worker);
        self.prefill.remove(worker);
    }

    /// Takes a report. False when its sender is not a worker that computes.
    pub(crate) fn report(
        &mut self,
        worker: WorkerRank,
        report: &LoadReport,
        now: Timestamp,
    ) -> bool {
        let lag = self.config.report_lag;
        let Some(load) = self.decode.get_mut(worker).or_else(|| self.prefill.get_mut(worker))
        else {
            return false;
        };
        load.report(report, lag, now);
        true
    }

    /// Counts a request at a worker until [`Self::finish`].
    pub(crate) fn place(&mut self, worker: WorkerRank, id: RequestId, rows: u64, now: Timestamp) {
        if let Some(load) = self.load_mut(worker) {
            load.settle(now);
            load.placed += 1;
            load.recent.push(Recent { id, rows, placed_at: now });
            load.sum();
        }
    }

    /// Says when a request placed at a worker is predicted to have computed or read its blocks.
    pub(crate) fn expect(&mut self, worker: WorkerRank, at: Timestamp) {
        if let Some(load) = self.load_mut(worker) {
            load.expected_at = load.expected_at.max(at);
        }
    }

    /// Ends a request at a worker; what it had left to compute is given back.
    pub(crate) fn finish(&mut self, worker: WorkerRank, id: RequestId, now: Timestamp) {
        if let Some(load) = self.load_mut(worker) {
            load.settle(now);
            load.placed -= 1;
            load.recent.retain(|recent| recent.id != id);
            load.sum();
        }
    }

    /// The decode workers, in the order of their names.
    pub(crate) fn decode(&self) -> impl Iterator<Item = (WorkerRank, &WorkerLoad)> {
        self.decode.iter()
    }

    /// The prefill workers, in the order of their names.
    pub(crate) fn prefill(&self) -> impl Iterator<Item = (WorkerRank, &WorkerLoad)> {
        self.prefill.iter()
    }

    /// The workers of a role that computes, in the order of their names.
    pub(crate) fn of_role(&self, role: Role) -> &[(WorkerRank, WorkerLoad)] {
        match role {
            Role::Decode => self.decode.all(),
            Role::Prefill => self.prefill.all(),
            Role::Store => &[],
        }
    }

    /// One worker.
    pub(crate) fn of(&self, worker: WorkerRank) -> Option<&WorkerLoad> {
        self.decode.get(worker).or_else(|| self.prefill.get(worker))
    }

    /// Whether a worker has work, as far as is known: placed by this router and not over, or in its last report.
    pub(crate) fn is_busy(&self, worker: WorkerRank) -> bool {
        self.of(worker).is_some_and(WorkerLoad::is_busy)
    }

    /// How a worker stands for a request that arrives now.
    pub(crate) fn standing(&self, load: &WorkerLoad, now: Timestamp) -> Standing {
        load.standing(self.config.report_stale, now)
    }

    /// Requests expected to be in work or waiting at a worker.
    pub(crate) fn requests(&self, load: &WorkerLoad, now: Timestamp) -> u32 {
        self.standing(load, now).requests
    }

    /// The first time after `now` at which the request count of a prefill worker falls by itself.
    pub(crate) fn prefill_relief(&self, now: Timestamp) -> Option<Timestamp> {
        let stale = self.config.report_stale;
        self.prefill.values().filter_map(|load| load.relief(stale, now)).min()
    }

    fn load_mut(&mut self, worker: WorkerRank) -> Option<&mut WorkerLoad> {
        self.decode.get_mut(worker).or_else(|| self.prefill.get_mut(worker))
    }
}

impl WorkerLoad {
    fn new(rates: Rates, holds_to_the_end: bool, now: Timestamp) -> Self {
        Self {
            rates,
            measured: false,
            report: None,
            reported_rows: 0,
            recent: Vec::new(),
            sums: Sums::default(),
            settled_at: now,
            placed: 0,
            holds_to_the_end,
            expected_at: now,
        }
    }

    /// The measured rates, or the configured ones.
    pub(crate) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Whether the pace was measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.measured
    }

    /// Requests placed here by this router and not finished.
    pub(crate) fn placed(&self) -> u32 {
        self.placed
    }

    /// Requests that stay until they finish: those placed here on a decode worker. A prefill worker is done with a request
    /// long before that.
    pub(crate) fn running(&self) -> u32 {
        if self.holds_to_the_end { self.placed } else { 0 }
    }

    /// See [`Loads::is_busy`].
    pub(crate) fn is_busy(&self) -> bool {
        let reported = self.report.is_some_and(|report| 0 < report.requests);
        reported || 0 < self.running() || !self.recent.is_empty()
    }

    /// Rows expected to be waiting.
    pub(crate) fn rows(&self, now: Timestamp) -> u64 {
        let rows = self.reported_rows.saturating_add(self.sums.rows);
        // An idle worker costs no division.
        if rows == 0 { 0 } else { rows.saturating_sub(self.drained(now)) }
    }

    /// How it stands for a request that arrives now. `stale` as in [`LoadConfig::report_stale`].
    pub(crate) fn standing(&self, stale: Duration, now: Timestamp) -> Standing {
        let reported = self.reported_requests(stale, now);
        let expected_in = Nanos(self.expected_at.0.saturating_sub(now.0));
        // An idle worker costs no division.
        if self.reported_rows == 0 && self.recent.is_empty() {
            return Standing { queue: Nanos::ZERO, requests: reported, expected_in };
        }
        let drained = self.drained(now);
        let rows = self.reported_rows.saturating_add(self.sums.rows);
        let undrained = if drained < self.reported_rows.saturating_add(self.sums.first_rows) {
            self.sums.waiting
        } else {
            self.undrained(drained)
        };
        let queue = self.rates.pace.time_for(rows.saturating_sub(drained));
        Standing { queue, requests: reported.saturating_add(undrained), expected_in }
    }

    /// How many of the requests placed still wait when so many rows are drained. One without rows never waits.
    fn undrained(&self, drained: u64) -> u32 {
        let mut rows = self.reported_rows;
        self.recent.iter().fold(0, |undrained: u32, recent| {
            rows = rows.saturating_add(recent.rows);
            undrained.saturating_add(u32::from(recent.rows != 0 && drained < rows))
        })
    }

    /// Sums up what was placed. Whatever changes `recent` does so at its end.
    fn sum(&mut self) {
        let with_rows = self.recent.iter().map(|recent| recent.rows).filter(|&rows| rows != 0);
        self.sums = with_rows.fold(Sums::default(), |sums, rows| Sums {
            rows: sums.rows.saturating_add(rows),
            waiting: sums.waiting.saturating_add(1),
            first_rows: if sums.waiting == 0 { rows } else { sums.first_rows },
        });
    }

    fn drained(&self, now: Timestamp) -> u64 {
        self.rates.pace.rows_in(Nanos(now.0.saturating_sub(self.settled_at.0)))
    }

    /// Books what was drained since the last call. Only the time of whole rows is used up, so that many short steps
    /// drain as much as one long one.
    fn settle(&mut self, now: Timestamp) {
        let drained = self.drained(now);
        let left = drain(&mut self.reported_rows, drained);
        let left = self.recent.iter_mut().fold(left, |left, recent| drain(&mut recent.rows, left));
        self.recent.retain(|recent| 0 < recent.rows);
        self.sum();
        self.settled_at = if 0 < left || self.rows(self.settled_at) == 0 {
            now.max(self.settled_at)
        } else {
            self.settled_at.after(self.rates.pace.time_for(drained).into())
        };
    }

    fn report(&mut self, report: &LoadReport, lag: Duration, now: Timestamp) {
        self.settle(now);
        let pending = 0 < report.pending_rows;
        let was_pending = self.report.is_some_and(|last| last.pending);
        if let Some(pace) = Pace::measured(report.rows_per_second) {
            // An idle or merely decoding worker steps few rows: that says nothing about how fast it can be. A rate
            // counts when rows were waiting, or when it is better than what is known.
            let faster = pace.rows_per_second() > self.rates.pace.rows_per_second();
            if pending || was_pending || (self.measured && faster) {
                self.rates.pace = pace;
                self.measured = true;
            }
        }
        self.take_rates(report.rates);
        self.recent.retain(|recent| now < recent.placed_at.after(lag));
        self.sum();
        self.reported_rows = report.pending_rows;
        self.settled_at = now;
        let requests = report.running.saturating_add(report.waiting);
        self.report = Some(Reported { at: now, requests, pending });
    }

    /// Takes what the worker measured; what it did not stays as it is.
    fn take_rates(&mut self, measured: WorkerRates) {
        let WorkerRates {
            step_ns,
            restore_host_ns,
            restore_disk_ns,
            restore_remote_ns,
            restore_peer_ns,
            handoff_ns,
        } = measured;
        let rates = [
            (step_ns, &mut self.rates.step),
            (restore_host_ns, &mut self.rates.restore_host),
            (restore_disk_ns, &mut self.rates.restore_disk),
            (restore_remote_ns, &mut self.rates.restore_remote),
            (restore_peer_ns, &mut self.rates.restore_peer),
            (handoff_ns, &mut self.rates.handoff),
        ];
        for (nanos, rate) in rates {
            if nanos != 0 {
                *rate = Nanos(nanos);
            }
        }
    }

    fn reported_requests(&self, stale: Duration, now: Timestamp) -> u32 {
        let fresh = self.report.filter(|report| now < report.at.after(stale));
        fresh.map_or(0, |report| report.requests)
    }

    fn relief(&self, stale: Duration, now: Timestamp) -> Option<Timestamp> {
        let report = self.report.filter(|report| 0 < report.requests);
        let report = report.map(|report| report.at.after(stale));
        let mut rows = self.reported_rows;
        let drains = self.recent.iter().map(|recent| {
            rows = rows.saturating_add(recent.rows);
            self.settled_at.after(self.rates.pace.time_for(rows).into())
        });
        drains.chain(report).filter(|&at| now < at).min()
    }
}

/// Takes up to `rows` from `from`; what could not be taken.
fn drain(from: &mut u64, rows: u64) -> u64 {
    let taken = rows.min(*from);
    *from -= taken;
    rows - taken
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{LoadReport, RequestId, StartGeometry, Timestamp, WorkerRates};

    use super::Loads;
    use crate::config::RouterConfig;
    use crate::nanos::Nanos;
    use crate::role::Role;
    use crate::testing::rank;

    const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    fn loads() -> Loads {
        let config = RouterConfig::with_defaults(GEOMETRY);
        let mut loads = Loads::new(config.loads, &config.cost);
        loads.join(rank(0), Role::Prefill, at(0));
        loads
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp(0).after(Duration::from_millis(ms))
    }

    fn rows(loads: &Loads, ms: u64) -> u64 {
        loads.of(rank(0)).expect("a member").rows(at(ms))
    }

    fn requests(loads: &Loads, ms: u64) -> u32 {
        loads.requests(loads.of(rank(0)).expect("a member"), at(ms))
    }

    fn report(requests: u32, pending_rows: u64, rows_per_second: f64) -> LoadReport {
        LoadReport { running: requests, pending_rows, rows_per_second, ..LoadReport::default() }
    }

    #[test]
    fn placed_rows_drain_at_the_pace_in_order() {
        let mut loads = loads();
        loads.place(rank(0), RequestId(1), 100, at(0));
        loads.place(rank(0), RequestId(2), 50, at(20));
        assert_eq!([rows(&loads, 20), rows(&loads, 70), rows(&loads, 500)], [130, 80, 0]);
        assert_eq!([99, 100, 149, 150].map(|ms| requests(&loads, ms)), [2, 1, 1, 0]);
        loads.finish(rank(0), RequestId(1), at(60));
        assert_eq!(rows(&loads, 60), 50, "a cancelled request gives its rows back");
        assert_eq!(loads.of(rank(0)).expect("a member").placed(), 1);
    }

    #[test]
    fn many_short_steps_drain_as_much_as_one_long_step() {
        let mut loads = loads();
        loads.place(rank(0), RequestId(1), 1_000, at(0));
        // 0.3 ms each, less than a row.
        for step in 1..=1_000_u64 {
            let now = Timestamp(step * 300_000);
            loads.place(rank(0), RequestId(2), 0, now);
            loads.finish(rank(0), RequestId(2), now);
        }
        assert_eq!(rows(&loads, 300), 700);
    }

    #[test]
    fn a_report_replaces_what_it_can_have_seen() {
        let mut loads = loads();
        loads.place(rank(0), RequestId(1), 1_000, at(0));
        loads.place(rank(0), RequestId(2), 1_000, at(980));
        assert!(loads.report(rank(0), &report(1, 300, 0.0), at(1_000)));
        assert_eq!(rows(&loads, 1_000), 1_300, "request 2 is younger than the report's lag");
        assert_eq!(requests(&loads, 1_000), 2);
        assert!(loads.report(rank(0), &report(2, 1_100, 2_000.0), at(1_100)));
        assert_eq!([rows(&loads, 1_100), rows(&loads, 1_200)], [1_100, 900], "2,000 rows/s now");
        assert_eq!([requests(&loads, 2_000), requests(&loads, 6_100)], [2, 0], "stale after 5 s");
        assert!(!loads.report(rank(7), &report(0, 0, 0.0), at(0)), "not a member");
    }

    #[test]
    fn a_slow_rate_without_waiting_rows_is_no_measurement() {
        // (pending rows, reported rate) in turn; the pace believed after each.
        let steps = [
            (0, 20.0, 1_000),
            (0, 5_000.0, 1_000),
            (500, 400.0, 400),
            (0, 300.0, 300),
            (0, 20.0, 300),
            (0, 900.0, 900),
            (10, f64::NAN, 900),
        ];
        let mut loads = loads();
        for (step, (pending, rate, believed)) in steps.into_iter().enumerate() {
            loads.report(rank(0), &report(1, pending, rate), at(0));
            let pace = loads.of(rank(0)).expect("a member").rates().pace;
            assert_eq!(pace.rows_per_second(), believed, "step {step}");
        }
    }

    #[test]
    fn measured_rates_replace_configured_ones_and_stay() {
        let mut loads = loads();
        let configured = *loads.of(rank(0)).expect("a member").rates();
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let rates = WorkerRates {
            restore_peer_ns: 3_000_000,
            restore_disk_ns: 4_000_000,
            step_ns: 9_000_000,
            ..WorkerRates::default()
        };
        for rates in [rates, WorkerRates::default()] {
            loads.report(rank(0), &LoadReport { rates, ..LoadReport::default() }, at(0));
            let known = loads.of(rank(0)).expect("a member").rates();
            assert_eq!((known.restore_peer, known.step), (ms(3), ms(9)));
            assert_eq!(
                (known.restore_disk, known.restore_remote),
                (ms(4), configured.restore_remote)
            );
            assert_eq!(
                (known.restore_host, known.handoff),
                (configured.restore_host, configured.handoff)
            );
        }
    }

    #[test]
    fn relief_is_the_next_time_a_count_falls() {
        let mut loads = loads();
        assert_eq!(loads.prefill_relief(at(0)), None);
        loads.place(rank(0), RequestId(1), 100, at(0));
        loads.place(rank(0), RequestId(2), 100, at(0));
        assert_eq!(loads.prefill_relief(at(0)), Some(at(100)));
        assert_eq!(loads.prefill_relief(at(100)), Some(at(200)));
        assert_eq!(loads.prefill_relief(at(200)), None);
        loads.report(rank(0), &report(3, 0, 0.0), at(300));
        assert_eq!(loads.prefill_relief(at(300)), Some(at(5_300)));
        assert_eq!(requests(&loads, 5_299), 3);
        assert_eq!(requests(&loads, 5_300), 0);
    }
}
