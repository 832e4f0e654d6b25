//! Traces and log lines by OTLP, when a collector is configured.
//!
//! The borders are decorated where a process offers or calls them: each request then is a span, the request of the next leg
//! carries that span's context, and so one trace leads through router, decode and prefill. Log lines go out beside standard
//! error, those of a request with its id and, while its span is open, with its trace.
//!
//! What it is not: metrics are read at `/metrics`, nothing is sampled by its outcome, and no prompt text is in any of it.
//!
//! Invariants: without an endpoint nothing is wrapped, queued or started; a collector that is away, slow or frozen never
//! makes a request or a log line wait: what finds the queue full is dropped, and every record ends as sent, dropped or
//! lost, each counted; a trace that its client does not record is not recorded here; what the sending itself logs is
//! never sent; the environment is not read, which is why the exporter is ours and not that of the SDK.
//!
//! Start reading at `Telemetry`, then `traced`, then `export`.

mod export;
mod logs;
mod spans;
mod traced;

#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use gateway::MetricsProvider;
use kvstore::Transport;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use parking_lot::Mutex;
use serde::Deserialize;
use shared::{BlockStore, Clock, Decode, DecodeDirectory, Prefill, WorkerRank};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Uri};

use crate::clock::{random_bytes, unix_nanos};
use export::{Counts, Origin, Route, outlet};
use spans::{Tracer, TracerParts, number, text};
use traced::{Leg, TracedDecode, TracedDirectory, TracedPrefill, TracedStore, TracedTransport};

pub(crate) use logs::{LogLayer, LogTap};

/// How long the end of a process waits for what is queued. Less than a second is usual; a collector that is away must not
/// keep a supervisor waiting.
const FLUSH_WAIT: Duration = Duration::from_secs(2);
/// How long a connection to the collector may take to begin.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Settings of traces and log lines by OTLP.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// The collector, OTLP over gRPC without TLS, for example `http://127.0.0.1:4317`; a collector elsewhere is best
    /// reached through one on this host, which can do TLS onwards. Default: none, nothing is recorded or sent.
    pub otlp_endpoint: Option<String>,
    /// Share of the requests without a `traceparent` header that are recorded, 0 to 1. Default 1: all of them. Of those with
    /// the header the client decides, by its sampled flag.
    pub sample_ratio: f64,
    /// Spans and, apart from them, log lines that may wait to be sent, 1 to 1,048,576; those beyond are dropped and counted.
    /// Default 4096: some seconds of a busy process, a few MB.
    pub queue_max: usize,
    /// Longest time that a span or log line waits before it is sent, in milliseconds, 1 to 60,000. Default 1000: soon
    /// enough to look at, rare enough to cost nothing.
    pub export_ms: u64,
}

impl Default for TelemetryConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self { otlp_endpoint: None, sample_ratio: 1.0, queue_max: 4_096, export_ms: 1_000 }
    }
}

impl TelemetryConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// Names the first one out of its range.
    pub fn check(&self) -> anyhow::Result<()> {
        let ranges = [
            ("sample_ratio", (0.0..=1.0).contains(&self.sample_ratio), "0..=1"),
            ("queue_max", (1..=1_048_576).contains(&self.queue_max), "1..=1048576"),
            ("export_ms", (1..=60_000).contains(&self.export_ms), "1..=60000"),
        ];
        for (field, holds, expected) in ranges {
            ensure!(holds, "telemetry.{field} is out of range: expected {expected}");
        }
        let Some(endpoint) = &self.otlp_endpoint else { return Ok(()) };
        let uri: Option<Uri> = endpoint.parse().ok();
        let fits = |uri: &Uri| {
            uri.scheme_str() == Some("http")
                && uri.host().is_some_and(|host| !host.is_empty())
                && matches!(uri.path(), "" | "/")
        };
        if !uri.as_ref().is_some_and(fits) {
            bail!(
                "telemetry.otlp_endpoint is {endpoint}, expected http://HOST:PORT of a collector's gRPC port, without TLS \
                 and path"
            );
        }
        Ok(())
    }
}

/// Who sends.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    /// The member's name, unique in the cluster.
    pub(crate) name: String,
    /// Its role.
    pub(crate) role: &'static str,
    /// Its number.
    pub(crate) worker: Option<WorkerRank>,
}

