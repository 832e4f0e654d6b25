//! What happens when store and transport do not do what they should, and when many requests come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kvstore::{ReadDone, ReadError, ReadRequest, Transport};
use shared::{
    BlockStore, Descriptor, Durability, Flow, Generation, Grouped, Lineage, LocateEvent, Location,
    ObjectKey, OfferEvent, PrefillEvent, RegionId, RequestContext, ServeError, Sink, SlotIndex,
    Ticket, WindowSource, ungrouped,
};

use super::harness::{CONFIG, Running, Setup, ids, reference, until};
use crate::config::PrefillConfig;

/// Answers every third read with an error.
struct Lossy {
    inner: Arc<dyn Transport>,
}

impl Transport for Lossy {
    fn read(
        &self,
        context: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        let mut count = 0;
        let spoil = move |mut done: ReadDone| {
            count += 1;
            if count % 3 == 0 {
                done.result = Err(ReadError::Stale);
            }
            sink.emit(done)
        };
        self.inner.read(context, reads, Box::new(spoil))
    }
}

#[test]
fn what_cannot_be_read_is_computed() {
    let prompt = ids(0, 640);
    let wrap = |inner| Arc::new(Lossy { inner }) as Arc<dyn Transport>;
    let mut world = Setup { host_tier: true, wrap, ..Setup::new() }.start();
    drop(world.prefill(&prompt, Lineage::Exact));
    world.evict();
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!(done.cached(), 2, "the third block was lost");
    let expected = reference(&prompt);
    assert_eq!(world.block_bytes(&done), expected.blocks);
    assert_eq!(world.bytes(&done.window), expected.window);
    drop(done);
    world.settle();
}

/// Claims success over bytes it never wrote.
struct Liar;

impl Transport for Liar {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        for ReadRequest { source, mut target } in reads {
            target.write(&mut |bytes| bytes.fill(7));
            if sink.emit(ReadDone { source, target, result: Ok(()) }) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}

#[test]
fn damaged_bytes_are_never_used() {
    let prompt = ids(0, 640);
    let wrap = |_| Arc::new(Liar) as Arc<dyn Transport>;
    let mut world = Setup { host_tier: true, wrap, ..Setup::new() }.start();
    drop(world.prefill(&prompt, Lineage::Exact));
    world.evict();
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.cached(), done.window_source), (0, WindowSource::Cold));
    assert_eq!(world.block_bytes(&done), reference(&prompt).blocks);
    drop(done);
    world.settle();
}

/// Keeps every read until its ticket drops, and answers it only then.
struct Stuck;

impl Transport for Stuck {
    fn read(
        &self,
        _: RequestContext,
        reads: Vec<ReadRequest>,
        mut sink: Box<dyn Sink<ReadDone>>,
    ) -> Ticket {
        Ticket::new(move || {
            for ReadRequest { source, target } in reads {
                let done = ReadDone { source, target, result: Err(ReadError::Closed) };
                if sink.emit(done) == Flow::Closed {
                    break;
                }
            }
        })
    }
}

#[test]
fn late_reads_are_given_up_even_when_the_pool_has_no_other_slot() {
    let prompt = ids(0, 640);
    let wrap = |_| Arc::new(Stuck) as Arc<dyn Transport>;
    for slots in [5, 32] {
        // The lookup must be answered, however fast the clock runs.
        let config = PrefillConfig { locate_wait_ms_max: 60_000, ..CONFIG };
        let setup = Setup { config, host_tier: true, wrap, slots, window_slots: 2, ..Setup::new() };
        let mut world = setup.start();
        drop(world.prefill(&prompt, Lineage::Exact));
        world.evict();
        let request = world.request(&prompt, Lineage::Exact);
        let running = world.submit(request);
        until(|| {
            world.clock.advance(Duration::from_millis(1));
            0 < world.worker.stats().reads_late
        });
        let done = running.finish();
        assert_eq!(done.cached(), 0);
        assert_eq!(world.block_bytes(&done), reference(&prompt).blocks);
        drop(done);
        world.settle();
    }
}

#[test]
fn a_cancel_while_reads_are_open_returns_every_slot() {
    let prompt = ids(0, 640);
    let wrap = |_| Arc::new(Stuck) as Arc<dyn Transport>;
    let mut world = Setup { host_tier: true, wrap, ..Setup::new() }.start();
    drop(world.prefill(&prompt, Lineage::Exact));
    world.evict();
    let request = world.request(&prompt, Lineage::Exact);
    let running = world.submit(request);
    until(|| 5 <= world.worker.audit()[0].owned);
    drop(running.ticket);
    world.settle();
    assert_eq!(world.worker.stats().requests_cancelled, 1);
}

