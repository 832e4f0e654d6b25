//! How tokens are drawn beyond temperature and top_p, and what is told about them.

use serde_json::{Map, Value};
use shared::TokenId;

use super::fields::{Fields, OUTPUT_TOKENS_MAX, unsupported, wrong};
use crate::error::ApiError;

/// The most alternatives per token. Source: OpenAI's `top_logprobs`.
const LOGPROBS_MAX: u64 = 20;
/// The most tokens with a bias: as many as a worker takes.
const LOGIT_BIAS_MAX: usize = 1_024;
/// The most tokens that end an answer: as many as stop strings.
const STOP_IDS_MAX: usize = 16;
/// The most answers to one prompt. Source: OpenAI's `n`; the configuration may allow fewer.
const ANSWERS_MAX: u64 = 128;

/// Sampling parameters that the protocols name alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draws {
    pub(crate) seed: Option<u64>,
    /// 0 keeps all.
    pub(crate) top_k: u32,
    pub(crate) min_p: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
    /// Ascending by token.
    pub(crate) logit_bias: Vec<(TokenId, f32)>,
    /// How many alternatives are told with each token's log probability; none: nothing is told.
    pub(crate) logprobs: Option<u8>,
    /// The answer goes on behind the token that would end it.
    pub(crate) ignore_end: bool,
    /// Tokens that end an answer besides its own end. They are shown like any other.
    pub(crate) stop_ids: Vec<TokenId>,
    /// Whether the ids of prompt and answer are told.
    pub(crate) tell_ids: bool,
}

impl Draws {
    /// All but the log probabilities, whose members differ by protocol.
    ///
    /// # Errors
    /// The first member that is malformed or out of range.
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let penalty = |fields: &mut Fields, name| {
            let penalty = fields.read_number(name, |p| (-2.0..=2.0).contains(&p), "-2 to 2")?;
            Ok::<_, ApiError>(penalty.unwrap_or(0.0))
        };
        Ok(Self {
            seed: fields.read_integer("seed", 0, i64::MAX.unsigned_abs())?,
            top_k: read_top_k(fields)?,
            min_p: fields
                .read_number("min_p", |p| (0.0..=1.0).contains(&p), "0 to 1")?
                .unwrap_or(0.0),
            frequency_penalty: penalty(fields, "frequency_penalty")?,
            presence_penalty: penalty(fields, "presence_penalty")?,
            logit_bias: read_logit_bias(fields)?,
            logprobs: None,
            ignore_end: refuse_others(fields)?,
            stop_ids: read_stop_ids(fields)?,
            tell_ids: false,
        })
    }
}

/// Refuses what other servers draw by and this one does not; whether the end of the answer is ignored, which makes a least
/// length hold by itself.
fn refuse_others(fields: &mut Fields) -> Result<bool, ApiError> {
    let ignore_end = fields.read_flag("ignore_eos")?.unwrap_or(false);
    let min = fields.read_integer("min_tokens", 0, OUTPUT_TOKENS_MAX)?.unwrap_or(0);
    if 0 < min && !ignore_end {
        return Err(unsupported("min_tokens", "set ignore_eos, or leave min_tokens out"));
    }
    for (name, neutral) in [("repetition_penalty", 1.0), ("length_penalty", 1.0)] {
        if fields.take(name).is_some_and(|value| value.as_f64() != Some(neutral)) {
            return Err(unsupported(name, "leave it out, or set it to 1"));
        }
    }
    if fields.read_flag("skip_special_tokens")? == Some(false) {
        let advice = "control tokens are never shown; return_token_ids tells them";
        return Err(unsupported("skip_special_tokens", advice));
    }
    fields.refuse(&[
        "allowed_token_ids",
        "bad_words",
        "include_stop_str_in_output",
        "logprob_token_ids",
        "logits_processors",
        "no_stop_trim",
        "prompt_logprobs",
        "return_tokens_as_token_ids",
        "stop_regex",
        "truncate_prompt_tokens",
        "use_beam_search",
    ])?;
    Ok(ignore_end)
}

fn read_stop_ids(fields: &mut Fields) -> Result<Vec<TokenId>, ApiError> {
    let wanted = "a list of at most 16 token ids";
    let ids: Vec<u32> = fields.read("stop_token_ids", wanted)?.unwrap_or_default();
    if STOP_IDS_MAX < ids.len() {
        return Err(wrong("stop_token_ids", wanted));
    }
    Ok(ids.into_iter().map(TokenId).collect())
}

