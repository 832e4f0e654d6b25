//! Members that are killed, frozen or asked to end while clients are served: afterwards a request waits no longer than on an idle
//! cluster, so that nothing is left in a queue, in a count of a load or behind a breaker.

use std::time::Duration;

use kvasir::clock::SystemClock;
use kvasir::identity::MemberRole;
use shared::Clock;

use super::hand::{Hand, Reads};
use super::view::{EXACT, NOTICED, SOON, View, story, until, within};

const TWO_OF_EACH: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 2), (MemberRole::Prefill, 2), (MemberRole::Decode, 2)];
const STRUCK: [&str; 3] = ["decode-1", "prefill-1", "kvstore-1"];
const ANIMALS: [&str; 8] = ["dog", "cat", "cow", "hen", "fox", "pig", "owl", "bee"];
/// Requests of which the fastest counts: what others do on the machine slows some of them, a queue slows all.
const TRIES: usize = 9;
/// What the fastest may differ by for nothing.
const SLACK: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug)]
enum Signal {
    Kill,
    Stop,
    Terminate,
}

/// Time of the fastest of some short requests, from sending to the whole answer of one token.
fn fastest(view: &View, about: &str) -> Duration {
    let tries = (0..TRIES).map(|number| {
        let clock = SystemClock::start();
        view.first_token(&format!("{about} {number}: who are you?"));
        Duration::from_nanos(clock.now().0)
    });
    tries.min().expect("there are some")
}

fn strike(cluster: &mut Hand, signal: Signal) {
    for name in STRUCK {
        match signal {
            Signal::Kill => cluster.kill(name),
            Signal::Stop => cluster.freeze(name),
            Signal::Terminate => {
                assert_eq!(cluster.stop(name), Some(0), "{name} ends in order");
            }
        }
    }
}

fn bring_back(cluster: &mut Hand, signal: Signal) {
    for name in STRUCK {
        cluster.lost(name);
    }
    for name in STRUCK {
        match signal {
            Signal::Stop => cluster.thaw(name),
            Signal::Kill | Signal::Terminate => cluster.start(name),
        }
    }
    cluster.joined();
    cluster.at_rest();
}

#[test]
fn after_members_were_struck_under_load_a_request_waits_no_longer_than_before() {
    let mut cluster = Hand::start_all(TWO_OF_EACH, Reads::SharedMemory, EXACT);
    let stories: Vec<String> = ANIMALS.map(story).into();
    let expected = cluster.stream(&stories, || ());
    for signal in [Signal::Kill, Signal::Stop, Signal::Terminate] {
        cluster.at_rest();
        let idle = fastest(&cluster, &format!("before {signal:?}"));
        let view = View::clone(&cluster);
        let streamed = within("streams of members that are struck", 4 * NOTICED, || {
            view.stream(&stories, || strike(&mut cluster, signal))
        });
        assert_eq!(streamed, expected, "{signal:?}");
        bring_back(&mut cluster, signal);
        let waiting = || view.metric("router-1", "kvasir_router_waiting_requests");
        until("nothing waits", SOON, || (waiting() == 0.0).then_some(()));
        let after = fastest(&cluster, &format!("after {signal:?}"));
        println!("{signal:?}: idle {idle:?}, afterwards {after:?}");
        assert!(after <= 3 * idle + SLACK, "{signal:?}: {idle:?} became {after:?}");
    }
}
