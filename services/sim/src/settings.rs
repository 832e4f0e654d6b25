//! Everything that can be set about a simulation, in one table: name, unit, range, default and where the default comes
//! from. What is printed, swept and read from scenario files is this table, so that nothing about a run is hidden.

mod table;

use std::time::Duration;

use shared::StartGeometry;

pub use table::{KEYS, Key, Settings};

/// The hand-off numbers of the released Flash configuration.
pub(crate) const GEOMETRY: StartGeometry =
    StartGeometry { window: 128, rollback: 12, encoder_layers: 20 };

/// Bytes of a block of the Flash layout.
pub(crate) const BLOCK_BYTES: u64 = 113_920;

/// A setting that cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingError {
    /// No setting has this name.
    #[error("there is no setting {name}; `kvasir sim --list` shows all")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The value is not one of the setting's.
    #[error("{name} = {found} is out of range; give {expected}")]
    Range {
        /// The setting.
        name: String,
        /// Its value.
        found: String,
        /// The range, in words.
        expected: String,
    },
    /// Two settings contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// A group of settings under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// What it is, and what its numbers are worth.
    pub about: &'static str,
    /// The settings it changes.
    pub values: &'static [(&'static str, &'static str)],
}

/// The presets.
pub const PRESETS: [Preset; 2] = [
    Preset {
        name: "aggregated-8",
        about: "eight decode workers without prefill workers, the fleet of benches/results/2026-11-30-sim.md. Its speeds are assumed, not measured: \
                chosen so that TTFT without an index (index-entries = 1) at speed 1 is that of round robin in that table. \
                Requests come as tokens, as there: no time is taken to make these",
        values: &[
            ("prefill", "0"),
            ("decode", "8"),
            ("decode-blocks", "4096"),
            ("stores", "0"),
            ("edge-tokens-per-s", "0"),
            ("tail-rows-per-s", "57000"),
            ("decode-step-ms", "5"),
            ("decode-row-ms", "0.1"),
            ("tail-rows-step", "2048"),
            ("restore-host-ms", "0.02"),
            ("restore-disk-ms", "0.06"),
        ],
    },
    Preset {
        name: "split-64",
        about: "64 prefill and 64 decode workers with eight stores. Its speeds are assumed, not measured",
        values: &[
            ("prefill", "64"),
            ("decode", "64"),
            ("stores", "8"),
            ("decode-blocks", "4096"),
            ("prefill-blocks", "4096"),
            ("host-gib", "64"),
            ("encoder-rows-per-s", "40000"),
            ("tail-rows-per-s", "40000"),
            ("decode-step-ms", "5"),
            ("decode-row-ms", "0.1"),
            ("restore-host-ms", "0.02"),
            ("restore-disk-ms", "0.06"),
            ("restore-peer-ms", "0.02"),
            ("handoff-ms", "5"),
        ],
    },
];

/// The key of this name.
///
/// # Errors
/// When there is none.
pub(crate) fn key(name: &str) -> Result<&'static Key, SettingError> {
    let same = |key: &&Key| key.name().eq(name.chars());
    KEYS.iter().find(same).ok_or_else(|| SettingError::Unknown { name: name.to_owned() })
}

impl Key {
    /// The name as it is typed: words with hyphens.
    pub fn name(&self) -> impl Iterator<Item = char> + use<> {
        self.field.chars().map(|letter| if letter == '_' { '-' } else { letter })
    }

    /// The values that it can have, in words.
    #[must_use]
    pub fn range(&self) -> String {
        (self.range)()
    }
}

