"""One look at a heap and all that points into it: which objects there are, of which types, and which can be reached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from folio import roots as root_finder
from folio.elf_symbols import DataFiles, Types
from folio.objects import Objects
from folio.parts import kind_of, swapped_bytes
from folio.reach import Reach
from folio.reader import Reader, Reading
from folio.roots import Roots
from folio.scan import (
    Block,
    Found,
    Scanner,
    Touched,
    at_low_priority,
    steps_of_first_words,
    steps_of_heap,
    steps_of_ranges,
)

DIGESTED = 4096  # bytes of an object
READ_MOST = 1024  # objects at once


@dataclass
class View:
    """The objects, and where something is to be read."""

    reader: Reader
    reading: Reading
    objects: Objects
    touched: Touched

    @property
    def modules(self) -> DataFiles:
        return DataFiles(self.reader.process, self.reading.mappings)


@at_low_priority()
def view(reader: Reader, *, with_contents: bool = True) -> View:
    if with_contents:
        reader.process.must_have_contents()
    reading = reader.reading()
    swapped = swapped_bytes(reading.heap, reading.pages)
    return View(reader, reading, Objects(reading.heap), Touched(reading.readable, swapped))


class FirstWords:
    """The types of objects, by their first words, which come with the blocks."""

    def __init__(self, objects: Objects, types: Types) -> None:
        self.objects, self.types = objects, types
        self.codes = np.zeros(objects.count, dtype=np.int32)

    def check(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the objects that begin in the block, and their first words. Runs in any thread."""
        objects, step = self.objects, block.step
        if step.row >= 0:
            numbers, bases = objects.in_row(step.row)
        else:
            first = np.searchsorted(objects.big_start, step.starts[0])
            last = np.searchsorted(objects.big_start, step.starts[-1] + step.lengths[-1])
            numbers, bases = np.arange(first, last), objects.big_start[first:last]
        words, good = block.at(bases)
        return numbers[good], words[good]

    def add(self, found: Found) -> None:
        if found.step.heap:
            numbers, words = found.extra
            self.codes[numbers] = self.types.of(words)


@at_low_priority()
def census(seen: View, types: Types) -> np.ndarray:
    """The code of the type of each object."""
    first = FirstWords(seen.objects, types)
    scanner = Scanner(seen.reader.process, seen.objects, check=first.check, pointers=False)
    for found in scanner.scan(steps_of_first_words(seen.objects, seen.touched)):
        first.add(found)
    seen.reader.process.must_live()
    return first.codes


@dataclass
class Survey:
    view: View
    roots: Roots
    reach: Reach
    codes: np.ndarray | None  # types of the objects
    types: Types | None
    bytes: int  # that were looked at
    tagged: np.ndarray  # numbers of objects that words with something else in them point to
    seconds: float

    def root_name(self, address: int) -> str:
        """What a root is: a variable, a stack, a mapping."""
        if address < 0:
            return "a register"
        modules = self.types.modules if self.types else self.view.modules
        if name := modules.variable(address):
            return name
        mapping = next((m for m in self.roots.mappings if m.start <= address < m.end), None)
        if mapping is None:
            return "memory that is mapped no more"
        if not mapping.name:
            stack = any(mapping.start <= thread.stack < mapping.end for thread in self.roots.threads)
            return "a thread's stack or thread-local storage" if stack else "memory that the program mapped"
        return kind_of(mapping)


@at_low_priority()
def survey(
    seen: View,
    *,
    reached: np.ndarray | None = None,
    types: Types | None = None,
    parents: bool = False,
    tags: bool = False,
    notice: Callable[[Found], None] | None = None,
) -> Survey:
    """`reached`: what counts as reached from the beginning. `notice` gets all that is found; without it only pointers
    into chunks of which not all is reached are looked for."""
    begin = time.monotonic()
    process, objects = seen.reader.process, seen.objects
    roots = root_finder.find(process, seen.reading.heap, seen.reading.mappings)
    wanted = objects.chunks_with(np.flatnonzero(~reached)) if reached is not None and notice is None else None
    reach = Reach(objects.count, reached=reached, parents=parents)
    first = FirstWords(objects, types) if types else None
    scanner = Scanner(process, objects, tags=tags, check=None, wanted=wanted)
    tagged = []

    def add(found: Found) -> None:
        reach.add(found)
        tagged.append(found.tagged)
        if notice is not None:
            notice(found)

    for found in scanner.scan(steps_of_ranges(roots.ranges, seen.touched, False)):
        add(found)
    scanner.check = first.check if first else None
    for found in scanner.scan(steps_of_heap(objects, seen.touched)):
        add(found)
        if first:
            first.add(found)
    reach.flood()
    # Last: what a variable leads to is known by that, even if a stack leads to it, too.
    scanner.check = None
    for found in scanner.scan(steps_of_ranges(roots.stacks, seen.touched, False)):
        add(found)
    reach.from_roots(*in_registers(roots, objects))
    reach.flood()
    process.must_live()  # else what was read last may be zeros
    return Survey(
        seen, roots, reach, first.codes if first else None, types, scanner.bytes,
        np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *tagged])), time.monotonic() - begin,
    )  # fmt: skip


def in_registers(roots: Roots, objects: Objects) -> tuple[np.ndarray, np.ndarray]:
    """As addresses of roots -1, and the objects that they point to."""
    words = roots.words()
    numbers = objects.numbers(words[objects.near(words)])
    numbers = numbers[numbers >= 0]
    return np.full(len(numbers), -1), numbers


def first_bytes(seen: View, bases: np.ndarray, most: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of objects, by ascending base, some at a time: their places in `bases`, up to `most` bytes of each as words, one
    object after the other, and how many words each has. What was never touched is left out."""
    sizes = np.minimum(seen.objects.sizes(seen.objects.numbers(bases.astype(np.uint64))), most) // 8 * 8
    sizes[~seen.touched.has(bases)] = 0
    chosen = np.flatnonzero(sizes)
    for at in range(0, len(chosen), READ_MOST):
        part = chosen[at : at + READ_MOST]
        ranges = list(zip(bases[part].tolist(), sizes[part].tolist(), strict=True))
        yield part, seen.reader.process.read_ranges(ranges).view(np.uint64), sizes[part] // 8


@at_low_priority()
def first_words(seen: View, bases: np.ndarray) -> np.ndarray:
    """0 of what was never touched."""
    found = np.zeros(len(bases), dtype=np.uint64)
    for part, words, _ in first_bytes(seen, bases, 8):
        found[part] = words
    return found


@at_low_priority()
def digests(seen: View, bases: np.ndarray) -> np.ndarray:
    """A number for each object that changes with its first bytes."""
    found = np.zeros(len(bases), dtype=np.uint64)
    factors = np.arange(1, DIGESTED // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) | np.uint64(1)
    for part, words, counts in first_bytes(seen, bases, DIGESTED):
        start = np.cumsum(counts) - counts
        place = np.arange(len(words)) - np.repeat(start, counts)
        found[part] = np.add.reduceat(words * factors[place], start)
    return found
