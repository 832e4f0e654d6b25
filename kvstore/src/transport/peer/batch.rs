//! Batches: taken from the queue in order, cut into runs of one region, each run read the best way there is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use shared::{Descriptor, Flow, RegionId, Sink};
use tokio::sync::mpsc::Receiver;
use tokio::task::{self, JoinSet};
use tokio::{select, time};
use tokio_util::sync::CancellationToken;

use super::Peer;
use super::core::Core;
use super::counters::{OpenReads, Path};
use super::members::Member;
use crate::pool::payload_bytes;
use crate::transport::local::read_one;
use crate::transport::{ReadDone, ReadError, ReadRequest, quic, shm};

/// Reads given in one call.
pub(super) struct Batch {
    pub(super) reads: Vec<ReadRequest>,
    pub(super) answers: Answers,
    pub(super) cancelled: CancellationToken,
}

/// Where the answers of a batch go.
pub(super) struct Answers {
    pub(super) sink: Box<dyn Sink<ReadDone>>,
    pub(super) open: OpenReads,
}

/// Neighbouring reads of one batch from the same region, not answered yet.
pub(in crate::transport) struct Run<'a> {
    reads: VecDeque<ReadRequest>,
    answers: &'a mut Answers,
    cancelled: &'a CancellationToken,
    core: &'a Core,
}

/// Starts batches in the order given, `batches_max` at a time, until no more can come and the last one ended.
pub(super) async fn dispatch(core: Arc<Core>, mut waiting: Receiver<Batch>) {
    let mut running = JoinSet::new();
    loop {
        select! {
            () = core.closing.cancelled(), if !waiting.is_closed() => waiting.close(),
            batch = waiting.recv(), if running.len() < core.config.batches_max => match batch {
                Some(batch) => drop(running.spawn(serve(Arc::clone(&core), batch))),
                None => break,
            },
            Some(ended) = running.join_next() => report(ended),
        }
    }
    while let Some(ended) = running.join_next().await {
        report(ended);
    }
}

/// Answers a whole batch at once with the same error, on the calling thread.
pub(super) fn refuse(core: &Core, batch: Batch, error: ReadError) {
    let Batch { reads, mut answers, cancelled } = batch;
    let reads = reads.into();
    let mut run = Run { reads, answers: &mut answers, cancelled: &cancelled, core };
    let _closed_or_not: Flow = run.answer_rest(error);
}

async fn serve(core: Arc<Core>, batch: Batch) {
    let Batch { reads, mut answers, cancelled } = batch;
    let core = &*core;
    let mut waiting = VecDeque::from(reads);
    while let Some(reads) = next_run(&mut waiting, core.config.run_max) {
        let answers = &mut answers;
        let mut run = Run { reads, answers, cancelled: &cancelled, core };
        if read_run(&mut run).await == Flow::Closed {
            return;
        }
    }
}

/// Takes the longest leading run of one region, at most `run_max` reads.
fn next_run(waiting: &mut VecDeque<ReadRequest>, run_max: usize) -> Option<VecDeque<ReadRequest>> {
    let region = waiting.front()?.source.location.region;
    let same = |read: &&ReadRequest| read.source.location.region == region;
    let count = waiting.iter().take(run_max).take_while(same).count();
    let rest = waiting.split_off(count);
    Some(std::mem::replace(waiting, rest))
}

async fn read_run(run: &mut Run<'_>) -> Flow {
    let core = run.core;
    let region = run.region();
    if run.is_cancelled() {
        return run.answer_rest(ReadError::Closed);
    }
    if core.registry.served(region).is_some() {
        return read_local(run).await;
    }
    let Some(peer) = core.directory.peer(region) else {
        return run.answer_rest(ReadError::UnknownRegion { region });
    };
    let lost = ReadError::PeerLost { region };
    let Some(member) = core.members.member(&peer.server_name, peer.address) else {
        return run.answer_rest(lost);
    };
    if member.is_blocked(core.clock.now()) {
        return run.answer_rest(lost);
    }
    let shared = match &peer.shm {
        Some(path) => shm::read(path, &member, run).await,
        None => Ok(None),
    };
    let read = match shared {
        Ok(None) => quic::read(&peer, &member, run).await,
        Ok(Some(flow)) => Ok(flow),
        Err(error) => Err(error),
    };
    match read {
        Ok(flow) => {
            member.succeeded();
            flow
        }
        Err(error) => {
            note_failure(&peer, &member, run, error);
            run.answer_rest(error)
        }
    }
}

