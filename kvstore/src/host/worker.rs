//! The host tier's thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, after, never, select, unbounded};
use parking_lot::Mutex;
use shared::{
    BlockName, Clock, Descriptor, Durability, Flow, ObjectKey, ObjectKind, OfferEvent,
    OfferOutcome, RequestContext, Sink, Timestamp,
};

use super::acks::{Acks, Answers};
use super::lookups::{BlockPlace, Lookup, Lookups};
use super::owners::Owners;
use super::stats::{Counters, DropReason, count};
use super::windows::WindowAges;
use super::{Common, HostTierConfig, HostWiring, Pools};
use crate::disk::{Ack, Acked, DiskReadDone};
use crate::pool::SealedSlot;
use crate::transport::{ReadDone, ReadRequest, Transport};

/// What callers ask of the thread.
pub(super) enum Command {
    Locate(Lookup),
    Offer(Box<Offer>),
    /// Where these blocks are.
    Places(Vec<BlockName>, Box<dyn FnOnce(Vec<BlockPlace>) + Send>),
}

/// An offer that waits, or is being read.
pub(super) struct Offer {
    pub(super) context: RequestContext,
    pub(super) objects: Vec<Descriptor>,
    pub(super) durability: Durability,
    pub(super) answers: Answers,
    pub(super) waiting: Waiting,
    pub(super) withdrawn: Arc<AtomicBool>,
    /// Its number among what began: tells whether its tenant was evicted since.
    pub(super) began: u64,
}

/// A share of the bound on offered objects; given back on drop.
#[derive(Debug)]
pub(super) struct Waiting {
    total: Arc<AtomicUsize>,
    count: usize,
}

impl Waiting {
    /// Takes as much of `wanted` as the bound leaves.
    pub(super) fn admit(total: &Arc<AtomicUsize>, wanted: usize, max: usize) -> Self {
        let grant = |taken: usize| wanted.min(max.saturating_sub(taken));
        let before = total
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| Some(taken + grant(taken)))
            .expect("the update always gives a value");
        Self { total: Arc::clone(total), count: grant(before) }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Gives part of the share back: that many objects wait no longer.
    fn shrink(&mut self, by: usize) {
        let by = by.min(self.count);
        self.count -= by;
        self.total.fetch_sub(by, Ordering::AcqRel);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.total.fetch_sub(self.count, Ordering::AcqRel);
    }
}

/// The thread's state.
pub(super) struct Worker {
    pools: Pools,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    counters: Arc<Counters>,
    owners: Arc<Mutex<Owners>>,
    commands: Receiver<Command>,
    /// Offers taken from the channel while another one was being read. Bounded by the count of [`Waiting`] objects.
    /// Offers whose turn has not come, and when their time is over.
    backlog: VecDeque<(Timestamp, Offer)>,
    lookups: Lookups,
    /// Answers of the disk.
    onboarded: Receiver<DiskReadDone>,
    acks: Acks,
    /// The disk's word about what was to be durable.
    acked: Receiver<Acked>,
    has_disk: bool,
    ages: WindowAges,
    batch_max: usize,
    offer_wait_max: Duration,
}

/// What ended a wait.
enum Happened {
    /// An answer to the offer being read; None when there will be no more.
    Read(Option<ReadDone>),
    /// The time of the offer being read is over.
    Late,
    /// Something that is dealt with.
    Other,
    /// The tier dropped.
    Stopping,
}

/// Whether the tier is still there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    Stopping,
}

impl Worker {
    pub(super) fn new(
        config: &HostTierConfig,
        wiring: HostWiring,
        common: Common,
        commands: Receiver<Command>,
    ) -> Self {
        let has_disk = wiring.disk.is_some();
        let (acks, acked) = Acks::new(Arc::clone(&common.counters));
        let (lookups, onboarded) = Lookups::new(common.clone(), wiring.disk);
        let Common { pools, counters, owners } = common;
        Self {
            ages: WindowAges::new(pools.windows.total(), config.window_ttl),
            lookups,
            onboarded,
            acks,
            acked,
            has_disk,
            pools,
            transport: wiring.transport,
            clock: wiring.clock,
            counters,
            owners,
            commands,
            backlog: VecDeque::new(),
            batch_max: config.batch_max,
            offer_wait_max: config.offer_wait_max,
        }
    }

    /// Serves until the tier drops.
    pub(super) fn run(mut self) {
        let nothing_read = never();
        while !matches!(self.step(&nothing_read, None), Happened::Stopping) {
            while let Some((until, offer)) = self.backlog.pop_front() {
                if self.read_offer(offer, until) == Life::Stopping {
                    return;
                }
            }
        }
    }

    /// A lookup begins at once, an offer waits for its turn.
    fn take(&mut self, command: Command) {
        match command {
            Command::Locate(lookup) => self.locate(lookup),
            Command::Places(names, told) => told(self.lookups.places(&names)),
            Command::Offer(offer) => {
                let until = self.clock.now().after(self.offer_wait_max);
                self.backlog.push_back((until, *offer));
            }
        }
    }

