//! Which lexemes can stand behind which, which can be awaited together, and which of those get in each other's way.

use std::collections::HashSet;

use super::bits::{Bits, Leads, STEPS_PER_ENTRY, Work};
use super::shape::{Lexemes, Shape, Shaped};

/// Where a shape begins and ends.
#[derive(Clone, PartialEq, Eq)]
struct Ends {
    nullable: bool,
    first: Bits,
    last: Bits,
}

struct Flow<'a> {
    shaped: &'a Shaped,
    rules: Vec<Ends>,
    /// Behind each place those that can be next, in any derivation and in more.
    next: Vec<Bits>,
    work: &'a mut Work,
}

/// The places whose lexemes can be run into by the greedy lexer: the text of a lexeme that is awaited beside one of them can
/// have its end at a character by which that one goes on. None when finding out takes too much work.
pub(super) fn conflicts(
    shaped: &Shaped,
    lexemes: &mut Lexemes,
    work: &mut Work,
) -> Option<HashSet<usize>> {
    let places = shaped.places.len();
    let none = Ends { nullable: false, first: Bits::new(places), last: Bits::new(places) };
    let rules = vec![none; shaped.rules.len()];
    let mut flow = Flow { shaped, rules, next: vec![Bits::new(places); places], work };
    flow.settle()?;
    let Flow { rules, next, .. } = flow;
    let follow = next.iter().map(|next| {
        let mut leads = Leads::default();
        for place in next.iter() {
            if let Some(automaton) = lexemes.automaton(shaped.places[place].lexeme) {
                leads.extend(automaton.leads());
            }
        }
        leads
    });
    let follow = follow.collect();
    let mut together = Together {
        shaped,
        lexemes,
        follow,
        known: vec![Bits::new(places); places],
        waiting: Vec::new(),
        found: HashSet::new(),
        work,
    };
    together.await_all(&rules[0].first, &rules[0].first)?;
    let mut done = HashSet::new();
    while let Some((one, two)) = together.waiting.pop() {
        together.work.spend(next[one].words())?;
        if done.insert((&next[one], &next[two])) {
            together.await_all(&next[one], &next[two])?;
        }
    }
    let mut found = together.found;
    let too_large = |place: &usize| lexemes.automaton(shaped.places[*place].lexeme).is_none();
    found.extend((0..places).filter(too_large));
    Some(found)
}

impl Flow<'_> {
    /// Looks at all rules until nothing is new.
    fn settle(&mut self) -> Option<()> {
        let shaped = self.shaped;
        loop {
            let mut changed = false;
            for (number, rule) in shaped.rules.iter().enumerate().rev() {
                let Some(shape) = rule else { continue };
                let ends = self.ends(shape)?;
                changed |= ends != self.rules[number];
                self.rules[number] = ends;
            }
            if !changed {
                return Some(());
            }
        }
    }

    /// The ends of a shape, after what it contains was linked.
    fn ends(&mut self, shape: &Shape) -> Option<Ends> {
        let places = self.next.len();
        let mut whole = Ends { nullable: true, first: Bits::new(places), last: Bits::new(places) };
        self.work.spend(whole.first.words() + 1)?;
        match shape {
            Shape::Empty => {}
            Shape::Lexeme { place, optional } => {
                whole.nullable = *optional;
                whole.first.insert(*place);
                whole.last.insert(*place);
            }
            Shape::Sequence(parts) => {
                for part in parts {
                    let ends = self.ends(part)?;
                    self.link(&whole.last, &ends.first)?;
                    if whole.nullable {
                        whole.first.extend(&ends.first);
                    }
                    if ends.nullable {
                        whole.last.extend(&ends.last);
                    } else {
                        whole.last = ends.last;
                    }
                    whole.nullable &= ends.nullable;
                }
            }
            Shape::Choice(parts) => {
                whole.nullable = false;
                for part in parts {
                    let ends = self.ends(part)?;
                    whole.nullable |= ends.nullable;
                    whole.first.extend(&ends.first);
                    whole.last.extend(&ends.last);
                }
            }
            Shape::Repeat { what, min, max } => {
                whole = self.ends(what)?;
                whole.nullable |= *min == 0;
                if *max != Some(1) {
                    self.link(&whole.last, &whole.first)?;
                }
            }
            Shape::Rule(rule) => whole = self.rules[*rule].clone(),
        }
        Some(whole)
    }

    fn link(&mut self, last: &Bits, first: &Bits) -> Option<()> {
        for place in last.iter() {
            self.work.spend(first.words())?;
            self.next[place].extend(first);
        }
        Some(())
    }
}

/// Pairs of places that one text can lead to.
struct Together<'a> {
    shaped: &'a Shaped,
    lexemes: &'a mut Lexemes,
    /// What the text behind each place can begin with.
    follow: Vec<Leads>,
    /// Of pairs whose lexemes meet at all.
    known: Vec<Bits>,
    /// Pairs with a text of both, whose next places are awaited together as well.
    waiting: Vec<(usize, usize)>,
    found: HashSet<usize>,
    work: &'a mut Work,
}

impl Together<'_> {
    fn await_all(&mut self, ones: &Bits, twos: &Bits) -> Option<()> {
        for one in ones.iter() {
            for two in twos.iter() {
                self.work.spend(1)?;
                if !self.known[one].contains(two) {
                    self.await_both(one, two)?;
                    self.await_both(two, one)?;
                }
            }
        }
        Some(())
    }

    fn await_both(&mut self, one: usize, two: usize) -> Option<()> {
        self.known[one].insert(two);
        let of = |place: usize| self.shaped.places[place].lexeme;
        let meeting = self.lexemes.meeting(of(one), of(two), self.work)?;
        if meeting.common {
            self.work.spend(STEPS_PER_ENTRY)?;
            self.waiting.push((one, two));
        }
        if meeting.run_on.meets(self.follow[one]) {
            self.found.insert(two);
        }
        Some(())
    }
}
