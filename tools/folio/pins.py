"""`folio pins`: which live objects keep resident pages that are mostly free, and what would go back without them.

A page goes back when nothing on it is taken. So each page belongs to those whose objects lie there; its free bytes are
divided among them by the number of their objects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import Types, type_shown
from folio.heap import Bin
from folio.holders import Holders
from folio.pages import among
from folio.parts import bytes_by_page
from folio.reader import Reader
from folio.source import PAGE
from folio.survey import View, survey, view

SAMPLES, NEIGHBOURS = 3, 3
TOGETHER_MOST = 8  # groups on a page that are looked at as neighbours


@dataclass
class Pages:
    """Resident pages that are mostly free, and the live objects on them."""

    number: np.ndarray  # ascending
    free: np.ndarray  # bytes that no live object has
    cached: np.ndarray  # True: there is a free object on it that waits in a magazine
    pair_object: np.ndarray  # an object and the place of a page on which it lies
    pair_page: np.ndarray


@dataclass
class Group:
    bin: int
    size: int
    type: str | None  # None: it is not known, and neither is who holds it
    holder: str | None
    objects: int
    bytes: int  # of the objects
    pinned: int  # free bytes of the pages, its part
    gives: int  # bytes of pages on which there is nothing else
    shared_pages: int
    neighbours: list[dict[str, Any]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)


# ---- Pages ----


def find_pages(seen: View, share: float) -> Pages:
    """`share`: of a page that must be free."""
    heap = seen.reading.heap
    resident = seen.reading.pages.resident()
    found: list[tuple[np.ndarray, ...]] = []
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    row = 0
    for bin_ in heap.bins.values():
        of_bin = bin_pages(bin_, resident, heap.layout.chunk_bytes // PAGE, share)
        found.append(of_bin[:3])
        pairs.append(objects_on(seen, bin_, row, *of_bin))
        row += len(bin_.chunks)
    if not found:
        return Pages(*(np.zeros(0, dtype=np.int64) for _ in range(5)))
    number, free, cached = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(number)
    number, free, cached = number[order], free[order], cached[order]
    objects, pages = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return Pages(number, free, cached, objects, np.searchsorted(number, pages))


def bin_pages(
    bin_: Bin, resident: np.ndarray, per_chunk: int, share: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, free bytes, are there cached objects; and the rows of the chunks."""
    rows = np.arange(len(bin_.chunks))
    live = bytes_by_page(bin_, rows, bin_.live, per_chunk)
    taken = bytes_by_page(bin_, rows, bin_.taken, per_chunk)
    row, page = np.nonzero((taken > 0) & (live <= PAGE * (1 - share)))
    number = bin_.chunks[row] // PAGE + page
    there = among(resident, number)
    row, page, number = row[there], page[there], number[there]
    return number, PAGE - live[row, page], taken[row, page] > live[row, page], row


