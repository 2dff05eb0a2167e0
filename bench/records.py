"""The raw results: JSON lines, one a run, each with all that is needed to report it later or elsewhere."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cases import PROGRAM, Case, Figure
from measure import ROOT, Allocator, BenchError, compiler

WARM_UP = 0  # the number of the round that does not count
CPU = "cpu"  # user and system time together


@dataclass
class Record:
    """One run of one case on one allocator. `problem` says why its values do not count."""

    case: str
    program: str
    arguments: list[str]
    figures: list[dict]
    allocator: str
    library: dict
    round: int
    repeat: int
    quick: bool
    values: dict
    problem: str = ""
    machine: dict = field(default_factory=dict)
    load: float = 0.0
    time: str = ""
    kind: str = PROGRAM


@dataclass
class Sample:
    """One round of one case on one allocator: of several runs a round, the median of each figure."""

    case: str
    allocator: str
    round: int
    values: dict
    problem: str = ""


def first_line(path: str) -> str:
    try:
        return Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return ""


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


@functools.cache
def machine() -> dict:
    """What a figure depends on beside the allocator. No names of hosts or people."""
    cpu = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    release = re.search(r'PRETTY_NAME="?([^"\n]+)', Path("/etc/os-release").read_text())
    try:
        compiled_by = (output_of(compiler("c++"), "--version").splitlines() or [""])[0]
    except BenchError:
        compiled_by = ""
    return {
        "cpu": cpu[1] if cpu else os.uname().machine,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else 0,
        "kernel": os.uname().release,
        "system": release[1] if release else "",
        "glibc": os.confstr("CS_GNU_LIBC_VERSION") or "",
        "compiler": compiled_by,
        "thp": first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "governor": first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or "unknown",
    }


def libc_file() -> Path:
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.search(r"/(libc\.so|libc-|ld-musl)", path):
            return Path(path)
    raise BenchError("no libc in the process map")


@functools.cache
def library_of(allocator: Allocator) -> dict:
    """File, version as far as it can be told, and the build id, or the hash of a file without one."""
    path = Path(os.path.realpath(allocator.library or libc_file()))
    package = output_of("dpkg-query", "-S", str(path)).partition(": ")[0].partition(",")[0]
    version = output_of("dpkg-query", "-W", "-f", "${Package} ${Version}", package) if package else ""
    build_id = re.search(r"Build ID: ([0-9a-f]+)", output_of("readelf", "-n", str(path)))
    identity = build_id[1] if build_id else "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return {"file": path.name, "version": version, "id": identity}


def make_record(
    case: Case, allocator: Allocator, round_number: int, repeat: int, quick: bool, values: dict, problem: str
) -> Record:
    return Record(
        case=case.name,
        program=Path(case.program).name,
        arguments=[word.replace(f"{ROOT}/", "") for word in case.command_arguments(quick)],
        figures=[asdict(figure) for figure in case.figures],
        allocator=allocator.name,
        library=library_of(allocator),
        round=round_number,
        repeat=repeat,
        quick=quick,
        values=values,
        problem=problem,
        machine=machine(),
        load=round(os.getloadavg()[0], 2),
        time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        kind=case.kind,
    )


def to_line(record: Record) -> str:
    return json.dumps(asdict(record), ensure_ascii=False)


def from_line(line: str) -> Record:
    return Record(**json.loads(line))


def read_records(path: Path, *, may_be_empty: bool = False) -> list[Record]:
    """All complete lines of a file; a run that was killed may have left half a line at the end."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from None
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(from_line(line))
        except (TypeError, ValueError):
            if number != len(lines):
                raise BenchError(f"{path}:{number}: not a line of results") from None
    if not records and not may_be_empty:
        raise BenchError(f"{path} has no results")
    return records


def cases_of(records: list[Record]) -> list[Case]:
    """The cases as they were when measured, in their order; they need not exist any more."""
    found: dict[str, Case] = {}
    for record in sorted(records, key=lambda r: r.round == WARM_UP):  # those of the warm-up are smaller
        if record.case not in found:
            figures = [Figure(**figure) for figure in record.figures]
            found[record.case] = Case(record.case, record.program, record.arguments, figures, kind=record.kind)
    return list(found.values())


def median_values(runs: list[dict]) -> dict:
    """Of each number the median; of anything else what the first run has."""
    if len(runs) == 1:
        return runs[0]
    numbers = {key for key, value in runs[0].items() if isinstance(value, int | float)}
    return {
        key: statistics.median(r[key] for r in runs if key in r) if key in numbers else value
        for key, value in runs[0].items()
    }


def samples_of(records: list[Record]) -> list[Sample]:
    """One for each case, allocator and round that counts. A problem in the warm-up is a problem all the same."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        if record.round != WARM_UP or record.problem:
            groups.setdefault((record.case, record.allocator, record.round), []).append(record)
    return [
        Sample(*key, median_values([r.values for r in runs]), next((r.problem for r in runs if r.problem), ""))
        for key, runs in groups.items()
    ]
