//! Rotation angles.
//!
//! Source: specs/v41-architecture.md §5. Frequencies and the product with the position are float32 as in the reference
//! (positions reach 2^20, so that the rounding of the product matters); cosine and sine are float64.
#![expect(
    clippy::cast_possible_truncation,
    reason = "numeric code: float32 roundings and floors of small positive numbers are the point"
)]

use std::f64::consts::PI;

use kernels::Angles;

use crate::config::{ModelConfig, Yarn};

/// Float32 frequencies of both kinds of layer.
#[derive(Clone, Debug)]
pub(crate) struct Frequencies {
    /// Layers that see their window only.
    plain: Vec<f32>,
    /// All other layers.
    compressed: Vec<f32>,
}

/// Which frequencies a layer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RotaryKind {
    Plain,
    Compressed,
}

impl Frequencies {
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let plain = base_frequencies(config.rope_theta, config.rope_dim);
        let mut compressed = base_frequencies(config.compress_rope_theta, config.rope_dim);
        if let Some(yarn) = &config.yarn {
            scale(&mut compressed, config, yarn);
        }
        Self { plain: rounded(&plain), compressed: rounded(&compressed) }
    }

    /// Angles of rows at `positions`.
    pub(crate) fn angles(&self, kind: RotaryKind, positions: impl Iterator<Item = u32>) -> Angles {
        let frequencies = match kind {
            RotaryKind::Plain => &self.plain,
            RotaryKind::Compressed => &self.compressed,
        };
        let mut values = Vec::new();
        for position in positions {
            values.extend(frequencies.iter().map(|frequency| {
                let angle = position as f32 * frequency;
                let (sin, cos) = f64::from(angle).sin_cos();
                (cos, sin)
            }));
        }
        Angles { pairs: frequencies.len(), values }
    }
}

/// `theta^(-2j/dim)`, in float64.
fn base_frequencies(theta: f64, dim: usize) -> Vec<f64> {
    (0..dim / 2).map(|pair| theta.powf(-((2 * pair) as f64) / dim as f64)).collect()
}

/// YaRN: slow frequencies are divided by the factor, fast ones kept, those between mixed.
fn scale(frequencies: &mut [f64], config: &ModelConfig, yarn: &Yarn) {
    let dim = config.rope_dim as f64;
    let correction = |rotations: f64| {
        let context = f64::from(yarn.original_context);
        dim * (context / (rotations * 2.0 * PI)).ln() / (2.0 * config.compress_rope_theta.ln())
    };
    let low = correction(yarn.beta_fast).floor().max(0.0);
    let high = correction(yarn.beta_slow).ceil().min(dim - 1.0);
    for (pair, frequency) in frequencies.iter_mut().enumerate() {
        let ramp = ((pair as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
        *frequency = *frequency / yarn.factor * ramp + *frequency * (1.0 - ramp);
    }
}

fn rounded(frequencies: &[f64]) -> Vec<f32> {
    frequencies.iter().map(|frequency| *frequency as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::{base_frequencies, scale};
    use crate::config::ModelConfig;

    #[test]
    fn released_frequencies_have_the_known_values() {
        let config = ModelConfig::parse(include_str!("config/flash.json")).unwrap();
        let mut found = base_frequencies(config.compress_rope_theta, config.rope_dim);
        scale(&mut found, &config, &config.yarn.unwrap());
        let known = [
            (0, 1.0),
            (1, 0.687_656_02),
            (15, 3.635_538_6e-3),
            (16, 2.265_625e-3),
            (20, 2.969_777_8e-4),
            (25, 5.372_312_7e-6),
            (31, 5.680_529e-7),
        ];
        for (pair, value) in known {
            let error = (found[pair] / value - 1.0).abs();
            assert!(error < 2e-7, "f_{pair} = {} against {value}", found[pair]);
        }
    }
}
