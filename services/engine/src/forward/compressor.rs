//! Global KV: compressed entries and index keys of a source layer, written into blocks and read back.

use kernels::quant::{pack_index, pack_main, unpack_index, unpack_main};
use shared::{BLOCK_TOKENS, SlotMemory, SourceLayout};

use super::pass::{Pass, Span};
use crate::checkpoint::SourceWeights;
use crate::rotary::RotaryKind;
use crate::trace::TraceValue;

/// Entries that a span completes.
struct Groups {
    /// Number of the first completed group.
    first: usize,
    /// How many.
    count: usize,
}

impl Pass<'_, '_> {
    /// Computes and writes the entries that the current rows complete.
    pub(super) fn write_source(&mut self, layer: usize, weights: &SourceWeights, input: &[f32]) {
        let source = *self.source_layout(layer);
        let pooled = self.engine.pooled_sources.iter().position(|pooled| *pooled == layer);
        let mut latents = match pooled {
            None => self.linear(input, &weights.compressor_wkv),
            Some(carry) => self.pool(carry, source.ratio as usize, weights, input),
        };
        latents = self.rms_norm(&latents, &weights.compressor_norm);
        if latents.is_empty() {
            return;
        }
        self.record(layer, "latent", TraceValue::Floats(&latents));
        let engine = self.engine;
        let spans = self.spans.clone();
        let positions = spans.iter().flat_map(|span| {
            let groups = self.groups(span, source.ratio);
            (groups.first..groups.first + groups.count)
                .map(move |group| position_of(group, source.ratio))
        });
        let angles = engine.frequencies.angles(RotaryKind::Compressed, positions);
        let mut keys =
            self.rms_norm(&self.linear(&latents, &weights.index_wk), &weights.index_k_norm);
        let (index_dim, head_dim) = (engine.config.index_dim, engine.config.head_dim);
        engine.ops.rope(&mut keys, index_dim, &angles, kernels::Turn::Forward);
        let mut entries = latents;
        engine.ops.rope(&mut entries, head_dim, &angles, kernels::Turn::Forward);
        let mut done = 0;
        for span in &spans {
            let groups = self.groups(span, source.ratio);
            let range = done..done + groups.count;
            self.store(
                span,
                &source,
                groups.first,
                (
                    &keys[range.start * index_dim..range.end * index_dim],
                    &entries[range.start * head_dim..range.end * head_dim],
                ),
            );
            done = range.end;
        }
    }

    pub(super) fn source_layout(&self, layer: usize) -> &SourceLayout {
        let sources = self.engine.config.layout().sources();
        sources.iter().find(|source| source.layer == layer).expect("a source layer has a layout")
    }

    /// The groups whose last token is among the rows of a span.
    fn groups(&self, span: &Span, ratio: u32) -> Groups {
        let first = self.rows[span.rows.start].position;
        let end = first + u32::try_from(span.rows.len()).expect("calls have few rows");
        Groups { first: (first / ratio) as usize, count: (end / ratio - first / ratio) as usize }
    }

    /// Pools the groups that the rows complete, and keeps the projections of recent rows.
    fn pool(
        &mut self,
        carry: usize,
        ratio: usize,
        weights: &SourceWeights,
        input: &[f32],
    ) -> Vec<f32> {
        let ops = &self.engine.ops;
        let dim = self.engine.config.head_dim;
        let gate = weights.compressor_gate.as_ref().expect("a pooling source has scores");
        let rows = self.rows.len();
        let mut keys = vec![0.0; rows * dim];
        let mut scores = vec![0.0; rows * dim];
        ops.project(input, weights.compressor_wkv.view(), &mut keys);
        ops.project(input, gate.view(), &mut scores);
        let (mut group_keys, mut group_scores) = (Vec::new(), Vec::new());
        for span in self.spans.clone() {
            let first = self.rows[span.rows.start].position as usize;
            let groups = self.groups(&span, u32::try_from(ratio).expect("ratios are small"));
            let sequence = &mut self.segments[span.segment].sequence;
            let tokens = groups.first * ratio..(groups.first + groups.count) * ratio;
            for position in tokens {
                if position < first {
                    let (key, score) = sequence.carries[carry].row(position).split_at(dim);
                    group_keys.extend_from_slice(key);
                    group_scores.extend_from_slice(score);
                } else {
                    let row = span.rows.start + position - first;
                    group_keys.extend_from_slice(&keys[row * dim..(row + 1) * dim]);
                    group_scores.extend_from_slice(&scores[row * dim..(row + 1) * dim]);
                }
            }
            for row in span.rows.clone() {
                let (key, score) = sequence.carries[carry]
                    .row_mut(first + row - span.rows.start)
                    .split_at_mut(dim);
                key.copy_from_slice(&keys[row * dim..(row + 1) * dim]);
                score.copy_from_slice(&scores[row * dim..(row + 1) * dim]);
            }
        }
        let mut pooled = vec![0.0; group_keys.len() / ratio];
        ops.compress(&group_keys, &group_scores, ratio, dim, &mut pooled);
        pooled
    }

