//! Prefill workers that fail in every way change no answer, only its path; clients that leave take everything along.

use std::sync::Arc;
use std::time::Duration;

use decode::DecodeConfig;
use parking_lot::Mutex;
use shared::{Clock, Decode, DecodeEvent, DecodeRequest, Flow, Ticket};

use crate::checks::{SAMPLED, check};
use crate::prefill_double::Visit;
use crate::rig::{Rig, RigOptions, StoreKind, prompt, request, tiny, wait_until};
use crate::store_double::SilentStore;

fn visiting(rig: &Rig, seed: u64, tokens: u32) -> DecodeRequest {
    DecodeRequest {
        sampling: SAMPLED,
        prefill: Some(rig.prefills[0].rank),
        ..request(&prompt(&rig.engine, seed, 700), tokens)
    }
}

#[test]
fn a_failing_prefill_is_replaced_by_another_member() {
    let engine = tiny();
    // What the first visit does; the range the second member is asked for.
    let cases = [
        (Visit::FailAfter(0), Some((0, 512))),
        (Visit::FailAfter(2), Some((256, 512))),
        (Visit::GoneAfter(3), Some((384, 512))),
        (Visit::Corrupt(1), Some((128, 512))),
        (Visit::WrongName(2), Some((256, 512))),
        // All blocks came: the windows are rebuilt here instead.
        (Visit::NoWindow, None),
    ];
    for (visit, second) in cases {
        let rig = Rig::new(&engine, RigOptions { prefills: 2, ..RigOptions::default() });
        rig.prefills[0].visits.lock().push_back(visit);
        let asked = visiting(&rig, 1, 8);
        let answer = rig.answer(asked.clone());
        check(&rig, &asked, &answer);
        assert_eq!(*rig.prefills[0].asked.lock(), [(0, 512)], "{visit:?}");
        let asked: Vec<_> = rig.prefills[1].asked.lock().clone();
        assert_eq!(asked, second.into_iter().collect::<Vec<_>>(), "{visit:?}");
        let stats = rig.stats();
        assert_eq!(stats.prefill_visits, 1);
        assert_eq!(stats.prefill_retries, u64::from(second.is_some()), "{visit:?}");
        let report = answer.report();
        assert!(report.exact);
        let helper = usize::from(second.is_some());
        assert_eq!(report.prefill, Some(rig.prefills[helper].rank), "{visit:?}");
        rig.rest();
    }
}

#[test]
fn a_silent_prefill_is_given_up_after_its_time() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions { prefills: 2, ..RigOptions::default() });
    rig.prefills[0].visits.lock().push_back(Visit::SilentAfter(2));
    let asked = visiting(&rig, 1, 8);
    let pending = rig.ask(asked.clone());
    let blocks = u64::try_from(2 * engine.layout().block_bytes()).unwrap();
    assert!(0 < blocks);
    wait_until("two blocks were read", || 2 <= rig.pool.held());
    rig.clock.advance(Duration::from_millis(30_001));
    check(&rig, &asked, &pending.answer());
    assert_eq!(*rig.prefills[1].asked.lock(), [(256, 512)]);
    rig.rest();
}

#[test]
fn a_prefill_that_says_it_is_waiting_is_not_given_up() {
    let engine = tiny();
    let rig = Rig::new(&engine, RigOptions { prefills: 2, ..RigOptions::default() });
    rig.prefills[0].visits.lock().push_back(Visit::SilentAfter(2));
    let asked = visiting(&rig, 1, 8);
    let pending = rig.ask(asked.clone());
    wait_until("two blocks were read", || 2 <= rig.pool.held());
    wait_until("prefill fell silent", || rig.prefills[0].give_signs_of_life() == 1);
    let (began, reports) = (rig.clock.now(), rig.events.lock().len());
    wait_until("80 seconds went by in several turns", || {
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(rig.prefills[0].give_signs_of_life(), 1);
        let waited = rig.clock.now().since(began);
        Duration::from_secs(80) <= waited && reports + 6 <= rig.events.lock().len()
    });
    assert!(rig.prefills[1].asked.lock().is_empty(), "80 seconds are not silence");
    wait_until("silence is", || {
        rig.clock.advance(Duration::from_millis(30_001));
        !rig.prefills[1].asked.lock().is_empty()
    });
    check(&rig, &asked, &pending.answer());
    assert_eq!(*rig.prefills[1].asked.lock(), [(256, 512)]);
    rig.rest();
}

#[test]
fn when_all_prefill_fails_the_worker_computes_by_itself() {
    let engine = tiny();
    for (attempts, members) in [(1, 1), (3, 1), (3, 2), (2, 3)] {
        let config =
            DecodeConfig { prefill_attempts_max: attempts, ..RigOptions::default().config };
        let rig =
            Rig::new(&engine, RigOptions { config, prefills: members, ..RigOptions::default() });
        for double in &rig.prefills {
            let fail = [Visit::FailAfter(1), Visit::FailAfter(0), Visit::FailAfter(0)];
            double.visits.lock().extend(fail);
        }
        let asked = visiting(&rig, 1, 8);
        let answer = rig.answer(asked.clone());
        check(&rig, &asked, &answer);
        let visits: usize = rig.prefills.iter().map(|double| double.asked.lock().len()).sum();
        assert_eq!(u32::try_from(visits).unwrap(), attempts, "{members} members");
        assert_eq!(rig.stats().prefill_fallbacks, 1);
        assert!(answer.report().exact);
        rig.rest();
    }
}

