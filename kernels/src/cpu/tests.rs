//! Conformance: every operation against plain float64 arithmetic, over a table of shapes, in both arithmetics and on all
//! instruction sets this processor has. Results are bfloat16, so that one unit in the last place is 2^-8; the accepted
//! distance is two of them where float32 sums may round the other way.
#![expect(clippy::cast_possible_truncation, reason = "numeric code: rounding is the point")]

use super::attention::{AttentionRow, AttentionShape};
use super::ops::CpuOps;
use crate::formats::round_bf16;
use crate::ops::{
    Angles, EngramGate, Expert, ExpertLayer, Gate, IndexRow, IndexShape, Mixes, Ops, Routing,
    STREAMS, Turn,
};
use crate::quant::fake_quant8;
use crate::weights::{Weight, WeightData};

const TOLERANCE: f64 = 2.0 / 256.0;

/// Seeded bfloat16 values in -1..1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        round_bf16((state >> 8) as f32 / 8_388_608.0 - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

/// A bfloat16 matrix as stored.
fn stored(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()[2..].to_vec()).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Runs an operation in both arithmetics on every instruction set and compares with the plain result. All sets of one
/// arithmetic must agree bit for bit.
fn check(what: &str, expected: &[f64], run: impl Fn(&dyn Ops) -> Vec<f32>) {
    check_from(0.02, what, expected, run);
}

/// [`check`] for operations with bfloat16 roundings inside: results smaller than `size` are off by as much as one of it.
fn check_from(size: f64, what: &str, expected: &[f64], run: impl Fn(&dyn Ops) -> Vec<f32>) {
    let compare = |name: &str, results: Vec<Vec<f32>>| {
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{what} {name}: sets differ");
        assert_eq!(results[0].len(), expected.len(), "{what} {name}");
        for (index, (found, expected)) in results[0].iter().zip(expected).enumerate() {
            let distance = (f64::from(*found) - expected).abs();
            let accepted = TOLERANCE * expected.abs().max(size);
            assert!(distance <= accepted, "{what} {name}[{index}]: {found} against {expected}");
        }
    };
    compare("exact", CpuOps::<f64>::all().iter().map(|ops| run(ops)).collect());
    compare("fast", CpuOps::<f32>::all().iter().map(|ops| run(ops)).collect());
}

fn sigmoid(value: f64) -> f64 {
    1.0 / (1.0 + (-value).exp())
}

fn product(weight: &[f32], x: &[f64], width: usize) -> Vec<f64> {
    let row = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    weight.chunks_exact(width).map(row).collect()
}

#[test]
fn norms_and_rotations() {
    for (rows, width, pairs) in [(1, 32, 4), (3, 96, 16), (70, 64, 8)] {
        let (x, weight) = (noise(rows * width, 1), noise(width, 2));
        let mut expected = Vec::new();
        for row in wide(&x).chunks_exact(width) {
            let mean = row.iter().map(|value| value * value).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean + 1e-20).sqrt();
            expected.extend(row.iter().zip(&weight).map(|(x, w)| x * scale * f64::from(*w)));
        }
        check("rms_norm", &expected, |ops| {
            let mut out = vec![0.0; x.len()];
            ops.rms_norm(&x, &weight, 1e-20, &mut out);
            out
        });
        let values: Vec<(f64, f64)> =
            (0..rows * pairs).map(|n| (n as f64 * 0.3).sin_cos()).map(|(s, c)| (c, s)).collect();
        let angles = Angles { pairs, values };
        for (turn, sign) in [(Turn::Forward, 1.0), (Turn::Inverse, -1.0)] {
            let mut expected = wide(&x);
            for (row, angles) in expected.chunks_exact_mut(width).zip(angles.values.chunks(pairs)) {
                let pairs = row[width - 2 * pairs..].chunks_exact_mut(2).zip(angles);
                for (pair, (cos, sin)) in pairs {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sign * sin;
                    pair[1] = a * sign * sin + b * cos;
                }
            }
            check("rope", &expected, |ops| {
                let mut out = x.clone();
                ops.rope(&mut out, width, &angles, turn);
                out
            });
        }
    }
}

