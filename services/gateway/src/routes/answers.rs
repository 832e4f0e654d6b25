//! Requests for answers, of all protocols: read, placed, and answered whole or as a stream.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use shared::{Priority, RequestId, SessionKey, Timestamp};
use tokio::time::timeout;
use tracing::Instrument;

use super::background::{self, Client};
use super::whole::{self, Patience, Work};
use super::{REQUEST_ID, body, json, span_name};
use crate::admission::Flight;
use crate::alarm::Alarm;
use crate::answer::Answer;
use crate::call::Call;
use crate::dialect::Dialect;
use crate::dispatch::Session;
use crate::door::Visit;
use crate::error::ApiError;
use crate::evidence::{Evidence, ROUTING};
use crate::gateway::Shared;
use crate::prompt::{Asked, Incoming, Plan, Prompter};
use crate::request::{Form, Protocol};
use crate::runs::{Run, Runs};
use crate::stored::TenantResponses;
use crate::stream::{Events, Parts};
use crate::wire::{
    self, ChatWriter, CompletionsWriter, Head, MessagesWriter, ResponsesWriter, Writer,
};

/// W3C Trace Context.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The request's class while it waits for a worker.
const PRIORITY: HeaderName = HeaderName::from_static("x-kvasir-priority");
/// The client's name for the conversation.
const SESSION: HeaderName = HeaderName::from_static("x-kvasir-session");
/// Longest name of a conversation: more than identifiers of any scheme take.
const SESSION_BYTES_MAX: usize = 256;
/// Bodies up to this are prepared by the thread that read them: handing a small one over and back wakes two threads, which
/// costs more than preparing it (0.1 ms for English). The worst of this size, words with accents that were never seen, keeps a
/// thread of the runtime for 2.7 ms (benches/results, router speed).
const PREPARED_IN_PLACE_MAX: usize = 4 << 10;
/// What stands in bodies whose preparing costs more than their text: grammars are read and written. A look for words costs less
/// than reading the body twice; where they stand for something else, two threads are woken and no more.
const COSTLY: [&str; 8] = [
    "\"tools\"",
    "format\"",
    "guided_",
    "structured_outputs",
    "json_schema",
    "\"regex\"",
    "\"ebnf\"",
    "output_config",
];

pub(super) async fn chat(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    ask(Protocol::Chat, &shared, request).await
}

pub(super) async fn messages(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    ask(Protocol::Messages, &shared, request).await
}

pub(super) async fn responses(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    ask(Protocol::Responses, &shared, request).await
}

pub(super) async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    ask(Protocol::Completions, &shared, request).await
}

async fn ask(protocol: Protocol, shared: &Arc<Shared>, request: Request) -> Response {
    let id = shared.next_request_id();
    let span = tracing::info_span!("ask", protocol = span_name(protocol), request = %id);
    let mut response = match admit(shared) {
        Ok(flight) => {
            let answering = complete(shared, (id, protocol), request, flight);
            answering.instrument(span).await
        }
        Err(error) => error.into_response(),
    };
    name(&mut response, id);
    response
}

/// Says which request was answered.
pub(super) fn name(response: &mut Response, id: RequestId) {
    let header = HeaderValue::try_from(id.to_string()).expect("hexadecimal digits");
    response.headers_mut().insert(REQUEST_ID, header);
}

/// Takes a request into work, if every role that it may need still runs.
pub(super) fn admit(shared: &Shared) -> Result<Flight, ApiError> {
    let flight = shared.admission.admit()?;
    let Err(ended) = (shared.health)() else { return Ok(flight) };
    let error = ApiError::role_ended(&ended);
    flight.end(error.outcome);
    Err(error)
}

async fn complete(
    shared: &Arc<Shared>,
    (id, protocol): (RequestId, Protocol),
    request: Request,
    flight: Flight,
) -> Response {
    let call = call_of(shared, &request);
    let arrived = call.arrived();
    let with_evidence = shared.evidence.admits(request.headers());
    let visit = request.extensions().get::<Arc<Visit>>().map(Arc::clone);
    let silence = Duration::from_millis(shared.config.whole_keep_alive_ms);
    let patience =
        Patience { silence, dialect: Dialect::of(request.uri().path(), request.headers()) };
    let plan = match prepare(shared, (id, protocol), request).await {
        Ok(plan) => plan,
        Err(error) => return refuse(vec![flight], error),
    };
    let mut flights = vec![flight];
    for _ in 1..plan.runs.len() {
        // Each answer is work of its own; those already taken in are given back.
        match shared.admission.admit() {
            Ok(flight) => flights.push(flight),
            Err(error) => return refuse(flights, error),
        }
    }
    let (runs, evidence) = start(shared, &plan, arrived);
    let work = Work { runs, flights };
    let (streamed, head) = (plan.stream, head(shared, id, &plan));
    let mut response = match plan.form {
        Form::Responses(echo) if echo.background => {
            background::begin(shared, Client { call: &call, visit }, head, *echo, work)
        }
        form => {
            let echoes = plan.runs.iter().map(|run| run.echo.clone()).collect();
            let writer = writer(shared, &call, head, form, echoes);
            if streamed {
                respond_streaming(shared, work, writer).await
            } else {
                whole::respond(work, writer, patience).await
            }
        }
    };
    if with_evidence && let Some(reason) = evidence.header() {
        response.headers_mut().insert(ROUTING, reason);
    }
    response
}

