#!/usr/bin/env python3
"""Runs the benchmark programs on Folio and on its peers, in turn, and reports medians with intervals.

Rounds are interleaved, in an order that changes, so that a machine that slows down or warms up does so for all. A
figure counts only if the malloc is known to have come from the library under test. Each run is a line of a JSON-lines
file, from which --report makes the tables and the HTML page again, and --resume goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

import goals
import headlines
import host_memory
import html_report
import precision
from applications import Application, installed, matching
from cases import CASES, START, Case, select
from folio.proof import prove_bound
from folio.rounds import RELIABLE_ROUNDS
from measure import (
    IDEALS,
    INTERRUPTED,
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
    serves,
)
from records import CPU, WARM_UP, Record, library_of, make_record, read_records, to_line
from report import OWN, figures_csv, markdown, results_of
from schedule import Clock, Step, finished, say, schedule, without_halves

TIMEOUT_SECONDS = 300
SIGNALLED = 128  # exit statuses from here on: ended by a signal
BUSY_SHARE = 0.5  # of the CPUs: a load above it at the start is worth a warning
UNTIL_MINUTES = 30.0
UNTIL_ROUNDS = 200
SHOWN_PERCENT = 1.0
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What bench/run.py and bench/compare.py have in common."""
    parser.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds that count (default 5; with --quick 1; with --until up to 200)",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="begin no round that would not end within N minutes")
    parser.add_argument(
        "--until",
        type=float,
        metavar="PERCENT",
        help="run each program until its ratios are known to +- PERCENT, or the minutes (30) are over",
    )
    here = ", ".join(peer.name for peer in find_peers(everything=True)[0])
    parser.add_argument(
        "--peers",
        nargs="*",
        metavar="NAME[=FILE]",
        help=f"only these peers: {here}, or NAME=FILE for one of yours",
    )
    parser.add_argument("--ideals", action="store_true", help="also two limits, beside which nothing is an allocator")
    add_places(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results go (default: results/ in --build)")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on with the rounds of this JSON-lines file")
    parser.add_argument("--report", type=Path, metavar="FILE", help="run nothing, report this JSON-lines file")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="cases whose name or program has WORD")
    parser.add_argument("--full", action="store_true", help="all cases and applications, without a limit of time")
    parser.add_argument("--quick", action="store_true", help="small parameters: checks that all runs, measures little")
    parser.add_argument("--headlines", action="store_true", help="the results of the documents (bench/headlines.py)")
    parser.add_argument("--list", action="store_true", help="list the cases")
    add_arguments(parser)
    arguments = parser.parse_args()
    return complete(arguments, parser)


