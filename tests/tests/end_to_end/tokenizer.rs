//! The tokenizer of DeepSeek-V4.1 itself: the ids that are fixed, text cut as its library cuts it, the recipe's prompts.
//!
//! It is no part of the repository: `need_v41_tokenizer` of deploy/common.sh makes it beside the build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::json;
use shared::Random;
use tempfile::TempDir;
use tokenizers::Tokenizer;

use super::{recipe, sdk};
use crate::http::post;
use crate::process::{Server, seedling, serve_model};

/// Spelling and id (specs, recipe-and-apis 1.4).
const FIXED: [(&str, u32); 19] = [
    ("<｜begin▁of▁sentence｜>", 0),
    ("<｜end▁of▁sentence｜>", 1),
    ("<｜▁pad▁｜>", 2),
    ("<｜System｜>", 128_799),
    ("<｜fim▁hole｜>", 128_800),
    ("<｜fim▁begin｜>", 128_801),
    ("<｜fim▁end｜>", 128_802),
    ("<｜User｜>", 128_803),
    ("<｜Assistant｜>", 128_804),
    ("<think>", 128_821),
    ("</think>", 128_822),
    ("｜DSML｜", 128_825),
    ("<｜latest_reminder｜>", 128_828),
    ("<｜action｜>", 128_829),
    ("<｜query｜>", 128_830),
    ("<｜authority｜>", 128_831),
    ("<｜search｜>", 128_839),
    ("<｜read_url｜>", 128_845),
    ("<｜deepseek_image｜>", 129_264),
];

/// Pieces of text that the patterns tell apart or that make them look ahead, and what is seldom seen together.
const PIECES: [&str; 40] = [
    "a",
    "Zq",
    "the",
    "'s",
    "'LL",
    "7",
    "12",
    "3456",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\r",
    ".",
    "!?",
    "...",
    "_",
    "$",
    "://",
    "\u{0}",
    "\u{1b}",
    "\u{7f}",
    "\u{b}",
    "é",
    "e\u{301}",
    "’",
    "杭州",
    "の",
    "ｶﾞ",
    "½",
    "٣",
    "\u{a0}",
    "\u{2028}",
    "\u{85}",
    "—",
    "🤭",
    "👩\u{200d}👩\u{200d}👧",
    "ß",
    "\u{fffd}",
];

/// Texts drawn from the pieces.
const DRAWN: usize = 1_500;

fn tokenizer() -> PathBuf {
    let folder = sdk::libraries().join("v41-tokenizer");
    assert!(
        folder.join("pin").is_file(),
        "the tokenizer of V4.1 is not in {}; run deploy/test.sh, or '. deploy/common.sh && need_sdks && need_v41_tokenizer'",
        folder.display()
    );
    folder.join("tokenizer.json")
}

/// A folder like that of the built-in model, with the other tokenizer.
fn model() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let link = |source: &Path, name: &str| {
        symlink(source, folder.path().join(name)).expect("a link can be made");
    };
    for name in
        ["config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"]
    {
        link(&seedling().join(name), name);
    }
    link(&tokenizer(), "tokenizer.json");
    folder
}

/// What a script needs that nobody asks anything of.
fn silent(folder: &TempDir) -> String {
    let script = folder.path().join("script.json");
    fs::write(&script, "{\"answers\": []}").expect("a file can be written");
    script.to_str().expect("a plain name").to_owned()
}

fn drawn() -> Vec<String> {
    let mut random = Random::new(41);
    let text = |_| {
        let pieces = random.below(14);
        (0..pieces).map(|_| PIECES[random.below(PIECES.len())]).collect()
    };
    (0..DRAWN).map(text).collect()
}

fn long() -> [String; 5] {
    let prose = "The teacher’s map (of 1,024 places) isn't here.\n\n  fn main() { println!(\"{}\", 3.14); }\r\n\tEnd — 杭州 天气。 ";
    [
        prose.repeat(50),
        " ".repeat(10_000),
        "x".repeat(3_000),
        "7".repeat(20_000),
        format!("\n{}\n", " \t".repeat(2_000)),
    ]
}

#[test]
fn text_is_cut_as_the_library_cuts_it_and_spelled_control_tokens_are_text() {
    let library = Tokenizer::from_file(tokenizer()).expect("the library reads it");
    for (spelling, id) in FIXED {
        assert_eq!(library.token_to_id(spelling), Some(id), "{spelling}");
    }
    let folder = model();
    let script = silent(&folder);
    let arguments = ["--scripted", script.as_str()];
    let server = Server::of(serve_model(folder.path(), &arguments, Stdio::inherit()), "http");
    let ids = |text: &str| {
        let body = json!({"prompt": text, "add_special_tokens": false});
        let told = post(server.clients, "/tokenize", &body.to_string());
        assert_eq!(told.status, 200, "{}", told.body);
        let told = told.json();
        let ids = told["tokens"].as_array().expect("a list").iter();
        let ids = ids.map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
        ids.collect::<Option<Vec<u32>>>().expect("ids")
    };
    for text in drawn().into_iter().chain(long()) {
        let expected = library.encode_fast(text.as_str(), false).expect("it is encoded");
        let found = ids(&text);
        assert_eq!(found, expected.get_ids(), "{text:?}");
        let back = json!({"tokens": found}).to_string();
        assert_eq!(post(server.clients, "/detokenize", &back).json()["prompt"], text);
    }
    for (spelling, id) in FIXED {
        let found = ids(&format!("a{spelling}b"));
        assert!(1 < found.len() && !found.contains(&id), "{spelling}: {found:?}");
    }
}

#[test]
fn the_recipe_makes_the_same_prompts_and_reads_the_same_answers_with_it() {
    let folder = model();
    recipe::agrees(folder.path());
}
