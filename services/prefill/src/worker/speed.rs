//! Measured speeds, and what they make things cost.

use std::time::Duration;

use kvstore::StartCosts;
use shared::{Brought, KvLayout, RestoreTimes, StepPace, WorkerRates};

use crate::config::PrefillConfig;

/// Weight of the newest measurement. A machine changes its speed slowly, a measurement is noisy: after ten steps two
/// thirds of the average are newer than a change.
const NEWEST: f64 = 0.1;

/// Moving averages; the configured values until something was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pace: StepPace,
    /// Rows of a full step.
    step_rows_max: u32,
    read_bytes_per_second: Option<f64>,
    restores: RestoreTimes,
    rows_per_second_initial: f64,
    read_bytes_per_second_initial: f64,
}

impl Speed {
    pub(super) fn new(config: &PrefillConfig) -> Self {
        Self {
            pace: StepPace::new(NEWEST),
            step_rows_max: config.step_rows_max,
            read_bytes_per_second: None,
            restores: RestoreTimes::default(),
            rows_per_second_initial: config.rows_per_second_initial,
            read_bytes_per_second_initial: config.read_bytes_per_second_initial,
        }
    }

    /// A step of `rows` rows took this long.
    pub(super) fn computed(&mut self, rows: u32, took: Duration) {
        self.pace.step(rows, took);
    }

    /// A lookup of the store was answered after this time.
    pub(super) fn looked_up(&mut self, took: Duration, brought: Brought) {
        self.restores.looked_up(took, brought);
    }

    /// The reads of one request brought this many bytes in this time.
    pub(super) fn read(&mut self, bytes: u32, took: Duration, layout: &KvLayout) {
        let block = u32::try_from(layout.block_bytes()).unwrap_or(u32::MAX);
        self.restores.read(took, u64::from(bytes / block));
        average(&mut self.read_bytes_per_second, f64::from(bytes), took);
    }

    /// Rows per second of a full step, 0 while unknown.
    pub(super) fn rows_per_second(&self) -> f64 {
        self.pace.rows_per_second(self.step_rows_max)
    }

    /// As the router is told. A prefill worker reads from stores alone.
    pub(super) fn rates(&self) -> WorkerRates {
        let mut rates = WorkerRates::default();
        self.restores.tell(&mut rates);
        rates
    }

    pub(super) fn costs(&self, layout: &KvLayout) -> StartCosts {
        let bytes_per_second =
            self.read_bytes_per_second.unwrap_or(self.read_bytes_per_second_initial);
        let fetch_ms = |bytes: usize| {
            let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
            bytes / bytes_per_second * 1_000.0
        };
        let measured = self.rows_per_second();
        let rows = if 0.0 < measured { measured } else { self.rows_per_second_initial };
        StartCosts {
            block_fetch_ms: fetch_ms(layout.block_bytes()),
            window_fetch_ms: fetch_ms(layout.window_bytes()),
            encoder_row_ms: 1_000.0 / rows,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{Brought, KvLayout, KvShape, SourceShape, WorkerRates};

    use super::Speed;
    use crate::config::PrefillConfig;

    #[test]
    fn what_was_measured_is_told_and_prices_the_next_start() {
        let sources = vec![SourceShape { layer: 2, ratio: 2 }];
        let shape = KvShape { head_dim: 512, index_dim: 128, encoder_layers: 20, sources };
        let layout = KvLayout::new(shape).expect("a valid shape");
        let config = PrefillConfig::STANDARD;
        let mut speed = Speed::new(&config);
        assert_eq!(speed.rates(), WorkerRates::default(), "nothing is known yet");
        let assumed = speed.costs(&layout);
        assert_eq!(assumed.encoder_row_ms, 1_000.0 / config.rows_per_second_initial);
        let block = u32::try_from(layout.block_bytes()).expect("small");
        speed.looked_up(Duration::from_micros(600), Brought { disk: 3, remote: 0 });
        speed.looked_up(Duration::from_micros(600), Brought::default());
        speed.read(4 * block, Duration::from_micros(80), &layout);
        speed.computed(0, Duration::from_secs(9));
        speed.computed(500, Duration::from_millis(250));
        let told = speed.rates();
        assert_eq!((told.restore_host_ns, told.restore_disk_ns), (20_000, 220_000));
        assert_eq!((told.restore_remote_ns, told.restore_peer_ns, told.handoff_ns), (0, 0, 0));
        let costs = speed.costs(&layout);
        assert!((costs.block_fetch_ms - 0.02).abs() < 1e-9, "{costs:?}");
        assert!((costs.encoder_row_ms - 0.5).abs() < 1e-9, "{costs:?}");
    }
}
