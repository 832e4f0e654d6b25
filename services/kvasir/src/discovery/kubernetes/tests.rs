//! An API server that plays recorded answers: lists, watches line by line, bookmarks, versions that are too old.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::slices::id;
use crate::clock::SystemClock;
use crate::discovery::tests::{ServerFiles, member, until};
use crate::discovery::view::Follower;
use crate::discovery::{Found, KubernetesConfig, View, kubernetes};
use crate::identity::MemberRole;

const TOKEN: &str = "a.service.account";

/// What the server does with the next request.
enum Answer {
    /// A status and a whole body.
    Whole(u16, Value),
    /// Lines of a watch as they come, until the sender drops.
    Lines(mpsc::UnboundedReceiver<Value>),
}

/// The server, and the requests it got.
struct Api {
    address: SocketAddr,
    answers: mpsc::UnboundedSender<Answer>,
    asked: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

impl Api {
    async fn start(tls: Option<&ServerFiles>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (answers, mut next) = mpsc::unbounded_channel();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let heads = Arc::clone(&asked);
        let acceptor = tls.map(acceptor);
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                match &acceptor {
                    None => serve(socket, &heads, &mut next).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(socket).await {
                            serve(stream, &heads, &mut next).await;
                        }
                    }
                }
            }
        });
        Self { address, answers, asked, _task: task }
    }

    fn whole(&self, status: u16, body: Value) {
        assert!(self.answers.send(Answer::Whole(status, body)).is_ok());
    }

    fn lines(&self) -> mpsc::UnboundedSender<Value> {
        let (sender, lines) = mpsc::unbounded_channel();
        assert!(self.answers.send(Answer::Lines(lines)).is_ok());
        sender
    }

    /// Waits for the request of a number, from 0.
    async fn asked(&self, number: usize) -> String {
        until("a request came", || self.asked.lock().get(number).cloned()).await
    }
}

fn acceptor(files: &ServerFiles) -> TlsAcceptor {
    let read = |path| std::fs::read(path).unwrap();
    let certificate = read(&files.certificate);
    let chain = CertificateDer::pem_slice_iter(&certificate);
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Answers one request; the connection ends with it.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    heads: &Mutex<Vec<String>>,
    answers: &mut mpsc::UnboundedReceiver<Answer>,
) {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    heads.lock().push(head);
    let Some(answer) = answers.recv().await else { return };
    let written = match answer {
        Answer::Whole(status, body) => {
            let body = body.to_string();
            let length = body.len();
            let text = format!("HTTP/1.1 {status} -\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(text.as_bytes()).await
        }
        Answer::Lines(lines) => play(&mut stream, lines).await,
    };
    // A client that went away has seen enough.
    drop(written);
    drop(stream.shutdown().await);
}

async fn play(
    stream: &mut (impl AsyncWrite + Unpin),
    mut lines: mpsc::UnboundedReceiver<Value>,
) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    stream.flush().await?;
    while let Some(line) = lines.recv().await {
        let line = format!("{line}\n");
        // In two parts, since a line need not come at once.
        let (first, second) = line.split_at(line.len() / 2);
        for part in [first, second] {
            stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await?;
            stream.flush().await?;
        }
    }
    stream.write_all(b"0\r\n\r\n").await?;
    stream.flush().await
}

