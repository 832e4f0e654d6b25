//! Connections of threads of requests.

use std::sync::Arc;

use shared::{Decode, DecodeEvent, DecodeRequest, FinishReason, Flow, ServeError, TokenId};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::rig::{
    Cluster, Server, Submitted, decode_request, facts, link_options, puppet, ready, services,
    twin_listeners, until, worker,
};
use crate::lanes::{LaneThreads, Lanes};
use crate::wire::link::LaneState;
use crate::wire::{Link, LinkState, RemoteDecode, Services};

/// A link, and threads that call by it.
struct Caller {
    link: Arc<Link>,
    lanes: Lanes,
}

/// What a sink was told, and on which of the threads.
type Told = UnboundedReceiver<(DecodeEvent, Option<usize>)>;

impl Caller {
    async fn new(cluster: &Cluster, server: &Server, threads: &LaneThreads) -> Self {
        let identity = cluster.identity("router-9");
        let mut options = link_options(identity, facts("router-9"), "decode-1", server.address);
        options.lanes = threads.lanes();
        let caller = Self { link: Arc::new(Link::start(options)), lanes: threads.lanes() };
        ready(&caller.link).await;
        caller
    }

    /// Submits a request on a thread; the ticket lives as long as what is returned.
    async fn submit(&self, number: usize) -> (shared::Ticket, Told) {
        let (sender, told) = unbounded_channel();
        let (remote, lanes) = (RemoteDecode::new(Arc::clone(&self.link)), self.lanes.clone());
        let sink = Box::new(move |event| {
            let is_heard = sender.send((event, lanes.here())).is_ok();
            if is_heard { Flow::Open } else { Flow::Closed }
        });
        let submitting = async move { remote.submit(decode_request(3), sink) };
        (self.lanes.runtime(number).spawn(submitting).await.unwrap(), told)
    }

    /// The thread whose connection a call on thread `number` came back by; none for the main connection.
    async fn came_by(&self, number: usize, worker: &mut Worker) -> Option<usize> {
        let (_ticket, mut told) = self.submit(number).await;
        let mut call = worker.recv().await.unwrap();
        assert_eq!(call.sink.emit(DecodeEvent::Finished(FinishReason::Stop)), Flow::Open);
        let (event, by) = told.recv().await.unwrap();
        assert_eq!(event, DecodeEvent::Finished(FinishReason::Stop));
        by
    }

    async fn wait(&self, number: usize, wanted: impl FnMut(&LaneState) -> bool) {
        let state = &self.link.inner().lanes[number].state;
        drop(state.subscribe().wait_for(wanted).await.unwrap());
    }

    async fn lane_ready(&self, number: usize) {
        self.wait(number, |state| matches!(state, LaneState::Ready(..))).await;
    }
}

type Worker = UnboundedReceiver<Submitted<DecodeRequest, DecodeEvent>>;

#[tokio::test]
async fn a_thread_calls_by_the_main_connection_until_it_has_its_own() {
    let cluster = Cluster::new();
    let (near, far) = (LaneThreads::start(2, None).unwrap(), LaneThreads::start(2, None).unwrap());
    let (decode, mut worker) = puppet();
    let services = Services { decode: Some(decode), lanes: far.lanes(), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let caller = Caller::new(&cluster, &server, &near).await;
    for (number, lanes) in [(1, 1), (0, 2)] {
        assert_eq!(caller.came_by(number, &mut worker).await, None);
        caller.lane_ready(number).await;
        assert_eq!(caller.came_by(number, &mut worker).await, Some(number));
        let stats = caller.link.stats();
        assert_eq!((stats.connections, stats.lanes), (1, lanes));
    }
    caller.link.stop().await;
    assert_eq!(caller.link.stats().lanes, 0);
}

#[tokio::test]
async fn connections_of_threads_end_and_begin_with_the_main_one() {
    let cluster = Cluster::new();
    let threads = LaneThreads::start(1, None).unwrap();
    let (first, second) = twin_listeners().await;
    let identity = cluster.identity("decode-1");
    let (decode, mut at_first) = puppet();
    let before = Services { decode: Some(decode), ..services("decode-1") };
    let server = Server::on(first, Arc::clone(&identity), before);
    let caller = Caller::new(&cluster, &server, &threads).await;
    caller.came_by(0, &mut at_first).await;
    caller.lane_ready(0).await;
    let (_ticket, mut told) = caller.submit(0).await;
    let running = at_first.recv().await.unwrap();

    server.kill().await;
    let lost = DecodeEvent::Failed(ServeError::WorkerLost { worker: worker("decode-1") });
    assert_eq!(told.recv().await, Some((lost.clone(), Some(0))));
    assert_eq!(told.recv().await, None, "told once");
    assert!(running.ended.await.is_err());
    until(&caller.link, |state| !matches!(state, LinkState::Ready(_))).await;
    let (_ticket, mut told) = caller.submit(0).await;
    assert_eq!(told.recv().await.map(|(event, _)| event), Some(lost));
    caller.wait(0, |state| matches!(state, LaneState::Idle)).await;

    let (decode, mut at_second) = puppet();
    let after = Services { decode: Some(decode), ..services("decode-1") };
    let _server = Server::on(second, identity, after);
    ready(&caller.link).await;
    assert_eq!(caller.came_by(0, &mut at_second).await, None);
    caller.lane_ready(0).await;
    assert_eq!(caller.came_by(0, &mut at_second).await, Some(0));
}

#[tokio::test]
async fn a_server_that_stops_lets_answers_on_threads_end() {
    let cluster = Cluster::new();
    let (near, far) = (LaneThreads::start(1, None).unwrap(), LaneThreads::start(1, None).unwrap());
    let (decode, mut worker) = puppet();
    let services = Services { decode: Some(decode), lanes: far.lanes(), ..services("decode-1") };
    let server = Server::start(cluster.identity("decode-1"), services).await;
    let caller = Caller::new(&cluster, &server, &near).await;
    caller.came_by(0, &mut worker).await;
    caller.lane_ready(0).await;
    let (_ticket, mut told) = caller.submit(0).await;
    let mut call = worker.recv().await.unwrap();
    server.stop.send(true).unwrap();
    until(&caller.link, |state| !matches!(state, LinkState::Ready(_))).await;
    for event in [DecodeEvent::Token(TokenId(1), None), DecodeEvent::Finished(FinishReason::Stop)] {
        assert_eq!(call.sink.emit(event.clone()), Flow::Open);
        assert_eq!(told.recv().await, Some((event, Some(0))));
    }
    assert_eq!(server.ended().await.connections_cut_off, 0);
}
