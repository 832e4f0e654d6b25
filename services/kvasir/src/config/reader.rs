//! Moves values of a TOML table into fields, key by key, and refuses what is left.

use std::time::Duration;

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

/// A table being read.
pub(super) struct Reader {
    /// The table's name as it stands in the file, for messages.
    name: String,
    table: toml::Table,
}

/// The unit of a duration's key.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Microseconds,
    Milliseconds,
    Seconds,
}

impl Reader {
    pub(super) fn new(name: &str, table: toml::Table) -> Self {
        Self { name: name.to_owned(), table }
    }

    /// A value, if the file has one.
    pub(super) fn set<T: DeserializeOwned>(
        &mut self,
        key: &str,
        field: &mut T,
    ) -> anyhow::Result<()> {
        if let Some(value) = self.table.remove(key) {
            *field = value.try_into().with_context(|| format!("{}.{key}", self.name))?;
        }
        Ok(())
    }

    /// A value whose absence in the file means that the crate chooses.
    pub(super) fn set_some<T: DeserializeOwned>(
        &mut self,
        key: &str,
        field: &mut Option<T>,
    ) -> anyhow::Result<()> {
        if let Some(value) = self.table.remove(key) {
            *field = Some(value.try_into().with_context(|| format!("{}.{key}", self.name))?);
        }
        Ok(())
    }

    /// A duration, written as a whole number of `unit`.
    pub(super) fn set_time(
        &mut self,
        key: &str,
        unit: Unit,
        field: &mut Duration,
    ) -> anyhow::Result<()> {
        let mut count: Option<u64> = None;
        self.set_some(key, &mut count)?;
        if let Some(count) = count {
            *field = match unit {
                Unit::Microseconds => Duration::from_micros(count),
                Unit::Milliseconds => Duration::from_millis(count),
                Unit::Seconds => Duration::from_secs(count),
            };
        }
        Ok(())
    }

    /// A table inside this one; an empty one when the file has none.
    pub(super) fn inner(&mut self, key: &str) -> anyhow::Result<Self> {
        let mut table = toml::Table::new();
        self.set(key, &mut table)?;
        Ok(Self { name: format!("{}.{key}", self.name), table })
    }

    /// Ends the reading.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        if let Some(key) = self.table.keys().next() {
            bail!("{}.{key} is unknown; see deploy/kvasir.example.toml for the keys", self.name);
        }
        Ok(())
    }
}