impl Sender {
    fn origin(&self) -> Origin {
        let mut attributes = vec![
            text("service.name", "kvasir"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", self.name.as_str()),
            text("kvasir.role", self.role),
        ];
        if let Some(worker) = self.worker {
            attributes.push(number("kvasir.worker_id", u64::from(worker.worker.0)));
        }
        Origin {
            resource: Resource { attributes, ..Resource::default() },
            scope: InstrumentationScope {
                name: "kvasir".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                ..InstrumentationScope::default()
            },
        }
    }
}

/// The telemetry of one process: decorates its borders, or leaves them as they are when no collector is configured.
pub(crate) struct Telemetry {
    on: Option<On>,
}

struct On {
    tracer: Arc<Tracer>,
    tap: LogTap,
    counts: [(&'static str, Arc<Counts>); 2],
    stop: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
}

impl Telemetry {
    /// Records nothing.
    pub(crate) fn off() -> Self {
        Self { on: None }
    }

    /// Begins to send what is recorded, from tasks of the runtime it is called in. Does not wait for the collector, which need
    /// not be there yet.
    ///
    /// # Errors
    /// When the endpoint is malformed or the system gives no random bytes.
    pub(crate) fn start(
        config: &TelemetryConfig,
        sender: &Sender,
        tap: &LogTap,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let Some(endpoint) = &config.otlp_endpoint else { return Ok(Self::off()) };
        let channel = Endpoint::from_shared(endpoint.clone());
        let channel = channel.with_context(|| {
            format!("telemetry.otlp_endpoint is {endpoint}; expected http://HOST:PORT")
        })?;
        let route = Route {
            endpoint: endpoint.clone(),
            channel: channel.connect_timeout(CONNECT_WAIT).connect_lazy(),
            origin: Arc::new(sender.origin()),
            period: Duration::from_millis(config.export_ms),
        };
        let stop = CancellationToken::new();
        let (spans, sending_spans) = outlet(route.clone(), config.queue_max, stop.clone());
        let (records, sending_records) = outlet(route, config.queue_max, stop.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(sending_spans);
        tasks.spawn(sending_records);
        let counts =
            [("spans", Arc::clone(spans.counts())), ("logs", Arc::clone(records.counts()))];
        let tracer = Arc::new(Tracer::new(TracerParts {
            spans,
            clock,
            wall: unix_nanos,
            seed: random_bytes().context("no random bytes for the ids of spans")?,
            sample_ratio: config.sample_ratio,
        }));
        tap.connect(records, Arc::clone(tracer.running()), unix_nanos);
        let on = On { tracer, tap: tap.clone(), counts, stop, tasks: Mutex::new(tasks) };
        Ok(Self { on: Some(on) })
    }

    /// A decode worker of this process, as others call it.
    pub(crate) fn decode(&self, inner: Arc<dyn Decode>, worker: WorkerRank) -> Arc<dyn Decode> {
        match &self.on {
            None => inner,
            Some(on) => Arc::new(TracedDecode::new(inner, &on.tracer, Leg::Decode, worker)),
        }
    }

    /// A prefill worker of this process, as others call it.
    pub(crate) fn prefill(&self, inner: Arc<dyn Prefill>, worker: WorkerRank) -> Arc<dyn Prefill> {
        match &self.on {
            None => inner,
            Some(on) => Arc::new(TracedPrefill::new(inner, &on.tracer, worker)),
        }
    }

    /// A store of this process, as others call it.
    pub(crate) fn store(
        &self,
        inner: Arc<dyn BlockStore>,
        worker: WorkerRank,
    ) -> Arc<dyn BlockStore> {
        match &self.on {
            None => inner,
            Some(on) => Arc::new(TracedStore::new(inner, &on.tracer, worker)),
        }
    }

    /// The reads of one worker or store of this process.
    pub(crate) fn transport(
        &self,
        inner: Arc<dyn Transport>,
        worker: WorkerRank,
    ) -> Arc<dyn Transport> {
        match &self.on {
            None => inner,
            Some(on) => Arc::new(TracedTransport::new(inner, &on.tracer, worker)),
        }
    }

    /// The decode workers, as the front door of this process finds them.
    pub(crate) fn directory(&self, inner: Arc<dyn DecodeDirectory>) -> Arc<dyn DecodeDirectory> {
        match &self.on {
            None => inner,
            Some(on) => Arc::new(TracedDirectory::new(inner, &on.tracer)),
        }
    }

    /// What became of the spans and log lines so far, in the Prometheus text format. Writes nothing when telemetry is off.
    pub(crate) fn figures(&self) -> MetricsProvider {
        let counts = self.on.as_ref().map(|on| on.counts.clone());
        Arc::new(move |text| {
            if let Some(counts) = &counts {
                write_figures(counts, text);
            }
        })
    }

    /// Sends what is queued, for at most two seconds, and ends the tasks. What is recorded later is dropped. A second call
    /// does nothing.
    pub(crate) async fn shutdown(&self) {
        let Some(on) = &self.on else { return };
        on.tap.disconnect();
        on.stop.cancel();
        let mut tasks = std::mem::take(&mut *on.tasks.lock());
        if timeout(FLUSH_WAIT, async { while tasks.join_next().await.is_some() {} }).await.is_err()
        {
            tasks.shutdown().await;
            tracing::warn!("the collector did not take the last spans and log lines in time");
        }
    }
}

fn write_figures(counts: &[(&'static str, Arc<Counts>)], into: &mut String) {
    const NAME: &str = "kvasir_telemetry_records_total";
    let mut lines = format!(
        "# HELP {NAME} Spans and log lines by what became of them\n# TYPE {NAME} counter\n"
    );
    for (signal, counts) in counts {
        for (outcome, count) in counts.outcomes() {
            let line =
                writeln!(lines, "{NAME}{{signal=\"{signal}\",outcome=\"{outcome}\"}} {count}");
            line.expect("a string takes every line");
        }
    }
    into.push_str(&lines);
}
