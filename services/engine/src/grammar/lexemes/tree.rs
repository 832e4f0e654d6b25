//! A grammar as a tree whose regular parts are lexemes until they are split.

use std::collections::HashSet;

use super::bits::Work;
use super::linear::without_recursion;
use crate::grammar::expression::{Class, Expression};

/// Classes of one lexeme, bounded repetitions written out.
const LEXEME_CLASSES_MAX: usize = 256;
/// Ranges of all these classes. Usual ones have up to four each.
const LEXEME_RANGES_MAX: usize = 4_096;
/// Parts, characters and ranges copied to write rules without referring to themselves. As much as the characters of a grammar.
const COPIED_MAX: usize = 1 << 18;
/// Expressions inside of each other in one lexeme; rules inside of rules add up.
const LEXEME_HEIGHT_MAX: usize = 64;

pub(super) enum Node {
    Empty,
    Class(Class),
    /// Not directly inside of another one.
    Sequence(Vec<usize>),
    Choice(Vec<usize>),
    Repeat {
        what: usize,
        min: u32,
        max: Option<u32>,
    },
    Rule(usize),
}

/// How large a regular part becomes as a lexeme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    classes: usize,
    ranges: usize,
    height: usize,
}

/// See the module's documentation.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The node of each rule.
    bodies: Vec<usize>,
    /// None for parts that refer to recursive rules, or are too large.
    sizes: Vec<Option<Size>>,
    /// Parts that are no lexemes as a whole any more.
    opened: Vec<bool>,
    /// Sequences, and the part before which a lexeme ends.
    cuts: HashSet<(usize, usize)>,
}

/// Where a lexeme comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    Node(usize),
    /// Parts of a sequence, the last one included.
    Run {
        sequence: usize,
        first: usize,
        last: usize,
    },
}

impl Tree {
    pub(super) fn new(rules: &[Expression]) -> Self {
        let mut tree = Self {
            nodes: Vec::new(),
            bodies: Vec::new(),
            sizes: Vec::new(),
            opened: Vec::new(),
            cuts: HashSet::new(),
        };
        let mut work = Work(COPIED_MAX);
        for (number, rule) in rules.iter().enumerate() {
            let rule = rule.simplified();
            let plain = without_recursion(&rule, number, &mut work);
            let plain = plain.map(|plain| plain.simplified());
            let body = tree.add(plain.as_ref().unwrap_or(&rule));
            tree.bodies.push(body);
        }
        tree.measure_all();
        tree.opened = vec![false; tree.nodes.len()];
        tree
    }

    pub(super) fn node(&self, node: usize) -> &Node {
        &self.nodes[node]
    }

    pub(super) fn body(&self, rule: usize) -> usize {
        self.bodies[rule]
    }

    pub(super) fn rules(&self) -> usize {
        self.bodies.len()
    }

    /// Whether a part is to be a lexeme, alone or with its neighbours.
    pub(super) fn is_lexeme(&self, node: usize) -> bool {
        self.sizes[node].is_some() && !self.opened[node]
    }

    /// The last part of a sequence that becomes one lexeme with the part at `first`, which is to be one.
    pub(super) fn run(&self, sequence: usize, first: usize) -> usize {
        let Node::Sequence(parts) = &self.nodes[sequence] else { panic!("not a sequence") };
        let (mut classes, mut ranges) = (0, 0);
        let mut end = first;
        while let Some(part) = parts.get(end).filter(|part| self.is_lexeme(**part)) {
            classes += self.sizes[*part].map_or(0, |size| size.classes);
            ranges += self.sizes[*part].map_or(0, |size| size.ranges);
            let too_large = LEXEME_CLASSES_MAX < classes || LEXEME_RANGES_MAX < ranges;
            if end != first && (too_large || self.cuts.contains(&(sequence, end))) {
                break;
            }
            end += 1;
        }
        assert!(first < end, "the first part is a lexeme");
        end - 1
    }

    /// Classes and ranges of a lexeme.
    pub(super) fn size(&self, origin: Origin) -> usize {
        let of = |node: usize| self.sizes[node].map_or(0, |size| size.classes + size.ranges);
        match origin {
            Origin::Node(node) => of(node),
            Origin::Run { sequence, first, last } => {
                let Node::Sequence(parts) = &self.nodes[sequence] else { panic!("not a sequence") };
                parts[first..=last].iter().map(|part| of(*part)).sum()
            }
        }
    }

    /// The expression of a lexeme, rules written out.
    pub(super) fn expression(&self, origin: Origin) -> Expression {
        match origin {
            Origin::Node(node) => self.write_out(node),
            Origin::Run { sequence, first, last } => {
                let Node::Sequence(parts) = &self.nodes[sequence] else { panic!("not a sequence") };
                let mut run: Vec<Expression> =
                    parts[first..=last].iter().map(|part| self.write_out(*part)).collect();
                if run.len() == 1 { run.remove(0) } else { Expression::Sequence(run) }
            }
        }
    }

