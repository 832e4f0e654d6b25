//! One block at a time with golden inputs: the comparison that sees small faults of the fast arithmetic.
//!
//! A block gets the reference's streams, mixing weights, entries and selection, and what it makes of them is compared
//! with the reference by the f32 rows of the tolerance table in shared/golden/README.md.

use kernels::IndexChoice;
use shared::SlotMemory;

use super::compare::{equal_share, mean_relative_l2, relative_l2};
use super::runner::{Lone, OPEN, Runner, position};
use super::traces::{Recording, selections};
use crate::forward::{BlockInput, Layers, RowPlan, Segment};
use crate::golden::{GoldenCase, GoldenError, GoldenTensors};

/// What is compared of every block: name, bound of the relative L2 distance, least share of equal elements.
const VALUES: [(&str, f64, f64); 5] = [
    ("attn_in", 1e-3, 0.0),
    ("attn_out", 0.06, 0.95),
    ("x_mid", 0.015, 0.95),
    ("ffn_out", 0.06, 0.95),
    ("x_out", 0.015, 0.95),
];
/// Least share of equal packed bytes.
const BYTES_EQUAL_MIN: f64 = 0.999;
/// Largest shares of differing selections and expert choices, by row.
const SELECTIONS_DIFFER_MAX: f64 = 0.03;
const EXPERTS_DIFFER_MAX: f64 = 0.01;

/// Totals over all blocks of a case.
#[derive(Debug, Default)]
struct Totals {
    /// Per entry of `VALUES`: largest distance, equal elements, elements.
    values: [(f64, f64, f64); VALUES.len()],
    bytes: (f64, f64),
    selections: (f64, f64),
    experts: (f64, f64),
}

