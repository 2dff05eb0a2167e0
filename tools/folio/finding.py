"""Which processes are meant: by number, by name, by cgroup. Names and cgroups are looked up anew each time."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from folio.errors import FolioError
from folio.process import Process, living

COMM_MOST = 15  # characters that the kernel keeps of a name
TRIES_MOST = 3  # of a process that is not on Folio: it may be just starting


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in text.split() if int(number) > 0]  # 0: of another PID namespace


def has_name(root: Path, name: str) -> bool:
    """As pgrep -x finds it, or its program's file is called so."""
    try:
        short = len(name) <= COMM_MOST and (root / "comm").read_text(errors="replace").rstrip("\n") == name
    except OSError:
        return False
    return short or name in program_names(living(root))


def program_names(root: Path) -> set[str]:
    """Of the file, and what it was called by; neither may be readable."""
    found = set()
    try:
        found.add(os.path.basename((root / "cmdline").read_text(errors="replace").split("\0")[0]))
        found.add(re.sub(r" \(deleted\)$", "", (root / "exe").readlink().name))
    except OSError:
        pass
    return found


def by_name(name: str) -> list[int]:
    own = os.getpid()
    pids = sorted(int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [pid for pid in pids if pid != own and has_name(Path("/proc", str(pid)), name)]


def cgroup_mounts() -> list[Path]:
    """Where cgroups are, of version 2 first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup"):
            found.append((not after.startswith("cgroup2"), Path(before.split()[4])))
    return [path for _, path in sorted(found)]


def cgroup_folder(text: str) -> Path:
    """By the path of its folder, or its own, as /proc/PID/cgroup has it."""
    mounts = cgroup_mounts()
    if any(mount == Path(text) or mount in Path(text).parents for mount in mounts):
        return Path(text)
    inside = [mount / text.lstrip("/") for mount in mounts]
    return next((folder for folder in inside if folder.is_dir()), inside[0] if inside else Path(text))


def by_cgroup(folder: Path) -> list[int]:
    """Also of the cgroups below it. None where it is gone, as that of a service that has ended."""
    found: list[int] = []
    for at, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                found += numbers_in(Path(at, "cgroup.procs").read_text())
            except OSError:
                continue
    return sorted(set(found) - {os.getpid()})


class Others:
    """Processes that were found and are not on Folio: they are asked some times, as one may be just starting, and then
    no more until they begin another program."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[tuple[str, ...], int]] = {}

    def add(self, process: Process) -> None:
        image, tries = self.known.get(process.pid, (process.image, 0))
        self.known[process.pid] = (process.image, tries + 1 if image == process.image else 1)

    def has(self, process: Process) -> bool:
        image, tries = self.known.get(process.pid, ((), 0))
        return image == process.image and tries >= TRIES_MOST

    def keep(self, pids: list[int]) -> None:
        self.known = {pid: known for pid, known in self.known.items() if pid in pids}


@dataclass(frozen=True)
class Wanted:
    """Processes by number, and names and cgroups, which may find any number of others."""

    pids: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)

    @property
    def looks_up(self) -> bool:
        return bool(self.names or self.cgroups)

    def check(self) -> None:
        """A cgroup that is not there may come, a folder that is none never becomes one."""
        for text in self.cgroups:
            folder = cgroup_folder(text)
            if folder.is_dir() and not (folder / "cgroup.procs").exists():
                raise FolioError(f"--cgroup {text}: {folder} is no cgroup; /proc/PID/cgroup tells that of a process")

    def found(self) -> dict[tuple[str, str], list[int]]:
        """By how they were asked for."""
        found = {("name", name): by_name(name) for name in self.names}
        return found | {("cgroup", text): by_cgroup(cgroup_folder(text)) for text in self.cgroups}

    def __str__(self) -> str:
        asked = [f"of the name {name}" for name in self.names] + [f"in the cgroup {text}" for text in self.cgroups]
        return " or ".join(asked)
