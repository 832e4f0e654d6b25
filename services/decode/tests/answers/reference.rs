//! What an answer must be: one sequence alone, no cache, no tail, one pass over the prompt with the same decoder floor.

use engine::{Engine, Floors, KvSlab, Layers, RowPlan, Segment, sample};
use shared::{BLOCK_TOKENS, Sampling, SlotIndex, SlotMemory, TokenId};

pub(crate) struct Reference {
    pub(crate) tokens: Vec<TokenId>,
    slab: KvSlab,
    /// Rows processed: the prompt and all tokens but the last.
    pub(crate) processed: u32,
}

impl Reference {
    /// Answers with exactly `count` tokens, unless one of `stop_ids` comes first.
    pub(crate) fn answer(
        engine: &Engine,
        prompt: &[TokenId],
        sampling: &Sampling,
        count: u32,
        stop_ids: &[TokenId],
    ) -> Self {
        let length = u32::try_from(prompt.len()).unwrap();
        let slots = (length + count).div_ceil(BLOCK_TOKENS);
        let slab = KvSlab::new(slots, engine.layout().block_bytes());
        let mut sequence = engine.sequence(prompt);
        for slot in 0..slots {
            sequence.push_block(SlotIndex(slot));
        }
        let floor = engine.geometry().decoder_floor(length);
        let mut from = 0;
        let mut tokens = Vec::new();
        for output_index in 0..count {
            let known = u32::try_from(sequence.ids().len()).unwrap();
            let rows: Vec<_> = (from..known)
                .map(|position| RowPlan {
                    position,
                    layers: if position < floor { Layers::Encoder } else { Layers::All },
                    floors: Floors { window: 0, write: 0, decoder: floor },
                    logits: position + 1 == known,
                })
                .collect();
            let mut segments = [Segment { sequence: &mut sequence, rows: &rows }];
            let logits = engine.forward(&slab, &mut segments);
            let token = sample(logits.row(0), sampling, output_index);
            tokens.push(token);
            sequence.push(token);
            from = known;
            if stop_ids.contains(&token) {
                break;
            }
        }
        Self { tokens, slab, processed: from }
    }

    pub(crate) fn block(&self, index: u32) -> Vec<u8> {
        bytes(&self.slab, SlotIndex(index))
    }
}

pub(crate) fn bytes(memory: &dyn SlotMemory, slot: SlotIndex) -> Vec<u8> {
    let mut copy = Vec::new();
    memory.read(slot, &mut |bytes| copy.extend_from_slice(bytes));
    copy
}
