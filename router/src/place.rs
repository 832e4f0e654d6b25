//! Chooses the workers of one request.
//!
//! Each side is looked at once: those with a reason against them are set aside, the others are priced, and the policy
//! orders them. One best prefill worker serves all decode workers. What a pair costs before the tail is
//! max(path of P, queue of D), since D's queue drains while P works, plus a hand-off whose time is D's alone: it is D that
//! reads, and that measures how long reading takes. So the pair's cost never falls when P's path gets longer, whatever
//! D is. This holds as long as no rate belongs to the pair, such as a link between two hosts.

use shared::random::mix;
use shared::{BLOCK_TOKENS, PlaceRequest, Placement, Tier, Timestamp, WorkerRank};

use crate::config::RouterConfig;
use crate::cost::{Cost, Prompt, Side, price_direct, price_disaggregated, price_prefill};
use crate::index::{PrefixIndex, PrefixMatch, PrefixMatches};
use crate::life::{Life, Lives, Steer};
use crate::loads::{Loads, Standing, WorkerLoad};
use crate::nanos::Nanos;
use crate::policy::{Draw, Order, Seen, order};
use crate::reason::reason;
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
    pub(crate) worker: WorkerRank,
    pub(crate) prefill: Option<WorkerRank>,
    pub(crate) cost: Cost,
    pub(crate) cached_tokens: u32,
    pub(crate) expected_tokens: u32,
    requests: u32,
    /// Rows it computes before the first token.
    pub(crate) rows: u64,
    /// Wait for a request that is reached next there.
    queue: Nanos,
}

impl DecodeStart {
    /// For the record.
    pub(crate) fn candidate(&self) -> Candidate {
        Candidate {
            decode: self.worker,
            prefill: self.prefill,
            cost: self.cost,
            cached_tokens: self.cached_tokens,
            expected_tokens: self.expected_tokens,
            requests: self.requests,
        }
    }
}

/// A prefill worker that could take the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillStart {
    pub(crate) worker: WorkerRank,
    pub(crate) cost: Cost,
    pub(crate) cached_tokens: u32,
    expected_tokens: u32,
    requests: u32,
    /// Rows it computes.
    pub(crate) rows: u64,
}

impl PrefillStart {
    /// For the record.
    fn candidate(&self) -> PrefillCandidate {
        PrefillCandidate {
            prefill: self.worker,
            cost: self.cost,
            cached_tokens: self.cached_tokens,
            expected_tokens: self.expected_tokens,
            requests: self.requests,
        }
    }
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
    standing: Standing,
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
        decode_start(it.worker, &side(it, found.of(it.worker)), prefill, prompt, facts)
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
            decode: decode.worker,
            prefill: decode.prefill,
            expected_cached_tokens: decode.cached_tokens,
            reason: reason(&decode, prompt, config.policy),
        },
        prompt,
        decode,
        prefill: prefill.filter(|_| decode.prefill.is_some()),
        considered: Considered {
            decode: best_first.iter().map(|&at| decodes[at].candidate()).collect(),
            prefill: prefill_order.best_first.iter().map(|&at| prefills[at].candidate()).collect(),
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
        tie_margin: facts.config.cost.tie_margin.into(),
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
        let open = || Open { worker, load, life, standing: facts.loads.standing(load, facts.now) };
        match facts.lives.steer((worker, load), life, &request.excluded, facts.now) {
            None => field.open.push(open()),
            Some(Steer::Draining) => {
                field.steered.push(Steered { worker, why: Steer::Draining });
            }
            Some(why) => doubtful.push((open(), why)),
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
    field.open.retain(|it| it.standing.requests < bound);
    spare_cold(field, request, matches, facts);
    let cost = &facts.config.cost;
    let mut found = matches.in_order();
    let starts = field.open.iter().map(|&it| {
        let side = side(it, found.of(it.worker));
        PrefillStart {
            worker: it.worker,
            cost: price_prefill(&side, prompt, cost),
            cached_tokens: side.cached_tokens(),
            expected_tokens: side.expected_tokens(),
            requests: side.requests,
            rows: side.rows_to_boundary(prompt, cost),
        }
    });
    starts.collect()
}

/// The better way to start on one decode worker; none when it needs prefill and no prefill worker is free.
fn decode_start(
    worker: WorkerRank,
    side: &Side<'_>,
    (prefill, has_prefill): (Option<&PrefillStart>, bool),
    prompt: Prompt,
    facts: Facts<'_>,
) -> Option<DecodeStart> {
    let cost = &facts.config.cost;
    let tail = side.tail(prompt);
    let start = |kind, prefill, cost, rows| DecodeStart {
        kind,
        worker,
        prefill,
        cost,
        cached_tokens: side.cached_tokens(),
        expected_tokens: side.expected_tokens(),
        requests: side.requests,
        rows,
        queue: side.queue,
    };
    let direct = |kind| {
        let rows = side.rows_to_boundary(prompt, cost) + prompt.tail_rows();
        start(kind, None, price_direct(side, tail, prompt, cost), rows)
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
    let split = price_disaggregated(side, tail, &prefill.cost, prompt);
    if short {
        let direct = direct(PlacementKind::DirectCheaper);
        if direct.cost.total() <= split.total() {
            return Some(direct);
        }
    }
    let with = Some(prefill.worker);
    Some(start(PlacementKind::Disaggregated, with, split, prompt.tail_rows()))
}

fn side(Open { load, standing, .. }: Open<'_>, cached: PrefixMatch) -> Side<'_> {
    Side {
        queue: standing.queue,
        requests: standing.requests.max(load.running()),
        rates: load.rates(),
        cached,
        expected_in: standing.expected_in,
    }
}

fn see_decode(start: &DecodeStart) -> Seen {
    Seen {
        worker: start.worker,
        total: start.cost.total(),
        queue: start.queue,
        requests: start.requests,
        cached_blocks: start.cached_tokens / BLOCK_TOKENS,
    }
}

fn see_prefill(start: &PrefillStart) -> Seen {
    Seen {
        worker: start.worker,
        total: start.cost.total(),
        queue: start.cost.prefill_queue,
        requests: start.requests,
        cached_blocks: start.cached_tokens / BLOCK_TOKENS,
    }
}
