//! From a pinned prefix to the first row: the final plan, and the state of the sequence.

use engine::{Floors, Sequence};
use kvstore::{
    SealedSlot, StartPlan, StartRecord, WindowCandidate, WindowPlan, fate_runs, replay_is_exact,
};
use shared::{Tier, WindowSource};

use super::job::{Computing, Job, Stage, blocks, tokens};
use super::turn::Loop;
use crate::scheduler::PrefillId;

/// The window objects of a request's prefix in the own pool, pinned.
pub(super) struct OwnWindows {
    pub(super) candidates: Vec<WindowCandidate>,
    pinned: Vec<SealedSlot>,
}

/// How a request computes: the plan, with what the object at S needs beyond it.
struct Start {
    first_row: u32,
    /// No global KV is written below it.
    write_floor: u32,
    window_floor: u32,
    replayed_tokens: u32,
    window_source: WindowSource,
    exact: bool,
    /// Where the imported window object ends.
    import_at: Option<u32>,
}

impl Loop {
    /// The window objects in the own pool that can pay off and end at `to` or earlier.
    pub(super) fn own_windows(&self, job: &Job, to: u32) -> OwnWindows {
        let mut own = OwnWindows { candidates: Vec::new(), pinned: Vec::new() };
        for index in self.first_window(job)..blocks(to) {
            if let Some(slot) = self.windows.lookup(job.request.names[index]) {
                let exact = slot.exact();
                own.candidates.push(WindowCandidate {
                    at: tokens(index + 1),
                    tier: Tier::Device,
                    exact,
                });
                own.pinned.push(slot);
            }
        }
        own
    }

    /// Plans with what is here now and makes the sequence ready. Does nothing while slots are missing because reads that
    /// were given up have not come back; it is called again then.
    pub(super) fn begin(&mut self, id: PrefillId) {
        if !self.complete_reservation(id) {
            return;
        }
        let job = &self.jobs[&id];
        let own = self.own_windows(job, job.run_end());
        let plan = self.plan(job, job.run.len(), &own.candidates);
        let start = self.start_of(job, &plan);
        let sequence = self.sequence(job, &start, &own);
        let job = self.jobs.get_mut(&id).expect("looked up above");
        job.cached_blocks = job.run.len();
        self.records.keep(StartRecord {
            request: job.request.id,
            start: plan.start,
            window_source: start.window_source,
            replayed_rows: start.replayed_tokens,
            exact: start.exact,
            runs: fate_runs(&job.fates),
        });
        let rows = start.first_row..job.request.to;
        tracing::debug!(
            request = %job.request.id, ?rows, write_floor = start.write_floor,
            window_source = start.window_source.as_str(), exact = start.exact, "prefill computes"
        );
        job.stage = Stage::Computing(Box::new(Computing {
            sequence,
            floors: Floors { window: start.window_floor, write: start.write_floor, decoder: 0 },
            rows: Vec::new(),
            exact: start.exact,
            replayed_tokens: start.replayed_tokens,
            window_source: start.window_source,
        }));
        let nothing_to_compute = rows.is_empty();
        self.scheduler.start(id, rows);
        if nothing_to_compute {
            self.finish(id);
        }
    }

    /// Replaces slots that are still inside given-up reads. False while there are none.
    fn complete_reservation(&mut self, id: PrefillId) -> bool {
        let job = self.jobs.get_mut(&id).expect("only a known request begins");
        if job.window.is_none() {
            // Another request may have published it in the meantime.
            job.window = self.windows.lookup(job.last_name());
        }
        if job.window.is_some() {
            job.window_slot = None;
        } else if job.window_slot.is_none() {
            let Ok(mut slots) = self.windows.reserve(1) else { return false };
            job.window_slot = slots.pop();
        }
        let missing = job.block_count() - job.run.len() - job.spare.len();
        let Ok(slots) = self.pool.reserve(missing) else { return false };
        job.spare.extend(slots);
        true
    }

    fn start_of(&self, job: &Job, plan: &StartPlan) -> Start {
        assert_eq!(plan.start, job.run_end(), "a prefill starts behind what it has");
        let exact_blocks = job.run.iter().all(SealedSlot::exact);
        let mut start = Start {
            first_row: plan.first_row(),
            write_floor: plan.start,
            window_floor: plan.window_floor(),
            replayed_tokens: plan.replayed_rows(),
            window_source: plan.window_source(),
            exact: plan.windows_exact && exact_blocks,
            import_at: None,
        };
        match plan.window {
            WindowPlan::Object { at, .. } | WindowPlan::Recompute { from: at, .. } => {
                start.import_at = (start.first_row < job.request.to).then_some(at);
            }
            WindowPlan::Replay { .. } if plan.start == job.request.to => {
                let (rows, exact) = self.replay_for_object(job, start.replayed_tokens);
                start.first_row = plan.start - rows;
                start.window_floor = start.first_row;
                start.replayed_tokens = rows;
                start.window_source = WindowSource::Replayed(rows);
                start.exact = exact && exact_blocks;
            }
            WindowPlan::Replay { .. } | WindowPlan::Cold | WindowPlan::FromPrefill => {}
        }
        start
    }

    /// Rows to replay when all of `[0, S)` is cached and only the window object at S is wanted: its W - 1 entries must be
    /// there, however few rows the operator chose. Also whether all of it is exact.
    fn replay_for_object(&self, job: &Job, rows: u32) -> (u32, bool) {
        let geometry = self.engine.geometry();
        let to = job.request.to;
        let rows = rows.max(geometry.window - 1).min(to);
        (rows, replay_is_exact(geometry, to, rows))
    }

    fn sequence(&self, job: &Job, start: &Start, own: &OwnWindows) -> Sequence {
        let mut sequence = self.engine.sequence(&job.request.ids);
        for slot in &job.run {
            sequence.push_block(slot.index());
        }
        for slot in &job.spare {
            sequence.push_block(slot.index());
        }
        match start.import_at {
            Some(at) => {
                let index = own.candidates.iter().position(|window| window.at == at);
                let slot = &own.pinned[index.expect("the plan uses what it was offered")];
                slot.read(&mut |bytes| sequence.import_window(at, bytes));
            }
            None if 0 < start.first_row && start.first_row < job.request.to => {
                sequence.begin(start.first_row);
            }
            None => {}
        }
        assert!(
            start.first_row == job.request.to || sequence.processed() == start.first_row,
            "the sequence stands at its first row"
        );
        sequence
    }
}
