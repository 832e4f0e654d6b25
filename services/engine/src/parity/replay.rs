//! Replay cases: windows cut off below, as on cache hits.

use shared::SlotMemory;

use super::runner::{Lone, OPEN, Rows, Runner, position};
use crate::forward::{Floors, Layers, RowPlan};
use crate::golden::{GoldenCase, GoldenError, GoldenTensors};
use crate::model::Arithmetic;
use crate::trace::NoTrace;

/// Decode steps after the prefill of a replay case.
const STEPS: usize = 8;

impl Runner<'_> {
    pub(super) fn replay(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let (ids, prefill) = (case.ids("ids")?, case.number("prefill")?);
        let tensors = case.read()?;
        let kept = case.number("K").ok().map(|keep| position(prefill - keep));
        let hit = case.number("H").ok().map(position);
        let mut lone = Lone::new(self.engine, &ids);
        let mut floors = Floors { decoder: kept.unwrap_or(0), ..OPEN };
        if let Some(hit) = hit {
            let start = hit - position(case.number("R")?);
            // The cached prefix: a cold run up to the hit leaves exact blocks.
            lone.run_all(hit, hit, OPEN);
            lone.sequence.begin(start);
            floors = Floors { window: start, write: hit, decoder: floors.decoder.max(start) };
        }
        let (name, first) = match (hit, kept) {
            (_, Some(kept)) => ("logits_kept", kept),
            (Some(hit), None) => ("logits_new", hit),
            (None, None) => ("logits_last", position(prefill - 1)),
        };
        let rows = self.replay_rows(&mut lone, position(prefill), first, floors);
        self.logits(name, &rows, &tensors.f32(name)?, Rows::Few);
        let mut decoded = Vec::new();
        for step in 0..STEPS {
            decoded.extend(lone.run_all(position(prefill + step + 1), 0, floors).values);
        }
        self.logits("decode_logits", &decoded, &tensors.f32("decode_logits")?, Rows::Few);
        if self.arithmetic == Arithmetic::Exact && hit.is_some() {
            self.stored_bytes(&lone, &tensors, position(prefill))?;
        }
        Ok(())
    }

    /// Rows below the decoder floor run through the encoder only: dropped rows equal masked ones.
    fn replay_rows(
        &self,
        lone: &mut Lone<'_>,
        to: u32,
        logits_from: u32,
        floors: Floors,
    ) -> Vec<f32> {
        let plan = |position| RowPlan {
            position,
            layers: if position < floors.decoder { Layers::Encoder } else { Layers::All },
            floors,
            logits: logits_from.max(floors.decoder) <= position,
        };
        lone.run(to, plan, &mut NoTrace).values
    }

    /// Compares the packed bytes of all complete groups below `to` with those the case has.
    pub(super) fn stored_bytes(
        &mut self,
        lone: &Lone<'_>,
        tensors: &GoldenTensors,
        to: u32,
    ) -> Result<(), GoldenError> {
        for source in self.engine.layout().sources() {
            if !tensors.has(&format!("L{}.main_codes", source.layer)) {
                continue;
            }
            for (part, found) in self.entry_parts(lone, source.layer, to) {
                self.findings.equal(&part, &found, tensors.u8(&part)?);
            }
        }
        Ok(())
    }

    /// Entries and index keys of a source layer below position `to`, as the cases name their parts.
    pub(super) fn entry_parts(
        &self,
        lone: &Lone<'_>,
        layer: usize,
        to: u32,
    ) -> Vec<(String, Vec<u8>)> {
        let layout = self.engine.layout();
        let sources = layout.sources();
        let source = sources.iter().find(|source| source.layer == layer).expect("a source layer");
        let (index_dim, head_dim) = (layout.shape().index_dim, layout.shape().head_dim);
        let entry = layout.main_entry_bytes();
        let mut found: [Vec<u8>; 4] = [const { Vec::new() }; 4];
        for group in 0..(to / source.ratio) as usize {
            let (block, at) = (group / source.entries, group % source.entries);
            lone.slab.read(lone.sequence.blocks()[block], &mut |bytes| {
                let part = |start: usize, width: usize| &bytes[start + at * width..][..width];
                let main = part(source.main, entry);
                found[0].extend_from_slice(&main[..head_dim / 2]);
                found[1].extend_from_slice(&main[head_dim / 2..]);
                found[2].extend_from_slice(part(source.index_codes, index_dim / 2));
                found[3].extend_from_slice(part(source.index_scales, index_dim / 32));
            });
        }
        let names = ["main_codes", "main_scale", "index_k_codes", "index_k_scale"];
        names.iter().map(|name| format!("L{layer}.{name}")).zip(found).collect()
    }

    /// Codes and scales of packed window entries, as the cases name them.
    pub(super) fn window_parts(&self, packed: &[u8], layer: usize) -> Vec<(String, Vec<u8>)> {
        let dim = self.engine.config().head_dim;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for row in packed.chunks_exact(self.engine.layout().window_entry_bytes()) {
            codes.extend_from_slice(&row[..dim]);
            scales.extend_from_slice(&row[dim..]);
        }
        vec![(format!("L{layer}.window_codes"), codes), (format!("L{layer}.window_scale"), scales)]
    }
}
