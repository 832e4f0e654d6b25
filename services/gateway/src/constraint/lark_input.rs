//! Which Lark grammars of custom tools can be kept.
//!
//! The input of a custom tool ends with the `</` of the markup around it, and terminals are matched greedily: a terminal that can
//! take in `</`, or one that can begin there with `<`, would leave the call without an end. So a grammar is kept only if
//! - no terminal by which a text can end holds a `<`, and
//! - no terminal that can follow one of those, or begin the text of a grammar that has the empty text, begins with `<`.
//!
//! LAST and FOLLOW are those of every compiler's textbook, over terminals by their text. What is not understood here, which is
//! more than imports of `common` and rules of plain operators, is not kept; nor is anything that would address tokens, other
//! grammars or options. Such grammars are described to the model and no more.

use std::collections::{BTreeMap, BTreeSet};

/// Rules and alternatives looked at; a grammar with more is not kept.
const NODES_MAX: usize = 10_000;
/// How deep groups may stand within each other.
const DEPTH_MAX: usize = 64;

/// Whether calls with this input can be held to it.
pub(super) fn is_kept(grammar: &str) -> bool {
    let Some(tokens) = tokens(grammar) else { return false };
    let mut reader = Reader { tokens: &tokens, at: 0, nodes: 0, depth: 0 };
    let Some(rules) = reader.rules() else { return false };
    ends_cleanly(&rules)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Of a rule or a terminal.
    Name(String),
    /// A string or a regular expression, as written.
    Text(String),
    Sign(char),
    Import(String),
    Line,
}

/// The signs that rules are made of.
const SIGNS: &str = ":|()[]?*+";
/// Terminals of `common` that hold no `<`.
const COMMON: [&str; 10] =
    ["LF", "CR", "NEWLINE", "WS", "WS_INLINE", "INT", "DIGIT", "LETTER", "WORD", "CNAME"];

/// None: something that is not understood.
fn tokens(grammar: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    for line in grammar.lines() {
        let mut rest = line;
        // A line that begins with white space goes on with the one before.
        if !line.starts_with([' ', '\t']) {
            tokens.push(Token::Line);
        }
        if let Some(name) = line.strip_prefix("%import ") {
            let name = name.trim().strip_prefix("common.")?;
            COMMON.contains(&name).then_some(())?;
            tokens.push(Token::Import(name.to_owned()));
            rest = "";
        }
        while let Some(sign) = rest.chars().next() {
            if sign == '#' || rest.starts_with("//") {
                break;
            }
            if let Some(alias) = rest.strip_prefix("->") {
                // A name for a tree that nobody builds.
                rest = alias.trim_start().trim_start_matches(is_name);
                continue;
            }
            let length = match sign {
                ' ' | '\t' => sign.len_utf8(),
                '"' | '/' => {
                    let length = quoted(rest, sign)?;
                    tokens.push(Token::Text(rest[..length].to_owned()));
                    length
                }
                'a'..='z' | 'A'..='Z' | '_' => {
                    let length = rest.find(|sign| !is_name(sign)).unwrap_or(rest.len());
                    tokens.push(Token::Name(rest[..length].to_owned()));
                    length
                }
                _ if SIGNS.contains(sign) => {
                    tokens.push(Token::Sign(sign));
                    1
                }
                _ => return None,
            };
            rest = &rest[length..];
        }
    }
    Some(tokens)
}

fn is_name(sign: char) -> bool {
    sign.is_ascii_alphanumeric() || sign == '_'
}

/// The length of a string or regular expression; one with flags is not understood.
fn quoted(text: &str, end: char) -> Option<usize> {
    let mut escaped = false;
    for (at, sign) in text.char_indices().skip(1) {
        match sign {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            sign if sign == end => {
                let length = at + sign.len_utf8();
                let flagged = text[length..].starts_with(|sign: char| sign.is_ascii_alphanumeric());
                return (!flagged).then_some(length);
            }
            _ => {}
        }
    }
    None
}

#[derive(Clone, Debug)]
enum Expression {
    Name(String),
    Text(String),
    Sequence(Vec<Self>),
    Choice(Vec<Self>),
    Optional(Box<Self>),
    /// Once or more.
    Repeated(Box<Self>),
}

