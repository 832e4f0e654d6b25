use std::sync::Arc;

use deepseek_recipe_encoding::TokenizerEncoder;
use tokenizers::Tokenizer;

use super::{Part, WORDS_MAX, Words, parts};
use crate::token_cache::CachedEncoder;
use crate::vocabulary::alphabet;
use crate::vocabulary::tests::{seedling, seedling_path};

fn tokenizer() -> Tokenizer {
    seedling().0
}

fn words(tokenizer: &Tokenizer) -> Words {
    Words::of(tokenizer, alphabet()).expect("the built-in tokenizer is of the family")
}

/// The ids by the short way where it applies, and by the library where not.
fn ids(words: &Words, tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    for part in parts(text) {
        match part {
            Part::Plain(range) => words.push(&text[range], &mut ids).unwrap(),
            Part::Other(range) => ids.extend(plain(tokenizer, &text[range])),
        }
    }
    ids
}

/// The library's ids. No text here spells a control token.
fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn check(words: &Words, tokenizer: &Tokenizer, text: &str) {
    assert_eq!(ids(words, tokenizer, text), plain(tokenizer, text), "{text:?}");
}

/// SplitMix64 (Steele, Lea and Flood 2014).
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    usize::try_from((mixed ^ (mixed >> 27)) >> 33).unwrap()
}

#[test]
fn every_pair_of_ascii_characters_has_the_ids_of_the_library() {
    let tokenizer = tokenizer();
    let words = words(&tokenizer);
    for first in 0..128_u8 {
        for second in 0..128_u8 {
            check(&words, &tokenizer, &format!("{}{}", char::from(first), char::from(second)));
        }
    }
}

#[test]
fn random_texts_have_the_ids_of_the_library() {
    let tokenizer = tokenizer();
    let words = words(&tokenizer);
    // One of each kind that the patterns tell apart, and those that make them look ahead.
    let ascii = [
        "a", "Zq", "7", "12", "3456", " ", "  ", "\t", "\n", "\r\n", ".", "!?", "'s", "\u{0}",
        "\u{1b}", "\u{7f}", "\u{b}", "_", "$",
    ];
    let other = [
        "é", "’", "杭州", "の", "½", "\u{301}", "\u{a0}", "\u{2028}", "—", "🤭", "ß", "٣", "\u{85}",
    ];
    for (seed, beyond) in [(1, 0), (2, 3), (3, 25)] {
        let mut state = seed;
        for _ in 0..6_000 {
            let mut text = String::new();
            for _ in 0..next(&mut state) % 14 {
                let from: &[&str] = if next(&mut state) % 100 < beyond { &other } else { &ascii };
                text.push_str(from[next(&mut state) % from.len()]);
            }
            check(&words, &tokenizer, &text);
        }
    }
}

#[test]
fn long_texts_have_the_ids_of_the_library() {
    let tokenizer = tokenizer();
    let words = words(&tokenizer);
    let prose = "The teacher’s map (of 1,024 places) isn't here.\n\n  fn main() { println!(\"{}\", 3.14); }\r\n\tEnd — 杭州 天气。 ";
    check(&words, &tokenizer, &prose.repeat(50));
    check(&words, &tokenizer, &" ".repeat(10_000));
    check(&words, &tokenizer, &"x".repeat(3_000));
    check(&words, &tokenizer, &"7".repeat(50_000));
    check(&words, &tokenizer, &format!("\n{}\n", " \t".repeat(5_000)));
    check(&words, &tokenizer, "");
}

#[test]
fn parts_join_to_the_text_and_few_characters_beyond_ascii_take_little_with_them() {
    let text = format!("{}don’t stop. {}", "some plain words ".repeat(20), "and more ".repeat(20));
    let found = parts(&text);
    let of = |part: &Part| match part {
        Part::Plain(range) | Part::Other(range) => range.clone(),
    };
    assert_eq!(found.iter().map(|part| &text[of(part)]).collect::<String>(), text);
    assert_eq!(found.len(), 3);
    assert_eq!(&text[of(&found[1])], " don’t");
}

#[test]
fn words_are_bounded() {
    let tokenizer = tokenizer();
    let words = words(&tokenizer);
    for first in 0..260_usize {
        let text: String =
            (0..260).map(|second| format!(" {}", letters(first * 260 + second))).collect();
        words.push(&text, &mut Vec::new()).unwrap();
        assert!(words.kept() <= WORDS_MAX);
    }
    assert!(words.kept() < 260 * 260 - WORDS_MAX + 1, "all were forgotten once");
    check(&words, &tokenizer, "the old map");
}

fn letters(mut number: usize) -> String {
    let mut word = String::new();
    for _ in 0..5 {
        word.push(char::from(b'a' + u8::try_from(number % 26).unwrap()));
        number /= 26;
    }
    word
}

#[test]
fn a_tokenizer_with_other_steps_has_no_short_way() {
    let file = std::fs::read_to_string(seedling_path()).unwrap();
    let of = |from: &str, to: &str| {
        assert!(file.contains(from), "{from}");
        let tokenizer: Tokenizer = file.replacen(from, to, 1).parse().unwrap();
        Words::of(&tokenizer, alphabet()).is_some()
    };
    let none = "\"normalizer\": null";
    assert!(of(none, none), "unchanged");
    // As in the family's own file.
    assert!(of(none, "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}"));
    for (from, to) in [
        (none, "\"normalizer\": {\"type\": \"Lowercase\"}"),
        ("{1,3}", "{1,2}"),
        ("\"Isolated\"", "\"Removed\""),
        ("\"dropout\": null", "\"dropout\": 0.5"),
    ] {
        assert!(!of(from, to), "{to}");
    }
}

#[test]
fn the_cached_encoder_takes_the_short_way() {
    let (tokenizer, vocabulary) = seedling();
    let encoder = CachedEncoder::new(&tokenizer, Arc::new(vocabulary), 0);
    let text = "Tom likes the garden.";
    assert_eq!(encoder.encode_ids(text, &[]).unwrap(), plain(&tokenizer, text));
    assert!(0 < encoder.stats().words);
}
