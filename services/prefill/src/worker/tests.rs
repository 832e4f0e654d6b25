mod faults;
mod harness;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use engine::Arithmetic;
use kvstore::Seal;
use shared::{
    CacheChange, Clock, Flow, Lineage, Prefill, PrefillEvent, ServeError, Tier, WindowSource,
    WorkerEvent,
};

use self::harness::{
    CONFIG, RANK, Running, SEEDLING, Setup, TINY, World, ids, names, reference, reference_in, until,
};
use crate::config::PrefillConfig;

#[test]
fn blocks_and_window_equal_the_whole_model_in_one_process_for_any_chunk_size() {
    let prompt = ids(0, 640);
    for arithmetic in [Arithmetic::Fast, Arithmetic::Exact] {
        let expected = reference_in(TINY, arithmetic, &prompt);
        for (step_rows_max, window_interval) in [(128, 128), (300, 256), (4_096, 2_048)] {
            let config = PrefillConfig { step_rows_max, window_interval, ..CONFIG };
            let mut world = Setup { config, arithmetic, ..Setup::new() }.start();
            let done = world.prefill(&prompt, Lineage::Exact);
            assert_eq!(world.block_bytes(&done), expected.blocks, "steps of {step_rows_max} rows");
            assert_eq!(world.bytes(&done.window), expected.window, "steps of {step_rows_max} rows");
            assert_eq!((done.replayed_tokens, done.window_source), (0, WindowSource::Cold));
            assert!(done.cached() == 0 && done.window.exact && done.exact() == [true; 5]);
            let inside = (1..5).filter(|block| block * 128 % window_interval == 0).count();
            assert_eq!(world.windows.held(), 1 + inside);
            drop(done);
            world.settle();
        }
    }
}

/// The prompt's first `hit` tokens are cached, with or without a window object at their end.
fn after_a_prefix(hit: u32, lineage: Lineage, keep_windows: bool) -> World {
    let mut world = Setup::new().start();
    let prompt = ids(0, 640);
    drop(world.prefill(&prompt[..usize::try_from(hit).unwrap()], lineage));
    world.settle();
    if !keep_windows {
        assert!(0 < world.windows.evict_all());
    }
    world
}

#[test]
fn a_hit_of_exact_lineage_equals_the_cold_run_at_every_length() {
    let prompt = ids(0, 640);
    let expected = reference(&prompt);
    // 3 encoder layers with windows of 72: 213 rows are exact.
    let cases = [
        (128, true, 0, WindowSource::Object),
        (256, true, 0, WindowSource::Object),
        (384, true, 0, WindowSource::Object),
        (512, true, 0, WindowSource::Object),
        (640, true, 0, WindowSource::Object),
        (128, false, 128, WindowSource::Replayed(128)),
        (256, false, 213, WindowSource::Replayed(213)),
        (384, false, 213, WindowSource::Replayed(213)),
        (512, false, 213, WindowSource::Replayed(213)),
        (640, false, 213, WindowSource::Replayed(213)),
    ];
    for (hit, keep_windows, replayed_tokens, window_source) in cases {
        let mut world = after_a_prefix(hit, Lineage::Exact, keep_windows);
        let done = world.prefill(&prompt, Lineage::Exact);
        assert_eq!(done.cached() * 128, usize::try_from(hit).unwrap());
        let found = (done.replayed_tokens, done.window_source);
        assert_eq!(found, (replayed_tokens, window_source), "hit of {hit}");
        assert_eq!(world.block_bytes(&done), expected.blocks, "hit of {hit}");
        assert_eq!(world.bytes(&done.window), expected.window, "hit of {hit}");
        assert!(done.window.exact && done.exact() == [true; 5]);
        drop(done);
        world.settle();
        let stats = world.worker.stats();
        assert_eq!(stats.blocks_duplicate, 0, "cached blocks are not computed again");
        assert_eq!(stats.rows_replayed, u64::from(replayed_tokens));
    }
}

