//! Names of long prompts that begin as earlier ones did, without hashing them block by block again.
//!
//! Names are chained, so each waits for the one before. A digest of everything up to a place is faster, because its parts are
//! hashed side by side; and who knows the names up to there needs no others. One is made every 32 blocks, under the root as key,
//! and the names of the segment before it are kept under it.

use std::collections::HashMap;

use crate::ids::TokenId;
use crate::layout::BLOCK_TOKENS;
use crate::names::{BlockName, Root, names_after};

/// Blocks of a segment: 4,096 tokens, 16 KiB of ids, which processors with AVX-512 hash as one batch.
const SEGMENT_BLOCKS: usize = 32;
const SEGMENT_TOKENS: usize = SEGMENT_BLOCKS * BLOCK_TOKENS as usize;
/// Bytes of a segment's names with its digest and what a map needs beside them.
const SEGMENT_BYTES: usize = 640;

/// What stands for a prompt from its beginning to the end of a segment, under its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixDigest([u8; 32]);

/// The digests of a prompt, one for each whole segment.
#[must_use]
pub fn prefix_digests(root: &Root, ids: &[TokenId]) -> Vec<PrefixDigest> {
    let segments = ids.chunks_exact(SEGMENT_TOKENS);
    if segments.len() == 0 {
        return Vec::new();
    }
    let mut hasher = blake3::Hasher::new_keyed(&root.to_bytes());
    let mut bytes = vec![0; 4 * SEGMENT_TOKENS];
    let digest = |segment: &[TokenId]| {
        for (place, id) in bytes.as_chunks_mut().0.iter_mut().zip(segment) {
            *place = id.0.to_le_bytes();
        }
        hasher.update(&bytes);
        PrefixDigest(*hasher.finalize().as_bytes())
    };
    segments.map(digest).collect()
}

/// Names of segments that were met before. Bounded; what was not met for long is forgotten.
///
/// Invariant: what it gives is what [`crate::block_names`] gives.
#[derive(Debug)]
pub struct NameCache {
    segments_max: usize,
    /// What was met since the last change, and what was met in the time before: when the former is full it becomes the latter.
    young: HashMap<PrefixDigest, Segment>,
    old: HashMap<PrefixDigest, Segment>,
}

type Segment = Box<[BlockName; SEGMENT_BLOCKS]>;

impl NameCache {
    /// 6,500 segments: 27 million tokens, the latest prompts of several hundred long conversations.
    pub const STANDARD_BYTES: usize = 4 << 20;

    /// One that takes at most so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let segments_max = bytes_max / SEGMENT_BYTES;
        Self { segments_max, young: HashMap::new(), old: HashMap::new() }
    }

    /// The names of all complete blocks of a text-only token sequence, in order.
    pub fn names(&mut self, root: &Root, ids: &[TokenId]) -> Vec<BlockName> {
        let digests = prefix_digests(root, ids);
        let names = names_after(root, self.known(&digests), ids);
        self.keep(&digests, &names);
        names
    }

    /// The names of the leading blocks, as far as they are known. For who does not want to hold the cache while names are
    /// made; the rest is [`names_after`] and [`Self::keep`].
    pub fn known(&mut self, digests: &[PrefixDigest]) -> Vec<BlockName> {
        // Room for those of a last, incomplete segment as well.
        let mut names = Vec::with_capacity((digests.len() + 1) * SEGMENT_BLOCKS);
        for digest in digests {
            let Some(segment) = self.find(digest) else { break };
            names.extend_from_slice(&segment[..]);
        }
        names
    }

    /// Keeps the names of a prompt with these digests.
    ///
    /// # Panics
    /// When there are fewer names than the digests stand for.
    pub fn keep(&mut self, digests: &[PrefixDigest], names: &[BlockName]) {
        let (segments, _) = names.as_chunks::<SEGMENT_BLOCKS>();
        assert!(digests.len() <= segments.len(), "a digest stands for blocks that have names");
        for (digest, segment) in digests.iter().zip(segments) {
            if self.find(digest).is_none() {
                self.insert(*digest, Box::new(*segment));
            }
        }
    }

    /// Segments that are kept.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn find(&mut self, digest: &PrefixDigest) -> Option<&Segment> {
        if let Some(segment) = self.old.remove(digest) {
            self.insert(*digest, segment);
        }
        self.young.get(digest)
    }

    fn insert(&mut self, digest: PrefixDigest, segment: Segment) {
        let half = self.segments_max / 2;
        if half == 0 {
            return;
        }
        if half <= self.young.len() {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::{NameCache, SEGMENT_BYTES, SEGMENT_TOKENS, prefix_digests};
    use crate::ids::TokenId;
    use crate::names::{Root, block_names};
    use crate::random::Random;

    /// A prompt that begins with so many tokens that all of a kind begin with.
    fn prompt(kind: u32, common: usize, own: u32, length: usize) -> Vec<TokenId> {
        let id = |at: usize| {
            let at_32 = u32::try_from(at).unwrap();
            let seed = if at < common { kind } else { own };
            TokenId(at_32.wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(77)) % 129_280)
        };
        (0..length).map(id).collect()
    }

    #[test]
    fn names_are_those_of_hashing_block_by_block() {
        let roots = [1, 2].map(|byte| Root::from_bytes([byte; 32]));
        for segments in [0, 1, 2, 3, 7, 1_000] {
            let mut cache = NameCache::new(segments * SEGMENT_BYTES);
            let mut random = Random::new(7);
            let mut below = |bound| random.below(bound);
            for own in 1..60 {
                let kind = u32::try_from(below(3)).unwrap();
                let (common, length) = (below(5 * SEGMENT_TOKENS), below(6 * SEGMENT_TOKENS));
                let ids = prompt(kind, common, 100 + own, length);
                let root = &roots[below(2)];
                assert_eq!(cache.names(root, &ids), block_names(root, &ids), "{own}");
                assert!(cache.segments() <= segments, "{} segments", cache.segments());
            }
        }
    }

    #[test]
    fn what_two_prompts_share_is_known_under_their_root_alone() {
        let root = Root::from_bytes([1; 32]);
        let mut cache = NameCache::new(NameCache::STANDARD_BYTES);
        let first = prompt(1, 3 * SEGMENT_TOKENS + 9, 5, 4 * SEGMENT_TOKENS);
        let second = prompt(1, 3 * SEGMENT_TOKENS + 9, 6, 5 * SEGMENT_TOKENS - 1);
        let names = cache.names(&root, &first);
        assert_eq!(cache.segments(), 4);
        let known = cache.known(&prefix_digests(&root, &second));
        assert_eq!(known, names[..3 * 32]);
        let mut other = second.clone();
        other[0].0 ^= 1;
        assert!(cache.known(&prefix_digests(&root, &other)).is_empty());
        let elsewhere = Root::from_bytes([2; 32]);
        assert!(cache.known(&prefix_digests(&elsewhere, &second)).is_empty());
        assert!(prefix_digests(&root, &second[..SEGMENT_TOKENS - 1]).is_empty());
    }

    #[test]
    fn what_is_met_again_and_again_stays() {
        let root = Root::from_bytes([1; 32]);
        let mut cache = NameCache::new(8 * SEGMENT_BYTES);
        let often = prompt(1, SEGMENT_TOKENS, 0, SEGMENT_TOKENS);
        for own in 0..50 {
            cache.names(&root, &often);
            cache.names(&root, &prompt(2, 0, own, SEGMENT_TOKENS));
            assert!(!cache.known(&prefix_digests(&root, &often)).is_empty(), "{own}");
        }
    }
}
