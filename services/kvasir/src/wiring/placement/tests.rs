use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use router::{DrainSource, LegEnd, Role, Router, RouterConfig};
use shared::{
    Clock, DpRank, Flow, LegOutcome, LoadReport, ManualClock, PlaceEvent, PlaceRequest, Placer,
    Priority, RequestId, ServeError, StartGeometry, StartReport, TenantId, Ticket, WindowSource,
    WorkerEvent, WorkerId, WorkerRank,
};

use crate::explain::{ExplainConfig, Predictions};

use super::{DrainWord, PERIOD, Placement, PlacementParts, Told};

const DECODE: WorkerRank = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };

fn start(requests_max: usize, running_max: u32) -> Placement {
    start_polling(requests_max, running_max, Arc::new(ManualClock::new()), Box::new(Vec::new))
}

fn start_polling(
    requests_max: usize,
    running_max: u32,
    clock: Arc<dyn Clock>,
    poll: Box<dyn FnMut() -> Vec<WorkerEvent> + Send>,
) -> Placement {
    let predictions = Predictions::new(&ExplainConfig::default());
    start_comparing(requests_max, running_max, clock, (poll, predictions))
}

fn start_comparing(
    requests_max: usize,
    running_max: u32,
    clock: Arc<dyn Clock>,
    (poll, predictions): (Box<dyn FnMut() -> Vec<WorkerEvent> + Send>, Arc<Predictions>),
) -> Placement {
    let geometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
    let mut config = RouterConfig::with_defaults(geometry);
    config.admission.decode_running_max = running_max;
    Placement::start(PlacementParts {
        router: Router::new(config).unwrap(),
        members: vec![(DECODE, Role::Decode)],
        requests_max,
        clock,
        poll,
        resync: Box::new(|_, _| ()),
        predictions,
        hub: None,
    })
    .unwrap()
}

fn request(id: u128) -> PlaceRequest {
    PlaceRequest {
        id: RequestId(id),
        tenant: TenantId(Arc::from("t")),
        names: Arc::from([]),
        prompt_tokens: 10,
        output_tokens_max: 10,
        deadline: None,
        priority: Priority::Normal,
        session: None,
        excluded: Vec::new(),
    }
}

fn submit(placement: &Placement, id: u128) -> (Ticket, mpsc::Receiver<PlaceEvent>) {
    let (sender, receiver) = mpsc::channel();
    let sink = move |event| if sender.send(event).is_ok() { Flow::Open } else { Flow::Closed };
    (placement.submit(request(id), Box::new(sink)), receiver)
}

#[test]
fn a_waiting_request_is_placed_when_a_running_one_ends() {
    let placement = start(8, 1);
    let (first, events) = submit(&placement, 1);
    assert!(matches!(events.recv().unwrap(), PlaceEvent::Placed(p) if p.decode == DECODE));
    let (_second, events) = submit(&placement, 2);
    drop(first);
    assert!(matches!(events.recv().unwrap(), PlaceEvent::Placed(_)));
}

#[test]
fn the_bound_of_requests_is_kept_and_given_back() {
    let placement = start(1, 8);
    let (first, events) = submit(&placement, 1);
    events.recv().unwrap();
    let (_, refused) = submit(&placement, 2);
    let refused = refused.recv().unwrap();
    assert!(matches!(refused, PlaceEvent::Refused(ServeError::Overloaded { .. })));
    drop(first);
    // The end of the first one is in the queue before the third one is accepted or refused; it is given back as soon
    // as the thread has seen it.
    let placed = (3..1_000_000).find_map(|id| {
        let (ticket, events) = submit(&placement, id);
        let event = events.recv().unwrap();
        matches!(event, PlaceEvent::Placed(_)).then_some(ticket)
    });
    assert!(placed.is_some());
}

