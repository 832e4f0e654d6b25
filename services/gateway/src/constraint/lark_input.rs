//! Which Lark grammars of custom tools can be kept.
//!
//! The input of a custom tool ends with the `</` of the markup around it, and terminals are matched greedily: a terminal that can
//! take in `</`, or one that can begin there with `<`, would leave the call without an end. So a grammar is kept only if
//! - no terminal by which a text can end holds a `<`, and
//! - no terminal that can follow one of those, or begin the text of a grammar that has the empty text, begins with `<`.
//!
//! What is not understood here, which is more than imports of `common` and rules of plain operators, is not kept; nor is anything
//! that would address tokens, other grammars or options. Such grammars are described to the model and no more. So is one about
//! which finding this out takes too much work.

use std::collections::BTreeMap;

use ends::ends_cleanly;

mod ends;

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
            "start: /[[:print:]]+/",
            "start: /[a&&[a]]/",
            "start: /[a~~b]/",
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

    #[test]
    fn what_takes_too_much_work_is_not_kept() {
        // Each terminal has the next one twice, so there are 2^60 ways through them.
        let doubled: String = (0..60).map(|n| format!("A{n}: A{0} A{0}\n", n + 1)).collect();
        assert!(is_kept(&format!("start: A0\n{doubled}A60: \"x\"")));
        assert!(!is_kept(&format!("start: A0\n{doubled}A60: \"<\"")));
        assert!(!is_kept(&format!("start: A0\n{doubled}A60: A0")));
        // What the last rule is becomes known to one rule a round, from the last to the first.
        let chain: String =
            (0..2_500).map(|n| format!("r{n:04}: r{:04} | \"t{n}\"\n", n + 1)).collect();
        assert!(!is_kept(&format!("start: r0000\n{chain}r2500: \"\"")));
        // Long texts cost what they are long.
        let long: String =
            (0..90).map(|n| format!("s{n}: \"{}\" s{}?\n", "x".repeat(90_000), n + 1)).collect();
        assert!(!is_kept(&format!("start: s0\n{long}s90: \"x\"")));
    }
}
