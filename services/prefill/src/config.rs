//! What an operator can set, and what it costs.

use std::time::Duration;

use shared::BLOCK_TOKENS;
use shared::Durability;

/// Settings of one prefill worker.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillConfig {
    /// Rows of one engine call, over all requests. Unit: rows; range: 128..=65,536; default: 512.
    /// More rows use the machine better; a cancel, a new request and a fetched block wait for the call to end.
    pub step_rows_max: u32,
    /// Requests in the queue. Range: 1..=65,536; default: 256. The next one is refused as overloaded, so that the
    /// caller can go elsewhere while its deadline still allows it.
    pub waiting_max: usize,
    /// Requests that hold slots and share the steps. Range: 1..=4,096; default: 16. Each more makes all slower; one
    /// alone cannot overlap its fetches with another one's rows.
    pub running_max: usize,
    /// Finished requests whose blocks are still pinned for the decode worker. Range: 1..=65,536; default: 256.
    /// When reached, nothing new starts until a decode worker has read its blocks.
    pub held_max: usize,
    /// Distance of the window objects published inside a prefill, besides the one at S. Unit: tokens; range: multiples
    /// of 128 up to 1,048,576; default: 2,048, because a later request that shares a prefix then recomputes at most
    /// 2,047 rows, and one object per 2,048 tokens costs 0.7 bytes of host memory per byte of blocks for Flash.
    pub window_interval: u32,
    /// R: rows replayed below a cached prefix that has no window object, in lineage bounded. Unit: rows; range: 1 to
    /// 65,536; none: the model's window W, as the family was post-trained. More is nearer to exact and slower.
    pub replay_rows: Option<u32>,
    /// How long a lookup in the store may take. Unit: milliseconds; range: 1..=60,000; default: 250. After that the
    /// request is served as if the store held nothing.
    pub locate_wait_ms_max: u64,
    /// How long the reads of one request may make no progress. Unit: milliseconds; range: 1..=600,000; default: 5,000.
    /// After that the blocks that are not there are computed. An offer that the store has not answered after six times as
    /// long is withdrawn.
    pub read_wait_ms_max: u64,
    /// Objects offered to the store whose outcome is open. They stay pinned. Range: 0..=1,048,576; default: 4,096.
    /// What exceeds it is not offered and counted.
    pub offers_max: usize,
    /// Where an offered block is to be before the offer counts as stored: in a store node's memory, or on its drive as well.
    /// It stays pinned until then, some milliseconds more for a drive. Default: memory.
    pub durability: Durability,
    /// Longest silence between two load reports, and up to 5,000 between two signs of life to each unfinished request.
    /// Unit: milliseconds; range: 10..=60,000; default: 1,000. Less than whoever hears them waits for the next, or for an
    /// answer, which comes with it.
    pub report_interval_ms: u64,
    /// Speed assumed until the first step was measured. Unit: rows per second; range: above 0; default: 2,000. It
    /// only decides whether the first cached prefix is read or recomputed.
    pub rows_per_second_initial: f64,
    /// Speed of reads assumed until the first one was measured. Unit: bytes per second; range: above 0; default:
    /// 1e9.
    pub read_bytes_per_second_initial: f64,
}

/// The store reads what it is offered, behind the offers of all other workers: so many times the wait for one request's
/// reads, 30 seconds by default.
const OFFER_READ_WAITS: u32 = 6;

/// Signs of life come at least this often, however seldom load is reported: decode workers give up after 30 seconds by
/// default, and one long step may lie between two of them.
const SIGN_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// A setting that is outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("prefill.{field} is {found}, expected {expected}")]
pub struct ConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub found: String,
    /// The range.
    pub expected: &'static str,
}

