//! Pools, placement and workers in the Prometheus text format.

mod disk;
mod grammars;
mod objects;
mod repairs;
mod routing;

use std::fmt::{Display, Write};

use decode::DecodeStats;
use kvstore::{HostStats, PeerStats};
use prefill::PrefillStats;
use router::RouterSnapshot;
use shared::Tier;

pub(crate) use grammars::grammars;

use crate::explain::AccuracyFigures;
use crate::roles::stores::StoresStats;
use crate::wiring::{Cluster, NamedPool};

/// Appends the figures of all roles of one process, the pools' left out.
pub(super) fn write(cluster: &Cluster, text: &mut String) {
    let placement = cluster.placement();
    router(&placement.snapshot(), placement.events_lost(), text);
    prediction(&cluster.routing().predictions.figures(), text);
    decode(&cluster.decode().stats(), text);
    grammars(&cluster.decode().guide_stats(), text);
    prefill(&cluster.prefill().stats(), text);
    store(&cluster.store().stats(), text);
}

/// Appends the figures of a process's pools.
pub(super) fn pools(pools: &[NamedPool], text: &mut String) {
    let audits: Vec<_> = pools.iter().map(|named| (named, named.pool.audit())).collect();
    head(text, "kvasir_kvstore_slots", "gauge", "Slots of each pool by what holds them");
    for (named, audit) in &audits {
        let states = [
            ("free", audit.free),
            ("cached", audit.cached),
            ("pinned", audit.pinned),
            ("owned", audit.owned),
            ("open_read", audit.open_reads),
        ];
        for (state, slots) in states {
            let labels = [("pool", named.name), ("state", state)];
            sample(text, "kvasir_kvstore_slots", &labels, slots);
        }
    }
    head(text, "kvasir_kvstore_blocks", "gauge", "Named blocks that can be had, by tier");
    for tier in [Tier::Device, Tier::Host] {
        let held = audits.iter().filter(|(named, _)| {
            named.pool.config().tier == tier && named.name.ends_with("_blocks")
        });
        let blocks: usize = held.map(|(named, _)| named.pool.held()).sum();
        sample(text, "kvasir_kvstore_blocks", &[("tier", tier.as_str())], blocks);
    }
    repairs::pools(pools, text);
    head(text, "kvasir_kvstore_leaked_slots", "gauge", "Slots that nothing explains; must be 0");
    let leaked: usize = audits.iter().map(|(_, audit)| audit.leaked).sum();
    sample(text, "kvasir_kvstore_leaked_slots", &[], leaked);
}

/// Appends the router's figures.
pub(crate) fn router(snapshot: &RouterSnapshot, events_lost: u64, text: &mut String) {
    let gauges = [
        ("kvasir_router_waiting_requests", "Requests waiting for a place", snapshot.waiting),
        ("kvasir_router_running_requests", "Requests placed and not ended", snapshot.running),
        ("kvasir_router_index_entries", "Block and holder pairs known", snapshot.index_entries),
        (
            "kvasir_router_index_drive_blocks",
            "Blocks known to be on drives of stores",
            snapshot.index_drive_blocks,
        ),
        (
            "kvasir_router_expected_blocks",
            "Blocks of placed requests expected of their workers",
            snapshot.expected_blocks,
        ),
        ("kvasir_router_peers", "Other routers that are heard", snapshot.peers.routers),
        (
            "kvasir_router_peers_reservations",
            "Requests of other routers that count here",
            snapshot.peers.reservations,
        ),
    ];
    for (name, help, value) in gauges {
        head(text, name, "gauge", help);
        sample(text, name, &[], value);
    }
    head(text, "kvasir_router_placed_total", "counter", "Placements by their kind");
    for (kind, count) in snapshot.placed.iter() {
        sample(text, "kvasir_router_placed_total", &[("kind", kind.as_str())], count);
    }
    head(text, "kvasir_router_refused_total", "counter", "Requests refused by the router");
    let refused = &snapshot.refused;
    let reasons = [
        ("overloaded", refused.overloaded),
        ("over_share", refused.over_share),
        ("deadline", refused.deadline),
        ("no_worker", refused.no_worker),
        ("duplicate", refused.duplicate),
    ];
    for (reason, count) in reasons {
        sample(text, "kvasir_router_refused_total", &[("reason", reason)], count);
    }
    dropped(snapshot, events_lost, text);
    repairs::router(snapshot, text);
    routing::write(snapshot, text);
}

