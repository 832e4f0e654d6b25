//! The host tier with a disk below it.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError, bounded};
use parking_lot::Mutex;
use shared::{
    BlockStore, CacheChange, CacheQuestion, Descriptor, Durability, Flow, LocateEvent, ManualClock,
    ObjectKey, OfferEvent, OfferOutcome, Random, RequestContext, SlotIndex, SlotMemory, Ticket,
    Tier,
};

use super::{Rig, config, copies, key, sending, window_key};
use crate::disk::tests::io::SlowDrive;
use crate::disk::tests::{Folder, config as disk_config, wiring};
use crate::disk::{DiskConfig, DiskStats, DiskTier};
use crate::pool::Pool;
use crate::testing::{Follower, asked, bytes_of, name, next, offers, payload, pool, store};
use crate::transport::{ReadDone, ReadRequest, Transport};

const FLUSH: Duration = Duration::from_secs(20);
const SLOTS: u32 = 4;

impl Rig {
    /// The tier's thread has ended what it answered before: it keeps objects that it found a moment longer than the answer
    /// takes. Nothing is counted.
    pub(super) fn settle(&self) {
        let (told, seen) = bounded(1);
        self.tier.places(Vec::new(), Box::new(move |_| told.send(()).unwrap()));
        next(&seen);
    }
}

/// A host tier with four slots of each kind over a disk.
fn over(disk: &DiskConfig) -> (Rig, Arc<DiskTier>) {
    let disk = DiskTier::start(disk, wiring(&Arc::new(ManualClock::new()))).unwrap();
    let disk = Arc::new(disk);
    (Rig::over(Some(Arc::clone(&disk)), config(), |transport| transport), disk)
}

/// Offers blocks one by one and waits until each is on disk.
fn offer(rig: &Rig, disk: &DiskTier, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let held = rig.block(number);
        assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
        assert!(disk.flush(FLUSH));
        assert!(disk.contains(name(number)));
    }
}

pub(super) fn keys(numbers: impl IntoIterator<Item = u64>) -> Vec<ObjectKey> {
    numbers.into_iter().map(key).collect()
}

/// The numbers of the keys that were found, after checking their bytes.
pub(super) fn fetch(rig: &Rig, found: &[Option<Descriptor>]) -> Vec<Option<u64>> {
    let target = pool(3, 1);
    let mut numbers = Vec::new();
    for source in found {
        let Some(source) = *source else {
            numbers.push(None);
            continue;
        };
        let slot = target.reserve(1).unwrap().pop().unwrap();
        let (sink, events) = sending();
        let _read = rig.transport.read(
            RequestContext::NONE,
            vec![ReadRequest { source, target: slot }],
            sink,
        );
        let done: ReadDone = next(&events);
        assert_eq!(done.result, Ok(()));
        let sealed = target.seal_read(done.target, &source).unwrap();
        let number = (0..100).find(|number| name(*number) == source.key.name).unwrap();
        assert_eq!(bytes_of(&sealed), payload(number), "block {number}");
        numbers.push(Some(number));
        drop(sealed);
        let _evicted = target.evict_all();
    }
    numbers
}

pub(super) fn ask(rig: &Rig, keys: &[ObjectKey]) -> (Ticket, Receiver<LocateEvent>) {
    let (sink, events) = sending();
    (rig.tier.locate(RequestContext::NONE, asked(keys), sink), events)
}

/// Runs `body` while no block slot of the tier can be written, so that reads from disk stop.
fn frozen(blocks: &Pool, body: impl FnOnce()) {
    fn freeze(memory: &dyn SlotMemory, slot: u32, body: &mut dyn FnMut()) {
        if slot == SLOTS {
            return body();
        }
        memory.read(SlotIndex(slot), &mut |_| freeze(memory, slot + 1, body));
    }
    let mut body = Some(body);
    freeze(&**blocks.memory(), 0, &mut || body.take().expect("called once")());
}

/// Looks blocks up and waits until the drive has what that leads to: a lookup is answered before it asks for writes.
fn look_up(rig: &Rig, disk: &DiskTier, keys: &[ObjectKey]) {
    drop(rig.locate(keys));
    settled(rig);
    assert!(disk.flush(FLUSH));
}

