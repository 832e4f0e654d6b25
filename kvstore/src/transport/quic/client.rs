//! The reader's side of QUIC.

use std::fmt::Display;
use std::time::Duration;

use bytes::{Buf, Bytes};
use quinn::{Connection, RecvStream};
use shared::{Descriptor, Flow, RequestContext};
use tokio::time;

use super::code;
use super::settings::client_config;
use crate::pool::{OwnedSlot, payload_bytes};
use crate::transport::ReadError;
use crate::transport::local::checksum;
use crate::transport::peer::{Core, Member, Path, Peer, Run, add, fitting, misfit};
use crate::transport::wire::{self, HEAD_BYTES, Status, Verb};

/// Pieces of a stream taken at a time: 200 KB of full packets, so that the connection's lock is taken about once per
/// block.
const PIECES: usize = 32;

/// How long a peer may take to accept a connection: two retransmissions of the first packet, and far less than a read.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The peer is gone, or does not speak the protocol. The log says which.
struct Lost;

/// The answer to one request.
struct Answer {
    stream: RecvStream,
    pieces: [Bytes; PIECES],
    /// The first piece that may have bytes left, and how many pieces are filled.
    next: usize,
    filled: usize,
}

/// Reads a run over QUIC, answering read by read.
///
/// # Errors
/// Why the reads not yet answered fail.
pub(in crate::transport) async fn read(
    peer: &Peer,
    member: &Member,
    run: &mut Run<'_>,
) -> Result<Flow, ReadError> {
    let (core, limits, region) = (run.core(), run.limits(), run.region());
    let (context, lost) = (run.context(), ReadError::PeerLost { region });
    let wanted = fitting(&*run.reads());
    let mut answer = None;
    if !wanted.is_empty() {
        let asked = ask(core, peer, member, context, (Verb::Read, &wanted));
        answer = Some(limits.within(asked).await?.map_err(|Lost| lost)?);
    }
    while let Some(read) = run.front() {
        let result = match (misfit(read), &mut answer) {
            (Some(error), _) => Err(error),
            (None, Some(answer)) => {
                let object = answer.object(&read.source, &mut read.target);
                limits.within(object).await?.map_err(|Lost| lost)?
            }
            (None, None) => unreachable!("what fits was asked for"),
        };
        if let Err(ReadError::Corrupt { .. }) = result {
            let source = [read.source];
            let asked = ask(core, peer, member, context, (Verb::Check, &source));
            limits.within(confirm(asked)).await?;
        }
        if run.answer(Path::Quic, result) == Flow::Closed {
            return Ok(Flow::Closed);
        }
        if run.front().is_some() {
            limits.check()?;
        }
    }
    Ok(Flow::Open)
}

/// Sends a request on a stream of its own. An earlier connection that turns out to be dead is replaced once.
async fn ask(
    core: &Core,
    peer: &Peer,
    member: &Member,
    context: RequestContext,
    (verb, objects): (Verb, &[Descriptor]),
) -> Result<Answer, Lost> {
    let (mut warm, made) = connection(core, peer, member).await?;
    let mut streams = warm.open_bi().await;
    if streams.is_err() && !made {
        (warm, _) = connection(core, peer, member).await?;
        streams = warm.open_bi().await;
    }
    let unsent = |error: &dyn Display| {
        tracing::warn!(
            request = %context.id, peer = %peer.server_name, %error, "a request was not sent"
        );
        Lost
    };
    let (mut send, stream) = streams.map_err(|error| unsent(&error))?;
    send.write_all(&wire::request(verb, context, objects)).await.map_err(|error| unsent(&error))?;
    send.finish().map_err(|error| unsent(&error))?;
    Ok(Answer { stream, pieces: [const { Bytes::new() }; PIECES], next: 0, filled: 0 })
}

/// The warm connection to a peer, made by whoever comes first, and whether that was this call.
async fn connection(core: &Core, peer: &Peer, member: &Member) -> Result<(Connection, bool), Lost> {
    let place = member.connection(peer.address);
    let mut made = false;
    let connection = place.get_or_try_init(|| {
        made = true;
        connect(core, peer)
    });
    let connection = connection.await?.clone();
    Ok((connection, made))
}