def complete(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    if arguments.until is not None and arguments.minutes is None:
        arguments.minutes = UNTIL_MINUTES
    if arguments.rounds is None:
        arguments.rounds = 1 if arguments.quick else 5 if arguments.until is None else UNTIL_ROUNDS
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    if arguments.until is not None and arguments.until <= 0:
        parser.error("--until is more than 0 %")
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
    if arguments.headlines:
        named = {headline.case for headline in headlines.HEADLINES}
        return [case for case in CASES if case.name in named]
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
    if arguments.ideals:
        wanted += build_ideals(arguments.build)
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
    if all(allocator.name in IDEALS for allocator in proven):
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
        if run.status >= SIGNALLED or (run.status != 0 and not getattr(case, "any_status", False)):
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
    values["malloc"] = Path(values["malloc"]).name
    if values.get("gave_up"):
        return values, f"over {values['rss_peak_bytes'] / 2**30:.0f} GiB"
    return values, ""


def prove(launcher: Path, command: Command, case: Case, allocator: Allocator) -> str:
    """Why a program that does not report its malloc cannot be measured on this allocator; "" if it can."""
    if command.reports or case.name == "startup":  # /bin/true: prove_loaded has shown it for a process as small
        return ""
    try:
        run = prove_bound(launcher, allocator, command.words, command.environment, TIMEOUT_SECONDS)
        if 0 < run.status < SIGNALLED and getattr(case, "any_status", False):
            say(f"    {case.name} on {allocator.name}: exit status {run.status}; it is measured all the same")
    except BenchError as error:
        say(f"    {case.name} on {allocator.name}: {error}")
        return "not loaded"
    return ""


def run_rounds(
    arguments: argparse.Namespace,
    launcher: Path,
    plan: list[list[Step]],
    known: list[Record],
    keep: Callable[[Record], None],
) -> None:
    """Hands each run to `keep`, which adds it to `known`. What failed or gave up once is not tried again."""
    cases = {step.case.name: step.case for steps in plan for step in steps}
    small = {name: command_of(case, True, arguments.build) for name, case in cases.items()}
    full = small if arguments.quick else {n: command_of(case, False, arguments.build) for n, case in cases.items()}
    hopeless = {(r.case, r.allocator) for r in known if r.problem}
    done, proven, clock = finished(known, plan), set(), Clock(plan, known, arguments.minutes)
    held = host_memory.Held(0) if arguments.quick else host_memory.for_this_machine()
    if held.size != 0:
        say(f"this machine's host takes free memory back: {held.size >> 20} MiB are held between runs")
    with clock.progress:
        for steps in plan:
            if arguments.until is not None and steps[0].round > RELIABLE_ROUNDS:
                steps = clock.leave_out(steps, precision.settled(known, arguments.until))
                if not steps:
                    say(f"all ratios are known to ± {arguments.until:g} %")
                    return
            # The warm-up and one round are made in any case.
            if arguments.minutes and steps[0].round > 1:
                seconds = clock.expected(steps)
                if clock.elapsed() + seconds > arguments.minutes * 60:
                    say(f"{arguments.minutes:g} minutes: stopped after {steps[0].round - 1} rounds")
                    return
            for step in steps:
                key = (step.case.name, step.allocator.name)
                if key in hopeless or step.key in done:
                    clock.after(step, None)
                    continue
                clock.before(step, arguments.rounds)
                problem = ""
                if key not in proven:
                    proven.add(key)
                    problem = prove(launcher, small[step.case.name], step.case, step.allocator)
                # A warm-up loads files, and finds what cannot run: small parameters are enough for that.
                quick = arguments.quick or step.round == WARM_UP
                command = (small if quick else full)[step.case.name]
                begin = time.monotonic()
                for repeat in range(step.runs):
                    values = {}
                    if not problem:
                        # Nothing small waits for memory, and a start is over long before it would be held again.
                        holds = not quick and step.case.kind != START
                        if holds:
                            held.hold()
                            held.release()
                        values, problem = measure(launcher, command, step.case, step.allocator)
                        if holds:
                            held.hold()
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
    if any(r.quick != quick for r in records if r.round != WARM_UP):
        raise BenchError("that file has parameters of another kind (--quick or not)")


def write_report(records: list[Record], base: Path, percent: float | None) -> tuple[str, Path]:
    """The Markdown text, which also goes to a file, as the figures alone do, and the HTML page's file."""
    results = results_of(records)
    known = precision.summary(results, percent or SHOWN_PERCENT)
    text = f"{heading(records)}{' ' if known else ''}{known}\n\n{markdown(results)}\n"
    if goals.concern(results):
        text += f"\nWhat Folio is to reach:\n\n{goals.table(goals.goals(results))}\n"
    if headlines.concern(results):
        text += f"\nWhat the documents report, and the same here:\n\n{headlines.table(headlines.rows(results))}\n"
    base.with_suffix(".md").write_text(text)
    base.with_suffix(".csv").write_text(figures_csv(results))
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
    if any(r.quick and r.round != WARM_UP for r in records):
        lines.append("Small parameters (--quick): this shows that all runs, and is not for comparing.")
    return "\n".join(lines)


def resume_command(path: Path) -> str:
    """The command line of this process, to go on with that file."""
    words, given = [], iter(sys.argv)
    for word in given:
        if word == "--resume":
            next(given, None)
        elif not word.startswith("--resume="):
            words.append(word)
    return shlex.join(["python3", *words, "--resume", str(path)])


def laboratory(arguments: argparse.Namespace, cases: list[Case], next_command: str) -> int:
    """Measures the cases, or reads what was measured, and reports."""
    interrupted = False
    if arguments.report:
        records, path = read_records(arguments.report), arguments.report
    else:
        records, path, interrupted = run_all(arguments, cases)
    if interrupted and all(r.round == WARM_UP for r in records):
        say(f"nothing to report yet. To go on: {resume_command(path)}")
        return INTERRUPTED
    if not records:
        raise BenchError("nothing was measured")
    text, page = write_report(records, path, arguments.until)
    print(text)
    print(f"raw results: {path}\nreport:      {page}")
    if interrupted:
        print(f"interrupted: this is a part. To go on: {resume_command(path)}")
        return INTERRUPTED
    print(next_command)
    return 1 if any(r.problem and r.allocator == OWN for r in records) else 0


def run_all(arguments: argparse.Namespace, cases: list[Case]) -> tuple[list[Record], Path, bool]:
    """The records, their file, and whether the user stopped it before the end."""
    make_folder(arguments.build)
    make_folder(arguments.out)
    launcher = build_launcher(arguments.build)
    allocators = choose_allocators(arguments, launcher)
    plan = schedule(cases, allocators, arguments.rounds, warm_up=not arguments.quick)
    records: list[Record] = []
    path = arguments.out / time.strftime("%Y%m%d-%H%M%S.jsonl")
    if arguments.resume:
        path = arguments.resume
        records = without_halves(read_records(path, may_be_empty=True), plan)
        check_resumable(records, allocators, arguments.quick)
        # Anew, so that half a line of an interrupted run is gone; not in place, so that nothing else can be.
        whole = path.with_suffix(".partial")
        whole.write_text("".join(to_line(record) + "\n" for record in records))
        whole.replace(path)
    load, cpus = os.getloadavg()[0], os.cpu_count() or 1
    if load > BUSY_SHARE * cpus:
        say(f"warning: other work is running (load {load:.1f}, {cpus} CPUs): expect wide intervals")
    say(f"raw results go to {path}")
    with path.open("a") as lines:

        def keep(record: Record) -> None:
            records.append(record)
            lines.write(to_line(record) + "\n")
            lines.flush()

        try:
            run_rounds(arguments, launcher, plan, records, keep)
        except KeyboardInterrupt:
            say("interrupted")
            return records, path, True
    return records, path, False


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
    end_with(main, "bench/run.py")
