//! Any body at any path that takes one.
//!
//! The first byte of an input is the path, the rest the body. Where a body says [`LAST`] the id of the response that was made last stands.

use std::path::Path;

use axum::http::Method;
use parking_lot::Mutex;

use super::claims::{Fault, Told, hold};
use super::spoken::{Ending, Heard, Speech, Spoken};
use super::words::Words;

/// What takes a body.
pub(crate) const PATHS: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions",
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/v1/tokenize",
    "/v1/detokenize",
    "/debug/prompt?tokens=true",
];
/// Stands for the id of the last response.
const LAST: &str = "resp_LAST";
/// How an object begins that is kept.
const KEPT: &str = "{\"id\":\"resp_";

/// What is said to every body: reasoning, text, and a call with both kinds of parameters.
const ANSWER: &str = "Hm.</think>So STO.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\
    <｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n\
    <｜DSML｜ parameter name=\"b\" string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>";

/// A gateway that takes bodies.
pub(crate) struct Bodies {
    spoken: Spoken,
    last: Mutex<String>,
}

impl Bodies {
    /// # Panics
    /// When the tokenizer cannot be read.
    pub(crate) fn new(tokenizer: &Path) -> Self {
        let spoken = Spoken::new(tokenizer);
        let tokens = Words::new(tokenizer).tokens(ANSWER.as_bytes());
        spoken.say(Speech { tokens, losses: Vec::new(), ending: Ending::Stop });
        Self { spoken, last: Mutex::new(LAST.into()) }
    }

    /// Sends the body that an input holds; what was told, if something was.
    ///
    /// # Errors
    /// What does not hold of the reply.
    pub(crate) fn send(&self, input: &[u8]) -> Result<Option<Told>, String> {
        let Some((first, body)) = input.split_first() else { return Ok(None) };
        let path = PATHS[usize::from(*first) % PATHS.len()];
        let body = match std::str::from_utf8(body) {
            Ok(text) if text.contains(LAST) => {
                text.replace(LAST, self.last.lock().as_str()).into_bytes()
            }
            _ => body.to_vec(),
        };
        let heard = self.spoken.ask(Method::POST, path, body)?;
        self.keep(&heard)?;
        hold(path, &heard, Fault::Client)
    }

    /// Remembers a response that can be referred to, and looks at it.
    fn keep(&self, heard: &Heard) -> Result<(), String> {
        let Some(rest) = heard.text.strip_prefix(KEPT) else { return Ok(()) };
        let id = format!("resp_{}", rest.split('"').next().unwrap_or_default());
        for path in [format!("/v1/responses/{id}"), format!("/v1/responses/{id}/input_items")] {
            let looked = self.spoken.ask(Method::GET, &path, Vec::new())?;
            hold(&path, &looked, Fault::Client)?;
        }
        *self.last.lock() = id;
        Ok(())
    }
}
