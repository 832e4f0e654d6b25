//! What a placement costs, in time: queue wait, the lesser of restore and recompute for each cached block, the rows to
//! compute, hand-off and tail.
//!
//! Two ways to start are priced. *Direct*: the decode worker computes all that is missing. *Disaggregated*: a prefill
//! worker computes [H, S) for its own cached prefix H while the decode worker's queue drains; the decode worker reads
//! what it lacks and computes the tail [S, N). Terms add up to the expected time to the first token.

use std::time::Duration;

use shared::{BLOCK_TOKENS, StartGeometry};

use crate::config::CostConfig;
use crate::index::PrefixMatch;
use crate::pace::Pace;

/// The terms of one candidate. Their sum is what is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wait until the prefill worker reaches the request.
    pub prefill_queue: Duration,
    /// Wait until the decode worker reaches the request, as far as prefill does not cover it.
    pub decode_queue: Duration,
    /// Bringing cached blocks to the workers that need them.
    pub restore: Duration,
    /// Computing the rows of [0, S) that are not cached, replayed rows included; on a decode worker at its raised price.
    pub recompute: Duration,
    /// Visiting the prefill worker and reading its blocks.
    pub handoff: Duration,
    /// Computing [S, N) on the decode worker.
    pub tail: Duration,
}

impl Cost {
    /// The sum of all terms.
    #[must_use]
    pub fn total(&self) -> Duration {
        let waits = self.prefill_queue.saturating_add(self.decode_queue);
        let rows = self.restore.saturating_add(self.recompute);
        waits.saturating_add(rows).saturating_add(self.handoff).saturating_add(self.tail)
    }

    /// The sum of the terms before the decode worker takes over.
    pub(crate) fn prefill_path(&self) -> Duration {
        self.prefill_queue.saturating_add(self.restore).saturating_add(self.recompute)
    }
}

/// A prompt's rows, cut at its hand-off boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// N.
    pub(crate) tokens: u32,
    /// S.
    pub(crate) boundary: u32,
}

impl Prompt {
    pub(crate) fn new(tokens: u32, geometry: StartGeometry) -> Self {
        Self { tokens, boundary: geometry.boundary(tokens) }
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

/// One worker's side of a prompt: how busy it is, how fast, and how much of [0, S) it can have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) queue: Duration,
    pub(crate) pace: Pace,
    pub(crate) cached: PrefixMatch,
}

impl Side {
    /// Tokens of the cached prefix.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.cached.reach * BLOCK_TOKENS
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

    /// Time to have the cached prefix: for each block the lesser of restoring and recomputing it.
    fn restore(&self, cost: &CostConfig) -> Duration {
        let recompute = self.pace.time_for(u64::from(BLOCK_TOKENS));
        let parts = self.cached.reach_by_tier.iter();
        parts.fold(Duration::ZERO, |sum, (tier, blocks)| {
            sum.saturating_add(cost.restore(tier).min(recompute).saturating_mul(blocks))
        })
    }
}

/// The prefill worker's terms.
pub(crate) fn price_prefill(side: &Side, prompt: Prompt, cost: &CostConfig) -> Cost {
    Cost {
        prefill_queue: side.queue,
        restore: side.restore(cost),
        recompute: side.pace.time_for(side.rows_to_boundary(prompt, cost)),
        ..Cost::default()
    }
}

/// The cost of a decode worker that computes everything itself.
pub(crate) fn price_direct(side: &Side, prompt: Prompt, cost: &CostConfig) -> Cost {
    let rows = side.rows_to_boundary(prompt, cost);
    let time = side.pace.time_for(rows);
    // Replayed rows alone are no work that a prefill worker would take over.
    let recompute = if side.missing_rows(prompt) == 0 {
        time
    } else {
        time.saturating_mul(cost.direct_percent) / 100
    };
    Cost {
        decode_queue: side.queue,
        restore: side.restore(cost),
        recompute,
        tail: side.pace.time_for(prompt.tail_rows()),
        ..Cost::default()
    }
}

/// The cost of a decode worker behind a prefill worker.
pub(crate) fn price_disaggregated(
    decode: &Side,
    prefill: &Cost,
    prompt: Prompt,
    cost: &CostConfig,
) -> Cost {
    let read = prompt.blocks().saturating_sub(decode.cached.reach);
    Cost {
        prefill_queue: prefill.prefill_queue,
        decode_queue: decode.queue.saturating_sub(prefill.prefill_path()),
        restore: prefill.restore.saturating_add(decode.restore(cost)),
        recompute: prefill.recompute,
        handoff: cost.handoff.saturating_add(cost.restore_peer.saturating_mul(read)),
        tail: decode.pace.time_for(prompt.tail_rows()),
    }
}

/// A well-spread function of 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
