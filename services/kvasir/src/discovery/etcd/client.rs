//! One connection to one member of an etcd, with a bound on every answer.

use std::error::Error;
use std::future::{Future, ready};
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{once, pending, unfold};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Error as TransportError, Uri};
use tonic::{Response, Status, Streaming};
use tower::service_fn;

use super::token::Token;
use super::{ENTRIES_MAX, Entries, Etcd, HEARTBEAT, entry, name_of, v3};
use crate::discovery::config::Target;
use crate::discovery::{ANSWER_MAX, tls};
use crate::identity::outside_client;
use v3::kv_client::KvClient;
use v3::lease_client::LeaseClient;
use v3::watch_client::WatchClient;
use v3::watch_request::RequestUnion;

/// The protocol's name inside TLS.
const ALPN: &[u8] = b"h2";
/// Requests to keep a lease that wait to be sent; one does at a time.
const KEEPS_MAX: usize = 4;

/// A connection.
pub(super) struct Client {
    channel: Channel,
    token: Token,
}

/// What there was at one revision.
pub(super) struct Listed {
    pub(super) entries: Entries,
    pub(super) revision: i64,
}

/// Keeps one lease.
pub(super) struct Keeping {
    requests: mpsc::Sender<v3::LeaseKeepAliveRequest>,
    answers: Streaming<v3::LeaseKeepAliveResponse>,
    lease: i64,
}

impl Client {
    /// Connects to the next endpoint in turn.
    pub(super) async fn connect(etcd: &Etcd, turn: usize) -> Result<Self, String> {
        let urls = &etcd.config.endpoints;
        let url = &urls[turn % urls.len()];
        let target = Target::parse(url).ok_or_else(|| format!("{url} is no endpoint"))?;
        let tls = if target.is_tls { Some(material(etcd).await?) } else { None };
        let connecting = open(&target, tls);
        let channel = connecting.await.map_err(|error| {
            // The layers above the connection say less than it does.
            let mut cause: &dyn Error = &error;
            while let Some(inner) = cause.source() {
                cause = inner;
            }
            format!("{url} cannot be reached: {cause}")
        })?;
        let token = Token::get(etcd, channel.clone()).await?;
        Ok(Self { channel, token })
    }

    fn kv(&self) -> KvClient<InterceptedService<Channel, Token>> {
        KvClient::with_interceptor(self.channel.clone(), self.token.clone())
    }

    fn lease(&self) -> LeaseClient<InterceptedService<Channel, Token>> {
        LeaseClient::with_interceptor(self.channel.clone(), self.token.clone())
    }

    /// Every member.
    pub(super) async fn list(&mut self, prefix: &str) -> Result<Listed, String> {
        let (key, range_end) = range(prefix);
        let request = v3::RangeRequest { key, range_end, limit: ENTRIES_MAX, count_only: false };
        let answer = answered(self.kv().range(request)).await?;
        if answer.more {
            let count = answer.count;
            return Err(format!(
                "{count} keys are below {prefix}, at most {ENTRIES_MAX} are taken"
            ));
        }
        let entries = answer.kvs.iter().filter_map(|pair| {
            let name = name_of(&pair.key, prefix)?;
            let entry = entry(&name, &pair.value);
            Some((name, entry))
        });
        Ok(Listed { entries: entries.collect(), revision: revision(answer.header) })
    }

    /// Asks for something that needs a majority of etcd, and little else.
    pub(super) async fn ping(&mut self, prefix: &str) -> Result<(), String> {
        let (key, range_end) = range(prefix);
        let request = v3::RangeRequest { key, range_end, limit: 1, count_only: true };
        answered(self.kv().range(request)).await.map(drop)
    }

    /// What changes from a revision on.
    pub(super) async fn watch(
        &mut self,
        prefix: &str,
        start_revision: i64,
    ) -> Result<Streaming<v3::WatchResponse>, String> {
        let (key, range_end) = range(prefix);
        let create = v3::WatchCreateRequest { key, range_end, start_revision };
        let create = v3::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        // The stream of requests stays open as long as the watch is wanted.
        let requests = once(ready(create)).chain(pending());
        let (channel, token) = (self.channel.clone(), self.token.clone());
        answered(WatchClient::with_interceptor(channel, token).watch(requests)).await
    }

    /// A new lease.
    pub(super) async fn grant(&mut self, seconds: u64) -> Result<i64, String> {
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let request = v3::LeaseGrantRequest { ttl };
        let answer = answered(self.lease().lease_grant(request)).await?;
        Ok(answer.id)
    }

