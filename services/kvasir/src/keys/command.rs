//! `kvasir keys`: adds, lists and revokes API keys. A running server takes the change within a second.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};
use gateway::{KeyHash, check_name, key_secret};
use shared::{Clock, Priority};

use super::{KeyEntry, KeyFile, change};
use crate::clock::random_bytes;
use crate::config::Config;
use crate::console::Console;

/// What `kvasir keys` does.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key and print its secret, once: it is kept nowhere.
    Add(AddArgs),
    /// Show the keys, without their secrets.
    List(WhereArgs),
    /// Take a key away.
    Revoke(RevokeArgs),
}

/// Which file of keys is meant.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhereArgs {
    /// The file of keys.
    #[arg(long, conflicts_with = "config")]
    file: Option<PathBuf>,
    /// A configuration that names it (http.keys_file).
    #[arg(long)]
    config: Option<PathBuf>,
}

/// Options of `kvasir keys add`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    at: WhereArgs,
    /// What the key is called in logs and in this file.
    #[arg(long)]
    name: String,
    /// Whose requests it marks; tenants share no cache.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The class of its requests, and the most urgent one they can ask for.
    #[arg(long)]
    priority: Option<PriorityArg>,
    /// Requests in work at once; 0 is no bound.
    #[arg(long, default_value_t = 0)]
    requests_in_flight: u32,
    /// Requests per minute; 0 is no bound.
    #[arg(long, default_value_t = 0)]
    requests_per_minute: u32,
    /// Tokens of prompts and answers per minute; 0 is no bound.
    #[arg(long, default_value_t = 0)]
    tokens_per_minute: u32,
}

/// Options of `kvasir keys revoke`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    at: WhereArgs,
    /// The key's name.
    name: String,
}

/// A class of requests as it is typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PriorityArg {
    High,
    Normal,
    Low,
}

impl From<PriorityArg> for Priority {
    fn from(priority: PriorityArg) -> Self {
        match priority {
            PriorityArg::High => Self::High,
            PriorityArg::Normal => Self::Normal,
            PriorityArg::Low => Self::Low,
        }
    }
}

impl WhereArgs {
    fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let config =
            self.config.as_ref().context("which keys? say --file KEYS or --config FILE")?;
        let http = Config::read(config)?.http;
        ensure!(http.has_keys(), "{} names no file of keys; set http.keys_file", config.display());
        Ok(http.keys_file)
    }
}

/// Runs one of them. Blocks on the file.
///
/// # Errors
/// When the file cannot be used; the text says what to do.
pub(crate) fn run(
    command: &KeysCommand,
    clock: &dyn Clock,
    console: &mut Console,
) -> anyhow::Result<()> {
    match command {
        KeysCommand::Add(args) => add(args, clock, console),
        KeysCommand::List(args) => list(args, console),
        KeysCommand::Revoke(args) => revoke(args, console),
    }
}

fn add(args: &AddArgs, clock: &dyn Clock, console: &mut Console) -> anyhow::Result<()> {
    let path = args.at.path()?;
    check_name(&args.name)?;
    check_name(&args.tenant)?;
    let secret = key_secret(&random_bytes().context("no random bytes for a key")?);
    let entry = KeyEntry {
        name: args.name.clone(),
        tenant: args.tenant.clone(),
        hash: KeyHash::of(secret.as_bytes()).to_hex(),
        created: clock.unix_seconds(),
        priority: args.priority.map(|priority| Priority::from(priority).as_str().to_owned()),
        requests_in_flight_max: args.requests_in_flight,
        requests_per_minute: args.requests_per_minute,
        tokens_per_minute: args.tokens_per_minute,
    };
    change(&path, |file| {
        file.keys.push(entry);
        Ok(())
    })?;
    console.progress(&format!(
        "added {} for tenant {} to {}; its secret is shown this once:",
        args.name,
        args.tenant,
        path.display()
    ));
    console.line(&secret)?;
    Ok(())
}

