//! What is refused, and what ends early.

use std::time::Duration;

use decode::{DecodeConfig, DecodeParts, DecodeWorker};
use shared::{DecodeEvent, DecodeRequest, FinishReason, ServeError, Timestamp, TokenId};

use crate::checks::check;
use crate::rig::{Rig, RigOptions, prompt, request, tiny, wait_until};

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions { slots: 12, ..RigOptions::default() });
    let ids = prompt(&engine, 1, 300);
    let asked = request(&ids, 4);
    let other = request(&prompt(&engine, 2, 300), 4);
    let unsupported = |what: &str| ServeError::Unsupported { what: what.to_owned() };
    let cases = [
        (
            DecodeRequest { names: other.names, ..asked.clone() },
            ServeError::NamesDiffer { index: 0 },
        ),
        (request(&[], 4), unsupported("an empty prompt; send at least one token")),
        (
            DecodeRequest { output_tokens_max: 0, ..asked.clone() },
            unsupported("an answer of 0 tokens; ask for at least one"),
        ),
        (
            DecodeRequest { prompt: [TokenId(480)].into(), ..request(&ids[..1], 4) },
            unsupported("token 480 of a vocabulary of 480"),
        ),
        (
            request(&prompt(&engine, 3, 1_024), 4),
            ServeError::TooLong { tokens: 1_025, tokens_max: 1_024 },
        ),
        (
            request(&prompt(&engine, 3, 2_000), 4),
            ServeError::TooLong { tokens: 2_000, tokens_max: 1_024 },
        ),
        (request(&prompt(&engine, 3, 600), 4), ServeError::NeverFits { slots: 5, slots_max: 4 }),
    ];
    let count = u64::try_from(cases.len()).unwrap();
    for (asked, error) in cases {
        let answer = rig.answer(asked);
        assert_eq!((answer.tokens.len(), answer.end), (0, Err(error)));
    }
    rig.rest();
    assert_eq!(rig.stats().refused, count);
}

#[test]
fn answers_end_where_context_or_slots_end() {
    let engine = tiny();
    for (slots, length, tokens) in [(64, 1_000, 24), (8 + 3, 300, 85)] {
        let rig = Rig::new(&engine, RigOptions { slots, ..RigOptions::default() });
        let asked = request(&prompt(&engine, 1, length), 100_000);
        let answer = rig.answer(asked.clone());
        assert_eq!(answer.end, Ok(FinishReason::Length));
        assert_eq!(answer.tokens.len(), tokens);
        check(
            &rig,
            &DecodeRequest { output_tokens_max: u32::try_from(tokens).unwrap(), ..asked },
            &answer,
        );
        rig.rest();
    }
}

#[test]
fn deadlines_end_requests_wherever_they_are() {
    let engine = tiny();
    let config = DecodeConfig { sequences_max: 1, ..RigOptions::default().config };
    let rig = Rig::new(&engine, RigOptions { config, ..RigOptions::default() });
    let deadline = Some(Timestamp(1_000_000));
    let running = rig.ask(DecodeRequest { deadline, ..request(&prompt(&engine, 1, 20), 900) });
    assert!(matches!(running.next(), DecodeEvent::Started(_)));
    let queued = rig.ask(DecodeRequest { deadline, ..request(&prompt(&engine, 2, 20), 900) });
    wait_until("the second one waits", || rig.stats().waiting == 1);
    rig.clock.advance(Duration::from_millis(1));
    assert_eq!(queued.answer().end, Err(ServeError::DeadlineExceeded { stage: "queued" }));
    loop {
        match running.next() {
            DecodeEvent::Token(..) => (),
            last => {
                let stage = "decoding";
                let expected = ServeError::DeadlineExceeded { stage };
                assert_eq!(last, DecodeEvent::Failed(expected));
                break;
            }
        }
    }
    rig.rest();
}

#[test]
fn draining_finishes_what_runs_and_refuses_the_rest() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions::default());
    let asked = request(&prompt(&engine, 1, 200), 60);
    let running = rig.ask(asked.clone());
    assert!(!rig.idle());
    rig.begin_drain();
    assert_eq!(rig.answer(asked.clone()).end, Err(ServeError::Draining));
    check(&rig, &asked, &running.answer());
    rig.rest();
}

#[test]
fn a_full_queue_refuses_and_a_dropped_worker_tells_everybody() {
    let engine = tiny();
    let config = DecodeConfig { sequences_max: 1, waiting_max: 2, ..RigOptions::default().config };
    let rig = Rig::new(&engine, RigOptions { config, ..RigOptions::default() });
    let asked = request(&prompt(&engine, 1, 20), 1_000);
    let running = rig.ask(asked.clone());
    assert!(matches!(running.next(), DecodeEvent::Started(_)));
    let first = rig.ask(asked.clone());
    wait_until("the first one waits", || rig.stats().waiting == 1);
    let second = rig.ask(asked.clone());
    wait_until("the second one waits", || rig.stats().waiting == 2);
    let refused = rig.answer(asked).end;
    assert!(
        matches!(refused, Err(ServeError::Overloaded { waiting: 2, waiting_max: 2, .. })),
        "{refused:?}"
    );
    let (pool, windows) = (rig.pool.clone(), rig.windows.clone());
    drop(rig);
    let lost = Err(ServeError::WorkerLost { worker: crate::rig::RANK });
    for pending in [first, second] {
        assert_eq!(pending.answer().end, lost);
    }
    assert!(pool.audit().is_at_rest() && windows.audit().is_at_rest());
}

#[test]
fn a_pool_too_small_for_its_settings_is_refused() {
    let start: fn(DecodeConfig, DecodeParts) -> Result<DecodeWorker, _> = DecodeWorker::start;
    let engine = tiny();
    let parts = crate::rig::parts(&engine, 8);
    let config = DecodeConfig { offers_max: 8, ..DecodeConfig::STANDARD };
    let error = start(config, parts).err().unwrap().to_string();
    assert_eq!(
        error,
        "8 cache slots are too few beside decode.offers_max = 8; raise device_blocks or lower offers_max"
    );
    let parts = crate::rig::parts(&engine, 8);
    let config = DecodeConfig { waiting_max: 0, ..DecodeConfig::STANDARD };
    let error = start(config, parts).err().unwrap().to_string();
    assert_eq!(error, "decode.waiting_max is 0, expected 1..=65536");
}