/// vLLM's -1 and its 0 both keep all.
fn read_top_k(fields: &mut Fields) -> Result<u32, ApiError> {
    let wanted = "an integer, 0 (all) or above";
    match fields.read::<i64>("top_k", wanted)? {
        None | Some(-1) => Ok(0),
        Some(top_k) => u32::try_from(top_k).map_err(|_| wrong("top_k", wanted)),
    }
}

fn read_logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let wanted = "an object of at most 1024 token ids with biases, -100 to 100";
    let map: Map<String, Value> = fields.read("logit_bias", wanted)?.unwrap_or_default();
    if LOGIT_BIAS_MAX < map.len() {
        return Err(wrong("logit_bias", wanted));
    }
    let mut biases = Vec::with_capacity(map.len());
    for (name, bias) in map {
        let token: Option<u32> = name.parse().ok();
        let bias: Option<f32> = serde_json::from_value(bias).ok();
        let bias = bias.filter(|bias| (-100.0..=100.0).contains(bias));
        let (Some(token), Some(bias)) = (token, bias) else {
            return Err(wrong("logit_bias", &format!("{wanted}; look at {name:?}")));
        };
        biases.push((TokenId(token), bias));
    }
    biases.sort_unstable_by_key(|(token, _)| token.0);
    // "5" and "05" are one token.
    if biases.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong("logit_bias", wanted));
    }
    Ok(biases)
}

/// `logprobs` and `top_logprobs` of chat completions.
pub(super) fn read_logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    let asked = fields.read_flag("logprobs")?.unwrap_or(false);
    let top = read_top_logprobs(fields)?;
    if top.is_some_and(|top| 0 < top) && !asked {
        let message = "top_logprobs needs logprobs to be true; set it, or leave top_logprobs out";
        return Err(ApiError::invalid(Some("top_logprobs".into()), message));
    }
    Ok(asked.then_some(top.unwrap_or(0)))
}

pub(super) fn read_top_logprobs(fields: &mut Fields) -> Result<Option<u8>, ApiError> {
    let top = fields.read_integer("top_logprobs", 0, LOGPROBS_MAX)?;
    Ok(top.map(|top| u8::try_from(top).expect("checked against the bound")))
}

/// Whether ids are told, as clients of vLLM ask for them in chat and legacy completions.
pub(super) fn read_tell_ids(fields: &mut Fields) -> Result<bool, ApiError> {
    Ok(fields.read_flag("return_token_ids")?.unwrap_or(false))
}

/// `n`, the number of answers.
pub(super) fn read_answers(fields: &mut Fields) -> Result<u32, ApiError> {
    let answers = fields.read_integer("n", 1, ANSWERS_MAX)?.unwrap_or(1);
    Ok(u32::try_from(answers).expect("checked against the bound"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use shared::TokenId;

    use super::{Draws, Fields};

    fn read(body: &Value) -> Result<Draws, String> {
        let mut fields = Fields::of(body.to_string().as_bytes()).unwrap();
        Draws::read(&mut fields).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn what_other_servers_draw_by_is_neutral_or_refused_by_name() {
        for body in [
            json!({"repetition_penalty": 1.0, "length_penalty": 1, "use_beam_search": false}),
            json!({"min_tokens": 0, "skip_special_tokens": true, "prompt_logprobs": null}),
            json!({"min_tokens": 5, "ignore_eos": true, "bad_words": [], "stop_token_ids": []}),
        ] {
            assert!(read(&body).is_ok(), "{body}");
        }
        for (name, value) in [
            ("repetition_penalty", json!(1.1)),
            ("length_penalty", json!("x")),
            ("min_tokens", json!(1)),
            ("skip_special_tokens", json!(false)),
            ("bad_words", json!(["x"])),
            ("prompt_logprobs", json!(0)),
            ("use_beam_search", json!(true)),
            ("stop_token_ids", json!([-1])),
            ("stop_token_ids", json!(vec![0; 17])),
        ] {
            assert_eq!(read(&json!({name: value})).unwrap_err(), name, "{value}");
        }
    }

    #[test]
    fn stop_tokens_are_read() {
        let draws = read(&json!({"stop_token_ids": [7, 5]})).unwrap();
        assert_eq!(draws.stop_ids, [TokenId(7), TokenId(5)]);
    }
}
