"""Which pages of a process are resident: by the ioctl PAGEMAP_SCAN (Linux 6.7), else from /proc/PID/pagemap.

Both tell the owner of the process, without privilege. A page of zeros that was only read is mapped, but not resident:
the kernel maps the one page that it has of them. PAGEMAP_SCAN knows these; in the older file they are told by not being
this process's alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from dataclasses import dataclass

import numpy as np

from folio.process import PAGE, Mapping, Process

PRESENT, SWAPPED, ZERO, HUGE = 1 << 3, 1 << 4, 1 << 5, 1 << 6
REGIONS = 1 << 15  # in one call


class ScanArgument(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    )


PAGEMAP_SCAN = 3 << 30 | ctypes.sizeof(ScanArgument) << 16 | ord("f") << 8 | 16


@dataclass(frozen=True)
class Ranges:
    """Sorted, disjoint ranges of pages with something in them. Addresses in bytes."""

    start: np.ndarray
    end: np.ndarray
    categories: np.ndarray

    def within(self, start: int, end: int) -> Ranges:
        """Those of the pages from start to end."""
        low, high = start // PAGE * PAGE, -(-end // PAGE) * PAGE
        chosen = (self.end > low) & (self.start < high)
        cut = np.maximum(self.start[chosen], low), np.minimum(self.end[chosen], high)
        return Ranges(*cut, self.categories[chosen])

    def resident(self) -> np.ndarray:
        """The numbers of the resident pages, ascending."""
        chosen = (self.categories & (PRESENT | ZERO)) == PRESENT
        return expand(self.start[chosen], self.end[chosen])

    def readable(self) -> list[tuple[int, int]]:
        """Ranges (address, bytes) in which something else than zeros may be; neighbours as one."""
        chosen = (self.categories & ZERO) == 0
        start, end = self.start[chosen], self.end[chosen]
        if len(start) == 0:
            return []
        first = np.concatenate(([True], start[1:] != end[:-1]))
        last = np.concatenate((first[1:], [True]))
        return [(int(a), int(b - a)) for a, b in zip(start[first], end[last], strict=True)]


def expand(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Page numbers of ranges of bytes."""
    counts = ((end - start) // PAGE).astype(np.int64)
    if counts.sum() == 0:
        return np.zeros(0, dtype=np.int64)
    first = (start // PAGE).astype(np.int64)
    before = np.cumsum(counts) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum(), dtype=np.int64)


def among(pages: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Which numbers are among the pages, of which there may be millions; these ascend."""
    if len(pages) == 0:
        return np.zeros(len(numbers), dtype=bool)
    at = np.searchsorted(pages, numbers)
    return pages[np.minimum(at, len(pages) - 1)] == numbers


class PageScanner:
    """Scans one process. `old`: by the file alone, as kernels before 6.7 must."""

    def __init__(self, process: Process, *, old: bool = False) -> None:
        self.process = process
        self.old = old
        try:
            self.file = os.open(process.root / "pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise process.failed(error) from None

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        return self.scan(start, end).readable()

    def scan_all(self, mappings: list[Mapping]) -> Ranges:
        return self.scan(0, max((m.end for m in mappings), default=0), mappings)

    def scan(self, start: int, end: int, mappings: list[Mapping] | None = None) -> Ranges:
        """`mappings` (default: asked for) say where to look on an older kernel."""
        if not self.old:
            try:
                return self._scan_by_call(start, end)
            except OSError as error:
                if error.errno not in (errno.ENOTTY, errno.EINVAL):
                    raise self.process.failed(error) from None
                self.old = True
        return self._scan_by_file(start, end, mappings or self.process.mappings())

    def _scan_by_call(self, start: int, end: int) -> Ranges:
        pieces = []
        buffer = np.empty((REGIONS, 3), dtype=np.uint64)
        argument = ScanArgument(
            size=ctypes.sizeof(ScanArgument),
            start=start // PAGE * PAGE,
            end=-(-end // PAGE) * PAGE,
            vec=buffer.ctypes.data,
            vec_len=REGIONS,
            category_anyof_mask=PRESENT | SWAPPED,
            return_mask=PRESENT | SWAPPED | ZERO | HUGE,
        )
        while argument.start < argument.end:
            got = fcntl.ioctl(self.file, PAGEMAP_SCAN, argument)
            pieces.append(buffer[:got].copy())
            # Not walk_end: it stays where the kernel last emptied a buffer of its own, also when it went on to the end.
            if got < REGIONS:
                break
            argument.start = int(buffer[got - 1, 1])
        found = np.concatenate(pieces) if pieces else np.zeros((0, 3), dtype=np.uint64)
        return Ranges(found[:, 0].astype(np.int64), found[:, 1].astype(np.int64), found[:, 2].astype(np.int64))

    def _scan_by_file(self, start: int, end: int, mappings: list[Mapping]) -> Ranges:
        starts, ends, categories = [], [], []
        for mapping in mappings:
            low, high = max(mapping.start, start // PAGE * PAGE), min(mapping.end, -(-end // PAGE) * PAGE)
            if low >= high:
                continue
            words = np.frombuffer(self._pread((high - low) // PAGE * 8, low // PAGE * 8), dtype=np.uint64)
            present, swapped = words >> 63 & 1, words >> 62 & 1
            shared = (words >> 61 & 1 | words >> 56 & 1) == 0  # not a file's, not this process's alone
            kinds = (present * PRESENT + swapped * SWAPPED + (present & shared) * ZERO).astype(np.int64)
            edges = np.flatnonzero(np.diff(kinds, prepend=-1))
            starts.append(low + edges * PAGE)
            ends.append(low + np.append(edges[1:], len(kinds)) * PAGE)
            categories.append(kinds[edges])
        if not starts:
            return Ranges(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        every = Ranges(*(np.concatenate(part) for part in (starts, ends, categories)))
        kept = every.categories != 0
        return Ranges(every.start[kept], every.end[kept], every.categories[kept])

    def _pread(self, length: int, offset: int) -> bytes:
        pieces = []
        while length > 0:
            try:
                piece = os.pread(self.file, min(length, 1 << 24), offset)
            except OSError as error:
                raise self.process.failed(error) from None
            if not piece:
                pieces.append(bytes(length))
                break
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return b"".join(pieces)
