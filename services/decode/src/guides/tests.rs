//! Calls that do not come back end their own request alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::yield_now;
use std::time::Duration;

use shared::{ManualClock, ServeError};

use super::pool::{Job, Kind, Pool, Withdrawn};
use super::{GuideFailure, Guided};
use crate::config::DecodeConfig;

const LIMIT: Duration = Duration::from_millis(100);
/// Long before this a test is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    clock: Arc<ManualClock>,
    pool: Pool,
}

impl Rig {
    fn new(threads: usize, lost_max: usize, waiting_max: usize) -> Self {
        let config = DecodeConfig {
            grammar_threads: threads,
            grammar_threads_lost_max: lost_max,
            waiting_max,
            ..DecodeConfig::STANDARD
        };
        let clock = Arc::new(ManualClock::new());
        Self { pool: Pool::start(&config, Arc::clone(&clock) as _).unwrap(), clock }
    }

    /// Submits a call that says when it runs and returns when it is told to; its outcome comes from the receiver.
    fn call(&self, kind: Kind) -> Call {
        self.call_until(kind, Box::new(|| None))
    }

    /// The same, with a reason not to run it.
    fn call_until(&self, kind: Kind, withdrawn: Withdrawn) -> Call {
        let (running, runs) = channel();
        let (release, released) = channel();
        let (report, reported) = channel();
        self.pool.submit(Job {
            kind,
            limit: LIMIT,
            stopper: None,
            withdrawn,
            compute: Box::new(move || {
                running.send(()).unwrap();
                // The call ends when it is told to, or when the test does.
                let _ended = released.recv();
                done()
            }),
            report: Box::new(move |guided| report.send(guided.err()).unwrap()),
        });
        Call { runs, release, reported }
    }
}

struct Call {
    runs: Receiver<()>,
    release: Sender<()>,
    reported: Receiver<Option<GuideFailure>>,
}

impl Call {
    fn wait_running(&self) {
        self.runs.recv_timeout(PATIENCE).unwrap();
    }

    fn outcome(&self) -> Option<GuideFailure> {
        self.reported.recv_timeout(PATIENCE).unwrap()
    }
}

fn done() -> Guided {
    Err(GuideFailure::Failed("done".to_owned()))
}

#[test]
fn a_call_that_does_not_come_back_ends_alone_and_its_thread_is_replaced() {
    let rig = Rig::new(2, 1, 8);
    let stuck = rig.call(Kind::Mask);
    stuck.wait_running();
    rig.clock.advance(2 * LIMIT);
    let Some(GuideFailure::Failed(what)) = stuck.outcome() else { panic!("it is told") };
    assert!(what.contains("100 ms"), "{what}");
    assert_eq!((rig.pool.stats().timeouts, rig.pool.stats().threads_lost), (1, 1));
    // Both seats are taken by threads that work.
    let others = [rig.call(Kind::Mask), rig.call(Kind::Mask)];
    others.iter().for_each(Call::wait_running);
    for other in &others {
        other.release.send(()).unwrap();
        assert_eq!(other.outcome(), done().err());
    }
    stuck.release.send(()).unwrap();
    while rig.pool.stats().threads_lost != 0 {
        yield_now();
    }
    assert!(stuck.reported.try_recv().is_err(), "it was told once");
}

#[test]
fn without_a_thread_left_calls_fail_instead_of_waiting() {
    let rig = Rig::new(2, 0, 8);
    let stuck = [rig.call(Kind::Mask), rig.call(Kind::Mask)];
    stuck.iter().for_each(Call::wait_running);
    let waiting = rig.call(Kind::Begin);
    rig.clock.advance(2 * LIMIT);
    for call in &stuck {
        assert!(matches!(call.outcome(), Some(GuideFailure::Failed(_))));
    }
    assert_eq!(waiting.outcome(), Some(GuideFailure::Deserted));
    assert_eq!(rig.call(Kind::Mask).outcome(), Some(GuideFailure::Deserted));
    assert_eq!(rig.pool.stats().deserted, 2);
    // What comes back after all makes room again, for compilations, too.
    for call in &stuck {
        call.release.send(()).unwrap();
    }
    while rig.pool.stats().threads_lost != 0 {
        yield_now();
    }
    for kind in [Kind::Begin, Kind::Mask] {
        let call = rig.call(kind);
        call.wait_running();
        call.release.send(()).unwrap();
        assert_eq!(call.outcome(), done().err());
    }
}

