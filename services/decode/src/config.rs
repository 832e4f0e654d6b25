//! What an operator can set, and what it costs.

use std::time::Duration;

use shared::Durability;

/// Settings of one decode worker.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeConfig {
    /// Sequences that are live (starting, computing a tail, decoding) at the same time. Range: 1..=4,096; default: 64.
    /// Each may hold three window objects in host memory until it ends, besides its blocks.
    pub sequences_max: usize,
    /// Requests in the queue. Range: 1..=65,536; default: 256. The next one is refused as overloaded, so that the
    /// caller can go elsewhere while its deadline still allows it.
    pub waiting_max: usize,
    /// Decode rows of one step. Unit: rows; range: 1..=4,096; default: 64. When more sequences decode they take turns.
    pub decode_rows_step_max: usize,
    /// Tail rows mixed into one step. Unit: rows; range: 128..=65,536; default: 512. More rows start requests sooner
    /// and make every running answer wait longer for its next token.
    pub tail_rows_step_max: u32,
    /// Tokens of an answer up to which a resumed request keeps the hand-off boundary and decoder floor of its prompt,
    /// which makes the continuation bit-identical. Unit: tokens; range: 0..=1,048,576; default: 4,096. That many rows
    /// through all layers are the most a resume recomputes; beyond it the floor moves and the answer is reported inexact.
    pub resume_exact_tokens: u32,
    /// R: rows replayed below a start that has no window object, in lineage bounded. Unit: rows; range: 1..=65,536;
    /// none: the model's window W, as the family was post-trained. More is nearer to exact and slower.
    pub replay_rows: Option<u32>,
    /// How long a lookup in the store may take. Unit: milliseconds; range: 1..=60,000; default: 250. After that the
    /// request is served as if the store held nothing.
    pub locate_wait_ms_max: u64,
    /// How long the reads of one start may make no progress. Unit: milliseconds; range: 1..=600,000; default: 5,000.
    /// After that what is not there is computed. An offer that the store has not answered after six times as long is
    /// withdrawn.
    pub read_wait_ms_max: u64,
    /// How long a prefill worker may say nothing. Unit: milliseconds; range: 1..=600,000; default: 30,000. Prefill workers
    /// give a sign of life every few seconds, also to requests in their queue, so longer silence means that the worker is
    /// gone, or stuck. After that another member is asked.
    pub prefill_silence_ms_max: u64,
    /// Prefill workers asked for one start. Range: 1..=16; default: 3. After that this worker computes by itself.
    pub prefill_attempts_max: u32,
    /// Blocks of one start being read at a time. Range: 1..=65,536; default: 256, about 29 MB of Flash blocks: a
    /// fresh batch is started once per step, so fewer would leave a fast link idle behind long steps.
    pub reads_start_max: usize,
    /// Blocks offered to the store whose outcome is open. They stay pinned, so this many slots of the pool are not given
    /// to sequences. Range: 0..=1,048,576 and below the pool's slots; default: 16. What exceeds it is not offered, and counted.
    pub offers_max: usize,
    /// Where an offered block is to be before the offer counts as stored: in a store node's memory, or on its drive as well.
    /// It stays pinned until then, some milliseconds more for a drive. Default: memory.
    pub durability: Durability,
    /// Threads that compile grammars and compute masks beside the loop; the first does masks only. Range: 2..=64; default: 2.
    /// A mask takes 4 to 20 microseconds with a JSON schema and up to some milliseconds with an EBNF grammar, per token and
    /// constrained answer: with hundreds of those more threads keep them from sitting steps out.
    pub grammar_threads: usize,
    /// Threads that may be written off at a time because a call does not come back; each is replaced. Range: 0..=1,024;
    /// default: 8. Beyond it they are not replaced any more, and a restart is due.
    pub grammar_threads_lost_max: usize,
    /// How long one grammar may take to compile, the tokens of a resumed answer included. Unit: milliseconds; range:
    /// 1..=60,000; default: 10,000. After that the request is refused.
    pub grammar_compile_ms_max: u64,
    /// How long one mask may take. Unit: milliseconds; range: 1..=60,000; default: 2,000. After that its answer ends.
    pub grammar_mask_ms_max: u64,
    /// Compiled grammars kept for requests with the same text. Unit: bytes, estimated; range: 0..=1 TiB; default: 256 MiB.
    pub grammar_cache_bytes_max: usize,
    /// Longest silence between two load reports. Unit: milliseconds; range: 10..=60,000; default: 1,000. Less than whoever
    /// hears them waits for the next, or for an answer, which comes with it.
    pub report_interval_ms: u64,
    /// Speed assumed until the first step was measured. Unit: rows per second; range: above 0; default: 2,000. It only
    /// decides whether a cached prefix is read or recomputed.
    pub rows_per_second_initial: f64,
    /// Speed of reads assumed until the first one was measured. Unit: bytes per second; range: above 0; default: 1e9.
    pub read_bytes_per_second_initial: f64,
}

