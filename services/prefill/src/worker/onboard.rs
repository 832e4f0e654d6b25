//! From a submission to a pinned prefix: checks, the reservation of `[0, S)`, and fetching what is cached.

use std::collections::VecDeque;

use kvstore::{
    BlockFate, OwnedSlot, ReadDone, ReadRequest, SealedSlot, StartPlan, StartQuery, StartRole,
    WindowCandidate, WindowPlan, check_names, plan_start, useful_window_floor,
};
use shared::{
    BLOCK_TOKENS, BlockName, Descriptor, Flow, Found, Grouped, LocateEvent, Miss, ObjectKey,
    ObjectKind, PrefillEvent, PrefillRequest, ServeError, Ticket, Tier, Timestamp, group_of,
};

use super::job::{Job, Locating, Reading, Stage, blocks, tokens};
use super::turn::Loop;
use crate::mailbox::{Command, Submission, replies};
use crate::scheduler::PrefillId;

impl Loop {
    /// Queues a request, or refuses it.
    pub(super) fn receive(&mut self, submission: Submission) {
        let Submission { id, request, mut sink } = submission;
        let refusal = self.check(&request).and_then(|()| self.queue(id, &request));
        if let Err(error) = refusal {
            self.stats.requests_refused += 1;
            tracing::info!(request = %request.id, %error, "prefill refused");
            // The request is over; a closed sink has nothing left to hear.
            let _: Flow = sink.emit(PrefillEvent::Failed(error));
            return;
        }
        self.stats.requests_accepted += 1;
        self.jobs.insert(id, Job::new(request, sink));
    }

    fn check(&mut self, request: &PrefillRequest) -> Result<(), ServeError> {
        let PrefillRequest { ids, names, root, from, to, .. } = request;
        let aligned = to.is_multiple_of(BLOCK_TOKENS) && from.is_multiple_of(BLOCK_TOKENS);
        if !aligned || *to == 0 || to < from || u32::try_from(ids.len()) != Ok(*to) {
            let message = format!("prefill was asked for [{from}, {to}) of {} tokens", ids.len());
            return Err(ServeError::Internal { message });
        }
        let vocab = self.engine.config().vocab;
        if let Some(id) = ids.iter().find(|id| vocab <= id.index()) {
            let message = format!("token {id} is outside the vocabulary of {vocab} entries");
            return Err(ServeError::Internal { message });
        }
        let (tokens, tokens_max) = (ids.len(), self.engine.config().context);
        if tokens_max < *to {
            let tokens_max = usize::try_from(tokens_max).unwrap_or(usize::MAX);
            return Err(ServeError::TooLong { tokens, tokens_max });
        }
        let (slots, slots_max) = (blocks(*to), self.pool.total());
        if slots_max < slots {
            return Err(ServeError::NeverFits { slots, slots_max });
        }
        check_names(&mut self.names, root, ids, names)
    }

    fn queue(&mut self, id: PrefillId, request: &PrefillRequest) -> Result<(), ServeError> {
        let cached = request.names.iter().take_while(|name| self.pool.contains(**name)).count();
        let rows = request.to - tokens(cached);
        let waiting_max = self.config.waiting_max;
        self.scheduler.submit(id, rows, self.clock.now()).map_err(|full| ServeError::Overloaded {
            waiting: full.waiting,
            waiting_max,
            retry_after_ms: self.config.report_interval_ms,
        })
    }

    /// Starts requests in order of arrival while there are slots for all of `[0, S)`.
    pub(super) fn admit(&mut self) {
        while let Some(id) = self.scheduler.next_waiting() {
            if !self.reserve(id) {
                return;
            }
            let now = self.clock.now();
            let waited = self.scheduler.onboard(id, now);
            let job = &self.jobs[&id];
            self.stats.queue_wait_ms += u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.stats.prompt_tokens += u64::from(job.request.to);
            self.stats.cached_tokens_device += u64::from(job.run_end());
            tracing::info!(request = %job.request.id, to = job.request.to, cached = job.run_end(), "prefill started");
            self.locate(id, now);
        }
    }

