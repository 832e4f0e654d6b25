//! How much a tenant and a key may ask: requests at once, requests and tokens per minute.
//!
//! Token buckets, pure in the state and `now`. A bucket holds what a minute allows and fills evenly. Tokens are known only
//! afterwards, so they are paid in arrears: a prompt when it was counted, an answer when it ended. While an account is in
//! debt its requests are refused, so that in the long run no more is used than the limit says.
//!
//! Invariants: an account exists only for a tenant or key that has a limit; nothing is taken from one account when another
//! one of the same request refuses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use shared::{TenantId, Timestamp};

/// A token or request is divided so that an elapsed nanosecond times a limit per minute is a whole number of parts.
const PARTS: i128 = 60_000_000_000;
/// Most minutes of debt: one prompt of the longest context must not lock a small account out for a day.
const DEBT_MINUTES_MAX: i128 = 60;
/// What a client with too many requests at once is told to wait: nobody knows which of them ends when.
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

/// Limits of a tenant or of a key. 0 is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RateLimits {
    /// Requests in work at once, 0 for no bound. Default 0: only the bound of the whole process holds. Each answer of a request
    /// that asks for several counts as one, here and per minute.
    pub requests_in_flight_max: u32,
    /// Requests per minute, 0 for no bound. Default 0. As many may come at once after a quiet minute.
    pub requests_per_minute: u32,
    /// Tokens of prompts, cached or not, and of answers per minute, 0 for no bound. Default 0. Paid in arrears: requests are
    /// refused while more was used than the time allowed.
    pub tokens_per_minute: u32,
}

impl RateLimits {
    /// Whether nothing is bounded.
    #[must_use]
    pub fn is_unbounded(&self) -> bool {
        *self == Self::default()
    }
}

/// Whose account it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Tenant(TenantId),
    /// By the key's name.
    Key(Arc<str>),
}

impl Subject {
    fn word(&self) -> &'static str {
        match self {
            Self::Tenant(_) => "tenant",
            Self::Key(_) => "API key",
        }
    }
}

/// Which limit refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    InFlight,
    Requests,
    Tokens,
}

impl Limit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "requests_in_flight",
            Self::Requests => "requests_per_minute",
            Self::Tokens => "tokens_per_minute",
        }
    }
}

/// Why a request is not taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) limit: Limit,
    /// `tenant` or `API key`.
    pub(crate) whose: &'static str,
    pub(crate) bound: u32,
    pub(crate) wait: Duration,
}

/// What is left of one limit per minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) limit: u32,
    pub(crate) remaining: u32,
    /// Until all of it is there again.
    pub(crate) reset: Duration,
}

/// What is left to a request's tenant and key, whichever has less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quota {
    pub(crate) requests: Option<Left>,
    pub(crate) tokens: Option<Left>,
}

/// What a minute allows, filling evenly.
#[derive(Debug)]
struct Bucket {
    per_minute: u32,
    /// In parts; negative in debt.
    level: i128,
    at: Timestamp,
}

impl Bucket {
    /// A full one; none without a limit.
    fn full(per_minute: u32, now: Timestamp) -> Option<Self> {
        let level = i128::from(per_minute) * PARTS;
        (0 < per_minute).then_some(Self { per_minute, level, at: now })
    }

    fn capacity(&self) -> i128 {
        i128::from(self.per_minute) * PARTS
    }

    fn fill(&mut self, now: Timestamp) {
        let elapsed = i128::try_from(now.since(self.at).as_nanos()).unwrap_or(PARTS);
        let gained = i128::from(self.per_minute).saturating_mul(elapsed);
        self.level = self.level.saturating_add(gained).min(self.capacity());
        self.at = now;
    }

    fn take(&mut self, amount: u64) {
        let taken = i128::from(amount) * PARTS;
        self.level = (self.level - taken).max(-DEBT_MINUTES_MAX * self.capacity());
    }

