//! `kvasir up` as a test sees it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::view::{SOON, View, until};
use crate::process::{binary, seedling, signal, terminate};

/// A running `kvasir up`. Killed at the end, its members with it.
pub(super) struct Up {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The folder it keeps its state in.
    pub(super) state: PathBuf,
    view: View,
}

impl Deref for Up {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl Up {
    /// Starts a cluster and waits until it listens. `settings` is a file's text; without a folder it makes its own.
    pub(super) fn start(state: Option<&Path>, settings: &str, arguments: &[&str]) -> Self {
        let mut file = tempfile::NamedTempFile::new().expect("a file for the settings");
        std::io::Write::write_all(&mut file, settings.as_bytes()).expect("settings fit");
        let mut command = Command::new(binary());
        command.arg("up").arg("--model").arg(seedling()).arg("--config").arg(file.path());
        if let Some(state) = state {
            command.arg("--state").arg(state);
        }
        let mut child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary can be started");
        let output = child.stdout.take().expect("standard output is piped");
        let mut output = BufReader::new(output);
        let (mut admins, mut state) = (BTreeMap::new(), PathBuf::new());
        let clients = loop {
            let mut line = String::new();
            let read = output.read_line(&mut line).expect("standard output is UTF-8");
            assert_ne!(read, 0, "the cluster ended before it listened; see its errors above");
            let line = line.trim_end();
            if let Some(address) = line.strip_prefix("listening on http://") {
                break address.parse().expect("an address follows");
            }
            if let Some(folder) = line.strip_prefix("state in ") {
                state = folder.into();
            }
            if let Some((member, admin)) = line.split_once(" admin http://") {
                let name = member.split_whitespace().last().expect("role and name come first");
                admins.insert(name.to_owned(), admin.parse().expect("an address follows"));
            }
        };
        Self { child, output, state, view: View { clients, admins } }
    }

    /// The processes of the members that run now, by name.
    pub(super) fn processes(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("up runs");
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for id in children.split_whitespace() {
                let line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
                let mut words = line.split('\0');
                if words.by_ref().any(|word| word == "--name")
                    && let Some(name) = words.next()
                {
                    found.insert(name.to_owned(), id.parse().expect("an id is a number"));
                }
            }
        }
        found
    }

    pub(super) fn signal(&self, name: &str, signal_name: &str) {
        signal(self.processes()[name], signal_name);
    }

    /// Kills a member and waits until another process has its place and has joined.
    pub(super) fn replaced(&self, name: &str, old: u32) {
        until(&format!("{name} was started again"), SOON, || {
            self.processes().get(name).filter(|id| **id != old).map(|_| ())
        });
        self.joined();
    }

    /// Asks it to end: the exit status and what it printed.
    pub(super) fn stop(mut self) -> (Option<i32>, String) {
        terminate(&self.child);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("standard output is UTF-8");
        let status = self.child.wait().expect("a child can be waited for");
        (status.code(), rest)
    }

    /// Kills it without a word.
    pub(super) fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // Gone already when the test waited for it.
        if self.child.kill().is_ok() {
            self.child.wait().expect("a child can be waited for");
        }
    }
}

/// Whether a process runs; one that only waits to be waited for does not.
pub(super) fn runs(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}
