//! What a worker of this process tells routers, here or elsewhere, and its whole state when one asks.
//!
//! The sink runs on the worker's own thread. It numbers cache changes by itself, so that it can put a fresh start among
//! them without the worker knowing. It does so where a load report passes: at that point nothing the worker drained from
//! its pool is still unsent, so what follows the fresh start is newer than it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvstore::Pool;
use parking_lot::Mutex;
use shared::{CacheChange, CacheEvent, Flow, Sink, WorkerEvent, WorkerRank};

/// Members that the router asked for their whole state and that did not give it yet. Clones share one set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked(Arc<Mutex<BTreeSet<WorkerRank>>>);

impl Asked {
    /// Notes that the router asked. At most one entry per member.
    pub(crate) fn ask(&self, worker: WorkerRank) {
        self.0.lock().insert(worker);
    }

    /// Whether this member was asked since the last call.
    pub(crate) fn take(&self, worker: WorkerRank) -> bool {
        self.0.lock().remove(&worker)
    }
}

/// A worker's sink before the way to its routers. Never blocks; an event that is lost behind it shows as a gap.
pub(crate) struct WorkerEvents<S> {
    worker: WorkerRank,
    /// The worker's blocks.
    pool: Pool,
    asked: Asked,
    events: S,
    /// The last incarnation seen, and the number of its next cache change.
    next: (u64, u64),
}

impl<S: FnMut(WorkerEvent) -> Flow + Send> WorkerEvents<S> {
    /// The sink of a worker whose blocks are in `pool`; `events` passes them on and must not block.
    pub(crate) fn new(worker: WorkerRank, pool: &Pool, asked: Asked, events: S) -> Self {
        Self { worker, pool: pool.clone(), asked, events, next: (0, 0) }
    }

    fn cache(&mut self, change: CacheChange) -> Flow {
        let (incarnation, sequence) = self.next;
        self.next.1 += 1;
        let event = CacheEvent { worker: self.worker, incarnation, sequence, change };
        (self.events)(WorkerEvent::Cache(event))
    }
}

impl<S: FnMut(WorkerEvent) -> Flow + Send> Sink<WorkerEvent> for WorkerEvents<S> {
    fn emit(&mut self, event: WorkerEvent) -> Flow {
        match event {
            WorkerEvent::Cache(event) => {
                if event.incarnation != self.next.0 {
                    self.next = (event.incarnation, 0);
                }
                self.cache(event.change)
            }
            WorkerEvent::Load { .. } => {
                if self.asked.take(self.worker) {
                    tracing::info!(worker = %self.worker, "telling the router everything that is cached");
                    for change in self.pool.resync_changes() {
                        if self.cache(change) == Flow::Closed {
                            return Flow::Closed;
                        }
                    }
                }
                (self.events)(event)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crossbeam_channel::{TrySendError, bounded};
    use kvstore::{HostMemory, Pool, PoolConfig};
    use router::{PrefixIndex, Role, ViewState};
    use shared::{
        BlockName, CacheChange, CacheEvent, DpRank, Flow, LoadReport, ObjectKind, RegionId, Sink,
        Tier, WorkerEvent, WorkerId, WorkerRank,
    };

    use super::{Asked, WorkerEvents};

    const WORKER: WorkerRank = WorkerRank { worker: WorkerId(3), rank: DpRank(0) };

    fn load() -> WorkerEvent {
        let report = LoadReport {
            running: 0,
            waiting: 0,
            pending_rows: 0,
            slots_available: 1,
            slots: 1,
            rows_per_second: 1.0,
        };
        WorkerEvent::Load { worker: WORKER, report }
    }

    #[test]
    fn a_view_with_a_gap_is_complete_again_after_a_resync() {
        let config =
            PoolConfig { region: RegionId(9), kind: ObjectKind::Block, tier: Tier::Device };
        let pool = Pool::new(config, Arc::new(HostMemory::with_slots(1, 64).unwrap()));
        let (events, told) = bounded(4);
        let (asked, lost) = (Asked::default(), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&lost);
        let pass = move |event| match events.try_send(event) {
            Ok(()) => Flow::Open,
            Err(TrySendError::Full(_)) => {
                counted.fetch_add(1, Ordering::Relaxed);
                Flow::Open
            }
            Err(TrySendError::Disconnected(_)) => Flow::Closed,
        };
        let mut sink = WorkerEvents::new(WORKER, &pool, asked.clone(), pass);
        let mut index = PrefixIndex::new(4, 100);
        index.join(WORKER, Role::Decode).unwrap();
        let mut apply = || {
            for event in told.try_iter() {
                if let WorkerEvent::Cache(event) = event {
                    index.apply(&event);
                }
            }
            index.view(WORKER).unwrap()
        };
        for sequence in 0..6 {
            let names = vec![BlockName([u8::try_from(sequence).unwrap(); 16])];
            let change = CacheChange::Stored { tier: Tier::Device, names };
            let event = CacheEvent { worker: WORKER, incarnation: 7, sequence, change };
            assert_eq!(sink.emit(WorkerEvent::Cache(event)), Flow::Open);
        }
        assert_eq!(lost.load(Ordering::Relaxed), 2);
        assert_eq!(apply(), (ViewState::Complete, 4), "the gap does not show yet");
        let removed = CacheChange::Removed { tier: Tier::Device, names: Vec::new() };
        let event = CacheEvent { worker: WORKER, incarnation: 7, sequence: 6, change: removed };
        assert_eq!(sink.emit(WorkerEvent::Cache(event.clone())), Flow::Open);
        assert_eq!(apply().0, ViewState::Stale);
        asked.ask(WORKER);
        assert_eq!(sink.emit(WorkerEvent::Cache(event)), Flow::Open);
        assert_eq!(apply().0, ViewState::Stale, "a worker may be among changes it drained");
        assert_eq!(sink.emit(load()), Flow::Open);
        assert_eq!(apply(), (ViewState::Complete, 0), "the pool holds nothing");
        assert!(!asked.take(WORKER), "asked once, told once");
        drop(told);
        assert_eq!(sink.emit(load()), Flow::Closed);
    }
}
