//! Clients that leave or do not read, servers that are full or leave: nobody waits for nobody for ever.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use shared::{Flow, PlaceEvent, PlaceRequest, Placer, ServeError, Sink, Ticket};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::client::{chat, open_chat, read, read_until, send};
use crate::house::{House, ask};

fn holding() -> Value {
    json!([{"match": "*", "text": "word", "then": "hold"}])
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_ends_the_whole_chain() {
    let mut house = House::new(holding()).await;
    let mut stream = open_chat(house.public, &ask(&json!({"stream": true}))).await;
    read_until(&mut stream, "word").await;
    house.submitted().await;
    assert_eq!((house.gateway.in_flight(), house.engine.in_work()), (1, 1));
    drop(stream);
    house.released().await;
    house.gateway.drained().await;
    assert!(house.metrics().await.contains("outcome=\"client_gone\"} 1\n"));
}

#[tokio::test]
async fn a_client_that_leaves_before_a_whole_answer_ends_the_whole_chain() {
    let mut house = House::new(holding()).await;
    let stream = open_chat(house.public, &ask(&json!({}))).await;
    house.submitted().await;
    drop(stream);
    house.released().await;
    house.gateway.drained().await;
    assert!(house.metrics().await.contains("outcome=\"client_gone\"} 1\n"));
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_request_and_nothing_else() {
    let endless = json!([
        {"match": "endless", "text": "word word word", "repeat": 1_000_000_000},
        {"match": "*", "text": "fine"},
    ]);
    let mut house = House::new(endless).await;
    let messages = json!([{"role": "user", "content": "endless"}]);
    let slow = open_chat(house.public, &ask(&json!({"stream": true, "messages": messages}))).await;
    house.submitted().await;
    // Nothing is read until the gateway has given the request up.
    house.released().await;
    house.gateway.drained().await;
    assert_eq!(chat(house.public, &ask(&json!({}))).await.status, 200, "others are served");
    let reply = read(slow).await;
    let events = reply.events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "slow_client");
    assert!(house.metrics().await.contains("outcome=\"slow_client\"} 1\n"));
}

#[tokio::test]
async fn a_full_gateway_refuses_and_recovers() {
    let mut house = House::with(holding(), |config, _| config.requests_in_flight_max = 1).await;
    let first = open_chat(house.public, &ask(&json!({"stream": true}))).await;
    house.submitted().await;
    let refused = chat(house.public, &ask(&json!({"stream": true}))).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    drop(first);
    house.released().await;
    house.gateway.drained().await;
    let body = ask(&json!({"stream": true, "max_tokens": 1}));
    assert_eq!(chat(house.public, &body).await.status, 200);
    assert!(house.metrics().await.contains("outcome=\"overloaded\"} 1\n"));
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_refuses_the_rest() {
    let mut house = House::new(holding()).await;
    let mut running = open_chat(house.public, &ask(&json!({"stream": true}))).await;
    read_until(&mut running, "word").await;
    house.submitted().await;
    house.gateway.begin_drain();
    let refused = chat(house.public, &ask(&json!({}))).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"]["code"], "draining");
    assert_eq!(send(house.public, "GET", "/readyz", b"").await.status, 503);
    assert_eq!(send(house.public, "GET", "/healthz", b"").await.status, 200);
    assert_eq!(house.gateway.in_flight(), 1, "the running one goes on");
    assert_eq!(house.gateway.cut_off().await, 1, "until it is cut off");
    house.released().await;
    house.gateway.drained().await;
}

#[tokio::test]
async fn a_role_that_ended_is_named_and_its_requests_are_refused() {
    let ended = Arc::new(Mutex::new(false));
    let seen = Arc::clone(&ended);
    let answers = json!([{"match": "*", "text": "fine"}]);
    let house =
        House::with(answers, |config, parts| {
            config.requests_in_flight_max = 1;
            parts.health = Arc::new(move || {
                if *seen.lock() { Err("the decode worker ended".to_owned()) } else { Ok(()) }
            });
        })
        .await;
    assert_eq!(send(house.public, "GET", "/readyz", b"").await.status, 200);
    *ended.lock() = true;
    for address in [house.public, house.admin] {
        let reply = send(address, "GET", "/readyz", b"").await;
        assert_eq!((reply.status, reply.text()), (503, "the decode worker ended\n"));
    }
    assert_eq!(send(house.public, "GET", "/healthz", b"").await.status, 200);
    for _ in 0..3 {
        let refused = chat(house.public, &ask(&json!({}))).await;
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "role_ended");
        assert!(error["message"].as_str().unwrap().contains("decode worker"), "{error}");
    }
    assert_eq!(house.gateway.in_flight(), 0);
    *ended.lock() = false;
    assert_eq!(chat(house.public, &ask(&json!({}))).await.status, 200);
}

#[tokio::test]
async fn many_streams_at_once_get_their_own_answers() {
    let answers: Vec<Value> = (0..20)
        .map(
            |index| json!({"match": format!("number {index}."), "text": format!("it is {index}!")}),
        )
        .collect();
    let house = House::new(Value::from(answers)).await;
    let mut streams = Vec::new();
    for index in 0..20 {
        let messages = json!([{"role": "user", "content": format!("number {index}.")}]);
        let body = ask(&json!({"messages": messages, "stream": true}));
        streams.push(open_chat(house.public, &body).await);
    }
    for (index, stream) in streams.into_iter().enumerate() {
        let chunks = read(stream).await.chunks();
        let text: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, format!("it is {index}!"));
    }
    house.gateway.drained().await;
    assert_eq!(house.engine.in_work(), 0);
}

