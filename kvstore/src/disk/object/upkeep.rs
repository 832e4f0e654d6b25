//! What is done when nobody asks: the list at the start, then rounds in which objects that are too old are deleted and
//! segments that were sealed are uploaded, oldest first, one at a time.
//!
//! A round ends at its first error of the object store; the next one comes after a pause that grows. What is wrong with one
//! segment alone ends with that segment.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crossbeam_channel::Sender;
use object_store::ObjectStoreExt;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::retain::{Bounds, Why, leaving};
use super::upload::{Uploaded, upload};
use super::{Failure, REQUEST_MAX, Remote, Work, listing};
use crate::disk::Shared;
use crate::disk::catalog::SegmentState;
use crate::disk::io::Transfers;

/// How often it looks by itself: objects may stay that much longer than their retention.
const ROUND_PERIOD: Duration = Duration::from_secs(60);
/// How often the server may refuse one segment.
const REFUSALS_MAX: u32 = 5;

/// The state of the rounds.
pub(super) struct Upkeep<'a> {
    shared: &'a Shared,
    remote: &'a Remote,
    transfers: Transfers,
    bounds: Bounds,
    /// Segments that are not tried any more. At most as many as there are segments.
    given_up: BTreeSet<u64>,
    /// The segment that was refused last, and how often in a row.
    refused: (u64, u32),
    /// Whether the store has answered in this round.
    has_acted: bool,
}

impl<'a> Upkeep<'a> {
    pub(super) fn new(shared: &'a Shared, remote: &'a Remote) -> Self {
        let (retention_s, bytes_max) = (remote.config.retention_s(), remote.config.bytes_max);
        Self {
            shared,
            remote,
            transfers: Transfers::new(shared.drive.queue()),
            bounds: Bounds { retention_s, bytes_max },
            given_up: BTreeSet::new(),
            refused: (0, 0),
            has_acted: false,
        }
    }

    /// Goes on until the tier drops. Whoever asks is answered when a whole round after that went well, and dropped when it
    /// did not.
    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<Sender<()>>) {
        let mut waiting: Vec<Sender<()>> = Vec::new();
        loop {
            match self.round().await {
                Ok(()) => {
                    if self.has_acted {
                        self.remote.succeeded(Work::Upkeep);
                    }
                    for done in waiting.drain(..) {
                        // Nobody waits any more: nothing is lost.
                        let _ignored = done.send(());
                    }
                }
                Err(Failure::Stopped) => return,
                Err(failure) => {
                    let now = self.shared.clock.now();
                    self.remote.failed(Work::Upkeep, &failure, now);
                    waiting.clear();
                }
            }
            let pause = self.remote.pause(Work::Upkeep);
            tokio::select! {
                biased;
                () = self.remote.stop.cancelled() => return,
                done = asked.recv() => match done {
                    Some(done) => waiting.push(done),
                    None => return,
                },
                () = self.remote.wake.notified(), if pause.is_none() => {}
                () = sleep(pause.unwrap_or(ROUND_PERIOD)) => {}
            }
            while let Ok(done) = asked.try_recv() {
                waiting.push(done);
            }
        }
    }

    async fn round(&mut self) -> Result<(), Failure> {
        self.has_acted = false;
        if !self.remote.is_listed() {
            listing::adopt(self.shared, self.remote).await?;
            self.remote.is_listed.store(true, Ordering::Release);
            self.has_acted = true;
        }
        self.make_room(0).await?;
        let segments = self.shared.index.catalog().segments();
        self.given_up.retain(|number| segments.iter().any(|(listed, _)| listed == number));
        for (number, row) in segments {
            let now = self.shared.clock.unix_seconds();
            let is_over = self.bounds.is_over(row.newest_unix_seconds, now);
            if row.state != SegmentState::Sealed || is_over || self.given_up.contains(&number) {
                continue;
            }
            if !self.make_room(row.bytes).await? {
                self.remote.counters.uploads_no_room.add(1);
                return Ok(());
            }
            self.upload(number, row.bytes).await?;
        }
        Ok(())
    }

    async fn upload(&mut self, number: u64, bytes: u64) -> Result<(), Failure> {
        let counters = &self.remote.counters;
        let done = upload(self.shared, self.remote, &mut self.transfers, number, bytes).await;
        match done {
            Ok(uploaded) => {
                self.has_acted = true;
                if !self.shared.index.catalog().mark_copied(number)? {
                    // It left while it was being sent.
                    return self.delete(number).await;
                }
                match uploaded {
                    Uploaded::Held => counters.uploads_spared.add(1),
                    Uploaded::Sent => {
                        counters.uploads.add(1);
                        counters.upload_bytes.add(bytes);
                    }
                }
                tracing::debug!(number, bytes, ?uploaded, "a segment is in the object store");
                Ok(())
            }
            Err(Failure::Left) => Ok(()),
            Err(failure @ Failure::Drive(_)) => {
                self.remote.count(&failure);
                self.give_up(number, &failure);
                Ok(())
            }
            Err(failure @ (Failure::Refused(_) | Failure::Missing(_))) => {
                let times = if self.refused.0 == number { self.refused.1 + 1 } else { 1 };
                self.refused = (number, times);
                if REFUSALS_MAX <= times {
                    self.give_up(number, &failure);
                }
                Err(failure)
            }
            Err(failure) => Err(failure),
        }
    }

    fn give_up(&mut self, number: u64, failure: &Failure) {
        self.given_up.insert(number);
        self.remote.counters.uploads_given_up.add(1);
        tracing::warn!(number, error = %failure, "a segment is not uploaded; the next start tries again");
    }

    /// Deletes what is to leave; false when `room` bytes more do not fit even then.
    async fn make_room(&mut self, room: u64) -> Result<bool, Failure> {
        let catalog = self.shared.index.catalog();
        let now = self.shared.clock.unix_seconds();
        let segments = catalog.segments();
        for (number, row) in &segments {
            if row.state == SegmentState::Remote
                && now < row.newest_unix_seconds
                && !row.is_doomed()
            {
                catalog.age_segment(*number, now)?;
            }
        }
        let (leaving, fits) = leaving(&segments, self.bounds, room, now);
        if !fits {
            // What leaves by its age leaves anyway.
            return self
                .leave(leaving.into_iter().filter(|(_, why)| *why != Why::Room))
                .await
                .map(|()| false);
        }
        self.leave(leaving.into_iter()).await.map(|()| true)
    }

    async fn leave(&mut self, leaving: impl Iterator<Item = (u64, Why)>) -> Result<(), Failure> {
        for (number, why) in leaving {
            self.delete(number).await?;
            self.has_acted = true;
            if !self.shared.index.catalog().unmark_copied(number)? {
                self.shared.index.remove_segment(number, &mut |_| {})?;
            }
            let counters = &self.remote.counters;
            match why {
                Why::Evicted => counters.deleted.add(1),
                Why::Expired => counters.expired.add(1),
                Why::Room => counters.dropped.add(1),
            }
            tracing::debug!(number, ?why, "an object left");
        }
        Ok(())
    }

    /// One that is gone is no error.
    async fn delete(&self, number: u64) -> Result<(), Failure> {
        let (store, key) = (self.remote.store()?, self.remote.keys.object(number));
        match self.remote.request(REQUEST_MAX, store.delete(&key)).await {
            Err(Failure::Missing(_)) => Ok(()),
            done => done,
        }
    }
}
