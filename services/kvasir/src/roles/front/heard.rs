//! Who of the members is heard, and what the router is told of them.
//!
//! A member counts as joined once it told something: a worker tells with each report of its load, so a process that
//! answers while its worker stands still does not join. One that falls silent for `server.worker_silence_seconds` is taken for stuck: its link
//! is made anew, which ends its requests here, and they go on elsewhere.
//!
//! Invariants: a member leaves when calls to it end, not when its events do; those begin anew, and what runs there goes on. No
//! change of membership is lost or overtaken, however full the router's queue is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use router::{DrainSource, Role};
use serde_json::{Value, json};
use shared::{CacheQuestion, Clock, Flow, Timestamp, WorkerRank};
use tokio::sync::watch;
use tokio::time::interval;

use super::owed::{Owed, Tell, ending};
use crate::config::MemberConfig;
use crate::identity::MemberRole;
use crate::roles::peers::Peers;
use crate::wire::{Link, Watch, Watched, watch as watch_member};
use crate::wiring::parts::{DrainWord, Teller, Told};

/// The epoch of a member that nobody listens to.
const NOBODY: u64 = u64::MAX;
/// Pause between two looks at who is silent.
const SILENCE_PERIOD: Duration = Duration::from_secs(1);

/// The members that this router listens to.
#[derive(Default)]
pub(super) struct Heard {
    table: Mutex<Table>,
    epochs: AtomicU64,
    /// Members that are about to end, as discovery says, linked or not.
    ending: Mutex<BTreeSet<WorkerRank>>,
    /// What the router does not know of that yet: whether it is to drain, of each member the last word.
    untold: Mutex<BTreeMap<WorkerRank, bool>>,
}

#[derive(Default)]
struct Table {
    members: BTreeMap<WorkerRank, Member>,
    /// Members of whom the router does not know all. It outlives the listening: nobody else would tell of a leave.
    owed: BTreeMap<WorkerRank, Owed>,
}

struct Member {
    /// Tells this listening from an earlier one of the same member.
    epoch: u64,
    name: String,
    role: MemberRole,
    watch: Weak<Mutex<Watch>>,
    joined: bool,
    /// When it last told something, or the watch began.
    at: Timestamp,
}

/// One listening to one member.
#[derive(Clone, Copy)]
struct Ears {
    worker: WorkerRank,
    epoch: u64,
}

/// Listening to one member. Its end is that member's leave.
pub(super) struct Listening {
    heard: Arc<Heard>,
    ears: Ears,
    teller: Teller,
    /// Told to end first; what is still heard from it is of another epoch.
    watch: Option<Arc<Mutex<Watch>>>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.watch = None;
        self.heard.end(self.ears, &|change| self.teller.membership(change).is_ok());
    }
}

impl Heard {
    /// Listens to the member at the other end of a link for as long as the result lives.
    pub(super) fn listen(
        self: &Arc<Self>,
        link: &Arc<Link>,
        config: &MemberConfig,
        teller: Teller,
        clock: Arc<dyn Clock>,
    ) -> Listening {
        let (name, role) = (config.name.clone(), config.role());
        let tell: Tell<'_> = &|change| teller.membership(change).is_ok();
        let ears = self.begin((config.rank(), name, role), clock.now(), tell);
        let (heard, told) = (Arc::clone(self), teller.clone());
        let take = move |watched| heard.take(ears, watched, clock.now(), &told);
        let watch = Arc::new(Mutex::new(watch_member(link, Box::new(take))));
        if let Some(member) = self.table.lock().of(ears) {
            member.watch = Arc::downgrade(&watch);
        }
        Listening { heard: Arc::clone(self), ears, teller, watch: Some(watch) }
    }

    pub(super) fn ask(&self, worker: WorkerRank, question: &CacheQuestion) {
        let table = self.table.lock();
        let watch = table.members.get(&worker).and_then(|member| member.watch.upgrade());
        drop(table);
        if let Some(watch) = watch {
            watch.lock().ask(question);
        }
    }

