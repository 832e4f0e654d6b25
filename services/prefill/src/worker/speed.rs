//! Measured speeds, and what they make things cost.

use std::time::Duration;

use kvstore::StartCosts;
use shared::{KvLayout, MeanTime, WorkerRates};

use crate::config::PrefillConfig;

/// Weight of the newest measurement. A machine changes its speed slowly, a measurement is noisy: after ten steps two
/// thirds of the average are newer than a change.
const NEWEST: f64 = 0.1;

/// Blocks remembered for what the router is told: some prompts.
const BLOCKS: u32 = 1_024;

/// Moving averages; the configured values until something was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Rows of recent steps and their seconds, both fading: a step of few rows weighs as little as it took.
    recent: Option<(f64, f64)>,
    read_bytes_per_second: Option<f64>,
    restore_host: MeanTime,
    rows_per_second_initial: f64,
    read_bytes_per_second_initial: f64,
}

impl Speed {
    pub(super) fn new(config: &PrefillConfig) -> Self {
        Self {
            recent: None,
            read_bytes_per_second: None,
            restore_host: MeanTime::over(BLOCKS),
            rows_per_second_initial: config.rows_per_second_initial,
            read_bytes_per_second_initial: config.read_bytes_per_second_initial,
        }
    }

    /// A step of `rows` rows took this long.
    pub(super) fn computed(&mut self, rows: u32, took: Duration) {
        if took.is_zero() || rows == 0 {
            return;
        }
        let (old_rows, old_seconds) = self.recent.unwrap_or((0.0, 0.0));
        let rows = old_rows * (1.0 - NEWEST) + f64::from(rows);
        self.recent = Some((rows, old_seconds * (1.0 - NEWEST) + took.as_secs_f64()));
    }

    /// The reads of one request brought this many bytes in this time.
    pub(super) fn read(&mut self, bytes: u32, took: Duration, layout: &KvLayout) {
        let block = u32::try_from(layout.block_bytes()).unwrap_or(u32::MAX);
        self.restore_host.note(took, u64::from(bytes / block));
        average(&mut self.read_bytes_per_second, f64::from(bytes), took);
    }

    /// Rows per second of recent steps, 0 while unknown.
    pub(super) fn rows_per_second(&self) -> f64 {
        self.recent.map_or(0.0, |(rows, seconds)| rows / seconds)
    }

    /// As the router is told. A prefill worker reads from stores alone.
    pub(super) fn rates(&self) -> WorkerRates {
        WorkerRates { restore_host_ns: self.restore_host.nanoseconds(), ..WorkerRates::default() }
    }

    pub(super) fn costs(&self, layout: &KvLayout) -> StartCosts {
        let bytes_per_second =
            self.read_bytes_per_second.unwrap_or(self.read_bytes_per_second_initial);
        let fetch_ms = |bytes: usize| {
            let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
            bytes / bytes_per_second * 1_000.0
        };
        StartCosts {
            block_fetch_ms: fetch_ms(layout.block_bytes()),
            window_fetch_ms: fetch_ms(layout.window_bytes()),
            encoder_row_ms: 1_000.0
                / self
                    .recent
                    .map_or(self.rows_per_second_initial, |(rows, seconds)| rows / seconds),
        }
    }
}

/// Takes a measurement into an average. One without time or amount says nothing about speed.
fn average(average: &mut Option<f64>, amount: f64, took: Duration) {
    if took.is_zero() || amount == 0.0 {
        return;
    }
    let measured = amount / took.as_secs_f64();
    *average = Some(average.map_or(measured, |old| old + NEWEST * (measured - old)));
}