#[test]
fn windows_as_long_as_a_block_behave_the_same() {
    let prompt = ids(0, 896);
    let expected = reference_in(SEEDLING, Arithmetic::Fast, &prompt);
    // 5 encoder layers with windows of 128: 635 rows are exact.
    let cases = [
        (Lineage::Exact, 768, 635, true),
        (Lineage::Exact, 896, 635, true),
        (Lineage::Bounded, 768, 128, false),
        (Lineage::Bounded, 896, 128, false),
    ];
    for (lineage, hit, replayed, exact) in cases {
        let mut world = Setup { model: SEEDLING, ..Setup::new() }.start();
        drop(world.prefill(&prompt[..hit], lineage));
        world.settle();
        assert!(0 < world.windows.evict_all());
        let done = world.prefill(&prompt, lineage);
        assert_eq!(done.window_source, WindowSource::Replayed(replayed), "hit of {hit}");
        let found = world.block_bytes(&done);
        assert_eq!(found[..hit / 128], expected.blocks[..hit / 128], "hit of {hit}");
        let equal = found == expected.blocks && world.bytes(&done.window) == expected.window;
        assert_eq!((equal, done.window.exact), (exact, exact), "hit of {hit}");
        drop(done);
        world.settle();
    }
}

#[test]
fn an_earlier_window_object_is_recomputed_from() {
    let prompt = ids(0, 640);
    let mut world = after_a_prefix(384, Lineage::Exact, true);
    let at_384 = world.windows.lookup(names(&prompt, Lineage::Exact)[2]).unwrap();
    assert!(world.windows.forget(&at_384.descriptor()), "only the object at 256 is left");
    drop(at_384);
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.replayed_tokens, done.window_source), (128, WindowSource::Recomputed));
    let expected = reference(&prompt);
    assert_eq!(world.block_bytes(&done), expected.blocks);
    assert_eq!(world.bytes(&done.window), expected.window);
}

#[test]
fn an_exact_window_object_is_preferred_to_an_equally_long_bounded_replay() {
    let prompt = ids(0, 640);
    let config = PrefillConfig { replay_rows: Some(128), ..CONFIG };
    let mut world = Setup { config, ..Setup::new() }.start();
    drop(world.prefill(&prompt[..384], Lineage::Bounded));
    world.settle();
    let at_384 = world.windows.lookup(names(&prompt, Lineage::Bounded)[2]).unwrap();
    assert!(world.windows.forget(&at_384.descriptor()), "only the object at 256 is left");
    drop(at_384);
    let done = world.prefill(&prompt, Lineage::Bounded);
    assert_eq!((done.replayed_tokens, done.window_source), (128, WindowSource::Recomputed));
    assert_eq!(done.exact(), [true; 5]);
}

#[test]
fn a_bounded_replay_leaves_the_prefix_untouched_and_says_that_the_rest_is_not_exact() {
    let prompt = ids(0, 640);
    let expected = reference(&prompt);
    let mut world = after_a_prefix(384, Lineage::Bounded, false);
    let done = world.prefill(&prompt, Lineage::Bounded);
    assert_eq!((done.replayed_tokens, done.window_source), (72, WindowSource::Replayed(72)));
    let found = world.block_bytes(&done);
    assert_eq!(found[..3], expected.blocks[..3]);
    assert_ne!(found[3..], expected.blocks[3..], "the windows were not those of a cold run");
    assert_eq!(done.exact(), [true, true, true, false, false]);
    assert!(!done.window.exact);
    drop(done);
    world.settle();
    // A later request on top of it inherits the approximation, also from its window object.
    let longer = ids(0, 768);
    let done = world.prefill(&longer, Lineage::Bounded);
    assert_eq!((done.cached(), done.window_source), (5, WindowSource::Object));
    assert_eq!(done.exact(), [true, true, true, false, false, false]);
}

