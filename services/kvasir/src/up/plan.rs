//! The plan of a cluster on this machine: members on free loopback ports, their certificates, and the file they all read.
//!
//! Everything lies in one folder: `cluster.toml`, `secret.hex`, `tls/`, `run/` (sockets), `log/`, `disk/`.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use shared::Clock;

use crate::clock::random_bytes;
use crate::config::{Config, MemberConfig};
use crate::identity::{ClusterAuthority, MemberRole};

/// Most members of one role that `up` starts: a machine has not more to give.
pub(super) const REPLICAS_MAX: u16 = 16;
/// Longest path of a unix socket on Linux, less the end mark.
const SOCKET_PATH_MAX: usize = 107;
/// The id of the first member; each role counts on from its own hundred, so that ids stay when replicas are added.
const ROLE_IDS: [(MemberRole, u32); 4] = [
    (MemberRole::Kvstore, 100),
    (MemberRole::Prefill, 200),
    (MemberRole::Decode, 300),
    (MemberRole::Router, 900),
];

/// How many members of each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replicas {
    pub(crate) router: u16,
    pub(crate) prefill: u16,
    pub(crate) decode: u16,
    pub(crate) kvstore: u16,
}

impl Replicas {
    fn of(self, role: MemberRole) -> u16 {
        match role {
            MemberRole::Router => self.router,
            MemberRole::Prefill => self.prefill,
            MemberRole::Decode => self.decode,
            MemberRole::Kvstore => self.kvstore,
        }
    }
}

/// A cluster that can be started.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) folder: PathBuf,
    pub(crate) members: Vec<MemberConfig>,
}

impl Plan {
    /// The file that every member reads.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("cluster.toml")
    }

    /// Where a member's standard error goes.
    pub(crate) fn log(&self, member: &str) -> PathBuf {
        self.folder.join("log").join(format!("{member}.log"))
    }

    /// The members of one role.
    pub(crate) fn role(&self, role: MemberRole) -> impl Iterator<Item = &MemberConfig> {
        self.members.iter().filter(move |member| member.role() == role)
    }
}

/// What a cluster is planned from.
pub(crate) struct Wanted<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) model: &'a Path,
    pub(crate) replicas: Replicas,
    /// Settings of all roles; `[cluster]` is replaced.
    pub(crate) settings: toml::Table,
    /// Where clients connect to the first router; a free port when none is given.
    pub(crate) listen: Option<SocketAddr>,
}

/// Writes everything that a cluster needs into its folder. What is there from an earlier run (secret, authority, disk) is
/// used again; addresses are new.
///
/// # Errors
/// When the folder cannot be written, a number of replicas is out of its range, or a setting is wrong.
pub(crate) fn write(wanted: Wanted<'_>, clock: &Arc<dyn Clock>) -> anyhow::Result<Plan> {
    let Wanted { folder, model, replicas, mut settings, listen } = wanted;
    for (role, _) in ROLE_IDS {
        let count = replicas.of(role);
        // Without a store and without prefill a cluster still answers; without the others it does not.
        let least = u16::from(matches!(role, MemberRole::Router | MemberRole::Decode));
        ensure!(
            (least..=REPLICAS_MAX).contains(&count),
            "--{role} is {count}, expected {least} to {REPLICAS_MAX}"
        );
    }
    for part in ["run", "log", "tls"] {
        make_private(&folder.join(part))?;
    }
    let mut members = Vec::new();
    let mut ports = Ports::default();
    for (role, first_id) in ROLE_IDS {
        for number in 1..=replicas.of(role) {
            let name = format!("{role}-{number}");
            let is_router = role == MemberRole::Router;
            let asked = listen.filter(|listen| is_router && number == 1 && listen.port() != 0);
            let socket = folder.join("run").join(format!("{name}.sock"));
            members.push(MemberConfig {
                role: role.to_string(),
                id: first_id + u32::from(number),
                control: ports.tcp()?,
                data: if is_router { None } else { Some(ports.udp()?) },
                admin: ports.tcp()?,
                listen: if is_router { Some(asked.map_or_else(|| ports.tcp(), Ok)?) } else { None },
                shm: (!is_router && socket.as_os_str().len() <= SOCKET_PATH_MAX).then_some(socket),
                disk: (role == MemberRole::Kvstore).then(|| folder.join("disk").join(&name)),
                name,
            });
        }
    }
    let tls = folder.join("tls");
    let authority = if tls.join("ca.key").is_file() {
        ClusterAuthority::open(&tls, Arc::clone(clock))?
    } else {
        ClusterAuthority::create(&tls, Arc::clone(clock))?
    };
    for member in &members {
        authority.issue(member.role(), &member.name)?;
    }
    let model = fs::canonicalize(model)
        .with_context(|| format!("the model folder {} cannot be found", model.display()))?;
    settings.insert("cluster".to_owned(), cluster_table(&model, &members)?.into());
    let server = settings.entry("server").or_insert_with(|| toml::Table::new().into());
    let server = server.as_table_mut().context("[server] is no table")?;
    if !server.contains_key("cluster_secret_file") {
        write_secret(&folder.join("secret.hex"))?;
        server.insert("cluster_secret_file".to_owned(), "secret.hex".into());
    }
    if !server.contains_key("model_name") {
        let name = model.file_name().context("the model folder has no name")?;
        server.insert("model_name".to_owned(), name.to_string_lossy().into_owned().into());
    }
    let plan = Plan { folder: folder.to_owned(), members };
    let text = toml::to_string(&settings).context("the settings cannot be written")?;
    Config::parse(&text)?;
    fs::write(plan.file(), text)
        .with_context(|| format!("{} cannot be written", plan.file().display()))?;
    Ok(plan)
}