/// Appends what found a bound reached.
fn dropped(snapshot: &RouterSnapshot, events_lost: u64, text: &mut String) {
    counters(
        text,
        &[
            (
                "kvasir_router_index_dropped_total",
                "Blocks not indexed for want of room",
                snapshot.index.blocks_dropped_full,
            ),
            (
                "kvasir_router_index_drive_dropped_total",
                "Blocks on drives of stores not indexed for want of room",
                snapshot.index.drive_blocks_dropped_full,
            ),
            (
                "kvasir_router_expected_dropped_total",
                "Blocks of placed requests not expected for want of room",
                snapshot.index.expected_dropped_full,
            ),
            (
                "kvasir_router_events_lost_total",
                "Worker events that found their queue full",
                events_lost,
            ),
            (
                "kvasir_router_peers_refused_total",
                "Reservations of other routers that found a bound reached",
                snapshot.peers.refused,
            ),
            (
                "kvasir_router_peers_silent_total",
                "Other routers that fell silent and were forgotten",
                snapshot.peers.silent,
            ),
        ],
    );
}

/// Appends how other routers keep up.
pub(crate) fn other_routers(cut_off: u64, text: &mut String) {
    let help = "Other routers that took news too slowly and had to begin anew";
    counters(text, &[("kvasir_router_peers_cut_off_total", help, cut_off)]);
}

/// Appends how well the router predicts what is cached.
pub(crate) fn prediction(figures: &AccuracyFigures, text: &mut String) {
    gauges(
        text,
        &[
            (
                "kvasir_router_prediction_alarm",
                "1 while the prediction is off by more than its bound; the log names the worst worker",
                u64::from(figures.alarm),
            ),
            (
                "kvasir_router_prediction_error_percent",
                "Error over the last starts, in percent of what was predicted or had",
                figures.window.error_percent(),
            ),
        ],
    );
}

/// Appends a decode worker's figures.
pub(crate) fn decode(stats: &DecodeStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_decode_requests_total", "Requests accepted", stats.requests),
            ("kvasir_decode_refused_total", "Requests refused", stats.refused),
            ("kvasir_decode_finished_total", "Answers completed", stats.finished),
            ("kvasir_decode_failed_total", "Accepted requests that failed", stats.failed),
            ("kvasir_decode_cancelled_total", "Requests whose client left", stats.cancelled),
            ("kvasir_decode_tokens_total", "Tokens emitted", stats.tokens),
            ("kvasir_decode_preemptions_total", "Sequences that gave way", stats.preemptions),
            ("kvasir_decode_resumes_total", "Sequences continued after that", stats.resumes),
            (
                "kvasir_decode_prefill_visits_total",
                "Starts that visited prefill",
                stats.prefill_visits,
            ),
            (
                "kvasir_decode_prefill_retries_total",
                "Prefill attempts after the first",
                stats.prefill_retries,
            ),
            (
                "kvasir_decode_prefill_fallbacks_total",
                "Starts that gave up on prefill",
                stats.prefill_fallbacks,
            ),
            ("kvasir_decode_reads_failed_total", "Reads that failed", stats.reads_failed),
            (
                "kvasir_decode_locates_failed_total",
                "Lookups not answered in time",
                stats.locates_failed,
            ),
            (
                "kvasir_decode_fetched_bytes_total",
                "Bytes read from other memory",
                stats.bytes_fetched,
            ),
            ("kvasir_decode_rows_total", "Decode rows computed", stats.decode_rows),
            ("kvasir_decode_tail_rows_total", "Tail rows computed", stats.tail_rows),
            ("kvasir_decode_steps_total", "Steps computed", stats.steps),
            (
                "kvasir_decode_offers_memory_only_total",
                "Blocks that were to be on a drive and are in memory only",
                stats.offers_memory_only,
            ),
            (
                "kvasir_decode_offers_skipped_total",
                "Blocks not offered to the store",
                stats.offers_skipped,
            ),
            (
                "kvasir_decode_offers_withdrawn_total",
                "Offers that the store did not answer in time",
                stats.offers_withdrawn,
            ),
            (
                "kvasir_decode_rows_held_total",
                "Rows whose token waited for its grammar",
                stats.rows_held,
            ),
        ],
    );
    gauges(
        text,
        &[
            ("kvasir_decode_waiting_requests", "Requests in the queue", stats.waiting),
            ("kvasir_decode_running_sequences", "Live sequences", stats.running),
        ],
    );
}

