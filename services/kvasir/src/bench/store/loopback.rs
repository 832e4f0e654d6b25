//! Objects between a worker and a store node over loopback, and what a copy and a plain TCP connection take for the same.
//!
//! A *get* reads an object whose descriptor is known, as a worker does after a lookup or an announcement; a *put* is an
//! offer until the store has read, checked and sealed it. A *lookup* is the store's own part of finding names: the way of
//! the question over gRPC is not in it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::anyhow;
use kvstore::SharedMemory;
use serde::Serialize;
use shared::{Clock, Descriptor, OfferOutcome, SlotIndex, SlotMemory, Ticket};

use super::node::{Rig, Sizes, Way};
use super::{BATCH, in_turn};
use crate::bench::figures::{median, percentile, processor_ticks, tick_seconds, to_float};

/// What one way did for one verb. Medians over the rounds.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct LoopbackReport {
    /// `memcpy`, `tcp`, `quic`, `shared_memory` or `store`.
    pub way: &'static str,
    /// `copy`, `get`, `put` or `lookup`.
    pub verb: &'static str,
    /// Half of the single objects took at most so long, in microseconds.
    pub single_p50_us: f64,
    /// 99 of 100 took at most so long.
    pub single_p99_us: f64,
    /// Objects per second in batches of 64, each awaited before the next.
    pub batch_objects_per_second: f64,
    /// The same in 10^9 bytes of payload per second; absent for lookups, which move none.
    pub batch_gigabytes_per_second: Option<f64>,
    /// Processor seconds of both ends per 10^9 bytes in batches, over all rounds; absent for lookups.
    pub batch_cpu_seconds_per_gigabyte: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Copy,
    Tcp,
    Get(Way),
    Put(Way),
    Lookup,
}

const CASES: [Case; 7] = [
    Case::Copy,
    Case::Tcp,
    Case::Get(Way::Quic),
    Case::Get(Way::SharedMemory),
    Case::Put(Way::Quic),
    Case::Put(Way::SharedMemory),
    Case::Lookup,
];

impl Case {
    fn names(self) -> (&'static str, &'static str) {
        let of = |way| if way == Way::Quic { "quic" } else { "shared_memory" };
        match self {
            Self::Copy => ("memcpy", "copy"),
            Self::Tcp => ("tcp", "get"),
            Self::Get(way) => (of(way), "get"),
            Self::Put(way) => (of(way), "put"),
            Self::Lookup => ("store", "lookup"),
        }
    }
}

/// What one case took in one round.
struct Sample {
    p50_us: f64,
    p99_us: f64,
    batch_seconds: f64,
    ticks: u64,
}

/// Both ends, and the rounds so far.
pub(super) struct Loopback {
    rig: Rig,
    tcp: Tcp,
    clock: Arc<dyn Clock>,
    rounds: Vec<Vec<Sample>>,
}

impl Loopback {
    pub(super) fn start(
        objects: usize,
        object_bytes: usize,
        folder: &Path,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let sizes = Sizes { objects, targets: objects, object_bytes };
        let rig = Rig::start(sizes, &[Way::Quic, Way::SharedMemory], None, folder, clock)?;
        let slots = rig.sealed.iter().map(|slot| slot.index()).collect();
        let tcp = Tcp::start(Arc::clone(&rig.source.memory), slots, object_bytes)?;
        Ok(Self { rig, tcp, clock: Arc::clone(clock), rounds: Vec::new() })
    }

    /// Every case once; every second time in reversed order.
    pub(super) fn round(&mut self) -> anyhow::Result<()> {
        let samples = in_turn(self.rounds.len(), CASES.len(), |at| self.measure(CASES[at]))?;
        self.rig.check_ways()?;
        self.rounds.push(samples);
        Ok(())
    }

    /// Ends everything, and reports all rounds but the first, which warmed connections and memory.
    pub(super) async fn end(self) -> anyhow::Result<Vec<LoopbackReport>> {
        let Sizes { objects, object_bytes, .. } = self.rig.sizes;
        self.tcp.end()?;
        self.rig.end().await;
        let (objects, rounds) = (to_float(objects), &self.rounds[1..]);
        let gigabytes = objects * to_float(object_bytes) / 1e9;
        let cases = CASES.iter().enumerate().map(|(at, case)| {
            let all = |of: fn(&Sample) -> f64| median(rounds.iter().map(|round| of(&round[at])));
            let seconds = all(|sample| sample.batch_seconds);
            let ticks = rounds.iter().map(|round| round[at].ticks).sum();
            let cpu = tick_seconds(ticks) / (gigabytes * to_float(rounds.len()));
            let moves = *case != Case::Lookup;
            let (way, verb) = case.names();
            LoopbackReport {
                way,
                verb,
                single_p50_us: all(|sample| sample.p50_us),
                single_p99_us: all(|sample| sample.p99_us),
                batch_objects_per_second: objects / seconds,
                batch_gigabytes_per_second: moves.then_some(gigabytes / seconds),
                batch_cpu_seconds_per_gigabyte: moves.then_some(cpu),
            }
        });
        Ok(cases.collect())
    }

