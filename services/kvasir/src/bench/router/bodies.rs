//! Chat bodies of a wanted size: with a long beginning that was sent before, or all of it new.

use axum::body::Bytes;
use serde_json::json;

use crate::bench::text::sentences;

/// Conversations that take turns where the beginning is known.
pub(super) const CONVERSATIONS: u64 = 16;

/// What of a prompt was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    /// All but the last question.
    Seen,
    /// Nothing.
    Unseen,
}

impl Prefix {
    /// The word in reports.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Seen => "seen",
            Self::Unseen => "unseen",
        }
    }
}

/// The long text of one prompt. Equal keys give equal texts.
pub(super) fn long_text(key: u64, bytes: usize) -> String {
    sentences(key, bytes)
}

/// One chat of about `bytes` bytes; `question` makes its end differ.
pub(super) fn chat(model: &str, key: u64, question: u64, bytes: usize) -> Bytes {
    let user = format!("Question {question}: who did it, and where?");
    let body = json!({
        "model": model,
        "messages": [
            { "role": "system", "content": long_text(key, bytes.saturating_sub(220)) },
            { "role": "user", "content": user },
        ],
        "max_tokens": 1,
        "temperature": 0,
    });
    body.to_string().into()
}

/// The bodies of one run. `salt` differs from run to run, so that what should be unseen is.
pub(super) fn bodies(
    model: &str,
    prefix: Prefix,
    bytes: usize,
    (count, salt): (u64, u64),
) -> Vec<Bytes> {
    let of = |number: u64| match prefix {
        Prefix::Seen => chat(model, number % CONVERSATIONS, salt * 1_000_003 + number, bytes),
        Prefix::Unseen => chat(model, 1_000 + salt * 1_000_003 + number, number, bytes),
    };
    (0..count).map(of).collect()
}

/// What makes the beginnings of [`bodies`] known.
pub(super) fn openings(model: &str, bytes: usize) -> Vec<Bytes> {
    (0..CONVERSATIONS).map(|key| chat(model, key, 0, bytes)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Prefix, bodies, openings};

    #[test]
    fn bodies_have_the_size_and_what_is_unseen_is_new() {
        for bytes in [2_600, 220_000] {
            for prefix in [Prefix::Seen, Prefix::Unseen] {
                let first = bodies("m", prefix, bytes, (8, 1));
                let second = bodies("m", prefix, bytes, (8, 2));
                let all: HashSet<_> = first.iter().chain(&second).collect();
                assert_eq!(all.len(), 16, "{prefix:?}");
                assert!(all.iter().all(|body| body.len().abs_diff(bytes) < bytes / 10 + 100));
            }
        }
    }

    #[test]
    fn a_seen_beginning_is_that_of_an_opening() {
        let openings: Vec<Vec<u8>> =
            openings("m", 2_600).iter().map(|body| body[..1_500].to_vec()).collect();
        for body in bodies("m", Prefix::Seen, 2_600, (40, 3)) {
            assert!(openings.contains(&body[..1_500].to_vec()));
        }
    }
}
