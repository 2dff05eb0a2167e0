"""`folio bins`: what each bin holds and wastes, as a table, and over time as a heat map."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.text import Text

from folio import output
from folio.errors import ProcessGone
from folio.parts import BinParts, Parts, explain
from folio.reader import Reader

SORTS = ("held", "wasted", "size", "bin")
SHADES = " ░▒▓█"
# From red (little of what is resident is live) to green.
COLOURS = ("red", "dark_orange", "yellow", "chartreuse3", "green")


def wasted(bin_: BinParts) -> int:
    return bin_.resident - bin_.live


def occupancy(bin_: BinParts) -> float:
    """Live bytes of the resident ones."""
    return bin_.live / bin_.resident if bin_.resident else 0.0


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


def show_table(parts: Parts, by: str, most: int) -> None:
    made = output.table(*("bin", "object", "live", "cached", "resident", "fragmented", "dirty", "occupied"), left=0)
    rows = ordered(parts, by)
    for bin_ in rows[:most]:
        made.add_row(
            str(bin_.number),
            f"{bin_.size:,}",
            f"{bin_.live_objects:,}",
            f"{sum(bin_.cached_objects.values()):,}",
            output.size(bin_.resident),
            output.size(bin_.fragmented),
            output.size(bin_.dirty),
            f"{100 * occupancy(bin_):.0f} %",
        )
    if rows[most:]:
        rest = rows[most:]
        made.add_row(
            "rest",
            f"{len(rest)} bins",
            f"{sum(b.live_objects for b in rest):,}",
            f"{sum(sum(b.cached_objects.values()) for b in rest):,}",
            output.size(sum(b.resident for b in rest)),
            output.size(sum(b.fragmented for b in rest)),
            output.size(sum(b.dirty for b in rest)),
            "",
            style="dim",
        )
    for name, each in [("large", parts.large), ("huge", parts.huge)]:
        held = each.live + each.cached + each.dirty + each.padding
        if held or each.objects:
            occupied = f"{100 * each.live / held:.0f} %" if held else ""
            row = ["", f"{each.objects:,}", "", output.size(held), "", output.size(each.dirty), occupied]
            made.add_row(name, *row)
    output.console.print(made)


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
            samples.append((time.monotonic() - begin, explain(reader)))
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


def bins(pid: int, by: str, most: int, every: float, times: int, json: bool) -> int:
    reader = Reader(pid)
    samples, ended = sample(reader, every, times if every else 1)
    if not samples:
        return 130
    last = samples[-1][1]
    if json:
        rows = [
            {
                "seconds": round(at, 3),
                "bins": [as_dict(b) for b in ordered(parts, by)],
                "large": asdict(parts.large),
                "huge": asdict(parts.huge),
                "error_bound": parts.moved,
            }
            for at, parts in samples
        ]
        output.as_json({"version": 1, "pid": pid, "samples": rows})
        return 0
    show_table(last, by, most)
    if len(samples) > 1:
        show_heat_map(samples, by, most)
    if ended:
        output.next_command("folio run -- PROGRAM  (its memory when it was largest)")
    elif len(samples) > 1:
        output.next_command(f"folio doctor {pid}  (why the memory is there)")
    else:
        output.next_command(f"folio bins {pid} --every 1  (the same over time, as a heat map)")
    return 0
