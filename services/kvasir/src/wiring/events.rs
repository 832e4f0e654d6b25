//! What a worker of this process tells routers, here or elsewhere, and what they ask it for after a loss.
//!
//! The sink runs on the worker's own thread. It numbers cache changes by itself, so that it can put answers among
//! them without the worker knowing. It does so where a load report passes: at that point nothing the worker drained from
//! its pool is still unsent, so an answer is of exactly what was sent before it.

use kvstore::Pool;
use shared::{CacheChange, CacheEvent, Flow, Sink, WorkerEvent, WorkerRank};

use super::asked::{Asked, answer};

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
                for question in self.asked.take(self.worker) {
                    for change in answer(self.worker, &question, |it| self.pool.answer(it)) {
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
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crossbeam_channel::{TrySendError, bounded};
    use kvstore::{HostMemory, Pool, PoolConfig, Seal};
    use router::{Action, PrefixIndex, Role, Router, RouterConfig, ViewState};
    use shared::{
        BlockName, CacheChange, CacheEvent, CacheQuestion, DpRank, Flow, LoadReport, ObjectKind,
        RegionId, Sink, StartGeometry, Tier, Timestamp, WorkerEvent, WorkerId, WorkerRank,
    };

    use super::{Asked, WorkerEvents};

    const WORKER: WorkerRank = WorkerRank { worker: WorkerId(3), rank: DpRank(0) };

    fn load() -> WorkerEvent {
        WorkerEvent::Load { worker: WORKER, report: LoadReport::default() }
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
        asked.ask(WORKER, &CacheQuestion::Whole);
        assert_eq!(sink.emit(WorkerEvent::Cache(event)), Flow::Open);
        assert_eq!(apply().0, ViewState::Stale, "a worker may be among changes it drained");
        assert_eq!(sink.emit(load()), Flow::Open);
        assert_eq!(apply(), (ViewState::Complete, 0), "the pool holds nothing");
        assert_eq!(asked.take(WORKER), [], "asked once, told once");
        drop(told);
        assert_eq!(sink.emit(load()), Flow::Closed);
    }

    /// A pool of blocks, a router that follows it, and a way between them on which some events are lost.
    #[test]
    fn a_lost_event_is_mended_by_telling_few_names_again() {
        let config =
            PoolConfig { region: RegionId(9), kind: ObjectKind::Block, tier: Tier::Device };
        let pool = Pool::new(config, Arc::new(HostMemory::with_slots(2_000, 64).unwrap()));
        let geometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
        let mut router = Router::new(RouterConfig::with_defaults(geometry)).unwrap();
        router.worker_joined(WORKER, Role::Decode, Timestamp(0)).unwrap();
        let (events, told) = bounded(64);
        let asked = Asked::default();
        let pass = move |event| match events.try_send(event) {
            Ok(()) => Flow::Open,
            Err(_) => Flow::Closed,
        };
        let mut sink = WorkerEvents::new(WORKER, &pool, asked.clone(), pass);
        // What the worker does in a step, what arrives of it, and what the router asks for then.
        let mut step = |numbers: Range<u32>, lost: bool| {
            for number in numbers {
                let slot = pool.reserve(1).unwrap().pop().unwrap();
                drop(pool.seal(slot, Seal { name: name(number), exact: true, bytes: 1 }));
            }
            for change in pool.drain_changes() {
                let event = CacheEvent { worker: WORKER, incarnation: 7, sequence: 0, change };
                assert_eq!(sink.emit(WorkerEvent::Cache(event)), Flow::Open);
            }
            if lost {
                told.try_iter().for_each(drop);
            }
            assert_eq!(sink.emit(load()), Flow::Open);
            for event in told.try_iter() {
                for action in router.worker_event(&event, Timestamp(0)) {
                    match action {
                        Action::Resync { worker, question } => asked.ask(worker, &question),
                        other => panic!("{other:?}"),
                    }
                }
            }
            let snapshot = router.snapshot(Timestamp(0));
            let worker = snapshot.workers[0];
            (worker.view, worker.ranges_suspect, worker.index_entries, snapshot.resyncs)
        };
        step(0..1_500, false);
        step(1_500..1_504, true);
        let (view, suspect, entries, _) = step(1_504..1_505, false);
        assert_eq!((view, suspect, entries), (ViewState::Stale, 256, 1_501), "most is right");
        let (view, suspect, entries, _) = step(1_505..1_505, false);
        assert!(view == ViewState::Stale && 0 < suspect && suspect <= 4, "{suspect} ranges differ");
        assert_eq!(entries, 1_501);
        let (view, suspect, entries, asked) = step(1_505..1_505, false);
        assert_eq!((view, suspect, entries), (ViewState::Complete, 0, pool.held()));
        assert_eq!((asked.digests, asked.ranges, asked.whole), (1, 1, 0));
        assert!(pool.told_again() < 100, "{} of 1,505 names", pool.told_again());
    }

    /// A name that is spread over the ranges like a real one.
    fn name(number: u32) -> BlockName {
        BlockName(
            u128::from(number)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
                .to_be_bytes(),
        )
    }
}
