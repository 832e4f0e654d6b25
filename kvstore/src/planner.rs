//! Decides how a request starts from what is cached. Pure: no clock, no lock, no I/O.
//!
//! Source: architecture.md §1 ideas 3 to 5, §6. Positions are 0-based token positions, boundaries multiples of 128.
//!
//! What it does not decide: where the target boundary S lies ([`shared::StartGeometry::boundary`]), whether prefill may
//! be asked (the router), how much of the tail one step computes (the scheduler).
//!
//! Invariants: a start never lies above the target, never at a position without all blocks below it, and at the target
//! whenever decode can get all blocks below it; window sources are compared by cost in milliseconds and by nothing
//! else, the more exact one winning a tie.

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::ops::Range;

use shared::{BLOCK_TOKENS, Lineage, StartGeometry, Tier, WindowSource};

/// Who starts, and what it may do about missing blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRole {
    /// A decode worker that may ask prefill for what is missing.
    DecodeWithPrefill,
    /// A decode worker that computes what is missing itself, as part of its tail.
    DecodeAlone,
    /// A prefill worker: computes from the start up to the target itself. When everything is cached it may still start
    /// earlier, if fetching costs more than computing.
    Prefill,
}

/// A window object that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowCandidate {
    /// The position it ends at: a positive multiple of 128.
    pub at: u32,
    /// Where it lies. [`Tier::Device`] costs nothing, all others [`StartCosts::window_fetch_ms`].
    pub tier: Tier,
    /// Whether it is of exact origin. In the exact lineage others are not used.
    pub exact: bool,
}

/// Measured costs, in milliseconds, each finite and at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartCosts {
    /// One block from the store into the own pool.
    pub block_fetch_ms: f64,
    /// One window object from the store.
    pub window_fetch_ms: f64,
    /// One row recomputed through the encoder layers.
    pub encoder_row_ms: f64,
}

/// What is known when a request starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StartQuery<'a> {
    /// Who starts.
    pub role: StartRole,
    /// The model's numbers.
    pub geometry: StartGeometry,
    /// How a start without window object rebuilds windows.
    pub lineage: Lineage,
    /// R: rows of a bounded replay. At least W for windows that are complete; larger is closer to exact. Default W.
    pub bounded_rows: u32,
    /// S, or the prefill request's `to`. A multiple of 128.
    pub target: u32,
    /// Leading blocks in the own pool.
    pub device_blocks: u32,
    /// Leading blocks that the own pool and the store have together. Values below `device_blocks` count as that.
    pub reachable_blocks: u32,
    /// Window objects below or at the target, in any order. Those that cannot pay off need not be looked up
    /// ([`useful_window_floor`]); the planner's time grows with blocks times windows.
    pub windows: &'a [WindowCandidate],
    /// Measured costs.
    pub costs: StartCosts,
}

/// How the encoder windows at the start come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowPlan {
    /// The start is position 0: nothing lies before it.
    Cold,
    /// Prefill delivers the object at the start.
    FromPrefill,
    /// An object ends exactly at the start.
    Object {
        /// The start.
        at: u32,
        /// Where it lies.
        tier: Tier,
    },
    /// An object ends earlier: recompute `[from, start)` with writes suppressed.
    Recompute {
        /// Where it ends.
        from: u32,
        /// Where it lies.
        tier: Tier,
    },
    /// Recompute the last rows below the start with windows floored at the first of them and writes suppressed.
    Replay {
        /// How many.
        rows: u32,
    },
}

/// How to start.
#[derive(Clone, Debug, PartialEq)]
pub struct StartPlan {
    /// X: the first position that is computed with its KV written. All blocks below it are attached, none above.
    pub start: u32,
    /// How many leading blocks to attach from the own pool.
    pub attach_blocks: u32,
    /// The blocks to read from the store, by index.
    pub fetch_blocks: Range<u32>,
    /// The tokens whose blocks, and the window object at whose end, prefill is asked for.
    pub ask: Option<Range<u32>>,
    /// How the windows at `start` come to be.
    pub window: WindowPlan,
    /// Whether the windows at `start` equal those of a cold run, given exact blocks. For [`WindowPlan::FromPrefill`]
    /// the delivered object says it.
    pub windows_exact: bool,
    /// What fetching, recomputing and computing up to the target is expected to cost this worker, prefill's part left
    /// out, in milliseconds.
    pub cost_ms: f64,
}

