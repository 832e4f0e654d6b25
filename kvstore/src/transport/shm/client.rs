//! The reader's side of shared memory.

use std::collections::HashMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use shared::{Descriptor, Flow, RegionId, RequestContext, SlotIndex};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task;

use super::ahead::Ahead;
use super::messages::{Ask, SegmentShape, Told};
use super::socket::Conversation;
use crate::memory::{OPEN_MARK, mark_of, slot_mark};
use crate::pool::{OwnedSlot, payload_bytes};
use crate::sys::{ForeignSegment, marks_start, segment_bytes};
use crate::transport::peer::{Core, Member, Path, Run, add, misfit};
use crate::transport::wire::Status;
use crate::transport::{ReadError, ReadRequest};

/// Connections to one peer, and so runs of reads from it at a time. The copies are bound by memory bandwidth, which four
/// cores reach.
const LINES_MAX: usize = 4;

/// Bytes copied before they are added to the checksum: they are then still in a near cache. Three times 8 KiB is the
/// stride the checksum is fastest at; smaller pieces measured 5 to 50 % slower.
const PIECE_BYTES: usize = 24 << 10;

/// Questions about one object: for the segment, and because of a wrong copy.
const ASKS_MAX: usize = 2;

/// Segments kept per connection; a peer has two regions per rank.
const SEGMENTS_MAX: usize = 64;

/// The connections to one peer that no run uses just now.
pub(in crate::transport) struct Lines {
    idle: Mutex<Vec<Line>>,
    permits: Semaphore,
}

/// One connection, with the segments that came through it.
struct Line {
    path: PathBuf,
    conversation: Conversation,
    segments: HashMap<RegionId, Arc<Mapped>>,
}

/// A peer's segment.
pub(super) struct Mapped {
    segment: ForeignSegment,
    shape: SegmentShape,
}

/// The peer is gone, or does not speak the protocol. The log says which.
struct Lost;

/// What a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// The object.
    Right,
    /// Other bytes, of this checksum.
    Wrong(u32),
    /// Nothing: the segment is missing or shut, or the slot holds something else, or did before the copy was done.
    Moved,
}

/// What became of one read.
enum Outcome {
    Answer(Result<(), ReadError>),
    /// The region is not in shared memory.
    NotShared,
}

impl Default for Lines {
    fn default() -> Self {
        Self { idle: Mutex::default(), permits: Semaphore::new(LINES_MAX) }
    }
}

/// Reads a run through shared memory, answering read by read. None when the reads that are left must go another way: the
/// peer's socket cannot be used, or the region is not in shared memory there.
///
/// # Errors
/// Why the reads not yet answered fail.
pub(in crate::transport) async fn read(
    path: &FilePath,
    member: &Member,
    run: &mut Run<'_>,
) -> Result<Option<Flow>, ReadError> {
    let permit = run.limits().within(member.lines.permits.acquire()).await?;
    let _permit = permit.expect("the semaphore is never closed");
    let mut ahead = Ahead::default();
    let done = read_all(path, member, run, &mut ahead).await;
    ahead.end(run).await;
    done
}

