//! What a prefill worker counts.

/// Counters since the start and gauges of this moment, for `/metrics`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrefillStats {
    /// Gauge: requests in the queue.
    pub waiting: usize,
    /// Gauge: requests onboarding or computing.
    pub running: usize,
    /// Gauge: finished requests whose result is pinned.
    pub held: usize,
    /// Gauge: rows accepted and not computed.
    pub pending_rows: u64,
    /// Gauge: objects offered to the store whose outcome is open.
    pub offers_outstanding: usize,
    /// Gauge: rows per second of a full step; 0 until the first step.
    pub rows_per_second: f64,
    /// Requests that were queued.
    pub requests_accepted: u64,
    /// Requests refused after they reached the loop: malformed, misnamed, too large, or no room in the queue.
    pub requests_refused: u64,
    /// Requests whose result was announced completely.
    pub requests_finished: u64,
    /// Requests that ended before that because the ticket dropped or the sink closed.
    pub requests_cancelled: u64,
    /// Milliseconds that started requests had spent in the queue, summed.
    pub queue_wait_ms: u64,
    /// Engine calls.
    pub steps: u64,
    /// Rows computed with their KV written.
    pub rows_computed: u64,
    /// Rows computed below a cached prefix to rebuild windows.
    pub rows_replayed: u64,
    /// Tokens of started requests, the base of the two numbers below.
    pub prompt_tokens: u64,
    /// Tokens whose blocks were in the own pool.
    pub cached_tokens_device: u64,
    /// Tokens whose blocks were read from the store.
    pub cached_tokens_store: u64,
    /// Blocks sealed under a new name after computation.
    pub blocks_sealed: u64,
    /// Computed blocks whose name was held already: dropped for an equal copy, or kept without the name.
    pub blocks_duplicate: u64,
    /// Window objects published.
    pub windows_published: u64,
    /// Window objects not published because no slot was free.
    pub windows_skipped: u64,
    /// Bytes read from the store.
    pub bytes_fetched: u64,
    /// Lookups in the store that were not answered in time.
    pub locates_late: u64,
    /// Reads that failed; the blocks were computed instead.
    pub reads_failed: u64,
    /// Requests whose reads were not back in time.
    pub reads_late: u64,
    /// Offered objects that the store took or had.
    pub offers_stored: u64,
    /// Offered objects that the store took or had in memory only, although they were to be on its drive.
    pub offers_memory_only: u64,
    /// Offered objects that the store did not take.
    pub offers_dropped: u64,
    /// Objects not offered because `offers_max` were outstanding.
    pub offers_skipped: u64,
    /// Objects whose offer was withdrawn because the store did not answer in time.
    pub offers_withdrawn: u64,
    /// Gauge: commands that tickets and open operations may still send to the loop: the bound of its mailbox.
    pub commands_promised: usize,
}
