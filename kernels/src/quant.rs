//! Block quantisers: activations, window entries, index keys and main entries.
//!
//! Source: specs/v41-architecture.md §3 and v41-serving.md §2.1. All inputs are bfloat16 values held in float32; all
//! arithmetic is float32 in both arithmetics, as in the reference.

use crate::formats::{
    E2M1, E2M1_MAX, E4M3, E4M3_MAX, e2m1_encode, e4m3_encode, e8m0, pow2_ceil_code,
};

/// Elements per E8M0 scale of activations, window entries and index keys.
pub const GROUP: usize = 32;
/// Elements per E4M3 scale of main entries.
pub const MAIN_GROUP: usize = 16;

/// Smallest absolute maximum of an FP8 group.
const FP8_AMAX_MIN: f32 = 1e-4;
/// Smallest absolute maximum of an FP4 group with an E8M0 scale: 6 * 2^-126.
const FP4_AMAX_MIN: f32 = 6.0 * f32::MIN_POSITIVE;
/// Smallest absolute maximum of a main group: 6 * 2^-9.
const MAIN_AMAX_MIN: f32 = 6.0 / 512.0;

/// Quantises activations to FP8 in groups of 32 and writes back the values they stand for. `x` is
/// `[rows, width]` with `width` a multiple of 32, or shorter last groups where it is not.
#[inline(always)]
pub fn fake_quant8(x: &[f32], width: usize, out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    for (row, out_row) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for (group, out_group) in row.chunks(GROUP).zip(out_row.chunks_mut(GROUP)) {
            let scale = e8m0(fp8_scale(group));
            let inverse = 1.0 / scale;
            for (value, target) in group.iter().zip(out_group) {
                let code = e4m3_encode((value * inverse).clamp(-E4M3_MAX, E4M3_MAX));
                *target = E4M3[usize::from(code)] * scale;
            }
        }
    }
}

/// Packs a window entry: `[width]` codes, then `[width / 32]` scales.
pub fn pack_window(x: &[f32], out: &mut [u8]) {
    assert!(x.len().is_multiple_of(GROUP));
    let (codes, scales) = out.split_at_mut(x.len());
    assert_eq!(scales.len(), x.len() / GROUP);
    for ((group, codes), scale) in
        x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP)).zip(scales)
    {
        *scale = fp8_scale(group);
        let inverse = 1.0 / e8m0(*scale);
        for (value, code) in group.iter().zip(codes) {
            *code = e4m3_encode((value * inverse).clamp(-E4M3_MAX, E4M3_MAX));
        }
    }
}

/// Decodes a window entry.
pub fn unpack_window(bytes: &[u8], out: &mut [f32]) {
    let (codes, scales) = bytes.split_at(out.len());
    for ((group, codes), scale) in
        out.chunks_exact_mut(GROUP).zip(codes.chunks_exact(GROUP)).zip(scales)
    {
        let scale = e8m0(*scale);
        for (value, code) in group.iter_mut().zip(codes) {
            *value = E4M3[usize::from(*code)] * scale;
        }
    }
}

/// Packs an index key or query: `[width / 2]` code pairs into `codes`, `[width / 32]` scales into `scales`.
pub fn pack_index(x: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    assert!(x.len().is_multiple_of(GROUP));
    assert_eq!((codes.len(), scales.len()), (x.len() / 2, x.len() / GROUP));
    for ((group, codes), scale) in
        x.chunks_exact(GROUP).zip(codes.chunks_exact_mut(GROUP / 2)).zip(scales)
    {
        *scale = pow2_ceil_code(amax(group).max(FP4_AMAX_MIN) * (1.0 / E2M1_MAX));
        let inverse = 1.0 / e8m0(*scale);
        pack_pairs(group, codes, |value| value * inverse);
    }
}

/// Decodes an index key or query.
pub fn unpack_index(codes: &[u8], scales: &[u8], out: &mut [f32]) {
    for ((group, codes), scale) in
        out.chunks_exact_mut(GROUP).zip(codes.chunks_exact(GROUP / 2)).zip(scales)
    {
        unpack_pairs(codes, e8m0(*scale), group);
    }
}