/// The thread has dealt with everything sent before.
pub(super) fn settled(rig: &Rig) {
    assert!(!rig.holds(window_key(99)));
}

fn disk_stats(rig: &Rig) -> DiskStats {
    rig.tier.stats().disk.unwrap()
}

#[test]
fn blocks_that_left_memory_come_back_from_disk_bit_for_bit() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..4);
    let window = store(&rig.windows, 1);
    assert_eq!(rig.offer(&[window.descriptor()]), [OfferOutcome::Stored]);
    drop(window);
    assert_eq!(rig.tier.evict_all(), 5);
    let (ticket, found) = rig.locate(&[key(0), key(1), key(9), key(2), window_key(1), key(3)]);
    assert_eq!(fetch(&rig, &found), [Some(0), Some(1), None, Some(2), None, Some(3)]);
    assert_eq!(rig.tier.audit()[0].pinned, 4);
    drop(ticket);
    rig.assert_at_rest();
    let stats = rig.tier.stats();
    assert_eq!((stats.onboarded, stats.hits, stats.misses), (4, 4, 2));
    assert_eq!(
        (disk_stats(&rig).written, disk_stats(&rig).read),
        (4, 4),
        "no window, nothing twice"
    );
    drop((rig, disk));
    let (rig, _disk) = over(&disk_config(&folder));
    let (ticket, found) = rig.locate(&keys(0..4));
    assert_eq!(fetch(&rig, &found), [0, 1, 2, 3].map(Some), "after a restart");
    drop(ticket);
    rig.assert_at_rest();
}

#[test]
fn a_full_memory_makes_misses_and_evicts_nothing_pinned() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..10);
    let (ticket, found) = rig.locate(&keys(0..10));
    let expected = [None, None, None, None, None, None, Some(6), Some(7), Some(8), Some(9)];
    assert_eq!(fetch(&rig, &found), expected);
    assert_eq!(rig.tier.stats().onboard_refused, 6);
    let (other, found) = rig.locate(&keys([0]));
    assert_eq!(found, [None], "every slot is pinned");
    drop((ticket, other));
    let (ticket, found) = rig.locate(&keys(0..6));
    assert_eq!(fetch(&rig, &found), [Some(0), Some(1), Some(2), Some(3), None, None]);
    drop(ticket);
    rig.assert_at_rest();
    let left: Vec<bool> = (0..4).map(|number| rig.tier.blocks().contains(name(number))).collect();
    assert_eq!(left, [true; 4]);
}

#[test]
fn a_chain_from_disk_is_evicted_from_its_end() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..4);
    assert_eq!(rig.tier.evict_all(), 4);
    let (ticket, found) = rig.locate(&keys(0..4));
    assert_eq!(fetch(&rig, &found), [0, 1, 2, 3].map(Some));
    drop(ticket);
    let held = rig.block(50);
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
    let left: Vec<bool> = (0..4).map(|number| rig.tier.blocks().contains(name(number))).collect();
    assert_eq!(left, [true, true, true, false]);
}

#[test]
fn a_hit_in_memory_is_answered_before_the_drive_is_asked() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..2);
    assert_eq!(disk.evict_all(), 2);
    let (told, seen) = bounded(1);
    let at_drive = Arc::clone(&disk);
    let sink = move |event: LocateEvent| {
        assert!(event.found.iter().all(Result::is_ok));
        told.send(at_drive.stats()).unwrap();
        Flow::Open
    };
    let ticket = rig.tier.locate(RequestContext::NONE, asked(&keys(0..2)), Box::new(sink));
    let stats = next(&seen);
    assert_eq!((stats.written, stats.queue_objects), (2, 0), "nothing is queued again yet");
    settled(&rig);
    assert!(disk.flush(FLUSH));
    assert!([0, 1].iter().all(|number| disk.contains(name(*number))), "then it is");
    drop(ticket);
    rig.assert_at_rest();
}

