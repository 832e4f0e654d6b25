//! Where lookups found blocks that did not lie beside their predecessors: the first ones of prompts, and those where chains
//! part. They are few and asked for again and again, so that they stay in a near cache, which the table of all blocks
//! does not.

use std::cell::Cell;

use super::page::Place;
use super::table::Key;

/// Blocks for each pair, at most: half a byte to one byte for a block.
const BLOCKS: usize = 32;
const PAIRS_MIN: usize = 64;

/// The last two places found for each value of some bits of a name, the last one first. Nothing depends on what it says.
#[derive(Debug)]
pub(super) struct Heads {
    pairs: Box<[Cell<[Head; 2]>]>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    /// Other bits of the name.
    tag: u32,
    place: Place,
}

impl Heads {
    pub(super) fn new() -> Self {
        Self { pairs: Box::default() }
    }

    /// Where a block may lie.
    pub(super) fn guess(&self, key: Key) -> Option<Place> {
        let (at, tag) = key.head(self.pairs.len());
        let pair = self.pairs.get(at)?.get();
        pair.iter().find(|head| head.tag == tag).map(|head| head.place)
    }

    /// A block was found where no guess was right.
    pub(super) fn learn(&self, key: Key, place: Place) {
        let (at, tag) = key.head(self.pairs.len());
        if let Some(pair) = self.pairs.get(at) {
            let [first, second] = pair.get();
            let kept = if first.tag == tag { second } else { first };
            pair.set([Head { tag, place }, kept]);
        }
    }

    /// Grows and shrinks with the number of blocks, and forgets all when it does.
    pub(super) fn fit(&mut self, blocks: usize) {
        let len = self.pairs.len();
        if len * BLOCKS < blocks || blocks * 4 < len * BLOCKS && PAIRS_MIN < len {
            let fitting = (blocks / BLOCKS * 2).max(PAIRS_MIN);
            let none = Head { tag: 0, place: Place(u32::MAX) };
            self.pairs = vec![Cell::new([none; 2]); fitting].into_boxed_slice();
        }
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.pairs)
    }
}
