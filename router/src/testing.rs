//! What the tests of this crate share: a seeded generator and short ways to make names.

use std::sync::Arc;

use shared::{
    BlockName, DpRank, PlaceRequest, Priority, RequestId, TenantId, WorkerId, WorkerRank,
};

use crate::policy::mix;

/// A seeded generator. Equal seeds give equal sequences.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("fits");
        usize::try_from(self.next() % bound).expect("fits")
    }

    /// True once in `times`.
    pub(crate) fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Rank 0 of a worker.
pub(crate) fn rank(worker: u32) -> WorkerRank {
    WorkerRank { worker: WorkerId(worker), rank: DpRank(0) }
}

/// A name for a position of a chain, spread like a real one.
pub(crate) fn block(chain: u32, position: u32) -> BlockName {
    let low = mix(u64::from(chain) << 32 | u64::from(position));
    let mut name = [0; 16];
    name[..8].copy_from_slice(&low.to_le_bytes());
    name[8..].copy_from_slice(&mix(low).to_le_bytes());
    BlockName(name)
}

/// The first `count` names of a chain.
pub(crate) fn names(chain: u32, count: u32) -> Vec<BlockName> {
    (0..count).map(|position| block(chain, position)).collect()
}

/// A request without a deadline.
pub(crate) fn request(id: u128, prompt_tokens: u32, names: &[BlockName]) -> PlaceRequest {
    PlaceRequest {
        id: RequestId(id),
        tenant: TenantId(Arc::from("tenant")),
        names: Arc::from(names),
        prompt_tokens,
        output_tokens_max: 16,
        deadline: None,
        priority: Priority::Normal,
        session: None,
        excluded: Vec::new(),
    }
}
