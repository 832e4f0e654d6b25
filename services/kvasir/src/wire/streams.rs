//! Events of a border on their way into the stream of a call.
//!
//! The worker's thread puts them into a bounded channel and never waits; the call's stream takes them out and holds the
//! ticket. So a request lives as long as its stream: when the client ends it, goes away or falls behind, the ticket drops.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::Stream;
use shared::{DecodeEvent, Flow, LocateEvent, OfferEvent, PrefillEvent, Sink, Ticket};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tonic::Status;

use super::{WireError, v1};

/// What a stream does behind an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Waits for the next one.
    GoesOn,
    /// Ends.
    Ends,
    /// Says no more and stays open, because the request still pins something, until the client ends it.
    Pins,
}

/// An event of a border, with its message.
pub(super) trait BorderEvent:
    Into<Self::Message> + TryFrom<Self::Message, Error = WireError> + Send + 'static
{
    type Message: Send + 'static;

    fn after(&self) -> After;
}

impl BorderEvent for DecodeEvent {
    type Message = v1::DecodeEvent;

    fn after(&self) -> After {
        match self {
            Self::Started(_) | Self::Token(..) => After::GoesOn,
            Self::Finished(_) | Self::Failed(_) => After::Ends,
        }
    }
}

impl BorderEvent for PrefillEvent {
    type Message = v1::PrefillEvent;

    fn after(&self) -> After {
        match self {
            Self::Waiting | Self::Sealed { .. } | Self::Window(_) => After::GoesOn,
            Self::Finished { .. } | Self::Failed(_) => After::Pins,
        }
    }
}

impl BorderEvent for LocateEvent {
    type Message = v1::LocateEvent;

    fn after(&self) -> After {
        After::Pins
    }
}

impl BorderEvent for OfferEvent {
    type Message = v1::OfferEvent;

    /// The last one is known by the sink that drops behind it.
    fn after(&self) -> After {
        After::GoesOn
    }
}

/// The worker's end: a sink that never waits. When the channel is full it closes, and the call ends behind what is
/// queued.
struct ChannelSink<E> {
    events: Option<mpsc::Sender<E>>,
    overflown: Arc<AtomicBool>,
}

impl<E: Send> Sink<E> for ChannelSink<E> {
    fn emit(&mut self, event: E) -> Flow {
        let Some(events) = &self.events else { return Flow::Closed };
        match events.try_send(event) {
            Ok(()) => Flow::Open,
            Err(TrySendError::Full(_)) => {
                self.overflown.store(true, Ordering::Release);
                self.events = None;
                Flow::Closed
            }
            Err(TrySendError::Closed(_)) => {
                self.events = None;
                Flow::Closed
            }
        }
    }
}

/// The call's end of the channel.
pub(super) struct EventStream<E> {
    events: mpsc::Receiver<E>,
    overflown: Arc<AtomicBool>,
    state: After,
    /// Dropped with the stream, which ends or unpins the request.
    ticket: Option<Ticket>,
}

/// A channel for `capacity` events that were not sent yet, its sink handed to `submit`, which gives the ticket.
pub(super) fn event_stream<E: BorderEvent>(
    capacity: usize,
    submit: impl FnOnce(Box<dyn Sink<E>>) -> Ticket,
) -> EventStream<E> {
    let (sender, events) = mpsc::channel(capacity.max(1));
    let overflown = Arc::new(AtomicBool::new(false));
    let sink = ChannelSink { events: Some(sender), overflown: Arc::clone(&overflown) };
    let ticket = Some(submit(Box::new(sink)));
    EventStream { events, overflown, state: After::GoesOn, ticket }
}

impl<E: BorderEvent> Stream for EventStream<E> {
    type Item = Result<E::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.state {
            // The connection wakes the task when the client resets the stream.
            After::Pins => return Poll::Pending,
            After::Ends => {
                self.ticket = None;
                return Poll::Ready(None);
            }
            After::GoesOn => {}
        }
        match self.events.poll_recv(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(event)) => {
                self.state = event.after();
                Poll::Ready(Some(Ok(event.into())))
            }
            Poll::Ready(None) => {
                self.state = After::Ends;
                self.ticket = None;
                if self.overflown.load(Ordering::Acquire) {
                    let text = "the caller takes events too slowly; the request was ended";
                    return Poll::Ready(Some(Err(Status::resource_exhausted(text))));
                }
                Poll::Ready(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::{FutureExt, StreamExt};
    use shared::{DecodeEvent, FinishReason, Flow, LocateEvent, Miss, Sink, Ticket, TokenId};
    use tonic::Code;

    use super::{BorderEvent, EventStream, event_stream};

    fn stream<E: BorderEvent>(capacity: usize) -> (Box<dyn Sink<E>>, EventStream<E>, Arc<()>) {
        let mut kept = None;
        let alive = Arc::new(());
        let pinned = Arc::clone(&alive);
        let stream = event_stream(capacity, |sink| {
            kept = Some(sink);
            Ticket::new(move || drop(pinned))
        });
        (kept.unwrap(), stream, alive)
    }

    #[test]
    fn a_full_channel_ends_the_call_behind_what_is_queued() {
        let (mut sink, mut stream, alive) = stream(2);
        for (id, flow) in [(1, Flow::Open), (2, Flow::Open), (3, Flow::Closed), (4, Flow::Closed)] {
            assert_eq!(sink.emit(DecodeEvent::Token(TokenId(id), None)), flow, "token {id}");
        }
        let mut next = || stream.next().now_or_never().expect("nothing is waited for");
        assert!(next().unwrap().is_ok());
        assert!(next().unwrap().is_ok());
        assert_eq!(next().unwrap().unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!(Arc::strong_count(&alive), 1, "the request ended");
        assert!(next().is_none());
    }

    #[test]
    fn an_answer_ends_its_stream_even_when_the_sink_lives_on() {
        let (mut sink, mut stream, alive) = stream(4);
        assert_eq!(sink.emit(DecodeEvent::Finished(FinishReason::Stop)), Flow::Open);
        assert!(stream.next().now_or_never().unwrap().unwrap().is_ok());
        assert_eq!(Arc::strong_count(&alive), 2);
        assert!(stream.next().now_or_never().unwrap().is_none());
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_lookup_pins_until_its_stream_drops() {
        let (mut sink, mut stream, alive) = stream(1);
        assert_eq!(sink.emit(LocateEvent::at_once(vec![Err(Miss::Expired)])), Flow::Open);
        drop(sink);
        assert!(stream.next().now_or_never().unwrap().unwrap().is_ok());
        assert!(stream.next().now_or_never().is_none(), "open, without news");
        assert_eq!(Arc::strong_count(&alive), 2);
        drop(stream);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_sink_that_drops_early_ends_the_stream() {
        let (sink, mut stream, alive) = stream::<DecodeEvent>(1);
        drop(sink);
        assert!(stream.next().now_or_never().unwrap().is_none());
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
