//! Members that are killed or freeze while they work for somebody: each role in turn, with and without another one.

use std::thread;
use std::time::Duration;

use kvasir::identity::MemberRole;

use super::hand::{Hand, Reads};
use super::view::{Answer, EXACT, NOTICED, SOON, View, long_prompt, story, until, within};

const TWO_OF_EACH: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 2), (MemberRole::Prefill, 2), (MemberRole::Decode, 2)];
/// Lines of a prompt that keeps a prefill worker busy for more than a second.
const LINES: usize = 250;
/// When the stores are struck, after a request that reads from them was sent: before its lookup, about its reads, after.
const STORE_DELAYS_MS: [u64; 3] = [0, 8, 30];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Frozen,
}

impl Fault {
    fn strike(self, cluster: &mut Hand, names: &[&str]) {
        for name in names {
            match self {
                Self::Killed => cluster.kill(name),
                Self::Frozen => cluster.freeze(name),
            }
        }
    }

    /// Brings struck members back and waits until all is as it was.
    fn heal(self, cluster: &mut Hand, names: &[&str]) {
        for name in names {
            cluster.lost(name);
        }
        for name in names {
            match self {
                Self::Killed => cluster.start(name),
                Self::Frozen => cluster.thaw(name),
            }
        }
        cluster.joined();
        cluster.at_rest();
    }
}

/// The member of a role that has something in work.
fn busy_one(cluster: &Hand, role: &str) -> String {
    until(&format!("a {role} worker had work"), SOON, || {
        let mut names = cluster.admins.keys().filter(|name| name.starts_with(role));
        names.find(|name| cluster.is_busy(name)).cloned()
    })
}

/// How often decode workers tried another prefill worker, or gave up on all of them.
fn prefill_losses(cluster: &Hand) -> f64 {
    let workers = cluster.admins.keys().filter(|name| name.starts_with("decode"));
    let losses = workers.map(|name| {
        cluster.metric(name, "kvasir_decode_prefill_retries_total")
            + cluster.metric(name, "kvasir_decode_prefill_fallbacks_total")
    });
    losses.sum()
}

/// Asks, and does something to the cluster while the answer is computed.
fn ask_while(cluster: &mut Hand, prompt: &str, act: impl FnOnce(&mut Hand)) -> Answer {
    let view = View::clone(cluster);
    thread::scope(|scope| {
        let asked = scope.spawn(|| within("an answer", 2 * NOTICED, || view.answer(prompt)));
        act(cluster);
        asked.join().expect("it is answered")
    })
}

/// What the cluster answers when nothing is cached anywhere.
fn undisturbed(cluster: &Hand, prompt: &str) -> Answer {
    cluster.at_rest();
    cluster.evict("all");
    let answer = cluster.answer(prompt);
    assert_eq!(answer.cached_tokens, 0);
    cluster.at_rest();
    answer
}

fn decode_is_lost(cluster: &mut Hand, fault: Fault) {
    let stories: Vec<String> = ["dog", "cat", "cow", "hen", "fox", "pig"].map(story).into();
    let expected = cluster.stream(&stories, || ());
    for streamed in &expected {
        assert!(50 < streamed.tokens && streamed.error.is_none(), "{streamed:?}");
        assert_eq!(streamed.finish.as_deref(), Some("stop"));
    }
    let mut struck = String::new();
    let view = View::clone(cluster);
    let resumed = || view.metric("router-1", "kvasir_gateway_resumes_total");
    let before = resumed();
    let streamed = within("streams that lose their worker", 2 * NOTICED, || {
        view.stream(&stories, || {
            struck = busy_one(cluster, "decode");
            fault.strike(cluster, &[&struck]);
        })
    });
    assert_eq!(streamed, expected, "{struck}: {fault:?}");
    assert!(before < resumed(), "some streams went on elsewhere");
    fault.heal(cluster, &[&struck]);
    assert_eq!(cluster.stream(&stories, || ()), expected);
    cluster.at_rest();
}

fn prefill_is_lost(cluster: &mut Hand, fault: Fault) {
    // With another worker, then with none left: the decode worker computes everything.
    for (case, alone) in [("first", false), ("second", true)] {
        let mut struck = Vec::new();
        if alone {
            cluster.kill("prefill-1");
            cluster.lost("prefill-1");
        }
        let before = prefill_losses(cluster);
        let prompt = long_prompt(&format!("{case} {fault:?}"), LINES);
        let answer = ask_while(cluster, &prompt, |cluster| {
            struck.push(busy_one(cluster, "prefill"));
            fault.strike(cluster, &[&struck[0]]);
        });
        assert!(before < prefill_losses(cluster), "{case}: the loss was noticed");
        if alone {
            cluster.start("prefill-1");
        }
        fault.heal(cluster, &[&struck[0]]);
        assert_eq!(answer.text, undisturbed(cluster, &prompt).text, "{case}: {struck:?}");
    }
}

fn stores_are_lost(cluster: &mut Hand, fault: Fault) {
    const STORES: [&str; 2] = ["kvstore-1", "kvstore-2"];
    let prompt = long_prompt("stores", LINES);
    let expected = undisturbed(cluster, &prompt);
    for delay in STORE_DELAYS_MS {
        cluster.evict("device");
        let answer = ask_while(cluster, &prompt, |cluster| {
            // The moment is the case, not something to wait for.
            thread::sleep(Duration::from_millis(delay));
            fault.strike(cluster, &STORES);
        });
        assert_eq!(answer.text, expected.text, "struck after {delay} ms");
        fault.heal(cluster, &STORES);
        let again = cluster.answer(&prompt);
        assert_eq!(again.text, expected.text);
        cluster.at_rest();
    }
}

fn each_role_is_lost(fault: Fault) {
    let mut cluster = Hand::start_all(TWO_OF_EACH, Reads::SharedMemory, EXACT);
    decode_is_lost(&mut cluster, fault);
    prefill_is_lost(&mut cluster, fault);
    stores_are_lost(&mut cluster, fault);
}

#[test]
fn answers_survive_members_that_are_killed() {
    each_role_is_lost(Fault::Killed);
}

#[test]
fn answers_survive_members_that_freeze_and_go_on_later() {
    each_role_is_lost(Fault::Frozen);
}
