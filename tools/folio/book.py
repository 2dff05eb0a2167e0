"""The book of a profile: of each sample its size, times, thread and stack, and what it stands for.

A sample of S bytes at a mean interval of R stands for 1 / p objects, where p = 1 - exp(-S / R) is how likely it was to
be chosen. Each object is chosen by itself, so a sum over samples of x / p has the variance of the sum of
x^2 (1 - p) / p^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

UNKNOWN_TIME = -1
Z = 1.96
SMALL = 16  # samples; with fewer the error is no ±, but an interval


def chance(size: np.ndarray | float, interval: np.ndarray | float) -> np.ndarray:
    """How likely an object was chosen; 1 where every object is."""
    ratio = np.asarray(size, float) / np.maximum(np.asarray(interval, float), 1e-300)
    return -np.expm1(-np.maximum(ratio, 1e-18))


@dataclass(frozen=True)
class Sum:
    """An estimate: value, variance, of how many samples, and the most that one sample adds to the error."""

    value: float = 0.0
    variance: float = 0.0
    samples: int = 0
    step: float = 0.0

    @property
    def error(self) -> float:
        """One standard error."""
        return math.sqrt(self.variance)

    @property
    def effective(self) -> float:
        """How many samples of equal weight would be as uncertain."""
        return self.value**2 / self.variance if self.variance else math.inf

    @property
    def is_small(self) -> bool:
        return self.effective < SMALL

    def interval(self) -> tuple[float, float]:
        """95 %. Of few samples that of a weighted sum of Poisson numbers [Fay and Feuer 1997], with Byar's bounds."""
        if self.variance == 0 and self.step == 0:
            return self.value, self.value
        if not self.is_small:
            return max(self.value - Z * self.error, 0.0), self.value + Z * self.error
        low = self.value * byar_low(self.effective) / self.effective if self.value else 0.0
        value, variance = self.value + self.step, self.variance + self.step**2
        n = value**2 / variance
        return low, value * byar_high(n) / n


def byar_low(n: float) -> float:
    return n * max(1 - 1 / (9 * n) - Z / (3 * math.sqrt(n)), 0.0) ** 3


def byar_high(n: float) -> float:
    """Of n - 1 that were seen."""
    return n * (1 - 1 / (9 * n) + Z / (3 * math.sqrt(n))) ** 3


def sum_of(each: np.ndarray, chances: np.ndarray, count: np.ndarray) -> Sum:
    """`each`: what one sample says of its own object; `count`: so many samples are alike."""
    weighted = each / chances
    spread = weighted**2 * (1 - chances)
    step = math.sqrt(float(spread.max())) if len(each) else 0.0
    return Sum(float((weighted * count).sum()), float((spread * count).sum()), int(count.sum()), step)


@dataclass
class Columns:
    """The samples of a book as arrays, in the order in which they were seen."""

    number: np.ndarray
    object: np.ndarray
    written_ms: np.ndarray
    freed_ms: np.ndarray  # 0: live; UNKNOWN_TIME: freed, when is not known
    size: np.ndarray
    interval: np.ndarray
    thread: np.ndarray
    stack: np.ndarray
    count: np.ndarray  # of samples that are alike: 1, but for those that are no more and were folded

    def __post_init__(self) -> None:
        self.chance = chance(self.size, self.interval)
        self.live = self.freed_ms == 0
        self.timed = self.freed_ms >= 0

    def __len__(self) -> int:
        return len(self.number)

    def bytes(self, chosen: np.ndarray, weight: np.ndarray | float = 1.0) -> Sum:
        each = self.size[chosen] * (weight if isinstance(weight, float) else weight[chosen])
        return sum_of(each, self.chance[chosen], self.count[chosen])

    def objects(self, chosen: np.ndarray) -> Sum:
        return sum_of(np.ones(int(chosen.sum())), self.chance[chosen], self.count[chosen])