    fn locate(&mut self, lookup: Lookup) {
        self.expire_windows();
        let now = self.clock.now();
        for window in self.lookups.begin(lookup, now) {
            self.ages.touch(window, now);
        }
    }

    /// Waits for the next thing to happen and deals with it, unless it concerns the offer being read, whose time is over
    /// at `until`.
    fn step(&mut self, results: &Receiver<ReadDone>, until: Option<Timestamp>) -> Happened {
        let (commands, onboarded) = (self.commands.clone(), self.onboarded.clone());
        let acked = self.acked.clone();
        let now = self.clock.now();
        let timer = |at: Option<Timestamp>| at.map_or_else(never, |at| after(at.since(now)));
        let (late, over) = (timer(self.lookups.deadline()), timer(until));
        let forgotten = timer(self.acks.deadline());
        select! {
            recv(over) -> _ => return Happened::Late,
            recv(results) -> answer => return Happened::Read(answer.ok()),
            recv(onboarded) -> done => if let Ok(done) = done {
                self.lookups.settle(done);
            },
            recv(acked) -> done => if let Ok(done) = done {
                self.acks.settle(done);
            },
            recv(forgotten) -> _ => self.acks.answer_late(self.clock.now()),
            recv(late) -> _ => self.lookups.answer_late(self.clock.now()),
            recv(commands) -> command => match command {
                Ok(command) => self.take(command),
                Err(_) => return Happened::Stopping,
            },
        }
        Happened::Other
    }

    /// Reads an offer, some objects at a time.
    fn read_offer(&mut self, mut offer: Offer, until: Timestamp) -> Life {
        let objects = std::mem::take(&mut offer.objects);
        let mut rest = &objects[..];
        while !rest.is_empty() {
            if offer.withdrawn.load(Ordering::Acquire) {
                count(&self.counters.withdrawn, rest.len());
                return Life::Running;
            }
            if until <= self.clock.now() {
                // Closed or not, there is nothing more to say.
                let _: Flow = self.drop_late(rest.iter().map(|object| object.key), &mut offer);
                return Life::Running;
            }
            let (chunk, later) = rest.split_at(rest.len().min(self.batch_max));
            rest = later;
            offer.waiting.shrink(chunk.len());
            self.expire_windows();
            let (reads, flow) = self.choose(chunk, &mut offer, until);
            if flow == Flow::Closed {
                return Life::Running;
            }
            match self.read_chunk(reads, &mut offer, until) {
                (Life::Stopping, _) => return Life::Stopping,
                (Life::Running, Flow::Closed) => return Life::Running,
                (Life::Running, Flow::Open) => {}
            }
        }
        Life::Running
    }

    /// Answers what is held or has no room, and prepares reads for the rest.
    fn choose(
        &mut self,
        chunk: &[Descriptor],
        offer: &mut Offer,
        until: Timestamp,
    ) -> (Vec<ReadRequest>, Flow) {
        let mut reads: Vec<ReadRequest> = Vec::with_capacity(chunk.len());
        let mut bytes = 0;
        for source in chunk {
            let pool = self.pools.of(source.key.kind);
            let outcome = if pool.contains(source.key.name) {
                self.counters.already_held.fetch_add(1, Ordering::Relaxed);
                match self.confirm(source.key, offer, until) {
                    Some(outcome) => outcome,
                    None => continue,
                }
            } else if let Err(reason) = self.admit(source, bytes, offer) {
                self.counters.dropped(reason);
                OfferOutcome::Dropped
            } else {
                match pool.reserve(1).map(|mut slots| slots.pop()) {
                    Ok(Some(target)) => {
                        bytes += u64::from(source.bytes);
                        reads.push(ReadRequest { source: *source, target });
                        continue;
                    }
                    Ok(None) | Err(_) => {
                        self.counters.dropped(DropReason::NoSpace);
                        OfferOutcome::Dropped
                    }
                }
            };
            if offer.answers.emit(OfferEvent { key: source.key, outcome }) == Flow::Closed {
                return (Vec::new(), Flow::Closed);
            }
        }
        (reads, Flow::Open)
    }

    /// Whether an object may be read for its tenant, beside `pending` bytes that are about to be read for it.
    fn admit(&self, source: &Descriptor, pending: u64, offer: &Offer) -> Result<(), DropReason> {
        let tenant = offer.context.tenant;
        let mut owners = self.owners.lock();
        if owners.is_lost(tenant, offer.began) {
            return Err(DropReason::Evicted);
        }
        let room = owners.make_room(tenant, pending + u64::from(source.bytes));
        room.then_some(()).ok_or(DropReason::Quota)
    }

