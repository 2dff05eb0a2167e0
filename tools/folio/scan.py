"""Reads the memory of a process in bounded steps and finds the pointers into objects in it.

It takes a process, or a core file that stands for one. A word is a pointer if, as an address, it
lies in a live object: this is conservative, numbers may look like it. Only what may hold something is read: pages that
nobody touched stay untouched.

Steps are read by threads of low priority, since numpy and the system call let both run at once; and what they find is
put together at low priority.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from folio.objects import Objects
from folio.pages import Ranges
from folio.source import PAGE, Source

STEP = 1 << 21  # bytes that are read at once
NICE = 14  # weighs a 23rd of a thread of ordinary priority: where all processors are busy, the process loses 4 %
WORKERS = 2 if (os.cpu_count() or 1) > 2 else 1  # on two processors one is the process's
NONE = np.zeros(0, dtype=np.int64)
LOW_48 = np.uint64((1 << 48) - 1)


@dataclass(frozen=True)
class Step:
    """Ranges of memory that are looked at together. `row`: of the chunk; -1 for what is no chunk of a bin."""

    starts: np.ndarray
    lengths: np.ndarray
    heap: bool
    row: int = -1


@dataclass(frozen=True)
class Found:
    """Pointers: from where, of which object (-1: of none), to which one."""

    step: Step
    addresses: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    words: np.ndarray  # the addresses that they are
    others: np.ndarray  # words that may be addresses in the heap, but are of no live object
    tagged: np.ndarray  # objects that words with something else in them point to
    extra: Any = None  # what the caller's own look gave


class Touched:
    """The ranges of a process's memory in which something may be."""

    def __init__(self, pages: Ranges, swapped: int) -> None:
        ranges = np.array(pages.readable(), dtype=np.int64).reshape(-1, 2)
        self.start, self.end = ranges[:, 0], ranges.sum(axis=1)
        self.swapped = swapped  # bytes

    def has(self, addresses: np.ndarray) -> np.ndarray:
        """Which addresses lie in what is touched."""
        at = np.searchsorted(self.end, addresses, side="right")
        return (at < len(self.end)) & (np.append(self.start, 0)[at] <= addresses)

    def next(self, address: int) -> int:
        """The first touched address from here on."""
        at = int(np.searchsorted(self.end, address, side="right"))
        return max(address, int(self.start[at])) if at < len(self.start) else 1 << 64

    def within(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and lengths of what is touched between two addresses."""
        first = np.searchsorted(self.end, start, side="right")
        last = np.searchsorted(self.start, end)
        starts = np.maximum(self.start[first:last], start)
        return starts, np.minimum(self.end[first:last], end) - starts


def steps_of_ranges(ranges: Iterable[tuple[int, int]], touched: Touched, heap: bool) -> Iterator[Step]:
    """Of (address, bytes), ascending."""
    starts: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    waiting = 0
    for address, size in ranges:
        at, end = address, address + size
        while at < end:
            start, length = touched.within(at, min(at + STEP, end))
            at = at + STEP if len(start) else touched.next(at + STEP)  # terabytes may be reserved
            if waiting and waiting + int(length.sum()) > STEP:
                yield Step(np.concatenate(starts), np.concatenate(lengths), heap)
                starts, lengths, waiting = [], [], 0
            if len(start):
                starts.append(start)
                lengths.append(length)
                waiting += int(length.sum())
    if waiting:
        yield Step(np.concatenate(starts), np.concatenate(lengths), heap)


def steps_of_heap(objects: Objects, touched: Touched) -> Iterator[Step]:
    """Large and huge objects first: what points to many objects is often one of them."""
    big = zip(objects.big_start.tolist(), (objects.big_end - objects.big_start).tolist(), strict=True)
    yield from steps_of_ranges(((a, n // 8 * 8) for a, n in big), touched, True)
    chunk_bytes = 1 << objects.shift
    for row, chunk in enumerate(objects.chunk.tolist()):
        start, length = touched.within(chunk, chunk + chunk_bytes)
        if len(start):
            yield Step(start, length, True, row)


def steps_of_first_words(objects: Objects, touched: Touched) -> Iterator[Step]:
    """Only what holds the first words of objects: of objects of a page and more, one page of each."""
    starts = objects.big_start // PAGE * PAGE
    yield from steps_of_ranges(((a, PAGE) for a in np.unique(starts).tolist()), touched, True)
    for row, chunk in enumerate(objects.chunk.tolist()):
        if objects.size[row] < PAGE:
            start, length = touched.within(chunk, chunk + (1 << objects.shift))
            if len(start):
                yield Step(start, length, True, row)
            continue
        _, bases = objects.in_row(row)
        for step in steps_of_ranges(((a, PAGE) for a in np.unique(bases // PAGE * PAGE).tolist()), touched, True):
            yield Step(step.starts, step.lengths, True, row)


class Block:
    """The bytes of a step."""

    def __init__(self, step: Step, words: np.ndarray) -> None:
        self.step = step
        self.words = words
        self.before = (np.cumsum(step.lengths) - step.lengths) // 8

    def addresses(self, at: np.ndarray) -> np.ndarray:
        """Of the words at these places."""
        if len(self.before) == 1:
            return int(self.step.starts[0]) + 8 * at
        piece = np.searchsorted(self.before, at, side="right") - 1
        return self.step.starts[piece] + 8 * (at - self.before[piece])

    def at(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The words at ascending addresses, 0 for those that were not read; and which were."""
        piece = np.clip(np.searchsorted(self.step.starts, addresses, side="right") - 1, 0, None)
        inside = addresses - self.step.starts[piece]
        good = (inside >= 0) & (inside + 8 <= self.step.lengths[piece])
        place = np.where(good, self.before[piece] + inside // 8, 0)
        return np.where(good, self.words[place], np.uint64(0)), good


Check = Callable[[Block], Any]


class Scanner:
    """`tags`: also look for words that hold an object's address beside 16 bits of something else. `pointers` False: for
    the sake of `check` only. `wanted`: of each chunk of the objects' table whether pointers into it are looked for."""

    def __init__(
        self,
        process: Source,
        objects: Objects,
        *,
        check: Check | None = None,
        tags: bool = False,
        pointers: bool = True,
        wanted: np.ndarray | None = None,
    ) -> None:
        self.process, self.objects = process, objects
        self.check, self.tags, self.pointers, self.wanted = check, tags, pointers, wanted
        self.bytes = 0
        self.own = threading.local()

    def scan(self, steps: Iterable[Step]) -> Iterator[Found]:
        """In the order of the steps."""
        waiting: deque[Future[Found]] = deque()
        with ThreadPoolExecutor(WORKERS, initializer=low_priority) as pool:
            try:
                for step in steps:
                    self.bytes += int(step.lengths.sum())
                    waiting.append(pool.submit(self._one, step))
                    if len(waiting) > 2 * WORKERS:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _one(self, step: Step) -> Found:
        if not hasattr(self.own, "buffer"):
            most = max(STEP, 1 << self.objects.shift)
            self.own.buffer = np.empty(most, dtype=np.uint8)
            self.own.words = np.empty(most // 8, dtype=np.uint64)
            self.own.near = np.empty(most // 8, dtype=bool)
        length = int(step.lengths.sum())
        buffer = self.own.buffer[:length]
        self.process.read_into(buffer, list(zip(step.starts.tolist(), step.lengths.tolist(), strict=True)))
        block = Block(step, buffer.view(np.uint64))
        objects, words = self.objects, block.words
        extra = self.check(block) if self.check else None
        if not self.pointers:
            return Found(step, *[NONE] * 6, extra)
        scratch, near = self.own.words[: len(words)], self.own.near[: len(words)]
        at, targets = self._pointers(words, scratch, near)
        addresses = block.addresses(at)
        sources = np.full(len(at), -1, dtype=np.int64)
        if step.heap and len(at):
            sources = objects.numbers(addresses) if step.row < 0 else objects.numbers_in(step.row, addresses)
            keep = (sources >= 0) & (sources != targets)  # what was freed points to nothing
            at, addresses, sources, targets = at[keep], addresses[keep], sources[keep], targets[keep]
        found, live = words[at], targets >= 0
        others = found[~live]
        addresses, sources, targets, found = addresses[live], sources[live], targets[live], found[live]
        tagged = self._tagged(block, scratch, near) if self.tags else NONE
        return Found(step, addresses, sources, targets, found, others, tagged, extra)

    def _pointers(self, words: np.ndarray, scratch: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        objects = self.objects
        np.subtract(words, np.uint64(objects.low), out=scratch)
        np.less(scratch, np.uint64(objects.span), out=near)
        at = np.flatnonzero(near)
        at, found = self._of_interest(at, words[at])
        return at, objects.numbers(found)

    def _of_interest(self, at: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.wanted is None:
            return at, words
        chosen = self.wanted[self.objects.places(words)]
        return at[chosen], words[chosen]

    def _tagged(self, block: Block, scratch: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Objects whose first byte's address is the low or the high 48 bits of a word, the other 16 not being 0.

        `scratch`: of each word how far it is from the heap's start. Shifted, that is an address's place in the heap at
        one end of 64 bits, so all words are looked at twice and nothing is made of them.
        """
        objects, found = self.objects, []
        span, start = np.uint64(objects.span << 16), np.uint64(objects.low << 16)
        np.left_shift(scratch, np.uint64(16), out=scratch)
        np.less(scratch, span, out=near)
        low = np.flatnonzero(near)
        low = low[block.words[low] > LOW_48]
        np.subtract(block.words, start, out=scratch)
        np.less(scratch, span, out=near)
        high = np.flatnonzero(near)
        for at, words in ((low, block.words[low] & LOW_48), (high, block.words[high] >> np.uint64(16))):
            at, words = self._of_interest(at, words)
            targets = objects.numbers(words)
            at, words, targets = at[targets >= 0], words[targets >= 0], targets[targets >= 0]
            exact = objects.bases(targets) == words.astype(np.int64)
            at, targets = at[exact], targets[exact]
            if block.step.heap and len(at):
                sources = objects.numbers(block.addresses(at))
                targets = targets[(sources >= 0) & (sources != targets)]
            found.append(targets)
        return np.concatenate(found)


def low_priority() -> None:
    """Of this thread only."""
    this = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, this, max(os.getpriority(os.PRIO_PROCESS, this), NICE))


@contextmanager
def at_low_priority() -> Iterator[None]:
    """This thread meanwhile; afterwards as before, where that is permitted."""
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    low_priority()
    try:
        yield
    finally:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before)
