//! One function per crate: which key sets which field. Each takes its settings apart without `..`, so that a field added
//! there does not compile here until it has a key.

use anyhow::bail;
use decode::DecodeConfig;
use kvstore::{DiskConfig, HostTierConfig, ObjectConfig, PeerTransportConfig};
use prefill::PrefillConfig;
use router::{AdmissionConfig, CostConfig, LoadConfig, RecordConfig, ResyncConfig, RouterConfig};

use super::reader::{Reader, Unit};
use super::routing;

pub(super) fn prefill(table: toml::Table, config: &mut PrefillConfig) -> anyhow::Result<()> {
    let PrefillConfig {
        step_rows_max,
        waiting_max,
        running_max,
        held_max,
        window_interval,
        replay_rows,
        locate_wait_ms_max,
        read_wait_ms_max,
        offers_max,
        // The same for all workers, in [stores].
        durability: _,
        report_interval_ms,
        rows_per_second_initial,
        read_bytes_per_second_initial,
    } = config;
    let mut reader = Reader::new("prefill", table);
    reader.set("step_rows_max", step_rows_max)?;
    reader.set("waiting_max", waiting_max)?;
    reader.set("running_max", running_max)?;
    reader.set("held_max", held_max)?;
    reader.set("window_interval", window_interval)?;
    reader.set_some("replay_rows", replay_rows)?;
    reader.set("locate_wait_ms_max", locate_wait_ms_max)?;
    reader.set("read_wait_ms_max", read_wait_ms_max)?;
    reader.set("offers_max", offers_max)?;
    reader.set("report_interval_ms", report_interval_ms)?;
    reader.set("rows_per_second_initial", rows_per_second_initial)?;
    reader.set("read_bytes_per_second_initial", read_bytes_per_second_initial)?;
    reader.finish()
}

pub(super) fn decode(table: toml::Table, config: &mut DecodeConfig) -> anyhow::Result<()> {
    let DecodeConfig {
        sequences_max,
        waiting_max,
        decode_rows_step_max,
        tail_rows_step_max,
        resume_exact_tokens,
        replay_rows,
        locate_wait_ms_max,
        read_wait_ms_max,
        prefill_silence_ms_max,
        prefill_attempts_max,
        reads_start_max,
        offers_max,
        // The same for all workers, in [stores].
        durability: _,
        grammar_threads,
        grammar_threads_lost_max,
        grammar_compile_ms_max,
        grammar_mask_ms_max,
        grammar_cache_bytes_max,
        report_interval_ms,
        rows_per_second_initial,
        read_bytes_per_second_initial,
    } = config;
    let mut reader = Reader::new("decode", table);
    reader.set("sequences_max", sequences_max)?;
    reader.set("waiting_max", waiting_max)?;
    reader.set("decode_rows_step_max", decode_rows_step_max)?;
    reader.set("tail_rows_step_max", tail_rows_step_max)?;
    reader.set("resume_exact_tokens", resume_exact_tokens)?;
    reader.set_some("replay_rows", replay_rows)?;
    reader.set("locate_wait_ms_max", locate_wait_ms_max)?;
    reader.set("read_wait_ms_max", read_wait_ms_max)?;
    reader.set("prefill_silence_ms_max", prefill_silence_ms_max)?;
    reader.set("prefill_attempts_max", prefill_attempts_max)?;
    reader.set("reads_start_max", reads_start_max)?;
    reader.set("offers_max", offers_max)?;
    reader.set("grammar_threads", grammar_threads)?;
    reader.set("grammar_threads_lost_max", grammar_threads_lost_max)?;
    reader.set("grammar_compile_ms_max", grammar_compile_ms_max)?;
    reader.set("grammar_mask_ms_max", grammar_mask_ms_max)?;
    reader.set("grammar_cache_bytes_max", grammar_cache_bytes_max)?;
    reader.set("report_interval_ms", report_interval_ms)?;
    reader.set("rows_per_second_initial", rows_per_second_initial)?;
    reader.set("read_bytes_per_second_initial", read_bytes_per_second_initial)?;
    reader.finish()
}

