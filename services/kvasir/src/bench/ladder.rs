//! The TTFT ladder: the same long prompt answered from nothing, from the worker's own blocks, and from host memory,
//! and a short prompt that visits no prefill worker.
//!
//! It is a client. Against a server without our admin listener the host rung is left out and the report says less.
//! Every prompt begins with a key drawn from the wall clock, so that `cold` is cold on a server that ran before.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use serde_json::{Value, json};
use shared::Clock;

use super::text::sentences;
use crate::client::{Answer, ChatRequest, Client, Message};

/// What a rung of the ladder found. Times in milliseconds.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Rung {
    /// `cold`, `device`, `host`, `disk`, `remote` or `direct`.
    pub name: &'static str,
    /// Tokens of the rendered prompt.
    pub prompt_tokens: u64,
    /// Of these, tokens from a cache.
    pub cached_tokens: u64,
    /// Rows computed again below the start; absent when the server does not say.
    pub replayed_tokens: Option<u64>,
    /// Where the windows at the start came from; absent when the server does not say.
    pub window_source: Option<String>,
    /// Time to the first token: the median over the rung's runs.
    pub ttft_ms: f64,
    /// Mean time between later tokens: the median over the rung's runs.
    pub itl_ms: f64,
    /// Bytes of cached state that were moved; absent when the server does not say.
    pub bytes_fetched: Option<u64>,
    /// Whether every answer of the rung is the text of its first cold answer.
    pub answer_equal: bool,
    /// Whether the server claims that it must be: it reports `exact` on both sides.
    pub answer_equal_expected: bool,
}

/// The whole ladder.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct LadderReport {
    /// The rungs in the order they ran.
    pub rungs: Vec<Rung>,
    /// Share of the checkpoint's bytes that a prefill worker loads; absent when the server does not say.
    pub prefill_loaded_share: Option<f64>,
    /// Cache slots nobody accounts for after the run; absent when the server does not say.
    pub blocks_leaked: Option<u64>,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct LadderOptions {
    /// Where the server listens.
    pub url: String,
    /// Our admin listeners, one per process; without them the host rung is left out.
    pub admins: Vec<String>,
    /// Bearer token, if the server wants one.
    pub api_key: Option<String>,
    /// The model; the server's first one when none is given.
    pub model: Option<String>,
    /// Wanted length of the long prompt in tokens; met within a few percent.
    pub prompt_tokens: u32,
}

/// Runs of each rung that can be repeated; a cold run cannot.
const REPEATS: usize = 3;
/// Tokens of each answer: enough for a time between tokens, few enough not to hide the first.
const OUTPUT_TOKENS: u32 = 16;
/// Characters of the two texts that tell how many tokens a character is.
const SAMPLE_CHARACTERS: [usize; 2] = [300, 2_000];
/// Wanted length of the short prompt in characters: below the shortest prompt that visits prefill (268 tokens).
const SHORT_CHARACTERS: usize = 240;
/// How often and how long to wait until the server has nothing in work: 10 seconds in all.
const SETTLE_TRIES: u32 = 200;
const SETTLE_WAIT: Duration = Duration::from_millis(50);

/// A ladder under way: each rung is one call, in the order its caller chooses.
pub struct Ladder {
    client: Client,
    clock: Arc<dyn Clock>,
    admins: Vec<Client>,
    long: ChatRequest,
    short: ChatRequest,
    cold: Option<Answer>,
    rungs: Vec<Rung>,
}

impl Ladder {
    /// Finds out how long a prompt must be.
    ///
    /// # Errors
    /// When the server cannot be reached or refuses a request.
    pub async fn start(options: &LadderOptions, clock: &Arc<dyn Clock>) -> anyhow::Result<Self> {
        Self::keyed(options, clock, 0).await
    }

    /// The same; ladders of different `salt` that begin in the same second have different prompts.
    ///
    /// # Errors
    /// As for [`Ladder::start`].
    pub async fn keyed(
        options: &LadderOptions,
        clock: &Arc<dyn Clock>,
        salt: u64,
    ) -> anyhow::Result<Self> {
        let client = Client::http(&options.url, options.api_key.clone(), Arc::clone(clock))?;
        let admins = options.admins.iter().map(|url| Client::http(url, None, Arc::clone(clock)));
        let model = match &options.model {
            Some(model) => model.clone(),
            None => client.first_model().await?,
        };
        let key = clock.unix_seconds().wrapping_add(salt.wrapping_mul(15_485_863));
        let characters = characters_for(&client, &model, key, options.prompt_tokens).await?;
        Ok(Self {
            admins: admins.collect::<anyhow::Result<_>>()?,
            long: chat(&model, &sentences(key, characters)),
            short: chat(&model, &sentences(key + 1, SHORT_CHARACTERS)),
            client,
            clock: Arc::clone(clock),
            cold: None,
            rungs: Vec::new(),
        })
    }

