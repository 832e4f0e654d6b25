//! The front door: HTTP APIs, prompt rendering and tokenisation, dispatch to the cluster, and parsing of answers.
//!
//! What it is not: it computes nothing of the model, holds no cache state, and knows router and workers only through
//! the traits of `shared`. It binds no socket; the binary serves its two routers.
//!
//! Invariants
//! - A worker never waits for a client: events go into a bounded channel, and a full one gives the request up.
//! - A client that goes away drops the request's tickets, which ends the whole chain.
//! - Control tokens are recognised by id, never by spelling, in prompts and in answers.
//! - No stop string, control token or half character is ever shown.
//! - The token cache changes no id, only the time it takes to find it.
//!
//! Start reading at [`Gateway`], then the handlers in `routes`, then `dispatch` and `stream`.
#![forbid(unsafe_code)]

mod config;
mod gateway;
mod routes;

mod request;

mod prompt;

mod token_cache;
mod vocabulary;

mod admission;
mod dispatch;

mod answer;
mod evidence;
mod output;
mod stream;
mod utf8;

mod error;
mod metrics;
mod wire;

pub mod scripted;

pub use config::{GatewayConfig, LineageChoice, ServedModel};
pub use evidence::EvidencePolicy;
pub use gateway::{Gateway, GatewayError, GatewayParts, HealthCheck};
pub use metrics::MetricsProvider;
pub use vocabulary::VocabularyError;
