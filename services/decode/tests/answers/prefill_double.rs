//! A prefill worker for tests: computes what it is asked for on a thread of its own, and fails on demand.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use engine::{Engine, Floors, KvSlab, Layers, RowPlan, Segment};
use kvstore::{LocalTransport, Pool, PoolConfig, Seal, SealedSlot};
use parking_lot::Mutex;
use shared::{
    BLOCK_TOKENS, DpRank, Flow, ObjectKind, Prefill, PrefillDirectory, PrefillEvent,
    PrefillRequest, RegionId, ServeError, Sink, SlotMemory, Ticket, Tier, WindowSource, WorkerId,
    WorkerRank,
};

/// What a visit does. Blocks are counted from the first one asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Visit {
    Serve,
    /// Reports failure after this many blocks.
    FailAfter(usize),
    /// Says nothing more after this many blocks.
    SilentAfter(usize),
    /// Drops the sink after this many blocks.
    GoneAfter(usize),
    /// Announces the block with this index under a checksum it does not have.
    Corrupt(usize),
    /// Announces the block with this index under another block's name.
    WrongName(usize),
    /// Finishes without ever announcing the window object.
    NoWindow,
}

pub(crate) struct PrefillDouble {
    pub(crate) rank: WorkerRank,
    engine: Arc<Engine>,
    slab: Arc<KvSlab>,
    pub(crate) pool: Pool,
    pub(crate) windows: Pool,
    /// What the next visits do; `Serve` when empty.
    pub(crate) visits: Mutex<VecDeque<Visit>>,
    pub(crate) asked: Mutex<Vec<(u32, u32)>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    silent: Arc<Mutex<Vec<Box<dyn Sink<PrefillEvent>>>>>,
}

impl PrefillDouble {
    pub(crate) fn new(number: u32, engine: &Arc<Engine>, transport: &LocalTransport) -> Arc<Self> {
        let layout = engine.layout();
        let slab = Arc::new(KvSlab::new(48, layout.block_bytes()));
        let region = |offset| RegionId(u64::from(number) * 10 + offset);
        let config = |offset, kind| PoolConfig { region: region(offset), kind, tier: Tier::Device };
        let windows = Arc::new(KvSlab::new(48, layout.window_bytes()));
        let pool =
            Pool::new(config(0, ObjectKind::Block), Arc::clone(&slab) as Arc<dyn SlotMemory>);
        let windows = Pool::new(config(1, ObjectKind::Window), windows);
        transport.register(&pool).unwrap();
        transport.register(&windows).unwrap();
        Arc::new(Self {
            rank: WorkerRank { worker: WorkerId(number), rank: DpRank(0) },
            engine: Arc::clone(engine),
            slab,
            pool,
            windows,
            visits: Mutex::default(),
            asked: Mutex::default(),
            threads: Mutex::default(),
            silent: Arc::default(),
        })
    }

    /// Tells everybody whose visit fell silent that the request waits, and says how many those are.
    pub(crate) fn give_signs_of_life(&self) -> usize {
        let mut silent = self.silent.lock();
        for sink in silent.iter_mut() {
            assert_eq!(sink.emit(PrefillEvent::Waiting), Flow::Open);
        }
        silent.len()
    }

    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.join().unwrap();
        }
        self.silent.lock().clear();
    }
}

/// Directory of doubles.
pub(crate) struct Doubles(pub(crate) Vec<Arc<PrefillDouble>>);

impl PrefillDirectory for Doubles {
    fn prefill(&self, worker: WorkerRank) -> Option<Arc<dyn Prefill>> {
        let found = self.0.iter().find(|double| double.rank == worker)?;
        Some(Arc::new(Handle(Arc::clone(found))))
    }

    fn prefill_members(&self) -> Vec<WorkerRank> {
        self.0.iter().map(|double| double.rank).collect()
    }
}

struct Handle(Arc<PrefillDouble>);