/// Appends a prefill worker's figures.
pub(crate) fn prefill(stats: &PrefillStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_prefill_requests_total", "Requests accepted", stats.requests_accepted),
            ("kvasir_prefill_refused_total", "Requests refused", stats.requests_refused),
            ("kvasir_prefill_finished_total", "Requests completed", stats.requests_finished),
            ("kvasir_prefill_cancelled_total", "Requests cancelled", stats.requests_cancelled),
            ("kvasir_prefill_rows_total", "Rows computed", stats.rows_computed),
            (
                "kvasir_prefill_rows_replayed_total",
                "Rows replayed for windows",
                stats.rows_replayed,
            ),
            ("kvasir_prefill_steps_total", "Engine calls", stats.steps),
            (
                "kvasir_prefill_fetched_bytes_total",
                "Bytes read from the store",
                stats.bytes_fetched,
            ),
            ("kvasir_prefill_reads_failed_total", "Reads that failed", stats.reads_failed),
            ("kvasir_prefill_reads_late_total", "Requests whose reads were late", stats.reads_late),
            (
                "kvasir_prefill_locates_late_total",
                "Lookups not answered in time",
                stats.locates_late,
            ),
            (
                "kvasir_prefill_offers_stored_total",
                "Objects the store took or had",
                stats.offers_stored,
            ),
            (
                "kvasir_prefill_offers_dropped_total",
                "Objects the store did not take",
                stats.offers_dropped,
            ),
            (
                "kvasir_prefill_offers_memory_only_total",
                "Objects that were to be on a drive and are in memory only",
                stats.offers_memory_only,
            ),
            ("kvasir_prefill_offers_skipped_total", "Objects not offered", stats.offers_skipped),
            (
                "kvasir_prefill_offers_withdrawn_total",
                "Offers that the store did not answer in time",
                stats.offers_withdrawn,
            ),
        ],
    );
    let count = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
    gauges(
        text,
        &[
            ("kvasir_prefill_waiting_requests", "Requests in the queue", count(stats.waiting)),
            ("kvasir_prefill_running_requests", "Requests in work", count(stats.running)),
            ("kvasir_prefill_held_requests", "Finished and still pinned", count(stats.held)),
            ("kvasir_prefill_pending_rows", "Rows accepted and not computed", stats.pending_rows),
        ],
    );
}

