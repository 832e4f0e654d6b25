#!/usr/bin/env bash
# From a fresh clone to a served model: builds once, then runs `kvasir demo`. Arguments go to the demo (--json, --keep).
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/common.sh

need_rust
need_libclang
printf 'building kvasir (ten minutes or more the first time, most of it RocksDB)\n' >&2
cargo build --release --package kvasir
exec "${CARGO_TARGET_DIR:-target}/release/kvasir" demo "$@"
