//! Grammars beside the loop: compiled, followed and turned into masks on a few threads of their own.
//!
//! A mask usually takes microseconds and can take very long; the loop therefore never waits for one. It hands a guide in
//! with the token just drawn and finds it back with the next mask; a row whose mask is late sits out until it is there.
//!
//! Invariants: a call that does not return within its limit ends its own request alone: whoever asked is told, the call is
//! asked to stop, its thread is written off and replaced. At most `grammar_threads_lost_max` threads may be written off at
//! a time; a seat without a thread gets one when a lost one comes back. Without any, requests go to other workers. The first thread takes masks only, so compilations never hold up
//! running answers. What waits is bounded: compilations by `waiting_max`, masks by the live sequences, one each.
//!
//! What it is not: it knows no sequence and no engine, only guides. Start reading at [`GuidePool`].

mod anteroom;
mod cache;
mod pool;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use engine::{GrammarCompiler, Guide};
use parking_lot::Mutex;
use shared::{Clock, Constraint, ServeError, TRIGGER_TOKENS_MAX, TokenId, WorkerRank};

use crate::config::DecodeConfig;
use crate::guides::cache::GrammarCache;
use crate::guides::pool::{Job, Kind, Pool, Withdrawn};
use crate::mailbox::Refusal;

pub(crate) use anteroom::Anteroom;

/// What the grammars of a worker did so far, and hold now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuideStats {
    /// Grammars compiled.
    pub compiled: u64,
    /// Requests whose compiled grammar was in the cache.
    pub cache_hits: u64,
    /// Requests refused because of their grammar.
    pub refused: u64,
    /// Answers ended because a grammar failed, its limit of time included.
    pub failed: u64,
    /// Masks computed.
    pub masks: u64,
    /// Calls that did not return within their limit.
    pub timeouts: u64,
    /// Threads written off that have not come back.
    pub threads_lost: u64,
    /// Requests refused because as many as may waited for compilation.
    pub refused_full: u64,
    /// Requests sent elsewhere and answers ended because no thread was left for them.
    pub deserted: u64,
    /// Requests whose grammar is being compiled or waits for it.
    pub compiling: u64,
    /// Bytes of compiled grammars in the cache, estimated.
    pub cache_bytes: u64,
}

/// Why there is no guide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuideFailure {
    /// The grammar is not served.
    Refused(String),
    /// The grammar cannot go on.
    Failed(String),
    /// As many requests as this wait for compilation.
    Full(usize),
    /// Nobody waits for it any more, or it could not be served when its turn came.
    Withdrawn(ServeError),
    /// No thread is left for it.
    Deserted,
    /// The worker ends.
    Closing,
}

impl GuideFailure {
    /// What whoever asked is told. A worker that ends or has no thread left is lost to such requests: others may serve them.
    pub(crate) fn into_error(self, waiting_max: usize, worker: WorkerRank) -> ServeError {
        match self {
            Self::Refused(what) => ServeError::GrammarRefused { what },
            Self::Failed(what) => ServeError::GrammarFailed { what },
            Self::Full(waiting) => Refusal::Full(waiting).into_error(waiting_max),
            Self::Withdrawn(error) => error,
            Self::Deserted | Self::Closing => ServeError::WorkerLost { worker },
        }
    }
}

pub(crate) type Guided = Result<Box<Guide>, GuideFailure>;

/// A guide that is ready, or on its way through the pool.
pub(crate) enum Lead {
    /// Its mask is that of the next token.
    Ready(Box<Guide>),
    /// The pool puts it here.
    Pending(Arc<Mutex<Option<Guided>>>),
}

impl Lead {
    /// The guide, if it is here now.
    pub(crate) fn poll(&mut self) -> Option<Result<&Guide, GuideFailure>> {
        if let Self::Pending(place) = self {
            let arrived = place.lock().take()?;
            match arrived {
                Ok(guide) => *self = Self::Ready(guide),
                Err(failure) => return Some(Err(failure)),
            }
        }
        match self {
            Self::Ready(guide) => Some(Ok(guide)),
            Self::Pending(_) => None,
        }
    }
}

/// The threads and the cache. Dropping it ends the threads; masks under way are asked to stop first, compilations cannot be
/// and are left behind.
pub(crate) struct GuidePool {
    compiler: Arc<GrammarCompiler>,
    cache: Arc<Mutex<GrammarCache>>,
    pool: Pool,
    compile_limit: Duration,
    mask_limit: Duration,
}

