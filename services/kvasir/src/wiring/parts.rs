//! The parts that a process with all roles and one with a single role are made of.

use std::fs;
use std::sync::Arc;

use anyhow::Context;
use engine::{
    Arithmetic, Checkpoint, Engine, EngineOptions, GrammarCompiler, GrammarLimits,
    GrammarVocabulary, Part,
};

use crate::config::ROLLBACK;

pub(crate) use super::asked::Asked;
pub(crate) use super::events::WorkerEvents;
pub(crate) use super::placement::{DrainWord, Placement, PlacementParts, Teller, Told};
pub(crate) use super::pools::{NamedPool, WorkerMemory, worker_memory};

/// Loads one part of a model and shows how far it is.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    arithmetic: Arithmetic,
    part: Part,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<Engine> {
    let options = EngineOptions { arithmetic, part, rollback: ROLLBACK };
    let mut shown = 0;
    let engine = Engine::load(checkpoint, &options, &mut |loaded| {
        // A line per tenth: a large model loads for minutes, a small one in one line.
        let tenth = 10 * loaded.bytes / loaded.bytes_total.max(1);
        if shown < tenth && (tenth == 10 || 256 << 20 <= loaded.bytes_total) {
            shown = tenth;
            progress(&format!(
                "loading {}: layer {} of {}, {} of {} MB",
                part.as_str(),
                loaded.layers,
                loaded.layers_total,
                loaded.bytes / 1_000_000,
                loaded.bytes_total / 1_000_000
            ));
        }
    })?;
    Ok(engine)
}

/// What compiles the grammars of answers of a model. Blocks on its tokenizer file, and computes for seconds with a large
/// vocabulary.
///
/// # Errors
/// When the file cannot be read, or belongs to another model.
pub(crate) fn grammars(checkpoint: &Checkpoint) -> anyhow::Result<Arc<GrammarCompiler>> {
    let path = checkpoint.folder().join("tokenizer.json");
    let file = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let config = checkpoint.config();
    let vocabulary = GrammarVocabulary::read(&file, config.vocab, config.special.eos)?;
    Ok(Arc::new(GrammarCompiler::new(&vocabulary, GrammarLimits::STANDARD)))
}