#[test]
fn a_block_is_read_once_for_all_who_wait_and_others_go_on() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..2);
    assert_eq!(rig.tier.evict_all(), 2);
    let (mut tickets, mut waiting) = (Vec::new(), Vec::new());
    frozen(rig.tier.blocks(), || {
        for wanted in [vec![0, 1], vec![1], vec![1, 0, 1, 7]] {
            let (ticket, events) = ask(&rig, &keys(wanted));
            tickets.push(ticket);
            waiting.push(events);
        }
        let window = store(&rig.windows, 1);
        assert_eq!(rig.offer(&[window.descriptor()]), [OfferOutcome::Stored]);
        assert!(rig.holds(window_key(1)));
        assert!(waiting.iter().all(|events| events.try_recv() == Err(TryRecvError::Empty)));
        assert_eq!(rig.tier.audit()[0].owned, 2);
    });
    let found: Vec<_> = waiting.iter().map(|events| fetch(&rig, &copies(next(events)))).collect();
    assert_eq!(
        found,
        [vec![Some(0), Some(1)], vec![Some(1)], vec![Some(1), Some(0), Some(1), None]]
    );
    assert_eq!((rig.tier.stats().onboarded, disk_stats(&rig).read), (2, 2));
    drop(tickets);
    rig.assert_at_rest();
}

#[test]
fn a_late_lookup_is_answered_with_what_is_there_and_the_rest_comes_later() {
    let folder = Folder::new();
    let (rig, disk) = over(&DiskConfig { onboard_ms_max: 5, ..disk_config(&folder) });
    offer(&rig, &disk, 0..2);
    assert_eq!(rig.tier.evict_all(), 2);
    let held = rig.block(2);
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
    assert!(disk.flush(FLUSH));
    let mut late = None;
    frozen(rig.tier.blocks(), || {
        let (ticket, events) = ask(&rig, &keys(0..3));
        settled(&rig);
        assert_eq!(events.try_recv(), Err(TryRecvError::Empty));
        rig.clock.advance(Duration::from_millis(5));
        let found = next(&events).found;
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true]);
        late = Some((ticket, events));
    });
    while !(0..2).all(|number| rig.tier.blocks().contains(name(number))) {
        thread::yield_now();
    }
    let (_ticket, events) = late.unwrap();
    assert!(events.recv().is_err(), "one answer only");
    settled(&rig);
    let stats = rig.tier.stats();
    // Two keys of the late lookup, and two that were asked for by `settled`.
    assert_eq!((stats.lookups_late, stats.onboarded, stats.misses), (1, 2, 2 + 2));
    let (_second, found) = rig.locate(&keys(0..3));
    assert_eq!(fetch(&rig, &found), [0, 1, 2].map(Some));
    assert_eq!(disk_stats(&rig).read, 2, "they were in memory");
}

#[test]
fn a_ticket_dropped_while_blocks_come_releases_everything() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..2);
    assert_eq!(rig.tier.evict_all(), 2);
    let held = rig.block(2);
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored]);
    assert!(disk.flush(FLUSH));
    let mut dropped = None;
    frozen(rig.tier.blocks(), || {
        let (ticket, events) = ask(&rig, &keys(0..3));
        settled(&rig);
        assert_eq!(rig.tier.audit()[0].pinned, 1);
        drop(ticket);
        assert_eq!(rig.tier.audit()[0].pinned, 0);
        dropped = Some(events);
    });
    assert!(dropped.unwrap().recv().is_err(), "nobody was told");
    settled(&rig);
    drop(held);
    rig.assert_at_rest();
    assert!((0..3).all(|number| rig.tier.blocks().contains(name(number))));
}

#[test]
fn the_tier_ends_while_blocks_come() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..2);
    assert_eq!(rig.tier.evict_all(), 2);
    let blocks = rig.tier.blocks().clone();
    frozen(&blocks, || {
        let (ticket, events) = ask(&rig, &keys(0..2));
        settled(&rig);
        drop(rig);
        assert!(events.recv().is_err(), "the lookup was dropped");
        drop(ticket);
    });
    drop(disk);
    assert_eq!(blocks.audit().free, 4);
}