    /// From now on these are the processes that must come to rest, and whose tiers are emptied.
    ///
    /// # Errors
    /// When one is no URL.
    pub fn watch(&mut self, admins: &[String]) -> anyhow::Result<()> {
        let clients = admins.iter().map(|url| Client::http(url, None, Arc::clone(&self.clock)));
        self.admins = clients.collect::<anyhow::Result<_>>()?;
        Ok(())
    }

    /// The long prompt from nothing.
    ///
    /// # Errors
    /// When a request fails, or the server does not come to rest afterwards.
    pub async fn cold(&mut self) -> anyhow::Result<()> {
        let cold = self.client.chat(&self.long, |_| ()).await?;
        self.rungs.push(rung("cold", &cold, std::slice::from_ref(&cold)));
        self.cold = Some(cold);
        self.settle().await?;
        Ok(())
    }

    /// The same prompt again without what the workers hold, and without a rung: what is missing by now is computed, and
    /// offered to the store nodes that are there.
    ///
    /// # Errors
    /// As for [`Ladder::cold`].
    pub async fn refill(&mut self) -> anyhow::Result<()> {
        self.settle().await?;
        evict(&self.admins, "device").await?;
        self.client.chat(&self.long, |_| ()).await?;
        self.settle().await?;
        Ok(())
    }

    /// The same prompt again, after the tiers named in `emptied` were emptied each time.
    ///
    /// # Errors
    /// As for [`Ladder::cold`].
    ///
    /// # Panics
    /// Before the cold run.
    pub async fn again(&mut self, name: &'static str, emptied: &[&str]) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        for _ in 0..REPEATS {
            if !emptied.is_empty() {
                self.settle().await?;
            }
            for tier in emptied {
                evict(&self.admins, tier).await?;
            }
            answers.push(self.client.chat(&self.long, |_| ()).await?);
        }
        let cold = self.cold.as_ref().expect("a cold run comes first");
        self.rungs.push(rung(name, cold, &answers));
        Ok(())
    }

    /// A short prompt that needs no prefill.
    ///
    /// # Errors
    /// When a request fails.
    pub async fn direct(&mut self) -> anyhow::Result<()> {
        let mut answers = Vec::new();
        for _ in 0..REPEATS {
            answers.push(self.client.chat(&self.short, |_| ()).await?);
        }
        self.rungs.push(rung("direct", &answers[0], &answers));
        Ok(())
    }

    /// The last rung.
    #[must_use]
    pub fn last(&self) -> Option<&Rung> {
        self.rungs.last()
    }

    /// Waits until the server has nothing in work, so that offers to the store are through and counts are at rest.
    ///
    /// # Errors
    /// When it does not come to rest.
    pub async fn settle(&self) -> anyhow::Result<Option<Value>> {
        settle(&self.admins).await
    }

    /// Ends the ladder.
    ///
    /// # Errors
    /// When the server does not come to rest.
    pub async fn report(self) -> anyhow::Result<LadderReport> {
        let audit = self.settle().await?;
        let field = |name: &str| audit.as_ref().map(|audit| audit[name].clone());
        Ok(LadderReport {
            rungs: self.rungs,
            prefill_loaded_share: field("prefill_loaded_share").and_then(|value| value.as_f64()),
            blocks_leaked: field("leaked").and_then(|value| value.as_u64()),
        })
    }
}

/// Runs the rungs that any server has. `progress` sees each.
///
/// # Errors
/// When the server cannot be reached, refuses a request, or does not come to rest between rungs.
pub async fn run(
    options: &LadderOptions,
    clock: &Arc<dyn Clock>,
    mut progress: impl FnMut(&Rung),
) -> anyhow::Result<LadderReport> {
    let mut ladder = Ladder::start(options, clock).await?;
    let mut shown = |ladder: &Ladder| ladder.last().map(&mut progress);
    ladder.cold().await?;
    shown(&ladder);
    ladder.again("device", &[]).await?;
    shown(&ladder);
    if !options.admins.is_empty() {
        ladder.again("host", &["device"]).await?;
        shown(&ladder);
    }
    ladder.direct().await?;
    shown(&ladder);
    ladder.report().await
}

/// A line for people.
#[must_use]
pub fn describe(rung: &Rung) -> String {
    let equal = match (rung.answer_equal, rung.answer_equal_expected) {
        (true, _) => "answer equal",
        (false, false) => "answer differs, as it may",
        (false, true) => "ANSWER DIFFERS",
    };
    format!(
        "{:<7} {:>6} prompt tokens, {:>6} cached, {:>5} replayed ({}), ttft {:>8.1} ms, itl {:>6.2} ms, {:>9} bytes \
         fetched, {equal}",
        rung.name,
        rung.prompt_tokens,
        rung.cached_tokens,
        rung.replayed_tokens.map_or_else(|| "?".to_owned(), |rows| rows.to_string()),
        rung.window_source.as_deref().unwrap_or("not reported"),
        rung.ttft_ms,
        rung.itl_ms,
        rung.bytes_fetched.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string()),
    )
}

