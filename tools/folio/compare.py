"""`folio compare`: a program on glibc's malloc, on Folio, and on other libraries, in turn.

Before anything is measured each library is proved to serve the program (folio.proof): a preload that does not take
effect is only a warning to the loader. Rounds are interleaved, and each begins with another library, so that a machine
that warms up does so for all. Differences are medians of the rounds' ratios with bootstrap intervals (folio.rounds).
"""

from __future__ import annotations

import json as json_module
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.text import Text

from folio import output
from folio.errors import FolioError, writing
from folio.launching import (
    Allocator,
    Run,
    compile_to,
    compiler,
    find_launcher,
    is_libc,
    is_stale,
    launch,
    serves,
)
from folio.pools import own_pools
from folio.proof import debug_environment, logged
from folio.rounds import LEVEL, RELIABLE_ROUNDS, Interval, median_interval, ratio_interval, turn

SERVER = Path(__file__).with_name("example_server.cc")
EXAMPLE = Path(__file__).with_name("example.py")
EXAMPLE_NEEDS = "import hashlib, json, sqlite3"
BASE = "glibc"
OWN = "Folio"
WIDE_PERCENT = 5.0  # an interval of the ratio of time, to each side, that deserves a word
BUSY_SHARE = 0.5  # of the CPUs
PYTHON_FLOOR = 10 << 20  # what a launcher in Python puts under every peak


@dataclass(frozen=True)
class Measure:
    key: str
    title: str
    unit: str

    def of(self, run: Run) -> float:
        usage = run.usage
        return {
            "time": usage["wall"],
            "cpu": usage["user"] + usage["sys"],
            "peak": usage["max_rss_kib"] * 1024,
            "faults": usage["minor_faults"] + usage["major_faults"],
            "rest": usage.get("rest_bytes", 0),
        }[self.key]

    def show(self, interval: Interval) -> str:
        if self.unit == "bytes":
            return f"{interval.value / 2**20:,.1f} MiB ({interval.low / 2**20:,.1f}–{interval.high / 2**20:,.1f})"
        if self.unit == "count":
            return f"{interval.value:,.0f} ({interval.low:,.0f}–{interval.high:,.0f})"
        scale, unit, digits = (1, "s", 2) if interval.value >= 0.5 else (1000, "ms", 1)
        value, low, high = (f"{v * scale:.{digits}f}" for v in (interval.value, interval.low, interval.high))
        return f"{value} {unit} ({low}–{high})"


MEASURES = [
    Measure("time", "time", "seconds"),
    Measure("cpu", "CPU time", "seconds"),
    Measure("peak", "peak memory", "bytes"),
    Measure("faults", "page faults", "count"),
]
AT_REST = Measure("rest", "memory at rest", "bytes")  # of the server that is idle at its end


