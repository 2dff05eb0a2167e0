"""Runs every scenario of the explorer as deep as time allows, and writes what was reached to reached.tsv beside it, and
in sum to docs/CONCURRENCY.md.

    explore.py [--minutes N] [--seconds N] [--below N] [--build DIR]

Without --minutes each scenario gets --seconds of processor time (600), or less where it is complete to its last bound,
and the file is written. With it the scenarios share so many minutes, and nothing is written; but the file must name
the scenarios that there are. With --below only those run that it shows complete to fewer preemptions, and their rows
are written anew where they got as far. Exits with 1 if a scenario fails, or the file names others.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
REACHED = Path(__file__).with_name("reached.tsv")
DOCUMENT = PROJECT / "docs/CONCURRENCY.md"
BEGIN, END = "<!-- make explore: begin -->\n", "<!-- make explore: end -->\n"


@dataclass
class Result:
    test: str
    what: str
    threads: int
    points: int
    complete: int
    stale: int
    executions: int


def programs(build: Path) -> list[Path]:
    found = sorted((build / "tests").glob("stress_explorer_*_explore_test"))
    return [program for program in found if "self_explore" not in program.name]


def tests_of(program: Path) -> list[str]:
    listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
    suite, tests = "", []
    for line in listed.splitlines():
        if line.startswith("  "):
            tests.append(suite + line.split()[0])
        elif line.endswith("."):
            suite = line
    return tests


def run(program: Path, test: str, seconds: float) -> tuple[list[Result], str]:
    """What a test reached, and its output if it failed."""
    with tempfile.NamedTemporaryFile("r") as results:
        environment = {**os.environ, "FOLIO_EXPLORE_SECONDS": str(seconds), "FOLIO_EXPLORE_RESULTS": results.name}
        done = subprocess.run(
            [program, f"--gtest_filter={test}"], env=environment, capture_output=True, text=True, check=False
        )
        rows = [line.rstrip("\n").split("\t") for line in results]
    found = [Result(row[0], row[1], *(int(n) for n in row[2:])) for row in rows]
    return found, done.stdout + done.stderr if done.returncode != 0 else ""


HEAD = ["scenario", "threads", "points", "preemptions", "stale reads", "executions"]


def summary(results: list[Result]) -> str:
    """How many scenarios are complete to how many preemptions; "none": not even those without any."""
    bounds = sorted({r.complete for r in results})
    counts = [str(sum(r.complete == bound for r in results)) for bound in bounds]
    names = ["none" if bound < 0 else str(bound) for bound in bounds]
    lines = [["preemptions, complete", *names], ["---"] * (len(bounds) + 1), ["scenarios", *counts]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(results: list[Result]) -> None:
    with REACHED.open("w") as file:
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(HEAD)
        rows.writerows([r.what, r.threads, r.points, r.complete, r.stale, r.executions] for r in results)
    before, rest = DOCUMENT.read_text().split(BEGIN)
    DOCUMENT.write_text(before + BEGIN + "\n" + summary(results) + "\n" + END + rest.split(END)[1])


def recorded() -> dict[str, Result]:
    if not REACHED.exists():
        return {}
    with REACHED.open() as file:
        rows = list(csv.reader(file, delimiter="\t"))[1:]
    return {what: Result("", what, *map(int, numbers)) for what, *numbers in rows}


def tests_below(tests: list[tuple[Path, str]], below: int, jobs: int) -> list[tuple[Path, str]]:
    """Those with a scenario that the file shows complete to fewer preemptions."""
    known = recorded()
    with ThreadPoolExecutor(jobs) as pool:
        scenarios = [found for found, _ in pool.map(lambda t: run(*t, 0.1), tests)]
    few = [any(r.what not in known or known[r.what].complete < below for r in found) for found in scenarios]
    return [test for test, is_few in zip(tests, few, strict=True) if is_few]


def merged(results: list[Result]) -> list[Result]:
    """The file's rows, in their order, each replaced where a new one got as far."""
    rows = recorded()
    for r in results:
        if r.what not in rows or r.complete >= rows[r.what].complete:
            rows[r.what] = r
    return list(rows.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--below", type=int, metavar="PREEMPTIONS")
    parser.add_argument("--build", type=Path, default=PROJECT / "build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    tests = [(program, test) for program in programs(arguments.build) for test in tests_of(program)]
    if arguments.below:
        tests = tests_below(tests, arguments.below, arguments.jobs)
    # A test has two scenarios or so.
    seconds = arguments.minutes * 60 * arguments.jobs / len(tests) / 2 if arguments.minutes else arguments.seconds
    results: list[Result] = []
    failures: list[str] = []
    start = time.monotonic()
    with ThreadPoolExecutor(arguments.jobs) as pool:
        done = pool.map(lambda t: run(*t, seconds), tests)
        for number, ((_, test), (found, failure)) in enumerate(zip(tests, done, strict=True), 1):
            results += found
            passed = time.monotonic() - start
            print(f"{number:3}/{len(tests)} {passed:6.0f} s  {test}{'  FAILED' if failure else ''}", flush=True)
            for r in found:
                print(f"      {r.what:60} complete to {r.complete} preemptions, {r.executions} executions", flush=True)
            if failure:
                failures.append(failure)
    for failure in failures:
        print(failure)
    if arguments.below:
        results = merged(results)
    if not failures and not arguments.minutes:
        write(results)
        print(f"\nwritten to {REACHED.relative_to(PROJECT)}: {len(results)} scenarios")
    names = {r.what for r in results}
    known = recorded().keys()  # empty if it was not made yet
    odd = known ^ names if not failures and known else set()
    for name in sorted(odd):
        what = "lacks" if name in names else "names no scenario of today"
        print(f"{REACHED.relative_to(PROJECT)}: {what}: {name}")
    at_least_two = sum(r.complete >= 2 for r in results)
    print(f"{at_least_two} of {len(results)} scenarios complete to two preemptions")
    if failures:
        print('Next: FOLIO_SCHEDULE="..." build/tests/stress_explorer_NAME_explore_test --gtest_filter=TEST (above)')
    elif odd:
        print("Next: make explore (writes that file anew)")
    else:
        print("Next: make mutate (is every memory order needed?)")
    return 1 if failures or odd else 0


if __name__ == "__main__":
    sys.exit(main())
