//! A map from workers to something of each, read from one end to the other with every decision: in one piece, in the order of
//! their names. Members come and go seldom, and each of that costs a move of what lies behind it.

use shared::WorkerRank;

/// The map.
#[derive(Debug)]
pub(crate) struct Ranked<T>(Vec<(WorkerRank, T)>);

impl<T> Default for Ranked<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Ranked<T> {
    pub(crate) fn get(&self, worker: WorkerRank) -> Option<&T> {
        self.find(worker).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn get_mut(&mut self, worker: WorkerRank) -> Option<&mut T> {
        self.find(worker).ok().map(|at| &mut self.0[at].1)
    }

    /// Takes something in the place of what was there, which is given back.
    pub(crate) fn insert(&mut self, worker: WorkerRank, value: T) -> Option<T> {
        match self.find(worker) {
            Ok(at) => return Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => self.0.insert(at, (worker, value)),
        }
        None
    }

    /// All of it, in the order of the names.
    pub(crate) fn all(&self) -> &[(WorkerRank, T)] {
        &self.0
    }

    pub(crate) fn remove(&mut self, worker: WorkerRank) -> Option<T> {
        self.find(worker).ok().map(|at| self.0.remove(at).1)
    }

    /// In the order of the names, as all that follow.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WorkerRank, &T)> {
        self.0.iter().map(|(worker, value)| (*worker, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (WorkerRank, &mut T)> {
        self.0.iter_mut().map(|(worker, value)| (*worker, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    fn find(&self, worker: WorkerRank) -> Result<usize, usize> {
        self.0.binary_search_by_key(&worker, |&(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use super::Ranked;
    use crate::testing::rank;

    #[test]
    fn workers_are_found_and_stay_in_the_order_of_their_names() {
        let mut ranked = Ranked::default();
        for worker in [5, 1, 9, 3, 1] {
            ranked.insert(rank(worker), worker * 10);
        }
        assert_eq!(ranked.remove(rank(5)), Some(50));
        assert_eq!((ranked.remove(rank(5)), ranked.get(rank(4))), (None, None));
        *ranked.get_mut(rank(9)).expect("there") += 1;
        ranked.values_mut().for_each(|value| *value += 1);
        ranked.iter_mut().for_each(|(worker, value)| *value += u32::from(worker == rank(3)));
        let all: Vec<_> = ranked.iter().map(|(worker, &value)| (worker, value)).collect();
        assert_eq!(all, [(rank(1), 11), (rank(3), 32), (rank(9), 92)]);
        assert_eq!(ranked.values().sum::<u32>(), 135);
    }
}
