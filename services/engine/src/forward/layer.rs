//! One layer over the current rows.

use kernels::{EngramGate, Expert, ExpertLayer, Gate, HyperConnection, Mixes, Routing, STREAMS};

use super::pass::Pass;
use crate::checkpoint::{self, EngramRows, EngramWeights, LayerWeights};
use crate::engram_map::EngramToken;
use crate::trace::TraceValue;

impl Pass<'_, '_> {
    /// Engram, attention and experts of one layer.
    pub(super) fn layer(&mut self, layer: usize) {
        let engine = self.engine;
        let weights = engine.weights.layers[layer].as_ref().expect("the part has this layer");
        if let Some(engram) = &weights.engram {
            let slot = engine.config.layers[layer].engram.expect("roles and weights agree");
            self.engram(layer, slot, engram);
        }
        self.record_floats(layer, "x_in", |pass| &pass.streams);
        self.record_floats(layer, "pre_in", |pass| &pass.pre);

        let mut mixes = self.mix(&weights.hc_attn);
        let input = self.sublayer_input(&weights.attn_norm);
        self.record(layer, "attn_in", TraceValue::Floats(&input));
        let output = self.attention(layer, weights, &input);
        self.record(layer, "attn_out", TraceValue::Floats(&output));
        engine.ops.mhc_spread(&output, &mixes, &mut self.streams);
        self.record_mixes(layer, ["attn_post", "attn_comb"], &mixes);
        self.record_floats(layer, "x_mid", |pass| &pass.streams);
        self.pre = std::mem::take(&mut mixes.pre);

        let mut mixes = self.mix(&weights.hc_ffn);
        let input = self.sublayer_input(&weights.ffn_norm);
        self.record(layer, "ffn_in", TraceValue::Floats(&input));
        let output = self.experts(layer, weights, &input);
        self.record(layer, "ffn_out", TraceValue::Floats(&output));
        engine.ops.mhc_spread(&output, &mixes, &mut self.streams);
        self.record_mixes(layer, ["ffn_post", "ffn_comb"], &mixes);
        self.record_floats(layer, "x_out", |pass| &pass.streams);
        self.pre = std::mem::take(&mut mixes.pre);
        self.record_floats(layer, "pre_out", |pass| &pass.pre);
    }

    pub(super) fn record(&mut self, layer: usize, name: &'static str, value: TraceValue<'_>) {
        if self.trace.active() {
            self.trace.record(layer, name, value);
        }
    }

    fn record_floats(
        &mut self,
        layer: usize,
        name: &'static str,
        values: impl Fn(&Self) -> &Vec<f32>,
    ) {
        if self.trace.active() {
            let values = values(self).clone();
            self.trace.record(layer, name, TraceValue::Floats(&values));
        }
    }

    fn record_mixes(&mut self, layer: usize, names: [&'static str; 2], mixes: &Mixes) {
        self.record(layer, names[0], TraceValue::Floats(&mixes.post));
        self.record(layer, names[1], TraceValue::Floats(&mixes.comb));
    }

    fn mix(&self, connection: &checkpoint::HyperConnection) -> Mixes {
        let connection = HyperConnection {
            projection: connection.fn_.view(),
            base: &connection.base,
            scale: &connection.scale,
            iterations: self.engine.config.hc_iterations,
        };
        let mut mixes = Mixes::default();
        self.engine.ops.mhc_mix(&self.streams, connection, &mut mixes);
        mixes
    }

    /// `W quantise(x)` to bfloat16 for weights in FP8.
    pub(super) fn quantised_linear(&self, x: &[f32], weight: &checkpoint::Matrix) -> Vec<f32> {
        let mut quantised = vec![0.0; x.len()];
        self.engine.ops.fake_quant8(x, weight.cols(), &mut quantised);
        self.linear(&quantised, weight)
    }

    /// `W x` to bfloat16.
    pub(super) fn linear(&self, x: &[f32], weight: &checkpoint::Matrix) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / weight.cols() * weight.rows()];
        self.engine.ops.linear(x, weight.view(), &mut out);
        out
    }

    pub(super) fn rms_norm(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        self.engine.ops.rms_norm(x, weight, self.engine.config.rms_eps, &mut out);
        out
    }

    fn engram(&mut self, layer: usize, slot: usize, weights: &EngramWeights) {
        let engine = self.engine;
        let hasher = engine.engram.as_ref().expect("a model with Engram layers has a hasher");
        let columns = hasher.columns();
        let mut rows = vec![0_u64; self.rows.len() * columns];
        for span in &self.spans {
            let ids = self.segments[span.segment].sequence.ids();
            for row in span.rows.clone() {
                let end = self.rows[row].position as usize + 1;
                let history: Vec<EngramToken> = ids[end.saturating_sub(hasher.ngram_max())..end]
                    .iter()
                    .map(|id| EngramToken::Text(*id))
                    .collect();
                hasher.rows(slot, &history, &mut rows[row * columns..(row + 1) * columns]);
            }
        }
        let mut values = vec![0.0; rows.len() * weights.table.width()];
        weights.table.rows(&rows, &mut values);
        if self.trace.active() {
            self.trace.record(layer, "engram_rows", TraceValue::Rows(&rows));
            self.trace.record(layer, "engram_embed", TraceValue::Floats(&values));
            self.trace.record(layer, "engram_in", TraceValue::Floats(&self.streams));
        }
        let kv = self.quantised_linear(&values, &weights.wkv);
        let gate = EngramGate {
            query_weight: &weights.q_weight,
            key_weight: &weights.k_weight,
            eps: engine.config.rms_eps,
        };
        // Text only: no row lies inside an image.
        engine.ops.engram(&mut self.streams, &kv, &vec![true; self.rows.len()], gate);
        if self.trace.active() {
            self.trace.record(layer, "engram_out", TraceValue::Floats(&self.streams));
        }
    }

    fn experts(&mut self, layer: usize, weights: &LayerWeights, input: &[f32]) -> Vec<f32> {
        let engine = self.engine;
        let config = &engine.config.experts;
        let gate = Gate {
            weight: weights.gate.view(),
            bias: &weights.gate_bias,
            top: config.per_token,
            scale: config.scaling,
        };
        let mut routing = Routing::default();
        engine.ops.gate(input, gate, &mut routing);
        self.record(layer, "expert_ids", TraceValue::Ids(&routing.experts));
        self.record(layer, "expert_weights", TraceValue::Floats(&routing.weights));
        let experts: Vec<Expert<'_>> = weights.experts.iter().map(expert).collect();
        #[expect(clippy::cast_possible_truncation, reason = "the clamp is a small round number")]
        let limit = config.swiglu_limit as f32;
        let layer = ExpertLayer { experts: &experts, shared: expert(&weights.shared), limit };
        let mut out = vec![0.0; input.len()];
        engine.ops.experts(input, &routing, layer, &mut out);
        out
    }
}

fn expert(expert: &checkpoint::Expert) -> Expert<'_> {
    Expert { w1: expert.w1.view(), w2: expert.w2.view(), w3: expert.w3.view() }
}

const _: () = assert!(STREAMS == 4, "the specification fixes four streams");
