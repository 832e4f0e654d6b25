//! What the rest of the tier asks of the object store.

use std::io;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use shared::BlockName;

use super::{ObjectStats, Remote, Work};
use crate::disk::catalog::{Entry, SegmentState};
use crate::disk::load::DiskLoad;
use crate::disk::reader::{DiskRead, DiskReadDone, Job};
use crate::disk::writer::refused;
use crate::disk::{DiskTier, Shared};

/// Where a block lies below host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    /// On the drive.
    Drive,
    /// In the object store alone.
    Objects,
}

impl DiskTier {
    /// Uploads what was sealed before, deletes what is to leave, and says whether all of that worked; true at once without an
    /// object store. Blocks for at most twice `wait_max`: for tools and tests.
    #[must_use = "false means that something is not in the object store"]
    pub fn settle_objects(&self, wait_max: Duration) -> bool {
        let Some(objects) = &self.objects else { return true };
        let (done, settled) = bounded(1);
        objects.settles.try_send(done).is_ok() && settled.recv_timeout(wait_max).is_ok()
    }

    /// How busy the object store is with reads, and how fast it was lately; None without one, and while it is left alone
    /// after an error. See [`DiskLoad::time_for`].
    #[must_use]
    pub fn object_load(&self) -> Option<DiskLoad> {
        self.shared.remote.as_ref()?.load(self.shared.clock.now())
    }

    /// Where blocks lie, in their order; None of those that are not held.
    pub(crate) fn places(&self, names: &[BlockName]) -> Vec<Option<Below>> {
        let Shared { index, remote, .. } = &*self.shared;
        let entries = index.find_all(names).into_iter();
        entries
            .map(|entry| {
                let segment = entry?.segment;
                let far = remote.is_some() && index.catalog().is_remote(segment);
                Some(if far { Below::Objects } else { Below::Drive })
            })
            .collect()
    }

    /// Queues a read of the object store, as [`DiskTier::read`] does of the drive.
    pub(crate) fn read_object(
        &self,
        read: DiskRead,
        done: &Sender<DiskReadDone>,
    ) -> Result<(), DiskRead> {
        let (Some(objects), Some(remote)) = (&self.objects, &self.shared.remote) else {
            return Err(read);
        };
        let (job, bytes) = (Job { read, done: done.clone() }, self.read_bytes());
        remote.load.lock().join(bytes, self.shared.clock.now());
        objects.reads.try_send(job).map_err(|refused| {
            remote.load.lock().leave(1, bytes);
            remote.counters.reads_refused.add(1);
            refused.into_inner().read
        })
    }
}

impl Shared {
    /// Takes a segment off the drive, and says how many names left: none of one that lies in the object store.
    pub(in crate::disk) fn leave_drive(
        &self,
        number: u64,
        leaving: &mut dyn FnMut(&Entry),
    ) -> io::Result<usize> {
        self.remove_file(number)?;
        let objects = self.index.leave_drive(number, leaving).map_err(refused)?;
        if 0 < objects
            && let Some(remote) = &self.remote
        {
            remote.left_uncopied();
        }
        Ok(objects)
    }

    /// The object store has something to upload or to delete.
    pub(in crate::disk) fn objects_changed(&self) {
        if let Some(remote) = &self.remote {
            remote.wake();
        }
    }
}

impl Remote {
    /// A snapshot of what is counted, with what the catalog knows.
    pub(in crate::disk) fn stats(&self, shared: &Shared) -> ObjectStats {
        let now = shared.clock.now();
        let mut stats = self.counters.snapshot();
        for (_, row) in shared.index.catalog().segments() {
            if !row.state.is_copied() {
                continue;
            }
            stats.objects += 1;
            stats.bytes += row.bytes;
            if row.state == SegmentState::Remote {
                stats.objects_remote_only += 1;
                stats.records_remote_only += row.records;
            }
        }
        let paused = [Work::Reads, Work::Upkeep].iter().any(|work| self.is_paused(*work, now));
        ObjectStats {
            bytes_max: self.config.bytes_max,
            suspended: u64::from(paused),
            load: self.load.lock().snapshot(now),
            ..stats
        }
    }
}
