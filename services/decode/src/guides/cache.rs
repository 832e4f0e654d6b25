//! Compiled grammars by their text, bounded in bytes; the one used longest ago leaves first.

use std::collections::HashMap;
use std::sync::Arc;

use engine::Compiled;
use shared::Grammar;

pub(crate) struct GrammarCache {
    entries: HashMap<Grammar, Entry>,
    bytes: usize,
    bytes_max: usize,
    uses: u64,
    pub(super) hits: u64,
    /// Grammars compiled because they were not here.
    pub(super) misses: u64,
}

struct Entry {
    compiled: Arc<Compiled>,
    bytes: usize,
    used: u64,
}

impl GrammarCache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, bytes_max, uses: 0, hits: 0, misses: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn take(&mut self, grammar: &Grammar) -> Option<Arc<Compiled>> {
        self.uses += 1;
        let entry = self.entries.get_mut(grammar)?;
        entry.used = self.uses;
        self.hits += 1;
        Some(Arc::clone(&entry.compiled))
    }

    /// Keeps a grammar unless it is larger than the whole cache.
    pub(super) fn put(&mut self, grammar: Grammar, compiled: &Arc<Compiled>) {
        self.misses += 1;
        let bytes = compiled.bytes() + grammar.text().len();
        if self.bytes_max < bytes {
            return;
        }
        self.uses += 1;
        let entry = Entry { compiled: Arc::clone(compiled), bytes, used: self.uses };
        self.bytes += bytes;
        if let Some(before) = self.entries.insert(grammar, entry) {
            // Two requests with it at the same moment.
            self.bytes -= before.bytes;
        }
        while self.bytes_max < self.bytes {
            // A scan: an entry has 64 KiB at least, so there are thousands at the most, and this follows a compilation.
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(grammar, _)| grammar.clone());
            let oldest = oldest.expect("bytes are those of the entries");
            let gone = self.entries.remove(&oldest).expect("found above");
            self.bytes -= gone.bytes;
        }
    }
}
