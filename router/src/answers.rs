//! How long answers are: a moving average over those that ended.

/// Parts of a token in which the mean is kept.
const GRAIN: i64 = 256;
/// Of each difference this part is taken over: about the last sixteen answers count.
const NEWEST: i64 = 16;

/// The mean length of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerLength {
    /// In parts of a token.
    mean: i64,
}

impl AnswerLength {
    /// What is assumed before any answer ended.
    pub(crate) fn assumed(tokens: u32) -> Self {
        Self { mean: i64::from(tokens) * GRAIN }
    }

    /// Takes an answer into account.
    pub(crate) fn note(&mut self, tokens: u32) {
        self.mean += (i64::from(tokens) * GRAIN - self.mean) / NEWEST;
    }

    /// The mean, in whole tokens.
    pub(crate) fn tokens(self) -> u32 {
        u32::try_from(self.mean / GRAIN).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::AnswerLength;

    #[test]
    fn the_mean_follows_the_answers() {
        let mut length = AnswerLength::assumed(256);
        assert_eq!(length.tokens(), 256);
        for _ in 0..200 {
            length.note(1_000);
        }
        assert!((990..=1_000).contains(&length.tokens()), "{}", length.tokens());
        length.note(u32::MAX);
        for _ in 0..400 {
            length.note(0);
        }
        assert!(length.tokens() < 8, "{}", length.tokens());
    }
}
