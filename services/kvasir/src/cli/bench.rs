//! What can be typed behind `kvasir bench`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use shared::Clock;

use super::RoleArgs;
use crate::bench::ladder::{LadderOptions, describe, run as run_ladder};
use crate::bench::router::{self, origin};
use crate::bench::{gateway, grammar, handoff, store, transport};
use crate::console::Console;
use crate::roles;
use crate::telemetry::LogTap;

#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    /// The TTFT ladder: cold, device, host, direct. Works against any OpenAI-compatible server.
    Ladder(LadderArgs),
    /// How fast blocks move between two memories: memcpy, TCP, bare quinn, QUIC and shared memory in turns.
    Transport(TransportArgs),
    /// How fast the store takes and gives blocks, over loopback and from the drive, beside memcpy, TCP and direct I/O.
    Store(StoreArgs),
    /// What separate processes cost a cold prompt: one process against four, in turns.
    Handoff(HandoffArgs),
    /// What the front door costs a request, and whether its memory stays where it is.
    Gateway(GatewayArgs),
    /// What the way through the router costs a request, beside no router and beside others, in turns.
    Router(RouterArgs),
    /// What grammars cost: compiling one, and each mask of an answer that follows it.
    Grammar(GrammarArgs),
    /// A server that answers every chat at once, for `bench router`.
    #[command(hide = true)]
    Origin(OriginArgs),
    /// A decode worker without a model, for `bench router`.
    #[command(hide = true)]
    Decode(RoleArgs),
}

impl BenchCommand {
    /// Runs the benchmark and prints what it found.
    ///
    /// # Errors
    /// What the benchmark says.
    pub(super) async fn run(
        self,
        tap: &LogTap,
        clock: &Arc<dyn Clock>,
        console: &mut Console,
    ) -> anyhow::Result<()> {
        match self {
            Self::Ladder(args) => ladder(args, clock, console).await,
            Self::Transport(args) => transport::run(&args, clock, console).await,
            Self::Store(args) => store::run(&args, clock, console).await,
            Self::Handoff(args) => handoff::run(&args, clock, console).await,
            Self::Gateway(args) => gateway::run(&args, clock, console).await,
            Self::Router(args) => router::run(&args, clock, console).await,
            Self::Grammar(args) => grammar::run(&args, clock.as_ref(), console),
            Self::Origin(args) => origin::run(&args.model_name, console).await,
            Self::Decode(args) => {
                roles::run_unmodelled(&args, tap, Arc::clone(clock), console).await
            }
        }
    }
}

/// Options of `kvasir bench gateway`.
#[derive(Clone, Debug, Args)]
pub struct GatewayArgs {
    /// The tokenizer.json that prompts are tokenised with.
    #[arg(long, default_value = "deploy/models/seedling/tokenizer.json")]
    pub tokenizer: PathBuf,
    /// Requests of the run that memory is looked at, a multiple of 10.
    #[arg(long, default_value_t = 100_000)]
    pub memory_requests: usize,
}

/// Options of `kvasir bench ladder`.
#[derive(Clone, Debug, Args)]
pub(super) struct LadderArgs {
    /// The server, for example http://127.0.0.1:8000.
    #[arg(long)]
    url: String,
    /// Kvasir's admin listener; once per process. Without any the host rung is left out.
    #[arg(long)]
    admin: Vec<String>,
    /// Length of the long prompt in tokens.
    #[arg(long, default_value_t = 8_000)]
    prompt_tokens: u32,
    /// The model; the first one the server lists when none is given.
    #[arg(long)]
    model: Option<String>,
    /// Bearer token.
    #[arg(long)]
    api_key: Option<String>,
    /// One JSON line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Options of `kvasir bench handoff`.
#[derive(Clone, Debug, Args)]
pub struct HandoffArgs {
    /// Folder of the checkpoint.
    #[arg(long)]
    pub model: PathBuf,
    /// Length of each prompt in tokens.
    #[arg(long, default_value_t = 8_000)]
    pub prompt_tokens: u32,
    /// Rounds after one that warms up.
    #[arg(long, default_value_t = 7)]
    pub rounds: u32,
    /// One JSON line instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Options of `kvasir bench router`.
#[derive(Clone, Debug, Args)]
pub struct RouterArgs {
    /// Folder of a checkpoint; only its configuration and its tokenizer are used.
    #[arg(long)]
    pub model: PathBuf,
    /// Another tokenizer.json than the checkpoint's.
    #[arg(long)]
    pub tokenizer: Option<PathBuf>,
    /// Workers behind each router.
    #[arg(long, default_value_t = 4)]
    pub workers: u16,
    /// Another router, as NAME=COMMAND with {port} and {workers} in it; once per router.
    #[arg(long)]
    pub peer: Vec<String>,
    /// Rounds after one that warms up.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// One JSON line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `kvasir bench grammar`.
#[derive(Clone, Debug, Args)]
pub struct GrammarArgs {
    /// The tokenizer.json of the vocabulary.
    #[arg(long)]
    pub tokenizer: PathBuf,
    /// Tokens of the vocabulary; the default is that of Flash.
    #[arg(long, default_value_t = 129_280)]
    pub tokens: usize,
    /// The token that ends an answer.
    #[arg(long, default_value_t = 1)]
    pub end: u32,
    /// How often each grammar is compiled and followed.
    #[arg(long, default_value_t = 20)]
    pub rounds: u32,
    /// One JSON line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `kvasir bench origin`.
#[derive(Clone, Debug, Args)]
pub(super) struct OriginArgs {
    /// The model that it says to serve.
    #[arg(long)]
    model_name: String,
}

/// Options of `kvasir bench transport`.
#[derive(Clone, Debug, Args)]
pub struct TransportArgs {
    /// Bytes to move per way and round, in MiB.
    #[arg(long, default_value_t = 256)]
    pub mebibytes: usize,
    /// Bytes of one object; the default is a block of Flash.
    #[arg(long, default_value_t = 113_920)]
    pub object_bytes: usize,
    /// Rounds after one that warms up.
    #[arg(long, default_value_t = 9)]
    pub rounds: u32,
    /// One JSON line instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `kvasir bench store`.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Objects moved over loopback per way and round.
    #[arg(long, default_value_t = 1_024)]
    pub objects: usize,
    /// Bytes of one object; the default is a block of Flash.
    #[arg(long, default_value_t = 113_920)]
    pub object_bytes: usize,
    /// Bytes put on the drive per way and round, in MiB; takes twice that in memory and three times on the drive.
    #[arg(long, default_value_t = 512)]
    pub drive_mebibytes: usize,
    /// Where on the drive; a folder is made below it and removed. The system's folder for temporary files when none is given.
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Rounds after one that warms up.
    #[arg(long, default_value_t = 5)]
    pub rounds: u32,
    /// One JSON line instead of tables.
    #[arg(long)]
    pub json: bool,
}

async fn ladder(
    args: LadderArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let options = LadderOptions {
        url: args.url,
        admins: args.admin,
        api_key: args.api_key,
        model: args.model,
        prompt_tokens: args.prompt_tokens,
    };
    let mut lines = Vec::new();
    let report = run_ladder(&options, clock, |rung| {
        let line = describe(rung);
        if args.json { console.progress(&line) } else { lines.push(console.line(&line)) }
    })
    .await?;
    lines.into_iter().collect::<Result<Vec<()>, _>>()?;
    if args.json {
        console.line(&serde_json::to_string(&report)?)?;
    }
    Ok(())
}
