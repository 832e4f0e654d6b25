//! What the router is asked and told: class and session from headers, outcomes of runs, workers not to be tried again.

use std::sync::Arc;

use gateway::scripted::ScriptedCluster;
use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::{
    Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, LegOutcome, PlaceEvent,
    PlaceRequest, Placement, Placer, Priority, RequestId, SessionKey, Sink, TenantId, Ticket,
    WorkerId, WorkerRank,
};

use crate::client::{Reply, chat, open, read};
use crate::house::{House, ask};

/// A worker that loses every request, and one that is not found any more.
const LOSING: WorkerRank = WorkerRank { worker: WorkerId(7), rank: DpRank(0) };
const GONE: WorkerRank = WorkerRank { worker: WorkerId(8), rank: DpRank(0) };

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
        if worker == LOSING {
            return Some(Arc::new(Losing));
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

async fn house(first: &'static [WorkerRank], answers: Value) -> (House, Arc<Mutex<Heard>>) {
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let inner = House::new(answers.clone()).await;
    let scripted = Some(ScriptedCluster::new(Arc::clone(&inner.engine)));
    let noting = Noting { heard: Arc::clone(&heard), first, scripted };
    let house = House::with(answers, |_, parts| {
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
