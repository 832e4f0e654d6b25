//! The EBNF of clients: rules of characters, `root` the first. Dialect of xgrammar 0.2.2; see the README of engine.
//!
//! Its meaning is defined on characters. Character by character it is translated here, which is exact and slow to follow;
//! where longer lexemes give the same language, [`super::lexemes`] finds them.

use std::collections::HashMap;
use std::fmt::Write;

use super::compile::GrammarRefusal;
use super::expression::{Class, Expression, complement, shorthand, write_rule};
use super::lexemes::promote;
use super::reader::Reader;

/// Rules of one grammar.
const RULES_MAX: usize = 4_096;
/// Levels of groups and rules inside of each other. llguidance compiles them by recursion; 2 MiB of stack were too little
/// for 700 levels of groups and for 400 rules in a row.
const LEVELS_MAX: usize = 400;
/// Levels of a rule itself.
const RULE_LEVELS: usize = 2;
/// Repetitions of repetitions without groups between. They nest, like groups do.
const MARKS_MAX: usize = 4;
/// The rule that is the answer.
const ROOT: &str = "root";
/// What xgrammar offers beyond a grammar of characters.
const MACROS: [&str; 4] = ["TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch"];

/// The rules of a grammar by number, the root first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rules(pub(super) Vec<Expression>);

/// What a grammar in Lark begins with.
const HEAD: &str = "%llguidance {\"no_forcing\": true}\nstart: r0\n";

/// A client's grammar as Lark, twice, with one language.
pub(super) struct Translated {
    /// Over lexemes, where there are any: fast to follow.
    pub(super) promoted: Option<String>,
    /// Over characters.
    pub(super) by_characters: String,
}

/// Translates a client's grammar.
///
/// # Errors
/// Names what is malformed or not supported, and where.
pub(super) fn translate(text: &str) -> Result<Translated, GrammarRefusal> {
    let rules = read(text)?;
    let promoted = promote(&rules.0).map(|promoted| format!("{HEAD}{}", promoted.lark));
    Ok(Translated { promoted, by_characters: rules.by_characters() })
}

impl Rules {
    /// The grammar as Lark in which each terminal is one character.
    fn by_characters(&self) -> String {
        let mut lark = String::from(HEAD);
        for (number, rule) in self.0.iter().enumerate() {
            write!(lark, "r{number}: ").expect("a string takes everything");
            write_rule(rule, &mut lark);
            lark.push('\n');
        }
        lark
    }
}

/// Reads a grammar.
pub(super) fn read(text: &str) -> Result<Rules, GrammarRefusal> {
    let mut reader = RuleReader {
        reader: Reader::new(text, "ebnf"),
        numbers: HashMap::from([(ROOT, 0)]),
        rules: vec![None],
    };
    reader.read_all()?;
    let mut rules = Vec::with_capacity(reader.rules.len());
    for (number, rule) in reader.rules.into_iter().enumerate() {
        let Some(rule) = rule else {
            let name = reader.numbers.iter().find(|(_, named)| **named == number);
            let name = name.map_or(ROOT, |(name, _)| name);
            return Err(GrammarRefusal::new(format!("ebnf: there is no rule {name}; define it")));
        };
        rules.push(rule);
    }
    if LEVELS_MAX < levels(&rules) {
        let text = format!("ebnf: rules inside of rules, and groups, deeper than {LEVELS_MAX}");
        return Err(GrammarRefusal::new(text));
    }
    Ok(Rules(rules))
}

/// How deep llguidance goes: it compiles a rule where it meets it first, inside of the rule that refers to it. Of two rules
/// on the same way the one written first is met first.
fn levels(rules: &[Expression]) -> usize {
    let mut met = vec![false; rules.len()];
    let mut waiting = vec![(0, 0)];
    let mut deepest = 0;
    let mut found = Vec::new();
    while let Some((rule, level)) = waiting.pop() {
        if std::mem::replace(&mut met[rule], true) {
            continue;
        }
        deepest = deepest.max(references(&rules[rule], level + RULE_LEVELS, &mut found));
        waiting.extend(found.drain(..).rev());
    }
    deepest
}

