//! A cluster whose members a test starts, ends and lists one by one.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use kvasir::clock::SystemClock;
use kvasir::identity::{ClusterAuthority, MemberRole};
use shared::Clock;
use tempfile::TempDir;

use super::view::View;
use crate::process::{binary, seedling, signal};

/// How members read each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    SharedMemory,
    Quic,
}

/// One member of the plan.
struct Member {
    role: MemberRole,
    id: u32,
    control: SocketAddr,
    data: SocketAddr,
    admin: SocketAddr,
    listen: SocketAddr,
    /// Before the program on its command line: the way into another network namespace.
    entry: Vec<String>,
}

/// A plan, and the members of it that run. All are killed at the end.
pub(super) struct Hand {
    folder: TempDir,
    settings: String,
    reads: Reads,
    members: BTreeMap<String, Member>,
    running: BTreeMap<String, Child>,
    view: View,
}

impl Deref for Hand {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl Hand {
    /// Plans one router and so many members of the other roles. Nothing runs yet.
    pub(super) fn plan(counts: [(MemberRole, u32); 3], reads: Reads, settings: &str) -> Self {
        Self::plan_with_routers(1, counts, reads, settings)
    }

    /// The same with several routers. The view's clients are those of the first.
    pub(super) fn plan_with_routers(
        routers: u32,
        counts: [(MemberRole, u32); 3],
        reads: Reads,
        settings: &str,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the cluster");
        let tls = folder.path().join("tls");
        fs::create_dir(&tls).expect("a folder for certificates");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let authority = ClusterAuthority::create(&tls, clock).expect("an authority can be made");
        let secret = folder.path().join("secret.hex");
        let mut secret = private_file(&secret);
        secret.write_all("5a".repeat(32).as_bytes()).expect("a secret fits");
        let mut members = BTreeMap::new();
        let mut ports = Ports::default();
        for (role, count) in counts.into_iter().chain([(MemberRole::Router, routers)]) {
            for number in 1..=count {
                let name = format!("{role}-{number}");
                authority.issue(role, &name).expect("a certificate can be issued");
                let member = Member {
                    role,
                    id: u32::try_from(members.len()).expect("few members") + 1,
                    control: ports.tcp(),
                    data: ports.udp(),
                    admin: ports.tcp(),
                    listen: ports.tcp(),
                    entry: Vec::new(),
                };
                members.insert(name, member);
            }
        }
        let view = View { clients: members["router-1"].listen, admins: BTreeMap::new() };
        let settings = settings.to_owned();
        let this = Self { folder, settings, reads, members, running: BTreeMap::new(), view };
        this.list(&this.names());
        this
    }

