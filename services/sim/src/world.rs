//! The cluster in virtual time: shipped routers, schedulers, pools and planner, driven by one queue of events.
//!
//! What is modelled here is only what stands between them: how long a step, a read and a message take, and what a fault
//! does. Every decision is the shipped code's.
//!
//! Invariants, asserted in every run: time is monotone; every request has exactly one outcome; a worker's reservations stay
//! within its pool; at the end every slot is free or cached. With [`checks`] on, after every event: slots are explained, and
//! no router expects a block of a worker that neither told of it nor was sent a request with it.

mod checks;
mod clients;
mod decodes;
mod exchange;
mod faults;
mod lookups;
mod pace;
mod prefills;
mod reports;
mod seats;
mod starts;

use std::collections::BTreeMap;

use router::{Action, RouterConfig};
use shared::{CacheQuestion, RequestId, Timestamp, WorkerEvent};

use crate::agenda::Agenda;
use crate::fault::{Fault, Member, drawn};
use crate::measure::Measures;
use crate::settings::{GEOMETRY, SettingError, Settings, ms, narrow, seconds, size, wide};
use crate::trace::{Bound, Trace};
use checks::Checks;
use clients::Client;
use decodes::{DecodeHappens, DecodeSide};
use exchange::{RouterNews, RouterSeat};
use prefills::{PrefillHappens, PrefillSide};
use seats::StoreSeat;

pub(crate) use seats::Seat;

/// What happens.
#[derive(Debug)]
pub(super) enum Event {
    /// The next request of the trace comes.
    Arrive,
    /// A request is ready for its router, or looks for a worker again.
    Retry(usize),
    /// A request's time is over.
    Late(usize),
    /// A placed request reaches its worker; the number of the placement tells whether it is still wanted.
    Reach {
        number: usize,
        leg: u32,
    },
    /// A router has something to do.
    Tick(usize),
    /// What a member says reaches the routers.
    Told(Vec<WorkerEvent>),
    /// What a router says reaches the others.
    Heard(usize, RouterNews),
    /// The routers hear that a member came or went.
    Joined(Member),
    Left(Member),
    /// Something at a decode worker, in this life of it.
    Decode(usize, u64, DecodeHappens),
    /// Something at a prefill worker, in this life of it.
    Prefill(usize, u64, PrefillHappens),
    /// Periodic reports and expiry.
    Upkeep,
    Fault(usize),
    FaultOver(usize),
}

/// The cluster.
pub(crate) struct World<'a> {
    pub(super) settings: &'a Settings,
    pub(super) trace: &'a Trace,
    pub(super) agenda: Agenda<Event>,
    routers: Vec<RouterSeat>,
    pub(super) decodes: Vec<DecodeSide>,
    pub(super) prefills: Vec<PrefillSide>,
    pub(super) stores: Vec<StoreSeat>,
    /// Requests that came and have no outcome.
    pub(super) clients: BTreeMap<usize, Client>,
    arrived: usize,
    pub(super) faults: Vec<Fault>,
    pub(super) measures: Measures,
    pub(super) checks: Option<Checks>,
    /// Members whose state may have changed in this event.
    touched: Vec<Member>,
    last_outcome: Timestamp,
    events: u64,
}

/// A run that is over.
pub(crate) struct Over {
    pub(crate) measures: Measures,
    /// When the last request had its outcome.
    pub(crate) end: Timestamp,
    pub(crate) events: u64,
    /// Busy time of all workers of a role, prefill first.
    pub(crate) busy_s: [f64; 2],
    /// The same of the least and the most busy decode worker.
    pub(crate) decode_busy_s: [f64; 2],
    pub(crate) faults: Vec<Fault>,
    pub(crate) index_entries: usize,
    pub(crate) index_dropped: u64,
    pub(crate) drives: [u64; 5],
    pub(crate) waited_refused: [u64; 3],
}

/// How much is asserted on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checking {
    /// What costs nothing.
    Light,
    /// Everything, after every event: for short runs.
    Full,
}

