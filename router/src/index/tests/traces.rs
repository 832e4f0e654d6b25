//! Real traffic against a plain map: many holders of a block, bounded caches that evict, restarts.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shared::{BlockName, CacheChange, Random, Tier, Timestamp};

use super::{event, removed, stored};
use crate::index::PrefixIndex;
use crate::role::Role;
use crate::testing::{block, rank};

const REQUESTS: usize = 2_500;

/// The names of each request: four blocks of 128 tokens for each of the trace's 512. None when the file is absent.
fn requests(file: &str) -> Option<Vec<Vec<BlockName>>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/traces").join(file);
    let Ok(text) = fs::read_to_string(&path) else {
        println!("skipped: {} is absent", path.display());
        return None;
    };
    let ids = |line: &str| {
        let (_, list) = line.split_once("\"hash_ids\": [").expect("a list of ids");
        let (list, _) = list.split_once(']').expect("the end of the list");
        let ids = list.split(',').map(|id| id.trim().parse::<u32>().expect("an id"));
        ids.flat_map(|id| (0..4).map(move |part| block(id, part))).collect()
    };
    Some(text.lines().take(REQUESTS).map(ids).collect())
}

/// One worker's cache: the last requests it had, as far as they fit.
#[derive(Default)]
struct Cache {
    order: VecDeque<BlockName>,
    held: HashMap<BlockName, u32>,
    sequence: u64,
}

impl Cache {
    /// Takes a request's blocks; answers what is new and what had to go.
    fn touch(
        &mut self,
        names: &[BlockName],
        blocks_max: usize,
    ) -> (Vec<BlockName>, Vec<BlockName>) {
        let mut new = Vec::new();
        for &name in names {
            let uses = self.held.entry(name).or_insert(0);
            *uses += 1;
            if *uses == 1 {
                new.push(name);
            }
            self.order.push_back(name);
        }
        let mut gone = Vec::new();
        while blocks_max < self.held.len() {
            let oldest = self.order.pop_front().expect("as many uses as held");
            let uses = self.held.get_mut(&oldest).expect("held");
            *uses -= 1;
            if *uses == 0 {
                self.held.remove(&oldest);
                gone.push(oldest);
            }
        }
        // A block of a prompt longer than the cache came and went.
        let held = &self.held;
        new.retain(|name| held.contains_key(name));
        gone.retain(|name| !new.contains(name));
        (new, gone)
    }
}

fn replay(requests: &[Vec<BlockName>], workers: u32, blocks_max: usize, expects: bool) {
    let mut index = PrefixIndex::new(64, 10_000_000).with_expectations(100_000);
    let mut caches: Vec<Cache> = (0..workers).map(|_| Cache::default()).collect();
    let mut random = Random::new(u64::from(workers));
    for worker in 0..workers {
        index.join(rank(worker), Role::Decode).expect("room");
    }
    for (number, names) in requests.iter().enumerate() {
        let found = index.match_prefix(names);
        let held =
            |cache: &Cache| names.iter().take_while(|name| cache.held.contains_key(*name)).count();
        let reaches: Vec<usize> = caches.iter().map(held).collect();
        for (worker, &expected) in (0..workers).zip(&reaches) {
            let reach = found.of(rank(worker)).leading.of(Tier::Device);
            assert_eq!(
                usize::try_from(reach).expect("fits"),
                expected,
                "request {number}, worker {worker}"
            );
        }
        // Mostly the longest match, sometimes anybody: then a block has several holders.
        let longest =
            (0..reaches.len()).max_by_key(|&worker| (reaches[worker], worker)).expect("a worker");
        let anybody = random.below(reaches.len());
        let at = if 0 < reaches[longest] && !random.one_in(4) { longest } else { anybody };
        let worker = rank(u32::try_from(at).expect("small"));
        let now = Timestamp(u64::try_from(number).expect("fits") * 1_000_000);
        if expects {
            index.expire(now);
            index.expect(worker, &Arc::from(&names[..]), now.after(Duration::from_millis(5)));
        }
        let cache = &mut caches[at];
        let (mut new, gone) = cache.touch(names, blocks_max);
        new.sort_unstable();
        let mut changes = vec![removed(Tier::Device, &gone), stored(Tier::Device, &new)];
        if random.one_in(300) {
            changes.push(CacheChange::Cleared);
            cache.held.clear();
            cache.order.clear();
        }
        for change in changes {
            index.apply(&event(worker, 1, cache.sequence, change));
            cache.sequence += 1;
        }
        let pairs: usize = caches.iter().map(|cache| cache.held.len()).sum();
        assert_eq!(index.entries(), pairs, "request {number}");
    }
}

#[test]
fn traces_equal_a_plain_map() {
    for file in ["conversation_trace.jsonl", "synthetic_trace.jsonl"] {
        let Some(requests) = requests(file) else { return };
        replay(&requests, 8, 3_000, true);
        replay(&requests, 8, 3_000, false);
        replay(&requests, 64, 1_500, true);
        replay(&requests, 64, 100_000, true);
    }
}