    /// Pins the cached prefix of the own pool and takes slots for the rest and for the window object: all or nothing.
    fn reserve(&mut self, id: PrefillId) -> bool {
        let job = self.jobs.get_mut(&id).expect("a queued request has a job");
        let run = self.pool.lookup_run(&job.request.names);
        let Ok(spare) = self.pool.reserve(job.block_count() - run.len()) else {
            self.pool.release(run);
            return false;
        };
        let window = self.windows.lookup(job.last_name());
        let window_slot = match &window {
            Some(_) => None,
            None => match self.windows.reserve(1) {
                Ok(mut slots) => slots.pop(),
                Err(_) => {
                    self.pool.release(run);
                    return false;
                }
            },
        };
        job.fates = vec![BlockFate::Missed(Miss::NotAsked); job.block_count()];
        job.fates[..run.len()].fill(BlockFate::Held);
        (job.run, job.spare, job.window, job.window_slot) =
            (run, VecDeque::from(spare), window, window_slot);
        true
    }

    /// Asks the store for the rest of the prefix and for window objects that can pay off.
    fn locate(&mut self, id: PrefillId, now: Timestamp) {
        if self.announce(id) == Flow::Closed {
            return;
        }
        let job = &self.jobs[&id];
        if job.run.len() == job.block_count() && job.window.is_some() {
            return self.begin(id);
        }
        let names = &job.request.names;
        let key = |kind, index: usize| Grouped {
            item: ObjectKey { kind, name: names[index] },
            group: group_of(names, index),
        };
        let missing = job.run.len()..names.len();
        let mut keys: Vec<_> = missing.map(|index| key(ObjectKind::Block, index)).collect();
        let mut windows_at = Vec::new();
        for index in self.first_window(job)..names.len() {
            if !self.windows.contains(names[index]) {
                keys.push(key(ObjectKind::Window, index));
                windows_at.push(tokens(index + 1));
            }
        }
        if keys.is_empty() {
            return self.begin(id);
        }
        let context = job.request.context();
        let sink = replies(&self.mailbox, 1, move |event| Command::Located(id, event));
        let ticket = self.store.locate(context, keys, sink);
        let deadline = now.after(self.config.locate_wait());
        let job = self.jobs.get_mut(&id).expect("looked up above");
        job.stage = Stage::Locating(Locating { ticket, since: now, deadline, windows_at });
    }

    /// Index of the first block whose window object can be as cheap as a replay, wherever the cached prefix will end.
    pub(super) fn first_window(&self, job: &Job) -> usize {
        let (geometry, rows) = (self.engine.geometry(), self.bounded_rows());
        let floor = useful_window_floor(geometry, job.request.lineage, rows, job.run_end());
        // An object that ends at the floor itself costs the same rows and is exact where a replay may not be.
        blocks(floor.next_multiple_of(BLOCK_TOKENS)).saturating_sub(1)
    }

    /// R of a bounded replay.
    pub(super) fn bounded_rows(&self) -> u32 {
        self.config.replay_rows.unwrap_or_else(|| self.engine.geometry().window)
    }

    /// The store answered, or is given up: plan what to read, and read it.
    pub(super) fn located(&mut self, id: PrefillId, event: Option<LocateEvent>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Stage::Locating(locating) = &mut job.stage else { return };
        if let Some(event) = &event {
            self.speed.looked_up(self.clock.now().since(locating.since), event.brought);
        }
        let ticket = std::mem::replace(&mut locating.ticket, Ticket::empty());
        let windows_at = std::mem::take(&mut locating.windows_at);
        let missing = &job.request.names[job.run.len()..];
        let mut found = event.map_or_else(Vec::new, |event| event.found);
        if !found.is_empty() && found.len() != missing.len() + windows_at.len() {
            tracing::warn!("the store answered a lookup with a wrong number of objects");
            found.clear();
        }
        found.resize(missing.len() + windows_at.len(), Err(Miss::NoAnswer));
        for (fate, found) in job.fates[job.run.len()..].iter_mut().zip(&found) {
            *fate = found.map_or_else(BlockFate::Missed, |_| BlockFate::Unwanted);
        }
        let (found_blocks, found_windows) = found.split_at(missing.len());
        let window_name = |at: u32| job.request.names[blocks(at) - 1];
        let stored: Vec<_> = windows_at
            .iter()
            .zip(found_windows)
            .filter_map(|(at, found)| {
                Some((*at, copy_of(*found, ObjectKind::Window, window_name(*at))?))
            })
            .collect();
        let reachable: Vec<_> = found_blocks
            .iter()
            .zip(missing)
            .map_while(|(found, name)| copy_of(*found, ObjectKind::Block, *name))
            .collect();
        let plan = self.plan_fetch(id, reachable.len(), &stored);
        let job = self.jobs.get_mut(&id).expect("looked up above");
        let fetch = reachable.iter().take(plan.fetch_blocks.len());
        let mut reads: Vec<_> = fetch
            .map(|source| ReadRequest {
                source: *source,
                target: job.spare.pop_front().expect("a slot is reserved for each missing block"),
            })
            .collect();
        reads.extend(self.window_read(id, &plan, &stored));
        if reads.is_empty() {
            return self.begin(id);
        }
        self.read(id, reads, ticket);
    }

