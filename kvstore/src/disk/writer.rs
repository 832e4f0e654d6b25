//! The writing thread: takes blocks from the queue, appends them to the open segment, makes room, makes durable, and enters
//! what is durable into the catalog. In this order: the catalog never leads to what a crash could lose.
//!
//! Blocks are gathered into large pieces as long as the queue has some, several of which are written at a time. The index
//! learns a block when all up to its end is written; a flush is answered when that is durable.
//!
//! After an error nothing is written for a while, first a second, then twice as long each time up to a minute; reading
//! goes on, and so does offering: what comes meanwhile is dropped at the queue. The first error is logged, those after it
//! are counted. A segment that had an error is not written on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use shared::{BlockName, TenantTag, Timestamp};

use super::Shared;
use super::ack::Ack;
use super::append::Appender;
use super::catalog::{CatalogError, Record};
use super::config::DiskConfig;
use super::format::{FileOrigin, RECORD_HEADER_BYTES, RecordHeader, RecordKind, SegmentHeader};
use super::index::UNSYNCED_MAX;
use super::queue::Place;
use super::segment::{OpenSegment, frame};
use super::stats::WriteDrop;
use crate::pool::{SealedSlot, payload_bytes};

/// Blocks written between two syncs when a sync is wanted whenever the queue is empty: 7 MB of Flash blocks, enough that
/// the sync is a small part of the time.
const UNSYNCED_IDLE_MAX: usize = 64;
/// The first pause after an error.
const SUSPENDED_MIN: Duration = Duration::from_secs(1);
/// The longest pause: an operator who made room waits no longer for writing to go on.
const SUSPENDED_MAX: Duration = Duration::from_secs(60);

/// How often segments whose retention is over are looked for; they may stay that much longer. A retention of less than
/// 16 minutes is looked at 16 times.
const EXPIRY_INTERVAL_MAX: Duration = Duration::from_secs(60);
const EXPIRIES_PER_RETENTION: u32 = 16;

/// What the thread is asked for.
pub(super) enum Command {
    Write(Queued),
    /// Say when this block, which was queued before this or is on disk, is durable.
    Confirm(BlockName, Ack),
    /// Make everything before this durable, and say so. The sender is dropped unused when that failed.
    Flush(Sender<()>),
}

/// A block that waits to be written. It pins its slot.
pub(super) struct Queued {
    pub(super) block: SealedSlot,
    pub(super) tenant: TenantTag,
    pub(super) place: Place,
    pub(super) ack: Option<Ack>,
}

/// What there is to do.
enum Event {
    Asked(Command),
    SyncTime,
    ExpiryTime,
}

/// What becomes of a block.
enum Outcome {
    /// It was appended.
    Appended,
    /// It is on disk already.
    Held,
    /// It is left out.
    Dropped(WriteDrop),
}

/// Whether a block that is written has a copy on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