type Rules = BTreeMap<String, Expression>;

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    nodes: usize,
    depth: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn takes(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn rules(&mut self) -> Option<Rules> {
        let mut rules = Rules::new();
        while let Some(token) = self.peek().cloned() {
            self.at += 1;
            match token {
                Token::Line => {}
                Token::Import(name) => {
                    rules.insert(name, Expression::Text("\"\"".into()));
                }
                Token::Name(name) if self.takes(&Token::Sign(':')) => {
                    let body = self.choice()?;
                    matches!(self.peek(), None | Some(Token::Line)).then_some(())?;
                    if rules.insert(name, body).is_some() {
                        return None;
                    }
                }
                Token::Name(_) | Token::Text(_) | Token::Sign(_) => return None,
            }
        }
        Some(rules)
    }

    fn choice(&mut self) -> Option<Expression> {
        self.depth += 1;
        let mut choices = vec![self.sequence()?];
        while self.takes(&Token::Sign('|')) {
            choices.push(self.sequence()?);
        }
        self.depth -= 1;
        Some(Expression::Choice(choices))
    }

    fn sequence(&mut self) -> Option<Expression> {
        (self.depth < DEPTH_MAX).then_some(())?;
        let mut parts = Vec::new();
        loop {
            self.nodes += 1;
            (self.nodes < NODES_MAX).then_some(())?;
            let atom = match self.peek().cloned() {
                Some(Token::Name(name)) => {
                    self.at += 1;
                    Expression::Name(name)
                }
                Some(Token::Text(text)) => {
                    self.at += 1;
                    Expression::Text(text)
                }
                Some(Token::Sign(open @ ('(' | '['))) => {
                    self.at += 1;
                    let inner = self.choice()?;
                    let close = if open == '(' { ')' } else { ']' };
                    self.takes(&Token::Sign(close)).then_some(())?;
                    if open == '(' { inner } else { Expression::Optional(Box::new(inner)) }
                }
                _ => return Some(Expression::Sequence(parts)),
            };
            parts.push(self.repeated(atom));
        }
    }

    fn repeated(&mut self, atom: Expression) -> Expression {
        if self.takes(&Token::Sign('?')) {
            return Expression::Optional(Box::new(atom));
        }
        if self.takes(&Token::Sign('+')) {
            return Expression::Repeated(Box::new(atom));
        }
        if self.takes(&Token::Sign('*')) {
            let repeated = Expression::Repeated(Box::new(atom));
            return Expression::Optional(Box::new(repeated));
        }
        atom
    }
}

type Terminals = BTreeSet<String>;

/// What is known of an expression's texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Edges {
    /// Whether it has the empty text.
    empty: bool,
    first: Terminals,
    last: Terminals,
}

struct Analysis<'a> {
    rules: &'a Rules,
    edges: BTreeMap<&'a str, Edges>,
    follow: BTreeMap<String, Terminals>,
    unknown: bool,
}

fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|sign: char| sign.is_ascii_uppercase())
}

fn ends_cleanly(rules: &Rules) -> bool {
    let mut analysis =
        Analysis { rules, edges: BTreeMap::new(), follow: BTreeMap::new(), unknown: false };
    // Each round adds to some set or is the last one; sets hold no more than the grammar's terminals.
    loop {
        let before = (analysis.edges.clone(), analysis.follow.clone());
        for (name, body) in rules.iter().filter(|(name, _)| !is_terminal(name)) {
            let edges = analysis.of(body);
            analysis.edges.insert(name, edges);
        }
        if before == (analysis.edges.clone(), analysis.follow.clone()) {
            break;
        }
    }
    let Some(start) = analysis.edges.get("start") else { return false };
    if analysis.unknown {
        return false;
    }
    let mut next: Terminals =
        start.last.iter().flat_map(|last| &analysis.follow[last]).cloned().collect();
    if start.empty {
        next.extend(start.first.iter().cloned());
    }
    let can = |terminal: &String, what: fn(&str) -> bool| analysis.any_text(terminal, what);
    !start.last.iter().any(|last| can(last, may_hold_bracket))
        && !next.iter().any(|next| can(next, may_begin_with_bracket))
}

