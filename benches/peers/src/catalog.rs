//! The catalog of our own disk tier at sizes that no test reaches: synthetic entries, no segment files. It is here because
//! it needs RocksDB, too.
//!
//! `fill` makes a catalog, `read` measures one in a process of its own, so that the memory of filling does not count.

use std::path::Path;

use anyhow::{bail, ensure};
use kvstore::disk::catalog::{
    Catalog, CatalogConfig, Entry, Found, Record, SegmentFile, SegmentSeal,
};
use serde_json::json;
use shared::{BlockName, ObjectKind, TenantTag};

use crate::figures::{counter, float, name, now, percentile, scatter, wide};

/// Records of one segment: Flash blocks in 256 MiB.
const SEGMENT_RECORDS: u64 = 2_337;
const SEGMENT_BYTES: u64 = 256 << 20;
/// Pages and payload bytes of a Flash block.
const RECORD_PAGES: u32 = 28;
const PAYLOAD_BYTES: u32 = 113_920;
/// Records entered at a time.
const BATCH: usize = 64;
/// Lookups of each kind, and those before the first measured one.
const LOOKUPS: usize = 100_000;
const WARM_LOOKUPS: usize = 50_000;
const TENANTS: u64 = 100;

pub(crate) fn measure(
    verb: &str,
    folder: &Path,
    count: usize,
    cache_bytes: usize,
) -> anyhow::Result<Vec<String>> {
    let config = CatalogConfig { cache_bytes, ..CatalogConfig::in_folder(folder.to_owned()) };
    match verb {
        "fill" => fill(&config, count),
        "read" => read(&config, count),
        other => bail!("{other} is not fill or read"),
    }
}

/// Enters `count` blocks as the writing thread does.
fn fill(config: &CatalogConfig, count: usize) -> anyhow::Result<Vec<String>> {
    let start = now();
    let (catalog, found) = Catalog::open(config, [0; 32])?;
    ensure!(matches!(found, Found::Rebuild(_)), "{} is in use", config.folder.display());
    for segment in 0..segments(count) {
        let records = segment_records(segment, wide(count));
        let newest = records.last().map_or(0, |record| record.entry.written_unix_seconds);
        let seal = SegmentSeal {
            bytes: SEGMENT_BYTES,
            records: wide(records.len()),
            oldest_unix_seconds: records[0].entry.written_unix_seconds,
            newest_unix_seconds: newest,
        };
        catalog.begin_segment(segment, 4_096, records[0].entry.written_unix_seconds)?;
        for records in records.chunks(BATCH) {
            catalog.insert(records)?;
        }
        ensure!(catalog.seal_segment(segment, &seal)?, "segment {segment} is incomplete");
    }
    catalog.close()?;
    let line = json!({
        "who": "catalog", "verb": "fill", "entries": count,
        "entries_per_second": float(count) / start.elapsed().as_secs_f64(),
    });
    Ok(vec![line.to_string()])
}

/// Opens the catalog, plans the start against the files that belong to it, and looks names up.
fn read(config: &CatalogConfig, count: usize) -> anyhow::Result<Vec<String>> {
    let before = counter("status", "RssAnon:")?;
    let start = now();
    let (catalog, found) = Catalog::open(config, [0; 32])?;
    let opened = start.elapsed().as_secs_f64();
    let files: Vec<SegmentFile> = catalog
        .segments()
        .iter()
        .map(|(number, segment)| SegmentFile { number: *number, bytes: segment.bytes })
        .collect();
    let plan = catalog.plan_start(&files);
    let planned = start.elapsed().as_secs_f64();
    ensure!(plan.load.is_empty(), "segments are not trusted: {plan:?}");
    let opened_memory = counter("status", "RssAnon:")? - before;
    ensure!(catalog.usage().objects == wide(count), "the catalog holds something else");
    let mut line = json!({
        "who": "catalog", "verb": "read", "entries": count, "found": format!("{found:?}"),
        "cache_mib": config.cache_bytes >> 20,
        "open_ms": opened * 1e3, "open_and_plan_ms": planned * 1e3, "opened_memory_mib": opened_memory / 1_024.0,
    });
    for (kind, offset) in [("hit", 0), ("miss", count)] {
        let pick = |index: usize| {
            let spread = scatter(wide(index)) % wide(count);
            BlockName(name(offset + usize::try_from(spread).unwrap_or(0)))
        };
        for index in 0..WARM_LOOKUPS {
            let _entry: Option<Entry> = catalog.find(pick(LOOKUPS + index))?;
        }
        let mut microseconds = Vec::with_capacity(LOOKUPS);
        for index in 0..LOOKUPS {
            let start = now();
            let entry = catalog.find(pick(index))?;
            microseconds.push(start.elapsed().as_secs_f64() * 1e6);
            ensure!(entry.is_some() == (offset == 0), "{kind}: not what it should be");
        }
        line[format!("{kind}_p50_us")] = percentile(&microseconds, 50).into();
        line[format!("{kind}_p99_us")] = percentile(&microseconds, 99).into();
    }
    let memory = counter("status", "RssAnon:")? - before;
    line["memory_mib"] = (memory / 1_024.0).into();
    line["memory_bytes_per_entry"] = (memory * 1_024.0 / float(count)).into();
    let disk_bytes = catalog.sizes()?.disk_bytes;
    line["disk_bytes_per_entry"] = (float(usize::try_from(disk_bytes)?) / float(count)).into();
    catalog.close()?;
    Ok(vec![line.to_string()])
}

fn segments(count: usize) -> u64 {
    wide(count).div_ceil(SEGMENT_RECORDS)
}

fn segment_records(segment: u64, count: u64) -> Vec<Record> {
    let first = segment * SEGMENT_RECORDS;
    let last = (first + SEGMENT_RECORDS).min(count);
    let records = (first..last).zip(0_u32..).map(|(index, offset)| Record {
        name: BlockName(name(usize::try_from(index).unwrap_or(0))),
        entry: Entry {
            segment,
            page: 1 + RECORD_PAGES * offset,
            bytes: PAYLOAD_BYTES,
            checksum: offset,
            exact: true,
            kind: ObjectKind::Block,
            written_unix_seconds: 1_700_000_000 + index / 1_000,
            tenant: TenantTag(scatter(index) % TENANTS),
            sealed: false,
        },
    });
    records.collect()
}
