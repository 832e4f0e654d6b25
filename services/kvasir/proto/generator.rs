//! Makes `src/wire/generated.rs` from `proto/kvasir/v1`. Used by the example that rewrites the file and by the test that
//! compares it; no build script, so that nobody needs a compiler of protocol files to build.

use std::fs;
use std::path::Path;

/// What the generated file begins with.
const HEADER: &str = "\
// Generated from proto/kvasir/v1. Do not edit; change the protocol files and run, in the root of the repository,
// cargo run --release -p kvasir --example generate_wire -- services/kvasir

";

/// The protocol files.
const FILES: [&str; 6] = ["common", "member", "decode", "prefill", "store", "events"];
/// Messages that carry the secret root of a request: they cannot be printed.
const SECRET: [&str; 2] = ["kvasir.v1.DecodeRequest", "kvasir.v1.PrefillRequest"];

/// The text of the generated file. `package` is the folder of the crate; `scratch` is an empty folder.
///
/// # Panics
/// When a protocol file is wrong or a folder cannot be used.
pub(crate) fn generate(package: &Path, scratch: &Path) -> String {
    let include = package.join("proto");
    let files = FILES.map(|name| include.join(format!("kvasir/v1/{name}.proto")));
    let set = protox::compile(files, [include]).expect("the protocol files compile");
    tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .skip_debug(SECRET)
        .out_dir(scratch)
        .compile_fds(set)
        .expect("code is generated");
    let code = fs::read_to_string(scratch.join("kvasir.v1.rs")).expect("the package has one file");
    format!("{HEADER}{code}")
}
