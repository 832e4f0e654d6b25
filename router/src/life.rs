//! Whom to steer away from: broken, stuck, draining and cold workers.
//!
//! A [`Life`] per worker that computes, told of placements, reports, ends and outcomes. Only draining is a rule; all else is
//! advice, which the choice leaves aside when there is nobody else. Nothing here refuses a request.

mod drains;
mod memory;
#[cfg(test)]
mod tests;

use shared::random::mix;
use shared::{RequestId, Timestamp, WorkerRank};

use crate::config::LifeConfig;
use crate::loads::{Loads, WorkerLoad};
use crate::policy::Tie;
use crate::ranked::Ranked;
use crate::role::Role;
use crate::snapshot::LifeSnapshot;
use drains::Drains;
use memory::Memory;

pub use drains::DrainSource;

/// Makes the draw for warm-up another one than that for ties.
const WARM_UP_DRAW: u64 = 0x7761_726d;

/// Why a worker was not considered although it had room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Steer {
    /// It is new, holds nothing of the prompt, and had its share of such requests.
    WarmingUp,
    /// It has work and makes no progress.
    Wedged,
    /// Its circuit breaker is open, or a probe is under way.
    Broken,
    /// It failed this request before.
    Excluded,
    /// It takes nothing new.
    Draining,
}

impl Steer {
    /// All reasons, the weakest first: when all workers have one, those with the weakest are considered. The last is never
    /// left aside.
    pub const ALL: [Self; 5] =
        [Self::WarmingUp, Self::Wedged, Self::Broken, Self::Excluded, Self::Draining];

    /// The word used in metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WarmingUp => "warming_up",
            Self::Wedged => "wedged",
            Self::Broken => "broken",
            Self::Excluded => "excluded",
            Self::Draining => "draining",
        }
    }
}

/// The state of a worker's circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Requests go there.
    Closed,
    /// Requests go elsewhere for a while.
    Open,
    /// The while is over: the next request probes the worker, others go elsewhere until it is known how that went.
    HalfOpen,
}

impl Breaker {
    /// The word used in metrics and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// What happened to workers. All values only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LifeCounters {
    /// Requests that failed on their worker.
    pub failures: u64,
    /// Times a circuit breaker opened, failed probes included.
    pub breakers_opened: u64,
    /// Requests that probed a worker.
    pub probes: u64,
    /// Times a worker with work was found to make no progress.
    pub wedged: u64,
    /// Drains begun.
    pub drains: u64,
    /// Draining workers whose time was over: what ran there was forgotten.
    pub drains_cut_off: u64,
    /// Requests placed on a worker in spite of a reason against it, since there was no other one.
    pub overridden: u64,
    /// Requests that went past a worker that warms up.
    pub warm_up_passed: u64,
    /// Workers that came back and were remembered.
    pub returned: u64,
}

/// All workers that compute.
#[derive(Debug)]
pub(crate) struct Lives {
    config: LifeConfig,
    seed: u64,
    workers: Workers,
    memory: Memory,
    /// Whether the time of some drain may have to come; without one, which is the rule, nobody is looked at for it.
    drains: bool,
    /// Workers that have not served enough yet; without one, which is the rule, nobody is looked at for it.
    cold: usize,
    pub(crate) counters: LifeCounters,
}

/// By role, so that the order is that of `Loads`.
#[derive(Debug, Default)]
struct Workers {
    decode: Ranked<Life>,
    prefill: Ranked<Life>,
}

/// What is known of one worker.
#[derive(Debug)]
pub(crate) struct Life {
    /// Failures since the last request that completed.
    failures: u32,
    /// Times in a row that the breaker opened.
    openings: u32,
    open_until: Option<Timestamp>,
    probe: Option<RequestId>,
    drains: Drains,
    /// The last progress reported; none before the first report, and then nothing is known.
    progress: Option<u64>,
    progressed_at: Timestamp,
    wedged: bool,
    served: u32,
}

