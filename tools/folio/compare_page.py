"""The page of `folio compare`: one HTML file, with nothing from outside and without scripts."""

from __future__ import annotations

import math
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader

from folio.rounds import LEVEL, RESAMPLES, Interval

if TYPE_CHECKING:
    from folio.compare import Comparison, Measure

TICKS_MOST = 6
RATIO_TICKS = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99),
    *(1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50, 100),
)
RATIO_APART = 0.11  # of the axis, so that labels do not touch on a phone
RATIO_LEAST = 1.02  # how far the axis of ratios goes to both sides at least
UNITS = {
    "seconds": [(1, "s"), (1e-3, "ms"), (1e-6, "µs")],
    "bytes": [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")],
    "count": [(1e6, "millions"), (1e3, "thousands"), (1, "")],
}


def unit_of(kind: str, most: float) -> tuple[float, str]:
    """The unit in which the largest value is one or more."""
    units = UNITS[kind]
    return next((unit for unit in units if most >= unit[0]), units[-1])


def ticks(most: float, count: int = TICKS_MOST) -> list[float]:
    """Round numbers from 0 to `most`, so many at most."""
    power = 10.0 ** math.floor(math.log10(most / count))
    step = next(each * power for each in (1, 2, 5, 10) if most / (each * power) <= count)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def plain(number: float) -> str:
    return f"{number:.6g}"


def panel(comparison: Comparison, measure: Measure) -> dict[str, Any]:
    """A measure: each run of each allocator along an axis from 0 on."""
    from folio.compare import bracketed, shown_ratio, verdict

    values = {a.name: [measure.of(run) for run in comparison.runs[a.name]] for a in comparison.allocators}
    most = max(max(of) for of in values.values()) or 1.0
    scale, unit = unit_of(measure.unit, most)
    end = most * 1.04
    rows = []
    for i, allocator in enumerate(comparison.allocators):
        median = comparison.median(allocator.name, measure)
        ratio = comparison.ratio(allocator.name, measure) if i else None
        down = [50.0] if len(values[allocator.name]) == 1 else np.linspace(12, 88, len(values[allocator.name])).tolist()
        rows.append(
            {
                "name": allocator.name,
                "median": bracketed(median, measure.show(median)),
                "ratio": shown_ratio(ratio),
                "verdict": verdict(ratio),
                "at": {key: 100 * getattr(median, key) / end for key in ("value", "low", "high")},
                "known": median.known,
                "dots": [(100 * v / end, y) for v, y in zip(values[allocator.name], down, strict=True)],
            }
        )
    marks = [(100 * tick * scale / end, plain(tick)) for tick in ticks(end / scale)]
    return {"title": measure.title, "unit": unit, "rows": rows, "ticks": marks}


def ratio_axis(ratios: list[Interval]) -> tuple[float, float]:
    """How far an axis goes that has them all, and 1 with some room."""
    low = min([1 / RATIO_LEAST, *(ratio.low for ratio in ratios)])
    high = max([RATIO_LEAST, *(ratio.high for ratio in ratios)])
    room = (high / low) ** 0.04
    return low / room, high * room


def ratio_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """1 and what is round around it, as far apart as labels need."""

    def place(ratio: float) -> float:
        return math.log(ratio / low) / math.log(high / low)

    made = [place(1)]
    found = [(made[0], "1")]
    for tick in sorted(RATIO_TICKS, key=lambda each: abs(math.log(each))):
        at = place(tick)
        if 0.02 < at < 0.98 and all(abs(at - other) >= RATIO_APART for other in made):
            made.append(at)
            found.append((at, plain(tick)))
    return [(100 * at, text) for at, text in sorted(found)]


def overview(comparison: Comparison) -> dict[str, Any] | None:
    """All ratios on one axis, by their logarithm, so that half and twice are as far from 1; None without intervals."""
    from folio.compare import shown_ratio, verdict

    found = [
        (allocator.name, measure.title, ratio)
        for allocator in comparison.allocators[1:]
        for measure in comparison.measures
        if (ratio := comparison.ratio(allocator.name, measure)) is not None and ratio.known
    ]
    if not found:
        return None
    low, high = ratio_axis([ratio for _, _, ratio in found])

    def place(ratio: float) -> float:
        return 100 * math.log(ratio / low) / math.log(high / low)

    several = len(comparison.allocators) > 2
    rows = []
    for name, title, ratio in found:
        text = verdict(ratio)
        rows.append(
            {
                "title": f"{name}: {title}" if several else title,
                "at": {key: place(getattr(ratio, key)) for key in ("value", "low", "high")},
                "text": shown_ratio(ratio),
                "verdict": text,
                "kind": "level" if text == LEVEL else text.rpartition(" ")[2],
            }
        )
    return {"rows": rows, "ticks": ratio_ticks(low, high), "one": place(1)}


def machine() -> str:
    when = time.strftime("%Y-%m-%d %H:%M %z")
    return f"{when}, Linux {os.uname().release} on {os.uname().machine}, {os.cpu_count()} CPUs"


def page(comparison: Comparison) -> str:
    from folio.compare import cautions, in_short, shown_command

    short = [text for allocator in comparison.allocators[1:] if (text := in_short(comparison, allocator.name))]
    environment = Environment(loader=PackageLoader("folio", "."), autoescape=True)
    return environment.get_template("compare.html.j2").render(
        c=comparison,
        command=shown_command(comparison),
        short=short or ["One run on each: no difference can be told."],
        cautions=cautions(comparison),
        overview=overview(comparison),
        panels=[panel(comparison, measure) for measure in comparison.measures],
        resamples=RESAMPLES,
        machine=machine(),
    )