/// Appends a store node's figures.
pub(crate) fn store(stats: &HostStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_kvstore_host_stored_total", "Objects read and held", stats.stored),
            ("kvasir_kvstore_host_stored_bytes_total", "Their payload bytes", stats.stored_bytes),
            ("kvasir_kvstore_host_hits_total", "Keys found", stats.hits),
            ("kvasir_kvstore_host_misses_total", "Keys not found", stats.misses),
            ("kvasir_kvstore_host_lookups_refused_total", "Lookups refused", stats.lookups_refused),
            (
                "kvasir_kvstore_host_windows_expired_total",
                "Window objects too old",
                stats.windows_expired,
            ),
        ],
    );
    head(text, "kvasir_kvstore_host_dropped_total", "counter", "Offers not taken, by reason");
    let reasons = [
        ("queue", stats.dropped_queue),
        ("space", stats.dropped_space),
        ("gone", stats.dropped_gone),
        ("late", stats.dropped_late),
        ("corrupt", stats.dropped_corrupt),
        ("over_quota", stats.dropped_quota),
        ("evicted", stats.dropped_evicted),
    ];
    for (reason, count) in reasons {
        sample(text, "kvasir_kvstore_host_dropped_total", &[("reason", reason)], count);
    }
    gauges(
        text,
        &[
            ("kvasir_kvstore_host_held_bytes", "Bytes of objects held", stats.bytes_held),
            ("kvasir_kvstore_host_tenants", "Tenants that have some of them", stats.tenants),
        ],
    );
    below(stats, text);
    if let Some(stats) = &stats.disk {
        disk::write(stats, text);
        if let Some(stats) = &stats.objects {
            objects::write(stats, text);
        }
    }
}

/// What host memory and the tiers below it have to do with each other.
fn below(stats: &HostStats, text: &mut String) {
    counters(
        text,
        &[
            (
                "kvasir_kvstore_host_lookups_late_total",
                "Lookups answered before their blocks came from disk",
                stats.lookups_late,
            ),
            ("kvasir_kvstore_host_onboarded_total", "Blocks brought from disk", stats.onboarded),
            (
                "kvasir_kvstore_host_acknowledged_total",
                "Blocks that were durable before their offer was answered, as was asked for",
                stats.acknowledged,
            ),
            (
                "kvasir_kvstore_host_memory_only_total",
                "Objects of which that was asked for and that are in memory only",
                stats.memory_only,
            ),
            (
                "kvasir_kvstore_host_disk_too_slow_total",
                "Keys on a drive that could not bring them in time",
                stats.disk_too_slow,
            ),
            (
                "kvasir_kvstore_host_object_too_slow_total",
                "Keys in an object store that could not bring them in time",
                stats.object_too_slow,
            ),
            (
                "kvasir_kvstore_host_onboard_refused_total",
                "Blocks not brought from disk for want of room",
                stats.onboard_refused,
            ),
        ],
    );
}

/// Appends the figures of a worker's lookups over several store nodes.
pub(crate) fn stores(stats: &StoresStats, text: &mut String) {
    head(text, "kvasir_stores_keys_total", "counter", "Keys looked up, by where they were found");
    let places = [
        ("first", stats.found_first),
        ("further", stats.found_further),
        ("nowhere", stats.not_found),
    ];
    for (place, keys) in places {
        sample(text, "kvasir_stores_keys_total", &[("place", place)], keys);
    }
    head(
        text,
        "kvasir_stores_copies_total",
        "counter",
        "Objects for a store node to read from another",
    );
    let outcomes = [
        ("stored", stats.copies_stored),
        ("dropped", stats.copies_dropped),
        ("skipped", stats.copies_skipped),
    ];
    for (outcome, copies) in outcomes {
        sample(text, "kvasir_stores_copies_total", &[("outcome", outcome)], copies);
    }
}

