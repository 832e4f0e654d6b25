//! `benches evict TRACE...`: which eviction policy keeps the blocks that come back.
//!
//! Replays a trace in Mooncake's format (one JSON object a line; `hash_ids` names the blocks of a prompt, each id the whole
//! prefix up to it) through caches of several sizes. A request hits as far as its leading blocks are held; the others are
//! then stored. The first column is the shipped [`Pool`] itself, used as workers use it; the others are plain
//! implementations of the policies it is chosen from, and a cache without a bound.
//!
//! No time passes here: all that counts is order. Requests come one at a time, so nothing is pinned when another needs
//! room.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use kvstore::{HostMemory, Pool, PoolConfig, Seal};
use serde::Deserialize;
use shared::{BlockName, DpRank, ObjectKind, RegionId, Tier, WorkerId, WorkerRank};

/// Sizes in blocks of the trace.
const SIZES: [u32; 7] = [1_000, 3_000, 5_000, 10_000, 20_000, 30_000, 50_000];

/// The columns of the table.
const POLICIES: [&str; 5] =
    ["shipped pool", "LRU", "S3-FIFO, a tenth small", "S3-FIFO, half small", "SIEVE"];

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
}

/// A cache under test. The blocks of one request come as one chain.
trait Cache {
    /// How many leading blocks are held. They count as used.
    fn hit(&mut self, chain: &[u64]) -> usize;

    /// Stores blocks that are not held, as far as there is room for them.
    fn store(&mut self, chain: &[u64]);
}

/// The table of one trace, ready for `results/`.
///
/// # Errors
/// When the file cannot be read, is no trace, or the memory for a pool cannot be had.
pub fn table(trace: &Path) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(trace)
        .with_context(|| format!("{} cannot be read", trace.display()))?;
    let mut requests = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("{} line {number} is no request", trace.display()))?;
        requests.push(line.hash_ids);
    }
    let blocks: usize = requests.iter().map(Vec::len).sum();
    let mut seen = HashSet::new();
    let again = requests.iter().flatten().filter(|id| !seen.insert(**id)).count();
    let mut lines = vec![
        format!("{} requests, {blocks} blocks, {} different", requests.len(), seen.len()),
        format!("without a bound {} % of the blocks are hits", percent(again, blocks)),
        String::new(),
        format!("| blocks held | {} |", POLICIES.join(" | ")),
        format!("|---|{}", "---|".repeat(POLICIES.len())),
    ];
    for size in SIZES {
        let mut row = format!("| {size} ");
        let slots = usize::try_from(size)?;
        let mut caches: [Box<dyn Cache>; POLICIES.len()] = [
            Box::new(Shipped::new(size)?),
            Box::new(Queues::lru(slots)),
            Box::new(Queues::s3_fifo(slots, slots / 10)),
            Box::new(Queues::s3_fifo(slots, slots / 2)),
            Box::new(Sieve::new(slots)),
        ];
        for cache in &mut caches {
            let hits = requests.iter().map(|chain| {
                let hits = cache.hit(chain);
                cache.store(&chain[hits..]);
                hits
            });
            row += &format!("| {} ", percent(hits.sum(), blocks));
        }
        lines.push(row + "|");
    }
    Ok(lines)
}

