//! What members tell the routers: changes of what they hold, and their load.

use std::time::Duration;

use shared::{CacheChange, CacheEvent, CacheQuestion, LoadReport, WorkerEvent};

use super::seats::rank;
use super::{Event, World};
use crate::fault::Member;
use crate::settings::ms;

impl World<'_> {
    pub(super) fn report_every(&self) -> Duration {
        ms(self.settings.report_ms)
    }

    /// Periodic work: loads of workers that are quiet, what is over on drives.
    pub(super) fn upkeep(&mut self) {
        let now = self.now();
        for member in self.members() {
            if let Member::Store(place) = member {
                self.stores[place].store.expire(now);
            }
            self.touch(member);
        }
        self.routers_upkeep();
        let waiting = self.clients.values().filter(|client| client.is_waiting()).count();
        self.measures.waiting_most = self.measures.waiting_most.max(waiting);
        self.agenda.enter(self.report_every(), Event::Upkeep);
    }

    /// Tells what changed at a member since it was last told.
    pub(super) fn publish(&mut self, member: Member) {
        let now = self.now();
        let every = self.report_every();
        let due = |last: &Option<(shared::Timestamp, LoadReport)>, load: &LoadReport| {
            last.as_ref().is_none_or(|(at, last)| {
                (last.running, last.waiting) != (load.running, load.waiting)
                    || every <= now.since(*at)
            })
        };
        let (changes, load) = match member {
            Member::Decode(place) => {
                let side = &mut self.decodes[place];
                if !side.seat.alive || side.seat.is_frozen(now) {
                    return;
                }
                let load = side.load();
                let load = due(&side.reported, &load).then_some(load);
                side.reported = load.map(|load| (now, load)).or_else(|| side.reported.take());
                (side.pool.drain_changes(), load)
            }
            Member::Prefill(place) => {
                let side = &mut self.prefills[place];
                if !side.seat.alive || side.seat.is_frozen(now) {
                    return;
                }
                let load = side.load();
                let load = due(&side.reported, &load).then_some(load);
                side.reported = load.map(|load| (now, load)).or_else(|| side.reported.take());
                (side.pool.drain_changes(), load)
            }
            Member::Store(place) if self.stores[place].seat.alive => {
                (self.stores[place].store.changes(), None)
            }
            Member::Store(_) | Member::Router(_) => return,
        };
        self.tell(member, changes, load);
    }

    /// Tells everything a member holds.
    pub(super) fn tell_state(&mut self, member: Member, question: &CacheQuestion) {
        let changes = match member {
            Member::Decode(place) if self.decodes[place].seat.alive => {
                self.decodes[place].pool.answer(question)
            }
            Member::Prefill(place) if self.prefills[place].seat.alive => {
                self.prefills[place].pool.answer(question)
            }
            Member::Store(place) if self.stores[place].seat.alive => {
                self.stores[place].store.state()
            }
            Member::Decode(_) | Member::Prefill(_) | Member::Store(_) | Member::Router(_) => return,
        };
        self.tell(member, changes, None);
    }

    fn tell(&mut self, member: Member, changes: Vec<CacheChange>, load: Option<LoadReport>) {
        let worker = rank(member);
        let (seat, is_cut_off) = match member {
            Member::Decode(place) => (&mut self.decodes[place].seat, false),
            Member::Prefill(place) => (&mut self.prefills[place].seat, false),
            Member::Store(place) => {
                let store = &mut self.stores[place];
                (&mut store.seat, store.is_cut_off)
            }
            Member::Router(_) => unreachable!("routers hold nothing"),
        };
        let mut events = Vec::with_capacity(changes.len() + 1);
        for change in changes {
            let (incarnation, sequence) = (seat.life, seat.sequence);
            events.push(WorkerEvent::Cache(CacheEvent { worker, incarnation, sequence, change }));
            seat.sequence += 1;
        }
        events.extend(load.map(|report| WorkerEvent::Load { worker, report }));
        // What nobody hears leaves a gap in the sequence.
        if !events.is_empty() && !is_cut_off {
            self.agenda.enter(ms(self.settings.event_ms), Event::Told(events));
        }
    }
}
