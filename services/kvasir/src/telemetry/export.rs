//! Sending: a bounded queue and a task for each kind of record.
//!
//! A batch that the collector does not take is tried again with the period, a bounded number of times, while the queue fills
//! up behind it. A person hears of an outage once, when it begins, and once when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, logs_service_client::LogsServiceClient,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, trace_service_client::TraceServiceClient,
};
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// Records of one message: with attributes of the usual size about 200 KB, far below the 4 MB that collectors take.
const BATCH_MAX: usize = 512;
/// How often a batch is tried: with the standard period, through a collector's restart of some seconds.
const ATTEMPTS_MAX: u32 = 8;
/// How long one attempt may take.
const EXPORT_WAIT: Duration = Duration::from_secs(5);

/// Who sent a record.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) resource: Resource,
    pub(super) scope: InstrumentationScope,
}

/// Where records go, and how often.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// As configured, for messages.
    pub(super) endpoint: String,
    pub(super) channel: Channel,
    pub(super) origin: Arc<Origin>,
    pub(super) period: Duration,
}

/// What became of records.
#[derive(Debug, Default)]
pub(super) struct Counts {
    sent: AtomicU64,
    /// Found the queue full, or came after the end.
    dropped: AtomicU64,
    /// The collector did not take them.
    lost: AtomicU64,
}

impl Counts {
    /// Each outcome with its count.
    pub(super) fn outcomes(&self) -> [(&'static str, u64); 3] {
        [("sent", &self.sent), ("dropped", &self.dropped), ("lost", &self.lost)]
            .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }
}

/// The end of a queue where records are put in. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Outlet<T> {
    queue: mpsc::Sender<T>,
    counts: Arc<Counts>,
}

impl<T> Outlet<T> {
    /// Queues a record, or drops it when there is no room. Never waits.
    pub(super) fn put(&self, record: T) {
        if self.queue.try_send(record).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }
}

/// What the collector said to a message that it took.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    records: u64,
    reason: String,
}

/// A kind of record.
pub(super) trait Record: Clone + Send + Sync + 'static {
    /// In the plural, for messages.
    const KIND: &'static str;

    /// Sends a message with these records.
    fn send(
        channel: Channel,
        origin: &Origin,
        batch: Vec<Self>,
    ) -> impl Future<Output = Result<Rejected, Status>> + Send;
}

impl Record for Span {
    const KIND: &'static str = "spans";

    async fn send(channel: Channel, origin: &Origin, batch: Vec<Self>) -> Result<Rejected, Status> {
        let Origin { resource, scope } = origin.clone();
        let scope = ScopeSpans { scope: Some(scope), spans: batch, ..ScopeSpans::default() };
        let resource = ResourceSpans {
            resource: Some(resource),
            scope_spans: vec![scope],
            ..ResourceSpans::default()
        };
        let message = ExportTraceServiceRequest { resource_spans: vec![resource] };
        let answer = TraceServiceClient::new(channel).export(Request::new(message)).await?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        let records = u64::try_from(partial.rejected_spans).unwrap_or(0);
        Ok(Rejected { records, reason: partial.error_message })
    }
}

impl Record for LogRecord {
    const KIND: &'static str = "log lines";

    async fn send(channel: Channel, origin: &Origin, batch: Vec<Self>) -> Result<Rejected, Status> {
        let Origin { resource, scope } = origin.clone();
        let scope = ScopeLogs { scope: Some(scope), log_records: batch, ..ScopeLogs::default() };
        let resource = ResourceLogs {
            resource: Some(resource),
            scope_logs: vec![scope],
            ..ResourceLogs::default()
        };
        let message = ExportLogsServiceRequest { resource_logs: vec![resource] };
        let answer = LogsServiceClient::new(channel).export(Request::new(message)).await?;
        let partial = answer.into_inner().partial_success.unwrap_or_default();
        let records = u64::try_from(partial.rejected_log_records).unwrap_or(0);
        Ok(Rejected { records, reason: partial.error_message })
    }
}