    /// Writes a key that ends with a lease.
    pub(super) async fn put(
        &mut self,
        key: Vec<u8>,
        value: Vec<u8>,
        lease: i64,
    ) -> Result<(), String> {
        let request = v3::PutRequest { key, value, lease };
        answered(self.kv().put(request)).await.map(drop)
    }

    /// Begins to keep a lease.
    pub(super) async fn keep(&mut self, lease: i64) -> Result<Keeping, String> {
        let (requests, queue) = mpsc::channel(KEEPS_MAX);
        let stream =
            unfold(queue, |mut queue| async { queue.recv().await.map(|request| (request, queue)) });
        let first = v3::LeaseKeepAliveRequest { id: lease };
        // etcd answers a stream with its first answer, so there must be a question.
        requests.try_send(first).map_err(|_| "a new queue has no room".to_owned())?;
        let client = self.lease().lease_keep_alive(stream).await;
        let mut answers = client.map_err(|status| reason(&status))?.into_inner();
        kept(&mut answers).await?;
        Ok(Keeping { requests, answers, lease })
    }

    /// Ends a lease, and with it its keys.
    pub(super) async fn revoke(&mut self, lease: i64) -> Result<(), String> {
        let request = v3::LeaseRevokeRequest { id: lease };
        answered(self.lease().lease_revoke(request)).await.map(drop)
    }
}

impl Keeping {
    /// Asks for the lease's whole time once more.
    pub(super) async fn again(&mut self) -> Result<(), String> {
        let request = v3::LeaseKeepAliveRequest { id: self.lease };
        self.requests
            .send(request)
            .await
            .map_err(|_| "the stream of the lease ended".to_owned())?;
        kept(&mut self.answers).await
    }
}

async fn kept(answers: &mut Streaming<v3::LeaseKeepAliveResponse>) -> Result<(), String> {
    match timeout(ANSWER_MAX, answers.message()).await {
        Ok(Ok(Some(answer))) if 0 < answer.ttl => Ok(()),
        Ok(Ok(Some(_))) => Err("the lease is over".to_owned()),
        Ok(Ok(None)) => Err("etcd ended the stream of the lease".to_owned()),
        Ok(Err(status)) => Err(reason(&status)),
        Err(_) => Err(format!("no answer within {ANSWER_MAX:?}")),
    }
}

/// The keys that begin with a prefix: up to the prefix with its last byte raised.
fn range(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let key = prefix.as_bytes().to_vec();
    let mut end = key.clone();
    let last = end.last_mut().expect("a prefix ends with a slash");
    *last += 1;
    (key, end)
}

fn revision(header: Option<v3::ResponseHeader>) -> i64 {
    header.map_or(0, |header| header.revision)
}

/// The text of a status.
pub(super) fn reason(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

async fn answered<T>(
    asked: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, String> {
    match timeout(ANSWER_MAX, asked).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(reason(&status)),
        Err(_) => Err(format!("no answer within {ANSWER_MAX:?}")),
    }
}

/// What etcd is checked by, and maybe this process proven by. Files are read anew for each connection: they may be replaced.
async fn material(etcd: &Etcd) -> Result<Arc<ClientConfig>, String> {
    let config = Arc::clone(&etcd.config);
    if config.ca_file.as_os_str().is_empty() {
        return Ok(etcd.identity.tls_client());
    }
    let reading = spawn_blocking(move || {
        let own = !config.certificate_file.as_os_str().is_empty();
        let own = own.then_some((config.certificate_file.as_path(), config.key_file.as_path()));
        outside_client(&config.ca_file, own)
    });
    match reading.await {
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

async fn open(target: &Target, tls: Option<Arc<ClientConfig>>) -> Result<Channel, TransportError> {
    let scheme = if target.is_tls { "https" } else { "http" };
    let authority = target.authority();
    let origin: Result<Uri, _> = format!("{scheme}://{authority}").parse();
    // TLS is made below tonic, which is told of none.
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .http2_keep_alive_interval(HEARTBEAT)
        .keep_alive_timeout(ANSWER_MAX)
        .keep_alive_while_idle(true);
    let endpoint = match origin {
        Ok(origin) => endpoint.origin(origin),
        Err(_) => endpoint,
    };
    let target = target.clone();
    let connector = service_fn(move |_: Uri| {
        let (target, tls) = (target.clone(), tls.clone());
        async move { tls::connect(&target, tls, ALPN).await.map(TokioIo::new) }
    });
    endpoint.connect_with_connector(connector).await
}