#[test]
fn lookups_and_reads_under_way_are_bounded() {
    let folder = Folder::new();
    let limits = DiskConfig { onboard_lookups_max: 1, reads_max: 1, ..disk_config(&folder) };
    let (rig, disk) = over(&limits);
    offer(&rig, &disk, 0..3);
    assert_eq!(rig.tier.evict_all(), 3);
    let mut first = None;
    frozen(rig.tier.blocks(), || {
        let one = ask(&rig, &keys(0..2));
        let (_two, found) = rig.locate(&keys([2, 0]));
        assert_eq!(found, [None, None], "one lookup waits already");
        first = Some(one);
    });
    let (ticket, events) = first.unwrap();
    assert_eq!(fetch(&rig, &copies(next(&events))), [Some(0), None], "one read at a time");
    assert_eq!(rig.tier.stats().onboard_refused, 3);
    drop(ticket);
    rig.assert_at_rest();
}

#[test]
fn a_block_damaged_on_disk_is_a_miss_and_comes_again_by_an_offer() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 0..2);
    assert_eq!(rig.tier.evict_all(), 2);
    let path = folder.path().join("0000000000000001.segment");
    let mut bytes = fs::read(&path).unwrap();
    bytes[2 * 4_096 + 130] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (ticket, found) = rig.locate(&keys(0..2));
    assert_eq!(fetch(&rig, &found), [Some(0), None]);
    assert_eq!((disk_stats(&rig).corrupt, disk_stats(&rig).objects_held), (1, 1));
    drop(ticket);
    rig.assert_at_rest();
    offer(&rig, &disk, [1]);
    assert_eq!(rig.tier.evict_all(), 2);
    let (_ticket, found) = rig.locate(&keys(0..2));
    assert_eq!(fetch(&rig, &found), [Some(0), Some(1)]);
}

#[test]
fn offers_fill_what_one_of_the_tiers_lacks() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, [1]);
    let held = rig.block(1);
    assert_eq!(rig.tier.evict_all(), 1);
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::Stored], "memory lacks it");
    assert!(disk.flush(FLUSH));
    assert_eq!(disk_stats(&rig).written, 1, "the disk does not");
    assert_eq!(rig.tier.evict_disk(), 1);
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::AlreadyHeld]);
    assert!(disk.flush(FLUSH));
    assert_eq!(disk_stats(&rig).written, 2, "it was written again");
    assert_eq!(rig.offer(&[held.descriptor()]), [OfferOutcome::AlreadyHeld]);
    assert!(disk.flush(FLUSH));
    assert_eq!(disk_stats(&rig).written, 2);
    drop(held);
    rig.assert_at_rest();
}

#[test]
fn changes_speak_for_both_tiers_and_clear_once() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    offer(&rig, &disk, 1..3);
    let names = || vec![name(1), name(2)];
    let stored = [Tier::Host, Tier::Disk].map(|tier| CacheChange::Stored { tier, names: names() });
    let removed =
        [Tier::Host, Tier::Disk].map(|tier| CacheChange::Removed { tier, names: names() });
    assert_eq!(rig.tier.drain_changes(), stored);
    let [host, below] = stored;
    let resynced = rig.tier.resync_changes();
    assert_eq!(resynced, [CacheChange::Cleared, host.clone(), below.clone()]);
    assert_eq!(rig.tier.evict_all(), 2);
    assert_eq!(rig.tier.drain_changes(), [removed[0].clone()]);
    assert_eq!(rig.tier.resync_changes(), [CacheChange::Cleared, below]);
    // One after the other: of two that are read at once either may come first, and is told first.
    for number in 1..3 {
        drop(rig.locate(&keys([number])));
    }
    assert_eq!(rig.tier.drain_changes(), [host]);
    assert_eq!(rig.tier.evict_disk(), 2);
    assert_eq!(rig.tier.drain_changes(), [removed[1].clone()]);
    assert_eq!(Rig::new().tier.evict_disk(), 0);
}

