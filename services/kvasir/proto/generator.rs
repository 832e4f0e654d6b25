//! Makes `src/wire/generated.rs` from `proto/kvasir/v1`, and `src/discovery/etcd/generated.rs` from `proto/etcd`. Used by the
//! example that rewrites the files and by the test that compares them; no build script, so that nobody needs a compiler of
//! protocol files to build.

use std::fs;
use std::path::Path;

/// One generated file.
pub(crate) struct Generated {
    /// The file, below the folder of the crate.
    pub(crate) target: &'static str,
    /// Its protocol files, below `proto`.
    folder: &'static str,
    files: &'static [&'static str],
    package: &'static str,
    with_server: bool,
}

/// All of them.
pub(crate) const ALL: [Generated; 2] = [
    Generated {
        target: "src/wire/generated.rs",
        folder: "kvasir/v1",
        files: &["common", "member", "decode", "prefill", "store", "events", "routers"],
        package: "kvasir.v1",
        with_server: true,
    },
    Generated {
        target: "src/discovery/etcd/generated.rs",
        folder: "etcd",
        files: &["etcd"],
        package: "etcdserverpb",
        with_server: false,
    },
];
/// Messages that carry the secret root of a request, a password or a token: they cannot be printed.
const SECRET: [&str; 4] = [
    "kvasir.v1.DecodeRequest",
    "kvasir.v1.PrefillRequest",
    "etcdserverpb.AuthenticateRequest",
    "etcdserverpb.AuthenticateResponse",
];

impl Generated {
    /// The text of the file. `package` is the folder of the crate; `scratch` is an empty folder.
    ///
    /// # Panics
    /// When a protocol file is wrong or a folder cannot be used.
    pub(crate) fn generate(&self, package: &Path, scratch: &Path) -> String {
        let include = package.join("proto");
        let files =
            self.files.iter().map(|name| include.join(format!("{}/{name}.proto", self.folder)));
        let set = protox::compile(files, [&include]).expect("the protocol files compile");
        tonic_prost_build::configure()
            .build_server(self.with_server)
            .build_transport(false)
            .emit_rerun_if_changed(false)
            .skip_debug(SECRET)
            .out_dir(scratch)
            .compile_fds(set)
            .expect("code is generated");
        let code = scratch.join(format!("{}.rs", self.package));
        let code = fs::read_to_string(code).expect("the package has one file");
        let folder = self.folder;
        format!(
            "// Generated from proto/{folder}. Do not edit; change the protocol files and run, in the root of the repository,\n\
             // cargo run --release -p kvasir --example generate_wire -- services/kvasir\n\n{code}"
        )
    }
}
