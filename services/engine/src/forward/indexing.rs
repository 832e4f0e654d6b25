//! Selection: which compressed entries each row attends to.

use kernels::formats::round_bf16_from_f64;
use kernels::quant::{pack_index, unpack_index};
use kernels::{IndexRow, IndexShape, Turn};

use super::pass::{Pass, Span};
use crate::checkpoint::IndexerWeights;
use crate::config::LayerRole;
use crate::trace::TraceValue;

/// Index queries of the current rows.
struct Queries {
    /// `[rows, heads, dim]`, quantised and decoded.
    values: Vec<f32>,
    /// `[rows, heads]`.
    head_weights: Vec<f32>,
}

impl Pass<'_, '_> {
    /// Runs the indexer of an index-owning layer. `query_rank` is the normed low-rank query, `input` the layer's input.
    pub(super) fn select(
        &mut self,
        role: &LayerRole,
        weights: &IndexerWeights,
        (query_rank, input): (&[f32], &[f32]),
    ) {
        let engine = self.engine;
        let queries = self.index_queries(role.layer, weights, (query_rank, input));
        let owner = role.kv_owner.expect("an indexer has keys");
        let source = *self.source_layout(owner);
        let shape = self.index_shape(role);
        for (index, span) in self.spans.clone().iter().enumerate() {
            let visible = self.visible(span.rows.end - 1, role.ratio);
            if role.owns_kv() {
                self.views[index].keys = self.read_keys(span, &source, visible);
            }
            let rows = self.index_rows(role, index, span, &queries);
            let choices = engine.ops.index(&self.views[index].keys, &rows, shape);
            if role.is_candidate_source() {
                self.views[index].candidates =
                    choices.iter().map(|choice| choice.candidates.clone()).collect();
            }
            if self.trace.active() {
                self.trace.record(role.layer, "choices", TraceValue::Choices(&choices));
            }
            self.views[index].choices = choices;
            self.gather(index, span, role, visible);
        }
    }

    fn index_queries(
        &mut self,
        layer: usize,
        weights: &IndexerWeights,
        (query_rank, input): (&[f32], &[f32]),
    ) -> Queries {
        let engine = self.engine;
        let dim = engine.config.index_dim;
        let mut values = self.quantised_linear(query_rank, &weights.wq_b);
        engine.ops.rope(&mut values, dim, &self.compressed, Turn::Forward);
        let heads = values.len() / dim;
        let mut codes = vec![0; heads * dim / 2];
        let mut scales = vec![0; heads * dim / 32];
        let packed = codes.chunks_exact_mut(dim / 2).zip(scales.chunks_exact_mut(dim / 32));
        for (head, (codes, scales)) in values.chunks_exact_mut(dim).zip(packed) {
            pack_index(head, codes, scales);
            unpack_index(codes, scales, head);
        }
        self.record(layer, "index_q_codes", TraceValue::Bytes(&codes));
        self.record(layer, "index_q_scale", TraceValue::Bytes(&scales));
        let scale = 1.0 / ((dim * engine.config.index_heads) as f64).sqrt();
        let mut head_weights = self.linear(input, &weights.weights_proj);
        head_weights
            .iter_mut()
            .for_each(|weight| *weight = round_bf16_from_f64(f64::from(*weight) * scale));
        Queries { values, head_weights }
    }

    fn index_shape(&self, role: &LayerRole) -> IndexShape {
        let candidates = self.engine.config.candidates;
        IndexShape {
            dim: self.engine.config.index_dim,
            top: self.engine.config.index_topk,
            block_size: candidates.map_or(1, |candidates| candidates.block_entries),
            emit_blocks: candidates
                .filter(|_| role.is_candidate_source())
                .map(|candidates| candidates.blocks_max),
            keep_scores: self.trace.active(),
        }
    }

    fn index_rows<'a>(
        &'a self,
        role: &LayerRole,
        view: usize,
        span: &Span,
        queries: &'a Queries,
    ) -> Vec<IndexRow<'a>> {
        let heads = self.engine.config.index_heads;
        let width = heads * self.engine.config.index_dim;
        let block = self.engine.config.candidates.map_or(1, |candidates| candidates.block_entries);
        let row = |(index, row): (usize, usize)| {
            let visible = self.visible(row, role.ratio);
            let blocks = || self.views[view].candidates[index].as_slice();
            // A row whose candidates are all blocks is not restricted.
            let candidates = role
                .uses_candidates()
                .then(blocks)
                .filter(|blocks| blocks.len() < visible.div_ceil(block));
            IndexRow {
                query: &queries.values[row * width..(row + 1) * width],
                head_weights: &queries.head_weights[row * heads..(row + 1) * heads],
                visible,
                candidates,
            }
        };
        span.rows.clone().enumerate().map(row).collect()
    }

    /// Entries that a row may see.
    fn visible(&self, row: usize, ratio: u32) -> usize {
        ((self.rows[row].position + 1) / ratio) as usize
    }

    /// Decodes the main entries that the selections need: all visible ones when most are needed, else one by one.
    pub(super) fn gather(&mut self, index: usize, span: &Span, role: &LayerRole, visible: usize) {
        let source = *self.source_layout(role.kv_owner.expect("a selection has entries"));
        let choices = &self.views[index].choices;
        let needed: usize = choices.iter().map(|choice| choice.selected.len()).sum();
        let (entries, selected) = if visible < needed {
            let selected = choices.iter().map(|choice| choice.selected.clone()).collect();
            (self.read_entries(span, &source, 0..visible), selected)
        } else {
            let numbers = choices.iter().flat_map(|choice| &choice.selected);
            let entries = self.read_entries(span, &source, numbers.map(|number| *number as usize));
            let mut next = 0;
            let number = |choice: &kernels::IndexChoice| {
                let first = next;
                next += u32::try_from(choice.selected.len()).expect("selections are short");
                (first..next).collect()
            };
            (entries, choices.iter().map(number).collect())
        };
        let view = &mut self.views[index];
        view.entries = entries;
        view.selected = selected;
    }
}
