//! The object store below the drive: sealed segments are uploaded whole, and what leaves the drive is still found there.
//!
//! One thread, `kv-object-store`, with an async runtime of its own: the only async code of this crate outside the transport.
//! Callers and the other threads of the tier reach it by bounded channels and the catalog. It does two things side by side:
//! `object/read.rs` answers reads, `object/upkeep.rs` lists, uploads and deletes.
//!
//! An object is a segment file, byte by byte, under `<prefix>/<node>/<identity, hex>/<number, hex>.seg`. There is no second
//! format and no index in the store: a start reads the last pages of what it does not know.
//!
//! Invariants:
//! - A segment is uploaded after it was sealed, once; it is found there (`SegmentState::Copied`) only when the upload is
//!   complete. One that leaves the drive before that leaves as it did without an object store.
//! - A block that was read from there passed the same checks as one from the drive.
//! - A local copy wins: a name leads to an object only when its newest copy lies on no drive.
//! - The object goes before its names, as files do. An object that is gone makes misses.
//! - Nothing of the drive waits for the object store. While it cannot be reached it is left alone, for 1 s to 60 s at a
//!   time, and its blocks are misses at once.
//! - Every request has a deadline, every retry and every queue a bound.
//!
//! Start reading at `object/upkeep.rs`.

mod config;
mod connect;
mod listing;
mod read;
mod retain;
mod stats;
mod tier;
mod upkeep;
mod upload;

#[cfg(test)]
pub(crate) mod tests;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::Sender;
use object_store::path::Path;
use object_store::{Error, ObjectStore};
use parking_lot::Mutex;
use shared::Timestamp;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use config::{ObjectConfig, ObjectError};
pub(crate) use connect::Connect;
pub use stats::ObjectStats;
pub(crate) use tier::Below;

use super::Shared;
use super::catalog::CatalogError;
use super::config::{DiskConfig, DiskError};
use super::format::Identity;
use super::load::{DiskLoad, Load};
use super::reader::Job;
use config::Place;
use stats::ObjectCounters;

/// How long a request may take that no lookup waits for.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The first pause after an error, and the longest one.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// See above.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Threads for the blocking calls of a mounted folder and of name resolution.
const BLOCKING_THREADS: usize = 4;
/// How long such a call may hold up the end of the tier.
const END_MAX: Duration = Duration::from_secs(1);
/// Callers that may wait for [`super::DiskTier::settle_objects`].
const SETTLES_MAX: usize = 16;
/// A read moves the average time of a read by this part of its difference.
const NEW_PART: u64 = 8;
/// What one read takes before any was made: a store in the same region.
const FIRST_GET: Duration = Duration::from_millis(30);

/// What the thread, callers and the other threads have in common.
pub(super) struct Remote {
    config: ObjectConfig,
    connect: Connect,
    /// Made when it is first needed, and again after an error of its making.
    store: Mutex<Option<Arc<dyn ObjectStore>>>,
    keys: Keys,
    /// Of reads that wait or are under way.
    load: Mutex<Load>,
    /// The average time of a read, in nanoseconds: what a single one takes at least, however many run side by side.
    get_ns: AtomicU64,
    /// Of reads, and of uploads and all else: credentials may allow the one and not the other.
    health: [Mutex<Health>; 2],
    counters: ObjectCounters,
    /// Objects with this number or a later one are of a node that runs ahead of us: they are left alone.
    number_next: u64,
    /// Whether the catalog knows what lies there.
    is_listed: AtomicBool,
    /// There may be something to upload or to delete.
    wake: Notify,
    stop: CancellationToken,
}

/// What is left alone by itself after its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Reads,
    Upkeep,
}

impl Work {
    fn as_str(self) -> &'static str {
        match self {
            Self::Reads => "read blocks from",
            Self::Upkeep => "list, upload or delete segments in",
        }
    }
}

/// Whether it is left alone.
#[derive(Debug)]
struct Health {
    /// The last pause; None while all is well.
    pause: Option<Duration>,
    until: Timestamp,
}

