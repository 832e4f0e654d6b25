//! The command line: what can be typed, and what it starts.
//!
//! Invariants: a failure is one line on standard error that says what to do, and exit status 1; wrong usage is 2.
//! Results go to standard output, progress and logs to standard error.

mod bench;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::Arithmetic;
use rayon::ThreadPoolBuilder;
use serde::Deserialize;
use shared::Clock;
use tokio::runtime::Builder;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt, registry};

pub use bench::{GatewayArgs, GrammarArgs, HandoffArgs, RouterArgs, StoreArgs, TransportArgs};

use crate::clock::SystemClock;
use crate::config::{Config, show};
use crate::console::Console;
use crate::identity::MemberRole;
use crate::sim::{self, SimArgs};
use crate::telemetry::{LogLayer, LogTap};
use crate::trace::TraceCommand;
use crate::up::{self, Replicas};
use crate::{demo, generate, golden, keys, kv, roles, serve};

/// A serving system for models of the DeepSeek-V4.1 family.
#[derive(Debug, Parser)]
#[command(name = "kvasir", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// What is logged to standard error, for example `info` or `kvasir=debug,warn`.
    #[arg(long, global = true, default_value = "warn")]
    log: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model over HTTP: all roles in one process.
    Serve(ServeArgs),
    /// Serve a model by a cluster of processes on this machine, one per member.
    Up(UpArgs),
    /// Run the router of a cluster: front door and placement.
    Router(RoleArgs),
    /// Run a prefill worker of a cluster.
    Prefill(RoleArgs),
    /// Run a decode worker of a cluster.
    Decode(RoleArgs),
    /// Run a store node of a cluster.
    Kvstore(RoleArgs),
    /// Show the settings that a file gives, each with its origin, or check them. Needs no network.
    Config(ConfigArgs),
    /// Make, show and revoke API keys. A running server takes the change within a second.
    Keys {
        #[command(subcommand)]
        which: keys::KeysCommand,
    },
    /// Answer one prompt and exit; opens no port.
    Generate(GenerateArgs),
    /// Compare the engine with reference outputs.
    Golden(GoldenArgs),
    /// Serve the built-in model, hold a short chat and print the TTFT ladder.
    Demo(DemoArgs),
    /// Look at, check and mend the segment files of a store node's disk. Needs no network, but for explain and evict --admin.
    Kv {
        #[command(subcommand)]
        which: kv::KvCommand,
    },
    /// Replay a trace of requests through router, schedulers and caches in virtual time: what would it be like?
    Sim(SimArgs),
    /// Write the requests of a running router as a trace.
    Trace {
        #[command(subcommand)]
        which: TraceCommand,
    },
    /// Measure a server, the store, the transports or the hand-off.
    Bench {
        #[command(subcommand)]
        which: bench::BenchCommand,
    },
}

/// Float64 reference arithmetic or fast float32, as it is typed and written in configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArithChoice {
    /// Reproduces the reference outputs; an order of magnitude slower.
    Exact,
    /// For serving.
    Fast,
}

impl From<ArithChoice> for Arithmetic {
    fn from(choice: ArithChoice) -> Self {
        match choice {
            ArithChoice::Exact => Self::Exact,
            ArithChoice::Fast => Self::Fast,
        }
    }
}

/// What a start without a window object does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LineageArg {
    /// Long replays; a cached answer equals the cold one bit for bit.
    Exact,
    /// Short replays, as the model family is usually served.
    Bounded,
}

/// Options of `kvasir serve`.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Folder of the checkpoint: config.json, tokenizer.json, *.safetensors.
    #[arg(long)]
    pub model: PathBuf,
    /// Address for clients; port 0 takes a free one and prints it. One that is not loopback needs API keys and TLS, see the table `http`.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Address for /metrics and /debug.
    #[arg(long)]
    pub admin: Option<SocketAddr>,
    /// Arithmetic of the engine.
    #[arg(long)]
    pub arith: Option<ArithChoice>,
    /// Lineage of requests that name none.
    #[arg(long)]
    pub lineage: Option<LineageArg>,
    /// TOML file with a table per crate; see deploy/kvasir.example.toml. Options given here win.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Replace the model by the token sequences of this file, for protocol tests.
    #[arg(long)]
    pub scripted: Option<PathBuf>,
}

/// Options of a role.
#[derive(Clone, Debug, Args)]
pub struct RoleArgs {
    /// TOML file with the settings and the members of the cluster.
    #[arg(long)]
    pub config: PathBuf,
    /// Which member this process is; needed when the file has several of the role.
    #[arg(long)]
    pub name: Option<String>,
    /// End when this process ends, which must be the one that started this one.
    #[arg(long)]
    pub parent: Option<u32>,
}

/// Options of `kvasir config`.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// `check` says whether keys, ranges and members can be used and nothing else; it opens no file that this one names.
    #[command(subcommand)]
    pub action: Option<ConfigAction>,
    /// TOML file; the defaults when none is given.
    #[arg(long, global = true)]
    pub config: Option<PathBuf>,
}

