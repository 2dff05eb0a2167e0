"""Weakens each memory order of src by one step, and each compare_exchange to a store: some explore test must fail.

    mutate.py [--minutes N] [--only FILE[:LINE]] [--build DIR]

The explorer does it while it runs (FOLIO_MUTATE=file:line:kind=order), so nothing is built again. Of each operation the
tests are run that come by it. An order that no test needs is either not needed, or cannot be seen by the explorer: then
a comment near it says `unseen: why`. Exits with 1 if an order survives without such a comment, or if an operation with
an order is in no scenario.

--minutes N: mutations of chance, until the time is over. It only reports what survives, and exits with 1 if nothing at
all was caught: which mutations come up, and how deep a scenario gets in its seconds, is chance.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(PROJECT / "tests/house"))
import house  # noqa: E402

CALL = re.compile(r"\b(load|store|exchange|compare_exchange|fetch_\w+)\(")
ORDER = re.compile(r"\border::(relaxed|acquire|release|acq_rel|seq_cst)\b")
UNSEEN = re.compile(r"\bunseen: ")
NEAR = 3
SCENARIO_SECONDS = (3, 12)  # for each scenario; what survives the first is tried again with the second
TEST_SECONDS = 40  # times those

WEAKER = {
    ("load", "seq_cst"): ["acquire"],
    ("load", "acquire"): ["relaxed"],
    ("store", "seq_cst"): ["release"],
    ("store", "release"): ["relaxed"],
    ("rmw", "seq_cst"): ["acq_rel"],
    ("rmw", "acq_rel"): ["acquire", "release"],
    ("rmw", "acquire"): ["relaxed"],
    ("rmw", "release"): ["relaxed"],
    ("cas", "seq_cst"): ["acq_rel", "plain"],
    ("cas", "acq_rel"): ["acquire", "release", "plain"],
    ("cas", "acquire"): ["relaxed", "plain"],
    ("cas", "release"): ["relaxed", "plain"],
    ("cas", "relaxed"): ["plain"],
}


@dataclass
class Site:
    path: Path
    line: int
    kind: str
    order: str
    unseen: bool  # a comment says so
    tests: list[tuple[Path, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.path.relative_to('src')}:{self.line}:{self.kind}"


@dataclass
class Mutant:
    site: Site
    order: str

    @property
    def name(self) -> str:
        return f"{self.site.name}={self.order}"


def kind_of(call: str) -> str:
    return {"load": "load", "store": "store", "compare_exchange": "cas"}.get(call, "rmw")


def sites_of(path: Path) -> list[Site]:
    """The operations of a file: each order, with the last call before it that could be its own."""
    code, comments = house.split((PROJECT / path).read_text())
    found = []
    for number, line in enumerate(code, 1):
        for order in ORDER.finditer(line):
            before = "\n".join([*code[max(0, number - 1 - NEAR) : number - 1], line[: order.start()]])
            calls = [c for c in CALL.finditer(before) if before.count("(", c.end()) >= before.count(")", c.end())]
            if not calls:
                continue
            call = calls[-1]
            start = number - before.count("\n", call.end())
            near = "\n".join(comments[max(0, start - 1 - NEAR) : number])
            found.append(Site(path, start, kind_of(call[1]), order[1], bool(UNSEEN.search(near))))
    return found


def programs(build: Path) -> list[Path]:
    return sorted((build / "tests").glob("stress_explorer_*_explore_test"))


def come_by(program: Path) -> tuple[dict[str, float], list[str]]:
    """A program's tests that succeed, in seconds, and which of them comes by which operation."""
    # Those in which a thread vanishes take long, and have no stale reads.
    with tempfile.NamedTemporaryFile("r") as log:
        environment = {**os.environ, "FOLIO_EXPLORE_SITES": log.name, "FOLIO_EXPLORE_SECONDS": "0.1"}
        command = [program, "--gtest_filter=-*Vanish*:*vanish*"]
        listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
        found = re.findall(r"\[ +OK \] (\S+) \((\d+) ms\)", listed)
        return {name: int(milliseconds) / 1000 for name, milliseconds in found}, log.read().splitlines()


def find_tests(build: Path, sites: list[Site], jobs: int) -> None:
    """Which tests come by which operation, the quickest first."""
    by_name: dict[str, list[Site]] = defaultdict(list)
    for site in sites:
        by_name[site.name].append(site)
    seconds: dict[tuple[Path, str], float] = {}
    wanted = [program for program in programs(build) if "self_explore" not in program.name]
    with ThreadPoolExecutor(jobs) as pool:
        for program, (took, lines) in zip(wanted, pool.map(come_by, wanted), strict=True):
            seconds |= {(program, name): each for name, each in took.items()}
            for line in lines:
                test, _, place = line.partition(" ")
                # Not one that fails as it is: it would catch everything.
                for site in by_name.get(place.partition("/src/")[2], []):
                    if test in took and (program, test) not in site.tests:
                        site.tests.append((program, test))
    for site in sites:
        site.tests.sort(key=lambda test: seconds.get(test, 0))


def caught(mutant: Mutant, seconds: int) -> str:
    """The test that fails, or an empty string."""
    for program, test in mutant.site.tests:
        try:
            environment = {**os.environ, "FOLIO_MUTATE": mutant.name, "FOLIO_EXPLORE_SECONDS": str(seconds)}
            run = subprocess.run(
                [program, f"--gtest_filter={test}"],
                env=environment,
                capture_output=True,
                timeout=seconds * TEST_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return test + " (takes too long)"
        if run.returncode != 0:
            return test
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--build", type=Path, default=PROJECT / "build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    sites = [
        site
        for path in house.files(PROJECT, ["src"], house.CODE)
        if not path.is_relative_to("src/base")
        for site in sites_of(path)
        if (site.kind, site.order) in WEAKER and arguments.only in site.name
    ]
    find_tests(arguments.build, sites, arguments.jobs)
    mutants = [Mutant(site, order) for site in sites for order in WEAKER[site.kind, site.order]]
    problems = [f"{m.name}: no scenario comes by" for m in mutants if not m.site.tests and not m.site.unseen]
    mutants = [m for m in mutants if m.site.tests]
    if arguments.minutes:
        random.shuffle(mutants)
    end = time.monotonic() + arguments.minutes * 60 if arguments.minutes else float("inf")

    def judge(mutant: Mutant) -> tuple[Mutant, str | None]:
        if time.monotonic() > end:
            return mutant, None
        twice = not arguments.minutes and not mutant.site.unseen
        return mutant, caught(mutant, SCENARIO_SECONDS[0]) or (caught(mutant, SCENARIO_SECONDS[1]) if twice else "")

    done = caught_any = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for number, (mutant, test) in enumerate(pool.map(judge, mutants), 1):
            if test is None:
                continue
            done += 1
            caught_any += test != ""
            says = f"caught by {test}" if test else "unseen, as it says" if mutant.site.unseen else "SURVIVES"
            print(f"{number:4}/{len(mutants)} {mutant.name:50} {says}", flush=True)
            if not test and not mutant.site.unseen:
                problems.append(f"{mutant.name}: no test fails")
    print(f"\n{done} of {len(mutants)} mutations of {len(sites)} operations tried, {len(problems)} problems")
    for problem in problems:
        print(f"  {problem}")
    print(
        "Next: make mutate MUTATE='--only FILE:LINE' (one of them), make explore"
        if problems
        else "Next: make explore (every scenario, as deep as time allows)"
    )
    return int(caught_any == 0 if arguments.minutes else bool(problems))


if __name__ == "__main__":
    sys.exit(main())
