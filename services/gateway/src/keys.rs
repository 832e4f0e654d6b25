//! API keys: whom a request speaks for.
//!
//! What is kept of a key is a hash, and no slow one as for passwords: a secret is 32 random bytes that nobody chose, so there is
//! no list of likely ones to try, and trying all is out of reach for any hash.
//!
//! Invariants: secrets are neither kept nor logged; equality of hashes is decided in constant time.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName};
use shared::{Priority, TenantId};

use crate::error::ApiError;
use crate::limits::RateLimits;

/// Most keys of one ring: a table in memory, 200 bytes each.
const KEYS_MAX: usize = 65_536;
/// Longest name of a key or tenant: both are labels of logs and metrics.
const NAME_BYTES_MAX: usize = 64;
/// How a secret begins, so that scanners of public code find one that leaked.
const SECRET_PREFIX: &str = "sk-kvasir-";
/// What the hash of a secret is for.
const CONTEXT: &str = "kvasir 2026 api key 1";
/// How clients of the Messages protocol send a key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What is kept of a key's secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(blake3::Hash);

impl KeyHash {
    /// The hash of a secret as clients send it.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(blake3::Hash::from_bytes(blake3::derive_key(CONTEXT, secret)))
    }

    /// Reads what [`Self::to_hex`] wrote; none when it is not 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        blake3::Hash::from_hex(digits).ok().map(Self)
    }

    /// 64 hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.to_hex().to_string()
    }

    fn row(&self) -> u64 {
        let (head, _) = self.0.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        u64::from_le_bytes(*head)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// A key's secret as its client will send it, made of 32 random bytes.
#[must_use]
pub fn key_secret(random: &[u8; 32]) -> String {
    format!("{SECRET_PREFIX}{}", blake3::Hash::from_bytes(*random).to_hex())
}

/// A key: whom it speaks for, and what its bearer may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// What operators call it; stands in logs. Unique in its ring.
    pub name: String,
    /// Whose requests it marks, and whose cache they use.
    pub tenant: TenantId,
    /// The hash of its secret.
    pub hash: KeyHash,
    /// The class of its requests that ask for none, and the most urgent one they can have.
    pub priority: Priority,
    /// How much all its bearers together may ask, besides the limits of the tenant.
    pub limits: RateLimits,
}

/// Why keys cannot be used together.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyRingError {
    /// More than the table holds.
    #[error(
        "there are {count} API keys, at most {KEYS_MAX} can be used; revoke those that are not needed"
    )]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// A name that could not stand in logs and metrics.
    #[error(
        "the name {name:?} is none of 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'; choose another one"
    )]
    Name {
        /// Of a key or a tenant.
        name: String,
    },
    /// Two keys with one name or one secret.
    #[error("the API key {name:?} is there twice; revoke one of the two")]
    Twice {
        /// Of the second one.
        name: String,
    },
}

/// Checks the name of a key or a tenant.
///
/// # Errors
/// When it is empty, too long, or has other signs than letters, digits, `.`, `_` and `-`.
pub fn check_name(name: &str) -> Result<(), KeyRingError> {
    let fits = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '_' | '-');
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    Err(KeyRingError::Name { name: name.chars().take(NAME_BYTES_MAX).collect() })
}

/// All keys that are accepted. Immutable; a change is another ring.
#[derive(Debug, Default)]
pub struct KeyRing {
    /// By the first eight bytes of the hash. Whoever measures how long a lookup takes learns about hashes, which lead to no
    /// secret.
    keys: HashMap<u64, Arc<ApiKey>>,
    /// Whether they speak for more than one tenant.
    is_shared: bool,
}

