//! The rules of the style guide that no lint can check, over every file of the repository.
//!
//! Each rule is one pure function from files to faults, so that a rule can be shown to see a planted fault.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::repository::{files_below, members, read, relative, root, rust_sources};
use crate::source::{code_only, has_word, without_tests};

/// Style guide, rule 5.
const FILE_LINES_MAX: usize = 600;
/// Written by a generator, and held fresh by a test of their crate.
const GENERATED: [&str; 2] =
    ["services/kvasir/src/wire/generated.rs", "services/kvasir/src/discovery/etcd/generated.rs"];
/// Issue 2: a clone stays small. Bytes of all files together, git's own and build outputs left out.
const TREE_BYTES_MAX: u64 = 36_000_000;
/// Where unsafe code may stand (style guide, rule 33): the fences.
const UNSAFE_FENCES: [&str; 4] =
    ["kernels/src/cpu/simd", "kernels/src/cpu/map.rs", "kernels/src/cuda", "kvstore/src/sys"];
/// Where serde may be used without being a `Config` type or checkpoint parsing.
const SERDE_CRATES: [&str; 5] =
    ["services/gateway/", "services/kvasir/", "services/sim/", "tests/", "benches/"];
/// Files in which other crates parse what lies on disk (configuration, a checkpoint, an index of reference data, a tokenizer)
/// or is JSON by nature (a schema).
const SERDE_FILES: [&str; 8] = [
    "config.rs",
    "config/",
    "checkpoint.rs",
    "checkpoint/",
    "golden.rs",
    "grammar/vocabulary.rs",
    "grammar/schema.rs",
    "grammar/schema/",
];
/// File types that hold our own text.
const TEXT: [&str; 7] = ["rs", "toml", "sh", "py", "md", "cu", "cuh"];

type Files = Vec<(String, String)>;

fn line_faults(files: &Files) -> Vec<String> {
    let written = files.iter().filter(|(path, _)| !GENERATED.contains(&path.as_str()));
    let long = written.filter(|(_, text)| FILE_LINES_MAX < text.lines().count());
    long.map(|(path, text)| format!("{path}: {} lines", text.lines().count())).collect()
}

fn module_file_faults(files: &Files) -> Vec<String> {
    let paths: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let mut faults = Vec::new();
    for path in &paths {
        if path.ends_with("/mod.rs") {
            faults.push(format!("{path}: use foo.rs beside foo/ instead of foo/mod.rs"));
            continue;
        }
        let Some((_, inside)) = path.split_once("/src/") else { continue };
        if matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/") {
            continue;
        }
        let (folder, name) = path.rsplit_once('/').expect("the path has a folder");
        let parents = if folder.ends_with("/src") {
            vec![format!("{folder}/lib.rs"), format!("{folder}/main.rs")]
        } else {
            vec![format!("{folder}.rs")]
        };
        let module = name.trim_end_matches(".rs");
        let named = files.iter().any(|(other, text)| {
            parents.contains(other) && code_only(text).contains(&format!("mod {module};"))
        });
        if !named {
            faults.push(format!("{path}: no `mod {module};` in {}", parents.join(" or ")));
        }
    }
    faults
}

fn unsafe_faults(files: &Files) -> Vec<String> {
    let outside = |path: &str| !UNSAFE_FENCES.iter().any(|fence| path.starts_with(fence));
    let word = concat!("un", "safe");
    files
        .iter()
        .filter(|(path, text)| outside(path) && has_word(&code_only(text), word))
        .map(|(path, _)| format!("{path}: {word} outside the fences"))
        .collect()
}

fn serde_faults(files: &Files) -> Vec<String> {
    let allowed = |path: &str| {
        SERDE_CRATES.iter().any(|folder| path.starts_with(folder))
            || SERDE_FILES.iter().any(|file| path.contains(&format!("/{file}")))
    };
    let test = |path: &str| path.ends_with("/tests.rs") || path.contains("/tests/");
    let uses = |text: &str| {
        let code = code_only(text);
        has_word(without_tests(&code), "serde") || has_word(without_tests(&code), "serde_json")
    };
    files
        .iter()
        .filter(|(path, text)| !allowed(path) && !test(path) && uses(text))
        .map(|(path, _)| {
            format!("{path}: serde belongs into gateway, kvasir, sim and config parsing")
        })
        .collect()
}

fn later_faults(files: &Files) -> Vec<String> {
    let word = concat!("TO", "DO");
    let mut faults = Vec::new();
    for (path, text) in files {
        for (index, line) in text.lines().enumerate() {
            let bare = line.match_indices(word).any(|(at, _)| {
                let rest = &line[at + word.len()..];
                let number = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
                number.is_none_or(|(digits, _)| digits.parse::<u32>().is_err())
            });
            if bare {
                faults.push(format!("{path}:{}: {word} without an issue", index + 1));
            }
        }
    }
    faults
}

fn config_faults(files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in files {
        let mut inside: Option<&str> = None;
        let mut documented = false;
        for line in text.lines().map(str::trim) {
            let name = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"));
            if let Some(name) = name.filter(|name| name.ends_with("Config")) {
                inside = Some(name);
            } else if line == "}" {
                inside = None;
            }
            let Some(name) = inside else { continue };
            // Settings are public fields; a private one is derived from them.
            let field = line.starts_with("pub") && line.ends_with(',') && line.contains(": ");
            if line.starts_with("///") {
                documented = true;
            } else if field {
                if !documented {
                    faults.push(format!("{path}: {name}: `{line}` has no documentation"));
                }
                documented = false;
            }
        }
    }
    faults
}

