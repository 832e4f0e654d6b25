//! The table of settings.

use router::Policy;

/// One setting.
pub struct Key {
    /// Name of the field; [`Key::name`] is the one that is typed.
    pub(crate) field: &'static str,
    /// What it is, with its unit.
    pub about: &'static str,
    /// Where the default comes from.
    pub source: &'static str,
    pub(crate) range: fn() -> String,
    pub(crate) read: fn(&Settings) -> String,
    pub(crate) write: fn(&mut Settings, &str) -> Result<(), ()>,
}

/// What a field can be.
trait Value: Sized {
    /// The value within its range.
    fn parse(text: &str, least: &Self, most: &Self) -> Option<Self>;
    /// The range, in words.
    fn range(least: &Self, most: &Self) -> String;
    /// As it is typed.
    fn show(&self) -> String;
}

impl Value for u64 {
    fn parse(text: &str, least: &Self, most: &Self) -> Option<Self> {
        text.parse().ok().filter(|value| (least..=most).contains(&value))
    }

    fn range(least: &Self, most: &Self) -> String {
        format!("{least} to {most}")
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn parse(text: &str, least: &Self, most: &Self) -> Option<Self> {
        text.parse().ok().filter(|value| least <= value && value <= most)
    }

    fn range(least: &Self, most: &Self) -> String {
        format!("{least} to {most}")
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// Every policy can be had, so the range has no ends.
impl Value for Policy {
    fn parse(text: &str, _: &Self, _: &Self) -> Option<Self> {
        Self::parse(text)
    }

    fn range(_: &Self, _: &Self) -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }

    fn show(&self) -> String {
        self.as_str().to_owned()
    }
}

macro_rules! settings {
    ($($about:literal, $source:literal, $field:ident: $kind:ty = $default:expr, $least:expr, $most:expr;)+) => {
        /// The settings of one run. Fields are documented in [`KEYS`].
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $(#[doc = $about] pub $field: $kind,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        /// All settings, in the order in which they are shown.
        pub const KEYS: &[Key] = &[$(Key {
            field: stringify!($field),
            about: $about,
            source: $source,
            range: || <$kind as Value>::range(&$least, &$most),
            read: |settings| Value::show(&settings.$field),
            write: |settings, text| {
                settings.$field = <$kind as Value>::parse(text, &$least, &$most).ok_or(())?;
                Ok(())
            },
        },)+];
    };
}

settings! {
    "Prefill workers.", "a choice",
    prefill: u64 = 0, 0, 64;
    "Decode workers.", "a choice",
    decode: u64 = 2, 0, 64;
    "Store nodes.", "a choice",
    stores: u64 = 1, 0, 64;
    "Routers; requests are spread over them in turn, and all hear the same events.", "a choice",
    routers: u64 = 1, 1, 8;
    "What routers tell each other: 0 nothing, 1 placements and their ends, 2 also the blocks that a placement will bring.", "as shipped",
    exchange: u64 = 2, 0, 2;
    "From a router's placement to the other routers' knowledge of it, ms.", "assumed, as for the events of workers: the news is sent at once",
    exchange_ms: f64 = 1.0, 0.0, 60000.0;
    "How workers are chosen.", "router's default",
    policy: Policy = Policy::Cost, Policy::Cost, Policy::Session;
    "Blocks in the slab of a decode worker, of 128 tokens and 113,920 bytes.", "a choice: 524,288 tokens, the fleet of 2026-11-30-sim.md",
    decode_blocks: u64 = 4096, 32, 4000000;
    "Blocks in the slab of a prefill worker.", "a choice, as for decode",
    prefill_blocks: u64 = 4096, 32, 4000000;
    "Host memory of a store node for blocks, GiB; 0 leaves 1,024 blocks when there is a drive.", "kvstore's default",
    host_gib: f64 = 1.0, 0.0, 65536.0;
    "Drive of a store node, GiB; 0 is none.", "a choice",
    disk_gib: f64 = 0.0, 0.0, 1048576.0;
    "Segment of a drive, MiB.", "kvstore's default",
    segment_mib: u64 = 256, 1, 16384;
    "Retention of a drive, hours.", "kvstore's default",
    retention_hours: f64 = 72.0, 0.01, 8760.0;
    "Rows a prefill worker computes per second.", "README ladder, cold prompt: 7,808 rows in 1,745 ms, all of the service included; seedling on 2 cores",
    encoder_rows_per_s: f64 = 4474.0, 1.0, 100000000.0;
    "Fixed time of a step of a prefill worker, ms.", "not measured apart from the rate",
    prefill_step_ms: f64 = 0.0, 0.0, 10000.0;
    "Rows of [X, N) a decode worker computes per second.", "2026-11-29-engine-cpu.md: prefill of 1,000 through all layers, fast; seedling on 2 cores",
    tail_rows_per_s: f64 = 2342.0, 1.0, 100000000.0;
    "Fixed time of a step of a decode worker, ms.", "2026-11-29-engine-cpu.md: decode after 1,000, 2.93 ms, less one row at the tail's rate; seedling on 2 cores",
    decode_step_ms: f64 = 2.5, 0.0, 10000.0;
    "Time of each decode row of a step, ms.", "one row at the tail's rate: batches were not measured; seedling on 2 cores",
    decode_row_ms: f64 = 0.43, 0.0, 10000.0;
    "Bringing one block from a store's host memory, ms.", "2026-11-30-store-quiet.md: 61 blocks in 2.76 ms",
    restore_host_ms: f64 = 0.045, 0.0, 10000.0;
    "Bringing one block from a store's drive, the copy through its host memory included, ms.", "2026-11-30-store-quiet.md: 61 blocks in 7.16 ms",
    restore_disk_ms: f64 = 0.117, 0.0, 10000.0;
    "Reading one block from a prefill worker, ms.", "2026-11-30-store-quiet.md: 3.46 GB/s through shared memory",
    restore_peer_ms: f64 = 0.033, 0.0, 10000.0;
    "Fixed time of a visit to a prefill worker, ms.", "2026-11-29-transport.md: 2,311 - 2,231 ms, four processes on two cores against one; a pessimistic figure",
    handoff_ms: f64 = 80.0, 0.0, 10000.0;
    "How workers measure their pace: 2 by a line through their steps, as shipped; 1 rows over seconds, both fading; 0 an average of the rates of steps.", "as shipped",
    pace_by_rows: u64 = 2, 0, 2;
    "From the client to the router and back, and between processes, one way, ms.", "assumed",
    hop_ms: f64 = 0.5, 0.0, 10000.0;
    "Tokens that a router's front door makes of text per second, for each request by itself; 0 takes no time.", "results of `kvasir bench router`: 220 KB in 58.1 ms, four bytes a token assumed; nothing seen before",
    edge_tokens_per_s: f64 = 950000.0, 0.0, 1000000000.0;
    "From a worker's change to the router's knowledge of it, ms.", "assumed",
    event_ms: f64 = 1.0, 0.0, 60000.0;
    "Longest silence between two load reports, ms.", "workers' default",
    report_ms: f64 = 1000.0, 10.0, 60000.0;
    "Rows of one step of a prefill worker.", "prefill's default",
    prefill_rows_step: u64 = 512, 128, 65536;
    "Requests that share the steps of a prefill worker.", "prefill's default",
    prefill_running: u64 = 16, 1, 4096;
    "Tail rows of one step of a decode worker.", "decode's default",
    tail_rows_step: u64 = 512, 128, 65536;
    "Decode rows of one step.", "decode's default",
    decode_rows_step: u64 = 64, 1, 4096;
    "Live sequences of a decode worker.", "decode's default",
    sequences: u64 = 64, 1, 4096;
    "Requests that wait at a worker; the next one is refused.", "workers' default",
    worker_waiting: u64 = 256, 1, 65536;
    "Requests that a router places on one decode worker.", "router's default",
    decode_running: u64 = 64, 1, 4096;
    "Requests that a router expects at one prefill worker.", "router's default",
    prefill_placed: u64 = 16, 1, 4096;
    "Requests that wait in a router; the next one is refused.", "router's default",
    waiting: u64 = 256, 0, 1000000;
    "Rows of [0, S) that a decode worker is asked to compute beside prefill workers.", "router's default",
    direct_rows: u64 = 2048, 0, 100000000;
    "Costs that differ by less are equal to a router, ms.", "router's default",
    tie_margin_ms: f64 = 1.0, 0.0, 100000.0;
    "Entries of a router's index.", "router's default",
    index_entries: u64 = 2000000, 1, 100000000;
    "Time a request may take, s; 0 is without bound.", "gateway's default",
    deadline_s: f64 = 3600.0, 0.0, 1000000.0;
    "Context of the model, tokens.", "the Flash configuration's order",
    context_tokens: u64 = 1048576, 1024, 100000000;
    "How much faster than recorded requests arrive.", "a choice",
    speed: f64 = 1.0, 0.001, 100000.0;
    "Step of the clock that recorded the trace, ms: requests of one instant are spread over so much time after it, in their order; 0 takes instants as they stand.", "a choice: Mooncake's conversation trace was recorded in steps of 3,000 ms",
    arrival_step_ms: f64 = 0.0, 0.0, 60000.0;
    "Requests of the trace that are used, from its beginning.", "a choice",
    requests: u64 = 10000000, 1, 10000000;
    "Seed of everything that is drawn.", "a choice",
    seed: u64 = 1, 0, 18446744073709551615;
    "Faults drawn at random over the trace, beside those that are named.", "a choice",
    random_faults: u64 = 0, 0, 10000;
    "TTFT of goodput, ms.", "a choice, as published for Dynamo: goodput at 2 s",
    slo_ttft_ms: f64 = 2000.0, 0.0, 100000000.0;
    "Mean ITL of a request of goodput, ms.", "a choice, as published for Dynamo: goodput at 25 ms",
    slo_itl_ms: f64 = 25.0, 0.0, 100000000.0;
    "Synthetic days only: length, days.", "a choice",
    days: f64 = 3.0, 0.01, 30.0;
    "Synthetic days only: conversations that begin per hour, on average over a day.", "a choice",
    conversations_per_hour: f64 = 30.0, 0.01, 100000.0;
    "Synthetic days only: how much the rate swings over a day, 0 to 1.", "assumed",
    day_swing: f64 = 0.6, 0.0, 1.0;
    "Synthetic days only: turns of a conversation, mean.", "assumed",
    turns: f64 = 6.0, 1.0, 1000.0;
    "Synthetic days only: share of returns that come after minutes.", "assumed",
    return_soon: f64 = 0.7, 0.0, 1.0;
    "Synthetic days only: mean of such a return, minutes.", "assumed",
    return_minutes: f64 = 5.0, 0.01, 100000.0;
    "Synthetic days only: share of returns that come after hours; the rest comes after days.", "assumed",
    return_later: f64 = 0.2, 0.0, 1.0;
    "Synthetic days only: mean of such a return, hours.", "assumed",
    return_hours: f64 = 4.0, 0.01, 10000.0;
    "Synthetic days only: mean of a return after days, days.", "assumed",
    return_days: f64 = 1.5, 0.01, 365.0;
    "Synthetic days only: new tokens of a turn after the first, mean.", "assumed",
    question_tokens: f64 = 300.0, 1.0, 1000000.0;
    "Synthetic days only: prompts at the beginning that many conversations share.", "assumed",
    shared_prompts: u64 = 20, 0, 100000;
    "Synthetic days only: tokens of such a prompt.", "assumed",
    shared_tokens: u64 = 2048, 0, 1000000;
}
