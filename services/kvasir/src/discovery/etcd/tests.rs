//! A real etcd, started as a process of its own: `etcd` of Debian's package etcd-server, which deploy/test.sh installs.

use std::fs::Permissions;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::client::{Client, Listed};
use super::{Etcd, Interrupted, Position, entry, value};
use crate::clock::SystemClock;
use crate::config::MemberConfig;
use crate::discovery::tests::{ServerFiles, member, until};
use crate::discovery::{Discovery, DiscoveryBackend, DiscoveryConfig, EtcdConfig, View, run};
use crate::identity::{ClusterAuthority, Identity, IdentityFiles, MemberRole};

/// How an etcd proves itself, and by which authority it checks members.
struct Certificates {
    files: ServerFiles,
    members: PathBuf,
}

/// An etcd of one member. Killed at the end.
struct Server {
    folder: TempDir,
    port: u16,
    peer_port: u16,
    tls: Option<Certificates>,
    child: Option<Child>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    async fn start(tls: Option<Certificates>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, peer_port) = (free_port(), free_port());
        let mut server = Self { folder, port, peer_port, tls, child: None };
        server.restart().await;
        server
    }

    fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Starts the process on the same addresses, with what it has on disk.
    async fn restart(&mut self) {
        let (url, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer_port));
        let mut command = Command::new("etcd");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // Short elections allow short leases.
            .args(["--heartbeat-interval", "20", "--election-timeout", "200"])
            .args(["--logger", "zap", "--log-level", "error"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some(tls) = &self.tls {
            command
                .args(["--cert-file", &text(&tls.files.certificate)])
                .args(["--key-file", &text(&tls.files.key)])
                .args(["--client-cert-auth", "--trusted-ca-file", &text(&tls.members)]);
        }
        let child = command.spawn();
        self.child =
            Some(child.expect("etcd is missing; run deploy/test.sh, or install etcd-server"));
        let address = (Ipv4Addr::LOCALHOST, self.port);
        let reached = async { while TcpStream::connect(address).await.is_err() {} };
        timeout(Duration::from_secs(30), reached).await.expect("etcd listens");
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().unwrap().id();
        kill_process(Pid::from_raw(id.try_into().unwrap()).unwrap(), signal).unwrap();
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Loses everything that it had.
    fn wipe(&self) {
        std::fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child
            && child.kill().is_ok()
        {
            child.wait().unwrap();
        }
    }
}

/// An authority with an identity for every member.
struct Authority {
    folder: TempDir,
    authority: ClusterAuthority,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock::start());
        let authority = ClusterAuthority::create(folder.path(), clock).unwrap();
        Self { folder, authority }
    }

    fn identity(&self, name: &str) -> Arc<Identity> {
        let role = MemberRole::parse(name.split_once('-').unwrap().0).unwrap();
        let files = self.authority.issue(role, name).unwrap();
        let authority = self.authority.certificate();
        let files = IdentityFiles { authority, certificate: files.certificate, key: files.key };
        Arc::new(Identity::load(files).unwrap())
    }
}

/// A running discovery of one member, and what it told.
struct Member {
    view: Arc<View>,
    told: Arc<Mutex<Vec<MemberConfig>>>,
    changes: Arc<Mutex<usize>>,
    stop: watch::Sender<bool>,
    task: JoinSet<()>,
}

impl Member {
    fn start(name: &str, etcd: EtcdConfig, authority: &Authority) -> Self {
        let view = View::new(Arc::new(SystemClock::start()));
        let told: Arc<Mutex<Vec<MemberConfig>>> = Arc::default();
        let changes: Arc<Mutex<usize>> = Arc::default();
        let (now, count) = (Arc::clone(&told), Arc::clone(&changes));
        let discovery = Discovery {
            config: DiscoveryConfig {
                backend: DiscoveryBackend::Etcd,
                etcd,
                ..DiscoveryConfig::default()
            },
            me: member(name),
            identity: authority.identity(name),
            view: Arc::clone(&view),
            apply: Box::new(move |found| {
                *count.lock() += 1;
                *now.lock() = found.members;
            }),
        };
        let (stop, stopped) = watch::channel(false);
        let mut task = JoinSet::new();
        task.spawn(run(discovery, stopped));
        Self { view, told, changes, stop, task }
    }