fn readme_faults(readmes: &BTreeMap<String, Option<String>>) -> Vec<String> {
    let silent = readmes.iter().filter(|(_, text)| {
        !text.as_ref().is_some_and(|text| text.to_lowercase().contains("invariants"))
    });
    silent
        .map(|(folder, _)| format!("{folder}/README.md is missing or names no invariants"))
        .collect()
}

/// A choice of one package chooses other features than the gate does, and builds RocksDB again.
fn build_faults(files: &Files) -> Vec<String> {
    let builds = |line: &str| line.contains("cargo ") && line.contains("--release");
    // The peers are a workspace of their own.
    let narrow = |line: &&str| {
        builds(line) && !line.contains("--workspace") && !line.contains("PEERS_TARGET_DIR")
    };
    let scripts = files.iter().filter(|(path, _)| path.ends_with(".sh"));
    scripts
        .flat_map(|(path, text)| {
            text.lines().filter(narrow).map(move |line| format!("{path}: {}", line.trim()))
        })
        .collect()
}

fn none(rule: &str, faults: &[String]) {
    assert!(faults.is_empty(), "{rule}:\n{}", faults.join("\n"));
}

#[test]
fn rust_sources_follow_every_rule() {
    let sources = rust_sources();
    none("a file has at most 600 lines", &line_faults(&sources));
    none(
        "modules are foo.rs beside foo/, and every file is reached",
        &module_file_faults(&sources),
    );
    none("unsafe code stays behind the fences", &unsafe_faults(&sources));
    none("serde stays at the edges", &serde_faults(&sources));
    none("every configuration field is documented", &config_faults(&sources));
}

#[test]
fn unfinished_work_names_its_issue() {
    let root = root();
    let ours = |extension: &str| TEXT.contains(&extension);
    let files: Files = files_below(&root)
        .into_iter()
        .filter(|path| path.extension().and_then(|e| e.to_str()).is_some_and(ours))
        .map(|path| (relative(&root, &path), read(&path)))
        .filter(|(path, _)| !path.starts_with("deploy/models/"))
        .collect();
    none("unfinished work names its issue", &later_faults(&files));
}

#[test]
fn scripts_build_what_the_gate_builds() {
    let root = root();
    let scripts: Files = files_below(&root)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "sh"))
        .map(|path| (relative(&root, &path), read(&path)))
        .collect();
    assert!(!scripts.is_empty());
    none("scripts build the workspace", &build_faults(&scripts));
}

#[test]
fn every_folder_states_its_invariants() {
    let root = root();
    let mut folders: BTreeSet<String> = members().into_iter().map(|m| m.folder).collect();
    folders.insert("deploy".to_owned());
    let readmes = folders
        .into_iter()
        .map(|folder| {
            let text = fs::read_to_string(root.join(&folder).join("README.md")).ok();
            (folder, text)
        })
        .collect();
    none("every folder has a README with its invariants", &readme_faults(&readmes));
}

#[test]
fn the_code_map_names_every_crate() {
    let map = read(&root().join("README.md"));
    let missing: Vec<_> = members()
        .into_iter()
        .map(|member| member.folder)
        .filter(|folder| !map.contains(&format!("`{folder}`")))
        .collect();
    none("the code map in README.md names every crate's folder", &missing);
}

#[test]
fn the_tree_stays_small() {
    let sizes = files_below(&root()).into_iter().map(|path| {
        fs::metadata(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).len()
    });
    let bytes: u64 = sizes.sum();
    assert!(
        bytes <= TREE_BYTES_MAX,
        "the tree has {bytes} bytes, at most {TREE_BYTES_MAX} are allowed"
    );
}

#[test]
fn each_rule_sees_a_planted_fault() {
    let file = |path: &str, text: &str| vec![(path.to_owned(), text.to_owned())];
    let danger = concat!("un", "safe { f() }");
    let later = concat!("// TO", "DO: finish");
    let cases: [(&str, Vec<String>); 9] = [
        ("lines", line_faults(&file("a/src/lib.rs", &"x\n".repeat(601)))),
        ("mod.rs", module_file_faults(&file("a/src/b/mod.rs", ""))),
        ("unreached", module_file_faults(&file("a/src/b.rs", ""))),
        ("unsafe", unsafe_faults(&file("router/src/lib.rs", danger))),
        ("serde", serde_faults(&file("shared/src/ids.rs", "use serde::Serialize;"))),
        ("later", later_faults(&file("a/src/lib.rs", later))),
        ("config", config_faults(&file("a.rs", "pub struct Config {\n    pub a: u32,\n}"))),
        ("build", build_faults(&file("a.sh", "cargo build --release -p a"))),
        ("readme", readme_faults(&BTreeMap::from([("a".to_owned(), None)]))),
    ];
    for (rule, faults) in cases {
        assert_eq!(faults.len(), 1, "{rule}: {faults:?}");
    }
}

#[test]
fn what_is_allowed_is_not_a_fault() {
    let file = |path: &str, text: &str| vec![(path.to_owned(), text.to_owned())];
    let danger = concat!("un", "safe { f() }");
    let later = concat!("// TO", "DO(#7): finish");
    let documented = "pub struct Config {\n    /// A.\n    #[serde(default)]\n    pub a: u32,\n}";
    let cases = [
        unsafe_faults(&file("kernels/src/cpu/simd/avx512.rs", danger)),
        unsafe_faults(&file("kvstore/src/sys.rs", danger)),
        serde_faults(&file("services/engine/src/config.rs", "use serde::Deserialize;")),
        later_faults(&file("a/src/lib.rs", later)),
        config_faults(&file("a.rs", documented)),
        build_faults(&file("a.sh", "cargo build --release --workspace --bins")),
    ];
    for faults in cases {
        assert!(faults.is_empty(), "{faults:?}");
    }
}
