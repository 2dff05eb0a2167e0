"""What a profile says of functions, threads and bins: sums over its stacks, with errors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from folio.book import Sum
from folio.profiling import Profile
from folio.symbols import LIBRARIES, START, Frame, is_glue, short

NO_STACK = Frame("[no stack]")
WHATS = ("live", "peak", "allocated", "resident")


def plus(a: Sum, b: Sum) -> Sum:
    return Sum(a.value + b.value, a.variance + b.variance, a.samples + b.samples, max(a.step, b.step))


@dataclass(frozen=True)
class StackSums:
    """Of the stacks that have any, by ascending number."""

    stack: np.ndarray
    value: np.ndarray
    variance: np.ndarray
    samples: np.ndarray
    step: np.ndarray


def stack_sums(profile: Profile, what: str) -> StackSums:
    columns = profile.columns
    chosen, weight = profile.masks()[what]
    each = (columns.size * weight / columns.chance)[chosen]
    count, stack = columns.count[chosen], columns.stack[chosen]
    spread = each**2 * (1 - columns.chance[chosen])
    n = len(profile.stacks)
    value, variance, samples = (
        np.bincount(stack, weights=w, minlength=n) for w in (each * count, spread * count, count)
    )
    step = np.zeros(n)
    np.maximum.at(step, stack, np.sqrt(spread))
    at = np.flatnonzero(samples)
    return StackSums(at, value[at], variance[at], samples[at], step[at])


def by_stack(profile: Profile, what: str) -> dict[int, Sum]:
    """Of each stack that has any."""
    sums = stack_sums(profile, what)
    columns = (sums.value.tolist(), sums.variance.tolist(), sums.samples.astype(int).tolist(), sums.step.tolist())
    return dict(zip(sums.stack.tolist(), map(Sum, *columns), strict=True))


def total(profile: Profile, what: str, objects: bool = False) -> Sum:
    chosen, weight = profile.masks()[what]
    return profile.columns.objects(chosen) if objects else profile.columns.bytes(chosen, weight)


@dataclass
class Site:
    """A function that allocates, and what was allocated in it and below it."""

    frame: Frame
    own: dict[str, Sum] = field(default_factory=dict)  # by what
    below: dict[str, Sum] = field(default_factory=dict)  # with what it calls
    path: list[Frame] = field(default_factory=list)  # its callers on the stack with the most
    through: str = ""  # what it called there


class Functions:
    """Numbers of the functions on the stacks, and whether they are glue. Stacks share frames: of each it is found out
    once, and known by its identity."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, str], int] = {}
        self.known: dict[int, tuple[int, bool]] = {}

    def of(self, frames: list[Frame]) -> list[tuple[int, bool]]:
        found = list(map(self.known.get, map(id, frames)))
        return found if None not in found else [self._one(frame) for frame in frames]  # type: ignore[return-value]

    def _one(self, frame: Frame) -> tuple[int, bool]:
        if id(frame) not in self.known:
            key = frame.function, frame.module.name if frame.module else ""
            number = self.by_key.setdefault(key, len(self.by_key))
            self.known[id(frame)] = number, is_glue(frame.function, frame.file)
        return self.known[id(frame)]


