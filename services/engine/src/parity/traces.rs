//! Trace and list cases: every stored value of a whole run.

use std::collections::BTreeMap;

use kernels::IndexChoice;

use super::compare::max_abs;
use super::runner::{Lone, OPEN, Rows, Runner, position};
use crate::forward::{Layers, RowPlan};
use crate::golden::{GoldenCase, GoldenError, GoldenTensors};
use crate::trace::{Trace, TraceValue};

/// Float32 values at rounding points of the exact arithmetic may differ by their last bits where a library function does.
const FLOAT_MAX_ABS: f64 = 1e-5;

/// Everything a run showed.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) floats: BTreeMap<String, Vec<f32>>,
    pub(super) bytes: BTreeMap<String, Vec<u8>>,
    pub(super) ids: BTreeMap<String, Vec<i32>>,
    pub(super) rows: BTreeMap<String, Vec<i64>>,
    pub(super) choices: BTreeMap<usize, Vec<IndexChoice>>,
}

impl Trace for Recording {
    fn active(&self) -> bool {
        true
    }

    fn record(&mut self, layer: usize, name: &'static str, value: TraceValue<'_>) {
        let key = format!("L{layer}.{name}");
        match value {
            TraceValue::Floats(values) => {
                self.floats.insert(key, values.to_vec());
            }
            TraceValue::Bytes(values) => {
                self.bytes.insert(key, values.to_vec());
            }
            TraceValue::Ids(values) => {
                let signed = |id: &u32| i32::try_from(*id).expect("ids are small");
                self.ids.insert(key, values.iter().map(signed).collect());
            }
            TraceValue::Rows(values) => {
                let signed = |row: &u64| i64::try_from(*row).expect("tables are below 2^63 rows");
                self.rows.insert(key, values.iter().map(signed).collect());
            }
            TraceValue::Choices(values) => {
                self.choices.insert(layer, values.to_vec());
            }
        }
    }
}

impl Runner<'_> {
    /// Compares a whole run with everything the case has.
    pub(super) fn traces(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let ids = case.ids("ids")?;
        let tensors = case.read()?;
        let mut lone = Lone::new(self.engine, &ids);
        let mut recording = Recording::default();
        let plan = |position| RowPlan { position, layers: Layers::All, floors: OPEN, logits: true };
        let logits = lone.run(position(ids.len()), plan, &mut recording);
        if tensors.has("logits") {
            self.logits("logits", &logits.values, &tensors.f32("logits")?, Rows::All(ids.len()));
        }
        self.stored_bytes(&lone, &tensors, position(ids.len()))?;
        for (key, found) in &recording.floats {
            if tensors.has(key) {
                let distance = max_abs(found, &tensors.f32(key)?);
                self.findings.within(key, distance, FLOAT_MAX_ABS);
            }
        }
        for (key, found) in &recording.ids {
            self.findings.equal(key, found, &tensors.i32(key)?);
        }
        for (key, found) in &recording.rows {
            self.findings.equal(key, found, &tensors.i64(key)?);
        }
        self.packed(&recording, &tensors)?;
        for (layer, choices) in &recording.choices {
            self.choices(*layer, choices, &tensors)?;
        }
        Ok(())
    }

    /// Window entries and index queries.
    fn packed(
        &mut self,
        recording: &Recording,
        tensors: &GoldenTensors,
    ) -> Result<(), GoldenError> {
        for (key, found) in &recording.bytes {
            if let Some(layer) = key.strip_suffix(".window") {
                let layer = layer.trim_start_matches('L').parse().expect("keys are made here");
                for (part, found) in self.window_parts(found, layer) {
                    if tensors.has(&part) {
                        self.findings.equal(&part, &found, tensors.u8(&part)?);
                    }
                }
            } else if tensors.has(key) {
                self.findings.equal(key, found, tensors.u8(key)?);
            }
        }
        Ok(())
    }

    /// Scores, selections and candidates of one layer.
    fn choices(
        &mut self,
        layer: usize,
        choices: &[IndexChoice],
        tensors: &GoldenTensors,
    ) -> Result<(), GoldenError> {
        let name = |part: &str| format!("L{layer}.{part}");
        let selected: Vec<i32> = selections(choices, tensors.shape(&name("topk"))?[1]);
        self.findings.equal(&name("topk"), &selected, &tensors.i32(&name("topk"))?);
        let scores = tensors.f32(&name("index_score"))?;
        let entries = scores.len() / choices.len();
        let restricted = self.engine.config().layers[layer].uses_candidates();
        for (choice, expected) in choices.iter().zip(scores.chunks_exact(entries)) {
            // Outside a restricted row's candidates the reference keeps scores that nothing reads.
            let pairs = choice.scores.iter().zip(expected);
            let compared = pairs.filter(|(score, _)| !restricted || **score != f32::NEG_INFINITY);
            let (found, expected): (Vec<f32>, Vec<f32>) = compared.unzip();
            self.findings.equal(&name("index_score"), &found, &expected);
        }
        if tensors.has(&name("candidates")) {
            let block =
                self.engine.config().candidates.expect("a source of candidates").block_entries;
            let mut mask = Vec::with_capacity(choices.len() * entries);
            for choice in choices {
                // The reference marks whole blocks, entries the row cannot see yet included.
                let allowed = |entry: usize| {
                    let block = u32::try_from(entry / block).expect("contexts are short");
                    choice.candidates.binary_search(&block).is_ok()
                };
                mask.extend((0..entries).map(|entry| u8::from(allowed(entry))));
            }
            self.findings.equal(&name("candidates"), &mask, tensors.u8(&name("candidates"))?);
        }
        Ok(())
    }

    /// The lists that do not depend on arithmetic.
    pub(super) fn lists_fast(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let ids = case.ids("ids")?;
        let tensors = case.read()?;
        let mut lone = Lone::new(self.engine, &ids);
        let mut recording = Recording::default();
        let plan =
            |position| RowPlan { position, layers: Layers::All, floors: OPEN, logits: false };
        lone.run(position(ids.len()), plan, &mut recording);
        for (key, found) in &recording.rows {
            self.findings.equal(key, found, &tensors.i64(key)?);
        }
        Ok(())
    }
}

/// Selections as the reference stores them: ascending, then -1 up to `width`.
pub(super) fn selections(choices: &[IndexChoice], width: usize) -> Vec<i32> {
    let mut all = Vec::with_capacity(choices.len() * width);
    for choice in choices {
        let signed = |entry: &u32| i32::try_from(*entry).expect("contexts are short");
        all.extend(choice.selected.iter().map(signed));
        all.extend(std::iter::repeat_n(-1, width - choice.selected.len()));
    }
    all
}
