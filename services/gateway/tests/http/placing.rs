//! What the router is asked and told: class and session from headers, outcomes of runs, workers not to be tried again.

use std::sync::Arc;

use gateway::GatewayConfig;
use gateway::scripted::ScriptedCluster;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, LegOutcome, PlaceEvent,
    PlaceRequest, Placement, Placer, Priority, RequestId, ServeError, SessionKey, Sink, TenantId,
    Ticket, WorkerId, WorkerRank,
};

use crate::client::{Reply, chat, open, read};
use crate::house::{House, ask};

/// A worker that loses every request, and one that is not found any more.
const LOSING: WorkerRank = WorkerRank { worker: WorkerId(7), rank: DpRank(0) };
const GONE: WorkerRank = WorkerRank { worker: WorkerId(8), rank: DpRank(0) };
/// A worker without room, and what stands for a router without room.
const FULL: WorkerRank = WorkerRank { worker: WorkerId(9), rank: DpRank(0) };
const QUEUE_FULL: WorkerRank = WorkerRank { worker: WorkerId(10), rank: DpRank(0) };
const OVERLOADED: ServeError =
    ServeError::Overloaded { waiting: 1, waiting_max: 1, retry_after_ms: 1_000 };

#[derive(Default)]
struct Heard {
    asked: Vec<PlaceRequest>,
    told: Vec<(RequestId, WorkerRank, LegOutcome)>,
}

/// Sends a request to each of `first` in turn, then to the scripted worker.
#[derive(Clone)]
struct Noting {
    heard: Arc<Mutex<Heard>>,
    first: &'static [WorkerRank],
    scripted: Option<ScriptedCluster>,
}

impl Placer for Noting {
    fn submit(&self, request: PlaceRequest, mut sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let id = request.id;
        let mut heard = self.heard.lock();
        let earlier = heard.asked.iter().filter(|asked| asked.id == id).count();
        heard.asked.push(request.clone());
        drop(heard);
        let Some(decode) = self.first.get(earlier).copied() else {
            let scripted = self.scripted.as_ref().expect("made with the house");
            return Placer::submit(scripted, request, sink);
        };
        if decode == QUEUE_FULL {
            let _flow = sink.emit(PlaceEvent::Refused(OVERLOADED));
            return Ticket::empty();
        }
        let (prefill, reason) = (None, String::new());
        let placement = Placement { decode, prefill, expected_cached_tokens: 0, reason };
        let _flow = sink.emit(PlaceEvent::Placed(placement));
        Ticket::empty()
    }

    fn outcome(&self, id: RequestId, worker: WorkerRank, outcome: LegOutcome) {
        self.heard.lock().told.push((id, worker, outcome));
    }
}

impl DecodeDirectory for Noting {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        match worker {
            LOSING => return Some(Arc::new(Losing)),
            FULL => return Some(Arc::new(Full)),
            _ => {}
        }
        self.scripted.as_ref().expect("made with the house").decode(worker)
    }
}

struct Losing;

impl Decode for Losing {
    fn submit(&self, _request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        drop(sink);
        Ticket::empty()
    }
}

struct Full;

impl Decode for Full {
    fn submit(&self, _request: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let _flow = sink.emit(DecodeEvent::Failed(OVERLOADED));
        Ticket::empty()
    }
}

async fn house(first: &'static [WorkerRank], answers: Value) -> (House, Arc<Mutex<Heard>>) {
    house_waiting(first, answers, GatewayConfig::default().resume_wait_ms_max).await
}

/// With this wait for another worker.
async fn house_waiting(
    first: &'static [WorkerRank],
    answers: Value,
    wait_ms: u64,
) -> (House, Arc<Mutex<Heard>>) {
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let inner = House::new(answers.clone()).await;
    let scripted = Some(ScriptedCluster::new(Arc::clone(&inner.engine)));
    let noting = Noting { heard: Arc::clone(&heard), first, scripted };
    let house = House::with(answers, |config, parts| {
        config.resume_wait_ms_max = wait_ms;
        parts.placer = Arc::new(noting.clone());
        parts.directory = Arc::new(noting);
    })
    .await;
    (house, heard)
}

async fn with_headers(house: &House, headers: &str) -> Reply {
    let body = serde_json::to_vec(&ask(&json!({}))).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    read(open(house.public, &head, &body).await).await
}

