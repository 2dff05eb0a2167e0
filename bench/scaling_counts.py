"""Counted runs: libfolio-count.so (bench/counts.cc) under the programs, and what an operation did, line by line."""

from __future__ import annotations

import bisect
import re
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from measure import Allocator, BenchError, Run, launch

LINE_BYTES = 64
# Less often passed on than this a line is somebody's own: made by another thread, or looked through by the housekeeper.
SHARED_LEAST = 1e-3


@dataclass(frozen=True)
class Workload:
    name: str
    program: str
    arguments: tuple[str, ...]
    threads: str  # the parameter that sets them
    threads_each: int  # threads for one of it
    ops: str  # the parameter that sets the operations

    def command(self, threads: int, ops: int) -> list[str]:
        return [*self.arguments, f"{self.threads}={threads // self.threads_each}", f"{self.ops}={ops}"]


WORKLOADS = [
    Workload("passed on, 64 bytes", "malloc_test", ("size=64",), "pairs", 2, "objects"),
    Workload("passed on, 8 to 2048 bytes", "malloc_test", ("size=0",), "pairs", 2, "objects"),
    Workload("own, 1 to 1024 bytes", "random_lifetimes", (), "threads", 1, "ops"),
]
PAIR_OF_BATCHES = 4096 * 8  # malloc-test: whole batches, several for each producer


@dataclass
class Counts:
    """Of one place: numbers of read-modify-writes."""

    took: float = 0  # takes, pops, entries, sums
    gave: float = 0  # gives, pushes
    failed: float = 0
    passed: float = 0  # the line was last changed by another thread

    @property
    def all(self) -> float:
        return self.took + self.gave + self.failed

    def add(self, other: Counts, factor: float = 1) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + factor * getattr(other, name))


@dataclass
class Tally:
    """A counted run. A place is a static line by its name, or a kind of word in the metadata."""

    places: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))
    shared: dict[str, Counts] = field(default_factory=lambda: defaultdict(Counts))  # of lines that threads met on
    hottest: float = 0  # read-modify-writes of one line of metadata that several threads change

    def less(self, few: Tally, ops: int) -> Tally:
        """What each of the `ops` operations did by which this run was longer than `few`."""
        result = Tally(hottest=max(0.0, self.hottest - few.hottest) / ops)
        for name in ("places", "shared"):
            target = getattr(result, name)
            for sign, source in ((1, self), (-1, few)):
                for place, counts in getattr(source, name).items():
                    target[place].add(counts, sign / ops)
        return result


class Symbols:
    """The names of static variables by their offset in the library."""

    def __init__(self, nm: str) -> None:
        found = re.findall(r"^([0-9a-f]+) [bBdDvV] (.+)$", nm, re.MULTILINE)
        self.symbols = sorted((int(address, 16), name.split("::")[-1]) for address, name in found)

    @classmethod
    def of(cls, library: Path) -> Symbols:
        result = subprocess.run(["nm", "-C", str(library)], capture_output=True, text=True)
        if result.returncode != 0:
            raise BenchError(f"nm cannot read {library}: {result.stderr.strip()}")
        return cls(result.stdout)

    def last(self) -> int:
        return self.symbols[-1][0] if self.symbols else 0

    def line(self, offset: int) -> str:
        """What lies in the line of 64 bytes: all its variables, or the array that holds it and its number there."""
        start = offset - offset % LINE_BYTES
        addresses = [address for address, _ in self.symbols]
        first, end = bisect.bisect_left(addresses, start), bisect.bisect_left(addresses, start + LINE_BYTES)
        if first < end:
            return " + ".join(name for _, name in self.symbols[first:end])
        address, name = self.symbols[first - 1]
        return f"{name}, line {(start - address) // LINE_BYTES}"


@dataclass(frozen=True)
class Row:
    """One word, as libfolio-count.so writes it."""

    kind: str
    bin: int
    shard: int
    line: str
    offset: int
    counts: Counts

    @classmethod
    def of(cls, text: str) -> Row:
        kind, bin_number, shard, line, offset, *numbers = text.split("\t")
        return cls(kind, int(bin_number), int(shard), line, int(offset, 16), Counts(*(float(n) for n in numbers)))


def parse(text: str, symbols: Symbols) -> Tally:
    rows = [Row.of(line) for line in text.splitlines()]
    if not rows:
        raise BenchError("libfolio-count counted nothing: was it loaded?")
    lost = sum(row.counts.all for row in rows if row.kind == "lost")
    if lost:
        raise BenchError(f"libfolio-count had no room for {lost:.0f} operations: fewer threads or operations")
    lines: dict[str, Counts] = defaultdict(Counts)
    for row in rows:
        lines[row.line].add(row.counts)
    tally = Tally()
    hot: dict[str, float] = defaultdict(float)
    for row in rows:
        static = row.offset <= symbols.last() + LINE_BYTES
        if row.kind == "depot":
            place = f"depot, bin {row.bin}" + (f", shard {row.shard}" if row.shard else "")
        elif row.kind == "-":
            place = symbols.line(row.offset) if static else "metadata"
        else:
            place = row.kind
        tally.places[place].add(row.counts)
        if lines[row.line].passed > max(2, SHARED_LEAST * lines[row.line].all):
            tally.shared[place].add(row.counts)
            if not static:
                hot[row.line] += row.counts.all
    tally.hottest = max(hot.values(), default=0)
    return tally


def build_library(build: Path) -> Path:
    """libfolio-count.so, by the build folder's own rules."""
    if not (build / "build.ninja").exists() and not (build / "Makefile").exists():
        raise BenchError(f"no build in {build}: make build")
    command = ["cmake", "--build", str(build), "--target", "folio_counts"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BenchError(f"cannot build libfolio-count.so: {' '.join(command)}\n{result.stdout.rstrip()}")
    return build / "libfolio-count.so"


def counted_run(launcher: Path, library: Path, command: list[str], symbols: Symbols, options: str) -> Tally:
    with tempfile.TemporaryDirectory(prefix="folio-count-") as scratch:
        file = Path(scratch) / "counts"
        allocator = Allocator("folio-count", library)
        run = launch(
            launcher,
            allocator,
            command,
            environment={"FOLIO_COUNT_FILE": str(file), "FOLIO_OPTIONS": options},
            timeout=300,
        )
        check(run, command)
        return parse(file.read_text() if file.exists() else "", symbols)


def check(run: Run, command: list[str]) -> None:
    if run.status != 0:
        last = run.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise BenchError(f"{' '.join(command)}: exit status {run.status} {' '.join(last)}")


def count(
    launcher: Path, library: Path, program: Path, workload: Workload, threads: int, ops: int, options: str = ""
) -> Tally:
    """Per operation: the difference between a run that is warm after it and one of `ops` operations more."""
    symbols = Symbols.of(library)
    warm = max(ops // 4, threads * PAIR_OF_BATCHES)
    few, many = (
        counted_run(launcher, library, [str(program), *workload.command(threads, n)], symbols, options)
        for n in (warm, warm + ops)
    )
    return many.less(few, ops)
