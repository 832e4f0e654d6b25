//! The front door, with a worker behind it that computes nothing.

use std::path::Path;
use std::sync::LazyLock;

use crate::answers::Answers;
use crate::bodies::Bodies;
use crate::changes::varied;

/// The built-in model: its tokenizer is in the repository.
const TOKENIZER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/models/seedling/tokenizer.json");

static BODIES: LazyLock<Bodies> = LazyLock::new(|| Bodies::new(Path::new(TOKENIZER)));
static ANSWERS: LazyLock<Answers> = LazyLock::new(|| Answers::new(Path::new(TOKENIZER)));

/// Sends a body, behind the byte that chooses its path.
///
/// # Panics
/// When the reply is none that the API may give.
pub fn send(input: &[u8]) {
    BODIES.send(input).unwrap_or_else(|what| panic!("{what}"));
}

/// Answers a request, both chosen by the input, whole and streamed.
///
/// # Panics
/// When a reply is none that the API may give, or the two tell something else.
pub fn hear(input: &[u8]) {
    ANSWERS.hear(input).unwrap_or_else(|what| panic!("{what}"));
}

/// Changes an input of [`send`] of this many bytes, as a fuzzer does any bytes or as JSON; how many bytes it has then, at most
/// `size_max`.
pub fn vary(input: &mut [u8], size: usize, size_max: usize, seed: u32) -> usize {
    if seed.is_multiple_of(2) {
        let changed = varied(&input[..size], seed / 2);
        if changed.len() <= size_max {
            input[..changed.len()].copy_from_slice(&changed);
            return changed.len();
        }
    }
    libfuzzer_sys::fuzzer_mutate(input, size, size_max)
}
