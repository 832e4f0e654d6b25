//! The view of the members as a source gave it last: what is kept while the source is away, and how old it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shared::{Clock, Timestamp};

use super::{Apply, Found};
use crate::config::{ClusterConfig, MemberConfig};

/// What a source says of one member: its entry, or why there is none.
pub(super) type Entry = Result<MemberConfig, String>;
/// Everything that a source says, by its own names.
pub(super) type Entries = BTreeMap<String, Entry>;

/// How discovery stands, for operators.
pub(crate) struct View {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    faults: AtomicU64,
}

#[derive(Default)]
struct State {
    /// When the source said last that the view is right; none before its first word.
    confirmed_at: Option<Timestamp>,
    members: usize,
    /// Entries that cannot be, left out of the view.
    faulty: usize,
    /// The fault of the source, while there is one.
    fault: Option<String>,
}

impl View {
    /// A view of which nothing is known yet.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default(), faults: AtomicU64::new(0) })
    }

    /// The source says that the view is right now.
    pub(super) fn confirm(&self) {
        let mut state = self.state.lock();
        state.confirmed_at = Some(self.clock.now());
        if state.fault.take().is_some() {
            tracing::info!("discovery answers again");
        }
    }

    /// An attempt to tell the source something was in vain.
    pub(super) fn failed(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// The source does not answer. Said once as long as the reason stays the same.
    pub(super) fn fault(&self, reason: &str) {
        self.failed();
        let mut state = self.state.lock();
        if state.fault.as_deref() != Some(reason) {
            state.fault = Some(reason.to_owned());
            tracing::warn!(
                reason,
                members = state.members,
                "discovery does not answer; the members stay as they are, and it is tried again"
            );
        }
    }

    /// Appends the figures; none while the source is the configuration file.
    pub(crate) fn write(&self, text: &mut String) {
        let state = self.state.lock();
        let age = state.confirmed_at.map(|at| self.clock.now().since(at).as_secs());
        let gauges = [
            ("kvasir_discovery_members", "Members in the view", Some(length(state.members))),
            (
                "kvasir_discovery_faulty_entries",
                "Entries of the source that cannot be and are left out",
                Some(length(state.faulty)),
            ),
            (
                "kvasir_discovery_answers",
                "1 while the source answers",
                Some(u64::from(state.fault.is_none() && age.is_some())),
            ),
            (
                "kvasir_discovery_view_age_seconds",
                "Since the source last said that the view is right",
                age,
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                write_sample(text, name, "gauge", help, value);
            }
        }
        let faults = self.faults.load(Ordering::Relaxed);
        let name = "kvasir_discovery_faults_total";
        write_sample(text, name, "counter", "Attempts that the source did not answer", faults);
    }

    #[cfg(test)]
    pub(super) fn age(&self) -> Option<std::time::Duration> {
        let state = self.state.lock();
        state.confirmed_at.map(|at| self.clock.now().since(at))
    }
}

/// Takes what a source says, and hands on what changed.
pub(super) struct Follower {
    me: MemberConfig,
    pub(super) view: Arc<View>,
    apply: Apply,
    /// What was handed on; none before the source's first word.
    told: Option<Found>,
    /// The faulty entries that were reported, and why.
    reported: BTreeMap<String, String>,
}

impl Follower {
    pub(super) fn new(me: MemberConfig, view: Arc<View>, apply: Apply) -> Self {
        Self { me, view, apply, told: None, reported: BTreeMap::new() }
    }

    /// Takes the whole view of a source that says of nobody that it is about to end.
    pub(super) fn take(&mut self, entries: &Entries) {
        self.take_ending(entries, BTreeSet::new());
    }

    /// Takes the whole view, and who in it is about to end. Entries of this process are passed over.
    pub(super) fn take_ending(&mut self, entries: &Entries, ending: BTreeSet<String>) {
        let (members, faulty) = checked(&self.me, entries);
        for (key, reason) in &faulty {
            if self.reported.get(key) != Some(reason) {
                tracing::error!(
                    entry = key,
                    reason,
                    "a member's entry in discovery cannot be used"
                );
            }
        }
        {
            let mut state = self.view.state.lock();
            state.members = members.len();
            state.faulty = faulty.len();
        }
        self.reported = faulty;
        self.view.confirm();
        let found = Found { members, ending };
        if self.told.as_ref() != Some(&found) {
            (self.apply)(found.clone());
            self.told = Some(found);
        }
    }
}