fn percent(part: usize, whole: usize) -> String {
    let hundredths = part * 10_000 / whole.max(1);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The pool of this project, over slots of one byte.
struct Shipped {
    pool: Pool,
}

impl Shipped {
    fn new(slots: u32) -> anyhow::Result<Self> {
        let memory = Arc::new(HostMemory::with_slots(slots, 1)?);
        let kind = ObjectKind::Block;
        let owner = WorkerRank { worker: WorkerId(1), rank: DpRank(0) };
        let config = PoolConfig { region: RegionId::of(owner, kind), kind, tier: Tier::Host };
        Ok(Self { pool: Pool::new(config, memory) })
    }
}

fn name(id: u64) -> BlockName {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    BlockName(bytes)
}

impl Cache for Shipped {
    fn hit(&mut self, chain: &[u64]) -> usize {
        let names: Vec<BlockName> = chain.iter().copied().map(name).collect();
        let run = self.pool.lookup_run(&names);
        let hits = run.len();
        self.pool.release(run);
        hits
    }

    fn store(&mut self, chain: &[u64]) {
        let chain = &chain[..chain.len().min(self.pool.total())];
        let slots = self.pool.reserve(chain.len()).expect("nothing is held between requests");
        let seal = |id: &u64| Seal { name: name(*id), exact: true, bytes: 1 };
        let sealed =
            slots.into_iter().zip(chain).map(|(slot, id)| self.pool.seal(slot, seal(id))).collect();
        self.pool.release(sealed);
    }
}

/// What the plain policies keep of a block.
#[derive(Clone, Copy)]
struct Held {
    main: bool,
    uses: u8,
    /// The entry of a queue that counts; others of the same block are void.
    entry: u64,
}

/// S3-FIFO as in its paper; LRU as one queue into which a used block enters again.
struct Queues {
    slots: usize,
    small_max: usize,
    lru: bool,
    held: HashMap<u64, Held>,
    small: VecDeque<(u64, u64)>,
    main: VecDeque<(u64, u64)>,
    small_len: usize,
    ghosts: HashSet<u64>,
    left: VecDeque<u64>,
    entries: u64,
}

impl Queues {
    fn lru(slots: usize) -> Self {
        Self { lru: true, ..Self::s3_fifo(slots, slots) }
    }

    fn s3_fifo(slots: usize, small_max: usize) -> Self {
        Self {
            slots,
            small_max,
            lru: false,
            held: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_len: 0,
            ghosts: HashSet::new(),
            left: VecDeque::new(),
            entries: 0,
        }
    }

    fn push(&mut self, id: u64, main: bool, uses: u8) {
        self.entries += 1;
        let entry = self.entries;
        let before = self.held.insert(id, Held { main, uses, entry });
        let was_small = before.is_some_and(|before| !before.main);
        self.small_len = self.small_len + usize::from(!main) - usize::from(was_small);
        if main { &mut self.main } else { &mut self.small }.push_back((id, entry));
    }

    fn pop(&mut self, main: bool) -> Option<(u64, Held)> {
        loop {
            let (id, entry) = if main { &mut self.main } else { &mut self.small }.pop_front()?;
            let held = self.held.get(&id).filter(|held| held.entry == entry);
            if let Some(held) = held {
                return Some((id, *held));
            }
        }
    }

    fn evict(&mut self) {
        loop {
            let none_main = self.small_len == self.held.len();
            let small = none_main || self.small_max <= self.small_len;
            let Some((id, held)) = self.pop(!small) else {
                return;
            };
            if 0 < held.uses && !self.lru {
                self.push(id, true, if small { 0 } else { held.uses - 1 });
                continue;
            }
            self.held.remove(&id);
            self.small_len -= usize::from(small);
            if small && !self.lru {
                self.ghosts.insert(id);
                self.left.push_back(id);
                if self.slots < self.left.len()
                    && let Some(oldest) = self.left.pop_front()
                {
                    self.ghosts.remove(&oldest);
                }
            }
            return;
        }
    }
}

impl Cache for Queues {
    fn hit(&mut self, chain: &[u64]) -> usize {
        let hits = chain.iter().take_while(|id| self.held.contains_key(id)).count();
        for id in chain[..hits].iter().rev() {
            if self.lru {
                self.push(*id, false, 0);
            } else if let Some(held) = self.held.get_mut(id) {
                held.uses = (held.uses + 1).min(3);
            }
        }
        hits
    }

    fn store(&mut self, chain: &[u64]) {
        for id in chain.iter().rev() {
            if self.held.contains_key(id) {
                continue;
            }
            while self.slots <= self.held.len() {
                self.evict();
            }
            let main = self.ghosts.remove(id);
            self.push(*id, main, 0);
        }
    }
}

/// SIEVE: one queue, and a hand that goes from the oldest to the newest and takes the first that was not used since it
/// last came by.
struct Sieve {
    slots: usize,
    /// Blocks by the number of their arrival, with whether they were used.
    queue: BTreeMap<u64, (u64, bool)>,
    places: HashMap<u64, u64>,
    hand: u64,
    arrivals: u64,
}

impl Sieve {
    fn new(slots: usize) -> Self {
        Self { slots, queue: BTreeMap::new(), places: HashMap::new(), hand: 0, arrivals: 0 }
    }

    fn evict(&mut self) {
        loop {
            let next = self.queue.range_mut(self.hand..).next();
            let Some((place, (id, used))) = next else {
                self.hand = 0;
                continue;
            };
            let (place, id) = (*place, *id);
            self.hand = place + 1;
            if std::mem::take(used) {
                continue;
            }
            self.queue.remove(&place);
            self.places.remove(&id);
            return;
        }
    }
}

impl Cache for Sieve {
    fn hit(&mut self, chain: &[u64]) -> usize {
        let hits = chain.iter().take_while(|id| self.places.contains_key(id)).count();
        for id in &chain[..hits] {
            if let Some((_, used)) = self.queue.get_mut(&self.places[id]) {
                *used = true;
            }
        }
        hits
    }

    fn store(&mut self, chain: &[u64]) {
        for id in chain.iter().rev() {
            if self.places.contains_key(id) {
                continue;
            }
            if self.slots <= self.queue.len() {
                self.evict();
            }
            self.arrivals += 1;
            self.places.insert(*id, self.arrivals);
            self.queue.insert(self.arrivals, (*id, false));
        }
    }
}
