"""`folio top --json`: what its screen shows, a line of JSON for each process at each look."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from folio import output
from folio.errors import ProcessGone
from folio.limit import as_dict as limit_as_dict
from folio.limit import held_by, limits_of
from folio.metrics import parts_of_bin, parts_of_runs
from folio.parts import Parts, explain
from folio.reader import Reader


def as_dict(reader: Reader, parts: Parts, held: int, seconds: float) -> dict[str, Any]:
    return {
        "version": 1,
        "seconds": round(seconds, 3),
        "pid": reader.process.pid,
        "rss": parts.rss,
        "parts": parts.values() | {"unexplained": parts.unexplained},
        "error_bound": parts.moved,
        "bins": [{"bin": b.number, "size": b.size, "objects": b.live_objects} | parts_of_bin(b) for b in parts.bins],
        "large": {"objects": parts.large.objects} | parts_of_runs(parts.large),
        "huge": {"objects": parts.huge.objects} | parts_of_runs(parts.huge),
        "purged": reader.counter("purged"),
        "limit": limit_as_dict(limits_of(reader), held),
    }


def print_looks(pids: list[int], every: float, times: int) -> int:
    """Until Ctrl-C, `times` looks, or the end of the last process."""
    readers = [Reader(pid) for pid in pids]
    begin = time.monotonic()
    looks = 0
    while readers and (times == 0 or looks < times):
        time.sleep(max(0.0, begin + every * looks - time.monotonic()))
        for reader in list(readers):
            try:
                reading = reader.reading()
                held = held_by(reader, reading.heap)
                line = as_dict(reader, explain(reader, reading), held, time.monotonic() - begin)
            except ProcessGone as error:
                output.note(str(error))
                readers.remove(reader)
                continue
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        looks += 1
    return 0
