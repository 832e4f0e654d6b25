//! The two exact indexes of `dynamo-kv-router`, behind the feature `dynamo`.
//!
//! Its concurrent tree gets one thread for events, as its own single-lane set-up has, and is waited for every
//! [`FLUSH_EVENTS`] events and at the end, so that what is still in the queue is in no figure. The single-threaded tree takes
//! a request by value: the copy is part of its interface and of its time.
//!
//! Both are trees: where a block is taken out of the middle of a chain, they lose what lies behind it, and the single-threaded one
//! refuses to store behind a block that is gone. So their checksums differ where there are holes, and are not asked to be equal.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;

use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};
use tokio::runtime::{Builder, Runtime};

use crate::indexes::Index;
use crate::trace::{Block, Change, Event, mix};

/// Events that may wait for the tree's thread.
const FLUSH_EVENTS: usize = 512;
/// What its interface calls the block size; nothing is measured in it here.
const BLOCK_TOKENS: u32 = 128;

/// `ConcurrentRadixTreeCompressed` behind its thread.
pub struct Concurrent {
    runtime: Runtime,
    pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    tree: Arc<ConcurrentRadixTreeCompressed>,
    queued: usize,
}

/// `RadixTree`.
pub struct Radix {
    tree: RadixTree,
    refused: u64,
}

/// Given away by the one call that applies it, so that no copy is measured.
pub type Given = Cell<Option<RouterEvent>>;

fn given(event: &Event) -> Given {
    let sequence = |block: Block| ExternalSequenceBlockHash(mix(!block));
    let data = match &event.change {
        Change::Stored { parent, blocks } => KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: parent.map(sequence),
            start_position: None,
            blocks: blocks
                .iter()
                .map(|&block| KvCacheStoredBlockData {
                    block_hash: sequence(block),
                    tokens_hash: LocalBlockHash(mix(block)),
                    mm_extra_info: None,
                })
                .collect(),
        }),
        Change::Removed { blocks } => KvCacheEventData::Removed(KvCacheRemoveData {
            block_hashes: blocks.iter().copied().map(sequence).collect(),
        }),
    };
    let event_id = 0;
    let cache_event = KvCacheEvent { event_id, data, dp_rank: 0 };
    Cell::new(Some(RouterEvent::new(u64::from(event.worker), cache_event)))
}

fn request(blocks: &[Block]) -> Vec<LocalBlockHash> {
    blocks.iter().map(|&block| LocalBlockHash(mix(block))).collect()
}

fn sum(scores: &OverlapScores) -> u64 {
    scores.scores.values().map(|&blocks| u64::from(blocks)).sum()
}

impl Index for Concurrent {
    type Event = Given;
    type Request = Vec<LocalBlockHash>;

    fn new(_workers: u32) -> Self {
        let pool = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK_TOKENS);
        let tree = pool.backend_arc();
        let runtime = Builder::new_current_thread().build().expect("a runtime without drivers");
        Self { runtime, pool, tree, queued: 0 }
    }

    fn event(&mut self, event: &Event) -> Given {
        given(event)
    }

    fn request(blocks: &[Block]) -> Self::Request {
        request(blocks)
    }

    fn apply(&mut self, event: &Given) {
        let event = event.take().expect("each event is applied once");
        self.pool.enqueue_event(event).expect("its thread runs");
        self.queued += 1;
        if self.queued == FLUSH_EVENTS {
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.queued = 0;
        self.runtime.block_on(self.pool.flush_and_wait()).expect("its thread runs");
    }

    fn overlaps(&self, request: &Self::Request) -> u64 {
        sum(&black_box(self.tree.find_matches(request, false)))
    }
}

impl Index for Radix {
    type Event = Given;
    type Request = Vec<LocalBlockHash>;

    fn new(_workers: u32) -> Self {
        Self { tree: RadixTree::new(), refused: 0 }
    }

    fn event(&mut self, event: &Event) -> Given {
        given(event)
    }

    fn request(blocks: &[Block]) -> Self::Request {
        request(blocks)
    }

    fn apply(&mut self, event: &Given) {
        let event = event.take().expect("each event is applied once");
        // One that it refuses is stored behind a hole.
        self.refused += u64::from(self.tree.apply_event(event).is_err());
    }

    fn overlaps(&self, request: &Self::Request) -> u64 {
        sum(&black_box(self.tree.find_matches(request.clone(), false)))
    }
}
