//! Whatever text a client sends as a grammar is compiled or refused: no panic, no hang, nothing unbounded.

use shared::{Grammar, TokenId};

use super::{Draws, compiler, guide};

/// What grammars are made of, valid and not.
const PIECES: [&str; 48] = [
    "root",
    "::=",
    " ",
    "\n",
    "\"",
    "\"a\"",
    "\"ab\"",
    "[",
    "]",
    "[a-c]",
    "[^a]",
    "[^]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{",
    "}",
    "{2}",
    "{1,3}",
    "{,4}",
    "{9999}",
    "{99999}",
    ",",
    "\\",
    "\\d",
    "\\w",
    "\\S",
    "\\u00e9",
    "\\x4",
    "\\u{10FFFF}",
    "\\1",
    "^",
    "$",
    ".",
    "-",
    "(?:",
    "(?P<n>",
    "(?=",
    "(=",
    "#",
    "x",
    "é",
    "\u{1F600}",
    "<[5]>",
    "%llguidance",
];

fn pieces(draws: &mut Draws) -> String {
    let count = 1 + draws.below(24);
    (0..count)
        .map(|_| {
            let last = u64::try_from(PIECES.len()).unwrap();
            PIECES[usize::try_from(draws.below(last)).unwrap()]
        })
        .collect()
}

/// A valid grammar with one character taken out, doubled or replaced.
fn damaged(draws: &mut Draws, text: &str) -> String {
    let signs: Vec<char> = text.chars().collect();
    let at = usize::try_from(draws.below(u64::try_from(signs.len()).unwrap())).unwrap();
    let (before, after) = signs.split_at(at);
    let middle = match draws.below(3) {
        0 => String::new(),
        1 => after[0].to_string().repeat(2),
        _ => pieces(draws),
    };
    let before: String = before.iter().collect();
    let after: String = after[1..].iter().collect();
    format!("{before}{middle}{after}")
}

#[test]
fn any_text_is_compiled_or_refused() {
    let compiler = compiler();
    let rules = "root ::= x{1,3} (\"a\" | [^b-d])* # end\nx ::= \"\\u00e9\"? root? [\\d\\w-]+\n";
    let regex = r"^(?:[a-z]+\.?|\d{2,4}[^\s,]*)(?P<n>x|y\/z)?$";
    let schema =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"pattern\":\"^x+$\"}},\"required\":[\"a\"]}";
    let (mut served, mut refused) = (0, 0);
    for seed in 0..1_500 {
        let mut draws = Draws(seed);
        let grammar = match seed % 6 {
            0 => Grammar::Ebnf(format!("root ::= {}", pieces(&mut draws))),
            1 => Grammar::Ebnf(damaged(&mut draws, rules)),
            2 => Grammar::Regex(pieces(&mut draws)),
            3 => Grammar::Regex(damaged(&mut draws, regex)),
            4 => Grammar::Json(damaged(&mut draws, schema)),
            _ => Grammar::Ebnf(pieces(&mut draws)),
        };
        let shown = format!("seed {seed}: {grammar:?}");
        let Ok(mut guide) = guide(&compiler, grammar) else {
            refused += 1;
            continue;
        };
        served += 1;
        // A short walk along the first possible tokens.
        for _ in 0..8 {
            let token = (0..258).map(TokenId).find(|token| guide.mask().allows(*token));
            let token = token.unwrap_or_else(|| panic!("{shown}: a mask is never empty"));
            guide.advance(token).unwrap_or_else(|error| panic!("{shown}: {error}"));
            if guide.refresh().is_err() {
                break;
            }
        }
    }
    assert!(100 < served && 100 < refused, "{served} served, {refused} refused");
}
