//! One step of the engine, and what becomes of its rows: sealed blocks, window objects, offers.

use engine::{Layers, RowPlan, Segment};
use kvstore::{Seal, SealedSlot};
use shared::{Flow, Grouped, PrefillEvent, RequestContext, group_of};

use super::job::{Computing, Stage, blocks, tokens};
use super::turn::{Loop, count};
use crate::scheduler::{Chunk, PrefillId};

impl Loop {
    /// Computes the scheduler's next step, if there is one, and announces what it completed.
    pub(super) fn step(&mut self) {
        self.scheduler.plan_step(&mut self.chunks);
        if self.chunks.is_empty() {
            return;
        }
        self.compute();
        let chunks = std::mem::take(&mut self.chunks);
        for chunk in &chunks {
            self.deliver(*chunk);
        }
        self.chunks = chunks;
    }

    fn compute(&mut self) {
        let mut segments = Vec::with_capacity(self.chunks.len());
        let mut rows = 0;
        for (id, job) in &mut self.jobs {
            let Some(chunk) = self.chunks.iter().find(|chunk| chunk.id == *id) else { continue };
            let Stage::Computing(computing) = &mut job.stage else {
                unreachable!("the scheduler plans only rows of computing requests")
            };
            let Computing { sequence, floors, rows: plans, .. } = &mut **computing;
            plans.clear();
            plans.extend((chunk.start..chunk.end).map(|position| RowPlan {
                position,
                layers: Layers::Encoder,
                floors: *floors,
                logits: false,
            }));
            let replayed = chunk.end.min(floors.write).saturating_sub(chunk.start);
            self.stats.rows_replayed += u64::from(replayed);
            self.stats.rows_computed += u64::from(chunk.end - chunk.start - replayed);
            rows += chunk.end - chunk.start;
            segments.push(Segment { sequence, rows: plans });
        }
        assert_eq!(segments.len(), self.chunks.len(), "every chunk belongs to a request");
        let started = self.clock.now();
        let logits = self.engine.forward(&self.slab, &mut segments);
        assert_eq!(logits.len(), 0, "prefill wants no logits");
        self.speed.computed(rows, self.clock.now().since(started));
        self.stats.steps += 1;
    }

    /// Seals and announces the blocks that a chunk completed, publishes the window object at its end, and finishes the
    /// request when that end is S.
    fn deliver(&mut self, chunk: Chunk) {
        let context = self.jobs[&chunk.id].request.context();
        let mut fresh = self.seal_blocks(chunk);
        if self.announce(chunk.id) == Flow::Closed {
            return self.offer(context, fresh);
        }
        fresh.extend(self.publish_window(chunk));
        self.offer(context, fresh);
        if chunk.end == self.jobs[&chunk.id].request.to {
            self.finish(chunk.id);
        }
    }

    /// Seals the completed blocks and answers those that were new to the pool.
    ///
    /// A copy that is held already replaces the computed one only if both are exact, since only then their bytes are the
    /// same; otherwise this request goes on with, and announces, its own bytes, which the pool does not name.
    fn seal_blocks(&mut self, chunk: Chunk) -> Vec<Grouped<SealedSlot>> {
        let mut fresh = Vec::new();
        let job = self.jobs.get_mut(&chunk.id).expect("the step computed it");
        let Stage::Computing(computing) = &mut job.stage else {
            unreachable!("the step computed it")
        };
        let bytes = u32::try_from(self.engine.layout().block_bytes()).expect("a block is small");
        while tokens(job.run.len() + 1) <= chunk.end {
            let index = job.run.len();
            let owned = job.spare.pop_front().expect("a slot is reserved for each missing block");
            let is_next = computing.sequence.blocks()[index] == owned.index();
            assert!(is_next, "slots are used in order");
            let name = job.request.names[index];
            let seal = Seal { name, exact: computing.exact, bytes };
            let sealed = match self.pool.lookup(name) {
                None => {
                    let sealed = self.pool.seal(owned, seal);
                    self.stats.blocks_sealed += 1;
                    let group = group_of(&job.request.names, index);
                    fresh.push(Grouped { item: sealed.clone(), group });
                    sealed
                }
                Some(held) => {
                    self.stats.blocks_duplicate += 1;
                    if held.exact() && computing.exact {
                        computing.sequence.replace_block(index, held.index());
                        held
                    } else {
                        self.pool.seal_unnamed(owned, seal)
                    }
                }
            };
            job.run.push(sealed);
        }
        fresh
    }

    /// Exports the windows at the end of a chunk where an object is due. Answers the object if it was new to the pool.
    fn publish_window(&mut self, chunk: Chunk) -> Option<Grouped<SealedSlot>> {
        let job = self.jobs.get_mut(&chunk.id)?;
        let Stage::Computing(computing) = &mut job.stage else { return None };
        let is_last = chunk.end == job.request.to;
        let is_due = computing.floors.write < chunk.end
            && chunk.end.is_multiple_of(self.config.window_interval);
        if !(is_last || is_due) || (is_last && job.window.is_some()) {
            return None;
        }
        let block = blocks(chunk.end) - 1;
        let name = job.run.get(block)?.name();
        if let Some(held) = self.windows.lookup(name) {
            // Another request published it while this one computed.
            if is_last {
                (job.window, job.window_slot) = (Some(held), None);
            }
            return None;
        }
        let slot = if is_last {
            job.window_slot.take()
        } else {
            self.windows.reserve(1).ok().and_then(|mut slots| slots.pop())
        };
        let Some(mut slot) = slot else {
            self.stats.windows_skipped += 1;
            return None;
        };
        let bytes = self.engine.layout().window_bytes();
        slot.write(&mut |memory| computing.sequence.export_window(chunk.end, &mut memory[..bytes]));
        let bytes = u32::try_from(bytes).expect("a window object is small");
        let sealed = self.windows.seal(slot, Seal { name, exact: computing.exact, bytes });
        self.stats.windows_published += 1;
        if is_last {
            job.window = Some(sealed.clone());
        }
        Some(Grouped { item: sealed, group: group_of(&job.request.names, block) })
    }

    fn offer(&mut self, context: RequestContext, objects: Vec<Grouped<SealedSlot>>) {
        let now = self.clock.now();
        let skipped = self.offers.offer(context, objects, &*self.store, &self.mailbox, now);
        self.stats.offers_skipped += count(skipped);
    }

    /// Announces the window object and the end, and keeps everything pinned until the ticket drops.
    pub(super) fn finish(&mut self, id: PrefillId) {
        let job = self.jobs.get_mut(&id).expect("only a known request finishes");
        let Stage::Computing(computing) = &job.stage else {
            unreachable!("only a computing request finishes")
        };
        assert!(job.spare.is_empty() && job.run.len() == job.block_count(), "all of [0, S) exists");
        let window = job.window.as_ref().expect("S has a window object when its rows are done");
        let finished = PrefillEvent::Finished {
            replayed_tokens: computing.replayed_tokens,
            window_source: computing.window_source,
        };
        let events = [PrefillEvent::Window(window.descriptor()), finished];
        let mut sink = job.sink.take().expect("a request finishes once");
        job.stage = Stage::Held;
        self.scheduler.hold(id);
        self.stats.requests_finished += 1;
        tracing::info!(request = %job.request.id, "prefill finished");
        for event in events {
            if sink.emit(event) == Flow::Closed {
                // Equal to a dropped ticket.
                return self.remove(id);
            }
        }
    }
}
