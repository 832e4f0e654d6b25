//! The queue in front of the workers: bounded, fair, with classes and deadlines.
//!
//! Three levels decide who is next. *Class*: the most urgent one that has somebody waiting, but a class that was passed
//! `priority_passes_max` times in a row is next whatever waits above it, so none starves. *Tenant*: start-time fair
//! queueing (Goyal, Vin, Cheng, 1996) with weights. A tenant that comes in is put level with those that wait; serving it
//! moves it on by what was served, divided by its weight; the one least far is next. It has the fairness of deficit
//! round robin without its rounds, whose deficits would mean little here, where a request that finds no worker is passed
//! over. *Deadline*: of one tenant in one class the earliest is first, and of equal ones the oldest.
//!
//! A full queue takes a newcomer in the place of the least urgent request of the tenant that has most in it for its
//! weight. So one tenant may use all of it while it is alone, and nobody is kept out by it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use shared::{BLOCK_TOKENS, PlaceRequest, Priority, RequestId, TenantTag, Timestamp};

/// Number of classes.
const CLASSES: usize = Priority::ALL.len();
/// Units of virtual time per row at weight 1, so that dividing by weights keeps three decimals.
const ROW_UNITS: u128 = 1_000;

/// The bounds of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) waiting_max: usize,
    pub(crate) passes_max: u32,
    pub(crate) tenants_max: usize,
}

/// A request that waits for a worker.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) request: PlaceRequest,
    pub(crate) since: Timestamp,
    /// The state of the prefill side at which it was found to need a prefill worker that was not free.
    pub(crate) gated: Option<u64>,
}

/// The requests that wait.
#[derive(Debug)]
pub(crate) struct Queue {
    limits: QueueLimits,
    weights: BTreeMap<TenantTag, u32>,
    classes: [Class; CLASSES],
    spots: HashMap<RequestId, Spot>,
    deadlines: BTreeSet<(Timestamp, RequestId)>,
    tenants: BTreeMap<TenantTag, Tenant>,
    /// How far the tenant is that was served last. Never goes back.
    virtual_time: u128,
    turn_next: u64,
}

/// What becomes of a newcomer to a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Another request gives its place up.
    InsteadOf(RequestId, Surplus),
    /// There is none for it.
    None(Surplus),
}

/// Why a request does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surplus {
    /// Its tenant has this many, more than its share.
    OfTenant(usize),
    /// No tenant but its own waits: the queue as such is full.
    OfAll,
}

/// Earliest deadline, then order of arrival.
type Urgency = (Timestamp, u64);

#[derive(Debug, Default)]
struct Class {
    lines: BTreeMap<TenantTag, BTreeMap<Urgency, Waiting>>,
    /// The tenants that have a line, the one least far first.
    order: BTreeSet<(u128, TenantTag)>,
    /// Placements from more urgent classes since its own last one, or since somebody waits in it.
    passed: u32,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    class: usize,
    tenant: TenantTag,
    urgency: Urgency,
}

#[derive(Debug)]
struct Tenant {
    /// How far it is, in virtual time.
    at: u128,
    weight: u32,
    /// Its requests in the queue.
    waiting: usize,
}

impl Queue {
    /// An empty queue. Tenants not in `weights` have weight 1.
    pub(crate) fn new(limits: QueueLimits, weights: BTreeMap<TenantTag, u32>) -> Self {
        Self {
            limits,
            weights,
            classes: Default::default(),
            spots: HashMap::new(),
            deadlines: BTreeSet::new(),
            tenants: BTreeMap::new(),
            virtual_time: 0,
            turn_next: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.spots.len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.limits.waiting_max <= self.len()
    }

    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.spots.contains_key(&id)
    }

    /// Requests of each class.
    pub(crate) fn by_class(&self) -> [usize; CLASSES] {
        let mut counts = [0; CLASSES];
        for (count, class) in counts.iter_mut().zip(&self.classes) {
            *count = class.lines.values().map(BTreeMap::len).sum();
        }
        counts
    }

