//! Streams answers as server-sent events.
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
use crate::answer::outcome_of;
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::output::Delta;
use crate::runs::{Happened, Runs};
use crate::wire::{KEEP_ALIVE, Writer};

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
    silence: Duration,
    /// What is sent in a silence: a comment until the first frame, which clients of some protocols want to be first.
    keep_alive: &'static [u8],
    keep_alive_later: &'static [u8],
}

/// The worker's end.
pub(crate) struct Pump {
    runs: Runs,
    writer: Box<dyn Writer>,
    began: Option<oneshot::Sender<Result<(), ApiError>>>,
    frames: mpsc::Sender<Bytes>,
    overflow: Arc<Notify>,
    last_word: LastWord,
    slow_client: ApiError,
}

/// Why a pump stopped early.
enum Interrupted {
    ClientGone,
    Overflow,
}

/// Makes the two ends of a stream. `tokens_max` is the bound a slow client is told; in each `silence` something is sent.
pub(crate) fn stream(
    runs: Runs,
    writer: Box<dyn Writer>,
    tokens_max: usize,
    silence: Duration,
) -> (Pump, Body) {
    let (frames, receiver) = mpsc::channel(FRAMES);
    let (began_sender, began) = oneshot::channel();
    let last_word = LastWord::default();
    let overflow = runs.overflow();
    let keep_alive_later = writer.keep_alive();
    let pump = Pump {
        runs,
        writer,
        began: Some(began_sender),
        frames,
        overflow,
        last_word: Arc::clone(&last_word),
        slow_client: ApiError::slow_client(tokens_max),
    };
    let keep_alive = KEEP_ALIVE;
    let frames = Frames { receiver, last_word, silence, keep_alive, keep_alive_later };
    (pump, Body { began, frames })
}

impl Frames {
    /// The frames as they come, and a sign of life in every silence.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
        futures::stream::unfold(self, |mut frames| async move {
            let frame = match timeout(frames.silence, frames.receiver.recv()).await {
                Err(_) => Some(Bytes::from_static(frames.keep_alive)),
                Ok(Some(frame)) => {
                    frames.keep_alive = frames.keep_alive_later;
                    Some(frame)
                }
                Ok(None) => frames.last_word.lock().take(),
            };
            frame.map(|frame| (Ok(frame), frames))
        })
    }
}

impl Pump {
    /// Runs the request to its end. The flights end after everything the request holds was let go.
    pub(crate) async fn run(mut self, flights: Vec<Flight>) {
        let outcome = match self.run_through().await {
            Ok(outcome) => outcome,
            Err(Interrupted::ClientGone) => Outcome::ClientGone,
            Err(Interrupted::Overflow) => {
                *self.last_word.lock() = Some(self.writer.fail(&self.slow_client));
                Outcome::SlowClient
            }
        };
        drop(self);
        for flight in flights {
            flight.end(outcome);
        }
    }

    async fn run_through(&mut self) -> Result<Outcome, Interrupted> {
        let opening = self.writer.open();
        self.send(opening).await?;
        loop {
            let happened = tokio::select! {
                () = self.frames.closed() => return Err(Interrupted::ClientGone),
                happened = self.runs.next() => happened,
            };
            match happened {
                Happened::Began(index) => {
                    self.say_begun();
                    let frame = self.writer.began(index, &self.runs.bill(index));
                    self.send(frame).await?;
                }
                Happened::Shown(index, delta) => self.show(index, &delta).await?,
                Happened::Ended(index, delta, end) => {
                    self.say_begun();
                    self.show(index, &delta).await?;
                    let last = self.writer.end(index, &end, &self.runs.bill(index));
                    self.send(last).await?;
                    if self.runs.is_done() {
                        let last = self.writer.close(&self.runs.total());
                        self.send(last).await?;
                        return Ok(outcome_of(&end));
                    }
                }
                Happened::Failed(error) => {
                    let error = ApiError::from_serve(&error, self.runs.id());
                    let outcome = error.outcome;
                    self.fail(error).await?;
                    return Ok(outcome);
                }
                Happened::Overflow => return Err(Interrupted::Overflow),
            }
        }
    }

    /// The handler may send the response head.
    fn say_begun(&mut self) {
        if let Some(began) = self.began.take() {
            // The handler no longer listens when it already sent the head.
            let _head_is_out = began.send(Ok(()));
        }
    }

    async fn show(&mut self, index: usize, delta: &Delta) -> Result<(), Interrupted> {
        self.say_begun();
        if delta.is_empty() {
            return Ok(());
        }
        let frame = self.writer.show(index, delta);
        self.send(frame).await
    }

    /// Before the response head an error is a status, after it an event.
    async fn fail(&mut self, error: ApiError) -> Result<(), Interrupted> {
        let unsaid = match self.began.take() {
            Some(began) => began.send(Err(error)).err().and_then(Result::err),
            None => Some(error),
        };
        match unsaid {
            Some(error) => {
                let frame = self.writer.fail(&error);
                self.send(frame).await
            }
            None => Ok(()),
        }
    }

    async fn send(&mut self, frame: Bytes) -> Result<(), Interrupted> {
        if frame.is_empty() {
            return Ok(());
        }
        tokio::select! {
            sent = self.frames.send(frame) => sent.map_err(|_| Interrupted::ClientGone),
            () = self.overflow.notified() => Err(Interrupted::Overflow),
        }
    }
}
