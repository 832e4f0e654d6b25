//! The reads of one start: a queue of wanted objects, a bounded number of them under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvstore::{ReadDone, ReadRequest, SealedSlot};
use shared::{Descriptor, RequestContext, Ticket, Timestamp};

use crate::mailbox::OperationId;
use crate::scheduler::SequenceKey;
use crate::worker::core::Core;
use crate::worker::rates::Origin;

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The block with this index.
    Block(usize),
    /// The window object that ends at this position.
    Window(u32),
}

/// An object to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) target: Target,
    pub(super) source: Descriptor,
    /// Whether it existed before this request.
    pub(super) cached: bool,
    /// Who has it.
    pub(super) origin: Origin,
}

/// See the module's documentation.
pub(super) struct Reads {
    /// Targets whose read failed or was given up, for the start to forget their copies.
    pub(super) lost: Vec<Target>,
    /// Payload bytes read so far.
    pub(super) bytes_fetched: u64,
    key: SequenceKey,
    context: RequestContext,
    queue: VecDeque<Wanted>,
    /// Targets queued or under way.
    pending: BTreeSet<Target>,
    batches: BTreeMap<OperationId, Batch>,
    open: usize,
    heard: Timestamp,
}

struct Batch {
    /// Dropped to cancel.
    ticket: Option<Ticket>,
    /// What was asked for and not answered yet, in the order of the answers.
    wanted: VecDeque<Wanted>,
    since: Timestamp,
    bytes: u64,
    /// Where all of it comes from; none when from both.
    origin: Option<Origin>,
}

impl Reads {
    pub(super) fn new(key: SequenceKey, context: RequestContext, now: Timestamp) -> Self {
        Self {
            lost: Vec::new(),
            bytes_fetched: 0,
            key,
            context,
            queue: VecDeque::new(),
            pending: BTreeSet::new(),
            batches: BTreeMap::new(),
            open: 0,
            heard: now,
        }
    }

    /// Puts an object into the queue, unless its target is already there or under way.
    pub(super) fn want(&mut self, wanted: Wanted) {
        if self.pending.insert(wanted.target) {
            self.queue.push_back(wanted);
        }
    }

    /// Whether something is queued or under way.
    pub(super) fn is_open(&self) -> bool {
        !self.queue.is_empty() || !self.batches.is_empty()
    }

    /// Starts reads as far as their bound and free slots allow.
    pub(super) fn pump(&mut self, core: &mut Core, now: Timestamp) {
        let room = core.config.reads_start_max.saturating_sub(self.open).min(self.queue.len());
        let mut reads = Vec::with_capacity(room);
        let mut batch = VecDeque::with_capacity(room);
        while batch.len() < room {
            let Some(wanted) = self.queue.pop_front() else { break };
            let pool = match wanted.target {
                Target::Block(_) => &core.pool,
                Target::Window(_) => &core.windows,
            };
            match (pool.reserve(1).ok().and_then(|mut slots| slots.pop()), wanted.target) {
                (Some(target), _) => {
                    reads.push(ReadRequest { source: wanted.source, target });
                    batch.push_back(wanted);
                }
                // The reservation promises a slot; an open read of a store may hold it for a moment.
                (None, Target::Block(_)) => {
                    self.queue.push_front(wanted);
                    break;
                }
                // Window objects have no reservation: without room there is none, and rows are recomputed.
                (None, Target::Window(_)) => self.lose(wanted.target),
            }
        }
        if reads.is_empty() {
            return;
        }
        if self.batches.is_empty() {
            self.heard = now;
        }
        self.open += reads.len();
        let origin = batch.front().map(|wanted| wanted.origin);
        let origin = origin.filter(|origin| batch.iter().all(|wanted| wanted.origin == *origin));
        let (operation, ticket) = core.read(self.key, self.context, reads);
        let batch = Batch { ticket: Some(ticket), wanted: batch, since: now, bytes: 0, origin };
        self.batches.insert(operation, batch);
    }

    /// Gives up when nothing came for too long.
    pub(super) fn watch(&mut self, core: &mut Core, now: Timestamp) {
        if !self.is_open() || now.since(self.heard) <= core.config.read_wait() {
            return;
        }
        tracing::warn!(
            id = %self.context.id, reads = self.open,
            "reads made no progress; what is missing is computed"
        );
        self.heard = now;
        core.stats.reads_failed += u64::try_from(self.queue.len()).unwrap_or(u64::MAX);
        while let Some(wanted) = self.queue.pop_front() {
            self.lose(wanted.target);
        }
        for batch in self.batches.values_mut() {
            batch.ticket = None;
        }
    }

    /// One answer: seals what was read. An answer to a batch of another start gives its slot back.
    pub(super) fn done(
        &mut self,
        core: &mut Core,
        operation: OperationId,
        done: ReadDone,
        now: Timestamp,
    ) -> Option<(Wanted, SealedSlot)> {
        let batch = self.batches.get_mut(&operation)?;
        let wanted = batch.wanted.pop_front()?;
        assert_eq!(wanted.source, done.source, "answers come in the order of the requests");
        self.heard = now;
        self.open -= 1;
        let pool = match wanted.target {
            Target::Block(_) => &core.pool,
            Target::Window(_) => &core.windows,
        };
        match done.result.and_then(|()| pool.seal_read(done.target, &done.source)) {
            Ok(slot) => {
                batch.bytes += u64::from(done.source.bytes);
                self.bytes_fetched += u64::from(done.source.bytes);
                self.pending.remove(&wanted.target);
                Some((wanted, slot))
            }
            Err(error) => {
                tracing::debug!(
                    id = %self.context.id, name = %done.source.key.name, %error, "a read failed"
                );
                core.stats.reads_failed += 1;
                self.lose(wanted.target);
                None
            }
        }
    }

    /// No further answer of a batch comes.
    pub(super) fn over(&mut self, core: &mut Core, operation: OperationId, now: Timestamp) {
        let Some(batch) = self.batches.remove(&operation) else { return };
        core.reads_took(now.since(batch.since), batch.bytes, batch.origin);
        self.open -= batch.wanted.len();
        for wanted in batch.wanted {
            core.stats.reads_failed += 1;
            self.lose(wanted.target);
        }
    }

    fn lose(&mut self, target: Target) {
        self.pending.remove(&target);
        self.lost.push(target);
    }
}
