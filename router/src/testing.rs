//! What the tests of this crate share: a seeded generator and short ways to make names.

use std::sync::Arc;

use shared::{
    BlockName, DpRank, PlaceRequest, Priority, RequestId, TenantId, WorkerId, WorkerRank,
};

use shared::random::mix;

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
