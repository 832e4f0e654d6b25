//! What comes of calls when the other side dies, freezes, restarts or drains.

use std::sync::Arc;
use std::time::Duration;

use shared::{
    BlockStore, Decode, DecodeEvent, Durability, FinishReason, Flow, LocateEvent, Miss, OfferEvent,
    OfferOutcome, Prefill, PrefillEvent, RequestContext, ServeError, TokenId,
};

use super::rig::{
    Cluster, LINK, Server, Wire, asked, decode_request, descriptor, facts, link_options, listen,
    offered, prefill_request, puppet, puppet_store, ready, services, silent_hub, twin_listeners,
    until, worker,
};
use crate::wire::{
    Link, LinkLimits, LinkState, RemoteDecode, RemotePrefill, RemoteStore, ServerLimits, Services,
    Watched, watch,
};

fn lost(name: &str) -> ServeError {
    ServeError::WorkerLost { worker: worker(name) }
}

#[tokio::test]
async fn a_dead_peer_ends_every_call_once_and_a_restarted_one_is_connected_again() {
    let cluster = Cluster::new();
    let (first, second) = twin_listeners().await;
    let identity = cluster.identity("decode-1");
    let (decode, mut submitted) = puppet();
    let before = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::on(first, Arc::clone(&identity), before);
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let remote = RemoteDecode::new(Arc::clone(&link));
    let (sink, mut events) = listen();
    let _running = remote.submit(decode_request(3), sink);
    let mut at_worker = submitted.recv().await.unwrap();
    let token = DecodeEvent::Token(TokenId(5), None);
    assert_eq!(at_worker.sink.emit(token.clone()), Flow::Open);
    assert_eq!(events.recv().await, Some(token));

    server.kill().await;
    assert_eq!(events.recv().await, Some(DecodeEvent::Failed(lost("decode-1"))));
    assert_eq!(events.recv().await, None, "told once");
    assert!(at_worker.ended.await.is_err());
    until(&link, |state| !matches!(state, LinkState::Ready(_))).await;
    let (sink, mut events) = listen();
    let _refused = remote.submit(decode_request(3), sink);
    assert_eq!(events.try_recv().unwrap(), DecodeEvent::Failed(lost("decode-1")));

    let (decode, mut submitted) = puppet();
    let mut after = Services { decode: Some(decode), ..services("decode-1") };
    after.facts.incarnation = 2;
    let _server = Server::on(second, identity, after);
    let state = until(&link, |state| matches!(state, LinkState::Ready(_))).await;
    assert!(matches!(state, LinkState::Ready(facts) if facts.incarnation == 2));
    let (sink, _events) = listen();
    let _ticket = remote.submit(decode_request(3), sink);
    assert!(submitted.recv().await.is_some());
    assert_eq!(link.stats().connections, 2);
}

