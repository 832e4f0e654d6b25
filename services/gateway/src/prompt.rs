//! From a checked request to what workers need: prompt ids, block names, sampling, and how to read the answers.
//!
//! Conversion, rendering and tokenisation are those of the `deepseek-recipe` crates. Pure computation, to be run beside
//! the async threads.

use std::ops::Range;
use std::sync::Arc;

use deepseek_recipe::request::{
    ConversationRequest, ConversionError, ConversionOptions, InferenceOptions, ModelVersion,
    ProtocolRequest,
};
use deepseek_recipe::stream::ThinkingInitialStage;
use deepseek_recipe_core::conversation::{Conversation, ResponseFormat};
use deepseek_recipe_core::messages::InputMessage;
use deepseek_recipe_core::tools::ToolChoice;
use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, RenderedPrompt, TokenizerEncoder};
use parking_lot::Mutex;
use shared::{
    BlockName, Constraint, Lineage, LogitBias, NameCache, Priority, RequestId, Root, RootInputs,
    Sampling, SessionKey, TenantId, TokenId, TraceContext, names_after, prefix_digests,
};

use crate::call::Call;
use crate::config::{GatewayConfig, ServedModel};
use crate::error::ApiError;
use crate::isolation::Isolation;
use crate::output::{OutputStart, Reading};
use crate::request::{
    self, ApiRequest, Draws, EffortNumber, Form, Format, Memory, Protocol, Source,
};
use crate::token_cache::{CachedEncoder, TokenCacheStats};
use crate::vocabulary::{Vocabulary, VocabularyError, read_tokenizer};

mod constrain;
mod plain;

/// A request ready to be placed: one run for each answer.
pub(crate) struct Plan {
    pub(crate) model: String,
    pub(crate) form: Form,
    pub(crate) stream: bool,
    pub(crate) thinking: bool,
    /// At least one; the answers to one prompt are neighbours.
    pub(crate) runs: Vec<Arc<Prepared>>,
}

/// One answer ready to be placed.
#[derive(Clone)]
pub(crate) struct Prepared {
    pub(crate) id: RequestId,
    pub(crate) call: Arc<Call>,
    pub(crate) trace: TraceContext,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
    pub(crate) prompt: Arc<[TokenId]>,
    pub(crate) prompt_tokens: u32,
    /// Which prompt of the request it answers.
    pub(crate) prompt_index: usize,
    pub(crate) names: Arc<[BlockName]>,
    pub(crate) root: Root,
    pub(crate) lineage: Lineage,
    pub(crate) sampling: Sampling,
    pub(crate) logit_bias: LogitBias,
    pub(crate) logprobs: Option<u8>,
    pub(crate) tell_ids: bool,
    pub(crate) constraint: Option<Arc<Constraint>>,
    pub(crate) stop_ids: Vec<TokenId>,
    pub(crate) output_tokens_max: u32,
    pub(crate) reading: Reading,
    /// What of the prompt is shown before the answer.
    pub(crate) echo: Option<Arc<str>>,
}

/// What a request's headers say.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) call: Arc<Call>,
    pub(crate) trace: TraceContext,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
}

/// A request as it came.
pub(crate) struct Incoming<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) asked: Asked,
    pub(crate) body: &'a [u8],
    pub(crate) memory: &'a dyn Memory,
    /// Gives a new id to each run.
    pub(crate) next_id: &'a dyn Fn() -> RequestId,
}

/// A prompt and how its answer is to be drawn and read, before names and ids.
struct Draft {
    prompt: Arc<[TokenId]>,
    output_tokens_max: u32,
    temperature: f32,
    top_p: f32,
    reading: Reading,
    echo: Option<Arc<str>>,
}

