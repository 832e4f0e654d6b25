//! Figures of the object store below a store node's drive.

use kvstore::ObjectStats;

use super::{counters, gauges, head, sample};

/// Figures of an object store.
pub(super) fn write(stats: &ObjectStats, text: &mut String) {
    held(stats, text);
    uploads(stats, text);
    reads(stats, text);
    let name = "kvasir_kvstore_object_errors_total";
    head(text, name, "counter", "What went wrong, by kind");
    for (kind, count) in [
        ("missing", stats.missing),
        ("corrupt", stats.corrupt),
        ("late", stats.late),
        ("refused", stats.refused),
        ("unreachable", stats.unreachable),
        ("local", stats.local_errors),
    ] {
        sample(text, name, &[("kind", kind)], count);
    }
    let name = "kvasir_kvstore_object_deleted_total";
    head(text, name, "counter", "Objects deleted, by reason");
    for (reason, count) in
        [("expired", stats.expired), ("room", stats.dropped), ("evicted", stats.deleted)]
    {
        sample(text, name, &[("reason", reason)], count);
    }
}

fn held(stats: &ObjectStats, text: &mut String) {
    gauges(
        text,
        &[
            ("kvasir_kvstore_object_objects", "Segments in the object store", stats.objects),
            ("kvasir_kvstore_object_bytes", "Their bytes", stats.bytes),
            ("kvasir_kvstore_object_bytes_max", "The bound on those; 0 is none", stats.bytes_max),
            (
                "kvasir_kvstore_object_remote_only_objects",
                "Segments that lie there alone",
                stats.objects_remote_only,
            ),
            (
                "kvasir_kvstore_object_remote_only_records",
                "Records in those",
                stats.records_remote_only,
            ),
            (
                "kvasir_kvstore_object_suspended",
                "1 while it is left alone after an error",
                stats.suspended,
            ),
        ],
    );
    counters(
        text,
        &[
            (
                "kvasir_kvstore_object_adopted_total",
                "Segments that a start found there and did not know",
                stats.adopted,
            ),
            (
                "kvasir_kvstore_object_ignored_total",
                "Objects that a start left alone",
                stats.ignored,
            ),
        ],
    );
}

fn uploads(stats: &ObjectStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_kvstore_object_uploads_total", "Segments uploaded", stats.uploads),
            ("kvasir_kvstore_object_upload_bytes_total", "Their bytes", stats.upload_bytes),
            (
                "kvasir_kvstore_object_uploads_spared_total",
                "Segments found there before their upload",
                stats.uploads_spared,
            ),
            (
                "kvasir_kvstore_object_uploads_failed_total",
                "Uploads withdrawn after an error",
                stats.uploads_failed,
            ),
            (
                "kvasir_kvstore_object_uploads_given_up_total",
                "Segments that are not tried any more",
                stats.uploads_given_up,
            ),
            (
                "kvasir_kvstore_object_uploads_no_room_total",
                "Times that bytes_max left no room for a segment",
                stats.uploads_no_room,
            ),
            (
                "kvasir_kvstore_object_left_uncopied_total",
                "Segments that left the drive before their upload",
                stats.left_uncopied,
            ),
        ],
    );
    gauges(
        text,
        &[("kvasir_kvstore_object_parts_now", "Parts of uploads under way", stats.parts_now)],
    );
}

fn reads(stats: &ObjectStats, text: &mut String) {
    let load = stats.load;
    counters(
        text,
        &[
            ("kvasir_kvstore_object_read_total", "Blocks read and intact", stats.read),
            ("kvasir_kvstore_object_read_bytes_total", "Their bytes", stats.read_bytes),
            ("kvasir_kvstore_object_gets_total", "Range reads", stats.gets),
            ("kvasir_kvstore_object_get_bytes_total", "Their bytes", stats.get_bytes),
            (
                "kvasir_kvstore_object_reads_refused_total",
                "Blocks not read because the queue was full",
                stats.reads_refused,
            ),
            (
                "kvasir_kvstore_object_reads_unanswered_total",
                "Blocks not read for want of an answer",
                stats.reads_unanswered,
            ),
        ],
    );
    gauges(
        text,
        &[
            ("kvasir_kvstore_object_gets_now", "Range reads under way", stats.gets_now),
            (
                "kvasir_kvstore_object_reads_queued",
                "Reads that wait or are under way",
                load.queued_reads,
            ),
            ("kvasir_kvstore_object_reads_queued_bytes", "Their bytes", load.queued_bytes),
            (
                "kvasir_kvstore_object_read_ns",
                "Cost of a read lately besides its bytes",
                load.ns_per_read,
            ),
            (
                "kvasir_kvstore_object_mib_ns",
                "Cost of 1,048,576 bytes read lately",
                load.ns_per_mib,
            ),
        ],
    );
}