#[test]
fn a_worker_that_is_no_member_is_replaced_or_done_without() {
    let engine = tiny();
    for prefills in [0, 1] {
        let rig = Rig::new(&engine, RigOptions { prefills, ..RigOptions::default() });
        let asked = DecodeRequest {
            prefill: Some(crate::rig::RANK),
            ..request(&prompt(&engine, 2, 700), 5)
        };
        let answer = rig.answer(asked.clone());
        check(&rig, &asked, &answer);
        assert_eq!(answer.report().prefill, rig.prefills.first().map(|double| double.rank));
        rig.rest();
    }
}

#[test]
fn a_client_that_leaves_ends_the_whole_chain() {
    let engine = tiny();
    let options = RigOptions { prefills: 1, store: StoreKind::Host, ..RigOptions::default() };
    let rig = Rig::new(&engine, options);
    // While prefill is silent, while it computes, and while tokens stream.
    rig.prefills[0].visits.lock().push_back(Visit::SilentAfter(1));
    let silent = rig.ask(visiting(&rig, 1, 50));
    wait_until("prefill was asked", || !rig.prefills[0].asked.lock().is_empty());
    silent.cancel();
    rig.ask(visiting(&rig, 2, 50)).cancel();
    // Long enough that it cannot end before the client leaves.
    let long = |seed| request(&prompt(&engine, seed, 20), 1_000);
    let streaming = rig.ask(long(3));
    for _ in 0..5 {
        assert!(!matches!(streaming.next(), DecodeEvent::Failed(_)));
    }
    streaming.cancel();
    let deaf = rig.ask(long(4));
    assert!(matches!(deaf.next(), DecodeEvent::Started(_)));
    let ticket = deaf.hang_up();
    rig.rest();
    drop(ticket);
    let stats = rig.stats();
    assert_eq!((stats.cancelled, stats.finished, stats.failed), (4, 0, 0));
}

/// The token at which clients leave.
const LEFT_AT: u32 = 3;

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// It does not listen any more.
    CloseSink,
    /// Its request is given up.
    DropTicket,
}

/// Leaves at a token: how many were heard, and the steps computed in all.
fn heard_and_computed(asked: DecodeRequest, leave: Leave) -> (u32, u64) {
    let rig = Rig::new(&tiny(), RigOptions::default());
    let held: Arc<Mutex<Option<Ticket>>> = Arc::default();
    let heard = Arc::new(Mutex::new(0));
    let (ticket, tokens) = (Arc::clone(&held), Arc::clone(&heard));
    let sink = move |event| {
        if !matches!(event, DecodeEvent::Token(..)) {
            return Flow::Open;
        }
        *tokens.lock() += 1;
        match leave {
            Leave::CloseSink if LEFT_AT <= *tokens.lock() => Flow::Closed,
            Leave::DropTicket if LEFT_AT <= *tokens.lock() => {
                drop(ticket.lock().take());
                Flow::Open
            }
            Leave::CloseSink | Leave::DropTicket => Flow::Open,
        }
    };
    // The worker is held up at that token until the ticket is here.
    let mut held_ticket = held.lock();
    *held_ticket = Some(rig.submit(asked, Box::new(sink)));
    drop(held_ticket);
    rig.rest();
    let stats = rig.stats();
    assert_eq!((stats.cancelled, stats.finished), (1, 0), "{leave:?}");
    (*heard.lock(), stats.steps)
}

#[test]
fn behaviour_25_a_client_that_leaves_costs_one_step_at_most() {
    let engine = tiny();
    let prompt = prompt(&engine, 3, 20);
    let rig = Rig::new(&engine, RigOptions::default());
    assert_eq!(rig.answer(request(&prompt, LEFT_AT)).tokens.len(), 3);
    rig.rest();
    let needed = rig.stats().steps;
    for leave in [Leave::CloseSink, Leave::DropTicket] {
        let (heard, steps) = heard_and_computed(request(&prompt, 1_000), leave);
        assert!(heard <= LEFT_AT + 1, "{leave:?}: {heard} tokens");
        assert!(steps <= needed + 1, "{leave:?}: {steps} steps, {needed} needed");
    }
}

#[test]
fn a_silent_store_costs_its_time_and_nothing_else() {
    let engine = tiny();
    let store = Arc::new(SilentStore::default());
    let options = RigOptions {
        config: DecodeConfig { offers_max: 3, ..DecodeConfig::STANDARD },
        store: StoreKind::Silent(Arc::clone(&store)),
        ..RigOptions::default()
    };
    let rig = Rig::new(&engine, options);
    let asked = request(&prompt(&engine, 1, 900), 40);
    let pending = rig.ask(asked.clone());
    wait_until("the store was asked", || store.lookups() == 1);
    rig.clock.advance(Duration::from_millis(250));
    check(&rig, &asked, &pending.answer());
    let stats = rig.stats();
    assert_eq!((stats.locates_failed, stats.offers), (1, 3), "{stats:?}");
    assert!(0 < stats.offers_skipped);
    assert!(!rig.idle(), "open offers pin their blocks");
    assert_ne!(store.drop_offers(), 0);
    rig.rest();
    assert_eq!(rig.stats().offers_withdrawn, 0);
    let again = request(&prompt(&engine, 2, 100), 40);
    check(&rig, &again, &rig.answer(again.clone()));
    assert!(!rig.idle());
    rig.clock.advance(Duration::from_millis(30_001));
    rig.rest();
    assert_eq!(rig.stats().offers_withdrawn, 1, "an unanswered offer ends after its time");
    assert_ne!(store.drop_offers(), 0);
    rig.rest();
    assert_eq!(rig.stats().commands_promised, 2, "the store still keeps the sink of the lookup");
}
