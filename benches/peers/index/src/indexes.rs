//! The indexes behind one trait. Names are made before anything is measured: hashing is nobody's part here.

use std::collections::HashMap;
use std::hint::black_box;

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use router::{PrefixIndex, Role};
use shared::{BlockName, CacheChange, CacheEvent, DpRank, Tier, WorkerId, WorkerRank};

use crate::trace::{Block, Change, Event, mix};

/// One index with its own form of events and requests.
pub trait Index {
    type Event;
    type Request: Clone;
    fn new(workers: u32) -> Self;
    fn event(&mut self, event: &Event) -> Self::Event;
    fn request(blocks: &[Block]) -> Self::Request;
    fn apply(&mut self, event: &Self::Event);
    /// Waits until what was applied counts.
    fn settle(&mut self) {}
    /// The sum of all workers' overlaps with the request.
    fn overlaps(&self, request: &Self::Request) -> u64;
}

/// `router::PrefixIndex`.
pub struct Ours {
    index: PrefixIndex,
    sequences: Vec<u64>,
}

fn name(block: Block) -> BlockName {
    let low = mix(block);
    let mut name = [0; 16];
    name[..8].copy_from_slice(&low.to_le_bytes());
    name[8..].copy_from_slice(&mix(low).to_le_bytes());
    BlockName(name)
}

pub fn names(blocks: &[Block]) -> Vec<BlockName> {
    blocks.iter().copied().map(name).collect()
}

pub fn rank(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
}

impl Index for Ours {
    type Event = CacheEvent;
    type Request = Vec<BlockName>;

    fn new(workers: u32) -> Self {
        let mut index = PrefixIndex::new(1_024, 100_000_000);
        for worker in 0..workers {
            index.join(rank(worker), Role::Decode).expect("room");
        }
        let sequences = (0..workers).map(|_| 0).collect();
        Self { index, sequences }
    }

    fn event(&mut self, event: &Event) -> Self::Event {
        let tier = Tier::Device;
        let change = match &event.change {
            Change::Stored { blocks, .. } => CacheChange::Stored { tier, names: names(blocks) },
            Change::Removed { blocks } => CacheChange::Removed { tier, names: names(blocks) },
        };
        let next = &mut self.sequences[usize::try_from(event.worker).expect("small")];
        let sequence = *next;
        *next += 1;
        CacheEvent { worker: rank(event.worker), incarnation: 1, sequence, change }
    }

    fn request(blocks: &[Block]) -> Self::Request {
        names(blocks)
    }

    fn apply(&mut self, event: &Self::Event) {
        self.index.apply(event);
    }

    fn overlaps(&self, request: &Self::Request) -> u64 {
        let matches = black_box(self.index.match_prefix(request));
        matches.reaches().map(|(_, blocks)| u64::from(blocks)).sum()
    }
}

/// SMG's `kv_index::ChainIndex`.
pub struct Chain {
    index: ChainIndex,
    workers: Vec<(u32, ChainBlockMap)>,
}

pub enum ChainEvent {
    Stored { worker: usize, blocks: Vec<StoredBlock>, parent: Option<SequenceHash> },
    Removed { worker: usize, hashes: Vec<SequenceHash> },
}

fn sequence(block: Block) -> SequenceHash {
    SequenceHash(mix(!block))
}

impl Index for Chain {
    type Event = ChainEvent;
    type Request = Vec<ContentHash>;

    fn new(workers: u32) -> Self {
        let index = ChainIndex::with_max_workers(usize::try_from(workers).expect("small"));
        let workers = (0..workers).map(|worker| {
            let id = index.intern_worker(&format!("http://worker-{worker}")).expect("room");
            (id, ChainBlockMap::new())
        });
        Self { workers: workers.collect(), index }
    }

    fn event(&mut self, event: &Event) -> Self::Event {
        let worker = usize::try_from(event.worker).expect("small");
        match &event.change {
            Change::Stored { parent, blocks } => {
                let stored = |&block: &Block| StoredBlock {
                    seq_hash: sequence(block),
                    content_hash: ContentHash(mix(block)),
                };
                let blocks = blocks.iter().map(stored).collect();
                ChainEvent::Stored { worker, blocks, parent: parent.map(sequence) }
            }
            Change::Removed { blocks } => ChainEvent::Removed {
                worker,
                hashes: blocks.iter().copied().map(sequence).collect(),
            },
        }
    }

    fn request(blocks: &[Block]) -> Self::Request {
        blocks.iter().map(|&block| ContentHash(mix(block))).collect()
    }

    fn apply(&mut self, event: &Self::Event) {
        match event {
            ChainEvent::Stored { worker, blocks, parent } => {
                let (id, map) = &mut self.workers[*worker];
                self.index.apply_stored(*id, blocks, *parent, map).expect("the parent is held");
            }
            ChainEvent::Removed { worker, hashes } => {
                let (id, map) = &mut self.workers[*worker];
                self.index.apply_removed(*id, hashes, map);
            }
        }
    }

    fn overlaps(&self, request: &Self::Request) -> u64 {
        let mut sum = 0;
        self.index.score_into(request, |hash| hash.0, false, |_, score| sum += u64::from(score));
        sum
    }
}

/// One map from a block to a mask of at most 64 workers: the checksum, and what a structure has to beat.
pub struct Map {
    blocks: HashMap<u64, u64>,
}

impl Index for Map {
    type Event = (u64, bool, Vec<u64>);
    type Request = Vec<u64>;

    fn new(_workers: u32) -> Self {
        Self { blocks: HashMap::new() }
    }

    fn event(&mut self, event: &Event) -> Self::Event {
        let bit = 1 << event.worker;
        match &event.change {
            Change::Stored { blocks, .. } => (bit, true, Self::request(blocks)),
            Change::Removed { blocks } => (bit, false, Self::request(blocks)),
        }
    }

    fn request(blocks: &[Block]) -> Self::Request {
        blocks.iter().map(|&block| mix(block)).collect()
    }

    fn apply(&mut self, (bit, stored, blocks): &Self::Event) {
        for &block in blocks {
            if *stored {
                *self.blocks.entry(block).or_default() |= bit;
            } else if let Some(mask) = self.blocks.get_mut(&block) {
                *mask &= !bit;
                if *mask == 0 {
                    self.blocks.remove(&block);
                }
            }
        }
    }

    fn overlaps(&self, request: &Self::Request) -> u64 {
        let (mut mask, mut sum) = (u64::MAX, 0);
        for block in request {
            mask &= self.blocks.get(block).copied().unwrap_or(0);
            if mask == 0 {
                break;
            }
            sum += u64::from(mask.count_ones());
        }
        sum
    }
}