    /// Tenants remembered, and those of them that wait.
    pub(crate) fn tenants(&self) -> (usize, usize) {
        let waiting = self.tenants.values().filter(|tenant| 0 < tenant.waiting).count();
        (self.tenants.len(), waiting)
    }

    /// What becomes of a newcomer while the queue is full.
    pub(crate) fn room_for(&self, request: &PlaceRequest) -> Room {
        let newcomer = request.tenant.tag();
        let count = |tag: TenantTag, tenant: &Tenant| tenant.waiting + usize::from(tag == newcomer);
        let mut known = self.tenants.iter().filter(|(_, tenant)| 0 < tenant.waiting);
        let alone = known.all(|(&tag, _)| tag == newcomer);
        // The newcomer's own tenant is compared first, and keeps the part when others have just as much.
        let (mut most, mut most_has, mut most_weight) = match self.tenants.get(&newcomer) {
            Some(tenant) => (newcomer, count(newcomer, tenant), tenant.weight),
            None => (newcomer, 1, self.weight(newcomer)),
        };
        for (&tag, tenant) in &self.tenants {
            let has = count(tag, tenant);
            let (left, right) =
                (widen(has) * u64::from(most_weight), widen(most_has) * u64::from(tenant.weight));
            if right < left {
                (most, most_has, most_weight) = (tag, has, tenant.weight);
            }
        }
        let surplus = if alone {
            Surplus::OfAll
        } else {
            Surplus::OfTenant(most_has - usize::from(most == newcomer))
        };
        match self.least_urgent(most) {
            Some((class, id)) if most != newcomer || class_of(request.priority) < class => {
                Room::InsteadOf(id, surplus)
            }
            _ => Room::None(surplus),
        }
    }

    /// Adds a request.
    ///
    /// # Panics
    /// When the queue is full or holds the id already: the caller looked.
    pub(crate) fn push(&mut self, request: PlaceRequest, now: Timestamp) {
        assert!(!self.is_full(), "the caller checked for room");
        let (id, class, tag) = (request.id, class_of(request.priority), request.tenant.tag());
        let turn = self.turn_next;
        self.turn_next += 1;
        if let Some(deadline) = request.deadline {
            self.deadlines.insert((deadline, id));
        }
        let urgency = (request.deadline.unwrap_or(Timestamp(u64::MAX)), turn);
        let earlier = self.spots.insert(id, Spot { class, tenant: tag, urgency });
        assert!(earlier.is_none(), "the caller checked the id");
        let (virtual_time, weight) = (self.virtual_time, self.weight(tag));
        let tenant = self.tenants.entry(tag).or_insert(Tenant { at: 0, weight, waiting: 0 });
        if tenant.waiting == 0 {
            // What it did not use while it was away is no credit.
            tenant.at = tenant.at.max(virtual_time);
        }
        tenant.waiting += 1;
        let class = &mut self.classes[class];
        class.order.insert((tenant.at, tag));
        let line = class.lines.entry(tag).or_default();
        line.insert(urgency, Waiting { request, since: now, gated: None });
    }

