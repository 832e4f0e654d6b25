//! One forward call over rows from many sequences.
//!
//! Prefill chunks, encoder-only rows, tails, replays, decode and verify rows are all the same call: each row has a plan
//! (position, layers, three floors, whether logits are wanted). Layers run one after another over all rows; at the
//! boundary layer the encoder-only rows leave after their global KV has been written.
//!
//! Source: specs/v41-architecture.md §4 to §9, v41-serving.md §4 and §5, architecture.md §5. Invariant: what a row
//! computes depends on its sequence's tokens and its plan, never on chunking or on the other rows of the call.
//!
//! Start reading at [`Engine::forward`], then `layer.rs`.

mod attention;
mod compressor;
mod indexing;
mod layer;
mod pass;
#[cfg(test)]
mod tests;

use kernels::IndexChoice;
use shared::SlotIndex;

use crate::checkpoint::Part;
use crate::model::Engine;
use crate::sequence::Sequence;
use crate::slab::KvSlab;
use crate::trace::{NoTrace, Trace};
use pass::Pass;

/// Which layers a row runs through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Layers below the boundary, and the boundary layer's global KV.
    Encoder,
    /// Everything.
    All,
}

/// The three floors of a start. All are positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floors {
    /// Encoder windows see no key below it.
    pub window: u32,
    /// No global KV is written below it. A multiple of every compression ratio.
    pub write: u32,
    /// Decoder windows see no key below it.
    pub decoder: u32,
}

/// What one row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlan {
    /// Its position; its token is the sequence's at that position.
    pub position: u32,
    /// How far it runs.
    pub layers: Layers,
    /// Its floors.
    pub floors: Floors,
    /// Whether its logits are wanted. Only rows that run through all layers have any.
    pub logits: bool,
}

/// The rows of one sequence in a call: consecutive positions from `sequence.processed()`.
#[derive(Debug)]
pub struct Segment<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Its rows. Once a row runs through all layers, so do all later ones.
    pub rows: &'a [RowPlan],
}

/// The inputs of one layer of a single sequence, see [`Engine::forward_block`].
#[derive(Clone, Debug, Default)]
pub struct BlockInput {
    /// `[rows, STREAMS, hidden]`: the streams before the layer (before Engram, where it has one).
    pub streams: Vec<f32>,
    /// `[rows, STREAMS]`: collapse weights from the layer before.
    pub pre: Vec<f32>,
    /// Selections of the index owner, one per row; empty when the layer selects by itself.
    pub choices: Vec<IndexChoice>,
    /// Candidate blocks of each row; empty when the layer is not restricted.
    pub candidates: Vec<Vec<u32>>,
}

/// Logits of the rows that wanted them, in the order of segments and rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    pub(crate) values: Vec<f32>,
    pub(crate) vocab: usize,
}

impl Logits {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// Whether no row wanted logits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Row `index`: one value per vocabulary entry.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.vocab..(index + 1) * self.vocab]
    }
}

impl Engine {
    /// Runs the rows, writes their global KV into the slab and their windows into the sequences, and returns the
    /// logits that were asked for. Blocks; uses the calling thread and the process's compute threads.
    ///
    /// # Panics
    /// When a plan is inconsistent: positions with gaps, tokens or blocks that are not there, windows that a floor
    /// admits but the history lacks, decoder rows on an encoder-only engine.
    pub fn forward(&self, slab: &KvSlab, segments: &mut [Segment<'_>]) -> Logits {
        self.forward_traced(slab, segments, &mut NoTrace)
    }

    /// [`Engine::forward`] with a look inside.
    ///
    /// # Panics
    /// As [`Engine::forward`].
    pub fn forward_traced(
        &self,
        slab: &KvSlab,
        segments: &mut [Segment<'_>],
        trace: &mut dyn Trace,
    ) -> Logits {
        for segment in segments.iter() {
            self.check(segment);
        }
        let mut pass = Pass::new(self, slab, segments, trace);
        if pass.is_empty() {
            // The operations are written for at least one row.
            return pass.finish();
        }
        let boundary = self.config.boundary;
        for layer in 0..boundary {
            pass.layer(layer);
        }
        pass.boundary();
        for layer in boundary..self.config.layers.len() {
            if pass.is_empty() {
                break;
            }
            pass.layer(layer);
        }
        pass.finish()
    }

    /// Runs one layer alone over the rows of one fresh sequence: the streams and, where the layer does not make them
    /// itself, entries (in the slab), selections and candidates come from the caller. For block-by-block comparison.
    ///
    /// # Panics
    /// As [`Engine::forward`], and when the layer is not loaded or inputs do not fit the rows.
    pub fn forward_block(
        &self,
        slab: &KvSlab,
        segment: Segment<'_>,
        layer: usize,
        input: BlockInput,
        trace: &mut dyn Trace,
    ) {
        self.check(&segment);
        let mut segments = [segment];
        let mut pass = Pass::new(self, slab, &mut segments, trace);
        pass.replace(layer, input);
        if layer == self.config.boundary {
            pass.boundary();
        }
        pass.layer(layer);
        pass.finish();
    }

    fn check(&self, segment: &Segment<'_>) {
        let sequence = &segment.sequence;
        for (index, row) in segment.rows.iter().enumerate() {
            assert_eq!(
                row.position as usize,
                sequence.processed() as usize + index,
                "rows are consecutive from the processed position"
            );
            assert!(row.position < self.config.context, "positions stay within the context");
            let all = row.layers == Layers::All;
            assert!(all || !row.logits, "only rows of all layers have logits");
            assert!(!all || self.part() == Part::Whole, "an encoder has no decoder layers");
            let next = segment.rows.get(index + 1);
            assert!(
                !all || next.is_none_or(|row| row.layers == Layers::All),
                "rows of all layers come last"
            );
        }
        if let Some(last) = segment.rows.last() {
            let needed = last.position as usize + 1;
            assert!(needed <= sequence.ids().len(), "tokens of all rows are known");
            let blocks: &[SlotIndex] = sequence.blocks();
            assert!(
                needed.div_ceil(shared::BLOCK_TOKENS as usize) <= blocks.len(),
                "blocks of all rows are attached"
            );
        }
    }
}
