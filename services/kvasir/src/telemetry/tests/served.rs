//! From a client's header to the collector, through the front door of a server.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use shared::{Clock, TraceContext};

use super::collector::Collector;
use super::{CLIENT, said};
use crate::clock::SystemClock;
use crate::config::Config;
use crate::console::Console;
use crate::serve::{Loading, Server, StopSignals};
use crate::telemetry::{LogTap, Sender, Telemetry};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_finds_its_request_in_its_own_trace() {
    let mut collector = Collector::start(&[]).await;
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.json");
    fs::write(&script, r#"{"answers": [{"match": "*", "text": "</think>yes"}]}"#).unwrap();
    let config = Config::parse(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n\
         [telemetry]\notlp_endpoint = \"{}\"\nexport_ms = 1\n",
        collector.endpoint()
    ))
    .unwrap();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let sender = Sender { name: "serve".to_owned(), role: "serve", worker: None };
    let tap = LogTap::default();
    let telemetry = Telemetry::start(&config.telemetry, &sender, &tap, Arc::clone(&clock));
    let telemetry = Arc::new(telemetry.unwrap());
    let loading = Loading {
        config: config.clone(),
        folder: PathBuf::from("../../deploy/models/seedling"),
        scripted: Some(script),
        telemetry: Arc::clone(&telemetry),
        clock,
    };
    let mut stop = StopSignals::new().unwrap();
    let mut console = Console::new(std::io::sink(), std::io::sink());
    let server = Server::start(loading, &mut stop, &mut console).await.unwrap().unwrap();
    let (address, admin) = (server.clients, server.admin);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let unsampled = TraceContext { sampled: false, ..CLIENT };

    // Without a header the share decides, and the trace is named by the request.
    for header in [Some(CLIENT), Some(unsampled), None] {
        let url = format!("http://{address}/v1/chat/completions");
        let message = json!({"role": "user", "content": "well?"});
        let body = json!({"model": server.model_name, "messages": [message]});
        let mut request = client.post(url).json(&body);
        if let Some(header) = header {
            request = request.header("traceparent", header.to_string());
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
        assert!(status.is_success(), "{status}: {}", response.text().await.unwrap());
        drop(response.bytes().await.unwrap());
        if header.is_some_and(|header| !header.sampled) {
            continue;
        }
        let span = collector.spans(1).await.remove(0).record;
        assert_eq!(said(&span.attributes, "kvasir.request_id"), id);
        assert_eq!(said(&span.attributes, "kvasir.finish_reason"), "stop");
        let (trace, parent) = match header {
            Some(client) => (client.trace, client.span.to_be_bytes().to_vec()),
            None => (u128::from_str_radix(&id, 16).unwrap(), Vec::new()),
        };
        assert_eq!(span.trace_id, trace.to_be_bytes(), "{header:?}");
        assert_eq!(span.parent_span_id, parent, "{header:?}");
    }
    // A span is counted as sent once the collector's answer came, which may be after the collector told the test.
    telemetry.shutdown().await;
    let metrics = client.get(format!("http://{admin}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let line = "kvasir_telemetry_records_total{signal=\"spans\",outcome=\"sent\"} 2";
    assert!(metrics.contains(line), "{metrics}");
    server.stop(&config, &mut stop, &mut console).await.unwrap();
}
