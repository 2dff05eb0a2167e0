"""Names of places in code: functions, lines and what was inlined, from symbol tables and DWARF, by `symbolic`.

Debug files are looked for where distributions and debuginfod put them, by build-id. Nothing is fetched.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pycxxfilt
from symbolic.debuginfo import Archive
from symbolic.exceptions import SymbolicError

from folio.modules import Module
from folio.unwind import Place


@dataclass(frozen=True)
class Frame:
    function: str  # demangled; MODULE+0xADDRESS where no symbol is known
    file: str = ""
    line: int = 0
    module: Module | None = None
    address: int = 0  # the module's own
    inlined: bool = False  # into the next frame
    named: bool = True

    @property
    def where(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""


# The allocator, and what programs and the C++ library put around it.
ALLOCATOR = re.compile(
    r"folio::|operator new|(malloc|calloc|realloc|reallocarray|aligned_alloc|(posix_)?memalign|p?valloc|cfree)$"
    r"|__libc_(malloc|calloc|realloc|memalign)$|(std::__new_allocator|__gnu_cxx::new_allocator|std::allocator)<"
    r"|std::allocator_traits<|__gnu_cxx::__alloc_traits<|__rust_alloc|__rust_realloc|__rdl_|__rg_|alloc::alloc::"
)
API = re.compile(r"operator new|\w*alloc\w*$|\w*memalign$|folio_\w+$|__rust_\w+$")
ENTRIES = {
    "new_object": "operator new",
    "realloc": "realloc",
    "resize": "realloc",
    "zeroed": "calloc",
    "aligned": "aligned_alloc",
}
GLUE = re.compile(
    r"(std::|__gnu_cxx::|alloc::|core::|<alloc::|<core::|<std::).*|.*::operator new"
    r"|\w*([mczpvx]alloc|realloc|strn?dup|memdup)\w*$|alloc_root$",
    re.IGNORECASE,
)
PLAIN_STRING = re.compile(r"std::(?:__cxx11::)?basic_string<char, std::char_traits<char>, std::allocator<char>>")
LIBRARIES = re.compile(r"/include/c\+\+/|/rustc/[0-9a-f]+/|/rustlib/src/")
START = re.compile(r"_start$|__libc_start|start_thread$|_*clone3?$|thread_start$")


# Parts and copies of a function that compilers make: the function is what people know.
PARTS = re.compile(r"(\.(cold|part\.\d+|constprop\.\d+|isra\.\d+|lto_priv\.\d+|llvm\.\d+))+$")
DEBUG_FOLDERS = ("/usr/lib/debug", "/usr/local/lib/debug")


@cache
def demangled(symbol: str) -> str:
    symbol = PARTS.sub("", symbol)
    try:
        return (pycxxfilt.demangle(symbol) if symbol.startswith(("_Z", "_R", "__Z")) else symbol) or symbol
    except ValueError:
        return symbol


def debug_files(module: Module) -> list[Path]:
    """Where its debug symbols may be."""
    name = module.build_id
    if len(name) < 4:
        return []
    found = [Path(folder) / ".build-id" / name[:2] / f"{name[2:]}.debug" for folder in DEBUG_FOLDERS]
    base = os.environ.get("DEBUGINFOD_CACHE_PATH") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "debuginfod_client"
    )
    return [*found, Path(base) / name / "debuginfo"]


@cache
def short(function: str, most: int = 60) -> str:
    """A function's name as people say it: without arguments and the type it returns, with short template arguments."""
    name = cut_brackets(PLAIN_STRING.sub("std::string", function).replace("std::__cxx11::", "std::"), "(", ")", "")
    if not re.search(r"operator\W|lambda|\[", name):
        name = without_type(name)
    if len(name) > most:
        name = cut_brackets(name, "<", ">", "<…>")
    return name if len(name) <= most else "…" + name[-(most - 1) :]


def without_type(name: str) -> str:
    """Without what stands before the last space that is in no brackets."""
    depth = last = 0
    for i, letter in enumerate(name):
        depth += (letter in "<(") - (letter in ">)")
        if letter == " " and depth == 0:
            last = i + 1
    return name[last:]


