//! Legacy completions: text or tokens as they are, and holes to be filled.

use serde_json::Value;
use shared::TokenId;

use super::draws::{self, Draws};
use super::fields::{Fields, unsupported, wrong};
use super::shape::{self, Shape};
use super::{ApiRequest, Form, Plain, PlainPrompt, Source};
use crate::error::ApiError;

/// What an answer is bounded by when the client says nothing. Source: OpenAI's API.
const OUTPUT_TOKENS_DEFAULT: u32 = 16;
/// The most log probabilities: as many as a worker tells.
const LOGPROBS_MAX: u64 = 20;

/// # Errors
/// The first field that is malformed, out of range or not supported.
pub(super) fn read(mut fields: Fields, model: String) -> Result<ApiRequest, ApiError> {
    let isolation = fields.read_isolation(&["user_id"])?;
    let prompts = read_prompts(&mut fields)?;
    let suffix: Option<String> = fields.read("suffix", "a string")?;
    let suffix = suffix.filter(|suffix| !suffix.is_empty());
    if suffix.is_some() && prompts.iter().any(|prompt| matches!(prompt, PlainPrompt::Tokens(_))) {
        let message = "suffix needs a prompt that is text; send the tokens of both as one prompt";
        return Err(ApiError::invalid(Some("suffix".into()), message));
    }
    let stream = fields.read_flag("stream")?.unwrap_or(false);
    let include_usage = fields.read_include_usage(stream)?;
    let echo = fields.read_flag("echo")?.unwrap_or(false);
    let mut draws = Draws::read(&mut fields)?;
    draws.logprobs = read_logprobs(&mut fields, echo)?;
    draws.tell_ids = draws::read_tell_ids(&mut fields)?;
    let answers = draws::read_answers(&mut fields)?;
    let best_of = fields.read_integer("best_of", 1, 20)?;
    if best_of.is_some_and(|best_of| best_of != u64::from(answers)) {
        return Err(unsupported("best_of", "leave it out, ask for n answers and choose"));
    }
    let plain = Plain {
        prompts,
        suffix,
        output_tokens_max: fields.read_tokens_max("max_tokens")?.unwrap_or(OUTPUT_TOKENS_DEFAULT),
        temperature: fields.read_temperature()?,
        top_p: fields.read_top_p()?,
        stops: fields.read_stops("stop")?,
    };
    let described = fields.take("response_format").map(shape::read_response_format).transpose()?;
    let kept = shape::read_extensions(&mut fields)?;
    let format = shape::one_format(described.unwrap_or_default(), kept)?;
    Ok(ApiRequest {
        model,
        source: Source::Plain(plain),
        form: Form::Completions { include_usage, echo },
        stream,
        answers,
        draws,
        shape: Shape { format, calls: None },
        effort: None,
        lineage: fields.read_lineage()?,
        isolation,
    })
}

/// `true` and `false` are chat completions' form, which some clients send.
fn read_logprobs(fields: &mut Fields, echo: bool) -> Result<Option<u8>, ApiError> {
    let asked = match fields.peek("logprobs") {
        Some(Value::Bool(asked)) => {
            let asked = asked.then_some(0);
            fields.take("logprobs");
            asked
        }
        _ => fields.read_integer("logprobs", 0, LOGPROBS_MAX)?,
    };
    if echo && asked.is_some() {
        let advice = "this server has no log probabilities of prompts; leave echo or logprobs out";
        return Err(unsupported("logprobs", advice));
    }
    Ok(asked.map(|asked| u8::try_from(asked).expect("checked against the bound")))
}

fn read_prompts(fields: &mut Fields) -> Result<Vec<PlainPrompt>, ApiError> {
    let wanted = "a string, a list of token ids, or a list of either, not empty";
    let bad = || wrong("prompt", wanted);
    let list = match fields.take("prompt").ok_or_else(bad)? {
        Value::String(text) => return Ok(vec![PlainPrompt::Text(text)]),
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(bad()),
    };
    if list[0].is_number() {
        return Ok(vec![tokens(list).ok_or_else(bad)?]);
    }
    let prompts: Option<Vec<PlainPrompt>> = list
        .into_iter()
        .map(|prompt| match prompt {
            Value::String(text) => Some(PlainPrompt::Text(text)),
            Value::Array(ids) => tokens(ids),
            _ => None,
        })
        .collect();
    prompts.ok_or_else(bad)
}

fn tokens(list: Vec<Value>) -> Option<PlainPrompt> {
    let id = |value: Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
    let ids: Vec<TokenId> = list.into_iter().map(id).collect::<Option<_>>()?;
    (!ids.is_empty()).then_some(PlainPrompt::Tokens(ids))
}
