//! Figures of lost events and of what it took to make up for them.

use router::{RouterSnapshot, ViewState};

use super::{counters, gauges, head, sample};
use crate::wiring::NamedPool;

/// A router's side: what it asked for, and what is still in doubt.
pub(super) fn router(snapshot: &RouterSnapshot, text: &mut String) {
    let asked = snapshot.resyncs;
    let name = "kvasir_router_resyncs_total";
    head(text, name, "counter", "Requests to members whose events were lost, by what for");
    let questions = [("digests", asked.digests), ("ranges", asked.ranges), ("whole", asked.whole)];
    for (question, count) in questions {
        sample(text, name, &[("question", question)], count);
    }
    let index = &snapshot.index;
    counters(
        text,
        &[
            ("kvasir_router_event_gaps_total", "Gaps in the events of members", index.gaps),
            (
                "kvasir_router_ranges_cleared_total",
                "Ranges of names that members told anew",
                index.ranges_cleared,
            ),
            (
                "kvasir_router_blocks_cleared_by_ranges_total",
                "Blocks of these ranges that were known before",
                index.blocks_cleared_by_ranges,
            ),
        ],
    );
    let stale = snapshot.workers.iter().filter(|worker| worker.view == ViewState::Stale).count();
    let suspect = snapshot.workers.iter().map(|worker| u64::from(worker.ranges_suspect)).sum();
    gauges(
        text,
        &[
            (
                "kvasir_router_stale_members",
                "Members whose events were lost and that did not make up for it yet",
                u64::try_from(stale).unwrap_or(u64::MAX),
            ),
            (
                "kvasir_router_suspect_ranges",
                "Ranges of names, of 256 per member, in which what is known may be wrong",
                suspect,
            ),
        ],
    );
}

/// A member's side: what it told more than once.
pub(super) fn pools(pools: &[NamedPool], text: &mut String) {
    let name = "kvasir_kvstore_names_told_again_total";
    head(text, name, "counter", "Names told to routers once more, by pool");
    for named in pools {
        sample(text, name, &[("pool", named.name)], named.pool.told_again());
    }
}
