"""What of a process is not Folio's, by kind: threads' stacks, mapped files, shared memory, the heaps of runtimes that
have their own (Java's, V8's), and what else it maps. Each with its resident size and what to set there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from folio.pools import own_pools
from folio.process import Process
from folio.source import Mapping, Source, StoredSource

GUARD_MOST = 1 << 20
V8_PROGRAMS = re.compile(r"node(js)?|deno|d8|electron|(google-)?chrome|chromium.*|headless[_-]shell")


@dataclass(frozen=True)
class Kind:
    title: str
    advice: str
    bytes: int = 0


KINDS = {
    "java": (
        "Java's heap, metaspace and code (mappings without a file)",
        "-Xmx, -XX:MaxMetaspaceSize and -XX:ReservedCodeCacheSize bound them; started with "
        "-XX:NativeMemoryTracking=summary, `jcmd {pid} VM.native_memory` lists them.",
    ),
    "v8": (
        "V8's heap and code, mostly (mappings without a file)",
        "--max-old-space-size=MIB bounds the heap (Node.js: NODE_OPTIONS), --max-semi-space-size its young part.",
    ),
    "pools": ("Python's pools of small objects, mostly", "{pools}"),
    "anonymous": (
        "other mappings without a file: pools, buffers, made code",
        "Folio has no part in it; `strace -f -e trace=mmap,munmap -k -p {pid}` shows who maps and unmaps.",
    ),
    "stacks": (
        "stacks of {threads}",
        "A page of a stack that was once used stays. Fewer threads, or less on their stacks (large local arrays, deep "
        "recursion); their limits (`ulimit -s`, pthread_attr_setstacksize) only bound it.",
    ),
    "break": (
        "the break (brk), which Folio does not use",
        "An allocator beside Folio keeps its heap there: one that is linked in under other names, or that served "
        "before Folio came.",
    ),
    "shared": (
        "shared memory (/dev/shm, memfd, System V, anonymous)",
        "Each process that maps it counts it, though it is there once. Its size is set where it is made "
        "(`ls -l /dev/shm` and `ipcs -m` list some; PostgreSQL: shared_buffers).",
    ),
    "files": (
        "mapped files, with their zero-filled data",
        "The kernel takes pages of files back by itself where memory is short, but for those that were written to.",
    ),
    "kernel": ("the kernel's own pages (vdso)", "Nothing to do."),
    "moved": ("mapped or unmapped while it was read", "Nothing to do."),
}


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def runtime_of(mappings: list[Mapping], program: str) -> str:
    """Whose the mappings without a file mostly are."""
    names = {name_of(mapping.path) for mapping in mappings if mapping.path}
    if "libjvm.so" in names:
        return "java"
    if V8_PROGRAMS.fullmatch(name_of(program)) or any(name.startswith(("libnode.so", "libv8.so")) for name in names):
        return "v8"
    return "anonymous"


def stack_pointers(process: Process) -> tuple[list[int], int]:
    """Of the threads that are asleep just now, and how many threads there are."""
    found, count = [], 0
    for task in (process.root / "task").glob("*"):
        count += 1
        try:
            words = (task / "syscall").read_text().split()
        except OSError:
            continue
        if len(words) >= 3:
            found.append(int(words[-2], 16))
    return found, count


def stacks_of(mappings: list[Mapping], pointers: list[int]) -> set[int]:
    """Starts of the mappings that are stacks of threads: a thread sleeps there, or there is a guard right below."""
    starts = [mapping.start for mapping in mappings]
    found = set()
    for pointer in pointers:
        at = bisect_right(starts, pointer) - 1
        if at >= 0 and pointer < mappings[at].end:
            found.add(mappings[at].start)
    for below, mapping in pairwise(mappings):
        guarded = below.end == mapping.start and below.flags == "---p" and below.end - below.start <= GUARD_MOST
        if guarded and not below.name and mapping.flags == "rw-p" and not mapping.name:
            found.add(mapping.start)
    return {start for start in found if not mappings[starts.index(start)].path}


def is_shared_memory(mapping: Mapping) -> bool:
    return mapping.name.startswith(("/dev/shm/", "/SYSV", "/memfd:", "/dev/zero"))


def zero_filled(mappings: list[Mapping]) -> set[int]:
    """Starts of mappings without a file that are the end of a file's data."""
    return {
        mapping.start
        for below, mapping in pairwise(mappings)
        if not mapping.name and below.path and not is_shared_memory(below) and below.end == mapping.start
        and "w" in mapping.flags and "w" in below.flags
    }  # fmt: skip


def kind_of(mapping: Mapping, stacks: set[int], data: set[int], runtime: str) -> str:
    if is_shared_memory(mapping):
        return "java" if "java_heap" in mapping.name else "shared"
    if mapping.path or mapping.start in data:
        return "files"
    if mapping.start in stacks or mapping.name.startswith(("[stack", "[anon: glibc: pthread")):
        return "stacks"
    if mapping.name.startswith("[heap]"):
        return "break"
    if mapping.name.startswith(("[v", "[uprobes")):
        return "kernel"
    return runtime


def kinds(source: Source, seen: Seen, mappings: list[Mapping], resident: dict[int, int], moved: int) -> dict[str, Kind]:
    """`resident`: bytes that are not Folio's, by the start of their mapping; `moved`: those in none. Largest first."""
    program = source.program()
    pools = own_pools(program, source.environment())
    runtime = "pools" if pools else runtime_of(mappings, program)
    stacks, data = stacks_of(mappings, seen.stack_pointers), zero_filled(mappings)
    sums: dict[str, int] = {}
    for mapping in mappings:
        if size := resident.get(mapping.start, 0):
            kind = kind_of(mapping, stacks, data, runtime)
            sums[kind] = sums.get(kind, 0) + size
    if moved:
        sums["moved"] = moved
    counted = f"{seen.threads} threads" if seen.threads != 1 else "the thread"
    return {
        kind: Kind(
            KINDS[kind][0].format(threads=counted), KINDS[kind][1].format(pid=source.pid, pools=pools), sums[kind]
        )
        for kind in sorted(sums, key=lambda kind: -sums[kind])
    }


@dataclass(frozen=True)
class Sharing:
    """Of the whole process, in bytes; 0 where the kernel does not say (before Linux 4.14)."""

    private: int
    shared: int
    proportional: int  # PSS: each page divided by the processes that have it


def sharing_of(root: Path) -> Sharing:
    try:
        lines = (root / "smaps_rollup").read_text().splitlines()
    except OSError:
        return Sharing(0, 0, 0)
    sizes = {line.split()[0].rstrip(":"): int(line.split()[1]) << 10 for line in lines[1:]}

    def of(*names: str) -> int:
        return sum(sizes.get(name, 0) for name in names)

    return Sharing(of("Private_Clean", "Private_Dirty"), of("Shared_Clean", "Shared_Dirty"), of("Pss"))


@dataclass(frozen=True)
class Seen:
    """What only the kernel tells of a process, beside its pages and mappings. A snapshot keeps it."""

    stack_pointers: list[int] = field(default_factory=list)
    threads: int = 0
    locked: bool = False  # it has locked memory
    sharing: Sharing | None = None


def seen_of(source: Source) -> Seen:
    """Of a core nothing: it does not tell."""
    if isinstance(source, Process):
        pointers, threads = stack_pointers(source)
        locked = source.status().get("VmLck", "0 kB") != "0 kB"
        return Seen(pointers, threads, locked, sharing_of(source.root))
    if isinstance(source, StoredSource) and source.seen:
        return Seen(**source.seen | {"sharing": Sharing(**source.seen["sharing"])})
    return Seen()