/// The names of objects.
#[derive(Clone, Debug)]
struct Keys {
    /// What those of this node and this identity begin with.
    base: Path,
}

impl Keys {
    fn new(place: &Place, node: &str, identity: Identity) -> Self {
        let fingerprint: String =
            identity.fingerprint().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { base: Path::from(format!("{}/{node}/{fingerprint}", place.prefix)) }
    }

    fn object(&self, number: u64) -> Path {
        self.base.clone().join(format!("{number:016x}.seg"))
    }

    fn number(&self, key: &Path) -> Option<u64> {
        let digits = key.filename()?.strip_suffix(".seg")?;
        let number = u64::from_str_radix(digits, 16).ok()?;
        (self.object(number) == *key).then_some(number)
    }
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// There is no such object.
    #[error("there is no such object: {0}")]
    Missing(Error),
    /// It took too long.
    #[error("no answer in time")]
    Late,
    /// The server does not let us.
    #[error("refused: {0}")]
    Refused(Error),
    /// No connection, or an answer that makes no sense.
    #[error("{0}")]
    Unreachable(Error),
    /// There is no client.
    #[error("{0}")]
    Client(ObjectError),
    /// The tier ends.
    #[error("the tier ends")]
    Stopped,
    /// The segment left the drive meanwhile.
    #[error("the segment left the drive")]
    Left,
    /// The drive refused.
    #[error("the drive: {0}")]
    Drive(io::Error),
    /// The catalog refused.
    #[error("{0}")]
    Catalog(#[from] CatalogError),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NotFound { .. } => Self::Missing(error),
            Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. } => Self::Refused(error),
            _ => Self::Unreachable(error),
        }
    }
}

