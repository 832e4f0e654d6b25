//! Chooses the workers of one request.
//!
//! Each side is looked at once: those with a reason against them are set aside, the others are priced, and the policy
//! orders them. One best prefill worker serves all decode workers. What a pair costs before the tail is
//! max(path of P, queue of D), since D's queue drains while P works, plus a hand-off whose time is D's alone: it is D that
//! reads, and that measures how long reading takes. So the pair's cost never falls when P's path gets longer, whatever
//! D is. This holds as long as no rate belongs to the pair, such as a link between two hosts.

use std::fmt;
use std::time::Duration;

use shared::{PlaceRequest, Placement, Tier, Timestamp, WorkerRank};

use crate::config::RouterConfig;
use crate::cost::{Prompt, Side, price_direct, price_disaggregated, price_prefill};
use crate::index::{PrefixIndex, PrefixMatch, PrefixMatches};
use crate::life::{Life, Lives, Steer};
use crate::loads::{Loads, WorkerLoad};
use crate::policy::{Draw, Order, Policy, Seen, mix, order};
use crate::records::{Candidate, Considered, PlacementKind, PrefillCandidate, Steered};
use crate::role::Role;

/// What a decision is made from.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) config: &'a RouterConfig,
    pub(crate) index: &'a PrefixIndex,
    pub(crate) loads: &'a Loads,
    pub(crate) lives: &'a Lives,
    /// Tokens of an answer, as far as is known.
    pub(crate) answer_tokens: u32,
    /// The decode worker and the prefill worker chosen last.
    pub(crate) last: (Option<WorkerRank>, Option<WorkerRank>),
    pub(crate) now: Timestamp,
}

/// A choice, with what the router books and records about it.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) placement: Placement,
    pub(crate) prompt: Prompt,
    pub(crate) decode: DecodeStart,
    pub(crate) prefill: Option<PrefillStart>,
    pub(crate) considered: Considered,
    /// Whether the decode worker has a reason against it and was the only one.
    pub(crate) overridden: bool,
    /// Whether workers that warm up were passed.
    pub(crate) warm_up_passed: bool,
}

/// A decode worker in its better way to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeStart {
    pub(crate) kind: PlacementKind,
    pub(crate) candidate: Candidate,
    /// Rows it computes before the first token.
    pub(crate) rows: u64,
    /// Wait for a request that is reached next there.
    queue: Duration,
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
    /// Every decode worker that may be chosen is at its bound, or there is none.
    Decode,
    /// The prompt needs prefill, and every prefill worker that may be chosen is at its bound.
    Prefill,
}

/// The workers of one role, parted by what is known about them.
struct Field<'a> {
    /// Those that may be chosen, at their bound or not, in the order of their names.
    open: Vec<Open<'a>>,
    steered: Vec<Steered>,
    /// Whether those that may be chosen all have a reason against them.
    overridden: bool,
    /// Whether any worker of the role takes requests.
    exists: bool,
}

/// A worker that may be chosen.
#[derive(Clone, Copy)]
struct Open<'a> {
    worker: WorkerRank,
    load: &'a WorkerLoad,
    life: &'a Life,
}

/// Chooses the workers of a request. Fails with what is full.
pub(crate) fn choose(request: &PlaceRequest, facts: Facts<'_>) -> Result<Choice, Blocked> {
    let config = facts.config;
    let answer_tokens = facts.answer_tokens.min(request.output_tokens_max);
    let prompt = Prompt::new(request.prompt_tokens, answer_tokens, config.geometry);
    let blocks = usize::try_from(prompt.blocks()).expect("a block count fits in memory");
    // Only [0, S) is ever attached, however much more is cached.
    let names = &request.names[..blocks.min(request.names.len())];
    let matches = facts.index.match_prefix(names);

    let mut prefill_field = field(facts.loads.prefill(), Role::Prefill, request, facts);
    let prefills = prefill_starts(&mut prefill_field, request, prompt, (&matches, facts));
    let draw = draw(request, facts);
    let prefill_draw = Draw { last: facts.last.1, ..draw };
    let seen: Vec<Seen> = prefills.iter().map(see_prefill).collect();
    let kept = config.records.candidates_max;
    let prefill_order = order(config.policy, &prefill_draw, &seen, kept);
    let prefill = prefill_order.best_first.first().map(|&at| prefills[at]);

    let mut field = field(facts.loads.decode(), Role::Decode, request, facts);
    let bound = config.admission.decode_running_max;
    field.open.retain(|it| it.load.placed() < bound);
    if field.open.is_empty() {
        return Err(Blocked::Decode);
    }
    spare_cold(&mut field, request, &matches, facts);
    let mut found = matches.in_order();
    let start = |&it: &Open<'_>| {
        let prefill = (prefill.as_ref(), prefill_field.exists);
        decode_start(it.worker, side(it, found.of(it.worker), facts), prefill, prompt, facts)
    };
    let decodes: Vec<DecodeStart> = field.open.iter().filter_map(start).collect();
    let seen: Vec<Seen> = decodes.iter().map(see_decode).collect();
    let Order { best_first, tied } = order(config.policy, &draw, &seen, kept);
    let Some(decode) = best_first.first().map(|&at| decodes[at]) else {
        return Err(Blocked::Prefill);
    };

    field.steered.extend(prefill_field.steered);
    let warm_up_passed = field.steered.iter().any(|it| it.why == Steer::WarmingUp);
    field.steered.truncate(kept);
    Ok(Choice {
        placement: Placement {
            decode: decode.candidate.decode,
            prefill: decode.candidate.prefill,
            expected_cached_tokens: decode.candidate.cached_tokens,
            reason: reason(&decode, prompt, config.policy),
        },
        prompt,
        decode,
        prefill: prefill.filter(|_| decode.candidate.prefill.is_some()),
        considered: Considered {
            decode: best_first.iter().map(|&at| decodes[at].candidate).collect(),
            prefill: prefill_order.best_first.iter().map(|&at| prefills[at].candidate).collect(),
            steered: field.steered,
            tied,
        },
        overridden: field.overridden,
        warm_up_passed,
    })
}

