//! `benches DIR...`: the speed of the engine on each checkpoint. `benches evict TRACE...`: eviction policies on traces.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::bail;
use benches::{evict, machine, speed};
use kvasir::clock::SystemClock;
use kvasir::console::Console;

fn main() -> anyhow::Result<()> {
    let folders: Vec<String> = std::env::args().skip(1).collect();
    if folders.is_empty() {
        bail!("name at least one checkpoint, for example deploy/models/seedling");
    }
    let mut console = Console::process();
    if let [first, traces @ ..] = folders.as_slice()
        && first == "evict"
    {
        for trace in traces {
            console.line(&format!("\n### {trace}\n"))?;
            for line in evict::table(Path::new(trace))? {
                console.line(&line)?;
            }
        }
        return Ok(());
    }
    let clock = SystemClock::start();
    let machine = machine::measure(&clock);
    console.line(&machine.describe())?;
    for folder in folders {
        console.line(&format!("\n### {folder}\n"))?;
        for line in speed::table(Path::new(&folder), &machine, &clock)? {
            console.line(&line)?;
        }
    }
    Ok(())
}
