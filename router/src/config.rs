//! Everything that can be set about placement. Parsed by the binary, checked by [`RouterConfig::validate`].

use std::collections::BTreeMap;
use std::time::Duration;

use shared::{StartGeometry, TenantId};

use crate::policy::Policy;

/// Settings of one router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterConfig {
    /// The model's hand-off numbers, from its `config.json`. No default: they belong to the model.
    pub geometry: StartGeometry,
    /// Seed of the hash that breaks ties between equally good workers. Any value, default 0. Give replicas of the
    /// router different seeds, so that they do not all choose the same worker.
    pub seed: u64,
    /// Most members at a time, all roles together. Members, 1..=65,535, default 512: eight times the fleet the design
    /// is measured with.
    pub workers_max: u16,
    /// Most (block, holder) pairs in the first level of the prefix index. Pairs, at least 1, at most 2^31, default
    /// 2,000,000: 256 million tokens at one holder each, about 70 MB. Blocks stored beyond it stay unknown to the router and
    /// are counted.
    pub index_entries_max: usize,
    /// How a worker is chosen among those that can take a request. Default `cost`. Whether prefill is visited is decided by
    /// cost under every policy.
    pub policy: Policy,
    /// How far above the mean load a worker may be and still be chosen for its cached prefix or for a session, in percent
    /// of the mean; 4 requests are always allowed on top. At least 100, default 125: the bound of consistent hashing with
    /// bounded loads (Mirrokni et al., 2018). Used by the policies `cache_aware` and `session`.
    pub load_bound_percent: u32,
    /// Most (block, store, tier) entries in the second level, for what stores hold on their drives and below. Entries,
    /// default 8,000,000: 910 GB of blocks, about 37 MB, of which 2 MB are taken at the start. 0: there is no second level,
    /// and such blocks take entries of the first one. Blocks beyond it stay unknown to the router and are counted.
    pub index_drive_blocks_max: usize,
    /// For how long the blocks of a placed request are expected of its workers, unless these say that they have them.
    /// Default 5 s: a worker says so as soon as a block is sealed, and a prompt in its queue is begun within seconds or
    /// would have been placed elsewhere. 0: nothing is expected.
    pub expected_blocks: Duration,
    /// Most blocks that are expected at a time, counted for each request, of other routers too, and worker. Blocks, default 200,000: 5 s of 200
    /// requests per second with 100 blocks each at two workers. What is beyond it is not expected, and counted.
    pub expected_blocks_max: usize,
    /// Bounds of the queue and of the workers.
    pub admission: AdmissionConfig,
    /// Weights of tenants in the queue: a tenant of weight 2 is served twice as much as one of weight 1 while both wait.
    /// Each 1..=1,000; tenants not named have 1. At most 65,536 names. Default: none.
    pub tenant_weights: BTreeMap<TenantId, u32>,
    /// Prices that are not measured yet, and what decides between prefill and direct decode.
    pub cost: CostConfig,
    /// When a worker is steered away from, drained or spared.
    pub life: LifeConfig,
    /// How load reports are read.
    pub loads: LoadConfig,
    /// How lost events are asked for again.
    pub resync: ResyncConfig,
    /// What is kept about past decisions.
    pub records: RecordConfig,
}

/// Bounds of the queue and of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionConfig {
    /// Most requests that wait for a worker; more are refused. Requests, 0 (nobody waits) and up, default 256: at a
    /// few requests per second a longer queue only holds answers nobody waits for any more.
    pub waiting_max: usize,
    /// Requests that are tried in turn, when the first in the queue finds no worker, before the rest waits too. Requests, at
    /// least 1, default 8: each costs a decision of some microseconds with every event. Those known to wait for prefill are
    /// passed over without one.
    pub look_ahead_max: usize,
    /// Most placements of more urgent classes in a row while a class waits; the next one is its own. Placements, at least
    /// 1, default 16. So no class starves: priorities are not strict.
    pub priority_passes_max: u32,
    /// Tenants whose use of the queue is remembered for a while after their last request in it. Tenants, at least 1,
    /// default 1,024. Those that wait always are; they are bounded by `waiting_max`.
    pub tenants_max: usize,
    /// Most requests placed on one decode worker at a time. Requests, at least 1, default 64: the batch beyond which a
    /// step gets longer in proportion, so that more would only slow all.
    pub decode_running_max: u32,
    /// Most requests expected to be in work or waiting at one prefill worker. Requests, at least 1, default 16:
    /// enough to keep it busy between two load reports; what waits here can still be placed elsewhere.
    pub prefill_running_max: u32,
    /// The retry hint of a refusal while no completion was seen yet. At most `retry_after_max`, default 1 s.
    pub retry_after_unmeasured: Duration,
    /// Least retry hint. Default 100 ms: below it a refused client is a busy loop.
    pub retry_after_min: Duration,
    /// Largest retry hint. At least `retry_after_min`, default 60 s: a client should not be sent away for longer than a
    /// restart takes.
    pub retry_after_max: Duration,
}

