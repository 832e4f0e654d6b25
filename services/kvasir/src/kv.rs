//! `kvasir kv`: what an operator does with the segment files of a store node's disk, beside a running store or without one.
//!
//! The commands that only look ([`kvstore::survey`]) run beside a store; `evict`, `rebuild` and `fsck --repair` take its lock
//! and are refused while it runs; `explain` asks running workers. With `--json` every line of the result is one JSON object.
//! Exit status 1 also means damage, or a plan that does not fit.
//!
//! Start reading at [`KvCommand`].

mod check;
mod evict;
mod explain;
mod explain_prompt;
mod list;
mod plan;
mod rebuild;
mod units;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgGroup, Args, Subcommand};
use shared::{BlockName, Clock, RequestId, TenantTag};

use crate::console::Console;

/// What `kvasir kv` does.
#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// List the segments, or all blocks in them.
    Ls(ListArgs),
    /// Show every copy of a block, which one counts, and whether it is intact.
    Inspect(InspectArgs),
    /// Show what the bytes are spent on: states, ages, live and superseded blocks, padding.
    Du(DuArgs),
    /// Check headers, seals, tables and every payload. The catalog too, when the store is stopped; it cannot be started
    /// meanwhile. Exit status 1 when there is damage.
    Fsck(FsckArgs),
    /// Check every payload at a bounded rate; one line at the end. Exit status 1 when there is damage.
    Scrub(ScrubArgs),
    /// Remove segments of a store that is stopped, or all blocks of one tenant.
    Evict(EvictArgs),
    /// Say why each block of a request was cached or not, as its workers remember it, or where the blocks of a prompt are.
    Explain(ExplainArgs),
    /// Make the catalog of a store that is stopped anew from its segments alone.
    Rebuild(FolderArgs),
    /// Say whether drives hold what a token rate writes within a retention. Exit status 1 when not.
    Plan(PlanArgs),
}

/// Options of `kvasir kv du`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DuArgs {
    #[command(flatten)]
    of: FolderArgs,
    /// A line for each tenant's tag instead.
    #[arg(long)]
    tenants: bool,
    /// Tags above this one, 16 hex digits: the last one of the page before.
    #[arg(long, requires = "tenants", value_parser = tenant_tag)]
    after: Option<TenantTag>,
    /// Tags at most.
    #[arg(long, requires = "tenants", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    page: u32,
}

/// Options of `kvasir kv rebuild`, and part of others.
#[derive(Clone, Debug, Args)]
pub(crate) struct FolderArgs {
    /// The folder of the segment files: `disk` of the member in the cluster's file.
    folder: PathBuf,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Options of `kvasir kv ls`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    of: FolderArgs,
    /// A line for each block instead of each segment.
    #[arg(long)]
    records: bool,
}

/// Options of `kvasir kv inspect`.
#[derive(Clone, Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    of: FolderArgs,
    /// The block's name, 32 hex digits.
    #[arg(value_parser = block_name)]
    name: BlockName,
    /// Write the payload of the copy that counts to this file, which must not be there.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Options of `kvasir kv fsck`.
#[derive(Clone, Debug, Args)]
pub(crate) struct FsckArgs {
    #[command(flatten)]
    of: FolderArgs,
    /// Mend what is found; the store must be stopped. Cuts torn ends, takes damaged blocks out of tables, gives files
    /// that cannot be read the name *.damaged, and enters segments anew that the catalog knows wrongly. Removes no file.
    #[arg(long)]
    repair: bool,
    /// Read at most so fast; 0 is no bound.
    #[arg(long, default_value_t = 0)]
    mib_per_s: u64,
}

/// Options of `kvasir kv scrub`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ScrubArgs {
    #[command(flatten)]
    of: FolderArgs,
    /// Read at most so fast.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    mib_per_s: u64,
}