pub(super) fn store(table: toml::Table, config: &mut HostTierConfig) -> anyhow::Result<()> {
    let HostTierConfig {
        block_bytes_max,
        window_bytes_max,
        window_ttl,
        queue_max,
        offer_wait_max,
        batch_max,
    } = config;
    let mut reader = Reader::new("store", table);
    reader.set("block_bytes_max", block_bytes_max)?;
    reader.set("window_bytes_max", window_bytes_max)?;
    reader.set_time("window_ttl_s", Unit::Seconds, window_ttl)?;
    reader.set("queue_max", queue_max)?;
    reader.set_time("offer_wait_ms_max", Unit::Milliseconds, offer_wait_max)?;
    reader.set("batch_max", batch_max)?;
    reader.finish()
}

pub(super) fn disk(table: toml::Table, config: &mut DiskConfig) -> anyhow::Result<()> {
    let DiskConfig {
        // Each store node has its own, named by its member's entry.
        folder: _,
        bytes_max,
        segment_bytes,
        retention_s,
        queue_objects_max,
        queue_bytes_max,
        sync_ms,
        readers,
        reads_max,
        onboard_ms_max,
        onboard_lookups_max,
        scrub_mib_per_s,
        catalog_cache_bytes,
        catalog_write_buffer_bytes,
        tenant_keys,
        // A table of its own.
        object: _,
    } = config;
    let mut reader = Reader::new("disk", table);
    reader.set("bytes_max", bytes_max)?;
    reader.set("segment_bytes", segment_bytes)?;
    reader.set("retention_s", retention_s)?;
    reader.set("queue_objects_max", queue_objects_max)?;
    reader.set("queue_bytes_max", queue_bytes_max)?;
    reader.set("sync_ms", sync_ms)?;
    reader.set("readers", readers)?;
    reader.set("reads_max", reads_max)?;
    reader.set("onboard_ms_max", onboard_ms_max)?;
    reader.set("onboard_lookups_max", onboard_lookups_max)?;
    reader.set("scrub_mib_per_s", scrub_mib_per_s)?;
    reader.set("catalog_cache_bytes", catalog_cache_bytes)?;
    reader.set("catalog_write_buffer_bytes", catalog_write_buffer_bytes)?;
    reader.set("tenant_keys", tenant_keys)?;
    reader.finish()
}

pub(super) fn object_store(table: toml::Table, config: &mut ObjectConfig) -> anyhow::Result<()> {
    let ObjectConfig {
        url,
        endpoint,
        region,
        allow_http,
        credentials_file,
        // Of each store node its member's name.
        node: _,
        retention_hours,
        bytes_max,
        part_bytes,
        parts_max,
        gets_max,
        reads_max,
        read_ms_max,
        retries_max,
        segments_max,
    } = config;
    let mut reader = Reader::new("object_store", table);
    reader.set("url", url)?;
    reader.set("endpoint", endpoint)?;
    reader.set("region", region)?;
    reader.set("allow_http", allow_http)?;
    reader.set("credentials_file", credentials_file)?;
    reader.set("retention_hours", retention_hours)?;
    reader.set("bytes_max", bytes_max)?;
    reader.set("part_bytes", part_bytes)?;
    reader.set("parts_max", parts_max)?;
    reader.set("gets_max", gets_max)?;
    reader.set("reads_max", reads_max)?;
    reader.set("read_ms_max", read_ms_max)?;
    reader.set("retries_max", retries_max)?;
    reader.set("segments_max", segments_max)?;
    reader.finish()
}

pub(super) fn transport(
    table: toml::Table,
    config: &mut PeerTransportConfig,
) -> anyhow::Result<()> {
    let PeerTransportConfig {
        queue_max,
        batches_max,
        peer_batches_max,
        run_max,
        read_ms_max,
        batch_ms_max,
        hold_ms_max,
        idle_ms_max,
        socket_bytes,
        stream_window_bytes,
        connections_max,
        peers_max,
    } = config;
    let mut reader = Reader::new("transport", table);
    reader.set("queue_max", queue_max)?;
    reader.set("batches_max", batches_max)?;
    reader.set("peer_batches_max", peer_batches_max)?;
    reader.set("run_max", run_max)?;
    reader.set("read_ms_max", read_ms_max)?;
    reader.set("batch_ms_max", batch_ms_max)?;
    reader.set("hold_ms_max", hold_ms_max)?;
    reader.set("idle_ms_max", idle_ms_max)?;
    reader.set("socket_bytes", socket_bytes)?;
    reader.set("stream_window_bytes", stream_window_bytes)?;
    reader.set("connections_max", connections_max)?;
    reader.set("peers_max", peers_max)?;
    if !(1..=65_536).contains(queue_max) {
        bail!("transport.queue_max is {queue_max}, expected 1..=65536");
    }
    reader.finish()
}

