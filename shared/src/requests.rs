//! Requests at the borders.

use std::sync::Arc;

use crate::clock::Timestamp;
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
    /// Key of the counter-based noise: same seed, prompt and parameters give the same answer.
    pub seed: u64,
}

impl Sampling {
    /// Greedy decoding.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, seed: 0 };

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
