//! The members of a request body, taken out one by one.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::config::LineageChoice;
use crate::error::ApiError;
use crate::isolation::Isolation;

/// The members of the request. `null` counts as absent.
pub(super) struct Fields(Map<String, Value>);

/// The request's `kvasir` object.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extension {
    lineage: Option<LineageChoice>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// The most output tokens the API takes, and the most stop strings. Source: DeepSeek's API rules.
pub(super) const OUTPUT_TOKENS_MAX: u64 = 393_216;
const STOPS_MAX: usize = 16;
/// Longest stop string in bytes: what clients send is a word or a line, and each answer of a request looks for all of them.
pub(super) const STOP_BYTES_MAX: usize = 1_024;

impl Fields {
    /// # Errors
    /// When the body is not one JSON object.
    pub(super) fn of(body: &[u8]) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|error| {
            ApiError::body_unreadable(format!(
                "the body is not valid JSON: {error}; send one object"
            ))
        })?;
        match value {
            Value::Object(map) => Ok(Self(map)),
            _ => Err(ApiError::body_unreadable("the body is not a JSON object; send one object")),
        }
    }

    /// The members of an object within the request; none when it is something else.
    pub(super) fn within(value: Value) -> Option<Self> {
        if let Value::Object(map) = value { Some(Self(map)) } else { None }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn set(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    pub(super) fn set_default(&mut self, name: &str, value: impl Into<Value>) {
        if self.peek(name).is_none() {
            self.set(name, value.into());
        }
    }

    pub(super) fn read<T: DeserializeOwned>(
        &mut self,
        name: &str,
        wanted: &str,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let parsed = serde_json::from_value(value);
        parsed.map(Some).map_err(|_| wrong(name, wanted))
    }

    pub(super) fn read_flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false")
    }

    pub(super) fn read_number(
        &mut self,
        name: &str,
        holds: impl Fn(f32) -> bool,
        range: &str,
    ) -> Result<Option<f32>, ApiError> {
        let wanted = format!("a number, {range}");
        let number: Option<f32> = self.read(name, &wanted)?;
        if number.is_some_and(|number| !holds(number)) {
            return Err(wrong(name, &wanted));
        }
        Ok(number)
    }

    pub(super) fn read_integer(
        &mut self,
        name: &str,
        min: u64,
        max: u64,
    ) -> Result<Option<u64>, ApiError> {
        let wanted = format!("an integer, {min} to {max}");
        let number: Option<u64> = self.read(name, &wanted)?;
        if number.is_some_and(|number| number < min || max < number) {
            return Err(wrong(name, &wanted));
        }
        Ok(number)
    }

    pub(super) fn read_temperature(&mut self) -> Result<Option<f32>, ApiError> {
        self.read_number("temperature", |t| (0.0..=2.0).contains(&t), "0 to 2")
    }

    pub(super) fn read_top_p(&mut self) -> Result<Option<f32>, ApiError> {
        self.read_number("top_p", |p| 0.0 < p && p <= 1.0, "above 0 to 1")
    }

    /// A bound of the answer in tokens.
    pub(super) fn read_tokens_max(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        let tokens = self.read_integer(name, 1, OUTPUT_TOKENS_MAX)?;
        Ok(tokens.map(|tokens| u32::try_from(tokens).expect("checked against the bound")))
    }

    /// Stop strings: one, or a list.
    pub(super) fn read_stops(&mut self, name: &str) -> Result<Vec<String>, ApiError> {
        let wanted = "a string, or a list of at most 16 strings, each of 1 to 1024 bytes";
        let stops = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::String(stop)) => vec![stop],
            Some(list) => serde_json::from_value(list).map_err(|_| wrong(name, wanted))?,
        };
        let fits = |stop: &String| (1..=STOP_BYTES_MAX).contains(&stop.len());
        if STOPS_MAX < stops.len() || !stops.iter().all(fits) {
            return Err(wrong(name, wanted));
        }
        Ok(stops)
    }

    /// Whose cache the request may share; the user's name stands at this path.
    pub(super) fn read_isolation(&self, user_at: &[&str]) -> Result<Isolation, ApiError> {
        Isolation::read(&self.0, user_at)
    }

    pub(super) fn read_lineage(&mut self) -> Result<Option<LineageChoice>, ApiError> {
        let extension: Option<Extension> =
            self.read("kvasir", r#"an object like {"lineage": "exact"}"#)?;
        Ok(extension.and_then(|extension| extension.lineage))
    }

    /// Whether a usage chunk is wanted.
    pub(super) fn read_include_usage(&mut self, stream: bool) -> Result<bool, ApiError> {
        let wanted = r#"an object like {"include_usage": true}"#;
        let options: Option<StreamOptions> = self.read("stream_options", wanted)?;
        if options.is_some() && !stream {
            let message =
                "stream_options needs stream to be true; set it or leave stream_options out";
            return Err(ApiError::invalid(Some("stream_options".into()), message));
        }
        Ok(options.and_then(|options| options.include_usage).unwrap_or(false))
    }

    /// Checks members that change no answer, but say that the client meant something else when they are of another kind.
    pub(super) fn check_remarks(&self, remarks: &[Remark]) -> Result<(), ApiError> {
        for (name, holds, wanted) in remarks {
            if self.peek(name).is_some_and(|value| !holds(value)) {
                return Err(wrong(name, wanted));
            }
        }
        Ok(())
    }

    /// One of the members that nobody took and that hold something.
    pub(super) fn first_left(&self) -> Option<&str> {
        self.0.iter().find(|(_, value)| holds_something(value)).map(|(name, _)| name.as_str())
    }

    /// Refuses members that hold something: ignoring them would change the answer.
    pub(super) fn refuse(&mut self, names: &[&str]) -> Result<(), ApiError> {
        for name in names {
            if self.take(name).is_some_and(|value| holds_something(&value)) {
                return Err(unsupported(name, "leave it out"));
            }
        }
        Ok(())
    }
}

/// A member, what holds of it, and that in words.
pub(super) type Remark = (&'static str, fn(&Value) -> bool, &'static str);

/// Those that chat completions and responses have.
pub(super) const REMARKS: [Remark; 3] = [
    ("metadata", Value::is_object, "an object"),
    ("user", Value::is_string, "a string"),
    ("safety_identifier", Value::is_string, "a string"),
];

/// Whether it says how long an answer is to be. The model is not told.
pub(super) fn is_verbosity(value: &Value) -> bool {
    matches!(value.as_str(), Some("low" | "medium" | "high"))
}

pub(super) fn wrong(name: &str, wanted: &str) -> ApiError {
    ApiError::invalid(Some(name.to_owned()), format!("{name} must be {wanted}"))
}

pub(super) fn unsupported(name: &str, advice: &str) -> ApiError {
    ApiError::unsupported(name, format!("{name} is not supported by this server; {advice}"))
}

pub(super) fn holds_something(value: &Value) -> bool {
    match value {
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(flag) => *flag,
        value => !value.is_null(),
    }
}
