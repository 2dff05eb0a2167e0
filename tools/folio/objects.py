"""The live objects of a view of the heap, numbered, and found by any address inside of them, millions at a time.

Large, huge and guarded objects come first, by address, then those of the bins: by bin, chunk and slot. An object of a
bin has no entry of its own: its number is that of the first object of its folio plus the count of the set bits below
its own.
"""

from __future__ import annotations

import numpy as np

from folio.heap import FOLIO_OBJECTS, Heap

ONE = np.uint64(1)
NOTHING, BIG = -1, -2  # of a chunk, in place of a row
SELECT_AT_ONCE = 1 << 16  # objects whose bits are unpacked together: 64 bytes each


class Objects:
    def __init__(self, heap: Heap) -> None:
        self.heap = heap
        self.shift = heap.layout.chunk_shift
        self._big(heap)
        self._small(heap)
        self._table(heap)

    # ---- How it is made ----

    def _big(self, heap: Heap) -> None:
        shift = heap.layout.granule_shift
        start = [field.base + (field.first << shift) + field.offset for field in heap.fields]
        end = [field.base + (field.first + field.length << shift) - field.spare for field in heap.fields]
        start.append(heap.huge.base[heap.huge.live])
        end.append(start[-1] + heap.huge.usable[heap.huge.live])
        guarded = [each for each in heap.guarded if each.live]
        start.append(np.array([each.base for each in guarded], dtype=np.int64))
        end.append(np.array([each.base + each.size for each in guarded], dtype=np.int64))
        starts, ends = np.concatenate(start).astype(np.int64), np.concatenate(end).astype(np.int64)
        order = np.argsort(starts)
        self.big_start, self.big_end = starts[order], ends[order]
        self.big_guarded = order >= len(starts) - len(guarded)

    def _small(self, heap: Heap) -> None:
        """A row for each chunk of a bin; the occupancy words of all of them, one after the other."""
        bins = list(heap.bins.values())
        empty = np.zeros(0, dtype=np.int64)
        rows = [len(bin_.chunks) for bin_ in bins]

        def of_bin(values: list[int]) -> np.ndarray:
            return np.repeat(np.array(values, dtype=np.int64), rows)

        self.bin = of_bin([bin_.info.number for bin_ in bins])
        self.size = of_bin([bin_.info.size for bin_ in bins])
        self.slots = of_bin([bin_.info.objects for bin_ in bins])
        self.folios = of_bin([bin_.info.folios for bin_ in bins])
        self.chunk = np.concatenate([empty, *(bin_.chunks for bin_ in bins)])
        self.first = np.concatenate([empty, *(bin_.first for bin_ in bins)])
        self.word = np.cumsum(self.folios) - self.folios
        self.words = np.concatenate([empty.astype(np.uint64), *(bin_.live.reshape(-1) for bin_ in bins)])
        counts = np.bitwise_count(self.words).astype(np.int64)
        self.rank = len(self.big_start) + np.cumsum(counts) - counts
        self.count = len(self.big_start) + int(counts.sum())

    def _table(self, heap: Heap) -> None:
        """For each chunk from the lowest to the highest: its row, BIG, or NOTHING."""
        numbers = [self.chunk >> self.shift]
        rows = [np.arange(len(self.chunk))]
        for start, end in zip(self.big_start >> self.shift, (self.big_end - 1 >> self.shift) + 1, strict=True):
            numbers.append(np.arange(start, end))
            rows.append(np.full(int(end - start), BIG))
        all_numbers, all_rows = np.concatenate(numbers), np.concatenate(rows)
        first = int(all_numbers.min()) if len(all_numbers) else 0
        end = int(all_numbers.max()) + 1 if len(all_numbers) else 0
        self.low, self.span = first << self.shift, end - first << self.shift  # where objects may lie, in bytes
        self.first_chunk = first
        self.table = np.full(end - first, NOTHING, dtype=np.int32)
        self.table[all_numbers - first] = all_rows

    # ---- By address ----

    def near(self, words: np.ndarray) -> np.ndarray:
        """Which words (unsigned) may be addresses of objects; a quick look that all words get."""
        return words - np.uint64(self.low) < np.uint64(self.span)

    def places(self, addresses: np.ndarray) -> np.ndarray:
        """Of the addresses' chunks in the table. All must be near."""
        return (addresses.astype(np.int64) >> self.shift) - self.first_chunk

    def chunks_with(self, numbers: np.ndarray) -> np.ndarray:
        """For each chunk of the table, whether one of the objects lies there."""
        bases = self.bases(numbers)
        edges = np.zeros(len(self.table) + 1, dtype=np.int64)
        np.add.at(edges, self.places(bases), 1)
        np.add.at(edges, self.places(bases + self.sizes(numbers) - 1) + 1, -1)
        return np.cumsum(edges)[:-1] > 0

    def numbers(self, addresses: np.ndarray) -> np.ndarray:
        """Of the objects in which the addresses lie, -1 for none. All must be near."""
        addresses = addresses.astype(np.int64)
        row = self.table[self.places(addresses)]
        if (row >= 0).all():
            return self._in_bins(addresses, row)
        found = np.full(len(addresses), -1, dtype=np.int64)
        small = np.flatnonzero(row >= 0)
        found[small] = self._in_bins(addresses[small], row[small])
        big = np.flatnonzero(row == BIG)
        found[big] = self._in_big(addresses[big])
        return found

    def numbers_in(self, row: int, addresses: np.ndarray) -> np.ndarray:
        """The same, of addresses in the chunk of a row."""
        return self._in_bins(addresses.astype(np.int64), row)

    def _in_bins(self, addresses: np.ndarray, row: np.ndarray | int) -> np.ndarray:
        offset = addresses - self.first[row]
        slot = (offset / self.size[row]).astype(np.int64)  # exact: an offset has few bits
        good = (offset >= 0) & (slot < self.slots[row])
        slot = np.where(good, slot, 0)
        word = self.word[row] + (slot >> 6)
        bits = self.words[word]
        bit = (slot & 63).astype(np.uint64)
        good &= bits >> bit & ONE == ONE
        return np.where(good, self.rank[word] + np.bitwise_count(bits & (ONE << bit) - ONE), -1)

    def _in_big(self, addresses: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.big_start, addresses, side="right") - 1
        return np.where((at >= 0) & (addresses < self.big_end[at]), at, -1)

    def number(self, address: int) -> int:
        """Of one address, which may be any."""
        one = np.array([address], dtype=np.uint64)
        return int(self.numbers(one)[0]) if self.near(one)[0] else -1

    # ---- By number ----

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Of objects of bins: the row of the chunk."""
        word = np.searchsorted(self.rank, numbers, side="right") - 1
        return np.searchsorted(self.word, word, side="right") - 1

    def bases(self, numbers: np.ndarray) -> np.ndarray:
        found = np.empty(len(numbers), dtype=np.int64)
        big = numbers < len(self.big_start)
        found[big] = self.big_start[numbers[big]]
        small = np.flatnonzero(~big)
        for at in range(0, len(small), SELECT_AT_ONCE):
            part = small[at : at + SELECT_AT_ONCE]
            found[part] = self._select(numbers[part])
        return found

    def _select(self, numbers: np.ndarray) -> np.ndarray:
        word = np.searchsorted(self.rank, numbers, side="right") - 1
        row = np.searchsorted(self.word, word, side="right") - 1
        bits = np.unpackbits(self.words[word, None].view(np.uint8), axis=1, bitorder="little")
        wanted = (numbers - self.rank[word] + 1)[:, None]
        bit = (np.cumsum(bits, axis=1, dtype=np.uint8) == wanted).argmax(axis=1)
        slot = (word - self.word[row]) * FOLIO_OBJECTS + bit
        return self.first[row] + slot * self.size[row]

    def sizes(self, numbers: np.ndarray) -> np.ndarray:
        """Usable bytes."""
        big = numbers < len(self.big_start)
        at = np.where(big, numbers, 0)
        found = (self.big_end - self.big_start)[at] if len(self.big_start) else np.zeros(len(numbers), dtype=np.int64)
        if not big.all():
            found = np.where(big, found, self.size[np.where(big, 0, self.rows(numbers))])
        return found

    def bins(self, numbers: np.ndarray) -> np.ndarray:
        """0 for large, huge and guarded ones."""
        big = numbers < len(self.big_start)
        if big.all():
            return np.zeros(len(numbers), dtype=np.int64)
        return np.where(big, 0, self.bin[np.where(big, 0, self.rows(numbers))])

    def in_row(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers and bases of the live objects of a chunk, ascending."""
        first = self.word[row]
        words = self.words[first : first + self.folios[row]]
        slots = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        return self.rank[first] + np.arange(len(slots)), self.first[row] + slots * self.size[row]