class StackSites:
    """Of each stack the functions from the one that allocates on, each once."""

    def __init__(self, stacks: list[list[Frame]]) -> None:
        functions = Functions()
        self.callers: list[
            int
        ] = []  # who allocates: the innermost frame that is no allocator's, wrapper's, container's
        self.last: list[dict[int, Frame]] = []  # the outermost frame of each function, the innermost function first
        for frames in stacks:
            frames = frames or [NO_STACK]
            found = functions.of(frames)
            at = next((i for i, (_, glue) in enumerate(found) if not glue), len(found) - 1)
            self.callers.append(at)
            self.last.append({number: frame for (number, _), frame in zip(found[at:], frames[at:], strict=True)})
        self.count = len(functions.by_key)
        self.own = np.array([next(iter(last)) for last in self.last], np.int64)
        self.lengths = np.array([len(last) for last in self.last], np.int64)
        self.first = np.cumsum(self.lengths) - self.lengths
        self.functions = np.array([number for last in self.last for number in last], np.int64)

    def pairs(self, stacks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A function and the place in `stacks` of a stack on which it is, in the order of these."""
        lengths = self.lengths[stacks]
        place = np.repeat(np.arange(len(stacks)), lengths)
        return self.functions[np.arange(len(place)) + (self.first[stacks] - np.cumsum(lengths) + lengths)[place]], place


def summed(count: int, function: np.ndarray, sums: StackSums, place: np.ndarray) -> list[Sum | None]:
    """By function; None: it has no sample."""
    value, variance, samples = (
        np.bincount(function, weights=each[place], minlength=count)
        for each in (sums.value, sums.variance, sums.samples)
    )
    step = np.zeros(count)
    np.maximum.at(step, function, sums.step[place])
    rows = zip(value.tolist(), variance.tolist(), samples.astype(int).tolist(), step.tolist(), strict=True)
    return [Sum(*row) if row[2] else None for row in rows]


def sites(profile: Profile, by: str) -> list[Site]:
    """Sorted by what is `by`, of the function itself."""
    on = StackSites(profile.stacks)
    found: dict[int, Site] = {}
    for what in WHATS:
        sums = stack_sums(profile, what)
        for stack in sums.stack.tolist():
            for number, frame in on.last[stack].items():
                if number not in found:
                    found[number] = Site(frame)
        function, place = on.pairs(sums.stack)
        below = summed(on.count, function, sums, place)
        own = summed(on.count, on.own[sums.stack], sums, np.arange(len(sums.stack)))
        for number, site in found.items():
            if (sum_ := below[number]) is not None:
                site.below[what] = sum_
            if (sum_ := own[number]) is not None:
                site.own[what] = sum_
        if what == by:
            show_heaviest(profile, on, sums, found)
    return sorted(found.values(), key=lambda site: -site.own.get(by, Sum()).value)


def show_heaviest(profile: Profile, on: StackSites, sums: StackSums, found: dict[int, Site]) -> None:
    """Each site as it is on its stack with the most."""
    heaviest: dict[int, tuple[float, int]] = {}
    for stack, number, value in zip(sums.stack.tolist(), on.own[sums.stack].tolist(), sums.value.tolist(), strict=True):
        if value > heaviest.get(number, (0.0, 0))[0]:
            heaviest[number] = value, stack
    for number, (_, stack) in heaviest.items():
        frames, at, site = profile.stacks[stack], on.callers[stack], found[number]
        site.frame = frames[at] if frames else NO_STACK
        site.path = frames[at + 1 :]
        site.through = short(frames[at - 1].function, 40) if at else ""


def grouped(profile: Profile, what: str, key: Callable[[int], Hashable]) -> dict[Hashable, Sum]:
    """Bytes by a property of the sample in each row, the largest first."""
    columns = profile.columns
    chosen, weight = profile.masks()[what]
    names: dict[Hashable, list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        names.setdefault(key(row), []).append(row)
    found = {}
    for name, rows in names.items():
        mask = np.zeros(len(columns), bool)
        mask[rows] = True
        found[name] = columns.bytes(mask, weight)
    return dict(sorted(found.items(), key=lambda item: -item[1].value))


def by_thread(profile: Profile, what: str) -> dict[Hashable, Sum]:
    threads = profile.columns.thread

    def name(row: int) -> str:
        number = int(threads[row])
        return f"{profile.threads.get(number) or 'ended'} ({number})"

    return grouped(profile, what, name)


def by_bin(profile: Profile, what: str) -> dict[Hashable, Sum]:
    sizes = profile.columns.size
    return grouped(profile, what, lambda row: profile.bin_of(int(sizes[row])))


def callers(frames: Iterable[Frame]) -> list[str]:
    """Without what starts programs and threads, and what only passes calls on."""
    reported = (f for f in frames if not START.match(f.function) and not LIBRARIES.search(f.file))
    return [short(frame.function, 40) for frame in reported]