    fn plan_fetch(
        &self,
        id: PrefillId,
        reachable: usize,
        stored: &[(u32, Descriptor)],
    ) -> StartPlan {
        let job = &self.jobs[&id];
        let mut windows = self.own_windows(job, job.request.to).candidates;
        let other_tier = |&(at, object): &(u32, Descriptor)| WindowCandidate {
            at,
            tier: Tier::Host,
            exact: object.exact,
        };
        windows.extend(stored.iter().map(other_tier));
        self.plan(job, job.run.len() + reachable, &windows)
    }

    /// The planner's answer for a prefill that has its run and may read `reachable` leading blocks.
    pub(super) fn plan(
        &self,
        job: &Job,
        reachable: usize,
        windows: &[WindowCandidate],
    ) -> StartPlan {
        let narrow = |blocks: usize| u32::try_from(blocks).expect("positions have 32 bits");
        plan_start(&StartQuery {
            role: StartRole::Prefill,
            geometry: self.engine.geometry(),
            lineage: job.request.lineage,
            bounded_rows: self.bounded_rows(),
            target: job.request.to,
            device_blocks: narrow(job.run.len()),
            reachable_blocks: narrow(reachable),
            windows,
            costs: self.speed.costs(self.engine.layout()),
        })
    }

    /// The read of the window object that the plan wants from the store. None when it wants none, or when there is no slot
    /// for it: then the next best source is taken once the blocks are here.
    fn window_read(
        &mut self,
        id: PrefillId,
        plan: &StartPlan,
        stored: &[(u32, Descriptor)],
    ) -> Option<ReadRequest> {
        let (WindowPlan::Object { at, tier } | WindowPlan::Recompute { from: at, tier }) =
            plan.window
        else {
            return None;
        };
        if tier == Tier::Device {
            return None;
        }
        let source = stored.iter().find(|(position, _)| *position == at)?.1;
        let job = self.jobs.get_mut(&id).expect("only a known request is planned");
        let target = if at == job.request.to {
            job.window_slot.take()
        } else {
            self.windows.reserve(1).ok().and_then(|mut slots| slots.pop())
        };
        target.map(|target| ReadRequest { source, target })
    }

    fn read(&mut self, id: PrefillId, reads: Vec<ReadRequest>, located: Ticket) {
        let started = self.clock.now();
        let outstanding = reads.len();
        let sink = replies(&self.mailbox, outstanding, move |done| Command::Read(id, done));
        let job = self.jobs.get_mut(&id).expect("only a known request reads");
        let reads = Some(self.transport.read(job.request.context(), reads, sink));
        job.stage = Stage::Reading(Reading {
            reads,
            _located: located,
            deadline: started.after(self.config.read_wait()),
            started,
            outstanding,
            bytes: 0,
            window: None,
        });
    }

    /// A read came back, to a request that waits for it or to one that gave up or is gone.
    pub(super) fn read_done(&mut self, id: PrefillId, done: ReadDone) {
        let ReadDone { source, target, result } = done;
        if let Err(error) = result {
            self.stats.reads_failed += 1;
            tracing::debug!(name = %source.key.name, %error, "a cached object was not read");
        }
        let waiting =
            self.jobs.get_mut(&id).is_some_and(|job| matches!(job.stage, Stage::Reading(_)));
        if !waiting {
            return self.keep_orphan(&source, target, result.is_ok());
        }
        match source.key.kind {
            ObjectKind::Block => self.block_read(id, &source, target, result.is_ok()),
            ObjectKind::Window => self.window_arrived(id, &source, target, result.is_ok()),
            ObjectKind::Media => unreachable!("no media embedding is asked for here"),
        }
        if self.announce(id) == Flow::Closed {
            return;
        }
        let now = self.clock.now();
        let stage = self.jobs.get_mut(&id).map(|job| &mut job.stage);
        let Some(Stage::Reading(reading)) = stage else {
            unreachable!("checked above, and announcing does not change it")
        };
        reading.outstanding -= 1;
        reading.deadline = now.after(self.config.read_wait());
        if reading.outstanding == 0 {
            let took = now.since(reading.started);
            self.speed.read(reading.bytes, took, self.engine.layout());
            self.begin(id);
        }
    }

