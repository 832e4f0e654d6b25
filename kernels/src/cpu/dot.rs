//! The one inner product everything is built on.
//!
//! A sum over k runs in [`Real::LANES`] partial sums, lane `k mod LANES`, each in ascending k; the lanes are then added
//! pairwise, upper half to lower half. That order is the arithmetic: it does not depend on how many rows or columns a
//! tile has, so that every caller and every instruction set gets equal bits.

use std::hint::black_box;

use super::real::Real;

/// Inner products of `ROWS` vectors of `x` with `COLS` vectors of `y`, all of `width` elements and stored one after
/// another. `LANES` must be `R::LANES`.
#[inline(always)]
fn tile<R: Real, const LANES: usize, const ROWS: usize, const COLS: usize>(
    x: &[f32],
    y: &[f32],
    width: usize,
) -> [[R; COLS]; ROWS] {
    // The barriers keep the compiler from mixing the additions of lanes into the loop, and then from gathering the lanes
    // of several sums one by one (seen with rustc 1.95: three times slower).
    let sums = black_box(accumulate::<R, LANES, ROWS, COLS>(x, y, width));
    let mut quads = [[[R::ZERO; 4]; COLS]; ROWS];
    for row in 0..ROWS {
        for col in 0..COLS {
            quads[row][col] = add_to_quad(&sums[row][col]);
        }
    }
    let quads = black_box(quads);
    let mut products = [[R::ZERO; COLS]; ROWS];
    for row in 0..ROWS {
        for col in 0..COLS {
            let quad = &quads[row][col];
            products[row][col] = (quad[0] + quad[2]) + (quad[1] + quad[3]);
        }
    }
    products
}

/// The partial sums of a tile, by lane.
#[inline(always)]
fn accumulate<R: Real, const LANES: usize, const ROWS: usize, const COLS: usize>(
    x: &[f32],
    y: &[f32],
    width: usize,
) -> [[[R; LANES]; COLS]; ROWS] {
    // Plain loops throughout: closures, as `array::from_fn` takes them, are compiled for the baseline instruction set
    // and keep the sums in memory.
    let mut xs = [x; ROWS];
    for (row, vector) in xs.iter_mut().enumerate() {
        *vector = &x[row * width..(row + 1) * width];
    }
    let mut ys = [y; COLS];
    for (col, vector) in ys.iter_mut().enumerate() {
        *vector = &y[col * width..(col + 1) * width];
    }
    let mut sums = [[[R::ZERO; LANES]; COLS]; ROWS];
    let whole = width / LANES * LANES;
    let mut start = 0;
    while start < whole {
        let mut loaded = [[R::ZERO; LANES]; COLS];
        for col in 0..COLS {
            loaded[col] = load(&ys[col][start..start + LANES]);
        }
        for row in 0..ROWS {
            let x: [R; LANES] = load(&xs[row][start..start + LANES]);
            for col in 0..COLS {
                for lane in 0..LANES {
                    sums[row][col][lane] = x[lane].fused(loaded[col][lane], sums[row][col][lane]);
                }
            }
        }
        start += LANES;
    }
    if whole < width {
        // The sums stay in registers only if they are never indexed by a variable: the rest is padded with zeros.
        let mut loaded = [[R::ZERO; LANES]; COLS];
        for col in 0..COLS {
            loaded[col] = load(&ys[col][whole..]);
        }
        for row in 0..ROWS {
            let x: [R; LANES] = load(&xs[row][whole..]);
            for col in 0..COLS {
                for lane in 0..LANES {
                    sums[row][col][lane] = x[lane].fused(loaded[col][lane], sums[row][col][lane]);
                }
            }
        }
    }
    sums
}

#[inline(always)]
fn load<R: Real, const LANES: usize>(values: &[f32]) -> [R; LANES] {
    let mut lanes = [R::ZERO; LANES];
    for (lane, value) in lanes.iter_mut().zip(values) {
        *lane = R::from_f32(*value);
    }
    lanes
}

/// Adds lanes pairwise, upper half to lower half, until four are left.
#[inline(always)]
fn add_to_quad<R: Real, const LANES: usize>(lanes: &[R; LANES]) -> [R; 4] {
    let mut half = [R::ZERO; 8];
    for lane in 0..8 {
        half[lane] = if 8 < LANES { lanes[lane] + lanes[lane + LANES / 2] } else { lanes[lane] };
    }
    let mut quad = [R::ZERO; 4];
    for lane in 0..4 {
        quad[lane] = half[lane] + half[lane + 4];
    }
    quad
}

/// All inner products of the vectors of `x` with those of `y`, given to `put(row of x, column of y, product)`.
/// Tiles of `BLOCK` by 4, then what is left.
#[inline(always)]
pub(super) fn products<R: Real, const LANES: usize, const BLOCK: usize>(
    x: &[f32],
    y: &[f32],
    width: usize,
    put: &mut impl FnMut(usize, usize, R),
) {
    let (rows, cols) = (x.len() / width, y.len() / width);
    let mut row = 0;
    while row + BLOCK <= rows {
        row_band::<R, LANES, BLOCK>((&x[row * width..], row), (y, cols), width, put);
        row += BLOCK;
    }
    while row < rows {
        row_band::<R, LANES, 1>((&x[row * width..], row), (y, cols), width, put);
        row += 1;
    }
}

#[inline(always)]
fn row_band<R: Real, const LANES: usize, const ROWS: usize>(
    (x, first): (&[f32], usize),
    (y, cols): (&[f32], usize),
    width: usize,
    put: &mut impl FnMut(usize, usize, R),
) {
    let mut col = 0;
    while col + 4 <= cols {
        let sums = tile::<R, LANES, ROWS, 4>(x, &y[col * width..], width);
        for (row, sums) in sums.iter().enumerate() {
            for (offset, sum) in sums.iter().enumerate() {
                put(first + row, col + offset, *sum);
            }
        }
        col += 4;
    }
    while col < cols {
        let sums = tile::<R, LANES, ROWS, 1>(x, &y[col * width..], width);
        for (row, sums) in sums.iter().enumerate() {
            put(first + row, col, sums[0]);
        }
        col += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::products;

    #[test]
    fn tiles_and_remainders_give_equal_bits() {
        let noise = |count: usize, seed: u32| -> Vec<f32> {
            let mut state = seed;
            (0..count)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 8) as f32 / 8_388_608.0 - 1.0
                })
                .collect()
        };
        for width in [32, 64, 72, 192] {
            let (x, y) = (noise(7 * width, 1), noise(9 * width, 2));
            let all = |block: usize| {
                let mut out = vec![0.0_f32; 63];
                let put = &mut |row: usize, col: usize, sum: f32| out[row * 9 + col] = sum;
                match block {
                    1 => products::<f32, 16, 1>(&x, &y, width, put),
                    2 => products::<f32, 16, 2>(&x, &y, width, put),
                    _ => products::<f32, 16, 4>(&x, &y, width, put),
                }
                out
            };
            assert_eq!(all(1), all(2));
            assert_eq!(all(1), all(4));
            let plain: f64 = (0..width).map(|k| f64::from(x[k]) * f64::from(y[width + k])).sum();
            assert!((f64::from(all(4)[1]) - plain).abs() < 1e-4);
        }
    }
}
