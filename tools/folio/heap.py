"""What a snapshot says, as arrays: bins and their chunks, occupancy words, which objects wait in which cache, fields of
large objects, huge blocks. Nothing here touches the process.

A snapshot of a running process is torn: an object may be seen in two places, or in a magazine although its occupancy
bit says free. Here the occupancy word has the last word: a cached object counts if its bit says taken, and once, in
the order thread, CPU, depot. What does not fit is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from folio.snapshot import Snapshot

FOLIO_OBJECTS = 64
PLACES = ("thread", "cpu", "depot")
HUGE_FREE, HUGE_LIVE = 0, 1
GUARD_LIVE = 2
WALK_MOST = 1 << 20  # magazines in one stack
FIELDS_MOST = 1 << 21
GRANULES_MOST = 1 << 16
LIVE_SHIFT, LENT_SHIFT = 31, 30  # of an entry of a granule; with neither, it is parked


@dataclass(frozen=True)
class BinInfo:
    number: int
    size: int
    objects: int
    folios: int
    page_words: int  # of a chunk: a bit for each page

    @property
    def hint_words(self) -> int:
        return (self.folios + 63) // 64

    @property
    def descriptor_words(self) -> int:
        return 3 * self.hint_words + 3 * self.page_words + self.folios


@dataclass
class Bin:
    """One bin: a row for each chunk, ascending by address."""

    info: BinInfo
    chunks: np.ndarray  # addresses
    first: np.ndarray  # addresses of the first objects
    descriptors: np.ndarray  # addresses
    taken: np.ndarray  # occupancy words: (chunks, folios)
    resident: np.ndarray  # resident words: (chunks, page_words)
    cached: dict[str, np.ndarray] = field(default_factory=dict)  # by place: words like `taken`, disjoint, part of it

    @cached_property
    def live(self) -> np.ndarray:
        words = self.taken
        for place in self.cached.values():
            words = words & ~place
        return words

    def count(self, words: np.ndarray) -> int:
        return int(np.bitwise_count(words).sum())


@dataclass(frozen=True)
class Magazines:
    """Magazines of a place, one a row."""

    place: str
    bins: np.ndarray
    addresses: np.ndarray
    tops: np.ndarray  # index of the top slot
    owners: np.ndarray  # which thread cache (its place in Snapshot.thread_caches) or CPU; 0 in the depot


@dataclass(frozen=True)
class Huge:
    base: np.ndarray
    reserved: np.ndarray
    usable: np.ndarray
    touched: np.ndarray
    live: np.ndarray  # True or False
    descriptors: np.ndarray

    def holding(self, addresses: np.ndarray) -> np.ndarray:
        """Which block's address space each lies in, -1 for none; also beyond the chunks that have entries."""
        if len(self.base) == 0:
            return np.full(len(addresses), -1)
        order = np.argsort(self.base)
        block = order[np.maximum(np.searchsorted(self.base[order], addresses, side="right") - 1, 0)]
        offset = addresses - self.base[block]
        return np.where((offset >= 0) & (offset < self.reserved[block]), block, -1)


@dataclass
class Field:
    """64 MiB of address space for large objects, in granules (src/space/large.h)."""

    base: int
    descriptor: int
    granules: int
    taken: np.ndarray  # words, a bit for each granule
    resident: np.ndarray  # the same
    first: np.ndarray  # granules in which a live object starts
    length: np.ndarray  # its granules
    offset: np.ndarray  # where in its first granule it starts, in bytes
    spare: np.ndarray  # bytes at the end of its last granule that are not for the program
    parked: np.ndarray  # True or False for each granule: of an object in a CPU cache


@dataclass(frozen=True)
class Call:
    """A call that allocated or freed a guarded object."""

    ms: int  # of the system's monotonic clock
    thread: int
    frames: list[int]  # addresses of code, innermost first: what each call returns to


@dataclass(frozen=True)
class Guarded:
    """An object with inaccessible pages on both sides, live or the one that was freed last in its slot."""

    page: int  # address
    base: int
    size: int
    live: bool
    allocated: Call
    freed: Call | None


