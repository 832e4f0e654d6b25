//! Weights as they lie in the checkpoint: views of mapped bytes that the kernels decode on the fly.
//!
//! Formats and their tile shapes: specs/v41-architecture.md §2 and §3. Nothing here is aligned beyond one byte.

use crate::cpu::gemm::decode_row;

/// Rows and columns that share one FP8 scale.
pub const FP8_TILE: usize = 32;
/// Columns that share one FP4 scale.
pub const FP4_GROUP: usize = 32;

/// How the elements of a matrix are stored.
#[derive(Clone, Copy, Debug)]
pub enum WeightData<'a> {
    /// `[rows][cols]` bfloat16, little endian.
    Bf16(&'a [u8]),
    /// `[rows][cols]` float32, little endian.
    F32(&'a [u8]),
    /// `[rows][cols]` E4M3 codes and `[rows / 32][cols / 32]` E8M0 scales, both dimensions rounded up.
    Fp8 {
        /// The codes.
        codes: &'a [u8],
        /// The scales.
        scales: &'a [u8],
    },
    /// `[rows][cols / 2]` pairs of E2M1 codes, even column in the low nibble, and `[rows][cols / 32]` E8M0 scales.
    Fp4 {
        /// The codes.
        codes: &'a [u8],
        /// The scales.
        scales: &'a [u8],
    },
}

/// A matrix `[rows, cols]`, row-major; a linear layer computes `y = W x` with `rows` outputs.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    rows: usize,
    cols: usize,
    data: WeightData<'a>,
}

impl<'a> Weight<'a> {
    /// A view of stored bytes.
    ///
    /// # Panics
    /// When the byte lengths do not fit the shape. The loader has checked them before.
    #[must_use]
    pub fn new(rows: usize, cols: usize, data: WeightData<'a>) -> Self {
        match data {
            WeightData::Bf16(bytes) => assert_eq!(bytes.len(), rows * cols * 2),
            WeightData::F32(bytes) => assert_eq!(bytes.len(), rows * cols * 4),
            WeightData::Fp8 { codes, scales } => {
                assert_eq!(codes.len(), rows * cols);
                assert_eq!(scales.len(), rows.div_ceil(FP8_TILE) * cols.div_ceil(FP8_TILE));
            }
            WeightData::Fp4 { codes, scales } => {
                assert!(cols.is_multiple_of(FP4_GROUP));
                assert_eq!(codes.len(), rows * cols / 2);
                assert_eq!(scales.len(), rows * cols / FP4_GROUP);
            }
        }
        Self { rows, cols, data }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored bytes.
    #[must_use]
    pub fn data(&self) -> WeightData<'a> {
        self.data
    }

    /// Decodes one row; every value is exact.
    ///
    /// # Panics
    /// When the row is not there or `out` does not hold one value per column.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols);
        decode_row(*self, row, out);
    }

    /// Rows `first .. first + rows` as a matrix of their own.
    ///
    /// # Panics
    /// When the range leaves the matrix, or cuts an FP8 tile.
    #[must_use]
    pub fn row_range(&self, first: usize, rows: usize) -> Self {
        assert!(first + rows <= self.rows);
        let cut =
            |bytes: &'a [u8], per_row: usize| &bytes[first * per_row..(first + rows) * per_row];
        let data = match self.data {
            WeightData::Bf16(bytes) => WeightData::Bf16(cut(bytes, self.cols * 2)),
            WeightData::F32(bytes) => WeightData::F32(cut(bytes, self.cols * 4)),
            WeightData::Fp8 { codes, scales } => {
                assert!(first.is_multiple_of(FP8_TILE), "an FP8 matrix is cut at whole tiles");
                let per_tile_row = self.cols.div_ceil(FP8_TILE);
                let tiles = first / FP8_TILE..(first + rows).div_ceil(FP8_TILE);
                let scales = &scales[tiles.start * per_tile_row..tiles.end * per_tile_row];
                WeightData::Fp8 { codes: cut(codes, self.cols), scales }
            }
            WeightData::Fp4 { codes, scales } => WeightData::Fp4 {
                codes: cut(codes, self.cols / 2),
                scales: cut(scales, self.cols / FP4_GROUP),
            },
        };
        Self { rows, cols: self.cols, data }
    }
}
