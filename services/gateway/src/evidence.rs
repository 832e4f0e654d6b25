//! Who is told why a request was placed where it was: the header `x-kvasir-routing`.
//!
//! It names workers and says what is cached, so nobody gets it unless the operator says so, for all answers or for those
//! whose request carries a key.

use std::fmt;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;

/// The header of an answer that says why its request was placed where it was.
pub(crate) const ROUTING: HeaderName = HeaderName::from_static("x-kvasir-routing");
/// The header of a request that asks for it.
const ADMIN_KEY: HeaderName = HeaderName::from_static("x-kvasir-admin-key");
/// Longest evidence in bytes: far below what proxies take as a header.
const EVIDENCE_BYTES_MAX: usize = 1_024;

/// Who gets the header.
#[derive(Clone, Default)]
pub struct EvidencePolicy {
    always: bool,
    key: Option<blake3::Hash>,
}

impl fmt::Debug for EvidencePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_key = self.key.is_some();
        f.debug_struct("EvidencePolicy")
            .field("always", &self.always)
            .field("key", &with_key)
            .finish()
    }
}

impl EvidencePolicy {
    /// Nobody.
    pub const NOBODY: Self = Self { always: false, key: None };

    /// Everybody.
    #[must_use]
    pub fn everybody() -> Self {
        Self { always: true, key: None }
    }

    /// Who sends this key with a request.
    #[must_use]
    pub fn with_key(key: &str) -> Self {
        Self { always: false, key: Some(blake3::hash(key.as_bytes())) }
    }

    /// Whether a request with these headers is answered with it.
    pub(crate) fn admits(&self, headers: &HeaderMap) -> bool {
        // Hashes are compared in constant time.
        let given = headers.get(ADMIN_KEY).map(|key| blake3::hash(key.as_bytes()));
        self.always || (given.is_some() && given == self.key)
    }
}

/// Why a request was placed where it is now, once it is. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence(Arc<Mutex<Option<String>>>);

impl Evidence {
    /// Notes the reason of a placement; a later one counts.
    pub(crate) fn note(&self, reason: &str) {
        *self.0.lock() = Some(reason.to_owned());
    }

    /// The header's value; none while the request has no place.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let reason = self.0.lock().clone()?;
        let shown =
            reason.chars().filter(|sign| matches!(sign, ' '..='~')).take(EVIDENCE_BYTES_MAX);
        HeaderValue::try_from(shown.collect::<String>()).ok()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderValue};

    use super::{Evidence, EvidencePolicy};

    #[test]
    fn only_everybody_or_the_right_key_is_told() {
        let mut right = HeaderMap::new();
        right.insert("x-kvasir-admin-key", HeaderValue::from_static("0123456789abcdef"));
        let mut wrong = HeaderMap::new();
        wrong.insert("x-kvasir-admin-key", HeaderValue::from_static("0123456789abcdeg"));
        let none = HeaderMap::new();
        let keyed = EvidencePolicy::with_key("0123456789abcdef");
        let cases = [
            (EvidencePolicy::NOBODY, [false, false, false]),
            (EvidencePolicy::everybody(), [true, true, true]),
            (keyed.clone(), [true, false, false]),
        ];
        for (policy, expected) in cases {
            assert_eq!([&right, &wrong, &none].map(|headers| policy.admits(headers)), expected);
        }
        assert!(!format!("{keyed:?}").contains("0123"));
    }

    #[test]
    fn evidence_is_the_last_reason_as_a_header() {
        let evidence = Evidence::default();
        assert_eq!(evidence.header(), None);
        evidence.note("decode 1/0");
        evidence.note("decode 2/0\n\u{e9}");
        assert_eq!(evidence.header().unwrap(), "decode 2/0");
        evidence.note(&"x".repeat(5_000));
        assert_eq!(evidence.header().unwrap().len(), 1_024);
    }
}
