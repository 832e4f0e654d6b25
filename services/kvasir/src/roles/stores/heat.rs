//! Which groups are looked up often.
//!
//! Lookups are counted in windows of time, one behind the other; a group is hot while the current or the last window has
//! enough of them. Pure: time comes in as a value.
//!
//! Invariants: the number of groups counted is bounded; beyond it new groups count as cold until old ones have aged out.

use std::collections::HashMap;
use std::time::Duration;

use shared::{BlockName, Timestamp};

use crate::config::StoresConfig;

/// Groups counted at a time: 64 million tokens that were looked up within two windows, about 1 MB.
const GROUPS_MAX: usize = 16_384;

/// See the module's documentation.
pub(super) struct Heat {
    lookups_min: u32,
    window: Duration,
    groups: HashMap<BlockName, Count>,
    /// When old groups were last removed: at most once per window, since it looks at all of them.
    swept: Option<Timestamp>,
}

/// Lookups of one group.
#[derive(Clone, Copy)]
struct Count {
    /// Begin of the current window.
    since: Timestamp,
    current: u32,
    last: u32,
}

impl Count {
    /// The counts as they stand now.
    fn moved_to(self, now: Timestamp, window: Duration) -> Self {
        let passed = now.since(self.since);
        if passed < window {
            return self;
        }
        let last = if passed < window * 2 { self.current } else { 0 };
        Self { since: now, current: 0, last }
    }
}

impl Heat {
    pub(super) fn new(config: &StoresConfig) -> Self {
        Self {
            lookups_min: config.hot_lookups_min,
            window: config.hot_window(),
            groups: HashMap::new(),
            swept: None,
        }
    }

    /// Counts a lookup. When the group is hot, a number that changes from lookup to lookup.
    pub(super) fn count(&mut self, group: BlockName, now: Timestamp) -> Option<usize> {
        if GROUPS_MAX <= self.groups.len() && !self.groups.contains_key(&group) {
            self.sweep(now);
            if GROUPS_MAX <= self.groups.len() {
                return None;
            }
        }
        let fresh = Count { since: now, current: 0, last: 0 };
        let count = self.groups.entry(group).or_insert(fresh);
        *count = count.moved_to(now, self.window);
        count.current = count.current.saturating_add(1);
        let turn = usize::try_from(count.current).unwrap_or(0);
        let hot = self.lookups_min <= count.current.max(count.last);
        hot.then_some(turn)
    }

    /// Whether a group is hot now.
    pub(super) fn is_hot(&self, group: BlockName, now: Timestamp) -> bool {
        self.groups.get(&group).is_some_and(|count| {
            let count = count.moved_to(now, self.window);
            self.lookups_min <= count.current.max(count.last)
        })
    }

    fn sweep(&mut self, now: Timestamp) {
        if self.swept.is_some_and(|swept| now.since(swept) < self.window) {
            return;
        }
        self.swept = Some(now);
        let stale = self.window * 2;
        self.groups.retain(|_, count| now.since(count.since) < stale);
    }
}

#[cfg(test)]
mod tests {
    use shared::{BlockName, Timestamp};

    use super::{GROUPS_MAX, Heat};
    use crate::config::StoresConfig;

    fn heat() -> Heat {
        let config =
            StoresConfig { hot_lookups_min: 3, hot_window_s: 10, ..StoresConfig::default() };
        Heat::new(&config)
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn group(number: usize) -> BlockName {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&number.to_le_bytes());
        BlockName(name)
    }

    #[test]
    fn enough_lookups_within_a_window_make_a_group_hot_until_the_next_one_is_over() {
        // Seconds of the lookups, then whether it is hot at those seconds.
        type Case = (&'static [u64], &'static [(u64, bool)]);
        let cases: [Case; 4] = [
            (&[0, 1], &[(1, false)]),
            (&[0, 1, 9], &[(9, true), (15, true), (19, true), (20, false)]),
            (&[0, 1, 10], &[(10, false)]),
            (&[0, 1, 2, 12, 21, 22], &[(22, false), (41, false)]),
        ];
        for (lookups, asked) in cases {
            let mut heat = heat();
            for second in lookups {
                heat.count(group(1), at(*second));
            }
            for (second, hot) in asked {
                assert_eq!(heat.is_hot(group(1), at(*second)), *hot, "{lookups:?} at {second}");
            }
            assert!(!heat.is_hot(group(2), at(0)));
        }
    }

    #[test]
    fn lookups_of_a_hot_group_take_turns() {
        let mut heat = heat();
        let turns: Vec<_> = (0..5).map(|_| heat.count(group(1), at(0))).collect();
        assert_eq!(turns, [None, None, Some(3), Some(4), Some(5)]);
    }

    #[test]
    fn beyond_the_bound_new_groups_stay_cold_until_old_ones_aged_out() {
        let mut heat = heat();
        for number in 0..GROUPS_MAX {
            heat.count(group(number), at(0));
        }
        let fresh = group(GROUPS_MAX);
        for second in [1, 1, 1, 12, 12, 12] {
            assert_eq!(heat.count(fresh, at(second)), None);
        }
        assert_eq!(heat.groups.len(), GROUPS_MAX);
        // Known groups are counted all the same.
        let known: Vec<_> = (0..2).map(|_| heat.count(group(0), at(12))).collect();
        assert_eq!(known, [None, None]);
        for expected in [None, None, Some(3)] {
            assert_eq!(heat.count(fresh, at(22)), expected);
        }
        assert_eq!(heat.groups.len(), 2, "the new one, and the one in use");
    }
}
