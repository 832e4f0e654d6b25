//! Figures of a store node's drive: files, retention, catalog, load.

use kvstore::DiskStats;

use super::{counters, gauges, head, sample};

/// Figures of a store node's drive.
pub(super) fn write(stats: &DiskStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_kvstore_disk_written_total", "Blocks written", stats.written),
            ("kvasir_kvstore_disk_written_bytes_total", "Their bytes", stats.written_bytes),
            ("kvasir_kvstore_disk_read_total", "Blocks read and intact", stats.read),
            ("kvasir_kvstore_disk_read_bytes_total", "Their bytes", stats.read_bytes),
            ("kvasir_kvstore_disk_corrupt_total", "Blocks that failed their check", stats.corrupt),
            (
                "kvasir_kvstore_disk_read_keyless_total",
                "Blocks whose tenant's key is gone",
                stats.read_keyless,
            ),
            ("kvasir_kvstore_disk_read_errors_total", "Reads refused", stats.read_errors),
            ("kvasir_kvstore_disk_write_errors_total", "Writes refused", stats.write_errors),
            ("kvasir_kvstore_disk_syncs_total", "Times made durable", stats.syncs),
            (
                "kvasir_kvstore_disk_names_told_again_total",
                "Names told to routers once more",
                stats.told_again,
            ),
            (
                "kvasir_kvstore_disk_segments_dropped_total",
                "Segments removed to make room before their time",
                stats.segments_dropped,
            ),
            (
                "kvasir_kvstore_disk_segments_recycled_total",
                "Segments begun in the file of one that left",
                stats.segments_recycled,
            ),
            (
                "kvasir_kvstore_disk_lost_bytes_total",
                "Bytes of torn ends and damage at the start",
                stats.lost_bytes,
            ),
        ],
    );
    head(text, "kvasir_kvstore_disk_dropped_total", "counter", "Blocks not written, by reason");
    let reasons = [
        ("queue", stats.dropped_queue),
        ("budget", stats.dropped_budget),
        ("over_quota", stats.dropped_quota),
        ("error", stats.dropped_error),
        ("evicted", stats.dropped_evicted),
        ("corrupt", stats.dropped_corrupt),
        ("closed", stats.dropped_closed),
    ];
    for (reason, count) in reasons {
        sample(text, "kvasir_kvstore_disk_dropped_total", &[("reason", reason)], count);
    }
    gauges(
        text,
        &[
            ("kvasir_kvstore_disk_held_blocks", "Blocks that can be read", stats.objects_held),
            ("kvasir_kvstore_disk_held_bytes", "Their bytes", stats.bytes_held),
            ("kvasir_kvstore_disk_file_bytes", "Bytes of segment files", stats.file_bytes),
            ("kvasir_kvstore_disk_file_bytes_max", "The bound on those", stats.file_bytes_max),
            ("kvasir_kvstore_disk_segments", "Segment files", stats.segments),
            ("kvasir_kvstore_disk_files_free", "Files kept for new segments", stats.files_free),
            ("kvasir_kvstore_disk_queue_blocks", "Blocks that wait", stats.queue_objects),
            ("kvasir_kvstore_disk_suspended", "1 after a write error", stats.suspended),
        ],
    );
    scrub(stats, text);
    tenants(stats, text);
    load(stats, text);
    retention(stats, text);
    catalog(stats, text);
}

fn scrub(stats: &DiskStats, text: &mut String) {
    counters(
        text,
        &[
            (
                "kvasir_kvstore_disk_scrubbed_bytes_total",
                "Bytes that the scrub read again",
                stats.scrubbed_bytes,
            ),
            (
                "kvasir_kvstore_disk_scrub_damaged_total",
                "Blocks that the scrub gave up",
                stats.scrub_damaged,
            ),
            (
                "kvasir_kvstore_disk_scrub_passes_total",
                "Times that the scrub went over everything",
                stats.scrub_passes,
            ),
        ],
    );
    let name = "kvasir_kvstore_disk_quarantined_pages";
    gauges(text, &[(name, "Places that the scrub found damaged", stats.quarantined)]);
}

