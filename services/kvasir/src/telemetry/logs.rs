//! Log lines on their way to the collector: a layer beside the one that writes to standard error, behind the same filter.

use std::fmt::{self, Debug};
use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use parking_lot::RwLock;
use shared::{RequestId, TraceContext};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::export::Outlet;
use super::spans::{Running, flag, number, text};

/// Whose lines are not sent: ours about the sending, and those of the libraries below it, which would be told anew with every
/// message that carries them.
const UNSENT: [&str; 6] =
    ["kvasir::telemetry::export", "h2", "hyper", "hyper_util", "tonic", "tower"];
/// Longest text of a record in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 4_096;

/// Where log lines go besides standard error, once there is such a place. Clones are the same tap.
#[derive(Clone, Default)]
pub(crate) struct LogTap {
    line: Arc<RwLock<Option<Arc<Line>>>>,
}

impl Debug for LogTap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.line.read().is_some();
        f.debug_struct("LogTap").field("connected", &connected).finish()
    }
}

struct Line {
    records: Outlet<LogRecord>,
    running: Arc<Running>,
    /// Nanoseconds since the Unix epoch.
    wall: fn() -> u64,
}

impl LogTap {
    pub(super) fn connect(
        &self,
        records: Outlet<LogRecord>,
        running: Arc<Running>,
        wall: fn() -> u64,
    ) {
        *self.line.write() = Some(Arc::new(Line { records, running, wall }));
    }

    pub(super) fn disconnect(&self) {
        *self.line.write() = None;
    }
}

/// The layer that feeds a tap.
pub(crate) struct LogLayer {
    tap: LogTap,
}

impl LogLayer {
    /// A layer for this tap. Costs next to nothing while the tap leads nowhere.
    pub(crate) fn new(tap: LogTap) -> Self {
        Self { tap }
    }
}

/// Remembered at a span of the log: whose request it is.
struct RequestOf(RequestId);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let (Some(request), Some(span)) = (fields.request, context.span(id)) {
            span.extensions_mut().insert(RequestOf(request));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(line) = self.tap.line.read().clone() else { return };
        let metadata = event.metadata();
        if unsent(metadata.target()) {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let target = fields.target.take().unwrap_or_else(|| metadata.target().to_owned());
        if unsent(&target) {
            return;
        }
        let request = fields.request.or_else(|| {
            let spans = context.event_scope(event)?;
            spans
                .into_iter()
                .find_map(|span| span.extensions().get::<RequestOf>().map(|request| request.0))
        });
        let trace = fields.trace.or_else(|| line.running.of(request?));
        let now = (line.wall)();
        let (severity, word) = severity(*metadata.level());
        let mut attributes = fields.others;
        attributes.push(text("target", target));
        attributes.extend(request.map(|id| text("kvasir.request_id", id.to_string())));
        line.records.put(LogRecord {
            time_unix_nano: now,
            observed_time_unix_nano: now,
            severity_number: i32::from(severity),
            severity_text: word.to_owned(),
            body: fields.message.map(|body| AnyValue { value: Some(Value::StringValue(body)) }),
            attributes,
            flags: trace.map_or(0, |trace| u32::from(trace.sampled)),
            trace_id: trace.map_or_else(Vec::new, |trace| trace.trace.to_be_bytes().into()),
            span_id: trace.map_or_else(Vec::new, |trace| trace.span.to_be_bytes().into()),
            ..LogRecord::default()
        });
    }
}

fn unsent(target: &str) -> bool {
    UNSENT.iter().any(|ours| {
        target.strip_prefix(ours).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

fn severity(level: Level) -> (SeverityNumber, &'static str) {
    match level {
        Level::ERROR => (SeverityNumber::Error, "ERROR"),
        Level::WARN => (SeverityNumber::Warn, "WARN"),
        Level::INFO => (SeverityNumber::Info, "INFO"),
        Level::DEBUG => (SeverityNumber::Debug, "DEBUG"),
        Level::TRACE => (SeverityNumber::Trace, "TRACE"),
    }
}

/// The fields of a line, those with a meaning apart.
#[derive(Default)]
struct Fields {
    message: Option<String>,
    request: Option<RequestId>,
    trace: Option<TraceContext>,
    /// Of a line that came from the crate `log`.
    target: Option<String>,
    others: Vec<KeyValue>,
}

impl Fields {
    fn take(&mut self, name: &str, mut value: String) {
        value.truncate(value.floor_char_boundary(TEXT_BYTES_MAX));
        match name {
            "message" => self.message = Some(value),
            "log.target" => self.target = Some(value),
            "log.module_path" | "log.file" | "log.line" => {}
            // Workers write `id`; other things are called so, too.
            "request" | "id" if self.request.is_none() && request_id(&value).is_some() => {
                self.request = request_id(&value);
            }
            "trace" if TraceContext::parse(&value).is_some() => {
                self.trace = TraceContext::parse(&value);
            }
            _ => self.others.push(text(name, value)),
        }
    }
}

/// Reads an id as it is printed.
fn request_id(text: &str) -> Option<RequestId> {
    let digits = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok().map(RequestId)).flatten()
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() != "log.line" {
            self.others.push(number(field.name(), value));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.others.push(number(field.name(), value)),
            Err(_) => self.take(field.name(), value.to_string()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push(flag(field.name(), value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let value = Some(AnyValue { value: Some(Value::DoubleValue(value)) });
        self.others.push(KeyValue { key: field.name().to_owned(), value, ..KeyValue::default() });
    }
}
