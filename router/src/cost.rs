//! What a placement costs, in time: queue wait, the lesser of restore and recompute for each cached block, the rows to
//! compute, hand-off, tail, and what all of it costs the requests that run there.
//!
//! Two ways to start are priced. *Direct*: the decode worker computes all that is missing. *Disaggregated*: a prefill
//! worker computes [H, S) for its own cached prefix H while the decode worker's queue drains; the decode worker reads
//! what it lacks, while prefill computes, and computes the tail [S, N).
//!
//! Blocks that are only expected of a worker, since a request placed before is to bring them, are no free hit: who follows
//! that request waits until it has computed them, or computes them itself, whichever is less. When they will be there is
//! what was predicted for the last request placed on that worker, so blocks of earlier ones are priced somewhat too
//! dear, never above their recompute. What the queue or the prefill path takes anyway counts once.
//!
//! There are no weights. A millisecond that another request waits counts like one of this request's own, so the least
//! total is the least sum of waiting times, as far as the measured rates tell.

use shared::{BLOCK_TOKENS, StartGeometry, Tier};

use crate::config::CostConfig;
use crate::index::PrefixMatch;
use crate::nanos::Nanos;
use crate::pace::Pace;

/// The terms of one candidate. Their sum is what is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wait until the prefill worker reaches the request.
    pub prefill_queue: Nanos,
    /// Wait until the decode worker reaches the request, as far as prefill does not cover it.
    pub decode_queue: Nanos,
    /// Bringing cached blocks to the workers that need them, and waiting for those that are only expected there.
    pub restore: Nanos,
    /// Computing the rows of [0, S) that are not cached, replayed rows included.
    pub recompute: Nanos,
    /// Visiting the prefill worker and reading of its blocks what was not read while it computed.
    pub handoff: Nanos,
    /// Computing [S, N) on the decode worker, and the step of running answers that goes with it.
    pub tail: Nanos,
    /// What the requests running on the decode worker wait longer, all of them together: for the rows computed there, and
    /// for this request's answer beside theirs.
    pub interference: Nanos,
}

impl Cost {
    /// The sum of all terms.
    #[must_use]
    pub fn total(&self) -> Nanos {
        self.first_token().plus(self.interference)
    }

    /// The sum of what the request itself waits for: the expected time to its first token.
    #[must_use]
    pub fn first_token(&self) -> Nanos {
        self.prefill_path().plus(self.decode_queue).plus(self.handoff).plus(self.tail)
    }

    /// The time until all of [0, S) is at the decode worker.
    pub(crate) fn before_tail(&self) -> Nanos {
        self.first_token().minus(self.tail)
    }

    /// The sum of the terms before the decode worker takes over.
    pub(crate) fn prefill_path(&self) -> Nanos {
        self.prefill_queue.plus(self.restore).plus(self.recompute)
    }
}

/// A prompt's rows, cut at its hand-off boundary, and the answer that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// N.
    pub(crate) tokens: u32,
    /// S.
    pub(crate) boundary: u32,
    /// Tokens expected to be answered.
    pub(crate) answer_tokens: u32,
}

impl Prompt {
    pub(crate) fn new(tokens: u32, answer_tokens: u32, geometry: StartGeometry) -> Self {
        Self { tokens, boundary: geometry.boundary(tokens), answer_tokens }
    }

    /// N - S.
    pub(crate) fn tail_rows(self) -> u64 {
        u64::from(self.tokens - self.boundary)
    }

    /// The blocks of [0, S).
    pub(crate) fn blocks(self) -> u32 {
        self.boundary / BLOCK_TOKENS
    }
}

/// The prices of one worker: as it measured them, or as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Rows.
    pub(crate) pace: Pace,
    /// One step of its running answers; zero while unknown.
    pub(crate) step: Nanos,
    pub(crate) restore_host: Nanos,
    pub(crate) restore_disk: Nanos,
    pub(crate) restore_remote: Nanos,
    pub(crate) restore_peer: Nanos,
    pub(crate) handoff: Nanos,
}

impl Rates {
    /// What is believed of a worker that measured nothing.
    pub(crate) fn configured(pace: Pace, cost: &CostConfig) -> Self {
        Self {
            pace,
            step: Nanos::ZERO,
            restore_host: cost.restore_host.into(),
            restore_disk: cost.restore_disk.into(),
            restore_remote: cost.restore_remote.into(),
            restore_peer: cost.restore_peer.into(),
            handoff: cost.handoff.into(),
        }
    }

