//! One sequence alone, in memory of its own: no worker, no cache, no transport.

use std::ops::Range;

use engine::{Engine, Floors, KvSlab, Layers, Logits, Part, RowPlan, Segment, Sequence, sample};
use shared::{BLOCK_TOKENS, Sampling, SlotIndex, SlotMemory, TokenId};

/// A sequence with the rows it has computed.
pub(crate) struct Lane<'a> {
    engine: &'a Engine,
    slab: KvSlab,
    pub(crate) sequence: Sequence,
    pub(crate) floors: Floors,
}

impl<'a> Lane<'a> {
    /// A lane with room for `tokens_max` tokens and no floor.
    pub(crate) fn new(engine: &'a Engine, ids: &[TokenId], tokens_max: usize) -> Self {
        let slots = u32::try_from(tokens_max).unwrap().div_ceil(BLOCK_TOKENS);
        let slab = KvSlab::new(slots, engine.layout().block_bytes());
        let mut sequence = engine.sequence(ids);
        (0..slots).for_each(|slot| sequence.push_block(SlotIndex(slot)));
        Self { engine, slab, sequence, floors: Floors { window: 0, write: 0, decoder: 0 } }
    }

    /// The same with the decoder floor of its prompt.
    pub(crate) fn of_prompt(engine: &'a Engine, prompt: &[TokenId], tokens_max: usize) -> Self {
        let mut lane = Self::new(engine, prompt, tokens_max);
        lane.floors.decoder = engine.geometry().decoder_floor(u32::try_from(prompt.len()).unwrap());
        lane
    }

    /// The same state again, in memory of its own.
    pub(crate) fn fork(&self) -> Self {
        let slab = KvSlab::new(self.slab.slots(), self.slab.slot_bytes());
        let sequence = self.sequence.clone();
        let fork = Self { engine: self.engine, slab, sequence, floors: self.floors };
        fork.take_blocks(self, 0..self.slab.slots());
        fork
    }

    /// Rows below the decoder floor run through the encoder alone, all others through everything if it is loaded.
    pub(crate) fn plans(&self, rows: Range<u32>) -> Vec<RowPlan> {
        let whole = self.engine.part() == Part::Whole;
        rows.map(|position| {
            let all = whole && self.floors.decoder <= position;
            let layers = if all { Layers::All } else { Layers::Encoder };
            RowPlan { position, layers, floors: self.floors, logits: all }
        })
        .collect()
    }

    /// Computes all rows up to `end` in one call.
    pub(crate) fn run_to(&mut self, end: u32) -> Logits {
        let rows = self.plans(self.sequence.processed()..end);
        self.run(&rows)
    }

    /// Computes these rows in one call.
    pub(crate) fn run(&mut self, rows: &[RowPlan]) -> Logits {
        let mut segments = [Segment { sequence: &mut self.sequence, rows }];
        self.engine.forward(&self.slab, &mut segments)
    }

    /// The bytes of a block.
    pub(crate) fn block(&self, index: u32) -> Vec<u8> {
        bytes(&self.slab, SlotIndex(index))
    }

    /// The bytes of all blocks, also of those that are not full.
    pub(crate) fn blocks(&self) -> Vec<Vec<u8>> {
        (0..self.slab.slots()).map(|index| self.block(index)).collect()
    }

    /// Fills blocks from another lane, as reads from a peer would.
    pub(crate) fn take_blocks(&self, other: &Self, blocks: Range<u32>) {
        for index in blocks {
            let source = other.block(index);
            self.slab.write(SlotIndex(index), &mut |target| target.copy_from_slice(&source));
        }
    }

    /// Fills a block with bytes that lay elsewhere.
    pub(crate) fn put_block(&self, index: u32, bytes: &[u8]) {
        self.slab.write(SlotIndex(index), &mut |target| target.copy_from_slice(bytes));
    }

    /// The window object that ends at `end`.
    pub(crate) fn window(&self, end: u32) -> Vec<u8> {
        let mut object = vec![0; self.engine.layout().window_bytes()];
        self.sequence.export_window(end, &mut object);
        object
    }
}

/// An answer computed by one lane: the prompt in one call, then token by token.
pub(crate) struct Alone<'a> {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) lane: Lane<'a>,
}

impl<'a> Alone<'a> {
    pub(crate) fn answer(
        engine: &'a Engine,
        prompt: &[TokenId],
        sampling: &Sampling,
        tokens_max: u32,
    ) -> Self {
        let length = u32::try_from(prompt.len()).unwrap();
        let room = usize::try_from(length + tokens_max).unwrap();
        let mut lane = Lane::of_prompt(engine, prompt, room);
        let mut tokens = Vec::new();
        for output in 0..tokens_max {
            let logits = lane.run_to(length + output);
            let token = sample(logits.row(logits.len() - 1), sampling, output);
            tokens.push(token);
            lane.sequence.push(token);
        }
        Self { tokens, lane }
    }
}

/// The bytes of a slot.
pub(crate) fn bytes(memory: &dyn SlotMemory, slot: SlotIndex) -> Vec<u8> {
    let mut copy = Vec::new();
    memory.read(slot, &mut |bytes| copy.extend_from_slice(bytes));
    copy
}

/// Logits as bits, so that equal means equal.
pub(crate) fn bits(logits: &Logits) -> Vec<Vec<u32>> {
    (0..logits.len())
        .map(|row| logits.row(row).iter().map(|value| value.to_bits()).collect())
        .collect()
}
