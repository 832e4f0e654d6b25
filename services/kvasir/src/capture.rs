//! What a router remembers of requests that ended, so that they can be replayed: arrivals, lengths, and which prefixes were
//! equal. Off by default. Never content, never a name that anybody else knows.
//!
//! The borders of the front door are decorated: an arrival is noted when a place is asked for, a line is made when an answer is
//! complete. Lines are kept in memory, within a bound in bytes; the oldest make room. `kvasir trace capture` fetches them.
//!
//! A word stands for a block: a hash of its name under a key drawn when the process started and kept nowhere else. Equal words
//! of one life are equal prefixes; words of two lives have nothing to do with each other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use anyhow::ensure;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::{
    BlockName, Clock, Decode, DecodeDirectory, DecodeEvent, DecodeRequest, Flow, PlaceEvent,
    PlaceRequest, Placer, RequestId, Sink, Ticket, Timestamp, WorkerRank,
};
use sim::CaptureLine;

/// Most bytes of lines: a million requests of usual length.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes of lines in one answer, about.
const ANSWER_BYTES: usize = 1 << 20;

/// Settings of the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CaptureConfig {
    /// Bytes of memory of a router process for lines about requests that ended, 0 to 1 GiB. Default 0: nothing is remembered;
    /// `kvasir serve` never remembers any. A request of 12,000 tokens takes 2 KB; the oldest lines make room, and `kvasir trace capture` says how many it missed.
    pub bytes_max: u64,
}

impl CaptureConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// When the bound is larger than 1 GiB.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.bytes_max <= BYTES_MAX,
            "capture.bytes_max is out of range: expected 0..=1073741824"
        );
        Ok(())
    }
}

/// Makes and keeps the lines.
pub(crate) struct Recorder {
    key: [u8; 32],
    /// Tells this process's life from others.
    life: String,
    clock: Arc<dyn Clock>,
    begun: Timestamp,
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of requests that have a place or wait for one: as many as the front door has in flight.
    arrivals: HashMap<RequestId, Timestamp>,
    lines: VecDeque<String>,
    bytes: usize,
    /// Number of the oldest line kept: as many were dropped.
    first: u64,
}

/// What the recorder did. Counters but for the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) lines: u64,
    pub(crate) dropped: u64,
    pub(crate) bytes: usize,
}

impl Recorder {
    /// A recorder; none when it is off. `key` is random and known to nobody.
    pub(crate) fn new(
        config: CaptureConfig,
        key: [u8; 32],
        clock: &Arc<dyn Clock>,
    ) -> Option<Arc<Self>> {
        let bytes_max = usize::try_from(config.bytes_max).ok().filter(|bytes| 0 < *bytes)?;
        Some(Arc::new(Self {
            key,
            life: format!("{:x}", clock.incarnation()),
            clock: Arc::clone(clock),
            begun: clock.now(),
            bytes_max,
            state: Mutex::new(State::default()),
        }))
    }

    /// The placer that notes arrivals.
    pub(crate) fn placer(self: &Arc<Self>, inner: Arc<dyn Placer>) -> Arc<dyn Placer> {
        Arc::new(NotedPlacer { inner, recorder: Arc::clone(self) })
    }

    /// The decode workers whose complete answers are noted.
    pub(crate) fn directory(
        self: &Arc<Self>,
        inner: Arc<dyn DecodeDirectory>,
    ) -> Arc<dyn DecodeDirectory> {
        Arc::new(NotedDirectory { inner, recorder: Arc::clone(self) })
    }

    /// What it did.
    pub(crate) fn recorded(&self) -> Recorded {
        let state = self.state.lock();
        let kept = u64::try_from(state.lines.len()).unwrap_or(u64::MAX);
        Recorded { lines: state.first + kept, dropped: state.first, bytes: state.bytes }
    }

    /// Lines from number `after` on, or from the oldest kept: at least one if there is one, and about a MiB at most.
    pub(crate) fn lines(&self, after: u64) -> Value {
        let state = self.state.lock();
        let from = after.max(state.first);
        let skipped = usize::try_from(from - state.first).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let fits = |line: &&String| {
            let fits = bytes < ANSWER_BYTES;
            bytes += line.len();
            fits
        };
        let lines: Vec<&String> = state.lines.iter().skip(skipped).take_while(fits).collect();
        let next = from + u64::try_from(lines.len()).unwrap_or(0);
        json!({ "life": self.life, "first": from, "next": next, "lines": lines })
    }

    fn ended(
        &self,
        id: RequestId,
        names: &[BlockName],
        (prompt_tokens, answer_tokens): (u32, u32),
    ) {
        let word = |name: &BlockName| {
            let hash = blake3::keyed_hash(&self.key, &name.0);
            hash.to_hex().as_str()[..16].to_owned()
        };
        let blocks = names.iter().map(word).collect();
        let mut state = self.state.lock();
        let Some(arrived) = state.arrivals.remove(&id) else { return };
        let at_ms = u64::try_from(arrived.since(self.begun).as_millis()).unwrap_or(u64::MAX);
        let line = CaptureLine { at_ms, prompt_tokens, answer_tokens, blocks }.line();
        state.bytes += line.len();
        state.lines.push_back(line);
        while self.bytes_max < state.bytes
            && let Some(oldest) = state.lines.pop_front()
        {
            state.bytes -= oldest.len();
            state.first += 1;
        }
    }
}

struct NotedPlacer {
    inner: Arc<dyn Placer>,
    recorder: Arc<Recorder>,
}

impl Placer for NotedPlacer {
    fn submit(&self, request: PlaceRequest, sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let (id, now) = (request.id, self.recorder.clock.now());
        self.recorder.state.lock().arrivals.insert(id, now);
        let ticket = self.inner.submit(request, sink);
        let recorder = Arc::clone(&self.recorder);
        Ticket::new(move || {
            drop(ticket);
            recorder.state.lock().arrivals.remove(&id);
        })
    }
}

struct NotedDirectory {
    inner: Arc<dyn DecodeDirectory>,
    recorder: Arc<Recorder>,
}

impl DecodeDirectory for NotedDirectory {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        let inner = self.inner.decode(worker)?;
        Some(Arc::new(NotedDecode { inner, recorder: Arc::clone(&self.recorder) }))
    }
}

struct NotedDecode {
    inner: Arc<dyn Decode>,
    recorder: Arc<Recorder>,
}

impl Decode for NotedDecode {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let sink = NotedSink {
            inner: sink,
            recorder: Arc::clone(&self.recorder),
            id: request.id,
            names: Arc::clone(&request.names),
            prompt_tokens: count(request.prompt.len()),
            answer_tokens: count(request.emitted.len()),
        };
        self.inner.submit(request, Box::new(sink))
    }
}

struct NotedSink {
    inner: Box<dyn Sink<DecodeEvent>>,
    recorder: Arc<Recorder>,
    id: RequestId,
    names: Arc<[BlockName]>,
    prompt_tokens: u32,
    answer_tokens: u32,
}

impl Sink<DecodeEvent> for NotedSink {
    fn emit(&mut self, event: DecodeEvent) -> Flow {
        match event {
            DecodeEvent::Token(..) => self.answer_tokens = self.answer_tokens.saturating_add(1),
            DecodeEvent::Finished(_) => {
                let lengths = (self.prompt_tokens, self.answer_tokens);
                self.recorder.ended(self.id, &self.names, lengths);
            }
            DecodeEvent::Started(_) | DecodeEvent::Failed(_) => {}
        }
        self.inner.emit(event)
    }
}

#[cfg(test)]
mod tests;