impl Lives {
    pub(crate) fn new(config: LifeConfig, seed: u64) -> Self {
        let (workers, counters) = (Workers::default(), LifeCounters::default());
        let memory = Memory::new(config.remember);
        Self { config, seed, workers, memory, drains: false, cold: 0, counters }
    }

    /// Takes a worker as it was when it left, or as new and sound. Stores have no life here and are ignored.
    pub(crate) fn join(&mut self, worker: WorkerRank, role: Role, now: Timestamp) {
        let remembered = self.memory.take(worker, role, now);
        self.counters.returned += u64::from(remembered.is_some());
        let life = remembered.unwrap_or_else(|| Life::new(now));
        self.drains |= life.drains.by().is_some();
        let of_role = match role {
            Role::Decode => &mut self.workers.decode,
            Role::Prefill => &mut self.workers.prefill,
            Role::Store => return,
        };
        self.cold += usize::from(life.served < self.config.warm_up_requests);
        if let Some(before) = of_role.insert(worker, life) {
            self.cold -= usize::from(before.served < self.config.warm_up_requests);
        }
    }

    /// Lets a worker go, and remembers it for a while.
    pub(crate) fn leave(&mut self, worker: WorkerRank, now: Timestamp) {
        let Workers { decode, prefill } = &mut self.workers;
        for (role, of_role) in [(Role::Decode, decode), (Role::Prefill, prefill)] {
            if let Some(life) = of_role.remove(worker) {
                self.cold -= usize::from(life.served < self.config.warm_up_requests);
                self.memory.put(worker, role, life, now);
            }
        }
    }