    /// Appends a block to the run. Behind a gap it is of no use, but its slot is: the block will be computed into it.
    fn block_read(&mut self, id: PrefillId, source: &Descriptor, target: OwnedSlot, ok: bool) {
        let job = self.jobs.get_mut(&id).expect("only a known request reads");
        let next = job.request.names.get(job.run.len());
        if !ok {
            let block = job.request.names.iter().position(|name| *name == source.key.name);
            if let Some(block) = block {
                job.fates[block] = BlockFate::Failed;
            }
        }
        if !ok || next != Some(&source.key.name) {
            job.spare.push_back(target);
            return;
        }
        match self.pool.seal_read(target, source) {
            Ok(slot) => {
                job.fates[job.run.len()] = BlockFate::Read;
                job.run.push(slot);
                self.fetched(id, source);
                self.stats.cached_tokens_store += u64::from(BLOCK_TOKENS);
            }
            Err(_) => {
                job.fates[job.run.len()] = BlockFate::Failed;
                self.stats.reads_failed += 1;
            }
        }
    }

    fn window_arrived(&mut self, id: PrefillId, source: &Descriptor, target: OwnedSlot, ok: bool) {
        let job = self.jobs.get_mut(&id).expect("only a known request reads");
        let is_last = source.key.name == job.last_name();
        if !ok {
            if is_last {
                job.window_slot = Some(target);
            }
            return;
        }
        let Ok(slot) = self.windows.seal_read(target, source) else {
            self.stats.reads_failed += 1;
            return;
        };
        if is_last {
            job.window = Some(slot.clone());
        }
        if let Stage::Reading(reading) = &mut job.stage {
            reading.window = Some(slot);
        }
        self.fetched(id, source);
    }

    fn fetched(&mut self, id: PrefillId, source: &Descriptor) {
        self.stats.bytes_fetched += u64::from(source.bytes);
        let stage = self.jobs.get_mut(&id).map(|job| &mut job.stage);
        if let Some(Stage::Reading(reading)) = stage {
            reading.bytes = reading.bytes.saturating_add(source.bytes);
        }
    }

    /// The bytes are here; whoever comes next may use them.
    fn keep_orphan(&mut self, source: &Descriptor, target: OwnedSlot, ok: bool) {
        if !ok {
            return;
        }
        let pool = match source.key.kind {
            ObjectKind::Block | ObjectKind::Media => &self.pool,
            ObjectKind::Window => &self.windows,
        };
        match pool.seal_read(target, source) {
            Ok(slot) => drop::<SealedSlot>(slot),
            Err(_) => self.stats.reads_failed += 1,
        }
    }

    /// Goes on without answers that are late.
    pub(super) fn give_up_waiting(&mut self, now: Timestamp) {
        let late: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| match &job.stage {
                Stage::Locating(locating) => locating.deadline <= now,
                Stage::Reading(reading) => reading.outstanding == 0 || reading.deadline <= now,
                Stage::Queued | Stage::Computing(_) | Stage::Held => false,
            })
            .map(|(id, _)| *id)
            .collect();
        for id in late {
            let job = self.jobs.get_mut(&id).expect("listed above");
            match &mut job.stage {
                Stage::Locating(_) => {
                    self.stats.locates_late += 1;
                    self.located(id, None);
                }
                Stage::Reading(reading) => {
                    if reading.reads.take().is_some() && 0 < reading.outstanding {
                        self.stats.reads_late += 1;
                    }
                    self.begin(id);
                }
                Stage::Queued | Stage::Computing(_) | Stage::Held => {}
            }
        }
    }

    /// Announces what is new in the run of a request. Closed, and the request is gone, when nobody listens.
    pub(super) fn announce(&mut self, id: PrefillId) -> Flow {
        let flow = self.jobs.get_mut(&id).map_or(Flow::Closed, Job::announce);
        if flow == Flow::Closed {
            self.remove(id);
        }
        flow
    }
}

/// What the store found, if it is what was asked for.
fn copy_of(found: Found, kind: ObjectKind, name: BlockName) -> Option<Descriptor> {
    found.ok().filter(|copy| copy.key == ObjectKey { kind, name })
}
