//! The program. Everything it does is in the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use kvasir::console::Console;
use mimalloc::MiMalloc;

/// Requests are made of many small pieces that one thread allocates and another frees.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    kvasir::cli::run(std::env::args_os(), &mut Console::process())
}