    /// Makes several smaller lexemes or characters of one. The end of a run is most often what is in the way, so it goes
    /// first, then the run falls apart.
    pub(super) fn split(&mut self, origin: Origin) {
        match origin {
            Origin::Node(node) => self.opened[node] = true,
            Origin::Run { sequence, first, last } if first == last => {
                let Node::Sequence(parts) = &self.nodes[sequence] else { panic!("not a sequence") };
                self.opened[parts[first]] = true;
            }
            Origin::Run { sequence, first, last } => {
                let again = self.cuts.contains(&(sequence, last + 1));
                let from = if again { first + 1 } else { last };
                self.cuts.extend((from..=last).map(|part| (sequence, part)));
            }
        }
    }

    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn add(&mut self, expression: &Expression) -> usize {
        match expression {
            Expression::Empty => self.push(Node::Empty),
            Expression::Class(class) => self.push(Node::Class(class.clone())),
            Expression::Literal(_) | Expression::Sequence(_) => {
                let mut parts = Vec::new();
                self.add_parts(expression, &mut parts);
                if parts.len() == 1 { parts[0] } else { self.push(Node::Sequence(parts)) }
            }
            Expression::Choice(parts) => {
                let parts = parts.iter().map(|part| self.add(part)).collect();
                self.push(Node::Choice(parts))
            }
            Expression::Repeat { what, min, max } => {
                let what = self.add(what);
                self.push(Node::Repeat { what, min: *min, max: *max })
            }
            Expression::Rule(rule) => self.push(Node::Rule(*rule)),
        }
    }

    fn add_parts(&mut self, expression: &Expression, parts: &mut Vec<usize>) {
        match expression {
            Expression::Literal(signs) => {
                for sign in signs {
                    parts.push(self.push(Node::Class(Class::one(*sign))));
                }
            }
            Expression::Sequence(inner) => {
                inner.iter().for_each(|part| self.add_parts(part, parts));
            }
            other => parts.push(self.add(other)),
        }
    }

    /// Measures rules behind those that they refer to. What is never reached so refers to a recursive rule.
    fn measure_all(&mut self) {
        self.sizes = vec![None; self.nodes.len()];
        let mut users = vec![Vec::new(); self.bodies.len()];
        let mut missing = Vec::with_capacity(self.bodies.len());
        for (rule, body) in self.bodies.iter().enumerate() {
            let mut referred = HashSet::new();
            self.references(*body, &mut referred);
            missing.push(referred.len());
            for other in referred {
                users[other].push(rule);
            }
        }
        let mut ready: Vec<usize> =
            (0..self.bodies.len()).filter(|rule| missing[*rule] == 0).collect();
        let mut recursive: HashSet<usize> = (0..self.bodies.len()).collect();
        while let Some(rule) = ready.pop() {
            recursive.remove(&rule);
            self.measure(self.bodies[rule]);
            for user in &users[rule] {
                missing[*user] -= 1;
                if missing[*user] == 0 {
                    ready.push(*user);
                }
            }
        }
        for rule in recursive {
            self.measure(self.bodies[rule]);
        }
    }

    fn references(&self, node: usize, referred: &mut HashSet<usize>) {
        match &self.nodes[node] {
            Node::Empty | Node::Class(_) => {}
            Node::Sequence(parts) | Node::Choice(parts) => {
                parts.iter().for_each(|part| self.references(*part, referred));
            }
            Node::Repeat { what, .. } => self.references(*what, referred),
            Node::Rule(rule) => {
                referred.insert(*rule);
            }
        }
    }

    fn measure(&mut self, node: usize) -> Option<Size> {
        let size = match &self.nodes[node] {
            // The empty text counts too: rules that double it again and again are written out as well.
            Node::Empty => Some(Size { classes: 1, ranges: 0, height: 1 }),
            Node::Class(class) => {
                // Always a lexeme, however many ranges it has: there is nothing smaller to make of it.
                let size = Size { classes: 1, ranges: class.ranges.len(), height: 2 };
                self.sizes[node] = Some(size);
                return Some(size);
            }
            Node::Sequence(parts) | Node::Choice(parts) => {
                let mut sum = Some(Size { classes: 0, ranges: 0, height: 0 });
                for part in parts.clone() {
                    let size = self.measure(part);
                    sum = sum.zip(size).map(|(sum, size)| Size {
                        classes: sum.classes.saturating_add(size.classes),
                        ranges: sum.ranges.saturating_add(size.ranges),
                        height: sum.height.max(size.height),
                    });
                }
                sum
            }
            Node::Repeat { what, min, max } => {
                let rounds = max.unwrap_or_else(|| (*min).max(1));
                let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
                self.measure(*what).map(|size| Size {
                    classes: size.classes.saturating_mul(rounds),
                    ranges: size.ranges.saturating_mul(rounds),
                    ..size
                })
            }
            Node::Rule(rule) => self.sizes[self.bodies[*rule]],
        };
        let size = size.map(|size| Size { height: size.height + 1, ..size });
        self.sizes[node] = size.filter(|size| {
            size.classes <= LEXEME_CLASSES_MAX
                && size.ranges <= LEXEME_RANGES_MAX
                && size.height <= LEXEME_HEIGHT_MAX
        });
        self.sizes[node]
    }

    fn write_out(&self, node: usize) -> Expression {
        assert!(self.sizes[node].is_some(), "only regular parts are written out");
        let all = |parts: &[usize]| parts.iter().map(|part| self.write_out(*part)).collect();
        match &self.nodes[node] {
            Node::Empty => Expression::Empty,
            Node::Class(class) => Expression::Class(class.clone()),
            Node::Sequence(parts) => Expression::Sequence(all(parts)),
            Node::Choice(parts) => Expression::Choice(all(parts)),
            Node::Repeat { what, min, max } => {
                let what = Box::new(self.write_out(*what));
                Expression::Repeat { what, min: *min, max: *max }
            }
            Node::Rule(rule) => self.write_out(self.bodies[*rule]),
        }
    }
}
