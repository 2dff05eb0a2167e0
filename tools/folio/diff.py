"""`folio diff`: what grew from one heap to another, by bin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from folio import output
from folio.parts import TITLES, BinParts, Parts, RunParts, explain
from folio.reader import Reader

FIGURES = ("objects", "live", "cached", "fragmented", "dirty", "padding")


@dataclass(frozen=True)
class Row:
    """Bytes, but for `objects`, in each of the two."""

    name: str
    size: int | None
    before: dict[str, int]
    after: dict[str, int]

    def grown(self, what: str) -> int:
        return self.after[what] - self.before[what]


def of_bin(bin_: BinParts | None) -> dict[str, int]:
    if bin_ is None:
        return dict.fromkeys((*FIGURES, "held"), 0)
    return {
        "objects": bin_.live_objects,
        "live": bin_.live,
        "cached": sum(bin_.cached.values()),
        "fragmented": bin_.fragmented,
        "dirty": bin_.dirty,
        "padding": bin_.padding,
        "held": bin_.resident,
    }


def of_run(run: RunParts) -> dict[str, int]:
    held = run.live + run.cached + run.dirty + run.padding
    return {"fragmented": 0, "held": held} | {name: getattr(run, name) for name in FIGURES if name != "fragmented"}


def rows_of(before: Parts, after: Parts) -> list[Row]:
    """By object size, as bins of two versions may have other numbers. What grew most comes first."""
    old, new = ({bin_.size: bin_ for bin_ in parts.bins} for parts in (before, after))
    rows = [
        Row(str((new.get(size) or old[size]).number), size, of_bin(old.get(size)), of_bin(new.get(size)))
        for size in sorted(old.keys() | new.keys())
    ]
    for name in ("large", "huge", "guarded"):
        rows.append(Row(name, None, of_run(getattr(before, name)), of_run(getattr(after, name))))
    return sorted(rows, key=lambda row: (-row.grown("held"), -row.grown("live")))


def as_dict(row: Row, held: str) -> dict[str, Any]:
    def figures(values: dict[str, int]) -> dict[str, int]:
        return {held if key == "held" else key: value for key, value in values.items()}

    grown = {key: row.grown(key) for key in row.before}
    return {"bin": row.name, "size": row.size} | {
        name: figures(each) for name, each in (("before", row.before), ("after", row.after), ("grown", grown))
    }


def signed(count: int) -> str:
    return f"+{output.size(count)}" if count > 0 else output.size(count)


def show(rows: list[Row], before: Parts, after: Parts, most: int) -> None:
    held = "held" if after.by_account else "resident"
    parts = output.table("part", "before", "after", "grown")
    old, new = before.values(), after.values()
    for key in new:
        if old[key] or new[key]:
            parts.add_row(TITLES[key], output.size(old[key]), output.size(new[key]), signed(new[key] - old[key]))
    name = "Folio's account" if after.by_account else "resident (RSS)"
    grown = signed(after.rss - before.rss)
    parts.add_row(name, output.size(before.rss), output.size(after.rss), grown, style="bold")
    output.console.print(parts)
    output.say("")
    changed = [row for row in rows if any(row.grown(key) for key in row.before)]
    made = output.table("bin", "object", "objects", "live", held, "cached", "fragmented", "dirty", left=0)
    for row in changed[:most]:
        size = f"{row.size:,}" if row.size else ""
        figures = [signed(row.grown(key)) for key in ("live", "held", "cached", "fragmented", "dirty")]
        made.add_row(row.name, size, f"{row.grown('objects'):+,}", *figures)
    output.console.print(made) if changed else output.say("no bin changed")
    if len(changed) > most:
        output.say(f"and {len(changed) - most} more bins: --rows {len(changed)}", "dim")


def diff(first: str, second: str, most: int, json: bool) -> int:
    readers = Reader(first), Reader(second)
    by_account = not all(reader.process.tells_pages for reader in readers)
    before, after = (explain(reader, by_account=by_account) for reader in readers)
    rows = rows_of(before, after)
    if json:
        held = "held" if by_account else "resident"
        output.as_json(
            {
                "version": 1,
                "pids": [reader.process.pid for reader in readers],
                "sources": [reader.process.kind for reader in readers],
                "pages_known": not by_account,
                "parts": {key: [value, after.values()[key]] for key, value in before.values().items()},
                "bins": [as_dict(row, held) for row in rows],
                "error_bounds": [before.moved, after.moved],
            }
        )
        return 0
    for name, reader in zip(("before", "after"), readers, strict=True):
        output.say(output.one_line(f"{name}: {reader.process.title()}"), "bold")
    if (bound := before.moved + after.moved) > 0:
        output.say(f"the differences may be off by {output.size(bound)}: what moved while they were read", "dim")
    if by_account:
        output.say("by Folio's account: a core does not tell which pages were resident", "dim")
    if readers[0].process.program() != readers[1].process.program():
        output.say("they are of two programs", "yellow")
    output.say("")
    show(rows, before, after, most)
    output.next_command(f"folio doctor {readers[1].process.target}  (why the memory is there)")
    return 0
