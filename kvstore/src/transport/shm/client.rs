//! The reader's side of shared memory.

use std::collections::{HashMap, VecDeque};
use std::path::{Path as FilePath, PathBuf};

use parking_lot::Mutex;
use shared::{Descriptor, Flow, RegionId, RequestContext};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task;

use super::messages::{Opened, SegmentShape, Turn};
use super::socket::Conversation;
use crate::pool::{OwnedSlot, payload_bytes};
use crate::sys::ForeignSegment;
use crate::transport::peer::{Core, Member, Path, Run, add, fitting, misfit};
use crate::transport::wire::Status;
use crate::transport::{ReadError, ReadRequest};

/// Connections to one peer, and so runs of reads from it at a time. The copies are bound by memory bandwidth, which four
/// cores reach.
const LINES_MAX: usize = 4;

/// Objects and bytes of one group. 4 MiB take half a millisecond to copy, beside which a round trip is small; the first
/// object of a run waits for its whole group.
const GROUP_OBJECTS_MAX: usize = 32;
const GROUP_BYTES_MAX: usize = 4 << 20;

/// Bytes copied before they are added to the checksum: they are then still in a near cache. Three times 8 KiB is the
/// stride the checksum is fastest at; smaller pieces measured 5 to 50 % slower.
const PIECE_BYTES: usize = 24 << 10;

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
    segments: HashMap<RegionId, Mapped>,
}

/// A peer's segment.
struct Mapped {
    segment: ForeignSegment,
    shape: SegmentShape,
}

/// The next reads of a run: how many, and which of them are asked for.
struct Group {
    reads: usize,
    wanted: Vec<Descriptor>,
}

/// The peer is gone, or does not speak the protocol. The log says which.
struct Lost;

/// What became of a conversation about one run.
enum End {
    /// All reads were answered, or the sink closed.
    Over(Flow),
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
    let (core, limits, context) = (run.core(), run.limits(), run.context());
    let permit = limits.within(member.lines.permits.acquire()).await?;
    let _permit = permit.expect("the semaphore is never closed");
    let group = group(run.reads());
    let mut first = None;
    if let Some(mut line) = member.lines.take(path) {
        match limits.within(line.turn(context, run.region(), &[], &group)).await? {
            Ok(opened) => first = Some((line, opened)),
            // The peer ended: the others are as dead, and each would keep all of its memory mapped.
            Err(Lost) => member.lines.clear(),
        }
    }
    if first.is_none() {
        // No idle connection, or a dead one, as after a restart of the peer.
        let Ok(Some(mut line)) = limits.within(connect(core, path)).await else {
            return Ok(None);
        };
        let turn = limits.within(line.turn(context, run.region(), &[], &group)).await?;
        let lost = ReadError::PeerLost { region: run.region() };
        first = Some((line, turn.map_err(|Lost| lost)?));
    }
    let (mut line, opened) = first.expect("set above");
    match line.converse(run, group, opened).await? {
        End::Over(Flow::Closed) => Ok(Some(Flow::Closed)),
        End::Over(Flow::Open) => {
            member.lines.put(line);
            Ok(Some(Flow::Open))
        }
        End::NotShared => {
            member.lines.put(line);
            Ok(None)
        }
    }
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
    fn take(&self, path: &FilePath) -> Option<Line> {
        let mut idle = self.idle.lock();
        idle.retain(|line| line.path == path);
        idle.pop()
    }

