//! The terms of a cost by name, for reports.

use std::time::Duration;

use crate::cost::Cost;

impl Cost {
    /// Every term under the word used in reports, in the order in which a request meets them. They add up to
    /// [`Cost::total`].
    #[must_use]
    pub fn terms(&self) -> [(&'static str, Duration); 7] {
        // Without `..`, so that a term added there does not compile here until it has a word.
        let Self { prefill_queue, decode_queue, restore, recompute, handoff, tail, interference } =
            *self;
        [
            ("prefill_queue", prefill_queue.into()),
            ("decode_queue", decode_queue.into()),
            ("restore", restore.into()),
            ("recompute", recompute.into()),
            ("handoff", handoff.into()),
            ("tail", tail.into()),
            ("interference", interference.into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cost::Cost;
    use crate::nanos::Nanos;

    #[test]
    fn terms_add_up_to_the_total() {
        let ms = |ms: u64| Nanos(ms * 1_000_000);
        let cost = Cost {
            prefill_queue: ms(1),
            decode_queue: ms(2),
            restore: ms(4),
            recompute: ms(8),
            handoff: ms(16),
            tail: ms(32),
            interference: ms(64),
        };
        let sum: Duration = cost.terms().iter().map(|(_, time)| *time).sum();
        assert_eq!(sum, cost.total().into());
    }
}
