//! Writes the generated files anew from the protocol files. One argument: the folder of the crate `kvasir`.

#[path = "../proto/generator.rs"]
mod generator;

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

fn main() -> anyhow::Result<()> {
    let package = std::env::args_os().nth(1).context("name the folder services/kvasir")?;
    let package = PathBuf::from(package);
    for generated in generator::ALL {
        let scratch = tempfile::tempdir()?;
        let code = generated.generate(&package, scratch.path());
        let target = package.join(generated.target);
        fs::write(&target, code).with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(())
}