class Heap:
    def __init__(self, snapshot: Snapshot, infos: list[BinInfo]) -> None:
        self.snapshot = snapshot
        self.layout = snapshot.layout
        self.infos = infos
        self._index()
        self.bins = {info.number: self._read_bin(info) for info in infos if info.size}
        self.bins = {number: each for number, each in self.bins.items() if each is not None}
        self.fields = self._read_fields()
        self.huge = self._read_huge()
        self.guard_page, self.guarded = self._read_guarded()
        self.magazines = [self._thread_magazines(), self._cpu_magazines(), self._depot_magazines()]
        self.cached_by_owner: dict[str, dict[int, int]] = {}  # bytes, by place and owner
        for bin_ in self.bins.values():
            bin_.cached = {place: np.zeros_like(bin_.taken) for place in PLACES}
        for magazines in self.magazines:
            self._mark(magazines)

    # ---- Chunks ----

    def _index(self) -> None:
        """Chunk number, code and descriptor of every entry that is not empty, ascending."""
        layout, snapshot = self.layout, self.snapshot
        numbers, codes, descriptors = [], [], []
        for (window, address), row in zip(snapshot.windows, snapshot.codes, strict=True):
            pointers = snapshot.metadata.gather(
                np.array([address + layout.window_descriptors_offset]), layout.window_chunks
            )[0]
            used = np.flatnonzero((row != 0) & (pointers != 0))
            numbers.append((window << layout.window_shift) + used)
            codes.append(row[used])
            descriptors.append(pointers[used].astype(np.int64))
        empty = np.zeros(0, dtype=np.int64)
        self.numbers = np.concatenate(numbers) if numbers else empty
        self.codes = np.concatenate(codes) if codes else empty.astype(np.uint8)
        self.descriptors = np.concatenate(descriptors) if descriptors else empty
        order = np.argsort(self.numbers)
        self.numbers, self.codes, self.descriptors = self.numbers[order], self.codes[order], self.descriptors[order]

    def entry(self, address: int) -> int:
        """The place in numbers, codes and descriptors of an address's chunk; -1 if it is not Folio's."""
        number = address >> self.layout.chunk_shift
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else -1

    def _read_bin(self, info: BinInfo) -> Bin | None:
        mine = self.codes == info.number
        if not mine.any():
            return None
        layout, metadata = self.layout, self.snapshot.metadata
        descriptors = self.descriptors[mine]
        at = descriptors + layout.descriptor_bytes
        hints, words = info.hint_words, info.page_words
        taken = metadata.gather(at + 8 * (3 * hints + 3 * words), info.folios)
        resident = metadata.gather(at + 8 * 3 * hints, words)
        first = metadata.gather(descriptors + layout.descriptor_first_offset, 1)[:, 0].astype(np.int64)
        return Bin(info, self.numbers[mine] << layout.chunk_shift, first, descriptors, taken, resident)

    def _read_fields(self) -> list[Field]:
        layout, metadata = self.layout, self.snapshot.metadata
        found: list[Field] = []
        at, seen = self.snapshot.fixed.word(layout.fields), set[int]()
        while at and at not in seen and len(found) < FIELDS_MOST:
            seen.add(at)
            header = metadata.word(at + layout.field_granules_offset // 8 * 8)
            granules = header >> (layout.field_granules_offset % 8 * 8) & 0xFFFFFFFF
            if granules > GRANULES_MOST:
                raise ValueError(f"a field of {granules} granules")
            base = metadata.word(at + layout.field_base_offset)
            if not granules or not base:
                break  # made after its metadata was copied, or just then
            words = granules // 64
            before, step = layout.field_bitmaps * words, layout.field_entry_bytes // 4
            body = metadata.gather(np.array([at + layout.field_bytes]), before + granules * step // 2)[0]
            entries = body[before:].view(np.uint32)[::step]
            first = np.flatnonzero(entries >> LIVE_SHIFT)
            length, offset = entries[first] & 0xFFFF, (entries[first] >> 16 & 63) * 64
            spare = (entries[first] >> 22 & 3) * 4096
            parked = np.zeros(granules, dtype=bool)
            for at_granule in np.flatnonzero((entries != 0) & (entries >> LENT_SHIFT == 0)):
                parked[at_granule : at_granule + (entries[at_granule] & 0xFFFF)] = True
            taken, resident = body[:words], body[words : 2 * words]
            found.append(
                Field(
                    base=base,
                    descriptor=at,
                    granules=granules,
                    taken=taken,
                    resident=resident,
                    first=first,
                    length=length.astype(int),
                    offset=offset.astype(int),
                    spare=spare.astype(int),
                    parked=parked,
                )
            )
            at = metadata.word(at + layout.field_next_offset)
        return found

    def _read_huge(self) -> Huge:
        layout, metadata = self.layout, self.snapshot.metadata
        start = self.codes == layout.code_huge_start
        descriptors = self.descriptors[start]

        def words(offset: int) -> np.ndarray:
            return metadata.gather(descriptors + offset, 1)[:, 0].astype(np.int64)

        state = words(layout.huge_state_offset // 8 * 8) >> (layout.huge_state_offset % 8 * 8) & 0xFFFFFFFF
        return Huge(
            words(layout.huge_base_offset),
            words(layout.huge_reserved_offset),
            words(layout.huge_usable_offset),
            words(layout.huge_touched_offset),
            state == HUGE_LIVE,
            descriptors,
        )

    def _read_guarded(self) -> tuple[int, list[Guarded]]:
        """How long a slot's page is, and the objects by slot (src/insight/guards.h)."""
        layout, metadata = self.layout, self.snapshot.metadata
        mine = np.flatnonzero(self.codes == layout.code_guarded)
        if len(mine) == 0:
            return 0, []
        chunk, pool = int(self.numbers[mine[0]]) << layout.chunk_shift, int(self.descriptors[mine[0]])
        page = metadata.word(pool + layout.guard_page_offset)
        count = metadata.word(pool + layout.guard_count_offset) & 0xFFFFFFFF
        marks = metadata.gather(np.array([pool + layout.guard_marks_offset]), count)[0]

        def call_at(at: int) -> Call:
            frames = metadata.gather(np.array([at + 16]), layout.guard_frames)[0]
            used = [int(frame) for frame in frames]
            used = used[: used.index(0)] if 0 in used else used
            return Call(metadata.word(at), metadata.word(at + 8) & 0xFFFFFFFF, used)

        found = []
        for number in range(count):
            slot = pool + layout.guard_slots_offset + number * layout.guard_slot_bytes
            base = metadata.word(slot + layout.guard_object_offset)
            live, freed = int(marks[number]) & 3 == GUARD_LIVE, call_at(slot + layout.guard_freed_offset)
            if base:
                found.append(
                    Guarded(
                        page=chunk + (2 * number + 1) * page,
                        base=base,
                        size=metadata.word(slot + layout.guard_size_offset),
                        live=live,
                        allocated=call_at(slot + layout.guard_allocated_offset),
                        freed=freed if freed.thread else None,
                    )
                )
        return page, found

    # ---- Magazines ----

    def _thread_magazines(self) -> Magazines:
        cursors = self.snapshot.cursors
        if len(cursors) == 0:
            return self._magazines("thread", [])
        closed = cursors[:, :1]
        owner, bin_number = np.nonzero((cursors != closed) & (cursors != 0))
        found = cursors[owner, bin_number].astype(np.int64)
        size = self.layout.magazine_bytes
        keep = (bin_number > 0) & (bin_number < self.layout.bins)
        found, owner, bin_number = found[keep], owner[keep], bin_number[keep]
        return Magazines("thread", bin_number, found // size * size, found % size // 8, owner)

    def _magazines(self, place: str, rows: list[tuple[int, int, int, int]]) -> Magazines:
        """Rows: bin, address, top, owner."""
        array = np.array(rows, dtype=np.int64).reshape(len(rows), 4)
        return Magazines(place, array[:, 0], array[:, 1], array[:, 2], array[:, 3])

    def _header(self, magazine: int) -> int:
        return self.snapshot.metadata.word(magazine + self.layout.magazine_header_offset)

    def _chain(self, first: int, seen: set[int]) -> list[tuple[int, int]]:
        """(address, top) of a magazine and those that follow it."""
        size = self.layout.magazine_bytes
        found, at = [], first
        while at and at % size == 0 and at not in seen and len(found) < WALK_MOST:
            seen.add(at)
            header = self._header(at)
            found.append((at, header % size))
            at = header & ((1 << 48) - 1) & ~(size - 1)
        return found

    def _cpu_magazines(self) -> Magazines:
        layout, snapshot = self.layout, self.snapshot
        rows, seen = [], set[int]()
        caches = snapshot.fixed.gather(np.array([layout.cpu_caches]), layout.cpu_cache_count)[0]
        for cpu in np.flatnonzero(caches):
            lists = int(caches[cpu]) + layout.cpu_cache_lists_offset
            for number in range(1, layout.bins):
                first = snapshot.metadata.word(lists + number * layout.cpu_list_bytes)
                rows += [(number, at, top, int(cpu)) for at, top in self._chain(first, seen)]
        return self._magazines("cpu", rows)

    def _depot_magazines(self) -> Magazines:
        layout, snapshot = self.layout, self.snapshot
        rows, seen = [], set[int]()
        shift = layout.magazine_bytes.bit_length() - 1
        places = layout.depot + np.arange(layout.depot_shards * layout.bins) * layout.depot_bin_bytes
        stacks = snapshot.fixed.gather(places, 2) >> np.uint64(layout.stack_tag_bits)
        for place, stack in zip(*np.nonzero(stacks), strict=True):
            number, bundle = int(place) % layout.bins, int(stacks[place, stack]) << shift
            if number == 0:
                continue
            while bundle and bundle not in seen and len(rows) < WALK_MOST:
                rows += [(number, at, top, 0) for at, top in self._chain(bundle, seen)]
                bundle = snapshot.metadata.word(bundle + layout.magazine_link_offset)
        return self._magazines("depot", rows)

    def thread_number(self, owner: int) -> int:
        """What the thread of a thread cache, by its place in Snapshot.thread_caches, calls itself (gettid)."""
        at = self.snapshot.thread_caches[owner] + self.layout.thread_cache_thread_offset
        return self.snapshot.metadata.word(at // 8 * 8) >> at % 8 * 8 & 0xFFFFFFFF

    def large_in_threads(self) -> dict[int, int]:
        """Bytes of large objects that each thread keeps, by the place of its cache in Snapshot.thread_caches."""
        layout, snapshot = self.layout, self.snapshot
        held = {
            number: snapshot.metadata.word(cache + layout.thread_cache_large_bytes_offset)
            for number, cache in enumerate(snapshot.thread_caches)
        }
        return {number: size for number, size in held.items() if size}

    def large_in_cpus(self) -> dict[int, int]:
        """Bytes of large objects that are parked in the cache of each CPU."""
        layout, snapshot = self.layout, self.snapshot
        caches = snapshot.fixed.gather(np.array([layout.cpu_caches]), layout.cpu_cache_count)[0]
        held = {
            int(cpu): snapshot.metadata.word(int(caches[cpu]) + layout.cpu_cache_large_bytes_offset)
            for cpu in np.flatnonzero(caches)
        }
        return {cpu: size for cpu, size in held.items() if size}

    def objects_in(self, magazines: Magazines) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of the objects that wait, and the row of the magazine of each."""
        slots = self.layout.magazine_bytes // 8
        rows = self.snapshot.metadata.gather(magazines.addresses, slots)
        bottom = (rows[:, self.layout.magazine_header_offset // 8] >> np.uint64(48) & np.uint64(0xFF)).astype(np.int64)
        column = np.arange(slots)
        chosen = (column >= magazines.tops[:, None]) & (column < np.minimum(bottom, slots - 2)[:, None])
        row, _ = np.nonzero(chosen)
        return rows[chosen].astype(np.int64), row

    def _mark(self, magazines: Magazines) -> None:
        objects, row = self.objects_in(magazines)
        numbers = magazines.bins[row]
        by_owner: dict[int, int] = {}
        for number in np.unique(numbers):
            bin_ = self.bins.get(int(number))
            if bin_ is None:
                continue
            chosen = numbers == number
            self._mark_bin(bin_, magazines, objects[chosen], row[chosen], by_owner)
        self.cached_by_owner[magazines.place] = by_owner

    def _mark_bin(
        self, bin_: Bin, magazines: Magazines, objects: np.ndarray, row: np.ndarray, by_owner: dict[int, int]
    ) -> None:
        info, shift = bin_.info, self.layout.chunk_shift
        chunk = np.clip(np.searchsorted(bin_.chunks, objects, side="right") - 1, 0, None)
        number = (objects - bin_.first[chunk]) // info.size
        good = (objects >> shift << shift == bin_.chunks[chunk]) & (number >= 0) & (number < info.objects)
        folio, bit = number // FOLIO_OBJECTS, (number % FOLIO_OBJECTS).astype(np.uint64)
        chunk, folio, bit, owner = (each[good] for each in (chunk, folio, bit, magazines.owners[row]))
        free_to_mark = bin_.taken.copy()
        for other in bin_.cached.values():
            free_to_mark &= ~other
        marked = free_to_mark[chunk, folio] >> bit & np.uint64(1) == 1
        chunk, folio, bit, owner = (each[marked] for each in (chunk, folio, bit, owner))
        np.bitwise_or.at(bin_.cached[magazines.place], (chunk, folio), np.uint64(1) << bit)
        for each, count in zip(*np.unique(owner, return_counts=True), strict=True):
            by_owner[int(each)] = by_owner.get(int(each), 0) + int(count) * info.size
