"""`folio check`: is Folio loaded here, which one, with which options; what this kernel offers, and what each means."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from folio import output
from folio.errors import FolioError
from folio.library import find_library, version_in
from folio.limit import limits_of
from folio.reader import Reader
from folio.run import preload_with

AT_RSEQ_FEATURE_SIZE = 27
RSEQ_WITH_ID = 28
COMMIT_BYTES = 130 << 20
MAPPINGS_USUAL = 65530
GOOD, NOTED, BAD = "good", "noted", "bad"


@dataclass(frozen=True)
class Feature:
    name: str
    found: str
    state: str
    meaning: str


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def kernel_version() -> tuple[int, int]:
    major, minor, *_ = os.uname().release.split(".")
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def auxiliary(kind: int) -> int:
    try:
        data = Path("/proc/self/auxv").read_bytes()
    except OSError:
        return 0
    return dict(struct.iter_unpack("<QQ", data[: len(data) // 16 * 16])).get(kind, 0)


def rseq() -> Feature:
    size = auxiliary(AT_RSEQ_FEATURE_SIZE)
    if size >= RSEQ_WITH_ID:
        return Feature("rseq", "with concurrency ids", GOOD, "CPU caches are as many as threads run at once")
    if size or kernel_version() >= (4, 18):
        return Feature("rseq", "with CPU numbers", NOTED, "each CPU that a thread ran on has a cache (ids: Linux 6.3)")
    return Feature("rseq", "none", NOTED, "the CPU's number is asked for by a call: slow calls take longer")


def huge_pages() -> Feature:
    text = read_text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    mode = text.partition("[")[2].partition("]")[0] or "none"
    meaning = "bins of small objects with four full chunks get them, and chunks that stay dense"
    if mode in ("never", "none"):
        meaning = "no program gets any; Folio's memory comes in pages of the usual size"
    return Feature("transparent huge pages", mode, NOTED if mode == "always" else GOOD, meaning)


def pressure() -> Feature:
    if read_text("/proc/pressure/memory") is not None:
        return Feature("PSI", "on", GOOD, "memory pressure can be read here: the option pressure:on reacts to it")
    return Feature("PSI", "off", NOTED, "memory pressure cannot be read (boot with psi=1): pressure:on is in vain")


def overcommit() -> Feature:
    mode = read_text("/proc/sys/vm/overcommit_memory") or "?"
    names = {"0": "heuristic", "1": "always", "2": "never"}
    if mode == "2":
        need = f"each process on Folio counts about {COMMIT_BYTES >> 20} MiB against the commit limit at its start"
        return Feature("overcommit", "never (2)", NOTED, need)
    return Feature("overcommit", f"{names.get(mode, '?')} ({mode})", GOOD, "reserved address space costs nothing")


def address_space() -> Feature:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Feature("RLIMIT_AS", "none", GOOD, "address space is not limited")
    state = BAD if soft < 128 << 20 else NOTED
    meaning = "below about 116 MiB small programs do not start on Folio, below 64 MiB the library cannot be mapped"
    return Feature("RLIMIT_AS", output.size(soft), state, meaning)


def memory_limit() -> Feature:
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = read_text(name)
        if text and text.isdecimal() and int(text) < 1 << 60:
            return Feature(
                "container's memory limit", output.size(int(text)), GOOD, "limit_soft:cgroup keeps Folio below it"
            )
    return Feature("container's memory limit", "none seen", GOOD, "only the machine's memory bounds the process")


def mappings() -> Feature:
    text = read_text("/proc/sys/vm/max_map_count") or str(MAPPINGS_USUAL)
    state = GOOD if int(text) >= MAPPINGS_USUAL else NOTED
    return Feature("vm.max_map_count", text, state, "Folio uses about 1000 for each TiB, and one for each huge object")


def moving() -> Feature:
    if kernel_version() >= (5, 7):
        return Feature("mremap", "moves pages", GOOD, "realloc of huge objects moves their pages, it copies no byte")
    return Feature("mremap", "old", NOTED, "realloc of huge objects copies them; pages are moved from Linux 5.7 on")


def looking() -> Feature:
    scope = read_text("/proc/sys/kernel/yama/ptrace_scope")
    if scope in (None, "0") or os.geteuid() == 0:
        return Feature("reading other processes", "allowed", GOOD, "doctor, bins, where, collect reach your processes")
    meaning = "doctor, bins, where and collect need root, or: sysctl kernel.yama.ptrace_scope=0"
    return Feature("reading other processes", f"restricted (ptrace_scope {scope})", NOTED, meaning)


def residency() -> Feature:
    if kernel_version() >= (6, 7):
        return Feature("PAGEMAP_SCAN", "there", GOOD, "residency is read exactly, and fast")
    return Feature("PAGEMAP_SCAN", "not there", NOTED, "residency is read from /proc/PID/pagemap, which is slower")


FEATURES = [
    rseq, huge_pages, pressure, overcommit, address_space, memory_limit, mappings, moving, looking, residency,
]  # fmt: skip


def loaded_in(reader: Reader) -> dict[str, Any]:
    library = reader.layout.library
    return {
        "pid": reader.process.pid,
        "command": reader.process.command(),
        "library": library.path,
        "linked_in": library.linked_in,
        "version": version_in(library.path),
        "options": {option.name: option.shown.strip() for option in reader.options()},
        "problems": limits_of(reader).what_is_wrong(),
    }


def try_library(library: Path) -> dict[str, Any]:
    """A process is started on it and looked at: a preload fails open, so nothing less proves it."""
    command = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=preload_with(library, dict(os.environ), ""),
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        return loaded_in(Reader(child.pid)) | {"command": "a program started with it"}
    except FolioError:
        child.kill()
        reason = (child.communicate()[1] or b"").decode(errors="replace").strip().splitlines()
        raise FolioError(
            f"a program started with LD_PRELOAD={library} is not on Folio: "
            f"{reason[0] if reason else 'the loader ignores it'}"
        ) from None
    finally:
        child.kill()
        child.communicate()


def check(pid: int | None, given: Path | None, json: bool) -> int:
    found = loaded_in(Reader(pid)) if pid is not None else try_library(find_library(given))
    features = [feature() for feature in FEATURES]
    bad = any(feature.state == BAD for feature in features)
    if json:
        output.as_json({"version": 1, "folio": found, "features": [asdict(f) for f in features]})
        return 1 if bad else 0
    who = output.one_line(f"process {pid}: {found['command']}") if pid is not None else found["command"]
    output.say(f"Folio serves {who}", "bold green")
    kind = "linked into" if found["linked_in"] else "library"
    output.say(f"  {kind} {found['library']}, version {found['version']}")
    output.say("\noptions in force (FOLIO_OPTIONS sets them; docs/options.md)", "bold")
    output.indented("  ".join(f"{key}:{value.split()[0]}" for key, value in found["options"].items()), 2)
    for problem in found["problems"]:
        output.indented(f"· {problem} (docs/memory.md)", 2, "yellow")
    output.say("\nthis kernel and this shell", "bold")
    for feature in features:
        colour = {GOOD: "green", NOTED: "yellow", BAD: "red"}[feature.state]
        sign = {GOOD: "✓", NOTED: "·", BAD: "✗"}[feature.state]
        output.say(f"  {sign} {feature.name}: {feature.found}", colour)
        output.indented(feature.meaning, 6)
    output.next_command(f"folio doctor {pid}" if pid is not None else "folio run -- PROGRAM")
    return 1 if bad else 0
