//! Prefill and decode of a checkpoint, with the bound of each.
//!
//! Prefill is bound by arithmetic: two operations per weight that a token meets, against the measured matrix product. Decode
//! of one sequence is bound by memory: the bytes of the weights that a token meets, against the measured read speed. Small
//! models stay far below both, because they live in the caches and a row is too little work for two threads; the bound says
//! by how much.

use std::path::Path;

use engine::{
    Arithmetic, Checkpoint, Engine, EngineOptions, Floors, KvSlab, Layers, ModelConfig, Part,
    RowPlan, Segment, Sequence, tensor_list,
};
use shared::{BLOCK_TOKENS, Clock, SlotIndex, TokenId};

use crate::machine::{Machine, as_f64, seconds};

/// Prompt lengths, and how often each is run: the median counts.
const PROMPTS: [(u32, usize); 3] = [(40, 20), (1_000, 5), (8_000, 3)];
/// Steps of a decode measurement.
const STEPS: u32 = 64;
/// Rows of one engine call, as the prefill worker's default.
const CHUNK: usize = 512;
/// B of the design.
const ROLLBACK: u32 = 12;

/// What one token costs, from the configuration alone.
struct TokenCost {
    /// Weights that a token meets: all but tables, and of the routed experts its own.
    weights: f64,
    /// Their bytes.
    bytes: f64,
}

/// The lines of a Markdown table.
///
/// # Errors
/// When the checkpoint cannot be loaded.
pub fn table(folder: &Path, machine: &Machine, clock: &dyn Clock) -> anyhow::Result<Vec<String>> {
    let checkpoint = Checkpoint::open(folder)?;
    let cost = token_cost(checkpoint.config());
    let mut lines = vec![
        "| arithmetic | what | median | tokens/s | bound, tokens/s |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for (word, arithmetic) in [("fast", Arithmetic::Fast), ("exact", Arithmetic::Exact)] {
        let options = EngineOptions { arithmetic, part: Part::Whole, rollback: ROLLBACK };
        let engine = Engine::load(&checkpoint, &options, &mut |_| ())?;
        let context = engine.config().context;
        for (tokens, runs) in PROMPTS.into_iter().filter(|(tokens, _)| tokens + STEPS <= context) {
            let mut prefills = Vec::with_capacity(runs);
            let mut steps = Vec::with_capacity(runs);
            for _ in 0..runs {
                let (prefill, step) = run(&engine, tokens, clock);
                prefills.push(prefill);
                steps.push(step);
            }
            let (prefill, step) = (median(prefills), median(steps));
            let speed = f64::from(tokens) / prefill;
            let bound = machine.gemm_flops / (2.0 * cost.weights);
            lines.push(format!(
                "| {word} | prefill of {tokens}, every row through every layer | {:.1} ms | {speed:.0} | {bound:.0} (matrix product) |",
                1e3 * prefill
            ));
            let bound = machine.read_bytes_per_second / cost.bytes;
            lines.push(format!(
                "| {word} | decode after {tokens}, one sequence | {:.2} ms | {:.0} | {bound:.0} (memory) |",
                1e3 * step,
                1.0 / step
            ));
        }
    }
    Ok(lines)
}

/// Seconds of one prefill, and of one decode step after it.
fn run(engine: &Engine, tokens: u32, clock: &dyn Clock) -> (f64, f64) {
    let vocab = u32::try_from(engine.config().vocab).expect("ids are 32 bits wide");
    let ids: Vec<_> = (0..tokens + STEPS).map(|n| TokenId((n * 7_919 + 13) % vocab)).collect();
    let blocks = (tokens + STEPS).div_ceil(BLOCK_TOKENS);
    let slab = KvSlab::new(blocks, engine.layout().block_bytes());
    let mut sequence = engine.sequence(&ids);
    (0..blocks).for_each(|slot| sequence.push_block(SlotIndex(slot)));
    let rows: Vec<_> = (0..tokens).map(|position| plan(position, position + 1 == tokens)).collect();
    let start = clock.now();
    for chunk in rows.chunks(CHUNK) {
        forward(engine, &slab, &mut sequence, chunk);
    }
    let prefill = seconds(clock, start);
    let start = clock.now();
    for position in tokens..tokens + STEPS {
        forward(engine, &slab, &mut sequence, &[plan(position, true)]);
    }
    (prefill, seconds(clock, start) / f64::from(STEPS))
}

fn plan(position: u32, logits: bool) -> RowPlan {
    let floors = Floors { window: 0, write: 0, decoder: 0 };
    RowPlan { position, layers: Layers::All, floors, logits }
}

fn forward(engine: &Engine, slab: &KvSlab, sequence: &mut Sequence, rows: &[RowPlan]) {
    let wanted = rows.iter().filter(|row| row.logits).count();
    let logits = engine.forward(slab, &mut [Segment { sequence, rows }]);
    assert_eq!(logits.len(), wanted, "what was computed is what was asked for");
}

fn token_cost(config: &ModelConfig) -> TokenCost {
    let share = as_f64(config.experts.per_token) / as_f64(config.experts.routed);
    let mut cost = TokenCost { weights: 0.0, bytes: 0.0 };
    for tensor in tensor_list(config, Part::Whole) {
        // Tables are looked up, a few rows per token; scales and vectors are no products.
        let looked_up = tensor.name == "embed.weight" || tensor.name.contains(".engram.embed.");
        if looked_up || tensor.shape.len() < 2 {
            continue;
        }
        let met = if tensor.name.contains(".experts.") { share } else { 1.0 };
        cost.bytes += met * as_f64(usize::try_from(tensor.bytes).unwrap_or(usize::MAX));
        if !tensor.name.ends_with(".scale") {
            // The stored shape of packed FP4 holds two weights per byte; bytes per weight tell how many there are.
            let per_byte = if tensor.name.contains(".experts.") { 2.0 } else { 1.0 };
            let stored: usize = tensor.shape.iter().product();
            cost.weights += met * per_byte * as_f64(stored);
        }
    }
    cost
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