/// A slice as the API server gives it; `ready` and `terminating` of each pod.
fn slice(role: &str, version: u64, pods: &[(&str, u8, bool, bool)]) -> Value {
    let endpoints: Vec<Value> = pods
        .iter()
        .map(|(pod, host, serving, terminating)| {
            json!({
                "addresses": [format!("10.1.0.{host}")],
                "conditions": {
                    "ready": serving & !terminating, "serving": serving, "terminating": terminating
                },
                "nodeName": "node-a",
                "targetRef": {
                    "kind": "Pod", "namespace": "serving", "name": pod,
                    "uid": "7e0c62a4-6e0b-4a87-a8a5-7d1b6ff4cd2b"
                },
                "zone": "zone-b",
            })
        })
        .collect();
    json!({
        "kind": "EndpointSlice",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "name": format!("kvasir-{role}-x7k2p"),
            "generateName": format!("kvasir-{role}-"),
            "namespace": "serving",
            "resourceVersion": version.to_string(),
            "generation": 3,
            "labels": {
                "app.kubernetes.io/name": "kvasir",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": format!("kvasir-{role}"),
                "kvasir/role": role,
            },
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [
            {"name": "control", "port": 7_301, "protocol": "TCP"},
            {"name": "data", "port": 7_302, "protocol": "UDP"},
        ],
    })
}

fn list(version: u64, next: &str, items: &[Value]) -> Value {
    json!({
        "kind": "EndpointSliceList",
        "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": version.to_string(), "continue": next},
        "items": items,
    })
}

fn line(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn bookmark(version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    let object = json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata,
        "addressType": "", "endpoints": null, "ports": null,
    });
    line("BOOKMARK", &object)
}

fn gone() -> Value {
    let message = "too old resource version: 12 (4211)";
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "Expired", "code": 410,
    })
}

/// A follower of a server, and what it told.
struct Following {
    view: Arc<View>,
    told: Arc<Mutex<Found>>,
    _account: TempDir,
    _task: JoinSet<()>,
}

impl Following {
    fn start(api: &Api, authority: Option<&ServerFiles>) -> Self {
        let account = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| std::fs::write(account.path().join(name), text);
        write("namespace", b"serving").unwrap();
        if let Some(files) = authority {
            write("token", format!("{TOKEN}\n").as_bytes()).unwrap();
            write("ca.crt", &std::fs::read(&files.authority).unwrap()).unwrap();
        }
        let scheme = if authority.is_some() { "https" } else { "http" };
        let config = KubernetesConfig {
            api: format!("{scheme}://{}", api.address),
            account: account.path().to_owned(),
            ..KubernetesConfig::default()
        };
        let view = View::new(Arc::new(SystemClock::start()));
        let told: Arc<Mutex<Found>> = Arc::default();
        let now = Arc::clone(&told);
        let apply = Box::new(move |found| *now.lock() = found);
        let follower = Follower::new(member("router-1"), Arc::clone(&view), apply);
        let mut task = JoinSet::new();
        task.spawn(kubernetes::follow(config, follower));
        Self { view, told, _account: account, _task: task }
    }

    async fn sees(&self, expected: &[&str]) {
        let names = || -> Vec<String> {
            self.told.lock().members.iter().map(|member| member.name.clone()).collect()
        };
        until(&format!("the view is {expected:?}"), || (names() == expected).then_some(())).await;
    }

    async fn sees_ending(&self, expected: &[&str]) {
        let ending = || self.told.lock().ending.iter().eq(expected.iter());
        until(&format!("{expected:?} are ending"), || ending().then_some(())).await;
    }
}

fn query(head: &str) -> String {
    head.lines().next().unwrap().split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test]
