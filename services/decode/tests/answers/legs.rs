//! Faults in each leg of a request, before it, as it begins and some blocks or tokens into it, on the retry too: the client sees
//! every token once and nothing stays behind on any worker.

use std::sync::Arc;

use engine::Engine;
use shared::{DecodeEvent, DecodeRequest, FinishReason, TokenId};

use crate::checks::{SAMPLED, check};
use crate::prefill_double::Visit;
use crate::rig::{Answer, Rig, RigOptions, prompt, request, tiny};

/// Tokens of every answer.
const TOKENS: u32 = 12;

/// When a decode worker is lost to the client.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// Before it said anything.
    Before,
    /// When it had started.
    AtStart,
    /// After this many tokens.
    After(usize),
    Never,
}

/// What happens to a request on one decode worker.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// What its first prefill worker does.
    first: Visit,
    /// What the one does that is tried next.
    second: Visit,
    lost: Lost,
}

/// A worker that serves the leg, and what the client has of it: the tokens, and the end if it came that far.
fn run(
    engine: &Arc<Engine>,
    asked: &DecodeRequest,
    leg: Leg,
) -> (Vec<TokenId>, Option<FinishReason>) {
    let rig = Rig::new(engine, RigOptions { prefills: 2, ..RigOptions::default() });
    let [first, second] = &rig.prefills[..] else { panic!("two were asked for") };
    first.visits.lock().push_back(leg.first);
    second.visits.lock().push_back(leg.second);
    let asked = DecodeRequest { prefill: Some(first.rank), ..asked.clone() };
    let pending = rig.ask(asked.clone());
    let mut tokens = Vec::new();
    let mut started = false;
    let end = loop {
        let is_lost = match leg.lost {
            Lost::Before => true,
            Lost::AtStart => started,
            Lost::After(count) => count == tokens.len(),
            Lost::Never => false,
        };
        if is_lost {
            pending.cancel();
            break None;
        }
        match pending.next() {
            DecodeEvent::Started(report) => started = report.exact,
            DecodeEvent::Token(token, _) => tokens.push(token),
            DecodeEvent::Finished(reason) => break Some(reason),
            DecodeEvent::Failed(error) => panic!("{leg:?}: {error}"),
        }
    };
    if let Some(reason) = end {
        let answer = Answer { report: None, tokens: tokens.clone(), end: Ok(reason) };
        check(&rig, &asked, &answer);
    }
    // Nothing is pinned, reserved or running on the worker that was lost, nor on the prefill workers it had asked.
    rig.rest();
    (tokens, end)
}

#[test]
fn each_token_is_seen_once_whichever_legs_fail_and_when() {
    use Lost::{After, AtStart, Before, Never};
    use Visit::{Corrupt, FailAfter, GoneAfter, NoWindow, Serve};
    let engine = tiny();
    let whole = request(&prompt(&engine, 5, 450), TOKENS);
    let visits = [
        (Serve, Serve),
        (FailAfter(0), Serve),
        (FailAfter(1), FailAfter(0)),
        (GoneAfter(0), GoneAfter(1)),
        (GoneAfter(2), Corrupt(1)),
        (NoWindow, Serve),
    ];
    let losses = [Before, AtStart, After(1), After(7)];
    let retries =
        [[Never; 2], [Before, Never], [AtStart, Never], [After(1), Never], [After(3), Never]];
    let cases = visits.iter().flat_map(|visit| losses.map(|lost| (*visit, lost)));
    for (number, ((first, second), lost)) in cases.enumerate() {
        let mut legs = vec![Leg { first, second, lost }];
        // The retry meets other faults than the first run.
        for (turn, lost) in retries[number % retries.len()].into_iter().enumerate() {
            let (first, second) = visits[(number + turn + 1) % visits.len()];
            legs.push(Leg { first, second, lost });
        }
        let mut emitted = Vec::new();
        let mut end = None;
        for leg in &legs {
            let asked =
                DecodeRequest { sampling: SAMPLED, emitted: emitted.clone(), ..whole.clone() };
            let (tokens, ended) = run(&engine, &asked, *leg);
            emitted.extend(tokens);
            end = ended;
            if end.is_some() {
                break;
            }
        }
        assert_eq!(end, Some(FinishReason::Length), "{legs:?}");
        assert_eq!(emitted.len(), usize::try_from(TOKENS).unwrap(), "{legs:?}");
    }
}