#[tokio::test]
async fn headers_say_class_and_session() {
    let (house, heard) = house(&[], json!([{"match": "*", "text": "fine"}])).await;
    let key = SessionKey::of(&TenantId("default".into()), b"chat 7");
    let cases = [
        ("", Priority::Normal, None),
        ("x-kvasir-priority: high\r\n", Priority::High, None),
        ("x-kvasir-priority: low\r\nx-kvasir-session: chat 7\r\n", Priority::Low, Some(key)),
    ];
    for (headers, priority, session) in cases {
        assert_eq!(with_headers(&house, headers).await.status, 200, "{headers}");
        let asked = heard.lock().asked.pop().unwrap();
        assert_eq!((asked.priority, asked.session), (priority, session), "{headers}");
        assert_eq!(asked.excluded, []);
    }
    let long = format!("x-kvasir-session: {}\r\n", "s".repeat(257));
    for (headers, named) in [("x-kvasir-priority: urgent\r\n", "priority"), (&*long, "session")] {
        let reply = with_headers(&house, headers).await;
        assert_eq!(reply.status, 400, "{headers}");
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains(named));
    }
    assert_eq!(heard.lock().asked.len(), 0);
}

#[tokio::test]
async fn the_router_hears_how_runs_go_and_who_failed() {
    let answers =
        json!([{"match": "*", "text": "one two three", "started": {"cached_tokens": 128}}]);
    let (house, heard) = house(&[LOSING, GONE], answers).await;
    assert_eq!(chat(house.public, &ask(&json!({}))).await.status, 200);
    let heard = std::mem::take(&mut *heard.lock());
    let excluded: Vec<_> = heard.asked.iter().map(|asked| asked.excluded.clone()).collect();
    assert_eq!(excluded, [vec![], vec![LOSING], vec![LOSING, GONE]]);
    let [lost, gone, started, completed] = &heard.told[..] else { panic!("{:?}", heard.told) };
    assert_eq!((lost.1, lost.2), (LOSING, LegOutcome::Failed));
    assert_eq!((gone.1, gone.2), (GONE, LegOutcome::Failed));
    assert!(matches!(started.2, LegOutcome::Started(report) if report.cached_tokens == 128));
    assert!(matches!(completed.2, LegOutcome::Completed { tokens } if 2 < tokens));
    assert!(heard.told.iter().all(|told| told.0 == heard.asked[0].id));
}

#[tokio::test]
async fn a_request_whose_worker_was_lost_looks_for_room_and_another_one_does_not() {
    // Who is met before a worker that answers, the wait for it, and what comes of it.
    let (long, none) = (600_000, 0);
    let cases: [(&'static [WorkerRank], u64, u16, &str); 7] = [
        (&[LOSING, FULL, FULL], long, 200, ""),
        (&[LOSING, QUEUE_FULL, QUEUE_FULL], long, 200, ""),
        (&[LOSING, FULL, QUEUE_FULL, GONE, LOSING, FULL], long, 200, ""),
        (&[LOSING, FULL], none, 503, "worker_lost"),
        (&[LOSING, QUEUE_FULL], none, 503, "worker_lost"),
        (&[FULL], long, 503, "overloaded"),
        (&[QUEUE_FULL], long, 503, "overloaded"),
    ];
    for (met, wait_ms, status, code) in cases {
        let (house, heard) =
            house_waiting(met, json!([{"match": "*", "text": "fine"}]), wait_ms).await;
        let reply = chat(house.public, &ask(&json!({}))).await;
        assert_eq!(reply.status, status, "{met:?}");
        let tries = met.len() + usize::from(status == 200);
        assert_eq!(heard.lock().asked.len(), tries, "{met:?}");
        if status != 200 {
            assert_eq!(reply.json()["error"]["code"], code, "{met:?}");
        }
        let resumes = met.iter().filter(|worker| **worker == LOSING).count();
        let line = format!("kvasir_gateway_resumes_total {resumes}");
        assert!(house.metrics().await.lines().any(|other| other == line), "{met:?}");
    }
}

#[tokio::test]
async fn refusals_that_say_nothing_about_the_worker_are_not_told() {
    // What the worker says, and whether the router hears of it. Draining is tried anew and refused again.
    let cases = [("overloaded", 0), ("too_long", 0), ("deadline_exceeded", 0), ("internal", 1)];
    for (failure, told) in cases {
        let answers = json!([{"match": "*", "text": "x", "fail_after": 0, "fail": failure}]);
        let (house, heard) = house(&[], answers).await;
        assert_ne!(chat(house.public, &ask(&json!({}))).await.status, 200, "{failure}");
        assert_eq!(heard.lock().told.len(), told, "{failure}");
    }
}
