//! A cluster seen from outside: its answers, and what its members tell operators.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kvasir::clock::SystemClock;
use serde_json::{Value, json};
use shared::Clock;

use crate::http::{Response, get, open, post, try_request};

pub(super) const CHAT: &str = "/v1/chat/completions";
/// Exact in every respect, so that a disturbed run and an undisturbed one must agree bit for bit; and stores that take
/// little of a machine's memory.
pub(super) const EXACT: &str = "[server]\narith = \"exact\"\n[gateway]\nlineage = \"exact\"\n\
                                [store]\nblock_bytes_max = 67108864\nwindow_bytes_max = 16777216\n";
/// A member that does not answer is found out by keep-alive within 1 s + 3 s; the rest is for two busy cores.
pub(super) const NOTICED: Duration = Duration::from_secs(8);
/// Longest wait for anything else that must happen.
pub(super) const SOON: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Looks until there is something to see.
pub(super) fn until<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let clock = SystemClock::start();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(clock.now().0 < nanos(limit), "waited {limit:?} in vain until {what}");
        thread::sleep(POLL);
    }
}

/// Does something that must be done within a time.
pub(super) fn within<T>(what: &str, limit: Duration, act: impl FnOnce() -> T) -> T {
    let clock = SystemClock::start();
    let done = act();
    let took = clock.now().0;
    assert!(took < nanos(limit), "{what} took {} ms, more than {limit:?}", took / 1_000_000);
    done
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a test's limit is short")
}

/// A whole answer, or the error instead of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The text, or the error's message.
    pub(super) text: String,
    pub(super) cached_tokens: u64,
    pub(super) bytes_fetched: u64,
}

/// What a stream brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Streamed {
    pub(super) text: String,
    /// Tokens of the answer as the usage says, at its end.
    pub(super) tokens: u64,
    pub(super) finish: Option<String>,
    pub(super) error: Option<String>,
}

/// Where a cluster's clients connect, and the operators of its members that run.
#[derive(Clone)]
pub(super) struct View {
    pub(super) clients: SocketAddr,
    pub(super) admins: BTreeMap<String, SocketAddr>,
}

/// About 10 tokens per line; no two beginnings are alike.
pub(super) fn long_prompt(beginning: &str, lines: usize) -> String {
    let line = "Anna finds a red ball in the garden. ";
    format!("{beginning} {}Who finds it?", line.repeat(lines))
}

/// A prompt whose answer is a story of about 90 tokens.
pub(super) fn story(animal: &str) -> String {
    format!("Tell me a long story about a {animal}.")
}

