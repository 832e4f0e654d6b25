//! Who the members of a cluster are and where they listen: static discovery.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use shared::{DpRank, WorkerId, WorkerRank};

use crate::identity::{MemberIdentity, MemberRole};

/// Most members of one cluster; the router's table has room for as many.
const MEMBERS_MAX: usize = 512;

/// The cluster as its members know it. The same file serves all of them; each finds itself by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// Folder of the checkpoint. Every role reads it; which parts, its role decides. Default: none, needed by the roles.
    pub model: Option<PathBuf>,
    /// Folder with ca.pem and, for each member that runs here, NAME.pem and NAME.key. Default: none, needed by the roles.
    pub tls: Option<PathBuf>,
    /// The members, 1 to 512. A file that changes is read again: members that were added join, those missing leave.
    pub member: Vec<MemberConfig>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Its name, one label of a domain name, as in its certificate.
    pub name: String,
    /// `router`, `prefill`, `decode` or `kvstore`.
    pub role: String,
    /// Its number, unique in the cluster and the same after a restart. Part of the name of its memory.
    pub id: u32,
    /// Where it listens for gRPC (TCP), and where others reach it.
    pub control: SocketAddr,
    /// Where it listens for reads (UDP, QUIC). Needed by all roles but `router`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<SocketAddr>,
    /// Where it listens for operators: /metrics and /debug. Loopback only.
    pub admin: SocketAddr,
    /// Where clients connect; `router` only. Loopback only while there are no API keys and no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Unix socket by which members of the same host read its memory. Default: none, reads go by QUIC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<PathBuf>,
    /// Folder of its SSD tier; `kvstore` only. Default: none, blocks are kept in memory alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<PathBuf>,
}

impl MemberConfig {
    /// Its role.
    ///
    /// # Panics
    /// When the cluster was not checked.
    #[must_use]
    pub fn role(&self) -> MemberRole {
        MemberRole::parse(&self.role).expect("checked when the file was read")
    }

    /// Role and name, as its certificate has them.
    ///
    /// # Panics
    /// When the cluster was not checked.
    #[must_use]
    pub fn identity(&self) -> MemberIdentity {
        MemberIdentity::new(self.role(), &self.name).expect("checked when the file was read")
    }

    /// The member as the unit of placement. Each process has one rank.
    #[must_use]
    pub fn rank(&self) -> WorkerRank {
        WorkerRank { worker: WorkerId(self.id), rank: DpRank(0) }
    }

    fn check(&self) -> anyhow::Result<()> {
        let Some(role) = MemberRole::parse(&self.role) else {
            bail!("role is \"{}\", expected router, prefill, decode or kvstore", self.role);
        };
        MemberIdentity::new(role, &self.name)?;
        let is_router = role == MemberRole::Router;
        ensure!(
            is_router || self.data.is_some(),
            "data is missing: a {role} is read from; give it an address"
        );
        ensure!(self.listen.is_none() || is_router, "listen is for routers, this is a {role}");
        ensure!(
            self.disk.is_none() || role == MemberRole::Kvstore,
            "disk is for kvstore members, this is a {role}"
        );
        for (key, address) in [("control", Some(self.control)), ("data", self.data)] {
            if let Some(address) = address {
                ensure!(
                    !address.ip().is_unspecified() && address.port() != 0,
                    "{key} is {address}; others dial it, so it needs an address and a port of its own"
                );
            }
        }
        for (key, address) in [("admin", Some(self.admin)), ("listen", self.listen)] {
            if let Some(address) = address {
                ensure!(
                    address.port() != 0,
                    "{key} is {address}; others are told where it is, so it needs a port of its own"
                );
                // Where clients may be met is known with [http].
                ensure!(
                    key == "listen" || address.ip().is_loopback(),
                    "{key} is {address}, but operators are asked for no key; use a loopback address"
                );
            }
        }
        Ok(())
    }
}

