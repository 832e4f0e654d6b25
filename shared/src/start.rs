//! Where a decode worker starts: the arithmetic of hand-off boundaries.
//!
//! Source: architecture.md §1 idea 3. All functions are pure; positions are 0-based token positions.

use crate::layout::BLOCK_TOKENS;

/// The two numbers of a model that decide where a request is handed from prefill to decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartGeometry {
    /// W: tokens a window layer sees, the query itself included.
    pub window: u32,
    /// B: the largest number of tokens a sequence is ever rolled back by.
    pub rollback: u32,
    /// The number of encoder layers, L_enc.
    pub encoder_layers: u32,
}

impl StartGeometry {
    /// K = W + B: rows at the end of a prompt that run through all layers.
    #[must_use]
    pub fn keep(self) -> u32 {
        self.window + self.rollback
    }

    /// S: the block boundary up to which prefill computes for a sequence of `tokens` tokens; 0 when the prompt is
    /// too short to visit prefill (`tokens` < K + 128).
    #[must_use]
    pub fn boundary(self, tokens: u32) -> u32 {
        if tokens < self.keep() + BLOCK_TOKENS {
            return 0;
        }
        (tokens - self.keep()) / BLOCK_TOKENS * BLOCK_TOKENS
    }

    /// N - K, or 0: decoder windows of a prompt of `tokens` tokens never reach below it.
    #[must_use]
    pub fn decoder_floor(self, tokens: u32) -> u32 {
        tokens.saturating_sub(self.keep())
    }

    /// L_enc * (W - 1): rows whose recomputation makes the encoder windows at a start exact.
    #[must_use]
    pub fn exact_replay_rows(self) -> u32 {
        self.encoder_layers * (self.window - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::StartGeometry;

    const FLASH: StartGeometry = StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

    #[test]
    fn boundary_follows_the_table_of_the_design() {
        let cases = [
            (0, 0),
            (1, 0),
            (267, 0),
            (268, 128),
            (269, 128),
            (395, 128),
            (396, 256),
            (1_000, 768),
            (7_948, 7_808),
        ];
        for (tokens, boundary) in cases {
            assert_eq!(FLASH.boundary(tokens), boundary, "N = {tokens}");
        }
    }

    #[test]
    fn flash_needs_2540_rows_for_an_exact_replay() {
        assert_eq!(FLASH.keep(), 140);
        assert_eq!(FLASH.exact_replay_rows(), 2_540);
    }
}
