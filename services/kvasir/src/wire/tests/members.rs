//! Who is let in, what they may call, and what they are told.

use std::fs;
use std::sync::Arc;

use shared::{
    BlockName, BlockStore, CacheChange, CacheEvent, CacheQuestion, Decode, DecodeEvent, Flow,
    LocateEvent, Miss, Numerics, Prefill, PrefillEvent, RequestContext, ServeError, Tier,
    WorkerEvent,
};
use tokio::sync::mpsc;
use tonic::Code;

use super::rig::{
    Cluster, Server, asked, decode_request, descriptor, facts, link_options, listen,
    prefill_request, puppet, puppet_store, ready, refused, services, silent_hub, worker,
};
use crate::identity::{Identity, IdentityFiles, Reload};
use crate::wire::link::Kind;
use crate::wire::v1::decode_client::DecodeClient;
use crate::wire::{
    EventHub, Link, RemoteDecode, RemotePrefill, RemoteStore, Services, Watched, v1, watch,
};

#[tokio::test]
async fn a_call_that_the_role_does_not_allow_is_refused_with_both_names() {
    let cluster = Cluster::new();
    let ((decode, _a), (prefill, _b), (store, _c, _d)) = (puppet(), puppet(), puppet_store());
    let services = Services {
        decode: Some(decode),
        prefill: Some(prefill),
        store: Some(store),
        events: Some(silent_hub()),
        ..services("decode-1")
    };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("kvstore-3", "decode-1", server.address);
    ready(&link).await;
    let text = |service| {
        let message = format!("kvstore-3 (kvstore) may not call {service} of decode-1 (decode)");
        ServeError::Internal { message }
    };

    let (sink, mut events) = listen();
    let _decode = RemoteDecode::new(Arc::clone(&link)).submit(decode_request(3), sink);
    assert_eq!(events.recv().await, Some(DecodeEvent::Failed(text("Decode"))));
    let (sink, mut events) = listen();
    let _prefill = RemotePrefill::new(Arc::clone(&link)).submit(prefill_request(), sink);
    assert_eq!(events.recv().await, Some(PrefillEvent::Failed(text("Prefill"))));
    let (sink, mut events) = listen();
    let _locate = RemoteStore::new(Arc::clone(&link)).locate(
        RequestContext::NONE,
        asked(&[descriptor(1).key]),
        sink,
    );
    assert_eq!(events.recv().await, Some(LocateEvent::at_once(vec![Err(Miss::NoAnswer)])));
    let (sink, mut events) = listen();
    let _watch = watch(&link, sink);
    assert_eq!(events.recv().await, Some(Watched::Interrupted), "it never begins");
}

#[tokio::test]
async fn what_is_not_served_is_said() {
    let cluster = Cluster::new();
    let server = Server::start(cluster.identity("decode-1"), services("decode-1")).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let (sink, mut events) = listen();
    let remote = RemoteDecode::new(link);
    let _ticket = remote.submit(decode_request(3), sink);
    let message = "decode-1 (decode) does not serve this call".to_owned();
    let refused = DecodeEvent::Failed(ServeError::Internal { message });
    assert_eq!(events.recv().await, Some(refused));
}

#[tokio::test]
async fn nothing_is_answered_before_hello() {
    let cluster = Cluster::new();
    let (decode, _submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    let (channel, mut driver) = link.inner().open(&link.inner().tasks, Kind::Main).await.unwrap();
    let origin = "https://decode-1.decode.kvasir/".parse().unwrap();
    let mut client = DecodeClient::with_origin(channel, origin);
    let status = tokio::select! {
        answer = client.run(v1::DecodeRequest::default()) => answer.err().unwrap(),
        _ = &mut driver => panic!("the connection stays"),
    };
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "say Hello to decode-1 (decode) first");
}

#[tokio::test]
async fn facts_that_differ_are_named_on_both_sides() {
    let cluster = Cluster::new();
    let (decode, _submitted) = puppet();
    let mut theirs = Services { decode: Some(decode), ..services("decode-1") };
    theirs.facts.numerics = Numerics("cpu-fast-1".to_owned());
    let server = Server::start(cluster.identity("decode-1"), theirs).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    let reason = refused(&link).await;
    assert_eq!(reason, "numerics: decode-1 has cpu-fast-1, router-9 has cpu-exact-1");
    let (sink, mut events) = listen();
    let _ticket = RemoteDecode::new(link).submit(decode_request(3), sink);
    let lost = DecodeEvent::Failed(ServeError::WorkerLost { worker: worker("decode-1") });
    assert_eq!(events.try_recv().unwrap(), lost, "told on the calling thread");
}