async fn pods_join_when_serving_drain_while_terminating_and_leave() {
    let api = Api::start(None).await;
    let following = Following::start(&api, None);
    let decode = |version, pods: &[_]| slice("decode", version, pods);
    let starting = ("decode-1", 12, false, false);
    api.whole(200, list(10, "", &[decode(9, &[("decode-0", 11, true, false), starting])]));
    following.sees(&["decode-0"]).await;
    let first = &following.told.lock().members[0].clone();
    assert_eq!(first.control, "10.1.0.11:7301".parse().unwrap());
    assert_eq!(first.data, Some("10.1.0.11:7302".parse().unwrap()));
    assert_eq!(first.id, 300_001);
    let list_query = query(&api.asked(0).await);
    let path = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices";
    assert!(list_query.starts_with(path), "{list_query}");
    assert!(
        list_query.contains("labelSelector=app.kubernetes.io%2Fname%3Dkvasir&"),
        "{list_query}"
    );

    let watch = api.lines();
    let watch_query = query(&api.asked(1).await);
    for part in ["watch=1", "allowWatchBookmarks=true", "resourceVersion=10"] {
        assert!(watch_query.contains(part), "{watch_query}");
    }
    let both = [("decode-0", 11, true, false), ("decode-1", 12, true, false)];
    watch.send(line("MODIFIED", &decode(11, &both))).unwrap();
    following.sees(&["decode-0", "decode-1"]).await;
    // Ending, and still at work.
    let ending = [("decode-0", 11, true, true), ("decode-1", 12, true, false)];
    watch.send(line("MODIFIED", &decode(12, &ending))).unwrap();
    watch.send(line("ADDED", &slice("kvstore", 13, &[("kvstore-0", 21, true, false)]))).unwrap();
    following.sees(&["decode-0", "decode-1", "kvstore-0"]).await;
    following.sees_ending(&["decode-0"]).await;
    // Not ready any more, so that it gets nothing new, and still at work; another one is not ready and not ending.
    let unready = [("decode-0", 11, false, true), ("decode-1", 12, false, false)];
    watch.send(line("MODIFIED", &decode(14, &unready))).unwrap();
    following.sees(&["decode-0", "kvstore-0"]).await;
    following.sees_ending(&["decode-0"]).await;
    watch.send(line("MODIFIED", &decode(15, &[("decode-1", 12, true, false)]))).unwrap();
    following.sees(&["decode-1", "kvstore-0"]).await;
    following.sees_ending(&[]).await;
    // The next pod of that name is another one.
    watch.send(line("MODIFIED", &decode(16, &[("decode-0", 19, true, false)]))).unwrap();
    following.sees(&["decode-0", "kvstore-0"]).await;
    following.sees_ending(&[]).await;
    watch.send(line("MODIFIED", &decode(17, &[("decode-1", 12, true, false)]))).unwrap();
    watch.send(line("DELETED", &slice("kvstore", 15, &[]))).unwrap();
    following.sees(&["decode-1"]).await;
}

#[tokio::test]
async fn a_watch_goes_on_at_its_bookmark_and_a_version_too_old_is_listed_anew() {
    let api = Api::start(None).await;
    let following = Following::start(&api, None);
    let one = [slice("decode", 9, &[("decode-0", 11, true, false)])];
    api.whole(200, list(10, "", &one));
    let watch = api.lines();
    watch.send(bookmark(77)).unwrap();
    following.sees(&["decode-0"]).await;
    // Its time is over.
    drop(watch);
    let again = api.lines();
    assert!(query(&api.asked(2).await).contains("resourceVersion=77"));
    again.send(line("ERROR", &gone())).unwrap();
    // The server answers one request at a time.
    drop(again);
    api.whole(200, list(90, "", &[slice("decode", 88, &[("decode-5", 15, true, false)])]));
    following.sees(&["decode-5"]).await;
    assert!(!query(&api.asked(3).await).contains("watch=1"));
    // The same as an answer to the request itself.
    api.whole(410, gone());
    api.whole(200, list(99, "", &one));
    following.sees(&["decode-0"]).await;
    assert!(query(&api.asked(4).await).contains("resourceVersion=90"));
}

