//! What a decode worker counts.

use std::time::Duration;

/// Counters since the start and gauges of this moment. All counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DecodeStats {
    /// Requests accepted into the queue.
    pub requests: u64,
    /// Requests refused: too long, never fitting, queue full, names that differ.
    pub refused: u64,
    /// Answers that ended with `Finished`.
    pub finished: u64,
    /// Accepted requests that ended with `Failed`.
    pub failed: u64,
    /// Requests whose client went away.
    pub cancelled: u64,
    /// Tokens emitted.
    pub tokens: u64,
    /// Prompt tokens of starts, resumed ones not counted.
    pub prompt_tokens: u64,
    /// Of those, tokens whose blocks existed before.
    pub cached_tokens: u64,
    /// Rows recomputed below starts to rebuild windows.
    pub replayed_tokens: u64,
    /// Bytes of blocks and window objects read from other memory.
    pub bytes_fetched: u64,
    /// Sequences that gave way to an older one.
    pub preemptions: u64,
    /// Starts of sequences that had given way, and of requests resumed from another worker.
    pub resumes: u64,
    /// Starts that visited a prefill worker.
    pub prefill_visits: u64,
    /// Prefill attempts after the first of a start.
    pub prefill_retries: u64,
    /// Starts that gave up on prefill and computed by themselves.
    pub prefill_fallbacks: u64,
    /// Reads that failed; what they were for was had elsewhere or computed.
    pub reads_failed: u64,
    /// Lookups in the store that were not answered in time.
    pub locates_failed: u64,
    /// Blocks sealed under a new name.
    pub blocks_sealed: u64,
    /// Computed blocks whose name was held already: dropped for an equal copy, or kept private. Not in `blocks_sealed`.
    pub blocks_duplicate: u64,
    /// Window objects published.
    pub windows_published: u64,
    /// Window objects that could not be published because every slot for them was in use.
    pub windows_dropped: u64,
    /// Objects offered to the store.
    pub offers: u64,
    /// Objects that the store took or had in memory only, although they were to be on its drive.
    pub offers_memory_only: u64,
    /// Objects not offered because too many offers were open.
    pub offers_skipped: u64,
    /// Objects whose offer was withdrawn because the store did not answer in time.
    pub offers_withdrawn: u64,
    /// Steps computed.
    pub steps: u64,
    /// Decode rows computed.
    pub decode_rows: u64,
    /// Tail rows computed, replayed ones included.
    pub tail_rows: u64,
    /// Rows put off because a reader still held a slot that the reservation counts on. They are planned again.
    pub rows_stalled: u64,
    /// Computed rows whose token waited for its grammar's mask.
    pub rows_held: u64,
    /// Time spent computing steps.
    pub step_time: Duration,
    /// The longest step.
    pub step_time_max: Duration,
    /// Commands that tickets and open operations may still send to the loop: the bound of its mailbox.
    pub commands_promised: u64,
    /// Requests in the queue, preempted ones included.
    pub waiting: u64,
    /// Live sequences.
    pub running: u64,
    /// Blocks reserved by live sequences.
    pub blocks_reserved: u64,
    /// Slots of the block pool that are free or cached.
    pub slots_available: u64,
    /// Slots of the block pool.
    pub slots: u64,
    /// Measured rows per second of a full step; 0 before the first step.
    pub rows_per_second: f64,
}
