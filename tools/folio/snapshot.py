"""One copy of all of Folio's metadata in a process, made in bulk.

Metadata lies dense in a few pieces (docs/layout.md), so a copy is a few system calls for each thousand ranges of
touched pages. Pages that nobody touched are not read: they are zeros, and reading them would give the process page
tables that it does not need.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from folio.layout import Layout
from folio.pages import PageScanner
from folio.source import PAGE, Source, StoredPages

PIECES_MOST = 1 << 16
THREADS_MOST = 1 << 20
LONG = 1 << 18  # bytes: what is so long has a system call of its own


@dataclass(frozen=True)
class Piece:
    start: int
    used: int
    reserved: int


class Memory:
    """Copies of address ranges, to be read by address."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        """`ranges`: (address, bytes), whole pages, disjoint."""
        ordered = sorted(ranges)
        self.starts = np.array([start for start, _ in ordered], dtype=np.int64)
        self.lengths = np.array([length for _, length in ordered], dtype=np.int64)
        self.offsets = np.cumsum(self.lengths) - self.lengths
        self.start_list, self.length_list = self.starts.tolist(), self.lengths.tolist()
        self.offset_list = self.offsets.tolist()
        self.bytes = np.zeros(int(self.lengths.sum()), dtype=np.uint8)
        self.words = self.bytes.view(np.uint64)

    def fill(self, process: Source, scanner: PageScanner | StoredPages) -> None:
        for start, length, offset in zip(self.start_list, self.length_list, self.offset_list, strict=True):
            touched = np.array(scanner.readable(start, start + length), dtype=np.int64).reshape(-1, 2)
            long = touched[:, 1] >= LONG
            for address, n in touched[long].tolist():
                to = offset + address - start
                process.read_into(self.bytes[to : to + n], [(address, n)])
            # Many short ones by few system calls, and from there to their places.
            at, buffer = 0, process.read_ranges(touched[~long])
            for address, n in touched[~long].tolist():
                to = offset + address - start
                self.bytes[to : to + n] = buffer[at : at + n]
                at += n

    def offsets_of(self, addresses: np.ndarray, length: int = 8) -> np.ndarray:
        """Where in `bytes` the addresses lie; -1 for those of which not all `length` bytes are here."""
        addresses = np.asarray(addresses, dtype=np.int64)
        if len(self.starts) == 0:
            return np.full(addresses.shape, -1, dtype=np.int64)
        piece = np.clip(np.searchsorted(self.starts, addresses, side="right") - 1, 0, None)
        inside = addresses - self.starts[piece]
        good = (inside >= 0) & (inside + length <= self.lengths[piece])
        return np.where(good, self.offsets[piece] + inside, -1)

    def offset_of(self, address: int, length: int = 8) -> int:
        """The same for one address: chains are walked by it."""
        piece = bisect_right(self.start_list, address) - 1
        inside = address - self.start_list[piece] if piece >= 0 else -1
        if inside < 0 or inside + length > self.length_list[piece]:
            return -1
        return self.offset_list[piece] + inside

    def word(self, address: int) -> int:
        """The 8 bytes at a multiple of 8; 0 for what is not here."""
        at = self.offset_of(address)
        return int(self.words[at // 8]) if at >= 0 and at % 8 == 0 else 0

    def gather(self, addresses: np.ndarray, count: int) -> np.ndarray:
        """`count` words from each of the addresses, as rows; zeros for what is not here."""
        at = self.offsets_of(addresses, count * 8)
        rows = self.words[np.clip(at, 0, None)[:, None] // 8 + np.arange(count)] if len(self.words) else None
        if rows is None:
            return np.zeros((len(at), count), dtype=np.uint64)
        rows[at < 0] = 0
        return rows

    def scatter(self, addresses: np.ndarray, rows: np.ndarray) -> None:
        """Writes a row of words at each of the addresses."""
        at = self.offsets_of(addresses, rows.shape[1] * 8)
        self.words[at[at >= 0, None] // 8 + np.arange(rows.shape[1])] = rows[at >= 0]


class Snapshot:
    """What Folio knows, at (about) one moment."""

    def __init__(self, process: Source, layout: Layout, scanner: PageScanner | StoredPages) -> None:
        self.layout = layout
        self.pieces = read_pieces(process, layout)
        self.metadata = Memory([(piece.start, -(-piece.used // PAGE) * PAGE) for piece in self.pieces])
        self.metadata.fill(process, scanner)
        self.fixed = self._read_fixed(process, scanner)
        self.windows = self._windows()
        # What lies in neither: ((address, length), bytes)
        self.beside: list[tuple[tuple[int, int], np.ndarray]] = []
        self.codes = self._read_codes(process)
        self.cursors = self._read_cursors(process)

    def _read_fixed(self, process: Source, scanner: PageScanner | StoredPages) -> Memory:
        """The arrays of fixed size in the library's data."""
        layout = self.layout
        spans = [
            (layout.windows, layout.window_count * 8),
            (layout.depot, layout.depot_shards * layout.bins * layout.depot_bin_bytes),
            (layout.cpu_caches, layout.cpu_cache_count * 8),
            (layout.page_counts, 64),
            (layout.options, layout.option_count * 8),
            (layout.region_cursor, 8),
            (layout.open_clusters, 16),
            (layout.region_reserved, 8),
            (layout.collect_request, 8),
            (layout.thread_caches, 8),
            (layout.fields, 8),
        ]
        self.fixed_spans = spans
        memory = Memory(whole_pages(spans))
        memory.fill(process, scanner)
        return memory

    def _windows(self) -> list[tuple[int, int]]:
        """(number, address) of each window."""
        layout = self.layout
        at = self.fixed.offset_of(layout.windows, layout.window_count * 8)
        table = self.fixed.words[at // 8 : at // 8 + layout.window_count]
        found = [int(address) for address in table[table != 0]]
        return [(self.metadata.word(address + layout.window_number_offset), address) for address in found]

    def _read_codes(self, process: Source) -> np.ndarray:
        """The codes of the chunk table for each window, as rows; of watched chunks those of their bins."""
        layout, n = self.layout, self.layout.window_chunks
        length = n * layout.chunk_entry_bytes
        rows = [(layout.chunk_table + number % layout.window_count * length, length) for number, _ in self.windows]
        data = process.read_ranges(rows)
        self.beside += zip(rows, data.reshape(len(rows), length), strict=True)
        entries = data.view(f"<u{layout.chunk_entry_bytes}").reshape(len(self.windows), n)
        codes = (entries // layout.chunk_entry_step).astype(np.uint8)
        return np.where(codes < layout.code_watched, codes, codes - layout.code_watched)

    def _read_cursors(self, process: Source) -> np.ndarray:
        """The cursors of each thread that has a cache, as rows. A thread may have ended without a word, and its storage
        be another's: only cursors that name the cache as their owner are its own."""
        layout = self.layout
        self.thread_caches_made = 0
        found: list[tuple[int, int]] = []
        cache = self.fixed.word(layout.thread_caches)
        seen = set[int]()
        while cache and cache not in seen and self.thread_caches_made < THREADS_MOST:
            seen.add(cache)
            self.thread_caches_made += 1
            cursors = self.metadata.word(cache + layout.thread_cache_cursors_offset) & ~1
            if cursors:
                found.append((cache, cursors))
            cache = self.metadata.word(cache + layout.thread_cache_next_offset)
        length = layout.codes * 8 + 8
        rows = process.read_ranges([(cursors, length) for _, cursors in found]).view(np.uint64)
        rows = rows.reshape(len(found), layout.codes + 1)
        caches = np.array([cache for cache, _ in found], dtype=np.uint64)
        own = rows[:, layout.codes] == caches
        rows[~own] = 0  # another's memory by now
        self.beside += [((cursors, length), row.view(np.uint8)) for (_, cursors), row in zip(found, rows, strict=True)]
        self.thread_caches = [int(cache) for cache in caches[own]]  # addresses of those that serve a thread
        return rows[own, : layout.codes]


def read_pieces(process: Source, layout: Layout) -> list[Piece]:
    pieces: list[Piece] = []
    at = process.read_word(layout.metadata_pieces)
    seen = set[int]()
    while at and at not in seen and len(pieces) < PIECES_MOST:
        seen.add(at)
        process.must_hold(at, PAGE)
        header = process.read(at, 64)

        def word(offset: int, header: bytes = header) -> int:
            return int.from_bytes(header[offset : offset + 8], "little")

        reserved = word(layout.metadata_piece_bytes_offset)
        used = min(word(layout.metadata_piece_used_offset), reserved)
        process.must_hold(at, used)
        pieces.append(Piece(at, used, reserved))
        at = word(layout.metadata_piece_previous_offset)
    return pieces


def whole_pages(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pages that hold the spans, as disjoint ranges."""
    merged: list[list[int]] = []
    for start, end in sorted((a // PAGE * PAGE, -(-(a + n) // PAGE) * PAGE) for a, n in spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end - start) for start, end in merged]