#[tokio::test]
async fn pages_are_one_list_and_refusals_keep_the_view() {
    let api = Api::start(None).await;
    let following = Following::start(&api, None);
    let forbidden =
        json!({"kind": "Status", "message": "endpointslices is forbidden", "code": 403});
    api.whole(403, forbidden.clone());
    let kvstore = slice("kvstore", 8, &[("kvstore-0", 21, true, false)]);
    api.whole(200, list(10, "next/page=", &[kvstore]));
    api.whole(200, list(10, "", &[slice("decode", 9, &[("decode-0", 11, true, false)])]));
    following.sees(&["decode-0", "kvstore-0"]).await;
    assert!(query(&api.asked(2).await).contains("continue=next%2Fpage%3D"));
    api.whole(500, json!("etcdserver: leader changed"));
    api.whole(403, forbidden);
    api.asked(4).await;
    let faults = || {
        let mut text = String::new();
        following.view.write(&mut text);
        text.contains("kvasir_discovery_faults_total 3").then_some(text)
    };
    let text = until("the refusals are counted", faults).await;
    assert!(text.contains("kvasir_discovery_answers 0\n"), "{text}");
    assert_eq!(following.told.lock().members.len(), 2);
}

#[tokio::test]
async fn the_server_is_checked_by_the_accounts_authority_and_gets_its_token() {
    let files = ServerFiles::new();
    let api = Api::start(Some(&files)).await;
    let stranger = Following::start(&api, Some(&ServerFiles::new()));
    until("the stranger is refused", || {
        let mut text = String::new();
        stranger.view.write(&mut text);
        (!text.contains("faults_total 0")).then_some(())
    })
    .await;
    drop(stranger);
    assert!(api.asked.lock().is_empty(), "no token was shown to it");
    let following = Following::start(&api, Some(&files));
    api.whole(200, list(10, "", &[slice("decode", 9, &[("decode-0", 11, true, false)])]));
    following.sees(&["decode-0"]).await;
    let head = api.asked(0).await.to_lowercase();
    assert!(head.contains(&format!("authorization: bearer {TOKEN}\r\n")), "{head}");
}

#[test]
fn endpoints_that_are_no_members_say_why() {
    let mut slices = super::Slices::new("kvasir/role");
    let mut faulty =
        slice("decode", 1, &[("decode-0", 11, true, false), ("decode", 12, true, false)]);
    faulty["endpoints"][0]["targetRef"] = Value::Null;
    let mut far = slice("pilot", 2, &[("pilot-0", 13, true, false)]);
    far["ports"] = json!([{"name": "control", "port": 1}]);
    let mut portless = slice("prefill", 3, &[("prefill-0", 14, true, false)]);
    portless["ports"] = Value::Null;
    let mut ranks = slice("kvstore", 4, &[("kvstore-2", 15, true, false)]);
    ranks["endpoints"][0]["conditions"] = json!({});
    ranks["ports"] = json!([
        {"name": "control", "port": 1}, {"name": "data", "port": 2},
        {"name": "control-1", "port": 3}, {"name": "data-1", "port": 4},
    ]);
    let mut six = ranks.clone();
    six["metadata"]["name"] = json!("kvasir-kvstore-six");
    six["addressType"] = json!("IPv6");
    six["endpoints"][0]["addresses"] = json!(["fd00::15"]);
    let all = [faulty, far, portless, six, ranks];
    slices.replace(all.into_iter().map(|one| serde_json::from_value(one).unwrap()).collect());
    let entries = slices.entries();
    let reasons = [
        ("10.1.0.11", "no name"),
        ("decode", "ordinal"),
        ("pilot-0", "pilot"),
        ("prefill-0", "control"),
    ];
    for (key, word) in reasons {
        let reason = entries[key].as_ref().unwrap_err();
        assert!(reason.contains(word), "{key}: {reason}");
    }
    let member = |name: &str| entries[name].clone().unwrap();
    let (first, second) = (member("kvstore-2"), member("kvstore-2-rank1"));
    assert_eq!((first.id, second.id), (100_033, 100_034));
    assert_eq!(first.control, "10.1.0.15:1".parse().unwrap(), "IPv4 where there is one");
    assert_eq!(second.data, Some("10.1.0.15:4".parse().unwrap()));
    assert_eq!(entries.len(), 6);
    assert!(id(MemberRole::Router, "router-6000", 0).is_err());
}
