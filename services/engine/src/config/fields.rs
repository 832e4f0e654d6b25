//! Reading of single values out of `config.json`, so that each error names the field, what was expected and what was found.

use std::fmt::Display;

use serde_json::{Map, Value};

use super::ConfigError;

/// A JSON object together with its place in the file.
pub(super) struct Fields<'a> {
    prefix: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn root(value: &'a Value) -> Result<Self, ConfigError> {
        let map = value
            .as_object()
            .ok_or_else(|| ConfigError::field("config.json", "an object", show(Some(value))))?;
        Ok(Self { prefix: String::new(), map })
    }

    /// The full name of a field, as errors show it.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The value, unless it is missing or null.
    pub(super) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn refuse(&self, name: &str, expected: impl Display) -> ConfigError {
        ConfigError::field(self.path(name), expected, show(self.map.get(name)))
    }

    pub(super) fn object(&self, name: &str) -> Result<Self, ConfigError> {
        self.object_if_present(name)?.ok_or_else(|| self.refuse(name, "an object"))
    }

    pub(super) fn object_if_present(&self, name: &str) -> Result<Option<Self>, ConfigError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.refuse(name, "an object"))?;
        Ok(Some(Self { prefix: format!("{}{name}.", self.prefix), map }))
    }

    /// An integer in `min..=max`.
    pub(super) fn integer(&self, name: &str, min: u64, max: u64) -> Result<u64, ConfigError> {
        self.value(name)
            .and_then(Value::as_u64)
            .filter(|found| (min..=max).contains(found))
            .ok_or_else(|| self.refuse(name, format!("an integer in {min}..={max}")))
    }

    /// A size in `1..=max`.
    pub(super) fn size(&self, name: &str, max: usize) -> Result<usize, ConfigError> {
        let found = self.integer(name, 1, max as u64)?;
        Ok(usize::try_from(found).expect("bounded by max, which is a usize"))
    }

    /// A positive multiple of `step` up to `max`.
    pub(super) fn width(&self, name: &str, step: usize, max: usize) -> Result<usize, ConfigError> {
        self.value(name)
            .and_then(Value::as_u64)
            .and_then(|found| usize::try_from(found).ok())
            .filter(|found| (1..=max).contains(found) && found.is_multiple_of(step))
            .ok_or_else(|| self.refuse(name, format!("a multiple of {step} in {step}..={max}")))
    }

    /// A token count or id that fits 32 bits, in `min..=max`.
    pub(super) fn integer32(&self, name: &str, min: u32, max: u32) -> Result<u32, ConfigError> {
        let found = self.integer(name, u64::from(min), u64::from(max))?;
        Ok(u32::try_from(found).expect("bounded by max, which is a u32"))
    }

    /// A finite number above zero.
    pub(super) fn positive(&self, name: &str) -> Result<f64, ConfigError> {
        self.value(name)
            .and_then(Value::as_f64)
            .filter(|found| found.is_finite() && 0.0 < *found)
            .ok_or_else(|| self.refuse(name, "a number above 0"))
    }

    /// A list of integers up to `max`, at most `length_max` of them.
    pub(super) fn list(
        &self,
        name: &str,
        max: u64,
        length_max: usize,
    ) -> Result<Vec<u64>, ConfigError> {
        let expected =
            || self.refuse(name, format!("a list of up to {length_max} integers in 0..={max}"));
        let values = self.value(name).and_then(Value::as_array).ok_or_else(expected)?;
        if length_max < values.len() {
            return Err(expected());
        }
        values
            .iter()
            .map(|value| value.as_u64().filter(|found| *found <= max).ok_or_else(expected))
            .collect()
    }

    /// A strictly ascending list of layer numbers below `layers`.
    pub(super) fn layer_list(&self, name: &str, layers: usize) -> Result<Vec<usize>, ConfigError> {
        let found = self.list(name, (layers - 1) as u64, layers)?;
        if !found.is_sorted_by(|a, b| a < b) {
            return Err(self.refuse(name, "layer numbers in ascending order"));
        }
        Ok(found.into_iter().filter_map(|layer| usize::try_from(layer).ok()).collect())
    }

    /// The field must hold exactly this value.
    pub(super) fn require(&self, name: &str, expected: &Value) -> Result<(), ConfigError> {
        let equal = match (self.value(name), expected) {
            (Some(found), Value::Number(number)) => found.as_f64() == number.as_f64(),
            (found, expected) => found == Some(expected),
        };
        if equal { Ok(()) } else { Err(self.refuse(name, show(Some(expected)))) }
    }

    /// The field must be missing, null or hold exactly this value.
    pub(super) fn require_if_present(
        &self,
        name: &str,
        expected: &Value,
    ) -> Result<(), ConfigError> {
        if self.value(name).is_none() { Ok(()) } else { self.require(name, expected) }
    }
}

/// A value for an error message: compact, cut after 60 characters.
fn show(value: Option<&Value>) -> String {
    let Some(value) = value else { return String::from("missing") };
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
