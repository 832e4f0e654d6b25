//! Scalar codecs of the number formats of the checkpoint and the caches.
//!
//! Source: specs/v41-architecture.md §3, with the known answers of its §16 as tests. Every decoded value is exact in
//! float32 and, scales included, in bfloat16.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numeric code: rounding and bit fields are the point"
)]

/// Largest magnitude of E4M3.
pub const E4M3_MAX: f32 = 448.0;
/// Largest magnitude of E2M1.
pub const E2M1_MAX: f32 = 6.0;

/// The eight magnitudes of E2M1 by 3-bit code.
const E2M1_MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Decoded values of all E4M3 codes.
pub static E4M3: [f32; 256] = e4m3_table();

/// Decoded values of all E2M1 codes.
pub static E2M1: [f32; 16] = e2m1_table();

/// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn round_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
    if value.is_nan() { value } else { f32::from_bits(rounded) }
}

/// Rounds a float64 to bfloat16 by way of float32, as the reference's tensor library converts: two roundings, which
/// differ from a single one in about one of 65,000 values that lie near a tie.
#[inline(always)]
#[must_use]
pub fn round_bf16_from_f64(value: f64) -> f32 {
    round_bf16(value as f32)
}

/// Decodes two little-endian bytes of bfloat16.
#[inline(always)]
#[must_use]
pub fn bf16_from_le(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// The upper half of a float32 that is exact in bfloat16.
#[inline(always)]
#[must_use]
pub fn bf16_bits(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// Decodes an E8M0 scale: 2^(code - 127), for codes 1..=254 as all real scales are.
#[inline(always)]
#[must_use]
pub fn e8m0(code: u8) -> f32 {
    if code == 0 { f32::from_bits(1 << 22) } else { f32::from_bits(u32::from(code) << 23) }
}

/// The smallest power of two not below a positive, finite float32, as an E8M0 code.
#[inline(always)]
#[must_use]
pub fn pow2_ceil_code(value: f32) -> u8 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) & 0xFF;
    let up = u32::from(bits & 0x7F_FFFF != 0);
    (exponent + up).min(254) as u8
}

/// Encodes to E4M3: nearest, ties to even, saturating.
#[inline(always)]
#[must_use]
pub fn e4m3_encode(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 24) & 0x80) as u8;
    let magnitude = value.abs().min(E4M3_MAX);
    if magnitude < 0.015_625 {
        // Subnormals are multiples of 2^-9; the eighth of them is the smallest normal number and its code follows on.
        let steps = (magnitude * 512.0).round_ties_even();
        return sign | steps as u8;
    }
    let bits = magnitude.to_bits();
    let rounded = bits + 0x7_FFFF + ((bits >> 20) & 1);
    // Rebias from 127 to 7: the code is exponent and three mantissa bits.
    sign | ((rounded >> 20) - (120 << 3)) as u8
}

/// Encodes to E2M1: nearest, ties to the even code, saturating.
#[inline(always)]
#[must_use]
pub fn e2m1_encode(value: f32) -> u8 {
    let sign = ((value.to_bits() >> 28) & 8) as u8;
    let magnitude = value.abs();
    let above = [
        magnitude > 0.25,
        magnitude >= 0.75,
        magnitude > 1.25,
        magnitude >= 1.75,
        magnitude > 2.5,
        magnitude >= 3.5,
        magnitude > 5.0,
    ];
    let code = above.iter().fold(0, |code, step| code + u8::from(*step));
    sign | code
}

const fn e4m3_table() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let exponent = (code >> 3) & 15;
        let mantissa = (code & 7) as f32;
        let magnitude = if code & 0x7F == 0x7F {
            f32::NAN
        } else if exponent == 0 {
            mantissa / 512.0
        } else {
            (1.0 + mantissa / 8.0) * f32::from_bits((exponent as u32 + 120) << 23)
        };
        table[code] = if code & 0x80 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
}

const fn e2m1_table() -> [f32; 16] {
    let mut table = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        let magnitude = E2M1_MAGNITUDES[code & 7];
        table[code] = if code & 8 == 0 { magnitude } else { -magnitude };
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{E2M1, E4M3, e2m1_encode, e4m3_encode, e8m0, pow2_ceil_code, round_bf16_from_f64};

    #[test]
    fn every_code_survives_a_round_trip() {
        for code in 0..=255_u8 {
            if code & 0x7F != 0x7F {
                assert_eq!(e4m3_encode(E4M3[usize::from(code)]), code, "E4M3 {code:#x}");
            }
        }
        for code in 0..16_u8 {
            assert_eq!(e2m1_encode(E2M1[usize::from(code)]), code, "E2M1 {code}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let e2m1 =
            [(0.25, 0), (0.75, 2), (1.25, 2), (1.75, 4), (2.5, 4), (3.5, 6), (5.0, 6), (9.0, 7)];
        for (value, code) in e2m1 {
            assert_eq!(e2m1_encode(value), code, "{value}");
            assert_eq!(e2m1_encode(-value), code | 8, "-{value}");
        }
        let e4m3 = [
            (1.0625, 0x38),
            (1.1875, 0x3A),
            (500.0, 0x7E),
            (0.000_976_562_5, 0),
            (0.002_929_687_5, 2),
        ];
        for (value, code) in e4m3 {
            assert_eq!(e4m3_encode(value), code, "{value}");
        }
    }

    #[test]
    fn powers_of_two_are_not_raised() {
        let cases = [(1.0, 127), (1.000_000_1, 128), (0.5, 126), (3.0, 129), (4.0, 129)];
        for (value, code) in cases {
            assert_eq!(pow2_ceil_code(value), code, "{value}");
            assert!(value <= e8m0(code));
        }
    }

    #[test]
    fn float64_rounds_by_way_of_float32() {
        // Just above the tie between two bfloat16 values, by less than float32 can hold: the tie goes to even.
        let above_tie = 1.0 + f64::from(2.0_f32.powi(-8)) + 1e-12;
        assert_eq!(round_bf16_from_f64(above_tie), 1.0);
        assert_eq!(round_bf16_from_f64(above_tie + 1e-6), 1.007_812_5);
    }
}
