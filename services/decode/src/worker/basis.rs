//! Which floors and boundaries a start keeps. Pure. Source: architecture.md §1 idea 3.

use shared::StartGeometry;

/// The numbers that decide where a sequence starts and which rows run through all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    /// S: where prefill ends.
    pub(super) boundary: u32,
    /// First row that runs through all layers; decoder windows never reach below it.
    pub(super) decoder_floor: u32,
    /// Whether both are those of the original prompt.
    pub(super) original: bool,
}

/// A sequence that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownTokens {
    /// Length of the original prompt.
    pub(super) prompt: u32,
    /// Prompt and answer so far.
    pub(super) all: u32,
}

/// A resumed sequence keeps the numbers of its prompt while its answer has at most `resume_exact_tokens` tokens.
pub(super) fn basis(
    geometry: StartGeometry,
    tokens: KnownTokens,
    resume_exact_tokens: u32,
) -> Basis {
    let emitted = tokens.all - tokens.prompt;
    let original = emitted <= resume_exact_tokens;
    let length = if original { tokens.prompt } else { tokens.all };
    Basis {
        boundary: geometry.boundary(length),
        decoder_floor: geometry.decoder_floor(length),
        original,
    }
}

#[cfg(test)]
mod tests {
    use shared::StartGeometry;

    use super::{Basis, KnownTokens, basis};

    #[test]
    fn the_floor_moves_only_beyond_the_exact_range() {
        let geometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
        let cases = [
            (100, 100, (0, 0, true)),
            (200, 200, (0, 60, true)),
            (400, 400, (256, 260, true)),
            (400, 450, (256, 260, true)),
            (400, 451, (256, 311, false)),
            (100, 300, (128, 160, false)),
        ];
        for (prompt, all, (boundary, decoder_floor, original)) in cases {
            let found = basis(geometry, KnownTokens { prompt, all }, 50);
            assert_eq!(found, Basis { boundary, decoder_floor, original }, "{prompt} of {all}");
            assert!(found.boundary <= found.decoder_floor);
        }
    }
}
