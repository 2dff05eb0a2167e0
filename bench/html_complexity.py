"""How large the allocators are: files, lines and bytes of their sources, with and without comments and blank lines."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from measure import ROOT

sys.path += [str(ROOT / "tests" / "house"), str(ROOT / "bench" / "peers")]

import house
from build_peers import RECIPES

SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".def", ".inc", ".S"}
# The folders of an allocator's own sources, below those that bench/peers/build_peers.py unpacks for it. Google's
# tcmalloc also needs Abseil, which is not counted.
PEER_FOLDERS = {
    "jemalloc": ("src", "include"),
    "mimalloc2": ("src", "include"),
    "mimalloc3": ("src", "include"),
    "snmalloc": ("src/snmalloc",),
    "rpmalloc": ("rpmalloc",),
    "tcmalloc-google": ("tcmalloc/tcmalloc",),
}
NOT_THE_ALLOCATOR = ("test", "mock")  # in names


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
    """Without tests, and without what a build made there from a template or a script."""

    def written(path: Path) -> bool:
        made_from = (path.with_name(path.name + ".in"), path.with_suffix(".sh"))
        return not any(origin.exists() for origin in made_from) and ".gen." not in path.name

    found = [path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file() and written(path)]
    return sorted(path for path in found if not any(word in path.name for word in NOT_THE_ALLOCATOR))


def modules(root: Path = ROOT) -> list[Size]:
    """Folio's core by folder, and all of it."""
    folders = sorted(path for path in (root / "src").iterdir() if path.is_dir())
    found = [size_of(f"src/{folder.name}", paths) for folder in folders if (paths := sources(folder))]
    return [*found, size_of("Folio, all", sources(root / "src"))]


def peers(root: Path = ROOT) -> list[Size]:
    """Those whose sources build_peers.py has left in the build folder."""
    found = []
    for name, folders in PEER_FOLDERS.items():
        for base in sorted((root / "build" / "peers" / "work" / name).glob(f"*/{RECIPES[name].sources}")):
            if paths := sorted({path for folder in folders for path in sources(base / folder)}):
                found.append(size_of(name, paths))
    return found
