//! EBNF over lexemes: the same language as character by character, with masks that cost a hundredth.
//!
//! llguidance reads a text by a lexer and follows the lexemes by an Earley parser. In each row of the parser its lexer
//! runs all lexemes that the row awaits at once, as far as any of them goes on, and then hands all of them that match
//! the whole of what it read to the parser, as a set. So it does not matter that two lexemes match the same text; what
//! is lost are the ways in which a lexeme ends earlier than the lexer does.
//!
//! *Claim.* Let `next(p)` be the lexemes that can stand behind the lexeme at place `p`, and call `p` and `q` awaited
//! together when a row can await both. If for all such pairs (also `p = q`) there is no text `w` of `p` and no first byte
//! `b` of `next(p)` for which `w b` begins a text of `q`, then exactly the texts of the grammar are followed.
//!
//! *Proof.* What is followed is a text of the grammar, since lexemes are parts of it. The other way, take a text of the
//! grammar and a derivation; it cuts the text into texts `w1 w2 ...` of places `p1 p2 ...`. The row behind `w1 .. wi` awaits
//! `pi+1` (by induction). The lexer cannot stop inside `wi+1`, because `pi+1` goes on. At its end either nothing goes on, or
//! the next byte is a first byte of `pi+2`, which no lexeme of the row can go on by; at the end of the text it stops
//! anyway. So it stops there, `pi+1` is in the set, and the next row awaits `pi+2`.
//!
//! Both relations are computed with rules taken as if they returned to every place that refers to them, and pairs by
//! the texts that two lexemes share: more pairs than there are, never fewer. Bytes are those of UTF-8, because the lexer
//! runs on bytes: `é` can be run into by `è`.
//!
//! *Search.* Every regular part begins as one lexeme with its neighbours; whatever gets in another's way is split, until
//! nothing does. Single characters never get in the way, so that this ends.
//!
//! What it is not: an optimiser of grammars. Rules that call each other in a circle stay rules, but for those that
//! call only themselves, at one end ([`linear`]).

mod automaton;
mod bits;
mod flow;
mod linear;
mod shape;
mod tree;

use self::bits::Work;
use self::shape::{Lexemes, shape};
use self::tree::Tree;
use super::expression::Expression;

/// Places of one grammar, each with a set of all of them.
const PLACES_MAX: usize = 4_096;
/// Attempts at cutting a grammar; each splits all that was in the way, and a part is split three times at most before what
/// is inside of it is.
const ATTEMPTS_MAX: usize = 128;
/// Steps of all attempts, each up to 50 nanoseconds of a processor.
const WORK_MAX: usize = 4_000_000;

/// A grammar over lexemes.
pub(super) struct Promoted {
    /// Its rules as Lark, the root being `r0`.
    pub(super) lark: String,
    /// Lexemes of it that are more than one character.
    #[cfg_attr(not(test), expect(dead_code, reason = "what tests count"))]
    pub(super) lexemes: usize,
}

/// A grammar over lexemes; none when finding them takes too much work, or there are none.
pub(super) fn promote(rules: &[Expression]) -> Option<Promoted> {
    let mut tree = Tree::new(rules);
    let mut lexemes = Lexemes::default();
    let mut work = Work(WORK_MAX);
    for _ in 0..ATTEMPTS_MAX {
        let shaped = shape(&tree, &mut lexemes, &mut work)?;
        if PLACES_MAX < shaped.places.len() {
            return None;
        }
        let conflicts = flow::conflicts(&shaped, &mut lexemes, &mut work)?;
        if conflicts.is_empty() {
            let is_longer = |lexeme: usize| {
                lexemes.automaton(lexeme).is_some_and(|automaton| !automaton.is_character())
            };
            let longer = shaped.places.iter().filter(|place| is_longer(place.lexeme)).count();
            let mut lark = String::new();
            shaped.write(&lexemes, &mut lark);
            return (0 < longer).then_some(Promoted { lark, lexemes: longer });
        }
        for place in conflicts {
            tree.split(shaped.places[place].origin);
        }
    }
    None
}