    /// The requests in the order in which they are to be tried.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Waiting> {
        let classes = self.class_order().into_iter().map(|class| &self.classes[class]);
        classes.flat_map(|class| class.order.iter().flat_map(|(_, tag)| class.lines[tag].values()))
    }

    /// Takes a request out because it is placed: its tenant and its class had their turn.
    pub(crate) fn serve(&mut self, id: RequestId) -> Option<Waiting> {
        let spot = *self.spots.get(&id)?;
        let least =
            self.classes.iter().filter_map(|class| class.order.first().map(|&(at, _)| at)).min();
        let rows = self.classes[spot.class].lines[&spot.tenant][&spot.urgency].charge();
        let waiting = self.take(id)?;
        self.virtual_time = self.virtual_time.max(least.unwrap_or(0));
        let tenant = self.tenants.get_mut(&spot.tenant).expect("a tenant with requests is known");
        let (before, after) = (tenant.at, tenant.at + rows * ROW_UNITS / u128::from(tenant.weight));
        tenant.at = after;
        for class in &mut self.classes {
            if class.order.remove(&(before, spot.tenant)) {
                class.order.insert((after, spot.tenant));
            }
        }
        self.classes[spot.class].passed = 0;
        for class in &mut self.classes[spot.class + 1..] {
            class.passed = if class.lines.is_empty() { 0 } else { class.passed.saturating_add(1) };
        }
        self.forget_tenants();
        Some(waiting)
    }

    /// Takes a request out without its turn: it is over. None when it does not wait.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let waiting = self.take(id)?;
        self.forget_tenants();
        Some(waiting)
    }

    /// Takes the oldest request, whatever its turn.
    pub(crate) fn pop_any(&mut self) -> Option<Waiting> {
        let id = self.spots.iter().min_by_key(|(_, spot)| spot.urgency.1).map(|(&id, _)| id)?;
        self.remove(id)
    }

    /// Takes one request whose deadline passed.
    pub(crate) fn pop_expired(&mut self, now: Timestamp) -> Option<Waiting> {
        let &(deadline, id) = self.deadlines.first()?;
        if now < deadline { None } else { self.remove(id) }
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Notes that a request needs a prefill worker, and in which state of that side none was free.
    pub(crate) fn gate(&mut self, id: RequestId, state: u64) {
        let Some(spot) = self.spots.get(&id) else { return };
        let line = self.classes[spot.class].lines.get_mut(&spot.tenant);
        if let Some(waiting) = line.and_then(|line| line.get_mut(&spot.urgency)) {
            waiting.gated = Some(state);
        }
    }

    fn weight(&self, tag: TenantTag) -> u32 {
        self.weights.get(&tag).copied().unwrap_or(1)
    }

    /// The classes in the order in which they are tried: one that was passed too often, then the most urgent first.
    fn class_order(&self) -> [usize; CLASSES] {
        let passes_max = self.limits.passes_max;
        let due = |class: &Class| !class.lines.is_empty() && passes_max <= class.passed;
        let mut order = std::array::from_fn(|class| class);
        if let Some(first) = self.classes.iter().position(due) {
            order[..=first].rotate_right(1);
        }
        order
    }

    /// The request of a tenant that is to give way first, and its class.
    fn least_urgent(&self, tag: TenantTag) -> Option<(usize, RequestId)> {
        self.classes.iter().enumerate().rev().find_map(|(class, it)| {
            let (_, last) = it.lines.get(&tag)?.last_key_value()?;
            Some((class, last.request.id))
        })
    }

    fn take(&mut self, id: RequestId) -> Option<Waiting> {
        let Spot { class, tenant: tag, urgency } = self.spots.remove(&id)?;
        let tenant = self.tenants.get_mut(&tag).expect("a tenant with requests is known");
        tenant.waiting -= 1;
        let class = &mut self.classes[class];
        let line = class.lines.get_mut(&tag).expect("a request stands in its line");
        let waiting = line.remove(&urgency).expect("a request stands in its line");
        if line.is_empty() {
            class.lines.remove(&tag);
            class.order.remove(&(tenant.at, tag));
        }
        if class.lines.is_empty() {
            class.passed = 0;
        }
        if let Some(deadline) = waiting.request.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(waiting)
    }

    /// Keeps the number of tenants that do not wait within its bound: those least far go first, as they lose least.
    fn forget_tenants(&mut self) {
        let now = self.virtual_time;
        if self.tenants.len() <= self.limits.tenants_max {
            return;
        }
        self.tenants.retain(|_, tenant| 0 < tenant.waiting || now < tenant.at);
        while self.limits.tenants_max < self.tenants.len() {
            let idle = self.tenants.iter().filter(|(_, tenant)| tenant.waiting == 0);
            let Some(tag) = idle.min_by_key(|(_, tenant)| tenant.at).map(|(&tag, _)| tag) else {
                return;
            };
            self.tenants.remove(&tag);
        }
    }
}

impl Waiting {
    /// What serving it counts: the rows of its prompt, and those of a block for the place it takes.
    fn charge(&self) -> u128 {
        u128::from(self.request.prompt_tokens) + u128::from(BLOCK_TOKENS)
    }
}

fn class_of(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

fn widen(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
