//! Settings of the public port: who may connect, how, and how much a connection may ask before its first request.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use shared::Clock;

use crate::lanes::{BusyPoll, LANES_MAX, LaneThreads, processors};

/// The public port. Paths are relative to the configuration's folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// File of API keys, written by `kvasir keys`, chmod 600. It is read again when it changes; a bad one changes nothing.
    /// Default "": anybody who can connect is answered, as the tenant `default`.
    pub keys_file: PathBuf,
    /// Certificates of the public port, PEM, its own first. Read again when it changes. Default "": no TLS.
    pub certificate_file: PathBuf,
    /// The private key that belongs to them, PEM, chmod 600. Default "".
    pub key_file: PathBuf,
    /// Lets anybody on the network be answered without an API key, as when a proxy checks them. Default false.
    pub insecure_public_without_keys: bool,
    /// Lets prompts, answers and keys cross the network in the clear, as behind a proxy that ends TLS. Default false.
    pub insecure_public_without_tls: bool,
    /// Threads that read, answer and pass on clients' requests, each with a connection of its own to every worker, 0 to 16.
    /// Default 0: as many as the process may use processors, of 16 at most.
    pub threads: usize,
    /// How long such a thread looks for more work before it sleeps, where its last four waits were shorter than that, in
    /// microseconds, 0 to 10,000. Default 200: longer than the way to a worker and back on one machine. 0: it sleeps at once. At
    /// most half of the processors are used for it.
    pub busy_poll_us: u64,
    /// Connections at once, 1 to 1,000,000. Default 4096: four for each request in work. Beyond it connections are closed as they
    /// come. The process needs as many file descriptors, and those to workers.
    pub connections_max: usize,
    /// Bytes of a request's line and headers, 8,192 to 262,144. Default 65536: more than any client library sends. Answered 431.
    pub header_bytes_max: usize,
    /// Headers of a request, 16 to 1,024. Default 128: client libraries send two dozen. Answered 431.
    pub headers_max: usize,
    /// How long a connection may wait between requests and for the whole head of one, in milliseconds, 1 to 3,600,000. Default
    /// 75000: clients keep connections for about a minute, and one that is closed under them costs a retry.
    pub header_wait_ms_max: u64,
    /// How long a client may take to receive what was sent, in milliseconds, 1,000 to 3,600,000; then its connection is cut.
    /// Default 60000: a client that reads at all takes some of it in much less.
    pub write_wait_ms_max: u64,
    /// How long a TLS handshake may take, in milliseconds, 1 to 600,000. Default 10000: slow networks take seconds.
    pub handshake_ms_max: u64,
}

impl Default for HttpConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            keys_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
            insecure_public_without_keys: false,
            insecure_public_without_tls: false,
            threads: 0,
            busy_poll_us: 200,
            connections_max: 4_096,
            header_bytes_max: 65_536,
            headers_max: 128,
            header_wait_ms_max: 75_000,
            write_wait_ms_max: 60_000,
            handshake_ms_max: 10_000,
        }
    }
}