    /// Packs entries into the blocks of a sequence. Groups below the write floor are left alone.
    fn store(
        &mut self,
        span: &Span,
        source: &SourceLayout,
        first: usize,
        (keys, entries): (&[f32], &[f32]),
    ) {
        let (index_dim, head_dim) = (self.engine.config.index_dim, self.engine.config.head_dim);
        let entry_bytes = self.engine.config.layout().main_entry_bytes();
        let blocks = self.segments[span.segment].sequence.blocks();
        let span_first = self.rows[span.rows.start].position;
        let pairs = keys.chunks_exact(index_dim).zip(entries.chunks_exact(head_dim));
        for (group, (key, entry)) in (first..).zip(pairs) {
            let completed_by = position_of(group, source.ratio) + source.ratio - 1;
            let row = span.rows.start + (completed_by - span_first) as usize;
            if position_of(group, source.ratio) < self.rows[row].floors.write {
                continue;
            }
            let (block, index) = (group / source.entries, group % source.entries);
            self.slab.write(blocks[block], &mut |bytes| {
                let (codes, scales, main) = sections(bytes, source);
                pack_index(
                    key,
                    &mut codes[index * index_dim / 2..(index + 1) * index_dim / 2],
                    &mut scales[index * index_dim / 32..(index + 1) * index_dim / 32],
                );
                pack_main(entry, &mut main[index * entry_bytes..(index + 1) * entry_bytes]);
            });
        }
    }

    /// Decodes the index keys of the first `count` entries of a span's sequence.
    pub(super) fn read_keys(&self, span: &Span, source: &SourceLayout, count: usize) -> Vec<f32> {
        let dim = self.engine.config.index_dim;
        let mut keys = vec![0.0; count * dim];
        let blocks = self.segments[span.segment].sequence.blocks();
        for (slot, keys) in blocks.iter().zip(keys.chunks_mut(source.entries * dim)) {
            self.slab.read(*slot, &mut |bytes| {
                let codes = &bytes[source.index_codes..source.index_scales];
                let scales = &bytes[source.index_scales..];
                let rows = codes.chunks_exact(dim / 2).zip(scales.chunks_exact(dim / 32));
                for (key, (codes, scales)) in keys.chunks_exact_mut(dim).zip(rows) {
                    unpack_index(codes, scales, key);
                }
            });
        }
        keys
    }

    /// Decodes the main entries with these numbers, in the order given.
    pub(super) fn read_entries(
        &self,
        span: &Span,
        source: &SourceLayout,
        numbers: impl Iterator<Item = usize>,
    ) -> Vec<f32> {
        let dim = self.engine.config.head_dim;
        let entry_bytes = self.engine.config.layout().main_entry_bytes();
        let blocks = self.segments[span.segment].sequence.blocks();
        let mut entries = Vec::new();
        let mut numbers = numbers.peekable();
        // Entries come in ascending runs, so that a slot is opened once per run.
        while let Some(&number) = numbers.peek() {
            let block = number / source.entries;
            self.slab.read(blocks[block], &mut |bytes| {
                let main = &bytes[source.main..source.end];
                while let Some(number) = numbers.next_if(|number| number / source.entries == block)
                {
                    let index = number % source.entries;
                    let start = entries.len();
                    entries.resize(start + dim, 0.0);
                    unpack_main(
                        &main[index * entry_bytes..(index + 1) * entry_bytes],
                        &mut entries[start..],
                    );
                }
            });
        }
        entries
    }
}

/// Position of the first token of a group.
pub(super) fn position_of(group: usize, ratio: u32) -> u32 {
    u32::try_from(group).expect("positions are 32 bits") * ratio
}

/// The writable sections of one source: index codes, index scales, main entries.
fn sections<'a>(
    bytes: &'a mut [u8],
    source: &SourceLayout,
) -> (&'a mut [u8], &'a mut [u8], &'a mut [u8]) {
    let (head, main) = bytes[..source.end].split_at_mut(source.main);
    let (codes, scales) =
        head[source.index_codes..].split_at_mut(source.index_scales - source.index_codes);
    (codes, scales, main)
}

const _: () = assert!(BLOCK_TOKENS == 128);
