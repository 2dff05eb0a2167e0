"""What a heap is read from: a running process, a core file or a snapshot file. They have one interface, Source.

A core or a snapshot stands still, and does not know everything. What it cannot tell is an attribute here, and what it
does not hold is an error when it is read: it never reads as zeros.
"""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from folio.errors import FolioError

if TYPE_CHECKING:
    from folio.layout import Library
    from folio.pages import Ranges

PAGE = os.sysconf("SC_PAGE_SIZE")
Ranged = Sequence[tuple[int, int]] | np.ndarray  # addresses and bytes; an array has a row for each


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    flags: str  # as in /proc/PID/maps; a ? stands for what a core does not tell
    offset: int
    inode: int
    name: str  # of the file, or [stack] and its kin, or ""

    @property
    def path(self) -> str:
        """The file's name, also where it was deleted since."""
        return self.name.removesuffix(" (deleted)") if self.name.startswith("/") else ""


class Source(ABC):
    kind = "process"
    still = False  # it does not change any more, so it is read once
    tells_pages = True  # which pages were resident, RSS, and what is not Folio's
    has_contents = True  # the objects' bytes
    pid = 0

    # ---- Who it is ----

    @property
    @abstractmethod
    def target(self) -> str:
        """What names it on a command line."""

    @abstractmethod
    def name(self) -> str:
        """For messages."""

    @abstractmethod
    def title(self) -> str:
        """A line for the top of what is shown."""

    @abstractmethod
    def command(self) -> str: ...

    @abstractmethod
    def program(self) -> str:
        """The file that it runs."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """As it was at the start, as far as it is known."""

    # ---- Memory ----

    @abstractmethod
    def mappings(self) -> list[Mapping]: ...

    @abstractmethod
    def file(self, mapping: Mapping) -> Path:
        """Where the mapped file can be opened; a path that does not exist where it cannot."""

    @abstractmethod
    def rss(self) -> int: ...

    @abstractmethod
    def read_into(self, buffer: np.ndarray, ranges: Ranged) -> None:
        """The ranges' bytes, one after the other. What is not mapped any more reads as zero."""

    def read_ranges(self, ranges: Ranged) -> np.ndarray:
        total = int(ranges[:, 1].sum()) if isinstance(ranges, np.ndarray) else sum(length for _, length in ranges)
        buffer = np.zeros(total, dtype=np.uint8)
        self.read_into(buffer, ranges)
        return buffer

    def read(self, address: int, length: int) -> bytes:
        return self.read_ranges([(address, length)]).tobytes()

    def read_word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    # ---- What differs between them ----

    def known_layout(self) -> tuple[int, Library] | None:
        """Where the layout descriptor is, if that need not be found."""
        return None

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that can be read, as (address, bytes)."""
        return [(start, end - start)]

    # Each raises FolioError if it is not so; of a process all are, but for the first.

    def must_live(self) -> None:
        """It has not gone."""
        return

    def must_hold(self, address: int, length: int) -> None:
        """This metadata is there."""
        del address, length

    def must_have_file(self, path: str) -> None:
        """What is read from this mapped file can be read."""
        del path

    def must_be_running(self, what: str) -> None:
        """It may still change; `what` needs that."""
        del what

    def must_have_contents(self) -> None:
        """The objects' bytes are there."""
        return


class StoredSource(Source):
    """A file: what stands in it is all there is."""

    still = True
    root = Path(os.devnull)  # stands for /proc/PID: nothing is in there
    old_pages = False  # they were looked at in the older way, which does not tell huge ones
    seen: dict[str, Any] | None = None  # what the kernel told of the process (folio.foreign.Seen)
    moved_bytes = 0  # of objects that changed while it was written: how far sums may be off

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def target(self) -> str:
        text = str(self.path)
        return shlex.quote(f"./{text}" if text.isdecimal() else text)

    def name(self) -> str:
        return f"{self.kind} {self.path} (of {Path(self.program()).name or 'an unknown program'})"

    def refuse(self, what: str) -> NoReturn:
        raise FolioError(f"{self.kind} {self.path} {what}")

    def must_be_running(self, what: str) -> NoReturn:
        raise FolioError(f"{what} needs a running process: {self.path} is a {self.kind}, which stands still")

    def write(self, address: int, data: bytes) -> NoReturn:
        del address, data
        self.refuse("is a file: this needs the running process")

    def held(self) -> Ranges:
        """The memory that is in the file, where it has contents."""
        return self.pages()

    def pages(self) -> Ranges:
        """What was resident."""
        self.refuse("does not tell which pages were resident: only the running process does")


class StoredPages:
    """Stands for a PageScanner: the pages of a file."""

    def __init__(self, source: StoredSource) -> None:
        self.source = source
        self.old = source.old_pages

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        return self.source.readable(start, end)

    def scan_all(self, mappings: list[Mapping]) -> Ranges:
        return self.scan(0, max((m.end for m in mappings), default=0), mappings)

    def scan(self, start: int, end: int, mappings: list[Mapping] | None = None) -> Ranges:
        del mappings
        return self.source.pages().within(start, end)