fn chat(model: &str, text: &str) -> ChatRequest {
    ChatRequest {
        model: model.to_owned(),
        messages: vec![Message { role: "user", text: text.to_owned() }],
        output_tokens_max: OUTPUT_TOKENS,
        temperature: 0.0,
        seed: 7,
        thinking: false,
    }
}

/// How many characters make about `tokens` tokens, asked from the server with two texts of its own: what two lengths
/// differ by is free of what the prompt format adds to each.
async fn characters_for(
    client: &Client,
    model: &str,
    key: u64,
    tokens: u32,
) -> anyhow::Result<usize> {
    let mut lengths = [(0, 0), (0, 0)];
    for (length, characters) in lengths.iter_mut().zip(SAMPLE_CHARACTERS) {
        let text = sentences(key.wrapping_add(1_000_003), characters);
        let mut request = chat(model, &text);
        request.output_tokens_max = 1;
        let answer = client.chat(&request, |_| ()).await?;
        *length = (text.len(), usize::try_from(answer.prompt_tokens)?);
    }
    let [(short, short_tokens), (long, long_tokens)] = lengths;
    if long_tokens <= short_tokens {
        bail!("the server reports no usable prompt_tokens, so no prompt length can be aimed at");
    }
    let missing = usize::try_from(tokens)?.saturating_sub(short_tokens);
    let characters = missing.checked_mul(long - short).context("the prompt is too long")?;
    Ok(short + characters / (long_tokens - short_tokens))
}

/// Empties a tier wherever it is.
async fn evict(admins: &[Client], tier: &str) -> anyhow::Result<()> {
    for admin in admins {
        admin.json("POST", &format!("/debug/cache/evict?tier={tier}")).await?;
    }
    Ok(())
}

/// Waits until no process has anything in work; the sum of what they say.
async fn settle(admins: &[Client]) -> anyhow::Result<Option<Value>> {
    if admins.is_empty() {
        return Ok(None);
    }
    for _ in 0..SETTLE_TRIES {
        let (mut busy, mut leaked, mut share) = (0, 0, Value::Null);
        for admin in admins {
            let audit = admin.json("GET", "/debug/audit").await?;
            let count = |name: &str| audit[name].as_u64().unwrap_or(0);
            busy += count("busy");
            leaked += count("leaked");
            if audit["prefill_loaded_share"].is_number() {
                share = audit["prefill_loaded_share"].clone();
            }
        }
        if busy == 0 {
            return Ok(Some(json!({"leaked": leaked, "prefill_loaded_share": share})));
        }
        tokio::time::sleep(SETTLE_WAIT).await;
    }
    bail!(
        "the server still has work 10 s after the last answer; look at /debug/audit of its admin listeners"
    )
}

fn rung(name: &'static str, reference: &Answer, answers: &[Answer]) -> Rung {
    let last = answers.last().expect("a rung has at least one run");
    let exact = |answer: &Answer| answer.start.as_ref().is_some_and(|start| start.exact);
    Rung {
        name,
        prompt_tokens: last.prompt_tokens,
        cached_tokens: last.cached_tokens,
        replayed_tokens: last.start.as_ref().map(|start| start.replayed_tokens),
        window_source: last.start.as_ref().map(|start| start.window_source.clone()),
        ttft_ms: median(answers.iter().map(|answer| answer.ttft_ms).collect()),
        itl_ms: median(answers.iter().map(|answer| answer.itl_ms).collect()),
        bytes_fetched: last.start.as_ref().map(|start| start.bytes_fetched),
        answer_equal: answers.iter().all(|answer| answer.text == reference.text),
        answer_equal_expected: exact(reference) && answers.iter().all(exact),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::{describe, median, rung};
    use crate::client::{Answer, StartFields};

    fn answer(text: &str, ttft_ms: f64, exact: Option<bool>) -> Answer {
        let start = exact.map(|exact| StartFields { exact, ..StartFields::default() });
        Answer { text: text.to_owned(), ttft_ms, start, ..Answer::default() }
    }

    #[test]
    fn equality_is_expected_only_where_both_sides_claim_it() {
        let cases =
            [(Some(true), Some(true), true), (Some(true), Some(false), false), (None, None, false)];
        for (cold, hit, expected) in cases {
            let rung = rung("device", &answer("a", 1.0, cold), &[answer("b", 1.0, hit)]);
            assert_eq!((rung.answer_equal, rung.answer_equal_expected), (false, expected));
        }
    }

    #[test]
    fn a_rung_reports_the_median_run() {
        let runs = [answer("a", 9.0, None), answer("a", 1.0, None), answer("a", 2.0, None)];
        let rung = rung("host", &runs[0], &runs);
        assert!((rung.ttft_ms - 2.0).abs() < 1e-9 && rung.answer_equal);
        assert!((median(vec![4.0]) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_server_that_says_nothing_is_described_as_such() {
        let line = describe(&rung("cold", &answer("a", 1.0, None), &[answer("a", 1.0, None)]));
        assert!(line.contains("not reported") && line.contains("answer equal"), "{line}");
    }
}
