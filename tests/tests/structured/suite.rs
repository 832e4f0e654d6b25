//! JSON-Schema-Test-Suite: what a schema refuses is never possible; how much of the rest is, is counted.
//!
//! The suite is no part of the repository: `need_schema_suite` of deploy/common.sh puts it beside the build.

use std::path::PathBuf;
use std::sync::Arc;

use engine::{GrammarCompiler, Guide};
use serde_json::{Value, json};
use shared::{Constraint, Grammar, TokenId};

use super::tools::{END, compiler};
use crate::process::binary;

/// What became of a draft's schemas and of the instances of those that were compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    compiled: usize,
    /// Schemas that are not served.
    refused: usize,
    valid_accepted: usize,
    /// Properties out of the schema's order, for the most part.
    valid_refused: usize,
    invalid_refused: usize,
}

/// The drafts, how their schemas are marked, and what is served of them today: more of it is progress, less is a fault.
const DRAFTS: [(&str, &str, Counts); 3] = [
    (
        "draft2020-12",
        "https://json-schema.org/draft/2020-12/schema",
        Counts {
            compiled: 150,
            refused: 218,
            valid_accepted: 338,
            valid_refused: 23,
            invalid_refused: 217,
        },
    ),
    (
        "draft2019-09",
        "https://json-schema.org/draft/2019-09/schema",
        Counts {
            compiled: 156,
            refused: 205,
            valid_accepted: 344,
            valid_refused: 13,
            invalid_refused: 219,
        },
    ),
    (
        "draft7",
        "http://json-schema.org/draft-07/schema#",
        Counts {
            compiled: 148,
            refused: 106,
            valid_accepted: 312,
            valid_refused: 13,
            invalid_refused: 216,
        },
    ),
];

fn suite() -> PathBuf {
    let release = binary().parent().map(PathBuf::from).expect("the binary lies in a folder");
    let found = release.with_file_name("sdks").join("json-schema-suite");
    assert!(
        found.join("pin").is_file(),
        "JSON-Schema-Test-Suite is not in {}; run deploy/test.sh, or '. deploy/common.sh && need_sdks && need_schema_suite'",
        found.display()
    );
    found
}

fn files(draft: &str) -> Vec<PathBuf> {
    let folder = suite().join("tests").join(draft);
    let entries = std::fs::read_dir(&folder).expect("the suite has the draft");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("it can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    files
}

/// Marks a schema that has no mark as one of a draft.
fn marked(schema: &Value, mark: &str) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(members) = &mut schema {
        members.entry("$schema").or_insert_with(|| json!(mark));
    }
    schema
}

fn accepts(compiler: &GrammarCompiler, schema: &Value, instances: &[String]) -> Option<Vec<bool>> {
    let grammar = Grammar::Json(schema.to_string());
    let compiled = Arc::new(compiler.compile(&grammar).ok()?);
    let constraint =
        Arc::new(Constraint { grammar, trigger: Vec::new(), bound: None, barred: None });
    let follows = |instance: &String| {
        let vocabulary = compiler.vocabulary().tokens();
        let mut guide = Guide::new(Arc::clone(&constraint), &compiled, vocabulary, END);
        let mut tokens = instance.bytes().map(|byte| TokenId(byte.into())).chain([END]);
        tokens.all(|token| {
            guide.refresh().is_ok() && guide.mask().allows(token) && guide.advance(token).is_ok()
        })
    };
    Some(instances.iter().map(follows).collect())
}

#[test]
fn what_a_schema_refuses_is_never_possible() {
    let compiler = compiler();
    let (mut wrong, mut changed) = (Vec::new(), Vec::new());
    for (draft, mark, expected) in DRAFTS {
        let mut counts = Counts::default();
        for file in files(draft) {
            let text = std::fs::read_to_string(&file).expect("it can be read");
            let groups: Value = serde_json::from_str(&text).expect("the suite is JSON");
            for group in groups.as_array().expect("a list of groups") {
                let schema = marked(&group["schema"], mark);
                let tests = group["tests"].as_array().expect("a list of tests");
                let instances: Vec<String> =
                    tests.iter().map(|test| test["data"].to_string()).collect();
                let Some(accepted) = accepts(&compiler, &schema, &instances) else {
                    counts.refused += 1;
                    continue;
                };
                counts.compiled += 1;
                for (test, accepted) in tests.iter().zip(accepted) {
                    match (test["valid"] == true, accepted) {
                        (true, true) => counts.valid_accepted += 1,
                        (true, false) => counts.valid_refused += 1,
                        (false, false) => counts.invalid_refused += 1,
                        (false, true) => {
                            wrong.push(format!("{draft}: {schema} accepts {}", test["data"]));
                        }
                    }
                }
            }
        }
        if counts != expected {
            changed.push(format!("{draft}: {counts:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} accepted:\n{}", wrong.len(), wrong.join("\n"));
    assert!(changed.is_empty(), "other counts than written down:\n{}", changed.join("\n"));
}