    /// Time to bring one block from a tier; nothing from the worker's own slab.
    fn restore(&self, tier: Tier) -> Nanos {
        match tier {
            Tier::Device => Nanos::ZERO,
            Tier::Host => self.restore_host,
            Tier::Disk => self.restore_disk,
            Tier::Remote => self.restore_remote,
        }
    }
}

/// One worker's side of a prompt: how busy it is, how fast, and how much of [0, S) it can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    pub(crate) queue: Nanos,
    /// Requests in work or waiting there.
    pub(crate) requests: u32,
    pub(crate) rates: &'a Rates,
    pub(crate) cached: PrefixMatch,
    /// Time until the blocks that are only expected of it are computed.
    pub(crate) expected_in: Nanos,
}

/// What a decode worker's tail costs, whoever computes the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    time: Nanos,
    interference: Nanos,
}

impl Side<'_> {
    /// Tokens of the cached prefix, those only expected among them.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.cached.reach * BLOCK_TOKENS
    }

    /// Tokens of the cached prefix that a request placed here before is to bring.
    pub(crate) fn expected_tokens(&self) -> u32 {
        self.cached.expected * BLOCK_TOKENS
    }

    /// Rows of [0, S) that are not cached.
    pub(crate) fn missing_rows(&self, prompt: Prompt) -> u32 {
        prompt.boundary.saturating_sub(self.cached_tokens())
    }

    /// Rows this worker computes up to S when it computes all that is missing: a start at a cached prefix replays
    /// some rows to rebuild its windows.
    pub(crate) fn rows_to_boundary(&self, prompt: Prompt, cost: &CostConfig) -> u64 {
        let replayed = cost.replay_rows.min(self.cached_tokens());
        u64::from(self.missing_rows(prompt)) + u64::from(replayed)
    }

    /// Time to have the cached prefix: for each block the lesser of restoring and recomputing it; for those only expected the
    /// lesser of recomputing all and waiting for them beyond `covered`, which is waited for anyway.
    fn restore(&self, covered: Nanos) -> Nanos {
        let at_hand = self.cached.reach_by_tier.of(Tier::Device);
        if self.cached.reach == at_hand && self.cached.expected == 0 {
            return Nanos::ZERO;
        }
        let recompute = self.rates.pace.time_for(u64::from(BLOCK_TOKENS));
        let expected = match self.cached.expected {
            0 => Nanos::ZERO,
            blocks => self.expected_in.minus(covered).min(recompute.times(blocks)),
        };
        let parts = self.cached.reach_by_tier.iter();
        parts.fold(expected, |sum, (tier, blocks)| {
            sum.plus(self.rates.restore(tier).min(recompute).times(blocks))
        })
    }

    /// The tail as decode work: its rows, and the tokens of the running answers that are computed in the same step. And what
    /// the tail and the answer cost those that run here: prompt rows put each of them off by their whole time. The answer adds
    /// a row to each of its steps: the time of a row, but no more than each answer's share of the measured step, since what it
    /// adds is not more than what those before it added.
    pub(crate) fn tail(&self, prompt: Prompt) -> Tail {
        let tail = self.rates.pace.time_for(prompt.tail_rows());
        if self.requests == 0 {
            return Tail { time: tail, interference: Nanos::ZERO };
        }
        let row = self.rates.pace.time_for(1);
        let added = match self.rates.step {
            Nanos::ZERO => row,
            Nanos(step) => row.min(Nanos(step / u64::from(self.requests))),
        };
        let answer = added.times(prompt.answer_tokens);
        let interference = tail.plus(answer).times(self.requests);
        Tail { time: tail.plus(self.rates.step), interference }
    }

    /// What rows of [0, S) cost those that run here, or will: a decode worker is idle for a moment only, and who comes
    /// while it computes what a prefill worker could have computed waits for it. So there is always one.
    fn interference_of_prompt(&self, rows: Nanos, prompt: Prompt) -> Nanos {
        // Replayed rows alone are no work that a prefill worker would take over.
        let least = if self.missing_rows(prompt) == 0 { 0 } else { 1 };
        rows.times(self.requests.max(least))
    }
}

/// The prefill worker's terms. It works in order of arrival, so nobody before the request waits longer for it.
pub(crate) fn price_prefill(side: &Side<'_>, prompt: Prompt, cost: &CostConfig) -> Cost {
    Cost {
        prefill_queue: side.queue,
        restore: side.restore(side.queue),
        recompute: side.rates.pace.time_for(side.rows_to_boundary(prompt, cost)),
        ..Cost::default()
    }
}

