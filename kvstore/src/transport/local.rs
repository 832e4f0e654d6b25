//! The transport inside one process: a copy from slot to slot, with all the checks of a remote one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use parking_lot::RwLock;
use shared::{Descriptor, Flow, RegionId, RequestContext, Sink, Ticket};

use super::{ReadDone, ReadError, ReadRequest, Transport};
use crate::pool::{OpenRead, OwnedSlot, Pool, payload_bytes};

/// How a [`LocalTransport`] is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTransportConfig {
    /// Batches of reads that may wait. Range: 1 to 65,536. Default: 1,024, which is more than the live requests of one
    /// process; each holds reserved slots of its reader's pool, so memory is bounded there and not here.
    pub queue_max: usize,
}

/// Why a pool was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("region {region} is already registered; give each pool a region of its own")]
pub struct RegisterError {
    /// The region.
    pub region: RegionId,
}

/// Reads between the pools of one process, on one named thread. Dropping it answers what still waits with
/// [`ReadError::Closed`] and joins the thread.
///
/// The map of regions is bounded by the pools of the process; a pool that goes away is to be unregistered.
#[derive(Debug)]
pub struct LocalTransport {
    config: LocalTransportConfig,
    regions: Arc<Regions>,
    closing: Arc<AtomicBool>,
    batches: Option<Sender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

type Regions = RwLock<HashMap<RegionId, Pool>>;

struct Batch {
    reads: Vec<ReadRequest>,
    sink: Box<dyn Sink<ReadDone>>,
    cancelled: Arc<AtomicBool>,
}

impl LocalTransport {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    ///
    /// # Panics
    /// When `queue_max` is out of its range.
    pub fn start(config: LocalTransportConfig) -> io::Result<Self> {
        assert!((1..=65_536).contains(&config.queue_max), "queue_max is 1 to 65,536");
        let (batches, waiting) = bounded(config.queue_max);
        let regions = Arc::new(Regions::default());
        let closing = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("kv-local-read".to_owned()).spawn({
            let (regions, closing) = (Arc::clone(&regions), Arc::clone(&closing));
            move || serve(&waiting, &regions, &closing)
        })?;
        Ok(Self { config, regions, closing, batches: Some(batches), thread: Some(thread) })
    }

    /// Makes a pool readable under its region.
    ///
    /// # Errors
    /// When another pool has that region.
    pub fn register(&self, pool: &Pool) -> Result<(), RegisterError> {
        let region = pool.config().region;
        match self.regions.write().entry(region) {
            Entry::Occupied(_) => Err(RegisterError { region }),
            Entry::Vacant(place) => {
                place.insert(pool.clone());
                Ok(())
            }
        }
    }

    /// Takes a region away; later reads from it fail with [`ReadError::UnknownRegion`]. A read in progress completes.
    /// Says whether the region was there.
    pub fn unregister(&self, region: RegionId) -> bool {
        self.regions.write().remove(&region).is_some()
    }
}

impl Transport for LocalTransport {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        if reads.is_empty() {
            return Ticket::empty();
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let batch = Batch { reads, sink, cancelled: Arc::clone(&cancelled) };
        let Some(batches) = &self.batches else {
            unreachable!("the sender is taken by drop alone");
        };
        match batches.try_send(batch) {
            Ok(()) => Ticket::new(move || cancelled.store(true, Ordering::Release)),
            Err(TrySendError::Full(batch)) => {
                answer(batch, |_, _| Err(ReadError::Busy { waiting_max: self.config.queue_max }));
                Ticket::empty()
            }
            Err(TrySendError::Disconnected(batch)) => {
                answer(batch, |_, _| Err(ReadError::Closed));
                Ticket::empty()
            }
        }
    }
}

impl Drop for LocalTransport {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Release);
        self.batches = None;
        let Some(thread) = self.thread.take() else {
            return;
        };
        // A sink may hold the last handle of the transport; its drop then runs on the thread that would be joined.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        if thread.join().is_err() {
            tracing::error!(
                "the local transport's thread died; a sink panicked, see the message above"
            );
        }
    }
}

fn serve(waiting: &Receiver<Batch>, regions: &Regions, closing: &AtomicBool) {
    for batch in waiting {
        let cancelled = Arc::clone(&batch.cancelled);
        answer(batch, |source, target| {
            if cancelled.load(Ordering::Acquire) || closing.load(Ordering::Acquire) {
                return Err(ReadError::Closed);
            }
            let pool = find(regions, source.location.region)?;
            read_one(&pool, source, target)
        });
    }
}

/// Answers each read of a batch in order until the sink closes; the rest drops, which frees the targets.
fn answer(
    mut batch: Batch,
    mut read: impl FnMut(&Descriptor, &mut OwnedSlot) -> Result<(), ReadError>,
) {
    for ReadRequest { source, mut target } in batch.reads {
        let result = read(&source, &mut target);
        if batch.sink.emit(ReadDone { source, target, result }) == Flow::Closed {
            return;
        }
    }
}

fn find(regions: &Regions, region: RegionId) -> Result<Pool, ReadError> {
    regions.read().get(&region).cloned().ok_or(ReadError::UnknownRegion { region })
}

