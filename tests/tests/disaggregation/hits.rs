//! A hit is the cold answer, whatever is cached, wherever it lies, and whichever way the windows come back.
//!
//! Everything a cold run left behind is stashed; before each hit all pools are emptied and exactly what the case wants is
//! put back.

use std::collections::BTreeMap;

use engine::Arithmetic;
use shared::{
    BLOCK_TOKENS, BlockName, DecodeRequest, Lineage, ObjectKind, StartReport, WindowSource,
    block_names,
};

use super::cluster::{Cluster, Engines, Object, Party, request};
use super::cold::SAMPLED;
use super::lane::Alone;
use super::models::{Model, noise, text};

const ANSWER_TOKENS: u32 = 5;

/// Who has the cached prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The decode worker, which must not ask prefill.
    DecodeAlone,
    /// The decode worker; prefill has nothing and computes its part from position 0.
    DecodeAndVisit,
    Prefill,
    Store,
}

/// What is there to rebuild the windows at the end of the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Object,
    /// An object this many blocks earlier.
    Earlier(usize),
    Nothing,
}

/// One state of the caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Cached blocks.
    pub(crate) hit: usize,
    pub(crate) holder: Holder,
    pub(crate) source: Source,
}

/// A prompt after a cold run: what it left behind, and what it must be.
pub(crate) struct Bench<'a> {
    pub(crate) cluster: Cluster,
    pub(crate) asked: DecodeRequest,
    pub(crate) alone: Alone<'a>,
    pub(crate) names: Vec<BlockName>,
    pub(crate) blocks: Vec<Object>,
    windows: BTreeMap<usize, Object>,
}

impl<'a> Bench<'a> {
    /// Runs the prompt cold and empties all caches.
    pub(crate) fn new(engines: &'a Engines, asked: DecodeRequest) -> Self {
        let cluster = Cluster::start(engines);
        let tokens = asked.output_tokens_max;
        let alone = Alone::answer(&engines.decode, &asked.prompt, &asked.sampling, tokens);
        let cold = cluster.answer(&asked);
        cluster.rest();
        cluster.check(&asked, &cold, &alone);
        let length = u32::try_from(asked.prompt.len()).unwrap();
        let boundary = engines.decode.geometry().boundary(length);
        let mut names = block_names(&asked.root, &asked.prompt);
        names.truncate(usize::try_from(boundary / BLOCK_TOKENS).unwrap());
        let stash = |party: &Party, kind, name: &BlockName| party.object(kind, *name).unwrap();
        let blocks = names.iter().map(|name| stash(&cluster.decode, ObjectKind::Block, name));
        let windows = names.iter().map(|name| stash(&cluster.prefill, ObjectKind::Window, name));
        let (blocks, windows) = (blocks.collect(), (1..).zip(windows).collect());
        Self { cluster, asked, alone, names, blocks, windows }
    }

    pub(crate) fn prepare(&self, case: Case) {
        self.cluster.evict();
        let party = match case.holder {
            Holder::DecodeAlone | Holder::DecodeAndVisit => &self.cluster.decode,
            Holder::Prefill => &self.cluster.prefill,
            Holder::Store => &self.cluster.store,
        };
        for block in 0..case.hit {
            party.plant(ObjectKind::Block, self.names[block], &self.blocks[block]);
        }
        let window = match case.source {
            Source::Object => case.hit,
            Source::Earlier(blocks) => case.hit - blocks,
            Source::Nothing => 0,
        };
        if window != 0 {
            party.plant(ObjectKind::Window, self.names[window - 1], &self.windows[&window]);
        }
    }

