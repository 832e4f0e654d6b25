#!/usr/bin/env bash
# From a fresh clone to a served model: builds once, then runs `kvasir demo`. Arguments go to the demo (--json, --keep).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/common.sh

need_rust
need_libclang
printf 'building kvasir (ten minutes or more the first time, most of it RocksDB)\n' >&2
# These targets choose the features that the gate's choose for RocksDB, which is built once for both then: a choice of one package
# would build it again. Without `benches`, which nobody needs here.
cargo build --release --workspace --exclude benches --bins --examples
exec "${CARGO_TARGET_DIR:-target}/release/kvasir" demo "$@"
