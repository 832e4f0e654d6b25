//! Faults begin and end.

use shared::CacheQuestion;

use super::{Event, World};
use crate::fault::{FaultKind, Member};
use crate::settings::ms;

impl World<'_> {
    pub(super) fn fault(&mut self, place: usize) {
        let fault = self.faults[place];
        if let Some(lasts) = fault.lasts {
            // A process is not back before the routers know that it was gone: its broken links told them.
            let told = ms(self.settings.event_ms).saturating_mul(2);
            let lasts = if fault.kind == FaultKind::Kill { lasts.max(told) } else { lasts };
            self.agenda.enter(lasts, Event::FaultOver(place));
        }
        match (fault.kind, fault.member) {
            (FaultKind::Kill, member) => self.kill(member),
            (FaultKind::Freeze, Member::Decode(worker)) => {
                let now = self.now();
                let seat = &mut self.decodes[worker].seat;
                freeze(seat, now, fault.lasts);
            }
            (FaultKind::Freeze, Member::Prefill(worker)) => {
                let now = self.now();
                let seat = &mut self.prefills[worker].seat;
                freeze(seat, now, fault.lasts);
            }
            (FaultKind::SlowDisk(times), Member::Store(store)) => {
                self.stores[store].store.slow = times;
            }
            (FaultKind::Partition, Member::Store(store)) => self.stores[store].is_cut_off = true,
            (FaultKind::Partition, Member::Router(router)) => self.part_router(router),
            (kind, member) => unreachable!("{kind:?} of {member} is refused when it is read"),
        }
    }

    pub(super) fn fault_over(&mut self, place: usize) {
        let fault = self.faults[place];
        match (fault.kind, fault.member) {
            (FaultKind::Kill, member) => self.revive(member),
            // It thaws by itself.
            (FaultKind::Freeze, _) => {}
            (FaultKind::SlowDisk(_), Member::Store(store)) => self.stores[store].store.slow = 1.0,
            (FaultKind::Partition, Member::Store(store)) => {
                self.stores[store].is_cut_off = false;
                self.touch(fault.member);
            }
            (FaultKind::Partition, Member::Router(router)) => self.join_router(router),
            (kind, member) => unreachable!("{kind:?} of {member} is refused when it is read"),
        }
    }

    fn kill(&mut self, member: Member) {
        match member {
            Member::Decode(place) if self.decodes[place].seat.alive => {
                self.decodes[place].seat.alive = false;
                let jobs = std::mem::take(&mut self.decodes[place].jobs);
                let mut lost = Vec::with_capacity(jobs.len());
                for mut job in jobs.into_values() {
                    if let Some(start) = &mut job.start {
                        self.end_visit(start);
                    }
                    lost.push(job.number);
                }
                self.decodes[place].restart(place);
                lost.into_iter().for_each(|number| self.lost(number));
            }
            Member::Prefill(place) if self.prefills[place].seat.alive => {
                self.prefills[place].seat.alive = false;
                let jobs = std::mem::take(&mut self.prefills[place].jobs);
                let visitors: Vec<_> = jobs.into_values().map(|job| job.visitor).collect();
                self.prefills[place].restart(place);
                for visitor in visitors {
                    self.visit_lost(visitor.decode, visitor.key);
                }
            }
            Member::Store(place) if self.stores[place].seat.alive => {
                self.stores[place].seat.alive = false;
                self.stores[place].store.restart();
            }
            // It is dead already.
            Member::Decode(_) | Member::Prefill(_) | Member::Store(_) => return,
            Member::Router(_) => unreachable!("see the reader of faults"),
        }
        self.agenda.enter(ms(self.settings.event_ms), Event::Left(member));
    }

    fn revive(&mut self, member: Member) {
        let seat = match member {
            Member::Decode(place) => &mut self.decodes[place].seat,
            Member::Prefill(place) => &mut self.prefills[place].seat,
            Member::Store(place) => &mut self.stores[place].seat,
            Member::Router(_) => unreachable!("see the reader of faults"),
        };
        if seat.alive {
            return;
        }
        seat.begin_again();
        self.agenda.enter(ms(self.settings.event_ms), Event::Joined(member));
        self.tell_state(member, &CacheQuestion::Whole);
    }
}

fn freeze(seat: &mut super::Seat, now: shared::Timestamp, lasts: Option<std::time::Duration>) {
    let lasts = lasts.expect("a freeze ends: see the reader of faults");
    seat.frozen_at = now;
    seat.frozen_until = seat.frozen_until.max(now.after(lasts));
}
