//! From a client's or the server's grammar to something that a guide can follow.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Matcher, ParserFactory};
use shared::{GRAMMAR_BYTES_MAX, Grammar};

use super::ebnf::Translated;
use super::vocabulary::GrammarVocabulary;
use super::{ebnf, regex, schema};

/// The stack of a thread that compiles grammars. llguidance compiles by recursion; what clients may send takes up to about 60 MB of it:
/// 10,000 Lark rules of which each is the next one (`tests/fuzz.rs` compiles the deepest). Pages that nothing needs take no memory.
pub const GRAMMAR_STACK_BYTES: usize = 128 << 20;

/// What one grammar may cost. The defaults keep a compilation below about 100 ms of computing, a mask below about 30 ms
/// and a guide below about 40 MB, whatever the grammar is; source: the speeds that llguidance documents at its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrammarLimits {
    /// States of one grammar's lexer, each 1 to 2 kB. At least 1.
    pub lexer_states_max: usize,
    /// Symbols of one grammar after its translation. At least 1.
    pub symbols_max: usize,
    /// Items of the parser that one mask may create, about 20 in a microsecond. At least 1.
    pub mask_items_max: usize,
}

impl GrammarLimits {
    /// See [`GrammarLimits`].
    pub const STANDARD: Self =
        Self { lexer_states_max: 20_000, symbols_max: 250_000, mask_items_max: 200_000 };
}