/// Whether some worker of the role may take a request and is below its bound, whatever the request is.
pub(crate) fn has_prefill_room(facts: Facts<'_>) -> bool {
    facts.loads.prefill().any(|(worker, load)| {
        let requests = facts.loads.requests(load, facts.now);
        requests < facts.config.admission.prefill_running_max && !facts.lives.is_draining(worker)
    })
}

/// The same for decode workers.
pub(crate) fn has_decode_room(facts: Facts<'_>) -> bool {
    let bound = facts.config.admission.decode_running_max;
    facts
        .loads
        .decode()
        .any(|(worker, load)| load.placed() < bound && !facts.lives.is_draining(worker))
}

fn draw(request: &PlaceRequest, facts: Facts<'_>) -> Draw {
    // Without a session, prompts that begin alike stay together; those with nothing to keep together are spread.
    let id = u64::try_from(request.id.0 & u128::from(u64::MAX)).expect("64 bits are left");
    let first = request.names.first().and_then(|name| name.0.first_chunk::<8>());
    let prompt = first.map_or_else(|| mix(id), |bytes| u64::from_le_bytes(*bytes));
    Draw {
        seed: facts.config.seed,
        id: request.id,
        session: request.session.map_or(prompt, |session| session.0),
        last: facts.last.0,
        tie_margin: facts.config.cost.tie_margin,
        load_bound_percent: facts.config.load_bound_percent,
    }
}

/// Parts the workers of a role. Those that drain are out. Of the rest those stay that have nothing against them; when there
/// is no such worker, those with the weakest reason: a worker that may fail is better than none.
fn field<'a>(
    workers: impl Iterator<Item = (WorkerRank, &'a WorkerLoad)>,
    role: Role,
    request: &PlaceRequest,
    facts: Facts<'a>,
) -> Field<'a> {
    let mut field =
        Field { open: Vec::new(), steered: Vec::new(), overridden: false, exists: false };
    let mut doubtful = Vec::new();
    for ((worker, load), life) in workers.zip(facts.lives.of_role(role)) {
        match facts.lives.steer((worker, load), life, &request.excluded, facts.now) {
            None => field.open.push(Open { worker, load, life }),
            Some(Steer::Draining) => {
                field.steered.push(Steered { worker, why: Steer::Draining });
            }
            Some(why) => doubtful.push((Open { worker, load, life }, why)),
        }
    }
    field.exists = !field.open.is_empty() || !doubtful.is_empty();
    field.overridden = field.open.is_empty() && !doubtful.is_empty();
    let weakest = doubtful.iter().map(|(_, why)| *why).min();
    for (it, why) in doubtful {
        if field.overridden && Some(why) == weakest {
            field.open.push(it);
        } else {
            field.steered.push(Steered { worker: it.worker, why });
        }
    }
    field
}

/// Sets new workers aside that hold nothing of the prompt and had their share, while a warm one has room. In a fleet that
/// has just begun all are alike.
fn spare_cold(
    field: &mut Field<'_>,
    request: &PlaceRequest,
    matches: &PrefixMatches,
    facts: Facts<'_>,
) {
    if !facts.lives.any_cold() || !field.open.iter().any(|it| facts.lives.is_warm(it.life)) {
        return;
    }
    let steered = &mut field.steered;
    field.open.retain(|it| {
        let spared = facts.lives.is_spared((it.worker, it.life), request.id)
            && matches.of(it.worker).leading.of(Tier::Device) == 0;
        if spared {
            steered.push(Steered { worker: it.worker, why: Steer::WarmingUp });
        }
        !spared
    });
}

