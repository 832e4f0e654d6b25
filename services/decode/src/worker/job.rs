//! One request inside the worker, from its acceptance to its end.

use std::sync::Arc;

use kvstore::check_names;
use shared::{
    BLOCK_TOKENS, BlockName, DecodeEvent, DecodeRequest, FinishReason, Flow, Grouped, Root,
    ServeError, Sink, StartGeometry, StartReport, TokenId, group_of, next_name,
};

use crate::scheduler::SequenceKey;
use crate::worker::active::Active;
use crate::worker::basis::{Basis, KnownTokens, basis};
use crate::worker::core::{count, index};
use crate::worker::start::{Asked, Start};

/// A request and where it stands.
pub(super) struct Job {
    pub(super) request: DecodeRequest,
    pub(super) sink: Box<dyn Sink<DecodeEvent>>,
    /// The prompt and the answer so far.
    pub(super) ids: Vec<TokenId>,
    pub(super) chain: Chain,
    /// Tokens the sequence may grow to.
    pub(super) tokens_max: u32,
    /// What `Started` will say, or that it was said.
    pub(super) report: Report,
    /// Starts so far.
    pub(super) starts: u32,
    pub(super) state: JobState,
}

/// Whether the client knows how its request started.
#[derive(Clone, Copy)]
pub(super) enum Report {
    /// It has not started.
    Unknown,
    /// It has, and no token has been drawn.
    Known(StartReport),
    /// The event was sent.
    Sent,
}

/// Where a job stands.
pub(super) enum JobState {
    /// In the queue, or on its way back to it.
    Waiting,
    /// Blocks and windows are being brought together.
    Starting(Box<Start>),
    /// Computing its tail, or decoding.
    Active(Box<Active>),
}

/// The names of the complete blocks of a sequence, as far as they were needed.
pub(super) struct Chain {
    pub(super) names: Vec<BlockName>,
    root: Root,
}

impl Chain {
    pub(super) fn new(root: Root, names: &[BlockName]) -> Self {
        Self { names: names.to_vec(), root }
    }

    /// The name of a block that was named, with its group.
    pub(super) fn grouped(&self, block: usize) -> Grouped<BlockName> {
        Grouped { item: self.names[block], group: group_of(&self.names, block) }
    }

    /// Names the first `blocks` blocks of `ids`.
    pub(super) fn name_through(&mut self, ids: &[TokenId], blocks: usize) {
        let size = index(BLOCK_TOKENS);
        while self.names.len() < blocks {
            let block = self.names.len();
            let tokens = &ids[block * size..(block + 1) * size];
            let name = next_name(&self.root, self.names.last().copied(), block, tokens, &[]);
            self.names.push(name);
        }
    }
}

/// What becomes of a request before anything is computed.
pub(super) enum Verdict {
    /// It can be queued, with this bound on its tokens before any other.
    Serve { tokens_max: u32 },
    /// Its earlier worker had emitted everything.
    Over(FinishReason),
    /// It cannot be served.
    Refused(ServeError),
}

/// The model's limits that a request is held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelLimits {
    pub(super) vocabulary: usize,
    pub(super) context_tokens_max: u32,
}

/// Checks a request against the model, and its names against its tokens.
pub(super) fn examine(request: &DecodeRequest, limits: ModelLimits) -> Verdict {
    let unsupported = |what: String| Verdict::Refused(ServeError::Unsupported { what });
    if request.prompt.is_empty() {
        return unsupported("an empty prompt; send at least one token".to_owned());
    }
    if request.output_tokens_max == 0 {
        return unsupported("an answer of 0 tokens; ask for at least one".to_owned());
    }
    let tokens = request.prompt.len().saturating_add(request.emitted.len());
    let tokens_max = index(limits.context_tokens_max);
    if tokens_max < tokens {
        return Verdict::Refused(ServeError::TooLong { tokens, tokens_max });
    }
    let foreign = |id: &&TokenId| limits.vocabulary <= id.index();
    if let Some(id) = request.prompt.iter().chain(&request.emitted).find(foreign) {
        return unsupported(format!("token {id} of a vocabulary of {}", limits.vocabulary));
    }
    if let Err(error) = check_names(&request.root, &request.prompt, &request.names) {
        return Verdict::Refused(error);
    }
    if request.emitted.last().is_some_and(|last| request.stop_ids.contains(last)) {
        return Verdict::Over(FinishReason::Stop);
    }
    if index(request.output_tokens_max) <= request.emitted.len() {
        return Verdict::Over(FinishReason::Length);
    }
    // A resumed sequence may fill the context exactly; it has nothing left to say then.
    if tokens_max == tokens && !request.emitted.is_empty() {
        return Verdict::Over(FinishReason::Length);
    }
    let prompt = count(request.prompt.len());
    Verdict::Serve { tokens_max: prompt.saturating_add(request.output_tokens_max) }
}

impl Job {
    pub(super) fn new(
        request: DecodeRequest,
        sink: Box<dyn Sink<DecodeEvent>>,
        tokens_max: u32,
    ) -> Self {
        let ids: Vec<_> = request.prompt.iter().chain(&request.emitted).copied().collect();
        let chain = Chain::new(request.root, &request.names);
        Self {
            request,
            sink,
            ids,
            chain,
            tokens_max,
            report: Report::Unknown,
            starts: 0,
            state: JobState::Waiting,
        }
    }

    /// Index of the next token in the answer.
    pub(super) fn output_index(&self) -> u32 {
        count(self.ids.len() - self.request.prompt.len())
    }

    /// The floors and boundary of a start now.
    pub(super) fn basis(&self, geometry: StartGeometry, resume_exact_tokens: u32) -> Basis {
        let prompt = count(self.request.prompt.len());
        let tokens = KnownTokens { prompt, all: count(self.ids.len()) };
        basis(geometry, tokens, resume_exact_tokens)
    }

    /// What a start must know.
    pub(super) fn asked(&mut self, key: SequenceKey, basis: Basis) -> Asked {
        let blocks = index(basis.boundary / BLOCK_TOKENS);
        self.chain.name_through(&self.ids, blocks);
        Asked {
            key,
            context: self.request.context(),
            root: self.request.root,
            lineage: self.request.lineage,
            basis,
            ids: Arc::from(&self.ids[..index(basis.boundary)]),
            names: Arc::from(&self.chain.names[..blocks]),
            prefill: self.request.prefill,
        }
    }

    /// Tells the client how the request started and what came next.
    pub(super) fn emit(&mut self, token: TokenId) -> Flow {
        if let Report::Known(report) = self.report {
            self.report = Report::Sent;
            if self.sink.emit(DecodeEvent::Started(report)) == Flow::Closed {
                return Flow::Closed;
            }
        }
        self.sink.emit(DecodeEvent::Token(token))
    }

    /// Why the answer ends with the token just appended; none when it goes on.
    pub(super) fn ending(&self) -> Option<FinishReason> {
        let last = self.ids.last()?;
        if self.request.stop_ids.contains(last) {
            return Some(FinishReason::Stop);
        }
        (index(self.tokens_max) <= self.ids.len()).then_some(FinishReason::Length)
    }
}