impl<'a> World<'a> {
    /// A cluster at rest, and the trace in front of it.
    pub(crate) fn new(
        settings: &'a Settings,
        (trace, bound): (&'a Trace, Bound),
        named: &[Fault],
        checking: Checking,
    ) -> Result<Self, SettingError> {
        settings.check()?;
        let length = scaled(trace.length(), settings.speed);
        let mut faults = named.to_vec();
        faults.extend(drawn(settings, length));
        if !faults.iter().all(|fault| fault.fits(settings)) {
            return Err(SettingError::Contradiction(
                "a fault names a member the fleet does not have",
            ));
        }
        let blocks_max = bound.blocks + 1_024;
        let mut world = Self {
            settings,
            trace,
            agenda: Agenda::new(),
            routers: routers(settings)?,
            decodes: (0..size(settings.decode))
                .map(|place| DecodeSide::new(place, settings, blocks_max))
                .collect(),
            prefills: (0..size(settings.prefill))
                .map(|place| PrefillSide::new(place, settings, blocks_max))
                .collect(),
            stores: (0..size(settings.stores))
                .map(|place| StoreSeat::new(place, settings, blocks_max))
                .collect(),
            clients: BTreeMap::new(),
            arrived: 0,
            faults,
            measures: Measures::new(length),
            checks: (checking == Checking::Full).then(Checks::default),
            touched: Vec::new(),
            last_outcome: Timestamp(0),
            events: 0,
        };
        for member in world.members() {
            world.agenda.enter(std::time::Duration::ZERO, Event::Joined(member));
            world.tell_state(member, &CacheQuestion::Whole);
        }
        for place in 0..world.faults.len() {
            let at = world.faults[place].at;
            world.agenda.enter_at(at, Event::Fault(place));
        }
        world.agenda.enter(world.report_every(), Event::Upkeep);
        world.enter_arrival();
        Ok(world)
    }

    /// Runs to the last outcome.
    pub(crate) fn run(mut self) -> Over {
        while !self.is_over() {
            let event = self.agenda.take().expect("who waits for something is on the agenda");
            self.events += 1;
            self.take(event);
            self.publish_touched();
            if self.checks.is_some() {
                self.check();
            }
        }
        self.check_end();
        self.over()
    }

    fn is_over(&self) -> bool {
        self.arrived == self.trace.requests.len() && self.clients.is_empty()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Arrive => self.arrive(),
            Event::Retry(number) => self.retry(number),
            Event::Late(number) => self.late(number),
            Event::Reach { number, leg } => self.reach(number, leg),
            Event::Tick(router) => self.tick(router),
            Event::Told(events) => self.told(&events),
            Event::Heard(from, news) => self.heard(from, &news),
            Event::Joined(member) => self.joined(member),
            Event::Left(member) => self.left(member),
            Event::Decode(place, life, happens) => self.decode_happens(place, life, happens),
            Event::Prefill(place, life, happens) => self.prefill_happens(place, life, happens),
            Event::Upkeep => self.upkeep(),
            Event::Fault(place) => self.fault(place),
            Event::FaultOver(place) => self.fault_over(place),
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.agenda.now()
    }

    fn enter_arrival(&mut self) {
        if let Some(request) = self.trace.requests.get(self.arrived) {
            let at = scaled(request.at, self.settings.speed);
            self.agenda.enter_at(at, Event::Arrive);
        }
    }

    fn arrive(&mut self) {
        let number = self.arrived;
        self.arrived += 1;
        let client = Client::new(number, self);
        self.measures.slice(client.arrived).arrived += 1;
        let tokens = f64::from(client.prompt_tokens);
        self.clients.insert(number, client);
        if 0.0 < self.settings.deadline_s {
            self.agenda.enter(seconds(self.settings.deadline_s), Event::Late(number));
        }
        match self.settings.edge_tokens_per_s {
            0.0 => self.submit(number),
            per_s => self.agenda.enter(seconds(tokens / per_s), Event::Retry(number)),
        }
        self.enter_arrival();
    }

    fn carry_out(&mut self, router: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Place { id, placement } => {
                    let number = number_of(id);
                    if let Some(checks) = &mut self.checks {
                        let client = &self.clients[&number];
                        checks.placed(&client.names, &placement);
                    }
                    self.tell_placed(router, id);
                    self.placed(number, &placement);
                }
                Action::Refuse { id, error } => self.refused(number_of(id), &error),
                Action::Resync { worker, question } => {
                    self.measures.resyncs += 1;
                    self.tell_state(seats::member_of(worker), &question);
                }
            }
        }
        let seat = &mut self.routers[router];
        let Some(due) = seat.router.next_deadline() else { return };
        if seat.tick_at.is_none_or(|at| due < at) {
            seat.tick_at = Some(due);
            self.agenda.enter_at(due, Event::Tick(router));
        }
    }

    fn over(mut self) -> Over {
        let now = self.now();
        let snapshots: Vec<_> = self.routers.iter().map(|seat| seat.router.snapshot(now)).collect();
        let mut drives = [0; 5];
        for store in &self.stores {
            let late = store.store.late;
            let counts = store.store.drive.as_ref().map(|drive| drive.counts).unwrap_or_default();
            let found =
                [counts.written, counts.written_again, counts.refused, counts.expired, late];
            drives.iter_mut().zip(found).for_each(|(sum, count)| *sum += count);
        }
        let refused = snapshots.iter().map(|snapshot| snapshot.refused);
        let waited_refused = refused.fold([0; 3], |sum, refused| {
            [sum[0] + refused.overloaded, sum[1] + refused.deadline, sum[2] + refused.no_worker]
        });
        let busy = |seats: &mut dyn Iterator<Item = &Seat>| {
            seats.map(|seat| seat.busy.as_secs_f64()).sum::<f64>()
        };
        let busy_s = [
            busy(&mut self.prefills.iter().map(|side| &side.seat)),
            busy(&mut self.decodes.iter().map(|side| &side.seat)),
        ];
        let each = self.decodes.iter().map(|side| side.seat.busy.as_secs_f64());
        let [least, most] = [each.clone().fold(f64::MAX, f64::min), each.fold(0.0, f64::max)];
        Over {
            busy_s,
            decode_busy_s: [least, most],
            end: self.last_outcome,
            events: self.events,
            faults: std::mem::take(&mut self.faults),
            index_entries: snapshots
                .iter()
                .map(|snapshot| snapshot.index_entries)
                .max()
                .unwrap_or(0),
            index_dropped: snapshots.iter().map(|it| it.index.blocks_dropped_full).sum(),
            drives,
            waited_refused,
            measures: self.measures,
        }
    }
}