/// Packs a main entry: `[width / 2]` code pairs, then `[width / 16]` E4M3 scales.
pub fn pack_main(x: &[f32], out: &mut [u8]) {
    assert!(x.len().is_multiple_of(MAIN_GROUP));
    let (codes, scales) = out.split_at_mut(x.len() / 2);
    assert_eq!(scales.len(), x.len() / MAIN_GROUP);
    for ((group, codes), scale) in
        x.chunks_exact(MAIN_GROUP).zip(codes.chunks_exact_mut(MAIN_GROUP / 2)).zip(scales)
    {
        *scale = e4m3_encode(amax(group).max(MAIN_AMAX_MIN) / E2M1_MAX);
        let divisor = E4M3[usize::from(*scale)];
        pack_pairs(group, codes, |value| value / divisor);
    }
}

/// Decodes a main entry.
pub fn unpack_main(bytes: &[u8], out: &mut [f32]) {
    let (codes, scales) = bytes.split_at(out.len() / 2);
    for ((group, codes), scale) in
        out.chunks_exact_mut(MAIN_GROUP).zip(codes.chunks_exact(MAIN_GROUP / 2)).zip(scales)
    {
        unpack_pairs(codes, E4M3[usize::from(*scale)], group);
    }
}

#[inline(always)]
fn amax(group: &[f32]) -> f32 {
    group.iter().fold(0.0, |max, value| max.max(value.abs()))
}

#[inline(always)]
fn fp8_scale(group: &[f32]) -> u8 {
    pow2_ceil_code(amax(group).max(FP8_AMAX_MIN) * (1.0 / E4M3_MAX))
}

fn pack_pairs(group: &[f32], codes: &mut [u8], scaled: impl Fn(f32) -> f32) {
    for (pair, code) in group.chunks_exact(2).zip(codes) {
        let encode = |value| e2m1_encode(scaled(value).clamp(-E2M1_MAX, E2M1_MAX));
        *code = encode(pair[0]) | encode(pair[1]) << 4;
    }
}

fn unpack_pairs(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (pair, code) in out.chunks_exact_mut(2).zip(codes) {
        pair[0] = E2M1[usize::from(code & 15)] * scale;
        pair[1] = E2M1[usize::from(code >> 4)] * scale;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        fake_quant8, pack_index, pack_main, pack_window, unpack_index, unpack_main, unpack_window,
    };

    /// The vector of specs/v41-architecture.md §16.
    const KNOWN: [f32; 16] = [
        -0.699_218_75,
        -0.781_25,
        -0.5,
        -0.519_531_25,
        -0.300_781_25,
        -0.259_765_63,
        -0.100_097_656,
        0.0,
        0.100_097_656,
        0.259_765_63,
        0.300_781_25,
        0.519_531_25,
        0.5,
        0.781_25,
        0.699_218_75,
        1.039_062_5,
    ];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn known_answers_hold() {
        let twice: Vec<f32> = KNOWN.iter().chain(&KNOWN).copied().collect();
        let mut main = [0; 9];
        pack_main(&KNOWN, &mut main);
        assert_eq!(hex(&main), "eeddbc093154657623");
        let mut window = [0; 33];
        pack_window(&twice, &mut window);
        assert_eq!(hex(&window[..16]), "f3f4f0f0eae8dd005d686a7070747378");
        assert_eq!((&window[16..32], window[32]), (&window[..16].to_vec()[..], 119));
        let (mut codes, mut scales) = ([0; 16], [0; 1]);
        pack_index(&twice, &mut codes, &mut scales);
        assert_eq!((hex(&codes[..8]).as_str(), scales[0]), ("ddccaa0921425465", 125));
    }

    #[test]
    fn packing_what_was_unpacked_changes_nothing() {
        let twice: Vec<f32> = KNOWN.iter().chain(&KNOWN).copied().collect();
        let mut out = [0.0; 32];
        let mut window = [0; 33];
        pack_window(&twice, &mut window);
        unpack_window(&window, &mut out);
        let mut fake = [0.0; 32];
        fake_quant8(&twice, 32, &mut fake);
        assert_eq!(out, fake);
        let mut again = [0; 33];
        pack_window(&out, &mut again);
        assert_eq!(again, window);
        let mut main = [0; 18];
        pack_main(&twice, &mut main);
        unpack_main(&main, &mut out);
        assert_eq!(out[15], 1.031_25, "clamped to six times the scale");
        let (mut codes, mut scales) = ([0; 16], [0; 1]);
        pack_index(&twice, &mut codes, &mut scales);
        unpack_index(&codes, &scales, &mut out);
        assert_eq!(out[15], 1.0);
    }
}
