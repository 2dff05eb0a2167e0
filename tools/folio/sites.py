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


def by_stack(profile: Profile, what: str, objects: bool = False) -> dict[int, Sum]:
    """Of each stack that has any."""
    columns = profile.columns
    chosen, weight = profile.masks()[what]
    size = np.ones(len(columns)) if objects else columns.size * weight
    each = (size / columns.chance)[chosen]
    count, stack = columns.count[chosen], columns.stack[chosen]
    spread = each**2 * (1 - columns.chance[chosen])
    n = len(profile.stacks)
    value, variance = (np.bincount(stack, weights=x * count, minlength=n) for x in (each, spread))
    samples = np.bincount(stack, weights=count, minlength=n)
    step = np.zeros(n)
    np.maximum.at(step, stack, np.sqrt(spread))
    return {
        int(i): Sum(float(value[i]), float(variance[i]), int(samples[i]), float(step[i]))
        for i in np.flatnonzero(samples)
    }


def total(profile: Profile, what: str, objects: bool = False) -> Sum:
    chosen, weight = profile.masks()[what]
    return profile.columns.objects(chosen) if objects else profile.columns.bytes(chosen, weight)


def caller(frames: list[Frame]) -> int:
    """Who allocates: the innermost frame that is not an allocator's, a wrapper's or a container's."""
    return next(
        (i for i, frame in enumerate(frames) if not is_glue(frame.function, frame.file)), max(len(frames) - 1, 0)
    )


def key_of(frame: Frame) -> tuple[str, str]:
    return frame.function, frame.module.name if frame.module else ""


@dataclass
class Site:
    """A function that allocates, and what was allocated in it and below it."""

    frame: Frame
    own: dict[str, Sum] = field(default_factory=dict)  # by what
    below: dict[str, Sum] = field(default_factory=dict)  # with what it calls
    path: list[Frame] = field(default_factory=list)  # its callers on the stack with the most
    through: str = ""  # what it called there


def sites(profile: Profile, by: str) -> list[Site]:
    """Sorted by what is `by`, of the function itself."""
    found: dict[tuple[str, str], Site] = {}
    heaviest: dict[tuple[str, str], float] = {}
    for what in WHATS:
        for number, sum_ in by_stack(profile, what).items():
            frames = profile.stacks[number]
            at = caller(frames)
            here = frames[at] if frames else NO_STACK
            for key, frame in {key_of(frame): frame for frame in frames[at:] or [NO_STACK]}.items():
                site = found.setdefault(key, Site(frame))
                site.below[what] = plus(site.below.get(what, Sum()), sum_)
            site = found.setdefault(key_of(here), Site(here))
            site.own[what] = plus(site.own.get(what, Sum()), sum_)
            if what == by and sum_.value > heaviest.get(key_of(here), 0.0):
                heaviest[key_of(here)] = sum_.value
                site.frame = here
                site.path = frames[at + 1 :]
                site.through = short(frames[at - 1].function, 40) if at else ""
    return sorted(found.values(), key=lambda site: -site.own.get(by, Sum()).value)


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
