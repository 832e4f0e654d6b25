//! Chooses the workers of one request.
//!
//! One pass over each side is enough: the prefill path does not depend on the decode worker, and a decode worker's queue
//! drains meanwhile, so the prefill worker with the shortest path is the best one for every decode worker.

use std::time::Duration;

use shared::{PlaceRequest, Placement, RequestId, Timestamp, WorkerRank};

use crate::config::RouterConfig;
use crate::index::{PrefixIndex, PrefixMatches};
use crate::loads::{Loads, WorkerLoad};
use crate::policy::{Prompt, Side, mix, price_direct, price_disaggregated, price_prefill};
use crate::records::{Candidate, PlacementKind, PrefillCandidate};

/// What a decision is made from.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a RouterConfig,
    pub(crate) index: &'a PrefixIndex,
    pub(crate) loads: &'a Loads,
    pub(crate) now: Timestamp,
}

/// A choice, with what the router books and records about it.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) placement: Placement,
    pub(crate) prompt: Prompt,
    pub(crate) decode: DecodeStart,
    pub(crate) prefill: Option<PrefillStart>,
    pub(crate) decode_candidates: Vec<Candidate>,
    pub(crate) prefill_candidates: Vec<PrefillCandidate>,
}

/// A decode worker in its better way to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeStart {
    pub(crate) kind: PlacementKind,
    pub(crate) candidate: Candidate,
    /// Rows it computes before the first token.
    pub(crate) rows: u64,
}

/// A prefill worker that could take the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillStart {
    pub(crate) candidate: PrefillCandidate,
    /// Rows it computes.
    pub(crate) rows: u64,
}

/// Why no worker can be chosen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Every decode worker is at its bound, or there is none.
    Decode,
    /// The prompt needs prefill, and every prefill worker is at its bound.
    Prefill,
}

/// Chooses the workers of a request. Fails with what is full.
pub(crate) fn choose(request: &PlaceRequest, facts: Facts<'_>) -> Result<Choice, Blocked> {
    let config = facts.config;
    let prompt = Prompt::new(request.prompt_tokens, config.geometry);
    let blocks = usize::try_from(prompt.blocks()).expect("a block count fits in memory");
    // Only [0, S) is ever attached, however much more is cached.
    let names = &request.names[..blocks.min(request.names.len())];
    let matches = facts.index.match_prefix(names);

    let mut prefills = prefill_starts(prompt, &matches, facts);
    sort_best_first(&mut prefills, config, request.id, |start| {
        let candidate = &start.candidate;
        (candidate.cost.total(), candidate.requests, candidate.prefill)
    });
    let prefill = prefills.first().copied();

    let free = facts
        .loads
        .decode()
        .filter(|(_, load)| load.placed() < config.admission.decode_running_max);
    let mut decodes = Vec::new();
    let mut free_count = 0_u32;
    for (worker, load) in free {
        free_count += 1;
        decodes.extend(decode_start(worker, load, prefill.as_ref(), prompt, (&matches, facts)));
    }
    sort_best_first(&mut decodes, config, request.id, |start| {
        let candidate = &start.candidate;
        (candidate.cost.total(), candidate.requests, candidate.decode)
    });
    let Some(&decode) = decodes.first() else {
        return Err(if free_count == 0 { Blocked::Decode } else { Blocked::Prefill });
    };

    let kept = config.records.candidates_max;
    Ok(Choice {
        placement: Placement {
            decode: decode.candidate.decode,
            prefill: decode.candidate.prefill,
            expected_cached_tokens: decode.candidate.cached_tokens,
            reason: reason(&decode, prompt),
        },
        prompt,
        decode,
        prefill: prefill.filter(|_| decode.candidate.prefill.is_some()),
        decode_candidates: decodes.iter().take(kept).map(|start| start.candidate).collect(),
        prefill_candidates: prefills.iter().take(kept).map(|start| start.candidate).collect(),
    })
}

/// The prefill workers below their bound; none when the prompt has no hand-off boundary.
fn prefill_starts(prompt: Prompt, matches: &PrefixMatches, facts: Facts<'_>) -> Vec<PrefillStart> {
    if prompt.boundary == 0 {
        return Vec::new();
    }
    let cost = &facts.config.cost;
    let starts = facts.loads.prefill().filter_map(|(worker, load)| {
        let requests = facts.loads.requests(load, facts.now);
        if facts.config.admission.prefill_running_max <= requests {
            return None;
        }
        let side = side(worker, load, matches, facts.now);
        let candidate = PrefillCandidate {
            prefill: worker,
            cost: price_prefill(&side, prompt, cost),
            cached_tokens: side.cached_tokens(),
            requests,
        };
        Some(PrefillStart { candidate, rows: side.rows_to_boundary(prompt, cost) })
    });
    starts.collect()
}

