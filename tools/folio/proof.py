"""Whose malloc does a program use? Asked of the loader, for programs that do not say so themselves.

The log of the loader's bindings says more than the process map: a program may map two allocators (Debian's redis-server
is linked to jemalloc), and only one serves it.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from folio.errors import FolioError
from folio.launching import Allocator, Run, launch, serves

BINDING = re.compile(r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `malloc'")


def is_library(path: str) -> bool:
    return ".so" in os.path.basename(path)


def bound_to(log: str) -> set[str]:
    """The files to which a loader's log binds `malloc`.

    A program that takes malloc's address and is linked to a fixed place, as Debian's python3 is, has a stub that stands
    for malloc in all objects. The stub's own target is in the log too, so the program itself is then left out. Only the
    program: a library may bind malloc to itself and to the stub, and be what serves it.
    """
    pairs = {(match[1], match[2]) for line in log.splitlines() if (match := BINDING.search(line))}
    stubs = {user for user, target in pairs if user != target and (user, user) in pairs and not is_library(user)}
    return {target for _, target in pairs if target not in stubs}


def debug_environment(scratch: str) -> dict[str, str]:
    return {"LD_DEBUG": "bindings", "LD_DEBUG_OUTPUT": f"{scratch}/log"}


def logged(scratch: str) -> set[str]:
    return set().union(*(bound_to(p.read_text(errors="replace")) for p in Path(scratch).glob("log.*")))


def prove_bound(
    launcher: Path, allocator: Allocator, command: list[str], environment: dict[str, str], timeout: float
) -> Run:
    """One run that is not measured. Raises FolioError unless every malloc of its processes is the allocator's."""
    with tempfile.TemporaryDirectory(prefix="folio-proof-") as scratch:
        logs = {**environment, **debug_environment(scratch)}
        run = launch(launcher, allocator, command, environment=logs, timeout=timeout)
        found = logged(scratch)
    if not found:
        raise FolioError(f"{Path(command[0]).name}: the loader binds no malloc (statically linked or set-user-id?)")
    foreign = [path for path in found if not serves(allocator, path)]
    if foreign:
        raise FolioError(f"its malloc came from {', '.join(os.path.basename(path) for path in sorted(foreign))}")
    return run