/// The members that can be, and of the others why not. An entry that does not go with an earlier one is faulty, too.
fn checked(me: &MemberConfig, entries: &Entries) -> (Vec<MemberConfig>, BTreeMap<String, String>) {
    let mut cluster = ClusterConfig { member: vec![me.clone()], ..ClusterConfig::default() };
    let mut faulty = BTreeMap::new();
    let others = || entries.values().flatten().filter(|member| member.name != me.name);
    cluster.member.extend(others().cloned());
    // Nearly always all fit, and each check looks at all.
    let fits = cluster.check().is_ok();
    cluster.member.truncate(1);
    for (key, entry) in entries {
        let member = match entry {
            Ok(member) if member.name == me.name => continue,
            Ok(member) => member,
            Err(reason) => {
                faulty.insert(key.clone(), reason.clone());
                continue;
            }
        };
        cluster.member.push(member.clone());
        if !fits && let Err(error) = cluster.check() {
            cluster.member.pop();
            faulty.insert(key.clone(), format!("{error:#}"));
        }
    }
    cluster.member.remove(0);
    (cluster.member, faulty)
}

fn write_sample(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    let written = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}");
    written.expect("writing to a string never fails");
}

fn length(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use shared::ManualClock;

    use super::{Entries, Follower, View};
    use crate::config::MemberConfig;
    use crate::discovery::Found;
    use crate::discovery::tests::member;

    fn entries(members: &[MemberConfig]) -> Entries {
        members.iter().map(|member| (member.name.clone(), Ok(member.clone()))).collect()
    }

    /// The names of the members that were handed on, each time.
    type Told = Arc<Mutex<Vec<Vec<String>>>>;

    fn follower() -> (Arc<ManualClock>, Arc<View>, Follower, Told) {
        let clock = Arc::new(ManualClock::new());
        let view = View::new(Arc::clone(&clock) as _);
        let told = Told::default();
        let names = Arc::clone(&told);
        let apply = Box::new(move |found: Found| {
            names.lock().push(found.members.into_iter().map(|member| member.name).collect());
        });
        let follower = Follower::new(member("router-1"), Arc::clone(&view), apply);
        (clock, view, follower, told)
    }

    #[test]
    fn changes_are_handed_on_once_and_this_process_is_passed_over() {
        let (_, view, mut follower, told) = follower();
        let all = [member("decode-1"), member("kvstore-1"), member("router-1")];
        for _ in 0..2 {
            follower.take(&entries(&all));
        }
        follower.take(&entries(&all[..1]));
        follower.take(&Entries::new());
        let expected: [&[&str]; 3] = [&["decode-1", "kvstore-1"], &["decode-1"], &[]];
        assert_eq!(*told.lock(), expected);
        let mut text = String::new();
        view.write(&mut text);
        assert!(text.contains("kvasir_discovery_members 0\n"), "{text}");
    }

    #[test]
    fn an_entry_that_cannot_be_leaves_the_others() {
        let (_, view, mut follower, told) = follower();
        let mut taken = member("decode-2");
        taken.control = member("decode-1").control;
        let mut ours = member("decode-3");
        ours.id = member("router-1").id;
        let mut open = member("decode-4");
        open.data = None;
        let mut all = entries(&[member("decode-1"), taken, ours, open, member("decode-5")]);
        all.insert("decode-6".to_owned(), Err("no JSON".to_owned()));
        follower.take(&all);
        assert_eq!(*told.lock(), [["decode-1", "decode-5"]]);
        let words = ["decode-2", "decode-3", "decode-4", "decode-6"];
        assert!(follower.reported.keys().eq(words), "{:?}", follower.reported);
        let mut text = String::new();
        view.write(&mut text);
        assert!(text.contains("kvasir_discovery_faulty_entries 4\n"), "{text}");
    }

    #[test]
    fn the_age_of_the_view_grows_while_the_source_is_away() {
        let (clock, view, mut follower, told) = follower();
        let text = |view: &View| {
            let mut text = String::new();
            view.write(&mut text);
            text
        };
        assert!(!text(&view).contains("age"), "nothing is known yet");
        follower.take(&entries(&[member("decode-1")]));
        view.fault("connection refused");
        clock.advance(Duration::from_secs(90));
        let away = text(&view);
        for line in ["age_seconds 90\n", "answers 0\n", "faults_total 1\n", "members 1\n"] {
            assert!(away.contains(line), "{line}: {away}");
        }
        view.confirm();
        assert!(text(&view).contains("age_seconds 0\n"));
        assert!(text(&view).contains("answers 1\n"));
        assert_eq!(told.lock().len(), 1);
    }
}