#[test]
fn answers_speak_for_both_tiers() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    let mut follower = Follower::default();
    offer(&rig, &disk, 1..4);
    follower.follow(rig.tier.drain_changes());
    offer(&rig, &disk, 4..6);
    assert_eq!(rig.tier.evict_all(), 4);
    drop(rig.locate(&keys(2..4)));
    let told = rig.tier.answer(&CacheQuestion::Digests);
    let last = told.iter().position(|change| matches!(change, CacheChange::Digests(_)));
    assert_eq!(last, Some(told.len() - 1), "once, and after what it is of");
    follower.follow(told);
    let [host, below] = [2..4, 1..6].map(|numbers| numbers.map(name).collect::<Vec<_>>());
    let held = |follower: &Follower| [Tier::Host, Tier::Disk].map(|tier| follower.names_in(tier));
    assert_eq!(held(&follower), [host.clone(), below.clone()]);
    assert_eq!(rig.tier.told_again(), 0);
    for (ranges, count) in [([0_u8; 2], 2 + 5), ([1; 2], 0)] {
        let ranges = ranges.into_iter().collect();
        let told = rig.tier.answer(&CacheQuestion::Ranges(ranges));
        assert_eq!(told[0], CacheChange::RangesCleared(ranges));
        assert_eq!(told.len(), if count == 0 { 1 } else { 3 });
        follower.follow(told);
        assert_eq!(held(&follower), [host.clone(), below.clone()]);
        assert_eq!(rig.tier.told_again(), 7, "all names lie in range 0");
    }
    rig.assert_at_rest();
}

#[test]
fn the_end_of_the_tier_flushes_the_disk() {
    let folder = Folder::new();
    let (rig, disk) = over(&DiskConfig { sync_ms: 60_000, ..disk_config(&folder) });
    let held = [rig.block(1), rig.block(2)];
    let offered = held.each_ref().map(|slot| slot.descriptor());
    assert_eq!(rig.offer(&offered), [OfferOutcome::Stored; 2]);
    drop(rig);
    let stats = disk.stats();
    assert_eq!((stats.written, stats.syncs, stats.queue_objects), (2, 1, 0));
}

#[test]
fn offers_and_lookups_at_once_never_show_wrong_bytes() {
    let folder = Folder::new();
    let (rig, disk) = over(&disk_config(&folder));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut generator = Random::new(3);
            for round in 0..400 {
                let held = rig.block(u64::try_from(generator.below(40)).unwrap());
                let (sink, events) = sending::<OfferEvent>();
                let _ticket = rig.tier.offer(
                    RequestContext::NONE,
                    offers(&[held.descriptor()]),
                    Durability::Memory,
                    sink,
                );
                let _outcome = next(&events);
                if round % 20 == 0 {
                    assert!(disk.flush(FLUSH));
                }
            }
            over.store(true, Ordering::SeqCst);
        });
        for seed in 0..2 {
            let (rig, over) = (&rig, &over);
            scope.spawn(move || {
                let mut generator = Random::new(seed);
                while !over.load(Ordering::SeqCst) {
                    let from = u64::try_from(generator.below(38)).unwrap();
                    let (ticket, found) = rig.locate(&keys(from..from + 2));
                    for (number, found) in (from..).zip(fetch(rig, &found)) {
                        assert!(found.is_none_or(|found| found == number));
                    }
                    drop(ticket);
                }
            });
        }
    });
    assert!(disk.flush(FLUSH));
    settled(&rig);
    rig.assert_at_rest();
    assert_eq!(disk_stats(&rig).corrupt + rig.tier.stats().dropped_corrupt, 0);
    assert!(0 < rig.tier.stats().onboarded);
    let held = rig.tier.blocks().held();
    assert_eq!(rig.tier.evict_all(), held);
}

