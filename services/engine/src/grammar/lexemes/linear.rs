//! Rules that refer to themselves at one end alone, written without doing so.
//!
//! A rule `r ::= a r | b`, in which neither `a` nor `b` refers to `r`, has the language of `a* b`; the mirrored rule that
//! of `b a*`. Source: the lemma of Arden.

use super::bits::Work;
use crate::grammar::expression::Expression;

/// The rule's body without references to itself, when all of them are at the same end of it, and the copies of what stands beside a
/// choice are not too much work.
pub(super) fn without_recursion(
    body: &Expression,
    rule: usize,
    work: &mut Work,
) -> Option<Expression> {
    if !refers(body, rule) {
        return None;
    }
    [End::Last, End::First].into_iter().find_map(|end| {
        let Ways { loops, exits } = ways(body, (rule, end), work)?;
        let repeated =
            Expression::Repeat { what: Box::new(Expression::choice(loops)?), min: 0, max: None };
        let exit = Expression::choice(exits)?;
        Some(Expression::Sequence(match end {
            End::Last => vec![repeated, exit],
            End::First => vec![exit, repeated],
        }))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    First,
    Last,
}

/// What stands beside the references, and what has none.
#[derive(Default)]
struct Ways {
    loops: Vec<Expression>,
    exits: Vec<Expression>,
}

fn ways(body: &Expression, (rule, end): (usize, End), work: &mut Work) -> Option<Ways> {
    if !refers(body, rule) {
        work.spend(body.size())?;
        return Some(Ways { loops: Vec::new(), exits: vec![body.clone()] });
    }
    match body {
        Expression::Rule(_) => Some(Ways { loops: vec![Expression::Empty], exits: Vec::new() }),
        Expression::Choice(parts) => {
            let mut all = Ways::default();
            for part in parts {
                let of_part = ways(part, (rule, end), work)?;
                all.loops.extend(of_part.loops);
                all.exits.extend(of_part.exits);
            }
            Some(all)
        }
        Expression::Sequence(parts) => {
            let (at_end, others) = match end {
                End::First => parts.split_first()?,
                End::Last => parts.split_last()?,
            };
            if others.iter().any(|part| refers(part, rule)) {
                return None;
            }
            let Ways { loops, exits } = ways(at_end, (rule, end), work)?;
            let beside_each: usize = others.iter().map(Expression::size).sum();
            work.spend(beside_each.saturating_mul(loops.len() + exits.len()))?;
            let beside = |inner: Expression| {
                let mut sequence = others.to_vec();
                let place = if end == End::First { 0 } else { sequence.len() };
                sequence.insert(place, inner);
                Expression::Sequence(sequence)
            };
            Some(Ways {
                loops: loops.into_iter().map(beside).collect(),
                exits: exits.into_iter().map(beside).collect(),
            })
        }
        Expression::Repeat { what, min: 0, max: Some(1) } => {
            let mut inner = ways(what, (rule, end), work)?;
            inner.exits.push(Expression::Empty);
            Some(inner)
        }
        Expression::Repeat { .. }
        | Expression::Empty
        | Expression::Literal(_)
        | Expression::Class(_) => None,
    }
}

fn refers(expression: &Expression, rule: usize) -> bool {
    match expression {
        Expression::Empty | Expression::Literal(_) | Expression::Class(_) => false,
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            parts.iter().any(|part| refers(part, rule))
        }
        Expression::Repeat { what, .. } => refers(what, rule),
        Expression::Rule(number) => *number == rule,
    }
}

#[cfg(test)]
mod tests {
    use super::{Expression, Work, without_recursion};

    #[test]
    fn copies_are_work() {
        let literal = |length: usize| Expression::Literal(vec!['a'; length]);
        let exits = std::iter::repeat_with(|| literal(1)).take(100);
        let choice = Expression::Choice([Expression::Rule(0)].into_iter().chain(exits).collect());
        let body = Expression::Sequence(vec![literal(1_000), choice]);
        // What stands before the choice is copied for each of its alternatives.
        assert!(without_recursion(&body, 0, &mut Work(100_000)).is_none());
        let mut work = Work(110_000);
        let plain = without_recursion(&body, 0, &mut work).unwrap();
        assert!(100_000 < plain.size() && work.0 < 10_000, "{} {work:?}", plain.size());
    }
}
