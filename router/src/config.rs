//! Everything that can be set about placement. Parsed by the binary, checked by [`RouterConfig::validate`].

use std::time::Duration;

use shared::{StartGeometry, Tier};

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
    /// Most (block, holder) pairs in the prefix index. Pairs, at least 1, default 2,000,000: 256 million tokens at one
    /// holder each, about 170 MB. Blocks stored beyond it stay unknown to the router and are counted.
    pub index_entries_max: usize,
    /// Bounds of the queue and of the workers.
    pub admission: AdmissionConfig,
    /// Prices that are not measured yet, and what decides between prefill and direct decode.
    pub cost: CostConfig,
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
    /// Fixed time of visiting a prefill worker: a request, its first notice, the window object. Default 5 ms.
    pub handoff: Duration,
    /// How dear the time of a decode worker is for rows that a prefill worker could compute, in percent of the
    /// measured time. At least 100, default 300: those rows delay every answer that the worker is giving.
    pub direct_percent: u32,
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
    /// Least time between two requests for the same worker's whole state. More than 0, default 1 s.
    pub retry: Duration,
    /// Most requests after one gap. At least 1, default 5; afterwards the view stays incomplete until the next gap,
    /// clear or restart, and shows as stale.
    pub attempts_max: u32,
}

/// What is kept about past decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Decision records kept, oldest dropped first. Records, 0 (none) and up, default 1,024: minutes of traffic in
    /// at most 4 MB.
    pub decisions_max: usize,
    /// Candidates kept per record and role, cheapest first. At least 1, default 16.
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
            admission: AdmissionConfig {
                waiting_max: 256,
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
                direct_percent: 300,
                direct_rows_max: 2_048,
                replay_rows: geometry.window,
                tie_margin: Duration::from_millis(1),
            },
            loads: LoadConfig {
                report_lag: Duration::from_millis(50),
                report_stale: Duration::from_secs(5),
            },
            resync: ResyncConfig { retry: Duration::from_secs(1), attempts_max: 5 },
            records: RecordConfig { decisions_max: 1_024, candidates_max: 16 },
        }
    }

    /// Checks every range that the types do not.
    ///
    /// # Errors
    /// The first field out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let admission = &self.admission;
        let checks = [
            (0 < self.workers_max, "workers_max", "at least 1"),
            (0 < self.index_entries_max, "index_entries_max", "at least 1"),
            (0 < admission.decode_running_max, "admission.decode_running_max", "at least 1"),
            (0 < admission.prefill_running_max, "admission.prefill_running_max", "at least 1"),
            (
                admission.retry_after_min <= admission.retry_after_max,
                "admission.retry_after_max",
                "at least retry_after_min",
            ),
            (
                admission.retry_after_unmeasured <= admission.retry_after_max,
                "admission.retry_after_unmeasured",
                "at most retry_after_max",
            ),
            (0 < self.cost.prefill_rows_per_second, "cost.prefill_rows_per_second", "at least 1"),
            (0 < self.cost.decode_rows_per_second, "cost.decode_rows_per_second", "at least 1"),
            (100 <= self.cost.direct_percent, "cost.direct_percent", "at least 100"),
            (
                self.loads.report_lag <= self.loads.report_stale,
                "loads.report_stale",
                "at least report_lag",
            ),
            (Duration::ZERO < self.resync.retry, "resync.retry", "more than 0"),
            (0 < self.resync.attempts_max, "resync.attempts_max", "at least 1"),
            (0 < self.records.candidates_max, "records.candidates_max", "at least 1"),
        ];
        for (holds, field, expected) in checks {
            if !holds {
                return Err(ConfigError { field, expected });
            }
        }
        Ok(())
    }
}

impl CostConfig {
    /// Time to bring one block to a worker from a tier; nothing from the worker's own slab.
    #[must_use]
    pub fn restore(&self, tier: Tier) -> Duration {
        match tier {
            Tier::Device => Duration::ZERO,
            Tier::Host => self.restore_host,
            Tier::Disk => self.restore_disk,
            Tier::Remote => self.restore_remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::StartGeometry;

    use super::RouterConfig;

    const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    #[test]
    fn defaults_are_valid() {
        assert_eq!(RouterConfig::with_defaults(FLASH).validate(), Ok(()));
    }

    #[test]
    fn every_range_is_checked() {
        type Change = fn(&mut RouterConfig);
        let cases: [(&str, Change); 13] = [
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
            ("cost.direct_percent", |c| c.cost.direct_percent = 99),
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
