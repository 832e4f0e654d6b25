//! Streams an answer as server-sent events.
//!
//! A pump task per stream owns the request and writes frames into a short channel that the response body reads. The pump
//! looks at both sides at once: it ends the request when the client goes away, and gives it up when the client stops
//! reading for as long as the event buffer lasts.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;

use crate::admission::Flight;
use crate::answer::{Answer, Step, outcome_of};
use crate::dispatch::{Session, Word};
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::output::Delta;
use crate::wire::{Head, KEEP_ALIVE, error_event};

/// Frames between pump and body. Few: what waits for the client waits as tokens, where it is counted.
const FRAMES: usize = 8;

/// A frame that no longer fits the channel: the error that ends the stream of a client that does not read.
type LastWord = Arc<Mutex<Option<Bytes>>>;

/// What the handler keeps of a stream.
pub(crate) struct Body {
    /// Says whether the answer began, or why not.
    pub(crate) began: oneshot::Receiver<Result<(), ApiError>>,
    pub(crate) frames: Frames,
}

/// The response body's end.
pub(crate) struct Frames {
    receiver: mpsc::Receiver<Bytes>,
    last_word: LastWord,
    keep_alive: Duration,
}

/// The worker's end.
pub(crate) struct Pump {
    session: Session,
    answer: Answer,
    head: Head,
    began: Option<oneshot::Sender<Result<(), ApiError>>>,
    frames: mpsc::Sender<Bytes>,
    overflow: Arc<Notify>,
    last_word: LastWord,
    slow_client: ApiError,
    request: shared::RequestId,
}

/// Why a pump stopped early.
enum Interrupted {
    ClientGone,
    Overflow,
}

/// Makes the two ends of a stream. `tokens_max` is the bound a slow client is told.
pub(crate) fn stream(
    (session, answer): (Session, Answer),
    head: Head,
    request: shared::RequestId,
    tokens_max: usize,
    keep_alive: Duration,
) -> (Pump, Body) {
    let (frames, receiver) = mpsc::channel(FRAMES);
    let (began_sender, began) = oneshot::channel();
    let last_word = LastWord::default();
    let overflow = session.overflow();
    let pump = Pump {
        session,
        answer,
        head,
        began: Some(began_sender),
        frames,
        overflow,
        last_word: Arc::clone(&last_word),
        slow_client: ApiError::slow_client(tokens_max),
        request,
    };
    (pump, Body { began, frames: Frames { receiver, last_word, keep_alive } })
}

impl Frames {
    /// The frames as they come, and a comment line in every silence.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures::stream::unfold(self, |mut frames| async move {
            let frame = match timeout(frames.keep_alive, frames.receiver.recv()).await {
                Err(_) => Some(Bytes::from_static(KEEP_ALIVE)),
                Ok(Some(frame)) => Some(frame),
                Ok(None) => frames.last_word.lock().take(),
            };
            frame.map(|frame| (Ok(frame), frames))
        })
    }
}

impl Pump {
    /// Runs the request to its end. The flight ends after everything the request holds was let go.
    pub(crate) async fn run(mut self, flight: Flight) {
        let outcome = match self.run_through().await {
            Ok(outcome) => outcome,
            Err(Interrupted::ClientGone) => Outcome::ClientGone,
            Err(Interrupted::Overflow) => {
                *self.last_word.lock() = Some(error_event(&self.slow_client));
                Outcome::SlowClient
            }
        };
        drop(self);
        flight.end(outcome);
    }

    async fn run_through(&mut self) -> Result<Outcome, Interrupted> {
        self.send(self.head.role_event()).await?;
        loop {
            let word = tokio::select! {
                () = self.frames.closed() => return Err(Interrupted::ClientGone),
                word = self.session.next() => word,
            };
            let Word::Event(event) = word else { return Err(Interrupted::Overflow) };
            match self.answer.take(event) {
                Step::Shown(delta) => self.show(&delta).await?,
                Step::Ended(delta, reason) => {
                    self.show(&delta).await?;
                    let last = self.head.last_events(reason, &self.answer.bill());
                    self.send(last).await?;
                    return Ok(outcome_of(reason));
                }
                Step::Failed(error) => {
                    let error = ApiError::from_serve(&error, self.request);
                    let outcome = error.outcome;
                    self.fail(error).await?;
                    return Ok(outcome);
                }
            }
        }
    }

    async fn show(&mut self, delta: &Delta) -> Result<(), Interrupted> {
        if let Some(began) = self.began.take() {
            // The handler no longer listens when it already sent the head.
            let _head_is_out = began.send(Ok(()));
        }
        if delta.is_empty() {
            return Ok(());
        }
        self.send(self.head.text_events(delta)).await
    }

    /// Before the response head an error is a status, after it an event.
    async fn fail(&mut self, error: ApiError) -> Result<(), Interrupted> {
        let unsaid = match self.began.take() {
            Some(began) => began.send(Err(error)).err().and_then(Result::err),
            None => Some(error),
        };
        match unsaid {
            Some(error) => self.send(error_event(&error)).await,
            None => Ok(()),
        }
    }

    async fn send(&mut self, frame: Bytes) -> Result<(), Interrupted> {
        tokio::select! {
            sent = self.frames.send(frame) => sent.map_err(|_| Interrupted::ClientGone),
            () = self.overflow.notified() => Err(Interrupted::Overflow),
        }
    }
}
