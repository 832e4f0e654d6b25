//! Follows what a member tells about itself, for as long as the link to it lives.

use std::sync::Arc;
use std::time::Duration;

use shared::{Flow, Sink, Ticket, WorkerEvent};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tonic::Status;

use super::convert::Assembler;
use super::link::{Call, Link, LinkInner, LinkState};
use super::{Facts, MESSAGE_BYTES_MAX, v1};
use v1::events_client::EventsClient;

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Watched {
    /// The member can be had and its events follow, from the beginning: the first cache event of each of its workers is
    /// `Cleared`. Comes again after every interruption.
    Begun(Arc<Facts>),
    /// What it told.
    Event(WorkerEvent),
    /// No events for now: the link broke, the member ended, or it was asked to begin anew.
    Interrupted,
}

/// A running watch. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    again: Arc<Notify>,
    _ticket: Ticket,
}

impl Watch {
    /// Asks for everything the member holds: the stream is ended and begun anew. What a lost event calls for. Does not
    /// block; asking twice before it happened is asking once.
    pub fn begin_anew(&self) {
        self.again.notify_one();
    }
}

/// Watches the member at the other end of a link, whenever it is ready. The sink is called from the link's tasks and must
/// not block; when it closes, the watch ends.
#[must_use]
pub fn watch(link: &Link, sink: Box<dyn Sink<Watched>>) -> Watch {
    let again = Arc::new(Notify::new());
    let (cancel, mut cancelled) = oneshot::channel::<()>();
    let watching = follow(Arc::clone(link.inner()), Arc::clone(&again), sink);
    link.inner().tasks.spawn(async move {
        tokio::select! {
            biased;
            // Nothing is ever sent: this is the sender's drop.
            _ = &mut cancelled => {}
            () = watching => {}
        }
    });
    Watch { again, _ticket: Ticket::new(move || drop(cancel)) }
}

async fn follow(link: Arc<LinkInner>, again: Arc<Notify>, mut sink: Box<dyn Sink<Watched>>) {
    let mut states = link.states();
    let mut pause = link.limits.pause_min;
    loop {
        let facts = {
            let ready = states.wait_for(|state| matches!(state, LinkState::Ready(_))).await;
            match ready.as_deref() {
                Ok(LinkState::Ready(facts)) => Arc::clone(facts),
                Ok(_) => unreachable!("it was waited for"),
                Err(_) => return,
            }
        };
        let mut told = 0_u64;
        let ended = stream(&link, facts, &again, &mut sink, &mut told).await;
        match ended {
            End::Unheard => return,
            End::Asked => pause = Duration::ZERO,
            End::Broken(status) => {
                tracing::info!(peer = %link.peer.member, status, "a watch was interrupted");
                let next = (2 * pause).clamp(link.limits.pause_min, link.limits.pause_max);
                pause = if 0 < told { link.limits.pause_min } else { next };
            }
        }
        if sink.emit(Watched::Interrupted) == Flow::Closed {
            return;
        }
        sleep(pause).await;
    }
}

enum End {
    /// The sink is closed.
    Unheard,
    /// A beginning was asked for.
    Asked,
    /// The stream ended, for this reason.
    Broken(String),
}

/// One stream of events, from its beginning to its end.
async fn stream(
    link: &LinkInner,
    facts: Arc<Facts>,
    again: &Notify,
    sink: &mut Box<dyn Sink<Watched>>,
    told: &mut u64,
) -> End {
    let Call { channel, origin, seat: _seat } = match link.begin() {
        Ok(call) => call,
        Err(error) => return End::Broken(error.to_string()),
    };
    let mut client =
        EventsClient::with_origin(channel, origin).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut events = match client.watch(v1::WatchRequest {}).await {
        Ok(response) => response.into_inner(),
        Err(status) => return broken(&status),
    };
    if sink.emit(Watched::Begun(facts)) == Flow::Closed {
        return End::Unheard;
    }
    let mut assembler = Assembler::default();
    loop {
        let message = tokio::select! {
            biased;
            () = again.notified() => return End::Asked,
            message = events.message() => message,
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return End::Broken("the member ended it".to_owned()),
            Err(status) => return broken(&status),
        };
        *told += 1;
        match assembler.push(message) {
            Ok(None) => {}
            Ok(Some(event)) => {
                if sink.emit(Watched::Event(event)) == Flow::Closed {
                    return End::Unheard;
                }
            }
            Err(error) => return End::Broken(format!("malformed event: {error}")),
        }
    }
}

fn broken(status: &Status) -> End {
    End::Broken(status.message().to_owned())
}
