#!/usr/bin/env bash
# Our store beside others, in one run: kvasir bench store, Redis, Mooncake Store, foyer, RocksDB BlobDB and fio take turns, in
# reversed order every second round; then our catalog at several sizes. Prints a Markdown report for ../results.
#
# store.sh [--rounds 3] [--objects 1024] [--mebibytes 512] [--folder DIR] [--entries "1000000 10000000"] [--table FILE]
#          [--kvasir PROGRAM] [--peers PROGRAM]
#
# Installs what is missing (Debian packages, a Python environment in the folder) and builds ours and the peers, unless their
# programs are given. Takes three times the mebibytes on the drive and in memory, and 1 GB for ten million entries. What was
# measured stays in FOLDER/figures.jsonl; --table makes the report from such a file and measures nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
. "$root/deploy/common.sh"
export RUST_BACKTRACE=0

rounds=3 objects=1024 mebibytes=512 bytes=113920 entries="1000000 10000000" folder="" table="" kvasir="" peers=""
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 wants a value"
  case $1 in
    --rounds) rounds=$2 ;;
    --objects) objects=$2 ;;
    --mebibytes) mebibytes=$2 ;;
    --folder) folder=$2 ;;
    --entries) entries=$2 ;;
    --table) table=$2 ;;
    --kvasir) kvasir=$2 ;;
    --peers) peers=$2 ;;
    *) fail "$1 is unknown; see the head of $0" ;;
  esac
  shift 2
done
if [ -n "$table" ]; then
  exec python3 "$here/table.py" "$table"
fi

own_folder=""
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  own_folder=$folder
fi
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
figures=$folder/figures.jsonl
: > "$figures"
say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }

redis_pid=""
clean() {
  if [ -n "$redis_pid" ]; then kill "$redis_pid" 2>/dev/null || true; fi
  rm -rf "$folder/drive" "$folder/catalog" "$folder/redis" "$folder/log"
}
trap clean EXIT

# need COMMAND PACKAGE: installs a Debian package unless its command is there.
need() {
  command -v "$1" > /dev/null || install_package "$2" >&2
}
need_rust >&2
need redis-server redis-server
need fio fio
need python3 python3
need g++ g++
[ -n "$(ls /usr/lib/llvm-*/lib/libclang*.so* 2> /dev/null)" ] || install_package libclang-dev >&2
python=$folder/python/bin/python
mooncake="mooncake-transfer-engine-non-cuda==0.3.13.post1"
if ! [ -x "$python" ]; then
  python3 -c 'import ensurepip' 2> /dev/null || install_package python3-venv >&2
  python3 -m venv "$folder/python"
fi
"$python" -c 'import mooncake.store' 2> /dev/null || "$folder/python/bin/pip" install --quiet "$mooncake" ||
  say "no Mooncake Store: $mooncake cannot be installed; its rows will be missing"

if [ -z "$kvasir" ]; then
  say "building kvasir"
  (cd "$root" && cargo build --release --quiet --workspace --bins --examples)
  kvasir=${CARGO_TARGET_DIR:-$root/target}/release/kvasir
fi
if [ -z "$peers" ]; then
  say "building the peers"
  (cd "$here" && CARGO_TARGET_DIR=${PEERS_TARGET_DIR:-$here/target} cargo build --release --quiet)
  peers=${PEERS_TARGET_DIR:-$here/target}/release/peers
fi

# record NAME COMMAND...: appends each JSON line of the command with the round and the load of the machine.
record() {
  local name=$1 load lines
  shift
  load=$(cut -d' ' -f1-3 /proc/loadavg)
  if ! lines=$("$@" 2> "$folder/log"); then
    say "$name failed: $(tail -n 1 "$folder/log")"
    lines="{\"who\": \"$name\", \"verb\": \"failed\"}"
  fi
  while IFS= read -r line; do
    printf '{"round": %d, "step": "%s", "load": "%s", "figures": %s}\n' "$round" "$name" "$load" "$line"
  done <<< "$lines" >> "$figures"
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p "$folder/redis"
redis-server --bind 127.0.0.1 --port "$port" --unixsocket "$folder/redis/socket" --dir "$folder/redis" \
  --save "" --appendonly no --daemonize no > "$folder/redis/log" 2>&1 &
redis_pid=$!
for _ in $(seq 100); do
  [ -S "$folder/redis/socket" ] && break
  sleep 0.1
done
[ -S "$folder/redis/socket" ] || fail "redis-server does not start; see $folder/redis/log"

fresh() {
  rm -rf "$folder/drive"
  mkdir "$folder/drive"
}

fio_steps() {
  fresh
  local common=(--name=peer --filename="$folder/drive/fio" --size="${mebibytes}M" --bs=4M --direct=1 --iodepth=4 --ioengine=io_uring --output-format=json)
  local written read
  written=$(fio "${common[@]}" --rw=write --fallocate=none --end_fsync=1)
  read=$(fio "${common[@]}" --rw=read)
  python3 - "$written" "$read" << 'PYTHON'
import json
import sys

written, read = (json.loads(text)["jobs"][0] for text in sys.argv[1:])
print(json.dumps({
    "who": "fio", "verb": "drive", "write_gigabytes_per_second": written["write"]["bw_bytes"] / 1e9,
    "read_gigabytes_per_second": read["read"]["bw_bytes"] / 1e9,
}))
PYTHON
}

step() {
  case $1 in
    kvasir)
      fresh
      record kvasir "$kvasir" bench store --rounds 1 --objects "$objects" --object-bytes "$bytes" \
        --drive-mebibytes "$mebibytes" --folder "$folder/drive" --json
      ;;
    redis-unix) record redis-unix "$peers" redis "$folder/redis/socket" "$redis_pid" "$objects" "$bytes" ;;
    redis-tcp) record redis-tcp "$peers" redis "127.0.0.1:$port" "$redis_pid" "$objects" "$bytes" ;;
    mooncake)
      if "$python" -c 'import mooncake.store' 2> /dev/null; then
        record mooncake "$python" "$here/mooncake_store.py" "$objects" "$bytes"
      fi
      ;;
    foyer | blobdb)
      fresh
      record "$1" "$peers" "$1" "$folder/drive" "$mebibytes" "$bytes"
      ;;
    fio) record fio fio_steps ;;
  esac
}

steps=(kvasir redis-unix mooncake redis-tcp fio foyer blobdb)
for round in $(seq "$rounds"); do
  order=("${steps[@]}")
  if [ $((round % 2)) = 0 ]; then
    order=()
    for ((at = ${#steps[@]} - 1; at >= 0; at--)); do order+=("${steps[at]}"); done
  fi
  for name in "${order[@]}"; do
    say "round $round: $name"
    step "$name"
  done
done
rm -rf "$folder/drive"

round=0
for count in $entries; do
  say "catalog of $count"
  rm -rf "$folder/catalog"
  record catalog-fill "$peers" catalog fill "$folder/catalog" "$count"
  for _ in 1 2 3; do
    # Out of the page cache: a start after the machine's own.
    sync
    for file in "$folder"/catalog/*; do dd if="$file" iflag=nocache count=0 status=none; done
    record catalog-read "$peers" catalog read "$folder/catalog" "$count"
  done
  rm -rf "$folder/catalog"
done

python3 "$here/table.py" "$figures"
if [ -n "$own_folder" ]; then say "what was measured is in $figures"; fi