/// Never answers, and drops what it is offered without a word.
#[derive(Default)]
struct Silent {
    kept: parking_lot::Mutex<Vec<Box<dyn Sink<LocateEvent>>>>,
    offered: AtomicUsize,
    keep_offers: AtomicBool,
    offers: parking_lot::Mutex<Vec<Box<dyn Sink<OfferEvent>>>>,
}

impl BlockStore for Silent {
    fn locate(
        &self,
        _: RequestContext,
        _: Vec<Grouped<ObjectKey>>,
        sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        self.kept.lock().push(sink);
        Ticket::empty()
    }

    fn offer(
        &self,
        _: RequestContext,
        objects: Vec<Grouped<Descriptor>>,
        _: Durability,
        sink: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        self.offered.fetch_add(objects.len(), Ordering::SeqCst);
        if self.keep_offers.load(Ordering::SeqCst) {
            self.offers.lock().push(sink);
        }
        Ticket::empty()
    }
}

#[test]
fn a_silent_store_costs_a_recompute() {
    let prompt = ids(0, 640);
    let store = Arc::new(Silent::default());
    let setup = Setup { store: Some(Arc::clone(&store) as Arc<dyn BlockStore>), ..Setup::new() };
    let mut world = setup.start();
    let request = world.request(&prompt, Lineage::Exact);
    let running = world.submit(request);
    until(|| {
        world.clock.advance(Duration::from_millis(1));
        0 < world.worker.stats().locates_late
    });
    let done = running.finish();
    assert_eq!(world.block_bytes(&done), reference(&prompt).blocks);
    drop(done);
    world.settle();
    let stats = world.worker.stats();
    assert_eq!((stats.offers_dropped, stats.offers_outstanding), (8, 0), "5 blocks, 3 windows");
}

#[test]
fn outstanding_offers_are_bounded_and_stay_pinned() {
    let store = Arc::new(Silent::default());
    store.keep_offers.store(true, Ordering::SeqCst);
    let setup = Setup {
        // The clock runs on while the first step computes: far less than six times this.
        config: PrefillConfig {
            offers_max: 3,
            step_rows_max: 1_024,
            read_wait_ms_max: 600_000,
            ..CONFIG
        },
        store: Some(Arc::clone(&store) as Arc<dyn BlockStore>),
        ..Setup::new()
    };
    let mut world = setup.start();
    let request = world.request(&ids(0, 640), Lineage::Exact);
    let running = world.submit(request);
    until(|| {
        world.clock.advance(Duration::from_millis(1));
        0 < world.worker.stats().locates_late
    });
    drop(running.finish());
    until(|| {
        let stats = world.worker.stats();
        stats.requests_finished == 1 && stats.held == 0
    });
    let stats = world.worker.stats();
    assert_eq!((stats.offers_outstanding, stats.offers_skipped), (3, 5));
    assert_eq!(store.offered.load(Ordering::SeqCst), 3);
    assert_eq!(world.worker.audit().map(|pool| pool.pinned), [2, 1], "the first three offered");
    assert!(!world.worker.idle());
    store.offers.lock().clear();
    world.settle();
    assert_eq!(world.worker.stats().offers_withdrawn, 0);
}

#[test]
fn an_unanswered_offer_is_withdrawn_after_its_time() {
    let store = Arc::new(Silent::default());
    store.keep_offers.store(true, Ordering::SeqCst);
    let setup = Setup { store: Some(Arc::clone(&store) as Arc<dyn BlockStore>), ..Setup::new() };
    let mut world = setup.start();
    let request = world.request(&ids(0, 640), Lineage::Exact);
    let running = world.submit(request);
    until(|| {
        world.clock.advance(Duration::from_millis(1));
        0 < world.worker.stats().locates_late
    });
    drop(running.finish());
    assert!(!world.worker.idle());
    world.clock.advance(Duration::from_millis(31));
    world.settle();
    assert_eq!(world.worker.stats().offers_withdrawn, 8, "5 blocks, 3 windows");
    store.offers.lock().clear();
    world.settle();
}