    /// Until so much is there; zero when it is.
    fn until(&self, level: i128) -> Duration {
        let missing = u128::try_from(level - self.level).unwrap_or(0);
        let nanoseconds = missing.div_ceil(u128::from(self.per_minute));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn left(&self) -> Left {
        let whole = u32::try_from(self.level.max(0) / PARTS).unwrap_or(u32::MAX);
        Left { limit: self.per_minute, remaining: whole, reset: self.until(self.capacity()) }
    }
}

#[derive(Debug)]
struct Account {
    limits: RateLimits,
    in_flight: u32,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

impl Account {
    fn open(limits: RateLimits, now: Timestamp) -> Self {
        Self {
            limits,
            in_flight: 0,
            requests: Bucket::full(limits.requests_per_minute, now),
            tokens: Bucket::full(limits.tokens_per_minute, now),
        }
    }

    fn fill(&mut self, now: Timestamp) {
        for bucket in [&mut self.requests, &mut self.tokens].into_iter().flatten() {
            bucket.fill(now);
        }
    }

    /// The limit that does not let so many more in, its bound, and how long that will be so.
    fn refuses(&self, more: More) -> Option<(Limit, u32, Duration)> {
        let places = more.places();
        let at_once = self.limits.requests_in_flight_max;
        if 0 < at_once && at_once < self.in_flight.saturating_add(places) {
            return Some((Limit::InFlight, at_once, IN_FLIGHT_WAIT));
        }
        let tokens = match more {
            More::Request => &self.tokens,
            More::Answers(_) => &None,
        };
        let buckets = [
            (Limit::Requests, &self.requests, i128::from(places) * PARTS),
            (Limit::Tokens, tokens, PARTS),
        ];
        let mut empty = buckets.into_iter().filter_map(|(limit, bucket, level)| {
            let bucket = bucket.as_ref().filter(|bucket| bucket.level < level)?;
            Some((limit, bucket.per_minute, bucket.until(level)))
        });
        empty.next()
    }
}

/// What is to be let in.
#[derive(Clone, Copy, Debug)]
enum More {
    Request,
    /// Further answers of a request that was. What its account owes in tokens was asked then.
    Answers(u32),
}

impl More {
    /// How many requests it counts as.
    fn places(self) -> u32 {
        match self {
            Self::Request => 1,
            Self::Answers(answers) => answers,
        }
    }
}

/// The accounts of tenants and keys that have limits: at most one per key and one per tenant that keys name.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    open: HashMap<Subject, Account>,
}

impl Accounts {
    /// Takes a request in, on all accounts or on none.
    ///
    /// # Errors
    /// The first limit that is reached.
    pub(crate) fn admit(
        &mut self,
        subjects: &[(Subject, RateLimits)],
        now: Timestamp,
    ) -> Result<Quota, Refusal> {
        self.take_in(subjects, More::Request, now)
    }

    /// Takes further answers of an admitted request in, each as a request of its own, on all accounts or on none.
    ///
    /// # Errors
    /// The first limit that is reached.
    pub(crate) fn admit_answers(
        &mut self,
        subjects: &[(Subject, RateLimits)],
        answers: u32,
        now: Timestamp,
    ) -> Result<Quota, Refusal> {
        self.take_in(subjects, More::Answers(answers), now)
    }

    fn take_in(
        &mut self,
        subjects: &[(Subject, RateLimits)],
        more: More,
        now: Timestamp,
    ) -> Result<Quota, Refusal> {
        for (subject, limits) in bounded(subjects) {
            let account = match self.open.get_mut(subject) {
                Some(account) => account,
                None => {
                    self.open.entry(subject.clone()).or_insert_with(|| Account::open(*limits, now))
                }
            };
            if account.limits != *limits {
                let in_flight = account.in_flight;
                *account = Account { in_flight, ..Account::open(*limits, now) };
            }
            account.fill(now);
            if let Some((limit, bound, wait)) = account.refuses(more) {
                return Err(Refusal { limit, whose: subject.word(), bound, wait });
            }
        }
        let mut quota = Quota::default();
        for (subject, _) in bounded(subjects) {
            let Some(account) = self.open.get_mut(subject) else { continue };
            account.in_flight += more.places();
            if let Some(requests) = &mut account.requests {
                requests.take(more.places().into());
            }
            quota.requests = less(quota.requests, account.requests.as_ref());
            quota.tokens = less(quota.tokens, account.tokens.as_ref());
        }
        Ok(quota)
    }

