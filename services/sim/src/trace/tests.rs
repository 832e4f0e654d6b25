use std::io::Write;
use std::path::PathBuf;

use shared::Timestamp;

use super::{CaptureLine, Chain, Format, Trace, TraceError, capture_header};
use crate::settings::Settings;

/// A file that is removed with its folder.
struct Written {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn written(text: &str) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
    Written { _folder: folder, path }
}

fn load(text: &str, format: Format) -> Result<Trace, TraceError> {
    Trace::load(&written(text).path, format, &Settings::default())
}

const MOONCAKE: &str = r#"{"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]}
{"timestamp": 27, "input_length": 1200, "output_length": 0, "hash_ids": [1, 2, 4]}

{"timestamp": 27, "input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 3]}
"#;

#[test]
fn each_id_is_four_blocks_and_a_partial_one_is_shared_only_when_equal() {
    let trace = load(MOONCAKE, Format::Mooncake).unwrap();
    let names: Vec<_> = (0..3).map(|number| trace.requests[number].prompt_names(number)).collect();
    assert_eq!(names[0].len(), 9, "1,200 tokens have nine whole blocks");
    assert_eq!(names[0][..8], names[1][..8]);
    assert_ne!(names[0][8], names[1][8], "another id for the partial part");
    assert_eq!(names[0], names[2]);
    assert_eq!(trace.requests[1].at, Timestamp(27_000_000));
    assert_eq!(trace.requests[1].answer_tokens, 1, "an answer of nothing counts as one token");
    let answers = [trace.requests[0].name(0, 9), trace.requests[2].name(2, 9)];
    assert_ne!(answers[0], answers[1], "answers are private");
    let bound = trace.bound();
    assert_eq!((bound.prompt_tokens, bound.hit_tokens), (3_600, (8 + 9) * 128));
    assert_eq!(bound.usable_tokens, (8 + 8) * 128, "S of 1,200 tokens is 1,024");
    assert_eq!(bound.blocks, 10 + 3 * u64::from((1_200_u32 + 5) / 128 - 9));
}

#[test]
fn requests_of_one_instant_are_spread_over_the_step_of_the_traces_clock() {
    let line = |at: u32, tokens: u32| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": [{tokens}]}}\n"
        )
    };
    let text: String = (1..=40).map(|n| line(if n <= 30 { 0 } else { 3_000 }, n)).collect();
    let file = written(&text);
    let spread = |step: f64, seed: u64| {
        let settings = Settings { arrival_step_ms: step, seed, ..Settings::default() };
        Trace::load(&file.path, Format::Mooncake, &settings).unwrap().requests
    };
    let requests = spread(3_000.0, 1);
    assert!(requests.is_sorted_by(|one, next| one.at < next.at), "no two come at once");
    assert!(requests.is_sorted_by_key(|request| request.prompt_tokens), "the order stays");
    let mean = |part: &[super::Request]| {
        part.iter().map(|request| request.at.0).sum::<u64>()
            / 1_000_000
            / u64::try_from(part.len()).unwrap()
    };
    assert!((1_000..2_000).contains(&mean(&requests[..30])), "{}", mean(&requests[..30]));
    assert!(
        requests[29].at < Timestamp(3_000_000_000) && Timestamp(3_000_000_000) <= requests[30].at
    );
    assert_eq!(requests, spread(3_000.0, 1));
    assert_ne!(requests, spread(3_000.0, 2));
    assert_eq!(spread(0.0, 1)[29].at, Timestamp(0));
    let longer = spread(9_000.0, 1);
    assert!(longer.is_sorted_by_key(|request| request.at), "a step longer than the trace's own");
}

#[test]
fn azures_requests_share_nothing() {
    let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n\
                2023-11-16 18:15:50.9951690,374,109\r\n";
    let trace = load(text, Format::Azure).unwrap();
    assert_eq!(trace.requests[1].at, Timestamp(4_314_579_000));
    assert_eq!(trace.bound().hit_tokens, 0);
}

#[test]
fn a_capture_is_read_as_it_is_written() {
    let line = |at_ms, blocks: &[u64]| CaptureLine {
        at_ms,
        prompt_tokens: 300,
        answer_tokens: 20,
        blocks: blocks.iter().map(|word| format!("{word:016x}")).collect(),
    };
    // They are written when they end.
    let lines = [capture_header(), line(9, &[7, 8]).line(), line(5, &[7, u64::MAX]).line()];
    let trace = load(&lines.join("\n"), Format::Capture).unwrap();
    assert_eq!(trace.requests[0].at, Timestamp(5_000_000));
    let first = trace.requests[0].prompt_names(0);
    let second = trace.requests[1].prompt_names(1);
    assert_eq!(first[0], second[0]);
    assert_ne!(first[1], second[1]);
}

#[test]
fn bad_lines_are_named_with_what_to_do() {
    let request = |text: &str| format!("{}{text}\n", &MOONCAKE[..MOONCAKE.find('\n').unwrap() + 1]);
    let captured = format!("{}\n{{}}\n", capture_header());
    let cases = [
        (Format::Mooncake, request("nonsense"), "--format"),
        (
            Format::Mooncake,
            request(r#"{"timestamp":1,"input_length":0,"output_length":1,"hash_ids":[]}"#),
            "a prompt of 0",
        ),
        (
            Format::Mooncake,
            request(r#"{"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1]}"#),
            "expected 2",
        ),
        (Format::Azure, "2023-11-16 18:15:46.6,5,1\n2023-11-16 18:15:46.6,x,1".into(), "such as"),
        (Format::Azure, "2023-11-16 18:15:46.6,5,1\n2023-11-16 18:15:46.5,5,1".into(), "sort"),
        (Format::Capture, captured, "cut off"),
        (Format::Capture, format!("{}\n", capture_header()) + &capture_header(), "line 2"),
    ];
    for (format, text, expected) in cases {
        let error = load(&text, format).unwrap_err().to_string();
        assert!(error.contains(", line 2: ") && error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let first = load("x", Format::Capture).unwrap_err().to_string();
    assert!(first.contains("line 1") && first.contains("header"), "{first}");
    assert!(matches!(load("\n\n", Format::Mooncake), Err(TraceError::Empty { .. })));
    let missing = Trace::load("/no/such/file".as_ref(), Format::Azure, &Settings::default());
    assert!(missing.unwrap_err().to_string().contains("/no/such/file"));
}

#[test]
fn made_up_days_say_so_and_follow_the_seed() {
    let trace = load(MOONCAKE, Format::Mooncake).unwrap();
    let settings = Settings { days: 2.0, ..Settings::default() };
    let days = trace.days(&settings);
    assert!(days.label.starts_with("SYNTHETIC"), "{}", days.label);
    assert_eq!(days.requests, trace.days(&settings).requests);
    let other = trace.days(&Settings { seed: 2, ..settings.clone() });
    assert_ne!(days.requests, other.requests);
    // Thirty conversations an hour with six turns on average; those begun late end after the trace.
    let expected = 2.0 * 24.0 * 30.0 * 6.0;
    let count = days.requests.len() as f64;
    assert!((0.5..1.1).contains(&(count / expected)), "{count}");
    assert!(days.requests.is_sorted_by_key(|request| request.at));
    assert!(days.length() < Timestamp(2 * 86_400_000_000_000));
    let Chain::Conversation { shared_blocks, .. } = days.requests[0].chain else { panic!() };
    assert_eq!(shared_blocks, 16);
    let bound = days.bound();
    assert!(
        bound.usable_tokens * 2 > bound.prompt_tokens,
        "most of a conversation was said before"
    );
}
