//! What binds an answer beyond sampling: grammars, biases of single tokens, and the log probabilities reported with them.

use std::sync::Arc;

use crate::ids::TokenId;

/// Most bytes of a grammar's text. Sent by clients; a compiled grammar may be larger.
pub const GRAMMAR_BYTES_MAX: usize = 1 << 18;
/// Most tokens of a trigger.
pub const TRIGGER_TOKENS_MAX: usize = 64;
/// Most tokens of one request that have a bias. Source: OpenAI's API takes about as many.
pub const LOGIT_BIAS_MAX: usize = 1_024;
/// Most alternatives reported per token. Source: OpenAI's `top_logprobs`.
pub const LOGPROBS_MAX: u8 = 20;

/// A language that the answer is to be a member of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// A JSON schema, as JSON text. The answer is one value of it; white space between its parts is free.
    Json(String),
    /// A regular expression that the whole answer matches. Dialect: the README of engine.
    Regex(String),
    /// Rules `name ::= ...` of characters, of which `root` is the answer. Dialect: the README of engine.
    Ebnf(String),
    /// A Lark grammar that this server wrote. The only one that may name tokens by id; never a client's text. Where values of schemas
    /// stand in it, a line of JSON comes before it: `{"schemas": [[name, schema], ..], "parts": [[index, pointer], ..]}`. `@part0` is a
    /// value of the part of a schema that the first index and JSON pointer lead to, its references being those of the whole.
    Server(String),
}

impl Grammar {
    /// The grammar's text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Json(text) | Self::Regex(text) | Self::Ebnf(text) | Self::Server(text) => text,
        }
    }
}

/// When and by what an answer is constrained. The end-of-answer token is possible exactly where the grammar can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// What follows the trigger.
    pub grammar: Grammar,
    /// Until exactly these tokens were emitted one after another, the answer is free but may not end; the grammar begins
    /// behind them. Empty: it begins with the first token. At most [`TRIGGER_TOKENS_MAX`].
    pub trigger: Vec<TokenId>,
    /// When this token appears before the trigger is complete, the trigger is forced, token by token, and the grammar
    /// begins. None, or a trigger that is not empty.
    pub bound: Option<TokenId>,
    /// A token that is not possible before the trigger is complete: whoever reads the answer takes it for the end of what is
    /// free, and reads on outside of the grammar. Not in the trigger, not the bound; without effect where the trigger is
    /// empty.
    pub barred: Option<TokenId>,
}

/// What is added to the logits of single tokens before the draw: at most [`LOGIT_BIAS_MAX`] pairs, ascending by token,
/// each token once, finite.
pub type LogitBias = Arc<[(TokenId, f32)]>;

/// Natural logarithms of probabilities at one position of an answer, of the true distribution: the softmax of the model's
/// logits, before temperature, cuts, penalties, biases and grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// That of the emitted token.
    pub logprob: f32,
    /// Those of the most probable tokens, descending, ties to the lower id. As many as were asked for.
    pub top: Vec<(TokenId, f32)>,
}
