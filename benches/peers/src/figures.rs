//! Times, counters of the system, and objects to move.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;

/// Ticks of the system's processor accounting per second.
const TICKS: f64 = 100.0;

/// The time now. This package is outside of the workspace and has nothing that a test could put in its place.
#[expect(clippy::disallowed_methods, reason = "a measuring program reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Processor seconds of this process and of another one.
pub(crate) fn processor_seconds(others: &[&str]) -> anyhow::Result<f64> {
    let mut ticks = 0.0;
    for process in others.iter().chain(&["self"]) {
        let text = fs::read_to_string(PathBuf::from("/proc").join(process).join("stat"))?;
        let rest = text.rsplit_once(')').context("stat has another form")?.1;
        for field in rest.split_whitespace().skip(11).take(2) {
            ticks += field.parse::<f64>()?;
        }
    }
    Ok(ticks / TICKS)
}

/// A line of `/proc/self/...`, as a number.
pub(crate) fn counter(file: &str, name: &str) -> anyhow::Result<f64> {
    let text = fs::read_to_string(PathBuf::from("/proc/self").join(file))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let field = line.and_then(|rest| rest.split_whitespace().next());
    Ok(field.with_context(|| format!("no {name}"))?.parse()?)
}

/// Objects of different bytes that look random, made as ours are.
pub(crate) fn objects(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    let object = |number: u64| {
        let mut value = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut memory = vec![0; bytes];
        for chunk in memory.chunks_mut(8) {
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
            chunk.copy_from_slice(&value.to_le_bytes()[..chunk.len()]);
        }
        memory
    };
    (0..).take(count).map(object).collect()
}

/// The finaliser of splitmix64: a permutation whose outputs look random.
pub(crate) fn scatter(index: u64) -> u64 {
    let mut mixed = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A name of sixteen bytes, spread like a hash.
pub(crate) fn name(index: usize) -> [u8; 16] {
    let index = wide(index);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&[scatter(index), scatter(!index)].map(u64::to_be_bytes).concat());
    bytes
}

/// The value that `percent` of a hundred do not exceed.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

pub(crate) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("usize has at most 64 bits")
}

/// A count as a number; counts here are below 2^52.
pub(crate) fn float(count: usize) -> f64 {
    count.to_string().parse().expect("digits are a number")
}
