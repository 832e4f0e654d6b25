//! Asking the API server: one connection for each question, HTTP/1.1, with the service account's token.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use super::KubernetesConfig;
use crate::discovery::config::Target;
use crate::discovery::{ANSWER_MAX, tls};
use crate::identity::outside_client;

/// The protocol's name inside TLS.
const ALPN: &[u8] = b"http/1.1";
/// Longest line of a watch: a slice has at most 1,000 endpoints of some hundred bytes.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Longest page of a list.
const PAGE_BYTES_MAX: usize = 64 << 20;
/// How much of a refusal is read for its message.
const REFUSAL_BYTES_MAX: usize = 4_096;

/// The API server, and what it is asked for.
pub(super) struct Server {
    config: Arc<KubernetesConfig>,
}

/// What changes while a process runs, read anew for each connection: tokens are replaced every hour or so.
struct Account {
    token: Option<String>,
    namespace: String,
    tls: Option<Arc<ClientConfig>>,
}

/// One connection with at most one answer.
pub(super) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    account: Account,
    answer: Option<Incoming>,
    /// Read and not yet handed on.
    rest: Vec<u8>,
    /// Ends with this.
    _driver: JoinSet<()>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Status {
    /// Another status than 200, with the beginning of its body.
    Refused(u16, String),
    /// None came.
    Broken(String),
}

impl Server {
    pub(super) fn new(config: KubernetesConfig) -> Self {
        Self { config: Arc::new(config) }
    }

    /// Connects within [`ANSWER_MAX`].
    pub(super) async fn connect(&self) -> Result<Connection, String> {
        let api = &self.config.api;
        let target =
            Target::parse(api).ok_or_else(|| format!("{api} is no URL of an API server"))?;
        let config = Arc::clone(&self.config);
        let is_tls = target.is_tls;
        let account = spawn_blocking(move || Account::read(&config, is_tls)).await;
        let account = account.map_err(|error| error.to_string())??;
        let unreached = |error: &dyn std::fmt::Display| format!("{api} cannot be reached: {error}");
        let stream = tls::connect(&target, account.tls.clone(), ALPN).await;
        let stream = stream.map_err(|error| unreached(&error))?;
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| unreached(&error))?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The answer's body says it, too.
            drop(connection.await);
        });
        Ok(Connection { sender, account, answer: None, rest: Vec::new(), _driver: driver })
    }
}

impl Account {
    fn read(config: &KubernetesConfig, is_tls: bool) -> Result<Self, String> {
        let file = |name: &str| config.account.join(name);
        let text = |path: &Path| {
            let text = fs::read_to_string(path);
            text.map_err(|error| format!("{} cannot be read: {error}", path.display()))
        };
        let namespace = match config.namespace.as_str() {
            "" => text(&file("namespace"))?.trim().to_owned(),
            namespace => namespace.to_owned(),
        };
        if !is_tls {
            // Nothing secret goes over it; `kubectl proxy` proves itself.
            return Ok(Self { token: None, namespace, tls: None });
        }
        let token = Some(text(&file("token"))?.trim().to_owned());
        let tls = outside_client(&file("ca.crt"), None).map_err(|error| error.to_string())?;
        Ok(Self { token, namespace, tls: Some(tls) })
    }
}

impl Connection {
    /// Asks for the slices, with a query behind the selector. Afterwards the body can be read.
    pub(super) async fn get(&mut self, server: &Server, query: &str) -> Result<(), Status> {
        let broken = |error: &dyn std::fmt::Display| Status::Broken(error.to_string());
        let KubernetesConfig { api, selector, .. } = server.config.as_ref();
        let (namespace, selector) = (escaped(&self.account.namespace), escaped(selector));
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}&{query}"
        );
        let host = Target::parse(api).map(|target| target.authority()).unwrap_or_default();
        let mut request = Request::get(path)
            .header(HOST, host)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, "kvasir");
        if let Some(token) = &self.account.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Empty::new()).map_err(|error| broken(&error))?;
        let answer = match timeout(ANSWER_MAX, self.sender.send_request(request)).await {
            Ok(answer) => answer.map_err(|error| broken(&error))?,
            Err(_) => return Err(Status::Broken(format!("no answer within {ANSWER_MAX:?}"))),
        };
        if answer.status() != StatusCode::OK {
            return Err(refusal(answer).await);
        }
        self.answer = Some(answer.into_body());
        Ok(())
    }

    /// The whole body.
    pub(super) async fn body(&mut self) -> Result<Vec<u8>, String> {
        while self.more(PAGE_BYTES_MAX, ANSWER_MAX).await? {}
        Ok(std::mem::take(&mut self.rest))
    }

    /// The next line of the body; none at its end.
    pub(super) async fn line(&mut self, silence_max: Duration) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.rest.drain(..=end).collect();
                line.pop();
                if !line.is_empty() {
                    return Ok(Some(line));
                }
            } else if !self.more(LINE_BYTES_MAX, silence_max).await? {
                return Ok(None);
            }
        }
    }

    /// Reads some more. False at the end.
    async fn more(&mut self, bytes_max: usize, silence_max: Duration) -> Result<bool, String> {
        let Some(answer) = &mut self.answer else { return Ok(false) };
        let frame = timeout(silence_max, answer.frame()).await;
        let frame = frame.map_err(|_| format!("nothing was heard for {silence_max:?}"))?;
        let Some(frame) = frame else {
            self.answer = None;
            return Ok(false);
        };
        let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
        if let Some(bytes) = frame.data_ref() {
            if bytes_max < self.rest.len() + bytes.len() {
                return Err(format!("an answer has more than {bytes_max} bytes"));
            }
            self.rest.extend_from_slice(bytes);
        }
        Ok(true)
    }
}

async fn refusal(answer: Response<Incoming>) -> Status {
    let code = answer.status().as_u16();
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Ok(Some(Ok(frame))) = timeout(ANSWER_MAX, body.frame()).await {
        text.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        if REFUSAL_BYTES_MAX <= text.len() {
            text.truncate(REFUSAL_BYTES_MAX);
            break;
        }
    }
    let message = serde_json::from_slice::<serde_json::Value>(&text).ok();
    let message = message.and_then(|status| status["message"].as_str().map(str::to_owned));
    Status::Refused(code, message.unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned()))
}

/// A text as it stands in a path or query (RFC 3986, unreserved characters).
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("writing to a string never fails");
        }
    }
    escaped
}
