//! The owner's side of shared memory.

use std::collections::HashMap;
use std::future;
use std::io;
use std::os::unix::net;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, mem};

use shared::{RegionId, SlotMemory};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio::{select, time};

use super::messages::{Opened, SegmentShape, Turn};
use super::socket::Conversation;
use crate::memory::SharedMemory;
use crate::pool::OpenRead;
use crate::transport::local::forget_if_damaged;
use crate::transport::peer::{Core, Path, PeerTransportError, ServedConnection, add};
use crate::transport::wire::Status;

/// After a failed accept, which is almost always a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening unix socket. Its file goes when it drops.
pub(in crate::transport) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// What a reader has open. Released when it drops.
struct Held {
    region: RegionId,
    /// The objects that could be opened; none for the others.
    objects: Vec<Option<OpenRead>>,
    until: Instant,
}

/// What one connection knows of its reader.
#[derive(Default)]
struct Reader {
    held: Option<Held>,
    /// The registration whose segment the reader has, by region.
    sent: HashMap<RegionId, u64>,
}

/// Regions one reader may have segments of.
const REGIONS_MAX: usize = 64;

impl Listener {
    /// Listens at this path, in place of a file that a dead process left there. To be called inside a runtime.
    ///
    /// # Errors
    /// When the path is too long, its folder is missing, or a living process listens there.
    pub(in crate::transport) fn bind(path: PathBuf) -> Result<Self, PeerTransportError> {
        match bind(&path) {
            Ok(socket) => Ok(Self { socket, path }),
            Err(source) => Err(PeerTransportError::Unix { path, source }),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the socket file was gone already");
        }
    }
}

fn bind(path: &FilePath) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        bound => return bound,
    }
    if net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
    }
    fs::remove_file(path)?;
    UnixListener::bind(path)
}

/// Serves readers until the transport closes.
pub(in crate::transport) async fn serve(core: Arc<Core>, listener: Listener) {
    let mut readers = JoinSet::new();
    loop {
        select! {
            () = core.closing.cancelled() => break,
            accepted = listener.socket.accept() => match accepted {
                Ok(_) if core.config.connections_max <= readers.len() => {
                    add(&core.counters.connections_refused, 1);
                }
                Ok((stream, _)) => drop(readers.spawn(serve_reader(Arc::clone(&core), stream))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a reader; raise the limit on open files");
                    time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = readers.join_next() => {
                if ended.is_err_and(|error| error.is_panic()) {
                    tracing::error!("a task that serves readers died, see the message above");
                }
            }
        }
    }
    readers.shutdown().await;
}

async fn serve_reader(core: Arc<Core>, stream: UnixStream) {
    let mut conversation = match Conversation::new(stream) {
        Ok(conversation) => conversation,
        Err(error) => {
            add(&core.counters.connections_refused, 1);
            tracing::warn!(%error, "a reader was refused");
            return;
        }
    };
    let _counted = ServedConnection::new(&core.counters);
    let mut reader = Reader::default();
    loop {
        let message = select! {
            message = conversation.receive() => message,
            () = reader.expired() => {
                let count = reader.release_unasked();
                add(&core.counters.holds_expired, count);
                continue;
            }
        };
        let message = match message {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(%error, "a reader's connection ended");
                return;
            }
        };
        let Some(turn) = Turn::decode(&message) else {
            add(&core.counters.requests_malformed, 1);
            tracing::warn!(bytes = message.len(), "a reader's turn is malformed");
            return;
        };
        tracing::debug!(
            request = %turn.context.id, trace = %turn.context.trace, objects = turn.wanted.len(),
            "read through shared memory"
        );
        let (opened, memory) = reader.turn(&core, &turn);
        let file = memory.as_deref().map(SharedMemory::file);
        let answer = opened.encode();
        let sent = time::timeout(core.hold_limit(), conversation.send(&answer, file)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

impl Reader {
    /// Ends when the open group was held for too long.
    async fn expired(&self) {
        match &self.held {
            Some(held) => time::sleep_until(held.until).await,
            None => future::pending().await,
        }
    }

    /// Releases the open group without the reader, and says how many objects that were.
    fn release_unasked(&mut self) -> u64 {
        let held = self.held.take();
        let objects = held.map_or(0, |held| held.objects.iter().flatten().count());
        u64::try_from(objects).expect("usize has at most 64 bits")
    }

    /// Does what a turn says. The memory is the one whose file goes with the answer.
    fn turn(&mut self, core: &Core, turn: &Turn) -> (Opened, Option<Arc<SharedMemory>>) {
        let held = match self.held.take() {
            Some(held) => held.finish(core, &turn.copied),
            None => turn.copied.is_empty(),
        };
        let refused = |status| {
            let statuses = vec![status; turn.wanted.len()];
            (Opened { held, segment: None, statuses }, None)
        };
        if turn.wanted.is_empty() {
            return refused(Status::Ready);
        }
        let Some(served) = core.registry.served(turn.region) else {
            return refused(Status::UnknownRegion);
        };
        let known = self.sent.get(&turn.region).copied();
        let Some(memory) = served.memory else {
            return refused(Status::NotShared);
        };
        if REGIONS_MAX <= self.sent.len() && known.is_none() {
            return refused(Status::NotShared);
        }
        let mut objects = Vec::with_capacity(turn.wanted.len());
        let mut statuses = Vec::with_capacity(turn.wanted.len());
        for wanted in &turn.wanted {
            let opened = served.pool.open(wanted);
            statuses
                .push(opened.as_ref().map_or_else(|error| Status::of(*error), |_| Status::Ready));
            if opened.is_ok() {
                core.counters.served(Path::SharedMemory, wanted.bytes);
            }
            objects.push(opened.ok());
        }
        let until = Instant::now() + core.hold_limit();
        self.held = Some(Held { region: turn.region, objects, until });
        if known == Some(served.registration) {
            return (Opened { held, segment: None, statuses }, None);
        }
        self.sent.insert(turn.region, served.registration);
        let segment = Some(SegmentShape {
            slots: memory.slots(),
            slot_bytes: u64::try_from(memory.slot_bytes()).expect("usize has at most 64 bits"),
            stride: u64::try_from(memory.stride()).expect("usize has at most 64 bits"),
        });
        (Opened { held, segment, statuses }, Some(memory))
    }
}

impl Held {
    /// Checks the objects whose copies are wrong and releases all. Says whether the reader spoke of these objects.
    fn finish(mut self, core: &Core, copied: &[bool]) -> bool {
        let objects = mem::take(&mut self.objects);
        if objects.len() != copied.len() {
            return false;
        }
        let served = core.registry.served(self.region);
        for (object, right) in objects.iter().zip(copied) {
            if let (Some(object), Some(served), false) = (object, &served, right) {
                let _damaged_or_not: bool = forget_if_damaged(&served.pool, object);
            }
        }
        true
    }
}
