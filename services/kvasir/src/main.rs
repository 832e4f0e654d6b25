//! The program. Everything it does is in the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use kvasir::console::Console;

fn main() -> ExitCode {
    kvasir::cli::run(std::env::args_os(), &mut Console::process())
}