/// Options of `kvasir kv evict`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
#[command(group = ArgGroup::new("where").required(true))]
pub(crate) struct EvictArgs {
    /// The folder of the segment files of a store that is stopped.
    #[arg(group = "where")]
    folder: Option<PathBuf>,
    /// Admin listeners of running store nodes, for example http://127.0.0.1:9103; once per node, with --tenant alone.
    #[arg(long, group = "where", conflicts_with_all = ["all", "older_than", "segment"])]
    admin: Vec<String>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Every block of the tenant of this name, in memory too: none of them is found again, whatever the catalog is made from.
    /// Its bytes leave with their segments; with keys they are unreadable at once. The memory of workers is not
    /// looked through.
    #[arg(long, group = "what")]
    tenant: Option<String>,
    /// The folder of the keys of a store that is stopped, to delete this tenant's: disk.tenant_keys, and the member's name.
    #[arg(long, requires = "tenant", conflicts_with = "admin")]
    tenant_keys: Option<PathBuf>,
    /// Every segment, those that cannot be read included.
    #[arg(long, group = "what")]
    all: bool,
    /// Segments whose newest block is older than this, for example 48h; units are s, m, h and d.
    #[arg(long, group = "what", value_parser = units::seconds)]
    older_than: Option<u64>,
    /// One segment: its number, or the name of its file.
    #[arg(long, group = "what", value_parser = units::segment)]
    segment: Option<u64>,
}

/// Options of `kvasir kv explain`.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub(crate) struct ExplainArgs {
    /// The request: header x-request-id of its answer, or the answer's id.
    #[arg(value_parser = explain::request_id, group = "what")]
    request: Option<RequestId>,
    /// Instead of a request: a file with a chat request in JSON, or with the text of one user message; - is standard input.
    #[arg(long, group = "what", requires = "router")]
    prompt: Option<PathBuf>,
    /// Admin listener of a router, which knows by what names a prompt is looked up.
    #[arg(long, requires = "prompt")]
    router: Option<String>,
    /// Admin listener of a worker, or of a store node for a prompt, for example http://127.0.0.1:9101; once per process.
    #[arg(long, required = true)]
    admin: Vec<String>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Options of `kvasir kv plan`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    /// Size of one drive, or the part of it that the store may use: 7.68TB, 500GiB.
    #[arg(long, value_parser = units::bytes)]
    bytes: u64,
    /// How long blocks are to be kept: 72h, 3d.
    #[arg(long, value_parser = units::seconds, default_value = "72h")]
    retention: u64,
    /// New tokens per second that are written, over all drives.
    #[arg(long)]
    tokens_per_s: u64,
    /// Bytes of one token's blocks, without padding; the default is Flash's.
    #[arg(long, default_value_t = 890, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    bytes_per_token: u32,
    /// Drives of that size.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    drives: u32,
    /// Drive writes per day that the drives are rated for.
    #[arg(long, default_value_t = 1.0)]
    dwpd: f64,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Runs one command; false when it ran but its verdict is bad.
///
/// # Errors
/// When the folder cannot be read, or changed, or the output is closed.
pub(crate) fn run(
    command: &KvCommand,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<bool> {
    let now = clock.unix_seconds();
    match command {
        KvCommand::Ls(args) => list::ls(args, now, console).map(|()| true),
        KvCommand::Inspect(args) => list::inspect(args, now, console),
        KvCommand::Du(args) => usage::du(args, now, console).map(|()| true),
        KvCommand::Fsck(args) => check::fsck(args, clock, console),
        KvCommand::Scrub(args) => check::scrub(args, clock, console),
        KvCommand::Evict(args) => evict::run(args, clock, console).map(|()| true),
        KvCommand::Explain(args) => match (&args.prompt, &args.router, args.request) {
            (Some(prompt), Some(router), _) => {
                explain_prompt::run(args, (prompt, router), clock, console).map(|()| true)
            }
            (_, _, Some(request)) => explain::run(args, request, clock, console).map(|()| true),
            _ => unreachable!("the command line demands one of them"),
        },
        KvCommand::Rebuild(args) => rebuild::run(args, console).map(|()| true),
        KvCommand::Plan(args) => plan::run(args, console),
    }
}

fn tenant_tag(text: &str) -> Result<TenantTag, String> {
    let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let tag = u64::from_str_radix(text, 16).ok().filter(|_| digits);
    tag.map(TenantTag).ok_or_else(|| "a tag has 16 hex digits".to_owned())
}

/// A name as reports write it.
pub(crate) fn block_name(text: &str) -> Result<BlockName, String> {
    let wrong = || "a name has 32 hex digits".to_owned();
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(BlockName(bytes))
}

#[cfg(test)]
mod tests {
    use shared::BlockName;

    use super::block_name;

    #[test]
    fn a_name_is_32_hex_digits() {
        let name = BlockName([0xab; 16]);
        assert_eq!(block_name(&name.to_string()), Ok(name));
        for wrong in ["", "ab", "+0000000000000000000000000000000", &"ä".repeat(16)] {
            assert!(block_name(wrong).is_err(), "{wrong}");
        }
    }
}
