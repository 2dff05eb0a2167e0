#!/usr/bin/env python3
"""Runs the matrix of misuses, or random faults, and counts how they end.

caught    Folio's line, with an anchor that fits, and an abort
clean     nothing was said and nothing went wrong: no two objects overlap, each keeps its contents
corrupt   anything else

    check_matrix.py --program MATRIX [--state fresh|warm] --corrupt-most N [--caught-least N] [--errors warn]
    check_matrix.py --program RANDOM_FAULT --faults 200 --corrupt-most N

With errors:warn a run that goes on is caught where a line came and the heap is right.
"""

import argparse
import collections
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

LINE = re.compile(
    r"folio: [a-zA-Z_ ]+\(0x[0-9a-f]+\): .* "
    r"\(see docs/errors\.md#(double-free|invalid-free|foreign-pointer|wrong-size|damaged-descriptor)\)"
)
CLEAN, DOES_NOT_APPLY = 0, 77
SIZES = (8, 16, 24, 48, 100, 200, 512, 1000, 3000, 4096, 16000, 32000, 40000, 1 << 20, 9 << 20)
BETWEEN = (0, 1, 2, 7, 64, 1000)
PATTERNS = (
    *(f"twice:{n}" for n in BETWEEN),
    *(f"twice_around_mallocs:{n}" for n in (1, 7, 64)),
    *(f"{name}:{n}" for name in ("twice_first_elsewhere", "twice_then_elsewhere") for n in (0, 1, 64, 1000)),
    *(f"twice_both_elsewhere:{n}" for n in (0, 7, 64)),
    *(f"twice_of_ended_threads:{n}" for n in (1, 64)),
    *(f"twice_then_thread_ends:{n}" for n in (1, 7)),
    *(f"twice_then_exit:{n}" for n in (1, 7)),
    *(f"inside:{n}" for n in (1, 2, 4, 8, 16)),
    "inside_half",
    "inside_end",
    "inside_then_others:20",
    *(f"before:{n}" for n in (8, 16, 0)),
    *(f"chunk_end:{n}" for n in (8, 64)),
    *(f"chunk_start:{n}" for n in (0, 64)),
    *(f"neighbour:{n}" for n in (1, 2, 30)),
    *(f"realloc_of_freed:{n}" for n in (0, 1, 64)),
    *(f"realloc_inside:{n}" for n in (1, 16)),
    "sized_too_large",
    "sized_too_small",
    *(f"sized_twice:{n}" for n in (1, 64)),
)


def outcome(command: list[str], options: str) -> str:
    """How one run ends."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FOLIO_", "MALLOC_"))}
    environment["FOLIO_OPTIONS"] = options
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return "corrupt"
    lines = done.stderr.splitlines()
    reported = bool(lines) and all(LINE.fullmatch(line) for line in lines)
    if done.returncode == DOES_NOT_APPLY and not lines:
        return "does not apply"
    if done.returncode == -signal.SIGABRT and reported and len(lines) == 1:
        return "caught"
    if done.returncode == CLEAN and (reported or not lines):
        return "caught" if reported else "clean"
    return "corrupt"


def matrix(program: Path, state: str, sizes: list[int]) -> dict[str, list[str]]:
    """The runs of the matrix, by pattern."""
    return {pattern: [f"{program} {pattern} {size} {state}" for size in sizes] for pattern in PATTERNS}


def main() -> int:
    """Runs everything, prints a table, compares with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--state", choices=("fresh", "warm"), default="fresh")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--faults", type=int, help="the program takes a seed; so many")
    parser.add_argument("--errors", choices=("abort", "warn"), default="abort")
    parser.add_argument("--corrupt-most", type=int, default=0)
    parser.add_argument("--caught-least", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.faults:
        rows = {"random faults": [f"{arguments.program} {seed}" for seed in range(arguments.faults)]}
    else:
        rows = matrix(arguments.program, arguments.state, arguments.sizes)
    options = f"errors:{arguments.errors}"
    total: collections.Counter[str] = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for name, commands in rows.items():
            ends = list(pool.map(lambda command: outcome(command.split(), options), commands))
            count = collections.Counter(ends)
            total += count
            wrong = [command.split(" ", 1)[1] for command, end in zip(commands, ends, strict=True) if end == "corrupt"]
            print(f"{name:28} caught {count['caught']:3} clean {count['clean']:3} corrupt {count['corrupt']:3}", *wrong)
    print(f"{'all':28} caught {total['caught']:3} clean {total['clean']:3} corrupt {total['corrupt']:3}")
    return total["corrupt"] > arguments.corrupt_most or total["caught"] < arguments.caught_least


if __name__ == "__main__":
    sys.exit(main())