#[test]
fn hyper_connections_collapse_and_spread() {
    for (rows, width) in [(1, 32), (5, 64), (80, 96)] {
        let streams = noise(rows * STREAMS * width, 3);
        let (pre, y) = (noise(rows * STREAMS, 4), noise(rows * width, 5));
        let mixes = Mixes {
            pre: Vec::new(),
            post: noise(rows * STREAMS, 6),
            comb: noise(rows * STREAMS * STREAMS, 7),
        };
        let at = |row: usize, stream: usize, i: usize| {
            f64::from(streams[(row * STREAMS + stream) * width + i])
        };
        let (mut collapsed, mut spread) = (Vec::new(), Vec::new());
        for row in 0..rows {
            let weight = |values: &[f32], index: usize| f64::from(values[index]);
            for i in 0..width {
                collapsed.push(
                    (0..STREAMS).map(|c| weight(&pre, row * STREAMS + c) * at(row, c, i)).sum(),
                );
            }
            for target in 0..STREAMS {
                for i in 0..width {
                    let own =
                        weight(&mixes.post, row * STREAMS + target) * f64::from(y[row * width + i]);
                    let comb = |source: usize| {
                        weight(&mixes.comb, (row * STREAMS + source) * STREAMS + target)
                    };
                    spread.push(own + (0..STREAMS).map(|s| comb(s) * at(row, s, i)).sum::<f64>());
                }
            }
        }
        check("mhc_collapse", &collapsed, |ops| {
            let mut out = vec![0.0; rows * width];
            ops.mhc_collapse(&streams, &pre, &mut out);
            out
        });
        check("mhc_spread", &spread, |ops| {
            let mut out = streams.clone();
            ops.mhc_spread(&y, &mixes, &mut out);
            out
        });
    }
}

#[test]
fn grouped_products_and_pooling() {
    for (rows, groups, inputs, outputs) in [(1, 2, 64, 32), (3, 3, 32, 32), (70, 2, 96, 64)] {
        let (x, w) = (noise(rows * groups * inputs, 8), noise(groups * outputs * inputs, 9));
        let mut expected = Vec::new();
        for row in wide(&x).chunks_exact(groups * inputs) {
            for (group, w) in w.chunks_exact(outputs * inputs).enumerate() {
                expected.extend(product(w, &row[group * inputs..(group + 1) * inputs], inputs));
            }
        }
        let bytes = stored(&w);
        check("linear_grouped", &expected, |ops| {
            let weight = Weight::new(groups * outputs, inputs, WeightData::Bf16(&bytes));
            let mut out = vec![0.0; rows * groups * outputs];
            ops.linear_grouped(&x, weight, groups, &mut out);
            out
        });
    }
    let (keys, scores) = (wide(&noise(6 * 32, 10)), wide(&noise(6 * 32, 11)));
    let mut expected = Vec::new();
    for group in 0..3 {
        for channel in 0..32 {
            let index = |row: usize| (group * 2 + row) * 32 + channel;
            let weights = [scores[index(0)].exp(), scores[index(1)].exp()];
            let sum = weights[0] * keys[index(0)] + weights[1] * keys[index(1)];
            expected.push(sum / (weights[0] + weights[1]));
        }
    }
    check("compress", &expected, |ops| {
        let mut out = vec![0.0; 96];
        ops.compress(&keys, &scores, 2, 32, &mut out);
        out
    });
}

