//! Token ids of rendered parts, so that a new turn tokenises only what is new.
//!
//! A rendered prompt is cut at its control tokens; the plain text between two of them is tokenised on its own, so its
//! ids depend on nothing else and may be kept. Keys are BLAKE3 hashes of the text: the cache holds no prompt text.
//! Bounded in bytes; the least recently used part leaves first. A part that is not known is tokenised the short way where it
//! is ASCII (`words.rs`), which keeps single words.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use deepseek_recipe_encoding::{PromptTokenizer, TokenizerEncoder};
use parking_lot::Mutex;
use tokenizers::Tokenizer;

use crate::vocabulary::{Vocabulary, alphabet};
use crate::words::{Part, Words, parts};

/// Bytes an entry costs beside its ids: key in both maps, stamp twice, the shared slice's header, and hash-map slack.
const ENTRY_BYTES: usize = 192;

/// Counts of the cache since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCacheStats {
    pub(crate) bytes: usize,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// Single words whose ids are kept.
    pub(crate) words: usize,
}

/// Encodes rendered prompts as the plain tokenizer does, remembering the parts.
pub(crate) struct CachedEncoder {
    tokenizer: PromptTokenizer,
    /// None when the tokenizer cuts text in another way than the family's.
    words: Option<Words>,
    vocabulary: Arc<Vocabulary>,
    parts: Mutex<Parts>,
}

impl CachedEncoder {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        vocabulary: Arc<Vocabulary>,
        bytes_max: usize,
    ) -> Self {
        let words = Words::of(tokenizer, alphabet());
        if words.is_none() {
            tracing::warn!(
                "the tokenizer cuts text in an unknown way; prompts are tokenised by its library, slowly"
            );
        }
        let tokenizer = PromptTokenizer::new(tokenizer);
        Self { tokenizer, words, vocabulary, parts: Mutex::new(Parts::new(bytes_max)) }
    }

    pub(crate) fn stats(&self) -> TokenCacheStats {
        let words = self.words.as_ref().map_or(0, Words::kept);
        TokenCacheStats { words, ..self.parts.lock().stats }
    }

    fn tokenise(&self, text: &str) -> Result<Vec<u32>, String> {
        let Some(words) = &self.words else { return self.tokenizer.encode_ids(text, &[]) };
        // About what English takes; one that grows is copied once.
        let mut ids = Vec::with_capacity(text.len() / 4);
        for part in parts(text) {
            match part {
                Part::Plain(range) => words.push(&text[range], &mut ids)?,
                Part::Other(range) => ids.extend(self.tokenizer.encode_ids(&text[range], &[])?),
            }
        }
        Ok(ids)
    }

    fn push_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let key = *blake3::hash(text.as_bytes()).as_bytes();
        let known = self.parts.lock().find(&key);
        if let Some(part) = known {
            ids.extend_from_slice(&part);
            return Ok(());
        }
        // Tokenised outside the lock: two requests may do the same part twice, but none waits for another's.
        let part = self.tokenise(text)?;
        ids.extend_from_slice(&part);
        self.parts.lock().insert(key, part.into());
        Ok(())
    }
}

impl TokenizerEncoder for CachedEncoder {
    fn encode_ids(&self, text: &str, special_ranges: &[Range<usize>]) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        let mut start = 0;
        for range in special_ranges {
            self.push_plain(&text[start..range.start], &mut ids)?;
            let spelling = &text[range.clone()];
            let id = self.vocabulary.control(spelling);
            ids.push(id.ok_or_else(|| format!("the tokenizer lacks {spelling}"))?.0);
            start = range.end;
        }
        self.push_plain(&text[start..], &mut ids)?;
        Ok(ids)
    }
}

type Key = [u8; 32];

/// A map in order of last use. Stamps are unique, so the two maps have equal length.
struct Parts {
    bytes_max: usize,
    stats: TokenCacheStats,
    stamp: u64,
    by_key: HashMap<Key, (u64, Arc<[u32]>)>,
    by_use: BTreeMap<u64, Key>,
}

impl Parts {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            stats: TokenCacheStats::default(),
            stamp: 0,
            by_key: HashMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    fn find(&mut self, key: &Key) -> Option<Arc<[u32]>> {
        let Some((used, ids)) = self.by_key.get_mut(key) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.stamp += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.stamp, *key);
        *used = self.stamp;
        Some(Arc::clone(ids))
    }

    fn insert(&mut self, key: Key, ids: Arc<[u32]>) {
        let cost = entry_bytes(&ids);
        if self.bytes_max < cost || self.by_key.contains_key(&key) {
            return;
        }
        while self.bytes_max < self.stats.bytes + cost {
            let (_, oldest) = self.by_use.pop_first().expect("bytes are held by entries");
            let (_, gone) = self.by_key.remove(&oldest).expect("both maps hold the same keys");
            self.stats.bytes -= entry_bytes(&gone);
        }
        self.stamp += 1;
        self.stats.bytes += cost;
        self.by_use.insert(self.stamp, key);
        self.by_key.insert(key, (self.stamp, ids));
        assert_eq!(self.by_use.len(), self.by_key.len(), "both maps hold the same keys");
    }
}

fn entry_bytes(ids: &[u32]) -> usize {
    size_of_val(ids) + ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ENTRY_BYTES, Parts};

    fn ids(count: u32) -> Arc<[u32]> {
        (0..count).collect()
    }

    #[test]
    fn the_least_recently_used_part_leaves_first() {
        let mut parts = Parts::new(3 * (ENTRY_BYTES + 40));
        for key in 0..3 {
            parts.insert([key; 32], ids(10));
        }
        assert!(parts.find(&[0; 32]).is_some());
        parts.insert([3; 32], ids(10));
        assert!(parts.find(&[1; 32]).is_none(), "oldest use");
        for key in [0, 2, 3] {
            assert_eq!(parts.find(&[key; 32]).unwrap().len(), 10);
        }
        assert_eq!(parts.stats.bytes, 3 * (ENTRY_BYTES + 40));
    }

    #[test]
    fn bytes_stay_within_the_bound_whatever_comes() {
        let mut parts = Parts::new(10_000);
        let mut state = 7_u32;
        for _ in 0..2_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = [u8::try_from(state >> 24).unwrap(); 32];
            if parts.find(&key).is_none() {
                parts.insert(key, ids(state >> 20));
            }
            let held: usize = parts.by_key.values().map(|(_, ids)| super::entry_bytes(ids)).sum();
            assert_eq!(held, parts.stats.bytes);
            assert!(held <= 10_000);
        }
        parts.insert([0; 32], ids(100_000));
        assert!(parts.stats.bytes <= 10_000, "a part larger than the cache is not kept");
    }

    #[test]
    fn a_cache_of_no_bytes_keeps_nothing() {
        let mut parts = Parts::new(0);
        parts.insert([0; 32], ids(1));
        assert!(parts.find(&[0; 32]).is_none());
    }
}
