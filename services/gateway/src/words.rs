//! A short way from ASCII text to token ids, equal to the tokenizer's own.
//!
//! The tokenizer of the family cuts text into words with three patterns and merges bytes inside each word. Its library follows
//! every character's origin through all steps, which nobody asks for here and which takes 1 us a word. Here ASCII text is cut
//! by hand, and the ids of a word are looked up; a word that is not known is merged by the library's model, and kept.
//!
//! What it deliberately is not: a tokenizer of other alphabets, or of other patterns. Text around a character beyond ASCII goes to
//! the library, and so does everything when the tokenizer's steps are not those that [`Words::of`] knows.
//!
//! Invariants: the ids are those of the library, for every text; at most [`WORDS_MAX`] words of at most [`WORD_BYTES_MAX`]
//! bytes are kept; when there are more, all are forgotten.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::RwLock;
use serde_json::Value;
use tokenizers::{Model, ModelWrapper, Tokenizer};

/// Words that are kept: more than the common ones of a few languages and their code. About 8 MiB.
const WORDS_MAX: usize = 1 << 16;
/// Longest word that is kept; longer ones are rarely seen twice.
const WORD_BYTES_MAX: usize = 64;
/// Two characters beyond ASCII with less between them go to the library together: a call of it costs as much as this many
/// bytes.
const APART_MIN: usize = 64;
/// The steps before the merges, as `tokenizer.json` of the family has them. [`next_word`] is these patterns, for ASCII.
const PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// The model of a tokenizer and the words it has met. Shared between threads.
pub(crate) struct Words {
    model: ModelWrapper,
    known: RwLock<Known>,
    /// What the library's model writes for each byte.
    alphabet: [char; 256],
}

/// Ids of words. `ids` holds those of all words, one behind the other.
#[derive(Default)]
struct Known {
    places: HashMap<Box<[u8]>, Range<usize>>,
    ids: Vec<u32>,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// ASCII, for [`Words::push`].
    Plain(Range<usize>),
    /// For the library.
    Other(Range<usize>),
}

impl Words {
    /// The short way for this tokenizer; none when its steps are others.
    pub(crate) fn of(tokenizer: &Tokenizer, alphabet: [char; 256]) -> Option<Self> {
        let steps = serde_json::to_value(tokenizer.get_pre_tokenizer()?).ok()?;
        let usual = takes_text_as_it_is(tokenizer)
            && tokenizer.get_truncation().is_none()
            && tokenizer.get_padding().is_none()
            && cuts_as_we_do(&steps);
        let ModelWrapper::BPE(model) = tokenizer.get_model() else { return None };
        let model = (usual && model.dropout.is_none()).then(|| tokenizer.get_model().clone())?;
        Some(Self { model, known: RwLock::default(), alphabet })
    }

    /// Words kept now.
    pub(crate) fn kept(&self) -> usize {
        self.known.read().places.len()
    }

    /// Appends the ids of an ASCII text that is one part of [`parts`].
    ///
    /// # Errors
    /// What the library's model says.
    pub(crate) fn push(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), String> {
        let bytes = text.as_bytes();
        let mut start = 0;
        while start < bytes.len() {
            start = self.push_known(bytes, start, ids);
            if start < bytes.len() {
                let end = next_word(bytes, start);
                self.push_new(&bytes[start..end], ids)?;
                start = end;
            }
        }
        Ok(())
    }

    /// Appends ids up to the first word that is not known, and says where that begins.
    fn push_known(&self, bytes: &[u8], mut start: usize, ids: &mut Vec<u32>) -> usize {
        let known = self.known.read();
        while start < bytes.len() {
            let end = next_word(bytes, start);
            let Some(place) = known.places.get(&bytes[start..end]) else { break };
            ids.extend_from_slice(&known.ids[place.clone()]);
            start = end;
        }
        start
    }

    fn push_new(&self, word: &[u8], ids: &mut Vec<u32>) -> Result<(), String> {
        let spelling: String = word.iter().map(|byte| self.alphabet[usize::from(*byte)]).collect();
        let tokens = self.model.tokenize(&spelling).map_err(|error| error.to_string())?;
        let begin = ids.len();
        ids.extend(tokens.iter().map(|token| token.id));
        if word.len() <= WORD_BYTES_MAX {
            self.known.write().insert(word, &ids[begin..]);
        }
        Ok(())
    }
}

impl Known {
    fn insert(&mut self, word: &[u8], ids: &[u32]) {
        if self.places.contains_key(word) {
            return;
        }
        if self.places.len() == WORDS_MAX {
            // The common ones are back soon, and what a client made up to fill the table is gone.
            self.places.clear();
            self.ids.clear();
        }
        let begin = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.places.insert(word.into(), begin..self.ids.len());
    }
}

/// Whether no step changes the text before it is cut: there is none, or a list of none, as in the family's own file.
fn takes_text_as_it_is(tokenizer: &Tokenizer) -> bool {
    let Some(normalizer) = tokenizer.get_normalizer() else { return true };
    let steps = serde_json::to_value(normalizer).unwrap_or_default();
    steps.get("normalizers").and_then(Value::as_array).is_some_and(Vec::is_empty)
}