#[test]
fn attention_over_window_and_entries() {
    // (window, position, floor, selected): below the window, at it, beyond it, hidden keys, several steps of 64 columns.
    let cases: [(usize, usize, usize, &[u32]); 5] = [
        (16, 3, 0, &[]),
        (16, 15, 0, &[0, 2]),
        (72, 100, 0, &[1, 5, 30]),
        (72, 100, 90, &[0, 1, 2, 3, 4, 5, 6, 7]),
        (130, 200, 0, &[9, 10, 39]),
    ];
    let (heads, dim) = (3, 32);
    let sinks = [0.3, -1.0, 2.0];
    for (window, position, floor, selected) in cases {
        let first = (position + 1).saturating_sub(window).max(floor);
        let (query, keys) = (noise(heads * dim, 12), noise((position + 1 - first) * dim, 13));
        let entries = noise(40 * dim, 14);
        let mut all: Vec<Vec<f64>> = keys.chunks_exact(dim).map(wide).collect();
        all.extend(
            selected.iter().map(|e| wide(&entries[*e as usize * dim..(*e as usize + 1) * dim])),
        );
        let mut expected = Vec::new();
        for (query, sink) in wide(&query).chunks_exact(dim).zip(sinks) {
            let score = |key: &Vec<f64>| {
                (query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = all.iter().map(score).collect();
            let total = weights.iter().sum::<f64>() + f64::from(sink).exp();
            for i in 0..dim {
                expected.push(weights.iter().zip(&all).map(|(w, k)| w * k[i]).sum::<f64>() / total);
            }
        }
        check_from(0.25, "attention", &expected, |ops| {
            let row = AttentionRow {
                query: &query,
                position,
                floor,
                window: &keys,
                window_first: first,
                entries: &entries,
                selected,
            };
            let mut out = vec![0.0; heads * dim];
            ops.attention(AttentionShape { window, dim, sinks: &sinks }, &[row], &mut out);
            out
        });
    }
}

#[test]
fn index_scores_and_restriction() {
    let (heads, dim, entries) = (3, 32, 70);
    let (query, weights, keys) =
        (noise(heads * dim, 15), noise(heads, 16), noise(entries * dim, 17));
    let mut expected = Vec::new();
    for key in keys.chunks_exact(dim) {
        let dots = product(&query, &wide(key), dim);
        expected.push(dots.iter().zip(&weights).map(|(dot, w)| dot.max(0.0) * f64::from(*w)).sum());
    }
    let shape = |top| IndexShape { dim, top, block_size: 8, emit_blocks: None, keep_scores: true };
    let choose = |ops: &dyn Ops, candidates: Option<&[u32]>| {
        let row = IndexRow { query: &query, head_weights: &weights, visible: entries, candidates };
        ops.index(&keys, &[row], shape(5)).remove(0)
    };
    check("index", &expected, |ops| choose(ops, None).scores);
    for ops in CpuOps::<f32>::all() {
        let choice = choose(&ops, Some(&[2, 7]));
        assert_eq!(choice.selected.len(), 5);
        assert!(choice.selected.iter().all(|entry| [2, 7].contains(&(entry / 8))));
    }
}

#[test]
fn routing_and_experts() {
    let (rows, width, inner, count, top) = (5, 64, 32, 4, 2);
    let x = noise(rows * width, 18);
    let gate_weights = noise(count * width, 19);
    let gate_bytes = stored(&gate_weights);
    let bias = [0.0, 0.4, -0.3, 0.1];
    let matrices: Vec<Vec<f32>> = (0..3 * (count + 1))
        .map(|n| {
            noise(inner * width, 20 + u32::try_from(n).unwrap()).iter().map(|v| v * 0.125).collect()
        })
        .collect();
    let bytes: Vec<Vec<u8>> = matrices.iter().map(|values| stored(values)).collect();
    let expert = |index: usize| {
        let view =
            |n: usize, rows, cols| Weight::new(rows, cols, WeightData::Bf16(&bytes[3 * index + n]));
        Expert { w1: view(0, inner, width), w3: view(1, inner, width), w2: view(2, width, inner) }
    };
    let mut quantised = vec![0.0; x.len()];
    fake_quant8(&x, width, &mut quantised);
    let mut expected = Vec::new();
    for (x, quantised) in x.chunks_exact(width).zip(quantised.chunks_exact(width)) {
        let scores: Vec<f64> = product(&gate_weights, &wide(x), width)
            .iter()
            .map(|l| l.exp().ln_1p().sqrt())
            .collect();
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| (scores[*b] + bias[*b]).total_cmp(&(scores[*a] + bias[*a])));
        order.truncate(top);
        let total: f64 = order.iter().map(|e| scores[*e]).sum();
        let mut sum = vec![0.0; width];
        let visits = order.iter().map(|e| (*e, scores[*e] / total * 1.5)).chain([(count, 1.0)]);
        for (index, weight) in visits {
            let project = |n: usize| -> Vec<f64> {
                let out = product(&matrices[3 * index + n], &wide(quantised), width);
                out.iter().map(|value| f64::from(round_bf16(*value as f32))).collect()
            };
            let activated: Vec<f32> = project(0)
                .iter()
                .zip(project(1))
                .map(|(g, u)| round_bf16((g * sigmoid(*g) * u * weight) as f32))
                .collect();
            let mut inputs = vec![0.0; inner];
            fake_quant8(&activated, inner, &mut inputs);
            let out = product(&matrices[3 * index + 2], &wide(&inputs), inner);
            sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += out);
        }
        expected.extend(sum);
    }
    check_from(0.25, "experts", &expected, |ops| {
        let weight = Weight::new(count, width, WeightData::Bf16(&gate_bytes));
        let bias: Vec<f32> = bias.iter().map(|bias| *bias as f32).collect();
        let mut routing = Routing::default();
        ops.gate(&x, Gate { weight, bias: &bias, top, scale: 1.5 }, &mut routing);
        let experts: Vec<Expert<'_>> = (0..count).map(expert).collect();
        let layer = ExpertLayer { experts: &experts, shared: expert(count), limit: 10.0 };
        let mut out = vec![0.0; rows * width];
        ops.experts(&x, &routing, layer, &mut out);
        out
    });
}

