//! Settings of the object store, its address and its credentials.

use std::fmt;
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::disk::format::{PAGE, wide};

/// Longest file of credentials: a service account's key has 2.4 KB.
const CREDENTIALS_BYTES_MAX: u64 = 64 << 10;

/// How the object store below the drive is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectConfig {
    /// Where the objects lie: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///folder` for a
    /// mounted one, which must be there. Empty: there is no object store, and the other settings mean nothing. Default: empty.
    pub url: String,
    /// The server's address when it is not that of the cloud: `https://host:port`. Of S3, Azure and Google alike; buckets
    /// are named in the path. Default: empty, the cloud's own.
    pub endpoint: String,
    /// The region of an S3 bucket. Default: `us-east-1`, which other servers than Amazon's take, too.
    pub region: String,
    /// Whether the endpoint may be spoken to without TLS, for servers on the same host or network. Default: false.
    pub allow_http: bool,
    /// A file with the credentials, that nobody but its owner may read. For S3 lines `access_key_id = "..."`,
    /// `secret_access_key = "..."` and perhaps `session_token = "..."`, for Azure `account = "..."` and
    /// `account_key = "..."`, for Google the JSON key of a service account. Default: empty; S3 and Google then ask the
    /// machine's metadata service.
    pub credentials_file: PathBuf,
    /// The name under which this node's objects lie: a node that has lost its drive gets its blocks back by its name. Two nodes
    /// must not have the same one. 1 to 128 letters, digits, `-`, `_` and `.`. Given by the node, not by the operator.
    pub node: String,
    /// How long a segment stays in the object store after its newest write, in hours. Range: 1 to 87,600, ten years. Default:
    /// 168, a week.
    pub retention_hours: u64,
    /// Bytes of all objects of this node; 0 is no bound. Default: 0. What is on no drive any more leaves first, oldest first;
    /// then uploads wait.
    pub bytes_max: u64,
    /// Bytes of one part of an upload. Range: 5 MiB to 64 MiB, whole pages of 4,096. Default: 8 MiB. Servers of Amazon take
    /// no smaller ones, and 10,000 of an object.
    pub part_bytes: u64,
    /// Parts that are being sent at a time, of one segment. Range: 1 to 64. Default: 4. Each takes `part_bytes` of memory.
    pub parts_max: usize,
    /// Range reads at a time. Range: 1 to 256. Default: 16. Each takes up to 8 MiB of memory.
    pub gets_max: usize,
    /// Blocks that may be read or wait for it at a time. Range: 1 to 65,536. Default: 2,048; see `reads_max` of the drive.
    pub reads_max: usize,
    /// How long one read may take, its retries included, in milliseconds. Range: 10 to 60,000. Default: 2,000: longer than
    /// any lookup waits; what comes later than that is in memory for the next one.
    pub read_ms_max: u64,
    /// How often a request is tried again, within its time. Range: 0 to 10. Default: 2.
    pub retries_max: usize,
    /// Segments that are listed and read in at a start; others of that prefix are left alone. Range: 1 to 1,048,576. Default:
    /// 65,536, which is 16 TiB.
    pub segments_max: usize,
}

impl Default for ObjectConfig {
    /// No object store, and the defaults documented at the fields.
    fn default() -> Self {
        Self {
            url: String::new(),
            endpoint: String::new(),
            region: "us-east-1".to_owned(),
            allow_http: false,
            credentials_file: PathBuf::new(),
            node: String::new(),
            retention_hours: 168,
            bytes_max: 0,
            part_bytes: 8 << 20,
            parts_max: 4,
            gets_max: 16,
            reads_max: 2_048,
            read_ms_max: 2_000,
            retries_max: 2,
            segments_max: 65_536,
        }
    }
}

