"""Pages as Folio accounts for them, for where the kernel does not tell which were resident.

Folio marks a page when an object on it is taken, and clears the mark when it purges the page. Of the marked pages
those are not resident that the program never touched, or that were swapped out. What the kernel gave beyond them, with
a huge page, has no mark.
"""

from __future__ import annotations

import numpy as np

from folio.heap import Heap
from folio.pages import PRESENT, Ranges
from folio.source import PAGE

HUGE_MOST = 1 << 42


def pages_of(heap: Heap) -> np.ndarray:
    """Numbers of the pages, ascending: of objects, and of metadata in use."""
    found = []
    for bin_ in heap.bins.values():
        row, page = np.nonzero(bits_of(bin_.resident))
        found.append(bin_.chunks[row] // PAGE + page)
    shift = heap.layout.granule_shift
    for field in heap.fields:
        granule = np.flatnonzero(bits_of(field.resident[None])[0])
        found.append(spread((field.base + (granule << shift)) // PAGE, (1 << shift) // PAGE))
    huge = heap.huge
    lengths = np.where(huge.live, huge.usable, huge.touched)
    if (lengths > HUGE_MOST).any():
        raise ValueError(f"a huge object of {lengths.max()} bytes")
    for base, length in zip(huge.base, lengths, strict=True):
        found.append(np.arange(base // PAGE, -(-(base + length) // PAGE)))
    found += [np.arange(each.page // PAGE, (each.page + heap.guard_page) // PAGE) for each in heap.guarded if each.live]
    for piece in heap.snapshot.pieces:
        found.append(np.arange(piece.start // PAGE, -(-(piece.start + piece.used) // PAGE)))
    return np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *found]))


def bits_of(words: np.ndarray) -> np.ndarray:
    """Of rows of words, rows of bits."""
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")


def spread(first: np.ndarray, count: int) -> np.ndarray:
    return (first[:, None] + np.arange(count)).ravel()


def ranges_of(heap: Heap) -> Ranges:
    pages = pages_of(heap)
    edge = np.flatnonzero(np.diff(pages, prepend=-2) != 1)
    last = np.append(edge[1:], len(pages)) - 1
    start, end = pages[edge] * PAGE, (pages[last] + 1) * PAGE if len(pages) else pages
    return Ranges(start, end, np.full(len(edge), PRESENT, dtype=np.int64))