    /// What the start must report. `rows` are those of a replay at the end of the prefix.
    fn expected(&self, case: Case, rows: u32) -> (u32, u32, WindowSource) {
        let hit = u32::try_from(case.hit).unwrap() * BLOCK_TOKENS;
        let whole = case.hit == self.names.len();
        // A prefill worker does not fetch a block when computing it costs no row more: then it starts where the object
        // ends, or at 0, and the decode worker alone reads the cached block.
        let earlier = case.holder == Holder::Store
            && match case.source {
                Source::Object => false,
                Source::Earlier(_) => true,
                Source::Nothing => hit <= rows,
            };
        let (replayed, source) = match (case.holder, case.source) {
            (Holder::DecodeAlone, _) if case.hit == 0 => (0, WindowSource::Cold),
            (Holder::DecodeAndVisit, _) if !whole => (0, WindowSource::Object),
            _ if case.hit == 0 || (earlier && !whole) => (0, WindowSource::Object),
            (_, Source::Object) => (0, WindowSource::Object),
            (_, Source::Earlier(blocks)) => {
                (u32::try_from(blocks).unwrap() * BLOCK_TOKENS, WindowSource::Recomputed)
            }
            (_, Source::Nothing) => (rows, WindowSource::Replayed(rows)),
        };
        (hit, replayed, source)
    }

    pub(crate) fn ask(&self, case: Case) -> DecodeRequest {
        let prefill = self.asked.prefill.filter(|_| case.holder != Holder::DecodeAlone);
        DecodeRequest { prefill, ..self.asked.clone() }
    }

    /// One hit in the exact lineage.
    pub(crate) fn check_exact(&self, case: Case) {
        self.prepare(case);
        let asked = self.ask(case);
        let answer = self.cluster.answer(&asked);
        self.cluster.rest();
        self.cluster.check(&asked, &answer, &self.alone);
        let geometry = self.cluster.engines.decode.geometry();
        let hit = u32::try_from(case.hit).unwrap() * BLOCK_TOKENS;
        let rows = geometry.exact_replay_rows();
        let expected = self.expected(case, rows.min(hit));
        assert_eq!(reported(&answer.start), expected, "{case:?}");
        for (window, object) in &self.windows {
            for (party, memory) in self.cluster.parties() {
                let found = memory.object(ObjectKind::Window, self.names[window - 1]);
                let same = found.is_none_or(|found| found.exact && found.bytes == object.bytes);
                assert!(same, "{case:?}: the object behind block {window} of {party}");
            }
        }
    }
}

pub(crate) fn reported(start: &StartReport) -> (u32, u32, WindowSource) {
    (start.cached_tokens, start.replayed_tokens, start.window_source)
}

const HOLDERS: [Holder; 4] =
    [Holder::DecodeAlone, Holder::Prefill, Holder::Store, Holder::DecodeAndVisit];

/// Every hit length with every source, in every holder or with holders taking turns.
pub(crate) fn cases(blocks: usize, holders_each: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut turn = HOLDERS.into_iter().cycle();
    for hit in 0..=blocks {
        let sources: &[Source] = match hit {
            0 => &[Source::Nothing],
            1 => &[Source::Object, Source::Nothing],
            _ => &[Source::Object, Source::Earlier(1), Source::Nothing],
        };
        for source in sources {
            for holder in turn.by_ref().take(holders_each) {
                cases.push(Case { hit, holder, source: *source });
            }
        }
    }
    cases
}

#[test]
fn a_hit_of_every_length_is_the_cold_answer() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let asked = request(1, Lineage::Exact, &text(1_500), ANSWER_TOKENS);
    let bench = Bench::new(&engines, DecodeRequest { sampling: SAMPLED, ..asked });
    assert_eq!(bench.names.len(), 10);
    // Three sources and four holders: every pair comes up.
    cases(10, 1).into_iter().for_each(|case| bench.check_exact(case));
}

#[test]
fn a_hit_of_every_length_in_every_place_is_the_cold_answer_with_short_windows() {
    let engines = Engines::load(Model::TinyW, Arithmetic::Exact);
    let prompt = noise(&engines.decode, 1, 730);
    let asked = request(1, Lineage::Exact, &prompt, ANSWER_TOKENS);
    let bench = Bench::new(&engines, DecodeRequest { sampling: SAMPLED, ..asked });
    assert_eq!(bench.names.len(), 5);
    cases(5, HOLDERS.len()).into_iter().for_each(|case| bench.check_exact(case));
}
