"""Which runs a measurement consists of, which of them a file of results has, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cases import LIMIT, Case
from measure import Allocator
from records import WARM_UP, Record
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINE_SECONDS = 30.0  # without a terminal: between two lines of progress

console = Console(stderr=True, highlight=False)


def say(text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Step:
    """All runs of one case on one allocator in one round."""

    round: int
    case: Case
    allocator: Allocator

    @property
    def runs(self) -> int:
        return 1 if self.round == WARM_UP else self.case.repeat

    @property
    def key(self) -> tuple[str, str, int]:
        return self.case.name, self.allocator.name, self.round


T = TypeVar("T")


def orders(items: Sequence[T]) -> list[list[T]]:
    """Rows in which each item comes right after each other one equally often [Williams, "Experimental designs balanced
    for the estimation of residual effects of treatments", 1949]. What ran before matters: a program finds the memory
    that it left in the kernel's lists, as huge pages or in pieces, known to the host of a virtual machine or not."""
    n = len(items)
    first = [(i + 1) // 2 if i % 2 else (n - i // 2) % n for i in range(n)]
    rows = [[items[(i + shift) % n] for i in first] for shift in range(n)]
    return rows if n % 2 == 0 else rows + [row[::-1] for row in rows]


def schedule(cases: list[Case], allocators: list[Allocator], rounds: int, warm_up: bool) -> list[list[Step]]:
    """The steps by round; each case of a round has another order. A limit is measured beside the first allocator."""
    rows = orders(allocators)
    return [
        [
            Step(number, case, allocator)
            for i, case in enumerate(cases)
            for allocator in (allocators[:1] if case.kind == LIMIT else rows[(number + i) % len(rows)])
        ]
        for number in range(WARM_UP if warm_up else WARM_UP + 1, rounds + 1)
    ]


def key_of(record: Record) -> tuple[str, str, int]:
    return record.case, record.allocator, record.round


def finished(records: list[Record], plan: list[list[Step]]) -> set[tuple[str, str, int]]:
    """Steps that a file of results has completely; those that failed are not tried again."""
    runs: dict[tuple[str, str, int], int] = {}
    for record in records:
        runs[key_of(record)] = runs.get(key_of(record), 0) + 1
    failed = {key_of(record) for record in records if record.problem}
    return failed | {step.key for steps in plan for step in steps if runs.get(step.key, 0) >= step.runs}


def without_halves(records: list[Record], plan: list[list[Step]]) -> list[Record]:
    """Steps that were interrupted between two of their runs are made anew."""
    done, planned = finished(records, plan), {step.key for steps in plan for step in steps}
    return [record for record in records if key_of(record) in done or key_of(record) not in planned]


class Clock:
    """Tells what the steps will take from what they took before, and shows it.

    On a terminal as a bar, which is drawn between runs only: a thread that draws would run beside what is measured.
    """

    def __init__(self, plan: list[list[Step]], known: list[Record], minutes: float | None = None) -> None:
        """With `minutes`, no round begins that would not end within them."""
        self.most = float("inf") if minutes is None else minutes * 60
        self.took: dict[tuple[str, str], float] = {}
        self.left = [step for steps in plan for step in steps]
        self.total = len(self.left)
        self.begin = time.monotonic()
        self.said = float("-inf")
        sums: dict[tuple[str, str, int], float] = {}
        for record in known:
            if record.round != WARM_UP and not record.problem:
                sums[key_of(record)] = sums.get(key_of(record), 0.0) + record.values.get("wall", 0.0)
        self.took = {(case, allocator): seconds for (case, allocator, _), seconds in sums.items()}
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} runs")]
        columns.append(TextColumn("{task.fields[left]}"))
        self.progress = Progress(*columns, console=console, auto_refresh=False, disable=not console.is_terminal)
        self.task = self.progress.add_task("", total=self.total, left="")

    def expected(self, steps: list[Step]) -> float:
        """Seconds. The warm-up has small parameters and says nothing. A case that is new counts as the mean of those
        that are known."""
        mean = sum(self.took.values()) / len(self.took) if self.took else 0.0
        counting = [step for step in steps if step.round != WARM_UP]
        return sum(self.took.get((step.case.name, step.allocator.name), mean) for step in counting)

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def before(self, step: Step, rounds: int) -> None:
        number = "warm-up" if step.round == WARM_UP else f"{step.round}/{rounds}"
        text = f"[{number}] {step.case.name}: {step.allocator.name}"
        seconds = min(self.expected(self.left), max(self.most - self.elapsed(), 0.0))
        left = f"about {duration(seconds)} left" if self.took else ""
        done = self.total - len(self.left)
        if console.is_terminal:
            self.progress.update(self.task, description=text.replace("[", r"\["), completed=done, left=left)
            self.progress.refresh()
        elif self.elapsed() - self.said >= LINE_SECONDS:
            self.said = self.elapsed()
            say(", ".join(part for part in (text, f"{done} of {self.total} done", left) if part))

    def leave_out(self, steps: list[Step], settled: set[tuple[str, str]]) -> list[Step]:
        """The steps that are still to be made where these cases, on these allocators, need no further run; for good."""
        left = [step for step in self.left if (step.case.name, step.allocator.name) not in settled]
        self.total -= len(self.left) - len(left)
        self.left = left
        self.progress.update(self.task, total=self.total)
        return [step for step in steps if step in self.left]

    def after(self, step: Step, seconds: float | None) -> None:
        self.left.remove(step)
        if seconds is not None and step.round != WARM_UP:
            self.took[step.case.name, step.allocator.name] = seconds


def duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
