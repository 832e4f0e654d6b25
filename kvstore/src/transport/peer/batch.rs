//! Batches: taken from the queue in order, cut into runs of one region, each run read the best way there is.

use std::collections::VecDeque;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use shared::{Descriptor, Flow, RegionId, RequestContext, Sink};
use tokio::sync::mpsc::Receiver;
use tokio::task::{self, JoinSet};
use tokio::time::Instant;
use tokio::{select, time};
use tokio_util::sync::CancellationToken;

use super::Peer;
use super::core::Core;
use super::counters::{OpenReads, Path};
use super::members::{Member, Seat};
use crate::pool::payload_bytes;
use crate::transport::local::read_one;
use crate::transport::{ReadDone, ReadError, ReadRequest, quic, shm};

/// Reads given in one call.
pub(super) struct Batch {
    pub(super) context: RequestContext,
    pub(super) reads: Vec<ReadRequest>,
    pub(super) answers: Answers,
    pub(super) cancelled: CancellationToken,
    /// When it must be over.
    pub(super) until: Instant,
}

/// Where the answers of a batch go.
pub(super) struct Answers {
    pub(super) sink: Box<dyn Sink<ReadDone>>,
    pub(super) open: OpenReads,
}

/// Neighbouring reads of one batch from the same region, not answered yet.
pub(in crate::transport) struct Run<'a> {
    context: RequestContext,
    reads: VecDeque<ReadRequest>,
    answers: &'a mut Answers,
    limits: Limits<'a>,
    core: &'a Core,
}

/// How long the steps of a batch may take.
#[derive(Clone, Copy)]
pub(in crate::transport) struct Limits<'a> {
    cancelled: &'a CancellationToken,
    /// Of one step.
    step: Duration,
    /// Of the whole batch, from its submission on.
    batch: Duration,
    until: Instant,
}

/// Starts batches, `batches_max` at a time and `peer_batches_max` of one peer, until no more can come and the last one
/// ended. Those of one peer start in the order given; while one waits for its peer, others overtake it. At most
/// `queue_max` wait so.
pub(super) async fn dispatch(core: Arc<Core>, mut waiting: Receiver<Batch>) {
    let mut running = JoinSet::new();
    let mut aside: VecDeque<Batch> = VecDeque::new();
    let mut open = true;
    while open || !aside.is_empty() || !running.is_empty() {
        while running.len() < core.config.batches_max
            && let Some((batch, seat)) = next_aside(&core, &mut aside)
        {
            running.spawn(serve(Arc::clone(&core), batch, seat));
        }
        let room = running.len() < core.config.batches_max && aside.len() < core.config.queue_max;
        // All have the same limit, so the first one is due first.
        let due = aside.front().map(|batch| batch.until);
        select! {
            () = core.closing.cancelled(), if !waiting.is_closed() => waiting.close(),
            batch = waiting.recv(), if open && room => match batch {
                Some(batch) => aside.push_back(batch),
                None => open = false,
            },
            Some(ended) = running.join_next() => report(ended),
            () = reached(due) => {}
        }
    }
}

/// The first batch that may start: its peer has room, or it is cancelled or too late and only has to be answered.
fn next_aside(core: &Core, aside: &mut VecDeque<Batch>) -> Option<(Batch, Option<Seat>)> {
    let now = Instant::now();
    for place in 0..aside.len() {
        let batch = &aside[place];
        let over = batch.cancelled.is_cancelled() || batch.until <= now;
        let seat = match first_member(core, batch) {
            Some(member) if !over => match Seat::take(&member, core.config.peer_batches_max) {
                Some(seat) => Some(seat),
                None => continue,
            },
            _ => None,
        };
        return Some((aside.remove(place)?, seat));
    }
    None
}

/// The peer whose object comes first. None when that lies here, or nobody knows where.
fn first_member(core: &Core, batch: &Batch) -> Option<Arc<Member>> {
    let region = batch.reads.first()?.source.location.region;
    if core.registry.served(region).is_some() {
        return None;
    }
    let peer = core.directory.peer(region)?;
    core.members.member(&peer.server_name, peer.address)
}

async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => time::sleep_until(due).await,
        None => future::pending().await,
    }
}

/// Answers a whole batch at once with the same error, on the calling thread.
pub(super) fn refuse(core: &Core, batch: Batch, error: ReadError) {
    let Batch { context, reads, mut answers, cancelled, until } = batch;
    let (reads, limits) = (reads.into(), Limits::new(core, &cancelled, until));
    let mut run = Run { context, reads, answers: &mut answers, limits, core };
    let _closed_or_not: Flow = run.answer_rest(error);
}

async fn serve(core: Arc<Core>, batch: Batch, _seat: Option<Seat>) {
    let Batch { context, reads, mut answers, cancelled, until } = batch;
    let core = &*core;
    let limits = Limits::new(core, &cancelled, until);
    let mut waiting = VecDeque::from(reads);
    while let Some(reads) = next_run(&mut waiting, core.config.run_max) {
        let answers = &mut answers;
        let mut run = Run { context, reads, answers, limits, core };
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
    if let Err(error) = run.limits.check() {
        return run.answer_rest(error);
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
            tracing::warn!(
                request = %run.context.id, peer = %peer.server_name, %error, reads,
                "a peer did not deliver in time"
            );
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
        if let Err(error) = run.limits.check()
            && !run.reads.is_empty()
        {
            return run.answer_rest(error);
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

    /// On whose behalf it is.
    pub(in crate::transport) fn context(&self) -> RequestContext {
        self.context
    }

    pub(in crate::transport) fn limits(&self) -> Limits<'a> {
        self.limits
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
}

impl<'a> Limits<'a> {
    fn new(core: &Core, cancelled: &'a CancellationToken, until: Instant) -> Self {
        Self { cancelled, step: core.read_limit(), batch: core.batch_limit(), until }
    }

    /// Waits for `work`, no longer than one step or the whole batch may take, and not after it was cancelled.
    pub(in crate::transport) async fn within<T>(
        self,
        work: impl Future<Output = T>,
    ) -> Result<T, ReadError> {
        let step_until = Instant::now() + self.step;
        let until = step_until.min(self.until);
        let limit = if until == step_until { self.step } else { self.batch };
        select! {
            biased;
            () = self.cancelled.cancelled() => Err(ReadError::Closed),
            done = time::timeout_at(until, work) => done.map_err(|_| late(limit)),
        }
    }

    /// Whether it may go on.
    ///
    /// # Errors
    /// [`ReadError::Closed`] after it was cancelled, [`ReadError::Late`] when the batch took too long.
    pub(in crate::transport) fn check(self) -> Result<(), ReadError> {
        if self.cancelled.is_cancelled() {
            return Err(ReadError::Closed);
        }
        if self.until <= Instant::now() {
            return Err(late(self.batch));
        }
        Ok(())
    }
}

fn late(limit: Duration) -> ReadError {
    ReadError::Late { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
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
