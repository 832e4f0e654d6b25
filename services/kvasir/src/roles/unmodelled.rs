//! A decode worker without a model, for `kvasir bench router`: everything that a router sees of a worker is real (its
//! certificate, its links, its events, the names it recomputes), and an answer costs as good as nothing.
//!
//! It says one token, taken from the middle of the prompt, and tells the router that it holds the prompt's blocks from
//! then on. Nothing is ever removed: a run is short. It answers on the thread that asks, as the servers behind other routers do
//! in such a run: a worker's own thread, and waking it, is no part of the way through a router.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use parking_lot::Mutex;
use shared::{
    BLOCK_TOKENS, BlockName, CacheChange, CacheEvent, Decode, DecodeEvent, DecodeRequest,
    FinishReason, Flow, LoadReport, NameCache, ServeError, Sink, StartReport, Ticket, Tier,
    WindowSource, WorkerEvent, WorkerRank,
};

use super::base::{Base, Offered};
use crate::admin::Observed;
use crate::console::Console;
use crate::lanes::Lanes;
use crate::wire::EventHub;
use crate::wiring::parts::Asked;

/// Pause between two load reports.
const REPORT_PERIOD: Duration = Duration::from_millis(100);
/// Blocks that it remembers; beyond that new ones are not held.
const BLOCKS_MAX: usize = 4_000_000;
/// A pace that no router is afraid of.
const ROWS_PER_SECOND: f64 = 1e7;

/// Answers at once.
struct Unmodelled {
    holdings: Arc<Mutex<Holdings>>,
}

impl Decode for Unmodelled {
    fn submit(&self, request: DecodeRequest, sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        self.holdings.lock().answer(&request, sink);
        // An answer is out before it could be cancelled.
        Ticket::empty()
    }
}

/// Runs the worker until it is told to stop.
///
/// # Errors
/// When an address is taken or the thread cannot be started.
pub(super) async fn run(mut base: Base, console: &mut Console) -> anyhow::Result<()> {
    let peers = base.peers(&[], Lanes::default());
    let asked = Asked::default();
    let rank = base.me.rank();
    let hub = EventHub::new({
        let asked = asked.clone();
        move |question| asked.ask(rank, &question)
    });
    let holdings = Holdings {
        hub: Arc::clone(&hub),
        asked,
        rank,
        incarnation: base.clock.incarnation(),
        sequence: 0,
        held: HashSet::new(),
        names: NameCache::new(NameCache::STANDARD_BYTES),
    };
    let holdings = Arc::new(Mutex::new(holdings));
    let (stop, stopped) = bounded(0);
    let thread = start(Arc::clone(&holdings), stopped)?;
    let decode = Arc::new(Unmodelled { holdings });
    let offered = Offered {
        decode: Some(decode as Arc<dyn Decode>),
        events: Some(hub),
        ..Offered::default()
    };
    let running = base.answer(offered, Base::admin(Observed::default()), &peers)?;
    base.say_ready(console)?;
    let ended = base.until_stopped(|| !thread.is_finished()).await;
    running.end(Duration::ZERO).await;
    peers.close().await;
    drop(stop);
    if thread.join().is_err() {
        tracing::error!("the worker's thread panicked");
    }
    ended
}

/// The thread that reports until its other end drops.
fn start(holdings: Arc<Mutex<Holdings>>, stopped: Receiver<()>) -> anyhow::Result<JoinHandle<()>> {
    let report = move || {
        while stopped.recv_timeout(REPORT_PERIOD) == Err(RecvTimeoutError::Timeout) {
            holdings.lock().report();
        }
    };
    let thread = Builder::new().name("kvasir-unmodelled".to_owned());
    thread.spawn(report).context("the worker's thread")
}

/// What it says that it holds.
struct Holdings {
    hub: Arc<EventHub>,
    asked: Asked,
    rank: WorkerRank,
    incarnation: u64,
    sequence: u64,
    held: HashSet<BlockName>,
    /// As a worker has it.
    names: NameCache,
}

impl Holdings {
    fn answer(&mut self, request: &DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) {
        let names = self.names.names(&request.root, &request.prompt);
        if names[..] != request.names[..] {
            let message = "the names of the router differ from those of the worker".to_owned();
            let _closed = sink.emit(DecodeEvent::Failed(ServeError::Internal { message }));
            return;
        }
        let cached = names.iter().take_while(|name| self.held.contains(name)).count();
        let cached_tokens = u32::try_from(cached).unwrap_or(u32::MAX).saturating_mul(BLOCK_TOKENS);
        let report = StartReport {
            cached_tokens,
            replayed_tokens: 0,
            window_source: if cached == 0 { WindowSource::Cold } else { WindowSource::Object },
            exact: true,
            bytes_fetched: 0,
            prefill: None,
        };
        let token = request.prompt[request.prompt.len() / 2];
        for event in [
            DecodeEvent::Started(report),
            DecodeEvent::Token(token, None),
            DecodeEvent::Finished(FinishReason::Length),
        ] {
            if sink.emit(event) == Flow::Closed {
                break;
            }
        }
        let new: Vec<BlockName> =
            names.into_iter().filter(|name| !self.held.contains(name)).collect();
        if !new.is_empty() && self.held.len() + new.len() <= BLOCKS_MAX {
            self.held.extend(new.iter().copied());
            self.tell(CacheChange::Stored { tier: Tier::Device, names: new });
        }
    }

    fn report(&mut self) {
        // Whatever was asked for, everything answers it: a run has few blocks.
        if !self.asked.take(self.rank).is_empty() {
            self.tell(CacheChange::Cleared);
            let names: Vec<BlockName> = self.held.iter().copied().collect();
            for names in names.chunks(4_096) {
                self.tell(CacheChange::Stored { tier: Tier::Device, names: names.to_vec() });
            }
        }
        let report = LoadReport {
            slots_available: 1 << 20,
            slots: 1 << 20,
            rows_per_second: ROWS_PER_SECOND,
            ..LoadReport::default()
        };
        self.hub.emit(WorkerEvent::Load { worker: self.rank, report });
    }

    fn tell(&mut self, change: CacheChange) {
        let event = CacheEvent {
            worker: self.rank,
            incarnation: self.incarnation,
            sequence: self.sequence,
            change,
        };
        self.sequence += 1;
        self.hub.emit(WorkerEvent::Cache(event));
    }
}
