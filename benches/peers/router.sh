#!/usr/bin/env bash
# Our router beside others, in one run: kvasir bench router with SMG and vllm-router as peers, in turns. Prints a table for
# ../results.
#
# router.sh [--rounds 3] [--folder DIR] [--kvasir PROGRAM] [--tokenizer FILE]
#
# Makes a Python environment per peer in the folder (each ships a script that would hide the other's) and builds ours, unless
# its program is given. The tokenizer is the built-in model's, or the file that is named.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/deploy/common.sh"
export RUST_BACKTRACE=0

rounds=3 folder="" kvasir="" tokenizer=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 wants a value"
  case $1 in
    --rounds) rounds=$2 ;;
    --folder) folder=$2 ;;
    --kvasir) kvasir=$2 ;;
    --tokenizer) tokenizer=(--tokenizer "$2") ;;
    *) fail "$1 is unknown; see the head of $0" ;;
  esac
  shift 2
done
say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
own_folder=""
trap '[ -z "$own_folder" ] || rm -rf "$own_folder"' EXIT
if [ -z "$folder" ]; then
  own_folder=$(mktemp -d)
  folder=$own_folder
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

command -v python3 > /dev/null || install_package python3 >&2
python3 -c 'import ensurepip' 2> /dev/null || install_package python3-venv >&2
# environment NAME PACKAGE: the folder's environment with this one package.
environment() {
  [ -x "$folder/$1/bin/python" ] || python3 -m venv "$folder/$1"
  "$folder/$1/bin/pip" install --quiet --no-input "$2" >&2
}
# Both would listen on one port for their metrics.
metrics() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
peers=()
if environment smg smg==1.13.0; then
  peers+=(--peer "smg=$folder/smg/bin/smg launch --host 127.0.0.1 --port {port} --prometheus-port $(metrics) --policy cache_aware --worker-urls {workers}")
else
  say "no SMG: smg 1.13.0 cannot be installed; its rows will be missing"
fi
if environment vllm-router vllm-router==0.1.17; then
  peers+=(--peer "vllm-router=$folder/vllm-router/bin/vllm-router --host 127.0.0.1 --port {port} --prometheus-port $(metrics) --policy cache_aware --worker-urls {workers}")
else
  say "no vllm-router: 0.1.17 cannot be installed; its rows will be missing"
fi
if [ -z "$kvasir" ]; then
  say "building kvasir"
  (cd "$root" && cargo build --release --quiet --workspace --bins --examples)
  kvasir=${CARGO_TARGET_DIR:-$root/target}/release/kvasir
fi
"$kvasir" bench router --model "$root/deploy/models/seedling" "${tokenizer[@]}" --rounds "$rounds" "${peers[@]}"
