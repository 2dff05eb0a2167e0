"""A heap profile in a file (docs/layout.md, "Samples"): of the option profile_file, or written by the program.

It is read as a process is: what would be an address there is a place in the file here.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from folio.errors import FolioError
from folio.layout import Library
from folio.process import Mapping, parse_maps
from folio.samples import REGISTERS_OFFSET
from folio.source import Ranged

MAGIC, VERSION = b"FolioPro", 1
HEAD = struct.Struct("<8s10I2Q2Q")
MACHINES = {62: "x64", 183: "AArch64"}
TABLES_MOST = 64
TO_THE_END = (1 << 64) - 1


class StoredProcess:
    """What the file tells of the process."""

    still = True
    tells_pages = False
    root = Path(os.devnull)  # stands for /proc/PID: nothing is in there

    def __init__(self, file: Path, pid: int, machine: str, maps: list[Mapping]) -> None:
        self.path, self.pid, self.machine, self.maps = file, pid, machine, maps

    def mappings(self) -> list[Mapping]:
        return self.maps

    def file(self, mapping: Mapping) -> Path:
        return Path(mapping.path)

    def command(self) -> str:
        return f"{self.program()} (from {self.path})"

    def program(self) -> str:
        """The first file that is mapped: the kernel puts libraries above it."""
        return next((m.path for m in self.maps if m.path), "")

    def read(self, address: int, length: int) -> bytes:
        raise FolioError(f"{self.path} holds samples, no memory: there is nothing at {address:#x}, {length} bytes")


class ProfileFile:
    """Stands for a Reader of a process."""

    complete = True  # it is profiled from its start

    def __init__(self, file: Path) -> None:
        self.path = file
        try:
            self.data = np.memmap(file, np.uint8, "c")  # what is changed here stays here
        except (OSError, ValueError) as error:
            raise FolioError(f"{file}: {error}; `folio profile PID` reads a running process") from None
        try:
            self._open()
        except (struct.error, IndexError, ValueError):
            raise FolioError(f"{file} is damaged, or was cut: it is no heap profile that can be read") from None

    def _open(self) -> None:
        fields = HEAD.unpack_from(self.data, 0)
        magic, version, _, machine, pid, _, sample_bytes, stack_bytes, slots, most, which = fields[:11]
        if magic != MAGIC or version != VERSION:
            raise FolioError(
                f"{self.path} is a heap profile of another version: use the `folio` command of the same release"
            )
        if not 0 < most <= TABLES_MOST or which > 1 or machine not in MACHINES:
            raise ValueError
        start, length = fields[11 + which], fields[13 + which]
        end = len(self.data) if length == TO_THE_END else start + length
        maps = parse_maps(self.data[start:end].tobytes().decode(errors="replace"))
        self.process = StoredProcess(self.path, pid, MACHINES[machine], maps)
        self.interval, _, _, self.now_ms = struct.unpack_from("<4Q", self.data, HEAD.size + 16 * most)
        self.layout = SimpleNamespace(
            sample_tables=HEAD.size,
            sample_tables_most=most,
            sample_slots=slots,
            sample_bytes=sample_bytes,
            sample_stack_bytes=stack_bytes,
            sample_counts=HEAD.size + 16 * most + 8,
            sample_registers_offset=REGISTERS_OFFSET,
            library=self._library(maps),
        )
        # Bins are not told: powers of two stand for them.
        self.infos = [SimpleNamespace(number=k, size=1 << k) for k in range(4, 16)]
        self._drop_torn(most, slots, sample_bytes, stack_bytes)

    @staticmethod
    def _library(maps: list[Mapping]) -> Library:
        path = next((m.path for m in maps if re.search(r"/libfolio[^/]*$", m.path)), "")
        return Library(path, 0, 0, linked_in=not path)

    def _drop_torn(self, most: int, slots: int, sample_bytes: int, stack_bytes: int) -> None:
        """Samples that changed while they were written become empty."""
        tables = struct.unpack_from(f"<{most}Q", self.data, HEAD.size)
        again = struct.unpack_from(f"<{most}Q", self.data, HEAD.size + 8 * most)
        for k, (table, marks) in enumerate(zip(tables, again, strict=True)):
            count = slots << k
            if table and table + count * (sample_bytes + stack_bytes) > len(self.data):
                raise ValueError
            if table and marks:
                first = self.data[table : table + count * sample_bytes].reshape(count, sample_bytes)[:, :8]
                second = self.data[marks : marks + 8 * count].reshape(count, 8)
                first[(first != second).any(axis=1)] = 0

    # ---- As a process is read ----

    def must_live(self) -> None:
        return

    def read(self, address: int, length: int) -> bytes:
        return self.data[address : address + length].tobytes()

    def read_into(self, buffer: np.ndarray, ranges: Ranged) -> None:
        to = 0
        for at, length in ranges:
            buffer[to : to + length] = self.data[at : at + length]
            to += length


def is_profile(file: str) -> bool:
    try:
        with open(file, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def is_stored(file: str) -> bool:
    """A core file or a snapshot, by its first bytes."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(18)
    except OSError:
        return False
    return head.startswith(b"PK\x03\x04") or (head.startswith(b"\x7fELF") and head[16:17] == b"\x04")