#[test]
fn a_bounded_replay_long_enough_is_exact() {
    let prompt = ids(0, 640);
    let expected = reference(&prompt);
    for (hit, replay_rows, replayed, exact) in
        [(128, 128, 128, true), (384, 213, 213, true), (384, 212, 212, false)]
    {
        let config = PrefillConfig { replay_rows: Some(replay_rows), ..CONFIG };
        let mut world = Setup { config, ..Setup::new() }.start();
        drop(world.prefill(&prompt[..hit], Lineage::Bounded));
        world.settle();
        assert!(0 < world.windows.evict_all());
        let done = world.prefill(&prompt, Lineage::Bounded);
        assert_eq!(done.window_source, WindowSource::Replayed(replayed));
        assert_eq!(done.exact()[4], exact, "{replayed} rows below {hit}");
        assert_eq!(
            world.block_bytes(&done) == expected.blocks,
            exact,
            "{replayed} rows below {hit}"
        );
    }
}

#[test]
fn only_blocks_from_from_on_are_announced() {
    let prompt = ids(0, 640);
    let mut world = after_a_prefix(128, Lineage::Exact, true);
    let mut request = world.request(&prompt, Lineage::Exact);
    request.from = 256;
    let done = world.submit(request).finish();
    let indices: Vec<_> = done.blocks.iter().map(|(index, _, _)| *index).collect();
    assert_eq!(indices, [2, 3, 4]);
    let mut request = world.request(&prompt, Lineage::Exact);
    request.from = 640;
    assert_eq!(world.submit(request).finish().blocks, [], "only the window object is wanted");
}

#[test]
fn what_the_store_holds_is_read_and_not_computed() {
    let prompt = ids(0, 640);
    let expected = reference(&prompt);
    let mut world = Setup { host_tier: true, ..Setup::new() }.start();
    drop(world.prefill(&prompt[..512], Lineage::Exact));
    world.evict();
    let computed = world.worker.stats().rows_computed;
    assert_eq!(world.worker.stats().offers_stored, 6, "four blocks and two window objects");
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.cached(), done.window_source), (4, WindowSource::Object));
    assert_eq!(world.block_bytes(&done), expected.blocks);
    assert_eq!(world.bytes(&done.window), expected.window);
    drop(done);
    world.evict();
    let stats = world.worker.stats();
    assert_eq!((stats.cached_tokens_store, stats.rows_computed - computed), (512, 128));
    assert!(0 < stats.bytes_fetched);
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.cached(), done.window_source), (5, WindowSource::Object));
    assert_eq!(world.block_bytes(&done), expected.blocks);
    assert_eq!(world.bytes(&done.window), expected.window);
    drop(done);
    world.settle();
    assert_eq!(world.worker.stats().rows_computed, stats.rows_computed, "nothing is computed");
}

#[test]
fn a_store_slower_than_computing_is_left_alone() {
    let prompt = ids(0, 640);
    let config = PrefillConfig {
        read_bytes_per_second_initial: 10.0,
        rows_per_second_initial: 1e6,
        ..CONFIG
    };
    let mut world = Setup { config, host_tier: true, ..Setup::new() }.start();
    drop(world.prefill(&prompt, Lineage::Exact));
    world.evict();
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.cached(), done.window_source), (0, WindowSource::Cold));
    assert_eq!(world.worker.stats().bytes_fetched, 0);
}

#[test]
fn two_requests_with_one_prefix_keep_one_copy() {
    let prompt = ids(0, 512);
    let mut world = Setup::new().start();
    let requests = [(); 2].map(|()| world.request(&prompt, Lineage::Exact));
    let running = requests.map(|request| world.submit(request));
    let done = running.map(Running::finish);
    assert_eq!(world.block_bytes(&done[0]), world.block_bytes(&done[1]));
    assert_eq!(world.pool.held(), 4);
    assert_eq!(world.windows.held(), 2);
    drop(done);
    world.settle();
}