    /// Waits for the reads of one chunk, answering lookups meanwhile.
    fn read_chunk(
        &mut self,
        reads: Vec<ReadRequest>,
        offer: &mut Offer,
        until: Timestamp,
    ) -> (Life, Flow) {
        // Unbounded, but at most one answer per read is ever sent; a sink must not block.
        let (done, results) = unbounded();
        let mut expected: VecDeque<ObjectKey> = reads.iter().map(|read| read.source.key).collect();
        let ticket = self.transport.read(
            offer.context,
            reads,
            Box::new(move |answer: ReadDone| match done.send(answer) {
                Ok(()) => Flow::Open,
                Err(_) => Flow::Closed,
            }),
        );
        while !expected.is_empty() {
            match self.step(&results, Some(until)) {
                Happened::Read(Some(answer)) => {
                    expected.pop_front();
                    if self.settle(answer, offer, until) == Flow::Closed {
                        return (Life::Running, Flow::Closed);
                    }
                }
                // The transport dropped the sink: it broke, and what it had not answered is lost.
                Happened::Read(None) => {
                    return (Life::Running, self.drop_all(expected, DropReason::Gone, offer));
                }
                // Cancelled by the ticket's drop; what still comes finds nobody and its slots return to their pool.
                Happened::Late => return (Life::Running, self.drop_late(expected, offer)),
                Happened::Other => {}
                Happened::Stopping => return (Life::Stopping, Flow::Closed),
            }
        }
        drop(ticket);
        (Life::Running, Flow::Open)
    }

    /// Seals what was read, and answers.
    fn settle(&mut self, answer: ReadDone, offer: &mut Offer, until: Timestamp) -> Flow {
        let ReadDone { source, target, result } = answer;
        let slot = target.index();
        let sealed =
            result.and_then(|()| self.pools.of(source.key.kind).seal_read(target, &source));
        let outcome = match sealed {
            Ok(sealed) if sealed.index() != slot => {
                self.counters.already_held.fetch_add(1, Ordering::Relaxed);
                self.confirm(source.key, offer, until)
            }
            Ok(sealed) => self.keep(sealed, offer, until),
            Err(error) => {
                tracing::debug!(
                    request = %offer.context.id, name = %source.key.name, %error,
                    "an offered object was not taken"
                );
                self.counters.dropped(DropReason::from(error));
                Some(OfferOutcome::Dropped)
            }
        };
        match outcome {
            Some(outcome) => offer.answers.emit(OfferEvent { key: source.key, outcome }),
            None => Flow::Open,
        }
    }

    /// An object is held already. None when the answer comes from the disk.
    fn confirm(&mut self, key: ObjectKey, offer: &Offer, until: Timestamp) -> Option<OfferOutcome> {
        let (outcome, ack) = self.answer_of(key, OfferOutcome::AlreadyHeld, offer, until);
        self.lookups.write_again(key, ack);
        outcome
    }

    /// How an object that is in memory is answered: now, or by the disk to which the other is given.
    fn answer_of(
        &mut self,
        key: ObjectKey,
        held: OfferOutcome,
        offer: &Offer,
        until: Timestamp,
    ) -> (Option<OfferOutcome>, Option<Ack>) {
        match offer.durability {
            Durability::Memory => (Some(held), None),
            Durability::Disk if self.has_disk && key.kind.goes_to_disk() => {
                (None, Some(self.acks.begin(key, held, &offer.answers, until)))
            }
            Durability::Disk => {
                count(&self.counters.memory_only, 1);
                (Some(OfferOutcome::MemoryOnly), None)
            }
        }
    }

    /// An object was stored, unless its tenant was evicted while it was read. None when the answer comes from the disk.
    fn keep(
        &mut self,
        sealed: SealedSlot,
        offer: &Offer,
        until: Timestamp,
    ) -> Option<OfferOutcome> {
        let (object, tenant) = (sealed.descriptor(), offer.context.tenant);
        {
            let mut owners = self.owners.lock();
            if owners.is_lost(tenant, offer.began) {
                self.pools.of(object.key.kind).forget(&object);
                self.counters.dropped(DropReason::Evicted);
                return Some(OfferOutcome::Dropped);
            }
            owners.store(object, tenant);
        }
        self.counters.stored(object.bytes);
        let (outcome, ack) = self.answer_of(object.key, OfferOutcome::Stored, offer, until);
        match object.key.kind {
            ObjectKind::Window => self.ages.touch(object, self.clock.now()),
            ObjectKind::Block | ObjectKind::Media => self.lookups.write_behind(sealed, tenant, ack),
        }
        outcome
    }

    /// Ends an offer that was not read in time.
    fn drop_late(&self, keys: impl IntoIterator<Item = ObjectKey>, offer: &mut Offer) -> Flow {
        tracing::warn!(
            request = %offer.context.id, limit_ms = self.offer_wait_max.as_millis(),
            "an offer was not read in time; the rest of it is not taken"
        );
        self.drop_all(keys, DropReason::Late, offer)
    }

    fn drop_all(
        &self,
        keys: impl IntoIterator<Item = ObjectKey>,
        reason: DropReason,
        offer: &mut Offer,
    ) -> Flow {
        for key in keys {
            self.counters.dropped(reason);
            let event = OfferEvent { key, outcome: OfferOutcome::Dropped };
            if offer.answers.emit(event) == Flow::Closed {
                return Flow::Closed;
            }
        }
        Flow::Open
    }

    fn expire_windows(&mut self) {
        for object in self.ages.expire(self.clock.now()) {
            if self.pools.windows.forget(&object) {
                self.counters.windows_expired.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("pools", &self.pools).finish_non_exhaustive()
    }
}