/// Prices that are not measured yet, and what decides between prefill and direct decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostConfig {
    /// Rows per second of a prefill worker that has not reported a measurement. At least 1, default 1,000: the order of
    /// one CPU worker; wrong by any factor, it is equally wrong for all unmeasured workers.
    pub prefill_rows_per_second: u32,
    /// Rows per second of a decode worker that has not reported a measurement. At least 1, default 1,000, as above.
    pub decode_rows_per_second: u32,
    /// Time to bring one block from a store's host memory. Default 50 us: 113,920 bytes at 4 GB/s and a request.
    pub restore_host: Duration,
    /// Time to bring one block from a store's drive. Default 200 us: 113,920 bytes at 1 GB/s and a seek of 100 us.
    pub restore_disk: Duration,
    /// Time to bring one block from another node or an object store. Default 1 ms: one round trip to it.
    pub restore_remote: Duration,
    /// Time to read one block from the prefill worker. Default 50 us, as for host memory.
    pub restore_peer: Duration,
    /// From the end of prefill's work to the last block and the window object being read. Default 5 ms.
    pub handoff: Duration,
    /// Tokens of an answer before any ended. At least 1, default 256. What a request's answer costs those that run beside it
    /// is this, or its own bound if that is less, times a row of the worker.
    pub answer_tokens: u32,
    /// Most rows of [0, S) that a decode worker is asked to compute while prefill workers are members. Rows, 0 (visit
    /// prefill whenever something of [0, S) is missing) and up, default 2,048: a prompt of many thousand rows would
    /// stall the answers of others for seconds, whatever the estimate says.
    pub direct_rows_max: u32,
    /// Rows expected to be recomputed below a start at a cached prefix, because window objects are not in the index.
    /// Rows, 0 and up, default W: the bounded replay. Set L_enc * (W - 1) for clusters of lineage exact.
    pub replay_rows: u32,
    /// Candidates whose cost is at most this much above the best are equal, and the least loaded of them wins.
    /// Default 1 ms: estimates are not better than that.
    pub tie_margin: Duration,
}

/// When a worker is steered away from, drained or spared. All but draining only steer: such a worker is chosen all the
/// same when there is no other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeConfig {
    /// Failed requests in a row, none completed between them, that open a worker's circuit breaker. At least 1, default
    /// 3: one or two may be the request's own fault.
    pub failures_max: u32,
    /// How long the breaker stays open the first time; then one request probes the worker. Each failed probe doubles it.
    /// More than 0, default 5 s: as long as a process takes to start again.
    pub open_min: Duration,
    /// Longest time between two probes. At least `open_min`, default 60 s.
    pub open_max: Duration,
    /// A worker that has work and reported no progress for this long counts as stuck. More than 0, default 15 s: longer
    /// than a step of any model that is served, shorter than the silence after which its link is made anew.
    pub wedged_after: Duration,
    /// How long a worker that drains may take for what it has; then what runs there is forgotten, while it drains on. Default
    /// 10 min: long answers end, and those that hang do not count for ever.
    pub drain_max: Duration,
    /// How long after a worker left its failures, its circuit breaker, its warm-up and an operator's drain are kept for its
    /// return. Default 10 min: longer than a restart, shorter than a worker is repaired. 0: who comes back is new.
    pub remember: Duration,
    /// Requests that a new worker serves before it counts as warm. Requests, 0 (none) and up, default 8.
    pub warm_up_requests: u32,
    /// Share of the requests with nothing cached on it that a worker may get until it is warm, in percent, while warm
    /// workers have room. 1..=100, default 25: it would otherwise get them all, being idle, with cold memory and no
    /// measured rates.
    pub warm_up_percent: u32,
}

/// How load reports are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// A report shows the requests placed at least this long before it arrived; younger ones are counted on top.
    /// Default 50 ms: a placement's way to the worker plus the report's way back.
    pub report_lag: Duration,
    /// The request counts of a report older than this count no more. At least `report_lag`, default 5 s: many report
    /// intervals, so that a worker whose reports are lost is used again instead of looking busy for ever.
    pub report_stale: Duration,
}

