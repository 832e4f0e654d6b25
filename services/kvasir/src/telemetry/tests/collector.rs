//! A collector that hands what it takes to the test.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status, async_trait};
use tower::Service;

/// What the collector answers to a message with spans.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// It takes them all.
    Take,
    /// It refuses the message.
    Refuse(Code),
    /// It takes the message, but not these many spans.
    Reject(i64),
}

/// A record with the attributes of its sender.
#[derive(Clone, Debug)]
pub(super) struct Received<T> {
    pub(super) from: Vec<KeyValue>,
    pub(super) record: T,
}

pub(super) struct Collector {
    address: SocketAddr,
    pub(super) spans: mpsc::UnboundedReceiver<Received<Span>>,
    pub(super) lines: mpsc::UnboundedReceiver<Received<LogRecord>>,
    _task: JoinSet<()>,
}

#[derive(Clone)]
struct Desk {
    /// For the messages to come; then all are taken.
    answers: Arc<Mutex<VecDeque<Answer>>>,
    spans: mpsc::UnboundedSender<Received<Span>>,
    lines: mpsc::UnboundedSender<Received<LogRecord>>,
}

impl Collector {
    pub(super) async fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (span_sender, spans) = mpsc::unbounded_channel();
        let (line_sender, lines) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(answers.iter().copied().collect()));
        let desk = Desk { answers, spans: span_sender, lines: line_sender };
        let mut task = JoinSet::new();
        let routes = Routes::new(TraceServiceServer::new(desk.clone()))
            .add_service(LogsServiceServer::new(desk))
            .prepare();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(connection(routes.clone(), socket));
            }
        });
        Self { address, spans, lines, _task: task }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next spans, ordered by their names.
    pub(super) async fn spans(&mut self, count: usize) -> Vec<Received<Span>> {
        let mut received = Vec::new();
        while received.len() < count {
            received.push(self.spans.recv().await.expect("the collector lives"));
        }
        received.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        received
    }
}

async fn connection(routes: Routes, socket: TcpStream) {
    let service = service_fn(move |request| routes.clone().call(request));
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(socket), service);
    // A client that goes away ends it with an error.
    drop(serving.await);
}

#[async_trait]
impl TraceService for Desk {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let answer = self.answers.lock().pop_front().unwrap_or(Answer::Take);
        let partial_success = match answer {
            Answer::Take => None,
            Answer::Refuse(code) => return Err(Status::new(code, "as the test wants it")),
            Answer::Reject(rejected_spans) => {
                let error_message = "as the test wants it".to_owned();
                Some(ExportTracePartialSuccess { rejected_spans, error_message })
            }
        };
        for sender in request.into_inner().resource_spans {
            let from = sender.resource.unwrap().attributes;
            for record in sender.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                // A test that is over takes no more.
                drop(self.spans.send(Received { from: from.clone(), record }));
            }
        }
        Ok(Response::new(ExportTraceServiceResponse { partial_success }))
    }
}

#[async_trait]
impl LogsService for Desk {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        for sender in request.into_inner().resource_logs {
            let from = sender.resource.unwrap().attributes;
            for record in sender.scope_logs.into_iter().flat_map(|scope| scope.log_records) {
                drop(self.lines.send(Received { from: from.clone(), record }));
            }
        }
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}