#[test]
fn a_held_copy_that_is_not_exact_replaces_nothing() {
    let prompt = ids(0, 640);
    let expected = reference(&prompt);
    let mut world = Setup::new().start();
    let mut slot = world.pool.reserve(1).unwrap().pop().unwrap();
    let mut bytes = 0;
    slot.write(&mut |memory| {
        memory.fill(7);
        bytes = u32::try_from(memory.len()).unwrap();
    });
    let name = names(&prompt, Lineage::Exact)[3];
    let held = world.pool.seal(slot, Seal { name, exact: false, bytes }).descriptor();
    let done = world.prefill(&prompt, Lineage::Exact);
    assert_eq!((done.exact(), done.cached()), (vec![true; 5], 0));
    assert_eq!(world.block_bytes(&done), expected.blocks);
    assert_ne!(done.blocks[3].1, held);
    drop(done);
    world.settle();
    let stats = world.worker.stats();
    assert_eq!((stats.blocks_sealed, stats.blocks_duplicate), (4, 1));
}

#[test]
fn bad_requests_are_refused_and_hold_nothing() {
    let mut world = Setup { slots: 4, ..Setup::new() }.start();
    let prompt = ids(0, 256);
    let mut misnamed = world.request(&prompt, Lineage::Exact);
    misnamed.names = names(&ids(1, 256), Lineage::Exact).into();
    assert_eq!(world.refusal(misnamed), ServeError::NamesDiffer { index: 0 });
    let large = world.request(&ids(0, 640), Lineage::Exact);
    assert_eq!(world.refusal(large), ServeError::NeverFits { slots: 5, slots_max: 4 });
    let long = world.request(&ids(0, 1_152), Lineage::Exact);
    let too_long = ServeError::TooLong { tokens: 1_152, tokens_max: 1_024 };
    assert_eq!(world.refusal(long), too_long);
    let mut unaligned = world.request(&prompt, Lineage::Exact);
    unaligned.to = 200;
    let mut empty = world.request(&[], Lineage::Exact);
    empty.to = 0;
    let mut behind = world.request(&prompt, Lineage::Exact);
    behind.from = 384;
    let mut foreign = prompt.clone();
    foreign[7].0 = 480;
    let foreign = world.request(&foreign, Lineage::Exact);
    for request in [unaligned, empty, behind, foreign] {
        assert!(matches!(world.refusal(request), ServeError::Internal { .. }));
    }
    world.settle();
    let stats = world.worker.stats();
    assert_eq!((stats.requests_refused, stats.requests_accepted), (7, 0));
}

#[test]
fn a_request_waits_until_all_its_slots_are_free_and_nobody_overtakes() {
    let mut world = Setup { slots: 6, ..Setup::new() }.start();
    let first = world.prefill(&ids(0, 512), Lineage::Exact);
    let (large, small) = (ids(1, 384), ids(2, 128));
    let large = world.request(&large, Lineage::Exact);
    let large = world.submit(large);
    let small = world.request(&small, Lineage::Exact);
    let small = world.submit(small);
    assert!(large.events.try_recv().is_err() && small.events.try_recv().is_err());
    drop(first);
    drop(large.finish());
    drop(small.finish());
    world.settle();
}

#[test]
fn a_queued_request_hears_that_the_worker_lives() {
    let mut world = Setup { slots: 5, ..Setup::new() }.start();
    let held = world.prefill(&ids(0, 640), Lineage::Exact);
    let request = world.request(&ids(1, 640), Lineage::Exact);
    let queued = world.submit(request);
    until(|| world.worker.stats().waiting == 1);
    for _ in 0..3 {
        world.clock.advance(Duration::from_secs(1));
        assert_eq!(queued.next(), PrefillEvent::Waiting);
    }
    drop(held);
    drop(queued.finish());
    world.settle();
    assert_eq!(world.worker.stats().commands_promised, 0);
}