/// Prepares requests for one model.
pub(crate) struct Prompter {
    model: ServedModel,
    default_lineage: Lineage,
    answers_max: usize,
    conversion: ConversionOptions,
    encoding: DeepseekV41Encoding,
    encoder: Arc<CachedEncoder>,
    vocabulary: Arc<Vocabulary>,
    /// Names of earlier prompts.
    names: Mutex<NameCache>,
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
            &tokenizer,
            Arc::clone(&vocabulary),
            config.token_cache_bytes_max,
        ));
        let names = model.names.iter().cloned();
        let conversion = ConversionOptions::new()
            .with_model_versions_by_name(names.map(|name| (name, ModelVersion::DeepseekV41Flash)));
        let encoding = DeepseekV41Encoding::new().with_tokenizer(Arc::clone(&encoder));
        let default_lineage = config.lineage.into();
        let answers_max = config.answers_per_request_max;
        let names = Mutex::new(NameCache::new(NameCache::STANDARD_BYTES));
        Ok(Self {
            model,
            default_lineage,
            answers_max,
            conversion,
            encoding,
            encoder,
            vocabulary,
            names,
        })
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
    pub(crate) fn prepare(&self, incoming: &Incoming<'_>) -> Result<Plan, ApiError> {
        let Incoming { protocol, body, memory, .. } = incoming;
        let mut request = request::parse(*protocol, body, &self.model.names, *memory)?;
        let per_prompt = usize::try_from(request.answers).unwrap_or(usize::MAX);
        // Before anything is made for each of them.
        if self.answers_max < request.source.prompts().saturating_mul(per_prompt) {
            let message = format!(
                "the request asks for more than {} answers; ask for fewer at once",
                self.answers_max
            );
            return Err(ApiError::invalid(Some("n".into()), message));
        }
        let (drafts, thinking) = self.drafts(&mut request)?;
        incoming.asked.call.note_model(&request.model);
        let runs = self.runs(incoming, &request, drafts)?;
        let ApiRequest { model, form, stream, .. } = request;
        Ok(Plan { model, form, stream, thinking, runs })
    }

    /// The prompts of a request, and whether it is thought about.
    fn drafts(&self, request: &mut ApiRequest) -> Result<(Vec<Draft>, bool), ApiError> {
        let nothing = Source::Plain(request::Plain::default());
        let converted = match std::mem::replace(&mut request.source, nothing) {
            Source::Chat(chat) => self.convert(*chat)?,
            Source::Messages(messages) => self.convert(*messages)?,
            Source::Responses(responses) => self.convert(*responses)?,
            Source::Plain(plain) => return Ok((self.plain(&plain, request)?, false)),
        };
        let (converted, start) = self.directed(converted, request);
        let thinking = converted.conversation.thinking_mode;
        let prompt = self.encode(&converted.conversation, request.effort)?;
        let output_tokens_max = self.fit(prompt.len(), &converted)?;
        let reading = Reading {
            start,
            calls: request.shape.calls.is_some(),
            stops: converted.parsing_options.stop_sequences.into(),
        };
        let InferenceOptions { temperature, top_p, .. } = converted.inference_options;
        let (temperature, top_p) = (temperature.unwrap_or(1.0), top_p.unwrap_or(1.0));
        if let Form::Responses(echo) = &mut request.form {
            request::echo_drawn(&mut echo.fields, temperature, top_p);
        }
        let draft = Draft { prompt, output_tokens_max, temperature, top_p, reading, echo: None };
        Ok((vec![draft], thinking))
    }

    /// Does to a conversation what the crate was not told of: forced calls, formats of other protocols, answers begun by the
    /// client.
    fn directed(
        &self,
        mut converted: ConversationRequest,
        request: &mut ApiRequest,
    ) -> (ConversationRequest, OutputStart) {
        let conversation = &mut converted.conversation;
        let mut start = output_start(converted.parsing_options.thinking_initial_stage);
        match (&mut request.form, &request.shape.format) {
            (Form::Messages { .. }, Format::JsonSchema(schema)) => {
                conversation.response_format = ResponseFormat::JsonSchema(schema.clone());
            }
            (Form::Responses(echo), _) => {
                let namespaces = converted.response_options.namespace_tool_map.take();
                echo.namespaces = namespaces.unwrap_or_default();
            }
            _ => {}
        }
        if matches!(request.form, Form::Messages { .. })
            && !conversation.thinking_mode
            && conversation.tools.is_empty()
            && let Some(InputMessage::Assistant { prefix, tool_calls: None, .. }) =
                conversation.messages.last_mut()
        {
            *prefix = true;
            start = OutputStart::ContentContinued;
        }
        if let Some(rules) = request.shape.calls.as_ref().filter(|rules| rules.required) {
            if let [only] = rules.tools.as_slice() {
                // As the crate renders a named choice.
                conversation.tools.retain(|tool| tool.name == only.name);
            }
            if !conversation.thinking_mode {
                conversation.tool_choice = ToolChoice::Required;
                start = OutputStart::Calls;
            }
        }
        (converted, start)
    }

    fn runs(
        &self,
        incoming: &Incoming<'_>,
        request: &ApiRequest,
        drafts: Vec<Draft>,
    ) -> Result<Vec<Arc<Prepared>>, ApiError> {
        let asked = &incoming.asked;
        let lineage = request.lineage.map_or(self.default_lineage, Lineage::from);
        let tenant = &asked.call.caller.tenant;
        let root = self.root(lineage, tenant, &request.isolation);
        let session = asked.session.or_else(|| request.isolation.session(tenant));
        let mut stop_ids = match request.draws.ignore_end {
            true => Vec::new(),
            false => vec![self.vocabulary.end_of_answer()],
        };
        stop_ids.extend_from_slice(&request.draws.stop_ids);
        let logit_bias: LogitBias = request.draws.logit_bias.as_slice().into();
        let mut runs = Vec::new();
        for (prompt_index, draft) in drafts.into_iter().enumerate() {
            let names = self.names(&root, &draft.prompt);
            let constraint = self.constraint(&request.shape, draft.reading.start)?.map(Arc::new);
            if constraint.is_some() && request.draws.ignore_end {
                let message = "ignore_eos goes on behind the end that a format or held calls give the answer; leave one of them out";
                return Err(ApiError::invalid(Some("ignore_eos".into()), message));
            }
            for sample in 0..request.answers {
                let id = (incoming.next_id)();
                runs.push(Arc::new(Prepared {
                    id,
                    trace: asked.trace,
                    priority: asked.priority,
                    session,
                    call: Arc::clone(&asked.call),
                    prompt: Arc::clone(&draft.prompt),
                    prompt_tokens: u32::try_from(draft.prompt.len()).expect("fits the context"),
                    prompt_index,
                    names: Arc::clone(&names),
                    root,
                    lineage,
                    sampling: sampling(&draft, &request.draws, id, sample),
                    logit_bias: Arc::clone(&logit_bias),
                    logprobs: request.draws.logprobs,
                    tell_ids: request.draws.tell_ids,
                    constraint: constraint.clone(),
                    stop_ids: stop_ids.clone(),
                    output_tokens_max: draft.output_tokens_max,
                    reading: draft.reading.clone(),
                    echo: draft.echo.clone(),
                }));
            }
        }
        Ok(runs)
    }

    /// The names of a prompt's blocks. No request waits for another one's.
    fn names(&self, root: &Root, prompt: &[TokenId]) -> Arc<[BlockName]> {
        let digests = prefix_digests(root, prompt);
        if digests.is_empty() {
            return names_after(root, Vec::new(), prompt).into();
        }
        let known = self.names.lock().known(&digests);
        let names = names_after(root, known, prompt);
        self.names.lock().keep(&digests, &names);
        names.into()
    }

    /// How many tokens a request for messages or for a response has.
    ///
    /// # Errors
    /// As [`Self::prepare`], but for a prompt that is too long.
    pub(crate) fn count(
        &self,
        protocol: Protocol,
        body: &[u8],
        memory: &dyn Memory,
    ) -> Result<u32, ApiError> {
        let mut request = request::parse_to_count(protocol, body, &self.model.names, memory)?;
        let nothing = Source::Plain(request::Plain::default());
        let converted = match std::mem::replace(&mut request.source, nothing) {
            Source::Messages(messages) => self.convert(*messages)?,
            Source::Responses(responses) => self.convert(*responses)?,
            Source::Chat(_) | Source::Plain(_) => return Err(ApiError::broken()),
        };
        let (converted, _) = self.directed(converted, &mut request);
        let prompt = self.encode(&converted.conversation, request.effort)?;
        Ok(u32::try_from(prompt.len()).unwrap_or(u32::MAX))
    }

    fn convert(&self, request: impl ProtocolRequest) -> Result<ConversationRequest, ApiError> {
        request.convert(self.conversion.clone()).map_err(|error| match error {
            ConversionError::BadRequest { detail } => ApiError::invalid(None, detail),
            ConversionError::Internal { detail } => {
                tracing::error!(detail, "cannot convert a request");
                ApiError::broken()
            }
        })
    }

    fn encode(
        &self,
        conversation: &Conversation,
        effort: Option<EffortNumber>,
    ) -> Result<Arc<[TokenId]>, ApiError> {
        let mut rendered = self.encoding.render_conversation(conversation);
        if let Some(EffortNumber(number)) = effort.filter(|_| conversation.thinking_mode) {
            state_effort(&mut rendered, number);
        }
        self.tokenise(&rendered.prompt, &rendered.special_ranges)
    }

    fn tokenise(&self, text: &str, control: &[Range<usize>]) -> Result<Arc<[TokenId]>, ApiError> {
        let ids = self.encoder.encode_ids(text, control).map_err(|detail| {
            tracing::error!(detail, "cannot tokenise a prompt");
            ApiError::broken()
        })?;
        Ok(ids.into_iter().map(TokenId).collect())
    }

    /// How long the answer may become in what the context leaves.
    fn fit(&self, prompt: usize, request: &ConversationRequest) -> Result<u32, ApiError> {
        let tokens = self.fitting(prompt)?;
        let context = self.model.context_tokens;
        request.resolve_max_tokens(tokens, context).map_err(|_| {
            let asked = request.inference_options.max_tokens.unwrap_or(0);
            self.too_long(tokens, asked)
        })
    }

    /// The length of a prompt that leaves room for an answer.
    fn fitting(&self, prompt: usize) -> Result<u32, ApiError> {
        let context = self.model.context_tokens;
        u32::try_from(prompt).ok().filter(|tokens| *tokens < context).ok_or_else(|| {
            ApiError::context_length(format!(
                "the prompt has {prompt} tokens, this model's context holds {context} for prompt and answer; shorten the messages"
            ))
        })
    }

    fn too_long(&self, prompt: u32, answer: u32) -> ApiError {
        let context = self.model.context_tokens;
        ApiError::context_length(format!(
            "{prompt} tokens of prompt and {answer} of answer do not fit this model's context of {context}; shorten the messages or max_tokens"
        ))
    }

    fn root(&self, lineage: Lineage, tenant: &TenantId, isolation: &Isolation) -> Root {
        Root::derive(RootInputs {
            cluster_secret: &self.model.cluster_secret,
            tenant,
            salt: &isolation.salt(),
            model_id: &self.model.model_id,
            layout: &self.model.layout,
            numerics: &self.model.numerics,
            lineage,
        })
    }
}

