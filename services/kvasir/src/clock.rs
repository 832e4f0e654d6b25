//! The machine's clock. The only place of the workspace that reads one.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is the implementation of shared::Clock that everybody else is told to take"
)]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use shared::{Clock, Timestamp};

/// Time of this machine, counted from the moment of construction.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn unix_seconds(&self) -> u64 {
        // A clock set before 1970 shows zero: the value is for display only.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

/// Nanoseconds since the Unix epoch, for what is sent to others. May jump; zero when the clock is set before 1970.
pub(crate) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Entropy for secrets and request ids, from the operating system.
///
/// # Errors
/// When `/dev/urandom` cannot be read.
pub(crate) fn random_bytes<const COUNT: usize>() -> std::io::Result<[u8; COUNT]> {
    use std::io::Read;

    let mut bytes = [0; COUNT];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use shared::Clock;

    use super::{SystemClock, random_bytes};

    #[test]
    fn time_never_goes_back() {
        let clock = SystemClock::start();
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(last <= now);
            last = now;
        }
        assert!(1_700_000_000 < clock.unix_seconds());
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<32>().unwrap(), random_bytes::<32>().unwrap());
    }
}