@dataclass
class Comparison:
    command: list[str]
    environment: dict[str, str]
    rounds: int
    allocators: list[Allocator]
    exact_peaks: bool = True
    runs: dict[str, list[Run]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    example: str = ""
    load: float = 0.0  # of the machine, as the kernel counts it over a minute, before the first run

    @property
    def measures(self) -> list[Measure]:
        return [*MEASURES, AT_REST] if self.example == "server" else MEASURES

    def by_round(self, name: str, measure: Measure) -> dict[int, float]:
        return {i: measure.of(run) for i, run in enumerate(self.runs[name])}

    def median(self, name: str, measure: Measure) -> Interval:
        found = median_interval(list(self.by_round(name, measure).values()))
        assert found is not None
        return found

    def ratio(self, name: str, measure: Measure) -> Interval | None:
        """To the first one; below 1 this one needs less."""
        return ratio_interval(self.by_round(name, measure), self.by_round(self.allocators[0].name, measure))


def verdict(ratio: Interval | None) -> str:
    if ratio is None or not ratio.known:
        return ""
    if ratio.low <= 1 <= ratio.high:
        return LEVEL
    percent = abs(ratio.value - 1) * 100
    return f"{percent:.0f} % less" if ratio.value < 1 else f"{percent:.0f} % more"


# ---- What is compared ----


def server_work(launcher: Path, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """A server of four threads, compiled the first time."""
    program = scratch / "example_server"
    if is_stale(program, [SERVER]):
        output.note(f"compiling {program}")
        compile_to(program, [compiler("c++"), "-std=c++20", "-O2", "-pthread", str(SERVER)])
    return [str(program)], {}


def python_work(launcher: Path, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Python over sqlite3 and JSON data; generates its data the first time."""
    plain = Allocator(BASE, None)
    for python in ["/usr/bin/python3", sys.executable]:
        if os.access(python, os.X_OK) and launch(launcher, plain, [python, "-c", EXAMPLE_NEEDS]).status == 0:
            break
    else:
        raise FolioError("no python3 with sqlite3 for the example: apt-get install python3, or name a program")
    data = scratch / "orders.jsonl"
    if not data.exists() or data.stat().st_mtime < EXAMPLE.stat().st_mtime:
        output.note(f"generating {data}")
        run = launch(launcher, plain, [python, "-I", str(EXAMPLE), "--generate", str(data)])
        if run.status != 0:
            raise FolioError(f"cannot generate {data}: {last_line(run.stderr)}")
    return [python, "-I", str(EXAMPLE), str(data)], {"PYTHONMALLOC": "malloc"}


EXAMPLES = {"server": server_work, "python": python_work}


def usual_example() -> str:
    try:
        compiler("c++")
    except FolioError:
        return "python"
    return "server"


def take_report(run: Run) -> None:
    """The server's own line: its time without the rest at its end, and what is resident then."""
    try:
        said = json_module.loads(last_line(run.stderr))
        run.usage["wall"], run.usage["rest_bytes"] = said["seconds"], said["rest_bytes"]
    except (ValueError, KeyError, TypeError):
        raise FolioError(f"the example did not report: {last_line(run.stderr)}") from None


def other_library(text: str) -> Allocator:
    """NAME=FILE or FILE."""
    name, equals, file_name = text.partition("=")
    path = Path(file_name if equals else name)
    if not path.is_file():
        raise FolioError(f"--with {text}: there is no file {path}; write FILE or NAME=FILE")
    label = name if equals else path.name.split(".so")[0].removeprefix("lib")
    return Allocator(label, path.resolve())


def last_line(text: bytes) -> str:
    return (text.decode(errors="replace").strip().splitlines() or ["(none)"])[-1]


def prove(launcher: Path, allocator: Allocator, command: list[str], environment: dict[str, str]) -> tuple[Run, str]:
    """One run that is not measured; what is to be said of whose malloc it had."""
    with tempfile.TemporaryDirectory(prefix="folio-proof-") as scratch:
        run = launch(launcher, allocator, command, environment={**environment, **debug_environment(scratch)})
        found = logged(scratch)
    foreign = sorted({os.path.basename(path) for path in found if not serves(allocator, path)})
    if allocator.library is None:
        own = [name for name in foreign if not is_libc(name)]
        return run, f"it brings a malloc of its own ({', '.join(own)}): {BASE} stands for that" if own else ""
    if not any(serves(allocator, path) for path in found):
        raise FolioError(
            f"{Path(command[0]).name} does not use {allocator.name} (statically linked, set-user-id, or not for this "
            "libc?): nothing to compare; link the program with libfolio.o instead"
        )
    text = (
        f"on {allocator.name} some of its malloc came from {', '.join(foreign)} (`folio check -- PROGRAM` tells of it)"
    )
    return run, text if foreign else ""


def measure(comparison: Comparison, launcher: Path, quiet: bool, until: float | None) -> None:
    """With `until`, no more rounds than make each ratio of time known to so many per cent."""
    comparison.runs = {allocator.name: [] for allocator in comparison.allocators}
    for number in range(comparison.rounds):
        for allocator in turn(comparison.allocators, number):
            run = launch(launcher, allocator, comparison.command, environment=comparison.environment)
            if comparison.example == "server":
                take_report(run)
            comparison.runs[allocator.name].append(run)
            if not quiet:
                output.note(f"[{number + 1}/{comparison.rounds}] {allocator.name}: {run.usage['wall']:.2f} s")
        if until is not None and all(ratio.settled(until) for ratio in times(comparison)):
            comparison.rounds = number + 1
            comparison.notes.append(f"all ratios of time are within ± {until:g} %: stopped after {number + 1} rounds")
            return
    if until is not None:
        widest = max(ratio.percent for ratio in times(comparison))
        comparison.notes.append(
            f"after {comparison.rounds} rounds the ratios of time are within ± {widest:.1f} %, not {until:g}"
        )


def times(comparison: Comparison) -> list[Interval]:
    found = [comparison.ratio(allocator.name, MEASURES[0]) for allocator in comparison.allocators[1:]]
    return [ratio for ratio in found if ratio is not None]


def differences(base: list[Run], other: list[Run], base_name: str, name: str) -> tuple[list[str], list[str]]:
    """Warnings and notes on what does not agree; a program that varies by itself is not compared."""
    warnings, notes = [], []
    for what, of in [("exit status", lambda run: run.status), ("output", lambda run: run.stdout)]:
        on_base, on_other = {of(run) for run in base}, {of(run) for run in other}
        if len(on_base) > 1:
            notes.append(f"its {what} differs from run to run on {base_name} alone; not compared")
        elif on_other != on_base:
            shown = ", ".join(map(str, sorted(on_other))) if what == "exit status" else ""
            statuses = f": {on_base.pop()} on {base_name}, {shown} on {name}" if shown else ""
            warnings.append(f"its {what} is not the same on {base_name} and {name}{statuses}")
    return warnings, notes


# ---- What is said ----


def as_dict(comparison: Comparison) -> dict[str, Any]:
    def interval(found: Interval | None) -> dict[str, float] | None:
        return None if found is None else {"value": found.value, "low": found.low, "high": found.high}

    return {
        "version": 1,
        "command": comparison.command,
        "environment": comparison.environment,
        "rounds": comparison.rounds,
        "confidence": 0.95,
        "libraries": {a.name: None if a.library is None else str(a.library) for a in comparison.allocators},
        "measures": {
            m.key: {
                a.name: {
                    "unit": m.unit,
                    "values": [m.of(run) for run in comparison.runs[a.name]],
                    "median": interval(comparison.median(a.name, m)),
                    "ratio": interval(comparison.ratio(a.name, m)),
                    "verdict": verdict(comparison.ratio(a.name, m)) if a is not comparison.allocators[0] else "",
                }
                for a in comparison.allocators
            }
            for m in comparison.measures
        },
        "notes": comparison.notes,
        "cautions": cautions(comparison),
        "warnings": comparison.warnings,
    }


def shown_command(comparison: Comparison) -> str:
    return shlex.join([f"{name}={value}" for name, value in comparison.environment.items()] + comparison.command)


def bracketed(interval: Interval, text: str) -> str:
    """Without the interval, which stands in brackets, where there is none."""
    return text if interval.known else text.partition(" (")[0]


def shown_ratio(ratio: Interval | None) -> str:
    return "" if ratio is None else bracketed(ratio, f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})")


def in_short(comparison: Comparison, name: str) -> str:
    """The differences in a sentence; "" where there is only one round."""
    found = [(m.title, verdict(comparison.ratio(name, m))) for m in comparison.measures]
    if not all(text for _, text in found):
        return ""
    differ = [f"{text} {title}" for title, text in found if text != LEVEL]
    rest = [title for title, text in found if text == LEVEL]
    parts = [f"it takes {', '.join(differ)}"] if differ else []
    parts += [f"no difference is seen in {', '.join(rest)}"] if rest else []
    return textwrap.fill(f"{name} beside {comparison.allocators[0].name}: {'; '.join(parts)}.", 79)


def cautions(comparison: Comparison) -> list[str]:
    """Why the figures may say less than they seem to."""
    found = []
    if comparison.rounds == 1:
        found.append("one run on each: no intervals, so no difference can be told; -n 10 says more")
    elif comparison.rounds < RELIABLE_ROUNDS:
        found.append(f"fewer than {RELIABLE_ROUNDS} runs: these are about their ranges; -n 10 says more")
    widest = max((ratio.percent for ratio in times(comparison) if ratio.known), default=0.0)
    if widest > WIDE_PERCENT:
        found.append(
            f"the runs vary: a ratio of time is known to ± {widest:.0f} % only, and smaller differences are not seen; "
            "more runs (-n 30) or a quieter machine narrow it"
        )
    cpus = len(os.sched_getaffinity(0))
    if comparison.load > BUSY_SHARE * cpus:
        found.append(
            f"the machine was busy before the first run (load {comparison.load:.1f} on {output.counted(cpus, 'CPU')}): "
            "times vary with it, peak memory and page faults hardly do"
        )
    return found


def show(comparison: Comparison) -> None:
    output.say(f"\n{shown_command(comparison)}", "bold")
    if comparison.rounds > 1:
        output.say(f"medians of {comparison.rounds} runs on each, in turn; in brackets 95 % intervals\n")
    for text in cautions(comparison):
        output.say(f"{textwrap.fill(text, 79)}\n", "yellow")
    made = output.table("", "median", f"to {comparison.allocators[0].name}", "")
    made.columns[3].justify = "left"
    for m in comparison.measures:
        made.add_row(Text(m.title, "bold"))
        for i, allocator in enumerate(comparison.allocators):
            median, ratio = comparison.median(allocator.name, m), comparison.ratio(allocator.name, m) if i else None
            text = verdict(ratio)
            colour = {"less": "green", "more": "yellow"}.get(text.rpartition(" ")[2], "")
            made.add_row(
                f"  {allocator.name}",
                bracketed(median, m.show(median)),
                shown_ratio(ratio),
                Text(text, colour),
            )
    output.console.print(made)
    for allocator in comparison.allocators[1:]:
        if text := in_short(comparison, allocator.name):
            output.say(f"\n{text}", "bold")
    for text in comparison.notes:
        output.say(f"\nnote: {text}")
    for text in comparison.warnings:
        output.say(f"\nwarning: {text}", "yellow")


def compare(
    command: list[str],
    library: Path,
    others: list[str],
    rounds: int,
    until: float | None,
    scratch: Path,
    json: bool,
    html: Path | None,
    follow: str | None,
    example: str,
) -> int:
    if html is not None and not html.absolute().parent.is_dir():
        raise FolioError(f"--html {html}: there is no folder {html.absolute().parent}")
    launcher, small = find_launcher(scratch)
    allocators = [Allocator(BASE, None), Allocator(OWN, library), *map(other_library, others)]
    environment: dict[str, str] = {}
    if command and example:
        raise FolioError(f"--example {example}: and {command[0]}? one of both")
    if not command:
        example = example or usual_example()
        if example not in EXAMPLES:
            raise FolioError(f"--example {example}: there is {', '.join(EXAMPLES)}")
        command, environment = EXAMPLES[example](launcher, scratch)
    comparison = Comparison(command, environment, rounds, allocators, small, example=example, load=os.getloadavg()[0])
    for allocator in allocators:
        run, text = prove(launcher, allocator, command, environment)
        comparison.notes += [text] if text else []
        if run.status != 0 and allocator.library is None:
            comparison.notes.append(f"exit status {run.status}; the end of its messages: {last_line(run.stderr)}")
    pools = own_pools(os.path.realpath(shutil.which(command[0]) or command[0]), os.environ | environment)
    comparison.notes += [pools] if pools else []
    if not small:
        comparison.notes.append(f"no C compiler here: peaks below {output.size(PYTHON_FLOOR)} are not seen")
    measure(comparison, launcher, json, until)
    for allocator in allocators[1:]:
        warnings, notes = differences(comparison.runs[BASE], comparison.runs[allocator.name], BASE, allocator.name)
        comparison.warnings += warnings
        comparison.notes += [text for text in notes if text not in comparison.notes]
    if html is not None:
        from folio.compare_page import page

        with writing(html):
            html.write_text(page(comparison), errors="replace")
    if json:
        output.as_json(as_dict(comparison))
    else:
        show(comparison)
        if html is not None:
            output.say(f"\nwritten: {html}")
        again = "folio compare -- COMMAND ...  (the same for a program of yours)"
        output.next_command(
            follow or (again if example else f"folio run -- {shlex.join(command)}  (what its memory is)")
        )
    return 1 if comparison.warnings else 0
