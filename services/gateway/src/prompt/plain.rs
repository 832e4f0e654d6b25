//! Prompts that are no conversations: legacy completions, holes to be filled, and text to be tokenised.

use std::ops::Range;
use std::sync::Arc;

use deepseek_recipe_core::special_tokens::SpecialToken;
use serde_json::{Map, Value};
use shared::TokenId;

use super::{Draft, Prompter};
use crate::error::ApiError;
use crate::output::{OutputStart, Reading};
use crate::request::{self, ApiRequest, Form, Memory, Plain, PlainPrompt, Protocol, Source};

/// The control tokens around a hole, in the order of the prompt. Source: the tokenizer's spellings; DeepSeek's FIM format.
const HOLE: [&str; 3] = ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"];

/// Tokenising remembers nothing.
struct Forgetful;

impl Memory for Forgetful {
    fn items(&self, _id: &str) -> Option<Vec<Value>> {
        None
    }

    fn item(&self, _id: &str) -> Option<Value> {
        None
    }

    fn recalled_bytes_max(&self) -> usize {
        0
    }
}

impl Prompter {
    /// The prompts of a legacy completion.
    pub(super) fn plain(
        &self,
        plain: &Plain,
        request: &ApiRequest,
    ) -> Result<Vec<Draft>, ApiError> {
        let echo = matches!(request.form, Form::Completions { echo: true, .. });
        let stops: Arc<[String]> = plain.stops.as_slice().into();
        let mut drafts = Vec::with_capacity(plain.prompts.len());
        for prompt in &plain.prompts {
            let ids = match (prompt, &plain.suffix) {
                (PlainPrompt::Tokens(ids), _) => self.known(ids)?,
                (PlainPrompt::Text(text), None) => self.text(text)?,
                (PlainPrompt::Text(text), Some(suffix)) => self.hole(text, suffix)?,
            };
            let tokens = self.fitting(ids.len())?;
            let asked = plain.output_tokens_max;
            if self.model.context_tokens - tokens < asked {
                return Err(self.too_long(tokens, asked));
            }
            let shown = match (echo, prompt) {
                (false, _) => None,
                (true, PlainPrompt::Text(text)) => Some(Arc::from(text.as_str())),
                (true, PlainPrompt::Tokens(ids)) => Some(Arc::from(self.spelled(ids))),
            };
            drafts.push(Draft {
                prompt: ids,
                output_tokens_max: asked,
                temperature: plain.temperature.unwrap_or(1.0),
                top_p: plain.top_p.unwrap_or(1.0),
                reading: Reading {
                    start: OutputStart::ContentContinued,
                    calls: false,
                    stops: Arc::clone(&stops),
                },
                echo: shown,
            });
        }
        Ok(drafts)
    }

    /// Text behind the token that begins every prompt. Typed spellings of control tokens stay text.
    fn text(&self, text: &str) -> Result<Arc<[TokenId]>, ApiError> {
        let bos = SpecialToken::Bos.default_str();
        self.tokenise(&format!("{bos}{text}"), std::slice::from_ref(&(0..bos.len())))
    }

    fn hole(&self, prefix: &str, suffix: &str) -> Result<Arc<[TokenId]>, ApiError> {
        if HOLE.iter().any(|token| self.vocabulary.control(token).is_none()) {
            let message = "this model's tokenizer has no tokens for a hole; leave suffix out";
            return Err(ApiError::unsupported("suffix", message));
        }
        let bos = SpecialToken::Bos.default_str();
        let [begin, hole, end] = HOLE;
        let mut text = String::new();
        let mut control: Vec<Range<usize>> = Vec::new();
        for (part, is_control) in [
            (bos, true),
            (begin, true),
            (prefix, false),
            (hole, true),
            (suffix, false),
            (end, true),
        ] {
            let start = text.len();
            text.push_str(part);
            if is_control {
                control.push(start..text.len());
            }
        }
        self.tokenise(&text, &control)
    }

    fn known(&self, ids: &[TokenId]) -> Result<Arc<[TokenId]>, ApiError> {
        match ids.iter().find(|id| self.vocabulary.bytes(**id).is_none()) {
            None => Ok(ids.into()),
            Some(TokenId(id)) => {
                let message = format!("the token {id} is not in this model's vocabulary");
                Err(ApiError::invalid(Some("prompt".into()), message))
            }
        }
    }

    /// The text of tokens, control tokens by their spelling; bytes that are no text become U+FFFD.
    fn spelled(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> =
            ids.iter().filter_map(|id| self.vocabulary.bytes(*id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The tokens of a prompt, or of a conversation as it would be rendered. A body without a model means the first one.
    ///
    /// # Errors
    /// What the client has to change, or an internal error.
    pub(crate) fn tokens_of(&self, body: &[u8]) -> Result<Arc<[TokenId]>, ApiError> {
        let mut fields = self.fields(body)?;
        if fields.get("return_token_strs") == Some(&Value::Bool(true)) {
            let message = "return_token_strs is not supported by this server; detokenize the ids";
            return Err(ApiError::unsupported("return_token_strs", message));
        }
        if fields.contains_key("messages") {
            let body = Value::Object(fields).to_string().into_bytes();
            let mut request = request::parse(Protocol::Chat, &body, &self.model.names, &Forgetful)?;
            let nothing = Source::Plain(Plain::default());
            let Source::Chat(chat) = std::mem::replace(&mut request.source, nothing) else {
                return Err(ApiError::broken());
            };
            let converted = self.convert(*chat)?;
            let (converted, _) = self.directed(converted, &mut request);
            return self.encode(&converted.conversation, request.effort);
        }
        let special = fields.get("add_special_tokens").and_then(Value::as_bool).unwrap_or(true);
        match fields.get_mut("prompt").map(Value::take) {
            Some(Value::String(text)) if special => self.text(&text),
            Some(Value::String(text)) => self.tokenise(&text, &[]),
            _ => {
                let message = "prompt must be a string; or send messages";
                Err(ApiError::invalid(Some("prompt".into()), message))
            }
        }
    }

    /// The text of the tokens in a body.
    ///
    /// # Errors
    /// What the client has to change.
    pub(crate) fn text_of(&self, body: &[u8]) -> Result<String, ApiError> {
        let mut fields = self.fields(body)?;
        let bad = || {
            let message = "tokens must be a list of token ids";
            ApiError::invalid(Some("tokens".into()), message)
        };
        let Some(Value::Array(list)) = fields.get_mut("tokens").map(Value::take) else {
            return Err(bad());
        };
        let id = |value: Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId);
        let ids: Option<Vec<TokenId>> = list.into_iter().map(id).collect();
        let ids = self.known(&ids.ok_or_else(bad)?)?;
        Ok(self.spelled(&ids))
    }

    fn fields(&self, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
        let Ok(Value::Object(mut fields)) = serde_json::from_slice(body) else {
            return Err(ApiError::body_unreadable(
                "the body is not a JSON object; send one object",
            ));
        };
        let first = Value::from(self.model.names[0].as_str());
        let model = fields.entry("model").or_insert(Value::Null);
        if model.is_null() {
            *model = first;
        }
        let named = model.as_str().unwrap_or_default();
        if !self.model.names.iter().any(|name| name == named) {
            return Err(ApiError::model_not_found(named, &self.model.names));
        }
        Ok(fields)
    }
}
