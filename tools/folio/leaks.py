"""`folio leaks`: live objects that nothing points to any more, and those that only such ones point to.

A first look follows all pointers from the roots. What is left are suspects: leaks, but also objects whose pointer was
just being moved, or is in a register. At a second look a suspect that something else points to, whose bytes are
others, or that was freed is none any more.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import Types, type_shown
from folio.reach import Graph
from folio.reader import Reader
from folio.roots import NOT_SEEN
from folio.source import Source
from folio.stale import Stale
from folio.survey import Survey, View, digests, first_words, survey, view

READS_MOST = 5
SETTLED = 0.002  # the share of leaks that a look may clear and still be the last
SAMPLES = 3  # addresses of a group that are shown
# Programs and libraries that write pointers in a form of their own, by the names of their files.
OWN_FORMS = {
    "libjvm.so": "Java compresses",
    "node": "V8 compresses",
    "libv8": "V8 compresses",
    "libluajit": "LuaJIT puts types into",
    "libjavascriptcoregtk": "JavaScriptCore puts types into",
}


@dataclass
class Group:
    """Leaks of one type and size that are held by no other leak, and what they hold. Large ones of about a size."""

    type: str
    size: int  # usable bytes of the smallest
    size_most: int
    objects: int = 0
    bytes: int = 0
    held_objects: int = 0
    held_bytes: int = 0
    samples: list[int] = field(default_factory=list)


@dataclass
class Doubts:
    still: bool  # it is a core: nothing moved, and all registers are there
    threads: int
    running: int
    pointed: int  # of free places that are pointed to all the same
    places: int  # of so many that were looked at
    cleared: int  # suspects of the first look that are no leaks
    cleared_bytes: int
    tagged: int  # leaks that words with something else in them point to, or that such ones hold
    tagged_bytes: int
    swapped: int  # bytes
    own_forms: list[str]


@dataclass
class Leaks:
    groups: list[Group]
    live_objects: int
    live_bytes: int
    looks: int
    looked_at: int  # bytes, in all looks
    settled: bool  # the last look cleared next to nothing; else what is shown may live
    seconds: float
    doubts: Doubts

    def total(self) -> tuple[int, int]:
        """Objects and bytes."""
        each = [(g.objects + g.held_objects, g.bytes + g.held_bytes) for g in self.groups]
        return sum(a for a, _ in each), sum(b for _, b in each)


# ---- Looking ----


def suspects_again(seen: View, bases: np.ndarray, sizes: np.ndarray, digest: np.ndarray) -> np.ndarray:
    """Numbers, in a later view, of the suspects that are live there and the same."""
    objects = seen.objects
    near = objects.near(bases.astype(np.uint64))
    bases, sizes, digest = bases[near], sizes[near], digest[near]
    numbers = objects.numbers(bases.astype(np.uint64))
    there = numbers >= 0
    numbers, bases, sizes, digest = numbers[there], bases[there], sizes[there], digest[there]
    same = (objects.bases(numbers) == bases) & (objects.sizes(numbers) == sizes)
    numbers, digest = numbers[same], digest[same]
    return numbers[digests(seen, objects.bases(numbers)) == digest]


@dataclass
class Search:
    """The last look, and the numbers of the leaks in it."""

    last: Survey
    numbers: np.ndarray
    looks: int
    looked_at: int  # bytes
    settled: bool
    cleared: int  # suspects of the first look that are no leaks
    cleared_bytes: int
    stale: Stale  # of the first look


def search_for(reader: Reader, wait: float) -> Search:
    begin = time.monotonic()
    seen = view(reader)
    stale = Stale(seen.objects, seen.touched)
    found = survey(seen, notice=lambda each: stale.add(each.others))
    numbers = np.flatnonzero(~found.reach.reached)
    first, first_bytes = len(numbers), int(found.view.objects.sizes(numbers).sum())
    looked_at, looks = found.bytes, 1
    settled = len(numbers) == 0
    while looks < READS_MOST and len(numbers):  # of what is reached nothing is a leak later, either
        before = len(numbers)
        bases = np.sort(found.view.objects.bases(numbers))
        sizes = found.view.objects.sizes(found.view.objects.numbers(bases.astype(np.uint64)))
        digest = digests(found.view, bases)
        if not reader.process.still:
            time.sleep(max(0.0, begin + wait - time.monotonic()))
        begin = time.monotonic()
        seen = view(reader)
        reached = np.ones(seen.objects.count, dtype=bool)
        reached[suspects_again(seen, bases, sizes, digest)] = False
        found = survey(seen, reached=reached, tags=True)
        numbers = np.flatnonzero(~found.reach.reached)
        looked_at, looks = looked_at + found.bytes, looks + 1
        settled = len(numbers) == 0 or before - len(numbers) <= SETTLED * len(numbers)
        if settled:
            break
    left = int(found.view.objects.sizes(numbers).sum())
    return Search(found, numbers, looks, looked_at, settled, first - len(numbers), first_bytes - left, stale)


def own_forms(seen: View) -> list[str]:
    names = {mapping.path.rpartition("/")[2] for mapping in seen.reading.mappings if "x" in mapping.flags}
    return sorted({text for key, text in OWN_FORMS.items() if any(name.startswith(key) for name in names)})


def search(reader: Reader, wait: float = 1.0) -> Leaks:
    begin = time.monotonic()
    done = search_for(reader, wait)
    found, numbers = done.last, done.numbers
    objects = found.view.objects
    sources, targets = (np.searchsorted(numbers, each) for each in found.reach.edges())
    graph = Graph(len(numbers), sources, targets)
    tagged = np.zeros(len(numbers), dtype=bool)
    at = np.searchsorted(numbers, found.tagged)
    tagged[at[at < len(numbers)]] = np.isin(found.tagged, numbers)[at < len(numbers)]
    graph.follow(np.flatnonzero(tagged), tagged)
    sizes = objects.sizes(numbers)
    doubts = Doubts(
        reader.process.still, len(found.roots.threads), found.roots.running, *done.stale.counts(), done.cleared,
        done.cleared_bytes, int(tagged.sum()), int(sizes[tagged].sum()), found.view.touched.swapped,
        own_forms(found.view),
    )  # fmt: skip
    groups = grouped(found.view, numbers, sizes, graph, ~tagged)
    live = int(objects.sizes(np.arange(objects.count)).sum())
    return Leaks(
        groups, objects.count, live, done.looks, done.looked_at, done.settled, time.monotonic() - begin, doubts
    )  # fmt: skip


# ---- What holds what ----


def heads_of(graph: Graph, chosen: np.ndarray) -> np.ndarray:
    """The fewest of the chosen from which all of them are reached: those that none of them points to, and one of each
    cycle. What a later one reaches no earlier one needs to be there for."""
    count = len(chosen)
    pointed = np.zeros(count, dtype=bool)
    sources = np.repeat(np.arange(count), np.diff(graph.first))
    pointed[graph.targets[chosen[sources] & (graph.targets != sources)]] = True
    heads = np.flatnonzero(chosen & ~pointed)
    seen = ~chosen
    seen[heads] = True
    graph.follow(heads, seen)
    left = np.flatnonzero(~seen)
    in_cycles: list[int] = []
    for order in (left.tolist(), None):
        starts = in_cycles[::-1] if order is None else order
        in_cycles, marks = [], seen.copy()
        for start in starts:
            if not marks[start]:
                in_cycles.append(start)
                walk(graph, start, marks)
    return np.concatenate([heads, np.array(in_cycles, dtype=np.int64)])


def walk(graph: Graph, start: int, marks: np.ndarray) -> list[int]:
    """What is reached from one object and not marked yet; marks it."""
    marks[start] = True
    found, stack = [], [start]
    while stack:
        at = stack.pop()
        for to in graph.targets[graph.first[at] : graph.first[at + 1]].tolist():
            if not marks[to]:
                marks[to] = True
                found.append(to)
                stack.append(to)
    return found


def grouped(seen: View, numbers: np.ndarray, sizes: np.ndarray, graph: Graph, chosen: np.ndarray) -> list[Group]:
    """Largest first."""
    heads = np.sort(heads_of(graph, chosen))
    types = Types(seen.modules)
    bases = seen.objects.bases(numbers[heads])
    order = np.argsort(bases)
    codes = np.zeros(len(heads), dtype=np.int32)
    codes[order] = types.of(first_words(seen, bases[order]))
    groups: dict[tuple[int, int], Group] = {}
    marks = ~chosen
    marks[heads] = True
    leaf = np.diff(graph.first)[heads] == 0
    big = int(np.searchsorted(numbers, len(seen.objects.big_start)))
    for head, base, code, size, alone in zip(
        heads.tolist(), bases.tolist(), codes.tolist(), sizes[heads].tolist(), leaf.tolist(), strict=True
    ):
        kind = size if head >= big else -size.bit_length()
        group = groups.setdefault((code, kind), Group(types.names[code], size, size))
        group.size, group.size_most = min(group.size, size), max(group.size_most, size)
        group.objects += 1
        group.bytes += size
        if len(group.samples) < SAMPLES:
            group.samples.append(base)
        if not alone:
            held = walk(graph, head, marks)
            group.held_objects += len(held)
            group.held_bytes += int(sizes[held].sum())
    return sorted(groups.values(), key=lambda group: -(group.bytes + group.held_bytes))


# ---- Showing ----


def doubt_lines(doubts: Doubts) -> list[str]:
    lines = []
    if not doubts.still:
        lines.append(
            f"Registers are not seen without stopping the process: up to {NOT_SEEN} objects for each of "
            f"{output.counted(doubts.threads, 'thread')}, and what these hold, could be shown wrongly if nothing else "
            "points to them."
        )
    if doubts.running:
        lines.append(f"{output.counted(doubts.running, 'thread')} ran: old pointers on such a stack may hide leaks.")
    if doubts.cleared:
        lines.append(
            f"Left out: {output.counted(doubts.cleared, 'object')} ({output.size(doubts.cleared_bytes)}) that nothing "
            "pointed to at the first look, but that were moved, changed or freed by a later one."
        )
    if doubts.tagged:
        lines.append(
            f"Left out: {output.counted(doubts.tagged, 'object')} ({output.size(doubts.tagged_bytes)}) that only words "
            "with 16 bits of something else beside the address lead to: they are probably in use."
        )
    lines += [f"{text} pointers: objects that only such ones lead to are shown wrongly." for text in doubts.own_forms]
    lines.append(
        "Pointers that are compressed, XORed, not at a multiple of 8 bytes, or that only the kernel keeps (epoll, "
        "timers) are not known as such."
    )
    if doubts.places:
        lines.append(
            f"Old pointers, and numbers like them, hide leaks: {output.share(doubts.pointed, doubts.places)} of the "
            "free places of the heap are pointed to all the same; a leak in such a place is not shown."
        )
    return lines


def as_dict(source: Source, found: Leaks) -> dict[str, Any]:
    objects, total = found.total()
    return {
        "version": 1,
        "pid": source.pid,
        "source": source.kind,
        "command": source.command(),
        "seconds": round(found.seconds, 3),
        "looks": found.looks,
        "looked_at": found.looked_at,
        "settled": found.settled,
        "live": {"objects": found.live_objects, "bytes": found.live_bytes},
        "leaked": {
            "objects": objects,
            "bytes": total,
            "direct": sum(g.objects for g in found.groups),
            "direct_bytes": sum(g.bytes for g in found.groups),
        },
        "groups": [vars(group) for group in found.groups],
        "doubts": vars(found.doubts) | {"lines": doubt_lines(found.doubts)},
    }


def sizes_shown(least: int, most: int) -> str:
    return f"{least:,}" if least == most else f"{output.size(least)}+"


def show(target: str, found: Leaks, rows: int) -> None:
    objects, total = found.total()
    direct = sum(g.objects for g in found.groups)
    output.say(
        f"{output.counted(objects, 'object')} of {found.live_objects:,} live ones leaked: {output.size(total)} of "
        f"{output.size(found.live_bytes)}" if objects else f"no leak among {found.live_objects:,} live objects",
        "bold",
    )  # fmt: skip
    output.say(
        f"{output.counted(found.looks, 'look')} at {output.size(found.looked_at)} in all, {found.seconds:.1f} s", "dim"
    )
    if not found.settled:
        output.say(
            "not settled: each look cleared more. This is the most that can be leaked; look when it rests", "bold"
        )
    if objects:
        output.say(f"nothing points to {direct:,} of them; these alone point to the other {objects - direct:,}\n")
        table = output.table("type", "bytes", "leaks", "in all", "hold", "for example")
        output.let_wrap(table, 0)
        for group in found.groups[:rows]:
            hold = f"{group.held_objects:,}, {output.size(group.held_bytes)}" if group.held_objects else "–"
            table.add_row(
                type_shown(group.type, 28), sizes_shown(group.size, group.size_most), f"{group.objects:,}",
                output.size(group.bytes), hold, f"{group.samples[0]:#x}",
            )  # fmt: skip
        output.console.print(table)
        if len(found.groups) > rows:
            output.say(f"and {len(found.groups) - rows:,} more groups: --rows {len(found.groups)}", "dim")
    output.say("\nwhat this cannot know", "bold")
    for line in doubt_lines(found.doubts):
        output.indented(line, 2)
    if found.groups:
        output.next_command(f"folio where {target} {found.groups[0].samples[0]:#x} --referrers")
    else:
        further = f"folio leaks {target} --every 60  (what only grows)"
        output.next_command(f"folio census {target}" if found.doubts.still else further)


def leaks(target: str, wait: float, rows: int, json: bool) -> int:
    reader = Reader(target)
    found = search(reader, wait)
    if json:
        output.as_json(as_dict(reader.process, found))
    else:
        output.say(output.one_line(reader.process.title()))
        show(reader.process.target, found, rows)
    return 1 if found.groups and found.settled else 0