#[tokio::test]
async fn who_a_member_says_it_is_must_be_what_is_known_of_it() {
    let cluster = Cluster::new();
    let mut theirs = services("decode-1");
    theirs.facts.worker = worker("decode-5");
    let server = Server::start(cluster.identity("decode-1"), theirs).await;
    let link = cluster.link("router-9", "decode-1", server.address);
    let reason = refused(&link).await;
    assert!(reason.contains("is decode-1 (decode) as worker 5.0"), "{reason}");

    let lying =
        link_options(cluster.identity("router-9"), facts("decode-8"), "decode-1", server.address);
    let reason = refused(&Link::start(lying)).await;
    assert_eq!(reason, "router-9 (router) says it is decode-8 (decode)");

    let elsewhere = cluster.link("router-9", "decode-2", server.address);
    let reason = refused(&elsewhere).await;
    assert!(reason.starts_with("TLS: invalid peer certificate"), "{reason}");
}

#[tokio::test]
async fn certificates_of_another_authority_are_refused_by_both_sides() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let server = Server::start(cluster.identity("decode-1"), services("decode-1")).await;

    // The stranger trusts nobody here.
    let link = other.link("router-9", "decode-1", server.address);
    let reason = refused(&link).await;
    assert!(reason.starts_with("TLS: invalid peer certificate"), "{reason}");

    // The stranger would trust the server, and is turned away by it.
    let files = IdentityFiles { authority: other.bundle(&cluster), ..other.issue("router-9") };
    let stranger = Arc::new(Identity::load(files).unwrap());
    let options = link_options(stranger, facts("router-9"), "decode-1", server.address);
    let reason = refused(&Link::start(options)).await;
    assert!(reason.starts_with("TLS: received fatal alert"), "{reason}");
}

#[tokio::test]
async fn certificates_are_taken_anew_without_restart() {
    let (old, new) = (Cluster::new(), Cluster::new());
    let files = old.issue("decode-1");
    let identity = Arc::new(Identity::load(files.clone()).unwrap());
    let (decode, mut submitted) = puppet();
    let services = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::start(Arc::clone(&identity), services).await;
    let link = old.link("router-9", "decode-1", server.address);
    ready(&link).await;
    let stranger = new.link("router-8", "decode-1", server.address);
    refused(&stranger).await;

    // The whole cluster moves to a new authority: the server's files are replaced one by one.
    let replacement = new.issue("decode-1");
    fs::copy(&replacement.authority, &files.authority).unwrap();
    assert!(identity.reload_if_changed().is_err(), "half of it does not fit");
    fs::copy(&replacement.certificate, &files.certificate).unwrap();
    fs::copy(&replacement.key, &files.key).unwrap();
    assert_eq!(identity.reload_if_changed().unwrap(), Reload::Taken);

    ready(&stranger).await;
    // The connection from before goes on.
    assert!(link.is_ready());
    let (sink, _events) = listen();
    let _ticket = RemoteDecode::new(Arc::clone(&link)).submit(decode_request(3), sink);
    assert!(submitted.recv().await.is_some());
    assert_eq!(link.stats().connections, 1);
}

#[tokio::test]
async fn a_router_that_watches_sees_everything_from_a_cleared_on() {
    let cluster = Cluster::new();
    let (ask, mut asked) = mpsc::unbounded_channel();
    let hub = EventHub::new(move |question| ask.send(question).unwrap());
    let services = Services { events: Some(Arc::clone(&hub)), ..services("prefill-2") };
    let server = Server::start(cluster.identity("prefill-2"), services).await;
    let link = cluster.link("router-9", "prefill-2", server.address);
    let (sink, mut told) = listen();
    let watching = watch(&link, sink);
    let mut worker_sink = hub.sink();
    let mut sequence = 0;
    for round in 0..3 {
        assert_eq!(asked.recv().await, Some(CacheQuestion::Whole));
        assert_eq!(told.recv().await, Some(Watched::Begun(Arc::new(facts("prefill-2")))));
        let names = (0..70_000_u32).map(|name| BlockName(u128::from(name).to_be_bytes())).collect();
        let stored = CacheChange::Stored { tier: Tier::Device, names };
        // What the worker says before it was asked is withheld; a long event arrives whole.
        for (change, arrives) in
            [(stored.clone(), false), (CacheChange::Cleared, true), (stored, true)]
        {
            let worker = worker("prefill-2");
            let event = CacheEvent { worker, incarnation: 1, sequence, change };
            sequence += 1;
            let event = WorkerEvent::Cache(event);
            assert_eq!(worker_sink.emit(event.clone()), Flow::Open);
            if arrives {
                assert_eq!(told.recv().await, Some(Watched::Event(event)), "round {round}");
            }
        }
        // A lost event is asked for without a new beginning.
        for question in
            [CacheQuestion::Digests, CacheQuestion::Ranges([0, 255].into_iter().collect())]
        {
            watching.ask(&question);
            assert_eq!(asked.recv().await, Some(question));
        }
        watching.ask(&CacheQuestion::Whole);
        assert_eq!(told.recv().await, Some(Watched::Interrupted));
    }
    drop(watching);
    // At most the beginning that was under way comes before the end.
    while let Some(last) = told.recv().await {
        assert!(matches!(last, Watched::Begun(_)), "{last:?}");
    }
}
