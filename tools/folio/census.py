"""`folio census`: live objects by C++ type and by bin. A type is what the first word of an object says."""

from __future__ import annotations

from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import Types, type_shown
from folio.objects import Objects
from folio.reader import Reader
from folio.survey import census as types_of
from folio.survey import view

COMMON = 3  # sizes of a type that are shown


def table_of(objects: Objects, codes: np.ndarray, types: Types) -> list[dict[str, Any]]:
    """A row for each type: what it has of each bin; large and huge objects are bin 0, as are guarded ones,
    which have a row of their own. Largest first."""
    numbers = np.arange(objects.count)
    bins, sizes = objects.bins(numbers), objects.sizes(numbers)
    last = int(bins.max(initial=0)) + 1  # stands for guarded ones
    bins[: len(objects.big_guarded)][objects.big_guarded] = last
    most = last + 1
    key = codes * np.int64(most) + bins
    count = np.bincount(key, minlength=len(types.names) * most).reshape(-1, most)
    total = np.bincount(key, weights=sizes, minlength=len(types.names) * most).reshape(-1, most).astype(np.int64)
    slot = {0: 0, last: 0} | dict(zip(objects.bin.tolist(), objects.size.tolist(), strict=True))
    rows = []
    for code, name in enumerate(types.names):
        held = np.flatnonzero(count[code])
        order = held[np.argsort(-total[code][held], kind="stable")]
        rows.append(
            {
                "type": name if code else None,
                "objects": int(count[code].sum()),
                "bytes": int(total[code].sum()),
                "bins": [
                    {"bin": int(b) % last, "size": slot[int(b)] or None, "objects": int(count[code][b]),
                     "bytes": int(total[code][b])} | ({"guarded": True} if b == last else {}) for b in order
                ],
            }
        )  # fmt: skip
    return sorted((row for row in rows if row["objects"]), key=lambda row: -row["bytes"])


def sizes_text(row: dict[str, Any]) -> str:
    shown = [
        f"{b['size']:,}" if b["size"] else "guarded" if b.get("guarded") else "large" for b in row["bins"][:COMMON]
    ]
    return ", ".join(shown) + (f" and {len(row['bins']) - COMMON} more" if len(row["bins"]) > COMMON else "")


def census(target: str, rows: int, json: bool) -> int:
    reader = Reader(target)
    source = reader.process
    seen = view(reader)
    types = Types(seen.modules)
    table = table_of(seen.objects, types_of(seen, types), types)
    objects, total = sum(row["objects"] for row in table), sum(row["bytes"] for row in table)
    if json:
        output.as_json(
            {"version": 1, "pid": source.pid, "source": source.kind, "command": source.command(), "objects": objects,
             "bytes": total, "error_bound": seen.reading.moved_bytes, "types": table}
        )  # fmt: skip
        return 0
    output.say(output.one_line(source.title()))
    output.say(f"{output.counted(objects, 'live object')}, {output.size(total)}", "bold")
    made = output.table("type", "objects", "bytes", "share", "sizes")
    output.let_wrap(made, 0)
    for row in table[:rows]:
        name = type_shown(row["type"] or "no type", 48)
        made.add_row(name, f"{row['objects']:,}", output.size(row["bytes"]), output.share(row["bytes"], total),
                     sizes_text(row))  # fmt: skip
    output.console.print(made)
    if len(table) > rows:
        output.say(f"and {len(table) - rows:,} more types: --rows {len(table)}", "dim")
    output.indented(
        "A type is known by the address of a C++ vtable in an object's first word; behind a & stands a variable whose "
        "address is there. Whatever else begins otherwise has no type here; what was freed and allocated again, and is "
        "not written yet, still has its old one.",
        0,
        "dim",
    )
    output.next_command(f"folio pins {source.target}  (which of them keep free pages)")
    return 0
