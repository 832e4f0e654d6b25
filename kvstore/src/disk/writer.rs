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
            let command = match self.sync_wait() {
                None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => self.commands.recv_timeout(wait),
            };
            match command {
                Ok(command) => self.serve(command),
                Err(RecvTimeoutError::Timeout) => _ = self.sync(),
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
        let segment = self.segment_for(source.bytes)?;
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
        if state.epoch == queued.epoch && state.insert(&header) {
            return Ok(None);
        }
        // Everything was evicted in this moment, most likely this segment's file too.
        Ok(Some(WriteDrop::Evicted))
    }

    /// The open segment, with room for one more block.
    fn segment_for(&mut self, payload: u32) -> io::Result<&mut OpenSegment> {
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
        let active = match self.active.take() {
            Some(active) => active,
            None => self.create()?,
        };
        Ok(self.active.insert(active))
    }

    fn create(&mut self) -> io::Result<OpenSegment> {
        let bytes_max = self.shared.config.bytes_max - self.shared.config.segment_bytes;
        self.shared.shrink(bytes_max, None)?;
        let header = SegmentHeader {
            number: self.number_next,
            created_unix_seconds: self.shared.clock.unix_seconds(),
            identity: self.shared.identity,
        };
        let segment = OpenSegment::create(&self.shared.config.folder, &header)?;
        self.number_next = self.number_next.saturating_add(1);
        let listed = Segment { bytes: segment.bytes(), ..Segment::default() };
        self.shared.state.lock().add_segment(segment.number(), listed);
        tracing::debug!(number = segment.number(), "a segment was begun");
        Ok(segment)
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
    /// Removes the oldest segments until all files together take at most `bytes_max` bytes. The file goes first: a reader
    /// that still has the name finds it gone.
    pub(super) fn shrink(&self, bytes_max: u64, spared: Option<u64>) -> io::Result<()> {
        loop {
            let oldest = {
                let state = self.state.lock();
                let oldest =
                    state.segments().keys().copied().find(|number| Some(*number) != spared);
                oldest.filter(|_| bytes_max < state.file_bytes())
            };
            let Some(number) = oldest else {
                return Ok(());
            };
            self.remove_file(number)?;
            let objects = self.state.lock().remove_segment(number);
            self.counters.segment_dropped(objects);
            tracing::debug!(number, objects, "the oldest segment was removed to make room");
        }
    }

    /// Removes the file of a segment; one that is gone already is no error.
    pub(super) fn remove_file(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(segment::path(&self.config.folder, number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