/// A greedy chat.
pub(super) fn body(prompt: &str, tokens_max: u32, stream: bool) -> String {
    let mut body = json!({
        "model": "seedling", "max_tokens": tokens_max, "temperature": 0, "reasoning_effort": "none",
        "messages": [{"role": "user", "content": prompt}], "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body.to_string()
}

impl Answer {
    pub(super) fn of(response: &Response) -> Self {
        if response.status != 200 {
            let text = response.error_message();
            let status = response.status;
            return Self { status, text, cached_tokens: 0, bytes_fetched: 0 };
        }
        let answer = response.json();
        let count = |path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        let text = answer["choices"][0]["message"]["content"].as_str();
        Self {
            status: 200,
            text: text.expect("an answer has a text").to_owned(),
            cached_tokens: count("/usage/prompt_tokens_details/cached_tokens"),
            bytes_fetched: count("/kvasir/bytes_fetched"),
        }
    }
}

impl View {
    /// The answer to a prompt, or the error.
    pub(super) fn ask(&self, prompt: &str) -> Answer {
        Answer::of(&post(self.clients, CHAT, &body(prompt, 60, false)))
    }

    /// Waits for the first token of an answer.
    pub(super) fn first_token(&self, prompt: &str) {
        let answer = Answer::of(&post(self.clients, CHAT, &body(prompt, 1, false)));
        assert_eq!(answer.status, 200, "{answer:?}");
    }

    /// The answer's status, from a router that may go away meanwhile.
    pub(super) fn try_ask(&self, prompt: &str) -> io::Result<u16> {
        let body = body(prompt, 60, false);
        try_request(self.clients, "POST", CHAT, &body).map(|response| response.status)
    }

    /// The answer to a prompt; an error fails the test.
    pub(super) fn answer(&self, prompt: &str) -> Answer {
        let answer = self.ask(prompt);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer
    }

    /// Streams the answers to some prompts at the same time, and does something once all have begun.
    pub(super) fn stream(&self, prompts: &[String], then: impl FnOnce()) -> Vec<Streamed> {
        const BEGUN: usize = 5;
        let begun: Vec<AtomicUsize> = prompts.iter().map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            let readers: Vec<_> = prompts
                .iter()
                .zip(&begun)
                .map(|(prompt, begun)| scope.spawn(|| self.read_stream(prompt, begun)))
                .collect();
            until("all streams had begun", SOON, || {
                begun.iter().all(|events| BEGUN <= events.load(Ordering::Relaxed)).then_some(())
            });
            then();
            readers.into_iter().map(|reader| reader.join().expect("a reader ends")).collect()
        })
    }

    fn read_stream(&self, prompt: &str, begun: &AtomicUsize) -> Streamed {
        let mut stream = open(self.clients, "POST", CHAT, &body(prompt, 200, true));
        let mut all = Streamed::default();
        while let Some(event) = stream.next_event() {
            begun.fetch_add(1, Ordering::Relaxed);
            let Ok(event) = serde_json::from_str::<Value>(&event) else {
                assert_eq!(event, "[DONE]");
                continue;
            };
            if let Some(message) = event["error"]["message"].as_str() {
                all.error = Some(message.to_owned());
            }
            let choice = &event["choices"][0];
            all.text += choice["delta"]["content"].as_str().unwrap_or_default();
            if let Some(reason) = choice["finish_reason"].as_str() {
                all.finish = Some(reason.to_owned());
            }
            if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
                all.tokens = tokens;
            }
        }
        // A stream that is over need not be waited for.
        begun.store(usize::MAX / 2, Ordering::Relaxed);
        all
    }

    pub(super) fn admin(&self, member: &str) -> SocketAddr {
        *self.admins.get(member).unwrap_or_else(|| panic!("{member} does not run"))
    }

    /// What a member that runs says at an admin route; none while it does not answer.
    pub(super) fn told(&self, member: &str, path: &str) -> Option<Value> {
        let response = try_request(self.admin(member), "GET", path, "").ok()?;
        (response.status == 200).then(|| response.json())
    }

    pub(super) fn audit(&self, member: &str) -> Value {
        self.told(member, "/debug/audit").unwrap_or_else(|| panic!("{member} answers"))
    }

    /// Whether a member has something in work.
    pub(super) fn is_busy(&self, member: &str) -> bool {
        self.audit(member)["busy"] != 0
    }

    /// How `member` sees `other`; null when it does not know it.
    pub(super) fn link(&self, member: &str, other: &str) -> Value {
        self.told(member, "/debug/members").map_or(Value::Null, |members| members[other].clone())
    }

    /// The sum of a member's samples of one name, or of one name and the beginning of its labels.
    pub(super) fn metric(&self, member: &str, name: &str) -> f64 {
        let Response { status, body } = get(self.admin(member), "/metrics");
        assert_eq!(status, 200, "{body}");
        let values = body.lines().filter(|line| line.starts_with(name)).map(|line| {
            let value = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
            value.unwrap_or_else(|| panic!("no value: {line}"))
        });
        values.sum()
    }

    /// Drops cached copies of all members that run.
    pub(super) fn evict(&self, tier: &str) {
        for (member, admin) in &self.admins {
            let answer = post(*admin, &format!("/debug/cache/evict?tier={tier}"), "");
            assert_eq!(answer.status, 200, "{member}: {}", answer.body);
        }
    }

    /// Waits until every member that runs sees every other one that runs and that it is linked to.
    pub(super) fn joined(&self) {
        let mut missing = Vec::new();
        let joined = |missing: &mut Vec<String>| {
            missing.clear();
            for member in self.admins.keys() {
                let Some(links) = self.told(member, "/debug/members") else {
                    missing.push(format!("{member} does not answer"));
                    continue;
                };
                let is_router = member.starts_with("router");
                for other in self.admins.keys().filter(|other| *other != member) {
                    let link = &links[other.as_str()];
                    let there = link["state"] == "ready" && link["joined"] != false;
                    let wanted = link.is_object() || (is_router && !other.starts_with("router"));
                    if wanted && !there {
                        missing.push(format!("{member} to {other}: {link}"));
                    }
                }
            }
            missing.is_empty().then_some(())
        };
        let clock = SystemClock::start();
        while joined(&mut missing).is_none() {
            assert!(clock.now().0 < nanos(SOON), "not joined: {missing:#?}");
            thread::sleep(POLL);
        }
    }

    /// Waits until a router has noticed that a member is lost.
    pub(super) fn lost(&self, member: &str) {
        until(&format!("{member} was lost"), NOTICED, || {
            (self.link("router-1", member)["state"] != "ready").then_some(())
        });
    }

    /// Waits until nothing is in work in any member that runs, and asserts that nothing leaked.
    pub(super) fn at_rest(&self) {
        for member in self.admins.keys() {
            let audit = until(&format!("{member} is at rest"), SOON, || {
                self.told(member, "/debug/audit").filter(|audit| audit["busy"] == 0)
            });
            assert_eq!(audit["leaked"], 0, "{member}: {audit}");
        }
    }
}