    /// Plans and starts all members.
    pub(super) fn start_all(counts: [(MemberRole, u32); 3], reads: Reads, settings: &str) -> Self {
        let mut this = Self::plan(counts, reads, settings);
        for name in this.names() {
            this.start(&name);
        }
        this.joined();
        this
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Places a member on another host: its addresses for others, and the way there.
    pub(super) fn place(&mut self, name: &str, host: Ipv4Addr, entry: &[String]) {
        let member = self.members.get_mut(name).expect("a planned member");
        member.control.set_ip(host.into());
        member.data.set_ip(host.into());
        member.entry = entry.to_vec();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("cluster.toml")
    }

    /// Writes the cluster's file with these members, in one step.
    pub(super) fn list(&self, names: &[String]) {
        let new = self.folder.path().join("cluster.new");
        fs::write(&new, self.text(&seedling(), names)).expect("the file can be written");
        fs::rename(&new, self.file()).expect("the file can be replaced");
    }

    fn text(&self, model: &Path, names: &[String]) -> String {
        use std::fmt::Write as _;
        let (server, rest) = self.settings.split_once("[server]\n").unwrap_or(("", &self.settings));
        assert!(server.is_empty(), "settings begin with their server table, if they have one");
        let mut text = format!(
            "[server]\nmodel_name = \"seedling\"\ncluster_secret_file = \"secret.hex\"\n{rest}\n\
             [cluster]\nmodel = \"{}\"\ntls = \"tls\"\n",
            model.display()
        );
        for name in names {
            let Member { role, id, control, data, admin, listen, .. } = &self.members[name];
            let mut line = |key: &str, value: &dyn std::fmt::Display| {
                writeln!(text, "{key} = \"{value}\"").expect("a string grows");
            };
            line("\n[[cluster.member]]\nname", name);
            line("role", role);
            line("control", control);
            line("admin", admin);
            if *role == MemberRole::Router {
                line("listen", listen);
            } else {
                line("data", data);
            }
            if *role != MemberRole::Router && self.reads == Reads::SharedMemory {
                line("shm", &format!("{name}.sock"));
            }
            if *role == MemberRole::Kvstore {
                line("disk", &format!("disk-{name}"));
            }
            writeln!(text, "id = {id}").expect("a string grows");
        }
        text
    }

    /// Starts a member that does not run.
    pub(super) fn start(&mut self, name: &str) {
        let file = self.file();
        self.start_from(name, &file);
    }

    /// Starts a member whose file knows of nobody else: it finds the others elsewhere.
    pub(super) fn start_alone(&mut self, name: &str) {
        let file = self.folder.path().join(format!("{name}.toml"));
        let alone = [name.to_owned()];
        fs::write(&file, self.text(&seedling(), &alone)).expect("the file can be written");
        self.start_from(name, &file);
    }

    /// Starts a member with another model than the others have.
    pub(super) fn start_with_model(&mut self, name: &str, model: &Path) {
        let file = self.folder.path().join(format!("{name}.toml"));
        fs::write(&file, self.text(model, &self.names())).expect("the file can be written");
        self.start_from(name, &file);
    }

    /// What clients of a router see.
    pub(super) fn clients_of(&self, router: &str) -> View {
        View { clients: self.members[router].listen, admins: self.view.admins.clone() }
    }

    /// Where others read a member.
    pub(super) fn data(&self, name: &str) -> SocketAddr {
        self.members[name].data
    }

    /// Starts a member that finds the data of some others at other addresses than these have.
    pub(super) fn start_reading_through(&mut self, name: &str, ways: &[(&str, SocketAddr)]) {
        let mut text = self.text(&seedling(), &self.names());
        for (member, way) in ways {
            let entry = format!("data = \"{}\"", self.members[*member].data);
            assert!(text.contains(&entry), "{member} is read from");
            text = text.replace(&entry, &format!("data = \"{way}\""));
        }
        let file = self.folder.path().join(format!("{name}.toml"));
        fs::write(&file, text).expect("the file can be written");
        self.start_from(name, &file);
    }

    fn start_from(&mut self, name: &str, file: &Path) {
        let member = &self.members[name];
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(name));
        let log = log.expect("a log can be written");
        let program = binary();
        let program = program.to_str().expect("UTF-8").to_owned();
        let mut line = member.entry.clone();
        line.push(program);
        // It ends with the thread of this test, however that ends.
        let parent = std::process::id().to_string();
        let child = Command::new(&line[0])
            .args(&line[1..])
            .args(["--log", "info", member.role.as_str(), "--name", name, "--parent", &parent])
            .arg("--config")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log can be shared"))
            .stderr(log)
            .spawn()
            .expect("the binary can be started");
        assert!(self.running.insert(name.to_owned(), child).is_none(), "{name} runs already");
        if self.far_admin(name).is_none() {
            self.view.admins.insert(name.to_owned(), self.members[name].admin);
        }
    }

    /// The port of a member's admin listener when it is on another host, whose loopback nobody here reaches.
    pub(super) fn far_admin(&self, name: &str) -> Option<u16> {
        let member = &self.members[name];
        (!member.entry.is_empty()).then_some(member.admin.port())
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    /// What a member wrote since its first start.
    pub(super) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.log_path(name)).expect("a started member has a log")
    }

    pub(super) fn signal(&self, name: &str, signal_name: &str) {
        signal(self.running[name].id(), signal_name);
    }

    /// The process of a member that runs.
    pub(super) fn process(&self, name: &str) -> u32 {
        self.running[name].id()
    }

    /// Kills a member and takes it from the view.
    pub(super) fn kill(&mut self, name: &str) {
        self.view.admins.remove(name);
        let mut child = self.running.remove(name).expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }

    /// Freezes a member and takes it from the view.
    pub(super) fn freeze(&mut self, name: &str) {
        self.view.admins.remove(name);
        self.signal(name, "STOP");
    }

    /// Lets a frozen member go on.
    pub(super) fn thaw(&mut self, name: &str) {
        self.signal(name, "CONT");
        self.view.admins.insert(name.to_owned(), self.members[name].admin);
    }

    /// Asks a member to end, and waits for its exit status.
    pub(super) fn stop(&mut self, name: &str) -> Option<i32> {
        self.signal(name, "TERM");
        self.view.admins.remove(name);
        let mut child = self.running.remove(name).expect("it runs");
        child.wait().expect("it can be waited for").code()
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            // Gone already when it died by itself.
            if child.kill().is_ok() {
                child.wait().expect("a child can be waited for");
            }
        }
        // The runner shows this for tests that fail.
        for name in self.members.keys().filter(|name| self.log_path(name).exists()) {
            println!("== log of {name}\n{}", self.log(name));
        }
    }
}

fn private_file(path: &Path) -> File {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.expect("a private file can be made")
}

/// Free ports, held until all are found.
#[derive(Default)]
struct Ports {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Ports {
    fn tcp(&mut self) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free TCP port");
        let address = listener.local_addr().expect("a bound socket has an address");
        self.tcp.push(listener);
        address
    }

    fn udp(&mut self) -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free UDP port");
        let address = socket.local_addr().expect("a bound socket has an address");
        self.udp.push(socket);
        address
    }
}
