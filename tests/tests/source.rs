//! Looks at Rust source as text, with comments and literals blanked, so that a rule about code is not fooled by a
//! sentence about code.
//!
//! It is no parser: it knows comments, string and character literals, and lifetimes, nothing else.

/// The source with every comment and every literal's content replaced by spaces. Lines stay lines.
pub(crate) fn code_only(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if !follows_word(bytes, at) => raw_string_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        if end == at {
            code.push(bytes[at]);
            at += 1;
        } else {
            code.extend(bytes[at..end].iter().map(|b| if *b == b'\n' { b'\n' } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Whether `word` stands in `code` as a whole word.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(is_part);
        let after = code[at + word.len()..].chars().next().is_some_and(is_part);
        !before && !after
    })
}

/// The part of a file before its tests: by our rule the tests come last.
pub(crate) fn without_tests(code: &str) -> &str {
    code.split("#[cfg(test)]").next().expect("a split has a first part")
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at.checked_sub(1).is_some_and(|before| {
        bytes[before].is_ascii_alphanumeric() || bytes[before] == b'_' || !bytes[before].is_ascii()
    })
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |length| at + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of a raw string (`r"`, `br#"`, ..), or `start` when none begins there.
fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    if matches!(bytes[at], b'b' | b'c') {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return start;
    }
    at += 1;
    let hashes = bytes[at..].iter().take_while(|b| **b == b'#').count();
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return start;
    }
    let mut close = vec![b'"'];
    close.extend(std::iter::repeat_n(b'#', hashes));
    let body = &bytes[at + 1..];
    let length = body.windows(close.len()).position(|window| window == close);
    length.map_or(bytes.len(), |length| at + 1 + length + close.len())
}

/// The end of a character literal, or `start` when a lifetime begins there.
fn char_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        let close = bytes[start + 3..].iter().position(|b| *b == b'\'');
        return close.map_or(bytes.len(), |length| start + 3 + length + 1);
    }
    // A character is up to four bytes; a lifetime has no quote after its first character.
    let first = bytes.get(start + 1).copied().unwrap_or(b' ');
    let width = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    if bytes.get(start + 1 + width) == Some(&b'\'') { start + width + 2 } else { start }
}

#[test]
fn comments_and_literals_are_blanked_and_code_is_kept() {
    let word = "danger";
    let cases = [
        ("danger { }", true),
        ("// danger\n", false),
        ("/* a /* danger */ danger */ x", false),
        ("let a = \"danger\";", false),
        ("let a = \"\\\"danger\";", false),
        ("let a = r#\"danger\"#;", false),
        ("let a = b\"danger\"; danger", true),
        ("let c = '\"'; danger", true),
        ("let c = '\\''; danger", true),
        ("fn f<'a>(x: &'a str) { danger }", true),
        ("let dangerous = 1;", false),
        ("let a = 'ü'; danger", true),
    ];
    for (source, expected) in cases {
        assert_eq!(has_word(&code_only(source), word), expected, "{source}");
    }
}

#[test]
fn blanking_keeps_every_line() {
    let source = "a\n/* b\nc */\n\"d\ne\"\nf";
    assert_eq!(code_only(source).lines().count(), source.lines().count());
}