impl StartPlan {
    /// Rows below the start that this worker recomputes.
    #[must_use]
    pub fn replayed_rows(&self) -> u32 {
        match self.window {
            WindowPlan::Cold | WindowPlan::FromPrefill | WindowPlan::Object { .. } => 0,
            WindowPlan::Recompute { from, .. } => self.start - from,
            WindowPlan::Replay { rows } => rows,
        }
    }

    /// The first position that is computed at all; below `start` with writes suppressed.
    #[must_use]
    pub fn first_row(&self) -> u32 {
        self.start - self.replayed_rows()
    }

    /// The window floor: keys below it are not seen by recomputed rows. Restored windows have none.
    #[must_use]
    pub fn window_floor(&self) -> u32 {
        match self.window {
            WindowPlan::Replay { .. } => self.first_row(),
            WindowPlan::Cold
            | WindowPlan::FromPrefill
            | WindowPlan::Object { .. }
            | WindowPlan::Recompute { .. } => 0,
        }
    }

    /// The word for the report.
    #[must_use]
    pub fn window_source(&self) -> WindowSource {
        match self.window {
            WindowPlan::Cold => WindowSource::Cold,
            WindowPlan::FromPrefill | WindowPlan::Object { .. } => WindowSource::Object,
            WindowPlan::Recompute { .. } => WindowSource::Recomputed,
            WindowPlan::Replay { rows } => WindowSource::Replayed(rows),
        }
    }
}

/// Decides how to start.
///
/// Decode starts at the target when all blocks below it can be had from pool, store or prefill. Otherwise the cheapest
/// start is taken among the end of the own pool's run and every boundary up to the end of what the store adds; of
/// equally cheap ones the latest.
///
/// # Panics
/// When the target is no multiple of 128.
#[must_use]
pub fn plan_start(query: &StartQuery<'_>) -> StartPlan {
    assert!(query.target.is_multiple_of(BLOCK_TOKENS), "a target is a block boundary");
    let target_blocks = query.target / BLOCK_TOKENS;
    let device = query.device_blocks.min(target_blocks);
    let reachable = query.reachable_blocks.min(target_blocks).max(device);
    match (query.role, reachable == target_blocks) {
        (StartRole::DecodeWithPrefill, false) => ask_prefill(query, device, reachable),
        (StartRole::DecodeWithPrefill | StartRole::DecodeAlone, true) => {
            start_at(query, device, target_blocks)
        }
        (StartRole::DecodeAlone, false) | (StartRole::Prefill, _) => (device..=reachable)
            .rev()
            .map(|blocks| start_at(query, device, blocks))
            .min_by(|a, b| a.cost_ms.total_cmp(&b.cost_ms))
            .expect("the range holds at least its first element"),
    }
}

/// Rows that a start at `start` replays when it has no window object: the whole prefix at most.
#[must_use]
pub fn replay_rows(
    geometry: StartGeometry,
    lineage: Lineage,
    bounded_rows: u32,
    start: u32,
) -> u32 {
    let rows = match lineage {
        Lineage::Exact => geometry.exact_replay_rows(),
        Lineage::Bounded => bounded_rows,
    };
    rows.min(start)
}

/// Whether a replay of `rows` rows below `start` gives the windows of a cold run bit for bit.
#[must_use]
pub fn replay_is_exact(geometry: StartGeometry, start: u32, rows: u32) -> bool {
    geometry.exact_replay_rows().min(start) <= rows
}

/// The lowest position at which a window object can be cheaper than a replay for a start at `start`: objects below it
/// need not be looked up. It assumes that fetching an object costs nothing.
#[must_use]
pub fn useful_window_floor(
    geometry: StartGeometry,
    lineage: Lineage,
    bounded_rows: u32,
    start: u32,
) -> u32 {
    start - replay_rows(geometry, lineage, bounded_rows, start)
}

