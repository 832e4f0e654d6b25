//! A grammar over lexemes, as a tree was cut into them.

use std::collections::HashMap;
use std::fmt::Write;

use super::automaton::{Automaton, EDGES_MAX, Meeting};
use super::bits::{PARTS_PER_STEP, STEPS_PER_ENTRY, Work};
use super::tree::{Node, Origin, Tree};
use crate::grammar::expression::{Expression, write_bounds, write_regex};

/// Deterministic states of one lexeme. What has more is followed by rules, which need no states.
const STATES_MAX: usize = 512;

/// An expression over lexemes. Those are numbered by their places.
pub(super) enum Shape {
    Empty,
    /// The lexeme of this place; or nothing, when its expression matches the empty text.
    Lexeme {
        place: usize,
        optional: bool,
    },
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Repeat {
        what: Box<Self>,
        min: u32,
        max: Option<u32>,
    },
    Rule(usize),
}

/// One lexeme at one place of the grammar.
pub(super) struct Place {
    pub(super) lexeme: usize,
    pub(super) origin: Origin,
}

/// The rules that the root needs, over lexemes.
pub(super) struct Shaped {
    /// By number; none for rules that nothing refers to.
    pub(super) rules: Vec<Option<Shape>>,
    pub(super) places: Vec<Place>,
}

/// The different lexemes of all attempts at one grammar.
#[derive(Default)]
pub(super) struct Lexemes {
    known: HashMap<Expression, usize>,
    all: Vec<Lexeme>,
    meetings: HashMap<(usize, usize), Meeting>,
}

struct Lexeme {
    expression: Expression,
    /// None when it is too large.
    automaton: Option<Automaton>,
}

impl Lexemes {
    pub(super) fn expression(&self, lexeme: usize) -> &Expression {
        &self.all[lexeme].expression
    }

    /// None for a lexeme that is too large to be one.
    pub(super) fn automaton(&self, lexeme: usize) -> Option<&Automaton> {
        self.all[lexeme].automaton.as_ref()
    }

    /// How the texts of one lexeme meet those of another; none when that takes too much work.
    pub(super) fn meeting(&mut self, one: usize, two: usize, work: &mut Work) -> Option<Meeting> {
        if let Some(known) = self.meetings.get(&(one, two)) {
            return Some(*known);
        }
        let meeting = match (self.automaton(one), self.automaton(two)) {
            (Some(one), Some(two)) if one.leads().meets(two.leads()) => one.meet(two, work)?,
            // Found as fast as it is looked up.
            _ => return Some(Meeting::default()),
        };
        work.spend(STEPS_PER_ENTRY)?;
        self.meetings.insert((one, two), meeting);
        Some(meeting)
    }

    fn number(&mut self, expression: Expression, work: &mut Work) -> Option<usize> {
        if let Some(known) = self.known.get(&expression) {
            return Some(*known);
        }
        let automaton = Automaton::new(&expression);
        let (size, ranges) = automaton
            .as_ref()
            .map_or((EDGES_MAX, 0), |automaton| (automaton.size(), automaton.ranges()));
        work.spend(size * STEPS_PER_ENTRY + ranges / PARTS_PER_STEP)?;
        let automaton = match automaton {
            Some(automaton) if automaton.is_character() => Some(automaton),
            Some(automaton) if automaton.fits(STATES_MAX, work)? => Some(automaton),
            _ => None,
        };
        let number = self.all.len();
        self.known.insert(expression.clone(), number);
        self.all.push(Lexeme { expression, automaton });
        Some(number)
    }
}

/// Shapes a tree as it is cut now; none when that takes too much work.
pub(super) fn shape(tree: &Tree, lexemes: &mut Lexemes, work: &mut Work) -> Option<Shaped> {
    let mut shaper = Shaper { tree, lexemes, work, places: Vec::new(), wanted: vec![0] };
    let mut rules: Vec<Option<Shape>> = (0..tree.rules()).map(|_| None).collect();
    while let Some(rule) = shaper.wanted.pop() {
        if rules[rule].is_none() {
            rules[rule] = Some(shaper.shape(tree.body(rule))?);
        }
    }
    let places = shaper.places;
    Some(Shaped { rules, places })
}