impl KeyRing {
    /// A ring of these keys. None at all is a ring that accepts nobody.
    ///
    /// # Errors
    /// When there are too many, or one has a bad name or is there twice.
    pub fn new(keys: Vec<ApiKey>) -> Result<Self, KeyRingError> {
        let count = keys.len();
        if KEYS_MAX < count {
            return Err(KeyRingError::TooMany { count });
        }
        let mut names = HashSet::with_capacity(count);
        let is_shared = keys.windows(2).any(|pair| pair[0].tenant != pair[1].tenant);
        let mut ring = Self { keys: HashMap::with_capacity(count), is_shared };
        for key in keys {
            check_name(&key.name)?;
            check_name(&key.tenant.0)?;
            let name = key.name.clone();
            let is_new = names.insert(name.clone());
            if !is_new || ring.keys.insert(key.hash.row(), Arc::new(key)).is_some() {
                return Err(KeyRingError::Twice { name });
            }
        }
        Ok(ring)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nobody is accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether its keys speak for more than one tenant.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Arc<ApiKey>> {
        self.keys.values()
    }

    /// The key that a request's headers carry.
    ///
    /// # Errors
    /// 401 when they carry none, or one that is not in the ring.
    pub(crate) fn identify(&self, headers: &HeaderMap) -> Result<Arc<ApiKey>, ApiError> {
        let Some(secret) = secret_in(headers) else {
            let message = "no API key was sent; send yours as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'";
            return Err(ApiError::unauthenticated("missing_api_key", message));
        };
        let hash = KeyHash::of(secret);
        let found = self.keys.get(&hash.row()).filter(|key| key.hash == hash);
        found.cloned().ok_or_else(|| {
            let message = "this API key is not accepted; it may have been revoked: ask the operator for another one";
            ApiError::unauthenticated("invalid_api_key", message)
        })
    }
}

fn secret_in(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, secret) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
    });
    bearer.or_else(|| headers.get(X_API_KEY).map(|value| value.as_bytes().trim_ascii()))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue};
    use shared::{Priority, TenantId};

    use super::{ApiKey, KeyHash, KeyRing, KeyRingError, key_secret};
    use crate::limits::RateLimits;

    fn key(name: &str, tenant: &str, secret: &str) -> ApiKey {
        ApiKey {
            name: name.to_owned(),
            tenant: TenantId(tenant.into()),
            hash: KeyHash::of(secret.as_bytes()),
            priority: Priority::Normal,
            limits: RateLimits::default(),
        }
    }

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn a_key_is_found_by_either_header_and_by_nothing_else() {
        let ring = KeyRing::new(vec![key("a", "acme", "s1"), key("b", "bolt", "s2")]).unwrap();
        type Lines = &'static [(&'static str, &'static str)];
        let cases: [(Lines, Result<&str, &str>); 9] = [
            (&[("authorization", "Bearer s1")], Ok("a")),
            (&[("authorization", "bearer  s2 ")], Ok("b")),
            (&[("x-api-key", "s2")], Ok("b")),
            (&[("authorization", "Bearer s1"), ("x-api-key", "s2")], Ok("a")),
            (&[("authorization", "Basic czE="), ("x-api-key", "s2")], Ok("b")),
            (&[("authorization", "Bearer s3"), ("x-api-key", "s2")], Err("invalid_api_key")),
            (&[("authorization", "Bearer ")], Err("invalid_api_key")),
            (&[("authorization", "s1")], Err("missing_api_key")),
            (&[], Err("missing_api_key")),
        ];
        for (lines, expected) in cases {
            let found = ring.identify(&headers(lines));
            let found = found.as_ref().map(|key| key.name.as_str()).map_err(|error| error.code);
            assert_eq!(found, expected, "{lines:?}");
        }
        assert!(KeyRing::default().identify(&headers(&[("x-api-key", "s1")])).is_err());
    }

    #[test]
    fn rings_that_could_not_be_told_apart_are_refused() {
        let twice = |name: &str| Err(KeyRingError::Twice { name: name.to_owned() });
        let named = |name: &str| Err(KeyRingError::Name { name: name.to_owned() });
        let cases = [
            (vec![key("a", "t", "s1"), key("a", "t", "s2")], twice("a")),
            (vec![key("a", "t", "s1"), key("b", "t", "s1")], twice("b")),
            (vec![key("a b", "t", "s1")], named("a b")),
            (vec![key("a", "", "s1")], named("")),
        ];
        for (keys, expected) in cases {
            assert_eq!(KeyRing::new(keys).map(|ring| ring.len()), expected);
        }
    }

    #[test]
    fn a_hash_survives_the_file_and_a_secret_does_not_show() {
        let secret = key_secret(&[7; 32]);
        assert!(secret.starts_with("sk-kvasir-0707") && secret.len() == 74);
        let hash = KeyHash::of(secret.as_bytes());
        assert_eq!(KeyHash::from_hex(&hash.to_hex()), Some(hash));
        assert_eq!(KeyHash::from_hex("00"), None);
        assert!(!format!("{:?}", key("a", "t", &secret)).contains("0707"));
    }
}
