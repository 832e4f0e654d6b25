//! The retry hint of refusals: how fast running requests end. The queue itself is in `queue.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use shared::Timestamp;

use crate::config::AdmissionConfig;

/// Completions remembered for the retry hint: enough to average over a few batches.
const COMPLETIONS_MAX: usize = 64;

/// How fast running requests end.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    recent: VecDeque<Timestamp>,
}

impl Completions {
    pub(crate) fn note(&mut self, now: Timestamp) {
        if self.recent.len() == COMPLETIONS_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
    }

    /// When a refused client should come back: the time in which as many requests end as wait now.
    pub(crate) fn retry_after(
        &self,
        waiting: usize,
        now: Timestamp,
        config: &AdmissionConfig,
    ) -> Duration {
        let hint = self.interval(now).map(|interval| {
            interval.saturating_mul(u32::try_from(waiting.max(1)).unwrap_or(u32::MAX))
        });
        hint.unwrap_or(config.retry_after_unmeasured)
            .clamp(config.retry_after_min, config.retry_after_max)
    }

    /// Mean time between completions, the time since the last one included, so that a stall shows.
    fn interval(&self, now: Timestamp) -> Option<Duration> {
        let first = self.recent.front()?;
        let count = u32::try_from(self.recent.len()).expect("bounded by COMPLETIONS_MAX");
        if count < 2 {
            return None;
        }
        Some(now.since(*first) / (count - 1))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{StartGeometry, Timestamp};

    use super::Completions;
    use crate::config::RouterConfig;

    const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    #[test]
    fn the_retry_hint_follows_the_completion_rate() {
        let config = RouterConfig::with_defaults(GEOMETRY).admission;
        let ms = |ms: u64| Timestamp(0).after(Duration::from_millis(ms));
        let mut completions = Completions::default();
        let hint = |completions: &Completions, waiting, at| {
            completions.retry_after(waiting, ms(at), &config).as_millis()
        };
        assert_eq!(hint(&completions, 10, 0), 1_000, "unmeasured");
        for done in 0..100 {
            completions.note(ms(done * 50));
        }
        assert_eq!(hint(&completions, 10, 4_950), 500, "ten places at 20 per second");
        assert_eq!(hint(&completions, 1, 4_950), 100, "never below the least hint");
        assert_eq!(hint(&completions, 10, 4_950 + 63_000), 10_500, "a stall shows");
        assert_eq!(hint(&completions, 10_000, 4_950), 60_000, "never above the largest");
    }
}
