//! Which crate may use which.
//!
//! The list is the one of the design: `engine -> kernels -> shared`, `kvstore -> shared`, `router -> shared`,
//! `gateway -> shared`, `prefill, decode -> engine, kvstore`, `sim -> router, prefill, decode`, `kvasir -> all`, nothing -> `kvasir, tests, benches`. An
//! edge to a crate that can be reached anyway (`prefill -> shared`) adds no direction and is allowed.

use std::collections::{BTreeMap, BTreeSet};

use crate::repository::members;

/// Crate, then the crates it may name directly.
const DIRECT: [(&str, &[&str]); 12] = [
    ("shared", &[]),
    ("kernels", &["shared"]),
    ("kvstore", &["shared"]),
    ("router", &["shared"]),
    ("engine", &["kernels"]),
    ("prefill", &["engine", "kvstore"]),
    ("decode", &["engine", "kvstore"]),
    ("gateway", &["shared"]),
    ("sim", &["router", "prefill", "decode"]),
    ("kvasir", &["gateway", "sim"]),
    ("benches", &["kvasir"]),
    ("tests", &["kvasir"]),
];

/// Crates that only outside packages may use: everything above them is a program or a test.
const USED_BY_NOBODY: [&str; 2] = ["tests", "benches"];

fn reachable(from: &str, direct: &BTreeMap<&str, &[&'static str]>) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&'static str> = direct[from].to_vec();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(direct[next]);
        }
    }
    found
}

#[test]
fn every_crate_edge_is_one_of_the_design() {
    let direct: BTreeMap<&str, &[&'static str]> = DIRECT.into_iter().collect();
    let mut faults = Vec::new();
    for member in members() {
        if !direct.contains_key(member.name.as_str()) {
            faults.push(format!("crate {} is not in the design's list", member.name));
            continue;
        }
        let allowed = reachable(&member.name, &direct);
        for edge in &member.edges {
            if !allowed.contains(edge.as_str()) {
                faults.push(format!("{} -> {edge} is not an edge of the design", member.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn nothing_depends_on_a_program_or_a_test() {
    for member in members() {
        for used in &member.edges {
            assert!(!USED_BY_NOBODY.contains(&used.as_str()), "{} -> {used}", member.name);
            let program = used == "kvasir" && !USED_BY_NOBODY.contains(&member.name.as_str());
            assert!(!program, "{} -> kvasir", member.name);
        }
    }
}

#[test]
fn every_crate_of_the_design_is_a_member() {
    let found: BTreeSet<String> = members().into_iter().map(|member| member.name).collect();
    let expected: BTreeSet<String> = DIRECT.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_forbidden_edge_would_be_seen() {
    let direct: BTreeMap<&str, &[&'static str]> = DIRECT.into_iter().collect();
    assert!(!reachable("gateway", &direct).contains("engine"));
    assert!(!reachable("router", &direct).contains("kvstore"));
    assert!(reachable("decode", &direct).contains("shared"));
}
