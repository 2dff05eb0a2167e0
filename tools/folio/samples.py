"""Samples of a process (docs/layout.md, "Samples"): what is kept of each chosen object.

A slot is used again some time after its object was freed, so who wants all of them looks often enough: what was missed
shows as a gap in the numbers.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from folio.errors import FolioError
from folio.reader import Reader

if TYPE_CHECKING:
    from folio.profile_file import ProfileFile

LIVE, FREED = 2, 3
AT_ONCE = 2048  # stacks that are read at once, and then looked at whether they are whole
BATCH = 8192  # stacks that are passed on together: up to 64 MiB
WAITING_MOST = 4  # batches
POLL_SECONDS_LEAST = 0.005
REGISTERS = 14

SAMPLE = np.dtype(
    [
        ("mark", "<u8"),
        ("object", "<u8"),
        ("written_ms", "<u8"),
        ("freed_ms", "<u8"),
        ("size", "<u8"),
        ("interval", "<u8"),
        ("thread", "<u4"),
        ("stack_bytes", "<u4"),
        ("registers", "<u8", REGISTERS),
    ]
)
REGISTERS_OFFSET = SAMPLE.fields["registers"][1]  # type: ignore[index]


def memory_of(reader: Reader | ProfileFile) -> Any:
    """Where its addresses lead."""
    return reader.process if isinstance(reader, Reader) else reader


@dataclass
class Batch:
    """New samples, with the raw stacks of them."""

    samples: np.ndarray  # of SAMPLE
    words: np.ndarray  # of all the stacks, as far as they are whole words
    first: np.ndarray  # where each stack's begin


@dataclass
class Table:
    address: int
    slots: int
    marks: np.ndarray = field(init=False)  # as seen last

    def __post_init__(self) -> None:
        self.marks = np.zeros(self.slots, np.uint64)


@dataclass
class New:
    """Samples of a table that were not seen before."""

    table: Table
    slots: np.ndarray
    headers: np.ndarray


def cut(items: Any, most: int) -> Iterator[Any]:
    return (items[at : at + most] for at in range(0, len(items), most))


@dataclass
class Ends:
    """Of samples that were live at the look before: their numbers, and when they were freed (0: it is not known)."""

    numbers: list[int] = field(default_factory=list)
    freed_ms: list[int] = field(default_factory=list)


class Samples:
    """Reads those with numbers above `after`."""

    def __init__(self, reader: Reader | ProfileFile, after: int = 0) -> None:
        self.memory, self.layout = memory_of(reader), reader.layout
        self.after = after
        self.tables: list[Table] = []
        if self.layout.sample_bytes < SAMPLE.itemsize or self.layout.sample_registers_offset != REGISTERS_OFFSET:
            raise FolioError(
                f"samples of {self.layout.sample_bytes} bytes are unknown to this tool: use that of the same release"
            )

    def go_on_in(self, file: ProfileFile) -> None:
        """The process has ended: its tables lie in the file."""
        self.memory, self.layout = file, file.layout
        addresses = np.frombuffer(file.read(self.layout.sample_tables, 8 * self.layout.sample_tables_most), np.uint64)
        for table, address in zip(self.tables, addresses.tolist(), strict=False):
            table.address = address  # 0: there was no room for it there

    def counts(self) -> tuple[int, int]:
        """Made since the start (the number of the last one), and how many of these had no slot."""
        made, lost = np.frombuffer(self.memory.read(self.layout.sample_counts, 16), np.uint64).tolist()
        return made, lost

    def _find_tables(self) -> None:
        layout = self.layout
        data = self.memory.read(layout.sample_tables, 8 * layout.sample_tables_most)
        for k, address in enumerate(np.frombuffer(data, np.uint64).tolist()):
            if address and k == len(self.tables):
                self.tables.append(Table(address, layout.sample_slots << k))

    def _read(self, starts: np.ndarray, lengths: np.ndarray | int) -> np.ndarray:
        """Of ranges of whole words, one after the other."""
        ranges = np.empty((len(starts), 2), np.int64)
        ranges[:, 0], ranges[:, 1] = starts, lengths
        words = np.empty(int(ranges[:, 1].sum()) // 8, np.uint64)
        self.memory.read_into(words.view(np.uint8), ranges)
        return words

    def _headers(self, table: Table) -> np.ndarray:
        each = self.layout.sample_bytes
        words = self._read(np.array([table.address]), table.slots * each)
        wide = words.view(np.uint8).reshape(-1, each)[:, : SAMPLE.itemsize]
        return np.ascontiguousarray(wide).view(SAMPLE).reshape(-1)

    def poll(self, ends: Ends) -> Iterator[Batch]:
        """What is new, and, added to `ends`, what is no more."""
        self._find_tables()
        found = []
        for table in self.tables:
            if not table.address:
                continue
            headers = self._headers(table)
            self.memory.must_live()  # else it may be of another program
            marks = headers["mark"]
            there = (marks & 3 >= LIVE) & (marks >> 2 > self.after)
            before = table.marks
            was_live = (before & 3 == LIVE) & (before >> 2 > self.after)
            same = marks >> 2 == before >> 2
            ended = was_live & same & (marks & 3 == FREED)
            ends.numbers += (before[ended] >> 2).tolist()
            ends.freed_ms += headers["freed_ms"][ended].tolist()
            replaced = was_live & ~same
            ends.numbers += (before[replaced] >> 2).tolist()
            ends.freed_ms += [0] * int(replaced.sum())
            settled = there | (marks & 3 == 0)
            table.marks = np.where(settled | replaced, marks, before)
            new = np.flatnonzero(there & ~same)
            found += [New(table, slots, headers[slots]) for slots in cut(new, AT_ONCE)]
        for group in cut(found, BATCH // AT_ONCE):
            yield self._with_stacks(group)

    def _with_stacks(self, news: list[New]) -> Batch:
        samples = np.concatenate([new.headers for new in news])
        words = np.minimum(samples["stack_bytes"], self.layout.sample_stack_bytes).astype(np.int64) // 8
        ends = np.cumsum(words)
        text, whole, at = np.empty(int(ends[-1]), np.uint64), np.ones(len(samples), bool), 0
        for new in news:
            own = slice(at, at := at + len(new.slots))
            self._read_stacks(new, words[own], text[int((ends - words)[own.start]) : int(ends[own.stop - 1])])
            whole[own] = self._are_whole(new)
        return Batch(samples[whole], text, (ends - words)[whole])

    def _read_stacks(self, new: New, words: np.ndarray, to: np.ndarray) -> None:
        ranges = np.empty((len(words), 2), np.int64)
        base = new.table.address + new.table.slots * self.layout.sample_bytes
        ranges[:, 0], ranges[:, 1] = base + new.slots * self.layout.sample_stack_bytes, 8 * words
        self.memory.read_into(to.view(np.uint8), ranges)

    def _are_whole(self, new: New) -> np.ndarray:
        """Whether they are still the samples whose stacks these are."""
        again = self._read(new.table.address + new.slots * self.layout.sample_bytes, 8)
        self.memory.must_live()
        whole = again >> 2 == new.headers["mark"] >> 2
        new.table.marks[new.slots[~whole]] = 0
        return whole


class Feed(threading.Thread):
    """Looks at the samples again and again while others unwind what it has found, since slots are used again soon."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(daemon=True)
        self.samples = samples
        self.pause = POLL_SECONDS_LEAST
        self.found: queue.Queue[Batch | Ends] = queue.Queue(WAITING_MOST)
        self.leave = threading.Event()
        self.problem: FolioError | None = None

    def run(self) -> None:
        try:
            while not self.leave.wait(self.pause):
                ends = Ends()
                for batch in self.samples.poll(ends):
                    self.found.put(batch)
                if ends.numbers:
                    self.found.put(ends)  # of samples that were found before
        except FolioError as error:
            self.problem = error

    def take(self) -> Iterator[Batch | Ends]:
        """What was found and not taken. Raises what has made it end, once all is taken."""
        count = self.found.qsize()
        for _ in range(count):
            yield self.found.get()
        if count == 0 and self.problem is not None:
            raise self.problem

    def stop(self) -> Iterator[Batch | Ends]:
        """Nobody looks any more. What was found and not taken."""
        self.leave.set()
        while self.is_alive() or not self.found.empty():
            with suppress(queue.Empty):
                yield self.found.get(timeout=0.01)
