//! Other stores, measured as `kvasir bench store` measures ours: the same objects, the same verbs, one JSON line per figure.
//!
//! `peers redis SOCKET|ADDRESS PID OBJECTS BYTES`, `peers foyer|blobdb FOLDER MIB BYTES`,
//! `peers catalog fill|read FOLDER COUNT [CACHE_MIB]`. What it is not: part of the product, or of its build. `store.sh`
//! starts what is needed.
#![forbid(unsafe_code)]

mod blobdb;
mod catalog;
mod drive;
mod figures;
mod foyer;
mod redis;

use std::path::Path;

use anyhow::{Context, bail};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize| {
        let found = arguments.get(at).map(String::as_str);
        found.context("an argument is missing; see the head of src/main.rs")
    };
    let number = |at: usize| {
        let text = text(at)?;
        text.parse::<usize>().with_context(|| format!("{text} is no number"))
    };
    let lines = match text(0)? {
        "redis" => redis::measure(text(1)?, text(2)?, number(3)?, number(4)?)?,
        "foyer" => foyer::measure(Path::new(text(1)?), number(2)? << 20, number(3)?)?,
        "blobdb" => blobdb::measure(Path::new(text(1)?), number(2)? << 20, number(3)?)?,
        "catalog" => {
            let cache_mib = if arguments.len() < 5 { 64 } else { number(4)? };
            catalog::measure(text(1)?, Path::new(text(2)?), number(3)?, cache_mib << 20)?
        }
        other => bail!("{other} is not redis, foyer, blobdb or catalog"),
    };
    for line in lines {
        println!("{line}");
    }
    Ok(())
}
