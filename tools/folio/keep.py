"""`folio snapshot`: what Folio knows of a heap, into a file."""

from __future__ import annotations

import shlex
from pathlib import Path

from folio import output
from folio.errors import FolioError
from folio.parts import explain
from folio.reader import Reader
from folio.snapshot_file import write

READS_MOST = 3


def snapshot(target: str, file: Path, json: bool) -> int:
    if not file.parent.is_dir():
        raise FolioError(f"{file.parent} is no folder: make it first")
    reader = Reader(target)
    source = reader.process
    for _ in range(READS_MOST):  # once more where the process grew or shrank while it was read
        reading = reader.reading()
        parts = explain(reader, reading)
        if parts.exact:
            break
    size = write(reader, reading, file)
    if json:
        output.as_json(
            {
                "version": 1,
                "pid": source.pid,
                "source": source.kind,
                "file": str(file),
                "bytes": size,
                "held": parts.folio,
                "error_bound": parts.moved,
                "exact": parts.exact,
            }
        )
        return 0
    output.say(
        f"{file}: {output.size(size)}, of a heap of {output.size(parts.folio)}; {output.one_line(source.title())}"
    )
    bound = f"up to {output.size(parts.moved)} moved while it was read" if parts.moved else "nothing moved meanwhile"
    output.say(f"{bound}; the objects' contents are not in it", "dim")
    if not parts.exact:
        output.say("the process changed too fast: the parts are off by more than 1 %", "yellow")
    name = shlex.quote(str(file))
    later = f"folio diff {name} {source.target}  (later: what grew)"
    output.next_command(f"folio doctor {name}" if source.still else later)
    return 0
