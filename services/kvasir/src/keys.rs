//! The file of API keys: read, checked, written whole, and looked after while a server runs.
//!
//! Invariants: no secret is in it, only hashes; others cannot read it all the same, for it says who the tenants are. It is
//! replaced by a rename, so that nobody ever reads half of one.

mod command;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use gateway::{ApiKey, KeyHash, KeyRing, RateLimits};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use shared::{Priority, TenantId};
use tempfile::NamedTempFile;

use crate::file_watch::FileWatch;

pub(crate) use command::{KeysCommand, run};

/// Longest file that is read: 65,536 keys with every field take half of it.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// All keys of a file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default, rename = "key")]
    keys: Vec<KeyEntry>,
}

/// A key as the file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    tenant: String,
    /// Of the secret, 64 hexadecimal digits.
    hash: String,
    /// Unix seconds.
    created: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    priority: Option<String>,
    #[serde(default, skip_serializing_if = "is_unbounded")]
    requests_in_flight_max: u32,
    #[serde(default, skip_serializing_if = "is_unbounded")]
    requests_per_minute: u32,
    #[serde(default, skip_serializing_if = "is_unbounded")]
    tokens_per_minute: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_unbounded(limit: &u32) -> bool {
    *limit == 0
}

impl KeyEntry {
    fn key(&self) -> anyhow::Result<ApiKey> {
        let name = &self.name;
        let hash = KeyHash::from_hex(&self.hash).with_context(|| {
            format!(
                "the hash of key {name} is no 64 hexadecimal digits; revoke it and add another one"
            )
        })?;
        let priority = match &self.priority {
            None => Priority::Normal,
            Some(word) => Priority::parse(word).with_context(|| {
                format!("the priority of key {name} is none of: high, normal, low")
            })?,
        };
        Ok(ApiKey {
            name: name.clone(),
            tenant: TenantId(self.tenant.as_str().into()),
            hash,
            priority,
            limits: RateLimits {
                requests_in_flight_max: self.requests_in_flight_max,
                requests_per_minute: self.requests_per_minute,
                tokens_per_minute: self.tokens_per_minute,
            },
        })
    }
}

impl KeyFile {
    /// Reads a file that others cannot read.
    fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let metadata = fs::metadata(path).with_context(|| {
            format!("{shown} cannot be read; make it with kvasir keys add --file {shown}")
        })?;
        ensure!(
            metadata.permissions().mode() & 0o077 == 0,
            "{shown} can be read by others; run chmod 600 on it"
        );
        ensure!(
            metadata.len() <= FILE_BYTES_MAX,
            "{shown} is larger than 64 MiB, which no file of keys is"
        );
        let text = fs::read_to_string(path).with_context(|| format!("{shown} cannot be read"))?;
        match toml::from_str(&text) {
            Ok(file) => Ok(file),
            // The error would quote a line of the file.
            Err(error) => {
                let line = error.span().map_or(0, |span| {
                    text.get(..span.start).map_or(0, |before| before.lines().count())
                });
                let words: Vec<&str> = error.message().split_whitespace().collect();
                bail!("{shown} is no file of API keys: {} near line {line}", words.join(" "))
            }
        }
    }

    fn ring(&self) -> anyhow::Result<KeyRing> {
        let keys = self.keys.iter().map(KeyEntry::key).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(KeyRing::new(keys)?)
    }

    /// Writes a whole file beside the old one and puts it in its place. Readable by its owner only.
    fn write(&self, path: &Path) -> anyhow::Result<()> {
        let shown = path.display();
        let folder = folder_of(path);
        let text = toml::to_string(self).context("keys cannot be written as TOML")?;
        let write = || {
            // Made with mode 600.
            let mut file = NamedTempFile::new_in(folder)?;
            file.write_all(
                b"# API keys of kvasir; changed by `kvasir keys`. Secrets are not in here.\n",
            )?;
            file.write_all(text.as_bytes())?;
            keep_owner(file.as_file(), path)?;
            file.as_file().sync_all()?;
            file.persist(path)?;
            File::open(folder)?.sync_all()
        };
        write().with_context(|| format!("{shown} cannot be written"))
    }
}