async fn read_all(
    path: &FilePath,
    member: &Member,
    run: &mut Run<'_>,
    ahead: &mut Ahead,
) -> Result<Option<Flow>, ReadError> {
    let (core, limits, region) = (run.core(), run.limits(), run.region());
    let idle = member.lines.take(path);
    let mut is_new = idle.is_none();
    let mut line = match idle {
        Some(line) => line,
        None => match limits.within(connect(core, path)).await {
            Ok(Some(line)) => line,
            Ok(None) | Err(_) => return Ok(None),
        },
    };
    let context = run.context();
    let mut again = false;
    loop {
        let copied = if again {
            None
        } else {
            ahead.begin(line.segments.get(&region), run);
            ahead.next(run).await
        };
        let Some(read) = run.front() else {
            break;
        };
        limits.check()?;
        let result = match misfit(read) {
            Some(error) => Err(error),
            None => {
                let asked = limits.within(line.read(context, read, copied)).await?;
                match asked {
                    Ok(Outcome::Answer(result)) => result,
                    Ok(Outcome::NotShared) => {
                        member.lines.put(line);
                        return Ok(None);
                    }
                    Err(Lost) => {
                        // The others are as dead, and each would keep all of its memory mapped.
                        member.lines.clear();
                        if is_new {
                            return Err(ReadError::PeerLost { region });
                        }
                        // The peer was started anew since this connection was made.
                        (is_new, again) = (true, true);
                        match limits.within(connect(core, path)).await {
                            Ok(Some(made)) => line = made,
                            Ok(None) | Err(_) => return Ok(None),
                        }
                        continue;
                    }
                }
            }
        };
        again = false;
        limits.check()?;
        if run.reads().len() == 1 && ahead.is_empty() {
            // Before the last answer: who asks again at once finds this connection and makes no other one.
            member.lines.put(line);
            return Ok(Some(run.answer(Path::SharedMemory, result)));
        }
        if run.answer(Path::SharedMemory, result) == Flow::Closed {
            member.lines.put(line);
            return Ok(Some(Flow::Closed));
        }
        // A copy takes as long as many tasks together: let them pass.
        task::yield_now().await;
    }
    member.lines.put(line);
    Ok(Some(Flow::Open))
}

async fn connect(core: &Core, path: &FilePath) -> Option<Line> {
    let connected = match UnixStream::connect(path).await {
        Ok(stream) => Conversation::new(stream),
        Err(error) => Err(error),
    };
    match connected {
        Ok(conversation) => {
            add(&core.counters.connections_made, 1);
            Some(Line { path: path.to_owned(), conversation, segments: HashMap::new() })
        }
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "no shared memory with this peer; QUIC is used");
            None
        }
    }
}

impl Lines {
    /// A living connection. The dead ones go, with all they have mapped.
    fn take(&self, path: &FilePath) -> Option<Line> {
        let dead: Vec<Line>;
        let line = {
            let mut idle = self.idle.lock();
            let of_path = |line: &mut Line| line.path == path && line.conversation.is_quiet();
            dead = idle.extract_if(.., |line| !of_path(line)).collect();
            idle.pop()
        };
        // Unmapped outside the lock.
        drop(dead);
        line
    }

    fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        drop(idle);
    }

    fn put(&self, line: Line) {
        let mut idle = self.idle.lock();
        if idle.len() < LINES_MAX {
            idle.push(line);
        }
    }
}

impl Line {
    /// Copies one object, unless that was tried; asks the owner when that cannot be done, and tries again. When it is cancelled the line is to be
    /// dropped: an answer may be under way.
    async fn read(
        &mut self,
        context: RequestContext,
        read: &mut ReadRequest,
        copied: Option<Copied>,
    ) -> Result<Outcome, Lost> {
        let region = read.source.location.region;
        let expected = read.source.checksum;
        let mut copied = copied.unwrap_or_else(|| self.copy(read));
        for _ in 0..ASKS_MAX {
            let wrong = match copied {
                Copied::Right => break,
                Copied::Wrong(found) => Some(found),
                Copied::Moved => None,
            };
            let ask = Ask { context, object: read.source, wrong: wrong.is_some() };
            let refused = match (self.ask(ask).await?, wrong) {
                (Status::Ready, _) => {
                    copied = self.copy(read);
                    continue;
                }
                (Status::NotShared, _) => return Ok(Outcome::NotShared),
                (Status::UnknownRegion, _) => ReadError::UnknownRegion { region },
                (Status::Damaged, Some(found)) => ReadError::Corrupt { expected, found },
                (Status::Stale | Status::Damaged, _) => ReadError::Stale,
            };
            return Ok(Outcome::Answer(Err(refused)));
        }
        Ok(Outcome::Answer(match copied {
            Copied::Right => Ok(()),
            Copied::Wrong(found) => Err(ReadError::Corrupt { expected, found }),
            Copied::Moved => Err(ReadError::Stale),
        }))
    }

