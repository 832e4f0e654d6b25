//! Follows what another router tells, for as long as the link to it lives.

use std::sync::Arc;

use shared::{Flow, Sink};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::Status;

use super::RouterNews;
use crate::wire::link::{Call, Link, LinkInner, LinkState};
use crate::wire::{MESSAGE_BYTES_MAX, v1};
use v1::routers_client::RoutersClient;

/// What is heard of another router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeardRouter {
    /// Something that it tells. The first after every interruption is all that it runs.
    News(RouterNews),
    /// Nothing for now: the link broke, the router ended, or it could not be followed.
    Interrupted,
}

/// A running watch. Dropping it ends it.
#[derive(Debug)]
pub struct RouterWatch {
    /// Nothing is ever sent: its drop ends the watch.
    _cancel: oneshot::Sender<()>,
}

/// Watches the router at the other end of a link, whenever it is ready. The sink is called from the link's tasks and must
/// not block; when it closes, the watch ends.
#[must_use]
pub fn watch_router(link: &Link, sink: Box<dyn Sink<HeardRouter>>) -> RouterWatch {
    let (cancel, mut cancelled) = oneshot::channel::<()>();
    let watching = follow(Arc::clone(link.inner()), sink);
    link.inner().tasks.spawn(async move {
        tokio::select! {
            biased;
            // Nothing is ever sent: this is the sender's drop.
            _ = &mut cancelled => {}
            () = watching => {}
        }
    });
    RouterWatch { _cancel: cancel }
}

async fn follow(link: Arc<LinkInner>, mut sink: Box<dyn Sink<HeardRouter>>) {
    let mut states = link.states();
    let mut pause = link.limits.pause_min;
    loop {
        let ready = states.wait_for(|state| matches!(state, LinkState::Ready(_))).await;
        if ready.map(drop).is_err() {
            return;
        }
        let mut told = false;
        match stream(&link, &mut sink, &mut told).await {
            None => return,
            Some(reason) => {
                tracing::info!(peer = %link.peer.member, reason, "another router is not heard");
            }
        }
        let next = (2 * pause).min(link.limits.pause_max);
        pause = if told { link.limits.pause_min } else { next };
        if sink.emit(HeardRouter::Interrupted) == Flow::Closed {
            return;
        }
        sleep(pause).await;
    }
}

/// One stream of news, from its beginning to its end: why it ended, or nothing when nobody listens any more.
async fn stream(
    link: &LinkInner,
    sink: &mut Box<dyn Sink<HeardRouter>>,
    told: &mut bool,
) -> Option<String> {
    let Call { channel, origin, seat: _seat, .. } = match link.begin() {
        Ok(call) => call,
        Err(error) => return Some(error.to_string()),
    };
    let mut client =
        RoutersClient::with_origin(channel, origin).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let reason = |status: Status| Some(status.message().to_owned());
    let mut news = match client.watch(v1::RoutersRequest {}).await {
        Ok(response) => response.into_inner(),
        Err(status) => return reason(status),
    };
    loop {
        let message = match news.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Some("it ended the stream".to_owned()),
            Err(status) => return reason(status),
        };
        *told = true;
        match RouterNews::try_from(message) {
            Ok(news) => {
                if sink.emit(HeardRouter::News(news)) == Flow::Closed {
                    return None;
                }
            }
            Err(error) => return Some(format!("malformed news: {error}")),
        }
    }
}