/// Gives a file that takes another one's place its owner, so that whoever serves with it can still read it.
fn keep_owner(file: &File, path: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(path) else { return Ok(()) };
    let new = file.metadata()?;
    if (new.uid(), new.gid()) == (old.uid(), old.gid()) {
        return Ok(());
    }
    fchown(file, Some(old.uid()), Some(old.gid())).map_err(|error| {
        let advice =
            format!("its owner cannot be kept ({error}); run this as the user it belongs to");
        io::Error::new(error.kind(), advice)
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Changes a file while nobody else does. One that is not there is an empty one.
fn change<T>(
    path: &Path,
    change: impl FnOnce(&mut KeyFile) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let folder = folder_of(path);
    let lock =
        File::open(folder).with_context(|| format!("{} cannot be opened", folder.display()))?;
    flock(&lock, FlockOperation::LockExclusive)
        .context("the folder of the keys cannot be locked")?;
    let mut file = if path.exists() { KeyFile::read(path)? } else { KeyFile::default() };
    let changed = change(&mut file)?;
    // Whatever is wrong is told before anything is written.
    file.ring()?;
    file.write(path)?;
    Ok(changed)
}

/// Looks after a file while a server runs.
#[derive(Debug)]
pub(crate) struct KeyWatch(FileWatch);

impl KeyWatch {
    /// Reads the file for the first time. Blocks on it.
    ///
    /// # Errors
    /// When it cannot be used; the text says what to do.
    pub(crate) fn open(path: &Path) -> anyhow::Result<(Self, KeyRing)> {
        let watch = FileWatch::new(&[path]);
        let ring = KeyFile::read(path)?.ring().with_context(|| format!("{}", path.display()))?;
        Ok((Self(watch), ring))
    }

    /// The keys, if the file changed since they were last taken. A fault is told once per change. Blocks on the file.
    pub(crate) fn look(&mut self) -> Option<anyhow::Result<KeyRing>> {
        self.0.look(|paths| KeyFile::read(&paths[0]).and_then(|file| file.ring()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::{KeyFile, KeyWatch};

    fn entry(name: &str, more: &str) -> String {
        format!(
            "[[key]]\nname = \"{name}\"\ntenant = \"acme\"\nhash = \"{}\"\ncreated = 1\n{more}",
            blake3::hash(name.as_bytes()).to_hex()
        )
    }

    #[test]
    fn a_changed_file_is_taken_and_a_bad_one_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let write = |text: &str, mode| {
            // As `kvasir keys` does it: by another file.
            let other = folder.path().join("other");
            fs::write(&other, text).unwrap();
            fs::set_permissions(&other, fs::Permissions::from_mode(mode)).unwrap();
            fs::rename(&other, &path).unwrap();
        };
        assert!(KeyWatch::open(&path).unwrap_err().to_string().contains("kvasir keys add"));
        write(&entry("a", ""), 0o600);
        let (mut watch, ring) = KeyWatch::open(&path).unwrap();
        assert_eq!(ring.len(), 1);
        assert!(watch.look().is_none());
        let bad = [
            (entry("b", "").replace("acme", ""), 0o600, "name"),
            (entry("b", "tokens = 5\n"), 0o600, "tokens"),
            (entry("b", "priority = \"urgent\"\n"), 0o600, "priority"),
            (entry("b", "").replace("hash = \"", "hash = \"x"), 0o600, "hash"),
            (entry("b", "") + &entry("b", ""), 0o600, "twice"),
            ("[[key]\n".to_owned(), 0o600, "line"),
            (entry("b", ""), 0o644, "chmod"),
        ];
        for (text, mode, expected) in bad {
            write(&text, mode);
            let error = format!("{:#}", watch.look().unwrap().unwrap_err());
            assert!(error.contains(expected) && !error.contains('\n'), "{expected}: {error}");
            assert!(watch.look().is_none(), "it is told once");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(watch.look().unwrap().unwrap().len(), 1, "permissions are a change too");
        fs::remove_file(&path).unwrap();
        assert!(watch.look().unwrap().is_err());
        assert!(watch.look().is_none());
    }

    #[test]
    fn every_field_of_a_key_reaches_the_gateway() {
        let more = "priority = \"low\"\nrequests_in_flight_max = 1\nrequests_per_minute = 2\ntokens_per_minute = 3\n";
        let file: KeyFile = toml::from_str(&entry("a", more)).unwrap();
        let key = file.keys[0].key().unwrap();
        let limits = key.limits;
        let numbers =
            [limits.requests_in_flight_max, limits.requests_per_minute, limits.tokens_per_minute];
        assert_eq!((numbers, key.priority), ([1, 2, 3], shared::Priority::Low));
        let written = toml::to_string(&file).unwrap();
        assert_eq!(toml::from_str::<KeyFile>(&written).unwrap(), file);
    }
}