#[test]
fn a_slow_drive_makes_misses_at_once_and_is_found_fast_again() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new());
    let read = Arc::new(Mutex::new(Duration::from_secs(8)));
    let drive = SlowDrive { clock: Arc::clone(&clock), read: Arc::clone(&read) };
    let started =
        DiskTier::start_on(&disk_config(&folder), wiring(&clock), |_| Arc::new(drive)).unwrap();
    let disk = Arc::new(started);
    let rig = Rig::over(Some(Arc::clone(&disk)), config(), |transport| transport);
    offer(&rig, &disk, 0..30);
    let settle = || {
        while 0 < disk.load().queued_reads {
            thread::yield_now();
        }
        settled(&rig);
    };
    assert_eq!(fetch(&rig, &rig.locate(&keys([0])).1), [Some(0)], "nothing was known yet");
    // A second and more for a block, and a lookup waits for 200 ms.
    let (_ticket, found) = rig.locate(&keys([1, 2]));
    assert_eq!(found, [None, None]);
    assert_eq!(rig.tier.stats().disk_too_slow, 2);
    settle();
    assert!(rig.tier.blocks().contains(name(1)), "one was read that nobody waited for");
    assert_eq!(disk_stats(&rig).read, 2);
    assert_eq!(fetch(&rig, &rig.locate(&keys([1, 2])).1), [Some(1), None]);
    settle();
    assert_eq!((rig.tier.stats().disk_too_slow, disk_stats(&rig).read), (3, 2), "once a second");
    *read.lock() = Duration::ZERO;
    let fast = (3..30).find(|number| {
        rig.clock.advance(Duration::from_secs(1));
        let (_ticket, found) = rig.locate(&keys([*number]));
        settle();
        found[0].is_some()
    });
    assert!(fast.is_some_and(|number| 10 < number), "{fast:?}");
    assert_eq!(rig.tier.stats().lookups_late, 0, "nobody waited in vain");
    rig.assert_at_rest();
}

#[test]
fn hits_late_in_the_retention_write_blocks_again() {
    let folder = Folder::new();
    let clock = Arc::new(ManualClock::new());
    let config = DiskConfig { retention_s: 1_000, ..disk_config(&folder) };
    let disk = Arc::new(DiskTier::start(&config, wiring(&clock)).unwrap());
    let rig = Rig::over(Some(Arc::clone(&disk)), super::config(), |transport| transport);
    offer(&rig, &disk, 0..3);
    clock.advance(Duration::from_secs(500));
    look_up(&rig, &disk, &keys(0..3));
    assert_eq!((disk_stats(&rig).written, disk_stats(&rig).reput), (3, 0), "too early");
    clock.advance(Duration::from_secs(250));
    look_up(&rig, &disk, &keys([0]));
    assert_eq!(disk_stats(&rig).reput, 1, "it was found in memory");
    assert_eq!(rig.tier.evict_all(), 3);
    look_up(&rig, &disk, &keys([0, 1]));
    let stats = disk_stats(&rig);
    assert_eq!((stats.reput, stats.written, stats.read), (2, 5, 2), "block 1 was read from disk");
    assert_eq!(stats.read_by_age, [2, 0, 0, 0]);
    rig.assert_at_rest();
}

#[test]
fn a_tight_budget_goes_to_blocks_that_were_asked_for_again() {
    let folder = Folder::new();
    // Four blocks at once, two of them new.
    let (rig, disk) = over(&DiskConfig { bytes_max: 5 << 16, ..disk_config(&folder) });
    let held: Vec<_> = (0..4).map(|number| rig.block(number)).collect();
    let offer = |number: usize, expected| {
        assert_eq!(rig.offer(&[held[number].descriptor()]), [expected]);
        assert!(disk.flush(FLUSH));
        (0..4).filter(|number| disk.contains(name(*number))).collect::<Vec<_>>()
    };
    assert_eq!(offer(0, OfferOutcome::Stored), [0]);
    assert_eq!(offer(1, OfferOutcome::Stored), [0, 1]);
    assert_eq!(offer(2, OfferOutcome::Stored), [0, 1], "the upper half is spent");
    assert_eq!(offer(2, OfferOutcome::AlreadyHeld), [0, 1, 2], "it was offered twice");
    assert_eq!(offer(3, OfferOutcome::Stored), [0, 1, 2]);
    look_up(&rig, &disk, &keys([3]));
    assert!(disk.contains(name(3)), "it was found by a lookup");
    assert_eq!((disk_stats(&rig).dropped_budget, disk_stats(&rig).written), (2, 4));
}
