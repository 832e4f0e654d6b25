//! Finds the repository and walks its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Folders that hold no source of ours: git's own and build outputs.
const SKIPPED: [&str; 2] = [".git", "target"];

/// The root of the repository. Tests run in their package's folder, both under cargo and under nextest; a path fixed
/// at build time would point into another clone when two clones share a target folder.
pub(crate) fn root() -> PathBuf {
    let here = std::env::current_dir().expect("the test process has a working directory");
    here.parent().expect("the crate `tests` lies in a folder of the repository").to_path_buf()
}

/// Every file below `folder`, sorted, build outputs and git's own files left out.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder)
            .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
        for entry in entries {
            let entry = entry.expect("an entry of a folder of the repository can be read");
            let kind = entry.file_type().expect("the kind of a file can be read");
            let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
            if kind.is_dir() && !skipped {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

/// All Rust sources of the repository, with their path relative to its root.
pub(crate) fn rust_sources() -> Vec<(String, String)> {
    let root = root();
    let sources: Vec<_> = files_below(&root)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (relative(&root, &path), read(&path)))
        .collect();
    assert!(20 < sources.len(), "the walk finds the sources; {} files are too few", sources.len());
    sources
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", path.display()))
}

/// The path relative to the repository, with `/` between its parts.
pub(crate) fn relative(root: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(root).expect("the walk stays inside the repository");
    inside.to_str().expect("names of files are UTF-8").to_owned()
}

/// A crate of the workspace: its name, its folder relative to the root, and the workspace crates it depends on, also
/// through its tests.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) folder: String,
    pub(crate) edges: Vec<String>,
}

/// The workspace's crates as cargo sees them. Reads manifests only; needs no network.
pub(crate) fn members() -> Vec<Member> {
    let root = root();
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(&root)
        .output()
        .expect("cargo can be started: it started this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    packages.iter().map(|package| member(&root, package)).collect()
}

fn member(root: &Path, package: &Value) -> Member {
    let text = |value: &Value| value.as_str().expect("cargo gives a string here").to_owned();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let folder = manifest.parent().expect("a manifest lies in a folder");
    let dependencies = package["dependencies"].as_array().expect("metadata lists dependencies");
    let mut edges: Vec<String> = dependencies
        .iter()
        .filter(|dependency| dependency["path"].is_string())
        .map(|dependency| text(&dependency["name"]))
        .collect();
    edges.sort();
    edges.dedup();
    Member { name: text(&package["name"]), folder: relative(root, folder), edges }
}