/// Whether the steps before the merges are [`PATTERNS`], each cutting out what it matches, and the writing of bytes as
/// characters.
fn cuts_as_we_do(steps: &Value) -> bool {
    let Some(steps) = steps.get("pretokenizers").and_then(Value::as_array) else { return false };
    let Some((bytes, splits)) = steps.split_last() else { return false };
    let is = |step: &Value, name: &str, value: Value| step.get(name) == Some(&value);
    let splits_alike = splits.len() == PATTERNS.len()
        && splits.iter().zip(PATTERNS).all(|(step, pattern)| {
            is(step, "type", "Split".into())
                && is(step, "behavior", "Isolated".into())
                && is(step, "invert", false.into())
                && step.pointer("/pattern/Regex").and_then(Value::as_str) == Some(pattern)
        });
    splits_alike
        && is(bytes, "type", "ByteLevel".into())
        && is(bytes, "add_prefix_space", false.into())
        && is(bytes, "use_regex", false.into())
}

/// Cuts a text into ASCII and the rest, at places where a word ends whatever is around it.
pub(crate) fn parts(text: &str) -> Vec<Part> {
    let bytes = text.as_bytes();
    let mut parts = Vec::new();
    let mut start = 0;
    while let Some(other) = beyond_ascii(bytes, start) {
        let begin = (start + 1..other).rev().find(|at| is_cut(bytes, *at)).unwrap_or(start);
        if start < begin {
            parts.push(Part::Plain(start..begin));
        }
        let mut end = cut_after(bytes, other);
        while let Some(next) = beyond_ascii(bytes, end).filter(|next| next - end < APART_MIN) {
            end = cut_after(bytes, next);
        }
        parts.push(Part::Other(begin..end));
        start = end;
    }
    if start < bytes.len() {
        parts.push(Part::Plain(start..bytes.len()));
    }
    parts
}

fn beyond_ascii(bytes: &[u8], start: usize) -> Option<usize> {
    let rest = &bytes[start..];
    rest.iter().position(|byte| !byte.is_ascii()).map(|at| start + at)
}

/// No word has an ASCII letter and behind it another ASCII character than a letter, and no pattern looks back.
fn is_cut(bytes: &[u8], at: usize) -> bool {
    bytes[at - 1].is_ascii_alphabetic() && bytes[at].is_ascii() && !bytes[at].is_ascii_alphabetic()
}

fn cut_after(bytes: &[u8], other: usize) -> usize {
    (other + 1..bytes.len()).find(|at| is_cut(bytes, *at)).unwrap_or(bytes.len())
}

/// What the patterns tell apart among ASCII characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Letter,
    Digit,
    /// Punctuation and symbols.
    Mark,
    Newline,
    /// Other white space.
    Blank,
    Control,
}

fn kind(byte: u8) -> Kind {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' => Kind::Letter,
        b'0'..=b'9' => Kind::Digit,
        b'\n' | b'\r' => Kind::Newline,
        b' ' | b'\t' | 0x0b | 0x0c => Kind::Blank,
        b'!'..=b'~' => Kind::Mark,
        _ => Kind::Control,
    }
}

/// The end of the word that begins at `start`: the patterns' alternatives in their order. The first pattern takes digits out
/// before the third looks, so to that one a digit is the end of the text.
fn next_word(bytes: &[u8], start: usize) -> usize {
    let kind_at = |at: usize| bytes.get(at).map(|byte| kind(*byte));
    let run = |from: usize, of: Kind| {
        let rest = bytes[from..].iter();
        from + rest.take_while(|byte| kind(**byte) == of).count()
    };
    let marks = |from: usize| run(run(from, Kind::Mark), Kind::Newline);
    let next = kind_at(start + 1);
    match kind(bytes[start]) {
        // No further than three, so that a long number is not read again for each of its words.
        Kind::Digit => {
            let few = bytes[start..].iter().take(3);
            start + few.take_while(|byte| kind(**byte) == Kind::Digit).count()
        }
        Kind::Letter => run(start, Kind::Letter),
        Kind::Mark | Kind::Blank | Kind::Control if next == Some(Kind::Letter) => {
            run(start + 1, Kind::Letter)
        }
        Kind::Mark => marks(start),
        Kind::Blank if bytes[start] == b' ' && next == Some(Kind::Mark) => marks(start + 1),
        Kind::Blank | Kind::Newline => blank_word(bytes, start),
        // Nothing matches here: what lies before the next match is a word.
        Kind::Control => {
            let unmatched = |at: &usize| {
                kind_at(*at) == Some(Kind::Control) && kind_at(*at + 1) != Some(Kind::Letter)
            };
            (start + 1..).find(|at| !unmatched(at)).expect("the text ends")
        }
    }
}

/// White space up to its last newline; without any, all of it at the end, and all but the last character before something.
fn blank_word(bytes: &[u8], start: usize) -> usize {
    let blank = |byte: &&u8| matches!(kind(**byte), Kind::Blank | Kind::Newline);
    let end = start + bytes[start..].iter().take_while(blank).count();
    let newline = bytes[start..end].iter().rposition(|byte| kind(*byte) == Kind::Newline);
    if let Some(last) = newline {
        return start + last + 1;
    }
    let at_end = bytes.get(end).is_none_or(|byte| kind(*byte) == Kind::Digit);
    if at_end || end - start == 1 { end } else { end - 1 }
}

#[cfg(test)]
mod tests;