    fn clear(&self) {
        let idle = std::mem::take(&mut *self.idle.lock());
        // Unmapped outside the lock.
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
    /// Reads group by group. Only a line of which no group is open may be used again: after an error, or when the sink
    /// closed, it is to be dropped, and the owner releases what it holds.
    async fn converse(
        &mut self,
        run: &mut Run<'_>,
        mut group: Group,
        mut opened: Opened,
    ) -> Result<End, ReadError> {
        let (region, limits, context) = (run.region(), run.limits(), run.context());
        let lost = ReadError::PeerLost { region };
        let limit_ms = run.core().config.read_ms_max;
        loop {
            if opened.statuses.contains(&Status::NotShared) {
                return Ok(End::NotShared);
            }
            let mut results = Vec::with_capacity(group.reads);
            let mut statuses = opened.statuses.iter();
            for read in run.reads().iter_mut().take(group.reads) {
                limits.check()?;
                results.push(match misfit(read) {
                    Some(error) => Err(error),
                    None => {
                        let status = statuses.next().expect("one for each wanted, see `turn`");
                        self.copy(*status, read).map_err(|Lost| lost)?
                    }
                });
                // A copy takes as long as many tasks together: let them pass.
                task::yield_now().await;
            }
            let fits = |result: &Result<(), _>| !matches!(result, Err(ReadError::Length { .. }));
            let copied: Vec<bool> = results
                .iter()
                .filter(|result| fits(result))
                .map(|result| !matches!(result, Err(ReadError::Corrupt { .. })))
                .collect();
            let mut later = run.reads().iter().skip(group.reads);
            let next = next_group(&mut later);
            let turn = self.turn(context, region, &copied, &next);
            let answer = limits.within(turn).await?.map_err(|Lost| lost)?;
            for result in results {
                limits.check()?;
                let result = match result {
                    // Not held to the end: the slot may have been reused under the copy, so a wrong sum says nothing.
                    Ok(()) | Err(ReadError::Corrupt { .. }) if !answer.held => {
                        Err(ReadError::Late { limit_ms })
                    }
                    result => result,
                };
                if run.answer(Path::SharedMemory, result) == Flow::Closed {
                    return Ok(End::Over(Flow::Closed));
                }
            }
            if next.reads == 0 {
                return Ok(End::Over(Flow::Open));
            }
            (group, opened) = (next, answer);
        }
    }

    /// One message each way. The answer has a status for each object wanted.
    async fn turn(
        &mut self,
        context: RequestContext,
        region: RegionId,
        copied: &[bool],
        group: &Group,
    ) -> Result<Opened, Lost> {
        let turn = Turn { context, region, copied: copied.to_vec(), wanted: group.wanted.clone() };
        let broken = |error: &dyn std::fmt::Display| {
            tracing::warn!(request = %context.id, path = %self.path.display(), %error, "a shared memory connection broke");
            Lost
        };
        self.conversation.send(&turn.encode(), None).await.map_err(|error| broken(&error))?;
        let answer = self.conversation.receive().await.map_err(|error| broken(&error))?;
        let Some(opened) = Opened::decode(&answer) else {
            return Err(broken(&"the peer sends a malformed answer"));
        };
        if opened.statuses.len() != group.wanted.len() {
            return Err(broken(&"the peer answers for another number of objects"));
        }
        if let Some(shape) = opened.segment {
            let Some(file) = self.conversation.take_file() else {
                return Err(broken(&"the peer announces a segment and sends no file"));
            };
            let bytes = shape.bytes().ok_or_else(|| broken(&"the peer's segment has no size"))?;
            let segment = ForeignSegment::map(file, bytes).map_err(|error| broken(&error))?;
            if SEGMENTS_MAX <= self.segments.len() {
                return Err(broken(&"the peer has too many segments"));
            }
            self.segments.insert(region, Mapped { segment, shape });
        }
        Ok(opened)
    }

    /// Copies one object and checks it. The inner result is the object's.
    fn copy(&self, status: Status, read: &mut ReadRequest) -> Result<Result<(), ReadError>, Lost> {
        let source = read.source;
        let region = source.location.region;
        match status {
            Status::Ready => {}
            Status::UnknownRegion => return Ok(Err(ReadError::UnknownRegion { region })),
            Status::Stale => return Ok(Err(ReadError::Stale)),
            Status::Damaged | Status::NotShared => return Err(Lost),
        }
        let copied =
            self.segments.get(&region).and_then(|mapped| mapped.copy(&source, &mut read.target));
        let Some(found) = copied else {
            tracing::warn!(%region, "a peer opens an object outside its segment");
            return Err(Lost);
        };
        if found == source.checksum {
            return Ok(Ok(()));
        }
        Ok(Err(ReadError::Corrupt { expected: source.checksum, found }))
    }
}

impl Mapped {
    /// Copies an object into the target and says the checksum of what arrived there. None when the object is not inside
    /// the segment.
    fn copy(&self, source: &Descriptor, target: &mut OwnedSlot) -> Option<u32> {
        let SegmentShape { slots, slot_bytes, stride } = self.shape;
        let slot = source.location.slot;
        if slots <= slot.0 || slot_bytes < u64::from(source.bytes) {
            return None;
        }
        let start = usize::try_from(u64::from(slot.0).checked_mul(stride)?).ok()?;
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
}

impl SegmentShape {
    /// Bytes of the whole segment; none when they cannot be addressed.
    fn bytes(&self) -> Option<usize> {
        usize::try_from(u64::from(self.slots).checked_mul(self.stride)?).ok()
    }
}

fn group(reads: &VecDeque<ReadRequest>) -> Group {
    next_group(&mut reads.iter())
}

/// The next reads that make one group.
fn next_group(reads: &mut dyn Iterator<Item = &ReadRequest>) -> Group {
    let mut bytes = 0;
    let mut group = Vec::new();
    for read in reads.take(GROUP_OBJECTS_MAX) {
        bytes += payload_bytes(read.source.bytes);
        if GROUP_BYTES_MAX < bytes && !group.is_empty() {
            break;
        }
        group.push(read);
    }
    Group { reads: group.len(), wanted: fitting(group) }
}
