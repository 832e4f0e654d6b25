//! The access log of the real binary: a line for each request, and nothing of what was said in it.

use std::fs::{self, File};
use std::process::Stdio;

use crate::http::{Open, open, post};
use crate::process::{Server, errors_of, run, serve};
use crate::repository::root;

/// What stands in prompts, bodies, paths and wrong names.
const SAID: &str = "Sesame";
/// What the script answers.
const ANSWER: &str = "17 + 25";

/// The path with a line for a key behind it.
fn with_key(path: &str, key: &str) -> String {
    format!("{path} HTTP/1.0\r\nx-api-key: {key}\r\nx-rest:")
}

/// A chat; `more` are members with a comma before them.
fn chat(said: &str, more: &str) -> String {
    format!(
        r#"{{"model": "seedling", "messages": [{{"role": "user", "content": "{said}"}}]{more}}}"#
    )
}

/// Reads until the answer has begun, and leaves.
fn leave(mut stream: Open) {
    stream.next_event().expect("the stream has begun");
}

/// The value of a field of a line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) =
        line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("{name}: {line}"));
    rest.split(' ').next().unwrap_or_default().trim_matches('"')
}

#[test]
fn each_request_has_one_line_that_tells_nothing_of_what_was_said() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let added =
        run(&["keys", "add", "--file", &path("keys.toml"), "--name", "first", "--tenant", "acme"]);
    assert!(added.status.success(), "{}", errors_of(&added));
    let key = String::from_utf8(added.stdout).expect("a key is text").trim().to_owned();
    fs::write(path("kvasir.toml"), "[http]\nkeys_file = \"keys.toml\"\n").expect("written");
    let script = root().join("tests/sdk/script.json");
    let script = script.to_str().expect("a plain name");
    let arguments = ["--log", "info", "--config", &path("kvasir.toml"), "--scripted", script];
    let log = File::create(path("log")).expect("a file can be made");
    let server = Server::of(serve(&arguments, Stdio::from(log)), "http");
    let ask = |place: &str, key: &str, body: &str| {
        post(server.clients, &with_key(place, key), body).status
    };
    let chats = "/v1/chat/completions";
    // Status, protocol, tenant and output tokens of the lines that are expected, in no order.
    let mut expected = Vec::new();
    for (place, key, body, line) in [
        (chats, key.as_str(), chat(SAID, ""), "200 chat acme some"),
        (chats, &key, chat(SAID, r#", "stream": true"#), "200 chat acme some"),
        (chats, &key, chat(SAID, r#", "temperature": 9"#), "400 chat acme 0"),
        (chats, &key, chat(SAID, "").replace("seedling", SAID), "404 chat acme 0"),
        (chats, &key, SAID.to_owned(), "400 chat acme 0"),
        (chats, &key, chat("be busy", ""), "503 chat acme 0"),
        (chats, &format!("sk-{SAID}"), chat(SAID, ""), "401 chat - 0"),
        ("/v1/Sesame", &key, String::new(), "404 other acme 0"),
        (
            "/v1/responses",
            &key,
            format!(r#"{{"model": "seedling", "background": true, "input": "{SAID}"}}"#),
            "200 responses acme some",
        ),
    ] {
        assert_eq!(ask(place, key, &body).to_string(), line[..3], "{line}");
        expected.push(line);
    }
    let held = chat(&format!("{SAID}: hold on"), r#", "stream": true"#);
    leave(open(server.clients, "POST", &with_key(chats, &key), &held));
    expected.push("200 chat acme some");
    server.terminate();
    assert_eq!(server.wait().0, Some(0));
    let log = fs::read_to_string(path("log")).expect("the log is UTF-8");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("kvasir::access")).collect();
    let mut seen: Vec<String> = lines
        .iter()
        .map(|line| {
            let tokens = if field(line, "output_tokens") == "0" { "0" } else { "some" };
            let [status, protocol, tenant] =
                ["status", "protocol", "tenant"].map(|name| field(line, name));
            format!("{status} {protocol} {tenant} {tokens}")
        })
        .collect();
    seen.sort_unstable();
    expected.sort_unstable();
    assert_eq!(seen, expected, "{log}");
    for secret in [SAID, ANSWER, "hold on", "be busy", &key] {
        assert!(!log.contains(secret), "{secret} is in\n{log}");
    }
}
