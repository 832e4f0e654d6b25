//! A model of the life of slots in two pools and of one reader; all of its states are visited.
//!
//! It mirrors `pool/state.rs` (free, owned, sealed; pins; a generation that rises when a slot becomes free; names held
//! once; marks that say what a slot holds) and the reading rule of shared memory: look at the mark, copy word by word while
//! the owner does what it likes, accept only if the mark is still that of the object and the checksum is right, else go on
//! with the other copy. The reader may die at any moment, and one word of a sealed slot may change by itself.
//!
//! Which cached slot is evicted is left open, which covers every order. Bounds: two pools, of two slots and of one, two
//! names, objects of two words, few tenants per slot. Each rule has a twin that breaks it, which the checker must see.

use stateright::{Checker, Expectation, Model, Property};

const POOLS: usize = 2;
/// Slots by pool; the second pool has the other copy.
const SLOTS: [usize; POOLS] = [2, 1];
/// Names by pool. The reader asks for the first: the other one is only there to be mistaken for it.
const NAMES: [u8; POOLS] = [2, 1];
const WORDS: usize = 2;
/// The last generation of the slots of each pool.
const GENERATION_MAX: [u8; POOLS] = [1, 0];

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A mark says only whether its slot holds something.
    MarkIgnoresGeneration,
    /// A reader accepts without a second look at the mark.
    AcceptIgnoresMark,
    /// A mark stays when its slot becomes free, until the next object is sealed there.
    MarkOutlivesObject,
    /// A slot is evicted although somebody pins it.
    EvictIgnoresPins,
    /// The later of two copies of a name gets it.
    LastWriteWins,
}

/// What the checksum tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksum {
    /// Every difference.
    Sound,
    /// Nothing: what holds with it does not rest on checksums.
    Blind,
}

#[derive(Clone, Copy, Debug)]
struct Store {
    broken: Broken,
    checksum: Checksum,
}

/// One tenant of a slot; also its descriptor, and what is written into each of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tenant {
    pool: usize,
    slot: usize,
    generation: u8,
    name: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Word {
    Never,
    Of(Tenant),
    Damaged,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Free,
    Owned { name: u8, written: usize },
    Sealed { name: u8, named: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    phase: Phase,
    generation: u8,
    words: [Word; WORDS],
    /// What readers see of it.
    mark: Option<Tenant>,
    /// The tenant a guard of the owner's own pins.
    pinned: Option<Tenant>,
}

/// What a reader looks for, and where it may still find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Attempt {
    name: u8,
    copies: [Option<Tenant>; POOLS],
    /// Whether a copy was given up.
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// Copies to try, in this order.
    Located(Attempt),
    /// The rest of the attempt, and how many words are copied.
    Copying {
        rest: Attempt,
        source: Tenant,
        copied: [Word; WORDS],
        next: usize,
    },
    Accepted {
        rest: Attempt,
        source: Tenant,
        copied: [Word; WORDS],
    },
    Missed,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    pools: [Vec<Slot>; POOLS],
    reader: Reader,
    /// One word was damaged; it happens once.
    damaged: bool,
    /// A held name went to another copy.
    overwritten: bool,
    /// A slot was reused whose reader died.
    reused_after_death: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Reserve(usize, usize, u8),
    Write(usize, usize),
    Seal(usize, usize),
    Drop(usize, usize),
    Evict(usize, usize),
    Forget(usize, usize),
    Pin(usize, usize),
    Unpin(usize, usize),
    Damage(usize, usize),
    Locate(u8),
    Look,
    Copy,
    Finish,
    Die,
}

impl State {
    fn slot(&self, pool: usize, slot: usize) -> &Slot {
        &self.pools[pool][slot]
    }

    fn slot_mut(&mut self, pool: usize, slot: usize) -> &mut Slot {
        &mut self.pools[pool][slot]
    }

    fn tenant(&self, pool: usize, slot: usize) -> Option<Tenant> {
        let Slot { phase, generation, .. } = *self.slot(pool, slot);
        match phase {
            Phase::Sealed { name, .. } => Some(Tenant { pool, slot, generation, name }),
            Phase::Free | Phase::Owned { .. } => None,
        }
    }

