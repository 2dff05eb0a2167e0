"""The data symbols of a process's files: which variable an address is, and which C++ class a vtable belongs to.

Symbol tables are taken whole, as arrays: a browser has a million symbols. Where a table was stripped, the class is
found by the vtable itself, which leads to the name of its type (the Itanium C++ ABI: the word before the first function
is the address of the type's information, whose second word is that of the name).
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycxxfilt
from elftools.elf.elffile import ELFFile

from folio import output
from folio.cfi import BROKEN
from folio.source import Mapping, Source

SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
OBJECT = 1
WORD = 8
NAME_MOST = 4096
TYPE_NAME = re.compile(r"\*?([A-Za-z0-9_.$]+)\Z")


@functools.lru_cache(maxsize=65536)
def demangled(name: str) -> str:
    """As c++filt writes it; the name itself where it cannot be read."""
    try:
        return pycxxfilt.demangle(name) if name.startswith("_Z") else name
    except ValueError:
        return name


def class_of(name: str) -> str:
    """Of the mangled name of a vtable or a type."""
    text = demangled(name)
    return re.sub(r"^(vtable for |typeinfo name for )", "", text)


@dataclass(frozen=True)
class Symbols:
    """Data symbols of one file, ascending by address."""

    values: np.ndarray
    sizes: np.ndarray
    names: np.ndarray  # offsets in text
    text: bytes

    def name(self, at: int) -> str:
        start = int(self.names[at])
        return self.text[start : self.text.index(b"\0", start)].decode(errors="replace")

    def covering(self, address: int) -> tuple[str, int] | None:
        """(name, offset) of the symbol in which an address of the file lies."""
        at = int(np.searchsorted(self.values, address, side="right")) - 1
        for i in range(at, max(at - 4, -1), -1):
            offset = address - int(self.values[i])
            if offset < max(int(self.sizes[i]), 1):
                return self.name(i), offset
        return None


NONE = Symbols(*(np.zeros(0, dtype=np.uint64) for _ in range(3)), b"")


@dataclass(frozen=True)
class File:
    """What is needed of an ELF file: its data symbols, and where its segments lie."""

    symbols: Symbols
    segments: tuple[tuple[int, int, int], ...]  # offset in the file, address, bytes in the file
    end: int  # the highest address, with zero-filled data


def read_file(path: Path) -> File | None:
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            loads = list(elf.iter_segments("PT_LOAD"))
            symbols = NONE
            for name in (".symtab", ".dynsym"):
                section = elf.get_section_by_name(name)
                if section is not None and section["sh_size"] and elf.elfclass == 64 and elf.little_endian:
                    symbols = data_symbols(section.data(), elf.get_section(section["sh_link"]).data())
                    break
            segments = tuple((s["p_offset"], s["p_vaddr"], s["p_filesz"]) for s in loads)
            return File(symbols, segments, max(s["p_vaddr"] + s["p_memsz"] for s in loads))
    except (OSError, *BROKEN):
        return None


def data_symbols(data: bytes, text: bytes) -> Symbols:
    table = np.frombuffer(data, dtype=SYMBOL, count=len(data) // SYMBOL.itemsize)
    table = table[((table["info"] & 15) == OBJECT) & (table["section"] != 0) & (table["value"] != 0)]
    table = table[np.lexsort((table["size"], table["value"]))]
    return Symbols(table["value"], table["size"], table["name"].astype(np.int64), text)


class DataFile:
    """A mapped file with its data. (Its code is the profile's: modules.Module.)"""

    def __init__(self, process: Source, parts: list[Mapping]) -> None:
        self.process = process
        self.parts = parts
        self.path = parts[0].path
        self.start = parts[0].start
        self.end = parts[-1].end  # of what is mapped from the file

    @functools.cached_property
    def file(self) -> File | None:
        return read_file(self.process.file(self.parts[0]))

    @functools.cached_property
    def bias(self) -> int:
        """What is added to the file's addresses."""
        assert self.file is not None
        for offset, address, size in self.file.segments:
            for part in self.parts:
                if part.offset <= offset < part.offset + (part.end - part.start) and offset + size > part.offset:
                    return part.start + offset - part.offset - address
        return 0

    @property
    def whole_end(self) -> int:
        """With zero-filled data."""
        return max(self.end, self.bias + self.file.end) if self.file else self.end

    def covering(self, address: int) -> tuple[str, int] | None:
        return self.file.symbols.covering(address - self.bias) if self.file else None


class DataFiles:
    """The files that a process has mapped."""

    def __init__(self, process: Source, mappings: list[Mapping]) -> None:
        by_path: dict[str, list[Mapping]] = {}
        for mapping in mappings:
            if mapping.path and mapping.inode and not mapping.flags.endswith("s"):
                by_path.setdefault(mapping.path, []).append(mapping)
        self.process = process
        # Data without code is no library.
        self.modules = sorted(
            (DataFile(process, parts) for parts in by_path.values() if any("x" in part.flags for part in parts)),
            key=lambda module: module.start,
        )
        self.starts = [module.start for module in self.modules]
        parts = sorted((p.start, p.end) for module in self.modules for p in module.parts if "r" in p.flags)
        self.part_start = np.array([a for a, _ in parts], dtype=np.uint64)
        self.part_end = np.array([b for _, b in parts], dtype=np.uint64)

    def holds(self, words: np.ndarray) -> np.ndarray:
        """Which words are addresses in a mapped file."""
        if len(self.part_start) == 0:
            return np.zeros(len(words), dtype=bool)
        at = np.searchsorted(self.part_start, words, side="right")
        return (at > 0) & (words < self.part_end[np.maximum(at, 1) - 1])

    def module(self, address: int) -> DataFile | None:
        at = bisect_right(self.starts, address) - 1
        return self.modules[at] if at >= 0 and address < self.modules[at].whole_end else None

    def variable(self, address: int) -> str:
        """How people call what lies there of a file's data; empty where it is in none."""
        module = self.module(address)
        if module is None:
            return ""
        found = module.covering(address)
        return demangled(found[0]) if found else f"data of {Path(module.path).name}"

    # ---- Types ----

    def type_at(self, word: int) -> str:
        """What an object is whose first word this is: a C++ class, or, behind a &, the variable that the word is the
        address of, as of a table of functions in C; empty where it tells nothing."""
        module = self.module(word)
        if module is None:
            return ""
        found = module.covering(word)
        if found and found[0].startswith("_ZTV"):
            return class_of(found[0]) if found[1] >= 2 * WORD else ""
        if name := self.type_by_vtable(word):
            return name
        if found and found[1] == 0 and not found[0].startswith("_ZT"):
            return f"&{demangled(found[0])}"
        return ""

    def type_by_vtable(self, table: int) -> str:
        if table % WORD:
            return ""
        top, information = self._words(table - 2 * WORD, 2)
        if top and top < (1 << 64) - (1 << 20):  # how far the table's part is from the object's start: 0 or less
            return ""
        if not self._is_data(information):
            return ""
        own_table, name = self._words(information, 2)
        if not self._is_data(own_table) or not self._is_data(name):
            return ""
        text = self.process.read(name, NAME_MOST if self._is_data(name + NAME_MOST) else 256).split(b"\0")[0]
        found = TYPE_NAME.match(text.decode(errors="replace"))
        mangled = f"_ZTS{found[1]}" if found else ""
        shown = class_of(mangled)
        return shown if mangled and shown != mangled else ""

    def _words(self, address: int, count: int) -> list[int]:
        return [int(word) for word in np.frombuffer(self.process.read(address, WORD * count), dtype="<u8")]

    def _is_data(self, address: int) -> bool:
        """In a mapped file that is there to be read."""
        if not self.holds(np.array([address], dtype=np.uint64))[0]:
            return False
        module = self.module(address)
        return module is not None and module.file is not None


def type_shown(name: str, most: int) -> str:
    """For a table."""
    return output.one_line(name.replace("(anonymous namespace)::", ""), most)


class Types:
    """Codes of what the first words of objects say; 0: nothing."""

    def __init__(self, modules: DataFiles) -> None:
        self.modules = modules
        self.names = ["no type"]
        self.words = np.zeros(0, dtype=np.uint64)  # those that were met, ascending, and their codes
        self.codes = np.zeros(0, dtype=np.int32)
        self.by_name = {"no type": 0}

    def of(self, words: np.ndarray) -> np.ndarray:
        found = np.zeros(len(words), dtype=np.int32)
        held = np.flatnonzero(self.modules.holds(words))
        if len(held) == 0:
            return found
        words = words[held]
        at, known = self._find(words)
        if not known.all():
            new = np.unique(words[~known])
            place = np.searchsorted(self.words, new)
            self.codes = np.insert(self.codes, place, [self._code(int(word)) for word in new])
            self.words = np.insert(self.words, place, new)
            at, _ = self._find(words)
        found[held] = self.codes[at]
        return found

    def _find(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Their places among those that were met, and which were."""
        if len(self.words) == 0:
            return np.zeros(len(words), dtype=np.int64), np.zeros(len(words), dtype=bool)
        at = np.minimum(np.searchsorted(self.words, words), len(self.words) - 1)
        return at, self.words[at] == words

    def _code(self, word: int) -> int:
        name = self.modules.type_at(word)
        code = self.by_name.setdefault(name, len(self.names)) if name else 0
        if code == len(self.names):
            self.names.append(name)
        return code
