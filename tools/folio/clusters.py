"""Huge pages: what they cost and save, and which clusters could be one.

A huge page backs a cluster: neighbouring chunks, of whatever bins, or that no bin has yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from folio.heap import Bin, Heap
from folio.pages import HUGE, Ranges, among, expand
from folio.source import PAGE

DENSITIES = (("7/8 and more", 7 / 8), ("1/2 to 7/8", 1 / 2), ("1/4 to 1/2", 1 / 4), ("less than 1/4", 0))
DENSE_SHARE = 32  # a chunk of which no more than this share is free or not there is dense (src/store/collapse.cc)


@dataclass
class HugePages:
    """Those under chunks of small objects, and what they cost and save. `known`: the kernel tells (Linux 6.7)."""

    known: bool = False
    by_density: dict[str, int] = field(default_factory=lambda: dict.fromkeys(dict(DENSITIES), 0))  # share in use
    free: int = 0  # bytes of their pages that no taken object touches: smaller pages could give them back
    dense: int = 0  # clusters of small pages that are dense enough for one
    others: int = 0  # under large and huge objects
    entries_saved: int = 0  # of page tables, which the processor would have to look up and keep

    @property
    def count(self) -> int:
        return sum(self.by_density.values())


class Clusters:
    """Those in which Folio has chunks, ascending, and what bins have of each."""

    def __init__(self, heap: Heap, ranges: Ranges, *, known: bool) -> None:
        """`known`: the kernel tells which are huge pages."""
        layout = heap.layout
        self.heap, self.shift = heap, layout.cluster_shift
        self.bytes = 1 << layout.cluster_shift
        up = layout.cluster_shift - layout.chunk_shift
        self.chunks = 1 << up
        self.open = open_chunks(heap)
        self.numbers = np.unique(np.concatenate([heap.numbers, self.open]) >> up)
        self.of_chunk = np.searchsorted(self.numbers, heap.numbers >> up)
        self.all_huge = huge_clusters(ranges, self.bytes) if known else np.zeros(0, dtype=np.int64)
        self.huge = np.isin(self.numbers, self.all_huge)
        count = len(self.numbers)
        self.of_bins = np.ones(count, dtype=bool)  # nothing else is there
        self.of_bins[self.of_chunk[heap.codes >= layout.bins]] = False
        self.used = np.zeros(count, dtype=np.int64)  # bytes of taken objects
        self.kept = np.zeros(count, dtype=np.int64)  # pages that one of them touches
        self.dense = np.zeros(count, dtype=np.int64)  # chunks

    def add(self, bin_: Bin, rows: np.ndarray, at: np.ndarray, present: np.ndarray, used: np.ndarray) -> None:
        """Chunks of a bin: their rows there, their clusters, their pages that are resident and the bytes that are
        taken of each."""
        kept = used > 0
        np.add.at(self.used, at, used.sum(axis=1, dtype=np.int64))
        np.add.at(self.kept, at, kept.sum(axis=1))
        if bin_.info.size >= PAGE:
            return  # the pages of larger ones go one by one
        first = (bin_.first[rows] - bin_.chunks[rows])[:, None]
        page = np.arange(present.shape[1]) * PAGE
        in_use = (page + PAGE > first) & (page < first + bin_.info.size * bin_.info.objects)
        spare = (in_use & ~(present & kept)).sum(axis=1)
        np.add.at(self.dense, at, spare <= in_use.sum(axis=1) // DENSE_SHARE)

    def beside(self, pages: np.ndarray) -> np.ndarray:
        """Which pages, of no chunk, are Folio's all the same: of a huge page, or of an open cluster."""
        huge = among(self.numbers[self.huge], pages * PAGE >> self.shift)
        return huge | np.isin(pages * PAGE >> self.heap.layout.chunk_shift, self.open)

    def huge_pages(self) -> HugePages:
        """After all bins were added."""
        found = HugePages(known=True)
        mine = self.huge & self.of_bins
        shares = self.used[mine] / self.bytes
        least = np.array([least for _, least in DENSITIES])
        classes = np.bincount((shares[:, None] < least).sum(axis=1), minlength=len(DENSITIES))
        found.by_density = {name: int(count) for (name, _), count in zip(DENSITIES, classes, strict=True)}
        found.free = int(mine.sum()) * self.bytes - int(self.kept[mine].sum()) * PAGE
        found.dense = int((~self.huge & (self.dense == self.chunks)).sum())
        # What is far inside of a huge block has no chunk of its own.
        inside = self.heap.huge.holding(self.all_huge << self.shift) >= 0
        total = int((inside | np.isin(self.all_huge, self.numbers)).sum())
        found.others = total - found.count
        found.entries_saved = total * (self.bytes // PAGE - 1)
        return found


def open_chunks(heap: Heap) -> np.ndarray:
    """Numbers of the chunks that are left of the open clusters."""
    layout, fixed = heap.layout, heap.snapshot.fixed
    most = 1 << layout.cluster_shift - layout.chunk_shift
    words = [fixed.word(layout.open_clusters + offset) for offset in (0, 8)]
    return np.concatenate([(word >> 32) + np.arange(min(word & 0xFFFFFFFF, most)) for word in words])


def huge_clusters(ranges: Ranges, cluster_bytes: int) -> np.ndarray:
    """Numbers of all of the process's, ascending."""
    chosen = (ranges.categories & HUGE) != 0
    first, end = -(-ranges.start[chosen] // cluster_bytes), ranges.end[chosen] // cluster_bytes
    return expand(first * PAGE, np.maximum(first, end) * PAGE)
