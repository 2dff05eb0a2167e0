#!/usr/bin/env python3
"""Runs the benchmark programs on Folio and on its peers, in turn, and reports medians with intervals.

Rounds are interleaved and each begins with another allocator, so that a machine that slows down or warms up does so
for all. A figure counts only if the malloc is known to have come from the library under test. Each run is a line of a
JSON-lines file, from which --report makes the tables and the HTML page again, and --resume goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

import html_report
from applications import Application, installed, matching
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
from proof import prove_bound
from records import CPU, WARM_UP, Record, cases_of, library_of, make_record, read_records, samples_of, to_line
from report import OWN, Results, markdown
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

TIMEOUT_SECONDS = 300
BUSY_SHARE = 0.5  # of the CPUs: a load above it at the start is worth a warning
DEFAULT_MINUTES = 9.0  # `make bench` without --full; the report comes after it

# Without --full: enough to see every path of an allocator, nothing that waits for seconds.
SHORT_SET = [
    "malloc-test 1+1, random",
    "malloc-test 4+4, 64 B",
    "larson 2 threads",
    "larson 16 threads",
    "random lifetimes 1 thread",
    "random lifetimes 4 threads",
    "tight loop 64 B",
    "super server",
    "startup",
]

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What bench/run.py and bench/compare.py have in common."""
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds that count (default 5; with --quick 1)")
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no round that would not end within N minutes")
    here = ", ".join(peer.name for peer in find_peers(everything=True)[0])
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME[=FILE]",
        help=f"only these peers: {here}, or NAME=FILE for one of yours",
    )
    parser.add_argument("--lib", type=Path, default=ROOT / "build" / "libfolio.so", help="Folio's library")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "bench", help="where programs are built")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results go (default: results/ in --build)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with the rounds of this JSON-lines file")
    parser.add_argument("--report", type=Path, metavar="FILE", help="run nothing, report this JSON-lines file")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name or program has WORD")
    parser.add_argument("--full", action="store_true", help="all cases and applications, without a limit of time")
    parser.add_argument("--quick", action="store_true", help="small parameters: checks that all runs, measures little")
    parser.add_argument("--list", action="store_true", help="list the cases")
    add_arguments(parser)
    arguments = parser.parse_args()
    return complete(arguments, parser)


