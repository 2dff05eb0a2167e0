"""The difference of two profiles that were written with --pprof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from folio import output
from folio.book import Sum
from folio.errors import FolioError
from folio.pprof import Loaded, load
from folio.sites import plus
from folio.symbols import is_glue, short

KINDS = {"live": "inuse_space", "allocated": "alloc_space"}
SURE = 2  # standard errors


@dataclass(frozen=True)
class Change:
    function: str
    before: Sum
    after: Sum

    @property
    def value(self) -> float:
        return self.after.value - self.before.value

    @property
    def error(self) -> float:
        """A sample that was not there might have been: so at least that of one."""
        least = max(self.before.step, self.after.step)
        return max(math.sqrt(self.before.variance + self.after.variance), least)

    @property
    def is_sure(self) -> bool:
        return abs(self.value) > SURE * self.error


def by_function(loaded: Loaded, kind: str) -> dict[str, Sum]:
    """By the function that allocates."""
    if kind not in loaded.sums:
        raise FolioError(f"{loaded.file} has no {kind}: write it by `folio profile PID --pprof FILE`")
    found: dict[str, Sum] = {}
    for stack, sum_ in loaded.sums[kind].items():
        name = next(
            (name for name in stack if not is_glue(name, loaded.files.get(name, ""))),
            stack[0] if stack else "[no stack]",
        )
        found[name] = plus(found.get(name, Sum()), sum_)
    return found


def changes(before: Loaded, after: Loaded, by: str) -> list[Change]:
    """The largest first."""
    old, new = by_function(before, KINDS[by]), by_function(after, KINDS[by])
    made = [Change(name, old.get(name, Sum()), new.get(name, Sum())) for name in old.keys() | new.keys()]
    return sorted(made, key=lambda change: (-abs(change.value), change.function))


def total_of(found: list[Change]) -> Change:
    before, after = Sum(), Sum()
    for change in found:
        before, after = plus(before, change.before), plus(after, change.after)
    return Change("all", before, after)


def as_dict(change: Change) -> dict[str, Any]:
    return {
        "function": change.function,
        "before": round(change.before.value),
        "after": round(change.after.value),
        "change": round(change.value),
        "standard_error": round(change.error),
        "beyond_chance": change.is_sure,
    }


def diff(first: Path, second: Path, rows: int, by: str, json: bool) -> int:
    if by not in KINDS:
        raise FolioError(f"--sort {by}: of a difference there is {', '.join(KINDS)}")
    before, after = load(first), load(second)
    found = changes(before, after, by)
    whole = total_of(found)
    if json:
        output.as_json(
            {"version": 1, "by": by, "total": as_dict(whole), "functions": [as_dict(c) for c in found[:rows]]}
        )
        return 0
    output.say(f"{first} → {second}: {by} bytes by the function that allocates", "bold")
    made = output.table("before", "after", "change", "±", "", left=0)
    made.add_column("function", overflow="fold", ratio=1)
    shown = [change for change in found if change.value]
    for change in [whole, *shown[:rows]]:
        sign = "+" if change.value > 0 else ""
        made.add_row(
            output.size(change.before.value),
            output.size(change.after.value),
            sign + output.size(change.value),
            output.size(change.error),
            "" if change.is_sure else "?",
            short(change.function),
        )
    output.console.print(made)
    if len(shown) > rows:
        output.say(f"and {output.counted(len(shown) - rows, 'more function')}: --rows {len(shown)}", "dim")
    if len(shown) < len(found):
        output.say(f"{output.counted(len(found) - len(shown), 'function')} did not change", "dim")
    output.say(f"?: within {SURE} standard errors of nothing: chance, maybe; a smaller --interval tells more", "dim")
    if by == "allocated":
        output.say(f"over {before.seconds:.1f} s and {after.seconds:.1f} s: compare like with like", "dim")
    output.next_command(f"go tool pprof -http : -diff_base {first} {second}  (the same as a graph)")
    return 0