/// How lost events are asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncConfig {
    /// Least time between two requests to the same worker after a gap, but for the one that follows its digests. More
    /// than 0, default 1 s.
    pub retry: Duration,
    /// Most requests of one kind after one gap: digests, then the ranges that differ, then everything. At least 1,
    /// default 5. Before everything is asked for, what the worker said is believed no more; after as many of those
    /// requests the view stays incomplete until the next gap, clear or restart, and shows as stale.
    pub attempts_max: u32,
}

/// What is kept about past decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Decision records kept, oldest dropped first. Records, 0 (none) and up, default 1,024: minutes of traffic in
    /// at most 2 MB.
    pub decisions_max: usize,
    /// Candidates kept per record and role, cheapest first. At least 1, default 8: finding, ordering and keeping each of them is
    /// a part of every decision.
    pub candidates_max: usize,
}

/// A setting outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("router setting {field} is out of range: expected {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// What it must be, in words.
    pub expected: &'static str,
}

impl RouterConfig {
    /// All settings at the defaults documented at the fields, for a model of this geometry.
    #[must_use]
    pub fn with_defaults(geometry: StartGeometry) -> Self {
        Self {
            geometry,
            seed: 0,
            workers_max: 512,
            index_entries_max: 2_000_000,
            policy: Policy::Cost,
            load_bound_percent: 125,
            tenant_weights: BTreeMap::new(),
            index_drive_blocks_max: 8_000_000,
            expected_blocks: Duration::from_secs(5),
            expected_blocks_max: 200_000,
            admission: AdmissionConfig {
                waiting_max: 256,
                look_ahead_max: 8,
                priority_passes_max: 16,
                tenants_max: 1_024,
                decode_running_max: 64,
                prefill_running_max: 16,
                retry_after_unmeasured: Duration::from_secs(1),
                retry_after_min: Duration::from_millis(100),
                retry_after_max: Duration::from_secs(60),
            },
            cost: CostConfig {
                prefill_rows_per_second: 1_000,
                decode_rows_per_second: 1_000,
                restore_host: Duration::from_micros(50),
                restore_disk: Duration::from_micros(200),
                restore_remote: Duration::from_millis(1),
                restore_peer: Duration::from_micros(50),
                handoff: Duration::from_millis(5),
                answer_tokens: 256,
                direct_rows_max: 2_048,
                replay_rows: geometry.window,
                tie_margin: Duration::from_millis(1),
            },
            life: LifeConfig {
                failures_max: 3,
                open_min: Duration::from_secs(5),
                open_max: Duration::from_secs(60),
                wedged_after: Duration::from_secs(15),
                drain_max: Duration::from_secs(600),
                remember: Duration::from_secs(600),
                warm_up_requests: 8,
                warm_up_percent: 25,
            },
            loads: LoadConfig {
                report_lag: Duration::from_millis(50),
                report_stale: Duration::from_secs(5),
            },
            resync: ResyncConfig { retry: Duration::from_secs(1), attempts_max: 5 },
            records: RecordConfig { decisions_max: 1_024, candidates_max: 8 },
        }
    }

    /// Checks every range that the types do not.
    ///
    /// # Errors
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let weights = &self.tenant_weights;
        let weights_hold = weights.len() <= WEIGHTS_MAX
            && weights.values().all(|weight| (1..=1_000).contains(weight));
        let checks = [
            (0 < self.workers_max, "workers_max", "at least 1"),
            (0 < self.index_entries_max, "index_entries_max", "at least 1"),
            (100 <= self.load_bound_percent, "load_bound_percent", "at least 100"),
            (weights_hold, "tenant_weights", "1..=1000 for at most 65536 tenants"),
            (self.index_entries_max <= 1 << 31, "index_entries_max", "at most 2147483648"),
            (0 < self.cost.prefill_rows_per_second, "cost.prefill_rows_per_second", "at least 1"),
            (0 < self.cost.decode_rows_per_second, "cost.decode_rows_per_second", "at least 1"),
            (0 < self.cost.answer_tokens, "cost.answer_tokens", "at least 1"),
            (
                self.loads.report_lag <= self.loads.report_stale,
                "loads.report_stale",
                "at least report_lag",
            ),
            (Duration::ZERO < self.resync.retry, "resync.retry", "more than 0"),
            (0 < self.resync.attempts_max, "resync.attempts_max", "at least 1"),
            (0 < self.records.candidates_max, "records.candidates_max", "at least 1"),
        ];
        first_broken(&checks)?;
        first_broken(&self.admission.checks())?;
        first_broken(&self.life.checks())
    }
}

