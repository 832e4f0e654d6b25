//! The header that says why a request was placed where it was.

use gateway::EvidencePolicy;
use serde_json::json;

use crate::client::{Reply, open, read};
use crate::house::{House, ask};

const KEY: &str = "0123456789abcdef";

async fn chat_with(house: &House, stream: bool, header: &str) -> Reply {
    let body = serde_json::to_vec(&ask(&json!({"stream": stream}))).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
         content-type: application/json\r\n{header}content-length: {}\r\n\r\n",
        body.len()
    );
    read(open(house.public, &head, &body).await).await
}

#[tokio::test]
async fn evidence_is_given_when_configured_or_asked_for_with_the_key() {
    let cases = [
        (EvidencePolicy::NOBODY, [false, false, false]),
        (EvidencePolicy::everybody(), [true, true, true]),
        (EvidencePolicy::with_key(KEY), [false, true, false]),
    ];
    let right = format!("x-kvasir-admin-key: {KEY}\r\n");
    let headers = ["", &right, "x-kvasir-admin-key: guess\r\n"];
    for (policy, expected) in cases {
        let answers = json!([{"match": "*", "text": "Paris."}]);
        let house = House::with(answers, |_, parts| parts.evidence = policy.clone()).await;
        for stream in [false, true] {
            for (header, expected) in headers.iter().zip(expected) {
                let reply = chat_with(&house, stream, header).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                let said = reply.header("x-kvasir-routing");
                let wanted = expected.then_some("a script has one worker");
                assert_eq!(said, wanted, "{policy:?} {header} stream {stream}");
            }
        }
    }
}