/// Answers lookups with other objects than those asked for, or with one too few.
struct Confused {
    short: bool,
}

impl BlockStore for Confused {
    fn locate(
        &self,
        _: RequestContext,
        keys: Vec<Grouped<ObjectKey>>,
        mut sink: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        let mut keys = ungrouped(keys);
        keys.rotate_left(1);
        if self.short {
            keys.rotate_right(1);
            keys.pop();
        }
        let location =
            Location { region: RegionId(99), slot: SlotIndex(0), generation: Generation(0) };
        let copy = |key| Ok(Descriptor { key, location, bytes: 1, checksum: 0, exact: true });
        // The only event of a lookup.
        let _: Flow = sink.emit(LocateEvent::at_once(keys.into_iter().map(copy).collect()));
        Ticket::empty()
    }

    fn offer(
        &self,
        _: RequestContext,
        _: Vec<Grouped<Descriptor>>,
        _: Durability,
        _: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        Ticket::empty()
    }
}

#[test]
fn answers_to_another_question_are_not_read() {
    let prompt = ids(0, 640);
    for short in [false, true] {
        let store = Arc::new(Confused { short }) as Arc<dyn BlockStore>;
        let mut world = Setup { store: Some(store), ..Setup::new() }.start();
        let done = world.prefill(&prompt, Lineage::Exact);
        assert_eq!((done.cached(), done.window_source), (0, WindowSource::Cold));
        assert_eq!(world.block_bytes(&done), reference(&prompt).blocks);
        assert_eq!(world.worker.stats().reads_failed, 0, "short: {short}");
        drop(done);
        world.settle();
    }
}

/// Breaks a promise in the worst way.
struct Panicking;

impl BlockStore for Panicking {
    fn locate(
        &self,
        _: RequestContext,
        _: Vec<Grouped<ObjectKey>>,
        _: Box<dyn Sink<LocateEvent>>,
    ) -> Ticket {
        panic!("this store panics on purpose");
    }

    fn offer(
        &self,
        _: RequestContext,
        _: Vec<Grouped<Descriptor>>,
        _: Durability,
        _: Box<dyn Sink<OfferEvent>>,
    ) -> Ticket {
        Ticket::empty()
    }
}

#[test]
fn a_panic_ends_the_worker_and_tells_its_callers() {
    let mut world = Setup { store: Some(Arc::new(Panicking)), ..Setup::new() }.start();
    let request = world.request(&ids(0, 640), Lineage::Exact);
    let error = world.refusal(request);
    assert!(matches!(error, ServeError::Internal { .. }), "{error}");
    let request = world.request(&ids(0, 640), Lineage::Exact);
    until(|| world.worker.idle());
    assert_eq!(world.refusal(request), ServeError::Draining);
    world.settle();
}

/// A sequence of numbers that looks random and is the same for the same seed.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }
}

#[test]
fn requests_that_come_and_go_leak_nothing_and_stay_right() {
    let prompts: Vec<_> = (0..4).map(|variant| ids(variant, 640)).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| reference(prompt).blocks).collect();
    for seed in [1, 2, 3] {
        let mut noise = Noise(seed);
        let config = PrefillConfig { running_max: 3, held_max: 4, ..CONFIG };
        let wrap = |inner| Arc::new(Lossy { inner }) as Arc<dyn Transport>;
        let setup =
            Setup { config, slots: 12, window_slots: 6, host_tier: true, wrap, ..Setup::new() };
        let mut world = setup.start();
        // Oldest first: it never waits for slots that a younger one holds.
        let mut live: Vec<(usize, Running)> = Vec::new();
        for _ in 0..40 {
            let variant = noise.below(prompts.len());
            let blocks = 1 + noise.below(5);
            let request = world.request(&prompts[variant][..blocks * 128], Lineage::Exact);
            live.push((variant, world.submit(request)));
            if noise.below(3) == 0 {
                live.remove(noise.below(live.len()));
            }
            if 5 < live.len() {
                let (variant, running) = live.remove(0);
                let done = running.finish();
                let found = world.block_bytes(&done);
                assert_eq!(found, expected[variant][..found.len()], "seed {seed}");
            }
        }
        for (_, running) in live {
            while !matches!(running.next(), PrefillEvent::Finished { .. }) {}
        }
        world.settle();
        assert_eq!(world.worker.stats().pending_rows, 0, "seed {seed}");
    }
}
