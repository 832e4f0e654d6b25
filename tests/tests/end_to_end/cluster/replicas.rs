//! Several routers: one picture of the cache and of the loads, whichever of them is asked.

use std::thread;

use kvasir::identity::MemberRole;
use serde_json::Value;

use super::hand::{Hand, Reads};
use super::view::{NOTICED, SOON, View, long_prompt, story, until};

const COUNTS: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 1), (MemberRole::Prefill, 1), (MemberRole::Decode, 1)];
/// One answer at a time, so that what is placed stays for a while.
const SLOW: &str = "[decode]\nsequences_max = 1\n\
                    [store]\nblock_bytes_max = 67108864\nwindow_bytes_max = 16777216\n";
const REQUESTS: usize = 12;

/// Requests that a router counts at the decode worker, its own and those of others.
fn placed(view: &View, router: &str) -> u64 {
    let told = view.told(router, "/debug/routing?last=0").expect("a router answers");
    let workers = told["workers"].as_array().expect("a list of workers");
    let decode = workers.iter().filter(|worker| worker["role"] == "decode");
    decode.map(|worker| worker["load"]["placed"].as_u64().expect("a number")).sum()
}

/// Asks a router for stories, and looks what the other one makes of it meanwhile.
fn stories(cluster: &Hand, router: &str, look: impl FnOnce()) {
    let view = cluster.clients_of(router);
    thread::scope(|scope| {
        for number in 0..REQUESTS {
            let view = &view;
            // Those of a router that is killed meanwhile have no answer.
            scope.spawn(move || drop(view.try_ask(&story(&format!("dog number {number}")))));
        }
        look();
    });
}

#[test]
fn routers_share_the_cache_and_the_loads_and_forget_one_that_is_killed() {
    let mut cluster = Hand::plan_with_routers(2, COUNTS, Reads::SharedMemory, SLOW);
    for name in cluster.names() {
        cluster.start(&name);
    }
    cluster.joined();
    let (first, second) = (cluster.clients_of("router-1"), cluster.clients_of("router-2"));
    let prompt = long_prompt("replicas", 120);
    let cold = first.answer(&prompt);
    let warm = second.answer(&prompt);
    assert_eq!(cold.cached_tokens, 0);
    assert!(0 < warm.cached_tokens, "{warm:?}");
    let again = first.answer(&prompt);
    assert_eq!(again.cached_tokens, warm.cached_tokens);

    let view = View::clone(&cluster);
    stories(&cluster, "router-1", || {
        until("the second router counts requests of the first", SOON, || {
            let reservations = view.metric("router-2", "kvasir_router_peers_reservations");
            (3.0 <= reservations && 3 <= placed(&view, "router-2")).then_some(())
        });
    });
    until("ends are told, too", SOON, || (placed(&view, "router-2") == 0).then_some(()));

    let mut killed = view.clone();
    killed.admins.remove("router-1");
    let process = cluster.process("router-1");
    stories(&cluster, "router-1", || {
        until("the second router counts requests of the first", SOON, || {
            (3 <= placed(&view, "router-2")).then_some(())
        });
        crate::process::signal(process, "KILL");
        until("a killed router has placed nothing", NOTICED, || {
            (placed(&killed, "router-2") == 0).then_some(())
        });
    });
    cluster.kill("router-1");
    assert_eq!(second.answer(&prompt).cached_tokens, warm.cached_tokens);
    cluster.at_rest();
    explained(&killed, &prompt, &second);
}

/// The last request is explained with its candidates, its prediction and what became of it.
fn explained(view: &View, prompt: &str, second: &View) {
    let answer = second.answer(prompt);
    let told = view.told("router-2", "/debug/routing?last=1").expect("a router answers");
    let [decision] = &told["decisions"].as_array().expect("a list")[..] else {
        panic!("one decision was asked for: {told}");
    };
    let id = decision["id"].as_str().expect("an id");
    let same = view.told("router-2", &format!("/debug/routing/{id}")).expect("it is kept");
    assert_eq!(same[0]["id"], decision["id"]);
    assert_eq!(decision["predicted_cached_tokens"], answer.cached_tokens);
    assert_eq!(decision["outcome"]["started"]["cached_tokens"], answer.cached_tokens);
    assert_eq!(decision["outcome"]["ended"]["how"], "finished");
    let terms = decision["decode_candidates"][0]["cost_ms"].as_object().expect("terms");
    assert!(terms.values().all(Value::is_number) && terms.contains_key("total"), "{terms:?}");
    assert_eq!(told["prediction"]["alarm"], false);
    assert!(0.0 < view.metric("router-2", "kvasir_router_predicted_cached_tokens_total"));
}