/// The prefill workers below their bound; none when the prompt has no hand-off boundary.
fn prefill_starts(
    field: &mut Field<'_>,
    request: &PlaceRequest,
    prompt: Prompt,
    (matches, facts): (&PrefixMatches, Facts<'_>),
) -> Vec<PrefillStart> {
    if prompt.boundary == 0 {
        return Vec::new();
    }
    let bound = facts.config.admission.prefill_running_max;
    field.open.retain(|it| facts.loads.requests(it.load, facts.now) < bound);
    spare_cold(field, request, matches, facts);
    let cost = &facts.config.cost;
    let mut found = matches.in_order();
    let starts = field.open.iter().map(|&it| {
        let side = side(it, found.of(it.worker), facts);
        let candidate = PrefillCandidate {
            prefill: it.worker,
            cost: price_prefill(&side, prompt, cost),
            cached_tokens: side.cached_tokens(),
            expected_tokens: side.expected_tokens(),
            requests: side.requests,
        };
        PrefillStart { candidate, rows: side.rows_to_boundary(prompt, cost) }
    });
    starts.collect()
}

/// The better way to start on one decode worker; none when it needs prefill and no prefill worker is free.
fn decode_start(
    worker: WorkerRank,
    side: Side,
    (prefill, has_prefill): (Option<&PrefillStart>, bool),
    prompt: Prompt,
    facts: Facts<'_>,
) -> Option<DecodeStart> {
    let cost = &facts.config.cost;
    let start = |kind, prefill, cost, rows| DecodeStart {
        kind,
        candidate: Candidate {
            decode: worker,
            prefill,
            cost,
            cached_tokens: side.cached_tokens(),
            expected_tokens: side.expected_tokens(),
            requests: side.requests,
        },
        rows,
        queue: side.queue,
    };
    let direct = |kind| {
        let rows = side.rows_to_boundary(prompt, cost) + prompt.tail_rows();
        start(kind, None, price_direct(&side, prompt, cost), rows)
    };
    let missing = side.missing_rows(prompt);
    if prompt.boundary == 0 {
        return Some(direct(PlacementKind::ShortPrompt));
    }
    if missing == 0 {
        return Some(direct(PlacementKind::AllCached));
    }
    if !has_prefill {
        return Some(direct(PlacementKind::NoPrefillWorker));
    }
    let short = missing <= cost.direct_rows_max;
    let Some(prefill) = prefill else {
        return short.then(|| direct(PlacementKind::PrefillBusy));
    };
    let split_cost = price_disaggregated(&side, &prefill.candidate.cost, prompt);
    if short {
        let direct = direct(PlacementKind::DirectCheaper);
        if direct.candidate.cost.total() <= split_cost.total() {
            return Some(direct);
        }
    }
    let with = Some(prefill.candidate.prefill);
    Some(start(PlacementKind::Disaggregated, with, split_cost, prompt.tail_rows()))
}

fn side(Open { load, .. }: Open<'_>, cached: PrefixMatch, facts: Facts<'_>) -> Side {
    Side {
        queue: load.queue_wait(facts.now),
        requests: facts.loads.requests(load, facts.now).max(load.running()),
        rates: load.rates(),
        cached,
        expected_in: load.expected_in(facts.now),
    }
}

fn see_decode(start: &DecodeStart) -> Seen {
    let Candidate { decode, cost, cached_tokens, requests, .. } = start.candidate;
    let cached_blocks = cached_tokens / shared::BLOCK_TOKENS;
    Seen { worker: decode, total: cost.total(), queue: start.queue, requests, cached_blocks }
}

fn see_prefill(start: &PrefillStart) -> Seen {
    let PrefillCandidate { prefill, cost, cached_tokens, requests, .. } = start.candidate;
    let cached_blocks = cached_tokens / shared::BLOCK_TOKENS;
    let queue = cost.prefill_queue;
    Seen { worker: prefill, total: cost.total(), queue, requests, cached_blocks }
}

/// One line for people.
fn reason(start: &DecodeStart, prompt: Prompt, policy: Policy) -> String {
    let Candidate { decode, cached_tokens, expected_tokens, cost, .. } = &start.candidate;
    let expected = match expected_tokens {
        0 => String::new(),
        tokens => format!(", {tokens} of them only expected"),
    };
    let (tokens, boundary) = (prompt.tokens, prompt.boundary);
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
        "{policy}: decode {decode}, {why}; {cached_tokens} of {boundary} tokens cached{expected}, {} ms = queue {} + restore {} + \
         recompute {} + hand-off {} + tail {} + interference {}",
        Tenths(cost.total()),
        Tenths(cost.prefill_queue.saturating_add(cost.decode_queue)),
        Tenths(cost.restore),
        Tenths(cost.recompute),
        Tenths(cost.handoff),
        Tenths(cost.tail),
        Tenths(cost.interference),
        policy = policy.as_str(),
    )
}

/// A time in milliseconds, with tenths. Each decision writes seven, so in 64 bits and without memory of their own.
struct Tenths(Duration);

impl fmt::Display for Tenths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0.saturating_add(Duration::from_micros(50)).as_micros();
        let tenths = u64::try_from(micros).unwrap_or(u64::MAX) / 100;
        write!(f, "{}.{}", tenths / 10, tenths % 10)
    }
}