/// Copies one object from a pool of this process, with all checks.
pub(super) fn read_one(
    pool: &Pool,
    source: &Descriptor,
    target: &mut OwnedSlot,
) -> Result<(), ReadError> {
    let open = pool.open(source)?;
    copy(&open, target)?;
    let found = checksum(target, source.bytes);
    if found == source.checksum {
        return Ok(());
    }
    forget_if_damaged(pool, &open);
    Err(ReadError::Corrupt { expected: source.checksum, found })
}

/// A reader's copy differs. If the source differs from its own seal too, nobody shall find it again. Says whether it did.
pub(super) fn forget_if_damaged(pool: &Pool, open: &OpenRead) -> bool {
    if open.is_intact() {
        return false;
    }
    let source = open.descriptor();
    if pool.forget(&source) {
        tracing::warn!(name = %source.key.name, region = %source.location.region, "a cached object is damaged and was dropped");
    }
    true
}

fn copy(open: &OpenRead, target: &mut OwnedSlot) -> Result<(), ReadError> {
    let mut result = Ok(());
    open.read(&mut |payload| {
        target.write(&mut |slot| match slot.get_mut(..payload.len()) {
            Some(place) => place.copy_from_slice(payload),
            None => {
                result = Err(ReadError::Length { expected: payload.len(), found: slot.len() });
            }
        });
    });
    result
}

/// The checksum of the first `bytes` bytes of a target.
pub(super) fn checksum(target: &OwnedSlot, bytes: u32) -> u32 {
    let mut checksum = 0;
    target.memory().read(target.index(), &mut |slot| {
        let payload = payload_bytes(bytes);
        checksum = crc32c::crc32c(&slot[..payload]);
    });
    checksum
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crossbeam_channel::unbounded;
    use shared::{Flow, RegionId, RequestContext};

    use super::{LocalTransport, LocalTransportConfig};
    use crate::testing::{next, pool, store};
    use crate::transport::conformance::{Rig, Source, answers, check, gated, requests};
    use crate::transport::{ReadDone, ReadError, RegisterError, Transport};

    struct Local(LocalTransport);

    fn start(queue_max: usize) -> LocalTransport {
        LocalTransport::start(LocalTransportConfig { queue_max }).unwrap()
    }

    impl Rig for Local {
        type Transport = LocalTransport;

        const READS_AHEAD: bool = false;
        const SHARES_MEMORY: bool = false;

        fn start() -> Self {
            Self(start(64))
        }

        fn transport(&self) -> &LocalTransport {
            &self.0
        }

        fn publish(&self, source: &Source) {
            self.0.register(&source.pool).unwrap();
        }

        fn withdraw(&self, region: RegionId) {
            assert!(self.0.unregister(region));
        }
    }

    #[test]
    fn the_local_transport_conforms() {
        check::<Local>();
    }

    #[test]
    fn a_region_is_registered_once() {
        let transport = start(1);
        transport.register(&pool(1, 1)).unwrap();
        let taken = transport.register(&pool(1, 1)).unwrap_err();
        assert_eq!(taken, RegisterError { region: RegionId(1) });
        assert!(transport.unregister(RegionId(1)));
        assert!(!transport.unregister(RegionId(1)));
        transport.register(&pool(1, 1)).unwrap();
    }

    #[test]
    fn a_full_queue_answers_at_once_and_gives_the_targets_back() {
        let (source, target) = (pool(1, 1), pool(2, 3));
        let transport = start(1);
        transport.register(&source).unwrap();
        let sources = [store(&source, 1).descriptor()];
        let (sink, first, gate) = gated();
        let _one = transport.read(RequestContext::NONE, requests(&sources, &target), sink);
        let one = next(&first);
        let (sink, second) = answers();
        let _two = transport.read(RequestContext::NONE, requests(&sources, &target), sink);
        let (sink, third) = answers();
        let _three = transport.read(RequestContext::NONE, requests(&sources, &target), sink);
        assert_eq!(next(&third).result, Err(ReadError::Busy { waiting_max: 1 }));
        gate.send(()).unwrap();
        assert_eq!((one.result, next(&second).result), (Ok(()), Ok(())));
    }

    #[test]
    fn the_last_handle_may_drop_on_the_transports_own_thread() {
        let (source, target) = (pool(1, 1), pool(2, 2));
        let transport = Arc::new(start(4));
        transport.register(&source).unwrap();
        let sources = [store(&source, 1).descriptor()];
        let (handles, received) = unbounded::<Arc<LocalTransport>>();
        let (sender, first) = unbounded();
        let one = transport.read(
            RequestContext::NONE,
            requests(&sources, &target),
            Box::new(move |done: ReadDone| {
                drop(next(&received));
                sender.send(done.result).map_or(Flow::Closed, |()| Flow::Open)
            }),
        );
        let (sink, second) = answers();
        let two = transport.read(RequestContext::NONE, requests(&sources, &target), sink);
        handles.send(transport).unwrap();
        assert_eq!(next(&first), Ok(()));
        assert_eq!(next(&second).result, Err(ReadError::Closed), "it closed before the second");
        drop((one, two));
        assert_eq!(target.audit().free, 2);
    }
}
