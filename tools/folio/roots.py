"""Where pointers to objects may lie outside the heap: the readable memory of every mapping but Folio's own, and what
the kernel tells of the registers of threads that wait in a system call.

What lies below the stack pointer of a waiting thread is what ended calls left there. It would hide leaks, so it is left
out where it is certain that it is nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

import numpy as np

from folio.core_file import CoreFile
from folio.heap import Heap
from folio.layout import Layout
from folio.parts import uncounted
from folio.process import Process
from folio.snapshot_file import sample_tables
from folio.source import Mapping, Source

RED_ZONE = 128  # bytes below the stack pointer that a function may use (x86-64)
GUARD_MOST = 1 << 16
HOUSEKEEPERS_STACK = 256 << 10  # src/os/linux_threads.cc
NOT_SEEN = 6  # registers that calls preserve: rbx, rbp, r12 to r15


@dataclass(frozen=True)
class Thread:
    number: int
    stack: int  # its stack pointer; 0 while it runs
    registers: tuple[int, ...] = ()


@dataclass
class Roots:
    ranges: list[tuple[int, int]]  # (address, bytes), disjoint: variables, then other memory
    stacks: list[tuple[int, int]]
    threads: list[Thread]
    dead: int = 0  # bytes of stacks that are left out
    mappings: list[Mapping] = field(default_factory=list)

    @property
    def running(self) -> int:
        return sum(not thread.stack for thread in self.threads)

    def words(self) -> np.ndarray:
        """What the registers hold that the kernel tells of."""
        return np.array([word for thread in self.threads for word in thread.registers], dtype=np.uint64)


def threads_of(process: Source) -> list[Thread]:
    """Of a process by /proc/PID/task/*/syscall: of a thread that waits in a call its arguments and its stack pointer.
    A core has all registers."""
    if isinstance(process, CoreFile):
        return [Thread(each.number, each.stack, each.registers) for each in process.threads]
    assert isinstance(process, Process)
    found = []
    for task in sorted((process.root / "task").glob("[0-9]*")):
        try:
            words = (task / "syscall").read_text().split()
        except OSError:  # it has ended, or the kernel does not tell
            words = ["running"] if task.exists() else []
        if not words:
            continue
        numbers = [int(word, 0) for word in words] if words[0] != "running" else []
        if len(numbers) >= 3:
            found.append(Thread(int(task.name), numbers[-2], tuple(numbers[1:-2])))
        else:
            found.append(Thread(int(task.name), 0))
    return found


def stack_limit(process: Source) -> int:
    """Bytes of a thread's stack where the program does not say: the soft limit. 0 if it is not known."""
    if not isinstance(process, Process):
        return 0
    found = re.search(r"^Max stack size +(\d+)", process.text("limits"), re.M)
    return int(found[1]) if found else 0


def dead_parts(mappings: list[Mapping], threads: list[Thread], limit: int) -> list[tuple[int, int]]:
    """(start, end) below the stack pointers: of the main thread, and of threads on stacks as the libc makes them, which
    begin with a guard and have, with it, the length of the limit, or without it that of the housekeeper's, whose ended
    calls left addresses of pages that they purged."""
    found = []
    for i, mapping in enumerate(mappings):
        inside = [thread.stack for thread in threads if mapping.start <= thread.stack < mapping.end]
        if len(inside) != 1:
            continue
        guard = mappings[i - 1] if i else None
        alone = mapping.name == "[stack]"
        if guard and guard.flags.startswith("---p") and guard.end == mapping.start and not mapping.name:
            small = guard.end - guard.start <= GUARD_MOST
            libcs = inside[0] < guard.start + limit and mapping.end >= guard.start + limit
            alone = small and (libcs or mapping.end - mapping.start == HOUSEKEEPERS_STACK)
        if alone:
            found.append((mapping.start, max(mapping.start, (inside[0] - RED_ZONE) & ~7)))
    return found


def folios_own(process: Source, heap: Heap) -> list[tuple[int, int]]:
    """(start, end) of what is Folio's: chunks, metadata, the library."""
    layout: Layout = heap.layout
    shift = layout.chunk_shift
    starts = np.diff(heap.numbers, prepend=-2) != 1  # neighbours are one range
    first, last = heap.numbers[starts], heap.numbers[np.roll(starts, -1)]
    found = list(zip((first << shift).tolist(), (last + 1 << shift).tolist(), strict=True))
    found += [(int(a), int(a + n)) for a, n in zip(heap.huge.base, heap.huge.reserved, strict=True)]
    found += [(piece.start, piece.start + piece.reserved) for piece in heap.snapshot.pieces]
    if not layout.library.linked_in:
        found.append((layout.library.start, layout.library.end))
    # They hold addresses of sampled objects and copies of stacks, and may lie in a file.
    found += [(at, at + length) for at, length in sample_tables(process, layout)]
    found.append((layout.chunk_table, layout.chunk_table + layout.chunk_table_bytes))
    found.append((layout.windows, layout.windows + 8 * layout.window_count))
    found.append((layout.depot, layout.depot + layout.depot_shards * layout.bins * layout.depot_bin_bytes))
    found.append((layout.cpu_caches, layout.cpu_caches + 8 * layout.cpu_cache_count))
    return found


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending and disjoint."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def without(ranges: list[tuple[int, int]], holes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """What is left of the ranges (start, end), in their order; holes may overlap."""
    left = []
    holes = joined(holes)
    starts = [low for low, _ in holes]
    for start, end in ranges:
        at = start
        for low, high in holes[max(bisect_right(starts, start) - 1, 0) : bisect_left(starts, end)]:
            if low > at:
                left.append((at, low))
            at = max(at, high)
        if at < end:
            left.append((at, end))
    return left


def is_variables(mappings: list[Mapping], i: int) -> bool:
    """Whether a mapping is a file's data, or its zero-filled data, which follows."""
    return bool(mappings[i].path or (not mappings[i].name and i and mappings[i - 1].path
                and mappings[i - 1].end == mappings[i].start))  # fmt: skip


def find(process: Source, heap: Heap, mappings: list[Mapping]) -> Roots:
    threads = threads_of(process)
    skipped = set(uncounted(mappings))
    groups: list[list[tuple[int, int]]] = [[], [], []]  # variables, other memory, stacks
    for i, m in enumerate(mappings):
        code = "x" in m.flags and "w" not in m.flags  # that is not written
        if "r" not in m.flags or code or (m.start, m.end) in skipped or m.name.startswith(("[vdso", "[vsyscall")):
            continue
        stack = m.name == "[stack]" or any(m.start <= thread.stack < m.end for thread in threads)
        groups[2 if stack else 0 if is_variables(mappings, i) else 1].append((m.start, m.end))
    dead = dead_parts(mappings, threads, stack_limit(process))
    own = folios_own(process, heap) + dead

    def kept(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(a, b - a) for a, b in without(ranges, own)]

    return Roots(kept(groups[0] + groups[1]), kept(groups[2]), threads, sum(b - a for a, b in dead), mappings)