    fn names(&self) -> Vec<String> {
        self.told.lock().iter().map(|member| member.name.clone()).collect()
    }

    async fn sees(&self, expected: &[&str]) {
        let what = format!("the view is {expected:?}");
        until(&what, || (self.names() == expected).then_some(())).await;
    }

    /// Ends as a process that drains.
    async fn stop(mut self) {
        self.stop.send_replace(true);
        self.task.join_next().await;
    }

    /// Ends as a process that is killed: its lease stays.
    async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

fn config(server: &Server) -> EtcdConfig {
    EtcdConfig { endpoints: vec![server.url()], lease_s: 2, ..EtcdConfig::default() }
}

fn client_of(server: &Server, authority: &Authority) -> Etcd {
    Etcd::new(config(server), authority.identity("router-9"))
}

#[tokio::test]
async fn members_join_leave_and_end_with_their_leases() {
    let (server, authority) = (Server::start(None).await, Authority::new());
    let start = |name| Member::start(name, config(&server), &authority);
    let (router, decode, store) = (start("router-1"), start("decode-1"), start("kvstore-1"));
    router.sees(&["decode-1", "kvstore-1"]).await;
    store.sees(&["decode-1", "router-1"]).await;
    let told = router.told.lock().clone();
    assert_eq!(told, [member("decode-1"), member("kvstore-1")], "addresses and all");
    decode.stop().await;
    router.sees(&["kvstore-1"]).await;
    store.kill().await;
    router.sees(&[]).await;
    let decode = start("decode-1");
    router.sees(&["decode-1"]).await;
    decode.stop().await;
    // Another cluster in the same etcd is not seen.
    let elsewhere = EtcdConfig { prefix: "/kvasir2/".to_owned(), ..config(&server) };
    let stranger = Member::start("decode-7", elsewhere, &authority);
    stranger.sees(&[]).await;
    let near = start("decode-2");
    router.sees(&["decode-2"]).await;
    near.stop().await;
}

#[tokio::test]
async fn without_etcd_the_last_view_stays_and_its_age_grows() {
    let (mut server, authority) = (Server::start(None).await, Authority::new());
    let start = |name, server: &Server| Member::start(name, config(server), &authority);
    let (router, decode) = (start("router-1", &server), start("decode-1", &server));
    router.sees(&["decode-1"]).await;
    let changes = *router.changes.lock();
    // Frozen for longer than a lease and longer than any answer is waited for.
    server.signal(Signal::STOP);
    until("its silence is noticed", || {
        let mut text = String::new();
        router.view.write(&mut text);
        text.contains("kvasir_discovery_answers 0\n").then_some(())
    })
    .await;
    until("the view has an age", || router.view.age().filter(|age| 5 <= age.as_secs())).await;
    server.signal(Signal::CONT);
    until("it is right again", || router.view.age().filter(|age| age.as_secs() < 2)).await;
    // The lease ended meanwhile, and the member was back before anybody minded.
    assert_eq!((router.names(), *router.changes.lock()), (vec!["decode-1".to_owned()], changes));

    server.kill();
    until("the view has an age", || router.view.age().filter(|age| 3 <= age.as_secs())).await;
    assert_eq!(router.names(), ["decode-1"]);
    server.restart().await;
    let store = start("kvstore-1", &server);
    router.sees(&["decode-1", "kvstore-1"]).await;
    store.stop().await;
    router.sees(&["decode-1"]).await;
    decode.stop().await;
    router.sees(&[]).await;
}

#[tokio::test]
async fn an_etcd_that_lost_its_data_takes_nobody_away() {
    let (mut server, authority) = (Server::start(None).await, Authority::new());
    let start = |name| Member::start(name, config(&server), &authority);
    let (router, decode, store) = (start("router-1"), start("decode-1"), start("kvstore-1"));
    router.sees(&["decode-1", "kvstore-1"]).await;
    store.sees(&["decode-1", "router-1"]).await;
    let changes = *router.changes.lock();
    server.kill();
    // One that is gone for good, while nobody could be told.
    store.kill().await;
    server.wipe();
    server.restart().await;
    router.sees(&["decode-1"]).await;
    assert_eq!(*router.changes.lock(), changes + 1, "decode-1 was there all the time");
    decode.stop().await;
    router.sees(&[]).await;
}

/// What etcd's own gateway from JSON does for a test.
async fn compact(server: &Server, revision: i64) {
    let url = format!("{}/v3/kv/compaction", server.url());
    let body = format!("{{\"revision\": {revision}, \"physical\": true}}");
    let answer = reqwest::Client::new().post(url).body(body).send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

#[tokio::test]
async fn compacted_news_are_a_reason_to_list_again() {
    let (server, authority) = (Server::start(None).await, Authority::new());
    let etcd = client_of(&server, &authority);
    let mut client = Client::connect(&etcd, 0).await.unwrap();
    let lease = client.grant(60).await.unwrap();
    let value = value(&member("decode-1"));
    for _ in 0..5 {
        client.put(etcd.key("decode-1"), value.clone(), lease).await.unwrap();
    }
    let listed = client.list(&etcd.prefix()).await.unwrap();
    let mut position = Position::new(Duration::from_secs(2));
    compact(&server, listed.revision).await;
    let mut news = client.watch(&etcd.prefix(), 2).await.unwrap();
    let ended = loop {
        let message = news.message().await.unwrap().unwrap();
        if let Err(ended) = position.note(message, &etcd.prefix(), Instant::now()) {
            break ended;
        }
    };
    assert!(matches!(ended, Interrupted::Compacted));
    position.take(listed, Instant::now());
    assert_eq!(position.entries["decode-1"], Ok(member("decode-1")));
    // A follower goes on over a compaction.
    let router = Member::start("router-1", config(&server), &authority);
    router.sees(&["decode-1"]).await;
    client.put(etcd.key("decode-1"), value, lease).await.unwrap();
    compact(&server, position.revision + 1).await;
    client.put(etcd.key("decode-2"), super::value(&member("decode-2")), lease).await.unwrap();
    router.sees(&["decode-1", "decode-2"]).await;
}

#[tokio::test]
async fn an_etcd_behind_tls_is_checked_and_members_prove_themselves() {
    let authority = Authority::new();
    let files = ServerFiles::new();
    let tls = Certificates { files: files.clone(), members: authority.authority.certificate() };
    let server = Server::start(Some(tls)).await;
    let config = |name: &str, authority: &Authority| {
        drop(authority.identity(name));
        EtcdConfig {
            ca_file: files.authority.clone(),
            certificate_file: authority.folder.path().join(format!("{name}.pem")),
            key_file: authority.folder.path().join(format!("{name}.key")),
            ..config(&server)
        }
    };
    let start = |name| Member::start(name, config(name, &authority), &authority);
    let (router, decode) = (start("router-1"), start("decode-1"));
    router.sees(&["decode-1"]).await;
    decode.stop().await;
    router.sees(&[]).await;
    let strangers = Authority::new();
    let identity = strangers.identity("router-9");
    // One that etcd does not know, and one that does not know etcd.
    for ca_file in [files.authority.clone(), strangers.authority.certificate()] {
        let config = EtcdConfig { ca_file, ..config("router-9", &strangers) };
        let etcd = Etcd::new(config, Arc::clone(&identity));
        let refused = async { Client::connect(&etcd, 0).await?.list(&etcd.prefix()).await };
        assert!(refused.await.is_err());
    }
}

/// An operator of etcd, through its gateway from JSON.
struct Root<'a> {
    server: &'a Server,
    token: Option<String>,
}

impl Root<'_> {
    async fn ask(&self, path: &str, body: serde_json::Value) -> serde_json::Value {
        let url = format!("{}/v3/auth/{path}", self.server.url());
        let mut request = reqwest::Client::new().post(url).body(body.to_string());
        if let Some(token) = &self.token {
            request = request.header("authorization", token);
        }
        let answer = request.send().await.unwrap();
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// A user `kvasir` who may use the keys below `/kvasir/`, and from then on nobody without a password.
    async fn enable(&mut self) {
        let members =
            json!({"permType": "READWRITE", "key": "L2t2YXNpci8=", "range_end": "L2t2YXNpcjA="});
        let steps = [
            ("user/add", json!({"name": "root", "password": "a root's"})),
            ("user/grant", json!({"user": "root", "role": "root"})),
            ("role/add", json!({"name": "members"})),
            ("role/grant", json!({"name": "members", "perm": members})),
            ("user/add", json!({"name": "kvasir", "password": PASSWORD})),
            ("user/grant", json!({"user": "kvasir", "role": "members"})),
            ("enable", json!({})),
        ];
        for (path, body) in steps {
            self.ask(path, body).await;
        }
        let answer =
            self.ask("authenticate", json!({"name": "root", "password": "a root's"})).await;
        self.token = Some(answer["token"].as_str().unwrap().to_owned());
    }
}

/// What the user `kvasir` says.
const PASSWORD: &str = "word of 4 members";

#[tokio::test]
async fn an_etcd_with_users_is_asked_as_one_and_again_when_it_forgets_him() {
    let (server, authority) = (Server::start(None).await, Authority::new());
    let mut root = Root { server: &server, token: None };
    root.enable().await;
    let files = tempfile::tempdir().unwrap();
    let user = |name: &str, password: &str| {
        let password_file = files.path().join(format!("{name}-{}", password.len()));
        std::fs::write(&password_file, format!("{password}\n")).unwrap();
        std::fs::set_permissions(&password_file, Permissions::from_mode(0o600)).unwrap();
        EtcdConfig { user: name.to_owned(), password_file, ..config(&server) }
    };
    let listed = async |config: EtcdConfig| {
        let etcd = Etcd::new(config, authority.identity("router-9"));
        Client::connect(&etcd, 0).await?.list(&etcd.prefix()).await.map(drop)
    };
    listed(user("kvasir", PASSWORD)).await.unwrap();
    let elsewhere = EtcdConfig { prefix: "/elsewhere/".to_owned(), ..user("kvasir", PASSWORD) };
    let refusals = [
        (config(&server), ""),
        (user("kvasir", "wrong"), "does not take the user kvasir"),
        (user("nobody", PASSWORD), "does not take the user nobody"),
        (elsewhere, "permission denied"),
    ];
    for (config, word) in refusals {
        let error = listed(config).await.unwrap_err();
        assert!(error.contains(word) && !error.contains(PASSWORD), "{word}: {error}");
    }
    let start = |name| Member::start(name, user("kvasir", PASSWORD), &authority);
    let (router, decode) = (start("router-1"), start("decode-1"));
    router.sees(&["decode-1"]).await;
    // A new password, though the same, ends every token of the user.
    root.ask("user/changepw", json!({"name": "kvasir", "password": PASSWORD})).await;
    until("the router was refused", || {
        let mut text = String::new();
        router.view.write(&mut text);
        (!text.contains("kvasir_discovery_faults_total 0\n")).then_some(())
    })
    .await;
    let store = start("kvstore-1");
    router.sees(&["decode-1", "kvstore-1"]).await;
    decode.stop().await;
    router.sees(&["kvstore-1"]).await;
    store.stop().await;
    router.sees(&[]).await;
}

/// The end of a key, an outage longer than a lease, the list behind it, and when the member is back or leaves.
#[test]
fn an_outage_behind_the_end_of_a_key_takes_nobody_away() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let list = |names: &[&str]| Listed {
        entries: names.iter().map(|name| ((*name).to_owned(), Ok(member(name)))).collect(),
        revision: 7,
    };
    for back in [true, false] {
        let mut position = Position::new(Duration::from_secs(2));
        position.take(list(&["decode-1"]), at(0));
        position.gone("decode-1".to_owned(), at(1));
        assert!(!position.let_go(at(2)), "its lease is over and it has a while");
        position.take(list(&[]), at(60));
        assert!(!position.let_go(at(60)), "it could not register");
        if back {
            position.there("decode-1".to_owned(), Ok(member("decode-1")));
        }
        assert!(!position.let_go(at(61)));
        assert_eq!(position.let_go(at(62)), !back);
        assert_eq!(position.entries.contains_key("decode-1"), back);
    }
}

#[test]
fn entries_are_checked_and_may_tell_more_than_is_known() {
    let mut text = serde_json::to_value(member("decode-1")).unwrap();
    text["zone"] = "b".into();
    let bytes = |value: &serde_json::Value| serde_json::to_vec(value).unwrap();
    assert_eq!(entry("decode-1", &bytes(&text)), Ok(member("decode-1")));
    assert!(entry("decode-2", &bytes(&text)).unwrap_err().contains("decode-1"));
    text["control"] = 7.into();
    assert!(entry("decode-1", &bytes(&text)).is_err());
    assert!(entry("decode-1", b"{").is_err());
    assert!(entry("decode-1", &[b' '; 5_000]).unwrap_err().contains("4096"));
}
