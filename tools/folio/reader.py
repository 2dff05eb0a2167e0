"""The reader: finds Folio in a process, and makes views of its heap.

A view is made of a snapshot (folio.snapshot) decoded (folio.heap). The process runs on meanwhile, so a reading is two
views, one right after the other, and a look at the resident pages between them. Objects whose state differs between the
two moved while they were read, and their bytes are the error bound of every sum made from the second. A reading whose
bound is more than a hundredth of what it read is made again, up to three times, and the best is used. Beside that bound
up to a bundle of magazines for each thread that is just inside a slow call may be in neither place; its objects count
as live.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from folio import layout as layouts
from folio.errors import FolioError
from folio.heap import Bin, BinInfo, Heap
from folio.pages import PageScanner, Ranges
from folio.process import Mapping, Process
from folio.snapshot import Snapshot

READINGS_MOST = 4
GOOD_ENOUGH = 0.01


@dataclass(frozen=True)
class Option:
    name: str
    value: int
    shown: str  # with its unit, or the value's name
    help: str


@dataclass(frozen=True)
class Reading:
    """A view and how far its sums may be off."""

    heap: Heap  # the second view; its resident words are those of both
    moved_bytes: int  # of objects that changed between the two views
    seconds: float  # for all of it
    readings: int  # how often it was tried
    pages: Ranges  # what is resident of the whole process, looked at between the views
    mappings: list[Mapping]
    rss: int  # at that moment, as the kernel counts it


class Reader:
    """Of one process. `old_pagemap`: as on a kernel before 6.7."""

    def __init__(self, pid: int, *, old_pagemap: bool = False) -> None:
        self.process = Process(pid)
        self.layout = layouts.find(self.process)
        self.scanner = PageScanner(self.process, old=old_pagemap)
        self.infos = self._bin_infos()

    def _bin_infos(self) -> list[BinInfo]:
        layout = self.layout
        data = self.process.read(layout.bin_info, layout.codes * layout.bin_info_bytes)

        def number(code: int, offset: int, size: int) -> int:
            at = code * layout.bin_info_bytes + offset
            return int.from_bytes(data[at : at + size], "little")

        return [
            BinInfo(
                code,
                number(code, layout.bin_info_size_offset, 4),
                number(code, layout.bin_info_objects_offset, 4),
                number(code, layout.bin_info_folios_offset, 2),
                layout.page_words,
            )
            for code in range(1, layout.bins)
        ]

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot(self.process, self.layout, self.scanner)
        self.process.must_live()  # else what was read last may be zeros
        return snapshot

    def view(self) -> Heap:
        return Heap(self.snapshot(), self.infos)

    def reading(self) -> Reading:
        best: Reading | None = None
        for attempt in range(1, READINGS_MOST + 1):
            begin = time.monotonic()
            first = self.snapshot()
            mappings = self.process.mappings()
            rss = self.process.rss()
            pages = self.scanner.scan_all(mappings)
            rss = (rss + self.process.rss()) // 2
            second = self.snapshot()
            seconds = time.monotonic() - begin
            before, heap = Heap(first, self.infos), Heap(second, self.infos)
            moved = moved_bytes(before, heap)
            add_resident(heap, before)
            if best is None or moved < best.moved_bytes:
                best = Reading(heap, moved, seconds, attempt, pages, mappings, rss)
            if moved <= GOOD_ENOUGH * taken_bytes(heap):
                break
        assert best is not None
        return best

    # ---- Options and counters ----

    def string(self, address: int) -> str:
        """A constant of the library's."""
        text = b""
        while address and b"\0" not in text and len(text) < 4096:
            text += self.process.read(address + len(text), 64)
        return text.split(b"\0")[0].decode(errors="replace")

    def options(self) -> list[Option]:
        """Those in force, in the order of docs/options.md."""
        layout = self.layout
        rows = self.process.read(layout.option_rows, layout.option_count * layout.option_row_bytes)
        values = np.frombuffer(self.process.read(layout.options, layout.option_count * 8), dtype=np.int64)
        found = []
        for i in range(layout.option_count):
            # name, which field (its offset), names of values, least, most, unit, help, is it a limit
            row = np.frombuffer(rows, dtype=np.int64, count=8, offset=i * layout.option_row_bytes)
            value = int(values[int(row[1]) // 8])
            names = self.string(int(row[2])).split("|") if row[2] else []
            unit = "bytes" if int(row[7]) & 1 else self.string(int(row[5]))  # a limit's says how it is written
            shown = names[value] if 0 <= value < len(names) else f"{value} {unit}"
            found.append(Option(self.string(int(row[0])), value, shown, self.string(int(row[6]))))
        return found

    def option(self, name: str) -> Option:
        for option in self.options():
            if option.name == name:
                return option
        raise FolioError(f'this process\'s Folio has no option "{name}": it is of another version; restart it on this')

    def counter(self, name: str) -> int:
        """resident, dirty, purged or purge_calls: what Folio itself counts."""
        data = self.process.read(self.layout.page_counts + getattr(self.layout, f"{name}_offset"), 8)
        return int.from_bytes(data, "little", signed=True)


def taken_bytes(heap: Heap) -> int:
    """Of bins and large objects."""
    large = sum(int(np.bitwise_count(field.taken).sum()) for field in heap.fields) << heap.layout.granule_shift
    return large + sum(bin_.count(bin_.taken) * bin_.info.size for bin_ in heap.bins.values())


def add_resident(heap: Heap, before: Heap) -> None:
    """Pages that Folio knew of before or after they were looked at were known when they were."""
    for number, now in heap.bins.items():
        if then := before.bins.get(number):
            here, there = in_both(now, then)
            now.resident[here] |= then.resident[there]
    for now_field, then_field in zip(heap.fields, before.fields, strict=False):  # in the order in which they were made
        now_field.resident |= then_field.resident


def in_both(now: Bin, then: Bin) -> tuple[np.ndarray, np.ndarray]:
    """Which chunks of each are chunks of the other, in the same order. Others were opened, or given back, meanwhile."""
    _, here, there = np.intersect1d(now.chunks, then.chunks, assume_unique=True, return_indices=True)
    return here, there


def moved_bytes(before: Heap, after: Heap) -> int:
    """Bytes of objects that are live, cached or free in one view and something else of it in the other."""
    moved = 0
    for number, now in after.bins.items():
        then = before.bins.get(number)
        if then is None:
            moved += now.count(now.taken) * now.info.size
            continue
        here, there = in_both(now, then)
        moved += now.count(np.delete(now.taken, here, axis=0)) * now.info.size
        for a, b in zip([now.live, *now.cached.values()], [then.live, *then.cached.values()], strict=True):
            moved += now.count(a[here] ^ b[there]) * now.info.size
    for i, field in enumerate(after.fields):
        changed = field.taken ^ before.fields[i].taken if i < len(before.fields) else field.taken
        moved += int(np.bitwise_count(changed).sum()) << after.layout.granule_shift
    huge_before, huge_after = live_huge(before), live_huge(after)
    return moved + sum(
        abs(huge_before.get(block, 0) - huge_after.get(block, 0)) for block in huge_before.keys() | huge_after.keys()
    )


def live_huge(heap: Heap) -> dict[int, int]:
    """Usable bytes of live huge objects, by their descriptor."""
    live = heap.huge.live
    return dict(zip(heap.huge.descriptors[live].tolist(), heap.huge.usable[live].tolist(), strict=True))