    /// Workers that are away and remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.memory.len()
    }

    /// A request is about to be placed; `busy` says whether the worker has others.
    pub(crate) fn placed(&mut self, worker: WorkerRank, id: RequestId, busy: bool, now: Timestamp) {
        let Some(life) = self.workers.get_mut(worker) else { return };
        if !busy {
            life.progressed_at = now;
        }
        if life.breaker(now) == Breaker::HalfOpen && life.probe.is_none() {
            life.probe = Some(id);
            self.counters.probes += 1;
        }
    }

    /// A placed request is over, however it went.
    pub(crate) fn finished(&mut self, worker: WorkerRank, id: RequestId) {
        let Some(life) = self.workers.get_mut(worker) else { return };
        life.served = life.served.saturating_add(1);
        self.cold -= usize::from(life.served == self.config.warm_up_requests);
        if life.probe == Some(id) {
            life.probe = None;
        }
    }

    /// A report came: `progress` as it says; `busy` whether there is work.
    pub(crate) fn reported(
        &mut self,
        worker: WorkerRank,
        progress: u64,
        busy: bool,
        now: Timestamp,
    ) {
        let Some(life) = self.workers.get_mut(worker) else { return };
        if life.progress != Some(progress) || !busy {
            life.progress = Some(progress);
            life.progressed(now);
        }
    }

    /// A request failed on the worker, which may have left by now: often that is why it failed.
    pub(crate) fn failed(&mut self, worker: WorkerRank, id: RequestId, now: Timestamp) {
        let away = self.memory.get_mut(worker);
        let Some(life) = self.workers.get_mut(worker).or(away) else { return };
        self.counters.failures += 1;
        life.failures = life.failures.saturating_add(1);
        let (probed, open) = (life.probe == Some(id), life.breaker(now) == Breaker::Open);
        if probed {
            life.probe = None;
        }
        // While it is open, late failures of earlier requests say nothing new.
        if open || (life.failures < self.config.failures_max && !probed) {
            return;
        }
        let doubled = self.config.open_min.saturating_mul(1 << life.openings.min(16));
        life.open_until = Some(now.after(doubled.min(self.config.open_max)));
        life.openings = life.openings.saturating_add(1);
        self.counters.breakers_opened += 1;
    }

    /// A request's prompt was processed there. Enough to close a half-open breaker, since answers may take long; the next
    /// failure opens it again.
    pub(crate) fn started(&mut self, worker: WorkerRank, now: Timestamp) {
        let Some(life) = self.workers.get_mut(worker) else { return };
        life.progressed(now);
        if life.breaker(now) == Breaker::HalfOpen {
            (life.open_until, life.probe) = (None, None);
        }
    }

    /// A request ended well there.
    pub(crate) fn completed(&mut self, worker: WorkerRank, now: Timestamp) {
        let Some(life) = self.workers.get_mut(worker) else { return };
        life.progressed(now);
        // One placed before the breaker opened says little about the worker as it is now.
        if life.breaker(now) != Breaker::Open {
            (life.failures, life.openings) = (0, 0);
            (life.open_until, life.probe) = (None, None);
        }
    }

    /// Marks a worker as draining. A drain keeps its first deadline. False when it drained before or is no member.
    pub(crate) fn drain(&mut self, worker: WorkerRank, until: Timestamp, by: DrainSource) -> bool {
        let Some(life) = self.workers.get_mut(worker) else { return false };
        let new = life.drains.by().is_none();
        life.drains.begin(by, until);
        self.drains = true;
        self.counters.drains += u64::from(new);
        new
    }

    /// Who said that a worker drains says that it does not. True when it takes requests again.
    pub(crate) fn drain_ended(&mut self, worker: WorkerRank, by: DrainSource) -> bool {
        let Some(life) = self.workers.get_mut(worker) else { return false };
        life.drains.end(by) && life.drains.by().is_none()
    }

    /// Draining workers whose time is over now, each once. They drain on until their drains are taken back.
    pub(crate) fn drained_out(&mut self, now: Timestamp) -> Vec<WorkerRank> {
        self.drains &= self.next_drain().is_some();
        if !self.drains {
            return Vec::new();
        }
        let over = self.workers.iter_mut().filter_map(|(worker, life)| {
            let cut_off = life.drains.is_cut_off(now);
            cut_off.then_some(worker)
        });
        let over: Vec<WorkerRank> = over.collect();
        self.counters.drains_cut_off += u64::try_from(over.len()).expect("members are few");
        over
    }

    /// When the next drain is over.
    pub(crate) fn next_drain(&self) -> Option<Timestamp> {
        if !self.drains {
            return None;
        }
        self.workers.iter().filter_map(|(_, life)| life.drains.until()).min()
    }

    /// Counts workers that became stuck since the last look.
    pub(crate) fn look(&mut self, loads: &Loads, now: Timestamp) {
        let after = self.config.wedged_after;
        let Workers { decode, prefill } = &mut self.workers;
        let decode = decode.values_mut().zip(loads.decode());
        let prefill = prefill.values_mut().zip(loads.prefill());
        for (life, (_, load)) in decode.chain(prefill) {
            let wedged = load.is_busy() && after <= now.since(life.progressed_at);
            let wedged = wedged && life.progress.is_some();
            self.counters.wedged += u64::from(wedged && !life.wedged);
            life.wedged = wedged;
        }
    }

    /// The first time after `now` at which advice about a worker changes by itself.
    pub(crate) fn next_change(&self, loads: &Loads, now: Timestamp) -> Option<Timestamp> {
        let after = self.config.wedged_after;
        let changes = self.workers.iter().flat_map(|(worker, life)| {
            let judged = life.progress.is_some() && loads.is_busy(worker);
            let wedged = judged.then(|| life.progressed_at.after(after));
            [life.open_until, wedged]
        });
        changes.flatten().filter(|&at| now < at).min()
    }

    /// The lives of a role's workers, in the order of their names: those of `Loads` of the same role.
    pub(crate) fn of_role(&self, role: Role) -> &[(WorkerRank, Life)] {
        match role {
            Role::Decode => self.workers.decode.all(),
            Role::Prefill => self.workers.prefill.all(),
            Role::Store => &[],
        }
    }

    /// The strongest reason against placing a request on this worker, warm-up left out.
    pub(crate) fn steer(
        &self,
        (worker, load): (WorkerRank, &WorkerLoad),
        life: &Life,
        excluded: &[WorkerRank],
        now: Timestamp,
    ) -> Option<Steer> {
        if life.drains.by().is_some() {
            return Some(Steer::Draining);
        }
        if excluded.contains(&worker) {
            return Some(Steer::Excluded);
        }
        match life.breaker(now) {
            Breaker::Open => return Some(Steer::Broken),
            Breaker::HalfOpen if life.probe.is_some() => return Some(Steer::Broken),
            Breaker::Closed | Breaker::HalfOpen => {}
        }
        let still = || self.config.wedged_after <= now.since(life.progressed_at);
        (life.progress.is_some() && load.is_busy() && still()).then_some(Steer::Wedged)
    }

    /// Whether some worker has not served enough yet.
    pub(crate) fn any_cold(&self) -> bool {
        0 < self.cold
    }

    /// Whether a worker has served enough.
    pub(crate) fn is_warm(&self, life: &Life) -> bool {
        self.config.warm_up_requests <= life.served
    }

    /// Whether a worker is cold and this request, with nothing cached there, is not in its share.
    pub(crate) fn is_spared(&self, (worker, life): (WorkerRank, &Life), id: RequestId) -> bool {
        if self.is_warm(life) {
            return false;
        }
        let drawn = mix(Tie::of(self.seed ^ WARM_UP_DRAW, id).with(worker)) % 100;
        u64::from(self.config.warm_up_percent) <= drawn
    }

    /// Whether a worker drains.
    pub(crate) fn is_draining(&self, worker: WorkerRank) -> bool {
        self.workers.get(worker).is_some_and(|life| life.drains.by().is_some())
    }

    /// What is known of a worker, in words.
    pub(crate) fn snapshot(&self, worker: WorkerRank, now: Timestamp) -> LifeSnapshot {
        let life = self.workers.get(worker);
        LifeSnapshot {
            breaker: life.map_or(Breaker::Closed, |life| life.breaker(now)),
            wedged: life.is_some_and(|life| life.wedged),
            draining: life.and_then(|life| life.drains.by()),
            warming_up: life.is_some_and(|life| life.served < self.config.warm_up_requests),
        }
    }
}

