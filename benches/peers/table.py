#!/usr/bin/env python3
"""The report of store.sh: medians over the rounds, and each target's figure from ratios within a round."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections import defaultdict


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def median(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def show(value, digits=2):
    return "–" if value is None else f"{value:,.{digits}f}"


def row(*cells):
    print("| " + " | ".join(cells) + " |")


def head(*cells):
    row(*cells)
    row(*("---" for _ in cells))


def first(command):
    return output(*command).splitlines()[0]


class Figures:
    """Values by place and round."""

    def __init__(self, lines):
        self.values = defaultdict(dict)
        self.loads = []
        self.failed = []
        self.catalog = defaultdict(lambda: defaultdict(list))
        for line in lines:
            number, figures = line["round"], line["figures"]
            self.loads.append(float(line["load"].split()[0]))
            if figures.get("verb") == "failed":
                self.failed.append(f"{line['step']} in round {number}")
            elif line["step"] == "kvasir":
                self.ours(number, figures)
            elif line["step"].startswith("catalog"):
                for name, value in figures.items():
                    self.catalog[figures["entries"]][name].append(value)
            else:
                for name, value in figures.items():
                    self.values[(figures["who"], figures["verb"], name)][number] = value

    def ours(self, number, report):
        names = {"memcpy": "memcpy", "tcp": "raw TCP", "quic": "Kvasir, QUIC", "store": "Kvasir"}
        names["shared_memory"] = "Kvasir, shared memory"
        for way in report["loopback"]:
            for name, value in way.items():
                self.values[(names[way["way"]], way["verb"], name)][number] = value
        for name, value in report["drive"].items():
            if isinstance(value, dict):
                for inner, inner_value in value.items():
                    self.values[("Kvasir", name, inner)][number] = inner_value
            else:
                self.values[("Kvasir", "drive", name)][number] = value

    def of(self, *place):
        return median(self.values[place].values())

    def ratio(self, over, under):
        """The median of the ratios within each round."""
        over, under = self.values[over], self.values[under]
        return median([over[at] / under[at] for at in over if under.get(at)])


LOOPBACK = ["memcpy", "raw TCP", "Kvasir, QUIC", "Kvasir, shared memory"]
LOOPBACK += ["Redis, unix socket", "Redis, TCP", "Mooncake Store, TCP"]


def loopback(figures):
    print("\n## Over loopback\n")
    single = ("single_p50_us", "single_p99_us")
    batch = ("batch_objects_per_second", "batch_gigabytes_per_second", "batch_cpu_seconds_per_gigabyte")
    head("verb", "who", "single p50 µs", "p99 µs", "batches of 64, objects/s", "GB/s", "CPU s/GB")
    for verb in ("copy", "get", "put", "lookup"):
        for who in LOOPBACK + ["Kvasir"]:
            if not figures.values[(who, verb, single[0])]:
                continue
            cells = [show(figures.of(who, verb, name), 0) for name in single + batch[:1]]
            cells += [show(figures.of(who, verb, name)) for name in batch[1:]]
            row(verb, who, *cells)


def drive(figures):
    print("\n## On the drive\n")
    head("who", "put GB/s", "write amplification", "run of 256 GB/s", "restore of 61 ms", "CPU s/GB of puts")
    of = figures.of
    row(
        "fio, 4 MiB, depth 4",
        show(of("fio", "drive", "write_gigabytes_per_second")),
        "–",
        show(of("fio", "drive", "read_gigabytes_per_second")) + " (any bytes)",
        "–",
        "–",
    )
    row(
        "plain file in `kvasir bench store`",
        show(of("Kvasir", "drive", "direct_write_gigabytes_per_second")),
        "–",
        show(of("Kvasir", "drive", "direct_read_gigabytes_per_second")) + " (any bytes)",
        "–",
        "–",
    )
    run, restore = show(of("Kvasir", "run", "gigabytes_per_second")), show(of("Kvasir", "restore", "disk_ms"))
    for name, label in (("put", "Kvasir, offer until synced"), ("write_behind", "Kvasir, memory until synced")):
        amplification = show(of("Kvasir", name, "write_amplification"), 3)
        device = show(of("Kvasir", name, "device_write_amplification"), 3)
        row(
            label,
            show(of("Kvasir", name, "gigabytes_per_second")),
            f"{amplification} (device {device})",
            *((run, restore) if name == "put" else ("–", "–")),
            show(of("Kvasir", name, "cpu_seconds_per_gigabyte")),
        )
    for who in ("foyer", "RocksDB BlobDB"):
        row(
            who,
            show(of(who, "drive", "put_gigabytes_per_second")),
            show(of(who, "drive", "write_amplification"), 3),
            show(of(who, "drive", "run_gigabytes_per_second")),
            show(of(who, "drive", "restore_ms")),
            show(of(who, "drive", "put_cpu_seconds_per_gigabyte")),
        )
    print(
        f"\nKvasir restores 61 blocks from host memory in {show(of('Kvasir', 'restore', 'host_ms'))} ms; "
        f"memcpy takes {show(of('Kvasir', 'restore', 'copy_ms'))} ms. "
        f"Bytes fetched from the device per byte of a run: {show(of('Kvasir', 'run', 'fetched_of_payload'))}."
    )


def targets(figures):
    print("\n## Targets, as medians of the rounds' ratios\n")
    head("target", "wanted", "found", "reached")
    fio = ("fio", "drive", "write_gigabytes_per_second"), ("fio", "drive", "read_gigabytes_per_second")
    mooncake, ours, gbs = "Mooncake Store, TCP", "Kvasir, QUIC", "batch_gigabytes_per_second"
    restore = figures.values[("Kvasir", "restore", "disk_ms")]
    seconds = {
        number: ms / 1e3 * figures.values[fio[1]][number] * 1e9 / (61 * OBJECT_BYTES)
        for number, ms in restore.items()
        if figures.values[fio[1]].get(number)
    }
    shared, redis = ("Kvasir, shared memory", "get", "single_p50_us"), ("Redis, unix socket", "get", "single_p50_us")
    cases = [
        ("QUIC get in batches, of Mooncake's", "> 1", figures.ratio((ours, "get", gbs), (mooncake, "get", gbs)), lambda f: 1 < f),
        ("QUIC put in batches, of Mooncake's", "> 1", figures.ratio((ours, "put", gbs), (mooncake, "put", gbs)), lambda f: 1 < f),
        ("shared-memory single get p50, of Redis's", "< 1", figures.ratio(shared, redis), lambda f: f < 1),
        ("put, of fio's write", "≥ 0.8", figures.ratio(("Kvasir", "put", "gigabytes_per_second"), fio[0]), lambda f: 0.8 <= f),
        ("memory until synced, of fio's write", "(≥ 0.8)", figures.ratio(("Kvasir", "write_behind", "gigabytes_per_second"), fio[0]), lambda f: 0.8 <= f),
        ("write amplification of puts", "≤ 1.05", figures.of("Kvasir", "put", "write_amplification"), lambda f: f <= 1.05),
        ("run of 256 blocks, of fio's read", "≥ 0.8", figures.ratio(("Kvasir", "run", "gigabytes_per_second"), fio[1]), lambda f: 0.8 <= f),
        ("restore of 61 from disk, of bytes / fio's read", "≤ 1.5", median(seconds.values()), lambda f: f <= 1.5),
        ("restore of 61 from host memory, of memcpy", "≤ 2", figures.of("Kvasir", "restore", "host_of_copy"), lambda f: f <= 2),
    ]
    for name, wanted, found, reached in cases:
        verdict = "–" if found is None else "yes" if reached(found) else "no"
        row(name, wanted, show(found, 3), verdict)


def catalog(figures):
    if not figures.catalog:
        return
    print("\n## The catalog, synthetic entries\n")
    head(
        "entries", "filled, entries/s", "open and plan ms", "memory after opening MiB", "memory after lookups MiB",
        "bytes of memory per entry", "bytes on the drive per entry", "hit p50 / p99 µs", "miss p50 / p99 µs",
    )
    for entries, values in sorted(figures.catalog.items()):
        of = lambda name: median(values[name])
        row(
            f"{entries:,}",
            show(of("entries_per_second"), 0),
            show(of("open_and_plan_ms"), 0),
            show(of("opened_memory_mib"), 1),
            show(of("memory_mib"), 1),
            show(of("memory_bytes_per_entry"), 1),
            show(of("disk_bytes_per_entry"), 1),
            f"{show(of('hit_p50_us'), 1)} / {show(of('hit_p99_us'), 0)}",
            f"{show(of('miss_p50_us'), 1)} / {show(of('miss_p99_us'), 0)}",
        )


OBJECT_BYTES = 113_920


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        figures = Figures([json.loads(line) for line in file])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    head("line", "content")
    row("machine", f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.platform()}")
    row("date, commit", f"{output('date', '-u', '+%Y-%m-%d %H:%M UTC')}, {output('git', 'rev-parse', '--short', 'HEAD')}")
    versions = [first(("redis-server", "--version")), first(("fio", "--version")), "foyer 0.22.6, rocksdb 0.25.0"]
    row("versions", "; ".join(versions + ["mooncake-transfer-engine-non-cuda 0.3.13.post1"]))
    rounds = len(figures.values[("Kvasir", "put", "gigabytes_per_second")])
    row("repetitions", f"{rounds} rounds, order reversed every second round; medians")
    row("load average", f"{min(figures.loads):.1f} to {max(figures.loads):.1f} over one minute, before each step")
    row("failed", ", ".join(figures.failed) or "nothing")
    targets(figures)
    loopback(figures)
    drive(figures)
    catalog(figures)


main()
