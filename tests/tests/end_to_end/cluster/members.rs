//! Members that come, go, do not fit, or are asked to end. Their reads go by QUIC here.

use std::fs;

use kvasir::identity::MemberRole;

use super::hand::{Hand, Reads};
use super::view::{EXACT, NOTICED, SOON, View, long_prompt, story, until, within};
use crate::process::seedling;

const COUNTS: [(MemberRole, u32); 3] =
    [(MemberRole::Kvstore, 1), (MemberRole::Prefill, 1), (MemberRole::Decode, 2)];
const BY_QUIC: &str = "kvasir_kvstore_read_bytes_total{way=\"quic\"}";

/// Another tokenizer: one that reads the same and whose file differs.
fn a_wrong_model_is_refused(cluster: &mut Hand, prompt: &str, expected: &str) {
    let model = cluster.folder().join("other");
    fs::create_dir(&model).expect("a folder for the other model");
    for entry in fs::read_dir(seedling()).expect("the built-in model is there").flatten() {
        if entry.path().is_file() {
            fs::copy(entry.path(), model.join(entry.file_name())).expect("a copy fits");
        }
    }
    let tokenizer = model.join("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).expect("a tokenizer is text");
    fs::write(&tokenizer, text + "\n").expect("a copy is writable");
    cluster.start_with_model("decode-2", &model);
    let told = until("the wrong member was refused", SOON, || {
        let link = cluster.link("router-1", "decode-2");
        (link["state"] == "refused").then(|| link["detail"].as_str().unwrap_or("").to_owned())
    });
    for side in ["decode-2 has ", "router-1 has "] {
        assert!(told.contains(side), "{told}");
    }
    let log = cluster.log("router-1");
    assert!(log.contains(&told), "an operator finds it in the log, too: {log}");
    assert_eq!(cluster.answer(prompt).text, expected);
    assert_eq!(cluster.stop("decode-2"), Some(0));
}

#[test]
fn members_join_and_leave_a_running_cluster() {
    let mut cluster = Hand::plan(COUNTS, Reads::Quic, EXACT);
    let all = cluster.names();
    let without =
        |name: &str| all.iter().filter(|other| *other != name).cloned().collect::<Vec<_>>();
    for name in without("decode-2") {
        cluster.start(&name);
    }
    cluster.joined();
    let prompt = long_prompt("members", 190);
    let expected = cluster.answer(&prompt);
    assert!(0 < expected.bytes_fetched);
    for member in ["decode-1", "kvstore-1"] {
        assert!(0.0 < cluster.metric(member, BY_QUIC), "{member} read by QUIC");
    }
    a_wrong_model_is_refused(&mut cluster, &prompt, &expected.text);

    // Out of the file, and in again with the right model.
    cluster.list(&without("decode-2"));
    until("the router forgot it", SOON, || {
        cluster.link("router-1", "decode-2").is_null().then_some(())
    });
    cluster.list(&all);
    cluster.start("decode-2");
    cluster.joined();
    cluster.list(&without("decode-1"));
    until("the router forgot the other", SOON, || {
        cluster.link("router-1", "decode-1").is_null().then_some(())
    });
    let answer = cluster.answer(&prompt);
    assert_eq!(answer.text, expected.text);
    assert!(0 < answer.bytes_fetched && 0.0 < cluster.metric("decode-2", BY_QUIC));
    cluster.at_rest();

    cluster.list(&all);
    cluster.joined();
    a_terminated_worker_drains(&mut cluster);
}

fn a_terminated_worker_drains(cluster: &mut Hand) {
    let stories: Vec<String> = ["dog", "cat", "cow", "hen"].map(story).into();
    let expected = cluster.stream(&stories, || ());
    let view = View::clone(cluster);
    let mut code = None;
    let streamed = within("streams of a worker that ends", 2 * NOTICED, || {
        view.stream(&stories, || code = cluster.stop("decode-1"))
    });
    assert_eq!(streamed, expected);
    assert_eq!(code, Some(0));
    let log = cluster.log("decode-1");
    assert!(log.trim_end().ends_with("drained"), "{log}");
    cluster.lost("decode-1");
    assert_eq!(cluster.stream(&stories, || ()), expected);
    cluster.at_rest();
}