    /// The copy that holds a name in a pool.
    fn find(&self, pool: usize, name: u8) -> Option<Tenant> {
        let named = Phase::Sealed { name, named: true };
        let slot = self.pools[pool].iter().position(|slot| slot.phase == named)?;
        self.tenant(pool, slot)
    }

    fn is_held(&self, pool: usize, slot: usize) -> bool {
        self.slot(pool, slot).pinned.is_some()
    }

    /// The one place where the generation rises.
    fn free(&mut self, pool: usize, slot: usize, broken: Broken) {
        let slot = self.slot_mut(pool, slot);
        (slot.phase, slot.generation) = (Phase::Free, slot.generation + 1);
        if broken != Broken::MarkOutlivesObject {
            slot.mark = None;
        }
    }

    /// After a guard went: an unnamed slot that nobody holds is freed.
    fn let_go(&mut self, pool: usize, slot: usize, broken: Broken) {
        let unnamed = matches!(self.slot(pool, slot).phase, Phase::Sealed { named: false, .. });
        if unnamed && !self.is_held(pool, slot) {
            self.free(pool, slot, broken);
        }
    }

    fn forget(&mut self, pool: usize, slot: usize, broken: Broken) {
        if let Phase::Sealed { named, .. } = &mut self.slot_mut(pool, slot).phase {
            *named = false;
        }
        self.let_go(pool, slot, broken);
    }

    /// Forgets the words that nobody can read any more: without a reader inside, the bytes of a free slot do not matter.
    fn without_old_words(mut self) -> Self {
        let inside = match self.reader {
            Reader::Copying { source, .. } => Some((source.pool, source.slot)),
            _ => None,
        };
        for (pool, slots) in self.pools.iter_mut().enumerate() {
            for (index, slot) in slots.iter_mut().enumerate() {
                let written = match slot.phase {
                    Phase::Free => 0,
                    Phase::Owned { written, .. } => written,
                    Phase::Sealed { .. } => WORDS,
                };
                if inside != Some((pool, index)) {
                    slot.words[written..].fill(Word::Never);
                }
            }
        }
        self
    }

    fn is_intact(&self, tenant: Tenant) -> bool {
        self.slot(tenant.pool, tenant.slot).words == [Word::Of(tenant); WORDS]
    }
}

impl Store {
    fn seal(self, state: &mut State, pool: usize, slot: usize, name: u8) {
        let before = state.find(pool, name);
        let named = match before {
            None => true,
            Some(held) if self.broken == Broken::LastWriteWins => {
                state.forget(pool, held.slot, self.broken);
                true
            }
            Some(_) => false,
        };
        if named {
            state.slot_mut(pool, slot).phase = Phase::Sealed { name, named };
            state.slot_mut(pool, slot).mark = state.tenant(pool, slot);
        } else {
            state.free(pool, slot, self.broken);
        }
        state.overwritten |= before.is_some() && state.find(pool, name) != before;
    }

    /// Whether a reader sees that a slot holds its object.
    fn holds(self, state: &State, source: Tenant) -> bool {
        let mark = state.slot(source.pool, source.slot).mark;
        match self.broken {
            Broken::MarkIgnoresGeneration => mark.is_some(),
            _ => mark == Some(source),
        }
    }

    /// The reader looks at the mark of its first copy; without it, it goes on with the next one.
    fn look(self, state: &mut State, mut rest: Attempt) {
        let Some(source) = rest.copies.iter_mut().find_map(Option::take) else {
            state.reader = Reader::Missed;
            return;
        };
        state.reader = if self.holds(state, source) {
            Reader::Copying { rest, source, copied: [Word::Never; WORDS], next: 0 }
        } else {
            Reader::Located(Attempt { failed: true, ..rest })
        };
    }