impl ObjectConfig {
    /// Whether there is an object store.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.url.is_empty()
    }

    /// Checks the ranges and the address. Touches no file and no network. The node's name is checked at the start.
    ///
    /// # Errors
    /// [`ObjectError::Config`] with the first setting that is out of its range.
    pub fn check(&self) -> Result<(), ObjectError> {
        if !self.is_on() {
            return Ok(());
        }
        let place = Place::parse(&self.url)?;
        if !self.endpoint.is_empty() {
            let plain = self.endpoint.starts_with("http://");
            if !plain && !self.endpoint.starts_with("https://") {
                return Err(refused("endpoint", &self.endpoint, "https://host:port"));
            }
            if plain && !self.allow_http {
                return Err(refused("endpoint", &self.endpoint, "https, or allow_http = true"));
            }
        }
        if place.kind == Kind::Azure && self.credentials_file.as_os_str().is_empty() {
            return Err(refused(
                "credentials_file",
                "empty",
                "a file with account and account_key",
            ));
        }
        let settings: [(&'static str, u64, RangeInclusive<u64>, &'static str); 7] = [
            ("retention_hours", self.retention_hours, 1..=87_600, "1 to 87,600"),
            ("part_bytes", self.part_bytes, 5 << 20..=64 << 20, "5 MiB to 64 MiB, whole pages"),
            ("parts_max", wide(self.parts_max), 1..=64, "1 to 64"),
            ("gets_max", wide(self.gets_max), 1..=256, "1 to 256"),
            ("reads_max", wide(self.reads_max), 1..=65_536, "1 to 65,536"),
            ("read_ms_max", self.read_ms_max, 10..=60_000, "10 to 60,000"),
            ("segments_max", wide(self.segments_max), 1..=1 << 20, "1 to 1,048,576"),
        ];
        for (field, found, range, expected) in settings {
            if !range.contains(&found) {
                return Err(refused(field, found, expected));
            }
        }
        if 10 < self.retries_max {
            return Err(refused("retries_max", self.retries_max, "0 to 10"));
        }
        if !self.part_bytes.is_multiple_of(PAGE) {
            return Err(refused("part_bytes", self.part_bytes, "a multiple of 4,096"));
        }
        Ok(())
    }

    /// Checks the name under which objects are put.
    pub(super) fn check_node(&self) -> Result<(), ObjectError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let named = (1..=128).contains(&self.node.len())
            && self.node.bytes().all(plain)
            && !self.node.bytes().all(|byte| byte == b'.');
        let expected = "1 to 128 letters, digits, '-', '_' and '.'";
        named.then_some(()).ok_or_else(|| refused("node", &self.node, expected))
    }

    /// Seconds after its newest write when a segment leaves.
    pub(super) fn retention_s(&self) -> u64 {
        self.retention_hours * 3_600
    }
}

/// Whose protocol is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    Google,
    Azure,
    Folder,
}

/// An address, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// The bucket or container; of a folder its path.
    pub(super) bucket: String,
    /// What all keys begin with, without slashes at its ends. Empty for a folder.
    pub(super) prefix: String,
}