    /// Takes what a watch says, on the tasks of its link.
    fn take(&self, ears: Ears, watched: Watched, now: Timestamp, teller: &Teller) -> Flow {
        let tell: Tell<'_> = &|change| teller.membership(change).is_ok();
        match watched {
            // It joins with its first event.
            Watched::Begun(_) => Flow::Open,
            Watched::Interrupted => self.interrupted(ears, tell),
            Watched::Gone => self.gone(ears, now, tell),
            Watched::Event(event) => match self.told(ears, now, tell) {
                None => Flow::Closed,
                Some(true) => teller.event(event),
                // The gap shows, and the router asks again.
                Some(false) => Flow::Open,
            },
        }
    }

    /// A listening begins, and an earlier one of the same member is over.
    fn begin(
        &self,
        (worker, name, role): (WorkerRank, String, MemberRole),
        now: Timestamp,
        tell: Tell<'_>,
    ) -> Ears {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        let watch = Weak::new();
        let member = Member { epoch, name, role, watch, joined: false, at: now };
        let mut table = self.table.lock();
        let before = table.members.insert(worker, member);
        // The member is the same, what it holds is not: its entry changed.
        if before.is_some_and(|member| member.joined) {
            table.owed(worker).left();
            table.settle(worker, tell);
        }
        Ears { worker, epoch }
    }

    /// A member told something. Whether the router knows all of its membership and may hear of it; none when this listening is over.
    fn told(&self, ears: Ears, now: Timestamp, tell: Tell<'_>) -> Option<bool> {
        let mut table = self.table.lock();
        let member = table.of(ears)?;
        member.at = now;
        if !std::mem::replace(&mut member.joined, true) {
            let role = placed_as(member.role);
            let owed = table.owed(ears.worker);
            owed.joined(role);
            if self.ending.lock().contains(&ears.worker) {
                owed.ends();
            }
        }
        Some(table.settle(ears.worker, tell))
    }

    /// The events of a member begin anew, while it goes on with what it has.
    fn interrupted(&self, ears: Ears, tell: Tell<'_>) -> Flow {
        let mut table = self.table.lock();
        let Some(member) = table.of(ears) else { return Flow::Closed };
        if member.joined {
            table.owed(ears.worker).interrupted();
            table.settle(ears.worker, tell);
        }
        Flow::Open
    }

    /// A member cannot be called any more.
    fn gone(&self, ears: Ears, now: Timestamp, tell: Tell<'_>) -> Flow {
        let mut table = self.table.lock();
        let Some(member) = table.of(ears) else { return Flow::Closed };
        member.at = now;
        if std::mem::replace(&mut member.joined, false) {
            table.owed(ears.worker).left();
            table.settle(ears.worker, tell);
        }
        Flow::Open
    }

    /// A listening is over.
    fn end(&self, ears: Ears, tell: Tell<'_>) {
        let mut table = self.table.lock();
        if table.of(ears).is_none() {
            return;
        }
        if table.members.remove(&ears.worker).is_some_and(|member| member.joined) {
            table.owed(ears.worker).left();
            table.settle(ears.worker, tell);
        }
    }

    /// Takes who is about to end now; the difference is to be told. The router knows nothing of those that have not joined, and is
    /// told of them when they do.
    pub(super) fn take_ending(&self, now: &BTreeSet<WorkerRank>) {
        let mut untold = self.untold.lock();
        let before = std::mem::replace(&mut *self.ending.lock(), now.clone());
        untold.extend(before.difference(now).map(|worker| (*worker, false)));
        untold.extend(now.difference(&before).map(|worker| (*worker, true)));
    }

    /// Tells what is not told yet. What finds no room stays for the next time.
    pub(super) fn tell_all(&self, tell: Tell<'_>) {
        let mut untold = self.untold.lock();
        let mut table = self.table.lock();
        table.owed.retain(|worker, owed| !owed.tell(*worker, tell));
        // Of a join that is not told yet it would be told too early.
        let owed = &table.owed;
        untold.retain(|worker, ends| {
            let word = if *ends {
                ending(*worker)
            } else {
                Told::Drain(*worker, DrainSource::Discovery, DrainWord::End)
            };
            owed.contains_key(worker) || !tell(word)
        });
    }

    /// The member of this name that is listened to.
    pub(super) fn worker(&self, name: &str) -> Option<WorkerRank> {
        let table = self.table.lock();
        table.members.iter().find(|(_, member)| member.name == name).map(|(worker, _)| *worker)
    }