impl PrefillConfig {
    /// The defaults named in the fields' documentation.
    pub const STANDARD: Self = Self {
        step_rows_max: 512,
        waiting_max: 256,
        running_max: 16,
        held_max: 256,
        window_interval: 2_048,
        replay_rows: None,
        locate_wait_ms_max: 250,
        read_wait_ms_max: 5_000,
        offers_max: 4_096,
        durability: Durability::Memory,
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
        let replay_rows = u64::from(self.replay_rows.unwrap_or(1));
        let ranges = [
            ("step_rows_max", u64::from(self.step_rows_max), 128..=65_536, "128..=65536"),
            ("waiting_max", count(self.waiting_max), 1..=65_536, "1..=65536"),
            ("running_max", count(self.running_max), 1..=4_096, "1..=4096"),
            ("held_max", count(self.held_max), 1..=65_536, "1..=65536"),
            ("window_interval", u64::from(self.window_interval), 128..=1_048_576, "128..=1048576"),
            ("replay_rows", replay_rows, 1..=65_536, "1..=65536"),
            ("locate_wait_ms_max", self.locate_wait_ms_max, 1..=60_000, "1..=60000"),
            ("read_wait_ms_max", self.read_wait_ms_max, 1..=600_000, "1..=600000"),
            ("offers_max", count(self.offers_max), 0..=1_048_576, "0..=1048576"),
            ("report_interval_ms", self.report_interval_ms, 10..=60_000, "10..=60000"),
        ];
        for (field, found, range, expected) in ranges {
            if !range.contains(&found) {
                return Err(ConfigError { field, found: found.to_string(), expected });
            }
        }
        if !self.window_interval.is_multiple_of(BLOCK_TOKENS) {
            let found = self.window_interval.to_string();
            return Err(ConfigError {
                field: "window_interval",
                found,
                expected: "a multiple of 128",
            });
        }
        let speeds = [
            ("rows_per_second_initial", self.rows_per_second_initial),
            ("read_bytes_per_second_initial", self.read_bytes_per_second_initial),
        ];
        for (field, found) in speeds {
            if !(found.is_finite() && 0.0 < found) {
                return Err(ConfigError {
                    field,
                    found: found.to_string(),
                    expected: "a number above 0",
                });
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

    pub(crate) fn sign_interval(&self) -> Duration {
        self.report_interval().min(SIGN_INTERVAL_MAX)
    }

    pub(crate) fn report_interval(&self) -> Duration {
        Duration::from_millis(self.report_interval_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::PrefillConfig;

    #[test]
    fn every_range_is_checked_by_name() {
        let standard = PrefillConfig::STANDARD;
        assert_eq!(standard.check(), Ok(()));
        let wrong = [
            PrefillConfig { step_rows_max: 127, ..standard.clone() },
            PrefillConfig { waiting_max: 0, ..standard.clone() },
            PrefillConfig { running_max: 0, ..standard.clone() },
            PrefillConfig { held_max: 0, ..standard.clone() },
            PrefillConfig { window_interval: 200, ..standard.clone() },
            PrefillConfig { replay_rows: Some(0), ..standard.clone() },
            PrefillConfig { locate_wait_ms_max: 0, ..standard.clone() },
            PrefillConfig { read_wait_ms_max: 0, ..standard.clone() },
            PrefillConfig { offers_max: 2_000_000, ..standard.clone() },
            PrefillConfig { report_interval_ms: 0, ..standard.clone() },
            PrefillConfig { rows_per_second_initial: 0.0, ..standard.clone() },
            PrefillConfig { read_bytes_per_second_initial: f64::NAN, ..standard.clone() },
        ];
        let fields: Vec<_> = wrong.iter().map(|config| config.check().unwrap_err().field).collect();
        let expected = [
            "step_rows_max",
            "waiting_max",
            "running_max",
            "held_max",
            "window_interval",
            "replay_rows",
            "locate_wait_ms_max",
            "read_wait_ms_max",
            "offers_max",
            "report_interval_ms",
            "rows_per_second_initial",
            "read_bytes_per_second_initial",
        ];
        assert_eq!(fields, expected);
        let text = wrong[0].check().unwrap_err().to_string();
        assert_eq!(text, "prefill.step_rows_max is 127, expected 128..=65536");
    }
}