    /// The reader looks at the mark again and decides; the owner it then tells of a wrong copy looks at its own.
    fn finish(self, state: &mut State, reader: Reader) {
        let Reader::Copying { rest, source, copied, .. } = reader else {
            unreachable!("only a copy is finished")
        };
        let held = self.holds(state, source) || self.broken == Broken::AcceptIgnoresMark;
        let right = self.checksum == Checksum::Blind || copied == [Word::Of(source); WORDS];
        if held && right {
            state.reader = Reader::Accepted { rest, source, copied };
            return;
        }
        let now = state.tenant(source.pool, source.slot);
        if held && !right && now == Some(source) && !state.is_intact(source) {
            state.forget(source.pool, source.slot, self.broken);
        }
        state.reader = Reader::Located(Attempt { failed: true, ..rest });
    }

    fn slot_actions(self, state: &State, pool: usize, index: usize, actions: &mut Vec<Action>) {
        let slot = state.slot(pool, index);
        match slot.phase {
            Phase::Free if slot.generation <= GENERATION_MAX[pool] => {
                actions.extend((0..NAMES[pool]).map(|name| Action::Reserve(pool, index, name)));
            }
            Phase::Free => {}
            Phase::Owned { written: WORDS, .. } => {
                actions.extend([Action::Seal(pool, index), Action::Drop(pool, index)]);
            }
            Phase::Owned { .. } => actions.push(Action::Write(pool, index)),
            Phase::Sealed { named, .. } => {
                let free = !state.is_held(pool, index) || self.broken == Broken::EvictIgnoresPins;
                actions.extend((named && free).then_some(Action::Evict(pool, index)));
                actions.extend(named.then_some(Action::Forget(pool, index)));
                // A guard comes from a lookup, which finds named slots only.
                let pin = pool == 0 && named && slot.pinned.is_none();
                actions.extend(pin.then_some(Action::Pin(pool, index)));
                let damage = !state.damaged && self.checksum == Checksum::Sound;
                actions.extend(damage.then_some(Action::Damage(pool, index)));
            }
        }
        actions.extend(slot.pinned.map(|_| Action::Unpin(pool, index)));
    }
}

impl Model for Store {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let words = [Word::Never; WORDS];
        let slot = Slot { phase: Phase::Free, generation: 0, words, mark: None, pinned: None };
        vec![State {
            pools: SLOTS.map(|slots| vec![slot; slots]),
            reader: Reader::Idle,
            damaged: false,
            overwritten: false,
            reused_after_death: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // What pools do by themselves is seen beside the reader that has not begun.
        if matches!(state.reader, Reader::Accepted { .. } | Reader::Missed) {
            return;
        }
        for (pool, slots) in SLOTS.iter().enumerate() {
            (0..*slots).for_each(|slot| self.slot_actions(state, pool, slot, actions));
        }
        match state.reader {
            Reader::Idle => actions.push(Action::Locate(0)),
            Reader::Located(_) => actions.push(Action::Look),
            Reader::Copying { next: WORDS, .. } => actions.extend([Action::Finish, Action::Die]),
            Reader::Copying { .. } => actions.extend([Action::Copy, Action::Die]),
            Reader::Dead | Reader::Accepted { .. } | Reader::Missed => {}
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Reserve(pool, slot, name) => {
                state.slot_mut(pool, slot).phase = Phase::Owned { name, written: 0 };
                state.reused_after_death |=
                    state.reader == Reader::Dead && 0 < state.slot(pool, slot).generation;
            }
            Action::Write(pool, slot) => {
                let Slot { phase, generation, words, .. } = state.slot_mut(pool, slot);
                let Phase::Owned { name, written } = phase else { return None };
                words[*written] =
                    Word::Of(Tenant { pool, slot, generation: *generation, name: *name });
                *written += 1;
            }
            Action::Seal(pool, slot) => {
                let Phase::Owned { name, .. } = state.slot(pool, slot).phase else { return None };
                self.seal(&mut state, pool, slot, name);
            }
            Action::Drop(pool, slot) | Action::Evict(pool, slot) => {
                state.free(pool, slot, self.broken);
            }
            Action::Forget(pool, slot) => state.forget(pool, slot, self.broken),
            Action::Pin(pool, slot) => {
                state.slot_mut(pool, slot).pinned = last.tenant(pool, slot);
            }
            Action::Unpin(pool, slot) => {
                state.slot_mut(pool, slot).pinned = None;
                state.let_go(pool, slot, self.broken);
            }
            Action::Damage(pool, slot) => {
                state.slot_mut(pool, slot).words[0] = Word::Damaged;
                state.damaged = true;
            }
            Action::Locate(name) => {
                let copies = [0, 1].map(|pool| last.find(pool, name));
                state.reader = Reader::Located(Attempt { name, copies, failed: false });
            }
            Action::Look => {
                let Reader::Located(attempt) = last.reader else { return None };
                self.look(&mut state, attempt);
            }
            Action::Copy => {
                let Reader::Copying { source, copied, next, .. } = &mut state.reader else {
                    return None;
                };
                copied[*next] = last.slot(source.pool, source.slot).words[*next];
                *next += 1;
            }
            Action::Finish => self.finish(&mut state, last.reader),
            Action::Die => state.reader = Reader::Dead,
        }
        Some(state.without_old_words())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("an accepted copy has the bytes of its key", |_, state: &State| {
                match state.reader {
                    Reader::Accepted { rest, source, copied } => {
                        source.name == rest.name && copied == [Word::Of(source); WORDS]
                    }
                    _ => true,
                }
            }),
            Property::always("a pinned slot keeps its tenant", |_, state: &State| {
                let mut pinned = state.pools.iter().flatten().filter_map(|slot| slot.pinned);
                pinned.all(|held| state.tenant(held.pool, held.slot) == Some(held))
            }),
            Property::always("the first write wins", |_, state: &State| !state.overwritten),
            Property::always("a slot that nobody holds is free or cached", |_, state: &State| {
                let unnamed = |pool: usize, slot: usize| {
                    matches!(state.slot(pool, slot).phase, Phase::Sealed { named: false, .. })
                };
                let all =
                    (0..POOLS).flat_map(|pool| (0..SLOTS[pool]).map(move |slot| (pool, slot)));
                all.into_iter()
                    .all(|(pool, slot)| !unnamed(pool, slot) || state.is_held(pool, slot))
            }),
            Property::sometimes("a copy is accepted", |_, state: &State| {
                matches!(state.reader, Reader::Accepted { .. })
            }),
            Property::sometimes("the other copy is accepted", |_, state: &State| {
                matches!(state.reader, Reader::Accepted { rest: Attempt { failed: true, .. }, .. })
            }),
            Property::sometimes("a slot is reused after its reader died", |_, state: &State| {
                state.reused_after_death
            }),
        ]
    }
}