#[test]
fn the_engram_gate_opens_outside_images_only() {
    let (rows, width) = (3, 32);
    let streams = noise(rows * STREAMS * width, 40);
    let kv = noise(rows * (STREAMS + 1) * width, 41);
    let (q, k) = (noise(STREAMS * width, 42), noise(STREAMS * width, 43));
    let open = [true, false, true];
    let mut expected = wide(&streams);
    for row in (0..rows).filter(|row| open[*row]) {
        let kv = &wide(&kv)[row * (STREAMS + 1) * width..(row + 1) * (STREAMS + 1) * width];
        for stream in 0..STREAMS {
            let x = &mut expected[(row * STREAMS + stream) * width..][..width];
            let key = &kv[stream * width..(stream + 1) * width];
            let weight =
                |i: usize| f64::from(q[stream * width + i]) * f64::from(k[stream * width + i]);
            let dot: f64 = (0..width).map(|i| x[i] * weight(i) * key[i]).sum();
            let norm =
                |v: &[f64]| 1.0 / (v.iter().map(|v| v * v).sum::<f64>() / width as f64).sqrt();
            let strength = dot * norm(x) * norm(key) / (width as f64).sqrt();
            let open = sigmoid(strength.abs().max(1e-6).sqrt().copysign(strength));
            x.iter_mut().zip(&kv[STREAMS * width..]).for_each(|(x, value)| *x += open * value);
        }
    }
    check("engram", &expected, |ops| {
        let mut out = streams.clone();
        ops.engram(
            &mut out,
            &kv,
            &open,
            EngramGate { query_weight: &q, key_weight: &k, eps: 1e-20 },
        );
        out
    });
}

#[test]
fn not_a_number_stays_in_its_row() {
    let (rows, width) = (3, 64);
    let mut x = noise(rows * width, 50);
    x[width + 5] = f32::NAN;
    let bytes = stored(&noise(24 * width, 51));
    let weight = Weight::new(24, width, WeightData::Bf16(&bytes));
    for ops in CpuOps::<f32>::all() {
        let mut out = vec![0.0; rows * 24];
        ops.linear(&x, weight, &mut out);
        let bad: Vec<bool> =
            out.chunks_exact(24).map(|row| row.iter().any(|v| v.is_nan())).collect();
        assert_eq!(bad, [false, true, false]);
    }
}