    pub(super) fn joined(&self, role: MemberRole) -> usize {
        let table = self.table.lock();
        table.members.values().filter(|member| member.role == role && member.joined).count()
    }

    /// Workers that joined and then told nothing for too long. They count as not joined from now on, and are not heard until
    /// they are listened to anew.
    fn take_silent(&self, now: Timestamp, silence_max: Duration) -> Vec<WorkerRank> {
        let mut table = self.table.lock();
        let silent = table.members.iter_mut().filter(|(_, member)| {
            member.joined
                && member.role != MemberRole::Kvstore
                && silence_max < now.since(member.at)
        });
        let silent = silent.map(|(worker, member)| {
            member.joined = false;
            member.epoch = NOBODY;
            tracing::error!(
                member = member.name,
                "a worker stands still; its requests go elsewhere"
            );
            *worker
        });
        let silent: Vec<WorkerRank> = silent.collect();
        for worker in &silent {
            table.owed(*worker).left();
        }
        silent
    }

    /// Whether the router knows all of the membership of a worker.
    fn is_settled(&self, worker: WorkerRank) -> bool {
        !self.table.lock().owed.contains_key(&worker)
    }

    /// Says of each member whether it has joined.
    pub(super) fn mark(&self, mut states: Value) -> Value {
        let table = self.table.lock();
        for member in table.members.values() {
            if let Some(state) = states.get_mut(&member.name).and_then(Value::as_object_mut) {
                state.insert("joined".to_owned(), json!(member.joined));
            }
        }
        states
    }
}

impl Table {
    /// The member that is listened to so.
    fn of(&mut self, ears: Ears) -> Option<&mut Member> {
        self.members.get_mut(&ears.worker).filter(|member| member.epoch == ears.epoch)
    }

    fn owed(&mut self, worker: WorkerRank) -> &mut Owed {
        self.owed.entry(worker).or_default()
    }

    /// Tells what is owed of a worker as far as there is room. Whether nothing is.
    fn settle(&mut self, worker: WorkerRank, tell: Tell<'_>) -> bool {
        let Some(owed) = self.owed.get_mut(&worker) else { return true };
        let settled = owed.tell(worker, tell);
        if settled {
            self.owed.remove(&worker);
        }
        settled
    }
}

fn placed_as(role: MemberRole) -> Role {
    match role {
        MemberRole::Decode => Role::Decode,
        MemberRole::Prefill => Role::Prefill,
        MemberRole::Kvstore | MemberRole::Router => Role::Store,
    }
}

/// Makes the links of workers that stand still anew. Their requests end with the old link.
pub(super) struct Silence {
    pub(super) heard: Arc<Heard>,
    pub(super) peers: Arc<Peers>,
    pub(super) teller: Teller,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) silence_max: Duration,
}

