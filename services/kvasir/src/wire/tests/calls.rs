//! What goes through when everything works.

use std::sync::Arc;

use shared::{
    BlockStore, Decode, DecodeEvent, Durability, FinishReason, Flow, LocateEvent, Miss, OfferEvent,
    OfferOutcome, Prefill, PrefillEvent, ServeError, StartReport, TokenId, WindowSource,
};

use super::rig::{
    CONTEXT, Cluster, Server, asked, decode_request, descriptor, listen, offered, prefill_request,
    puppet, puppet_store, ready, services, worker,
};
use crate::wire::{RemoteDecode, RemotePrefill, RemoteStore, Services};

fn started() -> DecodeEvent {
    DecodeEvent::Started(StartReport {
        cached_tokens: 1,
        replayed_tokens: 2,
        window_source: WindowSource::Cold,
        exact: true,
        bytes_fetched: 3,
        prefill: Some(worker("prefill-2")),
    })
}

#[tokio::test]
async fn an_answer_streams_through() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let remote = RemoteDecode::new(Arc::clone(&link));
    // The second prompt is a message of more than 4 MiB, the library's default bound.
    for prompt_tokens in [3, 1_500_000] {
        let request = decode_request(prompt_tokens);
        let (sink, mut events) = listen();
        let _ticket = remote.submit(request.clone(), sink);
        let mut at_worker = submitted.recv().await.unwrap();
        assert_eq!(at_worker.request.prompt, request.prompt);
        assert_eq!((at_worker.request.id, at_worker.request.trace), (request.id, request.trace));
        let told = [
            started(),
            DecodeEvent::Token(TokenId(5), None),
            DecodeEvent::Token(TokenId(1), None),
            DecodeEvent::Finished(FinishReason::Stop),
        ];
        for event in &told {
            assert_eq!(at_worker.sink.emit(event.clone()), Flow::Open);
        }
        for event in told {
            assert_eq!(events.recv().await.unwrap(), event);
        }
        assert_eq!(events.recv().await, None, "nothing follows the end");
        assert!(at_worker.ended.await.is_err(), "the ticket at the worker dropped");
        assert_eq!(link.stats().calls, 0);
    }
    assert_eq!(link.stats().connections, 1, "one warm connection carries all calls");
}

#[tokio::test]
async fn refusals_of_the_worker_arrive_as_they_were() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let remote = RemoteDecode::new(link);
    for error in [
        ServeError::Overloaded { waiting: 3, waiting_max: 3, retry_after_ms: 20 },
        ServeError::Draining,
        ServeError::NamesDiffer { index: 4 },
    ] {
        let (sink, mut events) = listen();
        let _ticket = remote.submit(decode_request(3), sink);
        let mut at_worker = submitted.recv().await.unwrap();
        let event = DecodeEvent::Failed(error);
        assert_eq!(at_worker.sink.emit(event.clone()), Flow::Open);
        assert_eq!(events.recv().await, Some(event));
        assert_eq!(events.recv().await, None);
    }
}

#[tokio::test]
async fn a_dropped_ticket_cancels_at_the_other_side() {
    let cluster = Cluster::new();
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let remote = RemoteDecode::new(Arc::clone(&link));
    let (sink, mut events) = listen();
    let ticket = remote.submit(decode_request(3), sink);
    let mut at_worker = submitted.recv().await.unwrap();
    assert_eq!(at_worker.sink.emit(started()), Flow::Open);
    assert_eq!(events.recv().await, Some(started()));
    drop(ticket);
    assert!(at_worker.ended.await.is_err());
    assert_eq!(at_worker.sink.emit(DecodeEvent::Token(TokenId(1), None)), Flow::Closed);
    assert_eq!(events.recv().await, None, "who cancelled is told nothing");

    // A sink that closes means the same.
    let (sink, events) = listen();
    let _ticket = remote.submit(decode_request(3), sink);
    let mut at_worker = submitted.recv().await.unwrap();
    drop(events);
    assert_eq!(at_worker.sink.emit(started()), Flow::Open);
    assert!(at_worker.ended.await.is_err());
}

