//! What a run says: figures with names and units, the same for the table, JSON, sweeps and the page.

mod page;
mod text;

pub use page::page;
pub use text::{json, table};

use crate::fault::Fault;
use crate::measure::{Measures, Origin, Outcome, Times};
use crate::settings::{SettingError, Settings, real, size, wide};
use crate::trace::{Bound, Trace};
use crate::world::{Checking, Over, World};

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Its name in JSON and in sweeps: words with underscores.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Unit: `ms`, `%`, `/s`, `s`, or nothing for counts.
    pub unit: &'static str,
    /// The value; none when nothing was counted.
    pub value: Option<f64>,
}

/// One sixtieth of the time in which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// Its end, s.
    pub until_s: f64,
    /// Requests that arrived per second.
    pub arrivals: f64,
    /// Of the tokens of prompts that arrived in it, those that were cached, %.
    pub hit: Option<f64>,
    /// Mean TTFT of those, ms.
    pub ttft_ms: Option<f64>,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was replayed.
    pub trace: String,
    /// All settings: name, value, whether it is the default.
    pub settings: Vec<(String, String, bool)>,
    /// The faults, as they are written.
    pub faults: Vec<String>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The run over time.
    pub parts: Vec<Part>,
}

/// Runs a trace to its last outcome. Blocks the caller; deterministic.
///
/// # Errors
/// When settings contradict each other or a fault names a member that the fleet does not have.
///
/// # Panics
/// When the shipped code breaks one of the invariants that are checked.
pub fn simulate(
    (trace, bound): (&Trace, Bound),
    settings: &Settings,
    faults: &[Fault],
    checking: Checking,
) -> Result<Report, SettingError> {
    let over = World::new(settings, (trace, bound), faults, checking)?.run();
    Ok(Report {
        trace: trace.label.clone(),
        settings: settings.shown(),
        faults: over.faults.iter().map(Fault::to_string).collect(),
        figures: figures(settings, bound, &over),
        parts: parts(&over.measures),
    })
}

impl Report {
    /// The value of a figure.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name)?.value
    }

    /// The value of a setting, as text.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        let known = self.settings.iter().find(|(known, ..)| known == name);
        known.map(|(_, value, _)| value.as_str())
    }
}

/// Collects figures.
struct Figures(Vec<Figure>);

impl Figures {
    fn add(
        &mut self,
        (name, unit): (&'static str, &'static str),
        value: impl Into<Option<f64>>,
        about: &'static str,
    ) {
        self.0.push(Figure { name, about, unit, value: value.into() });
    }

    fn count(&mut self, name: &'static str, count: u64, about: &'static str) {
        self.add((name, ""), real(count), about);
    }