FIELDS = ("number", "object", "written_ms", "freed_ms", "size", "interval", "thread", "stack", "count")


@dataclass
class Book:
    rows: list[list[int]] = field(default_factory=list)  # of FIELDS
    row_of: dict[int, int] = field(default_factory=dict)  # of live ones, by number
    stacks: list[tuple[tuple[int, ...], str]] = field(default_factory=list)  # places, the innermost first; how it ended
    stack_of: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    folded: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def stack_number(self, places: tuple[int, ...], end: str) -> int:
        key = (places, end)
        if key not in self.stack_of:
            self.stack_of[key] = len(self.stacks)
            self.stacks.append(key)
        return self.stack_of[key]

    def add(self, samples: np.ndarray, frames: list[tuple[int, ...]], ends: list[str]) -> None:
        names = FIELDS[1:-2]
        for sample, number, freed, places, end in zip(
            zip(*(samples[name].tolist() for name in names), strict=True),
            (samples["mark"] >> 2).tolist(),
            (samples["mark"] & 3 == 3).tolist(),
            frames,
            ends,
            strict=True,
        ):
            row = [number, *sample, self.stack_number(places, end), 1]
            row[3] = row[3] if freed else 0
            if not freed:
                self.row_of[number] = len(self.rows)
            self.rows.append(row)

    def end(self, numbers: list[int], freed_ms: list[int]) -> None:
        for number, freed in zip(numbers, freed_ms, strict=True):
            at = self.row_of.pop(number, None)
            if at is not None:
                self.rows[at][3] = freed or UNKNOWN_TIME

    def fold(self) -> None:
        """Of what was freed only sums stay, so that a long profile does not grow with time."""
        kept = [row for row in self.rows if row[3] == 0]
        for row in self.rows:
            if row[3] != 0:
                key = (row[4], row[5], row[6], row[7])
                self.folded[key] = self.folded.get(key, 0) + row[8]
        self.rows = kept
        self.row_of = {row[0]: i for i, row in enumerate(kept)}

    def columns(self) -> Columns:
        folded = [[0, 0, 0, UNKNOWN_TIME, *key, count] for key, count in self.folded.items()]
        table = np.array(self.rows + folded, np.int64).reshape(-1, len(FIELDS))
        return Columns(*(table[:, i] for i in range(len(FIELDS))))


def median_life_ms(columns: Columns, now_ms: int) -> tuple[float | None, float]:
    """Kaplan and Meier's median of how long an object lives, by objects; None: more than half outlive what was seen.

    Also the longest age that was seen. Who is live counts as long as it was; who was freed at an unknown time does not.
    """
    known = columns.timed
    end = np.where(columns.live, now_ms, columns.freed_ms)
    age, dead, weight = (end - columns.written_ms)[known], ~columns.live[known], 1 / columns.chance[known]
    if len(age) == 0:
        return None, 0.0
    order = np.lexsort((~dead, age))  # at the same age deaths come first
    age, dead, weight = age[order], dead[order], weight[order]
    at_risk = np.cumsum(weight[::-1])[::-1]
    surviving = np.cumprod(1 - np.where(dead, weight / at_risk, 0.0))
    below = np.flatnonzero(surviving <= 0.5)
    return (float(max(age[below[0]], 0)) if len(below) else None), float(max(age[-1], 0))


def peak_of(columns: Columns) -> tuple[np.ndarray, int]:
    """Of what was sampled: which were live when the most bytes were at once, and when that was (ms).

    Without those that were freed at an unknown time.
    """
    known = columns.timed
    freed = known & ~columns.live
    times = np.concatenate([columns.written_ms[known], columns.freed_ms[freed]])
    if len(times) == 0:
        return known, 0
    each = columns.size / columns.chance
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([each[known], -each[freed]])[order])
    when = int(times[order][int(np.argmax(running))])
    return known & (columns.written_ms <= when) & (columns.live | (columns.freed_ms > when)), when