/// The rules that an expression at a level refers to, with their levels, and the deepest level in it.
fn references(expression: &Expression, level: usize, found: &mut Vec<(usize, usize)>) -> usize {
    match expression {
        Expression::Empty | Expression::Literal(_) | Expression::Class(_) => level,
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            let deepest = parts.iter().map(|part| references(part, level + 1, found)).max();
            deepest.unwrap_or(level)
        }
        Expression::Repeat { what, .. } => references(what, level + 1, found),
        Expression::Rule(rule) => {
            found.push((*rule, level));
            level
        }
    }
}

struct RuleReader<'a> {
    reader: Reader<'a>,
    numbers: HashMap<&'a str, usize>,
    rules: Vec<Option<Expression>>,
}

impl<'a> RuleReader<'a> {
    fn read_all(&mut self) -> Result<(), GrammarRefusal> {
        loop {
            self.blanks();
            if self.reader.peek().is_none() {
                return Ok(());
            }
            let name = self.name();
            self.blanks();
            if name.is_empty() || !self.reader.take("::=") {
                return Err(self.reader.refuse("expected a rule: name ::= expression"));
            }
            let number = self.number(name)?;
            if self.rules[number].is_some() {
                return Err(self.reader.refuse(format!("the rule {name} is defined twice")));
            }
            self.rules[number] = Some(self.choice()?);
        }
    }

    fn number(&mut self, name: &'a str) -> Result<usize, GrammarRefusal> {
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        if RULES_MAX <= self.rules.len() {
            return Err(self.reader.refuse(format!("more than {RULES_MAX} rules")));
        }
        let number = self.rules.len();
        self.numbers.insert(name, number);
        self.rules.push(None);
        Ok(number)
    }

    /// Skips white space, line feeds and comments.
    fn blanks(&mut self) {
        loop {
            self.reader.take_while(char::is_whitespace);
            if !self.reader.take("#") {
                return;
            }
            self.reader.take_while(|sign| sign != '\n');
        }
    }

    fn name(&mut self) -> &'a str {
        let starts = |sign: char| sign.is_ascii_alphabetic() || sign == '_';
        if !self.reader.peek().is_some_and(starts) {
            return "";
        }
        self.reader.take_while(|sign| sign.is_ascii_alphanumeric() || "_-.".contains(sign))
    }

    /// Alternatives, up to what closes them: a parenthesis, the next rule, the end.
    fn choice(&mut self) -> Result<Expression, GrammarRefusal> {
        self.reader.enter()?;
        let mut parts = vec![self.sequence()?];
        while self.reader.take("|") {
            parts.push(self.sequence()?);
        }
        self.reader.leave();
        self.reader.node()?;
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Choice(parts) })
    }

    fn sequence(&mut self) -> Result<Expression, GrammarRefusal> {
        let mut parts = Vec::new();
        loop {
            self.blanks();
            let Some(element) = self.element()? else { break };
            self.reader.node()?;
            parts.push(self.repeated(element)?);
        }
        Ok(match parts.len() {
            0 => Expression::Empty,
            1 => parts.remove(0),
            _ => Expression::Sequence(parts),
        })
    }

    /// One element without what repeats it; none at the end of a sequence.
    fn element(&mut self) -> Result<Option<Expression>, GrammarRefusal> {
        let Some(sign) = self.reader.peek() else { return Ok(None) };
        match sign {
            '|' | ')' => Ok(None),
            '"' => {
                self.reader.next();
                self.literal().map(Some)
            }
            '[' => {
                self.reader.next();
                self.class().map(Some)
            }
            '(' => {
                self.reader.next();
                if self.reader.peek() == Some('=') {
                    return Err(self.reader.refuse("look-ahead is not supported; leave it out"));
                }
                let inner = self.choice()?;
                self.blanks();
                if self.reader.take(")") {
                    return Ok(Some(inner));
                }
                Err(self.reader.refuse("a group is not closed"))
            }
            _ => self.reference(),
        }
    }

    fn reference(&mut self) -> Result<Option<Expression>, GrammarRefusal> {
        let before = self.reader.rest();
        let name = self.name();
        if name.is_empty() {
            return Err(self.reader.refuse("expected a string, a class, a group or a rule's name"));
        }
        if self.reader.peek() == Some('(') && MACROS.contains(&name) {
            return Err(self.reader.refuse(format!("{name} is not supported")));
        }
        // A name with its definition behind it begins the next rule.
        let mut ahead = Reader::new(&before[name.len()..], "ebnf");
        ahead.take_while(char::is_whitespace);
        if ahead.take("::=") {
            let taken = before.len() - self.reader.rest().len();
            self.reader.back(taken);
            return Ok(None);
        }
        Ok(Some(Expression::Rule(self.number(name)?)))
    }

    fn repeated(&mut self, mut element: Expression) -> Result<Expression, GrammarRefusal> {
        let mut marks = 0;
        loop {
            let bounds = match self.reader.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => (0, Some(0)),
                _ => return Ok(element),
            };
            marks += 1;
            if MARKS_MAX < marks {
                return Err(self
                    .reader
                    .refuse(format!("more than {MARKS_MAX} repetitions of one")));
            }
            let braced = self.reader.next() == Some('{');
            let bounds = if braced { self.reader.bounds()? } else { bounds };
            self.reader.node()?;
            element = repeat(element, bounds);
        }
    }

    fn literal(&mut self) -> Result<Expression, GrammarRefusal> {
        let mut signs = Vec::new();
        loop {
            match self.reader.next() {
                Some('"') => break,
                Some('\\') => signs.push(self.escape()?),
                Some('\n') | None => return Err(self.reader.refuse("a string is not closed")),
                Some(sign) => signs.push(sign),
            }
            self.reader.node()?;
        }
        Ok(if signs.is_empty() { Expression::Empty } else { Expression::Literal(signs) })
    }

    fn escape(&mut self) -> Result<char, GrammarRefusal> {
        let Some(sign) = self.reader.next() else {
            return Err(self.reader.refuse("the text ends behind a backslash"));
        };
        escaped(&mut self.reader, sign)
    }

    fn class(&mut self) -> Result<Expression, GrammarRefusal> {
        let class = read_class(&mut self.reader)?;
        if class.is_empty() {
            return Err(self.reader.refuse("a class without characters matches nothing"));
        }
        Ok(Expression::Class(class))
    }
}