impl Analysis<'_> {
    fn of(&mut self, expression: &Expression) -> Edges {
        match expression {
            Expression::Text(text) => self.terminal(text),
            Expression::Name(name) if is_terminal(name) => self.terminal(name),
            Expression::Name(name) => {
                self.unknown |= !self.rules.contains_key(name);
                self.edges.get(name.as_str()).cloned().unwrap_or_default()
            }
            Expression::Optional(inner) => Edges { empty: true, ..self.of(inner) },
            Expression::Repeated(inner) => {
                let edges = self.of(inner);
                self.follows(&edges.last, &edges.first);
                edges
            }
            Expression::Choice(choices) => {
                let mut all = Edges::default();
                for choice in choices {
                    let edges = self.of(choice);
                    all.empty |= edges.empty;
                    all.first.extend(edges.first);
                    all.last.extend(edges.last);
                }
                all
            }
            Expression::Sequence(parts) => {
                let mut all = Edges { empty: true, ..Edges::default() };
                for part in parts {
                    let edges = self.of(part);
                    self.follows(&all.last, &edges.first);
                    if all.empty {
                        all.first.extend(edges.first);
                    }
                    if !edges.empty {
                        all.last.clear();
                    }
                    all.last.extend(edges.last);
                    all.empty &= edges.empty;
                }
                all
            }
        }
    }

    /// A regular expression may have the empty text, so what stands around it may be neighbours.
    fn terminal(&mut self, terminal: &str) -> Edges {
        self.unknown |= is_terminal(terminal) && !self.rules.contains_key(terminal);
        self.follow.entry(terminal.to_owned()).or_default();
        let empty = self.any_text(terminal, |text| text.starts_with('/') || text == "\"\"");
        let only = Terminals::from([terminal.to_owned()]);
        Edges { empty, first: only.clone(), last: only }
    }

    fn follows(&mut self, last: &Terminals, first: &Terminals) {
        for terminal in last {
            self.follow.entry(terminal.clone()).or_default().extend(first.iter().cloned());
        }
    }

    /// Whether this holds for some string or regular expression of the terminal.
    fn any_text(&self, terminal: &str, holds: fn(&str) -> bool) -> bool {
        let Some(body) = self.rules.get(terminal).filter(|_| is_terminal(terminal)) else {
            return holds(terminal);
        };
        let mut open = vec![(body, 0)];
        while let Some((expression, depth)) = open.pop() {
            match expression {
                Expression::Text(text) if holds(text) => return true,
                Expression::Text(_) => {}
                // Terminals of terminals, as deep as groups; a circle holds everything.
                Expression::Name(_) if DEPTH_MAX < depth => return true,
                Expression::Name(name) => match self.rules.get(name) {
                    Some(body) => open.push((body, depth + 1)),
                    None => return true,
                },
                Expression::Optional(inner) | Expression::Repeated(inner) => {
                    open.push((inner, depth));
                }
                Expression::Sequence(parts) | Expression::Choice(parts) => {
                    open.extend(parts.iter().map(|part| (part, depth)));
                }
            }
        }
        false
    }
}

/// Of a string: whether it has the sign. Of a regular expression: whether it may have it, and of what is not plain, that it may.
fn may_hold_bracket(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('/') else { return may_write(text) };
    let has_set = inner.contains(['.', '^', '-', '\\', '(']);
    has_set || inner.contains('<')
}

/// Whether a string has the sign, or an escape that may stand for it.
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

#[cfg(test)]
mod tests {
    use super::is_kept;

    /// As agents write such grammars: a patch in lines.
    const PATCH: &str = "start: begin hunk+ end\nbegin: \"*** Begin\" LF\nend: \"*** End\" LF?\nhunk: add | change\nadd: \"*** Add: \" name LF line+\nname: /(.+)/\nline: \"+\" /(.*)/ LF -> line\nchange: (\"@@\" | \"@@ \" /(.+)/) LF\n%import common.LF\n";

    #[test]
    fn a_grammar_is_kept_if_its_text_ends_where_the_call_does() {
        let kept = [
            PATCH,
            "start: (\"a\" \"<b>\" \"c\")+ \"c\"?",
            "start: \"a\" | \"b\"",
            "start: (\"a\" \",\"?)+ // letters",
            "start: WORDS\nWORDS: /[a]+/ \" \"",
            "start: \"<b>\" \"x\"",
            "start: \"x\" tail?\n\ntail: \"y\"\n  | \"z\" tail",
        ];
        for grammar in kept {
            assert!(is_kept(grammar), "{grammar}");
        }
        let not_kept = [
            // They may take in the end of the call.
            "start: /(.*)/",
            "start: \"a\" /(.+)/",
            "start: \"a\" b?\nb: \"<\"",
            "start: X\nX: \"a\" Y\nY: /[^a]/",
            "start: X\nX: X",
            // Something may begin as the end of the call does.
            "start: (\"<b>\" \"c\")+",
            "start: [\"<b>\" \"c\"]",
            "start: \"c\" (\"\\x3c\" \"c\")*",
            // Not understood.
            "start: \"a\" b",
            "start: \"a\" B",
            "other: \"a\"",
            "start: \"a\"i",
            "start: \"a\"~3",
            "start: \"a\"\nstart: \"b\"",
            "start: \"a\"\n%ignore \" \"",
            "start: \"a\"\n%import common.ESCAPED_STRING",
            "%llguidance {}\nstart: \"a\"",
            "start: <[1]>",
            "start: @x",
            "start: %lark { start: \"a\" }",
            "start: (\"a\"",
            "start: \"a",
            "",
        ];
        for grammar in not_kept {
            assert!(!is_kept(grammar), "{grammar}");
        }
        assert!(!is_kept(&format!("start: {}\"a\"{}", "(".repeat(100), ")".repeat(100))));
        assert!(!is_kept(&format!("start: {}", "\"a\" ".repeat(20_000))));
    }
}
