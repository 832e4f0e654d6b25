//! The tokens that are possible next.

use shared::TokenId;

/// A set of tokens of one vocabulary, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenMask {
    /// All tokens but these few.
    AllBut(Vec<TokenId>),
    /// One token.
    Only(TokenId),
    /// Token t is bit t % 32 of word t / 32.
    Set(Vec<u32>),
}

impl TokenMask {
    /// Whether a token is in the set.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        match self {
            Self::AllBut(refused) => !refused.contains(&token),
            Self::Only(only) => *only == token,
            Self::Set(words) => {
                let word = words.get(token.index() / 32).copied().unwrap_or(0);
                word >> (token.0 % 32) & 1 == 1
            }
        }
    }
}
