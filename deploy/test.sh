#!/usr/bin/env bash
# The one gate: everything that must hold before a change lands. Prints the time of each stage.
#
# One profile only (release) and RUSTFLAGS unset: a second profile or other flags would build every dependency again.
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/common.sh

stages=""
began_all=$SECONDS

# stage NAME COMMAND...: runs the command, notes its time, stops the script when it fails.
stage() {
  local name=$1 began=$SECONDS
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" || fail "the stage '$name' failed after $((SECONDS - began)) s; run it alone with: $*"
  stages+=$(printf '%6d s  %s' $((SECONDS - began)) "$name")$'\n'
}

install() {
  need_rust
  need_libclang
  need_etcd
  need_openssl
  need_component fmt rustfmt
  need_component clippy
  need_nextest
  need_sdks
  need_schema_suite
  need_v41_tokenizer
}

documentation() {
  RUSTDOCFLAGS="-D warnings" cargo doc --release --workspace --no-deps --quiet
}

# The real binary, started as a user would start it: reference outputs, then the demo with its own assertions.
end_to_end() {
  local kvasir="${CARGO_TARGET_DIR:-target}/release/kvasir" data
  cargo nextest run --release --workspace -E 'test(/^end_to_end::/)' || return 1
  for data in tests/golden/tiny-w ../shared/golden/tiny ../shared/golden/tiny-b; do
    if [ -d "$data" ]; then
      "$kvasir" golden "$data" --arith exact || return 1
    else
      printf 'skipped: %s is not here\n' "$data"
    fi
  done
  "$kvasir" golden deploy/models/seedling/golden --checkpoint deploy/models/seedling --arith exact || return 1
  # Its exit status says whether answers were equal, the cache worked and nothing leaked.
  "$kvasir" demo --json
}

stage install install
stage fmt cargo fmt --all --check
stage clippy cargo clippy --release --workspace --all-targets -- -D warnings
stage doc documentation
# Every target at once: another choice of packages would choose other features and build dependencies twice.
stage build cargo build --release --workspace --all-targets
stage tests cargo nextest run --release --workspace -E 'not test(/^end_to_end::/)'
stage end-to-end end_to_end

printf '\n%s%6d s  all\n' "$stages" $((SECONDS - began_all))