/// The cost of a decode worker that computes everything itself.
pub(crate) fn price_direct(side: &Side<'_>, tail: Tail, prompt: Prompt, cost: &CostConfig) -> Cost {
    let rows = side.rates.pace.time_for(side.rows_to_boundary(prompt, cost));
    Cost {
        decode_queue: side.queue,
        restore: side.restore(side.queue),
        recompute: rows,
        tail: tail.time,
        interference: tail.interference.plus(side.interference_of_prompt(rows, prompt)),
        ..Cost::default()
    }
}

/// The cost of a decode worker behind a prefill worker.
pub(crate) fn price_disaggregated(
    decode: &Side<'_>,
    tail: Tail,
    prefill: &Cost,
    prompt: Prompt,
) -> Cost {
    let read = prompt.blocks().saturating_sub(decode.cached.reach);
    let reads = decode.rates.restore_peer.times(read);
    let path = prefill.prefill_path();
    Cost {
        prefill_queue: prefill.prefill_queue,
        decode_queue: decode.queue.minus(path),
        restore: prefill.restore.plus(decode.restore(decode.queue.max(path))),
        recompute: prefill.recompute,
        // Blocks are read as they are sealed: what takes longer than computing them is waited for.
        handoff: decode.rates.handoff.plus(reads.minus(prefill.recompute)),
        tail: tail.time,
        interference: tail.interference,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::{CacheChange, CacheEvent, StartGeometry, Tier, Timestamp};

    use super::{Cost, Prompt, Rates, Side, price_direct, price_disaggregated, price_prefill};
    use crate::config::RouterConfig;
    use crate::index::{PrefixIndex, PrefixMatch};
    use crate::nanos::Nanos;
    use crate::pace::Pace;
    use crate::role::Role;
    use crate::testing::{names, rank};

    const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };
    const MS: fn(u64) -> Nanos = |ms| Nanos(ms * 1_000_000);

    fn nothing_cached() -> PrefixMatch {
        PrefixIndex::new(1, 1).match_prefix(&[]).of(rank(0))
    }

    fn rates(change: impl FnOnce(&mut Rates)) -> Rates {
        let cost = RouterConfig::with_defaults(FLASH).cost;
        let mut rates = Rates::configured(Pace::from_rows_per_second(1_000), &cost);
        change(&mut rates);
        rates
    }

    fn side(requests: u32, rates: &Rates) -> Side<'_> {
        let (queue, expected_in) = (Nanos::ZERO, Nanos::ZERO);
        Side { queue, requests, rates, cached: nothing_cached(), expected_in }
    }

    /// A worker that holds the first `held` blocks in its device memory and is expected to hold more.
    fn expecting(held: u32, expected: u32) -> PrefixMatch {
        let mut index = PrefixIndex::new(1, 100).with_expectations(100);
        index.join(rank(0), Role::Decode).expect("room");
        let all = names(1, held + expected);
        let held = usize::try_from(held).expect("few");
        let change = CacheChange::Stored { tier: Tier::Device, names: all[..held].to_vec() };
        index.apply(&CacheEvent { worker: rank(0), incarnation: 1, sequence: 0, change });
        index.expect(rank(0), &Arc::from(&all[..]), Timestamp(1));
        index.match_prefix(&all).of(rank(0))
    }

    #[test]
    fn expected_blocks_cost_the_lesser_of_waiting_and_recompute() {
        let cost = RouterConfig::with_defaults(FLASH).cost;
        let prompt = Prompt::new(1_000, 50, FLASH);
        // Blocks held and expected; queue and time until those are there; the path of a prefill worker; what is waited
        // for besides queue and path by a direct start, and by one behind that worker. All in ms; a block is 128 ms.
        let cases = [
            ((6, 0), (0, 500), 0, 0, 0),
            ((0, 6), (0, 0), 0, 0, 0),
            ((0, 6), (0, 500), 0, 500, 500),
            ((4, 2), (0, 500), 0, 256, 256),
            ((0, 6), (0, 5_000), 0, 768, 768),
            ((0, 6), (400, 500), 0, 100, 100),
            ((0, 6), (400, 500), 450, 100, 50),
            ((0, 6), (900, 500), 0, 0, 0),
        ];
        for ((held, expected), (queue, due), path, direct, split) in cases {
            let case = format!("{held} + {expected} blocks, queue {queue}, due {due}, path {path}");
            let (rates, cached) = (rates(|_| ()), expecting(held, expected));
            let (queue, expected_in) = (MS(queue), MS(due));
            let side = Side { queue, expected_in, cached, ..side(0, &rates) };
            let tail = side.tail(prompt);
            assert_eq!(side.expected_tokens(), expected * 128, "{case}");
            assert_eq!(side.cached_tokens(), 768, "{case}");
            assert_eq!(price_direct(&side, tail, prompt, &cost).restore, MS(direct), "{case}");
            assert_eq!(price_prefill(&side, prompt, &cost).restore, MS(direct), "{case}");
            let prefill = Cost { recompute: MS(path), ..Cost::default() };
            let behind = price_disaggregated(&side, tail, &prefill, prompt);
            assert_eq!(behind.restore, MS(split), "{case}");
        }
    }

    #[test]
    fn interference_is_what_the_others_wait() {
        let cost = RouterConfig::with_defaults(FLASH).cost;
        let prompt = Prompt::new(1_000, 50, FLASH);
        // Requests running, measured step in ms, and the interference of direct and split starts in ms.
        let cases = [
            // One that will come waits for the 768 rows that prefill could compute.
            (0, 0, 768, 0),
            // 1,000 rows or 232 of the tail, and 50 tokens of a row each.
            (1, 0, 1_000 + 50, 232 + 50),
            (4, 0, 4 * 1_050, 4 * 282),
            // An answer's share of the step is less than a row.
            (4, 2, 4 * 1_000 + 100, 4 * 232 + 100),
            (4, 40, 4 * 1_050, 4 * 282),
        ];
        for (requests, step, direct, split) in cases {
            let rates = rates(|rates| rates.step = MS(step));
            let side = side(requests, &rates);
            let tail = side.tail(prompt);
            let case = format!("{requests} requests, steps of {step} ms");
            let alone = price_direct(&side, tail, prompt, &cost);
            assert_eq!(alone.interference, MS(direct), "{case}");
            let behind = price_disaggregated(&side, tail, &Cost::default(), prompt);
            assert_eq!(behind.interference, MS(split), "{case}");
            let shared_step = if requests == 0 { 0 } else { step };
            assert_eq!(behind.tail, MS(232 + shared_step), "{case}");
        }
    }

    #[test]
    fn reading_counts_as_far_as_computing_does_not_cover_it() {
        let cost = RouterConfig::with_defaults(FLASH).cost;
        let prompt = Prompt::new(1_000, 50, FLASH);
        let usual = rates(|_| ());
        let prefill = price_prefill(&side(0, &usual), prompt, &cost);
        assert_eq!(prefill.recompute, MS(768));
        // Six blocks are read; milliseconds per block and for the hand-off, and what is waited for.
        for (peer, handoff, waited) in [(1, 5, 5), (128, 5, 5), (200, 5, 437), (1, 30, 30)] {
            let rates = rates(|rates| {
                rates.restore_peer = MS(peer);
                rates.handoff = MS(handoff);
            });
            let decode = side(0, &rates);
            let cost = price_disaggregated(&decode, decode.tail(prompt), &prefill, prompt);
            assert_eq!(cost.handoff, MS(waited), "{peer} ms per block");
            assert_eq!(cost.first_token(), MS(768 + waited + 232));
        }
    }

    /// Why one best prefill worker is enough: whatever the decode worker, a longer prefill path never makes the pair
    /// cheaper.
    #[test]
    fn the_shortest_prefill_path_is_best_for_every_decode_worker() {
        let cost = RouterConfig::with_defaults(FLASH).cost;
        let prompt = Prompt::new(7_948, 256, FLASH);
        let usual = rates(|_| ());
        let paths: Vec<Cost> = (0..40)
            .map(|step| {
                let side = Side { queue: MS(step * 97), ..side(3, &usual) };
                price_prefill(&side, prompt, &cost)
            })
            .collect();
        for (queue, requests, peer) in [(0, 0, 1), (5_000, 9, 30), (9_000, 60, 500), (50_000, 2, 1)]
        {
            let rates = rates(|rates| rates.restore_peer = MS(peer));
            let decode = Side {
                queue: MS(queue),
                cached: expecting(0, 50),
                expected_in: MS(9_000),
                ..side(requests, &rates)
            };
            let tail = decode.tail(prompt);
            let totals: Vec<Nanos> = paths
                .iter()
                .map(|path| price_disaggregated(&decode, tail, path, prompt).total())
                .collect();
            assert!(totals.is_sorted(), "queue {queue} ms: {totals:?}");
        }
    }
}