def cut_brackets(text: str, opening: str, closing: str, instead: str) -> str:
    """Without what is in brackets, but for those of operators and of `(anonymous namespace)`."""
    text = text.replace("(anonymous namespace)", "{anonymous}")
    if re.search(r"operator(\(\)|<|>|-)", text) or text.startswith(("(", "<", "[")):
        return text
    out, depth = [], 0
    for letter in text:
        if letter == opening:
            out.append(instead if depth == 0 else "")
            depth += 1
        elif letter == closing and depth:
            depth -= 1
        elif depth == 0:
            out.append(letter)
    name = "".join(out).replace("{anonymous}", "(anonymous namespace)")
    return re.sub(r"( const| volatile|&)+$", "", name) if opening == "(" else name


@cache
def is_glue(function: str, file: str) -> bool:
    """Whether it allocates for its caller, as an allocator, a wrapper of one or a container does."""
    return bool(ALLOCATOR.match(function) or GLUE.match(short(function)) or LIBRARIES.search(file))


class ModuleSymbols:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.cache: Any = None
        self.lines = False  # it has lines, not only names
        for file in [*debug_files(module), module.file]:
            if file is not None and self._open(file):
                return

    def _open(self, file: Path) -> bool:
        try:
            if not file.exists():
                return False
            archive = Archive.open(str(file))
            loaded = next(archive.iter_objects(), None)
            if loaded is None or not loaded.features & {"debug", "symtab"}:
                return False
            self.cache, self.lines = loaded.make_symcache(), "debug" in loaded.features
        except (OSError, SymbolicError):
            return False
        return True

    def frames(self, address: int) -> tuple[Frame, ...]:
        """Of a place: the innermost inlined function first."""
        module = self.module
        found = self.cache.lookup(address - module.base) if self.cache is not None else []
        if not found:
            return (Frame(f"{module.short}+{address:#x}", module=module, address=address, named=False),)
        return tuple(
            Frame(
                demangled(each.symbol),
                each.full_path or "",
                each.line if each.full_path else 0,
                module,
                address,
                inlined=i < len(found) - 1,
            )
            for i, each in enumerate(found)
        )


class Symbols:
    """Of the places of an unwinder. Files are opened by a thread of its own while stacks are still unwound: a large one
    takes seconds, most of them outside the interpreter."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.opener = ThreadPoolExecutor(1)
        self.of_module: dict[Module, Future[ModuleSymbols]] = {}
        self.known: list[tuple[Frame, ...]] = []  # of the first places

    def open(self, module: Module) -> Future[ModuleSymbols]:
        """Without waiting for it."""
        if module not in self.of_module:
            self.of_module[module] = self.opener.submit(ModuleSymbols, module)
        return self.of_module[module]

    def all(self) -> list[tuple[Frame, ...]]:
        """Of each place."""
        for place in self.places[len(self.known) :]:
            if place.module is None:
                frames = (Frame(place.name or "[code made at run time]", named=bool(place.name)),)
            else:
                frames = self.open(place.module).result().frames(place.address)
            self.known.append(frames)
        return self.known


def trimmed(frames: list[Frame], library: str) -> list[Frame]:
    """A stack, the innermost frame first, with one frame of the allocator: what the program called."""

    def is_allocator(frame: Frame) -> bool:
        inside = frame.module is not None and frame.module.name == library
        return inside or bool(ALLOCATOR.match(frame.function))

    count = 0
    while count < len(frames) and is_allocator(frames[count]):
        count += 1
    called = next((frame for frame in reversed(frames[:count]) if API.match(frame.function)), None)
    if count and called is None:
        # Its entry jumped on: what it came to says which it was.
        text = " ".join(frame.function for frame in frames[:count])
        name = next((name for part, name in ENTRIES.items() if part in text), "malloc")
        called = replace(frames[count - 1], function=name, file="", line=0, inlined=False, named=True)
    return ([called] if called else []) + frames[count:]