/// Most tenants with a weight: a table in memory, looked up with each request that waits.
const WEIGHTS_MAX: usize = 65_536;

/// Whether a range holds, the field, and what it must be.
type Check = (bool, &'static str, &'static str);

fn first_broken(checks: &[Check]) -> Result<(), ConfigError> {
    match checks.iter().find(|(holds, ..)| !holds) {
        Some(&(_, field, expected)) => Err(ConfigError { field, expected }),
        None => Ok(()),
    }
}

impl AdmissionConfig {
    fn checks(&self) -> [Check; 7] {
        [
            (0 < self.look_ahead_max, "admission.look_ahead_max", "at least 1"),
            (0 < self.priority_passes_max, "admission.priority_passes_max", "at least 1"),
            (0 < self.tenants_max, "admission.tenants_max", "at least 1"),
            (0 < self.decode_running_max, "admission.decode_running_max", "at least 1"),
            (0 < self.prefill_running_max, "admission.prefill_running_max", "at least 1"),
            (
                self.retry_after_min <= self.retry_after_max,
                "admission.retry_after_max",
                "at least retry_after_min",
            ),
            (
                self.retry_after_unmeasured <= self.retry_after_max,
                "admission.retry_after_unmeasured",
                "at most retry_after_max",
            ),
        ]
    }
}

impl LifeConfig {
    fn checks(&self) -> [Check; 5] {
        let percent = (1..=100).contains(&self.warm_up_percent);
        [
            (0 < self.failures_max, "life.failures_max", "at least 1"),
            (Duration::ZERO < self.open_min, "life.open_min", "more than 0"),
            (self.open_min <= self.open_max, "life.open_max", "at least open_min"),
            (Duration::ZERO < self.wedged_after, "life.wedged_after", "more than 0"),
            (percent, "life.warm_up_percent", "1..=100"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{StartGeometry, TenantId};

    use super::RouterConfig;

    const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    #[test]
    fn defaults_are_valid() {
        assert_eq!(RouterConfig::with_defaults(FLASH).validate(), Ok(()));
    }

    #[test]
    fn every_range_is_checked() {
        type Change = fn(&mut RouterConfig);
        let cases: [(&str, Change); 24] = [
            ("workers_max", |c| c.workers_max = 0),
            ("index_entries_max", |c| c.index_entries_max = 0),
            ("admission.decode_running_max", |c| c.admission.decode_running_max = 0),
            ("admission.prefill_running_max", |c| c.admission.prefill_running_max = 0),
            ("admission.retry_after_max", |c| c.admission.retry_after_max = Duration::ZERO),
            ("admission.retry_after_unmeasured", |c| {
                c.admission.retry_after_unmeasured = Duration::MAX;
            }),
            ("cost.prefill_rows_per_second", |c| c.cost.prefill_rows_per_second = 0),
            ("cost.decode_rows_per_second", |c| c.cost.decode_rows_per_second = 0),
            ("cost.answer_tokens", |c| c.cost.answer_tokens = 0),
            ("load_bound_percent", |c| c.load_bound_percent = 99),
            ("tenant_weights", |c| {
                c.tenant_weights.insert(TenantId("acme".into()), 0);
            }),
            ("tenant_weights", |c| {
                c.tenant_weights.insert(TenantId("acme".into()), 1_001);
            }),
            ("admission.look_ahead_max", |c| c.admission.look_ahead_max = 0),
            ("admission.priority_passes_max", |c| c.admission.priority_passes_max = 0),
            ("admission.tenants_max", |c| c.admission.tenants_max = 0),
            ("life.failures_max", |c| c.life.failures_max = 0),
            ("life.open_min", |c| c.life.open_min = Duration::ZERO),
            ("life.open_max", |c| c.life.open_max = Duration::ZERO),
            ("life.wedged_after", |c| c.life.wedged_after = Duration::ZERO),
            ("life.warm_up_percent", |c| c.life.warm_up_percent = 0),
            ("loads.report_stale", |c| c.loads.report_stale = Duration::ZERO),
            ("resync.retry", |c| c.resync.retry = Duration::ZERO),
            ("resync.attempts_max", |c| c.resync.attempts_max = 0),
            ("records.candidates_max", |c| c.records.candidates_max = 0),
        ];
        for (field, change) in cases {
            let mut config = RouterConfig::with_defaults(FLASH);
            change(&mut config);
            let error = config.validate().expect_err(field);
            assert_eq!(error.field, field);
        }
    }
}
