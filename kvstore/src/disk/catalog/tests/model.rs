//! Random changes, against maps.

use std::collections::BTreeMap;

use shared::{BlockName, TenantTag};

use super::super::{Catalog, Entry, Found, Record, SegmentSeal, Usage};
use super::{all_names, check_sound, open, record};

/// The same by maps.
#[derive(Default)]
struct Model {
    names: BTreeMap<BlockName, Entry>,
    /// How many records each listed segment has.
    segments: BTreeMap<u64, u64>,
    number_next: u64,
}

impl Model {
    fn usage(&self, of: impl Fn(&Entry) -> bool) -> Usage {
        let entries = self.names.values().filter(|entry| of(entry));
        entries.fold(Usage::default(), |sum, entry| Usage {
            objects: sum.objects + 1,
            payload_bytes: sum.payload_bytes + u64::from(entry.bytes),
        })
    }
}

/// xorshift: the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn step(catalog: &Catalog, model: &mut Model, random: &mut Random) {
    let newest = model.segments.keys().last().copied();
    match (random.below(20), newest) {
        (0..=1, _) | (_, None) => {
            let number = model.number_next;
            if let Some(newest) = newest {
                let records = model.segments[&newest];
                let times = 1_000;
                let seal = SegmentSeal {
                    bytes: 1 << 30,
                    records,
                    oldest_unix_seconds: times,
                    newest_unix_seconds: times,
                };
                catalog.seal_segment(newest, &seal).unwrap();
            }
            catalog.begin_segment(number, 4_096, 0).unwrap();
            model.segments.insert(number, 0);
            model.number_next += 1;
        }
        (2, _) => {
            let at = usize::try_from(random.below(4)).unwrap();
            let mut older = model.segments.keys().copied().filter(|number| Some(*number) != newest);
            let number = older.nth(at).unwrap_or(u64::MAX);
            let gone: Vec<BlockName> = model
                .names
                .iter()
                .filter(|(_, entry)| entry.segment == number)
                .map(|(name, _)| *name)
                .collect();
            let mut shown = Vec::new();
            let mut show =
                |removed: &[Record]| shown.extend(removed.iter().map(|record| record.name));
            catalog.remove_segment(number, &mut show).unwrap();
            shown.sort_unstable();
            assert_eq!(shown, gone);
            model.segments.remove(&number);
            model.names.retain(|_, entry| entry.segment != number);
        }
        (3, _) => {
            let index = u32::try_from(random.below(200)).unwrap();
            let name = record(index, 0, 0).name;
            let held = model.names.remove(&name);
            let entry = held.unwrap_or_else(|| record(index, 0, 0).entry);
            assert_eq!(catalog.forget(name, &entry).unwrap(), held.is_some());
        }
        (_, Some(newest)) => {
            let count = 1 + random.below(8);
            let mut records: Vec<Record> = Vec::new();
            for _ in 0..count {
                let written = model.segments.get_mut(&newest).unwrap();
                let page = u32::try_from(1 + 2 * *written).unwrap();
                *written += 1;
                let index = u32::try_from(random.below(200)).unwrap();
                records.push(record(index, newest, page));
            }
            let inserted = catalog.insert(&records).unwrap();
            assert_eq!(inserted.entered, records.len());
            for Record { name, entry } in records {
                model.names.insert(name, entry);
            }
        }
    }
}

fn check(catalog: &Catalog, model: &Model) {
    let expected: Vec<Record> =
        model.names.iter().map(|(name, entry)| Record { name: *name, entry: *entry }).collect();
    assert_eq!(all_names(catalog), expected);
    assert_eq!(catalog.usage(), model.usage(|_| true));
    for tenant in (0..4).map(TenantTag) {
        assert_eq!(catalog.tenant(tenant).unwrap(), model.usage(|entry| entry.tenant == tenant));
    }
    let segments: BTreeMap<u64, u64> =
        catalog.segments().iter().map(|(number, segment)| (*number, segment.records)).collect();
    assert_eq!(segments, model.segments);
    assert_eq!(catalog.number_next(), model.number_next);
    check_sound(catalog);
}

#[test]
fn random_changes_and_restarts_agree_with_a_model() {
    for seed in 1..=4 {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random(seed);
        let mut model = Model::default();
        let (mut catalog, _) = open(&folder);
        for round in 0..8 {
            for _ in 0..40 {
                step(&catalog, &mut model, &mut random);
            }
            check(&catalog, &model);
            let clean = round % 2 == 0;
            if clean {
                catalog.close().unwrap();
            } else {
                drop(catalog);
            }
            let found;
            (catalog, found) = open(&folder);
            assert_eq!(found, if clean { Found::Clean } else { Found::Crashed });
            check(&catalog, &model);
        }
    }
}
