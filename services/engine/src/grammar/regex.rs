//! The regular expressions of clients. The whole answer matches; dialect of xgrammar 0.2.2, see the README of engine.

use super::compile::GrammarRefusal;
use super::ebnf::{escaped, read_class, repeat};
use super::expression::{Class, Expression, complement, shorthand, write_regex};
use super::reader::Reader;

/// The Lark text of a client's regular expression: one terminal.
///
/// # Errors
/// Names what is malformed or not supported, and where.
pub(super) fn translate(text: &str) -> Result<String, GrammarRefusal> {
    let expression = read(text)?.simplified();
    if accepts_empty_only(&expression) {
        return Err(GrammarRefusal::new("regex: only the empty answer matches; ask for something"));
    }
    let mut lark = String::from("%llguidance {\"no_forcing\": true}\nstart: ANSWER\nANSWER: /");
    write_regex(&expression, &mut lark);
    lark.push_str("/\n");
    Ok(lark)
}

/// Reads a regular expression.
pub(super) fn read(text: &str) -> Result<Expression, GrammarRefusal> {
    let mut reader = Reader::new(text, "regex");
    let expression = choice(&mut reader)?;
    match reader.peek() {
        None => Ok(expression),
        Some(_) => Err(reader.refuse("a parenthesis closes nothing")),
    }
}

fn choice(reader: &mut Reader<'_>) -> Result<Expression, GrammarRefusal> {
    reader.enter()?;
    let mut parts = vec![sequence(reader)?];
    while reader.take("|") {
        parts.push(sequence(reader)?);
    }
    reader.leave();
    Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Choice(parts) })
}

fn sequence(reader: &mut Reader<'_>) -> Result<Expression, GrammarRefusal> {
    let mut parts = Vec::new();
    while let Some(sign) = reader.peek().filter(|sign| !matches!(sign, '|' | ')')) {
        reader.next();
        reader.node()?;
        // The whole answer matches anyway.
        if matches!(sign, '^' | '$') {
            continue;
        }
        let atom = atom(reader, sign)?;
        parts.push(repeated(reader, atom)?);
    }
    Ok(match parts.len() {
        0 => Expression::Empty,
        1 => parts.remove(0),
        _ => Expression::Sequence(parts),
    })
}

fn atom(reader: &mut Reader<'_>, sign: char) -> Result<Expression, GrammarRefusal> {
    match sign {
        '(' => group(reader),
        '[' => {
            // A bracket right behind the opening one is a character in most dialects and closes in others.
            if reader.rest().starts_with(']') || reader.rest().starts_with("^]") {
                return Err(reader.refuse("write a bracket in a class as \\]"));
            }
            read_class(reader).map(Expression::Class)
        }
        '.' => Ok(Expression::Class(Class::any())),
        '\\' => escape(reader),
        '*' | '+' | '?' => Err(reader.refuse(format!("there is nothing that {sign} repeats"))),
        sign => Ok(Expression::Literal(vec![sign])),
    }
}

fn group(reader: &mut Reader<'_>) -> Result<Expression, GrammarRefusal> {
    if reader.take("?") {
        let look_around = ["=", "!", "<=", "<!"];
        if look_around.iter().any(|mark| reader.rest().starts_with(mark)) {
            return Err(reader.refuse("look-around is not supported"));
        }
        if reader.take("P<") || reader.take("<") {
            let name = reader.take_while(|sign| sign.is_alphanumeric() || sign == '_');
            if name.is_empty() || !reader.take(">") {
                return Err(reader.refuse("a group's name is malformed"));
            }
        } else if !reader.take(":") {
            return Err(reader.refuse("inline flags are not supported"));
        }
    }
    let inner = choice(reader)?;
    if reader.take(")") {
        return Ok(inner);
    }
    Err(reader.refuse("a group is not closed"))
}

fn escape(reader: &mut Reader<'_>) -> Result<Expression, GrammarRefusal> {
    let Some(sign) = reader.next() else {
        return Err(reader.refuse("the text ends behind a backslash"));
    };
    if let Some(ranges) = shorthand(sign.to_ascii_lowercase()) {
        let ranges = if sign.is_ascii_uppercase() { complement(&ranges) } else { ranges };
        return Ok(Expression::Class(Class { ranges, negated: false }));
    }
    match sign {
        'b' | 'B' => Err(reader.refuse("word boundaries are not supported")),
        'p' | 'P' => Err(reader.refuse("classes by property (\\p) are not supported")),
        '1'..='9' | 'k' => Err(reader.refuse("back-references are not supported")),
        sign => Ok(Expression::Literal(vec![escaped(reader, sign)?])),
    }
}

fn repeated(reader: &mut Reader<'_>, atom: Expression) -> Result<Expression, GrammarRefusal> {
    let bounds = match reader.peek() {
        Some('*') => (0, None),
        Some('+') => (1, None),
        Some('?') => (0, Some(1)),
        Some('{') => {
            reader.next();
            let bounds = reader.bounds()?;
            return lazy(reader, repeat(atom, bounds));
        }
        _ => return Ok(atom),
    };
    reader.next();
    lazy(reader, repeat(atom, bounds))
}

/// A lazy mark changes which way a match is found, not what matches.
fn lazy(reader: &mut Reader<'_>, repeated: Expression) -> Result<Expression, GrammarRefusal> {
    reader.take("?");
    match reader.peek() {
        Some('*' | '+' | '{') => Err(reader.refuse("a repetition of a repetition needs a group")),
        _ => Ok(repeated),
    }
}

/// Whether nothing but the empty text matches. llguidance takes no terminal like that.
fn accepts_empty_only(expression: &Expression) -> bool {
    match expression {
        Expression::Empty => true,
        Expression::Literal(_) | Expression::Class(_) | Expression::Rule(_) => false,
        Expression::Sequence(parts) | Expression::Choice(parts) => {
            parts.iter().all(accepts_empty_only)
        }
        Expression::Repeat { what, .. } => accepts_empty_only(what),
    }
}