impl Prefill for Handle {
    fn submit(&self, request: PrefillRequest, sink: Box<dyn Sink<PrefillEvent>>) -> Ticket {
        let double = &self.0;
        let visit = double.visits.lock().pop_front().unwrap_or(Visit::Serve);
        double.asked.lock().push((request.from, request.to));
        // None once the ticket dropped.
        let pins = Arc::new(Mutex::new(Some(Vec::new())));
        let serving = Serving {
            engine: Arc::clone(&double.engine),
            slab: Arc::clone(&double.slab),
            pool: double.pool.clone(),
            windows: double.windows.clone(),
            silent: Arc::clone(&double.silent),
            pins: Arc::clone(&pins),
            visit,
        };
        double.threads.lock().push(thread::spawn(move || serving.serve(&request, sink)));
        Ticket::new(move || drop(pins.lock().take()))
    }
}

struct Serving {
    engine: Arc<Engine>,
    slab: Arc<KvSlab>,
    pool: Pool,
    windows: Pool,
    silent: Arc<Mutex<Vec<Box<dyn Sink<PrefillEvent>>>>>,
    pins: Arc<Mutex<Option<Vec<SealedSlot>>>>,
    visit: Visit,
}

impl Serving {
    fn serve(self, request: &PrefillRequest, mut sink: Box<dyn Sink<PrefillEvent>>) {
        let mut sequence = self.engine.sequence(&request.ids);
        let mut announced = 0;
        let mut window = vec![0; self.engine.layout().window_bytes()];
        let mut slots = Vec::new();
        for (index, name) in request.names.iter().enumerate() {
            let slot = self.pool.reserve(1).unwrap().pop().unwrap();
            sequence.push_block(slot.index());
            let first = u32::try_from(index).unwrap() * BLOCK_TOKENS;
            let rows: Vec<_> = (first..first + BLOCK_TOKENS)
                .map(|position| RowPlan {
                    position,
                    layers: Layers::Encoder,
                    floors: Floors { window: 0, write: 0, decoder: 0 },
                    logits: false,
                })
                .collect();
            let mut segments = [Segment { sequence: &mut sequence, rows: &rows }];
            self.engine.forward(&self.slab, &mut segments);
            let cached = self.pool.contains(*name);
            let bytes = u32::try_from(self.engine.layout().block_bytes()).unwrap();
            let sealed = self.pool.seal(slot, Seal { name: *name, exact: true, bytes });
            sequence.replace_block(index, sealed.index());
            let mut block = sealed.descriptor();
            slots.push(sealed.clone());
            if first < request.from {
                continue;
            }
            match self.visit {
                Visit::FailAfter(blocks) if blocks == announced => {
                    let message = "told to fail".to_owned();
                    let _ = sink.emit(PrefillEvent::Failed(ServeError::Internal { message }));
                    return;
                }
                Visit::SilentAfter(blocks) if blocks == announced => {
                    self.silent.lock().push(sink);
                    return;
                }
                Visit::GoneAfter(blocks) if blocks == announced => return,
                Visit::Corrupt(block_index) if block_index == index => block.checksum ^= 1,
                Visit::WrongName(block_index) if block_index == index => block.key.name.0[0] ^= 1,
                _ => {}
            }
            announced += 1;
            let event =
                PrefillEvent::Sealed { index: u32::try_from(index).unwrap(), block, cached };
            if !self.pin(sealed) || sink.emit(event) == Flow::Closed {
                return;
            }
        }
        if !matches!(self.visit, Visit::NoWindow) {
            sequence.export_window(request.to, &mut window);
            let mut slot = self.windows.reserve(1).unwrap().pop().unwrap();
            slot.write(&mut |bytes| bytes.copy_from_slice(&window));
            let name = *request.names.last().unwrap();
            let bytes = u32::try_from(window.len()).unwrap();
            let sealed = self.windows.seal(slot, Seal { name, exact: true, bytes });
            let event = PrefillEvent::Window(sealed.descriptor());
            if !self.pin(sealed) || sink.emit(event) == Flow::Closed {
                return;
            }
        }
        let window_source = WindowSource::Cold;
        let _ = sink.emit(PrefillEvent::Finished { replayed_tokens: 0, window_source });
    }

    fn pin(&self, slot: SealedSlot) -> bool {
        self.pins.lock().as_mut().map(|pins| pins.push(slot)).is_some()
    }
}
