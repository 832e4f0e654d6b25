//! `kvasir bench gateway`: what the front door costs a request, and whether its memory stays where it is.
//!
//! In one process, without sockets and without a model: a chat goes through the public router as a connection would hand it
//! over, with keys, limits and everything else on the way, and is answered at once by a worker that computes nothing (the
//! scripted engine would decode each prompt to find its answer). What is measured is parsing, rendering, tokenising, names,
//! dispatch, the answer and its accounts. Prompts are new, or begin like an earlier one as the turns of a conversation do.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::AUTHORIZATION;
use axum::http::{Method, Request, StatusCode};
use gateway::{
    ApiKey, EvidencePolicy, Gateway, GatewayConfig, GatewayParts, KeyHash, KeyRing, RateLimits,
    ServedModel,
};
use serde::Serialize;
use serde_json::json;
use shared::{
    Clock, Decode, DecodeDirectory, DecodeEvent, DecodeRequest, DpRank, FinishReason, Flow,
    Numerics, PlaceEvent, PlaceRequest, Placement, Placer, Priority, Sink, TenantId, Ticket,
    WorkerId, WorkerRank,
};
use tower::ServiceExt;

use super::figures::{load_average, median, percentile, processor_ticks, tick_seconds, to_float};
use super::text::sentences;
use crate::cli::GatewayArgs;
use crate::console::Console;

/// Sizes of bodies in bytes.
const SIZES: [usize; 3] = [2_000, 20_000, 220_000];
/// Bytes of bodies per measurement: enough that processor time, which is counted in hundredths of a second, is known to a
/// few percent.
const BYTES_MEASURED: usize = 24_000_000;
/// Fewest and most requests of a measurement.
const REQUESTS: std::ops::RangeInclusive<usize> = 100..=4_000;
/// Conversations that take turns where the beginning is known: as many as the token cache holds at the largest size.
const CONVERSATIONS: u64 = 8;
/// Looks at the memory of the long run.
const LOOKS: usize = 10;
/// Bytes of the token cache in the long run: filled before the first look.
const CACHE_BYTES: usize = 8 << 20;
/// Longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const SECRET: &str = "sk-kvasir-bench";

/// What one measurement found.
#[derive(Clone, Debug, Serialize, PartialEq)]
struct Cost {
    bytes: usize,
    /// `seen` or `new`.
    prompt: &'static str,
    /// `whole` or `streamed`.
    answer: &'static str,
    requests: usize,
    /// Processor time of the process per request, in microseconds.
    processor_us: f64,
    /// Time of one request after the other, in microseconds.
    median_us: f64,
    p99_us: f64,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize, PartialEq)]
struct Report {
    costs: Vec<Cost>,
    /// Requests, and KiB of resident memory after them.
    memory: Vec<(usize, u64)>,
    load: [f64; 3],
}

/// Runs the measurements and prints them.
///
/// # Errors
/// When the tokenizer cannot be read or a request fails.
pub(crate) async fn run(
    args: &GatewayArgs,
    clock: &Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    ensure!(
        0 < args.memory_requests && args.memory_requests.is_multiple_of(LOOKS),
        "--memory-requests is {}, expected a multiple of {LOOKS}",
        args.memory_requests
    );
    let mut report = Report { costs: Vec::new(), memory: Vec::new(), load: load_average()? };
    let door = Door::open(&args.tokenizer, GatewayConfig::default(), clock)?;
    for bytes in SIZES {
        for prompt in ["new", "seen"] {
            for answer in ["whole", "streamed"] {
                let cost = door.measure((bytes, prompt, answer), clock).await?;
                console.progress(&format!(
                    "{bytes:>7} B  {prompt:<4} {answer:<8} {:>8.0} us processor, {:>8.0} us median, {:>8.0} us p99 ({} requests)",
                    cost.processor_us, cost.median_us, cost.p99_us, cost.requests
                ));
                report.costs.push(cost);
            }
        }
    }
    drop(door);
    let config = GatewayConfig { token_cache_bytes_max: CACHE_BYTES, ..GatewayConfig::default() };
    let door = Door::open(&args.tokenizer, config, clock)?;
    let step = args.memory_requests / LOOKS;
    for look in 1..=LOOKS {
        for number in 0..step {
            let key = u64::try_from(look * step + number).unwrap_or(u64::MAX);
            door.ask(chat(key, key, SIZES[0], number % 2 == 0)).await?;
        }
        let kibibytes = resident_kibibytes()?;
        console.progress(&format!("{:>7} requests  {kibibytes} KiB resident", look * step));
        report.memory.push((look * step, kibibytes));
    }
    console.line(&serde_json::to_string(&report)?)?;
    Ok(())
}

/// A gateway with one key, before a worker that answers at once.
struct Door {
    router: Router,
}

