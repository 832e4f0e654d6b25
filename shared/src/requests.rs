//! Requests at the borders.

use std::sync::Arc;

use crate::clock::Timestamp;
use crate::constraints::{Constraint, LogitBias};
use crate::ids::{
    RequestContext, RequestId, TenantId, TenantTag, TokenId, TraceContext, WorkerRank,
};
use crate::names::{BlockName, Lineage, Root};

/// How the next token is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 (or anything below 1e-5) means greedy: the argmax, the lowest id on ties.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this, in 0..=1; 1 keeps all.
    pub top_p: f32,
    /// Keep this many of the most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the tokens that have at least this share of the most probable one's probability, in 0..=1; 0 keeps all.
    pub min_p: f32,
    /// Taken from a token's logit for each time it was emitted in this answer. Finite; 0 is off.
    pub frequency_penalty: f32,
    /// Taken from a token's logit if it was emitted in this answer at all. Finite; 0 is off.
    pub presence_penalty: f32,
    /// Key of the counter-based noise: same seed, prompt and parameters give the same answer.
    pub seed: u64,
}

impl Sampling {
    /// Greedy decoding.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        seed: 0,
    };

    /// Whether the draw is the argmax.
    #[must_use]
    pub fn is_greedy(self) -> bool {
        self.temperature < 1e-5
    }
}

/// Asks a decode worker for an answer. The worker drives prefill by itself.
#[derive(Clone, Debug)]
pub struct DecodeRequest {
    /// The request, as it is called in every log line.
    pub id: RequestId,
    /// The trace it belongs to.
    pub trace: TraceContext,
    /// Whose bytes its blocks count as. The root was derived with the tenant's name.
    pub tenant: TenantTag,
    /// The whole prompt. Not empty.
    pub prompt: Arc<[TokenId]>,
    /// Tokens already emitted by an earlier worker of this request (resume); empty for a new request.
    pub emitted: Vec<TokenId>,
    /// The key of this request's names.
    pub root: Root,
    /// Names of the complete blocks of the prompt, as the router computed them. The worker recomputes and compares.
    pub names: Arc<[BlockName]>,
    /// The lineage the root was derived with.
    pub lineage: Lineage,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What is added to logits before the draw. Empty for none.
    pub logit_bias: LogitBias,
    /// How many alternatives are reported with each token's log probability, at most
    /// [`LOGPROBS_MAX`](crate::LOGPROBS_MAX); none: no log probabilities at all.
    pub logprobs: Option<u8>,
    /// The language of the answer; none: it is free.
    pub constraint: Option<Arc<Constraint>>,
    /// Tokens that end the answer; the one that does is emitted last.
    pub stop_ids: Vec<TokenId>,
    /// Bound of the answer in tokens, at least 1, `emitted` included.
    pub output_tokens_max: u32,
    /// The prefill worker the router chose; none when the prompt should not visit prefill.
    pub prefill: Option<WorkerRank>,
    /// When the answer is worth nothing any more.
    pub deadline: Option<Timestamp>,
}

impl DecodeRequest {
    /// On whose behalf everything for it is done.
    #[must_use]
    pub fn context(&self) -> RequestContext {
        RequestContext { id: self.id, trace: self.trace, tenant: self.tenant }
    }
}

/// Asks a prefill worker for the blocks of `[from, to)` and the window object at `to`.
#[derive(Clone, Debug)]
pub struct PrefillRequest {
    /// The request, as it is called in every log line.
    pub id: RequestId,
    /// The trace it belongs to.
    pub trace: TraceContext,
    /// Whose bytes its blocks count as. The root was derived with the tenant's name.
    pub tenant: TenantTag,
    /// The tokens of `[0, to)`.
    pub ids: Arc<[TokenId]>,
    /// The key of this request's names.
    pub root: Root,
    /// Names of all blocks of `[0, to)`. The worker recomputes and compares.
    pub names: Arc<[BlockName]>,
    /// The lineage the root was derived with.
    pub lineage: Lineage,
    /// First position whose block the asking side lacks. A multiple of 128.
    pub from: u32,
    /// The hand-off boundary S. A multiple of 128, equal to the length of `ids`.
    pub to: u32,
}

impl PrefillRequest {
    /// On whose behalf everything for it is done.
    #[must_use]
    pub fn context(&self) -> RequestContext {
        RequestContext { id: self.id, trace: self.trace, tenant: self.tenant }
    }
}

/// How urgent a request is to its client. What waits is served by class; a lower class gets its turn all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody waits for it and others may be overtaken.
    High,
    /// What a request is that says nothing.
    #[default]
    Normal,
    /// Work in the background.
    Low,
}

impl Priority {
    /// All classes, the most urgent first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The word used in headers, metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// The class that a word names.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }
}

/// Stands for what a client calls its conversation: a hash of it, so that nobody else can be followed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub u64);

impl SessionKey {
    /// The key of a tenant's session of this name. Sessions of the same name of two tenants have different keys.
    #[must_use]
    pub fn of(tenant: &TenantId, session: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("kvasir 2026 session key 1");
        hasher.update(&tenant.tag().0.to_le_bytes());
        hasher.update(session);
        let hash = hasher.finalize();
        let (head, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        Self(u64::from_le_bytes(*head))
    }
}

/// Asks the router where a request should run.
#[derive(Clone, Debug)]
pub struct PlaceRequest {
    /// The request.
    pub id: RequestId,
    /// Whose it is.
    pub tenant: TenantId,
    /// Names of the complete blocks of the prompt.
    pub names: Arc<[BlockName]>,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Bound of the answer.
    pub output_tokens_max: u32,
    /// When the answer is worth nothing any more.
    pub deadline: Option<Timestamp>,
    /// Its class while it waits.
    pub priority: Priority,
    /// The conversation it belongs to, if its client said so.
    pub session: Option<SessionKey>,
    /// Workers that failed this request before: not to be chosen while there are others. A few; the caller bounds them
    /// with its retries.
    pub excluded: Vec<WorkerRank>,
}

/// The router's answer, with its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Where to decode.
    pub decode: WorkerRank,
    /// Where to prefill; none when the tail is short or everything is cached.
    pub prefill: Option<WorkerRank>,
    /// Tokens the index expects to be cached at the decode worker.
    pub expected_cached_tokens: u32,
    /// One line for people: why this pair.
    pub reason: String,
}
