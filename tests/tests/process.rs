//! Starts the real binary, as a user would, and ends it.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::http::{Response, get};
use crate::repository::root;

/// The binary built beside this test. `deploy/test.sh` builds it first; cargo alone does not build another package's
/// program for a test.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    let folder = test.parent().and_then(Path::parent).expect("tests lie in target/release/deps");
    let binary = folder.join("kvasir");
    assert!(binary.is_file(), "{} is missing; run deploy/test.sh", binary.display());
    binary
}

/// The folder of the built-in model.
pub(crate) fn seedling() -> PathBuf {
    root().join("deploy/models/seedling")
}

/// Runs the binary to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().expect("the binary can be started")
}

/// The text of a finished program's standard error.
pub(crate) fn errors_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Starts `kvasir serve` with the built-in model on free ports.
pub(crate) fn serve(arguments: &[&str], errors: Stdio) -> Child {
    serve_model(&seedling(), arguments, errors)
}

/// Starts `kvasir serve` with a model on free ports.
pub(crate) fn serve_model(model: &Path, arguments: &[&str], errors: Stdio) -> Child {
    Command::new(binary())
        .args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--model"])
        .arg(model)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .expect("the binary can be started")
}

/// Asks a process to end (SIGTERM).
pub(crate) fn terminate(child: &Child) {
    signal(child.id(), "TERM");
}

/// Sends a process a signal, named without SIG.
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill can be started").success(), "SIG{name} to {process}");
}

/// A server that is killed when the test is over.
pub(crate) struct Server {
    child: Child,
    output: BufReader<ChildStdout>,
    pub(crate) clients: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Server {
    /// Starts `kvasir serve` with the built-in model on free ports and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_at("http", arguments)
    }

    /// The same for a server whose clients connect by this scheme.
    pub(crate) fn start_at(scheme: &str, arguments: &[&str]) -> Self {
        Self::of(serve(arguments, Stdio::inherit()), scheme)
    }

    /// A server that was started, once it listens for clients that connect by this scheme.
    pub(crate) fn of(mut child: Child, scheme: &str) -> Self {
        let output = child.stdout.take().expect("standard output is piped");
        let mut output = BufReader::new(output);
        let admin = address_in(&mut output, "admin on http://");
        let clients = address_in(&mut output, &format!("listening on {scheme}://"));
        Self { child, output, clients, admin }
    }

    /// Asks the process to end (SIGTERM).
    pub(crate) fn terminate(&self) {
        terminate(&self.child);
    }

    /// Waits for the end: the exit status and what was printed since the start.
    pub(crate) fn wait(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("standard output is UTF-8");
        let status = self.child.wait().expect("a child can be waited for");
        (status.code(), rest)
    }

    pub(crate) fn audit(&self) -> serde_json::Value {
        let Response { status, body } = get(self.admin, "/debug/audit");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("the audit is JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already when the test waited for it; both calls then only say so.
        if self.child.kill().is_ok() {
            self.child.wait().expect("a child can be waited for");
        }
    }
}

/// Reads lines until one begins with `marker` and gives the address behind it.
fn address_in(output: &mut BufReader<ChildStdout>, marker: &str) -> SocketAddr {
    loop {
        let mut line = String::new();
        let read = output.read_line(&mut line).expect("standard output is UTF-8");
        assert!(0 < read, "the server ended before it printed '{marker}'; see its errors above");
        if let Some(rest) = line.strip_prefix(marker) {
            let address = rest.split_whitespace().next().expect("an address follows");
            return address.parse().unwrap_or_else(|e| panic!("{address} is no address: {e}"));
        }
    }
}
