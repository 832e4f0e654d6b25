//! What can go wrong with a request, as the caller of a border sees it.

use crate::ids::WorkerRank;

/// Why a request was not served. Every variant is something a caller acts on differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The queue is full. Retry later.
    #[error(
        "too many requests are waiting ({waiting} of {waiting_max}); retry in {retry_after_ms} ms"
    )]
    Overloaded {
        /// Requests in the queue.
        waiting: usize,
        /// The bound of the queue.
        waiting_max: usize,
        /// A hint, in milliseconds.
        retry_after_ms: u64,
    },
    /// The queue is full, and the tenant has more than its share of it while others wait. Retry later.
    #[error(
        "too many requests of this tenant are waiting ({waiting}, of {waiting_max} of all tenants); retry in {retry_after_ms} ms"
    )]
    OverShare {
        /// The tenant's requests in the queue.
        waiting: usize,
        /// The bound of the queue.
        waiting_max: usize,
        /// A hint, in milliseconds.
        retry_after_ms: u64,
    },
    /// The prompt, or prompt and answer together, do not fit the model's context.
    #[error(
        "{tokens} tokens do not fit: this model takes at most {tokens_max}; shorten the prompt or max_tokens"
    )]
    TooLong {
        /// What was asked for.
        tokens: usize,
        /// What is possible.
        tokens_max: usize,
    },
    /// The request needs more cache slots than the worker has in all.
    #[error(
        "the request needs {slots} cache blocks, the worker has {slots_max}; raise device_blocks or shorten the prompt"
    )]
    NeverFits {
        /// Slots needed.
        slots: usize,
        /// Slots of the pool.
        slots_max: usize,
    },
    /// The request uses something this worker cannot do.
    #[error("not supported by this worker: {what}")]
    Unsupported {
        /// The feature, in the caller's words.
        what: String,
    },
    /// The grammar that the answer is to follow cannot be served. Said before any other work.
    #[error("the grammar is refused: {what}")]
    GrammarRefused {
        /// The feature, or what is wrong with the text, in the caller's words.
        what: String,
    },
    /// The grammar that the answer was following went beyond its limits of time or size, or leaves no token to go on with.
    #[error("the answer ends here: {what}")]
    GrammarFailed {
        /// Which limit, and what to change.
        what: String,
    },
    /// The names of the request differ from those recomputed from its tokens: sender and receiver disagree on
    /// model, layout, numerics, tenant or secret.
    #[error(
        "block {index} is named differently by router and worker; check that both run the same model and cluster secret"
    )]
    NamesDiffer {
        /// The first block whose name differs.
        index: usize,
    },
    /// A worker went away.
    #[error("worker {worker} is gone")]
    WorkerLost {
        /// Which one.
        worker: WorkerRank,
    },
    /// No worker can take the request now.
    #[error("no {role} worker is available")]
    NoWorker {
        /// The role that is missing.
        role: &'static str,
    },
    /// The request's deadline passed.
    #[error("the request's deadline passed while it was {stage}")]
    DeadlineExceeded {
        /// Where it was, for example `queued`.
        stage: &'static str,
    },
    /// The service is shutting down.
    #[error("the service is draining and takes no new requests")]
    Draining,
    /// A fault of ours. The text is for the log and the operator.
    #[error("internal error: {message}")]
    Internal {
        /// What happened.
        message: String,
    },
}