/// The runs of a request that arrived at that time, and what is known of the first one's placing.
fn start(shared: &Arc<Shared>, plan: &Plan, arrived: Timestamp) -> (Runs, Evidence) {
    let overflow = Arc::new(Alarm::default());
    let run = |prepared: &Arc<_>| {
        let clock = Arc::clone(&shared.cluster.clock);
        let metrics = Arc::clone(&shared.metrics);
        let vocabulary = shared.prompter.vocabulary();
        Run {
            answer: Answer::new(prepared, vocabulary, clock, metrics, arrived),
            session: Session::new(
                shared.cluster.clone(),
                Arc::clone(prepared),
                Arc::clone(&overflow),
            ),
            id: prepared.id,
            prompt_index: prepared.prompt_index,
        }
    };
    let runs: Vec<Run> = plan.runs.iter().map(run).collect();
    let evidence = runs[0].session.evidence();
    (Runs::new(runs, overflow), evidence)
}

fn refuse(flights: Vec<Flight>, error: ApiError) -> Response {
    for flight in flights {
        flight.end(error.outcome);
    }
    error.into_response()
}

fn head(shared: &Shared, id: RequestId, plan: &Plan) -> Head {
    Head {
        id: id.to_string(),
        created: shared.cluster.clock.unix_seconds(),
        model: plan.model.clone(),
        fingerprint: format!("kvasir-{}", shared.prompter.model().numerics.0),
        thinking: plan.thinking,
        answers: plan.runs.len(),
        logprobs: plan.runs[0].logprobs.is_some(),
        prompts: plan.runs[0]
            .tell_ids
            .then(|| plan.runs.iter().map(|run| Arc::clone(&run.prompt)).collect()),
        vocabulary: Arc::clone(shared.prompter.vocabulary()),
    }
}

/// What says the answers. `echoes`: what legacy completions show before each.
fn writer(
    shared: &Arc<Shared>,
    call: &Call,
    head: Head,
    form: Form,
    echoes: Vec<Option<Arc<str>>>,
) -> Box<dyn Writer> {
    match form {
        Form::Chat { include_usage, custom_tools, repeated } => {
            Box::new(ChatWriter::new(head, include_usage, custom_tools, repeated))
        }
        Form::Messages { thinking } => Box::new(MessagesWriter::new(head, thinking)),
        Form::Responses(echo) => {
            let (memory, clock) = (Arc::new(memory(shared, call)), &shared.cluster.clock);
            Box::new(ResponsesWriter::new(head, *echo, memory, Arc::clone(clock)))
        }
        Form::Completions { include_usage, .. } => {
            Box::new(CompletionsWriter::new(head, include_usage, echoes))
        }
    }
}

/// The responses of who asks.
pub(super) fn memory(shared: &Arc<Shared>, call: &Call) -> TenantResponses {
    let tenant = call.caller.tenant.clone();
    TenantResponses::new(Arc::clone(&shared.responses), tenant, shared.door.tenancy())
}

/// What the prompt of a request is looked up by: the names of its whole blocks; with `?tokens=true` its tokens as well. Without a
/// model it is the first one, without `?protocol=` (chat, messages, responses, completions) a chat.
pub(super) async fn prompt(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let id = shared.next_request_id();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let asks = |pair: &str| query.split('&').any(|other| other == pair);
    let protocol = [Protocol::Messages, Protocol::Responses, Protocol::Completions]
        .into_iter()
        .find(|protocol| asks(&format!("protocol={}", span_name(*protocol))))
        .unwrap_or(Protocol::Chat);
    let named = async {
        let call = call_of(&shared, &request);
        let mut body = body::read(&shared, request).await?;
        if let Ok(Value::Object(mut fields)) = serde_json::from_slice(&body) {
            let first = &shared.prompter.model().names[0];
            fields.entry("model").or_insert_with(|| first.clone().into());
            body = Value::Object(fields).to_string().into_bytes();
        }
        let (trace, priority) = (Shared::trace(None, id), Priority::Normal);
        let asked = Asked { call, trace, priority, session: None };
        prepare_body(&shared, (id, protocol), asked, body).await
    };
    match named.await {
        Ok(plan) => {
            let run = &plan.runs[0];
            let tokens = asks("tokens=true").then_some(&*run.prompt);
            json(wire::prompt(run.prompt_tokens, &run.names, tokens))
        }
        Err(error) => error.into_response(),
    }
}

