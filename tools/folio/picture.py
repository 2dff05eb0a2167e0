"""A picture of a heap as arrays: every chunk as a row of cells, and of each cell how many bytes are resident, live, and
cached. Drawn by folio.map.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from folio.heap import PLACES, Heap
from folio.pages import among
from folio.parts import bytes_by_page, inside, uncounted
from folio.process import PAGE
from folio.reader import Reading

CELLS_MOST = 1 << 18  # in a picture, so that a page stays under 5 MB
CELLS_A_CHUNK = (64, 32, 16, 8, 4, 2, 1)
LARGE, HUGE, GUARDED = -1, -2, -3


@dataclass(frozen=True)
class Picture:
    """Rows are chunks with something resident, ascending by address."""

    chunk_bytes: int
    chunks: np.ndarray  # addresses
    bins: np.ndarray  # number of the bin, LARGE, HUGE or GUARDED
    resident: np.ndarray  # bytes: (chunks, cells), and so the others
    live: np.ndarray
    cached: np.ndarray
    absent: int  # chunks of which nothing is resident

    @property
    def cell_bytes(self) -> int:
        return self.chunk_bytes // self.resident.shape[1] if self.resident.size else self.chunk_bytes


def picture_of(reading: Reading, cells_most: int = CELLS_MOST) -> Picture:
    heap = reading.heap
    pages_a_chunk = heap.layout.chunk_bytes // PAGE
    pages = reading.pages.resident()
    pages = pages[~inside(pages, uncounted(reading.mappings))]
    chunk = pages // pages_a_chunk
    # What is far inside of a huge block has no entry.
    known = np.isin(chunk, heap.numbers) | (heap.huge.holding(pages * PAGE) >= 0)
    rows, row_of_page = np.unique(chunk[known], return_inverse=True)
    there = np.zeros((len(rows), pages_a_chunk), dtype=bool)
    there[row_of_page, pages[known] % pages_a_chunk] = True

    entered = among(heap.numbers, rows)
    codes = np.full(len(rows), heap.layout.code_huge_inside, dtype=np.int64)
    codes[entered] = heap.codes[np.searchsorted(heap.numbers, rows[entered])]
    live = np.zeros(there.shape, dtype=np.int64)
    cached = np.zeros(there.shape, dtype=np.int64)
    for number, bin_ in heap.bins.items():
        mine = np.flatnonzero(codes == number)
        of_bin = np.searchsorted(bin_.chunks, rows[mine] << heap.layout.chunk_shift)
        live[mine] = bytes_by_page(bin_, of_bin, bin_.live[of_bin], pages_a_chunk)
        for place in PLACES:
            cached[mine] += bytes_by_page(bin_, of_bin, bin_.cached[place][of_bin], pages_a_chunk)
    addresses = rows << heap.layout.chunk_shift
    bins = np.where(codes == heap.layout.code_large, LARGE, np.where(codes < heap.layout.code_huge_start, codes, HUGE))
    bins = np.where(codes == heap.layout.code_guarded, GUARDED, bins)
    for each in heap.guarded:
        row = np.flatnonzero(addresses == each.page >> heap.layout.chunk_shift << heap.layout.chunk_shift)
        first = each.page % heap.layout.chunk_bytes // PAGE
        live[row, first : first + heap.guard_page // PAGE] = PAGE if each.live else 0
    add_large(heap, addresses, bins, live, cached)
    live_huge(heap, addresses, bins, live)

    cells = cells_a_chunk(len(rows), cells_most)

    def merged(values: np.ndarray) -> np.ndarray:
        return (values * there).reshape(len(rows), cells, -1).sum(axis=2) if len(rows) else np.zeros((0, cells), int)

    resident = merged(np.full(there.shape, PAGE))
    absent = len(heap.numbers) - int(entered.sum())
    return Picture(heap.layout.chunk_bytes, addresses, bins, resident, merged(live), merged(cached), absent)


def cells_a_chunk(chunks: int, cells_most: int) -> int:
    return next((each for each in CELLS_A_CHUNK if each * chunks <= cells_most), 1)


def add_large(heap: Heap, addresses: np.ndarray, bins: np.ndarray, live: np.ndarray, cached: np.ndarray) -> None:
    """Pages of granules that are taken, by the program or a cache."""
    pages_a_granule = (1 << heap.layout.granule_shift) // PAGE
    for field in heap.fields:
        taken = np.unpackbits(field.taken.view(np.uint8), bitorder="little").astype(bool)
        end = field.base + (field.granules << heap.layout.granule_shift)
        row = np.flatnonzero((bins == LARGE) & (addresses >= field.base) & (addresses < end))
        chunk = (addresses[row] - field.base) // heap.layout.chunk_bytes
        for values, which in ((live, taken & ~field.parked), (cached, taken & field.parked)):
            values[row] = np.repeat(which, pages_a_granule).reshape(-1, live.shape[1])[chunk] * PAGE


def live_huge(heap: Heap, addresses: np.ndarray, bins: np.ndarray, live: np.ndarray) -> None:
    """Pages of blocks that are live, as far as the program may use them."""
    page = np.arange(live.shape[1], dtype=np.int64) * PAGE
    for at in np.flatnonzero(heap.huge.live):
        base, end = int(heap.huge.base[at]), int(heap.huge.base[at] + heap.huge.usable[at])
        row = np.flatnonzero((bins == HUGE) & (addresses + heap.layout.chunk_bytes > base) & (addresses < end))
        where = addresses[row][:, None] + page
        live[row] = ((where >= base) & (where < end)) * PAGE


def over_time(pictures: list[Picture], rows_most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Address against time: (addresses, bins, resident, live, bytes a row), the last two of them (rows, samples), for
    the chunks of all samples."""
    chunks, first = np.unique(np.concatenate([p.chunks for p in pictures]), return_index=True)
    bins = np.concatenate([p.bins for p in pictures])[first]
    chunk_bytes = pictures[0].chunk_bytes
    cells = min(cells_a_chunk(len(chunks), rows_most), *(p.resident.shape[1] for p in pictures))
    resident = np.zeros((len(chunks), cells, len(pictures)), dtype=np.int64)
    live = np.zeros_like(resident)
    for i, picture in enumerate(pictures):
        row = np.searchsorted(chunks, picture.chunks)
        resident[row, :, i] = picture.resident.reshape(len(row), cells, -1).sum(axis=2)
        live[row, :, i] = picture.live.reshape(len(row), cells, -1).sum(axis=2)
    each = chunk_bytes // cells
    addresses = (chunks[:, None] + np.arange(cells) * each).ravel()
    shape = (len(chunks) * cells, len(pictures))
    return addresses, np.repeat(bins, cells), resident.reshape(shape), live.reshape(shape), each
