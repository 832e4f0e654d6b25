//! Settings of discovery.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use serde::Deserialize;

/// Where members are found. Every member of a cluster should have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiscoveryConfig {
    /// `static`, `etcd` or `kubernetes`. Default `static`: the members of the configuration file. With the others the file names
    /// this process, and whoever counts until the source has answered for the first time. Read at the start of a process.
    pub backend: DiscoveryBackend,
    /// For `etcd`.
    pub etcd: EtcdConfig,
    /// For `kubernetes`.
    pub kubernetes: KubernetesConfig,
}

/// A kind of source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiscoveryBackend {
    /// The configuration file, read again when it changes.
    #[default]
    Static,
    /// Keys below a prefix, each with its member's lease.
    Etcd,
    /// `EndpointSlices`.
    Kubernetes,
}

/// How etcd is reached, and what is kept there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EtcdConfig {
    /// Its members, `http://HOST:PORT` or `https://HOST:PORT`, 1 to 16; tried in turn. Default `http://127.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// What the keys of this cluster begin with, 1 to 256 characters ending with `/`. Default `/kvasir/`: clusters that share an etcd have
    /// different ones.
    pub prefix: String,
    /// How long a member that does not answer etcd any more stays listed, in seconds, 2 to 3600. Default 10: longer than a pause of
    /// the network, and a member that died is noticed by its links before.
    pub lease_s: u64,
    /// Certificates of the authority of etcd, PEM, relative to the configuration's folder. Default "": with https the cluster's own
    /// authority, and this member's certificate.
    pub ca_file: PathBuf,
    /// With `ca_file`: certificate by which this process proves itself to etcd. Default "": it does not.
    pub certificate_file: PathBuf,
    /// With `certificate_file`: its key, chmod 600.
    pub key_file: PathBuf,
    /// The user of etcd as whom this process asks, who may read and write below the prefix. Default "": etcd asks for none.
    /// With `http://` the password goes over the network as it is.
    pub user: String,
    /// With `user`: file with the password in one line, chmod 600, relative to the configuration's folder.
    pub password_file: PathBuf,
}

/// How the API server is asked, and for what.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// The API server. Default `https://kubernetes.default.svc`, as every pod reaches it; `http://` is for `kubectl proxy`.
    pub api: String,
    /// Namespace of the slices. Default "": that of the service account.
    pub namespace: String,
    /// Label selector of the cluster's slices. Default `app.kubernetes.io/name=kvasir`; slices have the labels of their service.
    pub selector: String,
    /// Label of a slice that says the role of its endpoints: `router`, `prefill`, `decode` or `kvstore`. Default `kvasir/role`.
    pub role_label: String,
    /// Folder with `token`, `ca.crt` and `namespace` of a service account that may list and watch endpointslices. Default
    /// `/var/run/secrets/kubernetes.io/serviceaccount`, where pods have it.
    pub account: PathBuf,
}

impl Default for EtcdConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            prefix: "/kvasir/".to_owned(),
            lease_s: 10,
            ca_file: PathBuf::new(),
            certificate_file: PathBuf::new(),
            key_file: PathBuf::new(),
            user: String::new(),
            password_file: PathBuf::new(),
        }
    }
}

impl Default for KubernetesConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            api: "https://kubernetes.default.svc".to_owned(),
            namespace: String::new(),
            selector: "app.kubernetes.io/name=kvasir".to_owned(),
            role_label: "kvasir/role".to_owned(),
            account: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
        }
    }
}

impl DiscoveryConfig {
    /// Makes paths that the file gives relative to itself absolute.
    pub(crate) fn resolve(&mut self, file: &Path) {
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        let etcd = &mut self.etcd;
        let files = [
            &mut etcd.ca_file,
            &mut etcd.certificate_file,
            &mut etcd.key_file,
            &mut etcd.password_file,
        ];
        for path in files {
            if !path.as_os_str().is_empty() {
                *path = folder.join(&*path);
            }
        }
        let account = &mut self.kubernetes.account;
        *account = folder.join(&*account);
    }

