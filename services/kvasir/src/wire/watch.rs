//! Follows what a member tells about itself, for as long as the link to it lives.

use std::sync::Arc;
use std::time::Duration;

use shared::{CacheQuestion, Flow, Sink, Ticket, WorkerEvent};
use tokio::sync::watch::Receiver;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tonic::Status;

use super::convert::{Assembler, question_to_wire};
use super::link::{Call, Link, LinkInner, LinkState};
use super::{Facts, MESSAGE_BYTES_MAX, v1};
use v1::events_client::EventsClient;

/// Questions that wait to be sent. Whoever asks has one at a time and repeats what is lost.
const QUESTIONS_MAX: usize = 4;
/// Longest wait for a question to be taken: a round trip, with room for a busy member.
const ASK_MAX: Duration = Duration::from_secs(3);

/// What a watch tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Watched {
    /// The member can be had and its events follow, from the beginning: the first cache event of each of its workers is
    /// `Cleared`. Comes again after every interruption.
    Begun(Arc<Facts>),
    /// What it told.
    Event(WorkerEvent),
    /// No events for now, while calls to the member go on: it was asked to begin anew, cut this side off for being slow, or
    /// told something malformed.
    Interrupted,
    /// The member is gone for now, and so are calls to it: the link broke, or the member ends and takes no more. May come
    /// behind `Interrupted`, and when nothing had begun.
    Gone,
}

/// A running watch. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    again: Arc<Notify>,
    questions: mpsc::Sender<v1::AskRequest>,
    _ticket: Ticket,
}

impl Watch {
    /// Asks for what a lost event calls for. The answer is among the events; for everything the member holds the stream is
    /// ended and begun anew. Does not block; a question may be lost, and is to be repeated.
    pub fn ask(&self, question: &CacheQuestion) {
        match question_to_wire(question) {
            Some(question) => {
                if self.questions.try_send(question).is_err() {
                    tracing::debug!("a question to a member found no room");
                }
            }
            None => self.again.notify_one(),
        }
    }
}

/// Watches the member at the other end of a link, whenever it is ready. The sink is called from the link's tasks and must
/// not block; when it closes, the watch ends.
#[must_use]
pub fn watch(link: &Link, sink: Box<dyn Sink<Watched>>) -> Watch {
    let again = Arc::new(Notify::new());
    let (cancel, mut cancelled) = oneshot::channel::<()>();
    let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
    let watching = follow(Arc::clone(link.inner()), Arc::clone(&again), sink);
    let asking = pass_on(Arc::clone(link.inner()), asked);
    link.inner().tasks.spawn(async move {
        tokio::select! {
            biased;
            // Nothing is ever sent: this is the sender's drop.
            _ = &mut cancelled => {}
            () = watching => {}
            () = asking => {}
        }
    });
    Watch { again, questions, _ticket: Ticket::new(move || drop(cancel)) }
}

/// Sends one question after the other, until nobody can ask any more.
async fn pass_on(link: Arc<LinkInner>, mut asked: mpsc::Receiver<v1::AskRequest>) {
    while let Some(question) = asked.recv().await {
        let lost = match timeout(ASK_MAX, put(&link, question)).await {
            Ok(Ok(())) => continue,
            Ok(Err(status)) => status,
            Err(_) => "no answer in time".to_owned(),
        };
        tracing::info!(peer = %link.peer.member, status = lost, "a question for lost events was not taken");
    }
}

async fn put(link: &LinkInner, question: v1::AskRequest) -> Result<(), String> {
    let Call { channel, origin, seat: _seat, .. } =
        link.begin().map_err(|error| error.to_string())?;
    let mut client = EventsClient::with_origin(channel, origin);
    let taken = client.ask(question).await;
    taken.map(|_| ()).map_err(|status| status.message().to_owned())
}

async fn follow(link: Arc<LinkInner>, again: Arc<Notify>, mut sink: Box<dyn Sink<Watched>>) {
    let mut states = link.states();
    let mut pause = link.limits.pause_min;
    // The connection on which the member may have been heard since it was told to be gone.
    let mut heard_on = None;
    loop {
        let facts = {
            let ready = states.wait_for(|state| matches!(state, LinkState::Ready(_))).await;
            match ready.as_deref() {
                Ok(LinkState::Ready(facts)) => Arc::clone(facts),
                Ok(_) => unreachable!("it was waited for"),
                Err(_) => return,
            }
        };
        let connection = link.connection();
        let before = heard_on.replace(connection).filter(|before| *before != connection);
        if before.is_some() && sink.emit(Watched::Gone) == Flow::Closed {
            return;
        }
        let mut told = 0_u64;
        let ended = stream(&link, facts, &again, &mut sink, &mut told).await;
        let next = (2 * pause).clamp(link.limits.pause_min, link.limits.pause_max);
        let next = if 0 < told { link.limits.pause_min } else { next };
        let (word, status) = match ended {
            End::Unheard => return,
            End::Asked => (Watched::Interrupted, None),
            End::Over => (Watched::Gone, Some("the member ended it".to_owned())),
            End::Broken(status) => (Watched::Interrupted, Some(status)),
        };
        pause = if status.is_some() { next } else { Duration::ZERO };
        if let Some(status) = status {
            tracing::info!(peer = %link.peer.member, status, "a watch was interrupted");
        }
        if sink.emit(word) == Flow::Closed {
            return;
        }
        if !is_ready_for(&mut states, pause).await {
            if sink.emit(Watched::Gone) == Flow::Closed {
                return;
            }
            heard_on = None;
            sleep(pause).await;
        }
    }
}

/// Waits for this long, or until the link breaks; whether it did not.
async fn is_ready_for(states: &mut Receiver<LinkState>, time: Duration) -> bool {
    let broken = async {
        // A link that ended is broken, too.
        drop(states.wait_for(|state| !matches!(state, LinkState::Ready(_))).await);
    };
    timeout(time, broken).await.is_err()
}

enum End {
    /// The sink is closed.
    Unheard,
    /// A beginning was asked for.
    Asked,
    /// The member ended it, since it ends itself.
    Over,
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
    let Call { channel, origin, seat: _seat, .. } = match link.begin() {
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
            Ok(None) => return End::Over,
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
