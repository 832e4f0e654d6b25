//! From what a request says about its answer to the [`Constraint`] that the decode worker keeps.
//!
//! Nothing is compiled here: the worker refuses what cannot be served, before any other work, and the gateway tells the
//! client. What is decided here is where the grammar begins (behind `</think>` when the model thinks first), and what the
//! grammar of tool calls is (`constraint/tools.rs`). Calls begin behind the reasoning as well: before its end their sentinel is barred.
//!
//! A format and tools together: the answer is in the format, or it is a block of calls and nothing else. Tools alone, none
//! of them strict, free to be called, as many at a time as the model likes: no constraint at all.

mod lark;
mod lark_input;
mod server_text;
mod tools;

use serde_json::{Value, json};
use shared::{Constraint, GRAMMAR_BYTES_MAX, Grammar, TokenId};

/// The format of an answer's text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AnswerFormat<'a> {
    /// Any text.
    Free,
    /// Any JSON object.
    JsonObject,
    /// JSON of this schema.
    JsonSchema(&'a Value),
    /// Text that this regular expression matches as a whole.
    Regex(&'a str),
    /// Text of the rule `root`.
    Ebnf(&'a str),
}

/// A tool as far as the grammar of its calls is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallableTool<'a> {
    /// Its name.
    pub name: &'a str,
    /// The schema of its arguments.
    pub parameters: &'a Value,
    /// Whether arguments are held to the schema; otherwise to the names in it alone.
    pub strict: bool,
    /// Of a tool that takes text: the language of its one argument, `input`.
    pub input: Option<InputLanguage<'a>>,
}

/// The language of what a tool takes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputLanguage<'a> {
    /// The regular expression, in the dialect of Rust's `regex` crate, that all of it matches. Not empty.
    Regex(&'a str),
    /// A grammar in llguidance's Lark, without token literals, references and options. Kept where its texts can be told from the
    /// end of a call; any text otherwise.
    Lark(&'a str),
}

/// Which tools can be called, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRules<'a> {
    /// Those that can be called. At least one.
    pub tools: Vec<CallableTool<'a>>,
    /// At least one call has to be made.
    pub required: bool,
    /// At most one call may be made.
    pub single: bool,
    /// The model is told of tools that cannot be called.
    pub restricted: bool,
}

/// Where the prompt leaves off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Inside of reasoning: the answer begins behind `</think>`.
    Reasoning,
    /// At or in the answer.
    Answer,
    /// Behind the line that opens a block of calls.
    Calls,
}

/// The control tokens that a grammar speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Markers {
    /// `</think>`.
    pub reasoning_end: TokenId,
    /// The sentinel of tool markup.
    pub sentinel: TokenId,
}

/// Why a request's answer cannot be constrained as it asks, in one line for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// The grammar is larger than any that is taken. How large, nobody found out: it is left when it becomes too large.
    #[error(
        "the grammar of the answer has more than {bytes_max} bytes, which are the most that are taken; send smaller schemas or fewer tools"
    )]
    TooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// The schema of a strict tool says what its calls would not be held to.
    #[error(
        "the tool {tool:?} is strict, and its schema has {keyword} beside its properties, which is not supported; say it within a property, or set strict to false"
    )]
    Root {
        /// The tool's name, cut where it becomes too long.
        tool: String,
        /// What is not supported.
        keyword: &'static str,
    },
    /// A format that cannot stand beside tools.
    #[error(
        "{format} cannot be combined with tools that may be called; use json_schema, or set tool_choice to none"
    )]
    WithTools {
        /// The format.
        format: &'static str,
    },
    /// The prompt opened a block of calls, and no tool may be called.
    #[error("the prompt ends with a call and no tool may be called")]
    NoTools,
}

/// The constraint of an answer; none when it is free.
///
/// # Errors
/// When format and tools do not go together, a strict tool asks for what its calls would not be held to, or the grammar becomes too
/// large.
pub fn constrain(
    format: AnswerFormat<'_>,
    calls: Option<&CallRules<'_>>,
    beginning: Beginning,
    markers: Markers,
) -> Result<Option<Constraint>, ConstraintError> {
    let grammar = match calls {
        Some(rules) => of_calls(format, rules, beginning, markers)?,
        None if beginning == Beginning::Calls => return Err(ConstraintError::NoTools),
        None => of_format(format),
    };
    let Some(grammar) = grammar else { return Ok(None) };
    if GRAMMAR_BYTES_MAX < grammar.text().len() {
        return Err(ConstraintError::TooLarge { bytes_max: GRAMMAR_BYTES_MAX });
    }
    let trigger = match beginning {
        Beginning::Reasoning => vec![markers.reasoning_end],
        Beginning::Answer | Beginning::Calls => Vec::new(),
    };
    // A block of calls within the reasoning ends it for whoever reads the answer (`output`): the calls would reach the client
    // outside of the grammar. With nothing to call, the sentinel begins nothing.
    let barred = calls.filter(|_| !trigger.is_empty()).map(|_| markers.sentinel);
    Ok(Some(Constraint { grammar, trigger, bound: None, barred }))
}

fn of_format(format: AnswerFormat<'_>) -> Option<Grammar> {
    Some(match format {
        AnswerFormat::Free => return None,
        AnswerFormat::JsonObject => Grammar::Json(json!({"type": "object"}).to_string()),
        AnswerFormat::JsonSchema(schema) => Grammar::Json(schema.to_string()),
        AnswerFormat::Regex(text) => Grammar::Regex(text.to_owned()),
        AnswerFormat::Ebnf(text) => Grammar::Ebnf(text.to_owned()),
    })
}

fn of_calls(
    format: AnswerFormat<'_>,
    rules: &CallRules<'_>,
    beginning: Beginning,
    markers: Markers,
) -> Result<Option<Grammar>, ConstraintError> {
    let instead = if rules.required || beginning == Beginning::Calls {
        // A call is made, whatever the format of text would be.
        tools::Instead::Nothing
    } else {
        let held = rules.single || rules.restricted || rules.tools.iter().any(|tool| tool.strict);
        match format {
            AnswerFormat::Free if !held => return Ok(None),
            AnswerFormat::Free => tools::Instead::Text,
            AnswerFormat::JsonObject => tools::Instead::Json(json!({"type": "object"})),
            AnswerFormat::JsonSchema(schema) => tools::Instead::Json(schema.clone()),
            AnswerFormat::Regex(_) => return Err(ConstraintError::WithTools { format: "a regex" }),
            AnswerFormat::Ebnf(_) => return Err(ConstraintError::WithTools { format: "an EBNF" }),
        }
    };
    let opened = beginning == Beginning::Calls;
    tools::grammar(rules, &instead, opened, markers.sentinel)
        .map(|text| Some(Grammar::Server(text)))
}

#[cfg(test)]
mod tests;