    /// Checks the values. Touches neither files nor the network.
    ///
    /// # Errors
    /// Names the first one that cannot be.
    pub fn check(&self) -> anyhow::Result<()> {
        let EtcdConfig {
            endpoints,
            prefix,
            lease_s,
            ca_file,
            certificate_file,
            key_file,
            user,
            password_file,
        } = &self.etcd;
        ensure!(
            (1..=16).contains(&endpoints.len()),
            "discovery.etcd.endpoints has {} entries, expected 1 to 16",
            endpoints.len()
        );
        for endpoint in endpoints {
            check_url("discovery.etcd.endpoints", endpoint)?;
        }
        ensure!(
            (1..=256).contains(&prefix.len()) && prefix.ends_with('/'),
            "discovery.etcd.prefix is \"{prefix}\", expected 1 to 256 characters ending with /"
        );
        ensure!(
            (2..=3_600).contains(lease_s),
            "discovery.etcd.lease_s is {lease_s}, expected 2..=3600"
        );
        let set = |path: &PathBuf| !path.as_os_str().is_empty();
        ensure!(
            set(certificate_file) == set(key_file) && (set(ca_file) || !set(certificate_file)),
            "discovery.etcd has some of ca_file, certificate_file and key_file; set all, ca_file alone, or none"
        );
        ensure!(
            user.is_empty() != set(password_file),
            "discovery.etcd has one of user and password_file; set both or none"
        );
        check_url("discovery.kubernetes.api", &self.kubernetes.api)?;
        ensure!(
            !self.kubernetes.role_label.is_empty(),
            "discovery.kubernetes.role_label is empty; set the label that says the role"
        );
        Ok(())
    }
}

/// A URL of scheme, host and maybe a port, and nothing behind it.
fn check_url(key: &str, url: &str) -> anyhow::Result<()> {
    match Target::parse(url) {
        Some(_) => Ok(()),
        None => bail!("{key} has \"{url}\", expected http://HOST:PORT or https://HOST:PORT"),
    }
}

/// A host to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) is_tls: bool,
    /// Without brackets, where it is an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    /// The target of a URL without a path; ports 80 and 443 where it names none.
    pub(super) fn parse(url: &str) -> Option<Self> {
        let (is_tls, rest) = match url.strip_prefix("https://") {
            Some(rest) => (true, rest),
            None => (false, url.strip_prefix("http://")?),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return None;
        }
        let default_port = if is_tls { 443 } else { 80 };
        let (host, port) = if let Some(inside) = rest.strip_prefix('[') {
            let (host, port) = inside.split_once(']')?;
            (host, port.strip_prefix(':'))
        } else {
            rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)))
        };
        let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
        (!host.is_empty()).then(|| Self { is_tls, host: host.to_owned(), port })
    }

    /// As it stands in a URL.
    pub(super) fn authority(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::{DiscoveryConfig, Target};

    #[test]
    fn targets_are_scheme_host_and_port() {
        let cases = [
            ("http://127.0.0.1:2379", Some((false, "127.0.0.1", 2_379))),
            ("https://etcd.local/", Some((true, "etcd.local", 443))),
            ("http://[::1]:80", Some((false, "::1", 80))),
            ("https://[::1]", Some((true, "::1", 443))),
            ("etcd:2379", None),
            ("http://", None),
            ("http://a:b", None),
            ("http://a/v3", None),
            ("http://u@a", None),
        ];
        for (url, expected) in cases {
            let expected =
                expected.map(|(is_tls, host, port)| Target { is_tls, host: host.to_owned(), port });
            assert_eq!(Target::parse(url), expected, "{url}");
        }
        let target = Target::parse("http://[::1]").unwrap();
        assert_eq!(target.authority(), "[::1]:80");
    }

    #[test]
    fn faults_name_the_key() {
        let cases = [
            ("[etcd]\nendpoints = []\n", "discovery.etcd.endpoints"),
            ("[etcd]\nendpoints = [\"a:1\"]\n", "http://HOST:PORT"),
            ("[etcd]\nprefix = \"kvasir\"\n", "discovery.etcd.prefix"),
            ("[etcd]\nlease_s = 1\n", "discovery.etcd.lease_s"),
            ("[etcd]\nkey_file = \"a\"\n", "certificate_file"),
            ("[etcd]\nuser = \"a\"\n", "password_file"),
            ("[etcd]\npassword_file = \"a\"\n", "user"),
            ("[etcd]\ncertificate_file = \"a\"\nkey_file = \"b\"\n", "ca_file"),
            ("[kubernetes]\napi = \"k\"\n", "discovery.kubernetes.api"),
            ("[kubernetes]\nrole_label = \"\"\n", "role_label"),
        ];
        for (text, word) in cases {
            let config: DiscoveryConfig = toml::from_str(text).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!(toml::from_str::<DiscoveryConfig>("backend = \"consul\"").is_err());
        DiscoveryConfig::default().check().unwrap();
    }
}
