//! The owner's side of shared memory.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::net;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use shared::{RegionId, SlotMemory};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::{select, time};

use super::messages::{Ask, SegmentShape, Told};
use super::socket::Conversation;
use crate::memory::SharedMemory;
use crate::transport::local::forget_if_damaged;
use crate::transport::peer::{Core, PeerTransportError, ServedConnection, add};
use crate::transport::wire::Status;

/// After a failed accept, which is almost always a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listening unix socket. Its file goes when it drops.
pub(in crate::transport) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// What one connection knows of its reader.
#[derive(Default)]
struct Reader {
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
        let message = match conversation.receive().await {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(%error, "a reader's connection ended");
                return;
            }
        };
        let Some(ask) = Ask::decode(&message) else {
            add(&core.counters.requests_malformed, 1);
            tracing::warn!(bytes = message.len(), "a reader's question is malformed");
            return;
        };
        let (told, memory) = reader.answer(&core, &ask);
        tracing::debug!(
            request = %ask.context.id, trace = %ask.context.trace, status = ?told.status,
            "asked by a reader of shared memory"
        );
        let file = memory.as_deref().map(SharedMemory::file);
        let answer = told.encode();
        let sent = time::timeout(core.hold_limit(), conversation.send(&answer, file)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

impl Reader {
    /// The memory is the one whose file goes with the answer.
    fn answer(&mut self, core: &Core, ask: &Ask) -> (Told, Option<Arc<SharedMemory>>) {
        let region = ask.object.location.region;
        let refused = |status| (Told { status, segment: None }, None);
        let Some(served) = core.registry.served(region) else {
            return refused(Status::UnknownRegion);
        };
        let known = self.sent.get(&region).copied();
        let Some(memory) = served.memory else {
            return refused(Status::NotShared);
        };
        if REGIONS_MAX <= self.sent.len() && known.is_none() {
            return refused(Status::NotShared);
        }
        let status = match served.pool.open(&ask.object) {
            Ok(open) if ask.wrong && forget_if_damaged(&served.pool, &open) => Status::Damaged,
            Ok(_) => Status::Ready,
            Err(error) => Status::of(error),
        };
        if known == Some(served.registration) {
            return refused(status);
        }
        self.sent.insert(region, served.registration);
        let segment = Some(SegmentShape {
            slots: memory.slots(),
            slot_bytes: u64::try_from(memory.slot_bytes()).expect("usize has at most 64 bits"),
            stride: u64::try_from(memory.stride()).expect("usize has at most 64 bits"),
        });
        (Told { status, segment }, Some(memory))
    }
}
