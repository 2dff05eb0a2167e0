"""Who points to an object: every word that does, and one way to it from a root."""

from __future__ import annotations

from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import Types, type_shown
from folio.reader import Reader
from folio.scan import Found
from folio.survey import Survey, survey, view

STEPS_MOST = 16  # of the way


class Words:
    """Those that point to one object, as they are found."""

    def __init__(self, number: int, most: int) -> None:
        self.number, self.most = number, most
        self.count = 0
        self.rows: list[tuple[int, int, int]] = []  # address, the object in which it lies or -1, to where it points

    def notice(self, found: Found) -> None:
        at = np.flatnonzero(found.targets == self.number)
        self.count += len(at)
        for i in at[: self.most - len(self.rows)].tolist():
            self.rows.append((int(found.addresses[i]), int(found.sources[i]), int(found.words[i])))


def describe(found: Survey, number: int) -> dict[str, Any]:
    """An object that points to another one."""
    one = np.array([number])
    assert found.codes is not None
    assert found.types is not None
    objects = found.view.objects
    code = int(found.codes[number])
    return {
        "object": int(objects.bases(one)[0]),
        "usable_bytes": int(objects.sizes(one)[0]),
        "type": found.types.names[code] if code else None,
    }


def way_to(found: Survey, number: int) -> list[dict[str, Any]]:
    """From the root to what points to the object; empty if nothing leads to it. Of a long way both ends."""
    parents = found.reach.parents
    assert parents is not None
    if not found.reach.reached[number]:
        return []
    way: list[int] = []
    at = int(parents[number])
    while at >= 0:
        way.append(at)
        at = int(parents[at])
    roots = np.concatenate(found.reach.roots)
    address = int(roots[-2 - at])
    steps: list[dict[str, Any]] = [{"root": found.root_name(address), "address": max(address, 0)}]
    way = way[::-1]
    if len(way) > STEPS_MOST:
        skipped = len(way) - STEPS_MOST
        half = STEPS_MOST // 2
        middle: list[dict[str, Any]] = [{"skipped": skipped}]
        return steps + [describe(found, n) for n in way[:half]] + middle + [describe(found, n) for n in way[-half:]]
    return steps + [describe(found, n) for n in way]


def referrers(reader: Reader, base: int, most: int) -> dict[str, Any]:
    """`base`: of a live object."""
    seen = view(reader)
    words = Words(seen.objects.number(base), most)
    if words.number < 0:
        return {"count": 0, "words": [], "way": [], "freed": True}
    found = survey(seen, types=Types(seen.modules), parents=True, notice=words.notice)
    rows = []
    for address, source, to in words.rows:
        row: dict[str, Any] = {"address": address, "to": to - base}
        row |= describe(found, source) if source >= 0 else {"root": found.root_name(address)}
        rows.append(row)
    held = sum(int(word) in range(base, base + int(seen.objects.sizes(np.array([words.number]))[0]))
               for word in found.roots.words())  # fmt: skip
    return {"count": words.count, "words": rows, "way": way_to(found, words.number), "registers": held}


def shown(step: dict[str, Any]) -> str:
    if "skipped" in step:
        return f"{step['skipped']:,} more objects"
    if "root" in step:
        return type_shown(step["root"], 60) + (f" at {step['address']:#x}" if step["address"] else "")
    kind = type_shown(step["type"], 60) if step["type"] else "object"
    offset = f"byte {step['address'] - step['object']:,} of " if "address" in step else ""
    return f"{offset}{kind} of {step['usable_bytes']:,} bytes at {step['object']:#x}"


def show(found: dict[str, Any]) -> None:
    if found.get("freed"):
        output.say("  it was freed meanwhile")
        return
    count = found["count"]
    output.say(f"  pointers to it: {count:,}")
    for row in found["words"]:
        output.say(f"    {shown(row)}" + (f", to byte {row['to']:,}" if row["to"] else ""))
    if count > len(found["words"]):
        output.say(f"    and {count - len(found['words']):,} more: --rows {count}")
    if found["registers"]:
        output.say("  a waiting thread has it as an argument of a system call")
    if found["way"]:
        output.say("  a way to it:")
        for step in found["way"]:
            output.say(f"    {shown(step)}")
    else:
        output.say("  nothing leads to it: it is leaked, or only a register has its address (not seen from outside)")