def complete(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 5
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    if arguments.resume and arguments.report:
        parser.error("--resume runs, --report does not")
    arguments.out = arguments.out or arguments.build / "results"
    return arguments


def all_cases() -> list[Case]:
    """The programs of bench/programs, and the applications whose packages are here."""
    applications, missing = installed()
    if missing:
        say(f"not here, so not measured: {' '.join(missing)}  (tools/bootstrap.sh bench-apps)")
    return [*CASES, *applications]


def choose_cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.only:
        chosen = [*select(arguments.only), *matching(arguments.only, installed()[0])]
        if not chosen:
            raise BenchError(f"no case has {' or '.join(arguments.only)} in its name; bench/run.py --list shows them")
        return chosen
    if arguments.full or arguments.quick:
        return all_cases()
    if arguments.minutes is None:
        arguments.minutes = DEFAULT_MINUTES
    return [case for case in CASES if case.name in SHORT_SET]


def choose_peers(names: list[str] | None) -> list[Allocator]:
    found, missing = find_peers(everything=names is not None)
    if names is None:
        if missing:
            say(f"not installed, so not measured: {' '.join(missing)}")
        return found
    by_name = {peer.name: peer for peer in found}
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
    if not proven:
        raise BenchError("no allocator to measure")
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


@dataclass(frozen=True)
class Command:
    """How a case is started, and whether its last line is its result."""

    words: list[str]
    environment: dict[str, str]
    reports: bool


def command_of(case: Case, quick: bool, build: Path) -> Command:
    if isinstance(case, Application):
        return Command(case.command(quick, build), case.environment, case.reports)
    path = Path(case.program)
    if path.is_absolute():
        return Command([case.program, *case.command_arguments(quick)], {}, False)
    return Command([str(build_program(case.program, build)), *case.command_arguments(quick)], {}, True)


def measure(launcher: Path, command: Command, case: Case, allocator: Allocator) -> tuple[dict, str]:
    """The figures of one run, and why they do not count ("" if they do)."""

    def note(text: str) -> None:
        say(f"    {case.name} on {allocator.name}: {text}")

    try:
        run = launch(launcher, allocator, command.words, environment=command.environment, timeout=TIMEOUT_SECONDS)
        values = {**run.usage, CPU: run.usage["user"] + run.usage["sys"]}
        if run.status != 0 and not getattr(case, "any_status", False):
            last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
            note(f"exit status {run.status} {' '.join(last)}")
            return values, f"failed ({run.status})"
        if not command.reports:
            return values, ""
        values |= read_result(run.stdout)
    except BenchError as error:
        note(str(error))
        return {}, "failed"
    if not serves(allocator, values.get("malloc", "")):
        note(f"its malloc came from {values.get('malloc')!r}")
        return values, "not loaded"
    if values.get("gave_up"):
        return values, f"over {values['rss_peak_bytes'] / 2**30:.0f} GiB"
    return values, ""


def prove(launcher: Path, command: Command, case: Case, allocator: Allocator) -> str:
    """Why a program that does not report its malloc cannot be measured on this allocator; "" if it can."""
    if command.reports or case.name == "startup":  # /bin/true: prove_loaded has shown it for a process as small
        return ""
    try:
        prove_bound(launcher, allocator, command.words, command.environment, TIMEOUT_SECONDS)
    except BenchError as error:
        say(f"    {case.name} on {allocator.name}: {error}")
        return "not loaded"
    return ""


@dataclass(frozen=True)
class Step:
    """All runs of one case on one allocator in one round."""

    round: int
    case: Case
    allocator: Allocator


def schedule(cases: list[Case], allocators: list[Allocator], rounds: int, warm_up: bool) -> list[list[Step]]:
    """The steps by round; each round begins with another allocator."""
    plan = []
    for number in range(WARM_UP if warm_up else WARM_UP + 1, rounds + 1):
        first = number % len(allocators)
        order = allocators[first:] + allocators[:first]
        plan.append([Step(number, case, allocator) for case in cases for allocator in order])
    return plan


def finished(records: list[Record], cases: list[Case]) -> set[tuple[str, str, int]]:
    """Steps that a file of results has completely."""
    runs: dict[tuple[str, str, int], int] = {}
    for r in records:
        runs[r.case, r.allocator, r.round] = runs.get((r.case, r.allocator, r.round), 0) + 1
    repeat = {case.name: case.repeat for case in cases}
    failed = {(r.case, r.allocator, r.round) for r in records if r.problem}
    return failed | {key for key, count in runs.items() if count >= repeat.get(key[0], 1)}


class Clock:
    """Tells what a step will take from what it took before, and draws the bar."""

    def __init__(self, plan: list[list[Step]]) -> None:
        self.took: dict[tuple[str, str], float] = {}
        self.left = [step for steps in plan for step in steps]
        self.begin = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"), console=console
        )
        self.task = self.progress.add_task("", total=None, left="")

    def expected(self, steps: list[Step]) -> float:
        """Seconds; a case that has not run yet counts as the mean of those that have."""
        mean = sum(self.took.values()) / len(self.took) if self.took else 0.0
        return sum(self.took.get((step.case.name, step.allocator.name), mean) for step in steps)

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def before(self, step: Step, rounds: int) -> None:
        number = "warm-up" if step.round == WARM_UP else f"{step.round}/{rounds}"
        text = f"[{number}] {step.case.name}: {step.allocator.name}"
        if not console.is_terminal:
            say(text)
        left = self.expected(self.left)
        shown = f"about {left / 60:.1f} min left" if self.took else ""
        total, done = self.elapsed() + left, self.elapsed()
        self.progress.update(self.task, description=text.replace("[", r"\["), total=total, completed=done, left=shown)

    def after(self, step: Step, seconds: float | None) -> None:
        self.left.remove(step)
        if seconds is not None:
            self.took[step.case.name, step.allocator.name] = seconds

    def drop(self, steps: list[Step]) -> None:
        for step in steps:
            self.left.remove(step)


def run_rounds(
    arguments: argparse.Namespace,
    launcher: Path,
    cases: list[Case],
    allocators: list[Allocator],
    known: list[Record],
    keep: Callable[[Record], None],
) -> None:
    """Hands each run to `keep`. What failed or gave up once is not tried again."""
    quick = getattr(arguments, "quick", False)
    commands = {case.name: command_of(case, quick, arguments.build) for case in cases}
    plan = schedule(cases, allocators, arguments.rounds, warm_up=not quick)
    hopeless = {(r.case, r.allocator) for r in known if r.problem}
    done, proven, clock = finished(known, cases), set(), Clock(plan)
    with clock.progress if console.is_terminal else open(os.devnull):
        for steps in plan:
            # The warm-up and one round are made in any case.
            if arguments.minutes and steps[0].round > 1:
                seconds = clock.expected(steps)
                if clock.elapsed() + seconds > arguments.minutes * 60:
                    say(f"{arguments.minutes:g} minutes: stopped after {steps[0].round - 1} rounds")
                    return
            for step in steps:
                key = (step.case.name, step.allocator.name)
                if key in hopeless or (*key, step.round) in done:
                    clock.after(step, None)
                    continue
                clock.before(step, arguments.rounds)
                command, problem = commands[step.case.name], ""
                if key not in proven:
                    proven.add(key)
                    problem = prove(launcher, command, step.case, step.allocator)
                begin = time.monotonic()
                for repeat in range(step.case.repeat):
                    values = {}
                    if not problem:
                        values, problem = measure(launcher, command, step.case, step.allocator)
                    keep(make_record(step.case, step.allocator, step.round, repeat, quick, values, problem))
                    if problem:
                        hopeless.add(key)
                        break
                clock.after(step, time.monotonic() - begin)


