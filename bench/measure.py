"""What the programs of bench/ and bench/peers share: the peers, building a program, options, how a program ends.

Starting a program on an allocator is the same as in the `folio` command, and comes from its package (tools/folio).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from folio.errors import FolioError as BenchError
from folio.launching import (
    Allocator,
    Run,
    build_launcher,
    compile_to,
    compiler,
    is_libc,
    is_stale,
    launch,
    maps_hold,
    prove_loaded,
    same_file,
    serves,
)

__all__ = [
    "BenchError",
    "Run",
    "build_launcher",
    "is_libc",
    "launch",
    "maps_hold",
    "prove_loaded",
    "same_file",
    "serves",
]

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "bench" / "programs"
INTERRUPTED = 130  # exit status, as a shell gives it after Ctrl-C

# -fno-plt: a call of malloc goes straight to it, as it does inside a statically linked program, not through a stub.
CXX_FLAGS = ["-std=c++20", "-O2", "-fno-plt", "-pthread", "-Wall", "-Wextra", "-Wshadow"]

# Where bench/peers/build_peers.py leaves the newest versions of the peers, and their files there.
BUILT = ROOT / "build" / "peers"
BUILT_PEERS = {
    "jemalloc": "libjemalloc5.so",
    "mimalloc2": "libmimalloc2.so",
    "mimalloc3": "libmimalloc3.so",
    "snmalloc": "libsnmalloc.so",
    "rpmalloc": "librpmalloc.so",
    "tcmalloc-google": "libtcmalloc-google.so",
}

# The kernel takes one rseq area a thread: Google's tcmalloc has its per-CPU caches only if glibc does not register its
# own.
PEER_ENVIRONMENT = {"tcmalloc-google": (("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),)}

# Debian's packages of the peers, the files that they install, and the built ones that are the same, but newer.
DEBIAN_PEERS = {
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4", ""),
    "tbb": ("libtbbmalloc2", "libtbbmalloc_proxy.so.2", ""),
    "jemalloc-debian": ("libjemalloc2", "libjemalloc.so.2", "jemalloc"),
    "mimalloc-debian": ("libmimalloc2.0", "libmimalloc.so.2", "mimalloc2"),
}


# Limits, not peers (bench/peers/ideal.c): what a program takes when malloc and free cost nothing, or next to it.
IDEALS = {"ideal-bump": (), "ideal-stack": ("-DIDEAL_STACK",)}


def build_ideals(out_dir: Path) -> list[Allocator]:
    source, found = ROOT / "bench" / "peers" / "ideal.c", []
    for name, options in IDEALS.items():
        target = out_dir / f"lib{name}.so"
        if is_stale(target, [source]):
            flags = ["-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-builtin-malloc"]
            compile_to(target, [compiler("c"), *flags, *options, str(source)])
        found.append(Allocator(name, target))
    return found


def library_folders() -> list[Path]:
    return [Path("/usr/lib") / f"{os.uname().machine}-linux-gnu", Path("/usr/lib64"), Path("/usr/lib")]


def find_peers(
    folders: list[Path] | None = None, built: Path = BUILT, *, everything: bool = False
) -> tuple[list[Allocator], list[str]]:
    """The peers that are here, glibc first, and the Debian packages of those that are not.

    Debian's jemalloc and mimalloc only where no newer one is built, or if `everything` is asked for.
    """
    found, missing = [Allocator("glibc", None)], []
    for name, file_name in BUILT_PEERS.items():
        if (built / file_name).is_file():
            found.append(Allocator(name, built / file_name, PEER_ENVIRONMENT.get(name, ())))
    newest = {peer.name for peer in found}
    for name, (package, file_name, newer) in DEBIAN_PEERS.items():
        if newer in newest and not everything:
            continue
        for folder in library_folders() if folders is None else folders:
            if (folder / file_name).is_file():
                found.append(Allocator(name, folder / file_name))
                break
        else:
            if newer not in newest:
                missing.append(package)
    return found, missing


def build_program(name: str, out_dir: Path) -> Path:
    target, source = out_dir / name, PROGRAMS / f"{name}.cc"
    if is_stale(target, [source, *PROGRAMS.glob("*.h")]):
        compile_to(target, [compiler("c++"), *CXX_FLAGS, str(source)])
    return target


def add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lib", type=Path, default=ROOT / "build" / "libfolio.so", help="Folio's library")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "bench", help="where programs are built")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"{folder} cannot be a folder: {error.strerror}") from None


def end_with(main: Callable[[], int], name: str) -> NoReturn:
    """Runs a program and ends with its status, or with a line that says what went wrong."""
    try:
        sys.exit(main())
    except BenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