impl Settings {
    /// Sets one value.
    ///
    /// # Errors
    /// When there is no such setting, or the value is out of its range. Nothing changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let key = key(name)?;
        (key.write)(self, value).map_err(|()| SettingError::Range {
            name: key.name().collect(),
            found: value.to_owned(),
            expected: key.range(),
        })
    }

    /// Sets the values of a preset.
    ///
    /// # Errors
    /// When there is no preset of this name.
    pub fn apply(&mut self, preset: &str) -> Result<(), SettingError> {
        let unknown = || SettingError::Unknown { name: format!("preset {preset}") };
        let preset = PRESETS.iter().find(|known| known.name == preset).ok_or_else(unknown)?;
        preset.values.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    /// Checks what ranges do not say.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), SettingError> {
        let has_tier = 0.0 < self.host_gib || 0.0 < self.disk_gib;
        let checks = [
            (0 < self.decode, "decode = 0: nothing answers; set at least one decode worker"),
            (
                self.stores == 0 || has_tier,
                "stores without bytes; set host-gib or disk-gib, or stores = 0",
            ),
            (
                self.disk_gib == 0.0 || crate::drive::fits(self),
                "disk-gib is too small for two segments and a write budget; raise it or lower segment-mib",
            ),
        ];
        match checks.into_iter().find(|(holds, _)| !holds) {
            Some((_, what)) => Err(SettingError::Contradiction(what)),
            None => Ok(()),
        }
    }

    /// All settings as text: name, value, and whether it is the default.
    pub fn shown(&self) -> Vec<(String, String, bool)> {
        let defaults = Self::default();
        let row = |key: &Key| {
            let value = (key.read)(self);
            let is_default = value == (key.read)(&defaults);
            (key.name().collect(), value, is_default)
        };
        KEYS.iter().map(row).collect()
    }
}

/// A time in milliseconds.
pub(crate) fn ms(ms: f64) -> Duration {
    seconds(ms / 1_000.0)
}

/// A time in seconds.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// A count as a size.
pub(crate) fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// A count in 32 bits.
pub(crate) fn narrow(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A count of things in memory.
pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits")
}

/// A count for a ratio. Exact below 2^53.
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// Whole blocks that so many GiB hold.
pub(crate) fn blocks_in(gib: f64) -> u64 {
    let bytes = gib * 1_073_741_824.0;
    // The whole part of a positive number: a duration of as many seconds counts them.
    seconds(bytes / real(BLOCK_BYTES)).as_secs()
}

#[cfg(test)]
mod tests {
    use super::{KEYS, PRESETS, SettingError, Settings, blocks_in};

    #[test]
    fn defaults_are_within_their_ranges_and_can_be_set_as_they_are_shown() {
        let defaults = Settings::default();
        assert_eq!(defaults.check(), Ok(()));
        for (name, value, is_default) in defaults.shown() {
            let mut settings = Settings::default();
            assert_eq!(settings.set(&name, &value), Ok(()), "{name}");
            assert!(is_default && settings == defaults, "{name}");
        }
    }

    #[test]
    fn presets_name_settings_and_hold_together() {
        for preset in PRESETS {
            let mut settings = Settings::default();
            assert_eq!(settings.apply(preset.name), Ok(()), "{}", preset.name);
            assert_eq!(settings.check(), Ok(()), "{}", preset.name);
        }
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        let mut settings = Settings::default();
        let cases = [
            ("decode", "65"),
            ("policy", "best"),
            ("decode", "-1"),
            ("decode", "1.5"),
            ("speed", "0"),
            ("speed", "inf"),
            ("host-gib", "NaN"),
            ("seed", ""),
        ];
        for (name, value) in cases {
            let error = settings.set(name, value).unwrap_err();
            assert!(matches!(error, SettingError::Range { .. }), "{name} = {value}: {error}");
        }
        assert!(matches!(settings.set("nothing", "1"), Err(SettingError::Unknown { .. })));
        assert!(settings.apply("nothing").is_err());
        assert_eq!(settings, Settings::default(), "nothing changed");
        settings.set("stores", "2").unwrap();
        settings.set("host-gib", "0").unwrap();
        settings.set("disk-gib", "0").unwrap();
        assert!(settings.check().is_err());
    }

    #[test]
    fn every_key_has_a_unit_and_a_source() {
        for key in KEYS {
            assert!(!key.about.is_empty() && !key.source.is_empty(), "{}", key.field);
        }
        assert_eq!(blocks_in(1.0), 9_425);
    }
}
