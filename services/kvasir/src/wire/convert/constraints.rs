//! What binds an answer, and the log probabilities of its tokens.

use shared::{
    Constraint, GRAMMAR_BYTES_MAX, Grammar, LOGIT_BIAS_MAX, LOGPROBS_MAX, LogitBias,
    TRIGGER_TOKENS_MAX, TokenId, TokenLogprobs,
};

use super::{WireError, bounded, required, tokens_from_wire, tokens_to_wire, v1};
use v1::constraint::Grammar as Sent;

pub(super) fn finite(value: f32, field: &'static str) -> Result<(), WireError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(WireError::Range { field, found: value.to_string(), expected: "a finite number" })
}

pub(super) fn token_values_to_wire(values: &[(TokenId, f32)]) -> Vec<v1::TokenValue> {
    values.iter().map(|(token, value)| v1::TokenValue { token: token.0, value: *value }).collect()
}

pub(super) fn logit_bias_from_wire(values: Vec<v1::TokenValue>) -> Result<LogitBias, WireError> {
    bounded(values.len(), LOGIT_BIAS_MAX, "logit_bias")?;
    let mut biases = Vec::with_capacity(values.len());
    for v1::TokenValue { token, value } in values {
        finite(value, "logit_bias.value")?;
        if biases.last().is_some_and(|(before, _)| token <= *before) {
            let (found, expected) = (token.to_string(), "tokens in ascending order");
            return Err(WireError::Range { field: "logit_bias.token", found, expected });
        }
        biases.push((token, value));
    }
    Ok(biases.into_iter().map(|(token, value)| (TokenId(token), value)).collect())
}

pub(super) fn logprobs_from_wire(count: u32) -> Result<u8, WireError> {
    let known = u8::try_from(count).ok().filter(|count| *count <= LOGPROBS_MAX);
    let found = usize::try_from(count).unwrap_or(usize::MAX);
    known.ok_or_else(|| WireError::TooMany { field: "logprobs", found, max: LOGPROBS_MAX.into() })
}

pub(super) fn constraint_to_wire(constraint: &Constraint) -> v1::Constraint {
    let grammar = match constraint.grammar.clone() {
        Grammar::Json(text) => Sent::Json(text),
        Grammar::Regex(text) => Sent::Regex(text),
        Grammar::Ebnf(text) => Sent::Ebnf(text),
        Grammar::Server(text) => Sent::Server(text),
    };
    v1::Constraint {
        grammar: Some(grammar),
        trigger: tokens_to_wire(&constraint.trigger),
        bound: constraint.bound.map(|token| token.0),
        barred: constraint.barred.map(|token| token.0),
    }
}

pub(super) fn constraint_from_wire(message: v1::Constraint) -> Result<Constraint, WireError> {
    let grammar = match required(message.grammar, "constraint.grammar")? {
        Sent::Json(text) => Grammar::Json(text),
        Sent::Regex(text) => Grammar::Regex(text),
        Sent::Ebnf(text) => Grammar::Ebnf(text),
        Sent::Server(text) => Grammar::Server(text),
    };
    bounded(grammar.text().len(), GRAMMAR_BYTES_MAX, "constraint.grammar")?;
    let trigger: Vec<TokenId> = tokens_from_wire(&message.trigger, "constraint.trigger")?;
    bounded(trigger.len(), TRIGGER_TOKENS_MAX, "constraint.trigger")?;
    let [bound, barred] = [message.bound, message.barred].map(|token| token.map(TokenId));
    Ok(Constraint { grammar, trigger, bound, barred })
}

pub(super) fn scored_to_wire(token: TokenId, logprobs: &TokenLogprobs) -> v1::ScoredToken {
    let top = token_values_to_wire(&logprobs.top);
    v1::ScoredToken { token: token.0, logprob: logprobs.logprob, top }
}

pub(super) fn scored_from_wire(
    message: v1::ScoredToken,
) -> Result<(TokenId, TokenLogprobs), WireError> {
    bounded(message.top.len(), usize::from(LOGPROBS_MAX), "scored.top")?;
    let top = message.top.into_iter().map(|entry| (TokenId(entry.token), entry.value)).collect();
    Ok((TokenId(message.token), TokenLogprobs { logprob: message.logprob, top }))
}
