"""`folio top --json`: what its screen shows, a line of JSON for each process at each look."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

from folio import output
from folio.caches import ThreadNames, caches_of
from folio.errors import FolioError, NewProgram
from folio.heap import Heap
from folio.limit import as_dict as limit_as_dict
from folio.limit import held_by, limits_of
from folio.metrics import parts_of_bin, parts_of_runs
from folio.parts import Parts, explain
from folio.reader import Reader, of_new_program


def as_dict(reader: Reader, heap: Heap, parts: Parts, seconds: float) -> dict[str, Any]:
    return {
        "version": 1,
        "seconds": round(seconds, 3),
        "pid": reader.process.pid,
        "rss": parts.rss,
        "parts": parts.values() | {"unexplained": parts.unexplained},
        "exact": parts.exact,
        "error_bound": parts.moved,
        "bins": [{"bin": b.number, "size": b.size, "objects": b.live_objects} | parts_of_bin(b) for b in parts.bins],
        "large": {"objects": parts.large.objects} | parts_of_runs(parts.large),
        "huge": {"objects": parts.huge.objects} | parts_of_runs(parts.huge),
        "caches": [asdict(cache) for cache in caches_of(heap, ThreadNames(reader.process.root))],
        "purged": reader.counter("purged"),
        "limit": limit_as_dict(limits_of(reader), held_by(reader, heap)),
    }


def poll(readers: dict[int, Reader], pid: int, begin: float) -> dict[str, Any]:
    """Also of the program that it has begun meanwhile."""
    while True:
        reader = readers[pid]
        try:
            reading = reader.reading()
            parts = explain(reader, reading)
            if not parts.exact:
                reading = reader.reading()
                parts = explain(reader, reading)
            return as_dict(reader, reading.heap, parts, time.monotonic() - begin)
        except NewProgram:
            readers[pid] = of_new_program(pid)
            output.note_new_program(pid, readers[pid].process.command())


def print_polls(pids: list[int], every: float, times: int) -> int:
    """Until Ctrl-C, `times` looks, or the end of the last process."""
    readers = {pid: Reader(pid) for pid in pids}
    begin = time.monotonic()
    polls = 0
    while readers and (times == 0 or polls < times):
        time.sleep(max(0.0, begin + every * polls - time.monotonic()))
        for pid in list(readers):
            try:
                line = poll(readers, pid, begin)
            except FolioError as error:
                output.note(str(error))
                del readers[pid]
                continue
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        polls += 1
    return 0
