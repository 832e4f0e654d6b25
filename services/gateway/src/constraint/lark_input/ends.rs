//! Where the texts of a Lark grammar end, and what can stand there.
//!
//! LAST and FOLLOW are those of every compiler's textbook, over terminals by their text. Of FIRST and FOLLOW nothing is asked but
//! whether they hold a terminal that may begin with `<`, and of LAST whether it holds one by which a text of the grammar can end. So a
//! rule is three bits, and there are no sets to copy.

use std::collections::{BTreeMap, BTreeSet};

use super::{Expression, Rules};

/// Steps of looking at parts of rules, again and again until nothing is new. Each takes some tens of nanoseconds, so all of them a
/// few milliseconds of an async thread at the worst; grammars of agents take a few hundred.
const WORK_MAX: usize = 100_000;
/// Bytes of a text that are looked at in one step.
const STEP_BYTES: usize = 64;

/// What is known of a terminal, whose texts may have more strings and regular expressions.
#[derive(Clone, Copy, Debug, Default)]
struct Terminal {
    /// Whether it may have the empty text, so that what stands around it may be neighbours.
    empty: bool,
    /// Whether a text of it may hold a `<`.
    holds: bool,
    /// Whether a text of it may begin with one.
    begins: bool,
}

/// What is known of the texts of a rule or a part of one. It only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Edges {
    /// Whether it has the empty text.
    empty: bool,
    /// Whether a terminal that may begin with `<` can begin it.
    begins: bool,
    /// Whether a terminal by which a text of the grammar can end can end it.
    ends: bool,
}

struct Analysis<'a> {
    rules: &'a Rules,
    /// Those with a name.
    terminals: BTreeMap<&'a str, Terminal>,
    edges: BTreeMap<&'a str, Edges>,
    /// Terminals by which a text of the grammar can end, by their text.
    last: BTreeSet<&'a str>,
    /// Whether a terminal of `last` can have one behind it that may begin with `<`.
    runs_on: bool,
    work: usize,
}

/// Whether no text of the grammar can end in the middle of what ends the call; false as well when that takes too much work, or
/// something that is referred to is not there.
pub(super) fn ends_cleanly(rules: &Rules) -> bool {
    settled(rules).unwrap_or(false)
}

fn settled(rules: &Rules) -> Option<bool> {
    let mut analysis = Analysis {
        rules,
        terminals: BTreeMap::new(),
        edges: BTreeMap::new(),
        last: BTreeSet::new(),
        runs_on: false,
        work: WORK_MAX,
    };
    analysis.know_terminals()?;
    // What can be empty is to be known before it is asked what ends a text.
    analysis.settle()?;
    analysis.find_last()?;
    analysis.settle()?;
    let start = analysis.edges.get("start")?;
    let over_the_end = analysis.last.iter().any(|last| analysis.terminal(last).holds);
    // Behind the empty text the call ends, so what begins with a bracket would be its end.
    let is_unclear = over_the_end || analysis.runs_on || (start.empty && start.begins);
    Some(!is_unclear)
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|sign: char| sign.is_ascii_uppercase())
}

impl<'a> Analysis<'a> {
    fn spend(&mut self, expression: &Expression) -> Option<()> {
        let bytes = match expression {
            Expression::Text(text) | Expression::Name(text) => text.len(),
            Expression::Sequence(_)
            | Expression::Choice(_)
            | Expression::Optional(_)
            | Expression::Repeated(_) => 0,
        };
        self.work = self.work.checked_sub(1 + bytes / STEP_BYTES)?;
        Some(())
    }

    /// Looks at terminals behind those that they are made of. None when some are made of themselves, or of what is not there.
    fn know_terminals(&mut self) -> Option<()> {
        let rules = self.rules;
        let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
        let mut ready = Vec::new();
        for (name, body) in rules.iter().filter(|(name, _)| is_terminal(name)) {
            let mut parts = BTreeSet::new();
            self.references(body, &mut parts)?;
            missing.insert(name, parts.len());
            if parts.is_empty() {
                ready.push(name.as_str());
            }
            for part in parts {
                users.entry(part).or_default().push(name);
            }
        }
        while let Some(name) = ready.pop() {
            let known = self.of_terminal(&rules[name])?;
            self.terminals.insert(name, known);
            for user in users.remove(name).unwrap_or_default() {
                let left = missing.get_mut(user)?;
                *left -= 1;
                if *left == 0 {
                    ready.push(user);
                }
            }
        }
        (self.terminals.len() == missing.len()).then_some(())
    }

    /// The terminals that a terminal is made of.
    fn references(&mut self, body: &'a Expression, found: &mut BTreeSet<&'a str>) -> Option<()> {
        self.spend(body)?;
        match body {
            Expression::Text(_) => Some(()),
            Expression::Name(name) => {
                found.insert(name);
                (is_terminal(name) && self.rules.contains_key(name)).then_some(())
            }
            Expression::Optional(inner) | Expression::Repeated(inner) => {
                self.references(inner, found)
            }
            Expression::Sequence(parts) | Expression::Choice(parts) => {
                parts.iter().try_for_each(|part| self.references(part, found))
            }
        }
    }