impl Door {
    fn open(
        tokenizer: &Path,
        config: GatewayConfig,
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let model = ServedModel {
            names: vec!["bench".to_owned()],
            tokenizer: tokenizer.to_path_buf(),
            context_tokens: 1 << 20,
            created: 0,
            cluster_secret: [1; 32],
            tenant: TenantId("default".into()),
            model_id: [2; 32],
            layout: [3; 32],
            numerics: Numerics("bench-1".into()),
        };
        let parts = GatewayParts {
            placer: Arc::new(AtOnce),
            directory: Arc::new(AtOnce),
            health: Arc::new(|| Ok(())),
            clock: Arc::clone(clock),
            request_id_seed: [4; 32],
            evidence: EvidencePolicy::NOBODY,
        };
        let gateway = Gateway::new(config, model, parts)?;
        let limits = RateLimits {
            requests_in_flight_max: 1_000,
            requests_per_minute: u32::MAX,
            tokens_per_minute: u32::MAX,
        };
        gateway.set_keys(Some(KeyRing::new(vec![ApiKey {
            name: "bench".to_owned(),
            tenant: TenantId("bench".into()),
            hash: KeyHash::of(SECRET.as_bytes()),
            priority: Priority::Normal,
            limits,
        }])?));
        Ok(Self { router: gateway.public_router() })
    }

    async fn ask(&self, body: String) -> anyhow::Result<()> {
        let request = Request::builder()
            .method(Method::POST)
            .uri("/v1/chat/completions")
            .header(AUTHORIZATION, format!("Bearer {SECRET}"))
            .body(Body::from(body))
            .context("no request")?;
        let Ok(response) = self.router.clone().oneshot(request).await;
        let status = response.status();
        let answer = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await?;
        ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&answer));
        Ok(())
    }

    async fn measure(
        &self,
        (bytes, prompt, answer): (usize, &'static str, &'static str),
        clock: &Arc<dyn Clock>,
    ) -> anyhow::Result<Cost> {
        let requests = (BYTES_MEASURED / bytes).clamp(*REQUESTS.start(), *REQUESTS.end());
        let streamed = answer == "streamed";
        let salt = if streamed { 1 << 40 } else { 1 << 41 };
        let key = |number: u64| match prompt {
            "seen" => number % CONVERSATIONS,
            _ => salt + number,
        };
        for number in 0..CONVERSATIONS {
            self.ask(chat(key(number), number, bytes, streamed)).await?;
        }
        // Made beforehand, but not all at once: that would be as much as is measured.
        let mut times = Vec::with_capacity(requests);
        let mut ticks = 0;
        for number in CONVERSATIONS..CONVERSATIONS + u64::try_from(requests)? {
            let body = chat(key(number), salt + number, bytes, streamed);
            let before = processor_ticks()?;
            let began = clock.now();
            self.ask(body).await?;
            times.push(clock.now().since(began).as_secs_f64() * 1e6);
            ticks += processor_ticks()? - before;
        }
        Ok(Cost {
            bytes,
            prompt,
            answer,
            requests,
            processor_us: tick_seconds(ticks) * 1e6 / to_float(requests),
            median_us: median(times.iter().copied()),
            p99_us: percentile(times, 99),
        })
    }
}

/// A chat of about so many bytes. Equal keys begin alike, questions differ.
fn chat(key: u64, question: u64, bytes: usize, streamed: bool) -> String {
    let body = json!({
        "model": "bench",
        "messages": [
            { "role": "system", "content": sentences(key, bytes.saturating_sub(260)) },
            { "role": "user", "content": format!("Question {question}: who did it, and where?") },
        ],
        "max_tokens": 8,
        "temperature": 0,
        "stream": streamed,
        "thinking": { "type": "disabled" },
    });
    body.to_string()
}

/// KiB of memory of this process that are resident.
fn resident_kibibytes() -> anyhow::Result<u64> {
    let text =
        std::fs::read_to_string("/proc/self/status").context("/proc/self/status cannot be read")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let count = line.and_then(|rest| rest.trim().strip_suffix(" kB")).map(str::trim);
    count.and_then(|count| count.parse().ok()).context("/proc/self/status has another form")
}

/// A cluster of one worker that says eight tokens and no more.
struct AtOnce;

impl Placer for AtOnce {
    fn submit(&self, _request: PlaceRequest, mut sink: Box<dyn Sink<PlaceEvent>>) -> Ticket {
        let placement = Placement {
            decode: WorkerRank { worker: WorkerId(1), rank: DpRank(0) },
            prefill: None,
            expected_cached_tokens: 0,
            reason: String::new(),
        };
        // Whoever asked and left needs no place.
        let _left = sink.emit(PlaceEvent::Placed(placement));
        Ticket::empty()
    }
}

impl DecodeDirectory for AtOnce {
    fn decode(&self, _worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        Some(Arc::new(Self))
    }
}

impl Decode for AtOnce {
    fn submit(&self, request: DecodeRequest, mut sink: Box<dyn Sink<DecodeEvent>>) -> Ticket {
        let tokens = request.prompt.iter().rev().take(8).copied();
        let events = tokens
            .map(|id| DecodeEvent::Token(id, None))
            .chain([DecodeEvent::Finished(FinishReason::Length)]);
        for event in events {
            if sink.emit(event) == Flow::Closed {
                break;
            }
        }
        Ticket::empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{SIZES, chat, resident_kibibytes};

    #[test]
    fn chats_have_their_size_and_begin_as_their_keys_say() {
        for bytes in SIZES {
            let [first, second, other] =
                [(1, 1), (1, 2), (2, 1)].map(|(key, question)| chat(key, question, bytes, false));
            assert!(first.len().abs_diff(bytes) < bytes / 10 + 100, "{}", first.len());
            let half = first.len() / 2;
            assert!(first[..half] == second[..half] && first != second);
            assert!(first[..half] != other[..half]);
        }
    }

    #[test]
    fn the_system_says_how_much_memory_is_resident() {
        assert!(1_000 < resident_kibibytes().unwrap());
    }
}