def check_resumable(records: list[Record], allocators: list[Allocator], quick: bool) -> None:
    """Raises BenchError where going on would mix what does not belong together."""
    ids = {r.allocator: r.library["id"] for r in records}
    for allocator in allocators:
        if ids.get(allocator.name, library_of(allocator)["id"]) != library_of(allocator)["id"]:
            raise BenchError(f"{allocator.name} is another build than in that file: run anew")
    if any(r.quick != quick for r in records):
        raise BenchError("that file has parameters of another kind (--quick or not)")


def results_of(records: list[Record]) -> Results:
    return Results(cases_of(records), list(dict.fromkeys(r.allocator for r in records)), samples_of(records))


def write_report(records: list[Record], base: Path) -> tuple[str, Path]:
    """The Markdown text, which also goes to a file, and the HTML page's file."""
    results = results_of(records)
    text = f"{heading(records)}\n\n{markdown(results)}\n"
    base.with_suffix(".md").write_text(text)
    page = base.with_suffix(".html")
    page.write_text(html_report.page(results, records))
    return text, page


def heading(records: list[Record]) -> str:
    rounds = len({r.round for r in records if r.round != WARM_UP})
    lines = [
        f"Medians of {rounds} interleaved rounds, in brackets the 95 % interval (bootstrap). Last column: above 1, "
        "Folio leads."
    ]
    if any(r.program == "pauses" for r in records):
        lines.append("longest: without calls near which the kernel took the CPU away; longest*: with them.")
    if any(r.quick for r in records):
        lines.append("Small parameters (--quick): this shows that all runs, and is not for comparing.")
    return "\n".join(lines)


def laboratory(arguments: argparse.Namespace, cases: list[Case], next_command: str) -> int:
    """Measures the cases, or reads what was measured, and reports."""
    if arguments.report:
        records, path = read_records(arguments.report), arguments.report
    else:
        records, path = run_all(arguments, cases)
    if not records:
        raise BenchError("nothing was measured")
    text, page = write_report(records, path)
    print(text)
    print(f"raw results: {path}\nreport:      {page}\n{next_command}")
    return 1 if any(r.problem and r.allocator == OWN for r in records) else 0


def run_all(arguments: argparse.Namespace, cases: list[Case]) -> tuple[list[Record], Path]:
    arguments.build.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    launcher = build_launcher(arguments.build)
    allocators = choose_allocators(arguments, launcher)
    records: list[Record] = []
    path = arguments.out / time.strftime("%Y%m%d-%H%M%S.jsonl")
    if arguments.resume:
        records, path = read_records(arguments.resume), arguments.resume
        check_resumable(records, allocators, getattr(arguments, "quick", False))
        # Anew, so that half a line of an interrupted run is gone; not in place, so that nothing else can be.
        whole = path.with_suffix(".partial")
        whole.write_text("".join(to_line(record) + "\n" for record in records))
        whole.replace(path)
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        say(f"warning: other work is running (load {load:.1f}, {cpus} CPUs): expect wide intervals")
    with path.open("a") as lines:

        def keep(record: Record) -> None:
            records.append(record)
            lines.write(to_line(record) + "\n")
            lines.flush()

        try:
            run_rounds(arguments, launcher, cases, allocators, list(records), keep)
        except KeyboardInterrupt:
            say(f"interrupted: reported is what is complete; to go on: --resume {path}")
    return records, path


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        for case in all_cases():
            print(f"{case.name:32} {' '.join([case.program, *case.arguments])}")
        return 0
    cases = [] if arguments.report else choose_cases(arguments)
    follow = "next: make bench BENCH=--full  (all cases and applications)"
    if arguments.full or arguments.report:
        follow = 'next: make compare PROG="COMMAND ..."  (the same for a program of yours)'
    return laboratory(arguments, cases, follow)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        say(f"bench/run.py: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
