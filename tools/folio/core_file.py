"""A core file as a source: written by the kernel or by gcore, of 64 bits.

It holds the memory that the process had written, the registers of its threads, and which file was mapped where. What
the process only read, such as a library's constants, is mostly left out: that is read from the mapped file, if its
build id is the one in the core. Which pages were resident a core does not tell.
"""

from __future__ import annotations

import io
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from folio.errors import FolioError
from folio.library import places
from folio.pages import PRESENT, Ranges
from folio.source import PAGE, Mapping, StoredSource

MAGIC = b"\x7fELF"
AT_PAGESZ, AT_ENTRY, AT_RANDOM, AT_SYSINFO_EHDR = 6, 9, 25, 33
STACK_POINTER = {"EM_X86_64": 19, "EM_AARCH64": 31}  # which of the registers
REGISTERS_OFFSET, REGISTERS_TAIL, THREAD_OFFSET = 112, 8, 32  # in struct elf_prstatus of 64-bit machines
STACK_START_MOST = 4 << 20  # of arguments and environment
UNREADABLE = (ELFError, ConstructError, ValueError, KeyError, IndexError, AttributeError, TypeError, struct.error)
HOW_TO_DUMP = "dump it again, with `ulimit -c unlimited` and room on the disk, or by `gcore PID`"
HOW_TO_FILTER = "write 0x33 to /proc/PID/coredump_filter before the process is dumped"


@dataclass(frozen=True)
class Piece:
    """Memory that is in the file."""

    start: int
    end: int
    offset: int


@dataclass(frozen=True)
class Thread:
    number: int
    stack: int  # its stack pointer
    registers: tuple[int, ...]  # in the order of the machine's struct user_regs_struct


def build_id_of(file: io.BufferedIOBase) -> str:
    """Empty if it is no ELF file, or has none."""
    try:
        for segment in ELFFile(file).iter_segments("PT_NOTE"):
            for note in segment.iter_notes():
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    except (OSError, *UNREADABLE):
        pass
    return ""


def flags_of(segment: Any) -> str:
    """As in /proc/PID/maps."""
    return "".join(letter if segment["p_flags"] & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1))) + "p"