/// Appends the figures of a process's reads from others, and of what it serves to them.
pub(crate) fn reads(stats: &PeerStats, text: &mut String) {
    let ways = [
        ("local", stats.local),
        ("shared_memory", stats.shared_memory),
        ("quic", stats.quic),
        ("served_quic", stats.served_quic),
    ];
    head(text, "kvasir_kvstore_read_objects_total", "counter", "Objects read, by their way");
    for (way, path) in ways {
        sample(text, "kvasir_kvstore_read_objects_total", &[("way", way)], path.objects);
    }
    head(text, "kvasir_kvstore_read_bytes_total", "counter", "Payload bytes read, by their way");
    for (way, path) in ways {
        sample(text, "kvasir_kvstore_read_bytes_total", &[("way", way)], path.bytes);
    }
    head(text, "kvasir_kvstore_reads_failed_total", "counter", "Reads that failed, by reason");
    let failures = &stats.failures;
    let reasons = [
        ("unknown_region", failures.unknown_region),
        ("stale", failures.stale),
        ("corrupt", failures.corrupt),
        ("length", failures.length),
        ("busy", failures.busy),
        ("late", failures.late),
        ("peer_lost", failures.peer_lost),
        ("closed", failures.closed),
    ];
    for (reason, count) in reasons {
        sample(text, "kvasir_kvstore_reads_failed_total", &[("reason", reason)], count);
    }
    counters(
        text,
        &[
            (
                "kvasir_kvstore_connections_made_total",
                "Connections made to peers",
                stats.connections_made,
            ),
            (
                "kvasir_kvstore_connections_refused_total",
                "Connections of peers refused",
                stats.connections_refused,
            ),
            (
                "kvasir_kvstore_requests_malformed_total",
                "Requests of peers that broke the protocol",
                stats.requests_malformed,
            ),
            (
                "kvasir_kvstore_holds_expired_total",
                "Objects that peers held for too long",
                stats.holds_expired,
            ),
        ],
    );
    gauges(
        text,
        &[
            ("kvasir_kvstore_open_reads", "Reads not answered yet", stats.open_reads),
            (
                "kvasir_kvstore_connections_served",
                "Connections of peers now",
                stats.connections_served,
            ),
        ],
    );
}

type Figure = (&'static str, &'static str, u64);

pub(super) fn counters(text: &mut String, figures: &[Figure]) {
    for (name, help, value) in figures {
        head(text, name, "counter", help);
        sample(text, name, &[], value);
    }
}

fn gauges(text: &mut String, figures: &[Figure]) {
    for (name, help, value) in figures {
        head(text, name, "gauge", help);
        sample(text, name, &[], value);
    }
}

pub(super) fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}").expect(WRITES);
}

/// Label values are fixed words of ours, so nothing needs escaping.
pub(super) fn sample(text: &mut String, name: &str, labels: &[(&str, &str)], value: impl Display) {
    text.push_str(name);
    for (index, (label, word)) in labels.iter().enumerate() {
        let open = if index == 0 { '{' } else { ',' };
        write!(text, "{open}{label}=\"{word}\"").expect(WRITES);
    }
    if !labels.is_empty() {
        text.push('}');
    }
    writeln!(text, " {value}").expect(WRITES);
}

const WRITES: &str = "writing to a string never fails";

#[cfg(test)]
mod tests {
    use kvstore::{DiskStats, HostStats, ObjectStats};
    use prefill::PrefillStats;

    use super::{head, prefill, sample, store};

    #[test]
    fn samples_have_the_text_format() {
        let mut text = String::new();
        head(&mut text, "kvasir_kvstore_slots", "gauge", "Slots");
        sample(&mut text, "kvasir_kvstore_slots", &[("pool", "a"), ("state", "free")], 3);
        sample(&mut text, "kvasir_kvstore_slots", &[], 4);
        let expected = "# HELP kvasir_kvstore_slots Slots.\n# TYPE kvasir_kvstore_slots gauge\n\
                        kvasir_kvstore_slots{pool=\"a\",state=\"free\"} 3\nkvasir_kvstore_slots 4\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn counters_end_in_total_and_each_name_comes_once() {
        let mut text = String::new();
        prefill(&PrefillStats::default(), &mut text);
        let objects = Some(ObjectStats::default());
        let disk = Some(DiskStats { objects, ..DiskStats::default() });
        store(&HostStats { disk, ..HostStats::default() }, &mut text);
        let mut names = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        }
        assert!(10 < names.len());
    }
}
