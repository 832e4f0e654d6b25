//! Faults: what breaks, when, for how long. Named, or drawn by the seed.

use std::fmt;
use std::time::Duration;

use shared::Timestamp;

use crate::settings::{Settings, seconds, size};
use shared::Random;

/// Where a member is in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// A decode worker.
    Decode(usize),
    /// A prefill worker.
    Prefill(usize),
    /// A store node.
    Store(usize),
    /// A router, as far as other routers hear it.
    Router(usize),
}

/// What happens to a member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Its process ends, and with it what it held; a store keeps its drive. It comes back empty when the fault is over.
    Kill,
    /// A worker stands still: it answers nothing and loses nothing.
    Freeze,
    /// The drive of a store is this many times slower.
    SlowDisk(f64),
    /// A store can be reached by nobody, and its events are lost; a router and the other routers do not hear each other.
    Partition,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// What.
    pub kind: FaultKind,
    /// Whose.
    pub member: Member,
    /// When it begins.
    pub at: Timestamp,
    /// How long it lasts; none: to the end of the run.
    pub lasts: Option<Duration>,
}

/// A fault that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text} is no fault ({what}); write such as kill:decode-0@60, freeze:prefill-1@60+30, slow-disk:store-0@60+30x10, \
     partition:store-0@60+30 or partition:router-0@60+30, times in seconds"
)]
pub struct FaultError {
    /// What was read.
    pub text: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decode(place) => write!(f, "decode-{place}"),
            Self::Prefill(place) => write!(f, "prefill-{place}"),
            Self::Store(place) => write!(f, "store-{place}"),
            Self::Router(place) => write!(f, "router-{place}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            FaultKind::Kill => "kill",
            FaultKind::Freeze => "freeze",
            FaultKind::SlowDisk(_) => "slow-disk",
            FaultKind::Partition => "partition",
        };
        write!(f, "{kind}:{}@{}", self.member, self.at.since(Timestamp(0)).as_secs_f64())?;
        if let Some(lasts) = self.lasts {
            write!(f, "+{}", lasts.as_secs_f64())?;
        }
        match self.kind {
            FaultKind::SlowDisk(times) => write!(f, "x{times}"),
            FaultKind::Kill | FaultKind::Freeze | FaultKind::Partition => Ok(()),
        }
    }
}

impl Fault {
    /// Reads `KIND:MEMBER@SECONDS[+SECONDS][xTIMES]`.
    ///
    /// # Errors
    /// When it is none, or the fault does not fit the member.
    pub fn parse(text: &str) -> Result<Self, FaultError> {
        let wrong = |what| FaultError { text: text.to_owned(), what };
        let (kind, rest) = text.split_once(':').ok_or_else(|| wrong("no kind"))?;
        let (member, when) = rest.split_once('@').ok_or_else(|| wrong("no time"))?;
        let member = parse_member(member).ok_or_else(|| wrong("no such member"))?;
        let (when, times) = match when.split_once('x') {
            Some((when, times)) => (when, Some(number(times).ok_or_else(|| wrong("no factor"))?)),
            None => (when, None),
        };
        let (at, lasts) = match when.split_once('+') {
            Some((at, lasts)) => (at, Some(number(lasts).ok_or_else(|| wrong("no length"))?)),
            None => (when, None),
        };
        let at = number(at).ok_or_else(|| wrong("no time"))?;
        let kind = match (kind, times) {
            ("kill", None) => FaultKind::Kill,
            ("freeze", None) => FaultKind::Freeze,
            ("partition", None) => FaultKind::Partition,
            ("slow-disk", Some(times)) if 1.0 <= times => FaultKind::SlowDisk(times),
            _ => return Err(wrong("no such kind")),
        };
        let fits = match (kind, member) {
            (FaultKind::Partition, Member::Router(_)) => true,
            (_, Member::Router(_)) => false,
            (FaultKind::Kill, _) => true,
            (FaultKind::Freeze, Member::Store(_)) => false,
            (FaultKind::Freeze, _) => lasts.is_some(),
            (FaultKind::SlowDisk(_) | FaultKind::Partition, member) => {
                matches!(member, Member::Store(_))
            }
        };
        if !fits {
            return Err(wrong("it does not fit the member, or a freeze does not end"));
        }
        let at = Timestamp(0).after(seconds(at));
        Ok(Self { kind, member, at, lasts: lasts.map(seconds) })
    }