    fn measure(&self, case: Case) -> anyhow::Result<Sample> {
        let objects = self.rig.sizes.objects;
        let mut singles = Vec::with_capacity(objects);
        let prepared = self.prepare(case)?;
        for at in 0..objects {
            let start = self.clock.now();
            self.go(case, &prepared.1, at..at + 1)?;
            singles.push(self.clock.now().since(start).as_secs_f64() * 1e6);
        }
        drop(prepared);
        let prepared = self.prepare(case)?;
        let (ticks, start) = (processor_ticks()?, self.clock.now());
        for at in (0..objects).step_by(BATCH) {
            self.go(case, &prepared.1, at..objects.min(at + BATCH))?;
        }
        let batch_seconds = self.clock.now().since(start).as_secs_f64();
        Ok(Sample {
            p50_us: percentile(singles.iter().copied(), 50),
            p99_us: percentile(singles, 99),
            batch_seconds,
            ticks: processor_ticks()? - ticks,
        })
    }

    /// Brings the store into the state that a case begins with; gives what it reads, and what keeps that readable.
    fn prepare(&self, case: Case) -> anyhow::Result<(Ticket, Vec<Descriptor>)> {
        match case {
            Case::Copy | Case::Tcp => {}
            Case::Put(way) => self.rig.empty(way)?,
            Case::Lookup => self.rig.hold_all(Way::SharedMemory)?,
            Case::Get(way) => {
                self.rig.hold_all(way)?;
                return self.rig.locate(way, &self.rig.sealed);
            }
        }
        Ok((Ticket::empty(), Vec::new()))
    }

    fn go(&self, case: Case, held: &[Descriptor], range: Range<usize>) -> anyhow::Result<()> {
        let Rig { source, target, sealed, sizes, .. } = &self.rig;
        match case {
            Case::Copy => {
                for slot in &sealed[range] {
                    source.copy(slot.index(), (target, slot.index()), sizes.object_bytes);
                }
            }
            Case::Tcp => self.tcp.get(range, &target.memory)?,
            Case::Get(_) => self.rig.get(&held[range])?,
            Case::Put(way) => self.rig.put(way, &sealed[range], OfferOutcome::Stored)?,
            Case::Lookup => drop(self.rig.locate(Way::SharedMemory, &sealed[range])?),
        }
        Ok(())
    }
}

/// A plain connection: a question of sixteen bytes, objects as the answer.
struct Tcp {
    stream: TcpStream,
    slots: Vec<SlotIndex>,
    object_bytes: usize,
    serving: JoinHandle<io::Result<()>>,
}

impl Tcp {
    fn start(
        memory: Arc<SharedMemory>,
        slots: Vec<SlotIndex>,
        object_bytes: usize,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (served, _) = listener.accept()?;
        for stream in [&stream, &served] {
            stream.set_nodelay(true)?;
        }
        let theirs = slots.clone();
        let serving = thread::Builder::new()
            .name("bench-tcp".to_owned())
            .spawn(move || serve(served, &memory, &theirs, object_bytes))?;
        Ok(Self { stream, slots, object_bytes, serving })
    }

    fn get(&self, range: Range<usize>, target: &SharedMemory) -> anyhow::Result<()> {
        let mut stream = &self.stream;
        let mut question = [0; 16];
        question[..8].copy_from_slice(&u64::try_from(range.start)?.to_le_bytes());
        question[8..].copy_from_slice(&u64::try_from(range.end)?.to_le_bytes());
        stream.write_all(&question)?;
        for slot in &self.slots[range] {
            let mut received = Ok(());
            target.write(*slot, &mut |to| {
                received = stream.read_exact(&mut to[..self.object_bytes]);
            });
            received?;
        }
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        drop(self.stream);
        self.serving.join().map_err(|_| anyhow!("the serving thread died"))??;
        Ok(())
    }
}

/// Answers until the other end closes.
fn serve(
    mut stream: TcpStream,
    memory: &SharedMemory,
    slots: &[SlotIndex],
    object_bytes: usize,
) -> io::Result<()> {
    let mut question = [0; 16];
    loop {
        match stream.read_exact(&mut question) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let (numbers, _) = question.as_chunks::<8>();
        let place = |at: usize| usize::try_from(u64::from_le_bytes(numbers[at])).unwrap_or(0);
        for slot in slots.get(place(0)..place(1)).unwrap_or_default() {
            let mut sent = Ok(());
            memory.read(*slot, &mut |from| sent = stream.write_all(&from[..object_bytes]));
            sent?;
        }
    }
}
