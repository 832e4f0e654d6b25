//! Client libraries that others wrote, in front of the real binary with keys and limits: first of a script, for exact shapes
//! and faults, then of the built-in model, for real answers: tools, schemas, thinking. The checks are in `tests/sdk`; `deploy/test.sh` installs the
//! libraries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

use crate::http::get;
use crate::process::{Server, binary, errors_of, run};
use crate::repository::root;

/// Looks at whether everything a client left has ended, 10 s in all.
const REST_TRIES: u32 = 100;
const REST_WAIT: Duration = Duration::from_millis(100);

/// Settings with which every silence of `silence.json` (150 ms before each token) is filled.
const SILENCES_FILLED: &str =
    "[gateway]\nhead_wait_ms_max = 10\nkeep_alive_ms = 20\nwhole_keep_alive_ms = 20\n";

/// What answers.
#[derive(Clone, Copy)]
enum Engine {
    Script,
    /// A script that is silent for longer than clients are left without a sign.
    Slow,
    Model,
}

impl Engine {
    /// The file of the script, unless the model answers.
    fn script(self) -> Option<PathBuf> {
        match self {
            Self::Script => Some(checks().join("script.json")),
            Self::Slow => Some(checks().join("silence.json")),
            Self::Model => None,
        }
    }

    fn settings(self) -> &'static str {
        match self {
            Self::Slow => SILENCES_FILLED,
            Self::Script | Self::Model => "",
        }
    }
}

/// A server that asks for keys, and two of them.
struct Guarded {
    server: Server,
    key: String,
    /// May ask once a minute.
    limited: String,
    _folder: TempDir,
}

pub(super) fn checks() -> PathBuf {
    root().join("tests/sdk")
}

/// Where `need_sdks` of deploy/common.sh put the libraries: beside the binary's folder.
pub(super) fn libraries() -> PathBuf {
    let release = binary().parent().map(Path::to_path_buf).expect("the binary lies in a folder");
    let found = release.with_file_name("sdks");
    assert!(
        found.join("py/requirements.txt").is_file() && found.join("js/package-lock.json").is_file(),
        "the client libraries are not in {}; run deploy/test.sh, or '. deploy/common.sh && need_sdks'",
        found.display()
    );
    found
}

fn add_key(file: &Path, arguments: &[&str]) -> String {
    let file = file.to_str().expect("the folder has a plain name");
    let added = run(&[&["keys", "add", "--file", file], arguments].concat());
    assert!(added.status.success(), "{}", errors_of(&added));
    String::from_utf8(added.stdout).expect("a key is text").trim().to_owned()
}

impl Guarded {
    fn start(engine: Engine) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let keys = folder.path().join("keys.toml");
        let key = add_key(&keys, &["--name", "free", "--tenant", "acme"]);
        let more = ["--name", "limited", "--tenant", "bolt", "--requests-per-minute", "1"];
        let limited = add_key(&keys, &more);
        let config = folder.path().join("kvasir.toml");
        let settings = format!("[http]\nkeys_file = \"keys.toml\"\n{}", engine.settings());
        fs::write(&config, settings).expect("a file can be written");
        let text = |path: &Path| path.to_str().expect("a plain name").to_owned();
        let mut arguments = vec!["--config".to_owned(), text(&config)];
        if let Some(script) = engine.script() {
            arguments.extend(["--scripted".to_owned(), text(&script)]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Self { server: Server::start(&arguments), key, limited, _folder: folder }
    }

    /// Runs one file of checks and shows what failed.
    fn check(&self, file: &str, engine: Engine) {
        let libraries = libraries();
        let (program, folder) = match Path::new(file).extension().and_then(|end| end.to_str()) {
            Some("py") => (libraries.join("py/bin/python"), checks()),
            // Packages are looked for from where a module lies, so the checks are put beside them.
            _ => (PathBuf::from("node"), beside(&libraries.join("js"))),
        };
        let engine = match engine {
            Engine::Script | Engine::Slow => "script",
            Engine::Model => "model",
        };
        let output = Command::new(program)
            .arg(folder.join(file))
            .args(["--url", &format!("http://{}", self.server.clients), "--model", "seedling"])
            .args(["--key", &self.key, "--limited-key", &self.limited, "--engine", engine])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .expect("python and node can be started");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{file}:\n{said}\n{}", errors_of(&output));
        assert!(said.contains("checks hold"), "{said}");
    }

    /// Waits until nothing of what the clients asked and left is in work.
    fn rests(&self) {
        for _ in 0..REST_TRIES {
            let metrics = get(self.server.admin, "/metrics").body;
            if metrics.contains("kvasir_gateway_in_flight_requests 0") {
                return;
            }
            sleep(REST_WAIT);
        }
        panic!("requests that their clients left are still in work");
    }
}

/// Copies the checks for node beside the packages they use.
fn beside(packages: &Path) -> PathBuf {
    for entry in fs::read_dir(checks()).expect("the checks are there") {
        let path = entry.expect("a folder can be read").path();
        if path.extension().is_some_and(|end| end == "mjs") {
            let name = path.file_name().expect("files have names");
            fs::copy(&path, packages.join(name)).expect("a file can be copied");
        }
    }
    packages.to_path_buf()
}

fn holds(engine: Engine, files: &[&str]) {
    for file in files {
        // Each has the limited key's one request to itself.
        let guarded = Guarded::start(engine);
        guarded.check(file, engine);
        guarded.rests();
        if let Engine::Model = engine {
            assert_eq!(guarded.server.audit()["leaked"], 0, "{file}");
        }
    }
}

#[test]
fn openais_libraries_chat_with_a_script() {
    holds(Engine::Script, &["openai_chat.py", "openai_chat.mjs"]);
}

#[test]
fn openais_libraries_chat_with_the_model() {
    holds(Engine::Model, &["openai_chat.py", "openai_chat.mjs"]);
}

#[test]
fn anthropics_libraries_exchange_messages_with_a_script() {
    holds(Engine::Script, &["anthropic_messages.py", "anthropic_messages.mjs"]);
}

#[test]
fn anthropics_libraries_exchange_messages_with_the_model() {
    holds(Engine::Model, &["anthropic_messages.py", "anthropic_messages.mjs"]);
}

#[test]
fn openais_libraries_use_responses_completions_and_tools_with_a_script() {
    holds(Engine::Script, &["openai_more.py", "openai_more.mjs"]);
}

#[test]
fn openais_libraries_use_responses_completions_tools_and_schemas_with_the_model() {
    holds(Engine::Model, &["openai_more.py", "openai_more.mjs"]);
}

#[test]
fn behaviour_30_every_library_reads_through_comments_pings_and_blank_lines() {
    holds(Engine::Slow, &["silence.py", "silence.mjs"]);
}
