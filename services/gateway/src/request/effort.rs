//! How hard the model is to think: a word, or a number.

use deepseek_recipe::openai::chat_completion::request::RequestReasoningEffort;
use serde_json::Value;

use super::fields::wrong;
use crate::error::ApiError;

/// An effort given as a number, 1 to 100, as the prompt states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EffortNumber(pub(crate) u8);

/// What the crate calls an effort, and the number that the prompt states instead of the crate's.
pub(super) type Effort = (RequestReasoningEffort, Option<EffortNumber>);

/// The effort from which on an answer may be as long as at the highest one.
const LONGEST_FROM: u8 = 100;

/// Reads an effort: one of the crate's words, `off`, or an integer.
///
/// # Errors
/// Anything else.
pub(super) fn read(value: Option<Value>, name: &str) -> Result<Option<Effort>, ApiError> {
    let wanted =
        "one of none, minimal, low, medium, high, xhigh, ultra, max, or an integer, 1 to 100";
    let Some(value) = value else { return Ok(None) };
    if let Some(number) = value.as_u64() {
        let number = u8::try_from(number).ok().filter(|number| (1..=100).contains(number));
        let number = number.ok_or_else(|| wrong(name, wanted))?;
        let word = if number < LONGEST_FROM {
            RequestReasoningEffort::High
        } else {
            RequestReasoningEffort::Max
        };
        return Ok(Some((word, Some(EffortNumber(number)))));
    }
    if value == "off" {
        return Ok(Some((RequestReasoningEffort::None, None)));
    }
    let word = serde_json::from_value(value).map_err(|_| wrong(name, wanted))?;
    Ok(Some((word, None)))
}