/// Tokens that are allowed as a whole where a lexeme goes on with them, beside llguidance's own slices, which are those of
/// JSON's strings: names and words, and text without quotes and commas, as in the cells of a table and the strings of a query.
/// Masks of `kvasir bench grammar` with the first three took a third to two thirds of the time; with the fourth, the slowest
/// hundredth of tables a twentieth and of queries a quarter; those of JSON the same. The fourth begins with a class of its
/// own (no `~`): by reading llguidance 1.9.1, it seeks a repeat with a beginning in every branch of a lexeme, a bare one not.
const WORDS: [&str; 4] =
    ["[a-z]+", "[a-zA-Z]+", " [a-z]+", r#"[^"',\\\x00-\x1F~\x7F][^"',\\\x00-\x1F\x7F]*"#];

/// Why a grammar is not served, in one line for its author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarRefusal(String);

/// Bytes of a refusal's text.
const REFUSAL_BYTES_MAX: usize = 400;

impl GrammarRefusal {
    /// One line, cut where it becomes too long.
    pub(super) fn new(text: impl AsRef<str>) -> Self {
        let line = text.as_ref().split_whitespace().collect::<Vec<_>>().join(" ");
        Self(line[..line.floor_char_boundary(REFUSAL_BYTES_MAX)].to_owned())
    }
}

/// Compiles grammars over one vocabulary. One for a whole worker; shared by threads.
pub struct GrammarCompiler {
    factory: ParserFactory,
    vocabulary: GrammarVocabulary,
}

/// A compiled grammar at its beginning, from which guides are made.
pub struct Compiled {
    matcher: Matcher,
    bytes: usize,
}

impl GrammarCompiler {
    /// Prepares the vocabulary for masks; computes for seconds with a large one.
    ///
    /// # Panics
    /// When a slice of the vocabulary is no regular expression, which tests rule out.
    #[must_use]
    pub fn new(vocabulary: &GrammarVocabulary, limits: GrammarLimits) -> Self {
        let mut slices = SlicedBiasComputer::general_slices();
        slices.extend(WORDS.map(str::to_owned));
        Self::with_slices(vocabulary, limits, &slices)
    }

    /// The same with other slices; masks are the same with any.
    pub(super) fn with_slices(
        vocabulary: &GrammarVocabulary,
        limits: GrammarLimits,
        slices: &[String],
    ) -> Self {
        let mut factory =
            ParserFactory::new(&vocabulary.environment, InferenceCapabilities::default(), slices)
                .expect("all slices are regular expressions");
        factory.quiet();
        let set = factory.limits_mut();
        set.max_lexer_states = limits.lexer_states_max;
        set.max_grammar_size = limits.symbols_max;
        set.step_max_items = limits.mask_items_max;
        // Its error texts would hold the client's grammar.
        set.verbose_errors = false;
        Self { factory, vocabulary: vocabulary.clone() }
    }

    /// The vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> &GrammarVocabulary {
        &self.vocabulary
    }

    /// Compiles a grammar. Can take long; see [`GrammarLimits`]. To be called on a stack of [`GRAMMAR_STACK_BYTES`] where the grammar
    /// is of a client: a smaller one ends the process.
    ///
    /// # Errors
    /// Names the feature that is not supported, or what is malformed.
    pub fn compile(&self, grammar: &Grammar) -> Result<Compiled, GrammarRefusal> {
        let size = grammar.text().len();
        if GRAMMAR_BYTES_MAX < size {
            let text = format!("it has {size} bytes, at most {GRAMMAR_BYTES_MAX} are taken");
            return Err(GrammarRefusal::new(text));
        }
        let top = match grammar {
            Grammar::Json(schema) => schema::read(schema)?,
            Grammar::Regex(text) => TopLevelGrammar::from_lark(regex::translate(text)?),
            Grammar::Ebnf(text) => return self.compile_ebnf(grammar, text),
            Grammar::Server(text) => schema::server::read(text)?,
        };
        self.begin(grammar, top)
    }

    /// The first translation that stays within the limits: lexemes can need more states than characters.
    fn compile_ebnf(&self, grammar: &Grammar, text: &str) -> Result<Compiled, GrammarRefusal> {
        let Translated { promoted, by_characters } = ebnf::translate(text)?;
        let begin = |lark| self.begin(grammar, TopLevelGrammar::from_lark(lark));
        // What is wrong with the grammar itself is told by the plain translation.
        match promoted.and_then(|lark| begin(lark).ok()) {
            Some(compiled) => Ok(compiled),
            None => begin(by_characters),
        }
    }

    fn begin(&self, grammar: &Grammar, top: TopLevelGrammar) -> Result<Compiled, GrammarRefusal> {
        let mut matcher = Matcher::new(self.factory.create_parser(top)).into_cancellable();
        if let Some(error) = matcher.get_error() {
            return Err(refusal(grammar, &error));
        }
        // A grammar without any member is found here, and what the first mask needs is kept.
        let first = matcher.compute_mask_or_eos().map_err(|error| refusal(grammar, &error))?;
        if first.is_zero() {
            return Err(GrammarRefusal::new("no answer follows it"));
        }
        let bytes = BYTES_EACH + BYTES_PER_BYTE * grammar.text().len();
        Ok(Compiled { matcher, bytes })
    }
}

/// What a compiled grammar is counted as: its fixed part, and what each byte of its text becomes. Measured with schemas of
/// 0.1 to 20 kB; what the lexer learns while it is used belongs to the guides.
const BYTES_EACH: usize = 64 << 10;
const BYTES_PER_BYTE: usize = 200;

impl Compiled {
    /// Bytes of memory that it holds, estimated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A matcher of its own, which shares nothing with others that could be held up by them.
    pub(super) fn matcher(&self) -> Matcher {
        self.matcher.deep_clone().into_cancellable()
    }
}

fn refusal(grammar: &Grammar, error: &impl ToString) -> GrammarRefusal {
    let kind = match grammar {
        Grammar::Json(_) => "json",
        Grammar::Regex(_) => "regex",
        Grammar::Ebnf(_) => "ebnf",
        Grammar::Server(_) => "tools",
    };
    GrammarRefusal::new(format!("{kind}: {}", error.to_string()))
}

/// A compiled grammar that several requests begin with.
pub(super) type SharedCompiled = Arc<Compiled>;
