//! One request inside the worker, from its acceptance to its end.

use std::sync::Arc;

use engine::{DrawContext, Guide, TokenCounts, draw, logprobs};
use kvstore::check_names;
use shared::{
    BLOCK_TOKENS, BlockName, DecodeEvent, DecodeRequest, FinishReason, Flow, Grouped,
    LOGIT_BIAS_MAX, NameCache, Root, ServeError, Sink, StartGeometry, StartReport, TokenId,
    TokenLogprobs, group_of, next_name,
};

use crate::guides::{GuideFailure, GuidePool, Lead};
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
    /// Of an answer that follows a grammar.
    pub(super) lead: Option<Lead>,
    /// The logits of the last row while its token waits for a mask; empty otherwise.
    pub(super) held: Vec<f32>,
    /// What was emitted, when penalties make it matter.
    counts: Option<TokenCounts>,
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

/// A token and what is told about it.
pub(super) struct Drawn {
    pub(super) token: TokenId,
    pub(super) logprobs: Option<Box<TokenLogprobs>>,
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
pub(super) fn examine(
    request: &DecodeRequest,
    limits: ModelLimits,
    computed: &mut NameCache,
) -> Verdict {
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
    if LOGIT_BIAS_MAX < request.logit_bias.len() {
        return unsupported(format!("a logit_bias of more than {LOGIT_BIAS_MAX} tokens"));
    }
    if let Err(error) = check_names(computed, &request.root, &request.prompt, &request.names) {
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
        guide: Option<Box<Guide>>,
        tokens_max: u32,
    ) -> Self {
        let counts = TokenCounts::matter(&request.sampling);
        let counts = counts.then(|| TokenCounts::of(&request.emitted));
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
            lead: guide.map(Lead::Ready),
            held: Vec::new(),
            counts,
        }
    }

    /// Draws the next token from the logits of the last row, with its log probabilities when they were asked for. None
    /// while the mask is not there.
    ///
    /// # Errors
    /// When the answer cannot follow its grammar any further.
    pub(super) fn draw(&mut self, logits: &[f32]) -> Option<Result<Drawn, GuideFailure>> {
        let guide = match self.lead.as_mut().map(Lead::poll) {
            None => None,
            Some(None) => return None,
            Some(Some(Err(failure))) => return Some(Err(failure)),
            Some(Some(Ok(guide))) => Some(guide),
        };
        let output_index = count(self.ids.len() - self.request.prompt.len());
        let context = DrawContext {
            output_index,
            bias: &self.request.logit_bias,
            counts: self.counts.as_ref(),
            mask: guide.map(Guide::mask),
        };
        let token = draw(logits, &self.request.sampling, &context);
        let alternatives = self.request.logprobs;
        let logprobs = alternatives.map(|count| Box::new(logprobs(logits, token, count)));
        if let Some(counts) = &mut self.counts {
            counts.note(token);
        }
        Some(Ok(Drawn { token, logprobs }))
    }

    /// Sends the guide on its way past a token; `wake` is called when it may be back.
    pub(super) fn follow(
        &mut self,
        pool: &GuidePool,
        token: TokenId,
        wake: impl FnOnce() + Send + 'static,
    ) {
        match self.lead.take() {
            Some(Lead::Ready(guide)) => self.lead = Some(pool.advance(guide, token, wake)),
            // The token could not have been drawn without the guide.
            other => self.lead = other,
        }
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
    pub(super) fn emit(&mut self, drawn: Drawn) -> Flow {
        if let Report::Known(report) = self.report {
            self.report = Report::Sent;
            if self.sink.emit(DecodeEvent::Started(report)) == Flow::Closed {
                return Flow::Closed;
            }
        }
        self.sink.emit(DecodeEvent::Token(drawn.token, drawn.logprobs))
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
