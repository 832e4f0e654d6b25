//! The writing thread: takes blocks from the queue, appends them to the open segment, makes room, makes durable, and enters
//! what is durable into the catalog. In this order: the catalog never leads to what a crash could lose.
//!
//! After an error nothing is written for a while, first a second, then twice as long each time up to a minute; reading
//! goes on, and so does offering: what comes meanwhile is dropped at the queue. The first error is logged, those after it
//! are counted.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use shared::Timestamp;

use super::Shared;
use super::catalog::{CatalogError, Record};
use super::format::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, SegmentHeader};
use super::index::UNSYNCED_MAX;
use super::segment::{self, OpenSegment, frame};
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
    /// Make everything before this durable, and say so. The sender is dropped unused when that failed.
    Flush(Sender<()>),
}

/// A block that waits to be written. It pins its slot.
pub(super) struct Queued {
    pub(super) block: SealedSlot,
    /// The epoch of the index in which it was queued.
    pub(super) epoch: u64,
}

/// What became of a block.
enum Written {
    /// It was written.
    New,
    /// It is on disk already.
    Held,
    /// It was left out.
    Dropped(WriteDrop),
}

/// Whether a block that is written has a copy on disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Yes,
    No,
}

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    active: Option<OpenSegment>,
    number_next: u64,
    /// What was written and is not durable yet; at most [`UNSYNCED_MAX`].
    unsynced: Vec<Record>,
    /// When the first of those was written.
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
            shared,
            commands,
            active,
            number_next,
            unsynced: Vec::new(),
            lost: false,
            pause: None,
            record: Vec::new(),
        }
    }

    /// Serves until the tier drops and the queue is empty.
    pub(super) fn run(mut self) {
        loop {
            let expiry_wait = self.expire_at.since(self.shared.clock.now());
            let sync_wait = self.sync_wait().filter(|wait| *wait <= expiry_wait);
            let command = self.commands.recv_timeout(sync_wait.unwrap_or(expiry_wait));
            self.expire_when_due();
            match command {
                Ok(command) => self.serve(command),
                Err(RecvTimeoutError::Timeout) => _ = sync_wait.is_some() && self.sync(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.sync_is_due() {
                self.sync();
            }
        }
        self.sync();
    }

    fn serve(&mut self, command: Command) {
        match command {
            Command::Write(queued) => self.take(&queued),
            Command::Flush(done) => {
                if self.sync() && !std::mem::take(&mut self.lost) {
                    // Nobody waits any more: nothing is lost.
                    let _ignored = done.send(());
                }
            }
        }
    }

    fn take(&mut self, queued: &Queued) {
        let source = queued.block.descriptor();
        let written = self.write(queued);
        {
            let mut queue = self.shared.queue.lock();
            queue.leave(source.key.name, source.bytes);
        }
        match written {
            Ok(Written::Held) => {}
            Ok(Written::New) => {
                self.shared.counters.written(source.bytes);
                self.resume();
            }
            Ok(Written::Dropped(WriteDrop::Budget)) => {
                self.shared.counters.over_budget(source.bytes);
            }
            Ok(Written::Dropped(reason)) => self.shared.counters.dropped(reason),
            Err(error) => {
                self.shared.counters.dropped(WriteDrop::Error);
                self.suspend("write a block", &error);
            }
        }
    }

    /// Whether a block is to be written now; else what becomes of it.
    fn is_wanted(&self, queued: &Queued, written_unix_seconds: u64) -> Result<Again, Written> {
        let now = self.shared.clock.now();
        if Timestamp(self.shared.drain_until.load(Ordering::Acquire)) <= now {
            return Err(Written::Dropped(WriteDrop::Closed));
        }
        {
            let queue = self.shared.queue.lock();
            if queue.epoch != queued.epoch {
                return Err(Written::Dropped(WriteDrop::Evicted));
            }
            if queue.suspended_until.is_some_and(|until| now < until) {
                return Err(Written::Dropped(WriteDrop::Error));
            }
        }
        let held = self.shared.index.find(queued.block.descriptor().key.name);
        let is_ending = |at| self.shared.limits.is_ending(at, written_unix_seconds);
        match held {
            None => Ok(Again::No),
            Some(entry) if is_ending(entry.written_unix_seconds) => Ok(Again::Yes),
            // It came to the disk while it was being queued.
            Some(_) => Err(Written::Held),
        }
    }

    /// Writes one block and notes its place; or says why it was left out.
    fn write(&mut self, queued: &Queued) -> io::Result<Written> {
        let written_unix_seconds = self.shared.clock.unix_seconds();
        let again = match self.is_wanted(queued, written_unix_seconds) {
            Ok(again) => again,
            Err(left_out) => return Ok(left_out),
        };
        let source = queued.block.descriptor();
        let mut record = std::mem::take(&mut self.record);
        let Some(segment) = self.segment_for(source.bytes)? else {
            self.record = record;
            return Ok(Written::Dropped(WriteDrop::Budget));
        };
        let header = RecordHeader {
            kind: RecordKind::Block,
            exact: source.exact,
            segment: segment.number(),
            page: segment.next_page(),
            bytes: source.bytes,
            checksum: source.checksum,
            written_unix_seconds,
            name: source.key.name,
        };
        frame(&header, &mut record, |record| {
            queued.block.read(&mut |payload| record.extend_from_slice(payload));
        });
        let payload = RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload_bytes(source.bytes);
        let intact = crc32c::crc32c(&record[payload]) == source.checksum;
        let appended = if intact { segment.append(header, &record) } else { Ok(()) };
        self.record = record;
        appended?;
        if !intact {
            return Ok(Written::Dropped(WriteDrop::Corrupt));
        }
        let record = Record::from(&header);
        {
            let mut queue = self.shared.queue.lock();
            if queue.epoch != queued.epoch {
                // Everything was evicted in this moment, most likely this segment's file too.
                return Ok(Written::Dropped(WriteDrop::Evicted));
            }
            queue.retention.spend(1, written_unix_seconds);
            self.shared.index.written(&record);
        }
        if self.unsynced.is_empty() {
            self.unsynced_since = self.shared.clock.now();
        }
        self.unsynced.push(record);
        if again == Again::Yes {
            self.shared.counters.written_again();
        }
        Ok(Written::New)
    }

    /// The open segment, with room for one more block; None when there is no room for another segment.
    fn segment_for(&mut self, payload: u32) -> io::Result<Option<&mut OpenSegment>> {
        if let Some(active) = &mut self.active {
            let listed = self.shared.index.catalog().segment(active.number()).is_some();
            if !listed {
                self.active = None;
            } else if !active.has_room(payload, self.shared.config.segment_bytes) {
                self.seal()?;
            }
        }
        if self.active.is_none() {
            self.active = self.create()?;
        }
        Ok(self.active.as_mut())
    }

    /// Completes the open segment, then tells the catalog.
    fn seal(&mut self) -> io::Result<()> {
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let number = active.number();
        let sealed = active.seal().and_then(|seal| {
            self.shared.counters.synced();
            let index = &self.shared.index;
            index.enter(&self.unsynced).and_then(|()| index.seal(number, &seal)).map_err(refused)
        });
        if sealed.is_err() {
            // As after a failed sync; the next start reads the file.
            self.abandon();
        }
        self.active = None;
        self.unsynced.clear();
        sealed
    }

    /// Gives the open segment up, with all that is not durable in it.
    fn abandon(&mut self) {
        self.shared.index.lose(&self.unsynced);
        self.unsynced.clear();
        self.lost = true;
        let Some(active) = self.active.take() else {
            return;
        };
        if self.shared.index.catalog().resize_segment(active.number(), active.bytes()).is_err() {
            // Its bytes are counted from the next start on; that it is less than a segment bounds the fault.
            self.shared.counters.write_error();
        }
    }

    /// Makes a segment, if there is room for a whole one.
    fn create(&mut self) -> io::Result<Option<OpenSegment>> {
        if !self.shared.make_room()? {
            return Ok(None);
        }
        let header = SegmentHeader {
            number: self.number_next,
            created_unix_seconds: self.shared.clock.unix_seconds(),
            identity: self.shared.identity,
        };
        let segment = OpenSegment::create(&self.shared.config.folder, &header)?;
        let (catalog, created) = (self.shared.index.catalog(), header.created_unix_seconds);
        if let Err(error) = catalog.begin_segment(header.number, segment.bytes(), created) {
            // An empty file that is not listed would count in no bound.
            self.shared.remove_file(header.number)?;
            return Err(refused(error));
        }
        self.number_next = self.number_next.saturating_add(1);
        tracing::debug!(number = segment.number(), "a segment was begun");
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
        (!self.unsynced.is_empty()).then(|| self.sync_interval().saturating_sub(waited))
    }

    fn sync_is_due(&self) -> bool {
        let interval = self.sync_interval();
        let count_max = if interval.is_zero() { UNSYNCED_IDLE_MAX } else { UNSYNCED_MAX };
        if self.unsynced.is_empty() || count_max <= self.unsynced.len() {
            return !self.unsynced.is_empty();
        }
        !interval.is_zero() && interval <= self.shared.clock.now().since(self.unsynced_since)
    }

    fn sync_interval(&self) -> Duration {
        Duration::from_millis(self.shared.config.sync_ms)
    }

    /// Makes what was written durable and enters it into the catalog. After a failure nobody knows which pages were kept, so the segment is not written
    /// on: the next start walks it and checks every payload, as every read does. False after a failure.
    fn sync(&mut self) -> bool {
        if self.unsynced.is_empty() {
            return true;
        }
        let synced = self.active.as_ref().map_or(Ok(()), OpenSegment::sync);
        let entered = synced.and_then(|()| {
            self.shared.counters.synced();
            self.shared.index.enter(&self.unsynced).map_err(refused)
        });
        if let Err(error) = entered {
            self.abandon();
            self.suspend("make blocks durable", &error);
            return false;
        }
        self.unsynced.clear();
        true
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

impl Shared {
    /// Removes the segments whose retention is over. The file goes first: a reader that still has the name finds it gone.
    pub(super) fn expire(&self) -> io::Result<()> {
        let now = self.clock.unix_seconds();
        for number in self.index.expired(&self.limits, now).map_err(refused)? {
            self.remove_file(number)?;
            let objects = self.index.remove_segment(number, &mut |_| {}).map_err(refused)?;
            self.counters.segment_expired(objects);
            tracing::debug!(number, objects, "a segment left after its retention");
        }
        Ok(())
    }

    /// Whether there is room for a whole segment, after what is too old and, if it must be, segments of other layouts
    /// have left. Nothing that was promised ever makes room.
    fn make_room(&self) -> io::Result<bool> {
        self.expire()?;
        let bytes_max = self.config.bytes_max - self.config.segment_bytes;
        while bytes_max < self.index.catalog().file_bytes() {
            let Some(number) = self.index.oldest_foreign() else {
                return Ok(false);
            };
            self.remove_early(number)?;
        }
        Ok(true)
    }

    /// Removes segments until all files together take at most `bytes_max` bytes, those of other layouts first, then the
    /// oldest ones: the disk is smaller than it was at the last start.
    pub(super) fn shrink(&self, bytes_max: u64, spared: Option<u64>) -> io::Result<()> {
        while bytes_max < self.index.catalog().file_bytes() {
            let segments = self.index.catalog().segments();
            let mut numbers = segments.iter().map(|(number, _)| *number);
            let oldest = numbers.find(|number| Some(*number) != spared);
            let Some(number) = self.index.oldest_foreign().or(oldest) else {
                return Ok(());
            };
            self.remove_early(number)?;
        }
        Ok(())
    }

    fn remove_early(&self, number: u64) -> io::Result<()> {
        self.remove_file(number)?;
        let (now, mut early) = (self.clock.unix_seconds(), 0);
        let removed = self.index.remove_segment(number, &mut |entry| {
            early += usize::from(!self.limits.is_over(entry.written_unix_seconds, now));
        });
        let objects = removed.map_err(refused)?;
        self.counters.segment_dropped(objects, early);
        tracing::debug!(number, objects, early, "a segment was removed to make room");
        Ok(())
    }

    /// Removes the file of a segment; one that is gone already is no error.
    pub(super) fn remove_file(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(segment::path(&self.config.folder, number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