/// Time of a trace that is replayed faster.
fn scaled(at: Timestamp, speed: f64) -> Timestamp {
    Timestamp(0).after(at.since(Timestamp(0)).div_f64(speed))
}

pub(super) fn id_of(number: usize) -> RequestId {
    RequestId(u128::from(wide(number)))
}

fn number_of(id: RequestId) -> usize {
    usize::try_from(id.0).expect("ids are numbers of requests")
}

fn routers(settings: &Settings) -> Result<Vec<RouterSeat>, SettingError> {
    let one = |number: u64| {
        let mut config = RouterConfig::with_defaults(GEOMETRY);
        config.seed = settings.seed.wrapping_add(number);
        config.index_entries_max = size(settings.index_entries);
        config.admission.waiting_max = size(settings.waiting);
        config.admission.decode_running_max = narrow(settings.decode_running);
        config.admission.prefill_running_max = narrow(settings.prefill_placed);
        let rate = |rows: f64| narrow(seconds(rows).as_secs()).max(1);
        config.cost.prefill_rows_per_second = rate(settings.encoder_rows_per_s);
        config.cost.decode_rows_per_second = rate(settings.tail_rows_per_s);
        config.cost.restore_host = ms(settings.restore_host_ms);
        config.cost.restore_disk = ms(settings.restore_disk_ms);
        config.cost.restore_peer = ms(settings.restore_peer_ms);
        config.cost.handoff = ms(settings.handoff_ms);
        config.cost.direct_rows_max = narrow(settings.direct_rows);
        config.policy = settings.policy;
        config.cost.tie_margin = ms(settings.tie_margin_ms);
        config.records.decisions_max = 0;
        config.records.candidates_max = 1;
        let broken =
            |_| SettingError::Contradiction("the router refuses these settings; see its ranges");
        RouterSeat::new(config).map_err(broken)
    };
    (0..settings.routers).map(one).collect()
}

impl World<'_> {
    fn joined(&mut self, member: Member) {
        let (rank, role) = (seats::rank(member), seats::role(member));
        for router in 0..self.routers.len() {
            self.ask_router(router, |router, now| {
                router.worker_joined(rank, role, now).expect("a router has room for 192 members")
            });
        }
    }

    fn left(&mut self, member: Member) {
        let rank = seats::rank(member);
        if let Some(checks) = &mut self.checks {
            checks.left(rank);
        }
        for router in 0..self.routers.len() {
            self.ask_router(router, |router, now| router.worker_left(rank, now));
        }
    }

    fn told(&mut self, events: &[WorkerEvent]) {
        for event in events {
            if let (Some(checks), WorkerEvent::Cache(event)) = (&mut self.checks, event) {
                checks.told(event);
            }
            for router in 0..self.routers.len() {
                self.ask_router(router, |router, now| router.worker_event(event, now));
            }
        }
    }

    /// The members of the fleet, in the order of their names.
    fn members(&self) -> Vec<Member> {
        let decodes = (0..self.decodes.len()).map(Member::Decode);
        let prefills = (0..self.prefills.len()).map(Member::Prefill);
        let stores = (0..self.stores.len()).map(Member::Store);
        decodes.chain(prefills).chain(stores).collect()
    }

    /// Marks a member as changed in this event.
    pub(super) fn touch(&mut self, member: Member) {
        if !self.touched.contains(&member) {
            self.touched.push(member);
        }
    }

    fn publish_touched(&mut self) {
        for member in std::mem::take(&mut self.touched) {
            self.publish(member);
        }
    }

    pub(super) fn outcome_at(&mut self, now: Timestamp) {
        self.last_outcome = self.last_outcome.max(now);
    }

    pub(super) fn router_count(&self) -> usize {
        self.routers.len()
    }
}
