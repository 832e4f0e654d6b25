//! The front door: HTTP APIs, prompt rendering and tokenisation, dispatch to the cluster, and parsing of answers.
//!
//! What it is not: it computes nothing of the model, holds no cache state, and knows router and workers only through
//! the traits of `shared`. It binds no socket; the binary serves its two routers.
//!
//! Invariants
//! - A worker never waits for a client: events go into a bounded channel, and a full one gives the request up.
//! - Once there are API keys, nobody gets past `door` without one; a tenant's or key's limits are kept there.
//! - A client that goes away drops the request's tickets, which ends the whole chain.
//! - Control tokens are recognised by id, never by spelling, in prompts and in answers.
//! - No stop string, control token or half character is ever shown.
//! - The token cache changes no id, only the time it takes to find it.
//!
//! Start reading at [`Gateway`], then the handlers in `routes`, then `dispatch` and `stream`.
#![forbid(unsafe_code)]

mod config;
pub mod constraint;
mod gateway;
mod routes;

mod call;
mod cors;
mod dialect;
mod door;
mod keys;
mod limits;
mod linger;

mod isolation;
mod request;

mod prompt;

mod token_cache;
mod vocabulary;

mod admission;
mod alarm;
mod dispatch;

mod answer;
mod evidence;
mod output;
mod runs;
mod stored;
mod stream;
mod utf8;

mod error;
mod metrics;
mod wire;
mod words;

pub mod scripted;

pub use config::{GatewayConfig, LineageChoice, ServedModel};
pub use evidence::EvidencePolicy;
pub use gateway::{Gateway, GatewayError, GatewayParts, HealthCheck};
pub use keys::{ApiKey, KeyHash, KeyRing, KeyRingError, check_name, key_secret};
pub use limits::RateLimits;
pub use metrics::MetricsProvider;
pub use vocabulary::VocabularyError;