struct Shaper<'a> {
    tree: &'a Tree,
    lexemes: &'a mut Lexemes,
    work: &'a mut Work,
    places: Vec<Place>,
    wanted: Vec<usize>,
}

impl Shaper<'_> {
    fn shape(&mut self, node: usize) -> Option<Shape> {
        let tree = self.tree;
        self.work.spend(1)?;
        match tree.node(node) {
            Node::Empty => Some(Shape::Empty),
            Node::Sequence(parts) => self.sequence(node, parts),
            Node::Class(_) => self.lexeme(Origin::Node(node)),
            _ if tree.is_lexeme(node) => self.lexeme(Origin::Node(node)),
            Node::Choice(parts) => {
                let parts: Option<Vec<Shape>> =
                    parts.iter().map(|part| self.shape(*part)).collect();
                parts.map(Shape::Choice)
            }
            Node::Repeat { what, min, max } => {
                let what = Box::new(self.shape(*what)?);
                Some(Shape::Repeat { what, min: *min, max: *max })
            }
            Node::Rule(rule) => {
                self.wanted.push(*rule);
                Some(Shape::Rule(*rule))
            }
        }
    }

    fn sequence(&mut self, sequence: usize, parts: &[usize]) -> Option<Shape> {
        let mut shapes = Vec::new();
        let mut next = 0;
        while next < parts.len() {
            if self.tree.is_lexeme(parts[next]) {
                let last = self.tree.run(sequence, next);
                shapes.push(self.lexeme(Origin::Run { sequence, first: next, last })?);
                next = last + 1;
            } else {
                shapes.push(self.shape(parts[next])?);
                next += 1;
            }
        }
        Some(Shape::Sequence(shapes))
    }

    fn lexeme(&mut self, origin: Origin) -> Option<Shape> {
        self.work.spend(self.tree.size(origin) / PARTS_PER_STEP)?;
        let whole = self.tree.expression(origin);
        let optional = whole.is_nullable();
        let Some(expression) = whole.without_empty() else { return Some(Shape::Empty) };
        let lexeme = self.lexemes.number(expression, self.work)?;
        self.places.push(Place { lexeme, origin });
        Some(Shape::Lexeme { place: self.places.len() - 1, optional })
    }
}

impl Shaped {
    /// The rules as Lark.
    pub(super) fn write(&self, lexemes: &Lexemes, text: &mut String) {
        for (number, rule) in self.rules.iter().enumerate() {
            if let Some(shape) = rule {
                write!(text, "r{number}: ").expect("a string takes everything");
                self.write_shape(shape, lexemes, text);
                text.push('\n');
            }
        }
    }

    fn write_shape(&self, shape: &Shape, lexemes: &Lexemes, text: &mut String) {
        match shape {
            Shape::Empty => text.push_str("\"\""),
            Shape::Lexeme { place, optional } => {
                text.push_str(if *optional { "(/" } else { "/" });
                write_regex(lexemes.expression(self.places[*place].lexeme), text);
                text.push_str(if *optional { "/)?" } else { "/" });
            }
            Shape::Sequence(parts) => self.write_parts(parts, " ", lexemes, text),
            Shape::Choice(parts) => {
                text.push('(');
                self.write_parts(parts, " | ", lexemes, text);
                text.push(')');
            }
            Shape::Repeat { what, min, max } => {
                text.push('(');
                self.write_shape(what, lexemes, text);
                text.push(')');
                write_bounds(*min, *max, text);
            }
            Shape::Rule(rule) => {
                write!(text, "r{rule}").expect("a string takes everything");
            }
        }
    }

    fn write_parts(&self, parts: &[Shape], between: &str, lexemes: &Lexemes, text: &mut String) {
        for (index, part) in parts.iter().enumerate() {
            if 0 < index {
                text.push_str(between);
            }
            self.write_shape(part, lexemes, text);
        }
    }
}
