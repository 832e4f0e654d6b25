//! What is known of workers that left, for their return: a worker whose link flaps is neither new nor sound.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shared::{Timestamp, WorkerRank};

use super::Life;
use crate::role::Role;

/// Most workers that are remembered; the one that left first makes room. As many as the default of `workers_max`.
const REMEMBERED_MAX: usize = 512;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Memory {
    keep: Duration,
    lives: BTreeMap<WorkerRank, (Role, Life)>,
    /// Who left when, oldest first. A worker that came back is not in `lives`.
    left: VecDeque<(Timestamp, WorkerRank)>,
}

impl Memory {
    /// Nobody yet; each is kept for so long.
    pub(super) fn new(keep: Duration) -> Self {
        Self { keep, lives: BTreeMap::new(), left: VecDeque::new() }
    }

    /// Remembers a worker that leaves.
    pub(super) fn put(&mut self, worker: WorkerRank, role: Role, life: Life, now: Timestamp) {
        self.forget(now);
        if self.keep.is_zero() {
            return;
        }
        while REMEMBERED_MAX <= self.left.len() {
            self.pop();
        }
        self.lives.insert(worker, (role, life.left(now)));
        self.left.push_back((now, worker));
    }

    /// Takes out what is known of a worker that joins in this role.
    pub(super) fn take(&mut self, worker: WorkerRank, role: Role, now: Timestamp) -> Option<Life> {
        self.forget(now);
        let (before, life) = self.lives.remove(&worker)?;
        self.left.retain(|(_, left)| *left != worker);
        (before == role).then(|| life.back(now))
    }

    /// A worker that is away.
    pub(super) fn get_mut(&mut self, worker: WorkerRank) -> Option<&mut Life> {
        self.lives.get_mut(&worker).map(|(_, life)| life)
    }

    /// Workers that are remembered now.
    pub(super) fn len(&self) -> usize {
        self.lives.len()
    }

    fn forget(&mut self, now: Timestamp) {
        while self.left.front().is_some_and(|(left, _)| left.after(self.keep) <= now) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((_, worker)) = self.left.pop_front() {
            self.lives.remove(&worker);
        }
    }
}