async fn prepare(
    shared: &Arc<Shared>,
    what: (RequestId, Protocol),
    request: Request,
) -> Result<Plan, ApiError> {
    let call = call_of(shared, &request);
    let visit = request.extensions().get::<Arc<Visit>>().map(Arc::clone);
    let asked = asked(Arc::clone(&call), what.0, request.headers())?;
    let body = body::read(shared, request).await?;
    let plan = prepare_body(shared, what, asked, body).await?;
    if let Some(visit) = visit {
        visit.admit_answers(u32::try_from(plan.runs.len()).unwrap_or(u32::MAX))?;
    }
    let now = shared.cluster.clock.now();
    let mut paid = None;
    for run in &plan.runs {
        // Each prompt is paid once, however many answers it gets.
        if paid.replace(run.prompt_index) != Some(run.prompt_index) {
            shared.door.pay_prompt(&call, run.prompt_tokens, now);
        }
    }
    Ok(plan)
}

/// Who asks, as the door found out; on the listener of operators, anybody.
pub(super) fn call_of(shared: &Shared, request: &Request) -> Arc<Call> {
    let call = request.extensions().get::<Arc<Call>>().map(Arc::clone);
    call.unwrap_or_else(|| {
        Arc::new(Call::new(shared.door.anybody(&shared.config), shared.cluster.clock.now()))
    })
}

/// Reads the headers that say how a request is to be treated.
fn asked(call: Arc<Call>, id: RequestId, headers: &HeaderMap) -> Result<Asked, ApiError> {
    let trace = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
    let priority = match headers.get(PRIORITY) {
        None => None,
        Some(value) => Some(value.to_str().ok().and_then(Priority::parse).ok_or_else(|| {
            let message = "the header x-kvasir-priority is none of: high, normal, low; leave it out for normal";
            ApiError::invalid(None, message)
        })?),
    };
    let session = headers.get(SESSION).map(HeaderValue::as_bytes);
    if session.is_some_and(|name| SESSION_BYTES_MAX < name.len()) {
        let message = format!(
            "the header x-kvasir-session has more than {SESSION_BYTES_MAX} bytes; send a shorter name"
        );
        return Err(ApiError::invalid(None, message));
    }
    let caller = &call.caller;
    let session = session.map(|name| SessionKey::of(&caller.tenant, name));
    let priority = caller.priority(priority);
    Ok(Asked { trace: Shared::trace(trace, id), priority, session, call })
}

async fn prepare_body(
    shared: &Arc<Shared>,
    (id, protocol): (RequestId, Protocol),
    asked: Asked,
    body: Vec<u8>,
) -> Result<Plan, ApiError> {
    let ids = Arc::clone(shared);
    let memory = memory(shared, &asked.call);
    let is_quick = is_quick(protocol, &body);
    let work = move |prompter: &Prompter| {
        // The first run has the request's own id.
        let first = Cell::new(Some(id));
        let next_id = || first.take().unwrap_or_else(|| ids.next_request_id());
        let incoming =
            Incoming { protocol, asked, body: &body, memory: &memory, next_id: &next_id };
        prompter.prepare(&incoming)
    };
    if is_quick { work(&shared.prompter) } else { compute(shared, id, work).await }
}

/// Whether a body is prepared by the thread that read it. Responses are not: what they refer to may be long.
fn is_quick(protocol: Protocol, body: &[u8]) -> bool {
    body.len() <= PREPARED_IN_PLACE_MAX
        && protocol != Protocol::Responses
        && std::str::from_utf8(body)
            .is_ok_and(|text| !COSTLY.iter().any(|word| text.contains(word)))
}

/// Computes beside the async threads, as many at once as the configuration says.
pub(super) async fn compute<T: Send + 'static>(
    shared: &Arc<Shared>,
    id: RequestId,
    task: impl FnOnce(&Prompter) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let permit = Arc::clone(&shared.tokenisers).acquire_owned().await;
    let permit = permit.expect("the semaphore is never closed");
    let prompter = Arc::clone(&shared.prompter);
    let span = tracing::Span::current();
    let work = move || {
        let done = span.in_scope(|| task(&prompter));
        drop(permit);
        done
    };
    // Bounded by the permits, and joined here; when the client goes away meanwhile, it ends by itself and its result is
    // dropped.
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(request = %id, %error, "preparing a prompt failed");
        Err(ApiError::internal(id))
    })
}

async fn respond_streaming(shared: &Arc<Shared>, work: Work, writer: Box<dyn Writer>) -> Response {
    let Work { runs, flights } = work;
    let config = &shared.config;
    let silence = Duration::from_millis(config.keep_alive_ms);
    let tokens_max = config.answer_buffer_tokens_max;
    let parts = Parts { runs, writer, flights, tokens_max, silence };
    let mut events = Events::new(&shared.streams, parts);
    let head_wait = Duration::from_millis(config.head_wait_ms_max);
    match timeout(head_wait, events.begun()).await {
        // The failure is counted.
        Ok(Err(error)) => return error.into_response(),
        Ok(Ok(())) | Err(_) => events.head_is_out(),
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(events)).into_response()
}