#[test]
fn cancel_returns_everything_at_any_point() {
    let prompt = ids(0, 640);
    let config = PrefillConfig { step_rows_max: 128, ..CONFIG };
    for events_seen in 0..7 {
        let mut world = Setup { config: config.clone(), host_tier: true, ..Setup::new() }.start();
        let request = world.request(&prompt, Lineage::Exact);
        let running = world.submit(request);
        for _ in 0..events_seen {
            running.next();
        }
        drop(running.ticket);
        world.settle();
        assert_eq!(world.worker.stats().held, 0);
    }
}

#[test]
fn a_closed_sink_cancels() {
    let prompt = ids(0, 640);
    for events_max in 1..=7 {
        let mut world = Setup::new().start();
        let request = world.request(&prompt, Lineage::Exact);
        let seen = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&seen);
        let sink = move |_: PrefillEvent| {
            let taken = counter.fetch_add(1, Ordering::SeqCst) + 1;
            if taken < events_max { Flow::Open } else { Flow::Closed }
        };
        let ticket = world.worker.submit(request, Box::new(sink));
        world.settle();
        assert_eq!(seen.load(Ordering::SeqCst), events_max, "nothing follows a closed sink");
        drop(ticket);
    }
}

#[test]
fn draining_finishes_what_was_accepted_and_refuses_the_rest() {
    let mut world = Setup::new().start();
    let request = world.request(&ids(0, 640), Lineage::Exact);
    let running = world.submit(request);
    world.worker.begin_drain();
    let late = world.request(&ids(1, 128), Lineage::Exact);
    assert_eq!(world.refusal(late), ServeError::Draining);
    assert!(!world.worker.idle());
    assert_eq!(running.finish().blocks.len(), 5);
    world.settle();
}

#[test]
fn dropping_the_worker_fails_what_is_unfinished() {
    let mut world = Setup { slots: 5, ..Setup::new() }.start();
    let held = world.prefill(&ids(0, 640), Lineage::Exact);
    let request = world.request(&ids(1, 640), Lineage::Exact);
    let waiting = world.submit(request);
    let World { worker, pool, windows, .. } = world;
    drop(worker);
    assert_eq!(waiting.next(), PrefillEvent::Failed(ServeError::WorkerLost { worker: RANK }));
    assert!(pool.audit().is_at_rest() && windows.audit().is_at_rest());
    drop(held);
}

#[test]
fn reports_are_gapless_and_the_index_they_give_is_the_pool() {
    let mut world = Setup { slots: 8, ..Setup::new() }.start();
    for variant in 0..4 {
        drop(world.prefill(&ids(variant, 512), Lineage::Exact));
    }
    world.settle();
    let mut index = BTreeSet::new();
    let mut sequence = 0;
    let mut last_load = None;
    for event in world.reports.try_iter() {
        match event {
            WorkerEvent::Cache(event) => {
                assert_eq!((event.worker, event.incarnation), (RANK, world.clock.incarnation()));
                assert_eq!(event.sequence, sequence);
                sequence += 1;
                match event.change {
                    CacheChange::Stored { tier: Tier::Device, names } => index.extend(names),
                    CacheChange::Removed { tier: Tier::Device, names } => {
                        assert!(names.iter().all(|name| index.remove(name)));
                    }
                    CacheChange::Cleared => index.clear(),
                    other => panic!("a worker reports its own tier, found {other:?}"),
                }
            }
            WorkerEvent::Load { worker, report } => {
                assert_eq!((worker, report.slots), (RANK, 8));
                last_load = Some(report);
            }
        }
    }
    assert_eq!(index.into_iter().collect::<Vec<_>>(), world.pool.names());
    let load = last_load.unwrap();
    assert_eq!((load.running, load.waiting, load.pending_rows), (0, 0, 0));
    assert_eq!(load.slots_available, 8);
}