/// A router that answers when the test says so.
struct SlowPlacer {
    asked: UnboundedSender<Box<dyn Sink<PlaceEvent>>>,
    released: Arc<Mutex<u32>>,
}

impl Placer for SlowPlacer {
    fn submit(&self, _request: PlaceRequest, sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        assert!(self.asked.send(sink).is_ok());
        let released = Arc::clone(&self.released);
        Ticket::new(move || *released.lock() += 1)
    }
}

#[tokio::test]
async fn a_queued_stream_is_kept_alive_and_refused_by_an_event() {
    let (asked, mut asking) = unbounded_channel();
    let released = Arc::new(Mutex::new(0));
    let placer = SlowPlacer { asked, released: Arc::clone(&released) };
    let house = House::with(json!([]), |config, parts| {
        config.head_wait_ms_max = 0;
        config.keep_alive_ms = 1;
        parts.placer = Arc::new(placer);
    })
    .await;
    let mut stream = open_chat(house.public, &ask(&json!({"stream": true}))).await;
    let mut sink = asking.recv().await.unwrap();
    read_until(&mut stream, ": keep-alive\n\n").await;
    let refusal = ServeError::Overloaded { waiting: 1, waiting_max: 1, retry_after_ms: 1_000 };
    assert_eq!(sink.emit(PlaceEvent::Refused(refusal)), Flow::Open);
    read_until(&mut stream, "\"code\":\"overloaded\"").await;
    house.gateway.drained().await;
    assert_eq!(*released.lock(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_gives_its_place_up() {
    let (asked, mut asking) = unbounded_channel();
    let released = Arc::new(Mutex::new(0));
    let placer = SlowPlacer { asked, released: Arc::clone(&released) };
    let house = House::with(json!([]), |_, parts| parts.placer = Arc::new(placer)).await;
    for stream in [true, false] {
        let client = open_chat(house.public, &ask(&json!({"stream": stream}))).await;
        let mut sink = asking.recv().await.unwrap();
        drop(client);
        house.gateway.drained().await;
        assert_eq!(sink.emit(PlaceEvent::Refused(ServeError::Draining)), Flow::Closed);
    }
    assert_eq!(*released.lock(), 2);
}

#[tokio::test]
async fn a_router_that_goes_away_is_an_internal_error() {
    let (asked, mut asking) = unbounded_channel();
    let placer = SlowPlacer { asked, released: Arc::default() };
    let house = House::with(json!([]), |_, parts| parts.placer = Arc::new(placer)).await;
    let stream = open_chat(house.public, &ask(&json!({}))).await;
    drop(asking.recv().await.unwrap());
    assert_eq!(read(stream).await.status, 500);
}
