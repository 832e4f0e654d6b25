//! What is done to every store on a drive: put everything, then get runs with nothing in memory.

use anyhow::ensure;
use serde_json::{Value, json};

use crate::figures::{counter, float, now, percentile, processor_seconds};

/// Blocks of a run and of a restore, and how many of each: as `kvasir bench store` does.
const RUN_BLOCKS: usize = 256;
const RESTORE_BLOCKS: usize = 61;
const REPEATS: usize = 4;

/// A store on a drive.
pub(crate) trait Store {
    /// Puts all objects and makes them as durable as the store does by itself; says how many it kept.
    fn put(&mut self) -> anyhow::Result<usize>;

    /// Forgets what it has in memory.
    fn cool(&mut self) -> anyhow::Result<()>;

    /// Gets consecutive objects in the way the store does it best, and checks that they are those that were put.
    fn get(&mut self, first: usize, count: usize) -> anyhow::Result<()>;
}

/// One line of figures.
pub(crate) fn measure(
    who: &str,
    store: &mut dyn Store,
    count: usize,
    bytes: usize,
) -> anyhow::Result<Vec<String>> {
    let payload = float(count * bytes);
    let (written, cpu, start) = (counter("io", "write_bytes:")?, processor_seconds(&[])?, now());
    let kept = store.put()?;
    let seconds = start.elapsed().as_secs_f64();
    let (written, cpu) = (counter("io", "write_bytes:")? - written, processor_seconds(&[])? - cpu);
    let mut line = json!({
        "who": who, "verb": "drive", "payload_bytes": count * bytes, "kept_of_put": float(kept) / float(count),
        "put_gigabytes_per_second": payload / 1e9 / seconds, "write_amplification": written / payload,
        "put_cpu_seconds_per_gigabyte": cpu / (payload / 1e9),
    });
    ensure!(kept == count, "{who} kept {kept} of {count} objects");
    for (blocks, field, bytes_field) in [
        (RUN_BLOCKS, "run_ms", "run_gigabytes_per_second"),
        (RESTORE_BLOCKS, "restore_ms", "restore_gigabytes_per_second"),
    ] {
        let blocks = blocks.min(count);
        let read = counter("io", "read_bytes:")?;
        let mut milliseconds = Vec::new();
        for at in 0..REPEATS {
            store.cool()?;
            let start = now();
            store.get((count - blocks) * at / REPEATS, blocks)?;
            milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let read = counter("io", "read_bytes:")? - read;
        let median = percentile(&milliseconds, 50);
        line[field] = Value::from(median);
        line[bytes_field] = Value::from(float(blocks * bytes) / 1e6 / median);
        line[format!("{field}_fetched_of_payload")] =
            Value::from(read / float(REPEATS * blocks * bytes));
    }
    Ok(vec![line.to_string()])
}
