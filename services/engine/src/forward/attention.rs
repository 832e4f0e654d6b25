//! Attention of one layer: projections, windows, the sparse kernel, the grouped output.

use kernels::quant::{pack_window, unpack_window};
use kernels::{Angles, AttentionRow, AttentionShape, Turn};

use super::pass::{Pass, Span};
use crate::checkpoint::LayerWeights;
use crate::config::LayerRole;
use crate::trace::TraceValue;

/// Window keys of one span: history, then its own rows.
struct WindowKeys {
    first: usize,
    /// `[positions, head_dim]`.
    values: Vec<f32>,
}

impl Pass<'_, '_> {
    /// The attention sub-layer: `input` is the layer's normed input, the result its output before the residual.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        weights: &LayerWeights,
        input: &[f32],
    ) -> Vec<f32> {
        let engine = self.engine;
        let role = engine.config.layers[layer];
        let dim = engine.config.head_dim;
        let mut quantised = vec![0.0; input.len()];
        engine.ops.fake_quant8(input, engine.config.hidden, &mut quantised);
        let query_rank = self.rms_norm(&self.linear(&quantised, &weights.wq_a), &weights.q_norm);
        let mut query = self.quantised_linear(&query_rank, &weights.wq_b);
        engine.ops.rope(&mut query, dim, self.angles(&role), Turn::Forward);
        let mut keys = self.rms_norm(&self.linear(&quantised, &weights.wkv), &weights.kv_norm);
        engine.ops.rope(&mut keys, dim, self.angles(&role), Turn::Forward);
        let packed = self.pack_keys(layer, &mut keys);

        if let (Some(source), true) = (&weights.source, role.is_encoder) {
            // The boundary layer's entries were written for all rows before some of them left.
            self.write_source(layer, source, input);
        }
        if let Some(indexer) = &weights.indexer {
            self.select(&role, indexer, (&query_rank, input));
        }
        let mut heads = self.attend(&role, weights, &query, &keys);
        self.store_windows(layer, &packed);
        engine.ops.rope(&mut heads, dim, self.angles(&role), Turn::Inverse);
        let mut low = vec![0.0; self.rows.len() * weights.wo_a.rows()];
        engine.ops.linear_grouped(&heads, weights.wo_a.view(), engine.config.o_groups, &mut low);
        self.quantised_linear(&low, &weights.wo_b)
    }

    fn angles(&self, role: &LayerRole) -> &Angles {
        if role.ratio == 0 { &self.plain } else { &self.compressed }
    }

    /// Packs window entries and replaces `keys` by what they decode to.
    fn pack_keys(&mut self, layer: usize, keys: &mut [f32]) -> Vec<u8> {
        let dim = self.engine.config.head_dim;
        let entry = self.engine.config.layout().window_entry_bytes();
        let mut packed = vec![0; self.rows.len() * entry];
        for (key, bytes) in keys.chunks_exact_mut(dim).zip(packed.chunks_exact_mut(entry)) {
            pack_window(key, bytes);
            unpack_window(bytes, key);
        }
        self.record(layer, "window", TraceValue::Bytes(&packed));
        packed
    }

    fn attend(
        &mut self,
        role: &LayerRole,
        weights: &LayerWeights,
        query: &[f32],
        keys: &[f32],
    ) -> Vec<f32> {
        let config = &self.engine.config;
        let width = config.heads * config.head_dim;
        let windows: Vec<WindowKeys> =
            self.spans.iter().map(|span| self.window_keys(role, span, keys)).collect();
        let mut rows = Vec::with_capacity(self.rows.len());
        for ((span, view), window) in self.spans.iter().zip(&self.views).zip(&windows) {
            for (index, row) in span.rows.clone().enumerate() {
                let plan = &self.rows[row];
                let floor = if role.is_encoder { plan.floors.window } else { plan.floors.decoder };
                let compressed = role.ratio != 0;
                rows.push(AttentionRow {
                    query: &query[row * width..(row + 1) * width],
                    position: plan.position as usize,
                    floor: floor as usize,
                    window: &window.values,
                    window_first: window.first,
                    entries: if compressed { &view.entries } else { &[] },
                    selected: if compressed { &view.selected[index] } else { &[] },
                });
            }
        }
        let shape = AttentionShape {
            window: config.window as usize,
            dim: config.head_dim,
            sinks: &weights.sink,
        };
        let mut heads = vec![0.0; self.rows.len() * width];
        self.engine.ops.attention(shape, &rows, &mut heads);
        heads
    }

    /// Decodes the history a span's rows may see and appends their own keys.
    fn window_keys(&self, role: &LayerRole, span: &Span, keys: &[f32]) -> WindowKeys {
        let config = &self.engine.config;
        let dim = config.head_dim;
        let sequence = &self.segments[span.segment].sequence;
        let plan = &self.rows[span.rows.start];
        let held = match role.is_encoder {
            true => sequence.encoder_from,
            false if plan.position == sequence.decoder_next => sequence.decoder_from,
            false => plan.position,
        };
        let floors = self.rows[span.rows.clone()].iter().map(|row| row.floors);
        let floor =
            floors.map(|floors| if role.is_encoder { floors.window } else { floors.decoder });
        let floor = floor.min().expect("a span has rows");
        let first = (plan.position + 1).saturating_sub(config.window).max(floor).min(plan.position);
        assert!(
            held <= first,
            "layer {}: windows from {first} are visible, held from {held}",
            role.layer
        );
        let ring = &sequence.windows[role.layer];
        let history = (plan.position - first) as usize;
        let mut values = vec![0.0; history * dim];
        for (position, value) in (first..).zip(values.chunks_exact_mut(dim)) {
            unpack_window(ring.row(position as usize), value);
        }
        values.extend_from_slice(&keys[span.rows.start * dim..span.rows.end * dim]);
        WindowKeys { first: first as usize, values }
    }

    fn store_windows(&mut self, layer: usize, packed: &[u8]) {
        let entry = self.engine.config.layout().window_entry_bytes();
        for span in &self.spans {
            let ring = &mut self.segments[span.segment].sequence.windows[layer];
            for row in span.rows.clone() {
                let bytes = &packed[row * entry..(row + 1) * entry];
                ring.row_mut(self.rows[row].position as usize).copy_from_slice(bytes);
            }
        }
    }
}