impl ClusterConfig {
    /// Checks the members against each other. Touches neither files nor the network.
    ///
    /// # Errors
    /// Names the member and the key that cannot be.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.member.len() <= MEMBERS_MAX,
            "cluster.member has {} entries, at most {MEMBERS_MAX} are possible",
            self.member.len()
        );
        let (mut names, mut ids, mut addresses) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (mut data_addresses, mut paths) = (BTreeSet::new(), BTreeSet::new());
        for member in &self.member {
            let name = &member.name;
            member.check().with_context(|| format!("cluster.member {name}"))?;
            ensure!(names.insert(name), "two members are called {name}; names are unique");
            ensure!(ids.insert(member.id), "{name} has the id {} of another member", member.id);
            if let Some(data) = member.data {
                ensure!(data_addresses.insert(data), "{name} listens on {data} of another member");
            }
            // Paths and loopback addresses of other hosts may be the same.
            let host = member.control.ip();
            for path in [&member.shm, &member.disk].into_iter().flatten() {
                ensure!(
                    paths.insert((host, path)),
                    "{name} has the path {} of another member on this host",
                    path.display()
                );
            }
            let tcp = [Some(member.control), Some(member.admin), member.listen];
            for address in tcp.into_iter().flatten().filter(|address| address.port() != 0) {
                let on = address.ip().is_loopback().then_some(host);
                ensure!(
                    addresses.insert((on, address)),
                    "{name} listens on {address} of another member"
                );
            }
        }
        Ok(())
    }

    /// Makes paths that the file gives relative to itself absolute.
    pub(super) fn resolve(&mut self, file: &Path) {
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        let absolute = |path: &mut PathBuf| *path = folder.join(&*path);
        self.model.iter_mut().for_each(absolute);
        self.tls.iter_mut().for_each(absolute);
        for member in &mut self.member {
            member.shm.iter_mut().for_each(absolute);
            member.disk.iter_mut().for_each(absolute);
        }
    }

    /// The member of this role that a process is: by its name, or the only one there is.
    ///
    /// # Errors
    /// When there is none, or the name is needed.
    pub fn myself(&self, role: MemberRole, name: Option<&str>) -> anyhow::Result<&MemberConfig> {
        let mine: Vec<_> = self.member.iter().filter(|member| member.role() == role).collect();
        match (name, mine.as_slice()) {
            (Some(name), _) => {
                let found = mine.iter().find(|member| member.name == name);
                found.copied().with_context(|| {
                    format!("no {role} is called {name}; add it to [[cluster.member]]")
                })
            }
            (None, [member]) => Ok(member),
            (None, []) => bail!("the file has no {role}; add one to [[cluster.member]]"),
            (None, _) => bail!("the file has {} of role {role}; choose with --name", mine.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::ClusterConfig;
    use crate::identity::MemberRole;

    fn member(name: &str, role: &str, id: u32, more: &str) -> String {
        format!(
            "[[member]]\nname = \"{name}\"\nrole = \"{role}\"\nid = {id}\ncontrol = \"127.0.0.1:{}\"\n\
             admin = \"127.0.0.1:{}\"\n{more}",
            7_000 + id,
            9_000 + id
        )
    }

    fn parse(text: &str) -> anyhow::Result<ClusterConfig> {
        let config: ClusterConfig = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    const DATA: &str = "data = \"127.0.0.1:7100\"\n";

    #[test]
    fn members_are_found_by_name_or_by_being_alone() {
        let text = [
            member("router", "router", 1, "listen = \"127.0.0.1:8000\"\n"),
            member("decode-1", "decode", 2, DATA),
            member("decode-2", "decode", 3, "data = \"127.0.0.1:7101\"\n"),
        ]
        .concat();
        let config = parse(&text).unwrap();
        let myself = |role, name| config.myself(role, name).map(|member| member.id);
        assert_eq!(myself(MemberRole::Router, None).unwrap(), 1);
        assert_eq!(myself(MemberRole::Decode, Some("decode-2")).unwrap(), 3);
        for (role, name, word) in [
            (MemberRole::Decode, None, "--name"),
            (MemberRole::Decode, Some("router"), "router"),
            (MemberRole::Prefill, None, "no prefill"),
        ] {
            let error = myself(role, name).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn faults_name_the_member_and_the_key() {
        let cases = [
            (member("Decode", "decode", 1, DATA), "lower-case"),
            (member("d", "decoder", 1, DATA), "decoder"),
            (member("d", "decode", 1, ""), "data is missing"),
            (member("d", "decode", 1, &format!("{DATA}listen = \"127.0.0.1:1\"\n")), "listen"),
            (member("d", "decode", 1, &format!("{DATA}disk = \"x\"\n")), "disk"),
            (member("d", "decode", 1, "data = \"0.0.0.0:7\"\n"), "data is 0.0.0.0:7"),
            (member("r", "router", 1, "listem = \"0.0.0.0:7\"\n"), "listem"),
            (member("r", "router", 1, "") + &member("r", "router", 2, ""), "two members"),
            (member("d", "decode", 1, DATA) + &member("e", "decode", 2, DATA), "127.0.0.1:7100"),
            (
                member("s", "kvstore", 1, &format!("{DATA}disk = \"x\"\n"))
                    + &member("t", "kvstore", 2, "data = \"127.0.0.1:7101\"\ndisk = \"x\"\n"),
                "path x",
            ),
            (member("r", "router", 1, "") + &member("s", "router", 1, ""), "the id 1"),
            (
                member("r", "router", 1, "")
                    + &member("s", "router", 2, "listen = \"127.0.0.1:7001\"\n"),
                "127.0.0.1:7001",
            ),
        ];
        for (text, word) in cases {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn members_of_two_hosts_may_have_the_same_loopback_addresses() {
        let on = |host: &str, name: &str, id: u32| {
            format!(
                "[[member]]\nname = \"{name}\"\nrole = \"decode\"\nid = {id}\n\
                 control = \"{host}:7001\"\ndata = \"{host}:7002\"\nadmin = \"127.0.0.1:9001\"\n"
            )
        };
        parse(&[on("10.0.0.1", "a", 1), on("10.0.0.2", "b", 2)].concat()).unwrap();
        let same = on("10.0.0.1", "b", 2).replace(":7001", ":7003").replace(":7002", ":7004");
        let error = parse(&[on("10.0.0.1", "a", 1), same].concat()).unwrap_err().to_string();
        assert!(error.contains("127.0.0.1:9001"), "{error}");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = "model = \"m\"\ntls = \"/abs\"\n".to_owned()
            + &member("s", "kvstore", 1, &format!("{DATA}disk = \"d\"\nshm = \"s.sock\"\n"));
        let mut config = parse(&text).unwrap();
        config.resolve(Path::new("/etc/kvasir/cluster.toml"));
        assert_eq!(config.model.as_deref(), Some(Path::new("/etc/kvasir/m")));
        assert_eq!(config.tls.as_deref(), Some(Path::new("/abs")));
        assert_eq!(config.member[0].disk.as_deref(), Some(Path::new("/etc/kvasir/d")));
        assert_eq!(config.member[0].shm.as_deref(), Some(Path::new("/etc/kvasir/s.sock")));
    }
}