/// The better way to start on one decode worker; none when it needs prefill and no prefill worker is free.
fn decode_start(
    worker: WorkerRank,
    load: &WorkerLoad,
    prefill: Option<&PrefillStart>,
    prompt: Prompt,
    (matches, facts): (&PrefixMatches, Facts<'_>),
) -> Option<DecodeStart> {
    let cost = &facts.config.cost;
    let side = side(worker, load, matches, facts.now);
    let start = |kind, prefill, cost, rows| DecodeStart {
        kind,
        candidate: Candidate {
            decode: worker,
            prefill,
            cost,
            cached_tokens: side.cached_tokens(),
            requests: facts.loads.requests(load, facts.now).max(load.placed()),
        },
        rows,
    };
    let direct_cost = price_direct(&side, prompt, cost);
    let direct_rows = side.rows_to_boundary(prompt, cost) + prompt.tail_rows();
    let direct = |kind| start(kind, None, direct_cost, direct_rows);
    let missing = side.missing_rows(prompt);
    if prompt.boundary == 0 {
        return Some(direct(PlacementKind::ShortPrompt));
    }
    if missing == 0 {
        return Some(direct(PlacementKind::AllCached));
    }
    if !facts.loads.has_prefill() {
        return Some(direct(PlacementKind::NoPrefillWorker));
    }
    let short = missing <= cost.direct_rows_max;
    let Some(prefill) = prefill else {
        return short.then(|| direct(PlacementKind::PrefillBusy));
    };
    let split_cost = price_disaggregated(&side, &prefill.candidate.cost, prompt, cost);
    if short && direct_cost.total() <= split_cost.total() {
        return Some(direct(PlacementKind::DirectCheaper));
    }
    let with = Some(prefill.candidate.prefill);
    Some(start(PlacementKind::Disaggregated, with, split_cost, prompt.tail_rows()))
}

fn side(worker: WorkerRank, load: &WorkerLoad, matches: &PrefixMatches, now: Timestamp) -> Side {
    Side { queue: load.queue_wait(now), pace: load.pace(), cached: matches.of(worker) }
}

/// Sorts by cost. Those within the margin of the cheapest come first, the least loaded of them first; what is still
/// equal is ordered by a hash of seed, request and worker, so that no worker is favoured for its name.
fn sort_best_first<T>(
    starts: &mut [T],
    config: &RouterConfig,
    id: RequestId,
    key: impl Fn(&T) -> (Duration, u32, WorkerRank),
) {
    let Some(least) = starts.iter().map(|start| key(start).0).min() else { return };
    let tied_up_to = least.saturating_add(config.cost.tie_margin);
    starts.sort_by_cached_key(|start| {
        let (total, requests, worker) = key(start);
        let band = if total <= tied_up_to { Duration::ZERO } else { total };
        (band, requests, tie_hash(config.seed, id, worker), worker)
    });
}

fn tie_hash(seed: u64, id: RequestId, worker: WorkerRank) -> u64 {
    let words = id.0.to_le_bytes();
    let (low, high) = words.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let name = u64::from(worker.worker.0) << 16 | u64::from(worker.rank.0);
    [word(low), word(high), name].into_iter().fold(mix(seed), |hash, part| mix(hash ^ part))
}

/// One line for people.
fn reason(start: &DecodeStart, prompt: Prompt) -> String {
    let Candidate { decode, cached_tokens, cost, .. } = &start.candidate;
    let (tokens, boundary) = (prompt.tokens, prompt.boundary);
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1_000.0);
    let why = match (start.kind, start.candidate.prefill) {
        (PlacementKind::ShortPrompt, _) => {
            format!("direct, {tokens} tokens are too few for prefill")
        }
        (PlacementKind::AllCached, _) => format!("direct, all of [0, {boundary}) is cached"),
        (PlacementKind::NoPrefillWorker, _) => "direct, no prefill worker is a member".to_owned(),
        (PlacementKind::PrefillBusy, _) => "direct, every prefill worker is busy".to_owned(),
        (PlacementKind::DirectCheaper, _) => "direct, cheaper than visiting prefill".to_owned(),
        (PlacementKind::Disaggregated, Some(prefill)) => format!("prefill {prefill}"),
        (PlacementKind::Disaggregated, None) => unreachable!("this kind names its prefill worker"),
    };
    format!(
        "decode {decode}, {why}; {cached_tokens} of {boundary} tokens cached, {} ms = queue {} + restore {} + \
         recompute {} + hand-off {} + tail {}",
        ms(cost.total()),
        ms(cost.prefill_queue.saturating_add(cost.decode_queue)),
        ms(cost.restore),
        ms(cost.recompute),
        ms(cost.handoff),
        ms(cost.tail),
    )
}
