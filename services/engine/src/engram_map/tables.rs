//! Multipliers, primes and offsets of the hash tables. Source: specs/v41-architecture.md §9.2.

use std::collections::HashSet;

use super::random::NumpyRandom;
use crate::config::EngramConfig;

/// Seed of a layer's multipliers: this times the layer's number.
const SEED_FACTOR: u64 = 10_007;

/// The hash constants of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashTables {
    multipliers: Vec<u64>,
    primes: Vec<u64>,
    offsets: Vec<u64>,
    heads: usize,
}

impl HashTables {
    /// The constants of every Engram layer, in the order of `EngramConfig::layers`.
    #[must_use]
    pub fn build(config: &EngramConfig) -> Vec<Self> {
        let mut used = HashSet::new();
        let build = |layer: &usize| {
            let primes = layer_primes(config, &mut used);
            let offsets = primes
                .iter()
                .scan(0, |end, prime| {
                    let offset = *end;
                    *end += prime;
                    Some(offset)
                })
                .collect();
            let multipliers = multipliers(config, *layer as u64);
            Self { multipliers, primes, offsets, heads: config.heads }
        };
        config.layers.iter().map(build).collect()
    }

    /// One odd multiplier per n-gram position, the token's own first.
    #[must_use]
    pub fn multipliers(&self) -> &[u64] {
        &self.multipliers
    }

    /// One prime per column, orders ascending, heads within.
    #[must_use]
    pub fn primes(&self) -> &[u64] {
        &self.primes
    }

    /// The first row of each column's part of the table.
    #[must_use]
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// The height of the table: the sum of the primes.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.primes.iter().sum()
    }

    pub(super) fn columns(&self) -> usize {
        self.primes.len()
    }

    /// The addresses for compressed ids, the token's own first, one per multiplier.
    pub(super) fn rows_of(&self, compressed: &[u64], rows: &mut [u64]) {
        assert_eq!(compressed.len(), self.multipliers.len(), "one id per position");
        assert_eq!(rows.len(), self.primes.len(), "one row per column");
        // Ids are below the compressed vocabulary and multipliers below 2^63 / compressed vocabulary: no overflow.
        let mut hash = compressed[0] * self.multipliers[0];
        let mut column = 0;
        for (id, multiplier) in compressed.iter().zip(&self.multipliers).skip(1) {
            hash ^= id * multiplier;
            for _ in 0..self.heads {
                rows[column] = self.offsets[column] + hash % self.primes[column];
                column += 1;
            }
        }
    }
}

/// The next unused primes from the floor on, for each order anew, over all layers without repetition.
fn layer_primes(config: &EngramConfig, used: &mut HashSet<u64>) -> Vec<u64> {
    let mut primes = Vec::with_capacity(config.columns());
    for _order in 2..=config.ngram_max {
        let fresh = (config.prime_floor..).filter(|n| is_prime(*n) && used.insert(*n));
        primes.extend(fresh.take(config.heads));
    }
    primes
}

/// Trial division. The floor is below 2^32, so that at most 2^15 odd divisors are tried.
fn is_prime(number: u64) -> bool {
    if number < 4 {
        return 1 < number;
    }
    if number.is_multiple_of(2) {
        return false;
    }
    (3..).step_by(2).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d))
}

fn multipliers(config: &EngramConfig, layer: u64) -> Vec<u64> {
    let largest = i64::MAX.unsigned_abs() / config.compressed_vocab as u64;
    let mut random = NumpyRandom::new(SEED_FACTOR * layer);
    (0..config.ngram_max).map(|_| 2 * random.below(largest / 2) + 1).collect()
}
