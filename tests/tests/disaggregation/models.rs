//! The two checkpoints of the repository, and prompts for them.

use std::fs;
use std::sync::Arc;

use engine::{Arithmetic, Checkpoint, Engine, EngineOptions, Part};
use shared::{Random, TokenId};
use tokenizers::Tokenizer;

use crate::repository::root;

/// B of the design.
const ROLLBACK: u32 = 12;
/// Where the seedling's control tokens begin; below are bytes and merges. Id 0 begins a sequence.
const ORDINARY_IDS: std::ops::Range<u32> = 3..4_000;

/// A checkpoint of the repository.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Model {
    /// The built-in model: windows of 128, five encoder layers.
    Seedling,
    /// The golden model with windows of 72, shorter than a block, and three encoder layers.
    TinyW,
}

impl Model {
    fn folder(self) -> &'static str {
        match self {
            Self::Seedling => "deploy/models/seedling",
            Self::TinyW => "tests/golden/tiny-w/checkpoint",
        }
    }

    /// Loads a part of it.
    pub(crate) fn load(self, arithmetic: Arithmetic, part: Part) -> Arc<Engine> {
        let checkpoint = Checkpoint::open(&root().join(self.folder())).unwrap();
        let options = EngineOptions { arithmetic, part, rollback: ROLLBACK };
        Arc::new(Engine::load(&checkpoint, &options, &mut |_| ()).unwrap())
    }
}

/// The tokenizer of the seedling.
pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::from_file(root().join(Model::Seedling.folder()).join("tokenizer.json")).unwrap()
}

/// The first `tokens` tokens of the text that lies beside the seedling, behind the token that begins a sequence.
pub(crate) fn text(tokens: usize) -> Vec<TokenId> {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let files = ["deploy/models/seedling/README.md", "LICENSE"];
    let encoded = tokenizer().encode(files.map(read).join("\n\n"), false).unwrap();
    // Begun again where the files are shorter.
    let ids = [0].into_iter().chain(encoded.get_ids().iter().copied().cycle());
    ids.take(tokens).map(TokenId).collect()
}

/// Token ids that look like nothing, the same for the same seed, below the control tokens of every checkpoint.
pub(crate) fn noise(engine: &Engine, seed: u64, tokens: usize) -> Vec<TokenId> {
    let last = ORDINARY_IDS.end.min(u32::try_from(engine.config().vocab).unwrap() - 60);
    let mut draws = Random::new(seed);
    (0..tokens).map(|_| TokenId(draws.between(ORDINARY_IDS.start, last - 1))).collect()
}
