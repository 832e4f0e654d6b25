//! The traffic: a Mooncake trace in blocks of 128 tokens, the workers its requests go to, and the events those publish.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// A block by number. A number determines its whole prefix, as in the trace.
pub type Block = u64;

/// What a worker says about its cache.
pub struct Event {
    pub worker: u32,
    pub change: Change,
}

pub enum Change {
    /// Blocks in the order of their chain; `parent` is the block before the first.
    Stored {
        parent: Option<Block>,
        blocks: Vec<Block>,
    },
    Removed {
        blocks: Vec<Block>,
    },
}

/// How requests and caches behave.
#[derive(Clone, Copy)]
pub struct Fleet {
    pub workers: u32,
    /// Of 100 requests, those that go to any worker, so that blocks get several holders. The others go to the longest
    /// overlap among workers below 1.25 times the mean load.
    pub strays_percent: u64,
    /// Blocks a worker keeps; the least recently used leave, the end of a chain first.
    pub cache_blocks: usize,
    /// A block is taken out of the middle of a cache once in so many requests. 0 is never.
    pub hole_every: usize,
}

/// The finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Gives each request's blocks: four of 128 tokens for each of the trace's 512. Nothing is kept.
pub fn each_request(path: &str, mut each: impl FnMut(&[Block])) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read the trace {path}"))?;
    let mut blocks = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line?;
        let (_, list) = line.split_once("\"hash_ids\": [").context("a line has no hash_ids")?;
        let (list, _) = list.split_once(']').context("a list does not end")?;
        blocks.clear();
        for id in list.split(',') {
            let id: u64 = id.trim().parse().context("an id is no number")?;
            blocks.extend((0..4).map(|part| id * 4 + part));
        }
        each(&blocks);
    }
    Ok(())
}

/// Writes events for another process.
pub fn write(path: &Path, events: &[Event]) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for Event { worker, change } in events {
        let (head, blocks) = match change {
            Change::Stored { parent, blocks } => {
                ([0, parent.map_or(0, |parent| parent + 1)], blocks)
            }
            Change::Removed { blocks } => ([1, 0], blocks),
        };
        let words = [u64::from(*worker), blocks.len() as u64];
        for word in words.iter().chain(&head).chain(blocks) {
            file.write_all(&word.to_le_bytes())?;
        }
    }
    Ok(file.flush()?)
}

/// Reads events one by one. Nothing is kept, so that what the caller makes of them is all that its process holds.
pub fn each_event(path: &Path, mut each: impl FnMut(Event)) -> Result<()> {
    let mut file = BufReader::new(File::open(path)?);
    while !file.fill_buf()?.is_empty() {
        let mut word = || -> Result<u64> {
            let mut bytes = [0; 8];
            file.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (worker, len, kind, parent) = (word()?, word()?, word()?, word()?);
        let blocks = (0..len).map(|_| word()).collect::<Result<Vec<Block>>>()?;
        let change = match kind {
            0 => Change::Stored { parent: parent.checked_sub(1), blocks },
            _ => Change::Removed { blocks },
        };
        each(Event { worker: u32::try_from(worker)?, change });
    }
    Ok(())
}

#[derive(Default)]
struct Cache {
    /// By block: when it was used last and how deep it lies; deeper is older.
    held: HashMap<Block, (u64, u64)>,
    order: BTreeMap<(u64, u64), Block>,
    load: usize,
}

impl Cache {
    fn overlap(&self, blocks: &[Block]) -> usize {
        blocks.iter().take_while(|block| self.held.contains_key(block)).count()
    }

    fn take(&mut self, block: Block) {
        let key = self.held.remove(&block).expect("held");
        self.order.remove(&key);
    }
}

/// The events of the fleet, in their order.
pub fn events(requests: &[Vec<Block>], fleet: Fleet) -> Vec<Event> {
    let mut caches: Vec<Cache> = (0..fleet.workers).map(|_| Cache::default()).collect();
    let mut events = Vec::new();
    for (number, blocks) in (0_u64..).zip(requests) {
        let at = choose(&caches, blocks, number, fleet);
        let (worker, cache) = (u32::try_from(at).expect("few workers"), &mut caches[at]);
        cache.load += blocks.len();
        stored(worker, cache, blocks, &mut events);
        for (depth, &block) in (0..).zip(blocks) {
            let key = (number, u64::MAX - depth);
            if let Some(old) = cache.held.insert(block, key) {
                cache.order.remove(&old);
            }
            cache.order.insert(key, block);
        }
        let mut gone = Vec::new();
        while fleet.cache_blocks < cache.held.len() {
            let (_, block) = cache.order.pop_first().expect("held blocks are in the order");
            cache.held.remove(&block);
            gone.push(block);
        }
        if fleet.hole_every != 0 && number.is_multiple_of(fleet.hole_every as u64) {
            let block = blocks[blocks.len() / 2];
            if cache.held.contains_key(&block) {
                cache.take(block);
                gone.push(block);
            }
        }
        if !gone.is_empty() {
            events.push(Event { worker, change: Change::Removed { blocks: gone } });
        }
    }
    events
}

fn choose(caches: &[Cache], blocks: &[Block], number: u64, fleet: Fleet) -> usize {
    let random = mix(number);
    if random % 100 < fleet.strays_percent {
        return usize::try_from(mix(random) % u64::from(fleet.workers)).expect("small");
    }
    let total: usize = caches.iter().map(|cache| cache.load).sum();
    let cap = total * 5 / 4 / caches.len() + blocks.len();
    let open = (0..caches.len()).filter(|&at| caches[at].load <= cap);
    let best =
        open.max_by_key(|&at| (caches[at].overlap(blocks), std::cmp::Reverse(caches[at].load)));
    best.expect("the least loaded worker is below the cap")
}

/// What is new, in pieces whose blocks follow each other.
fn stored(worker: u32, cache: &Cache, blocks: &[Block], events: &mut Vec<Event>) {
    let mut at = 0;
    while at < blocks.len() {
        let held = |block: &&Block| cache.held.contains_key(block);
        at += blocks[at..].iter().take_while(held).count();
        let new = blocks[at..].iter().take_while(|block| !held(block)).count();
        if 0 < new {
            let parent = at.checked_sub(1).map(|before| blocks[before]);
            let blocks = blocks[at..at + new].to_vec();
            events.push(Event { worker, change: Change::Stored { parent, blocks } });
        }
        at += new;
    }
}

/// (block, holder) pairs after the events, and blocks stored and removed by them.
pub fn count(events: &[Event]) -> (usize, usize, usize) {
    let (mut pairs, mut stored, mut removed) = (BTreeSet::new(), 0, 0);
    for event in events {
        match &event.change {
            Change::Stored { blocks, .. } => {
                stored += blocks.len();
                pairs.extend(blocks.iter().map(|&block| (event.worker, block)));
            }
            Change::Removed { blocks } => {
                removed += blocks.len();
                for &block in blocks {
                    pairs.remove(&(event.worker, block));
                }
            }
        }
    }
    (pairs.len(), stored, removed)
}
