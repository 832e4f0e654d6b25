//! Beginning and end of the process.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::http::open;
use crate::process::{Server, errors_of, run, serve, terminate};

#[test]
fn a_terminated_server_finishes_what_it_began() {
    let server = Server::start(&[]);
    let request = json!({
        "model": "seedling", "stream": true, "max_tokens": 400, "temperature": 1.0, "seed": 3,
        "messages": [{"role": "user", "content": "Tell me a short story."}],
    });
    let mut stream = open(server.clients, "POST", "/v1/chat/completions", &request.to_string());
    stream.next_event().expect("the stream has begun");
    server.terminate();
    let events = stream.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
    let address = server.clients;
    let (code, output) = server.wait();
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("drained"), "{output}");
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_server_that_is_still_loading_ends_at_once() {
    let folder = tempfile::tempdir().expect("a folder for the pipe");
    let pipe = folder.path().join("script.json");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo can be started");
    assert!(made.success());
    let child = serve(&["--scripted", pipe.to_str().expect("UTF-8")], Stdio::piped());
    // Opens when the server reads, and keeps it reading: the load cannot end.
    let writer = OpenOptions::new().write(true).open(&pipe).expect("the server reads the pipe");
    terminate(&child);
    let output = child.wait_with_output().expect("a child can be waited for");
    assert_eq!(output.status.code(), Some(0), "{}", errors_of(&output));
    assert!(errors_of(&output).contains("stopped before"), "{}", errors_of(&output));
    drop(writer);
}

#[test]
fn what_no_machine_has_is_refused_by_the_name_of_its_setting() {
    let folder = tempfile::tempdir().expect("a folder for the configuration");
    let file = folder.path().join("kvasir.toml");
    let cases = [
        ("[server]\ndevice_blocks = 16000000\n", "server.device_blocks"),
        ("[store]\nblock_bytes_max = 10000000000000\n", "store.block_bytes_max"),
    ];
    for (text, key) in cases {
        std::fs::write(&file, text).expect("the configuration can be written");
        let child = serve(&["--config", file.to_str().expect("UTF-8")], Stdio::piped());
        let output = child.wait_with_output().expect("a child can be waited for");
        assert_eq!(output.status.code(), Some(1), "{key}");
        let errors = errors_of(&output);
        assert!(errors.lines().count() == 1 && errors.contains(key), "{key}: {errors}");
    }
}

#[test]
fn reference_outputs_are_reproduced_by_the_binary() {
    let golden = crate::repository::root().join("tests/golden/tiny-w");
    let output = run(&["golden", golden.to_str().expect("UTF-8")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", errors_of(&output));
    let last = text.lines().last().unwrap_or_default();
    assert!(last.contains(" passed, 0 failed, ") && last.ends_with(" skipped"), "{last}");
}
