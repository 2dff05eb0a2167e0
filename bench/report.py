"""Medians, spreads, ratios and the Markdown table of bench/run.py: pure functions of the samples."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from cases import Case, Figure

OWN = "folio"


@dataclass
class Sample:
    """One round of one case on one allocator. `problem` says why there are no figures to count."""

    case: str
    allocator: str
    round: int
    values: dict
    problem: str = ""


@dataclass(frozen=True)
class Summary:
    median: float
    low: float
    high: float


def summarize(values: list[float]) -> Summary | None:
    if not values:
        return None
    return Summary(statistics.median(values), min(values), max(values))


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 6)}f}"


def cell(summary: Summary | None, problem: str) -> str:
    if summary is None:
        return problem or "–"
    if summary.low == summary.high:
        return number(summary.median)
    return f"{number(summary.median)} ({number(summary.low)}–{number(summary.high)})"


def advantage(own: float, peer: float, more_is_better: bool) -> float | None:
    """How many times better `own` is than `peer`: above 1 it leads, in speed as in memory. None: not a ratio."""
    if own <= 0 or peer <= 0:
        return None
    return own / peer if more_is_better else peer / own


def best_peer(medians: dict[str, float], more_is_better: bool) -> str | None:
    peers = {name: value for name, value in medians.items() if name != OWN}
    if not peers:
        return None
    return (max if more_is_better else min)(peers, key=lambda name: peers[name])


def figures_of(samples: list[Sample], case: Case, figure: Figure, allocator: str) -> list[float]:
    return [
        s.values[figure.key] * figure.scale
        for s in samples
        if s.case == case.name and s.allocator == allocator and not s.problem and figure.key in s.values
    ]


def problem_of(samples: list[Sample], case: Case, allocator: str) -> str:
    return next((s.problem for s in samples if s.case == case.name and s.allocator == allocator and s.problem), "")


def table(samples: list[Sample], cases: list[Case], allocators: list[str]) -> str:
    """One line a figure; Folio first, then the peers; last, how many times better Folio is than the best of them."""
    order = [name for name in allocators if name == OWN] + [name for name in allocators if name != OWN]
    lines = [
        f"| case | figure | {' | '.join(order)} | ahead of the best peer |",
        f"| --- | --- |{' --- |' * len(order)} --- |",
    ]
    for case in cases:
        if not any(s.case == case.name for s in samples):
            continue
        for figure in case.figures:
            summaries = {name: summarize(figures_of(samples, case, figure, name)) for name in order}
            medians = {name: summary.median for name, summary in summaries.items() if summary is not None}
            cells = [cell(summaries[name], problem_of(samples, case, name)) for name in order]
            label = f"{figure.label}, {figure.unit}"
            lines.append(f"| {case.name} | {label} | {' | '.join(cells)} | {verdict(medians, figure)} |")
    return "\n".join(lines)


def verdict(medians: dict[str, float], figure: Figure) -> str:
    best = best_peer(medians, figure.more_is_better)
    if best is None or OWN not in medians:
        return "–"
    factor = advantage(medians[OWN], medians[best], figure.more_is_better)
    return f"{best} {number(medians[best])}" if factor is None else f"{factor:.2f} x {best}"


def startup_difference(samples: list[Sample], case: Case) -> str:
    """What Folio adds to a program that does nothing, against glibc; empty without both."""
    parts = []
    for figure in case.figures:
        own, libc = (summarize(figures_of(samples, case, figure, name)) for name in (OWN, "glibc"))
        if own is None or libc is None:
            return ""
        difference = own.median - libc.median
        parts.append(f"{'-' if difference < 0 else '+'}{number(abs(difference))} {figure.unit}")
    return f"startup of {case.program} against glibc: {', '.join(parts)}"
