"""`folio leaks --every`: what only grows. A list that is never shortened is no leak to those who follow pointers; it is
to those who pay for the memory."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import Types, type_shown
from folio.holders import Holders
from folio.leaks import LOOKS_MOST, SETTLED, sizes_shown
from folio.objects import Objects
from folio.reader import Reader
from folio.survey import Survey, View, census, survey, view

KINDS = 128  # more than there are bins and powers of two
SAMPLES, HOLDERS = 3, 3


@dataclass
class Look:
    seen: View
    seconds: float  # since the first
    keys: np.ndarray  # of each object: type and kind of size
    counts: dict[int, int]
    bytes: dict[int, int]


@dataclass
class Group:
    type: str
    size: int
    size_most: int
    counts: list[int]  # at each look
    bytes: list[int]
    stayed: int  # objects of the first look that are still there
    leaked: int  # objects that nothing pointed to at the last look
    held_by: list[dict[str, Any]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # that came last

    @property
    def grown(self) -> int:
        return self.bytes[-1] - self.bytes[0]


def kinds(objects: Objects) -> np.ndarray:
    """By bin; large and huge ones by the power of two."""
    numbers = np.arange(objects.count)
    powers = np.frexp(objects.sizes(numbers).astype(np.float64))[1]
    bins = objects.bins(numbers)
    return np.where(bins > 0, bins, KINDS - 64 + powers)


def look_at(seen: View, codes: np.ndarray, seconds: float) -> Look:
    keys = codes * np.int64(KINDS) + kinds(seen.objects)
    counts = np.bincount(keys)
    sizes = np.bincount(keys, weights=seen.objects.sizes(np.arange(seen.objects.count))).astype(np.int64)
    there = np.flatnonzero(counts).tolist()
    return Look(seen, seconds, keys, {k: int(counts[k]) for k in there}, {k: int(sizes[k]) for k in there})


def growing_keys(looks: list[Look]) -> list[int]:
    """More at each look than before."""

    def grows(key: int) -> bool:
        return all(after.counts.get(key, 0) > before.counts.get(key, 0) for before, after in pairwise(looks))

    return [key for key in looks[-1].counts if grows(key)]


def last_look(reader: Reader, types: Types | None) -> Survey:
    """Follows pointers, too: again, until that clears no more objects. An array that moves while it is read, as growing
    ones do, leads nowhere, and all that it holds seems to be leaked."""

    def look() -> Survey:
        seen = view(reader)
        own = types or Types(seen.modules)
        own.modules = seen.modules
        return survey(seen, types=own, parents=True)

    best = look()
    for _ in range(LOOKS_MOST - 1):
        left = best.reach.missing()
        if left == 0:
            break
        again = look()
        cleared = left - again.reach.missing()
        if cleared > 0:
            best = again
        if cleared <= SETTLED * left:
            break
    return best


def look_on(reader: Reader, every: float, times: int) -> tuple[list[Look], Survey]:
    """The last look also follows pointers."""
    looks: list[Look] = []
    types: Types | None = None
    begin = time.monotonic()
    for n in range(times - 1):
        time.sleep(max(0.0, begin + n * every - time.monotonic()))
        seconds = time.monotonic() - begin
        seen = view(reader)
        types = types or Types(seen.modules)
        types.modules = seen.modules
        looks.append(look_at(seen, census(seen, types), seconds))
    time.sleep(max(0.0, begin + (times - 1) * every - time.monotonic()))
    found = last_look(reader, types)
    assert found.codes is not None
    looks.append(look_at(found.view, found.codes, time.monotonic() - begin))
    return looks, found


def groups_of(looks: list[Look], found: Survey) -> list[Group]:
    first, last = looks[0], looks[-1]
    objects = last.seen.objects
    holders = Holders(found)
    assert found.types is not None
    groups = []
    for key in growing_keys(looks):
        numbers = np.flatnonzero(last.keys == key)
        before = np.sort(first.seen.objects.bases(np.flatnonzero(first.keys == key)))
        bases = objects.bases(numbers)
        stayed = np.isin(bases, before, assume_unique=True)
        fresh = numbers[~stayed]
        at, names = holders.of(fresh)
        by = np.bincount(at, minlength=len(names))
        sizes = objects.sizes(numbers)
        groups.append(
            Group(
                found.types.names[key // KINDS], int(sizes.min()), int(sizes.max()),
                [look.counts.get(key, 0) for look in looks], [look.bytes.get(key, 0) for look in looks],
                int(stayed.sum()), int((~found.reach.reached[numbers]).sum()),
                [{"holder": names[i], "objects": int(by[i])} for i in np.argsort(-by)[:HOLDERS].tolist() if by[i]],
                bases[~stayed][-SAMPLES:].tolist(),
            )
        )  # fmt: skip
    return sorted(groups, key=lambda group: -group.grown)


def show(pid: int, looks: list[Look], groups: list[Group], rows: int) -> None:
    seconds = looks[-1].seconds
    total = sum(looks[-1].bytes.values()) - sum(looks[0].bytes.values())
    output.say(f"live: {output.size(total)} more within {seconds:.1f} s, {len(looks)} looks", "bold")
    if not groups:
        output.say(f"nothing grew {'at each look' if len(looks) > 2 else 'from the first look to the second'}")
    else:
        table = output.table("type", "held by", "bytes", "first", "last", "grew by", "stayed", left=2)
        output.let_wrap(table, 0, 1)
        for group in groups[:rows]:
            holder = group.held_by[0]["holder"] if group.held_by else ""
            table.add_row(
                type_shown(group.type, 26), type_shown(holder, 26),
                sizes_shown(group.size, group.size_most), f"{group.counts[0]:,}", f"{group.counts[-1]:,}",
                output.size(group.grown), output.share(group.stayed, group.counts[0]) if group.counts[0] else "–",
            )  # fmt: skip
        output.console.print(table)
        if len(groups) > rows:
            output.say(f"and {len(groups) - rows:,} more groups: --rows {len(groups)}", "dim")
        output.indented(
            "held by: what most of the new ones hang on. stayed: of the objects at the first look, those that are "
            "still there. What grows may shrink later: more looks (--times), and longer ones (--every), tell more.",
            0, "dim",
        )  # fmt: skip
    output.next_command(f"folio leaks {pid}  (what nothing points to)")


def growing(target: str, every: float, times: int, rows: int, json: bool) -> int:
    reader = Reader(target)
    reader.process.must_be_running("--every")
    pid = reader.process.pid
    looks, found = look_on(reader, every, times)
    groups = groups_of(looks, found)
    if json:
        output.as_json(
            {
                "version": 1,
                "pid": pid,
                "command": reader.process.command(),
                "looks": [
                    {"seconds": round(look.seconds, 3), "objects": sum(look.counts.values()),
                     "bytes": sum(look.bytes.values())}
                    for look in looks
                ],
                "groups": [vars(group) | {"grown": group.grown} for group in groups],
            }
        )  # fmt: skip
    else:
        output.say(output.one_line(reader.process.title()))
        show(pid, looks, groups, rows)
    return 1 if groups else 0
