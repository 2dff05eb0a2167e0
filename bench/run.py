#!/usr/bin/env python3
"""Runs the benchmark programs on Folio and on its peers, in turn, and prints a table of medians.

Rounds are interleaved and each begins with another allocator, so that a machine that slows down or warms up does so
for all. A figure counts only if the program says that its malloc came from the library under test.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import CASES, Case, select
from measure import (
    ROOT,
    Allocator,
    BenchError,
    build_launcher,
    build_program,
    find_peers,
    launch,
    prove_loaded,
    serves,
)
from report import OWN, Sample, startup_difference, table

TIMEOUT_SECONDS = 300
BUSY_SHARE = 0.5  # of the CPUs: a load above it at the start is worth a warning


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name or program has WORD")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds (default 5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="small parameters: checks that all runs, measures little")
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME[=FILE]",
        help="only these peers: glibc, jemalloc, mimalloc, tcmalloc, or NAME=FILE for a library of yours",
    )
    parser.add_argument("--lib", type=Path, default=ROOT / "build" / "libfolio.so", help="Folio's library")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "bench", help="where programs are built")
    parser.add_argument("--list", action="store_true", help="list the cases")
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 5
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    return arguments


def choose_peers(names: list[str] | None) -> list[Allocator]:
    installed, missing = find_peers()
    if names is None:
        if missing:
            say(f"not installed, so not measured: {' '.join(missing)}  (apt-get install {' '.join(missing)})")
        return installed
    by_name = {peer.name: peer for peer in installed}
    chosen = []
    for name in names:
        label, equals, file_name = name.partition("=")
        if equals:
            chosen.append(Allocator(label, Path(file_name).resolve()))
        elif name in by_name:
            chosen.append(by_name[name])
        else:
            raise BenchError(f'no peer "{name}" here; there are: {", ".join(by_name)}, or NAME=FILE')
    return chosen


def choose_allocators(arguments: argparse.Namespace, launcher: Path) -> list[Allocator]:
    """Folio and the peers that a process really gets when it asks for them."""
    wanted = choose_peers(arguments.peers)
    if arguments.lib.is_file():
        wanted.insert(0, Allocator(OWN, arguments.lib.resolve()))
    else:
        say(f"no {arguments.lib}: peers only  (make build)")
    proven = []
    for allocator in wanted:
        try:
            prove_loaded(launcher, allocator)
            proven.append(allocator)
        except BenchError as error:
            say(f"left out: {error}")
    return proven


def read_result(stdout: bytes) -> dict:
    """The last line of a benchmark program's output."""
    lines = stdout.decode(errors="replace").strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        raise BenchError("no result line") from None
    if not isinstance(result, dict):
        raise BenchError("no result line")
    return result


def measure_once(launcher: Path, program: Path, case: Case, allocator: Allocator, quick: bool) -> tuple[dict, str]:
    """The figures of one run, and why they do not count ("" if they do)."""
    try:
        run = launch(launcher, allocator, [str(program), *case.command_arguments(quick)], timeout=TIMEOUT_SECONDS)
        if run.status != 0:
            last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
            say(f"    {case.name} on {allocator.name}: exit status {run.status} {' '.join(last)}")
            return run.usage, f"failed ({run.status})"
        if Path(case.program).is_absolute():
            return run.usage, ""
        values = {**run.usage, **read_result(run.stdout)}
    except BenchError as error:
        say(f"    {case.name} on {allocator.name}: {error}")
        return {}, "failed"
    if not serves(allocator, values.get("malloc", "")):
        say(f"    {case.name} on {allocator.name}: its malloc came from {values.get('malloc')!r}")
        return values, "not loaded"
    if values.get("gave_up"):
        return values, f"over {values['rss_peak_bytes'] / 2**30:.0f} GiB"
    return values, ""


def measure(launcher: Path, program: Path, case: Case, allocator: Allocator, quick: bool) -> tuple[dict, str]:
    """Of a case with several runs a round, the median of each figure."""
    runs = []
    for _ in range(case.repeat):
        values, problem = measure_once(launcher, program, case, allocator, quick)
        if problem:
            return values, problem
        runs.append(values)
    if case.repeat == 1:
        return runs[0], ""
    return {key: statistics.median(r[key] for r in runs) for key in runs[0]}, ""


def run_rounds(arguments: argparse.Namespace, launcher: Path, cases: list[Case], allocators: list[Allocator]):
    """Yields a sample for each round, case and allocator. What failed or gave up once is not tried again."""
    programs = {}
    for case in cases:
        path = Path(case.program)
        programs[case.program] = path if path.is_absolute() else build_program(case.program, arguments.build)
    hopeless = set()
    begin = time.monotonic()
    for round_number in range(arguments.rounds):
        if round_number == 1:
            say(f"a round takes {(time.monotonic() - begin) / 60:.1f} minutes")
        first = round_number % len(allocators)
        for case in cases:
            for allocator in allocators[first:] + allocators[:first]:
                if (case.name, allocator.name) in hopeless:
                    continue
                say(f"[{round_number + 1}/{arguments.rounds}] {case.name}: {allocator.name}")
                values, problem = measure(launcher, programs[case.program], case, allocator, arguments.quick)
                if problem:
                    hopeless.add((case.name, allocator.name))
                yield Sample(case.name, allocator.name, round_number, values, problem)


def next_command(arguments: argparse.Namespace, allocators: list[Allocator]) -> str:
    if all(a.name != OWN for a in allocators):
        return "next: make build bench"
    if arguments.quick:
        return "next: bench/run.py --rounds 5  (this was --quick: not for comparing)"
    return "next: bench/instructions.py  (instructions of one malloc and free)"


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        for case in CASES:
            print(f"{case.name:32} {' '.join([case.program, *case.arguments])}")
        return 0
    cases = select(arguments.only)
    if not cases:
        raise BenchError(f"no case has {' or '.join(arguments.only)} in its name; bench/run.py --list shows them")
    arguments.build.mkdir(parents=True, exist_ok=True)
    launcher = build_launcher(arguments.build)
    allocators = choose_allocators(arguments, launcher)
    if not allocators:
        raise BenchError("no allocator to measure")
    begin, samples, rounds = time.monotonic(), [], str(arguments.rounds)
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        say(f"warning: other work is running (load {load:.1f}, {cpus} CPUs): expect wide spreads")
    results_path = arguments.build / "results.jsonl"
    with results_path.open("w") as results:
        try:
            for sample in run_rounds(arguments, launcher, cases, allocators):
                samples.append(sample)
                results.write(json.dumps(asdict(sample)) + "\n")
                results.flush()
        except KeyboardInterrupt:
            rounds = f"up to {rounds}"
            say("interrupted: the table has what is complete")
    say(f"{len(samples)} samples in {time.monotonic() - begin:.0f} s; each is a line of {results_path}")
    print(f"Medians of {rounds} interleaved rounds (lowest–highest). Last column: above 1, Folio leads.")
    if any(case.program == "pauses" for case in cases):
        print("longest: without calls near which the kernel took the CPU away; longest*: with them.")
    print()
    print(table(samples, cases, [a.name for a in allocators]))
    for case in cases:
        if case.name == "startup" and (line := startup_difference(samples, case)):
            print("\n" + line)
    print("\n" + next_command(arguments, allocators))
    return 1 if any(s.problem and s.allocator == OWN for s in samples) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        say(f"bench/run.py: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
