//! What is counted in a run. Ratios are always sums over sums.

use std::time::Duration;

use shared::{BLOCK_TOKENS, Timestamp};

use crate::settings::{real, wide};

/// Where a block of a prompt came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The slab of the decode worker.
    Device,
    /// The slab of the prefill worker.
    Peer,
    /// A store's host memory.
    Host,
    /// A store's drive.
    Disk,
}

impl Origin {
    pub(crate) const ALL: [Self; 4] = [Self::Device, Self::Peer, Self::Host, Self::Disk];
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its answer is complete.
    Finished,
    /// No router took it: its queue was full.
    Overloaded,
    /// A worker's queue was full, or the prompt fits no worker.
    Refused,
    /// Its deadline passed.
    Late,
    /// Its worker was lost and no other one was found in time.
    Lost,
}

impl Outcome {
    pub(crate) const ALL: [Self; 5] =
        [Self::Finished, Self::Overloaded, Self::Refused, Self::Late, Self::Lost];
}

/// Parts of a power of two that are told apart: times are right to 1/64.
const PARTS_BITS: u32 = 6;

/// Times in buckets that grow with them. Bounded: at most 64 buckets for each power of two of nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    buckets: Vec<u64>,
    count: u64,
    sum_ns: u128,
}

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::bucket(ns);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.sum_ns += u128::from(ns);
    }

    /// Milliseconds below which this share of all times lies; none without times. The middle of its bucket.
    pub(crate) fn quantile_ms(&self, share: f64) -> Option<f64> {
        let wanted = share * real(self.count);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|count| {
            below += count;
            0 < below && wanted <= real(below)
        })?;
        let (low, high) = (Self::start(bucket), Self::start(bucket + 1));
        Some((real(low) + real(high)) / 2.0 / 1e6)
    }

    pub(crate) fn mean_ms(&self) -> Option<f64> {
        (0 < self.count).then(|| self.sum_ns as f64 / real(self.count) / 1e6)
    }

    fn bucket(ns: u64) -> usize {
        let parts = 1_u64 << PARTS_BITS;
        let shift = (u64::BITS - ns.leading_zeros()).saturating_sub(PARTS_BITS + 1);
        let bucket = u64::from(shift) * parts + (ns >> shift);
        usize::try_from(bucket).expect("at most 64 parts of 64 powers")
    }

    fn start(bucket: usize) -> u64 {
        let parts = 1_usize << PARTS_BITS;
        let shift = (bucket / parts).saturating_sub(1);
        let unit = u32::try_from(shift).ok().and_then(|shift| 1_u64.checked_shl(shift));
        unit.and_then(|unit| wide(bucket - shift * parts).checked_mul(unit)).unwrap_or(u64::MAX)
    }
}

/// One minute, or one part of sixty, of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    pub(crate) arrived: u64,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) ttft_ns: u128,
    pub(crate) first_tokens: u64,
}

/// Parts of a run for charts over time.
pub(crate) const SLICES: usize = 60;

/// All counts of a run.
#[derive(Clone, Debug)]
pub(crate) struct Measures {
    pub(crate) outcomes: [u64; Outcome::ALL.len()],
    pub(crate) ttft: Times,
    pub(crate) itl: Times,
    pub(crate) queued: Times,
    /// Requests that kept both objectives, and their answer tokens.
    pub(crate) good: u64,
    pub(crate) good_tokens: u64,
    pub(crate) answer_tokens: u64,
    /// Of requests that started: tokens of their prompts, and those found.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: [u64; Origin::ALL.len()],
    /// What routers expected of the same requests.
    pub(crate) expected_tokens: u64,
    pub(crate) placed: u64,
    pub(crate) visits: u64,
    pub(crate) visit_retries: u64,
    pub(crate) fallbacks: u64,
    pub(crate) preemptions: u64,
    pub(crate) resumed: u64,
    pub(crate) steps: u64,
    pub(crate) rows: u64,
    pub(crate) resyncs: u64,
    pub(crate) lookups_unanswered: u64,
    pub(crate) waiting_most: usize,
    slice_ns: u64,
    pub(crate) slices: Vec<Slice>,
}

impl Measures {
    /// Nothing yet, of a run whose last request arrives at `length`.
    pub(crate) fn new(length: Timestamp) -> Self {
        Self {
            outcomes: [0; Outcome::ALL.len()],
            ttft: Times::default(),
            itl: Times::default(),
            queued: Times::default(),
            good: 0,
            good_tokens: 0,
            answer_tokens: 0,
            prompt_tokens: 0,
            cached_tokens: [0; Origin::ALL.len()],
            expected_tokens: 0,
            placed: 0,
            visits: 0,
            visit_retries: 0,
            fallbacks: 0,
            preemptions: 0,
            resumed: 0,
            steps: 0,
            rows: 0,
            resyncs: 0,
            lookups_unanswered: 0,
            waiting_most: 0,
            slice_ns: (length.0 / wide(SLICES)).max(1),
            slices: vec![Slice::default(); SLICES],
        }
    }

    /// The slice in which something that arrived then counts.
    pub(crate) fn slice(&mut self, arrived: Timestamp) -> &mut Slice {
        let place = usize::try_from(arrived.0 / self.slice_ns).unwrap_or(usize::MAX);
        &mut self.slices[place.min(SLICES - 1)]
    }

    /// Length of a slice.
    pub(crate) fn slice_s(&self) -> f64 {
        real(self.slice_ns) / 1e9
    }

    /// A request started with so many blocks from each origin.
    pub(crate) fn started(&mut self, arrived: Timestamp, prompt_tokens: u32, origins: &[u64; 4]) {
        self.prompt_tokens += u64::from(prompt_tokens);
        let mut cached = 0;
        for (sum, blocks) in self.cached_tokens.iter_mut().zip(origins) {
            let tokens = blocks * u64::from(BLOCK_TOKENS);
            *sum += tokens;
            cached += tokens;
        }
        let slice = self.slice(arrived);
        slice.prompt_tokens += u64::from(prompt_tokens);
        slice.cached_tokens += cached;
    }

    pub(crate) fn first_token(&mut self, arrived: Timestamp, ttft: Duration) {
        self.ttft.add(ttft);
        let slice = self.slice(arrived);
        slice.ttft_ns += ttft.as_nanos();
        slice.first_tokens += 1;
    }

    pub(crate) fn ended(&mut self, outcome: Outcome) {
        for (known, count) in Outcome::ALL.into_iter().zip(&mut self.outcomes) {
            *count += u64::from(known == outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Times;

    #[test]
    fn quantiles_are_right_to_a_sixtyfourth() {
        let mut times = Times::default();
        assert_eq!((times.quantile_ms(0.5), times.mean_ms()), (None, None));
        (1..=10_000).for_each(|us| times.add(Duration::from_micros(us)));
        for (share, expected) in [(0.0001, 0.001), (0.5, 5.0), (0.9, 9.0), (0.99, 9.9), (1.0, 10.0)]
        {
            let found = times.quantile_ms(share).unwrap();
            assert!((found / expected - 1.0).abs() < 1.0 / 64.0, "{share}: {found}");
        }
        assert!((times.mean_ms().unwrap() - 5.0005).abs() < 1e-9);
        times.add(Duration::MAX);
        times.add(Duration::ZERO);
        assert!(times.quantile_ms(1.0).unwrap() > 1e12);
    }

    #[test]
    fn buckets_follow_each_other() {
        for bucket in 0..3_700 {
            let start = Times::start(bucket);
            assert_eq!(Times::bucket(start), bucket, "{start}");
            assert!(start < Times::start(bucket + 1));
        }
    }
}