impl Place {
    pub(super) fn parse(url: &str) -> Result<Self, ObjectError> {
        let expected =
            "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder";
        let wrong = || refused("url", url, expected);
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let kind = match scheme {
            "s3" => Kind::S3,
            "gs" => Kind::Google,
            "az" => Kind::Azure,
            "file" => {
                let absolute = rest.starts_with('/') && 1 < rest.len();
                let place =
                    Self { kind: Kind::Folder, bucket: rest.to_owned(), prefix: String::new() };
                return absolute.then_some(place).ok_or_else(wrong);
            }
            _ => return Err(wrong()),
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(plain) {
            return Err(wrong());
        }
        let prefix = prefix.trim_matches('/');
        let clean = prefix.is_empty()
            || prefix.split('/').all(|part| {
                !part.is_empty() && part != "." && part != ".." && part.bytes().all(plain)
            });
        if !clean {
            return Err(wrong());
        }
        Ok(Self { kind, bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

/// What a server asks for. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// An access key's id, or an account's name.
    pub(super) id: String,
    /// The secret, or the whole JSON key of a service account. Empty: those of the machine are used.
    pub(super) secret: String,
    /// Of a session, if there is one.
    pub(super) token: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a file that only its owner can read. An empty path is no credentials. Blocks.
    pub(super) fn read(path: &Path, kind: Kind) -> Result<Self, ObjectError> {
        if path.as_os_str().is_empty() || kind == Kind::Folder {
            return Ok(Self::default());
        }
        let failed = |source| ObjectError::Credentials { path: path.to_owned(), source };
        let wrong = |why: &str| failed(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()));
        let metadata = fs::metadata(path).map_err(failed)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(wrong("others may read it; run chmod 600 on it"));
        }
        if CREDENTIALS_BYTES_MAX < metadata.len() {
            return Err(wrong("it is longer than 64 KiB"));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        match kind {
            Kind::Google if text.trim().is_empty() => Err(wrong("it is empty")),
            Kind::Google => Ok(Self { secret: text, ..Self::default() }),
            Kind::S3 => Self::parse(&text, "access_key_id", "secret_access_key")
                .ok_or_else(|| wrong("expected lines with access_key_id and secret_access_key")),
            Kind::Azure | Kind::Folder => Self::parse(&text, "account", "account_key")
                .ok_or_else(|| wrong("expected lines with account and account_key")),
        }
    }

    /// Lines `key = value`, quoted or not, as TOML and the files of the clouds' own tools have them.
    fn parse(text: &str, id_key: &str, secret_key: &str) -> Option<Self> {
        let mut found = Self::default();
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim().trim_matches('"').to_owned();
            match key.trim().trim_start_matches("aws_") {
                key if key == id_key => found.id = value,
                key if key == secret_key => found.secret = value,
                "session_token" => found.token = value,
                _ => {}
            }
        }
        (!found.id.is_empty() && !found.secret.is_empty()).then_some(found)
    }
}

/// Why an object store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A setting is out of its range.
    #[error("object store: {field} is {found}, expected {expected}")]
    Config {
        /// The setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: &'static str,
    },
    /// The file of credentials cannot be used.
    #[error("object store: credentials_file {}: {source}", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The settings make no client: of what they say, something contradicts.
    #[error("object store: {0}")]
    Client(#[from] object_store::Error),
    /// Roots of trust, or a thread, are not to be had.
    #[error("object store: {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn refused(field: &'static str, found: impl ToString, expected: &'static str) -> ObjectError {
    ObjectError::Config { field, found: found.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::{Credentials, Kind, ObjectConfig, ObjectError, Place};

    #[test]
    fn addresses_are_taken_apart_or_refused() {
        let place = |kind, bucket: &str, prefix: &str| Place {
            kind,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        };
        let cases = [
            ("s3://cache", Some(place(Kind::S3, "cache", ""))),
            ("s3://cache/a/b/", Some(place(Kind::S3, "cache", "a/b"))),
            ("gs://cache.x/a", Some(place(Kind::Google, "cache.x", "a"))),
            ("az://box/a", Some(place(Kind::Azure, "box", "a"))),
            ("file:///mnt/cache", Some(place(Kind::Folder, "/mnt/cache", ""))),
            ("file://mnt/cache", None),
            ("file:///", None),
            ("s3:/cache", None),
            ("http://host/cache", None),
            ("s3:///a", None),
            ("s3://cache/a/../b", None),
            ("s3://user:secret@cache", None),
        ];
        for (url, expected) in cases {
            assert_eq!(Place::parse(url).ok(), expected, "{url}");
        }
    }

    #[test]
    fn settings_out_of_range_are_named_and_those_of_no_store_mean_nothing() {
        let on = || ObjectConfig { url: "s3://cache".to_owned(), ..ObjectConfig::default() };
        assert!(on().check().is_ok());
        assert!(ObjectConfig { gets_max: 0, ..ObjectConfig::default() }.check().is_ok());
        let cases = [
            (ObjectConfig { url: "cache".to_owned(), ..on() }, "url"),
            (ObjectConfig { endpoint: "host:9000".to_owned(), ..on() }, "endpoint"),
            (ObjectConfig { endpoint: "http://host:9000".to_owned(), ..on() }, "endpoint"),
            (ObjectConfig { url: "az://box".to_owned(), ..on() }, "credentials_file"),
            (ObjectConfig { retention_hours: 0, ..on() }, "retention_hours"),
            (ObjectConfig { part_bytes: 1 << 20, ..on() }, "part_bytes"),
            (ObjectConfig { part_bytes: (8 << 20) + 1, ..on() }, "part_bytes"),
            (ObjectConfig { parts_max: 65, ..on() }, "parts_max"),
            (ObjectConfig { gets_max: 0, ..on() }, "gets_max"),
            (ObjectConfig { reads_max: 0, ..on() }, "reads_max"),
            (ObjectConfig { read_ms_max: 1, ..on() }, "read_ms_max"),
            (ObjectConfig { retries_max: 11, ..on() }, "retries_max"),
            (ObjectConfig { segments_max: 0, ..on() }, "segments_max"),
        ];
        for (config, named) in cases {
            let Err(ObjectError::Config { field, .. }) = config.check() else { panic!("{named}") };
            assert_eq!(field, named);
        }
        for (node, good) in [("", false), ("store-1.a_b", true), ("a/b", false), ("..", false)] {
            let config = ObjectConfig { node: node.to_owned(), ..on() };
            assert_eq!(config.check_node().is_ok(), good, "{node}");
        }
    }

    #[test]
    fn credentials_are_read_from_a_private_file_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("credentials");
        let cases = [
            (
                Kind::S3,
                "access_key_id = \"id\"\nsecret_access_key = \"key\"\n",
                Some(("id", "key")),
            ),
            (
                Kind::S3,
                "[default]\naws_access_key_id=id\naws_secret_access_key=k=\n",
                Some(("id", "k=")),
            ),
            (Kind::S3, "access_key_id = \"id\"\n", None),
            (Kind::Azure, "account = \"id\"\naccount_key = \"key==\"\n", Some(("id", "key=="))),
            (Kind::Google, "{\"private_key\": 1}", Some(("", "{\"private_key\": 1}"))),
            (Kind::Google, " ", None),
        ];
        for (kind, text, expected) in cases {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            let read = Credentials::read(&path, kind).ok();
            let found = read.as_ref().map(|read| (read.id.as_str(), read.secret.as_str()));
            assert_eq!(found, expected, "{text}");
            assert!(!format!("{read:?}").contains("key"), "{read:?}");
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            let error = Credentials::read(&path, kind).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && !error.contains("\"id\""), "{error}");
        }
        let none = Credentials::read(&PathBuf::new(), Kind::S3).unwrap();
        assert_eq!(none, Credentials::default());
    }
}
