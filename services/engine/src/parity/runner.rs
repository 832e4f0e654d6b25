//! Running sequences for comparison: prefill, decode and greedy cases.

use shared::{BLOCK_TOKENS, SlotIndex, TokenId};

use super::compare::{Findings, argmax, argmax_agreement, max_abs, mean_relative_l2};
use crate::forward::{Floors, Layers, Logits, RowPlan, Segment};
use crate::golden::{GoldenCase, GoldenError};
use crate::model::{Arithmetic, Engine};
use crate::sequence::Sequence;
use crate::slab::KvSlab;
use crate::trace::{NoTrace, Trace};

/// Accepted distance of logits in the exact arithmetic.
const LOGITS_MAX_ABS: f64 = 1e-4;
/// Greedy steps of the fast arithmetic are compared up to the first with a smaller margin.
const MARGIN_MIN: f32 = 0.5;

/// Bound of the mean over a few late rows, for which the table has no row of its own: the largest distance it measured
/// at a single position of a correct float32 path.
const FEW_ROWS_MAX: f64 = 0.27;

/// The same for `tiny-w`, whose rows are less chaotic: twice the bound of its means.
const FEW_ROWS_MAX_LONG_WINDOW: f64 = 0.08;

/// No floor at all.
pub(super) const OPEN: Floors = Floors { window: 0, write: 0, decoder: 0 };

pub(super) struct Runner<'a> {
    pub(super) engine: &'a Engine,
    pub(super) arithmetic: Arithmetic,
    pub(super) set: &'a str,
    pub(super) findings: Findings,
}

/// A sequence with a slab of its own.
pub(super) struct Lone<'a> {
    engine: &'a Engine,
    pub(super) slab: KvSlab,
    pub(super) sequence: Sequence,
}

impl<'a> Lone<'a> {
    /// A sequence of `ids` with blocks for all of them.
    pub(super) fn new(engine: &'a Engine, ids: &[TokenId]) -> Self {
        let blocks = ids.len().div_ceil(BLOCK_TOKENS as usize);
        let blocks = u32::try_from(blocks).expect("golden cases are short");
        let slab = KvSlab::new(blocks, engine.layout().block_bytes());
        let mut sequence = engine.sequence(ids);
        (0..blocks).for_each(|slot| sequence.push_block(SlotIndex(slot)));
        Self { engine, slab, sequence }
    }

    /// Processes rows from the current position up to `to`.
    pub(super) fn run(
        &mut self,
        to: u32,
        plan: impl Fn(u32) -> RowPlan,
        trace: &mut dyn Trace,
    ) -> Logits {
        let rows: Vec<RowPlan> = (self.sequence.processed()..to).map(plan).collect();
        let segment = Segment { sequence: &mut self.sequence, rows: &rows };
        self.engine.forward_traced(&self.slab, &mut [segment], trace)
    }

    /// Processes rows up to `to` through all layers, with logits of rows from `logits_from` on.
    pub(super) fn run_all(&mut self, to: u32, logits_from: u32, floors: Floors) -> Logits {
        let plan = |position| RowPlan {
            position,
            layers: Layers::All,
            floors,
            logits: logits_from <= position,
        };
        self.run(to, plan, &mut NoTrace)
    }
}

/// A length as a position.
pub(super) fn position(length: usize) -> u32 {
    u32::try_from(length).expect("golden cases are short")
}

impl Runner<'_> {
    pub(super) fn prefill(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let ids = case.ids("ids")?;
        let logits = Lone::new(self.engine, &ids).run_all(position(ids.len()), 0, OPEN);
        let expected = case.read()?.f32("logits")?;
        self.logits("logits", &logits.values, &expected, Rows::All(ids.len()));
        Ok(())
    }

    pub(super) fn decode(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let (ids, prefill) = (case.ids("ids")?, case.number("prefill")?);
        let expected = case.read()?.f32("logits")?;
        let mut lone = Lone::new(self.engine, &ids);
        let mut found = lone.run_all(position(prefill), position(prefill - 1), OPEN).values;
        let steps = expected.len() / self.engine.config().vocab - 1;
        for step in 0..steps {
            found.extend(lone.run_all(position(prefill + step + 1), 0, OPEN).values);
        }
        self.logits("logits", &found, &expected, Rows::Few);
        Ok(())
    }

    pub(super) fn greedy(&mut self, case: &GoldenCase) -> Result<(), GoldenError> {
        let tensors = case.read()?;
        let (expected, margins) = (tensors.i32("tokens")?, tensors.f32("margin")?);
        let prompt = case.ids("ids")?;
        let mut ids = prompt.clone();
        ids.resize(prompt.len() + expected.len(), TokenId(0));
        let mut lone = Lone::new(self.engine, &ids);
        lone.sequence.truncate_tokens(prompt.len());
        let mut found = Vec::new();
        for _ in 0..expected.len() {
            let to = position(lone.sequence.ids().len());
            let logits = lone.run_all(to, to - 1, OPEN);
            let token = position(argmax(logits.row(0)));
            found.push(i32::try_from(token).expect("vocabularies are small"));
            lone.sequence.push(TokenId(token));
        }
        let compared = match self.arithmetic {
            Arithmetic::Exact => expected.len(),
            Arithmetic::Fast => {
                margins.iter().position(|margin| *margin < MARGIN_MIN).unwrap_or(expected.len())
            }
        };
        self.findings.equal("greedy tokens", &found[..compared], &expected[..compared]);
        Ok(())
    }

    /// Compares logits.
    pub(super) fn logits(&mut self, what: &str, found: &[f32], expected: &[f32], rows: Rows) {
        let vocab = self.engine.config().vocab;
        if self.arithmetic == Arithmetic::Exact {
            let distance = max_abs(found, expected);
            self.findings.at_most(&format!("{what} max abs"), distance, LOGITS_MAX_ABS);
            return;
        }
        let bound = match (rows, self.set) {
            (Rows::Few, "tiny-w") => FEW_ROWS_MAX_LONG_WINDOW,
            (Rows::Few, _) => FEW_ROWS_MAX,
            (Rows::All(_), "tiny-w") => 0.04,
            (Rows::All(..=3), _) => 0.02,
            (Rows::All(..=17), _) => 0.08,
            (Rows::All(..=80), _) => 0.11,
            (Rows::All(_), _) => 0.16,
        };
        let mean = mean_relative_l2(found, expected, vocab);
        self.findings.at_most(&format!("{what} mean rel L2"), mean, bound);
        // Below 17 rows a share of 0.8 means nothing; above 131 the table gives none.
        if let Rows::All(17..=131) = rows {
            let agreement = argmax_agreement(found, expected, vocab);
            self.findings.at_least("argmax agreement", agreement, 0.8);
        }
    }
}

/// Which rows of a sequence are compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rows {
    /// All positions of a prompt of this length.
    All(usize),
    /// A few late ones: decode steps, replays.
    Few,
}