impl GuidePool {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the system gives none.
    pub(crate) fn start(
        config: &DecodeConfig,
        compiler: Arc<GrammarCompiler>,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            compiler,
            cache: Arc::new(Mutex::new(GrammarCache::new(config.grammar_cache_bytes_max))),
            pool: Pool::start(config, clock)?,
            compile_limit: Duration::from_millis(config.grammar_compile_ms_max),
            mask_limit: Duration::from_millis(config.grammar_mask_ms_max),
        })
    }

    /// Compiles a constraint's grammar, or takes it from the cache, follows what was emitted, and computes the first mask.
    /// `report` is called once, from a thread of the pool, or from this one when too many wait. `withdrawn` says why nobody wants it
    /// any more, if so.
    pub(crate) fn begin(
        &self,
        constraint: Arc<Constraint>,
        emitted: Vec<TokenId>,
        withdrawn: Withdrawn,
        report: impl FnOnce(Guided) + Send + 'static,
    ) {
        let (compiler, cache) = (Arc::clone(&self.compiler), Arc::clone(&self.cache));
        let compute = move || begin(&compiler, &cache, constraint, &emitted);
        self.pool.submit(Job {
            kind: Kind::Begin,
            limit: self.compile_limit,
            stopper: None,
            withdrawn,
            compute: Box::new(compute),
            report: Box::new(report),
        });
    }

    /// Follows one more token and computes the mask behind it. `wake` is called once when the lead is worth a look.
    pub(crate) fn advance(
        &self,
        mut guide: Box<Guide>,
        token: TokenId,
        wake: impl FnOnce() + Send + 'static,
    ) -> Lead {
        let place = Arc::new(Mutex::new(None));
        let target = Arc::clone(&place);
        let stopper = guide.stopper();
        let compute = move || {
            let moved = guide.advance(token).and_then(|()| guide.refresh());
            moved.map(|()| guide).map_err(|error| GuideFailure::Failed(error.to_string()))
        };
        self.pool.submit(Job {
            kind: Kind::Mask,
            limit: self.mask_limit,
            stopper: Some(stopper),
            withdrawn: Box::new(|| None),
            compute: Box::new(compute),
            report: Box::new(move |guided| {
                *target.lock() = Some(guided);
                wake();
            }),
        });
        Lead::Pending(place)
    }

    pub(crate) fn stats(&self) -> GuideStats {
        let cache = self.cache.lock();
        GuideStats {
            compiled: cache.misses,
            cache_hits: cache.hits,
            cache_bytes: u64::try_from(cache.bytes()).unwrap_or(u64::MAX),
            ..self.pool.stats()
        }
    }
}

fn begin(
    compiler: &GrammarCompiler,
    cache: &Mutex<GrammarCache>,
    constraint: Arc<Constraint>,
    emitted: &[TokenId],
) -> Guided {
    check(&constraint, compiler.vocabulary().tokens())?;
    let held = cache.lock().take(&constraint.grammar);
    let compiled = match held {
        Some(compiled) => compiled,
        None => {
            let compiled = compiler
                .compile(&constraint.grammar)
                .map_err(|refusal| GuideFailure::Refused(refusal.to_string()))?;
            let compiled = Arc::new(compiled);
            cache.lock().put(constraint.grammar.clone(), &compiled);
            compiled
        }
    };
    let vocabulary = compiler.vocabulary();
    let mut guide =
        Box::new(Guide::new(constraint, &compiled, vocabulary.tokens(), vocabulary.end()));
    let followed = emitted.iter().try_for_each(|token| guide.advance(*token));
    let followed = followed.and_then(|()| guide.refresh());
    followed.map(|()| guide).map_err(|error| GuideFailure::Failed(error.to_string()))
}

/// What does not depend on the grammar. A token that the model does not have could be forced, and never be drawn.
fn check(constraint: &Constraint, vocabulary: usize) -> Result<(), GuideFailure> {
    if TRIGGER_TOKENS_MAX < constraint.trigger.len() {
        let what = format!("its trigger has more than {TRIGGER_TOKENS_MAX} tokens");
        return Err(GuideFailure::Refused(what));
    }
    let Constraint { trigger, bound, barred, .. } = constraint;
    let mut named = trigger.iter().chain(bound).chain(barred);
    if let Some(token) = named.find(|token| vocabulary <= token.index()) {
        let what = format!("its trigger has token {token} of a vocabulary of {vocabulary}");
        return Err(GuideFailure::Refused(what));
    }
    match barred.filter(|token| trigger.contains(token) || *bound == Some(*token)) {
        Some(token) => {
            let what = format!("its trigger needs token {token}, which is barred before it");
            Err(GuideFailure::Refused(what))
        }
        None => Ok(()),
    }
}
