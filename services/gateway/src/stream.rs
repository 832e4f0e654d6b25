//! Streams answers as server-sent events.
//!
//! The response body takes the events of its request itself, as the connection asks for more, and what happened meanwhile is one
//! piece: no task of its own stands between worker and connection, whose wake-ups would cost more than the event. When the client
//! goes away the connection drops the body, and the request with it. A client that stops reading lets nobody ask; once its events
//! fill their buffer the worker's sink rings, and the request is given up beside the connection.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};
use tracing::Span;

use crate::admission::Flight;
use crate::answer::outcome_of;
use crate::error::ApiError;
use crate::metrics::Outcome;
use crate::output::Delta;
use crate::runs::{Happened, Runs};
use crate::wire::{KEEP_ALIVE, Writer};

/// A piece that has so many bytes takes no more events. Few: what waits for the client waits as tokens, where it is counted.
const PIECE_BYTES: usize = 16 << 10;

/// A request whose answers are streamed. Fields drop in order: the flights end after everything else was let go.
struct Live {
    runs: Runs,
    writer: Box<dyn Writer>,
    slow_client: ApiError,
    /// Whether the head of the response was decided on.
    began: bool,
    flights: Vec<Flight>,
}

/// What came of an event.
enum Taken {
    GoesOn,
    Over(Outcome),
    /// It failed before the head of the response: the error is the response.
    Refused(ApiError),
}

impl Live {
    /// Says what happened.
    fn take(&mut self, happened: Happened, piece: &mut Vec<u8>) -> Taken {
        match happened {
            Happened::Began(index) => {
                piece.extend_from_slice(&self.writer.began(index, &self.runs.bill(index)));
            }
            Happened::Shown(index, delta) => self.show(index, &delta, piece),
            Happened::Ended(index, delta, end) => {
                self.show(index, &delta, piece);
                piece.extend_from_slice(&self.writer.end(index, &end, &self.runs.bill(index)));
                if self.runs.is_done() {
                    piece.extend_from_slice(&self.writer.close(&self.runs.total()));
                    return Taken::Over(outcome_of(&end));
                }
            }
            Happened::Failed(error) => {
                let error = ApiError::from_serve(&error, self.runs.id());
                if !self.began {
                    return Taken::Refused(error);
                }
                piece.extend_from_slice(&self.writer.fail(&error));
                return Taken::Over(error.outcome);
            }
            Happened::Overflow => {
                piece.extend_from_slice(&self.writer.fail(&self.slow_client));
                return Taken::Over(Outcome::SlowClient);
            }
        }
        Taken::GoesOn
    }

    fn show(&mut self, index: usize, delta: &Delta, piece: &mut Vec<u8>) {
        if !delta.is_empty() {
            piece.extend_from_slice(&self.writer.show(index, delta));
        }
    }

    fn end(self, outcome: Outcome) {
        let Self { runs, writer, flights, .. } = self;
        drop((runs, writer));
        for flight in flights {
            flight.end(outcome);
        }
    }
}

/// A stream, as all see it who may end it.
struct Shared {
    state: Mutex<State>,
}

struct State {
    /// None once it is over.
    live: Option<Live>,
    /// The error that ends the stream of a client that does not read.
    last_word: Option<Bytes>,
    /// Whoever waits for an event.
    waiting: Option<Waker>,
}

impl Shared {
    /// Waits for the next event and says it. None when there is none any more.
    fn poll_event(
        &self,
        context: &mut Context<'_>,
        piece: &mut Vec<u8>,
    ) -> Poll<Option<Result<(), ApiError>>> {
        let mut state = self.state.lock();
        let Some(live) = &mut state.live else { return Poll::Ready(None) };
        // Cancel-safe, so a future for each look is as good as one for all.
        let Poll::Ready(happened) = pin!(live.runs.next()).poll(context) else {
            match &mut state.waiting {
                Some(waiting) => waiting.clone_from(context.waker()),
                waiting @ None => *waiting = Some(context.waker().clone()),
            }
            return Poll::Pending;
        };
        let taken = live.take(happened, piece);
        live.began = true;
        let (outcome, said) = match taken {
            Taken::GoesOn => return Poll::Ready(Some(Ok(()))),
            Taken::Over(outcome) => (outcome, Ok(())),
            Taken::Refused(error) => (error.outcome, Err(error)),
        };
        let live = state.live.take();
        drop(state);
        if let Some(live) = live {
            live.end(outcome);
        }
        Poll::Ready(Some(said))
    }

    /// Ends a request whose client does not read.
    fn give_up(&self) {
        let mut state = self.state.lock();
        let Some(mut live) = state.live.take() else { return };
        state.last_word = Some(live.writer.fail(&live.slow_client));
        let waiting = state.waiting.take();
        drop(state);
        live.end(Outcome::SlowClient);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Ends a request without a word. False when it was over.
    fn cut_off(&self) -> bool {
        let mut state = self.state.lock();
        let (live, waiting) = (state.live.take(), state.waiting.take());
        drop(state);
        let was_live = live.is_some();
        drop(live);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
        was_live
    }
}

/// The streams that are running; at most as many as requests in flight.
#[derive(Default)]
pub(crate) struct Streams {
    running: Mutex<(u64, HashMap<u64, Weak<Shared>>)>,
}

impl Streams {
    /// Ends all that are running without a word; answers how many.
    pub(crate) fn cut_off(&self) -> usize {
        let running = std::mem::take(&mut self.running.lock().1);
        running
            .into_values()
            .filter_map(|stream| stream.upgrade())
            .filter(|it| it.cut_off())
            .count()
    }

