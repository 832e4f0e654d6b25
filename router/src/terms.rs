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
            ("prefill_queue", prefill_queue),
            ("decode_queue", decode_queue),
            ("restore", restore),
            ("recompute", recompute),
            ("handoff", handoff),
            ("tail", tail),
            ("interference", interference),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::cost::Cost;

    #[test]
    fn terms_add_up_to_the_total() {
        let ms = Duration::from_millis;
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
        assert_eq!(sum, cost.total());
    }
}