async fn connect(core: &Core, peer: &Peer) -> Result<Connection, Lost> {
    let failed = |error: String| {
        tracing::warn!(peer = %peer.server_name, address = %peer.address, error, "cannot connect for reading");
        Lost
    };
    let config = client_config(&core.config, &*core.tls, peer.address.ip()).map_err(failed)?;
    let connecting = core
        .endpoint
        .connect_with(config, peer.address, &peer.server_name)
        .map_err(|error| failed(error.to_string()))?;
    let Ok(connected) = time::timeout(CONNECT_MAX, connecting).await else {
        return Err(failed("nobody answers there".to_owned()));
    };
    let connection = connected.map_err(|error| failed(error.to_string()))?;
    add(&core.counters.connections_made, 1);
    Ok(connection)
}

/// Waits for the owner's word that it checked its copy. Whatever it says, the bytes here are damaged.
async fn confirm(asked: impl Future<Output = Result<Answer, Lost>>) {
    if let Ok(mut answer) = asked.await {
        let _checked_or_lost = answer.head().await.is_ok();
    }
}

impl Answer {
    /// Takes the next object into the target and checks it. The inner result is the object's, the outer the stream's.
    async fn object(
        &mut self,
        source: &Descriptor,
        target: &mut OwnedSlot,
    ) -> Result<Result<(), ReadError>, Lost> {
        let (status, bytes) = self.head().await?;
        let expected = if status == Status::Ready { source.bytes } else { 0 };
        if bytes != expected {
            tracing::warn!(bytes, expected, "a peer sends an object of another length");
            return Err(Lost);
        }
        match status {
            Status::Ready => {}
            Status::UnknownRegion => {
                let region = source.location.region;
                return Ok(Err(ReadError::UnknownRegion { region }));
            }
            Status::Stale => return Ok(Err(ReadError::Stale)),
            Status::Damaged | Status::NotShared => return Err(Lost),
        }
        self.payload(target, payload_bytes(bytes)).await?;
        let found = checksum(target, bytes);
        if found == source.checksum {
            return Ok(Ok(()));
        }
        Ok(Err(ReadError::Corrupt { expected: source.checksum, found }))
    }

    /// Status and length of the next object.
    async fn head(&mut self) -> Result<(Status, u32), Lost> {
        let mut head = [0; HEAD_BYTES];
        let mut at = 0;
        while at < head.len() {
            at += self.piece().await?.take_into(&mut head[at..]);
        }
        let [status, bytes @ ..] = head;
        let Some(status) = Status::from_code(status) else {
            tracing::warn!(status, "a peer sends an unknown status");
            return Err(Lost);
        };
        Ok((status, u32::from_be_bytes(bytes)))
    }

    /// The next `bytes` bytes, into the target.
    async fn payload(&mut self, target: &mut OwnedSlot, bytes: usize) -> Result<(), Lost> {
        let mut at = 0;
        while at < bytes {
            self.piece().await?;
            let pieces = &mut self.pieces[self.next..self.filled];
            target.write(&mut |slot| {
                for piece in &mut *pieces {
                    at += piece.take_into(&mut slot[at..bytes]);
                }
            });
        }
        Ok(())
    }

    /// The first piece with bytes left; waits for more when there is none.
    async fn piece(&mut self) -> Result<&mut Bytes, Lost> {
        loop {
            let left = &self.pieces[self.next..self.filled];
            if let Some(skip) = left.iter().position(|piece| !piece.is_empty()) {
                self.next += skip;
                return Ok(&mut self.pieces[self.next]);
            }
            (self.next, self.filled) = (0, 0);
            match self.stream.read_chunks(&mut self.pieces).await {
                Ok(Some(filled)) => self.filled = filled,
                Ok(None) => {
                    tracing::warn!("a peer ended its answer too early");
                    return Err(Lost);
                }
                Err(error) => {
                    tracing::warn!(%error, "an answer broke off");
                    return Err(Lost);
                }
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        // Fails only when the stream has ended, and then there is nothing to stop.
        let _ended = self.stream.stop(code::CANCELLED).is_err();
    }
}

/// Moving bytes out of a piece.
trait TakeInto {
    /// Fills as much of `target` as there are bytes, and says how much.
    fn take_into(&mut self, target: &mut [u8]) -> usize;
}

impl TakeInto for Bytes {
    fn take_into(&mut self, target: &mut [u8]) -> usize {
        let count = self.len().min(target.len());
        self.copy_to_slice(&mut target[..count]);
        count
    }
}
