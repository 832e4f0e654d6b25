//! Automata of regular expressions, as far as two lexemes can be in each other's way.
//!
//! A state is a class of the expression whose character was read last, so that no state matches the empty text. Source:
//! the position automata of Glushkov.

use std::collections::HashSet;

use super::bits::{Bits, Leads, PARTS_PER_STEP, Work};
use crate::grammar::expression::{Class, Expression, complement};

/// Transitions of one automaton. A bounded repetition of a large choice has the square of its classes for each round.
pub(super) const EDGES_MAX: usize = 1 << 14;

/// The automaton of one expression without its empty match.
#[derive(Debug)]
pub(super) struct Automaton {
    letters: Vec<Letters>,
    first: Vec<usize>,
    /// First bytes of its texts.
    leads: Leads,
    /// Behind each state the states that its text can be continued to.
    follow: Vec<Vec<usize>>,
    last: Vec<bool>,
    edges: usize,
}

/// The characters of a class.
#[derive(Clone, Debug)]
struct Letters {
    /// In order and apart from each other.
    ranges: Vec<(u32, u32)>,
    leads: Leads,
}

/// How the texts of two lexemes meet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meeting {
    /// Some text is of both.
    pub(super) common: bool,
    /// First bytes of the characters by which a text of the first can become a longer beginning of one of the second.
    pub(super) run_on: Leads,
}

/// What an expression adds to an automaton.
struct Part {
    nullable: bool,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Automaton {
    /// The automaton of an expression without rules; none when it has too many transitions.
    pub(super) fn new(expression: &Expression) -> Option<Self> {
        let mut automaton = Self {
            letters: Vec::new(),
            first: Vec::new(),
            leads: Leads::default(),
            follow: Vec::new(),
            last: Vec::new(),
            edges: 0,
        };
        let whole = automaton.part(expression)?;
        for state in whole.last {
            automaton.last[state] = true;
        }
        for follow in &mut automaton.follow {
            follow.sort_unstable();
            follow.dedup();
        }
        automaton.leads = automaton.leads_of(&whole.first);
        automaton.first = whole.first;
        Some(automaton)
    }

    /// First bytes of its texts.
    pub(super) fn leads(&self) -> Leads {
        self.leads
    }

    /// States and transitions.
    pub(super) fn size(&self) -> usize {
        self.letters.len() + self.edges
    }

    /// Ranges of all its states.
    pub(super) fn ranges(&self) -> usize {
        self.letters.iter().map(|letters| letters.ranges.len()).sum()
    }

    /// Whether each of its texts is one character, so that none can be run over or continued.
    pub(super) fn is_character(&self) -> bool {
        self.edges == 0
    }

    /// Whether a deterministic automaton of it has at most so many states; none when that takes too much work.
    pub(super) fn fits(&self, states_max: usize, work: &mut Work) -> Option<bool> {
        let mut bounds: Vec<u32> = self
            .letters
            .iter()
            .flat_map(|letters| &letters.ranges)
            .flat_map(|(first, last)| [*first, last.saturating_add(1)])
            .collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut known = HashSet::from([self.first.clone()]);
        let mut waiting = vec![self.first.clone()];
        while let Some(next) = waiting.pop() {
            work.spend(bounds.len() * next.len() + 1)?;
            for sign in &bounds {
                let reached = next.iter().filter(|state| self.letters[**state].contain(*sign));
                let mut after: Vec<usize> =
                    reached.flat_map(|state| self.follow[*state].iter().copied()).collect();
                work.spend(after.len())?;
                after.sort_unstable();
                after.dedup();
                if known.insert(after.clone()) {
                    if states_max < known.len() {
                        return Some(false);
                    }
                    waiting.push(after);
                }
            }
        }
        Some(true)
    }

    /// How the texts of this one meet those of another; none when that takes too much work.
    pub(super) fn meet(&self, other: &Self, work: &mut Work) -> Option<Meeting> {
        let mut meeting = Meeting::default();
        let mut known = Bits::new(self.letters.len() * other.letters.len());
        let mut waiting = Vec::new();
        let mut step = |ours: &[usize], theirs: &[usize], waiting: &mut Vec<(usize, usize)>| {
            work.spend(ours.len() * theirs.len() + 1)?;
            for one in ours {
                for two in theirs {
                    let pair = one * other.letters.len() + two;
                    if known.contains(pair) {
                        continue;
                    }
                    let (our, their) = (&self.letters[*one], &other.letters[*two]);
                    work.spend((our.ranges.len() + their.ranges.len()) / PARTS_PER_STEP)?;
                    if our.meet(their) {
                        known.insert(pair);
                        waiting.push((*one, *two));
                    }
                }
            }
            Some(())
        };
        step(&self.first, &other.first, &mut waiting)?;
        while let Some((one, two)) = waiting.pop() {
            if self.last[one] {
                meeting.common |= other.last[two];
                meeting.run_on.extend(other.leads_of(&other.follow[two]));
            }
            step(&self.follow[one], &other.follow[two], &mut waiting)?;
        }
        Some(meeting)
    }

    fn leads_of(&self, states: &[usize]) -> Leads {
        let mut leads = Leads::default();
        for state in states {
            leads.extend(self.letters[*state].leads);
        }
        leads
    }

    fn part(&mut self, expression: &Expression) -> Option<Part> {
        Some(match expression {
            Expression::Empty => Part::empty(),
            Expression::Literal(signs) => {
                let mut whole = Part::empty();
                for sign in signs {
                    let next = self.state(Letters::new(&Class::one(*sign)));
                    whole = self.join(whole, next)?;
                }
                whole
            }
            Expression::Class(class) => self.state(Letters::new(class)),
            Expression::Sequence(parts) => {
                let mut whole = Part::empty();
                for part in parts {
                    let next = self.part(part)?;
                    whole = self.join(whole, next)?;
                }
                whole
            }
            Expression::Choice(parts) => {
                let mut whole = Part { nullable: false, ..Part::empty() };
                for part in parts {
                    let next = self.part(part)?;
                    whole.nullable |= next.nullable;
                    whole.first.extend(next.first);
                    whole.last.extend(next.last);
                }
                whole
            }
            Expression::Repeat { what, min, max } => self.repetition(what, *min, *max)?,
            Expression::Rule(_) => unreachable!("lexemes have no rules"),
        })
    }

    /// Rounds one behind another; any round from the `min`-th on can be the last one. A round that can be empty makes `min`
    /// irrelevant, since fewer rounds match the same.
    fn repetition(&mut self, what: &Expression, min: u32, max: Option<u32>) -> Option<Part> {
        let mut whole = Part::empty();
        let mut before: Vec<usize> = Vec::new();
        let rounds = max.unwrap_or_else(|| min.max(1));
        for round in 1..=rounds {
            let part = self.part(what)?;
            if round == 1 {
                whole.nullable = part.nullable || min == 0;
                whole.first = part.first.clone();
            }
            self.connect(&before, &part.first)?;
            if round == rounds && max.is_none() {
                self.connect(&part.last, &part.first)?;
            }
            if min <= round || part.nullable {
                whole.last.extend(&part.last);
            }
            before = part.last;
        }
        Some(whole)
    }

    fn state(&mut self, letters: Letters) -> Part {
        let state = self.letters.len();
        self.letters.push(letters);
        self.follow.push(Vec::new());
        self.last.push(false);
        Part { nullable: false, first: vec![state], last: vec![state] }
    }

    fn join(&mut self, mut before: Part, mut behind: Part) -> Option<Part> {
        self.connect(&before.last, &behind.first)?;
        if before.nullable {
            before.first.extend(&behind.first);
        }
        if behind.nullable {
            behind.last.extend(&before.last);
        }
        let nullable = before.nullable && behind.nullable;
        Some(Part { nullable, first: before.first, last: behind.last })
    }

    fn connect(&mut self, sources: &[usize], targets: &[usize]) -> Option<()> {
        self.edges = self.edges.checked_add(sources.len().checked_mul(targets.len())?)?;
        if EDGES_MAX < self.edges {
            return None;
        }
        for source in sources {
            self.follow[*source].extend(targets);
        }
        Some(())
    }
}

impl Part {
    fn empty() -> Self {
        Self { nullable: true, first: Vec::new(), last: Vec::new() }
    }
}

impl Letters {
    fn new(class: &Class) -> Self {
        let outside = complement(&class.ranges);
        let inside = if class.negated { outside } else { complement(&outside) };
        let ranges: Vec<(u32, u32)> =
            inside.iter().map(|(first, last)| (u32::from(*first), u32::from(*last))).collect();
        let mut leads = Leads::default();
        for (first, last) in &ranges {
            leads.extend(Leads::of(*first, *last));
        }
        Self { ranges, leads }
    }