pub(super) fn router(table: toml::Table, config: &mut RouterConfig) -> anyhow::Result<()> {
    let RouterConfig {
        geometry: _,
        seed,
        workers_max,
        index_entries_max,
        policy,
        load_bound_percent,
        index_drive_blocks_max,
        expected_blocks,
        expected_blocks_max,
        admission: admission_config,
        tenant_weights,
        cost: cost_config,
        life,
        loads: LoadConfig { report_lag, report_stale },
        resync: ResyncConfig { retry, attempts_max },
        records: RecordConfig { decisions_max, candidates_max },
    } = config;
    let mut reader = Reader::new("router", table);
    reader.set("seed", seed)?;
    reader.set("workers_max", workers_max)?;
    reader.set("index_entries_max", index_entries_max)?;
    routing::policy(&mut reader, policy)?;
    reader.set("load_bound_percent", load_bound_percent)?;
    routing::tenant_weights(&mut reader, tenant_weights)?;
    routing::life(reader.inner("life")?, life)?;
    reader.set("index_drive_blocks_max", index_drive_blocks_max)?;
    reader.set_time("expected_blocks_ms", Unit::Milliseconds, expected_blocks)?;
    reader.set("expected_blocks_max", expected_blocks_max)?;
    admission(reader.inner("admission")?, admission_config)?;
    cost(reader.inner("cost")?, cost_config)?;
    let mut loads = reader.inner("loads")?;
    loads.set_time("report_lag_ms", Unit::Milliseconds, report_lag)?;
    loads.set_time("report_stale_ms", Unit::Milliseconds, report_stale)?;
    loads.finish()?;
    let mut resync = reader.inner("resync")?;
    resync.set_time("retry_ms", Unit::Milliseconds, retry)?;
    resync.set("attempts_max", attempts_max)?;
    resync.finish()?;
    let mut records = reader.inner("records")?;
    records.set("decisions_max", decisions_max)?;
    records.set("candidates_max", candidates_max)?;
    records.finish()?;
    reader.finish()
}

fn admission(mut reader: Reader, config: &mut AdmissionConfig) -> anyhow::Result<()> {
    let AdmissionConfig {
        waiting_max,
        look_ahead_max,
        priority_passes_max,
        tenants_max,
        decode_running_max,
        prefill_running_max,
        retry_after_unmeasured,
        retry_after_min,
        retry_after_max,
    } = config;
    reader.set("waiting_max", waiting_max)?;
    reader.set("look_ahead_max", look_ahead_max)?;
    reader.set("priority_passes_max", priority_passes_max)?;
    reader.set("tenants_max", tenants_max)?;
    reader.set("decode_running_max", decode_running_max)?;
    reader.set("prefill_running_max", prefill_running_max)?;
    reader.set_time("retry_after_unmeasured_ms", Unit::Milliseconds, retry_after_unmeasured)?;
    reader.set_time("retry_after_min_ms", Unit::Milliseconds, retry_after_min)?;
    reader.set_time("retry_after_max_ms", Unit::Milliseconds, retry_after_max)?;
    reader.finish()
}

fn cost(mut reader: Reader, config: &mut CostConfig) -> anyhow::Result<()> {
    let CostConfig {
        prefill_rows_per_second,
        decode_rows_per_second,
        restore_host,
        restore_disk,
        restore_remote,
        restore_peer,
        handoff,
        answer_tokens,
        direct_rows_max,
        replay_rows,
        tie_margin,
    } = config;
    reader.set("prefill_rows_per_second", prefill_rows_per_second)?;
    reader.set("decode_rows_per_second", decode_rows_per_second)?;
    reader.set_time("restore_host_us", Unit::Microseconds, restore_host)?;
    reader.set_time("restore_disk_us", Unit::Microseconds, restore_disk)?;
    reader.set_time("restore_remote_us", Unit::Microseconds, restore_remote)?;
    reader.set_time("restore_peer_us", Unit::Microseconds, restore_peer)?;
    reader.set_time("handoff_us", Unit::Microseconds, handoff)?;
    reader.set("answer_tokens", answer_tokens)?;
    reader.set("direct_rows_max", direct_rows_max)?;
    reader.set("replay_rows", replay_rows)?;
    reader.set_time("tie_margin_us", Unit::Microseconds, tie_margin)?;
    reader.finish()
}