#[tokio::test]
async fn pins_of_a_prefill_last_until_the_client_ends_it() {
    let cluster = Cluster::new();
    let (prefill, mut submitted) = puppet();
    let services = Services { prefill: Some(prefill), ..services("prefill-2") };
    let server = Server::start(cluster.identity("prefill-2"), services).await;
    let link = cluster.link("decode-1", "prefill-2", server.address);
    ready(&link).await;
    let remote = RemotePrefill::new(link);
    let told = [
        PrefillEvent::Waiting,
        PrefillEvent::Sealed { index: 0, block: descriptor(1), cached: false },
        PrefillEvent::Window(descriptor(2)),
        PrefillEvent::Finished { replayed_tokens: 0, window_source: WindowSource::Cold },
    ];
    let (sink, mut events) = listen();
    let ticket = remote.submit(prefill_request(), sink);
    let mut at_worker = submitted.recv().await.unwrap();
    assert_eq!(at_worker.request.ids, prefill_request().ids);
    for event in &told {
        assert_eq!(at_worker.sink.emit(event.clone()), Flow::Open);
    }
    drop(at_worker.sink);
    for event in told {
        assert_eq!(events.recv().await, Some(event));
    }
    // A whole second request goes over the same connection; the first one stays pinned all the time.
    let (sink, mut others) = listen();
    let other = remote.submit(prefill_request(), sink);
    let mut second = submitted.recv().await.unwrap();
    let failed = PrefillEvent::Failed(ServeError::Draining);
    assert_eq!(second.sink.emit(failed.clone()), Flow::Open);
    assert_eq!(others.recv().await, Some(failed));
    drop(other);
    assert!(second.ended.await.is_err());
    assert!(at_worker.ended.try_recv().is_err_and(|error| error.to_string().contains("empty")));
    drop(ticket);
    assert!(at_worker.ended.await.is_err());
    assert_eq!(events.recv().await, None);
}

#[tokio::test]
async fn lookups_pin_and_offers_are_answered_one_by_one() {
    let cluster = Cluster::new();
    let (store, mut lookups, mut offers) = puppet_store();
    let services = Services { store: Some(store), ..services("kvstore-3") };
    let server = Server::start(cluster.identity("kvstore-3"), services).await;
    let link = cluster.link("decode-1", "kvstore-3", server.address);
    ready(&link).await;
    let remote = RemoteStore::new(link);

    let keys = vec![descriptor(1).key, descriptor(2).key];
    let (sink, mut events) = listen();
    let ticket = remote.locate(CONTEXT, asked(&keys), sink);
    let mut at_store = lookups.recv().await.unwrap();
    assert_eq!(at_store.request, (CONTEXT, keys));
    let found = LocateEvent::at_once(vec![Err(Miss::Evicted), Ok(descriptor(2))]);
    assert_eq!(at_store.sink.emit(found.clone()), Flow::Open);
    drop(at_store.sink);
    assert_eq!(events.recv().await, Some(found));

    let objects = vec![descriptor(1), descriptor(2), descriptor(3)];
    let (sink, mut answers) = listen();
    let _offer = remote.offer(CONTEXT, offered(&objects), Durability::Disk, sink);
    let mut offered = offers.recv().await.unwrap();
    assert_eq!(offered.request, (CONTEXT, objects, Durability::Disk));
    let answer = |name, outcome| OfferEvent { key: descriptor(name).key, outcome };
    for event in [answer(3, OfferOutcome::Stored), answer(1, OfferOutcome::MemoryOnly)] {
        assert_eq!(offered.sink.emit(event), Flow::Open);
        assert_eq!(answers.recv().await, Some(event));
    }
    drop(offered.sink);
    assert_eq!(answers.recv().await, Some(answer(2, OfferOutcome::Dropped)), "withdrawn there");
    assert_eq!(answers.recv().await, None);
    assert!(offered.ended.await.is_err());

    assert!(at_store.ended.try_recv().is_err_and(|error| error.to_string().contains("empty")));
    drop(ticket);
    assert!(at_store.ended.await.is_err());
}
