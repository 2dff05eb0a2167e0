#!/usr/bin/env python3
"""Counts what a program does to caches and TLBs on Folio, on its peers and on the limits, by simulation: repeatable.

Cachegrind simulates one core: a first-level data cache of 48 KiB and a second level of 2 MiB, and, in a second run with
lines of a page, a TLB of 64 entries and one of 2048, 4-way and 8-way, pages of 4 KiB. All of the program is counted,
its own work too; that is the same on each allocator. Threads would take turns on that one core, so programs of one
thread are simulated. What the kernel does is not: page faults are those of an ordinary run.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import (
    Allocator,
    BenchError,
    add_places,
    build_ideals,
    build_launcher,
    build_program,
    end_with,
    find_peers,
    launch,
    make_folder,
    prove_loaded,
)

CASES = {
    "tight loop, batches of 200": "tight_loop batch=200 pairs=1000000",
    "random lifetimes": "random_lifetimes threads=1 ops=1000000",
    "random lifetimes to 200 KB": "random_lifetimes threads=1 ops=100000 slots=300 max=200000",
    "group cycles": "group_cycles ops=1000000",
    "factor": "factor p=1000000000039 q=2000000000003",
    "order 100,000, 64 B": "order objects=100000 size=64 turns=3",
    "order after a long life": "order objects=100000 replaced=1000000 threads=1",
    "fragmentation": "fragmentation bytes=32m rest=0",
    "key-value store 64 MiB": "key_value bytes=64m operations=1000000",
    "realloc growth": "realloc_growth elements=4000000 vectors=64",
    "large buffers": "large_buffers ops=200",
}
LINES = ("--D1=49152,12,64", "--LL=2097152,16,64")
PAGES = ("--D1=262144,4,4096", "--LL=8388608,8,4096")
HEADS = ("instructions", "L1 misses", "L2 misses", "TLB misses", "second-level TLB misses", "page faults")


@dataclass(frozen=True)
class Misses:
    instructions: int
    first: int
    second: int


def parse_cachegrind(text: str) -> Misses:
    """From what cachegrind prints at the end: instructions, and misses of data in both levels."""

    def total(label: str) -> int:
        match = re.search(rf"{label}:\s+([\d,]+)", text)
        if match is None:
            raise BenchError(f"cachegrind printed no {label!r}")
        return int(match[1].replace(",", ""))

    return Misses(total(r"I\s+refs"), total(r"D1\s+misses"), total(r"LLd\s+misses"))


def simulate(launcher: Path, command: list[str], allocator: Allocator, shape: tuple[str, ...]) -> Misses:
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null", *shape]
    run = launch(launcher, allocator, [*valgrind, *command], environment={"LD_BIND_NOW": "1"}, timeout=600)
    if run.status != 0:
        last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BenchError(f"exit status {run.status} {' '.join(last)}")
    return parse_cachegrind(run.stderr.decode(errors="replace"))


def row(launcher: Path, command: list[str], allocator: Allocator) -> list[int]:
    plain = launch(launcher, allocator, command, timeout=600)
    if plain.status != 0:
        raise BenchError(f"exit status {plain.status} {plain.stderr.decode(errors='replace').strip()[:80]}")
    lines, pages = (simulate(launcher, command, allocator, shape) for shape in (LINES, PAGES))
    return [lines.instructions, lines.first, lines.second, pages.first, pages.second, plain.usage["minor_faults"]]


def table(rows: dict[str, list[int]], base: str) -> list[str]:
    """Absolute figures of `base` in thousands, the others' as multiples of them."""
    lines = [f"| | {' | '.join(HEADS)} |", f"| --- |{' --- |' * len(HEADS)}"]
    for name, figures in rows.items():
        if name == base or base not in rows:
            cells = [f"{figure / 1000:,.1f} k" for figure in figures]
        else:
            cells = [f"{figure / of:.2f}" if of else "–" for figure, of in zip(figures, rows[base], strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose name or program has WORD")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="only these")
    add_places(parser)
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise BenchError("no valgrind: apt-get install valgrind")
    if not arguments.lib.is_file():
        raise BenchError(f"no {arguments.lib}: make build")
    make_folder(arguments.build)
    launcher = build_launcher(arguments.build)
    peers = [peer for peer in find_peers()[0] if arguments.peers is None or peer.name in arguments.peers]
    allocators = [Allocator("folio", arguments.lib.resolve()), *peers, *build_ideals(arguments.build)]
    for allocator in allocators:
        prove_loaded(launcher, allocator)
    wanted = [c for c in CASES if arguments.only is None or any(word in c + " " + CASES[c] for word in arguments.only)]
    if not wanted:
        raise BenchError(f"no such case; there are: {', '.join(CASES)}")
    for case in wanted:
        program, *words = CASES[case].split()
        command = [str(build_program(program, arguments.build)), *words]
        rows = {}
        for allocator in allocators:
            if sys.stderr.isatty():
                print(f"\r\033[K{case}: {allocator.name}", end="", file=sys.stderr, flush=True)
            try:
                rows[allocator.name] = row(launcher, command, allocator)
            except BenchError as error:  # some peers do not run under valgrind, and a bump that never frees runs out
                print(f"left out: {case} on {allocator.name}: {error}", file=sys.stderr)
        print(f"\n{case} (`{CASES[case]}`): thousands on Folio, the others' by those\n")
        print("\n".join(table(rows, "folio")), flush=True)
    print("\nnext: bench/run.py --ideals  (the same programs, timed)")
    return 0


if __name__ == "__main__":
    end_with(main, "bench/simulate.py")