fn tenants(stats: &DiskStats, text: &mut String) {
    gauges(
        text,
        &[
            (
                "kvasir_kvstore_tenants_evicted",
                "Evicted tenants of whom segments may hold bytes; 65,536 fit",
                stats.tenants_evicted,
            ),
            (
                "kvasir_kvstore_tenant_keys_loaded",
                "Keys of tenants in memory; 4,096 fit",
                stats.keys_loaded,
            ),
        ],
    );
}

fn retention(stats: &DiskStats, text: &mut String) {
    counters(
        text,
        &[
            (
                "kvasir_kvstore_retention_violations_total",
                "Blocks that left before their retention was over; 0 unless the disk was made smaller",
                stats.retention_violations,
            ),
            (
                "kvasir_kvstore_disk_segments_expired_total",
                "Segments that left after their retention",
                stats.segments_expired,
            ),
            (
                "kvasir_kvstore_disk_expired_total",
                "Blocks that left with those",
                stats.objects_expired,
            ),
            (
                "kvasir_kvstore_disk_reput_total",
                "Blocks written again because of a late hit",
                stats.reput,
            ),
            (
                "kvasir_kvstore_disk_over_budget_bytes_total",
                "Bytes of blocks that the write budget refused",
                stats.dropped_budget_bytes,
            ),
        ],
    );
    let name = "kvasir_kvstore_disk_read_by_age_total";
    head(text, name, "counter", "Blocks read, by their age");
    for (age, count) in ["1h", "24h", "72h", "older"].into_iter().zip(stats.read_by_age) {
        sample(text, name, &[("age", age)], count);
    }
    gauges(
        text,
        &[
            (
                "kvasir_kvstore_disk_budget_bytes",
                "Bytes that may be written now",
                stats.budget_bytes,
            ),
            (
                "kvasir_kvstore_disk_budget_bytes_max",
                "The same when nothing was written for long",
                stats.budget_bytes_max,
            ),
            (
                "kvasir_kvstore_disk_budget_refill_bytes",
                "Bytes that come to it in a retention",
                stats.budget_refill_bytes,
            ),
        ],
    );
}

fn catalog(stats: &DiskStats, text: &mut String) {
    counters(
        text,
        &[(
            "kvasir_kvstore_catalog_errors_total",
            "What the catalog did not answer; lookups are misses",
            stats.catalog_errors,
        )],
    );
    gauges(
        text,
        &[
            ("kvasir_kvstore_catalog_entries", "Names in the catalog", stats.objects_held),
            (
                "kvasir_kvstore_catalog_cache_bytes",
                "Memory for what was read of the catalog",
                stats.catalog_cache_bytes,
            ),
            (
                "kvasir_kvstore_catalog_cache_bytes_max",
                "The bound on that",
                stats.catalog_cache_bytes_max,
            ),
            (
                "kvasir_kvstore_catalog_buffer_bytes",
                "Memory for what was written to the catalog and for its open files",
                stats.catalog_buffer_bytes,
            ),
            (
                "kvasir_kvstore_catalog_disk_bytes",
                "Tables of the catalog on disk",
                stats.catalog_disk_bytes,
            ),
        ],
    );
}

/// How busy the drive is with reads, and how it is used.
fn load(stats: &DiskStats, text: &mut String) {
    let load = stats.load;
    gauges(
        text,
        &[
            (
                "kvasir_kvstore_disk_reads_queued",
                "Reads that wait or are under way",
                load.queued_reads,
            ),
            ("kvasir_kvstore_disk_reads_queued_bytes", "Their bytes", load.queued_bytes),
            (
                "kvasir_kvstore_disk_read_ns",
                "Cost of a read lately besides its bytes",
                load.ns_per_read,
            ),
            ("kvasir_kvstore_disk_mib_ns", "Cost of 1,048,576 bytes read lately", load.ns_per_mib),
        ],
    );
    head(
        text,
        "kvasir_kvstore_disk_io",
        "gauge",
        "How the drive is read and written: 1 for that way",
    );
    sample(text, "kvasir_kvstore_disk_io", &[("io", stats.io.as_str())], 1);
}
