//! The processes beside ours: servers that answer at once, and other routers before them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use reqwest::Client;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::bodies::chat;

/// Where something listens.
pub(super) type Server = SocketAddr;

/// How long a process may take to listen.
const START_MAX: Duration = Duration::from_secs(60);
/// How often and how long to wait until another router answers a chat: 60 seconds in all.
const READY_TRIES: u32 = 300;
const READY_WAIT: Duration = Duration::from_millis(200);

/// A server that answers at once. It ends when this is dropped.
pub(super) struct Origin {
    server: Server,
    _process: Child,
}

impl Origin {
    pub(super) fn server(&self) -> Server {
        self.server
    }
}

/// Starts so many of them.
///
/// # Errors
/// When one does not start.
pub(super) async fn start_origins(count: usize, model: &str) -> anyhow::Result<Vec<Origin>> {
    let program = std::env::current_exe().context("this program's own path is unknown")?;
    let mut origins = Vec::with_capacity(count);
    for _ in 0..count {
        let mut process = Command::new(&program)
            .args(["bench", "origin", "--model-name", model])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a server that answers at once cannot be started")?;
        let output = process.stdout.take().context("its output was asked for")?;
        let mut lines = BufReader::new(output).lines();
        let line = timeout(START_MAX, lines.next_line()).await.context("it does not listen")??;
        let url = line.unwrap_or_default();
        let server = url.strip_prefix("listening on http://").and_then(|text| text.parse().ok());
        let server = server.with_context(|| format!("a server said {url:?} and no address"))?;
        origins.push(Origin { server, _process: process });
    }
    Ok(origins)
}

/// Another router. It ends when this is dropped.
pub(super) struct Other {
    name: String,
    server: Server,
    process: Child,
}

impl Other {
    /// Starts one from `NAME=COMMAND`: words between blanks, with `{port}` where it should listen and `{workers}` for the
    /// URLs of the servers, one word each. Waits until it answers a chat.
    ///
    /// # Errors
    /// When it does not start or does not answer in time.
    pub(super) async fn start(spec: &str, origins: &[Server], model: &str) -> anyhow::Result<Self> {
        let (name, command) = spec
            .split_once('=')
            .with_context(|| format!("--peer {spec} is not NAME=COMMAND {{port}} {{workers}}"))?;
        let port = free_port()?;
        let urls = origins.iter().map(|origin| format!("http://{origin}"));
        let words = words(command, port, &urls.collect::<Vec<_>>());
        let (program, arguments) =
            words.split_first().with_context(|| format!("--peer {name} has no command"))?;
        let process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{program} cannot be started"))?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut other = Self { name: name.to_owned(), server, process };
        other.ready(model).await.with_context(|| format!("{name} does not answer"))?;
        Ok(other)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn server(&self) -> Server {
        self.server
    }

    /// Its process.
    ///
    /// # Errors
    /// When it ended.
    pub(super) fn pid(&self) -> anyhow::Result<u32> {
        self.process.id().with_context(|| format!("{} ended", self.name))
    }

    async fn ready(&mut self, model: &str) -> anyhow::Result<()> {
        let client = Client::builder().no_proxy().build().context("no HTTP client")?;
        let url = format!("http://{}/v1/chat/completions", self.server);
        let mut last = anyhow!("it was not asked");
        for _ in 0..READY_TRIES {
            if let Some(status) = self.process.try_wait().context("its process")? {
                bail!("it ended with {status}; run its command by hand to see why");
            }
            let body = chat(model, 77, 0, 600);
            let json = ("content-type", "application/json");
            match client.post(&url).header(json.0, json.1).body(body).send().await {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => last = anyhow!("it answered {}", answer.status()),
                Err(error) => last = error.into(),
            }
            sleep(READY_WAIT).await;
        }
        Err(last)
    }
}

fn words(command: &str, port: u16, workers: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for word in command.split_whitespace() {
        if word == "{workers}" {
            words.extend(workers.iter().cloned());
        } else {
            words.push(word.replace("{port}", &port.to_string()));
        }
    }
    words
}

/// A port that was free a moment ago; who takes it meanwhile shows when the process does not start.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    let port = listener.local_addr()?.port();
    ensure!(port != 0, "no free port");
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_command_gets_its_port_and_every_worker_as_a_word() {
        let workers = ["http://a".to_owned(), "http://b".to_owned()];
        let made = words("run --port={port}  --urls {workers} -q", 7, &workers);
        assert_eq!(made, ["run", "--port=7", "--urls", "http://a", "http://b", "-q"]);
    }
}
