//! Days of conversations: questions of retention need returns after hours and days, which no trace at hand has.
//!
//! Everything about it is a stated assumption but the lengths of first prompts and of answers, which are drawn from a recorded
//! trace. A conversation begins (Poisson, with a swing over the day), has a geometric number of turns, and each turn comes
//! after minutes, hours or days, by the shares of the settings. The prompt of a turn is everything said before, and a new
//! question; so blocks of answers are found again.

use std::f64::consts::TAU;

use shared::{BLOCK_TOKENS, Timestamp};

use super::{Chain, Request};
use crate::settings::{Settings, narrow, seconds, size, wide};
use shared::Random;

const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 86_400.0;
/// A conversation ends before its prompt is longer.
const PROMPT_TOKENS_MAX: u32 = 131_072;

/// Makes the requests, in the order of arrival, at most `settings.requests`. `lengths` is not empty.
pub(super) fn requests(lengths: &[Request], settings: &Settings) -> Vec<Request> {
    let mut random = Random::new(settings.seed ^ 0x6461_7973);
    let end_s = settings.days * DAY_S;
    let peak = settings.conversations_per_hour * (1.0 + settings.day_swing) / HOUR_S;
    let mut requests = Vec::new();
    let mut at_s = 0.0;
    let mut number = 0;
    // Four times as many as are wanted, so that the cut below takes only what begins late.
    let most = settings.requests.saturating_mul(4);
    loop {
        at_s += random.exponential(1.0 / peak);
        if end_s <= at_s || most <= wide(requests.len()) {
            break;
        }
        // The quietest hour is six hours into the trace.
        let phase = TAU * (at_s / DAY_S);
        let rate = settings.conversations_per_hour * (1.0 - settings.day_swing * phase.sin());
        if random.happens(rate / (peak * HOUR_S)) {
            converse(&mut random, (number, at_s), lengths, settings, &mut requests);
            number += 1;
        }
    }
    requests.retain(|request| request.at.0 < Timestamp(0).after(seconds(end_s)).0);
    requests.sort_by_key(|request| request.at);
    requests.truncate(size(settings.requests));
    requests
}

fn converse(
    random: &mut Random,
    (number, mut at_s): (u64, f64),
    lengths: &[Request],
    settings: &Settings,
    requests: &mut Vec<Request>,
) {
    let shared_prompt = match settings.shared_prompts {
        0 => None,
        prompts => Some(random.word() % prompts),
    };
    let shared_tokens = shared_prompt.map_or(0, |_| narrow(settings.shared_tokens));
    let chain = Chain::Conversation {
        number,
        shared_prompt: shared_prompt.unwrap_or(0),
        shared_blocks: shared_tokens / BLOCK_TOKENS,
    };
    let first = &lengths[random.below(lengths.len())];
    let mut prompt_tokens = first.prompt_tokens.max(shared_tokens + 1);
    while prompt_tokens <= PROMPT_TOKENS_MAX {
        let answer_tokens = lengths[random.below(lengths.len())].answer_tokens;
        let at = Timestamp(0).after(seconds(at_s));
        requests.push(Request { at, prompt_tokens, answer_tokens, chain: chain.clone() });
        if random.happens(1.0 / settings.turns) {
            return;
        }
        at_s += pause_s(random, settings);
        let question = 1 + seconds(random.exponential(settings.question_tokens)).as_secs();
        prompt_tokens =
            prompt_tokens.saturating_add(answer_tokens).saturating_add(narrow(question));
    }
}

/// Time until the next turn.
fn pause_s(random: &mut Random, settings: &Settings) -> f64 {
    let kind = random.unit();
    if kind < settings.return_soon {
        random.exponential(settings.return_minutes * 60.0)
    } else if kind < settings.return_soon + settings.return_later {
        random.exponential(settings.return_hours * HOUR_S)
    } else {
        random.exponential(settings.return_days * DAY_S)
    }
}
