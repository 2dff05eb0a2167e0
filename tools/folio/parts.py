"""Resident memory as parts that sum to it.

Every resident page of the process belongs to one owner: a chunk of a bin, a huge block, a piece of metadata, Folio's
own code and data, or something that is not Folio's. A page of a chunk is split by its objects:

    live         bytes of objects that the program holds
    cached       bytes of free objects in a magazine: of a thread, a CPU, or the depot
    dirty        the page could go: no object that touches it is taken
    padding      as dirty, but Folio never touched it: the kernel gave it with a larger page
    fragmented   the rest: free, on a page that a taken neighbour keeps

A taken object counts with the pages that are resident only: what was never touched, or was swapped out, is not here.

Where the kernel does not tell what was resident (of a core), the pages are those that Folio accounts for
(folio.account): there is no padding then, nothing that is not Folio's, and `rss` is the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from folio.clusters import Clusters, HugePages
from folio.heap import FOLIO_OBJECTS, PLACES, Bin, Heap
from folio.pages import PRESENT, ZERO, Ranges, expand
from folio.reader import Reader, Reading
from folio.source import PAGE, Mapping

NOT_COUNTED = ("[vvar", "/anon_hugepage")
COUNTED_DEVICES = ("/dev/zero", "/dev/shm/")
SUM_TOLERANCE = 0.01
MOVED = "mapped while it was read"
RESIDENT_ONLY = ("padding", "own", "not_folio")  # parts that Folio does not account for

TITLES = {
    "live": "live",
    "cached_threads": "cached in threads",
    "cached_cpus": "cached in CPUs",
    "cached_depot": "cached in the depot",
    "fragmented": "fragmented",
    "dirty": "dirty",
    "metadata": "metadata",
    "padding": "padding",
    "own": "Folio's code and data",
    "not_folio": "not Folio's",
}


@dataclass
class BinParts:
    """Of one bin; bytes that are resident, but for `held` and `address_space`."""

    number: int
    size: int
    chunks: int
    taken: int  # objects
    live_objects: int
    cached_objects: dict[str, int]
    live: int = 0
    cached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    dirty: int = 0
    fragmented: int = 0
    padding: int = 0

    @property
    def resident(self) -> int:
        return self.live + sum(self.cached.values()) + self.dirty + self.fragmented + self.padding


@dataclass
class RunParts:
    """Of large or huge objects; bytes that are resident, but for `objects`."""

    objects: int = 0  # live ones
    live: int = 0
    dirty: int = 0
    padding: int = 0
    cached: int = 0  # of large ones, by threads and in CPU caches
    cached_by_threads: int = 0  # of these


@dataclass
class Parts:
    """All in bytes. The parts are `values()`; with `unexplained` they sum to `rss` exactly."""

    rss: int
    large: RunParts
    huge: RunParts
    metadata: int
    metadata_kinds: dict[str, int]
    own: int
    foreign: dict[str, int]  # by mapping
    bins: list[BinParts]
    moved: int  # of the sums, how far they may be off for what moved while it was read
    seconds: float
    threads: int
    reserved: int  # address space for chunks and huge blocks
    swapped: int
    huge_pages: HugePages = field(default_factory=HugePages)
    mappings: list[Mapping] = field(default_factory=list, repr=False)  # all of the process
    foreign_at: dict[int, int] = field(default_factory=dict, repr=False)  # what is not Folio's, by start of the mapping
    by_account: bool = False  # see above
    guarded: RunParts = field(default_factory=RunParts)
    beside: int = 0  # padding: pages of clusters that are of no chunk, or of one that was not handed out

    def sum_of(self, what: str) -> int:
        """live, dirty or padding, of all objects."""
        return sum(getattr(each, what) for each in [*self.bins, self.large, self.huge, self.guarded])

    def cached(self, place: str) -> int:
        by_threads = self.large.cached_by_threads
        large = {"thread": by_threads, "cpu": self.large.cached - by_threads}
        return sum(bin_.cached[place] for bin_ in self.bins) + large.get(place, 0)

    def values(self) -> dict[str, int]:
        values = {
            "live": self.sum_of("live"),
            "cached_threads": self.cached("thread"),
            "cached_cpus": self.cached("cpu"),
            "cached_depot": self.cached("depot"),
            "fragmented": sum(bin_.fragmented for bin_ in self.bins),
            "dirty": self.sum_of("dirty"),
            "metadata": self.metadata,
            "padding": self.sum_of("padding") + self.beside,
            "own": self.own,
            "not_folio": sum(self.foreign.values()),
        }
        return {key: value for key, value in values.items() if not (self.by_account and key in RESIDENT_ONLY)}

    @property
    def unexplained(self) -> int:
        return self.rss - sum(self.values().values())

    @property
    def exact(self) -> bool:
        """Whether the parts sum to RSS, or nearly so."""
        return abs(self.unexplained) <= SUM_TOLERANCE * self.rss

    @property
    def folio(self) -> int:
        """What Folio answers for: all but what is not its own."""
        values = self.values()
        return sum(values.values()) - values.get("not_folio", 0)

    @property
    def retained(self) -> int:
        """Of it, what the program does not use."""
        return self.folio - self.values()["live"] - self.own


def explain(reader: Reader, reading: Reading | None = None, *, by_account: bool = False) -> Parts:
    """Raises FolioError if the process cannot be read or ends meanwhile."""
    reading = reading or reader.reading(by_account=by_account)
    heap, ranges = reading.heap, reading.pages
    mappings = [] if reading.by_account else reading.mappings
    swapped = swapped_bytes(heap, ranges)
    parts = Parts(
        reading.rss, RunParts(), RunParts(), 0, {}, 0, {}, [], reading.moved_bytes, reading.seconds,
        len(heap.snapshot.thread_caches), reserved_bytes(heap), swapped, by_account=reading.by_account,
    )  # fmt: skip
    present, rest = by_chunk(heap, ranges)
    known = not reader.scanner.old and not parts.by_account
    clusters = Clusters(heap, ranges, known=known)
    add_bins(parts, heap, present, clusters)
    if known:
        parts.huge_pages = clusters.huge_pages()
    add_large(parts, heap, present)
    # Some of it may not be resident.
    parts.large.cached_by_threads = min(parts.large.cached, sum(heap.large_in_threads().values()))
    rest = add_huge(parts, heap, present, rest)
    add_guarded(parts, heap, present)
    beside = clusters.beside(rest)
    parts.beside = int(beside.sum()) * PAGE
    rest = rest[~beside]
    rest = rest[~inside(rest, uncounted(mappings))]
    rest = add_metadata(parts, heap, rest)
    if parts.by_account:
        parts.rss = sum(parts.values().values())
    else:
        add_mappings(parts, heap, rest, mappings)
    return parts


def as_known(values: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """A core does not tell what was resident, nor what of it was padding."""
    if not parts.by_account:
        return values
    return {"held" if key == "resident" else key: None if key == "padding" else n for key, n in values.items()}


def swapped_bytes(heap: Heap, ranges: Ranges) -> int:
    """Not the inaccessible pages of guarded objects, which look like it."""
    chosen = (ranges.categories & (PRESENT | ZERO)) == 0
    start, end = ranges.start[chosen], ranges.end[chosen]
    total = int((end - start).sum())
    for number in heap.numbers[heap.codes == heap.layout.code_guarded]:
        first = int(number) << heap.layout.chunk_shift
        inside_chunk = np.minimum(end, first + heap.layout.chunk_bytes) - np.maximum(start, first)
        total -= int(np.maximum(inside_chunk, 0).sum())
    return total


def not_exact(parts: Parts) -> str:
    """What is wrong with them, where they are not exact."""
    rest, whole = abs(parts.unexplained), max(parts.rss, 1)
    return (
        f"the parts and what the kernel counts differ by {rest / (1 << 20):,.1f} MiB "
        f"({100 * rest / whole:.0f} % of RSS), as the process changed while it was read"
    )


def explain_well(reader: Reader) -> Parts:
    """Once more where the process grew or shrank while it was read."""
    parts = explain(reader)
    return parts if parts.exact else explain(reader)


# ---- Chunks ----


def by_chunk(heap: Heap, ranges: Ranges) -> tuple[np.ndarray, np.ndarray]:
    """Which pages of Folio's chunks are resident, (chunks, pages), and the numbers of the other resident pages.

    By ranges, which are far fewer than pages: each is cut where a chunk ends.
    """
    pages_per_chunk = heap.layout.chunk_bytes // PAGE
    chosen = (ranges.categories & (PRESENT | ZERO)) == PRESENT
    start, end = ranges.start[chosen] // PAGE, ranges.end[chosen] // PAGE
    first = start // pages_per_chunk
    cuts = (end - 1) // pages_per_chunk - first + 1
    of = np.repeat(np.arange(len(start)), cuts)
    chunk = first[of] + np.arange(len(of)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    low, high = np.maximum(start[of], chunk * pages_per_chunk), np.minimum(end[of], (chunk + 1) * pages_per_chunk)
    at = np.searchsorted(heap.numbers, chunk)
    known = np.zeros(len(at), dtype=bool)
    if len(heap.numbers):
        at = np.clip(at, 0, len(heap.numbers) - 1)
        known = heap.numbers[at] == chunk
    edges = np.zeros((len(heap.numbers), pages_per_chunk + 1), dtype=np.int8)
    base = chunk[known] * pages_per_chunk
    np.add.at(edges, (at[known], low[known] - base), 1)
    np.add.at(edges, (at[known], high[known] - base), -1)
    present = np.cumsum(edges, axis=1, dtype=np.int8)[:, :-1] != 0
    return present, expand(low[~known] * PAGE, high[~known] * PAGE)


def add_bins(parts: Parts, heap: Heap, present: np.ndarray, clusters: Clusters) -> None:
    """`present`: of all chunks, as `by_chunk` gives it."""
    for number, bin_ in heap.bins.items():
        mine = np.flatnonzero(heap.codes == number)
        parts.bins.append(bin_parts(bin_, present[mine], clusters, clusters.of_chunk[mine]))


def bin_parts(bin_: Bin, present: np.ndarray, clusters: Clusters, at: np.ndarray) -> BinParts:
    """Of one bin, which adds its chunks to their clusters, which are `at`."""
    info = bin_.info
    cached = {place: bin_.count(bin_.cached[place]) for place in PLACES}
    taken = bin_.count(bin_.taken)
    parts = BinParts(
        info.number, info.size, len(bin_.chunks), taken, taken - sum(cached.values()), cached
    )  # objects in the caches are part of what is taken
    rows = np.flatnonzero(present.any(axis=1))
    if len(rows) == 0:
        return parts
    present = present[rows]
    pages_per_chunk = present.shape[1]
    used = bytes_by_page(bin_, rows, bin_.taken[rows], pages_per_chunk)
    can_go = used == 0
    padding = int((present & can_go & untouched(bin_, rows, pages_per_chunk)).sum())
    parts.padding = padding * PAGE
    parts.dirty = int((present & can_go).sum()) * PAGE - parts.padding
    kept = present & ~can_go
    for place in PLACES:
        holding = np.flatnonzero(bin_.cached[place][rows].any(axis=1))
        if len(holding):
            of = bytes_by_page(bin_, rows[holding], bin_.cached[place][rows[holding]], pages_per_chunk)
            parts.cached[place] = int(of[kept[holding]].sum())
    parts.live = int(used[present].sum()) - sum(parts.cached.values())
    parts.fragmented = int(kept.sum()) * PAGE - parts.live - sum(parts.cached.values())
    clusters.add(bin_, rows, at[rows], present, used)
    return parts


@cache
def page_edges(size: int, objects: int, pages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each page starts: in which folio, at which of its objects, and how many bytes of that lie before."""
    edges = np.arange(pages + 1, dtype=np.int64) * PAGE
    number = np.minimum(edges // size, objects)
    before = np.where(number < objects, edges - number * size, 0).astype(np.int32)
    return number // FOLIO_OBJECTS, (number % FOLIO_OBJECTS).astype(np.uint64), before


def bytes_by_page(bin_: Bin, rows: np.ndarray, words: np.ndarray, pages_per_chunk: int) -> np.ndarray:
    """How many bytes of each page belong to objects whose bit is set: (chunks, pages)."""
    info = bin_.info
    padded = np.concatenate([words, np.zeros((len(words), 1), dtype=np.uint64)], axis=1)
    counts = np.bitwise_count(padded).astype(np.int32)
    before = np.cumsum(counts, axis=1, dtype=np.int32) - counts
    folio, bit, inside_ = page_edges(info.size, info.objects, pages_per_chunk)
    at_edge = padded[:, folio]
    bytes_before = before[:, folio] + np.bitwise_count(at_edge & ((np.uint64(1) << bit) - np.uint64(1)))
    bytes_before *= info.size
    bytes_before += (at_edge >> bit & np.uint64(1)).astype(np.int32) * inside_
    return in_chunk(np.diff(bytes_before, axis=1), bin_, rows)


def in_chunk(by_page: np.ndarray, bin_: Bin, rows: np.ndarray) -> np.ndarray:
    """From pages counted from the first object on to pages of the chunk; those before it get 0."""
    skipped = (bin_.first[rows] - bin_.chunks[rows]) // PAGE
    moved = np.zeros_like(by_page)
    for pages in np.unique(skipped):
        mine = skipped == pages
        moved[mine, pages:] = by_page[mine, : by_page.shape[1] - pages]
    return moved


def untouched(bin_: Bin, rows: np.ndarray, pages_per_chunk: int) -> np.ndarray:
    """Of all pages of the chunks, those of which Folio does not know that they are resident."""
    page = np.arange(pages_per_chunk)
    return bin_.resident[rows][:, page // 64] >> (page % 64).astype(np.uint64) & np.uint64(1) == 0


# ---- Large objects, huge blocks ----


def pages_of(heap: Heap, present: np.ndarray, mine: np.ndarray) -> np.ndarray:
    """Addresses of the resident pages of some chunks."""
    chosen = np.flatnonzero(mine)
    row, page = np.nonzero(present[chosen])
    return (heap.numbers[chosen][row] << heap.layout.chunk_shift) + page * PAGE


def add_large(parts: Parts, heap: Heap, present: np.ndarray) -> None:
    """Granules are whole pages, or, where pages are larger, objects are."""
    address = pages_of(heap, present, heap.codes == heap.layout.code_large)
    large = parts.large
    shift = heap.layout.granule_shift
    for each in heap.fields:
        large.objects += len(each.first)
        offset = address[(address >= each.base) & (address < each.base + (each.granules << shift))] - each.base
        granule = offset >> shift
        word, bit = granule // 64, (granule % 64).astype(np.uint64)
        taken = each.taken[word] >> bit & np.uint64(1) == 1
        known = each.resident[word] >> bit & np.uint64(1) == 1
        parked = each.parked[granule] & taken
        large.live += int((taken & ~parked).sum()) * PAGE
        large.cached += int(parked.sum()) * PAGE
        large.dirty += int((~taken & known).sum()) * PAGE
        large.padding += int((~taken & ~known).sum()) * PAGE


def add_huge(parts: Parts, heap: Heap, present: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """`rest`: pages of no chunk. What is far inside of a block has none; returns the others."""
    huge = heap.huge
    is_huge = (heap.codes == heap.layout.code_huge_start) | (heap.codes == heap.layout.code_huge_inside)
    far = huge.holding(rest * PAGE) >= 0
    address = np.concatenate([pages_of(heap, present, is_huge), rest[far] * PAGE])
    if len(address) == 0 or len(huge.base) == 0:
        return rest
    block = huge.holding(address)
    offset = address - huge.base[block]
    live = (block >= 0) & huge.live[block] & (offset < huge.usable[block])
    dirty = (block >= 0) & ~live & (offset < np.maximum(huge.touched[block], 0))
    padding = int((~live & ~dirty).sum()) * PAGE
    parts.huge = RunParts(int(huge.live.sum()), int(live.sum()) * PAGE, int(dirty.sum()) * PAGE, padding)
    return rest[~far]


def add_guarded(parts: Parts, heap: Heap, present: np.ndarray) -> None:
    """Pages of live objects; what else is resident there is just being freed, or locked."""
    address = pages_of(heap, present, heap.codes == heap.layout.code_guarded)
    objects = [each for each in heap.guarded if each.live]
    live = inside_pages(address, np.array([each.page for each in objects], dtype=np.int64), heap.guard_page)
    parts.guarded = RunParts(len(objects), int(live.sum()) * PAGE, int((~live).sum()) * PAGE)


def inside_pages(address: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Which addresses lie in one of the ranges of that length."""
    at = np.searchsorted(starts, address, side="right") - 1
    return (at >= 0) & (address < starts[np.maximum(at, 0)] + length) if len(starts) else np.zeros(len(address), bool)


def reserved_bytes(heap: Heap) -> int:
    large = sum(each.granules for each in heap.fields) << heap.layout.granule_shift
    return heap.snapshot.fixed.word(heap.layout.region_reserved) + large + int(heap.huge.reserved.sum())


# ---- Everything else ----


def inside(pages: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    """Which pages lie in one of the disjoint ranges of addresses."""
    if not ranges:
        return np.zeros(len(pages), dtype=bool)
    ordered = np.array(sorted(ranges), dtype=np.int64)
    at = np.searchsorted(ordered[:, 0], pages * PAGE, side="right") - 1
    return (at >= 0) & (pages * PAGE < ordered[np.clip(at, 0, None), 1])


def uncounted(mappings: list[Mapping]) -> list[tuple[int, int]]:
    """Mappings whose pages the kernel does not count as resident memory: devices, huge pages set aside."""
    return [
        (m.start, m.end)
        for m in mappings
        if m.name.startswith(NOT_COUNTED) or (m.name.startswith("/dev/") and not m.name.startswith(COUNTED_DEVICES))
    ]


def spans(starts: np.ndarray | list[int], length: int) -> np.ndarray:
    """Ranges of addresses of that length, as rows."""
    return np.array(starts, dtype=np.int64)[:, None] + np.array([0, length], dtype=np.int64)


def metadata_ranges(heap: Heap) -> dict[str, np.ndarray]:
    """Where what kind of metadata lies, as rows. Kinds share pages at their ends."""
    layout, snapshot = heap.layout, heap.snapshot
    descriptors = [
        spans(bin_.descriptors, layout.descriptor_bytes + 8 * bin_.info.descriptor_words) for bin_ in heap.bins.values()
    ]
    for each in heap.fields:
        size = layout.field_bytes + each.granules // 8 * layout.field_bitmaps + each.granules * layout.field_entry_bytes
        descriptors.append(spans([each.descriptor], size))
    descriptors.append(spans(np.unique(heap.huge.descriptors), layout.huge_bytes))
    chunks = np.concatenate([np.zeros(0, dtype=np.int64), *(bin_.descriptors for bin_ in heap.bins.values())])
    blocks = snapshot.metadata.gather(chunks + layout.descriptor_block_offset, 1)[:, 0].astype(np.int64)
    caches = snapshot.fixed.gather(np.array([layout.cpu_caches]), layout.cpu_cache_count)[0].astype(np.int64)
    magazines = np.unique(np.concatenate([each.addresses for each in heap.magazines]))
    return {
        "descriptors of chunks and large objects": np.concatenate(descriptors),
        "windows": spans([at for _, at in snapshot.windows], layout.window_bytes),
        "magazines with objects": spans(magazines, layout.magazine_bytes),
        "thread caches": spans(snapshot.thread_caches, layout.thread_cache_bytes),
        "CPU caches": spans(caches[caches != 0], layout.cpu_cache_bytes),
        "hints": spans(np.unique(blocks[blocks != 0]), layout.hint_block_bytes),
    }


def add_metadata(parts: Parts, heap: Heap, pages: np.ndarray) -> np.ndarray:
    """Returns the pages that are no metadata."""
    layout = heap.layout
    pieces = inside(pages, [(p.start, p.start + p.reserved) for p in heap.snapshot.pieces])
    table = inside(pages, [(layout.chunk_table, layout.chunk_table + layout.chunk_table_bytes)])
    maps = inside(pages, [(layout.windows, layout.windows + 8 * layout.window_count)]) & ~table
    parts.metadata = int((pieces | table | maps).sum()) * PAGE
    kinds, left = {}, int(pieces.sum()) * PAGE
    for name, ranges in metadata_ranges(heap).items():
        kinds[name] = overlap(pages[pieces], ranges)
        left -= kinds[name]
    kinds["magazines without objects, and the rest"] = left
    if not parts.by_account:
        kinds["chunk table and map of windows"] = int((table | maps).sum()) * PAGE
    parts.metadata_kinds = kinds
    return pages[~(pieces | table | maps)]


def overlap(pages: np.ndarray, ranges: np.ndarray) -> int:
    """Bytes of the disjoint ranges that lie on the pages."""
    if len(ranges) == 0 or len(pages) == 0:
        return 0

    def before(address: np.ndarray) -> np.ndarray:
        """Bytes on pages below an address."""
        at = np.searchsorted(pages, address // PAGE)
        on = (at < len(pages)) & (pages[np.clip(at, 0, len(pages) - 1)] == address // PAGE)
        return at * PAGE + np.where(on, address % PAGE, 0)

    return int((before(ranges[:, 1]) - before(ranges[:, 0])).sum())


def kind_of(mapping: Mapping) -> str:
    if mapping.name.startswith("/"):
        return mapping.name
    if mapping.name.startswith("[stack"):
        return "stack of the main thread"
    if mapping.name.startswith("[heap]"):
        return "the break (brk)"
    return mapping.name or "anonymous: threads' stacks, mmap of the program"


def add_mappings(parts: Parts, heap: Heap, pages: np.ndarray, mappings: list[Mapping]) -> None:
    library = heap.layout.library
    if not library.linked_in:
        own = inside(pages, [(library.start, library.end)])
        parts.own = int(own.sum()) * PAGE
        pages = pages[~own]
    starts = np.array([m.start for m in mappings], dtype=np.int64)
    ends = np.array([m.end for m in mappings], dtype=np.int64)
    at = np.searchsorted(starts, pages * PAGE, side="right") - 1
    mapped = (at >= 0) & (pages * PAGE < ends[np.clip(at, 0, None)])
    parts.mappings = mappings
    for index, count in zip(*np.unique(at[mapped], return_counts=True), strict=True):
        mapping = mappings[int(index)]
        kind = kind_of(mapping)
        parts.foreign[kind] = parts.foreign.get(kind, 0) + int(count) * PAGE
        parts.foreign_at[mapping.start] = int(count) * PAGE
    if not mapped.all():
        parts.foreign[MOVED] = int((~mapped).sum()) * PAGE