fn ask_prefill(query: &StartQuery<'_>, device: u32, reachable: u32) -> StartPlan {
    let asked = query.target / BLOCK_TOKENS - reachable;
    let read = f64::from(reachable - device + asked) * query.costs.block_fetch_ms;
    StartPlan {
        start: query.target,
        attach_blocks: device,
        fetch_blocks: device..reachable,
        ask: Some(reachable * BLOCK_TOKENS..query.target),
        window: WindowPlan::FromPrefill,
        windows_exact: true,
        cost_ms: read + query.costs.window_fetch_ms,
    }
}

/// The best plan with the start behind this many blocks.
fn start_at(query: &StartQuery<'_>, device: u32, blocks: u32) -> StartPlan {
    let start = blocks * BLOCK_TOKENS;
    let costs = query.costs;
    let window = best_window(query, start);
    let fetch_ms = f64::from(blocks - device) * costs.block_fetch_ms + window.fetch_ms;
    // Rows are added as integers, so that plans of equal work cost exactly the same.
    let rows = window.rows + (query.target - start);
    StartPlan {
        start,
        attach_blocks: device,
        fetch_blocks: device..blocks,
        ask: None,
        window: window.plan,
        windows_exact: window.exact,
        cost_ms: fetch_ms + f64::from(rows) * costs.encoder_row_ms,
    }
}

/// One way to the windows of a start.
struct WindowOption {
    plan: WindowPlan,
    exact: bool,
    fetch_ms: f64,
    /// Rows below the start that are recomputed.
    rows: u32,
}

impl WindowOption {
    fn cost_ms(&self, costs: StartCosts) -> f64 {
        self.fetch_ms + f64::from(self.rows) * costs.encoder_row_ms
    }
}

fn best_window(query: &StartQuery<'_>, start: u32) -> WindowOption {
    if start == 0 {
        return WindowOption { plan: WindowPlan::Cold, exact: true, fetch_ms: 0.0, rows: 0 };
    }
    let StartQuery { geometry, lineage, bounded_rows, costs, .. } = *query;
    let rows = replay_rows(geometry, lineage, bounded_rows, start);
    let replay = WindowOption {
        plan: WindowPlan::Replay { rows },
        exact: replay_is_exact(geometry, start, rows),
        fetch_ms: 0.0,
        rows,
    };
    query
        .windows
        .iter()
        .filter(|window| 0 < window.at && window.at <= start)
        .filter(|window| window.exact || lineage == Lineage::Bounded)
        .map(|window| from_object(*window, start, costs))
        .chain([replay])
        .min_by(|a, b| compare(a, b, costs))
        .expect("the replay is always possible")
}

fn from_object(window: WindowCandidate, start: u32, costs: StartCosts) -> WindowOption {
    let WindowCandidate { at, tier, exact } = window;
    let fetch_ms = match tier {
        Tier::Device => 0.0,
        Tier::Host | Tier::Disk | Tier::Remote => costs.window_fetch_ms,
    };
    let plan = if at == start {
        WindowPlan::Object { at, tier }
    } else {
        WindowPlan::Recompute { from: at, tier }
    };
    WindowOption { plan, exact, fetch_ms, rows: start - at }
}

/// Cheaper first, then exact before approximate, then fewer recomputed rows, then an object before none, then the
/// nearer tier.
fn compare(a: &WindowOption, b: &WindowOption, costs: StartCosts) -> Ordering {
    let place = |option: &WindowOption| match option.plan {
        WindowPlan::Cold | WindowPlan::FromPrefill => (option.rows, 0, Tier::Device),
        WindowPlan::Object { tier, .. } | WindowPlan::Recompute { tier, .. } => {
            (option.rows, 0, tier)
        }
        WindowPlan::Replay { .. } => (option.rows, 1, Tier::Device),
    };
    a.cost_ms(costs)
        .total_cmp(&b.cost_ms(costs))
        .then_with(|| b.exact.cmp(&a.exact))
        .then_with(|| place(a).cmp(&place(b)))
}