    /// Looks at as many ranges as their number has digits.
    fn contain(&self, sign: u32) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= sign);
        behind.checked_sub(1).is_some_and(|index| sign <= self.ranges[index].1)
    }

    /// Looks at each range once.
    fn meet(&self, other: &Self) -> bool {
        if !self.leads.meets(other.leads) {
            return false;
        }
        let (mut ours, mut theirs) =
            (self.ranges.iter().peekable(), other.ranges.iter().peekable());
        while let (Some((first, last)), Some((low, high))) = (ours.peek(), theirs.peek()) {
            if first <= high && low <= last {
                return true;
            }
            if last < low {
                ours.next();
            } else {
                theirs.next();
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Letters};

    #[test]
    fn ranges_are_found_and_met() {
        let signs: Vec<char> = ('a'..='z').collect();
        let class = |chosen: u32| {
            let ranges = signs.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1);
            Class { ranges: ranges.map(|(_, sign)| (*sign, *sign)).collect(), negated: false }
        };
        // Neighbours join, so there are ranges of one sign and of several.
        let sets = [0, 1, 0b1011, 0b100, 0x0155_5555, 0x02AA_AAAA, 0x0F00_0010, 0x03FF_FFFF];
        for one in sets {
            let letters = Letters::new(&class(one));
            for (index, sign) in signs.iter().enumerate() {
                assert_eq!(letters.contain(u32::from(*sign)), one >> index & 1 == 1, "{one:x}");
            }
            assert!(!letters.contain(0) && !letters.contain(0x10_FFFF));
            for two in sets {
                let meet = letters.meet(&Letters::new(&class(two)));
                assert_eq!(meet, one & two & 0x03FF_FFFF != 0, "{one:x} {two:x}");
            }
        }
    }
}