pub(super) fn repeat(what: Expression, (min, max): (u32, Option<u32>)) -> Expression {
    match max {
        Some(0) => Expression::Empty,
        _ => Expression::Repeat { what: Box::new(what), min, max },
    }
}

/// The character of an escape, `sign` being the one behind the backslash.
pub(super) fn escaped(reader: &mut Reader<'_>, sign: char) -> Result<char, GrammarRefusal> {
    Ok(match sign {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'f' => '\u{c}',
        'v' => '\u{b}',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'e' => '\u{1b}',
        '0' => '\0',
        'x' => reader.hexadecimal(2)?,
        'u' => reader.hexadecimal(4)?,
        'U' => reader.hexadecimal(8)?,
        sign if !sign.is_ascii_alphanumeric() => sign,
        sign => return Err(reader.refuse(format!("\\{sign} is not supported"))),
    })
}

/// A class, its opening bracket being taken.
pub(super) fn read_class(reader: &mut Reader<'_>) -> Result<Class, GrammarRefusal> {
    let negated = reader.take("^");
    let mut ranges = Vec::new();
    while !reader.take("]") {
        reader.node()?;
        let Item::One(first) = class_item(reader, &mut ranges)? else { continue };
        let ranged = reader.rest().starts_with('-') && !reader.rest().starts_with("-]");
        if !ranged {
            ranges.push((first, first));
            continue;
        }
        reader.next();
        let Item::One(last) = class_item(reader, &mut ranges)? else {
            return Err(reader.refuse("a range ends with one character"));
        };
        if last < first {
            return Err(reader.refuse("a range is the wrong way"));
        }
        ranges.push((first, last));
    }
    Ok(Class { ranges, negated })
}

enum Item {
    One(char),
    /// Several, which were added.
    Several,
}

fn class_item(
    reader: &mut Reader<'_>,
    ranges: &mut Vec<(char, char)>,
) -> Result<Item, GrammarRefusal> {
    let Some(sign) = reader.next() else { return Err(reader.refuse("a class is not closed")) };
    if sign != '\\' {
        return Ok(Item::One(sign));
    }
    let Some(sign) = reader.next() else { return Err(reader.refuse("a class is not closed")) };
    if let Some(several) = shorthand(sign.to_ascii_lowercase()) {
        let several = if sign.is_ascii_uppercase() { complement(&several) } else { several };
        ranges.extend(several);
        return Ok(Item::Several);
    }
    escaped(reader, sign).map(Item::One)
}
