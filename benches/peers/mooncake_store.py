#!/usr/bin/env python3
"""Mooncake Store over TCP: a master, a process that lends its memory, and this one, which puts and gets.

mooncake_store.py OBJECTS BYTES prints one JSON line per verb, measured as `peers redis` does: single objects, then batches of 64,
once to warm up and once measured; the processor time is that of all three processes. Objects go from and into registered
buffers, so that Python copies nothing.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time

BATCH = 64
START_SECONDS = 20
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def open_store(master, segment_bytes, buffer_bytes):
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1", "P2PHANDSHAKE", segment_bytes, buffer_bytes, "tcp", "", master
    )
    if code != 0:
        sys.exit(f"mooncake: setup fails with {code}; see the master's log")
    return store


def lend(master, segment_bytes):
    """Lends memory until standard input ends."""
    store = open_store(master, segment_bytes, 16 << 20)
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


def ticks(process):
    with open(f"/proc/{process}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) * percent // 100, len(values) - 1)]


def wait_for_port(port):
    for _ in range(START_SECONDS * 20):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    sys.exit("mooncake: the master does not answer; see its log")


def measure(store, processes, count, size):
    source = ctypes.create_string_buffer(os.urandom(count * size), count * size)
    target = ctypes.create_string_buffer(count * size)
    source_at, target_at = ctypes.addressof(source), ctypes.addressof(target)
    for address in (source_at, target_at):
        if store.register_buffer(address, count * size) != 0:
            sys.exit("mooncake: a buffer cannot be registered")
    for turn in ("warm", "measured"):
        for verb in ("put", "get"):
            single = [f"{turn}-single-{at}" for at in range(count)]
            batched = [f"{turn}-batch-{at}" for at in range(count)]
            base, one, many, good = (
                (source_at, store.put_from, store.batch_put_from, 0)
                if verb == "put"
                else (target_at, store.get_into, store.batch_get_into, size)
            )
            places = [base + at * size for at in range(count)]
            microseconds = []
            for key, place in zip(single, places):
                start = time.perf_counter()
                code = one(key, place, size)
                microseconds.append((time.perf_counter() - start) * 1e6)
                if code != good:
                    sys.exit(f"mooncake: {verb} fails with {code}")
            cpu = sum(map(ticks, processes))
            start = time.perf_counter()
            for at in range(0, count, BATCH):
                keys, there = batched[at : at + BATCH], places[at : at + BATCH]
                codes = many(keys, there, [size] * len(keys))
                if any(code != good for code in codes):
                    sys.exit(f"mooncake: batch {verb} fails with {codes}")
            seconds = time.perf_counter() - start
            cpu = (sum(map(ticks, processes)) - cpu) / TICKS
            gigabytes = count * size / 1e9
            if turn == "measured":
                print(
                    json.dumps(
                        {
                            "who": "Mooncake Store, TCP",
                            "verb": verb,
                            "single_p50_us": percentile(microseconds, 50),
                            "single_p99_us": percentile(microseconds, 99),
                            "batch_objects_per_second": count / seconds,
                            "batch_gigabytes_per_second": gigabytes / seconds,
                            "batch_cpu_seconds_per_gigabyte": cpu / gigabytes,
                        }
                    )
                )
            if verb == "get" and source.raw != target.raw:
                sys.exit("mooncake: other bytes came back")


def main():
    if sys.argv[1] == "lend":
        lend(sys.argv[2], int(sys.argv[3]))
        return
    count, size = int(sys.argv[1]), int(sys.argv[2])
    # Four sets of objects, and room so that nothing is evicted.
    segment = (5 * count * size // (16 << 20) + 4) * (16 << 20)
    port = free_port()
    master = os.path.join(sysconfig.get_paths()["purelib"], "mooncake", "mooncake_master")
    log = tempfile.NamedTemporaryFile(prefix="mooncake-master-", suffix=".log", delete=False)
    # A wheel that was unpacked by hand lacks the bit.
    os.chmod(master, 0o755)
    serving = subprocess.Popen(
        [master, "--rpc_address=127.0.0.1", f"--rpc_port={port}", f"--metrics_port={free_port()}"],
        stdout=log,
        stderr=log,
    )
    try:
        wait_for_port(port)
        lending = subprocess.Popen(
            [sys.executable, __file__, "lend", f"127.0.0.1:{port}", str(segment)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            for line in lending.stdout:
                if line.strip() == "ready":
                    break
            else:
                sys.exit(f"mooncake: no memory was lent; see {log.name}")
            store = open_store(f"127.0.0.1:{port}", 0, 64 << 20)
            measure(store, [serving.pid, lending.pid, os.getpid()], count, size)
            store.close()
        finally:
            lending.kill()
            lending.wait()
    finally:
        serving.kill()
        serving.wait()
    os.unlink(log.name)


main()