    /// Takes tokens that were used.
    pub(crate) fn charge(
        &mut self,
        subjects: &[(Subject, RateLimits)],
        tokens: u64,
        now: Timestamp,
    ) {
        for (subject, _) in bounded(subjects) {
            let Some(account) = self.open.get_mut(subject) else { continue };
            account.fill(now);
            if let Some(bucket) = &mut account.tokens {
                bucket.take(tokens);
            }
        }
    }

    /// An admitted request with so many answers is over.
    pub(crate) fn leave(&mut self, subjects: &[(Subject, RateLimits)], answers: u32) {
        for (subject, _) in bounded(subjects) {
            if let Some(account) = self.open.get_mut(subject) {
                account.in_flight = account.in_flight.saturating_sub(answers);
            }
        }
    }

    /// Closes the accounts of those who are gone and have nothing in work.
    pub(crate) fn keep(&mut self, is_there: impl Fn(&Subject) -> bool) {
        self.open.retain(|subject, account| 0 < account.in_flight || is_there(subject));
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}

/// The limit that never lets so many answers of one request in; none when all do once nothing else is asked.
pub(crate) fn too_low_for(
    subjects: &[(Subject, RateLimits)],
    answers: u32,
) -> Option<(&'static str, Limit, u32)> {
    let lowest = |(subject, limits): &(Subject, RateLimits)| {
        let bounds = [
            (Limit::InFlight, limits.requests_in_flight_max),
            (Limit::Requests, limits.requests_per_minute),
        ];
        let too_low = bounds.into_iter().find(|(_, bound)| 0 < *bound && *bound < answers);
        too_low.map(|(limit, bound)| (subject.word(), limit, bound))
    };
    subjects.iter().find_map(lowest)
}

fn bounded(
    subjects: &[(Subject, RateLimits)],
) -> impl Iterator<Item = &(Subject, RateLimits)> + use<'_> {
    subjects.iter().filter(|(_, limits)| !limits.is_unbounded())
}

fn less(before: Option<Left>, bucket: Option<&Bucket>) -> Option<Left> {
    let now = bucket.map(Bucket::left);
    match (before, now) {
        (Some(before), Some(now)) if now.remaining < before.remaining => Some(now),
        (None, now) => now,
        (before, _) => before,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::{TenantId, Timestamp};

    use super::{Accounts, Limit, RateLimits, Subject, too_low_for};

    fn at(milliseconds: u64) -> Timestamp {
        Timestamp(milliseconds * 1_000_000)
    }

    fn limits(in_flight: u32, requests: u32, tokens: u32) -> RateLimits {
        RateLimits {
            requests_in_flight_max: in_flight,
            requests_per_minute: requests,
            tokens_per_minute: tokens,
        }
    }

    fn tenant(limits: RateLimits) -> [(Subject, RateLimits); 1] {
        [(Subject::Tenant(TenantId("acme".into())), limits)]
    }

    #[test]
    fn requests_per_minute_come_in_a_burst_and_then_evenly() {
        let (mut accounts, acme) = (Accounts::default(), tenant(limits(0, 60, 0)));
        for n in 0..60 {
            let quota = accounts.admit(&acme, at(0)).unwrap();
            assert_eq!(quota.requests.unwrap().remaining, 59 - n);
            accounts.leave(&acme, 1);
        }
        let refusal = accounts.admit(&acme, at(0)).unwrap_err();
        assert_eq!((refusal.limit, refusal.bound), (Limit::Requests, 60));
        assert_eq!(refusal.wait, Duration::from_secs(1));
        assert!(accounts.admit(&acme, at(999)).is_err());
        assert!(accounts.admit(&acme, at(1_000)).is_ok());
        assert!(accounts.admit(&acme, at(1_001)).is_err());
        let quota = accounts.admit(&acme, at(3_600_000)).unwrap().requests.unwrap();
        assert_eq!(
            (quota.limit, quota.remaining),
            (60, 59),
            "an hour allows no more than a minute"
        );
        assert_eq!(quota.reset, Duration::from_secs(1));
    }

    #[test]
    fn tokens_are_paid_in_arrears_and_debt_ends() {
        let (mut accounts, acme) = (Accounts::default(), tenant(limits(0, 0, 6_000)));
        assert!(accounts.admit(&acme, at(0)).is_ok());
        accounts.charge(&acme, 7_000, at(0));
        let refusal = accounts.admit(&acme, at(0)).unwrap_err();
        assert_eq!((refusal.limit, refusal.wait), (Limit::Tokens, Duration::from_millis(10_010)));
        assert!(accounts.admit(&acme, at(10_009)).is_err());
        assert_eq!(accounts.admit(&acme, at(10_010)).unwrap().tokens.unwrap().remaining, 1);
        accounts.charge(&acme, u64::from(u32::MAX), at(10_010));
        let refusal = accounts.admit(&acme, at(10_010)).unwrap_err();
        assert!(refusal.wait <= Duration::from_secs(3_601), "{refusal:?}");
    }

    #[test]
    fn what_one_account_refuses_costs_the_other_nothing() {
        let key = (Subject::Key("ci".into()), limits(1, 0, 0));
        let both = [tenant(limits(0, 10, 0))[0].clone(), key];
        let mut accounts = Accounts::default();
        let quota = accounts.admit(&both, at(0)).unwrap();
        assert_eq!(quota.requests.unwrap().remaining, 9);
        for _ in 0..3 {
            let refusal = accounts.admit(&both, at(0)).unwrap_err();
            assert_eq!((refusal.limit, refusal.whose), (Limit::InFlight, "API key"));
        }
        accounts.leave(&both, 1);
        assert_eq!(accounts.admit(&both, at(0)).unwrap().requests.unwrap().remaining, 8);
    }

    #[test]
    fn the_quota_is_that_of_whoever_has_less() {
        let key = (Subject::Key("ci".into()), limits(0, 5, 100));
        let both = [tenant(limits(0, 10, 50))[0].clone(), key];
        let quota = Accounts::default().admit(&both, at(0)).unwrap();
        let shown = [quota.requests.unwrap(), quota.tokens.unwrap()];
        assert_eq!(shown.map(|left| (left.limit, left.remaining)), [(5, 4), (50, 50)]);
    }

    #[test]
    fn accounts_are_only_for_those_with_limits_and_those_who_are_there() {
        let mut accounts = Accounts::default();
        accounts.admit(&tenant(RateLimits::default()), at(0)).unwrap();
        assert_eq!(accounts.len(), 0);
        let acme = tenant(limits(2, 0, 0));
        accounts.admit(&acme, at(0)).unwrap();
        accounts.keep(|_| false);
        assert_eq!(accounts.len(), 1, "it has a request in work");
        accounts.leave(&acme, 1);
        accounts.keep(|_| false);
        assert_eq!(accounts.len(), 0);
    }

    #[test]
    fn answers_count_as_requests() {
        let mut accounts = Accounts::default();
        let acme = tenant(limits(4, 6, 1));
        accounts.admit(&acme, at(0)).unwrap();
        accounts.charge(&acme, 100, at(0));
        let refusal = accounts.admit_answers(&acme, 4, at(0)).unwrap_err();
        assert_eq!((refusal.limit, refusal.bound), (Limit::InFlight, 4));
        // What the prompt owes was the first one's business.
        let quota = accounts.admit_answers(&acme, 3, at(0)).unwrap();
        assert_eq!(quota.requests.unwrap().remaining, 2);
        accounts.leave(&acme, 4);
        let refusal = accounts.admit_answers(&acme, 4, at(0)).unwrap_err();
        assert_eq!((refusal.limit, refusal.wait), (Limit::Requests, Duration::from_secs(20)));
        assert!(accounts.admit_answers(&acme, 2, at(0)).is_ok());
        accounts.leave(&acme, 2);
        accounts.keep(|_| false);
        assert_eq!(accounts.len(), 0, "all places were given back");
        assert_eq!(too_low_for(&acme, 4), None);
        assert_eq!(too_low_for(&acme, 5), Some(("tenant", Limit::InFlight, 4)));
        assert_eq!(too_low_for(&tenant(limits(0, 6, 0)), 7).unwrap().1, Limit::Requests);
    }

    #[test]
    fn changed_limits_hold_at_once() {
        let mut accounts = Accounts::default();
        accounts.admit(&tenant(limits(2, 0, 0)), at(0)).unwrap();
        assert!(accounts.admit(&tenant(limits(1, 0, 0)), at(0)).is_err());
        assert!(accounts.admit(&tenant(limits(2, 0, 0)), at(0)).is_ok());
    }
}