    fn of_terminal(&mut self, body: &Expression) -> Option<Terminal> {
        self.spend(body)?;
        Some(match body {
            Expression::Text(text) => of_text(text),
            Expression::Name(name) => *self.terminals.get(name.as_str())?,
            Expression::Optional(inner) => Terminal { empty: true, ..self.of_terminal(inner)? },
            Expression::Repeated(inner) => self.of_terminal(inner)?,
            // Of all its parts, as if each could stand first.
            Expression::Sequence(parts) | Expression::Choice(parts) => {
                let mut all = Terminal { empty: parts.is_empty(), ..Terminal::default() };
                for part in parts {
                    let known = self.of_terminal(part)?;
                    all.empty |= known.empty;
                    all.holds |= known.holds;
                    all.begins |= known.begins;
                }
                all
            }
        })
    }

    /// What is known of a name or a text in a rule.
    fn terminal(&self, terminal: &str) -> Terminal {
        self.terminals.get(terminal).copied().unwrap_or_else(|| of_text(terminal))
    }

    /// Looks at all rules until nothing is new.
    fn settle(&mut self) -> Option<()> {
        let rules = self.rules;
        loop {
            let mut changed = false;
            for (name, body) in rules.iter().filter(|(name, _)| !is_terminal(name)) {
                let edges = self.of(body)?;
                changed |= self.edges.insert(name, edges).unwrap_or_default() != edges;
            }
            if !changed {
                return Some(());
            }
        }
    }

    fn of(&mut self, expression: &'a Expression) -> Option<Edges> {
        self.spend(expression)?;
        Some(match expression {
            Expression::Text(text) => self.of_one(text),
            Expression::Name(name) if is_terminal(name) => {
                self.terminals.contains_key(name.as_str()).then(|| self.of_one(name))?
            }
            Expression::Name(name) => {
                self.rules.contains_key(name).then_some(())?;
                self.edges.get(name.as_str()).copied().unwrap_or_default()
            }
            Expression::Optional(inner) => Edges { empty: true, ..self.of(inner)? },
            Expression::Repeated(inner) => {
                let edges = self.of(inner)?;
                self.runs_on |= edges.ends && edges.begins;
                edges
            }
            Expression::Choice(choices) => {
                let mut all = Edges::default();
                for choice in choices {
                    let edges = self.of(choice)?;
                    all.empty |= edges.empty;
                    all.begins |= edges.begins;
                    all.ends |= edges.ends;
                }
                all
            }
            Expression::Sequence(parts) => {
                let mut all = Edges { empty: true, ..Edges::default() };
                for part in parts {
                    let edges = self.of(part)?;
                    self.runs_on |= all.ends && edges.begins;
                    all.begins |= all.empty && edges.begins;
                    all.ends = edges.ends || (edges.empty && all.ends);
                    all.empty &= edges.empty;
                }
                all
            }
        })
    }

    fn of_one(&self, terminal: &str) -> Edges {
        let Terminal { empty, begins, .. } = self.terminal(terminal);
        Edges { empty, begins, ends: self.last.contains(terminal) }
    }

    /// Finds the terminals by which a text of the grammar can end, from the rule that is all of it down.
    fn find_last(&mut self) -> Option<()> {
        let mut known = BTreeSet::from(["start"]);
        let mut waiting = vec![self.rules.get("start")?];
        while let Some(expression) = waiting.pop() {
            self.spend(expression)?;
            match expression {
                Expression::Text(text) => drop(self.last.insert(text)),
                Expression::Name(name) if is_terminal(name) => drop(self.last.insert(name)),
                Expression::Name(name) => {
                    if known.insert(name) {
                        waiting.push(self.rules.get(name)?);
                    }
                }
                Expression::Optional(inner) | Expression::Repeated(inner) => waiting.push(inner),
                Expression::Choice(choices) => waiting.extend(choices),
                Expression::Sequence(parts) => {
                    for part in parts.iter().rev() {
                        waiting.push(part);
                        if !self.of(part)?.empty {
                            break;
                        }
                    }
                }
            }
        }
        Some(())
    }
}

/// A string or a regular expression, which may have the empty text.
fn of_text(text: &str) -> Terminal {
    Terminal {
        empty: text.starts_with('/') || text == "\"\"",
        holds: may_hold_bracket(text),
        begins: may_begin_with_bracket(text),
    }
}

/// Of a string: whether it has the sign. Of a regular expression: whether it may have it, and of what is not plain, that it may.
fn may_hold_bracket(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('/') else { return may_write(text) };
    let has_set = inner.contains(['.', '^', '-', '\\', '(']);
    has_set || inner.contains('<') || has_class_in_class(inner)
}

/// Whether a class of characters has another one inside, such as `[[:print:]]`, or is made of two.
fn has_class_in_class(expression: &str) -> bool {
    let mut inside = false;
    for sign in expression.chars() {
        match sign {
            '[' if inside => return true,
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
    }
    ["[:", "&&", "~~"].iter().any(|sign| expression.contains(sign))
}

/// Whether a string has the sign, or an escape by which it could.
fn may_write(text: &str) -> bool {
    text.contains('<') || text.contains("\\x") || text.contains("\\u")
}

fn may_begin_with_bracket(text: &str) -> bool {
    match text.strip_prefix('"') {
        Some(inner) => {
            inner.starts_with('<') || inner.starts_with("\\x") || inner.starts_with("\\u")
        }
        None => may_hold_bracket(text),
    }
}