    /// Whether the fleet has the member.
    #[must_use]
    pub fn fits(&self, settings: &Settings) -> bool {
        match self.member {
            Member::Decode(place) => place < size(settings.decode),
            Member::Prefill(place) => place < size(settings.prefill),
            Member::Store(place) => place < size(settings.stores),
            Member::Router(place) => place < size(settings.routers),
        }
    }
}

/// The faults that the settings ask for, over a run of this length.
pub(crate) fn drawn(settings: &Settings, length: Timestamp) -> Vec<Fault> {
    let mut random = Random::new(settings.seed ^ 0x6661_756c_7473);
    let whole_s = length.since(Timestamp(0)).as_secs_f64().max(1.0);
    let one = |_| {
        let mut members: Vec<Member> = (0..size(settings.decode)).map(Member::Decode).collect();
        members.extend((0..size(settings.prefill)).map(Member::Prefill));
        members.extend((0..size(settings.stores)).map(Member::Store));
        // One router has nobody to be parted from.
        if 1 < settings.routers {
            members.extend((0..size(settings.routers)).map(Member::Router));
        }
        let member = members[random.below(members.len())];
        let kind = match (member, random.below(3)) {
            (Member::Router(_), _) => FaultKind::Partition,
            (_, 0) => FaultKind::Kill,
            (Member::Decode(_) | Member::Prefill(_), _) => FaultKind::Freeze,
            (Member::Store(_), 1) => FaultKind::SlowDisk(20.0),
            (Member::Store(_), _) => FaultKind::Partition,
        };
        let at = Timestamp(0).after(seconds(whole_s * random.unit()));
        let lasts = Some(seconds(0.2 + whole_s * 0.2 * random.unit()));
        Fault { kind, member, at, lasts }
    };
    (0..settings.random_faults).map(one).collect()
}

fn parse_member(text: &str) -> Option<Member> {
    let (role, place) = text.split_once('-')?;
    let place = place.parse().ok()?;
    match role {
        "decode" => Some(Member::Decode(place)),
        "prefill" => Some(Member::Prefill(place)),
        "store" => Some(Member::Store(place)),
        "router" => Some(Member::Router(place)),
        _ => None,
    }
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && 0.0 <= *number)
}

#[cfg(test)]
mod tests {
    use super::{Fault, drawn};
    use crate::settings::Settings;

    #[test]
    fn faults_are_read_as_they_are_written() {
        for text in [
            "kill:decode-0@60",
            "kill:store-3@0.5+10",
            "freeze:prefill-1@60+30",
            "slow-disk:store-0@60+30x10",
            "partition:store-0@60",
            "partition:router-1@60+20",
        ] {
            assert_eq!(Fault::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "",
            "kill",
            "kill:decode@1",
            "kill:router-0@1",
            "freeze:decode-0@1",
            "freeze:store-0@1+1",
            "slow-disk:store-0@1",
            "slow-disk:decode-0@1x2",
            "partition:decode-0@1",
            "kill:decode-0@-1",
            "kill:decode-0@1x2",
        ] {
            let error = Fault::parse(text).unwrap_err().to_string();
            assert!(error.contains("write such as"), "{text}: {error}");
        }
    }

    #[test]
    fn drawn_faults_fit_the_fleet_and_follow_the_seed() {
        let settings = Settings { random_faults: 100, prefill: 2, ..Settings::default() };
        let faults = drawn(&settings, shared::Timestamp(1_000_000_000_000));
        assert_eq!(faults, drawn(&settings, shared::Timestamp(1_000_000_000_000)));
        assert!(faults.iter().all(|fault| fault.fits(&settings)));
        let shown = faults.iter().map(|fault| Fault::parse(&fault.to_string()).is_ok());
        assert!(shown.into_iter().all(|read| read));
    }
}