/// Makes the state folder, or takes one that is empty or was one before. Any other is somebody's own.
///
/// # Errors
/// When it holds something else, or cannot be made.
pub(super) fn claim(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    if !folder.exists() {
        return make_private(folder);
    }
    let is_ours = folder.join("lock").is_file() || folder.join("cluster.toml").is_file();
    let mut entries = fs::read_dir(folder).with_context(|| format!("{shown} cannot be read"))?;
    ensure!(
        is_ours || entries.next().is_none(),
        "{shown} holds something else than the state of a cluster; name a new folder with --state"
    );
    Ok(())
}

fn make_private(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    fs::create_dir_all(folder).with_context(|| format!("{shown} cannot be made"))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
        .with_context(|| format!("{shown} cannot be made private"))
}

fn write_secret(path: &Path) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let secret: [u8; 32] = random_bytes().context("no random bytes for the cluster secret")?;
    let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(digits.as_bytes()));
    written.with_context(|| format!("{} cannot be written", path.display()))
}

fn cluster_table(model: &Path, members: &[MemberConfig]) -> anyhow::Result<toml::Table> {
    let path = |path: &Path| path.to_str().map(str::to_owned).context("a path is not UTF-8");
    let mut list = Vec::new();
    for member in members {
        let mut table = toml::Table::new();
        let mut set = |key: &str, value: toml::Value| drop(table.insert(key.to_owned(), value));
        set("name", member.name.clone().into());
        set("role", member.role.clone().into());
        set("id", i64::from(member.id).into());
        set("control", member.control.to_string().into());
        set("admin", member.admin.to_string().into());
        for (key, address) in [("data", member.data), ("listen", member.listen)] {
            if let Some(address) = address {
                set(key, address.to_string().into());
            }
        }
        for (key, file) in [("shm", &member.shm), ("disk", &member.disk)] {
            if let Some(file) = file {
                set(key, path(file)?.into());
            }
        }
        list.push(table.into());
    }
    let mut table = toml::Table::new();
    table.insert("model".to_owned(), path(model)?.into());
    table.insert("tls".to_owned(), "tls".into());
    table.insert("member".to_owned(), toml::Value::Array(list));
    Ok(table)
}

/// Free loopback ports. They are held until all are found, so that no two members get the same, and let go when the plan
/// is done; somebody else may take one before its member does, which that member then says.
#[derive(Default)]
struct Ports {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Ports {
    fn tcp(&mut self) -> anyhow::Result<SocketAddr> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free TCP port")?;
        let address = listener.local_addr()?;
        self.tcp.push(listener);
        Ok(address)
    }

    fn udp(&mut self) -> anyhow::Result<SocketAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("no free UDP port")?;
        let address = socket.local_addr()?;
        self.udp.push(socket);
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::Arc;

    use shared::Clock;

    use super::{Replicas, Wanted};
    use crate::clock::SystemClock;
    use crate::config::Config;
    use crate::identity::MemberRole;

    fn write(wanted: Wanted<'_>) -> anyhow::Result<super::Plan> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        super::write(wanted, &clock)
    }

    const ONE: Replicas = Replicas { router: 1, prefill: 1, decode: 1, kvstore: 2 };

    fn wanted(folder: &Path, replicas: Replicas) -> Wanted<'_> {
        let model = Path::new("../../deploy/models/seedling");
        Wanted { folder, model, replicas, settings: toml::Table::new(), listen: None }
    }

    #[test]
    fn a_plan_is_a_file_that_every_member_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let plan = write(wanted(folder.path(), ONE)).unwrap();
        let config = Config::read(&plan.file()).unwrap();
        assert_eq!(config.cluster.member, plan.members);
        assert_eq!(plan.role(MemberRole::Kvstore).count(), 2);
        let secret = config.server.cluster_secret_file.unwrap();
        let mode = std::fs::metadata(&secret).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        for member in &plan.members {
            let me = config.cluster.myself(member.role(), Some(&member.name)).unwrap();
            assert_eq!(me, member);
            for kind in ["pem", "key"] {
                assert!(folder.path().join(format!("tls/{}.{kind}", member.name)).is_file());
            }
        }
        let before = std::fs::read(&secret).unwrap();
        write(wanted(folder.path(), ONE)).unwrap();
        assert_eq!(std::fs::read(&secret).unwrap(), before, "names stay valid after a restart");
    }

    #[test]
    fn a_folder_of_somebody_else_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("new");
        super::claim(&made).unwrap();
        assert_eq!(std::fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
        super::claim(&made).unwrap();
        std::fs::write(made.join("letter"), "").unwrap();
        let error = super::claim(&made).unwrap_err().to_string();
        assert!(error.contains("--state"), "{error}");
        std::fs::write(made.join("cluster.toml"), "").unwrap();
        super::claim(&made).unwrap();
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (replicas, word) in [
            (Replicas { decode: 0, ..ONE }, "--decode"),
            (Replicas { router: 0, ..ONE }, "--router"),
            (Replicas { kvstore: 17, ..ONE }, "--kvstore"),
        ] {
            let error = write(wanted(folder.path(), replicas)).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        write(wanted(folder.path(), Replicas { prefill: 0, kvstore: 0, ..ONE })).unwrap();
    }
}