/// A block that was appended to the open segment and is not known to be written. It has its place in the queue until then.
struct Appended {
    header: RecordHeader,
    place: Place,
    again: Again,
    acks: Vec<Ack>,
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    appender: Appender,
    active: Option<OpenSegment>,
    /// Of the open segment, in the order of their places. As many as fit the pieces of the appender.
    appended: VecDeque<Appended>,
    number_next: u64,
    /// What is written and not durable yet. With what was appended at most [`UNSYNCED_MAX`].
    unsynced: Vec<Record>,
    /// Who waits for some of them. As many as commands and blocks can be.
    acks: Vec<Ack>,
    /// When the first of both was appended.
    unsynced_since: Timestamp,
    /// When segments leave next because of their age.
    expire_at: Timestamp,
    /// Blocks may not have become durable since the last flush was answered.
    lost: bool,
    /// How long the present pause is; None while all is well.
    pause: Option<Duration>,
    /// One record, reused.
    record: Vec<u8>,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        commands: Receiver<Command>,
        active: Option<OpenSegment>,
        number_next: u64,
    ) -> Self {
        Self {
            expire_at: shared.clock.now(),
            unsynced_since: shared.clock.now(),
            appender: Appender::new(&*shared.drive, shared.config.segment_bytes),
            shared,
            commands,
            active,
            appended: VecDeque::new(),
            number_next,
            unsynced: Vec::new(),
            acks: Vec::new(),
            lost: false,
            pause: None,
            record: Vec::new(),
        }
    }

    /// Serves until the tier drops and the queue is empty.
    pub(super) fn run(mut self) {
        if let Some(active) = &self.active {
            // Refused: its bytes are had when they are written, or refused then.
            let _ignored: io::Result<()> =
                active.prepare(self.shared.config.segment_bytes, &self.appender);
        }
        while let Some(event) = self.next() {
            self.expire_when_due();
            match event {
                Event::Asked(command) => self.serve(command),
                Event::SyncTime => _ = self.sync(),
                Event::ExpiryTime => {}
            }
            if self.sync_is_due() {
                self.sync();
            }
        }
        self.sync();
        if let Some(active) = self.active {
            // Refused: the next start cuts it off.
            let _ignored: io::Result<u64> = active.trim(active.bytes());
        }
    }

    /// Waits for something to do; None at the end. What was appended is written as soon as nothing follows it.
    fn next(&mut self) -> Option<Event> {
        match self.commands.try_recv() {
            Ok(command) => return Some(Event::Asked(command)),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => self.settle(),
        }
        let expiry_wait = self.expire_at.since(self.shared.clock.now());
        let sync_wait = self.sync_wait().filter(|wait| *wait <= expiry_wait);
        match self.commands.recv_timeout(sync_wait.unwrap_or(expiry_wait)) {
            Ok(command) => Some(Event::Asked(command)),
            Err(RecvTimeoutError::Timeout) if sync_wait.is_some() => Some(Event::SyncTime),
            Err(RecvTimeoutError::Timeout) => Some(Event::ExpiryTime),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }

    fn serve(&mut self, command: Command) {
        match command {
            Command::Write(queued) => self.take(queued),
            Command::Confirm(name, ack) => self.confirm(name, ack),
            Command::Flush(done) => {
                let synced = self.sync();
                if !std::mem::take(&mut self.lost) && synced {
                    // Nobody waits any more: nothing is lost.
                    let _ignored = done.send(());
                }
            }
        }
    }

    fn confirm(&mut self, name: BlockName, ack: Ack) {
        let mut appended = self.appended.iter_mut();
        if let Some(block) = appended.find(|block| block.header.name == name) {
            block.acks.push(ack);
        } else if self.unsynced.iter().any(|record| record.name == name) {
            self.acks.push(ack);
        } else if self.shared.index.find(name).is_some() {
            ack.durable();
        }
    }

    fn take(&mut self, mut queued: Queued) {
        let source = queued.block.descriptor();
        let dropped = match self.append(&mut queued) {
            Ok(Outcome::Appended) => return self.learn(),
            Ok(Outcome::Held) => {
                if let Some(ack) = queued.ack.take() {
                    self.confirm(source.key.name, ack);
                }
                None
            }
            Ok(Outcome::Dropped(reason)) => Some(reason),
            Err(error) => {
                self.give_up("write a block", &error);
                Some(WriteDrop::Error)
            }
        };
        drop(queued);
        self.shared.queue.lock().leave(source.key.name, source.bytes);
        match dropped {
            None => {}
            Some(WriteDrop::Budget) => self.shared.counters.over_budget(source.bytes),
            Some(reason) => self.shared.counters.dropped(reason),
        }
    }

    /// Whether a block is to be written now; else what becomes of it.
    fn is_wanted(&self, queued: &Queued, written_unix_seconds: u64) -> Result<Again, Outcome> {
        let now = self.shared.clock.now();
        if Timestamp(self.shared.drain_until.load(Ordering::Acquire)) <= now {
            return Err(Outcome::Dropped(WriteDrop::Closed));
        }
        {
            let queue = self.shared.queue.lock();
            if queue.is_evicted(&queued.place)
                || self.shared.index.is_evicted(queued.tenant, written_unix_seconds)
            {
                return Err(Outcome::Dropped(WriteDrop::Evicted));
            }
            if queue.suspended_until.is_some_and(|until| now < until) {
                return Err(Outcome::Dropped(WriteDrop::Error));
            }
        }
        let held = self.shared.index.find(queued.block.descriptor().key.name);
        let is_ending = |at| self.shared.limits.is_ending(at, written_unix_seconds);
        match held {
            None => Ok(Again::No),
            Some(entry) if is_ending(entry.written_unix_seconds) => Ok(Again::Yes),
            // It came to the disk while it was being queued.
            Some(_) => Err(Outcome::Held),
        }
    }

    /// Appends one block to the open segment; or says why it was left out.
    fn append(&mut self, queued: &mut Queued) -> io::Result<Outcome> {
        let written_unix_seconds = self.shared.clock.unix_seconds();
        let again = match self.is_wanted(queued, written_unix_seconds) {
            Ok(again) => again,
            Err(left_out) => return Ok(left_out),
        };
        let source = queued.block.descriptor();
        if !self.open_for(source.bytes)? {
            return Ok(Outcome::Dropped(WriteDrop::Budget));
        }
        if self.unsynced.is_empty() && self.appended.is_empty() {
            self.unsynced_since = self.shared.clock.now();
        }
        let Self { active: Some(segment), record, appender, .. } = self else {
            unreachable!("a segment was opened");
        };
        let mut header = RecordHeader {
            kind: RecordKind::of(source.key.kind).expect("others are not handed to the disk"),
            exact: source.exact,
            segment: segment.number(),
            page: segment.next_page(),
            bytes: source.bytes,
            checksum: source.checksum,
            written_unix_seconds,
            name: source.key.name,
            tenant: queued.tenant,
            sealing: None,
        };
        frame(&header, record, |record| {
            queued.block.read(&mut |payload| record.extend_from_slice(payload));
        });
        let payload = RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload_bytes(source.bytes);
        if crc32c::crc32c(&record[payload.clone()]) != source.checksum {
            return Ok(Outcome::Dropped(WriteDrop::Corrupt));
        }
        if let Some(keys) = &self.shared.keys {
            keys.seal(&mut header, &mut record[payload])?;
            record[..RECORD_HEADER_BYTES].copy_from_slice(&header.encode());
        }
        segment.append(header, record, appender)?;
        let acks = queued.ack.take().into_iter().collect();
        self.appended.push_back(Appended { header, place: queued.place, again, acks });
        Ok(Outcome::Appended)
    }

    /// Enters into the index what is written by now.
    fn learn(&mut self) {
        let written = self.appender.written();
        while let Some(block) = self.appended.pop_front_if(|block| block.header.end() <= written) {
            let Appended { header, place, again, acks } = block;
            let record = Record::from(&header);
            let is_listed = {
                let mut queue = self.shared.queue.lock();
                let is_listed = !queue.is_evicted(&place);
                if is_listed {
                    queue.retention.spend(1, header.written_unix_seconds);
                    self.shared.index.written(&record);
                }
                queue.leave(header.name, header.bytes);
                is_listed
            };
            if !is_listed {
                // It was evicted meanwhile; with everything, most likely this segment's file too.
                self.shared.counters.dropped(WriteDrop::Evicted);
                continue;
            }
            self.unsynced.push(record);
            self.acks.extend(acks);
            self.shared.counters.written(header.bytes);
            if again == Again::Yes {
                self.shared.counters.written_again();
            }
            self.resume();
        }
    }

    /// Writes what was appended, and waits for it.
    fn settle(&mut self) {
        if self.appended.is_empty() {
            return;
        }
        let Some(active) = &self.active else { unreachable!("it was appended to a segment") };
        match active.settle(&mut self.appender) {
            Ok(()) => self.learn(),
            Err(error) => self.give_up("write blocks", &error),
        }
    }

    /// Ends the open segment after an error. What is written of it stays, the rest is dropped, and nothing is written for a
    /// while.
    fn give_up(&mut self, what: &'static str, error: &io::Error) {
        self.appender.give_up();
        self.learn();
        self.drop_appended(WriteDrop::Error);
        if let Some(active) = self.active.take() {
            self.close_early(&active);
        }
        self.suspend(what, error);
    }

    fn drop_appended(&mut self, reason: WriteDrop) {
        for Appended { header, .. } in self.appended.drain(..) {
            self.shared.queue.lock().leave(header.name, header.bytes);
            self.shared.counters.dropped(reason);
        }
    }

    /// What is written may not be durable, and nobody finds it any more.
    fn lose_unsynced(&mut self) {
        self.acks.clear();
        self.shared.index.lose(&self.unsynced);
        self.unsynced.clear();
        self.lost = true;
    }

    /// What is written is durable now.
    fn enter_unsynced(&mut self) -> io::Result<()> {
        self.shared.counters.synced();
        self.shared.index.enter(&self.unsynced).map_err(refused)?;
        self.unsynced.clear();
        for ack in self.acks.drain(..) {
            ack.durable();
        }
        Ok(())
    }

    /// Leaves a segment without a seal: the next start walks it, and checks every payload, as every read does.
    fn close_early(&mut self, segment: &OpenSegment) {
        let number = segment.number();
        if !self.unsynced.is_empty()
            && segment
                .sync_written(&*self.shared.drive)
                .and_then(|()| self.enter_unsynced())
                .is_err()
        {
            self.lose_unsynced();
        }
        let index = &self.shared.index;
        let Some(row) = index.catalog().segment(number) else { return };
        let closed = if row.records == 0 {
            let removed = self.shared.remove_file(number);
            removed.and_then(|()| index.remove_segment(number, &mut |_| {}).map_err(refused)).err()
        } else {
            let trimmed = segment.trim(row.bytes);
            let resize = |bytes| index.catalog().resize_segment(number, bytes).map_err(refused);
            trimmed.and_then(resize).err()
        };
        if closed.is_some() {
            // Its bytes are counted from the next start on; that it is less than a segment bounds the fault.
            self.shared.counters.write_error();
        }
    }

    /// Makes sure that one more block fits the open segment; false when there is no room for another segment.
    fn open_for(&mut self, payload: u32) -> io::Result<bool> {
        let segment_bytes = self.shared.config.segment_bytes;
        if let Some(active) = &self.active {
            let listed = self.shared.index.catalog().segment(active.number()).is_some();
            if !listed {
                // Nobody finds what is in it, so it does not matter whether it is written.
                self.appender.give_up();
                self.drop_appended(WriteDrop::Evicted);
                self.shared.index.lose(&self.unsynced);
                self.unsynced.clear();
                self.acks.clear();
                self.active = None;
            } else if !active.has_room(payload, segment_bytes)
                && let Err(error) = self.seal()
            {
                self.appender.give_up();
                self.learn();
                self.lose_unsynced();
                return Err(error);
            }
        }
        if self.active.is_none() {
            self.active = self.create()?;
        }
        Ok(self.active.is_some())
    }

    /// Completes the open segment, then tells the catalog.
    fn seal(&mut self) -> io::Result<()> {
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let (number, seal) = (active.number(), active.seal(&mut self.appender)?);
        self.learn();
        self.enter_unsynced()?;
        self.shared.index.seal(number, &seal).map_err(refused)?;
        self.active = None;
        self.shared.objects_changed();
        Ok(())
    }

    /// Makes a segment, if there is room for a whole one.
    fn create(&mut self) -> io::Result<Option<OpenSegment>> {
        if !self.shared.make_room()? {
            return Ok(None);
        }
        let free = self.shared.take_free_file();
        let header = SegmentHeader {
            number: self.number_next,
            created_unix_seconds: self.shared.clock.unix_seconds(),
            identity: self.shared.identity,
            origin: free.map_or(FileOrigin::Made, |_| FileOrigin::Recycled),
        };
        let DiskConfig { folder, segment_bytes, .. } = &self.shared.config;
        let appender = &mut self.appender;
        let segment = match free {
            Some(free) => {
                let segment = OpenSegment::reuse((folder, free), &header, *segment_bytes, appender)
                    .inspect_err(|_| self.shared.list_free_files())?;
                self.shared.counters.segment_recycled();
                segment
            }
            None => OpenSegment::create(folder, &header, *segment_bytes, appender)?,
        };
        let (catalog, created) = (self.shared.index.catalog(), header.created_unix_seconds);
        if let Err(error) = catalog.begin_segment(header.number, segment.bytes(), created) {
            // An empty file that is not listed would count in no bound.
            self.shared.remove_file(header.number)?;
            return Err(refused(error));
        }
        self.number_next = self.number_next.saturating_add(1);
        tracing::debug!(number = segment.number(), recycled = free, "a segment was begun");
        Ok(Some(segment))
    }

    /// Removes the segments whose retention is over, at most once in an interval. The open one can be among them: it is
    /// given up when the next block comes.
    fn expire_when_due(&mut self) {
        let now = self.shared.clock.now();
        if now < self.expire_at {
            return;
        }
        // So that the catalog knows how old the open segment is.
        self.sync();
        let retention = Duration::from_secs(self.shared.config.retention_s);
        self.expire_at = now.after(EXPIRY_INTERVAL_MAX.min(retention / EXPIRIES_PER_RETENTION));
        if let Err(error) = self.shared.expire() {
            self.shared.counters.write_error();
            let folder = self.shared.config.folder.display();
            tracing::error!(%folder, %error, "cannot remove a segment that is too old; check the rights of the folder");
        }
    }

    /// How long to wait for a command before a sync; None when there is nothing to sync.
    fn sync_wait(&self) -> Option<Duration> {
        let waited = self.shared.clock.now().since(self.unsynced_since);
        (0 < self.not_durable()).then(|| self.sync_interval().saturating_sub(waited))
    }

    fn sync_is_due(&self) -> bool {
        let interval = self.sync_interval();
        let count_max = if interval.is_zero() { UNSYNCED_IDLE_MAX } else { UNSYNCED_MAX };
        let count = self.not_durable();
        if count == 0 || count_max <= count {
            return 0 < count;
        }
        !interval.is_zero() && interval <= self.shared.clock.now().since(self.unsynced_since)
    }

    fn not_durable(&self) -> usize {
        self.unsynced.len() + self.appended.len()
    }

    /// Zero when somebody waits: those who wait at the same time share a sync, and nobody waits for more to come.
    fn sync_interval(&self) -> Duration {
        let is_waited_for =
            !self.acks.is_empty() || self.appended.iter().any(|block| !block.acks.is_empty());
        if is_waited_for {
            return Duration::ZERO;
        }
        Duration::from_millis(self.shared.config.sync_ms)
    }

    /// Writes what was appended, makes it durable and enters it into the catalog. After a failure nobody knows which pages were
    /// kept, so the segment is not written on. False after a failure.
    fn sync(&mut self) -> bool {
        self.settle();
        if self.unsynced.is_empty() {
            return true;
        }
        let appender = &mut self.appender;
        let synced = self.active.as_ref().map_or(Ok(()), |active| active.sync(appender));
        match synced.and_then(|()| self.enter_unsynced()) {
            Ok(()) => true,
            Err(error) => {
                self.lose_unsynced();
                self.give_up("make blocks durable", &error);
                false
            }
        }
    }

    fn suspend(&mut self, what: &'static str, error: &io::Error) {
        self.shared.counters.write_error();
        let pause = self.pause.map_or(SUSPENDED_MIN, |pause| (2 * pause).min(SUSPENDED_MAX));
        if self.pause.replace(pause).is_none() {
            let folder = self.shared.config.folder.display();
            tracing::error!(
                %folder, %error,
                "cannot {what}; nothing is written to disk until it works again: make room, or check the drive"
            );
        }
        let until = self.shared.clock.now().after(pause);
        self.shared.queue.lock().suspended_until = Some(until);
    }

    fn resume(&mut self) {
        if self.pause.take().is_none() {
            return;
        }
        self.shared.queue.lock().suspended_until = None;
        tracing::info!(folder = %self.shared.config.folder.display(), "writing to disk works again");
    }
}

/// The catalog refused: to the writer that is an error of the drive.
pub(super) fn refused(error: CatalogError) -> io::Error {
    io::Error::other(error)
}
