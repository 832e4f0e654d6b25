//! Outcomes with a decode border that a test plays.

use std::sync::Arc;
use std::time::Duration;

use router::{Candidate, Considered, Cost, DecisionRecord, PlacementKind, Policy};
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, FinishReason, Flow, Lineage,
    ManualClock, Priority, RequestId, Root, Sampling, ServeError, Sink, StartReport, TenantTag,
    Ticket, Timestamp, TokenId, TraceContext, WindowSource, WorkerId, WorkerRank,
};

use super::{ExplainConfig, Outcomes};

fn rank(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
}

fn record(id: u128, at: u64, cached: (u32, u32)) -> DecisionRecord {
    let chosen = Candidate {
        decode: rank(1),
        prefill: None,
        cost: Cost::default(),
        cached_tokens: cached.0,
        requests: 0,
    };
    DecisionRecord {
        id: RequestId(id),
        at: Timestamp(at),
        waited: Duration::ZERO,
        prompt_tokens: 1_000,
        boundary: 768,
        kind: PlacementKind::DirectCheaper,
        chosen,
        prefill_cached_tokens: cached.1,
        tenant: TenantTag::default(),
        priority: Priority::Normal,
        answer_tokens: 10,
        policy: Policy::Cost,
        overridden: false,
        expected_cached_tokens: cached.0.max(cached.1),
        considered: Considered {
            decode: vec![chosen],
            prefill: Vec::new(),
            steered: Vec::new(),
            tied: 1,
        },
        started: None,
        ended: None,
    }
}

fn report(cached_tokens: u32) -> StartReport {
    StartReport {
        cached_tokens,
        replayed_tokens: 0,
        window_source: WindowSource::Cold,
        exact: true,
        bytes_fetched: 0,
        prefill: None,
    }
}

/// Says what it is told to say to every request.
struct Played(Vec<DecodeEvent>);

impl Decode for Played {
    fn submit(&self, _: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        for event in self.0.clone() {
            if sink.emit(event) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}

struct One(Arc<Played>);

impl DecodeDirectory for One {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        (worker == rank(1)).then(|| Arc::clone(&self.0) as Arc<dyn Decode>)
    }
}

fn run(outcomes: &Arc<Outcomes>, id: u128, events: Vec<DecodeEvent>, flow: Flow) {
    let directory = outcomes.watch(Arc::new(One(Arc::new(Played(events)))));
    assert!(directory.decode(rank(2)).is_none());
    let request = DecodeRequest {
        id: RequestId(id),
        trace: TraceContext::NONE,
        tenant: TenantTag(0),
        prompt: Arc::from([TokenId(1)]),
        emitted: Vec::new(),
        root: Root::from_bytes([5; 32]),
        names: Arc::from([]),
        lineage: Lineage::Exact,
        sampling: Sampling::GREEDY,
        stop_ids: Vec::new(),
        output_tokens_max: 8,
        prefill: None,
        deadline: None,
    };
    let worker = directory.decode(rank(1)).unwrap();
    drop(worker.submit(request, Box::new(move |_| flow)));
}

fn outcomes(records_max: usize) -> (Arc<ManualClock>, Arc<Outcomes>) {
    let clock = Arc::new(ManualClock::new());
    let outcomes = Outcomes::new(&ExplainConfig::default(), records_max, Arc::clone(&clock) as _);
    (clock, outcomes)
}

#[test]
fn predictions_meet_what_workers_say() {
    let (clock, outcomes) = outcomes(8);
    let token = DecodeEvent::Token(TokenId(3));
    let lost = DecodeEvent::Failed(ServeError::WorkerLost { worker: rank(1) });
    let started = DecodeEvent::Started(report(512));
    let finished = DecodeEvent::Finished(FinishReason::Stop);
    let cases = [
        (
            1,
            vec![started.clone(), token.clone(), token.clone(), finished],
            Flow::Open,
            "finished",
            2,
        ),
        (2, vec![started.clone(), token.clone(), lost], Flow::Open, "failed: ", 1),
        (3, vec![started.clone(), token.clone()], Flow::Closed, "cancelled", 0),
        (4, vec![started, token], Flow::Open, "cancelled, or its worker was lost", 1),
    ];
    for (id, events, flow, how, tokens) in cases {
        outcomes.placed(&record(id, 0, (128, 640)));
        clock.advance(Duration::from_millis(5));
        run(&outcomes, id, events, flow);
        let [outcome] = outcomes.of(RequestId(id)).try_into().unwrap();
        assert_eq!(outcome.predicted_tokens, 640, "the prefill worker had more");
        assert_eq!(outcome.started.unwrap().0.cached_tokens, 512);
        let ended = outcome.ended.unwrap();
        assert!(ended.how.starts_with(how), "{}", ended.how);
        assert_eq!(ended.tokens, tokens, "request {id}");
        assert_eq!(ended.after, Duration::from_millis(5 * u64::try_from(id).unwrap()));
    }
    let figures = outcomes.figures();
    assert_eq!((figures.totals.predicted, figures.totals.actual), (4 * 640, 4 * 512));
    assert_eq!((figures.totals.starts, figures.totals.error), (4, 4 * 128));
}

#[test]
fn a_request_placed_anew_has_two_outcomes_and_the_oldest_make_room() {
    let (_, outcomes) = outcomes(3);
    for (id, at) in [(1, 1), (2, 2), (1, 3)] {
        outcomes.placed(&record(id, at, (0, 0)));
    }
    run(&outcomes, 1, vec![DecodeEvent::Started(report(0))], Flow::Open);
    let told: Vec<bool> =
        outcomes.of(RequestId(1)).iter().map(|outcome| outcome.started.is_some()).collect();
    assert_eq!(told, [false, true], "the later one");
    outcomes.placed(&record(3, 4, (0, 0)));
    outcomes.placed(&record(4, 5, (0, 0)));
    assert_eq!(outcomes.of(RequestId(1)).len(), 1);
    assert!(outcomes.of(RequestId(2)).is_empty());
    run(&outcomes, 2, vec![DecodeEvent::Started(report(9))], Flow::Open);
    assert_eq!(outcomes.figures().totals.starts, 1, "of one that is forgotten nothing is noted");
    let last: Vec<u128> = outcomes.last(2).iter().map(|outcome| outcome.id.0).collect();
    assert_eq!(last, [4, 3]);
    outcomes.placed(&record(5, 6, (0, 0)));
    assert!(outcomes.of(RequestId(1)).is_empty());
    let (_, none) = self::outcomes(0);
    none.placed(&record(1, 1, (0, 0)));
    run(&none, 1, vec![DecodeEvent::Started(report(9))], Flow::Open);
    assert!(none.last(9).is_empty());
}