#[test]
fn a_dead_thread_shows_and_gives_its_places_back() {
    let clock = Arc::new(ManualClock::new());
    let poll = Box::new(|| -> Vec<WorkerEvent> { panic!("the fault this test is about") });
    let placement = start_polling(2, 1, Arc::clone(&clock) as _, poll);
    let (first, events) = submit(&placement, 1);
    events.recv().unwrap();
    let (second, waiting) = submit(&placement, 2);
    assert!(placement.is_running());
    // The thread may have looked at the clock before or after any one step of it, so time goes on until it polls.
    loop {
        // Refused from the queue, or dropped with the thread's own sinks.
        match waiting.try_recv() {
            Ok(PlaceEvent::Refused(_)) | Err(mpsc::TryRecvError::Disconnected) => break,
            Ok(PlaceEvent::Placed(_)) => panic!("the only place is taken"),
            Err(mpsc::TryRecvError::Empty) => clock.advance(PERIOD),
        }
        thread::yield_now();
    }
    while placement.is_running() {
        thread::yield_now();
    }
    drop((first, second));
    for id in 3..9 {
        let (_ticket, refused) = submit(&placement, id);
        let refused = refused.recv().unwrap();
        assert_eq!(refused, PlaceEvent::Refused(ServeError::NoWorker { role: "placement" }));
    }
}

#[test]
fn a_request_that_finds_the_thread_asleep_is_placed_by_who_asks() {
    let placement = start(64, 8);
    let here = thread::current().id();
    let placed_here = (0..1_000_000).any(|id| {
        let (sender, threads) = mpsc::channel();
        let sink = move |event: PlaceEvent| {
            let is_placed = matches!(event, PlaceEvent::Placed(_));
            sender.send((thread::current().id(), is_placed)).unwrap();
            Flow::Closed
        };
        let ticket = placement.submit(request(id), Box::new(sink));
        let told = threads.recv().unwrap();
        drop(ticket);
        thread::yield_now();
        told == (here, true)
    });
    assert!(placed_here);
    // Whoever does it, all are placed.
    let tickets: Vec<_> = (1_000_000..1_000_008).map(|id| submit(&placement, id)).collect();
    assert!(tickets.iter().all(|(_, events)| events.recv().is_ok()));
}

#[test]
fn a_fault_on_the_thread_of_a_caller_ends_placement_too() {
    let placement = start(8, 8);
    let fault = |_: PlaceEvent| -> Flow { panic!("the fault this test is about") };
    // On the caller's thread, or on its own when that was awake.
    let _caught = panic::catch_unwind(AssertUnwindSafe(|| {
        drop(placement.submit(request(1), Box::new(fault)));
    }));
    while placement.is_running() {
        thread::yield_now();
    }
    let (_ticket, refused) = submit(&placement, 2);
    let error = ServeError::NoWorker { role: "placement" };
    assert_eq!(refused.recv().unwrap(), PlaceEvent::Refused(error));
}

#[test]
fn members_come_and_go() {
    let placement = start(8, 8);
    let place = |id| {
        let (ticket, events) = submit(&placement, id);
        (ticket, events.recv().unwrap())
    };
    let other = WorkerRank { worker: WorkerId(2), ..DECODE };
    let teller = placement.teller();
    teller.membership(Told::Left(DECODE)).unwrap();
    // What is told and what is asked come through two queues; the thread looks at both in its own order.
    let refused = (1..1_000_000).find_map(|id| match place(id).1 {
        PlaceEvent::Refused(error) => Some(error),
        PlaceEvent::Placed(_) => None,
    });
    assert_eq!(refused, Some(ServeError::NoWorker { role: "decode" }));
    teller.membership(Told::Joined(other, Role::Decode)).unwrap();
    let placed = (1_000_000..2_000_000).find_map(|id| match place(id).1 {
        PlaceEvent::Refused(_) => None,
        PlaceEvent::Placed(placement) => Some(placement.decode),
    });
    assert_eq!(placed, Some(other));
}

