//! Finding workers: in one process there is one of each role, for its whole life.

use std::sync::Arc;

use shared::{Decode, DecodeDirectory, Prefill, PrefillDirectory, WorkerRank};

/// The one decode worker.
pub(super) struct OneDecode {
    pub(super) rank: WorkerRank,
    pub(super) worker: Arc<dyn Decode>,
}

impl DecodeDirectory for OneDecode {
    fn decode(&self, worker: WorkerRank) -> Option<Arc<dyn Decode>> {
        (worker == self.rank).then(|| Arc::clone(&self.worker))
    }
}

/// The one prefill worker.
pub(super) struct OnePrefill {
    pub(super) rank: WorkerRank,
    pub(super) worker: Arc<dyn Prefill>,
}

impl PrefillDirectory for OnePrefill {
    fn prefill(&self, worker: WorkerRank) -> Option<Arc<dyn Prefill>> {
        (worker == self.rank).then(|| Arc::clone(&self.worker))
    }

    fn prefill_members(&self) -> Vec<WorkerRank> {
        vec![self.rank]
    }
}
