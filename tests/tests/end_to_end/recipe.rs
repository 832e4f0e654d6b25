//! DeepSeek's own recipe, as its Python package, beside the real binary: the same prompts, token by token, and the same readings
//! of the same answers. The cases, and the differences that are meant, lie in `tests/sdk`.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::sdk::{checks, libraries};
use crate::process::{Server, errors_of, seedling, serve_model};

fn driver(arguments: &[&str]) -> Output {
    Command::new(libraries().join("py/bin/python"))
        .arg(checks().join("recipe_oracle.py"))
        .args(arguments)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("python can be started")
}

/// Asserts that the recipe and a server agree on every case with the tokenizer of a model's folder.
pub(super) fn agrees(model: &Path) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let script = folder.path().join("script.json");
    let script = script.to_str().expect("the folder has a plain name");
    let written = driver(&["--script", script]);
    assert!(written.status.success(), "{}", errors_of(&written));
    let arguments = ["--scripted", script];
    let server = Server::of(serve_model(model, &arguments, Stdio::inherit()), "http");
    let tokenizer = model.join("tokenizer.json");
    let output = driver(&[
        "--url",
        &format!("http://{}", server.clients),
        "--admin",
        &format!("http://{}", server.admin),
        "--tokenizer",
        tokenizer.to_str().expect("the folder has a plain name"),
        "--model",
        model.file_name().and_then(|name| name.to_str()).expect("the folder has a plain name"),
    ]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", errors_of(&output));
    assert!(said.contains("cases hold"), "{said}");
}

#[test]
fn prompts_and_answers_are_read_as_the_recipe_reads_them() {
    agrees(&seedling());
}
