//! What becomes of records when the collector does not do what it should.

use std::sync::Arc;

use shared::{DecodeEvent, FinishReason, Flow, ManualClock};
use tokio::net::TcpListener;
use tonic::Code;

use super::collector::{Answer, Collector};
use super::{CLIENT, Decoder, WORKER, config, decode_request, figures, listener, process};
use crate::telemetry::{Telemetry, TelemetryConfig};

/// Runs requests to their ends, whatever the collector does.
fn answer(telemetry: &Telemetry, requests: u128) {
    let shelf = Decoder::new();
    let border = telemetry.decode(Arc::clone(&shelf) as _, WORKER);
    for id in 0..requests {
        let ticket = border.submit(decode_request(id, CLIENT), listener(Flow::Open));
        let (_, mut sink) = shelf.take();
        assert_eq!(sink.emit(DecodeEvent::Finished(FinishReason::Stop)), Flow::Open);
        drop(ticket);
    }
}

#[tokio::test]
async fn a_message_is_repeated_only_when_the_protocol_allows_it() {
    let cases = [
        ([Answer::Refuse(Code::Unavailable), Answer::Take], [1, 0, 0]),
        ([Answer::Refuse(Code::InvalidArgument), Answer::Take], [0, 0, 1]),
        ([Answer::Reject(1), Answer::Take], [0, 0, 1]),
    ];
    for (answers, expected) in cases {
        let mut collector = Collector::start(&answers).await;
        let clock = Arc::new(ManualClock::new());
        let telemetry = process(&config(collector.endpoint()), "decode", &clock);
        answer(&telemetry, 1);
        if expected[0] == 1 {
            // A batch that the end of the process meets is tried once only.
            collector.spans(1).await;
        }
        telemetry.shutdown().await;
        assert_eq!(figures(&telemetry, "spans"), expected, "{answers:?}");
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nothing_but_its_records() {
    let address = {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        taken.local_addr().unwrap()
    };
    let clock = Arc::new(ManualClock::new());
    let telemetry = process(&config(format!("http://{address}")), "decode", &clock);
    answer(&telemetry, 10);
    telemetry.shutdown().await;
    answer(&telemetry, 3);
    assert_eq!(figures(&telemetry, "spans"), [0, 3, 10]);
    telemetry.shutdown().await;
}

#[tokio::test]
async fn a_frozen_collector_fills_the_queue_and_no_more() {
    // Connections wait in its backlog.
    let frozen = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", frozen.local_addr().unwrap());
    let clock = Arc::new(ManualClock::new());
    let small = TelemetryConfig { queue_max: 4, ..config(endpoint) };
    let telemetry = process(&small, "decode", &clock);
    // The sending task does not run before this test waits.
    answer(&telemetry, 10);
    assert_eq!(figures(&telemetry, "spans"), [0, 6, 0]);
    telemetry.shutdown().await;
    drop(frozen);
}

#[tokio::test]
async fn the_end_of_the_process_sends_what_is_queued() {
    let mut collector = Collector::start(&[]).await;
    let clock = Arc::new(ManualClock::new());
    let late = TelemetryConfig { export_ms: 60_000, ..config(collector.endpoint()) };
    let telemetry = process(&late, "decode", &clock);
    answer(&telemetry, 1_500);
    telemetry.shutdown().await;
    assert_eq!(figures(&telemetry, "spans"), [1_500, 0, 0]);
    assert_eq!(collector.spans(1_500).await.len(), 1_500);
}
