//! The public port of the real binary: keys that change while it runs, TLS, and refusals to open it to everybody.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use kvasir::clock::SystemClock;
use kvasir::identity::{ClusterAuthority, MemberRole};

use crate::http::try_request;
use crate::process::{Server, errors_of, run, seedling};
use crate::repository::root;

/// Looks for a change that a server takes within a second, 10 s in all.
const LOOKS: u32 = 100;
const LOOK_WAIT: Duration = Duration::from_millis(100);

#[test]
fn a_public_port_without_keys_or_tls_is_not_opened() {
    let model = seedling();
    let model = model.to_str().expect("a plain name");
    let refused = run(&["serve", "--model", model, "--listen", "0.0.0.0:0"]);
    let errors = errors_of(&refused);
    assert_eq!(refused.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("http.keys_file") && errors.contains("loopback"), "{errors}");
}

#[test]
fn keys_are_taken_and_lost_while_the_server_runs() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let keys = path("keys.toml");
    let add = |name: &str| {
        let added = run(&["keys", "add", "--file", &keys, "--name", name]);
        String::from_utf8(added.stdout).expect("a key is text").trim().to_owned()
    };
    let first = add("first");
    fs::write(path("kvasir.toml"), "[http]\nkeys_file = \"keys.toml\"\n").expect("written");
    let script = root().join("tests/sdk/script.json");
    let script = script.to_str().expect("a plain name");
    let server = Server::start(&["--config", &path("kvasir.toml"), "--scripted", script]);
    let status = |key: &str| {
        let path = format!("/v1/models HTTP/1.0\r\nx-api-key: {key}\r\nx-rest:");
        try_request(server.clients, "GET", &path, "").expect("an answer").status
    };
    let becomes = |key: &str, expected: u16| {
        for _ in 0..LOOKS {
            if status(key) == expected {
                return;
            }
            sleep(LOOK_WAIT);
        }
        panic!("the key was never answered with {expected}");
    };
    assert_eq!((status(&first), status("sk-wrong")), (200, 401));
    let second = add("second");
    becomes(&second, 200);
    assert!(run(&["keys", "revoke", "--file", &keys, "first"]).status.success());
    becomes(&first, 401);
    assert_eq!(status(&second), 200);
}

#[test]
fn tls_is_spoken_with_the_given_certificate() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = |name: &str| folder.path().join(name).to_str().expect("a plain name").to_owned();
    let authority = ClusterAuthority::create(folder.path(), Arc::new(SystemClock::start()));
    let authority = authority.expect("an authority can be made");
    authority.issue(MemberRole::Router, "public").expect("a certificate can be made");
    let text = "[http]\ncertificate_file = \"public.pem\"\nkey_file = \"public.key\"\n";
    fs::write(path("kvasir.toml"), text).expect("written");
    let script = root().join("tests/sdk/script.json");
    let script = script.to_str().expect("a plain name");
    let server =
        Server::start_at("https", &["--config", &path("kvasir.toml"), "--scripted", script]);
    let client = "import http.client, socket, ssl, sys\n\
                  c = ssl.create_default_context(cafile=sys.argv[2])\n\
                  s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
                  s = c.wrap_socket(s, server_hostname='public.router.kvasir')\n\
                  s.sendall(b'GET /v1/models HTTP/1.0\\r\\n\\r\\n')\n\
                  print(s.makefile('rb').read().decode())\n";
    let port = server.clients.port().to_string();
    let asked = Command::new("python3").args(["-c", client, &port, &path("ca.pem")]).output();
    let asked = asked.expect("python3 can be started");
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(said.contains("seedling"), "{said}{}", errors_of(&asked));
    let mut clear = TcpStream::connect(server.clients).expect("the server accepts connections");
    clear.write_all(b"GET /v1/models HTTP/1.0\r\n\r\n").expect("a request fits the socket");
    let mut answer = Vec::new();
    // Whether it ends with an alert or a reset, it is no answer.
    let _how_it_ended = clear.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "not in the clear");
}

#[test]
fn a_client_that_does_not_read_its_answer_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let config = folder.path().join("kvasir.toml");
    fs::write(&config, "[http]\nwrite_wait_ms_max = 1000\n").expect("written");
    let script = root().join("tests/sdk/script.json");
    let [config, script] = [&config, &script].map(|path| path.to_str().expect("a plain name"));
    let server = Server::start(&["--config", config, "--scripted", script]);
    // The answer is larger than what the sockets of both ends take.
    let client = "import json, socket, sys, urllib.request\n\
                  base = 'http://127.0.0.1:' + sys.argv[1]\n\
                  def ask(path, body):\n\
                  \x20   body = json.dumps(body, separators=(',', ':')).encode()\n\
                  \x20   head = {'content-type': 'application/json'}\n\
                  \x20   return urllib.request.Request(base + path, body, head), body\n\
                  some = ask('/tokenize', {'model': sys.argv[2], 'prompt': 'The teacher remembers the garden'})[0]\n\
                  some = json.load(urllib.request.urlopen(some))['tokens']\n\
                  body = ask('/detokenize', {'model': sys.argv[2], 'tokens': some * (1500000 // len(some))})[1]\n\
                  s = socket.socket()\n\
                  s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n\
                  s.connect(('127.0.0.1', int(sys.argv[1])))\n\
                  s.sendall(b'POST /detokenize HTTP/1.1\\r\\nhost: a\\r\\ncontent-type: application/json\\r\\n'\n\
                  \x20   b'content-length: %d\\r\\n\\r\\n' % len(body) + body)\n\
                  print('asked', flush=True)\n\
                  sys.stdin.read()\n";
    let port = server.clients.port().to_string();
    let mut child = Command::new("python3")
        .args(["-c", client, &port, "seedling"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 can be started");
    let mut said = [0; 6];
    child.stdout.as_mut().expect("piped").read_exact(&mut said).expect("the client asked");
    assert_eq!(&said, b"asked\n");
    let is_open = || {
        let figures = try_request(server.admin, "GET", "/metrics", "").expect("figures").body;
        !figures.lines().any(|line| line == "kvasir_http_connections 0")
    };
    let mut looks = 0;
    while is_open() {
        looks += 1;
        assert!(looks < LOOKS, "the connection was never closed");
        sleep(LOOK_WAIT);
    }
    drop(child.stdin.take());
    child.wait().expect("the client ends");
}
