"""`folio check`: is Folio loaded here, which one, with which options; what this kernel offers, and what each means."""

from __future__ import annotations

import os
import resource
import shlex
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from folio import output
from folio.errors import FolioError
from folio.library import find_library, version_in
from folio.run import preload_with

if TYPE_CHECKING:  # numpy does not start under every limit that is to be told of
    from folio.bindings import Bindings, Trial

AT_RSEQ_FEATURE_SIZE = 27
RSEQ_WITH_ID = 28
COMMIT_BYTES = 1 << 20  # at a process's start (docs/limits.md, "What is charged")
LOADER_BYTES = 3 << 20  # of address space: what a program has before the library
SMALL_BYTES = 50 << 20  # and with it, for the sizes that a small program uses
MAPPINGS_USUAL = 65530
TRIED = ["/bin/sh", "-c", "echo; read line"]
DEEP = (
    "The program opens them with RTLD_DEEPBIND (or by dlmopen), so no malloc that is preloaded or linked in reaches "
    "them: an object that passes between them and the rest ends the program. A preload of five lines takes the flag "
    "away: docs/tool.md has it (folio check)."
)
PHP = "PHP opens its extensions so up to 8.4; from 8.5 on only its Apache module does. `php -n` runs without any."
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


def address_space_of(library: Path) -> int:
    """What a file takes of it when it is mapped; a program that Folio is linked into has it all already."""
    with library.open("rb") as file:
        try:
            return max((s["p_vaddr"] + s["p_memsz"] for s in ELFFile(file).iter_segments("PT_LOAD")), default=0)
        except ELFError:
            return 0


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
    meaning = "bins of small objects with 1 MiB in use get them, and clusters of 2 MiB that stay dense"
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
        need = f"a process on Folio counts {COMMIT_BYTES >> 20} MiB against the commit limit, then what it uses"
        return Feature("overcommit", "never (2)", NOTED, need)
    return Feature("overcommit", f"{names.get(mode, '?')} ({mode})", GOOD, "reserved address space costs nothing")


def address_space(pid: int | None, needed: int) -> Feature:
    """`needed`: by the library itself."""
    try:
        soft, _ = resource.prlimit(pid or 0, resource.RLIMIT_AS)
    except (OSError, ValueError):
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Feature("RLIMIT_AS", "none", GOOD, "address space is not limited")
    least = needed + LOADER_BYTES
    meaning = (
        f"the library cannot be mapped below {output.size(least)}, small programs need "
        f"{output.size(least + SMALL_BYTES)}: most of it is a table that takes no memory; `ulimit -v unlimited`, or "
        "LimitAS=infinity in a unit of systemd, lifts it"
    )
    return Feature("RLIMIT_AS", output.size(soft), BAD if soft < least + SMALL_BYTES else NOTED, meaning)


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


def features(limit: Feature) -> list[Feature]:
    """What this kernel has; with the limit of address space, which is also that of a process."""
    before = [feature() for feature in (rseq, huge_pages, pressure, overcommit)]
    return [*before, limit, *(feature() for feature in (memory_limit, mappings, moving, looking, residency))]


def loaded_in(pid: int) -> tuple[dict[str, Any], int]:
    """And what the library takes of the process's address space: its file may be gone, or in another container."""
    from folio.limit import limits_of
    from folio.reader import Reader

    reader = Reader(pid)
    library = reader.layout.library
    found = {
        "pid": pid,
        "command": reader.process.command(),
        "title": reader.process.title(),
        "library": library.path,
        "linked_in": library.linked_in,
        "version": version_in(library.path),
        "options": {option.name: option.shown.strip() for option in reader.options()},
        "problems": limits_of(reader).what_is_wrong(),
    }
    return found, library.end - library.start