    fn enter(self: &Arc<Self>, stream: &Arc<Shared>) -> Entry {
        let (numbers, running) = &mut *self.running.lock();
        let number = *numbers;
        *numbers += 1;
        running.insert(number, Arc::downgrade(stream));
        Entry { streams: Arc::clone(self), number }
    }
}

/// A place among the running streams.
struct Entry {
    streams: Arc<Streams>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.streams.running.lock().1.remove(&self.number);
    }
}

/// What a stream is made of.
pub(crate) struct Parts {
    pub(crate) runs: Runs,
    pub(crate) writer: Box<dyn Writer>,
    /// One of each run.
    pub(crate) flights: Vec<Flight>,
    /// The bound a slow client is told.
    pub(crate) tokens_max: usize,
    /// In each silence of this length something is sent.
    pub(crate) silence: Duration,
}

/// The events of a request, in pieces as they come, and a sign of life in every silence. Dropping it ends the request.
pub(crate) struct Events {
    shared: Arc<Shared>,
    /// What was said and not sent.
    piece: Vec<u8>,
    silence: Duration,
    /// When something was last sent.
    sent: Instant,
    /// Rings at the end of a silence, or earlier: then it is set anew.
    bell: Pin<Box<Sleep>>,
    /// What is sent in a silence: a comment until the first event, which clients of some protocols want to be first.
    keep_alive: &'static [u8],
    keep_alive_later: &'static [u8],
    span: Span,
    _entry: Entry,
}

impl Events {
    /// To be called in a runtime, in the span of the request.
    pub(crate) fn new(streams: &Arc<Streams>, parts: Parts) -> Self {
        let Parts { runs, mut writer, flights, tokens_max, silence } = parts;
        let keep_alive_later = writer.keep_alive();
        let piece = writer.open().to_vec();
        let alarm = Arc::clone(runs.alarm());
        let slow_client = ApiError::slow_client(tokens_max);
        let live = Some(Live { runs, writer, slow_client, began: false, flights });
        let state = Mutex::new(State { live, last_word: None, waiting: None });
        let shared = Arc::new(Shared { state });
        let (stream, runtime) = (Arc::downgrade(&shared), Handle::current());
        alarm.set(Box::new(move || {
            // A worker's thread rings, which is not the one to let go of what the worker does.
            let Some(stream) = stream.upgrade() else { return };
            let _task = runtime.spawn(async move { stream.give_up() });
        }));
        let sent = Instant::now();
        Self {
            _entry: streams.enter(&shared),
            shared,
            piece,
            silence,
            sent,
            bell: Box::pin(sleep_until(sent + silence)),
            keep_alive: KEEP_ALIVE,
            keep_alive_later,
            span: Span::current(),
        }
    }

    /// Waits until the answer began.
    ///
    /// # Errors
    /// When it ended before it began; the failure is counted.
    pub(crate) async fn begun(&mut self) -> Result<(), ApiError> {
        let Self { shared, piece, .. } = self;
        let first = std::future::poll_fn(|context| shared.poll_event(context, piece)).await;
        first.unwrap_or(Ok(()))
    }

    /// The head of the response goes out: errors are events from now on.
    pub(crate) fn head_is_out(&self) {
        if let Some(live) = &mut self.shared.state.lock().live {
            live.began = true;
        }
    }

    /// Takes events until there is no other one yet; whether more may come.
    fn gather(&mut self, context: &mut Context<'_>) -> bool {
        while self.piece.len() < PIECE_BYTES {
            match self.shared.poll_event(context, &mut self.piece) {
                // An error is a word of the stream by now.
                Poll::Ready(Some(_said)) => {}
                Poll::Ready(None) => return false,
                Poll::Pending => return true,
            }
        }
        true
    }
}

impl Stream for Events {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let span = this.span.clone();
        let goes_on = span.in_scope(|| this.gather(context));
        if !this.piece.is_empty() {
            this.sent = Instant::now();
            this.keep_alive = this.keep_alive_later;
            return Poll::Ready(Some(Ok(std::mem::take(&mut this.piece).into())));
        }
        if !goes_on {
            let last_word = this.shared.state.lock().last_word.take();
            return Poll::Ready(last_word.map(Ok));
        }
        loop {
            ready!(this.bell.as_mut().poll(context));
            let (now, ends) = (Instant::now(), this.sent + this.silence);
            let rang = ends <= now;
            if rang {
                this.sent = now;
            }
            this.bell.as_mut().reset(this.sent + this.silence);
            if rang {
                return Poll::Ready(Some(Ok(Bytes::from_static(this.keep_alive))));
            }
        }
    }
}
