"""How large the allocators are: files, lines and bytes of their sources, with and without comments and blank lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from measure import ROOT

sys.path.append(str(ROOT / "tests" / "house"))

import house

SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".def", ".inc", ".S"}
# Where the sources of crates that wrap the peers have the allocator itself, below build/peers/sources.
PEER_SOURCES = {
    "jemalloc": ("tikv-jemalloc-sys-*/jemalloc", ("src", "include")),
    "mimalloc 2": ("libmimalloc-sys-*/c_src/mimalloc*", ("v2/src", "v2/include", "src", "include")),
    "rpmalloc": ("rpmalloc-sys-*/rpmalloc", ("rpmalloc", "src")),
    "snmalloc": ("snmalloc-sys-*/snmalloc", ("src/snmalloc",)),
    "tcmalloc": ("libtcmalloc-sys-*/c_src/tcmalloc*", ("tcmalloc",)),
}


@dataclass(frozen=True)
class Size:
    name: str
    files: int
    lines: int
    bytes: int
    code_lines: int
    code_bytes: int


def size_of(name: str, paths: list[Path]) -> Size:
    texts = [path.read_text(errors="replace") for path in paths]
    code = [line.strip() for text in texts for line in without_comments(text) if line.strip()]
    return Size(
        name,
        len(paths),
        sum(text.count("\n") for text in texts),
        sum(len(text.encode()) for text in texts),
        len(code),
        sum(len(line.encode()) + 1 for line in code),
    )


def without_comments(text: str) -> list[str]:
    """The lines with their comments blank; literals stay, they are code."""

    def blank(match) -> str:
        return "\n" * match[0].count("\n") if match[0][0] == "/" else match[0]

    return house.TOKEN.sub(blank, text).split("\n")


def sources(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in SUFFIXES and "test" not in p.name and p.is_file())


def modules(root: Path = ROOT) -> list[Size]:
    """Folio's core by folder, and all of it."""
    folders = sorted(path for path in (root / "src").iterdir() if path.is_dir())
    found = [size_of(f"src/{folder.name}", paths) for folder in folders if (paths := sources(folder))]
    return [*found, size_of("Folio, all", sources(root / "src"))]


def peers(root: Path = ROOT) -> list[Size]:
    found = []
    for name, (pattern, folders) in PEER_SOURCES.items():
        for base in sorted((root / "build" / "peers" / "sources").glob(pattern)):
            paths = sorted({path for folder in folders for path in sources(base / folder)})
            if paths:
                found.append(size_of(name, paths))
                break
    return found