    fn times(&mut self, names: [&'static str; 4], times: &Times, about: &'static str) {
        let [p50, p90, p99, mean] = names;
        for (name, share) in [(p50, 0.5), (p90, 0.9), (p99, 0.99)] {
            self.add((name, "ms"), times.quantile_ms(share), about);
        }
        self.add((mean, "ms"), times.mean_ms(), about);
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (0 < whole).then(|| real(part) * 100.0 / real(whole))
}

fn figures(settings: &Settings, bound: Bound, over: &Over) -> Vec<Figure> {
    let mut figures = Figures(Vec::new());
    let measures = &over.measures;
    requests(&mut figures, over);
    let ttft = ["ttft_p50", "ttft_p90", "ttft_p99", "ttft_mean"];
    figures.times(ttft, &measures.ttft, "time to the first token, from arrival, at the client");
    let itl = ["itl_p50", "itl_p90", "itl_p99", "itl_mean"];
    figures.times(itl, &measures.itl, "time between two tokens of an answer");
    let queued = ["queued_p50", "queued_p90", "queued_p99", "queued_mean"];
    figures.times(queued, &measures.queued, "time in the router's queue");
    hits(&mut figures, bound, measures);
    let end_s = real(over.end.0) / 1e9;
    let rate = |count: u64| (0.0 < end_s).then(|| real(count) / end_s);
    figures.add(("end", "s"), end_s, "when the last request had its outcome");
    let finished = measures.outcomes[0];
    figures.add(("requests_per_s", "/s"), rate(finished), "finished requests");
    figures.add(("tokens_per_s", "/s"), rate(measures.answer_tokens), "tokens of finished answers");
    figures.add(
        ("goodput", "/s"),
        rate(measures.good),
        "finished requests that kept both objectives",
    );
    let all: u64 = measures.outcomes.iter().sum();
    figures.add(
        ("good_share", "%"),
        share(measures.good, all),
        "of all requests, those of goodput",
    );
    let used = |busy_s: f64, workers: u64| {
        (0.0 < end_s && 0 < workers).then(|| busy_s * 100.0 / (end_s * real(workers)))
    };
    let [prefill_s, decode_s] = over.busy_s;
    let prefill = used(prefill_s, settings.prefill);
    figures.add(
        ("prefill_busy", "%"),
        prefill,
        "of the time of all prefill workers, that of steps",
    );
    let decode = used(decode_s, settings.decode);
    figures.add(("decode_busy", "%"), decode, "of the time of all decode workers, that of steps");
    let [least_s, most_s] = over.decode_busy_s;
    let least = used(least_s, 1);
    figures.add(("decode_busy_least", "%"), least, "the same of the least busy decode worker");
    figures.add(
        ("decode_busy_most", "%"),
        used(most_s, 1),
        "the same of the busiest decode worker",
    );
    inner(&mut figures, over);
    figures.0
}

fn requests(figures: &mut Figures, over: &Over) {
    let measures = &over.measures;
    let names: [_; Outcome::ALL.len()] =
        ["finished", "overloaded", "refused", "deadline", "worker_lost"];
    let abouts = [
        "requests with a complete answer",
        "requests refused by a router whose queue was full",
        "requests refused by a worker: its queue was full, or they never fit",
        "requests whose deadline passed",
        "requests whose worker was lost and that found no other one",
    ];
    let all: u64 = measures.outcomes.iter().sum();
    figures.count("requests", all, "requests of the trace");
    for ((name, about), count) in names.into_iter().zip(abouts).zip(measures.outcomes) {
        figures.count(name, count, about);
    }
}

fn hits(figures: &mut Figures, bound: Bound, measures: &Measures) {
    let cached: u64 = measures.cached_tokens.iter().sum();
    let hit = share(cached, measures.prompt_tokens);
    figures.add(
        ("hit", "%"),
        hit,
        "of the tokens of prompts that started, those whose blocks were cached",
    );
    let names: [_; Origin::ALL.len()] = ["hit_device", "hit_peer", "hit_host", "hit_disk"];
    let abouts = [
        "of the same, in the decode worker's slab",
        "of the same, in the prefill worker's slab",
        "of the same, in a store's host memory",
        "of the same, on a store's drive",
    ];
    let tiers = names.into_iter().zip(abouts).zip(measures.cached_tokens);
    for ((name, about), tokens) in tiers {
        figures.add((name, "%"), share(tokens, measures.prompt_tokens), about);
    }
    let infinite = share(bound.hit_tokens, bound.prompt_tokens);
    figures.add(("hit_infinite", "%"), infinite, "a cache without bound, whole blocks");
    let usable = share(bound.usable_tokens, bound.prompt_tokens);
    let about =
        "a cache without bound, below the hand-off boundary S: nothing more is ever attached";
    figures.add(("hit_infinite_usable", "%"), usable, about);
    let of = |whole: Option<f64>| {
        hit.zip(whole).filter(|(_, whole)| 0.0 < *whole).map(|(hit, whole)| hit * 100.0 / whole)
    };
    figures.add(("hit_of_infinite", "%"), of(infinite), "hit, of hit_infinite");
    figures.add(("hit_of_usable", "%"), of(usable), "hit, of hit_infinite_usable");
    let expected = share(measures.expected_tokens, measures.prompt_tokens);
    let about =
        "what routers expected to be cached at decode workers and stores, of the same tokens";
    figures.add(("expected", "%"), expected, about);
}

fn inner(figures: &mut Figures, over: &Over) {
    let measures = &over.measures;
    let [written, again, refused, expired, late] = over.drives;
    let counts = [
        (
            "waiting_most",
            wide(measures.waiting_most),
            "requests waiting for a worker, most at one report",
        ),
        ("visits", measures.visits, "starts that asked a prefill worker"),
        ("visit_retries", measures.visit_retries, "further prefill workers asked"),
        (
            "fallbacks",
            measures.fallbacks,
            "starts that computed everything themselves, no prefill worker left",
        ),
        ("preemptions", measures.preemptions, "sequences that gave way"),
        ("resumed", measures.resumed, "requests placed anew"),
        ("resyncs", measures.resyncs, "whole states asked for by routers"),
        (
            "lookups_unanswered",
            measures.lookups_unanswered,
            "lookups of which a store said nothing",
        ),
        (
            "index_entries",
            wide(over.index_entries),
            "entries of the fullest router's index at the end",
        ),
        ("index_dropped", over.index_dropped, "blocks that found no room in an index"),
        ("drive_written", written, "blocks written to drives"),
        ("drive_written_again", again, "blocks written again because they were used late"),
        ("drive_refused", refused, "blocks the write budget had nothing for"),
        ("drive_expired", expired, "blocks that left drives with their segment"),
        ("drive_late", late, "blocks a drive could not bring within a lookup"),
        ("router_overloaded", over.waited_refused[0], "refusals of routers: queue full"),
        ("router_deadline", over.waited_refused[1], "refusals of routers: deadline"),
        ("router_no_worker", over.waited_refused[2], "refusals of routers: no decode worker"),
        ("steps", measures.steps, "steps of all workers"),
        ("rows", measures.rows, "rows of all steps"),
        ("events", over.events, "events of the simulation"),
    ];
    for (name, count, about) in counts {
        figures.count(name, count, about);
    }
}

fn parts(measures: &Measures) -> Vec<Part> {
    let length_s = measures.slice_s();
    let part = |(number, slice): (usize, &crate::measure::Slice)| Part {
        until_s: real(wide(number) + 1) * length_s,
        arrivals: real(slice.arrived) / length_s,
        hit: share(slice.cached_tokens, slice.prompt_tokens),
        ttft_ms: (0 < slice.first_tokens)
            .then(|| slice.ttft_ns as f64 / real(slice.first_tokens) / 1e6),
    };
    let last = measures.slices.iter().rposition(|slice| 0 < slice.arrived);
    let used = last.map_or(0, |last| last + 1);
    measures.slices.iter().take(size(wide(used))).enumerate().map(part).collect()
}

#[cfg(test)]
mod tests;