    /// One message each way.
    async fn ask(&mut self, ask: Ask) -> Result<Status, Lost> {
        let region = ask.object.location.region;
        let broken = |error: &dyn std::fmt::Display| {
            tracing::warn!(request = %ask.context.id, path = %self.path.display(), %error, "a shared memory connection broke");
            Lost
        };
        self.conversation.send(&ask.encode(), None).await.map_err(|error| broken(&error))?;
        let answer = self.conversation.receive().await.map_err(|error| broken(&error))?;
        let Some(told) = Told::decode(&answer) else {
            return Err(broken(&"the peer sends a malformed answer"));
        };
        if let Some(shape) = told.segment {
            let Some(file) = self.conversation.take_file() else {
                return Err(broken(&"the peer announces a segment and sends no file"));
            };
            let bytes = shape.bytes().ok_or_else(|| broken(&"the peer's segment has no size"))?;
            let segment = ForeignSegment::map(file, bytes).map_err(|error| broken(&error))?;
            if SEGMENTS_MAX <= self.segments.len() && !self.segments.contains_key(&region) {
                return Err(broken(&"the peer has too many segments"));
            }
            self.segments.insert(region, Arc::new(Mapped { segment, shape }));
        }
        if told.status == Status::Ready && !self.has_place_for(&ask.object) {
            return Err(broken(&"the peer has an object outside its segment"));
        }
        Ok(told.status)
    }

    fn has_place_for(&self, object: &Descriptor) -> bool {
        let mapped = self.segments.get(&object.location.region);
        mapped.is_some_and(|mapped| mapped.start(object).is_some())
    }

    fn copy(&self, read: &mut ReadRequest) -> Copied {
        let source = read.source;
        let mapped = self.segments.get(&source.location.region);
        mapped.map_or(Copied::Moved, |mapped| mapped.copy(&source, &mut read.target))
    }
}

impl Mapped {
    /// Copies an object into the target, and its marks before and after say whether it was there all the time.
    pub(super) fn copy(&self, source: &Descriptor, target: &mut OwnedSlot) -> Copied {
        let Some(start) = self.start(source) else {
            return Copied::Moved;
        };
        if !self.holds(source) {
            return Copied::Moved;
        }
        let Some(found) = self.copy_bytes(source, start, target) else {
            return Copied::Moved;
        };
        if !self.holds(source) {
            return Copied::Moved;
        }
        if found == source.checksum { Copied::Right } else { Copied::Wrong(found) }
    }

    /// Copies whatever lies there and says its checksum.
    fn copy_bytes(&self, source: &Descriptor, start: usize, target: &mut OwnedSlot) -> Option<u32> {
        let mut checksum = Some(0);
        target.write(&mut |bytes| {
            let mut offset = start;
            for piece in bytes[..payload_bytes(source.bytes)].chunks_mut(PIECE_BYTES) {
                let copied = self.segment.copy_to(offset, piece);
                let before = checksum.filter(|_| copied);
                checksum = before.map(|before| crc32c::crc32c_append(before, piece));
                offset += piece.len();
            }
        });
        checksum
    }

    /// Whether the owner says now that it holds this very object and that it may be read.
    fn holds(&self, source: &Descriptor) -> bool {
        let slot = self.mark(slot_mark(source.location.slot));
        self.mark(OPEN_MARK) == Some(1) && slot == Some(mark_of(source.location.generation))
    }

    fn mark(&self, index: usize) -> Option<u64> {
        let start = self.shape.marks()?;
        self.segment.mark(start.checked_add(index.checked_mul(8)?)?)
    }

    /// Where an object begins. None when it is not inside the segment.
    fn start(&self, source: &Descriptor) -> Option<usize> {
        let SegmentShape { slots, slot_bytes, stride } = self.shape;
        let slot = source.location.slot;
        if slots <= slot.0 || slot_bytes < u64::from(source.bytes) {
            return None;
        }
        usize::try_from(u64::from(slot.0).checked_mul(stride)?).ok()
    }
}

impl SegmentShape {
    /// Where its marks begin.
    fn marks(&self) -> Option<usize> {
        marks_start(SlotIndex(self.slots).index(), usize::try_from(self.stride).ok()?)
    }

    /// Bytes of the whole segment; none when they cannot be addressed.
    fn bytes(&self) -> Option<usize> {
        let count = SlotIndex(self.slots).index();
        segment_bytes(count, usize::try_from(self.stride).ok()?, count.checked_add(1)?)
    }
}