impl Remote {
    /// Whether the catalog knows what lies there, since the start.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Acquire)
    }

    /// Checks the settings and makes the client; None without an object store. Nothing is sent. `connect` stands in for the
    /// configured store.
    pub(super) fn new(
        config: &DiskConfig,
        identity: Identity,
        number_next: u64,
        connect: Option<Connect>,
    ) -> Result<Option<Self>, DiskError> {
        let config = &config.object;
        if !config.is_on() {
            return Ok(None);
        }
        config.check_node()?;
        let connect = connect.map_or_else(|| connect::connect(config), Ok)?;
        let get_ns = u64::try_from(FIRST_GET.as_nanos()).expect("some milliseconds");
        Ok(Some(Self {
            keys: Keys::new(&Place::parse(&config.url)?, &config.node, identity),
            config: config.clone(),
            connect,
            store: Mutex::new(None),
            load: Mutex::new(Load::new()),
            get_ns: AtomicU64::new(get_ns),
            health: [(); 2].map(|()| Mutex::new(Health { pause: None, until: Timestamp(0) })),
            counters: ObjectCounters::default(),
            number_next,
            is_listed: AtomicBool::new(false),
            wake: Notify::new(),
            stop: CancellationToken::new(),
        }))
    }

    /// Its settings.
    pub(super) fn config(&self) -> &ObjectConfig {
        &self.config
    }

    /// Something was sealed, or is to be deleted.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// The thread is to end.
    pub(super) fn stop(&self) {
        self.stop.cancel();
    }

    /// A segment left the drive that was not uploaded.
    pub(super) fn left_uncopied(&self) {
        self.counters.left_uncopied.add(1);
    }

    /// How busy it is with reads and how fast it was lately; None while it is left alone.
    fn load(&self, now: Timestamp) -> Option<DiskLoad> {
        if self.is_paused(Work::Reads, now) {
            return None;
        }
        let load = self.load.lock().snapshot(now);
        let least = self.get_ns.load(Ordering::Relaxed);
        Some(DiskLoad { stalled_ns: load.stalled_ns.max(least), ..load })
    }

    fn learn_get(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.get_ns.load(Ordering::Relaxed);
        // One thread writes it.
        let learned = before - before / NEW_PART + took / NEW_PART;
        self.get_ns.store(learned, Ordering::Relaxed);
    }

    fn health(&self, work: Work) -> &Mutex<Health> {
        let [reads, upkeep] = &self.health;
        match work {
            Work::Reads => reads,
            Work::Upkeep => upkeep,
        }
    }

    fn is_paused(&self, work: Work, now: Timestamp) -> bool {
        let health = self.health(work).lock();
        health.pause.is_some() && now < health.until
    }

    /// The last pause; None while all is well.
    fn pause(&self, work: Work) -> Option<Duration> {
        self.health(work).lock().pause
    }

    fn succeeded(&self, work: Work) {
        if self.health(work).lock().pause.take().is_some() {
            let url = &self.config.url;
            tracing::info!(url, "it works again to {} the object store", work.as_str());
        }
    }

    /// Counts an error, and leaves the store alone for a while. Of several in a row the first is logged.
    fn failed(&self, work: Work, failure: &Failure, now: Timestamp) {
        self.count(failure);
        let mut health = self.health(work).lock();
        if health.pause.is_some() && now < health.until {
            // Several requests that were under way failed together.
            return;
        }
        let first = health.pause.is_none();
        let pause = health.pause.map_or(PAUSE_MIN, |pause| (2 * pause).min(PAUSE_MAX));
        *health = Health { pause: Some(pause), until: now.after(pause) };
        drop(health);
        if first {
            tracing::warn!(
                url = self.config.url, error = %failure,
                "cannot {} the object store; that is left alone until it works again, the drive goes on: check its address, \
                 its credentials and the network", work.as_str()
            );
        }
    }

    fn count(&self, failure: &Failure) {
        let counters = &self.counters;
        match failure {
            Failure::Missing(_) => counters.missing.add(1),
            Failure::Late => counters.late.add(1),
            Failure::Refused(_) => counters.refused.add(1),
            Failure::Unreachable(_) | Failure::Client(_) => counters.unreachable.add(1),
            Failure::Drive(_) | Failure::Catalog(_) => counters.local_errors.add(1),
            Failure::Stopped | Failure::Left => {}
        }
    }

    fn store(&self) -> Result<Arc<dyn ObjectStore>, Failure> {
        let mut store = self.store.lock();
        if let Some(store) = &*store {
            return Ok(Arc::clone(store));
        }
        let made = (self.connect)().map_err(Failure::Client)?;
        *store = Some(Arc::clone(&made));
        Ok(made)
    }

    /// One request, with its deadline. Ends with the tier.
    async fn request<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(Failure::Stopped),
            done = timeout(limit, work) => match done {
                Ok(done) => Ok(done?),
                Err(_) => Err(Failure::Late),
            },
        }
    }
}

/// How callers reach the thread.
#[derive(Debug)]
pub(super) struct Handles {
    reads: mpsc::Sender<Job>,
    settles: mpsc::Sender<Sender<()>>,
}

/// The thread, before it runs.
pub(super) struct Thread {
    runtime: Runtime,
    reads: mpsc::Receiver<Job>,
    settles: mpsc::Receiver<Sender<()>>,
}

impl Thread {
    /// The thread, and how it is reached.
    pub(super) fn new(config: &ObjectConfig) -> Result<(Self, Handles), DiskError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("kv-object-block")
            .build()
            .map_err(DiskError::Thread)?;
        let (reads, jobs) = mpsc::channel(config.reads_max);
        let (settles, asked) = mpsc::channel(SETTLES_MAX);
        Ok((Self { runtime, reads: jobs, settles: asked }, Handles { reads, settles }))
    }

    /// Serves until the tier drops; reads that wait then are dropped, which frees their slots.
    pub(super) fn run(self, shared: &Shared) {
        let Some(remote) = &shared.remote else {
            unreachable!("the thread is made with the object store");
        };
        let Self { runtime, reads, settles } = self;
        runtime.block_on(async {
            let upkeep = upkeep::Upkeep::new(shared, remote);
            tokio::join!(read::serve(shared, remote, reads), upkeep.run(settles));
        });
        runtime.shutdown_timeout(END_MAX);
    }
}