#[test]
fn outcomes_and_drains_reach_the_router() {
    let clock = Arc::new(ManualClock::new());
    let placement = start_polling(8, 8, Arc::clone(&clock) as _, Box::new(Vec::new));
    let (_ticket, events) = submit(&placement, 1);
    events.recv().unwrap();
    placement.outcome(RequestId(1), DECODE, LegOutcome::Completed { tokens: 4_000 });
    let report = LoadReport { draining: true, ..LoadReport::default() };
    let told = WorkerEvent::Load { worker: DECODE, report };
    assert_eq!(placement.teller().event(told), Flow::Open);
    // The snapshot shows it once time went on and the thread has looked.
    let shows = |want: &dyn Fn(&router::RouterSnapshot) -> bool| {
        while !want(&placement.snapshot()) {
            clock.advance(PERIOD);
            thread::yield_now();
        }
    };
    shows(&|snapshot| 256 < snapshot.answer_tokens);
    shows(&|snapshot| snapshot.life.drains == 1);
}

#[test]
fn an_operator_drains_a_worker_and_takes_it_back() {
    let clock = Arc::new(ManualClock::new());
    let placement = start_polling(8, 8, Arc::clone(&clock) as _, Box::new(Vec::new));
    let told = |word| placement.drain(DECODE, word).unwrap().blocking_recv().unwrap();
    let life = || placement.look(|router, now| router.life(DECODE, now)).unwrap().blocking_recv();
    let within = Some(Duration::from_secs(9));
    // How long the drain may take, and how long the operator takes.
    for (begin, lasts) in [(None, 99), (within, 1), (within, 9), (within, 99)] {
        told(DrainWord::Begin(begin)).unwrap();
        clock.advance(Duration::from_secs(lasts));
        assert_eq!(life().unwrap().unwrap().draining, Some(DrainSource::Operator));
        let (_ticket, events) = submit(&placement, 1);
        let refused = ServeError::NoWorker { role: "decode" };
        assert_eq!(events.recv().unwrap(), PlaceEvent::Refused(refused));
        assert_eq!(told(DrainWord::End).unwrap().draining, None);
        let (_ticket, events) = submit(&placement, 2);
        assert!(matches!(events.recv().unwrap(), PlaceEvent::Placed(_)));
    }
    let stranger = WorkerRank { worker: WorkerId(77), ..DECODE };
    let answer = placement.drain(stranger, DrainWord::End).unwrap();
    assert_eq!(answer.blocking_recv().unwrap(), None);
}

/// Who looks sees what was told before, in the record and in what the alarm goes by: each start once.
#[test]
fn a_start_is_compared_with_what_the_router_expected() {
    let predictions = Predictions::new(&ExplainConfig::default());
    let clock = Arc::new(ManualClock::new());
    let parts = (Box::new(Vec::new) as _, Arc::clone(&predictions));
    let placement = start_comparing(8, 8, clock as _, parts);
    let (ticket, events) = submit(&placement, 1);
    events.recv().unwrap();
    let report = StartReport {
        cached_tokens: 512,
        replayed_tokens: 0,
        window_source: WindowSource::Cold,
        exact: true,
        bytes_fetched: 0,
        prefill: None,
    };
    for id in [1, 1, 9] {
        placement.outcome(RequestId(id), DECODE, LegOutcome::Started(report));
    }
    placement.outcome(RequestId(1), DECODE, LegOutcome::Completed { tokens: 3 });
    let look = placement.look(|router, _| router.decision(RequestId(1)).cloned()).unwrap();
    let record = look.blocking_recv().unwrap().unwrap();
    assert_eq!(record.started.unwrap().report, report);
    assert_eq!(record.ended.unwrap().how, LegEnd::Completed { tokens: 3 });
    let window = predictions.figures().window;
    assert_eq!((window.starts, window.predicted, window.actual, window.error), (1, 0, 512, 512));
    drop(ticket);
}

#[test]
fn what_waits_is_refused_at_the_end() {
    let placement = start(8, 1);
    let (_first, events) = submit(&placement, 1);
    events.recv().unwrap();
    let (_second, events) = submit(&placement, 2);
    drop(placement);
    assert_eq!(events.recv().unwrap(), PlaceEvent::Refused(ServeError::Draining));
}
