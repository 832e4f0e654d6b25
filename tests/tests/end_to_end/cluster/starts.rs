//! `kvasir up`: members that die are started again, clients may leave, and at the end nothing is left.

use std::thread;
use std::time::Duration;

use super::up::{Up, runs};
use super::view::{Answer, CHAT, EXACT, NOTICED, SOON, body, long_prompt, story, until, within};
use crate::http::{open, send, try_request};
use crate::process::{errors_of, run, seedling};

/// Lines of a prompt that takes a second or two.
const LINES: usize = 250;

fn clients_leave(up: &Up) {
    // Before the first token, and not streamed at all: while prefill computes.
    for stream in [true, false] {
        let cancelled = || up.metric("prefill-1", "kvasir_prefill_cancelled_total");
        let before = cancelled();
        let prompt = long_prompt(&format!("left {stream}"), LINES);
        let client = send(up.clients, CHAT, &body(&prompt, 60, stream));
        until("prefill had work", SOON, || up.is_busy("prefill-1").then_some(()));
        drop(client);
        until("prefill was told", SOON, || (before < cancelled()).then_some(()));
        up.at_rest();
    }
    // In the middle of the answer.
    let mut stream = open(up.clients, "POST", CHAT, &body(&story("dog"), 200, true));
    for _ in 0..8 {
        stream.next_event().expect("the stream goes on");
    }
    drop(stream);
    up.at_rest();
}

fn the_only_decode_worker_is_lost(up: &Up) {
    let stories = [story("dog"), story("cat"), story("cow")];
    let expected = up.stream(&stories, || ());
    let old = up.processes()["decode-1"];
    let streamed = within("streams that wait for their worker", 2 * NOTICED, || {
        up.stream(&stories, || up.signal("decode-1", "KILL"))
    });
    assert_eq!(streamed, expected);
    up.replaced("decode-1", old);
    up.at_rest();

    let streamed = within("streams whose worker freezes for a while", 2 * NOTICED, || {
        up.stream(&stories, || {
            up.signal("decode-1", "STOP");
            up.lost("decode-1");
            up.signal("decode-1", "CONT");
        })
    });
    assert_eq!(streamed, expected);
    up.joined();
    up.at_rest();
}

fn the_router_is_lost_under_load(up: &Up) {
    let known = long_prompt("known", LINES);
    let expected = up.answer(&known);
    up.at_rest();
    let old = up.processes()["router-1"];
    thread::scope(|scope| {
        let asked: Vec<_> = (0..6)
            .map(|number| {
                let request = body(&long_prompt(&format!("load {number}"), LINES), 60, false);
                scope.spawn(move || try_request(up.clients, "POST", CHAT, &request))
            })
            .collect();
        until("the load had begun", SOON, || up.is_busy("prefill-1").then_some(()));
        up.signal("router-1", "KILL");
        for request in asked {
            let ended = within("the end of a lost request", NOTICED, || request.join());
            // Answered before, or told by the end of its connection.
            if let Ok(response) = ended.expect("a client ends") {
                assert_eq!(response.status, 200, "{}", response.body);
            }
        }
    });
    up.replaced("router-1", old);
    up.at_rest();
    // It learnt from its members' snapshots what they hold.
    let indexed = || up.metric("router-1", "kvasir_router_index_entries");
    until("the index was there again", SOON, || (10.0 < indexed()).then_some(()));
    let Answer { text, cached_tokens, .. } = up.answer(&known);
    assert_eq!(text, expected.text);
    assert!(0 < cached_tokens);
    up.at_rest();
}

#[test]
fn what_dies_under_up_is_started_again_and_nothing_is_left_at_the_end() {
    let up = Up::start(None, EXACT, &[]);
    clients_leave(&up);
    the_only_decode_worker_is_lost(&up);
    the_router_is_lost_under_load(&up);
    let (processes, state) = (up.processes(), up.state.clone());
    assert_eq!(processes.len(), 4, "{processes:?}");
    assert!(state.is_dir());
    let (code, output) = up.stop();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("stopped"), "{output}");
    assert!(!state.exists(), "the temporary folder is gone");
    assert!(processes.values().all(|id| !runs(*id)), "no process is left");
}

#[test]
fn members_end_with_up_when_it_is_killed_and_not_before() {
    let folder = tempfile::tempdir().expect("a folder for the state");
    let up = Up::start(Some(folder.path()), "", &["--prefill", "0", "--kvstore", "0"]);
    assert_eq!(up.answer("What is 17 + 25?").text, "17 + 25 = 42.");
    let processes = up.processes();
    assert_eq!(processes.len(), 2, "{processes:?}");
    // Nor does a second one on its folder harm it.
    let (model, state) = (seedling(), folder.path());
    let [model, state] = [&model, state].map(|path| path.to_str().expect("UTF-8"));
    let second = run(&["up", "--model", model, "--state", state]);
    assert_eq!(second.status.code(), Some(1));
    assert!(errors_of(&second).contains("in use by another"), "{}", errors_of(&second));
    assert_eq!(up.answer("What is 17 + 25?").text, "17 + 25 = 42.");
    up.kill();
    until("all members had ended", Duration::from_secs(10), || {
        processes.values().all(|id| !runs(*id)).then_some(())
    });
}
