//! Chooses the workers of one request.
//!
//! Each side is looked at once: those with a reason against them are set aside, the others are priced, and the policy
//! orders them. One best prefill worker serves all decode workers. What a pair costs before the tail is
//! max(path of P, queue of D), since D's queue drains while P works, plus a hand-off whose time is D's alone: it is D that
//! reads, and that measures how long reading takes. So the pair's cost never falls when P's path gets longer, whatever
//! D is. This holds as long as no rate belongs to the pair, such as a link between two hosts.

use std::cell::RefCell;

use shared::random::mix;
use shared::{BLOCK_TOKENS, PlaceRequest, Placement, Timestamp, WorkerRank};

use crate::config::RouterConfig;
use crate::cost::{Cost, Prompt, Side, price_direct, price_disaggregated, price_prefill};
use crate::field::{Field, Open};
use crate::index::{PrefixIndex, PrefixMatch, PrefixMatches};
use crate::life::{Lives, Steer};
use crate::loads::{Loads, WorkerLoad};
use crate::nanos::Nanos;
use crate::policy::{Draw, Order, Seen};
use crate::reason::reason;
use crate::records::{Candidate, Considered, PlacementKind, PrefillCandidate};
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
    /// Says nothing: memory to decide in.
    pub(crate) scratch: &'a RefCell<Scratch>,
}

/// Memory that one decision leaves to the next.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    prefill: Contest<PrefillStart>,
    decode: Contest<DecodeStart>,
    /// Empty lists of the record that the last one took the place of.
    spare: Considered,
}

impl Scratch {
    /// Takes the lists of a record that is kept no more.
    pub(crate) fn take_back(&mut self, considered: Option<Considered>) {
        let Some(Considered { mut decode, mut prefill, mut steered, .. }) = considered else {
            return;
        };
        decode.clear();
        prefill.clear();
        steered.clear();
        self.spare = Considered { decode, prefill, steered, tied: 0 };
    }
}

/// The workers of one role on their way to an order.
#[derive(Debug)]
struct Contest<S> {
    field: Field,
    /// Those of the field that can take the request.
    starts: Vec<S>,
    /// The same, as the policy sees them.
    seen: Vec<Seen>,
    order: Order,
}

impl<S> Default for Contest<S> {
    fn default() -> Self {
        Self {
            field: Field::default(),
            starts: Vec::new(),
            seen: Vec::new(),
            order: Order::default(),
        }
    }
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

/// Chooses the workers of a request. Fails with what is full.
pub(crate) fn choose(request: &PlaceRequest, facts: Facts<'_>) -> Result<Choice, Blocked> {
    let config = facts.config;
    let answer_tokens = facts.answer_tokens.min(request.output_tokens_max);
    let prompt = Prompt::new(request.prompt_tokens, answer_tokens, config.geometry);
    let blocks = usize::try_from(prompt.blocks()).expect("a block count fits in memory");
    // Only [0, S) is ever attached, however much more is cached.
    let names = &request.names[..blocks.min(request.names.len())];
    let matches = facts.index.match_prefix(names);

    let scratch = &mut *facts.scratch.borrow_mut();
    let Scratch { prefill: prefills, decode: decodes, spare } = scratch;
    let (policy, kept) = (config.policy, config.records.candidates_max);
    let draw = draw(request, facts);
    prefills.field.part(Role::Prefill, request, facts);
    prefill_starts(prefills, request, prompt, (&matches, facts));
    let prefill_draw = Draw { last: facts.last.1, ..draw };
    prefills.order.find(policy, &prefill_draw, &prefills.seen, kept);
    let prefill = prefills.best().copied();

    decodes.field.part(Role::Decode, request, facts);
    if decodes.field.open.is_empty() {
        return Err(Blocked::Decode);
    }
    let with = (prefill.as_ref(), prefills.field.exists);
    decode_starts(decodes, request, with, prompt, (&matches, facts));
    decodes.order.find(policy, &draw, &decodes.seen, kept);
    let Some(&decode) = decodes.best() else {
        return Err(Blocked::Prefill);
    };

    let steered = || decodes.field.steered.iter().chain(&prefills.field.steered);
    Ok(Choice {
        placement: Placement {
            decode: decode.worker,
            prefill: decode.prefill,
            expected_cached_tokens: decode.cached_tokens,
            reason: reason(&decode, prompt, policy),
        },
        prompt,
        decode,
        prefill: prefill.filter(|_| decode.prefill.is_some()),
        considered: {
            let mut it = std::mem::take(spare);
            it.decode.extend(decodes.best_first().map(DecodeStart::candidate));
            it.prefill.extend(prefills.best_first().map(PrefillStart::candidate));
            it.steered.extend(steered().take(kept));
            Considered { tied: decodes.order.tied, ..it }
        },
        overridden: decodes.field.overridden,
        warm_up_passed: steered().any(|it| it.why == Steer::WarmingUp),
    })
}

impl<S> Contest<S> {
    /// Those that the record keeps, best first.
    fn best_first(&self) -> impl ExactSizeIterator<Item = &S> {
        self.order.best_first().map(|at| &self.starts[at])
    }

    /// The best one.
    fn best(&self) -> Option<&S> {
        self.best_first().next()
    }
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

/// Prices the prefill workers below their bound; none when the prompt has no hand-off boundary.
fn prefill_starts(
    contest: &mut Contest<PrefillStart>,
    request: &PlaceRequest,
    prompt: Prompt,
    (matches, facts): (&PrefixMatches, Facts<'_>),
) {
    let Contest { field, starts, seen, .. } = contest;
    starts.clear();
    seen.clear();
    if prompt.boundary == 0 {
        return;
    }
    field.spare_cold(Role::Prefill, request, matches, facts);
    let cost = &facts.config.cost;
    let workers = facts.loads.of_role(Role::Prefill);
    let mut found = matches.in_order();
    for it in &field.open {
        let (worker, load) = &workers[it.number];
        let side = side(it, load, found.of(*worker));
        let start = PrefillStart {
            worker: *worker,
            cost: price_prefill(&side, prompt, cost),
            cached_tokens: side.cached_tokens(),
            expected_tokens: side.expected_tokens(),
            requests: side.requests,
            rows: side.rows_to_boundary(prompt, cost),
        };
        seen.push(see_prefill(&start));
        starts.push(start);
    }
}

/// Prices the decode workers below their bound that can take the request.
fn decode_starts(
    contest: &mut Contest<DecodeStart>,
    request: &PlaceRequest,
    (prefill, has_prefill): (Option<&PrefillStart>, bool),
    prompt: Prompt,
    (matches, facts): (&PrefixMatches, Facts<'_>),
) {
    let Contest { field, starts, seen, .. } = contest;
    starts.clear();
    seen.clear();
    field.spare_cold(Role::Decode, request, matches, facts);
    let workers = facts.loads.of_role(Role::Decode);
    let mut found = matches.in_order();
    for it in &field.open {
        let (worker, load) = &workers[it.number];
        let side = side(it, load, found.of(*worker));
        if let Some(start) = decode_start(*worker, &side, (prefill, has_prefill), prompt, facts) {
            seen.push(see_decode(&start));
            starts.push(start);
        }
    }
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

fn side<'a>(open: &Open, load: &'a WorkerLoad, cached: PrefixMatch) -> Side<'a> {
    let standing = open.standing;
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