/// What `kvasir config` does besides showing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum ConfigAction {
    /// Check the file.
    Check,
}

/// Options of `kvasir up`.
#[derive(Clone, Debug, Args)]
pub struct UpArgs {
    /// Folder of the checkpoint.
    #[arg(long)]
    pub model: PathBuf,
    /// Address for clients of the first router; a free loopback port when none is given.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Folder for everything the cluster writes: configuration, certificates, secret, logs, blocks on disk. It is kept and used
    /// again. A temporary one, removed at the end, when none is given.
    #[arg(long)]
    pub state: Option<PathBuf>,
    /// TOML file with settings of all roles; its members are replaced.
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Arithmetic of the engine.
    #[arg(long)]
    pub arith: Option<ArithChoice>,
    /// Lineage of requests that name none.
    #[arg(long)]
    pub lineage: Option<LineageArg>,
    /// Routers.
    #[arg(long, default_value_t = 1)]
    pub router: u16,
    /// Prefill workers.
    #[arg(long, default_value_t = 1)]
    pub prefill: u16,
    /// Decode workers.
    #[arg(long, default_value_t = 1)]
    pub decode: u16,
    /// Store nodes.
    #[arg(long, default_value_t = 1)]
    pub kvstore: u16,
}

impl UpArgs {
    /// How many members of each role are asked for.
    pub(crate) fn replicas(&self) -> Replicas {
        let Self { router, prefill, decode, kvstore, .. } = *self;
        Replicas { router, prefill, decode, kvstore }
    }

    /// The file's settings with those of the command line on top, and how long a drain may take.
    pub(crate) fn apply(
        &self,
        mut settings: toml::Table,
    ) -> anyhow::Result<(toml::Table, Duration)> {
        let arith = self.arith.map(|arith| match arith {
            ArithChoice::Exact => "exact",
            ArithChoice::Fast => "fast",
        });
        let lineage = self.lineage.map(|lineage| match lineage {
            LineageArg::Exact => "exact",
            LineageArg::Bounded => "bounded",
        });
        for (table, key, word) in [("server", "arith", arith), ("gateway", "lineage", lineage)] {
            let entry = settings.entry(table).or_insert_with(|| toml::Table::new().into());
            let entry = entry.as_table_mut().with_context(|| format!("{table} is not a table"))?;
            if let Some(word) = word {
                entry.insert(key.to_owned(), word.into());
            }
        }
        settings.remove("cluster");
        let config = Config::parse(&settings.to_string())?;
        Ok((settings, Duration::from_secs(config.server.drain_seconds)))
    }
}

/// Options of `kvasir generate`.
#[derive(Clone, Debug, Args)]
pub struct GenerateArgs {
    /// Folder of the checkpoint.
    #[arg(long)]
    pub model: PathBuf,
    /// The user's message; the chat template is applied.
    #[arg(long)]
    pub prompt: String,
    /// Bound of the answer in tokens.
    #[arg(long, default_value_t = 256)]
    pub max_tokens: u32,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Key of the sampling noise.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Let the model reason first; the reasoning is printed too.
    #[arg(long)]
    pub thinking: bool,
    /// Arithmetic of the engine.
    #[arg(long)]
    pub arith: Option<ArithChoice>,
}

/// Options of `kvasir golden`.
#[derive(Clone, Debug, Args)]
pub struct GoldenArgs {
    /// Folder with cases/index.json (and checkpoint/), or with index.json.
    pub dir: PathBuf,
    /// Folder of the checkpoint, when it is not DIR/checkpoint.
    #[arg(long)]
    pub checkpoint: Option<PathBuf>,
    /// Arithmetic to check, each against its own tolerances.
    #[arg(long, default_value = "exact")]
    pub arith: ArithChoice,
    /// One JSON object instead of lines.
    #[arg(long)]
    pub json: bool,
}

/// Options of `kvasir demo`.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Folder of the checkpoint; the seedling of this repository when none is given.
    #[arg(long)]
    pub model: Option<PathBuf>,
    /// Print the ladder as one JSON line.
    #[arg(long)]
    pub json: bool,
    /// Keep serving afterwards, until Ctrl-C.
    #[arg(long)]
    pub keep: bool,
    /// Length of the long prompt in tokens.
    #[arg(long, default_value_t = 8_000)]
    pub prompt_tokens: u32,
}

/// Runs the command line and reports how it ended.
pub fn run(arguments: impl IntoIterator<Item = OsString>, console: &mut Console) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no failures: clap says so by the exit code.
            let failed = error.use_stderr();
            let text = error.to_string();
            let shown = if failed {
                console.progress(text.trim_end());
                Ok(())
            } else {
                console.line(text.trim_end())
            };
            return if failed {
                ExitCode::from(2)
            } else {
                exit(shown.map(|()| true).map_err(Into::into), console)
            };
        }
    };
    name_compute_threads();
    let outcome = start_logging(&cli.log).and_then(|tap| dispatch(cli.command, &tap, console));
    exit(outcome, console)
}

