//! Rows of an Engram table by address.

use kernels::formats::{E4M3, e8m0, round_bf16};

use super::weights::Bytes;

/// Elements that share one scale.
const GROUP: usize = 32;

/// A table of learned rows, looked up by address.
///
/// Contract: the same address always yields the same values; an implementation may block on storage. Callable from
/// many threads at once.
pub trait EngramRows: Send + Sync {
    /// Height of the table; addresses are below it.
    fn height(&self) -> u64;

    /// Elements of a row.
    fn width(&self) -> usize;

    /// Writes row `ids[i]` to `out[i * width ..][.. width]`: the stored code times its scale, a bf16 value.
    ///
    /// # Panics
    /// When an address is outside the table, or `out` does not hold one row per address.
    fn rows(&self, ids: &[u64], out: &mut [f32]);
}

/// A table inside a memory-mapped checkpoint file: rows are read from the page cache or the drive as they are asked for.
#[derive(Clone, Debug)]
pub struct EngramTable {
    codes: Bytes,
    scales: Bytes,
    width: usize,
    height: usize,
}

impl EngramTable {
    /// A table of E4M3 codes `[height][width]` and E8M0 scales `[height][width / 32]`.
    pub(super) fn new(codes: Bytes, scales: Bytes, height: usize, width: usize) -> Self {
        assert!(width.is_multiple_of(GROUP), "whole scale groups");
        assert_eq!(codes.len(), height * width);
        assert_eq!(scales.len(), height * width / GROUP);
        Self { codes, scales, width, height }
    }
}

impl EngramRows for EngramTable {
    fn height(&self) -> u64 {
        self.height as u64
    }

    fn width(&self) -> usize {
        self.width
    }

    fn rows(&self, ids: &[u64], out: &mut [f32]) {
        assert_eq!(out.len(), ids.len() * self.width, "one row per address");
        let groups = self.width / GROUP;
        for (id, row) in ids.iter().zip(out.chunks_exact_mut(self.width)) {
            let index = usize::try_from(*id).expect("addresses fit the address space");
            assert!(index < self.height, "row {id} of a table of {}", self.height);
            let codes = &self.codes.bytes()[index * self.width..][..self.width];
            let scales = &self.scales.bytes()[index * groups..][..groups];
            let groups = row.chunks_exact_mut(GROUP).zip(codes.chunks_exact(GROUP)).zip(scales);
            for ((values, codes), scale) in groups {
                let scale = e8m0(*scale);
                for (value, code) in values.iter_mut().zip(codes) {
                    // Four significant bits times a power of two: exact but for results below the bf16 range.
                    *value = round_bf16(E4M3[usize::from(*code)] * scale);
                }
            }
        }
    }
}