/// The store reads what it is offered, behind the offers of all other workers: so many times the wait for one start's
/// reads, 30 seconds by default.
const OFFER_READ_WAITS: u32 = 6;

/// A setting that is outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("decode.{field} is {found}, expected {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// The range.
    pub expected: &'static str,
}

impl DecodeConfig {
    /// The defaults named in the fields' documentation.
    pub const STANDARD: Self = Self {
        sequences_max: 64,
        waiting_max: 256,
        decode_rows_step_max: 64,
        tail_rows_step_max: 512,
        resume_exact_tokens: 4_096,
        replay_rows: None,
        locate_wait_ms_max: 250,
        read_wait_ms_max: 5_000,
        prefill_silence_ms_max: 30_000,
        prefill_attempts_max: 3,
        reads_start_max: 256,
        offers_max: 16,
        durability: Durability::Memory,
        grammar_threads: 2,
        grammar_threads_lost_max: 8,
        grammar_compile_ms_max: 10_000,
        grammar_mask_ms_max: 2_000,
        grammar_cache_bytes_max: 256 << 20,
        report_interval_ms: 1_000,
        rows_per_second_initial: 2_000.0,
        read_bytes_per_second_initial: 1e9,
    };

    /// Checks every field against its range.
    ///
    /// # Errors
    /// Names the first field that is outside its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        let resume = u64::from(self.resume_exact_tokens);
        let replay = u64::from(self.replay_rows.unwrap_or(1));
        let ranges = [
            ("sequences_max", count(self.sequences_max), 1..=4_096, "1..=4096"),
            ("waiting_max", count(self.waiting_max), 1..=65_536, "1..=65536"),
            ("decode_rows_step_max", count(self.decode_rows_step_max), 1..=4_096, "1..=4096"),
            ("tail_rows_step_max", u64::from(self.tail_rows_step_max), 128..=65_536, "128..=65536"),
            ("resume_exact_tokens", resume, 0..=1_048_576, "0..=1048576"),
            ("replay_rows", replay, 1..=65_536, "1..=65536"),
            ("locate_wait_ms_max", self.locate_wait_ms_max, 1..=60_000, "1..=60000"),
            ("read_wait_ms_max", self.read_wait_ms_max, 1..=600_000, "1..=600000"),
            ("prefill_silence_ms_max", self.prefill_silence_ms_max, 1..=600_000, "1..=600000"),
            ("prefill_attempts_max", u64::from(self.prefill_attempts_max), 1..=16, "1..=16"),
            ("reads_start_max", count(self.reads_start_max), 1..=65_536, "1..=65536"),
            ("offers_max", count(self.offers_max), 0..=1_048_576, "0..=1048576"),
            ("grammar_threads", count(self.grammar_threads), 2..=64, "2..=64"),
            (
                "grammar_threads_lost_max",
                count(self.grammar_threads_lost_max),
                0..=1_024,
                "0..=1024",
            ),
            ("grammar_compile_ms_max", self.grammar_compile_ms_max, 1..=60_000, "1..=60000"),
            ("grammar_mask_ms_max", self.grammar_mask_ms_max, 1..=60_000, "1..=60000"),
            (
                "grammar_cache_bytes_max",
                count(self.grammar_cache_bytes_max),
                0..=1 << 40,
                "0..=1099511627776",
            ),
            ("report_interval_ms", self.report_interval_ms, 10..=60_000, "10..=60000"),
        ];
        for (field, found, range, expected) in ranges {
            if !range.contains(&found) {
                return Err(ConfigError { field, found: found.to_string(), expected });
            }
        }
        let speeds = [
            ("rows_per_second_initial", self.rows_per_second_initial),
            ("read_bytes_per_second_initial", self.read_bytes_per_second_initial),
        ];
        for (field, found) in speeds {
            if !(found.is_finite() && 0.0 < found) {
                let found = found.to_string();
                return Err(ConfigError { field, found, expected: "a number above 0" });
            }
        }
        Ok(())
    }

    pub(crate) fn locate_wait(&self) -> Duration {
        Duration::from_millis(self.locate_wait_ms_max)
    }

    pub(crate) fn read_wait(&self) -> Duration {
        Duration::from_millis(self.read_wait_ms_max)
    }

    pub(crate) fn offer_wait(&self) -> Duration {
        self.read_wait() * OFFER_READ_WAITS
    }

    pub(crate) fn prefill_silence(&self) -> Duration {
        Duration::from_millis(self.prefill_silence_ms_max)
    }

    pub(crate) fn report_interval(&self) -> Duration {
        Duration::from_millis(self.report_interval_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::DecodeConfig;

    #[test]
    fn every_range_is_checked_by_name() {
        let standard = DecodeConfig::STANDARD;
        assert_eq!(standard.check(), Ok(()));
        let wrong = [
            ("sequences_max", DecodeConfig { sequences_max: 0, ..standard.clone() }),
            ("waiting_max", DecodeConfig { waiting_max: 0, ..standard.clone() }),
            ("decode_rows_step_max", DecodeConfig { decode_rows_step_max: 0, ..standard.clone() }),
            ("tail_rows_step_max", DecodeConfig { tail_rows_step_max: 127, ..standard.clone() }),
            (
                "resume_exact_tokens",
                DecodeConfig { resume_exact_tokens: 2_000_000, ..standard.clone() },
            ),
            ("replay_rows", DecodeConfig { replay_rows: Some(0), ..standard.clone() }),
            ("locate_wait_ms_max", DecodeConfig { locate_wait_ms_max: 0, ..standard.clone() }),
            ("read_wait_ms_max", DecodeConfig { read_wait_ms_max: 0, ..standard.clone() }),
            (
                "prefill_silence_ms_max",
                DecodeConfig { prefill_silence_ms_max: 0, ..standard.clone() },
            ),
            ("prefill_attempts_max", DecodeConfig { prefill_attempts_max: 17, ..standard.clone() }),
            ("reads_start_max", DecodeConfig { reads_start_max: 0, ..standard.clone() }),
            ("offers_max", DecodeConfig { offers_max: 2_000_000, ..standard.clone() }),
            ("grammar_threads", DecodeConfig { grammar_threads: 1, ..standard.clone() }),
            (
                "grammar_threads_lost_max",
                DecodeConfig { grammar_threads_lost_max: 2_000, ..standard.clone() },
            ),
            (
                "grammar_compile_ms_max",
                DecodeConfig { grammar_compile_ms_max: 0, ..standard.clone() },
            ),
            ("grammar_mask_ms_max", DecodeConfig { grammar_mask_ms_max: 0, ..standard.clone() }),
            (
                "grammar_cache_bytes_max",
                DecodeConfig { grammar_cache_bytes_max: 2 << 40, ..standard.clone() },
            ),
            ("report_interval_ms", DecodeConfig { report_interval_ms: 0, ..standard.clone() }),
            (
                "rows_per_second_initial",
                DecodeConfig { rows_per_second_initial: -1.0, ..standard.clone() },
            ),
            (
                "read_bytes_per_second_initial",
                DecodeConfig { read_bytes_per_second_initial: f64::NAN, ..standard.clone() },
            ),
        ];
        for (field, config) in wrong {
            assert_eq!(config.check().map_err(|error| error.field), Err(field));
        }
        let text = DecodeConfig { waiting_max: 0, ..standard }.check().unwrap_err().to_string();
        assert_eq!(text, "decode.waiting_max is 0, expected 1..=65536");
    }
}
