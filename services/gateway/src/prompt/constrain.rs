//! From the shape of an answer to the constraint that a worker keeps it to.

use deepseek_recipe_core::special_tokens::SpecialToken;
use shared::Constraint;

use super::Prompter;
use crate::constraint::{
    AnswerFormat, Beginning, CallRules, CallableTool, InputLanguage, Markers, constrain,
};
use crate::error::ApiError;
use crate::output::OutputStart;
use crate::request::{Format, InputFormat, Shape};

impl Prompter {
    /// What a worker keeps the answer to; none when it is free.
    ///
    /// # Errors
    /// When format and tools do not go together, or the grammar becomes too large.
    pub(super) fn constraint(
        &self,
        shape: &Shape,
        start: OutputStart,
    ) -> Result<Option<Constraint>, ApiError> {
        let format = match &shape.format {
            Format::Free => AnswerFormat::Free,
            Format::JsonObject => AnswerFormat::JsonObject,
            Format::JsonSchema(schema) => AnswerFormat::JsonSchema(schema),
            Format::Regex(text) => AnswerFormat::Regex(text),
            Format::Ebnf(text) => AnswerFormat::Ebnf(text),
        };
        let calls = shape.calls.as_ref().map(|rules| CallRules {
            tools: rules
                .tools
                .iter()
                .map(|tool| CallableTool {
                    name: &tool.name,
                    parameters: &tool.parameters,
                    strict: tool.strict,
                    input: tool.input.as_ref().map(|format| match format {
                        InputFormat::Lark(text) => InputLanguage::Lark(text),
                        InputFormat::Regex(text) => InputLanguage::Regex(text),
                    }),
                })
                .collect(),
            required: rules.required,
            single: rules.single,
            restricted: rules.restricted,
        });
        let beginning = match start {
            OutputStart::Reasoning | OutputStart::ReasoningContinued => Beginning::Reasoning,
            OutputStart::Content | OutputStart::ContentContinued => Beginning::Answer,
            OutputStart::Calls => Beginning::Calls,
        };
        let token = |token: SpecialToken| {
            let id = self.vocabulary.control(token.default_str());
            id.expect("checked when the tokenizer was read")
        };
        let markers = Markers {
            reasoning_end: token(SpecialToken::ThinkingEnd),
            sentinel: token(SpecialToken::Dsml),
        };
        constrain(format, calls.as_ref(), beginning, markers).map_err(|error| {
            let refused = ApiError::invalid(None, error.to_string());
            ApiError { code: "grammar_refused", ..refused }
        })
    }
}
