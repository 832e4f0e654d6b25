//! The workers of one role, parted by what is known about them.

use shared::{PlaceRequest, Tier};

use crate::index::PrefixMatches;
use crate::life::Steer;
use crate::loads::Standing;
use crate::place::Facts;
use crate::records::Steered;
use crate::role::Role;

/// The parts. Their memory serves one decision after the other.
#[derive(Debug, Default)]
pub(crate) struct Field {
    /// Those that may be chosen, in the order of their names.
    pub(crate) open: Vec<Open>,
    pub(crate) steered: Vec<Steered>,
    /// Whether those that may be chosen all have a reason against them.
    pub(crate) overridden: bool,
    /// Whether any worker of the role takes requests.
    pub(crate) exists: bool,
    doubtful: Vec<(Open, Steer)>,
}

/// A worker that may be chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// Its number among the workers of its role, in the order of their names.
    pub(crate) number: usize,
    pub(crate) standing: Standing,
}

impl Field {
    /// Parts the workers of a role. Those that drain are out. Of the rest those stay that have nothing against them; when
    /// there is no such worker, those with the weakest reason: a worker that may fail is better than none. Of those that stay,
    /// the ones at their bound are left out.
    pub(crate) fn part(&mut self, role: Role, request: &PlaceRequest, facts: Facts<'_>) {
        let Self { open, steered, overridden, exists, doubtful } = self;
        open.clear();
        steered.clear();
        doubtful.clear();
        let loads = facts.loads.of_role(role);
        let workers = loads.iter().zip(facts.lives.of_role(role));
        for (number, ((worker, load), (_, life))) in workers.enumerate() {
            let worker = *worker;
            let it = || Open { number, standing: facts.loads.standing(load, facts.now) };
            match facts.lives.steer((worker, load), life, &request.excluded, facts.now) {
                None => open.push(it()),
                Some(why @ Steer::Draining) => steered.push(Steered { worker, why }),
                Some(why) => doubtful.push((it(), why)),
            }
        }
        *exists = !open.is_empty() || !doubtful.is_empty();
        *overridden = open.is_empty() && !doubtful.is_empty();
        let weakest = doubtful.iter().map(|(_, why)| *why).min();
        for &(it, why) in &*doubtful {
            if *overridden && Some(why) == weakest {
                open.push(it);
            } else {
                steered.push(Steered { worker: loads[it.number].0, why });
            }
        }
        let bounds = &facts.config.admission;
        open.retain(|it| match role {
            Role::Decode => loads[it.number].1.placed() < bounds.decode_running_max,
            Role::Prefill | Role::Store => it.standing.requests < bounds.prefill_running_max,
        });
    }

    /// Sets new workers aside that hold nothing of the prompt and had their share, while a warm one has room. In a fleet
    /// that has just begun all are alike.
    pub(crate) fn spare_cold(
        &mut self,
        role: Role,
        request: &PlaceRequest,
        matches: &PrefixMatches,
        facts: Facts<'_>,
    ) {
        let lives = facts.lives;
        if !lives.any_cold() {
            return;
        }
        let (loads, of_role) = (facts.loads.of_role(role), lives.of_role(role));
        let life = |it: &Open| &of_role[it.number].1;
        if !self.open.iter().any(|it| lives.is_warm(life(it))) {
            return;
        }
        let Self { open, steered, .. } = self;
        open.retain(|it| {
            let worker = loads[it.number].0;
            let spared = lives.is_spared((worker, life(it)), request.id)
                && matches.of(worker).leading.of(Tier::Device) == 0;
            if spared {
                steered.push(Steered { worker, why: Steer::WarmingUp });
            }
            !spared
        });
    }
}
