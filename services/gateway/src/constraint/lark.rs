//! Pieces of Lark text. Everything that comes from a client is written as numbers of characters, or between slashes that nothing in it
//! can close, so that nothing of it can be read as Lark.

use std::fmt::Write;

/// A terminal of exactly this text, to stand in a rule. The text is not empty.
pub(super) fn exactly(text: &str) -> String {
    format!("/{}/", characters(text))
}

/// The text as a part of a regular expression between slashes.
pub(super) fn characters(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for sign in text.chars() {
        if sign.is_ascii_alphanumeric() {
            written.push(sign);
        } else {
            write!(written, "\\x{{{:X}}}", u32::from(sign)).expect("a string takes everything");
        }
    }
    written
}

/// A client's regular expression as a terminal. A backslash at its end stands for itself: it would hide the closing slash.
pub(super) fn expression(text: &str) -> String {
    let mut written = String::with_capacity(text.len() + 2);
    let mut signs = text.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\\' => match signs.next().unwrap_or('\\') {
                next if next.is_control() => written.push_str(&between_slashes(next)),
                next => written.extend(['\\', next]),
            },
            '/' => written.push_str("\\/"),
            other => written.push_str(&between_slashes(other)),
        }
    }
    format!("/{written}/")
}

/// A character that a terminal may hold: a line feed would end it.
fn between_slashes(sign: char) -> String {
    if sign.is_control() { format!("\\x{{{:X}}}", u32::from(sign)) } else { sign.to_string() }
}
