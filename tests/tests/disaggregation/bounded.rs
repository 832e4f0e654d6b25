//! In the bounded lineage a hit without windows replays one window, says so, and leaves what it was given untouched.

use engine::Arithmetic;
use shared::{BLOCK_TOKENS, DecodeRequest, Descriptor, Lineage, ObjectKind, WindowSource};

use super::cluster::{Cluster, Engines, request};
use super::cold::SAMPLED;
use super::hits::{Bench, Case, Holder, Source, reported};
use super::lane::bytes;
use super::models::{Model, text};

/// Descriptors (slot, generation, checksum) and bytes of every copy of the first blocks.
fn copies(bench: &Bench<'_>, blocks: usize) -> Vec<(usize, Descriptor, Vec<u8>)> {
    let mut copies = Vec::new();
    for (number, (_, party)) in bench.cluster.parties().into_iter().enumerate() {
        for name in &bench.names[..blocks] {
            let Some(slot) = party.blocks.lookup(*name) else { continue };
            let bytes = bytes(party.blocks.memory().as_ref(), slot.index());
            copies.push((number, slot.descriptor(), bytes));
        }
    }
    copies
}

/// Which blocks and window objects of the prompt a party holds as exact or not.
fn exact_flags(cluster: &Cluster, bench: &Bench<'_>, kind: ObjectKind) -> Vec<(usize, bool)> {
    let mut flags = Vec::new();
    for (_, party) in cluster.parties() {
        for (block, name) in bench.names.iter().enumerate() {
            flags.extend(party.object(kind, *name).map(|object| (block, object.exact)));
        }
    }
    flags
}

fn bench(engines: &Engines) -> Bench<'_> {
    let asked = request(1, Lineage::Bounded, &text(800), 6);
    let bench = Bench::new(engines, DecodeRequest { sampling: SAMPLED, ..asked });
    assert_eq!(bench.names.len(), 5);
    bench
}

#[test]
fn a_bounded_hit_replays_one_window_and_leaves_blocks_below_it_untouched() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let bench = bench(&engines);
    let window = engines.decode.geometry().window;
    let mut approximations = 0;
    for hit in [2, 4, 5] {
        for holder in [Holder::DecodeAlone, Holder::Prefill, Holder::Store] {
            let case = Case { hit, holder, source: Source::Nothing };
            bench.prepare(case);
            let before = copies(&bench, hit);
            assert_eq!(before.len(), hit);
            let answer = bench.cluster.answer(&bench.ask(case));
            bench.cluster.rest();
            let cached = u32::try_from(hit).unwrap() * BLOCK_TOKENS;
            let expected = (cached, window, WindowSource::Replayed(window));
            assert_eq!(reported(&answer.start), expected, "{case:?}");
            assert!(!answer.start.exact, "{case:?}");
            let after = copies(&bench, hit);
            assert!(before.iter().all(|copy| after.contains(copy)), "{case:?}");
            for (_, descriptor, bytes) in &after {
                let block = bench.names.iter().position(|name| *name == descriptor.key.name);
                assert!(
                    *bytes == bench.blocks[block.unwrap()].bytes && descriptor.exact,
                    "{case:?}"
                );
            }
            for (block, exact) in exact_flags(&bench.cluster, &bench, ObjectKind::Block) {
                assert_eq!(exact, block < hit, "{case:?}: block {block}");
            }
            approximations += (hit..bench.names.len())
                .filter_map(|block| {
                    let held = &bench.cluster.decode;
                    Some((block, held.object(ObjectKind::Block, bench.names[block])?))
                })
                .filter(|(block, object)| object.bytes != bench.blocks[*block].bytes)
                .count();
            for (block, exact) in exact_flags(&bench.cluster, &bench, ObjectKind::Window) {
                assert!(!exact, "{case:?}: the windows behind block {block}");
            }
            // What the replay left behind is used, and still not called exact.
            let again = bench.cluster.answer(&bench.ask(case));
            bench.cluster.rest();
            assert_eq!(again.tokens, answer.tokens, "{case:?}: from the same bytes");
            assert!(!again.start.exact, "{case:?}: {:?}", again.start);
        }
    }
    assert_ne!(approximations, 0, "else a bounded replay would be an exact one");
}

#[test]
fn a_bounded_hit_with_a_window_object_of_exact_origin_is_exact() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let bench = bench(&engines);
    for (hit, holder) in [(3, Holder::DecodeAlone), (4, Holder::Prefill), (5, Holder::Store)] {
        let case = Case { hit, holder, source: Source::Object };
        bench.check_exact(case);
    }
}

#[test]
fn a_prefix_of_one_window_is_replayed_exactly_in_every_lineage() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let bench = bench(&engines);
    let case = Case { hit: 1, holder: Holder::DecodeAlone, source: Source::Nothing };
    bench.check_exact(case);
}
