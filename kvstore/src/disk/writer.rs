//! The writing thread: takes blocks from the queue, appends them to the open segment, makes room, makes durable.
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
use super::format::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, SegmentHeader};
use super::index::Segment;
use super::segment::{self, OpenSegment, frame};
use super::stats::WriteDrop;
use crate::pool::{SealedSlot, payload_bytes};

/// Blocks written between two syncs when a sync is wanted whenever the queue is empty: 7 MB of Flash blocks, enough that
/// the sync is a small part of the time.
const UNSYNCED_MAX: usize = 64;
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

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    commands: Receiver<Command>,
    active: Option<OpenSegment>,
    number_next: u64,
    /// When the first block was written that is not durable yet, and how many there are.
    unsynced: Option<(Timestamp, usize)>,
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
            shared,
            commands,
            active,
            number_next,
            unsynced: None,
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
            let mut state = self.shared.state.lock();
            state.leave_queue(source.key.name, source.bytes);
        }
        match written {
            Ok(None) => {
                self.shared.counters.written(source.bytes);
                self.resume();
            }
            Ok(Some(WriteDrop::Budget)) => self.shared.counters.over_budget(source.bytes),
            Ok(Some(reason)) => self.shared.counters.dropped(reason),
            Err(error) => {
                self.shared.counters.dropped(WriteDrop::Error);
                self.suspend("write a block", &error);
            }
        }
    }

    /// Writes one block and enters it into the index; or says why it was left out.
    fn write(&mut self, queued: &Queued) -> io::Result<Option<WriteDrop>> {
        let now = self.shared.clock.now();
        if Timestamp(self.shared.drain_until.load(Ordering::Acquire)) <= now {
            return Ok(Some(WriteDrop::Closed));
        }
        {
            let state = self.shared.state.lock();
            if state.epoch != queued.epoch {
                return Ok(Some(WriteDrop::Evicted));
            }
            if state.suspended_until.is_some_and(|until| now < until) {
                return Ok(Some(WriteDrop::Error));
            }
        }
        let source = queued.block.descriptor();
        let mut record = std::mem::take(&mut self.record);
        let written_unix_seconds = self.shared.clock.unix_seconds();
        let Some(segment) = self.segment_for(source.bytes)? else {
            self.record = record;
            return Ok(Some(WriteDrop::Budget));
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
            return Ok(Some(WriteDrop::Corrupt));
        }
        let since = self.unsynced.map_or(now, |(since, _)| since);
        self.unsynced = Some((since, self.unsynced.map_or(1, |(_, count)| count + 1)));
        let mut state = self.shared.state.lock();
        let again = state.find(header.name).is_some();
        if state.epoch == queued.epoch && state.insert(&header) {
            state.retention.spend(1, written_unix_seconds);
            drop(state);
            if again {
                self.shared.counters.written_again();
            }
            return Ok(None);
        }
        // Everything was evicted in this moment, most likely this segment's file too.
        Ok(Some(WriteDrop::Evicted))
    }

    /// The open segment, with room for one more block; None when there is no room for another segment.
    fn segment_for(&mut self, payload: u32) -> io::Result<Option<&mut OpenSegment>> {
        if let Some(active) = &mut self.active {
            let listed = self.shared.state.lock().segments().contains_key(&active.number());
            if !listed {
                self.active = None;
            } else if !active.has_room(payload, self.shared.config.segment_bytes) {
                if let Err(error) = active.seal() {
                    // As after a failed sync; without a seal the next start walks the file.
                    (self.active, self.unsynced, self.lost) = (None, None, true);
                    return Err(error);
                }
                let (number, bytes) = (active.number(), active.bytes());
                self.active = None;
                self.unsynced = None;
                self.shared.counters.synced();
                self.shared.state.lock().resize_segment(number, bytes);
            }
        }
        if self.active.is_none() {
            self.active = self.create()?;
        }
        Ok(self.active.as_mut())
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
        self.number_next = self.number_next.saturating_add(1);
        let listed = Segment {
            bytes: segment.bytes(),
            newest_unix_seconds: header.created_unix_seconds,
            ..Segment::default()
        };
        self.shared.state.lock().add_segment(segment.number(), listed);
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
        let (since, _) = self.unsynced?;
        Some(self.sync_interval().saturating_sub(self.shared.clock.now().since(since)))
    }

    fn sync_is_due(&self) -> bool {
        let Some((since, count)) = self.unsynced else {
            return false;
        };
        let interval = self.sync_interval();
        if interval.is_zero() {
            return UNSYNCED_MAX <= count;
        }
        interval <= self.shared.clock.now().since(since)
    }

    fn sync_interval(&self) -> Duration {
        Duration::from_millis(self.shared.config.sync_ms)
    }

    /// Makes what was written durable. After a failure nobody knows which pages were kept, so the segment is not written
    /// on: the next start walks it and checks every payload, as every read does. False after a failure.
    fn sync(&mut self) -> bool {
        if self.unsynced.take().is_none() {
            return true;
        }
        let Some(active) = &self.active else {
            return true;
        };
        match active.sync() {
            Ok(()) => {
                self.shared.counters.synced();
                true
            }
            Err(error) => {
                (self.active, self.lost) = (None, true);
                self.suspend("make blocks durable", &error);
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
        self.shared.state.lock().suspended_until = Some(until);
    }

    fn resume(&mut self) {
        if self.pause.take().is_none() {
            return;
        }
        self.shared.state.lock().suspended_until = None;
        tracing::info!(folder = %self.shared.config.folder.display(), "writing to disk works again");
    }
}

impl Shared {
    /// Removes the segments whose retention is over. The file goes first: a reader that still has the name finds it gone.
    pub(super) fn expire(&self) -> io::Result<()> {
        loop {
            let now = self.clock.unix_seconds();
            let Some(number) = self.state.lock().expired(now) else {
                return Ok(());
            };
            self.remove_file(number)?;
            let objects = self.state.lock().remove_segment(number);
            self.counters.segment_expired(objects);
            tracing::debug!(number, objects, "a segment left after its retention");
        }
    }

    /// Whether there is room for a whole segment, after what is too old and, if it must be, segments of other layouts
    /// have left. Nothing that was promised ever makes room.
    fn make_room(&self) -> io::Result<bool> {
        self.expire()?;
        let bytes_max = self.config.bytes_max - self.config.segment_bytes;
        loop {
            let foreign = {
                let state = self.state.lock();
                if state.file_bytes() <= bytes_max {
                    return Ok(true);
                }
                state.oldest_foreign()
            };
            let Some(number) = foreign else {
                return Ok(false);
            };
            self.remove_early(number)?;
        }
    }

    /// Removes segments until all files together take at most `bytes_max` bytes, those of other layouts first, then the
    /// oldest ones: the disk is smaller than it was at the last start.
    pub(super) fn shrink(&self, bytes_max: u64, spared: Option<u64>) -> io::Result<()> {
        loop {
            let leaving = {
                let state = self.state.lock();
                if state.file_bytes() <= bytes_max {
                    return Ok(());
                }
                let mut numbers = state.segments().keys().copied();
                let oldest = numbers.find(|number| Some(*number) != spared);
                state.oldest_foreign().or(oldest)
            };
            let Some(number) = leaving else {
                return Ok(());
            };
            self.remove_early(number)?;
        }
    }

    fn remove_early(&self, number: u64) -> io::Result<()> {
        self.remove_file(number)?;
        let (objects, early) = {
            let mut state = self.state.lock();
            let early = state.early_blocks(number, self.clock.unix_seconds());
            (state.remove_segment(number), early)
        };
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