impl HttpConfig {
    /// Whether API keys are asked for.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys_file.as_os_str().is_empty()
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        !self.certificate_file.as_os_str().is_empty()
    }

    /// Starts the threads of requests.
    ///
    /// # Errors
    /// When the system has none to give.
    pub(crate) fn start_threads(&self, clock: &Arc<dyn Clock>) -> anyhow::Result<LaneThreads> {
        let busy = BusyPoll::new(self.busy_poll_us, processors(), clock);
        LaneThreads::start(self.threads, busy.as_ref()).context("the threads of requests")
    }

    /// Takes the paths as seen from the folder of the file that names them.
    pub(super) fn resolve(&mut self, file: &Path) {
        let Some(folder) = file.parent() else { return };
        for path in [&mut self.keys_file, &mut self.certificate_file, &mut self.key_file] {
            if !path.as_os_str().is_empty() {
                *path = folder.join(&*path);
            }
        }
    }

    /// Checks the values. Touches no file.
    ///
    /// # Errors
    /// Names the first one out of its range.
    pub fn check(&self) -> anyhow::Result<()> {
        let ranges = [
            ("threads", self.threads <= LANES_MAX, "0..=16"),
            ("busy_poll_us", self.busy_poll_us <= 10_000, "0..=10000"),
            ("connections_max", (1..=1_000_000).contains(&self.connections_max), "1..=1000000"),
            (
                "header_bytes_max",
                (8_192..=1 << 18).contains(&self.header_bytes_max),
                "8192..=262144",
            ),
            ("headers_max", (16..=1_024).contains(&self.headers_max), "16..=1024"),
            (
                "header_wait_ms_max",
                (1..=3_600_000).contains(&self.header_wait_ms_max),
                "1..=3600000",
            ),
            (
                "write_wait_ms_max",
                (1_000..=3_600_000).contains(&self.write_wait_ms_max),
                "1000..=3600000",
            ),
            ("handshake_ms_max", (1..=600_000).contains(&self.handshake_ms_max), "1..=600000"),
        ];
        for (field, holds, expected) in ranges {
            ensure!(holds, "http.{field} is out of range: expected {expected}");
        }
        ensure!(
            self.has_tls() != self.key_file.as_os_str().is_empty(),
            "http.certificate_file and http.key_file belong together; set both or none"
        );
        Ok(())
    }

    /// Checks that clients of a network are met with keys and TLS, or that the operator said loudly that they are not.
    ///
    /// # Errors
    /// What to do.
    pub fn check_public(&self, name: &str, address: SocketAddr) -> anyhow::Result<()> {
        if address.ip().is_loopback() {
            return Ok(());
        }
        let port = address.port();
        if !self.has_keys() && !self.insecure_public_without_keys {
            bail!(
                "{name} is {address}, where anybody could use this server: set http.keys_file (kvasir keys add makes it), or a \
                 loopback address such as 127.0.0.1:{port}, or http.insecure_public_without_keys = true if a proxy checks keys"
            );
        }
        if !self.has_tls() && !self.insecure_public_without_tls {
            bail!(
                "{name} is {address}, where keys and prompts would be sent in the clear: set http.certificate_file and \
                 http.key_file, or a loopback address such as 127.0.0.1:{port}, or http.insecure_public_without_tls = true if a \
                 proxy ends TLS"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::HttpConfig;
    use crate::config::Config;

    #[test]
    fn a_public_address_needs_keys_and_tls_or_a_loud_word_for_each() {
        let keys = "keys_file = \"k\"\n";
        let tls = "certificate_file = \"c\"\nkey_file = \"p\"\n";
        let (no_keys, no_tls) =
            ("insecure_public_without_keys = true\n", "insecure_public_without_tls = true\n");
        let cases = [
            (String::new(), Some("http.keys_file")),
            (keys.to_owned(), Some("http.certificate_file")),
            (tls.to_owned(), Some("http.keys_file")),
            (format!("{keys}{tls}"), None),
            (format!("{no_keys}{tls}"), None),
            (format!("{keys}{no_tls}"), None),
            (no_keys.to_owned(), Some("http.certificate_file")),
            (no_tls.to_owned(), Some("http.keys_file")),
            (format!("{no_keys}{no_tls}"), None),
        ];
        for (http, refused) in cases {
            for (listen, expected) in
                [("0.0.0.0:80", refused), ("[::]:80", refused), ("127.0.0.1:80", None)]
            {
                let text = format!("[server]\nlisten = \"{listen}\"\n[http]\n{http}");
                match (Config::parse(&text), expected) {
                    (Ok(_), None) => {}
                    (Err(error), Some(word)) => {
                        let error = format!("{error:#}");
                        assert!(error.contains(word) && !error.contains('\n'), "{text}: {error}");
                    }
                    (parsed, _) => panic!("{text}: {parsed:?}"),
                }
            }
        }
    }

    #[test]
    fn a_routers_own_address_is_public_too() {
        let member = "[[cluster.member]]\nname = \"r\"\nrole = \"router\"\nid = 1\ncontrol = \"127.0.0.1:7001\"\n\
                      admin = \"127.0.0.1:9001\"\nlisten = \"0.0.0.0:80\"\n";
        let error = format!("{:#}", Config::parse(member).unwrap_err());
        assert!(error.contains("listen of r is 0.0.0.0:80"), "{error}");
        let loud =
            "[http]\ninsecure_public_without_keys = true\ninsecure_public_without_tls = true\n";
        assert!(Config::parse(&format!("{loud}{member}")).is_ok());
        let admin = member.replace("127.0.0.1:9001", "0.0.0.0:9001");
        let error = format!("{:#}", Config::parse(&format!("{loud}{admin}")).unwrap_err());
        assert!(error.contains("admin is 0.0.0.0:9001"), "{error}");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let cases = [
            ("threads = 17", "http.threads"),
            ("busy_poll_us = 10001", "http.busy_poll_us"),
            ("connections_max = 0", "http.connections_max"),
            ("header_bytes_max = 100", "http.header_bytes_max"),
            ("headers_max = 1", "http.headers_max"),
            ("header_wait_ms_max = 0", "http.header_wait_ms_max"),
            ("handshake_ms_max = 0", "http.handshake_ms_max"),
            ("key_file = \"p\"", "belong together"),
            ("certificate_file = \"p\"", "belong together"),
            ("insecure = true", "insecure"),
        ];
        for (line, expected) in cases {
            let error = format!("{:#}", Config::parse(&format!("[http]\n{line}\n")).unwrap_err());
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let mut config = HttpConfig { keys_file: "keys.toml".into(), ..HttpConfig::default() };
        config.resolve("/etc/kvasir/kvasir.toml".as_ref());
        assert_eq!(config.keys_file.to_str(), Some("/etc/kvasir/keys.toml"));
        assert_eq!(config.key_file.to_str(), Some(""));
    }
}
