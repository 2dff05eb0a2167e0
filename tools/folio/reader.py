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
from dataclasses import dataclass, replace

import numpy as np

from folio import layout as layouts
from folio.account import ranges_of
from folio.errors import FolioError, ProcessGone
from folio.heap import Bin, BinInfo, Heap
from folio.pages import PageScanner, Ranges
from folio.process import Process
from folio.snapshot import Snapshot
from folio.source import Mapping, Source, StoredPages, StoredSource
from folio.targets import open_source

READINGS_MOST = 4
GOOD_ENOUGH = 0.01
START_SECONDS = 5.0  # by when a program that was just begun is on Folio
STRING_STEP = 64
NOTHING = Ranges(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
KIND_LIMIT, KIND_PATH = 1, 2  # of an option (src/config/options.h)


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
    readable: Ranges  # where something else than zeros may be: the pages, or of a core what it holds
    by_account: bool = False  # the pages are those that Folio accounts for; rss, moved pages and swap are not known


class Reader:
    """Of one process, core file or snapshot. `old_pagemap`: as on a kernel before 6.7."""

    def __init__(self, target: int | str, *, old_pagemap: bool = False) -> None:
        self.process: Source = open_source(target)
        try:
            self.layout = layouts.find(self.process)
        except FolioError:
            self.process.must_live()  # else the error is about what it found half of one program, half of another
            raise
        self.scanner = scanner_of(self.process, old_pagemap)
        self.infos = self._bin_infos()
        self.process.must_live()

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
        try:
            snapshot = Snapshot(self.process, self.layout, self.scanner)
        except (MemoryError, ValueError, IndexError, OverflowError):  # of numbers that are not Folio's
            self.process.must_live()
            raise
        self.process.must_live()  # else what was read last may be zeros, or another program's
        return snapshot

    def view(self) -> Heap:
        return Heap(self.snapshot(), self.infos)

    def reading(self, most: int = READINGS_MOST, *, by_account: bool = False) -> Reading:
        """`most`: how often it is tried, where much moves meanwhile. `by_account`: the pages that Folio accounts for,
        also where the resident ones are known."""
        reading = self._still() if isinstance(self.process, StoredSource) else self._running(most)
        if by_account or not self.process.tells_pages:
            return replace(reading, pages=ranges_of(reading.heap), by_account=True, rss=0)
        return reading

    def _still(self) -> Reading:
        begin = time.monotonic()
        assert isinstance(self.process, StoredSource)
        heap, moved = self.view(), self.process.moved_bytes
        pages, rss = (self.process.pages(), self.process.rss()) if self.process.tells_pages else (NOTHING, 0)
        held = self.process.held() if self.process.has_contents else pages
        return Reading(heap, moved, time.monotonic() - begin, 1, pages, self.process.mappings(), rss, held)

    def _running(self, most: int) -> Reading:
        best: Reading | None = None
        for attempt in range(1, most + 1):
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
                best = Reading(heap, moved, seconds, attempt, pages, mappings, rss, pages)
            if moved <= GOOD_ENOUGH * taken_bytes(heap):
                break
        assert best is not None
        return best

    # ---- Options and counters ----

    def string(self, address: int) -> str:
        """A constant of the library's."""
        text = b""
        while address and b"\0" not in text and len(text) < 4096:
            text += self.process.read(address + len(text), STRING_STEP)
        return text.split(b"\0")[0].decode(errors="replace")

    def options(self) -> list[Option]:
        """Those in force, in the order of docs/options.md."""
        layout = self.layout
        rows = self.process.read(layout.option_rows, layout.option_count * layout.option_row_bytes)
        values = np.frombuffer(self.process.read(layout.options, layout.option_count * 8), dtype=np.int64)
        found = []
        for i in range(layout.option_count):
            # name, which field (its offset), names of values, least, most, unit, help, its kind
            row = np.frombuffer(rows, dtype=np.int64, count=8, offset=i * layout.option_row_bytes)
            value = int(values[int(row[1]) // 8])
            names = self.string(int(row[2])).split("|") if row[2] else []
            kind = int(row[7]) & 0xFF
            unit = "bytes" if kind == KIND_LIMIT else self.string(int(row[5]))  # a limit's says how it is written
            shown = names[value] if 0 <= value < len(names) else f"{value} {unit}"
            if kind == KIND_PATH:  # where it is in the environment; it ends as an option does
                shown = self.string(value).partition(",")[0] or "none"
            found.append(Option(self.string(int(row[0])), value, shown, self.string(int(row[6]))))
        self.process.must_live()
        return found

    def option_strings(self) -> list[tuple[int, int]]:
        """Where the texts are that options() reads: (address, bytes)."""
        layout = self.layout
        rows = self.process.read(layout.option_rows, layout.option_count * layout.option_row_bytes)
        words = np.frombuffer(rows, dtype=np.int64).reshape(layout.option_count, -1)[:, [0, 2, 5, 6]]
        step = STRING_STEP
        return [(at, (len(self.string(at).encode()) // step + 1) * step) for at in words.ravel().tolist() if at]

    def option_paths(self) -> list[tuple[int, bytes]]:
        """Where the paths are among them, in the environment; what follows there is not of interest."""
        layout, step = self.layout, STRING_STEP
        rows = self.process.read(layout.option_rows, layout.option_count * layout.option_row_bytes)
        values = np.frombuffer(self.process.read(layout.options, layout.option_count * 8), dtype=np.int64)
        words = np.frombuffer(rows, dtype=np.int64).reshape(layout.option_count, -1)
        found = [int(values[row[1] // 8]) for row in words if int(row[7]) & 0xFF == KIND_PATH]
        texts = [(at, self.string(at).encode()) for at in found if at]
        return [(at, text.ljust((len(text) // step + 1) * step, b"\0")) for at, text in texts]

    def option(self, name: str) -> Option:
        for option in self.options():
            if option.name == name:
                return option
        raise FolioError(f'this process\'s Folio has no option "{name}": it is of another version; restart it on this')

    def counter(self, name: str) -> int:
        """resident, dirty, purged or purge_calls: what Folio itself counts."""
        data = self.process.read(self.layout.page_counts + getattr(self.layout, f"{name}_offset"), 8)
        self.process.must_live()
        return int.from_bytes(data, "little", signed=True)


def of_new_program(pid: int) -> Reader:
    """A reader of the program that a process has just begun (NewProgram), once Folio is there."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            return Reader(pid)
        except ProcessGone:
            raise
        except FolioError:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


def scanner_of(source: Source, old: bool) -> PageScanner | StoredPages:
    if isinstance(source, StoredSource):
        return StoredPages(source)
    assert isinstance(source, Process)
    return PageScanner(source, old=old)


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