def objects_on(
    seen: View, bin_: Bin, first_row: int, number: np.ndarray, free: np.ndarray, cached: np.ndarray, row: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a live object and the number of a page on which it lies."""
    del free, cached
    objects, pages = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for each in np.unique(row):
        chosen = number[slice(*np.searchsorted(row, [each, each + 1]))]
        numbers, bases = seen.objects.in_row(first_row + int(each))
        first, last = bases // PAGE, (bases + bin_.info.size - 1) // PAGE
        for further in range(int((last - first).max(initial=0)) + 1):
            page = first + further
            on = (page <= last) & (chosen[np.minimum(np.searchsorted(chosen, page), len(chosen) - 1)] == page)
            objects.append(numbers[on])
            pages.append(page[on])
    return np.concatenate(objects), np.concatenate(pages)


# ---- Groups ----


def kinds(holders: Holders | None, numbers: np.ndarray) -> tuple[np.ndarray, list[Any], np.ndarray, list[Any]]:
    """Of objects the places of their types and of their holders in the lists of names."""
    if holders is None:
        nothing = np.zeros(len(numbers), dtype=np.int64)
        return nothing, [None], nothing, [None]
    assert holders.found.types is not None
    return holders.codes[numbers].astype(np.int64), holders.found.types.names, *holders.of(numbers)


def grouped(seen: View, pages: Pages, holders: Holders | None) -> list[Group]:
    """By bin, type and holder, where these are known; what pins most first."""
    numbers, place = np.unique(pages.pair_object, return_inverse=True)
    if len(numbers) == 0:
        return []
    objects = seen.objects
    codes, type_names, holder, holder_names = kinds(holders, numbers)
    bins, sizes = objects.bins(numbers), objects.sizes(numbers)
    keys = np.stack([bins, codes, holder], axis=1)
    each, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    on_page = np.bincount(pages.pair_page, minlength=len(pages.number))
    part = pages.free[pages.pair_page] / on_page[pages.pair_page]
    pinned = np.bincount(group[place], weights=part, minlength=len(each))
    both = np.unique(pages.pair_page * len(each) + group[place])
    page, of_page = both // len(each), both % len(each)
    groups_on = np.bincount(page, minlength=len(pages.number))
    alone = (groups_on[page] == 1) & ~pages.cached[page]
    gives = np.bincount(of_page[alone], minlength=len(each)) * PAGE
    shared = np.bincount(of_page[~alone], minlength=len(each))
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(each)))
    counts = np.bincount(group, minlength=len(each))
    found = [
        Group(
            int(key[0]), int(sizes[order[starts[i]]]), type_names[int(key[1])], holder_names[int(key[2])],
            int(counts[i]), int(counts[i]) * int(sizes[order[starts[i]]]), round(float(pinned[i])), int(gives[i]),
            int(shared[i]), samples=objects.bases(numbers[order[starts[i] : starts[i] + SAMPLES]]).tolist(),
        )
        for i, key in enumerate(each)
    ]  # fmt: skip
    add_neighbours(found, page, of_page)
    return sorted(found, key=lambda one: -one.pinned)


def add_neighbours(groups: list[Group], page: np.ndarray, of_page: np.ndarray) -> None:
    """Which other groups lie on the same pages, and on how many. `page` ascending."""
    keys = [np.zeros(0, dtype=np.int64)]
    for apart in range(1, TOGETHER_MOST):
        same = page[apart:] == page[:-apart]
        if not same.any():
            break
        a, b = of_page[:-apart][same], of_page[apart:][same]
        keys += [a * len(groups) + b, b * len(groups) + a]
    both, counts = np.unique(np.concatenate(keys), return_counts=True)
    for at in np.argsort(-counts, kind="stable").tolist():
        one, other = groups[int(both[at]) // len(groups)], groups[int(both[at]) % len(groups)]
        if len(one.neighbours) < NEIGHBOURS:
            one.neighbours.append(
                {"type": other.type, "size": other.size, "holder": other.holder, "pages": int(counts[at])}
            )


# ---- Showing ----


def pins(target: str, share: float, rows: int, json: bool) -> int:
    reader = Reader(target)
    source = reader.process
    seen = view(reader, with_contents=source.has_contents)
    pages = find_pages(seen, share / 100)
    holders = None
    if source.has_contents:
        holders = Holders(survey(seen, types=Types(seen.modules), parents=True))
    groups = grouped(seen, pages, holders)
    without = np.bincount(pages.pair_page, minlength=len(pages.number)) == 0
    in_caches = int(without.sum()) * PAGE
    free = int(pages.free.sum())
    if json:
        output.as_json(
            {
                "version": 1,
                "pid": source.pid,
                "source": source.kind,
                "command": source.command(),
                "pages": len(pages.number),
                "free": free,
                "kept_by_caches": in_caches,
                "error_bound": seen.reading.moved_bytes,
                "groups": [vars(group) for group in groups],
            }
        )
        return 0
    output.say(output.one_line(source.title()))
    known = "accounted for" if seen.reading.by_account else "resident"
    output.say(
        f"{len(pages.number):,} pages ({output.size(len(pages.number) * PAGE)}) are {known} and at least {share:g} % "
        f"free: {output.size(free)} of them",
        "bold",
    )
    if groups:
        show(groups, rows)
    if in_caches:
        output.say(f"{output.size(in_caches)} are kept only by free objects in caches, which come and go", "dim")
    output.indented(
        "pinned: the free bytes of these pages, divided among the objects that lie on them. gives: what goes back when "
        "the group's objects go, and nothing else does. "
        + (
            "Who holds an object is one way to it of perhaps several: the nearest object with a type, or the variable "
            "or stack where the way begins."
            if holders
            else f"A {source.kind} has no contents of objects, so their types, and who holds them, are not known: of "
            "the process or a core file they are."
        ),
        0,
        "dim",
    )
    sample = f"doctor {source.target}"
    if groups:
        sample = f"where {source.target} {groups[0].samples[0]:#x}" + (" --referrers" if holders else "")
    output.next_command(f"folio {sample}")
    return 0


def named(name: str | None, most: int) -> str:
    return type_shown(name, most) if name else "not known"


def show(groups: list[Group], rows: int) -> None:
    table = output.table("type", "held by", "bytes", "objects", "pinned", "gives", "beside", left=2)
    table.columns[6].justify = "left"
    output.let_wrap(table, 0, 1, 6)
    for group in groups[:rows]:
        beside = group.neighbours[0] if group.neighbours else None
        text = ""
        if beside:
            text = named(beside["type"], 16) + (f" of {named(beside['holder'], 24)}" if beside["holder"] else "")
        table.add_row(
            named(group.type, 28), named(group.holder, 28), f"{group.size:,}", f"{group.objects:,}",
            output.size(group.pinned), output.size(group.gives), output.one_line(text, 24),
        )  # fmt: skip
    output.console.print(table)
    if len(groups) > rows:
        output.say(f"and {len(groups) - rows:,} more groups: --rows {len(groups)}", "dim")
