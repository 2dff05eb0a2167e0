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
from folio.leaks import READS_MOST, SETTLED, sizes_shown
from folio.objects import Objects
from folio.reader import Reader
from folio.survey import Survey, View, census, survey, view

KINDS = 128  # more than there are bins and powers of two
SAMPLES, HOLDERS = 3, 3


@dataclass
class Poll:
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


def poll_of(seen: View, codes: np.ndarray, seconds: float) -> Poll:
    keys = codes * np.int64(KINDS) + kinds(seen.objects)
    counts = np.bincount(keys)
    sizes = np.bincount(keys, weights=seen.objects.sizes(np.arange(seen.objects.count))).astype(np.int64)
    there = np.flatnonzero(counts).tolist()
    return Poll(seen, seconds, keys, {k: int(counts[k]) for k in there}, {k: int(sizes[k]) for k in there})


def growing_keys(polls: list[Poll]) -> list[int]:
    """More at each look than before."""

    def grows(key: int) -> bool:
        return all(after.counts.get(key, 0) > before.counts.get(key, 0) for before, after in pairwise(polls))

    return [key for key in polls[-1].counts if grows(key)]


def last_poll(reader: Reader, types: Types | None) -> Survey:
    """Follows pointers, too: again, until that clears no more objects. An array that moves while it is read, as growing
    ones do, leads nowhere, and all that it holds seems to be leaked."""

    def poll() -> Survey:
        seen = view(reader)
        own = types or Types(seen.modules)
        own.modules = seen.modules
        return survey(seen, types=own, parents=True)

    best = poll()
    for _ in range(READS_MOST - 1):
        left = best.reach.missing()
        if left == 0:
            break
        again = poll()
        cleared = left - again.reach.missing()
        if cleared > 0:
            best = again
        if cleared <= SETTLED * left:
            break
    return best


def poll_all(reader: Reader, every: float, times: int) -> tuple[list[Poll], Survey]:
    """The last look also follows pointers. The pause is from the end of a look to the next: one that took longer than
    the pause is not followed by one that finds the heap as it left it."""
    polls: list[Poll] = []
    types: Types | None = None
    begin = time.monotonic()
    for n in range(times - 1):
        if n:
            time.sleep(every)
        seconds = time.monotonic() - begin
        seen = view(reader)
        types = types or Types(seen.modules)
        types.modules = seen.modules
        polls.append(poll_of(seen, census(seen, types), seconds))
    time.sleep(every)
    found = last_poll(reader, types)
    assert found.codes is not None
    polls.append(poll_of(found.view, found.codes, time.monotonic() - begin))
    return polls, found


def groups_of(polls: list[Poll], found: Survey) -> list[Group]:
    first, last = polls[0], polls[-1]
    objects = last.seen.objects
    holders = Holders(found)
    assert found.types is not None
    groups = []
    for key in growing_keys(polls):
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
                [poll.counts.get(key, 0) for poll in polls], [poll.bytes.get(key, 0) for poll in polls],
                int(stayed.sum()), int((~found.reach.reached[numbers]).sum()),
                [{"holder": names[i], "objects": int(by[i])} for i in np.argsort(-by)[:HOLDERS].tolist() if by[i]],
                bases[~stayed][-SAMPLES:].tolist(),
            )
        )  # fmt: skip
    return sorted(groups, key=lambda group: -group.grown)


def show(pid: int, polls: list[Poll], groups: list[Group], rows: int) -> None:
    seconds = polls[-1].seconds
    total = sum(polls[-1].bytes.values()) - sum(polls[0].bytes.values())
    output.say(f"live: {output.size(total)} more within {seconds:.1f} s, {len(polls)} looks", "bold")
    if not groups:
        output.say(f"nothing grew {'at each look' if len(polls) > 2 else 'from the first look to the second'}")
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
    polls, found = poll_all(reader, every, times)
    groups = groups_of(polls, found)
    if json:
        output.as_json(
            {
                "version": 1,
                "pid": pid,
                "command": reader.process.command(),
                "looks": [
                    {"seconds": round(poll.seconds, 3), "objects": sum(poll.counts.values()),
                     "bytes": sum(poll.bytes.values())}
                    for poll in polls
                ],
                "groups": [vars(group) | {"grown": group.grown} for group in groups],
            }
        )  # fmt: skip
    else:
        output.say(output.one_line(reader.process.title()))
        show(pid, polls, groups, rows)
    return 1 if groups else 0
