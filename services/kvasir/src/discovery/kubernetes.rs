//! Members from Kubernetes: the endpoints of `EndpointSlices` (`discovery.k8s.io/v1`) that a label selector chooses.
//!
//! A follower lists the slices and watches from their resource version; bookmarks move it on. A version that is too old (410)
//! is a reason to list again, and so is everything else that ends a watch. The requests are few and plain, so they are made over
//! HTTP/1.1 by hand; the crate `kube` would bring a client, a runtime and types of the whole API for one of its kinds.
//!
//! From an endpoint to members: the role is a label of the slice, the name is the pod's, the id follows from role and ordinal
//! ([`slices::id`]), the ports are those named `control` and `data` (`control-1` and `data-1` for a second rank, which is a
//! process of its own named `POD-rank1`). An endpoint counts while it is *serving*, and while it is *terminating*, whether it
//! still serves or not: it is then said to be about to end, so that it gets nothing new and its requests end in their time. It
//! is gone when its endpoint is.

mod http;
#[cfg(test)]
mod manifests;
mod slices;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::time::Duration;

use serde::Deserialize;
use serde_json::from_slice;
use tokio::time::sleep;

use super::view::Follower;
use super::{KubernetesConfig, PAUSE_MAX, Pauses};
use http::{Connection, Server, Status};
use slices::{EndpointSlice, Metadata, Slices};

/// Slices of one page of a list.
const PAGE: u32 = 250;
/// Most pages of a list: a slice has up to 100 endpoints, and a cluster up to 512 members.
const PAGES_MAX: usize = 16;
/// How long the API server is asked to keep a watch. It ends with a version from which the next one goes on.
const WATCH_SECONDS: u64 = 240;
/// Longest silence of a watch. The API server sends a bookmark about once a minute.
const SILENCE_MAX: Duration = Duration::from_secs(150);
/// Answered to a version that is too old.
const GONE: u16 = 410;

#[derive(Debug, Deserialize)]
struct List {
    metadata: Metadata,
    #[serde(default)]
    items: Vec<EndpointSlice>,
}

#[derive(Debug, Deserialize)]
struct WatchLine {
    r#type: String,
    object: serde_json::Value,
}

/// Why following was interrupted.
#[derive(Debug)]
enum Interrupted {
    /// The watch ended in good order: the next one goes on where it stood.
    GoOn,
    /// The version is too old: everything is listed again.
    ListAgain,
    /// The API server does not answer, or says no.
    Fault(String),
}

impl From<String> for Interrupted {
    fn from(reason: String) -> Self {
        Self::Fault(reason)
    }
}

/// Where a follower stands. It outlives connections.
struct Position {
    slices: Slices,
    /// From where a watch goes on; none when a list is needed.
    version: Option<String>,
}

/// Follows the members for ever.
#[expect(clippy::infinite_loop, reason = "its caller drops it at the end")]
pub(super) async fn follow(config: KubernetesConfig, mut follower: Follower) {
    let slices = Slices::new(&config.role_label);
    let mut position = Position { slices, version: None };
    let server = Server::new(config);
    let mut pauses = Pauses::up_to(PAUSE_MAX);
    loop {
        let Err(ended) = follow_once(&server, &mut position, &mut follower, &mut pauses).await;
        match ended {
            Interrupted::GoOn => pauses.reset(),
            Interrupted::ListAgain => position.version = None,
            Interrupted::Fault(reason) => {
                // Whether what was seen is still told is not known.
                position.version = None;
                follower.view.fault(&reason);
            }
        }
        sleep(pauses.take()).await;
    }
}

/// A list if one is needed, then one watch to its end.
async fn follow_once(
    server: &Server,
    position: &mut Position,
    follower: &mut Follower,
    pauses: &mut Pauses,
) -> Result<Infallible, Interrupted> {
    let version = match position.version.clone() {
        Some(version) => version,
        None => {
            let version = list(server, position).await?;
            position.tell(follower);
            position.version = Some(version.clone());
            pauses.reset();
            version
        }
    };
    let query = format!(
        "watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
        http::escaped(&version)
    );
    let mut connection = server.connect().await?;
    connection.get(server, &query).await.map_err(refused)?;
    follower.view.confirm();
    loop {
        let Some(line) = connection.line(SILENCE_MAX).await? else {
            return Err(Interrupted::GoOn);
        };
        if position.note(&line)? {
            position.tell(follower);
        }
        follower.view.confirm();
    }
}

/// Reads every slice. The version to watch from.
async fn list(server: &Server, position: &mut Position) -> Result<String, Interrupted> {
    let mut found = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGES_MAX {
        let mut connection: Connection = server.connect().await?;
        let from = http::escaped(&next);
        let query = format!("limit={PAGE}&continue={from}");
        connection.get(server, &query).await.map_err(refused)?;
        let body = connection.body().await?;
        let list: List =
            from_slice(&body).map_err(|error| format!("a list is malformed: {error}"))?;
        found.extend(list.items);
        next = list.metadata.r#continue.unwrap_or_default();
        if next.is_empty() {
            position.slices.replace(found);
            let version = list.metadata.resource_version;
            return version.ok_or_else(|| Interrupted::Fault("a list has no version".to_owned()));
        }
    }
    Err(Interrupted::Fault(format!("there are more than {PAGES_MAX} pages of slices")))
}

/// What an answer other than 200 means.
fn refused(status: Status) -> Interrupted {
    match status {
        Status::Refused(GONE, _) => Interrupted::ListAgain,
        Status::Refused(code, text) => {
            Interrupted::Fault(format!("the API server answers {code}: {text}"))
        }
        Status::Broken(reason) => Interrupted::Fault(reason),
    }
}

impl Position {
    /// Hands on what there is.
    fn tell(&self, follower: &mut Follower) {
        follower.take_ending(&self.slices.entries(), self.slices.ending());
    }

    /// Takes one line of a watch. Whether the slices changed.
    fn note(&mut self, line: &[u8]) -> Result<bool, Interrupted> {
        let malformed = |error| format!("a line of the watch is malformed: {error}");
        let line: WatchLine = from_slice(line).map_err(malformed)?;
        if line.r#type == "ERROR" {
            let code = line.object["code"].as_u64();
            if code == Some(u64::from(GONE)) {
                return Err(Interrupted::ListAgain);
            }
            let message = line.object["message"].as_str().unwrap_or("no reason is given");
            return Err(Interrupted::Fault(format!("the watch ended: {message}")));
        }
        let slice: EndpointSlice = serde_json::from_value(line.object).map_err(malformed)?;
        if let Some(version) = &slice.metadata.resource_version {
            self.version = Some(version.clone());
        }
        match line.r#type.as_str() {
            "ADDED" | "MODIFIED" => self.slices.insert(slice),
            "DELETED" => self.slices.remove(&slice),
            // A bookmark, or something newer than this.
            _ => return Ok(false),
        }
        Ok(true)
    }
}