/// Lets the peer alone for a while. Why it is lost was logged where that was seen.
fn note_failure(peer: &Peer, member: &Member, run: &Run<'_>, error: ReadError) {
    match error {
        ReadError::PeerLost { .. } => {}
        ReadError::Late { .. } => {
            let reads = run.reads.len();
            tracing::warn!(peer = %peer.server_name, %error, reads, "a peer did not deliver in time");
            member.renew();
        }
        _ => return,
    }
    member.failed(run.core.clock.now());
}

async fn read_local(run: &mut Run<'_>) -> Flow {
    let region = run.region();
    let core = run.core;
    while let Some(read) = run.front() {
        let result = match core.registry.served(region) {
            Some(served) => read_one(&served.pool, &read.source, &mut read.target),
            None => Err(ReadError::UnknownRegion { region }),
        };
        if run.answer(Path::Local, result) == Flow::Closed {
            return Flow::Closed;
        }
        // A copy takes as long as many tasks together: let them pass.
        task::yield_now().await;
        if run.is_cancelled() {
            return run.answer_rest(ReadError::Closed);
        }
    }
    Flow::Open
}

impl<'a> Run<'a> {
    pub(in crate::transport) fn core(&self) -> &'a Core {
        self.core
    }

    /// The region all its reads are of.
    pub(in crate::transport) fn region(&self) -> RegionId {
        self.reads.front().expect("a run has a read").source.location.region
    }

    pub(in crate::transport) fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    /// The reads not answered yet.
    pub(in crate::transport) fn reads(&mut self) -> &mut VecDeque<ReadRequest> {
        &mut self.reads
    }

    /// The first read not answered yet.
    pub(in crate::transport) fn front(&mut self) -> Option<&mut ReadRequest> {
        self.reads.front_mut()
    }

    /// Answers the first read.
    pub(in crate::transport) fn answer(
        &mut self,
        path: Path,
        result: Result<(), ReadError>,
    ) -> Flow {
        let ReadRequest { source, target } = self.reads.pop_front().expect("a read is open");
        match result {
            Ok(()) => self.core.counters.read(path, source.bytes),
            Err(error) => self.core.counters.failed(error),
        }
        self.answers.open.answered();
        self.answers.sink.emit(ReadDone { source, target, result })
    }

    /// Answers what is left with the same error.
    pub(in crate::transport) fn answer_rest(&mut self, error: ReadError) -> Flow {
        while !self.reads.is_empty() {
            if self.answer(Path::Local, Err(error)) == Flow::Closed {
                return Flow::Closed;
            }
        }
        Flow::Open
    }

    /// Cancels waiting: for [`within`].
    pub(in crate::transport) fn cancelled(&self) -> &'a CancellationToken {
        self.cancelled
    }
}

/// Waits for `work`, no longer than a read may take and not after the batch was cancelled.
pub(in crate::transport) async fn within<T>(
    cancelled: &CancellationToken,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, ReadError> {
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    select! {
        biased;
        () = cancelled.cancelled() => Err(ReadError::Closed),
        done = time::timeout(limit, work) => done.map_err(|_| ReadError::Late { limit_ms }),
    }
}

/// Why this read cannot succeed whatever the peer says: its payload does not fit the target.
pub(in crate::transport) fn misfit(read: &ReadRequest) -> Option<ReadError> {
    let expected = payload_bytes(read.source.bytes);
    let found = read.target.memory().slot_bytes();
    (found < expected).then_some(ReadError::Length { expected, found })
}

/// The objects of those reads that fit their targets.
pub(in crate::transport) fn fitting<'r>(
    reads: impl IntoIterator<Item = &'r ReadRequest>,
) -> Vec<Descriptor> {
    let reads = reads.into_iter().filter(|read| misfit(read).is_none());
    reads.map(|read| read.source).collect()
}

fn report(ended: Result<(), task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!("a batch of reads died; a sink panicked, see the message above");
    }
}
