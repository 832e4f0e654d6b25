//! Breakers, stuck workers, drains and warm-up over time.

use std::time::Duration;

use shared::{LoadReport, RequestId, StartGeometry, Timestamp};

use super::{Breaker, DrainSource, Lives, Steer};
use crate::config::RouterConfig;
use crate::loads::Loads;
use crate::role::Role;
use crate::testing::rank;

const GEOMETRY: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

fn at(seconds: u64) -> Timestamp {
    Timestamp(0).after(Duration::from_secs(seconds))
}

fn lives() -> (Lives, Loads) {
    let config = RouterConfig::with_defaults(GEOMETRY);
    let mut loads = Loads::new(config.loads, &config.cost);
    let mut lives = Lives::new(config.life, 0);
    loads.join(rank(0), Role::Decode, at(0));
    lives.join(rank(0), Role::Decode, at(0));
    (lives, loads)
}

fn steer(lives: &Lives, loads: &Loads, seconds: u64) -> Option<Steer> {
    let load = loads.of(rank(0)).expect("a member");
    let (_, life) = lives.of_role(Role::Decode).first().expect("a member");
    lives.steer((rank(0), load), life, &[], at(seconds))
}

fn breaker(lives: &Lives, seconds: u64) -> Breaker {
    lives.snapshot(rank(0), at(seconds)).breaker
}

#[test]
fn the_breaker_opens_probes_and_closes() {
    let (mut lives, loads) = lives();
    let fail = |lives: &mut Lives, id, seconds| lives.failed(rank(0), RequestId(id), at(seconds));
    fail(&mut lives, 1, 0);
    fail(&mut lives, 2, 0);
    lives.completed(rank(0), at(0));
    fail(&mut lives, 3, 0);
    fail(&mut lives, 4, 0);
    assert_eq!(steer(&lives, &loads, 0), None, "a completed request starts the count anew");
    fail(&mut lives, 5, 1);
    assert_eq!(steer(&lives, &loads, 1), Some(Steer::Broken));
    fail(&mut lives, 6, 2);
    lives.completed(rank(0), at(2));
    assert_eq!([5, 6].map(|s| breaker(&lives, s)), [Breaker::Open, Breaker::HalfOpen]);
    lives.placed(rank(0), RequestId(7), false, at(6));
    assert_eq!(steer(&lives, &loads, 6), Some(Steer::Broken), "one probe at a time");
    fail(&mut lives, 7, 7);
    assert_eq!([16, 17].map(|s| breaker(&lives, s)), [Breaker::Open, Breaker::HalfOpen], "10 s");
    lives.placed(rank(0), RequestId(8), false, at(17));
    lives.finished(rank(0), RequestId(8));
    assert_eq!(steer(&lives, &loads, 17), None, "a probe that was given up is no answer");
    lives.placed(rank(0), RequestId(9), false, at(17));
    lives.started(rank(0), at(18));
    assert_eq!(breaker(&lives, 18), Breaker::Closed);
    fail(&mut lives, 9, 19);
    assert_eq!([38, 39].map(|s| breaker(&lives, s)), [Breaker::Open, Breaker::HalfOpen], "20 s");
    lives.completed(rank(0), at(40));
    fail(&mut lives, 10, 41);
    assert_eq!(breaker(&lives, 41), Breaker::Closed);
    assert_eq!((lives.counters.breakers_opened, lives.counters.probes), (3, 3));
}

#[test]
fn open_times_are_bounded() {
    let (mut lives, _) = lives();
    let mut now = 0;
    for id in 0..40 {
        lives.placed(rank(0), RequestId(id), true, at(now));
        lives.failed(rank(0), RequestId(id), at(now));
        if breaker(&lives, now) == Breaker::Open {
            assert_eq!(breaker(&lives, now + 60), Breaker::HalfOpen);
            now += 60;
        }
    }
    assert_eq!(breaker(&lives, now), Breaker::HalfOpen);
}

#[test]
fn a_worker_with_work_and_no_progress_is_stuck() {
    let (mut lives, mut loads) = lives();
    // (second, progress reported, requests reported, stuck a moment later)
    let reports = [
        (1, 7, 1, false),
        (10, 7, 1, false),
        (15, 7, 1, false),
        (16, 7, 1, true),
        (17, 8, 1, false),
        (31, 8, 1, false),
        (32, 8, 1, true),
        (33, 8, 0, false),
        (60, 8, 0, false),
    ];
    for (second, progress, running, stuck) in reports {
        let report = LoadReport { running, progress, ..LoadReport::default() };
        loads.report(rank(0), &report, at(second));
        lives.reported(rank(0), progress, 0 < running, at(second));
        lives.look(&loads, at(second));
        let expected = stuck.then_some(Steer::Wedged);
        assert_eq!(steer(&lives, &loads, second), expected, "after {second} s");
    }
    assert_eq!(lives.counters.wedged, 2);
    loads.place(rank(0), RequestId(1), 10, at(100));
    lives.placed(rank(0), RequestId(1), false, at(100));
    assert_eq!(lives.next_change(&loads, at(100)), Some(at(115)), "one that stopped reporting");
    assert_eq!([114, 115].map(|s| steer(&lives, &loads, s)), [None, Some(Steer::Wedged)]);
    lives.started(rank(0), at(116));
    assert_eq!(steer(&lives, &loads, 116), None);
}

#[test]
fn without_any_report_nothing_is_known() {
    let (mut lives, mut loads) = lives();
    loads.place(rank(0), RequestId(1), 10, at(0));
    lives.placed(rank(0), RequestId(1), false, at(0));
    assert_eq!((steer(&lives, &loads, 900), lives.next_change(&loads, at(0))), (None, None));
}

#[test]
fn drains_keep_their_first_deadline_and_their_source() {
    let (mut lives, loads) = lives();
    assert!(lives.drain(rank(0), at(30), DrainSource::Worker));
    assert!(!lives.drain(rank(0), at(40), DrainSource::Worker), "once");
    assert_eq!((lives.next_drain(), lives.drained_out(at(29))), (Some(at(30)), Vec::new()));
    assert_eq!(steer(&lives, &loads, 1), Some(Steer::Draining));
    assert!(
        lives.drain_ended(rank(0), DrainSource::Worker),
        "a report takes back what a report said"
    );
    assert!(lives.drain(rank(0), at(50), DrainSource::Operator));
    assert!(!lives.drain(rank(0), at(60), DrainSource::Worker));
    assert!(!lives.drain_ended(rank(0), DrainSource::Worker), "but not what an operator said");
    assert_eq!(lives.drained_out(at(50)), [rank(0)]);
    assert_eq!(lives.counters.drains, 2);
}

#[test]
fn a_new_worker_gets_its_share_until_it_has_served_some() {
    let (mut lives, _) = lives();
    let spared = |lives: &Lives| {
        let (_, life) = lives.of_role(Role::Decode).first().expect("a decode worker");
        (0..1_000).filter(|&id| lives.is_spared((rank(0), life), RequestId(id))).count()
    };
    assert!((700..800).contains(&spared(&lives)), "{} of 1,000", spared(&lives));
    for id in 0..8 {
        assert_ne!(spared(&lives), 0);
        lives.finished(rank(0), RequestId(id));
    }
    assert_eq!(spared(&lives), 0);
}