def loads_of(path: Path) -> list[tuple[int, int, str]]:
    """Of a program or library: where in it what is loaded begins and ends, and with which flags."""
    try:
        with path.open("rb") as file:
            return [
                (s["p_offset"] // PAGE * PAGE, s["p_offset"] + s["p_filesz"], flags_of(s))
                for s in ELFFile(file).iter_segments("PT_LOAD")
            ]
    except (OSError, *UNREADABLE):
        return []


def build_id_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return build_id_of(file)
    except OSError:
        return ""


def file_of_build(path: str, build_id: str) -> Path:
    """Where a mapped file lies here; a path that does not exist if it does not, or is of another build."""
    others = places() if Path(path).name.startswith("libfolio") else []
    for each in [Path(path), *others]:
        if build_id and each.is_file() and build_id_in(each) == build_id:
            return each
    return Path(f"{path} (of build {build_id or 'unknown'})")


class CoreFile(StoredSource):
    kind = "core"
    tells_pages = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.pieces: list[Piece] = []
        self.spans: list[Mapping] = []  # of the segments
        self.files: list[Mapping] = []
        self.threads: list[Thread] = []
        self.auxiliary: dict[int, int] = {}
        self._end = 0  # of the file, as its headers have it
        self._auxiliary_bytes = self._arguments = b""
        self._found: dict[str, Path] = {}
        self._loads: dict[Path, list[tuple[int, int, str]]] = {}
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            with self._parsing(), path.open("rb") as file:
                self._parse(ELFFile(file))
        except OSError as error:
            self.refuse(f"cannot be read: {os.strerror(error.errno or 0)}")
        self._check()

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except UNREADABLE:
            raise FolioError(f"core {self.path} is damaged, or cut short: {HOW_TO_DUMP}") from None

    # ---- Parsing ----

    def _parse(self, elf: ELFFile) -> None:
        if elf["e_type"] != "ET_CORE":
            raise FolioError(f"{self.path} is a program or library, no core file; `gcore PID` makes one")
        if elf.elfclass != 64 or not elf.little_endian or elf["e_machine"] not in STACK_POINTER:
            self.refuse("is of a machine that Folio is not for: x86-64 and aarch64 are those")
        self._machine = elf["e_machine"]
        for segment in elf.iter_segments():
            self._end = max(self._end, segment["p_offset"] + segment["p_filesz"])
            if segment["p_type"] == "PT_NOTE":
                for note in segment.iter_notes():
                    self._take_note(note)
            elif segment["p_type"] == "PT_LOAD":
                self._take_segment(segment)
        self.pieces.sort(key=lambda piece: piece.start)
        self.files.sort(key=lambda mapping: mapping.start)
        self.piece_starts = [piece.start for piece in self.pieces]
        self.file_starts = [mapping.start for mapping in self.files]

    def _take_segment(self, segment: Any) -> None:
        start, kept, mapped = segment["p_vaddr"], segment["p_filesz"], segment["p_memsz"]
        if start >= 1 << 63:  # [vsyscall]
            return
        self.spans.append(Mapping(start, start + max(kept, mapped), flags_of(segment), 0, 0, ""))
        if kept:
            self.pieces.append(Piece(start, start + kept, segment["p_offset"]))

    def _take_note(self, note: Any) -> None:
        kind, body = note["n_type"], note["n_desc"]
        if note["n_name"] != "CORE":
            return
        if kind == "NT_PRSTATUS":
            text = body if isinstance(body, bytes) else body.encode("latin-1")
            number = struct.unpack_from("<i", text, THREAD_OFFSET)[0]
            words = text[REGISTERS_OFFSET : len(text) - REGISTERS_TAIL]
            registers = struct.unpack(f"<{len(words) // 8}Q", words)
            self.threads.append(Thread(number, registers[STACK_POINTER[self._machine]], registers))
        elif kind == "NT_PRPSINFO":
            self.pid = int(body["pr_pid"])
            self._arguments = bytes(body["pr_psargs"]).split(b"\0")[0]
        elif kind == "NT_AUXV":
            text = body if isinstance(body, bytes) else body.encode("latin-1")
            for key, value in struct.iter_unpack("<QQ", text[: len(text) // 16 * 16]):
                if key == 0:
                    break
                self.auxiliary[key] = value
                self._auxiliary_bytes += struct.pack("<QQ", key, value)
        elif kind == "NT_FILE":
            # gcore counts the offsets in bytes, the kernel in pages: each says so.
            for entry, name in zip(body["Elf_Nt_File_Entry"], body["filename"], strict=True):
                path = bytes(name).decode(errors="surrogateescape")
                offset = entry["page_offset"] * body["page_size"]
                self.files.append(Mapping(entry["vm_start"], entry["vm_end"], "r-?p", offset, 1, path))

    def _check(self) -> None:
        size = os.fstat(self.descriptor).st_size
        if size < self._end:
            self.refuse(f"is cut short: {size:,} of {self._end:,} bytes are there; {HOW_TO_DUMP}")
        if not self.threads:
            self.refuse(f"holds no thread: {HOW_TO_DUMP}")
        stack = self.auxiliary.get(AT_RANDOM, 0)
        if not self.readable(stack, stack + 1):
            self.refuse(f"lacks the memory that the process had written: {HOW_TO_FILTER}")
        if self.auxiliary.get(AT_PAGESZ, PAGE) != PAGE:
            self.refuse(f"is of a machine with pages of {self.auxiliary[AT_PAGESZ]} bytes: read it on such a machine")

    # ---- Who it is ----

    def title(self) -> str:
        return f"core file {self.path} of process {self.pid}: {self.command()}"

    def program(self) -> str:
        entry = self.auxiliary.get(AT_ENTRY, 0)
        return next((m.path for m in self.files if m.start <= entry < m.end), "")

    def command(self) -> str:
        words = self._start[0]
        return " ".join(words) if words else self._arguments.decode(errors="replace").strip()

    def environment(self) -> dict[str, str]:
        pairs = (entry.partition("=") for entry in self._start[1] if "=" in entry)
        return {key: value for key, _, value in pairs}

    @cached_property
    def _start(self) -> tuple[list[str], list[str]]:
        """Arguments and environment, as the kernel put them at the start of the stack, before the auxiliary vector:
        count | arguments | null | environment | null | vector ... strings."""
        high = self.auxiliary.get(AT_RANDOM, 0)
        data, low = b"", 0
        for start, length in self.readable(max(high - STACK_START_MOST, 0), high):
            low, data = start, self.read(start, length)  # the last one is the stack's
        at = data.rfind(self._auxiliary_bytes) if self._auxiliary_bytes else -1
        if at < 0 or (low + at) % 8:
            return [], []
        words = [word for (word,) in struct.iter_unpack("<Q", data[at % 8 : at])]
        lists: list[list[str]] = []
        for _ in range(2):  # from the end: environment, arguments
            if not words or words.pop() != 0:
                return [], []
            pointers = []
            while words and words[-1] != 0 and not (lists and words[-1] == len(pointers)):
                pointers.append(words.pop())
            lists.append([self._string(pointer) for pointer in reversed(pointers)])
        return lists[1], lists[0]

    def _string(self, address: int) -> str:
        text = b""
        while b"\0" not in text and len(text) < STACK_START_MOST:
            if not (there := self.readable(address + len(text), address + len(text) + 256)):
                break
            text += self.read(*there[0])
        return text.split(b"\0")[0].decode(errors="replace")

    # ---- Memory ----

    def rss(self) -> int:
        self.refuse("does not tell how much was resident: only the running process does")

    @cached_property
    def _ordered_spans(self) -> list[Mapping]:
        return sorted(self.spans, key=lambda span: span.start)

    def mappings(self) -> list[Mapping]:
        """Files have the flags of their segment, or, since gcore leaves out what was only read, those that the file
        itself says; segments are without the files in them."""
        places = {AT_RANDOM: "[stack]", AT_SYSINFO_EHDR: "[vdso]"}
        named = {self.auxiliary[key]: name for key, name in places.items() if key in self.auxiliary}
        spans = self._ordered_spans
        starts = [span.start for span in spans]
        found = []
        for mapping in self.files:
            at = bisect_right(starts, mapping.start) - 1
            known = at >= 0 and mapping.start < spans[at].end
            found.append(replace(mapping, flags=spans[at].flags if known else self._flags_in_file(mapping)))
        for span in spans:
            at = bisect_right(self.file_starts, span.start) - 1
            if at < 0 or span.start >= self.files[at].end:
                name = next((name for at, name in named.items() if span.start <= at < span.end), "")
                found.append(replace(span, name=name))
        return sorted(found, key=lambda mapping: mapping.start)

    def _flags_in_file(self, mapping: Mapping) -> str:
        path = self.file(mapping)
        if path not in self._loads:
            self._loads[path] = loads_of(path)
        within = [flags for start, end, flags in self._loads[path] if start <= mapping.offset < end]
        return within[0] if within else mapping.flags

    def held(self) -> Ranges:
        starts = np.array(self.piece_starts, dtype=np.int64)
        ends = np.array([piece.end for piece in self.pieces], dtype=np.int64)
        return Ranges(starts, ends, np.full(len(starts), PRESENT, dtype=np.int64))

    def file(self, mapping: Mapping) -> Path:
        if mapping.path not in self._found:
            self._found[mapping.path] = file_of_build(mapping.path, self.build_id(mapping.path))
        return self._found[mapping.path]

    def build_id(self, path: str) -> str:
        """Of a mapped file, from its first page in the core."""
        first = next((m for m in self.files if m.path == path and m.offset == 0), None)
        there = self.readable(first.start, first.end) if first else []
        if first is None or not there or there[0][0] != first.start or there[0][1] < 64:
            return ""
        data = bytearray(self.read(*there[0]))
        data[40:48] = bytes(8)  # section headers are not mapped: neither place,
        data[60:64] = bytes(4)  # number nor names
        return build_id_of(io.BytesIO(bytes(data)))

    def must_have_file(self, path: str) -> None:
        mapping = next((m for m in self.files if m.path == path), None)
        if mapping is None:
            self.refuse(
                "does not say which program it is of, nor is Folio found in it: dump it by gcore, or the kernel"
            )
        if not self.file(mapping).is_file():
            self._lacks(mapping)

    def must_hold(self, address: int, length: int) -> None:
        """Its start at least: what was never touched need not be there, but it is mapped."""
        at = address
        for span in self._ordered_spans:
            if span.start <= at < span.end:
                at = span.end
        if at < address + length or not self.readable(address, address + PAGE):
            self.refuse(f"lacks Folio's metadata: {HOW_TO_FILTER}")

    def _lacks(self, mapping: Mapping) -> NoReturn:
        build_id = self.build_id(mapping.path)
        which = f"of build id {build_id}" if build_id else "of that build"
        hint = ", or name it with FOLIO_LIBRARY=FILE" if "libfolio" in mapping.path else ""
        self.refuse(f"lacks what stands in {mapping.path}: put that file {which} in its place{hint}")

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        found = []
        first, last = max(bisect_right(self.piece_starts, start) - 1, 0), bisect_left(self.piece_starts, end)
        for piece in self.pieces[first:last]:
            low, high = max(start, piece.start), min(end, piece.end)
            if low < high:
                found.append((low, high - low))
        return found

    def read_into(self, buffer: np.ndarray, ranges: Sequence[tuple[int, int]]) -> None:
        to = 0
        for address, length in ranges:
            at, end = address, address + length
            for start, n in [*self.readable(address, end), (end, 0)]:
                self._read_missing(buffer[to + at - address : to + start - address], at)
                self._read_piece(buffer[to + start - address : to + start - address + n], start)
                at = start + n
            to += length

    def _read_piece(self, buffer: np.ndarray, address: int) -> None:
        if len(buffer):
            piece = self.pieces[bisect_right(self.piece_starts, address) - 1]
            self._read_file(self.descriptor, buffer, piece.offset + address - piece.start)

    def _read_missing(self, buffer: np.ndarray, address: int) -> None:
        """What is mapped from a file stands there; the rest was not touched, or not mapped."""
        buffer[:] = 0
        end = address + len(buffer)
        first, last = max(bisect_right(self.file_starts, address) - 1, 0), bisect_left(self.file_starts, end)
        for mapping in self.files[first:last]:
            low, high = max(address, mapping.start), min(end, mapping.end)
            if low >= high:
                continue
            path = self.file(mapping)
            if not path.is_file():
                self._lacks(mapping)
            with path.open("rb") as file:
                self._read_file(
                    file.fileno(), buffer[low - address : high - address], mapping.offset + low - mapping.start
                )

    def _read_file(self, descriptor: int, buffer: np.ndarray, offset: int) -> None:
        done = 0
        while done < len(buffer):
            got = os.preadv(descriptor, [memoryview(buffer[done:])], offset + done)
            if got == 0:
                break  # behind the end of a mapped file are zeros; the core's own length was checked
            done += got
