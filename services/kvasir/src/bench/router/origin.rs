//! A model server that answers at once, for routers that forward HTTP: what they cost is the rest.
//!
//! It reads each body to its end, parses nothing, and answers every chat with the same JSON of one token; any other path
//! says what model it serves, in the fields that routers look for.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Router, serve};
use serde_json::json;
use tokio::net::TcpListener;

use crate::console::Console;
use crate::serve::StopSignals;

/// What it says, written once.
#[derive(Clone)]
struct Said {
    chat: Bytes,
    about: Bytes,
}

/// Listens on a free loopback port, says so in one line, and serves until it is told to stop.
///
/// # Errors
/// When no port can be had.
pub(crate) async fn run(model: &str, console: &mut Console) -> anyhow::Result<()> {
    let mut stop = StopSignals::new()?;
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = TcpListener::bind(any).await.context("no free port")?;
    console.line(&format!("listening on http://{}", listener.local_addr()?))?;
    let serving = serve(listener, service(model));
    let serving = serving.with_graceful_shutdown(async move { stop.wait().await });
    serving.await.context("connections are not accepted any more")
}

fn service(model: &str) -> Router {
    let message = json!({ "role": "assistant", "content": "yes" });
    let chat = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model,
        "choices": [{ "index": 0, "message": message, "finish_reason": "length" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
    });
    let listed = json!([{ "id": model, "object": "model", "created": 1, "owned_by": "nobody" }]);
    let about = json!({
        "object": "list", "data": listed, "status": "ok", "model_path": model, "model_id": model,
        "served_model_name": model, "tokenizer_path": "", "is_generation": true, "load": 0,
    });
    let said = Said { chat: chat.to_string().into(), about: about.to_string().into() };
    let path = "/v1/chat/completions";
    Router::new().route(path, post(chat_answer)).fallback(about_answer).with_state(said)
}

async fn chat_answer(State(said): State<Said>, body: Bytes) -> impl IntoResponse {
    drop(body);
    ([(CONTENT_TYPE, "application/json")], said.chat)
}

async fn about_answer(State(said): State<Said>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], said.about)
}