/// How the tokens of one answer are drawn. The first answer has the request's seed, the others seeds that follow from it.
fn sampling(draft: &Draft, draws: &Draws, id: RequestId, sample: u32) -> Sampling {
    let seed = match draws.seed {
        None => seed_of(id),
        Some(seed) if sample == 0 => seed,
        Some(seed) => {
            let mut hasher =
                blake3::Hasher::new_derive_key("kvasir 2026 seed of one of n answers 1");
            hasher.update(&seed.to_le_bytes());
            hasher.update(&sample.to_le_bytes());
            let hash = hasher.finalize();
            let (head, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
            u64::from_le_bytes(*head) >> 1
        }
    };
    Sampling {
        temperature: draft.temperature,
        top_p: draft.top_p,
        top_k: draws.top_k,
        min_p: draws.min_p,
        frequency_penalty: draws.frequency_penalty,
        presence_penalty: draws.presence_penalty,
        seed,
    }
}

/// Replaces the number in the line that states the effort. The line follows two control tokens: the beginning and the
/// system's.
fn state_effort(rendered: &mut RenderedPrompt, number: u8) {
    const BEFORE: &str = "Reasoning Effort: ";
    let Some(system) = rendered.special_ranges.get(1) else { return };
    let start = system.end + BEFORE.len();
    if !rendered.prompt[system.end..].starts_with(BEFORE) {
        return;
    }
    let digits = rendered.prompt[start..].bytes().take_while(u8::is_ascii_digit).count();
    let number = number.to_string();
    rendered.prompt.replace_range(start..start + digits, &number);
    for range in rendered.special_ranges.iter_mut().skip(2) {
        *range = range.start + number.len() - digits..range.end + number.len() - digits;
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

#[cfg(test)]
mod oracle_tests;
#[cfg(test)]
mod tests;