#[tokio::test]
async fn a_watch_begins_anew_with_a_restarted_member() {
    let cluster = Cluster::new();
    let (first, second) = twin_listeners().await;
    let identity = cluster.identity("decode-1");
    let before = Services { events: Some(silent_hub()), ..services("decode-1") };
    let server = Server::on(first, Arc::clone(&identity), before);
    let link = cluster.link("router-9", "decode-1", server.address);
    let (sink, mut told) = listen();
    let _watch = watch(&link, sink);
    assert!(matches!(told.recv().await, Some(Watched::Begun(facts)) if facts.incarnation == 1));
    server.kill().await;
    // Whoever notices first: the stream, or the link.
    let mut gone = false;
    while !gone {
        match told.recv().await.unwrap() {
            Watched::Gone => gone = true,
            other => assert_eq!(other, Watched::Interrupted),
        }
    }
    let mut after = Services { events: Some(silent_hub()), ..services("decode-1") };
    after.facts.incarnation = 2;
    let _server = Server::on(second, identity, after);
    loop {
        match told.recv().await.unwrap() {
            Watched::Begun(facts) => {
                assert_eq!(facts.incarnation, 2);
                break;
            }
            other => assert!(matches!(other, Watched::Interrupted | Watched::Gone), "{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_dead_store_finds_nothing_and_takes_nothing() {
    let cluster = Cluster::new();
    let (store, mut lookups, mut offers) = puppet_store();
    let services = Services { store: Some(store), ..services("kvstore-3") };
    let server = Server::start(cluster.identity("kvstore-3"), services).await;
    let link = cluster.link("prefill-2", "kvstore-3", server.address);
    ready(&link).await;
    let remote = RemoteStore::new(Arc::clone(&link));
    let keys = vec![descriptor(1).key, descriptor(2).key];
    let nothing = LocateEvent::at_once(vec![Err(Miss::NoAnswer); 2]);
    let dropped =
        [1, 2].map(|name| OfferEvent { key: descriptor(name).key, outcome: OfferOutcome::Dropped });
    let (sink, mut found) = listen();
    let _lookup = remote.locate(RequestContext::NONE, asked(&keys), sink);
    let (sink, mut answers) = listen();
    let _offer = remote.offer(
        RequestContext::NONE,
        offered(&[descriptor(1), descriptor(2)]),
        Durability::Memory,
        sink,
    );
    let _held = (lookups.recv().await.unwrap(), offers.recv().await.unwrap());
    server.kill().await;
    assert_eq!(found.recv().await, Some(nothing.clone()));
    assert_eq!(found.recv().await, None);
    for event in dropped {
        assert_eq!(answers.recv().await, Some(event));
    }
    assert_eq!(answers.recv().await, None);

    until(&link, |state| !matches!(state, LinkState::Ready(_))).await;
    let (sink, mut found) = listen();
    let _lookup = remote.locate(RequestContext::NONE, asked(&keys), sink);
    assert_eq!(found.try_recv().unwrap(), nothing);
    let (sink, mut answers) = listen();
    let _offer = remote.offer(
        RequestContext::NONE,
        offered(&[descriptor(1), descriptor(2)]),
        Durability::Memory,
        sink,
    );
    for event in dropped {
        assert_eq!(answers.try_recv().unwrap(), event);
    }
}

#[tokio::test]
async fn a_frozen_peer_is_noticed_by_both_sides() {
    let cluster = Cluster::new();
    let (prefill, mut submitted) = puppet();
    let (interval, timeout) = (Duration::from_millis(20), Duration::from_millis(400));
    let limits = ServerLimits {
        keep_alive_interval: interval,
        keep_alive_timeout: timeout,
        ..ServerLimits::DEFAULT
    };
    let services = Services { prefill: Some(prefill), limits, ..services("prefill-2") };
    let server = Server::start(cluster.identity("prefill-2"), services).await;
    let wire = Wire::to(server.address).await;
    let mut options =
        link_options(cluster.identity("decode-1"), facts("decode-1"), "prefill-2", wire.address);
    options.limits =
        LinkLimits { keep_alive_interval: interval, keep_alive_timeout: timeout, ..LINK };
    let link = Arc::new(Link::start(options));
    ready(&link).await;
    let (sink, mut events) = listen();
    let _ticket = RemotePrefill::new(Arc::clone(&link)).submit(prefill_request(), sink);
    let at_worker = submitted.recv().await.unwrap();
    wire.frozen.send(true).unwrap();
    assert_eq!(events.recv().await, Some(PrefillEvent::Failed(lost("prefill-2"))));
    assert!(at_worker.ended.await.is_err(), "the worker frees what it held for the caller");
    until(&link, |state| !matches!(state, LinkState::Ready(_))).await;
}

#[tokio::test]
async fn calls_of_a_link_are_bounded() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let identity = cluster.identity("router-9");
    let mut options = link_options(identity, facts("router-9"), "decode-1", server.address);
    options.limits.calls_max = 1;
    let link = Arc::new(Link::start(options));
    ready(&link).await;
    let remote = RemoteDecode::new(Arc::clone(&link));
    let (sink, mut first) = listen();
    let _running = remote.submit(decode_request(3), sink);
    let (sink, mut second) = listen();
    let _refused = remote.submit(decode_request(3), sink);
    assert!(matches!(
        second.try_recv().unwrap(),
        DecodeEvent::Failed(ServeError::Overloaded { waiting: 1, waiting_max: 1, .. })
    ));
    assert_eq!((link.stats().calls, link.stats().calls_refused), (1, 1));
    let mut at_worker = submitted.recv().await.unwrap();
    let end = DecodeEvent::Finished(FinishReason::Length);
    assert_eq!(at_worker.sink.emit(end.clone()), Flow::Open);
    assert_eq!(first.recv().await, Some(end));
    assert_eq!(first.recv().await, None);
    let (sink, _third) = listen();
    let _ticket = remote.submit(decode_request(3), sink);
    assert!(submitted.recv().await.is_some());
}

#[tokio::test]
async fn a_stopped_link_ends_its_calls_and_tasks() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let remote = RemoteDecode::new(Arc::clone(&link));
    let (sink, mut events) = listen();
    let _ticket = remote.submit(decode_request(3), sink);
    let at_worker = submitted.recv().await.unwrap();
    let (sink, mut told) = listen();
    let _watch = watch(&link, sink);
    link.stop().await;
    assert_eq!(link.state(), LinkState::Closed);
    assert_eq!(events.recv().await, Some(DecodeEvent::Failed(lost("decode-1"))));
    assert_eq!(events.recv().await, None);
    while told.recv().await.is_some() {}
    assert!(at_worker.ended.await.is_err());
    let (sink, mut events) = listen();
    let _late = remote.submit(decode_request(3), sink);
    assert_eq!(events.try_recv().unwrap(), DecodeEvent::Failed(lost("decode-1")));
}

#[tokio::test]
async fn a_server_that_stops_lets_answers_end_and_ends_watches() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let events = Some(silent_hub());
    let services = Services { decode: Some(decode), events, ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    let (sink, mut told) = listen();
    let _watch = watch(&link, sink);
    assert!(matches!(told.recv().await, Some(Watched::Begun(_))));
    let (sink, mut events) = listen();
    let _ticket = RemoteDecode::new(Arc::clone(&link)).submit(decode_request(3), sink);
    let mut at_worker = submitted.recv().await.unwrap();
    server.stop.send(true).unwrap();
    assert_eq!(told.recv().await, Some(Watched::Gone), "it takes no more calls");
    for event in [DecodeEvent::Token(TokenId(1), None), DecodeEvent::Finished(FinishReason::Stop)] {
        assert_eq!(at_worker.sink.emit(event.clone()), Flow::Open);
        assert_eq!(events.recv().await, Some(event));
    }
    assert_eq!(server.ended().await.connections_cut_off, 0);
}

#[tokio::test]
async fn a_server_that_cannot_drain_in_time_cuts_off() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let limits = ServerLimits { drain_max: Duration::ZERO, ..ServerLimits::DEFAULT };
    let services = Services { decode: Some(decode), limits, ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let (sink, mut events) = listen();
    let _ticket = RemoteDecode::new(Arc::clone(&link)).submit(decode_request(3), sink);
    let at_worker = submitted.recv().await.unwrap();
    server.stop.send(true).unwrap();
    assert_eq!(server.ended().await.connections_cut_off, 1);
    assert!(at_worker.ended.await.is_err());
    assert_eq!(events.recv().await, Some(DecodeEvent::Failed(lost("decode-1"))));
}