/// Visits all states, and says how many those were and which of the rules do not hold.
fn broken_rules(broken: Broken, checksum: Checksum) -> (usize, Vec<&'static str>) {
    let checker = Store { broken, checksum }.checker().threads(2).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let rules = checker.model().properties();
    let mut faults: Vec<&'static str> = rules
        .iter()
        .filter(|rule| {
            let always = rule.expectation == Expectation::Always;
            discoveries.contains_key(rule.name) == always
        })
        .map(|rule| rule.name)
        .collect();
    faults.sort_unstable();
    (checker.unique_state_count(), faults)
}

#[test]
fn every_state_of_the_store_keeps_its_rules() {
    for checksum in [Checksum::Sound, Checksum::Blind] {
        let (states, faults) = broken_rules(Broken::Nothing, checksum);
        println!("{checksum:?} checksums: {states} states");
        assert_eq!(faults, [""; 0], "{checksum:?} checksums, {states} states");
        assert!(10_000 < states, "the model is too small to mean anything");
    }
}

#[test]
fn every_rule_that_is_broken_is_seen() {
    let cases = [
        (Broken::MarkIgnoresGeneration, "an accepted copy has the bytes of its key"),
        (Broken::AcceptIgnoresMark, "an accepted copy has the bytes of its key"),
        (Broken::MarkOutlivesObject, "an accepted copy has the bytes of its key"),
        (Broken::EvictIgnoresPins, "a pinned slot keeps its tenant"),
        (Broken::LastWriteWins, "the first write wins"),
    ];
    for (broken, rule) in cases {
        let checker = Store { broken, checksum: Checksum::Blind }.checker().threads(2);
        let found = checker.target_state_count(400_000).spawn_bfs().join().discoveries();
        assert!(found.contains_key(rule), "{broken:?} went unseen");
    }
}