fn exit(outcome: anyhow::Result<bool>, console: &mut Console) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            console.progress(&format!("kvasir: {}", one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The causes of an error behind one another, on one line. A cause that its effect already quotes is left out.
fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

/// Runs one command; false when it ran but its verdict is bad.
fn dispatch(command: Command, tap: &LogTap, console: &mut Console) -> anyhow::Result<bool> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    match command {
        Command::Serve(args) => block_on(serve::run(&args, tap, clock, console)).map(|()| true),
        Command::Up(args) => block_on(up::run(&args, clock, console)).map(|()| true),
        Command::Router(args) => role(MemberRole::Router, &args, tap, clock, console),
        Command::Prefill(args) => role(MemberRole::Prefill, &args, tap, clock, console),
        Command::Decode(args) => role(MemberRole::Decode, &args, tap, clock, console),
        Command::Kvstore(args) => role(MemberRole::Kvstore, &args, tap, clock, console),
        Command::Config(args) => show::run(&args, console).map(|()| true),
        Command::Keys { which } => keys::run(&which, clock.as_ref(), console).map(|()| true),
        Command::Generate(args) => block_on(generate::run(&args, clock, console)).map(|()| true),
        Command::Golden(args) => golden::run(&args, console),
        Command::Demo(args) => block_on(demo::run(&args, clock, console)),
        Command::Kv { which } => kv::run(&which, clock, console),
        Command::Sim(args) => sim::run(&args, console).map(|()| true),
        Command::Trace { which } => block_on(which.run(clock, console)).map(|()| true),
        Command::Bench { which } => block_on(which.run(tap, &clock, console)).map(|()| true),
    }
}

fn role(
    role: MemberRole,
    args: &RoleArgs,
    tap: &LogTap,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<bool> {
    block_on(roles::run(role, args, tap, clock, console)).map(|()| true)
}

/// Runs a command on the runtime of the front door. The engine's threads are its own.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.context("no async runtime")?;
    let outcome = runtime.block_on(command);
    // A command ends what it began, but for a load that a signal interrupted: nobody waits for that.
    runtime.shutdown_background();
    outcome
}

/// Gives the threads that compute a name, so that profiles can be read. There are as many as the machine has cores.
fn name_compute_threads() {
    let pool = ThreadPoolBuilder::new().thread_name(|number| format!("compute-{number}"));
    // A second command line in one process (tests) keeps the first one's threads.
    if let Err(error) = pool.build_global() {
        tracing::debug!(%error, "the compute threads keep their names");
    }
}

/// Logs to standard error, and to the tap it gives once that is connected.
fn start_logging(filter: &str) -> anyhow::Result<LogTap> {
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("--log {filter} is no filter; try --log info"))?;
    let tap = LogTap::default();
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(true);
    let layers = registry().with(filter).with(lines).with(LogLayer::new(tap.clone()));
    let logging = layers.try_init();
    // A second command line in one process (tests) keeps the first one's logging.
    if logging.is_err() {
        tracing::debug!("logging is set up already");
    }
    Ok(tap)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::{self, Write};
    use std::process::ExitCode;
    use std::sync::{Arc, Mutex};

    use anyhow::Context;
    use clap::CommandFactory;

    use super::{Cli, one_line, run};
    use crate::console::Console;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn typed(line: &str) -> (ExitCode, String, String) {
        let (results, progress) = (Shared::default(), Shared::default());
        let mut console = Console::new(results.clone(), progress.clone());
        let arguments = line.split_whitespace().map(OsString::from);
        let code = run(arguments, &mut console);
        let text = |shared: &Shared| String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        (code, text(&results), text(&progress))
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn failures_are_one_line_that_says_what_to_do() {
        let cases = [
            ("kvasir golden /no/such/folder", "/no/such/folder"),
            ("kvasir serve --model /no/such/folder", "/no/such/folder"),
            ("kvasir serve --model . --listen 0.0.0.0:1", "loopback"),
            ("kvasir --log =,= golden .", "--log"),
            ("kvasir bench ladder --url https://127.0.0.1:1", "http://"),
        ];
        for (line, expected) in cases {
            let (code, results, progress) = typed(line);
            assert_eq!(code, ExitCode::FAILURE, "{line}");
            assert!(results.is_empty(), "{line}: {results}");
            assert_eq!(progress.lines().count(), 1, "{line}: {progress}");
            assert!(progress.contains(expected), "{line}: {progress}");
        }
    }

    #[test]
    fn wrong_usage_is_told_apart_from_failure() {
        let (code, _, progress) = typed("kvasir serve");
        assert_eq!(code, ExitCode::from(2));
        assert!(progress.contains("--model"), "{progress}");
        let (code, results, _) = typed("kvasir --version");
        assert_eq!(code, ExitCode::SUCCESS);
        assert!(results.starts_with("kvasir "), "{results}");
    }

    #[test]
    fn causes_are_not_said_twice() {
        let inner: anyhow::Result<()> = Err(anyhow::anyhow!("no such file"));
        let error = inner.context("a cannot be read: no such file").unwrap_err();
        assert_eq!(one_line(&error), "a cannot be read: no such file");
    }
}