impl Workers {
    fn get(&self, worker: WorkerRank) -> Option<&Life> {
        self.decode.get(worker).or_else(|| self.prefill.get(worker))
    }

    fn get_mut(&mut self, worker: WorkerRank) -> Option<&mut Life> {
        self.decode.get_mut(worker).or_else(|| self.prefill.get_mut(worker))
    }

    fn iter(&self) -> impl Iterator<Item = (WorkerRank, &Life)> {
        self.decode.iter().chain(self.prefill.iter())
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (WorkerRank, &mut Life)> {
        self.decode.iter_mut().chain(self.prefill.iter_mut())
    }
}

impl Life {
    fn new(now: Timestamp) -> Self {
        Self {
            failures: 0,
            openings: 0,
            open_until: None,
            probe: None,
            drains: Drains::default(),
            progress: None,
            progressed_at: now,
            wedged: false,
            served: 0,
        }
    }

    /// What is worth remembering of a worker that leaves: failures, breaker, what it served, an operator's drain. Its requests
    /// and its progress are those of a process that may be gone.
    fn left(self, now: Timestamp) -> Self {
        let drains = self.drains.remembered(now);
        Self { probe: None, drains, progress: None, wedged: false, ..self }
    }

    /// The same when it comes back.
    fn back(self, now: Timestamp) -> Self {
        Self { progressed_at: now, ..self.left(now) }
    }

    fn breaker(&self, now: Timestamp) -> Breaker {
        match self.open_until {
            None => Breaker::Closed,
            Some(until) if now < until => Breaker::Open,
            Some(_) => Breaker::HalfOpen,
        }
    }

    fn progressed(&mut self, now: Timestamp) {
        self.progressed_at = now;
        self.wedged = false;
    }
}
