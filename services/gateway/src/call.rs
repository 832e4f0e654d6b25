//! A request as operators see it: who asked, and what it used. Shared by everything that works for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shared::{Priority, TenantId, Timestamp};

use crate::keys::ApiKey;
use crate::limits::{RateLimits, Subject};

/// Whom a request speaks for.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) tenant: TenantId,
    pub(crate) key: Option<Arc<ApiKey>>,
    /// The accounts it uses.
    subjects: Arc<[(Subject, RateLimits)]>,
}

impl Caller {
    /// Whoever asks where no keys are needed.
    pub(crate) fn anybody(tenant: &TenantId, limits: RateLimits) -> Self {
        let subjects = [(Subject::Tenant(tenant.clone()), limits)];
        Self { tenant: tenant.clone(), key: None, subjects: Arc::from(subjects) }
    }

    /// The bearer of a key, whose tenant has these limits.
    pub(crate) fn bearer(key: Arc<ApiKey>, limits: RateLimits) -> Self {
        let tenant = key.tenant.clone();
        let subjects = [
            (Subject::Tenant(tenant.clone()), limits),
            (Subject::Key(key.name.as_str().into()), key.limits),
        ];
        Self { tenant, key: Some(key), subjects: Arc::from(subjects) }
    }

    pub(crate) fn key_name(&self) -> &str {
        self.key.as_ref().map_or("-", |key| key.name.as_str())
    }

    pub(crate) fn subjects(&self) -> &[(Subject, RateLimits)] {
        &self.subjects
    }

    /// The class of a request: what was asked for, but nothing more urgent than the key allows.
    pub(crate) fn priority(&self, asked: Option<Priority>) -> Priority {
        match &self.key {
            None => asked.unwrap_or_default(),
            // The order of classes begins with the most urgent one.
            Some(key) => asked.unwrap_or(key.priority).max(key.priority),
        }
    }
}

/// What one request used so far, whoever counts it. All its answers count together.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) caller: Caller,
    arrived: Timestamp,
    model: Mutex<Option<Arc<str>>>,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// Nanoseconds from the arrival to the first token; 0 before it.
    first_token: AtomicU64,
}

/// The counts of a call at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) model: Option<Arc<str>>,
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) output_tokens: u64,
    /// Nanoseconds; 0 without a token.
    pub(crate) first_token: u64,
}

impl Call {
    pub(crate) fn new(caller: Caller, arrived: Timestamp) -> Self {
        Self {
            caller,
            arrived,
            model: Mutex::default(),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
            first_token: AtomicU64::new(0),
        }
    }

    pub(crate) fn arrived(&self) -> Timestamp {
        self.arrived
    }

    pub(crate) fn note_model(&self, model: &str) {
        *self.model.lock() = Some(model.into());
    }

    /// A prompt was counted. Once per prompt, however many answers it gets.
    pub(crate) fn note_prompt(&self, tokens: u32) {
        self.prompt_tokens.fetch_add(tokens.into(), Ordering::Relaxed);
    }

    /// A worker began with this much of the prompt cached. Of several answers to one prompt the last one counts.
    pub(crate) fn note_cached(&self, tokens: u32) {
        self.cached_tokens.store(tokens.into(), Ordering::Relaxed);
    }

    pub(crate) fn note_token(&self, now: Timestamp) {
        if self.output_tokens.fetch_add(1, Ordering::Relaxed) == 0 {
            let since = now.since(self.arrived).as_nanos();
            let since = u64::try_from(since).unwrap_or(u64::MAX).max(1);
            self.first_token.store(since, Ordering::Relaxed);
        }
    }

    pub(crate) fn used(&self) -> Used {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let prompt_tokens = read(&self.prompt_tokens);
        Used {
            model: self.model.lock().clone(),
            prompt_tokens,
            cached_tokens: read(&self.cached_tokens).min(prompt_tokens),
            output_tokens: read(&self.output_tokens),
            first_token: read(&self.first_token),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shared::{Priority, TenantId, Timestamp};

    use super::{Call, Caller, Used};
    use crate::keys::{ApiKey, KeyHash};
    use crate::limits::RateLimits;

    fn bearer(priority: Priority) -> Caller {
        let key = ApiKey {
            name: "ci".to_owned(),
            tenant: TenantId("acme".into()),
            hash: KeyHash::of(b"s"),
            priority,
            limits: RateLimits::default(),
        };
        Caller::bearer(Arc::new(key), RateLimits::default())
    }

    #[test]
    fn a_key_bounds_how_urgent_its_requests_are() {
        use Priority::{High, Low, Normal};
        let anybody = Caller::anybody(&TenantId("t".into()), RateLimits::default());
        let cases = [
            (anybody.clone(), None, Normal),
            (anybody, Some(High), High),
            (bearer(Normal), None, Normal),
            (bearer(Normal), Some(High), Normal),
            (bearer(Normal), Some(Low), Low),
            (bearer(High), None, High),
            (bearer(High), Some(Normal), Normal),
            (bearer(Low), Some(High), Low),
        ];
        for (caller, asked, expected) in cases {
            assert_eq!(caller.priority(asked), expected, "{caller:?} {asked:?}");
        }
    }

    #[test]
    fn counts_are_those_of_all_answers_and_the_first_token_is_the_first() {
        let call = Call::new(bearer(Priority::Normal), Timestamp(1_000));
        assert_eq!(call.used(), Used::default());
        call.note_model("m");
        call.note_prompt(10);
        call.note_cached(40);
        for now in [3_000, 5_000] {
            call.note_token(Timestamp(now));
        }
        let used = call.used();
        assert_eq!((used.prompt_tokens, used.cached_tokens, used.output_tokens), (10, 10, 2));
        assert_eq!((used.first_token, used.model.as_deref()), (2_000, Some("m")));
    }
}
