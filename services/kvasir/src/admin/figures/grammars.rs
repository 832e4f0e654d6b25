//! The figures of a decode worker's grammars.

use decode::GuideStats;

use super::{counters, gauges};

/// Appends them.
pub(crate) fn grammars(stats: &GuideStats, text: &mut String) {
    counters(
        text,
        &[
            ("kvasir_decode_grammars_compiled_total", "Grammars compiled", stats.compiled),
            (
                "kvasir_decode_grammar_cache_hits_total",
                "Requests whose grammar was compiled before",
                stats.cache_hits,
            ),
            (
                "kvasir_decode_grammars_refused_total",
                "Requests refused because of their grammar",
                stats.refused,
            ),
            (
                "kvasir_decode_grammars_failed_total",
                "Answers ended because their grammar failed",
                stats.failed,
            ),
            (
                "kvasir_decode_grammars_refused_full_total",
                "Requests refused because as many as may waited for their grammar",
                stats.refused_full,
            ),
            (
                "kvasir_decode_grammars_deserted_total",
                "Requests and answers given up because no grammar thread was left",
                stats.deserted,
            ),
            ("kvasir_decode_grammar_masks_total", "Masks computed", stats.masks),
            (
                "kvasir_decode_grammar_timeouts_total",
                "Compilations and masks that went beyond their limit of time",
                stats.timeouts,
            ),
        ],
    );
    gauges(
        text,
        &[
            (
                "kvasir_decode_grammar_threads_lost",
                "Grammar threads that do not come back",
                stats.threads_lost,
            ),
            (
                "kvasir_decode_grammars_compiling",
                "Requests that wait for their grammar",
                stats.compiling,
            ),
            (
                "kvasir_decode_grammar_cache_bytes",
                "Compiled grammars kept, estimated",
                stats.cache_bytes,
            ),
        ],
    );
}