def try_library(library: Path, limit: Feature) -> dict[str, Any]:
    """A small program is started on it and looked at: a preload fails open, so nothing less proves it."""
    child = subprocess.Popen(
        TRIED,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=preload_with(library, dict(os.environ), ""),
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        return loaded_in(child.pid)[0]
    except FolioError:
        child.kill()
        said = (child.communicate()[1] or b"").decode(errors="replace").strip().splitlines()
        reason = said[0] if said else "the loader ignores it"
        if limit.state == BAD:
            reason = f"RLIMIT_AS is {limit.found}; {limit.meaning}"
        raise FolioError(f"a program started with LD_PRELOAD={library} is not on Folio: {reason}") from None
    finally:
        child.kill()
        child.communicate()


def show_head(
    pid: int | None, command: list[str], found: dict[str, Any] | None, limit: Feature, bindings: Bindings | None
) -> None:
    if found is None:
        output.say("Folio serves no program here", "bold red")
        output.indented(f"RLIMIT_AS is {limit.found}: {limit.meaning}", 2)
        return
    who = f"a program started with it ({found['command'].split()[0]}, process {found['pid']})"
    if pid is not None or command:
        who = found["title"] if pid is not None else shlex.join(command)
    if bindings is not None and bindings.deep:
        output.say(f"Folio serves only parts of {output.one_line(who, 50)}", "bold yellow")
    else:
        output.say(output.one_line(f"Folio serves {who}"), "bold green")
    kind = "linked into" if found["linked_in"] else "library"
    output.say(f"  {kind} {found['library']}, version {found['version']}")


def show_calls(bindings: Bindings, trial: Trial | None) -> None:
    """Whose malloc the program's files call, and what to do where it is not Folio's."""

    def names(files: Iterable[str]) -> str:
        return ", ".join(sorted(os.path.basename(file) for file in files))

    output.say("\nwhose malloc and free its files call", "bold")
    if trial is not None and trial.by_signal:
        output.say(f"  ✗ the program was ended by {trial.ended}", "red")
    if bindings.served:
        output.say(f"  ✓ Folio's: {output.counted(len(bindings.served), 'file')}", "green")
        output.indented(names(bindings.served), 6)
    if bindings.deep:
        output.say(f"  ✗ not Folio's: {output.counted(len(bindings.deep), 'file')}", "red")
        output.indented(names(bindings.deep), 6)
        whose = names(set().union(*bindings.deep.values()))
        output.indented(f"They call those of {whose}. {DEEP}", 6)
        if any("/php/" in file for file in bindings.deep):
            output.indented(PHP, 6)
    if bindings.own:
        output.say(f"  · their own: {output.counted(len(bindings.own), 'file')}", "yellow")
        output.indented(names(bindings.own), 6)
        output.indented("Their objects are not Folio's: as long as they free them themselves, that is no harm.", 6)
    if bindings.brought:
        output.say(f"  · a malloc that they bring: {output.counted(len(bindings.brought), 'file')}", "yellow")
        output.indented(names(bindings.brought), 6)
        output.indented("Whether they call it themselves is not seen (-Bsymbolic).", 6)
    output.indented("What is opened later, and calls that were not made yet, are not seen.", 2, "dim")


def show_kernel(found: list[Feature]) -> None:
    output.say("\nthis kernel and this shell", "bold")
    for feature in found:
        colour = {GOOD: "green", NOTED: "yellow", BAD: "red"}[feature.state]
        sign = {GOOD: "✓", NOTED: "·", BAD: "✗"}[feature.state]
        output.say(f"  {sign} {feature.name}: {feature.found}", colour)
        output.indented(feature.meaning, 6)


def inspect(
    pid: int | None, command: list[str], given: Path | None, seconds: float
) -> tuple[dict[str, Any] | None, Feature, Bindings | None, Trial | None]:
    """What is loaded, the limit of address space, and of a process or program whose malloc its files call."""
    if pid is not None:
        from folio.bindings import of_process
        from folio.process import Process

        found, taken = loaded_in(pid)
        limit = address_space(pid, taken)
        return found, limit, of_process(Process(pid), found["library"]), None
    library = find_library(given)
    needed = address_space_of(library)
    limit = address_space(None, needed)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and soft < needed + LOADER_BYTES:
        return None, limit, None, None
    if limit.state == BAD:
        try:
            return try_library(library, limit), limit, None, None
        except FolioError:
            return None, limit, None, None
    found = try_library(library, limit)
    if not command:
        return found, limit, None, None
    from folio.bindings import try_program

    trial = try_program(command, library, seconds)
    return found, limit, trial.bindings, trial


def check(pid: int | None, command: list[str], given: Path | None, seconds: float, json: bool) -> int:
    if pid is not None and command:
        raise FolioError(f"--pid {pid} and {command[0]}: one of both")
    found, limit, bindings, trial = inspect(pid, command, given, seconds)
    kernel = features(limit)
    bad = any(feature.state == BAD for feature in kernel) or bool(bindings and bindings.deep)
    bad = bad or bool(trial and trial.by_signal)
    if json:
        value: dict[str, Any] = {"version": 1, "folio": found, "features": [asdict(f) for f in kernel]}
        value |= {"calls": bindings.as_dict()} if bindings else {}
        value |= {"ended": trial.ended} if trial else {}
        output.as_json(value)
        return 1 if bad else 0
    show_head(pid, command, found, limit, bindings)
    if found is not None:
        output.say("\noptions in force (FOLIO_OPTIONS sets them; docs/options.md)", "bold")
        options = [(key, value.split()[0] if value[:1].isdigit() else value) for key, value in found["options"].items()]
        output.indented("  ".join(f"{key}:{value}" for key, value in options), 2)
        for problem in found["problems"]:
            output.indented(f"· {problem} (docs/memory.md)", 2, "yellow")
    if bindings is not None:
        show_calls(bindings, trial)
    show_kernel(kernel)
    shown = output.one_line(shlex.join(command), 60) if command else "PROGRAM"
    if bindings is not None and bindings.deep:
        output.next_command(f"LD_PRELOAD=./nodeepbind.so folio check -- {shown}  (docs/tool.md has that preload)")
    else:
        output.next_command(f"folio doctor {pid}" if pid is not None else f"folio run -- {shown}")
    return 1 if bad else 0
