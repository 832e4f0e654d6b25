//! Grammars that an answer follows: from a client's text to the tokens that are possible next.
//!
//! Compilation and masks are llguidance's; around it stand our own translators for the two client dialects
//! ([`Grammar::Ebnf`](shared::Grammar::Ebnf), [`Grammar::Regex`](shared::Grammar::Regex)), the vocabulary read from our own
//! tokenizer file, and the automaton of trigger and bound. The README of engine has the dialects.
//!
//! What it is not: it has no threads and no clock. A compilation or a mask can take long, and a hostile grammar very long;
//! who calls decides where, and stops a call through [`Guide::stopper`].
//!
//! Invariants: no text of a client reaches llguidance's Lark parser as it is, so none can name tokens or set options;
//! control tokens are possible only where a grammar of this server names them, and the end-of-answer token exactly where
//! the grammar can end; forced tokenisation is off, so that every spelling of a member is possible.
//!
//! Start reading at [`GrammarCompiler`], then [`Guide`].

mod compile;
mod ebnf;
mod expression;
mod guide;
mod lexemes;
mod mask;
mod reader;
mod regex;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use compile::{Compiled, GRAMMAR_STACK_BYTES, GrammarCompiler, GrammarLimits, GrammarRefusal};
pub use guide::{Guide, GuideError, Stopper};
pub use mask::TokenMask;
pub use vocabulary::{GrammarVocabulary, GrammarVocabularyError};