#[test]
fn compilations_leave_a_thread_to_masks_and_are_bounded() {
    let rig = Rig::new(2, 1, 1);
    let compiling = rig.call(Kind::Begin);
    compiling.wait_running();
    let waiting = rig.call(Kind::Begin);
    let refused = rig.call(Kind::Begin);
    assert_eq!(refused.outcome(), Some(GuideFailure::Full(1)));
    let mask = rig.call(Kind::Mask);
    mask.wait_running();
    mask.release.send(()).unwrap();
    assert_eq!(mask.outcome(), done().err());
    assert_eq!(rig.pool.stats().compiling, 2);
    for call in [&compiling, &waiting] {
        call.release.send(()).unwrap();
        assert_eq!(call.outcome(), done().err());
    }
}

#[test]
fn compilations_may_go_deep() {
    /// Takes one to four kibibytes of the stack for each level.
    fn deep(levels: usize) -> usize {
        let room = std::hint::black_box([levels; 128]);
        let below = if levels == 0 { 0 } else { 1 + deep(levels - 1) };
        below + std::hint::black_box(room)[0] - levels
    }
    let rig = Rig::new(2, 1, 1);
    let (report, reported) = channel();
    rig.pool.submit(Job {
        kind: Kind::Begin,
        limit: LIMIT,
        stopper: None,
        withdrawn: Box::new(|| None),
        compute: Box::new(|| {
            // Threads have 2 MiB where nobody says more.
            let levels = 16 << 10;
            assert_eq!(deep(levels), levels);
            done()
        }),
        report: Box::new(move |guided| report.send(guided.err()).unwrap()),
    });
    assert_eq!(reported.recv_timeout(PATIENCE).unwrap(), done().err());
}

#[test]
fn what_nobody_wants_any_more_is_not_compiled_and_holds_no_place() {
    let rig = Rig::new(2, 1, 1);
    let compiling = rig.call(Kind::Begin);
    compiling.wait_running();
    let is_over = Arc::new(AtomicBool::new(false));
    let reason = |is_over: &Arc<AtomicBool>| -> Withdrawn {
        let is_over = Arc::clone(is_over);
        Box::new(move || is_over.load(Ordering::Acquire).then_some(ServeError::Draining))
    };
    let waiting = rig.call_until(Kind::Begin, reason(&is_over));
    assert_eq!(rig.call(Kind::Begin).outcome(), Some(GuideFailure::Full(1)));
    is_over.store(true, Ordering::Release);
    let other = rig.call_until(Kind::Begin, reason(&is_over));
    let withdrawn = Some(GuideFailure::Withdrawn(ServeError::Draining));
    assert_eq!(waiting.outcome(), withdrawn, "its place was needed");
    compiling.release.send(()).unwrap();
    assert_eq!(other.outcome(), withdrawn, "its turn came");
    assert!(other.runs.try_recv().is_err() && waiting.runs.try_recv().is_err());
    assert_eq!(rig.pool.stats().refused_full, 1);
}

#[test]
fn the_end_does_not_wait_for_a_compilation() {
    let rig = Rig::new(2, 1, 8);
    let compiling = rig.call(Kind::Begin);
    compiling.wait_running();
    // Time stands still: no limit passes.
    drop(rig);
    assert_eq!(compiling.outcome(), Some(GuideFailure::Closing));
    compiling.release.send(()).unwrap();
}

#[test]
fn the_end_tells_those_that_wait() {
    let rig = Rig::new(2, 1, 8);
    let compiling = rig.call(Kind::Begin);
    compiling.wait_running();
    let waiting = rig.call(Kind::Begin);
    compiling.release.send(()).unwrap();
    waiting.release.send(()).unwrap();
    drop(rig);
    for told in [compiling.outcome(), waiting.outcome()] {
        assert!(told == done().err() || told == Some(GuideFailure::Closing), "{told:?}");
    }
}