impl Runner<'_> {
    /// Runs every block of a trace case alone.
    pub(super) fn blocks(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let ids = case.ids("ids")?;
        let tensors = case.read()?;
        let mut totals = Totals::default();
        let mut streams = tensors.f32("L0.x_in")?;
        for layer in 0..self.engine.config().layers.len() {
            let before = format!("L{layer}.engram_in");
            if tensors.has(&before) {
                streams = tensors.f32(&before)?;
            }
            self.block(layer, &ids, streams, &tensors, &mut totals)?;
            streams = tensors.f32(&format!("L{layer}.x_out"))?;
        }
        for ((name, distance, share), (found, equal, all)) in VALUES.iter().zip(totals.values) {
            self.findings.at_most(&format!("{name} rel L2"), found, *distance);
            self.findings.at_least(&format!("{name} equal"), equal / all, *share);
        }
        self.findings.at_least(
            "packed bytes equal",
            totals.bytes.0 / totals.bytes.1,
            BYTES_EQUAL_MIN,
        );
        let differ = |(equal, all): (f64, f64)| 1.0 - equal / all;
        self.findings.at_most("topk rows differ", differ(totals.selections), SELECTIONS_DIFFER_MAX);
        self.findings.at_most("expert rows differ", differ(totals.experts), EXPERTS_DIFFER_MAX);
        Ok(())
    }

    fn block(
        &mut self,
        layer: usize,
        ids: &[shared::TokenId],
        streams: Vec<f32>,
        tensors: &GoldenTensors,
        totals: &mut Totals,
    ) -> Result<(), GoldenError> {
        let name = |part: &str| format!("L{layer}.{part}");
        let role = self.engine.config().layers[layer];
        let mut lone = Lone::new(self.engine, ids);
        let mut input =
            BlockInput { streams, pre: tensors.f32(&name("pre_in"))?, ..BlockInput::default() };
        if let Some(owner) = role.kv_owner.filter(|owner| *owner != layer) {
            self.fill_entries(&lone, owner, tensors)?;
            let source = role.index_owner.filter(|owner| *owner != layer);
            input.choices =
                source.map(|owner| choices(owner, tensors)).transpose()?.unwrap_or_default();
        }
        if role.uses_candidates() {
            let source = self.engine.config().candidates.expect("a restricted layer has a source");
            input.candidates = candidates(source.source_layer, source.block_entries, tensors)?;
        }
        let plan =
            |position| RowPlan { position, layers: Layers::All, floors: OPEN, logits: false };
        let rows: Vec<RowPlan> = (0..position(ids.len())).map(plan).collect();
        let mut recording = Recording::default();
        let segment = Segment { sequence: &mut lone.sequence, rows: &rows };
        self.engine.forward_block(&lone.slab, segment, layer, input, &mut recording);

        let width = self.engine.config().hidden;
        for ((part, _, _), total) in VALUES.iter().zip(&mut totals.values) {
            let (found, expected) = (&recording.floats[&name(part)], tensors.f32(&name(part))?);
            let distance = if *part == "attn_in" {
                mean_relative_l2(found, &expected, width)
            } else {
                relative_l2(found, &expected)
            };
            total.0 = total.0.max(distance);
            total.1 += equal_share(found, &expected) * expected.len() as f64;
            total.2 += expected.len() as f64;
        }
        self.block_lists(layer, &lone, (&recording, tensors), totals)
    }

    fn block_lists(
        &self,
        layer: usize,
        lone: &Lone<'_>,
        (recording, tensors): (&Recording, &GoldenTensors),
        totals: &mut Totals,
    ) -> Result<(), GoldenError> {
        let name = |part: &str| format!("L{layer}.{part}");
        let add = |total: &mut (f64, f64), equal: usize, all: usize| {
            total.0 += equal as f64;
            total.1 += all as f64;
        };
        let rows_equal = |found: &[i32], expected: &[i32], width: usize| {
            let pairs = found.chunks_exact(width).zip(expected.chunks_exact(width));
            pairs.filter(|(a, b)| a == b).count()
        };
        let experts = tensors.i32(&name("expert_ids"))?;
        let top = self.engine.config().experts.per_token;
        let equal = rows_equal(&recording.ids[&name("expert_ids")], &experts, top);
        add(&mut totals.experts, equal, experts.len() / top);
        if let Some(choices) = recording.choices.get(&layer) {
            let expected = tensors.i32(&name("topk"))?;
            let width = tensors.shape(&name("topk"))?[1];
            let equal = rows_equal(&selections(choices, width), &expected, width);
            add(&mut totals.selections, equal, choices.len());
        }
        let mut parts = self.window_parts(&recording.bytes[&name("window")], layer);
        if self.engine.config().layers[layer].owns_kv() {
            parts.extend(self.entry_parts(lone, layer, lone.sequence.processed()));
        }
        for (part, found) in parts {
            let expected = tensors.u8(&part)?;
            let equal = found.iter().zip(expected).filter(|(a, b)| a == b).count();
            add(&mut totals.bytes, equal, expected.len());
        }
        Ok(())
    }

    /// Writes the reference's entries and index keys of a source layer into the blocks.
    fn fill_entries(
        &self,
        lone: &Lone<'_>,
        layer: usize,
        tensors: &GoldenTensors,
    ) -> Result<(), GoldenError> {
        let layout = self.engine.layout();
        let sources = layout.sources();
        let source =
            sources.iter().find(|source| source.layer == layer).expect("an owner is a source");
        let part = |part: &str| tensors.u8(&format!("L{layer}.{part}"));
        let (codes, scales) = (part("main_codes")?, part("main_scale")?);
        let (key_codes, key_scales) = (part("index_k_codes")?, part("index_k_scale")?);
        let (head, index) = (layout.shape().head_dim, layout.shape().index_dim);
        for group in 0..codes.len() / (head / 2) {
            let (block, at) = (group / source.entries, group % source.entries);
            let row =
                |values: &[u8], width: usize| values[group * width..(group + 1) * width].to_vec();
            lone.slab.write(lone.sequence.blocks()[block], &mut |bytes| {
                let mut put = |start: usize, width: usize, values: Vec<u8>| {
                    bytes[start + at * width..][..values.len()].copy_from_slice(&values);
                };
                let entry = layout.main_entry_bytes();
                put(source.main, entry, [row(codes, head / 2), row(scales, head / 16)].concat());
                put(source.index_codes, index / 2, row(key_codes, index / 2));
                put(source.index_scales, index / 32, row(key_scales, index / 32));
            });
        }
        Ok(())
    }
}

/// The reference's selections of a layer.
fn choices(layer: usize, tensors: &GoldenTensors) -> Result<Vec<IndexChoice>, GoldenError> {
    let name = format!("L{layer}.topk");
    let width = tensors.shape(&name)?[1];
    let row = |row: &[i32]| IndexChoice {
        selected: row.iter().filter_map(|entry| u32::try_from(*entry).ok()).collect(),
        ..IndexChoice::default()
    };
    Ok(tensors.i32(&name)?.chunks_exact(width).map(row).collect())
}

/// The reference's candidate blocks of each row.
fn candidates(
    layer: usize,
    block: usize,
    tensors: &GoldenTensors,
) -> Result<Vec<Vec<u32>>, GoldenError> {
    let name = format!("L{layer}.candidates");
    let entries = tensors.shape(&name)?[1];
    let row = |mask: &[u8]| {
        let blocks = (0_u32..).zip(mask.chunks(block));
        blocks.filter(|(_, mask)| mask.contains(&1)).map(|(block, _)| block).collect()
    };
    Ok(tensors.u8(&name)?.chunks_exact(entries).map(row).collect())
}