impl Silence {
    pub(super) async fn look(self, mut stopped: watch::Receiver<bool>) {
        let mut period = interval(SILENCE_PERIOD);
        let mut silent = Vec::new();
        loop {
            tokio::select! {
                // A dropped sender says the same.
                _ = stopped.wait_for(|stop| *stop) => return,
                _ = period.tick() => {}
            }
            silent.extend(self.heard.take_silent(self.clock.now(), self.silence_max));
            self.heard.tell_all(&|change| self.teller.membership(change).is_ok());
            silent.retain(|worker| {
                // The leave first, so that it cannot follow the join by the new link.
                let settled = self.heard.is_settled(*worker);
                if settled {
                    self.peers.relink(*worker);
                }
                !settled
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use router::DrainSource;
    use serde_json::json;
    use shared::{DpRank, Flow, Timestamp, WorkerId, WorkerRank};

    use super::{Ears, Heard};
    use crate::identity::MemberRole;
    use crate::wiring::parts::{DrainWord, Told};

    fn rank(worker: u32) -> WorkerRank {
        WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    /// The queue of a router, with room for so many words more.
    #[derive(Default)]
    struct Queue {
        room: Cell<usize>,
        words: RefCell<Vec<(u32, &'static str)>>,
    }

    impl Queue {
        fn with_room(room: usize) -> Self {
            Self { room: Cell::new(room), ..Self::default() }
        }

        fn tell(&self, told: &Told) -> bool {
            let Some(left) = self.room.get().checked_sub(1) else { return false };
            self.room.set(left);
            let (worker, word) = match told {
                Told::Joined(worker, _) => (worker, "joined"),
                Told::Left(worker) => (worker, "left"),
                Told::Interrupted(worker) => (worker, "interrupted"),
                Told::Drain(worker, DrainSource::Discovery, DrainWord::Begin(None)) => {
                    (worker, "drains")
                }
                Told::Drain(worker, DrainSource::Discovery, DrainWord::End) => (worker, "stays"),
                other => panic!("{other:?}"),
            };
            self.words.borrow_mut().push((worker.worker.0, word));
            true
        }

        fn read(&self) -> Vec<(u32, &'static str)> {
            self.words.take()
        }
    }

    fn begin(heard: &Heard, queue: &Queue, id: u32, role: MemberRole) -> Ears {
        let name = format!("{role}-{id}");
        heard.begin((rank(id), name, role), at(0), &|told| queue.tell(&told))
    }

    #[test]
    fn the_router_is_told_once_who_is_about_to_end() {
        let heard = Heard::default();
        // Who is about to end, and of whom the router is told.
        type Step = (&'static [u32], &'static [(u32, &'static str)]);
        let steps: [Step; 5] = [
            (&[], &[]),
            (&[1, 2], &[(1, "drains"), (2, "drains")]),
            (&[1, 2], &[]),
            (&[2, 3], &[(1, "stays"), (3, "drains")]),
            (&[], &[(2, "stays"), (3, "stays")]),
        ];
        let take = |ending: &[u32]| {
            heard.take_ending(&ending.iter().map(|worker| rank(*worker)).collect());
        };
        let tell = |room: usize| {
            let queue = Queue::with_room(room);
            heard.tell_all(&|told| queue.tell(&told));
            queue.read()
        };
        for (ending, expected) in steps {
            take(ending);
            assert_eq!(tell(9), expected);
        }
        // Without room nothing is lost, and the last word counts.
        take(&[1, 2, 3]);
        assert_eq!(tell(1), [(1, "drains")]);
        take(&[3]);
        assert_eq!(tell(1), [(1, "stays")]);
        assert_eq!(tell(9), [(2, "stays"), (3, "drains")]);
        assert_eq!(tell(9), []);
        // It is told again of who joins, and not before the join.
        let full = Queue::default();
        let ears = [3, 4].map(|id| begin(&heard, &full, id, MemberRole::Decode));
        for ears in ears {
            assert_eq!(heard.told(ears, at(0), &|told| full.tell(&told)), Some(false));
        }
        take(&[3, 4]);
        assert_eq!(tell(1), [(3, "joined")]);
        assert_eq!(tell(9), [(3, "drains"), (4, "joined"), (4, "drains")]);
    }

    #[test]
    fn a_member_whose_events_begin_anew_has_not_left() {
        let (heard, queue) = (Heard::default(), Queue::with_room(99));
        let ears = begin(&heard, &queue, 1, MemberRole::Decode);
        let tell = |told| queue.tell(&told);
        assert_eq!(heard.interrupted(ears, &tell), Flow::Open);
        assert_eq!(queue.read(), [], "nothing had begun");
        for _ in 0..2 {
            assert_eq!(heard.told(ears, at(1), &tell), Some(true));
            assert_eq!(queue.read(), [(1, "joined")]);
            for _ in 0..2 {
                assert_eq!(heard.interrupted(ears, &tell), Flow::Open);
                assert_eq!(heard.told(ears, at(2), &tell), Some(true));
                assert_eq!(queue.read(), [(1, "interrupted")]);
                assert_eq!(heard.joined(MemberRole::Decode), 1);
            }
            assert_eq!(heard.gone(ears, at(3), &tell), Flow::Open);
            assert_eq!(heard.gone(ears, at(3), &tell), Flow::Open);
            assert_eq!((queue.read(), heard.joined(MemberRole::Decode)), (vec![(1, "left")], 0));
        }
        let next = begin(&heard, &queue, 1, MemberRole::Decode);
        assert_eq!(heard.interrupted(ears, &tell), Flow::Closed, "that listening is over");
        assert_eq!(heard.gone(ears, at(4), &tell), Flow::Closed);
        heard.end(ears, &tell);
        assert_eq!(heard.told(next, at(4), &tell), Some(true));
        heard.end(next, &tell);
        assert_eq!(queue.read(), [(1, "joined"), (1, "left")]);
    }

    #[test]
    fn no_change_is_lost_or_overtaken_without_room() {
        // What happens while the queue is full to a member that has joined, and what the router hears when it is read again.
        type Case = (&'static [&'static str], &'static [&'static str]);
        let cases: [Case; 9] = [
            (&["gone"], &["left"]),
            (&["gone", "told"], &["left", "joined"]),
            (&["gone", "told", "interrupted"], &["left", "joined"]),
            (&["gone", "told", "gone"], &["left"]),
            (&["interrupted", "told", "interrupted"], &["interrupted"]),
            (&["interrupted", "gone"], &["left"]),
            (&["end"], &["left"]),
            (&["end", "begin", "told"], &["left", "joined"]),
            (&["begin", "told", "end", "begin"], &["left"]),
        ];
        for (steps, expected) in cases {
            let (heard, queue) = (Heard::default(), Queue::with_room(1));
            let tell = |told| queue.tell(&told);
            let mut ears = begin(&heard, &queue, 1, MemberRole::Decode);
            assert_eq!(heard.told(ears, at(0), &tell), Some(true));
            assert_eq!(queue.read(), [(1, "joined")]);
            for step in steps {
                match *step {
                    "told" => assert_eq!(heard.told(ears, at(1), &tell), Some(false), "{steps:?}"),
                    "interrupted" => assert_eq!(heard.interrupted(ears, &tell), Flow::Open),
                    "gone" => assert_eq!(heard.gone(ears, at(1), &tell), Flow::Open),
                    "begin" => ears = begin(&heard, &queue, 1, MemberRole::Decode),
                    _ => heard.end(ears, &tell),
                }
            }
            queue.room.set(9);
            heard.tell_all(&tell);
            let told: Vec<_> = queue.read().into_iter().map(|(_, word)| word).collect();
            assert_eq!(told, expected, "{steps:?}");
            heard.tell_all(&tell);
            assert_eq!(queue.read(), [], "{steps:?}");
        }
    }

    #[test]
    fn a_worker_that_stands_still_is_found_once_and_a_store_may_be_silent() {
        let (heard, queue) = (Heard::default(), Queue::with_room(4));
        let tell = |told| queue.tell(&told);
        let roles = [
            (1, MemberRole::Decode),
            (2, MemberRole::Decode),
            (3, MemberRole::Kvstore),
            (4, MemberRole::Prefill),
        ];
        let [first, second, store, _] = roles.map(|(id, role)| begin(&heard, &queue, id, role));
        for ears in [first, second, store] {
            assert_eq!(heard.told(ears, at(1), &tell), Some(true));
        }
        assert_eq!(heard.told(second, at(9), &tell), Some(true));
        assert_eq!(heard.joined(MemberRole::Decode), 2);
        assert_eq!((heard.worker("decode-2"), heard.worker("decode-3")), (Some(rank(2)), None));
        let limit = Duration::from_secs(5);
        assert_eq!(heard.take_silent(at(6), limit), []);
        assert_eq!(heard.take_silent(at(7), limit), [rank(1)], "prefill-4 never joined");
        assert_eq!(heard.take_silent(at(8), limit), [], "it is told once");
        assert_eq!(heard.joined(MemberRole::Decode), 1);
        assert_eq!(heard.told(first, at(9), &tell), None, "it is not heard any more");
        queue.read();
        assert!(!heard.is_settled(rank(1)), "its link is made anew behind its leave");
        heard.tell_all(&tell);
        assert_eq!((queue.read(), heard.is_settled(rank(1))), (vec![(1, "left")], true));
        let marked = heard.mark(json!({"decode-1": {}, "decode-2": {}}));
        assert_eq!(marked, json!({"decode-1": {"joined": false}, "decode-2": {"joined": true}}));
        // One whose events do not begin anew is silent, too.
        assert_eq!(heard.interrupted(second, &tell), Flow::Open);
        assert_eq!(heard.take_silent(at(15), limit), [rank(2)]);
    }
}
