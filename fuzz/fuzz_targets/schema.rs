//! JSON schemas of clients: compiled or refused, then followed.

#![no_main]

use shared::Grammar;

libfuzzer_sys::fuzz_target!(|text: &str| fuzz::grammars::follow(Grammar::Json(text.to_owned())));