/// A queue of at most `queue_max` records, and the future that sends them until `stop`, then what is left.
pub(super) fn outlet<T: Record>(
    route: Route,
    queue_max: usize,
    stop: CancellationToken,
) -> (Outlet<T>, impl Future<Output = ()> + Send + 'static) {
    let (queue, receiver) = mpsc::channel(queue_max);
    let counts = Arc::new(Counts::default());
    let sending = Sending {
        route,
        queue: receiver,
        batch: Vec::with_capacity(BATCH_MAX),
        attempts: 0,
        counts: Arc::clone(&counts),
        reachable: true,
        rejection_told: false,
    };
    (Outlet { queue, counts }, sending.run(stop))
}

struct Sending<T> {
    route: Route,
    queue: mpsc::Receiver<T>,
    /// At most [`BATCH_MAX`] records.
    batch: Vec<T>,
    /// How often this batch was tried.
    attempts: u32,
    counts: Arc<Counts>,
    reachable: bool,
    rejection_told: bool,
}

impl<T: Record> Sending<T> {
    async fn run(mut self, stop: CancellationToken) {
        let mut period = interval(self.route.period);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let room = BATCH_MAX - self.batch.len();
            let taken = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = period.tick() => 0,
                taken = self.queue.recv_many(&mut self.batch, room), if 0 < room => {
                    if taken == 0 {
                        break;
                    }
                    taken
                }
            };
            // Sent when it is full or the period is over; one that was not taken waits for the period.
            let full = self.batch.len() == BATCH_MAX && self.attempts == 0;
            if taken == 0 || full {
                self.send().await;
            }
        }
        self.queue.close();
        loop {
            let room = BATCH_MAX - self.batch.len();
            if 0 < room {
                self.queue.recv_many(&mut self.batch, room).await;
            }
            if self.batch.is_empty() {
                return;
            }
            self.attempts = ATTEMPTS_MAX;
            self.send().await;
        }
    }

    /// Sends the batch. It is empty afterwards, unless it is worth another attempt.
    async fn send(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.attempts += 1;
        let sending = T::send(self.route.channel.clone(), &self.route.origin, self.batch.clone());
        let outcome = timeout(EXPORT_WAIT, sending).await;
        let outcome =
            outcome.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not answer")));
        let records = u64::try_from(self.batch.len()).expect("at most BATCH_MAX");
        match outcome {
            Ok(rejected) => {
                self.rejected(&rejected);
                self.counts
                    .sent
                    .fetch_add(records.saturating_sub(rejected.records), Ordering::Relaxed);
                self.counts.lost.fetch_add(rejected.records.min(records), Ordering::Relaxed);
                self.reached();
            }
            Err(status) => {
                self.missed(&status);
                if retryable(status.code()) && self.attempts < ATTEMPTS_MAX {
                    return;
                }
                self.counts.lost.fetch_add(records, Ordering::Relaxed);
            }
        }
        self.batch.clear();
        self.attempts = 0;
    }

    fn reached(&mut self) {
        if !self.reachable {
            self.reachable = true;
            tracing::info!(kind = T::KIND, "the collector takes records again");
        }
    }

    fn missed(&mut self, status: &Status) {
        if self.reachable {
            self.reachable = false;
            tracing::warn!(
                kind = T::KIND,
                endpoint = self.route.endpoint,
                %status,
                "the collector does not take records; they are dropped until it does, see kvasir_telemetry_records_total"
            );
        }
    }

    fn rejected(&mut self, rejected: &Rejected) {
        if 0 < rejected.records && !self.rejection_told {
            self.rejection_told = true;
            let Rejected { records, reason } = rejected;
            tracing::warn!(kind = T::KIND, records, reason, "the collector rejects records");
        }
    }
}

/// Whether the protocol lets a message be sent again.
fn retryable(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}
