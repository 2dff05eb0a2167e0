"""`folio bins`: what each bin holds and wastes, as a table, and over time as a heat map."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.text import Text

from folio import output
from folio.errors import NewProgram, ProcessGone
from folio.parts import BinParts, Parts, RunParts, as_known, explain_well, not_exact
from folio.reader import Reader, of_new_program

SORTS = ("held", "wasted", "size", "bin")
SHADES = " ░▒▓█"
# From red (little of what is resident is live) to green.
COLOURS = ("red", "dark_orange", "yellow", "chartreuse3", "green")


def wasted(bin_: BinParts) -> int:
    return bin_.resident - bin_.live


def occupancy(bin_: BinParts) -> float:
    """Live bytes of the resident ones."""
    return bin_.live / bin_.resident if bin_.resident else 0.0


def held_name(parts: Parts) -> str:
    return "held" if parts.by_account else "resident"


def ordered(parts: Parts, by: str) -> list[BinParts]:
    keys = {"held": lambda b: -b.resident, "wasted": lambda b: -wasted(b), "size": lambda b: b.size}
    return sorted(parts.bins, key=keys.get(by, lambda b: b.number))


def as_dict(bin_: BinParts) -> dict[str, Any]:
    return {
        "bin": bin_.number,
        "size": bin_.size,
        "chunks": bin_.chunks,
        "taken_objects": bin_.taken,
        "live_objects": bin_.live_objects,
        "cached_objects": bin_.cached_objects,
        "resident": bin_.resident,
        "live": bin_.live,
        "cached": bin_.cached,
        "fragmented": bin_.fragmented,
        "dirty": bin_.dirty,
        "padding": bin_.padding,
        "occupancy": round(occupancy(bin_), 4),
    }


COLUMNS = ("bin", "object", "live", "cached", "resident", "fragmented", "dirty", "padding", "occupied")


@dataclass
class Row:
    """What is shown of a bin, of large or huge objects, or of several of them together. Objects, else bytes."""

    live_objects: int = 0
    cached_objects: int | None = 0  # None: not counted
    resident: int = 0
    live: int = 0
    fragmented: int = 0
    dirty: int = 0
    padding: int = 0

    def cells(self, known: bool) -> list[str]:
        """`known`: what was resident is, so that of padding too."""
        occupied = f"{100 * self.live / self.resident:.0f} %" if self.resident else ""
        cached = "" if self.cached_objects is None else f"{self.cached_objects:,}"
        figures = [self.resident, self.fragmented, self.dirty, *([self.padding] if known else [])]
        sizes = [output.size(each) for each in figures]
        return [f"{self.live_objects:,}", cached, *sizes, occupied]


def row_of(bin_: BinParts) -> Row:
    cached = sum(bin_.cached_objects.values())
    return Row(bin_.live_objects, cached, bin_.resident, bin_.live, bin_.fragmented, bin_.dirty, bin_.padding)


def row_of_runs(runs: RunParts) -> Row:
    held = runs.live + runs.cached + runs.dirty + runs.padding
    return Row(runs.objects, None, held, runs.live, 0, runs.dirty, runs.padding)


def kinds_of(parts: Parts) -> list[tuple[str, RunParts]]:
    """What is of no bin."""
    return [("large", parts.large), ("huge", parts.huge), ("guarded", parts.guarded)]


def total_of(rows: list[Row]) -> Row:
    names = [each.name for each in fields(Row)]
    return Row(**{name: sum(getattr(row, name) or 0 for row in rows) for name in names})


def total(parts: Parts) -> Row:
    return total_of([*map(row_of, parts.bins), *(row_of_runs(runs) for _, runs in kinds_of(parts))])


def show_table(parts: Parts, by: str, most: int) -> None:
    known = not parts.by_account
    columns = [held_name(parts) if name == "resident" else name for name in COLUMNS if known or name != "padding"]
    made = output.table(*columns, left=0, gap=1)
    rows = ordered(parts, by)
    for bin_ in rows[:most]:
        made.add_row(str(bin_.number), f"{bin_.size:,}", *row_of(bin_).cells(known))
    shown = [row_of(bin_) for bin_ in rows]
    if rows[most:]:
        made.add_row("rest", f"{len(rows) - most} bins", *total_of(shown[most:]).cells(known), style="dim")
    for name, runs in kinds_of(parts):
        each = row_of_runs(runs)
        if each.resident or each.live_objects:
            made.add_row(name, "", *each.cells(known))
            shown.append(each)
    made.add_row("all", "", *total_of(shown).cells(known), style="bold")
    output.console.print(made)
    if not parts.exact:
        output.indented(f"not exact: {not_exact(parts)}", 0, "yellow")


def cell(bin_: BinParts | None) -> tuple[str, str]:
    """The sign and the colour of an occupancy."""
    if bin_ is None or bin_.resident == 0:
        return "·", "dim"
    level = min(int(occupancy(bin_) * len(COLOURS)), len(COLOURS) - 1)
    return SHADES[level] if level else ".", COLOURS[level]


def show_heat_map(samples: list[tuple[float, Parts]], by: str, most: int) -> None:
    """A row for each bin, a column for each sample."""
    samples = samples[-max(output.console.width - 30, 10) :]
    output.say(f"\noccupancy over {samples[-1][0] - samples[0][0]:.1f} s, oldest at the left", "bold")
    for bin_ in ordered(samples[-1][1], by)[:most]:
        line = Text(f"{bin_.number:3} {bin_.size:>9,} B  ")
        for _, parts in samples:
            sign, colour = cell(next((b for b in parts.bins if b.number == bin_.number), None))
            line.append(sign, colour)
        line.append(f"  {100 * occupancy(bin_):.0f} %")
        output.console.print(line, soft_wrap=True)
    output.say(". under 20 %  ░ 20  ▒ 40  ▓ 60  █ 80 % and more of what is resident is live  · nothing resident", "dim")


def sample(reader: Reader, every: float, times: int) -> tuple[list[tuple[float, Parts]], bool]:
    """Until interrupted, where times is 0. Also: whether the process ended meanwhile."""
    samples: list[tuple[float, Parts]] = []
    ended = False
    begin = time.monotonic()
    try:
        while not times or len(samples) < times:
            if samples:
                time.sleep(max(0.0, begin + every * len(samples) - time.monotonic()))
            try:
                parts = explain_well(reader)
            except NewProgram:
                reader = of_new_program(reader.process.pid)
                output.note_new_program(reader.process.pid, reader.process.command())
                samples.clear()
                begin = time.monotonic()
                continue
            samples.append((time.monotonic() - begin, parts))
            if output.messages.is_terminal:
                output.messages.print(f"{len(samples)} samples, Ctrl-C ends", end="\r")
    except KeyboardInterrupt:
        pass
    except ProcessGone as error:
        if not samples:
            raise
        output.note(str(error))
        ended = True
    return samples, ended


def bins(target: str, by: str, most: int, every: float, times: int, json: bool) -> int:
    reader = Reader(target)
    source, target = reader.process, reader.process.target
    if every and source.still:
        source.must_be_running("--every")
    samples, ended = sample(reader, every, times if every else 1)
    if not samples:
        return 130
    last = samples[-1][1]
    if json:
        rows = [
            {
                "seconds": round(at, 3),
                "bins": [as_known(as_dict(b), parts) for b in ordered(parts, by)],
                **{name: as_known(asdict(runs), parts) for name, runs in kinds_of(parts)},
                "total": as_known(asdict(total(parts)), parts),
                "error_bound": parts.moved,
                "exact": parts.exact,
            }
            for at, parts in samples
        ]
        output.as_json({"version": 1, "pid": source.pid, "source": source.kind, "samples": rows})
        return 0
    show_table(last, by, most)
    if last.by_account:
        output.say("held: by Folio's account; a core does not tell which pages were resident", "dim")
    if len(samples) > 1:
        show_heat_map(samples, by, most)
    if ended:
        output.next_command("folio run -- PROGRAM  (its memory when it was largest)")
    elif len(samples) > 1 or source.still:
        output.next_command(f"folio doctor {target}  (why the memory is there)")
    else:
        output.next_command(f"folio bins {target} --every 1  (the same over time, as a heat map)")
    return 0
