//! From a checked request to what a worker needs: prompt ids, block names, sampling, and how to read the answer.
//!
//! Conversion, rendering and tokenisation are those of the `deepseek-recipe` crates. Pure computation, to be run beside
//! the async threads.

use std::sync::Arc;

use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::request::{
    ConversationRequest, ConversionError, ConversionOptions, ModelVersion, ProtocolRequest,
};
use deepseek_recipe::stream::ThinkingInitialStage;
use deepseek_recipe_core::conversation::Conversation;
use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};
use shared::{
    BlockName, Lineage, Priority, RequestId, Root, RootInputs, Sampling, SessionKey, TokenId,
    TraceContext, block_names,
};

use crate::config::{GatewayConfig, ServedModel};
use crate::error::ApiError;
use crate::output::OutputStart;
use crate::request;
use crate::token_cache::{CachedEncoder, TokenCacheStats};
use crate::vocabulary::{Vocabulary, VocabularyError, read_tokenizer};

/// A request ready to be placed.
pub(crate) struct Prepared {
    pub(crate) id: RequestId,
    pub(crate) trace: TraceContext,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
    pub(crate) model: String,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) prompt_tokens: u32,
    pub(crate) names: Arc<[BlockName]>,
    pub(crate) root: Root,
    pub(crate) lineage: Lineage,
    pub(crate) sampling: Sampling,
    pub(crate) output_tokens_max: u32,
    pub(crate) thinking: bool,
    pub(crate) start: OutputStart,
    pub(crate) stops: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

/// What a request's headers say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) trace: TraceContext,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
}

/// Prepares requests for one model.
pub(crate) struct Prompter {
    model: ServedModel,
    default_lineage: Lineage,
    conversion: ConversionOptions,
    encoding: DeepseekV41Encoding,
    encoder: Arc<CachedEncoder>,
    vocabulary: Arc<Vocabulary>,
}

impl Prompter {
    /// Reads the tokenizer; blocks on the file.
    ///
    /// # Errors
    /// When the tokenizer cannot be served.
    pub(crate) fn new(config: &GatewayConfig, model: ServedModel) -> Result<Self, VocabularyError> {
        let (tokenizer, vocabulary) = read_tokenizer(&model.tokenizer)?;
        let vocabulary = Arc::new(vocabulary);
        let encoder = Arc::new(CachedEncoder::new(
            PromptTokenizer::new(&tokenizer),
            Arc::clone(&vocabulary),
            config.token_cache_bytes_max,
        ));
        let names = model.names.iter().cloned();
        let conversion = ConversionOptions::new()
            .with_model_versions_by_name(names.map(|name| (name, ModelVersion::DeepseekV41Flash)));
        let encoding = DeepseekV41Encoding::new().with_tokenizer(Arc::clone(&encoder));
        let default_lineage = config.lineage.into();
        Ok(Self { model, default_lineage, conversion, encoding, encoder, vocabulary })
    }

    pub(crate) fn model(&self) -> &ServedModel {
        &self.model
    }

    pub(crate) fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    pub(crate) fn cache_stats(&self) -> TokenCacheStats {
        self.encoder.stats()
    }

    /// Reads a body and prepares it. Computes for as long as the prompt is long.
    ///
    /// # Errors
    /// What the client has to change, or an internal error.
    pub(crate) fn prepare(
        &self,
        id: RequestId,
        asked: Asked,
        body: &[u8],
    ) -> Result<Prepared, ApiError> {
        let chat = request::parse(body, &self.model.names)?;
        let model = chat.recipe.model.clone();
        let converted = self.convert(chat.recipe, id)?;
        let prompt = self.encode(&converted.conversation).map_err(|detail| {
            tracing::error!(request = %id, detail, "cannot tokenise a prompt");
            ApiError::internal(id)
        })?;
        let (prompt_tokens, output_tokens_max) = self.fit(prompt.len(), &converted)?;
        let lineage = chat.lineage.map_or(self.default_lineage, Lineage::from);
        let root = self.root(lineage);
        let options = &converted.inference_options;
        Ok(Prepared {
            id,
            trace: asked.trace,
            priority: asked.priority,
            session: asked.session,
            model,
            prompt_tokens,
            names: block_names(&root, &prompt).into(),
            prompt,
            root,
            lineage,
            sampling: Sampling {
                temperature: options.temperature.unwrap_or(1.0),
                top_p: options.top_p.unwrap_or(1.0),
                seed: options.seed.unwrap_or_else(|| seed_of(id)),
            },
            output_tokens_max,
            thinking: converted.conversation.thinking_mode,
            start: output_start(converted.parsing_options.thinking_initial_stage),
            stops: converted.parsing_options.stop_sequences,
            stream: chat.stream,
            include_usage: chat.include_usage,
        })
    }

    fn convert(
        &self,
        request: ChatCompletionRequest,
        id: RequestId,
    ) -> Result<ConversationRequest, ApiError> {
        request.convert(self.conversion.clone()).map_err(|error| match error {
            ConversionError::BadRequest { detail } => ApiError::invalid(None, one_line(&detail)),
            ConversionError::Internal { detail } => {
                tracing::error!(request = %id, detail, "cannot convert a request");
                ApiError::internal(id)
            }
        })
    }

    fn encode(&self, conversation: &Conversation) -> Result<Arc<[TokenId]>, String> {
        let ids = self.encoding.encode(conversation).map_err(|error| error.to_string())?;
        Ok(ids.into_iter().map(TokenId).collect())
    }

    /// The length of the prompt, and how long its answer may become in what the context leaves.
    fn fit(&self, prompt: usize, request: &ConversationRequest) -> Result<(u32, u32), ApiError> {
        let context = self.model.context_tokens;
        let Some(tokens) = u32::try_from(prompt).ok().filter(|tokens| *tokens < context) else {
            return Err(ApiError::context_length(format!(
                "the prompt has {prompt} tokens, this model's context holds {context} for prompt and answer; shorten the messages"
            )));
        };
        let output_max = request.resolve_max_tokens(tokens, context).map_err(|_| {
            let asked = request.inference_options.max_tokens.unwrap_or(0);
            ApiError::context_length(format!(
                "{tokens} tokens of prompt and {asked} of answer do not fit this model's context of {context}; shorten the messages or max_tokens"
            ))
        })?;
        Ok((tokens, output_max))
    }

    fn root(&self, lineage: Lineage) -> Root {
        Root::derive(RootInputs {
            cluster_secret: &self.model.cluster_secret,
            tenant: &self.model.tenant,
            salt: "",
            model_id: &self.model.model_id,
            layout: &self.model.layout,
            numerics: &self.model.numerics,
            lineage,
        })
    }
}

/// The seed of a request that names none: the low 63 bits of its id, which are random. 63, so that a client can send the
/// same number as `seed`.
fn seed_of(id: RequestId) -> u64 {
    let low = id.0 & u128::from(i64::MAX.unsigned_abs());
    u64::try_from(low).expect("63 bits")
}

fn output_start(stage: Option<ThinkingInitialStage>) -> OutputStart {
    match stage {
        None => OutputStart::Content,
        Some(ThinkingInitialStage::ReasoningStart) => OutputStart::Reasoning,
        Some(ThinkingInitialStage::ReasoningContinuation) => OutputStart::ReasoningContinued,
        Some(ThinkingInitialStage::ContentContinuation) => OutputStart::ContentContinued,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
