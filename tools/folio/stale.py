"""How likely it is that a leak is hidden: by a word that was an address once, or never, and happens to lead to it.

Nothing should point to free places of the heap. As many as are pointed to all the same, in a part of the chunks, would
hide a leak that lay there.
"""

from __future__ import annotations

import numpy as np

from folio.objects import Objects
from folio.scan import Touched
from folio.source import PAGE

ROWS_MOST = 2048  # chunks that are looked at
LEFT_OUT = -1


class Stale:
    def __init__(self, objects: Objects, touched: Touched) -> None:
        self.objects, self.touched = objects, touched
        count = len(objects.chunk)
        self.rows = np.unique(np.linspace(0, count - 1, min(count, ROWS_MOST)).astype(np.int64))
        slots = objects.slots[self.rows]
        self.start = np.full(count, LEFT_OUT, dtype=np.int64)  # where the marks of a row's slots begin
        self.start[self.rows] = np.cumsum(slots) - slots
        self.marks = np.zeros(int(slots.sum()), dtype=bool)

    def add(self, words: np.ndarray) -> None:
        """Words that may be addresses in chunks, but are of no live object."""
        objects = self.objects
        addresses = words.astype(np.int64)
        row = objects.table[(addresses >> objects.shift) - objects.first_chunk]
        row, addresses = row[row >= 0], addresses[row >= 0]
        chosen = self.start[row] != LEFT_OUT
        row, addresses = row[chosen], addresses[chosen]
        slot = (addresses - objects.first[row]) // objects.size[row]
        good = (slot >= 0) & (slot < objects.slots[row])
        self.marks[self.start[row[good]] + slot[good]] = True

    def counts(self) -> tuple[int, int]:
        """Free places that something points to, and all of those that were ever touched."""
        objects = self.objects
        pointed = total = 0
        for row in self.rows.tolist():
            slots = int(objects.slots[row])
            first = objects.word[row]
            words = objects.words[first : first + objects.folios[row]]
            free = np.unpackbits(words.view(np.uint8), bitorder="little")[:slots] == 0
            bases = objects.first[row] + np.arange(slots) * objects.size[row]
            free &= self.touched.has(bases // PAGE * PAGE)
            total += int(free.sum())
            pointed += int((free & self.marks[self.start[row] : self.start[row] + slots]).sum())
        return pointed, total
