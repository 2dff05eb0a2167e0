#!/usr/bin/env python3
"""Runs a program on glibc's malloc and on Folio, in turn, and compares time, memory and page faults.

The program behind `make try`. Without --prog it runs tools/try_work.py under the system's Python. Before it measures,
it runs the program once on Folio with the loader's log on: a preload that does not take effect (statically linked
programs, set-user-id ones) is only a warning to the loader, and would make glibc look like Folio.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from measure import ROOT, Allocator, BenchError, Run, build_launcher, launch

WORK = ROOT / "tools" / "try_work.py"
NEEDS = "import hashlib, json, sqlite3"


ROWS = ["time", "CPU time", "peak memory", "page faults"]


def values_of(run: Run) -> list[float]:
    """One figure for each of ROWS: seconds, seconds, MiB, a count."""
    usage = run.usage
    return [
        usage["wall"],
        usage["user"] + usage["sys"],
        usage["max_rss_kib"] / 1024,
        usage["minor_faults"] + usage["major_faults"],
    ]


def show(row: str, values: list[float]) -> str:
    """The median with its unit, and the lowest and highest."""
    middle = statistics.median(values)
    scale, unit, digits = 1, "", 0
    if row == "peak memory":
        unit, digits = " MiB", 1
    elif row != "page faults":
        scale, unit, digits = (1, " s", 2) if middle >= 0.5 else (1000, " ms", 1)
    low, middle, high = (f"{value * scale:,.{digits}f}" for value in (min(values), middle, max(values)))
    return f"{middle}{unit} ({low}–{high})"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", type=Path, default=ROOT / "build" / "libfolio.so", help="Folio's library")
    parser.add_argument("--prog", default="", metavar="COMMAND", help="a command of yours, split as a shell does")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="runs on each (default 5)")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "try", help="where the data is kept")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    return arguments


def default_work(launcher: Path, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """The command and environment of the default program; generates its data the first time."""
    plain = Allocator("glibc", None)
    for python in ["/usr/bin/python3", sys.executable]:
        if os.access(python, os.X_OK) and launch(launcher, plain, [python, "-c", NEEDS]).status == 0:
            break
    else:
        raise BenchError("no python3 with sqlite3: apt-get install python3")
    data = scratch / "orders.jsonl"
    if not data.exists() or data.stat().st_mtime < WORK.stat().st_mtime:
        say(f"generating {data}")
        run = launch(launcher, plain, [python, str(WORK), "--generate", str(data)])
        if run.status != 0:
            raise BenchError(f"cannot generate {data}: {last_line(run.stderr)}")
    return [python, str(WORK), str(data)], {"PYTHONMALLOC": "malloc"}


def user_work(text: str) -> list[str]:
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise BenchError(f"cannot split PROG={text!r}: {error}") from None
    if not command:
        raise BenchError("PROG is empty")
    return command


def last_line(output: bytes) -> str:
    return (output.decode(errors="replace").strip().splitlines() or ["(none)"])[-1]


def logs_show(logs: list[str], library: Path) -> int:
    """In how many of the loader's logs, one for each process, `library` was initialised."""
    wanted = f"calling init: {library}"
    return sum(any(line.endswith(wanted) for line in log.splitlines()) for log in logs)


def probe(launcher: Path, folio: Allocator, command: list[str], environment: dict[str, str]) -> Run:
    """One run that is not measured: warms up the file cache, and proves that Folio serves the program."""
    assert folio.library is not None
    with tempfile.TemporaryDirectory(prefix="folio-try-") as scratch:
        log = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": f"{scratch}/log"}
        run = launch(launcher, folio, command, environment={**environment, **log})
        logs = [path.read_text(errors="replace") for path in Path(scratch).glob("log.*")]
    if logs_show(logs, folio.library) == 0:
        raise BenchError(
            f"{command[0]} does not load Folio (statically linked, set-user-id, or not for glibc?): nothing to compare"
        )
    return run


def run_rounds(
    launcher: Path, allocators: list[Allocator], command: list[str], environment: dict[str, str], rounds: int
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {allocator.name: [] for allocator in allocators}
    for number in range(rounds):
        # Each begins every second round: whoever runs second finds a warmer machine.
        for allocator in allocators if number % 2 == 0 else allocators[::-1]:
            run = launch(launcher, allocator, command, environment=environment)
            runs[allocator.name].append(run)
            say(f"[{number + 1}/{rounds}] {allocator.name}: {run.usage['wall']:.2f} s")
    return runs


def table(libc: list[list[float]], own: list[list[float]]) -> str:
    """The ratio is one of medians: below 1 Folio needs less."""
    lines = [f"{'':14}{'glibc':>28}{'Folio':>28}{'Folio / glibc':>16}"]
    for index, row in enumerate(ROWS):
        columns = [[run[index] for run in runs] for runs in (libc, own)]
        on_libc, on_own = (statistics.median(values) for values in columns)
        ratio = "–" if on_libc == 0 else f"{on_own / on_libc:.2f}"
        lines.append(f"{row:14}{show(row, columns[0]):>28}{show(row, columns[1]):>28}{ratio:>16}")
    return "\n".join(lines)


def differences(libc: list[Run], own: list[Run]) -> list[str]:
    """What does not agree between the allocators; a program that varies on glibc alone is not compared."""
    found = []
    for what, of in [("exit status", lambda run: run.status), ("output", lambda run: run.stdout)]:
        on_libc, on_own = {of(run) for run in libc}, {of(run) for run in own}
        if len(on_libc) > 1:
            say(f"note: its {what} differs from run to run on glibc alone; not compared")
        elif on_own != on_libc:
            statuses = f": {on_libc.pop()} on glibc, {', '.join(map(str, sorted(on_own)))} on Folio"
            found.append(f"its {what} is not the same on both{statuses if what == 'exit status' else ''}")
    return found


def main() -> int:
    arguments = parse_arguments()
    if not arguments.lib.is_file():
        raise BenchError(f"no library {arguments.lib}: make build")
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    launcher = build_launcher(arguments.scratch)
    folio = Allocator("Folio", arguments.lib.absolute())
    allocators = [Allocator("glibc", None), folio]
    if arguments.prog:
        command, environment = user_work(arguments.prog), {}
    else:
        command, environment = default_work(launcher, arguments.scratch)
    first = probe(launcher, folio, command, environment)
    if first.status != 0:
        say(f"note: exit status {first.status}; the end of its messages: {last_line(first.stderr)}")
    runs = run_rounds(launcher, allocators, command, environment, arguments.rounds)
    shown = [f"{name}={value}" for name, value in environment.items()] + command
    print(f"\n{shlex.join(shown)}")
    print(f"medians of {arguments.rounds} runs on each, in turn (lowest–highest)\n")
    print(table(*([values_of(run) for run in runs[a.name]] for a in allocators)))
    found = differences(runs["glibc"], runs["Folio"])
    for difference in found:
        print(f"\nwarning: {difference}")
    if arguments.prog:
        print(f"\nnext: LD_PRELOAD={folio.library} {shlex.join(command)}")
    else:
        print('\nnext: make try PROG="COMMAND ..."  (the same for a program of yours)')
    return 1 if found else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        say(f"tools/try.py: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