fn list(args: &WhereArgs, console: &mut Console) -> anyhow::Result<()> {
    for key in KeyFile::read(&args.path()?)?.keys {
        let bound = |limit: u32| if limit == 0 { "-".to_owned() } else { limit.to_string() };
        console.line(&format!(
            "{} tenant={} created={} priority={} requests_in_flight_max={} requests_per_minute={} tokens_per_minute={}",
            key.name,
            key.tenant,
            key.created,
            key.priority.as_deref().unwrap_or(Priority::Normal.as_str()),
            bound(key.requests_in_flight_max),
            bound(key.requests_per_minute),
            bound(key.tokens_per_minute),
        ))?;
    }
    Ok(())
}

fn revoke(args: &RevokeArgs, console: &mut Console) -> anyhow::Result<()> {
    let path = args.at.path()?;
    let shown = path.display();
    ensure!(path.exists(), "{shown} is not there; no key can be revoked from it");
    change(&path, |file| {
        let before = file.keys.len();
        file.keys.retain(|key| key.name != args.name);
        ensure!(file.keys.len() < before, "{shown} has no key {}; see kvasir keys list", args.name);
        Ok(())
    })?;
    console.line(&format!("revoked {}", args.name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;
    use gateway::KeyHash;

    use super::super::KeyFile;
    use super::{KeysCommand, run};
    use crate::clock::SystemClock;
    use crate::console::Console;

    #[derive(Parser)]
    struct Typed {
        #[command(subcommand)]
        command: KeysCommand,
    }

    /// What a command prints, or its error.
    fn typed(line: &str) -> Result<String, String> {
        let command = Typed::try_parse_from(line.split_whitespace()).unwrap().command;
        let out = tempfile::NamedTempFile::new().unwrap();
        let mut console = Console::new(out.reopen().unwrap(), std::io::sink());
        run(&command, &SystemClock::start(), &mut console).map_err(|error| format!("{error:#}"))?;
        Ok(std::fs::read_to_string(out.path()).unwrap())
    }

    #[test]
    fn a_key_is_added_listed_and_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let file = path.display();
        let secret = typed(&format!(
            "keys add --file {file} --name ci --tenant acme --priority low --requests-per-minute 60"
        ));
        let secret = secret.unwrap();
        let secret = secret.trim();
        assert!(secret.starts_with("sk-kvasir-"), "{secret}");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let keys = KeyFile::read(&path).unwrap().keys;
        assert_eq!(keys[0].hash, KeyHash::of(secret.as_bytes()).to_hex());
        assert!(!std::fs::read_to_string(&path).unwrap().contains(secret));
        let again = typed(&format!("keys add --file {file} --name ci")).unwrap_err();
        assert!(again.contains("twice"), "{again}");
        typed(&format!("keys add --file {file} --name web")).unwrap();
        let listed = typed(&format!("keys list --file {file}")).unwrap();
        assert!(listed.contains("ci tenant=acme") && listed.contains("requests_per_minute=60"));
        assert_eq!(listed.lines().count(), 2, "{listed}");
        assert_eq!(typed(&format!("keys revoke --file {file} ci")).unwrap(), "revoked ci\n");
        let gone = typed(&format!("keys revoke --file {file} ci")).unwrap_err();
        assert!(gone.contains("no key ci"), "{gone}");
        assert_eq!(KeyFile::read(&path).unwrap().keys.len(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys.toml");
        let file = file.display();
        for (line, expected) in [
            (format!("keys add --file {file} --name a/b"), "a/b"),
            (format!("keys add --file {file} --name a --tenant ö"), "letters"),
            ("keys add --name a".to_owned(), "--file"),
            (format!("keys revoke --file {file} a"), "not there"),
            (format!("keys list --file {file}"), "cannot be read"),
        ] {
            let error = typed(&line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
