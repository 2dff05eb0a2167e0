#!/usr/bin/env python3
"""What Folio is to reach, and whether a run shows it: one row a goal, from the raw lines of a results file.

    goals.py FILE    prints the table in Markdown

A goal is judged by its median; the interval stands beside it. Where a case of it is not in the file the goal is not
measured, unless what is there already misses it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

from cases import APPLICATION, PROGRAM, Case, Figure
from folio.rounds import Interval, mean_ratio_interval, ratio_interval
from measure import BenchError, end_with
from records import read_records
from report import (
    APPLICATIONS,
    CLOSE,
    COUNTED,
    OTHER_PROGRAMS,
    OUTLIER,
    OWN,
    PROGRAMS,
    Group,
    Results,
    best_peer,
    factor,
    figures_of,
    interval_text,
    means,
    number,
    results_of,
    standings,
)

REACHED, MISSED, NOT_MEASURED = "reached", "missed", "not measured"
# Whom the SuperMalloc paper compares with, by the names that a run may have for them.
FIELD = ("glibc", "jemalloc", "jemalloc-debian", "tbb")
FIRST_SHARE = 2 / 3
NAMED = 12  # programs that a cell names


@dataclass(frozen=True)
class Goal:
    what: str
    reach: str
    measured: str
    verdict: str


def case_named(results: Results, name: str) -> Case | None:
    return next((case for case in results.cases if case.name == name), None)


def figure_of(case: Case, key: str) -> Figure | None:
    return next((figure for figure in case.figures if figure.key == key), None)


@dataclass(frozen=True)
class Lead:
    """Folio against the best of some peers in one figure; above 1, it leads."""

    case: str
    peer: str
    advantage: Interval

    def __str__(self) -> str:
        return f"{interval_text(self.advantage, factor)} x {self.peer} in {self.case}"


def lead(results: Results, name: str, key: str, field: tuple[str, ...] = ()) -> Lead | None:
    """None unless the case has that figure for Folio and one of the peers; an empty field is all peers."""
    case = case_named(results, name)
    figure = figure_of(case, key) if case else None
    if case is None or figure is None:
        return None
    medians = results.medians(case, figure)
    peers = {n: v for n, v in medians.items() if n != OWN and (not field or n in field)}
    best = best_peer(peers, figure.more_is_better)
    advantage = results.advantage(case, figure, OWN, best) if best is not None and OWN in medians else None
    return Lead(name, best, advantage) if best is not None and advantage is not None else None


def judge(met: list[bool], complete: bool) -> str:
    if not all(met):
        return MISSED
    return REACHED if met and complete else NOT_MEASURED


def at_least(what: str, times: float, results: Results, wanted: list[str], field: tuple[str, ...] = ()) -> Goal:
    """Speed in each of the wanted cases, at least so many times that of the best peer."""
    found = [one for name in wanted if (one := lead(results, name, "ops_per_second", field)) is not None]
    met = [one.advantage.value >= times for one in found]
    measured = "–"
    if found:
        measured = str(min(found, key=lambda one: one.advantage.value))
        if len(wanted) > 1:
            measured = f"in {sum(met)} of {len(wanted)}; least: {measured}"
    return Goal(what, f"at least {times:g} times", measured, judge(met, len(found) == len(wanted)))


def malloc_tests(*sizes: str) -> list[str]:
    return [f"malloc-test {n}+{n}, {size}" for size in sizes for n in (1, 2, 4)]


def paper_field(results: Results) -> Goal:
    goal = at_least(
        "malloc-test 1+1 of 64 bytes, against the best of glibc, jemalloc, TBB malloc",
        10,
        results,
        ["malloc-test 1+1, 64 B"],
        FIELD,
    )
    absent = {"glibc", "jemalloc", "tbb"} - {name.removesuffix("-debian") for name in results.allocators}
    if absent and goal.verdict == REACHED:
        return Goal(goal.what, goal.reach, f"{goal.measured}; without {', '.join(sorted(absent))}", NOT_MEASURED)
    return goal


def every_program(results: Results) -> Goal:
    what = "every program but malloc-test, and every application: time against its best peer"
    rows = standings(results, "time", Group("", COUNTED, OUTLIER))
    behind = sorted((row for row in rows if row.advantage.value < CLOSE), key=lambda row: row.advantage.value)
    first = sum(row.rank == 1 for row in rows)
    reach = "each within 3 % or better, first in at least two thirds"
    if not rows:
        return Goal(what, reach, "–", NOT_MEASURED)
    text = f"within 3 % or better in {len(rows) - len(behind)} of {len(rows)}, first in {first}"
    if behind:
        shown = [f"{row.case} {factor(row.advantage.value)} x {row.best}" for row in behind[:NAMED]]
        text += f"; behind: {', '.join(shown)}{', ...' if len(behind) > NAMED else ''}"
    complete = {case.kind for case in results.cases} >= {PROGRAM, APPLICATION}
    return Goal(what, reach, text, judge([not behind, first >= FIRST_SHARE * len(rows)], complete))


def best_mean(results: Results, measure: str, group: Group) -> tuple[str, Interval] | None:
    """The peer with the least need over the programs that it and Folio finished, and how many times Folio's that is."""
    peers = [mean for mean in means(results, measure, group) if mean.allocator != OWN]
    if OWN not in results.allocators or not peers:
        return None
    best = min(peers, key=lambda mean: mean.value)
    pairs = []
    for case, figure in figures_of(results, measure, group):
        theirs, ours = (results.by_round(case, figure, name) for name in (best.allocator, OWN))
        if theirs and ours and min(theirs.values()) > 0 and min(ours.values()) > 0:
            pairs.append((ours, theirs) if figure.more_is_better else (theirs, ours))
    interval = mean_ratio_interval(pairs)
    note = f" ({best.programs} of {best.of})" if best.programs < best.of else ""
    return None if interval is None else (f"{best.allocator}{note}", interval)


def mean_goal(what: str, reach: str, results: Results, measure: str, wanted: list[tuple[Group, float]]) -> Goal:
    met, texts = [], []
    for group, least in wanted:
        found = best_mean(results, measure, group)
        if found is None:
            continue
        name, interval = found
        met.append(interval.value >= least)
        texts.append(f"{group.name}: {interval_text(interval, factor)} x {name}")
    return Goal(what, reach, "; ".join(texts) or "–", judge(met, len(met) == len(wanted)))


RESTS = [
    *((name, "after_2s_percent") for name in ("burst 1 thread", "burst 1 thread, random order", "burst 4 threads")),
    ("bursts and idleness", "after_2000ms_percent"),
    ("redis", "rss_after_2s_bytes"),
]


def at_rest(results: Results) -> Goal:
    """By values, not ratios: a peer may have nothing left."""
    met, texts = [], []
    for name, key in RESTS:
        case = case_named(results, name)
        figure = figure_of(case, key) if case else None
        medians = results.medians(case, figure) if case and figure else {}
        best = best_peer(medians, False)
        if best is None or OWN not in medians:
            continue
        met.append(medians[OWN] <= medians[best])
        unit = "%" if figure.unit.startswith("%") else figure.unit
        own = interval_text(results.median(case, figure, OWN))
        texts.append(f"{name}: {own} {unit} against {number(medians[best])} ({best})")
    what = "resident memory two seconds after the work is gone"
    return Goal(what, "first in each", "; ".join(texts) or "–", judge(met, len(met) == len(RESTS)))


def slowest_call(results: Results) -> Goal:
    key = "slowest_undisturbed_ns"
    found, case = lead(results, "super server", key), case_named(results, "super server")
    what, reach = "slowest single call of up to 1 MiB, super server (none near a preemption)", "first"
    if found is None or case is None:
        return Goal(what, reach, "–", NOT_MEASURED)
    figure = figure_of(case, key)
    own, best = (interval_text(results.median(case, figure, name)) for name in (OWN, found.peer))
    return Goal(what, reach, f"{own} us against {best} us ({found.peer})", judge([found.advantage.value >= 1], True))


def warm_up(results: Results) -> Goal:
    case = case_named(results, "warm-up")
    figure = figure_of(case, "warm_after_seconds") if case else None
    own = results.median(case, figure, OWN) if case and figure else None
    what, reach = "warm-up to 95 % of full speed in malloc-test", "under 0.5 s"
    if own is None:
        return Goal(what, reach, "–", NOT_MEASURED)
    return Goal(what, reach, f"{interval_text(own)} ms", judge([own.value < 500], True))


def ideal(results: Results) -> Goal:
    """A malloc and free pair decides; the same with batches is said beside it."""
    what, reach = "a malloc and free pair, by an ideal thread-local stack in the same loop", "at most 1.3 times"
    ratios: list[Interval | None] = []
    for ending in ("", ", batches"):
        loop, stack = (case_named(results, name + ending) for name in ("tight loop 64 B", "ideal stack"))
        sides = [results.by_round(c, c.figures[0], OWN) for c in (loop, stack) if c]
        ratios.append(ratio_interval(*sides) if len(sides) == 2 else None)
    pair, batches = ratios
    if pair is None:
        return Goal(what, reach, "–", NOT_MEASURED)
    also = f"; batches of 200: {interval_text(batches, factor)}" if batches else ""
    return Goal(what, reach, interval_text(pair, factor) + also, judge([pair.value <= 1.3], True))


def concern(results: Results) -> bool:
    """Goals are set for the laboratory's programs, on Folio and others; not for a program of the user's."""
    return OWN in results.allocators and len(results.allocators) > 1 and any(PROGRAMS.has(c) for c in results.cases)


def goals(results: Results) -> list[Goal]:
    ahead = "ahead by at least 25 %; without malloc-test 15 %"
    both = [(PROGRAMS, 1.0), (APPLICATIONS, 1.0)]
    rows: list[Callable[[], Goal]] = [
        lambda: paper_field(results),
        lambda: at_least(
            "malloc-test of random sizes, 512 bytes and 1 KiB; 1+1, 2+2, 4+4 threads; against the best of all peers",
            3,
            results,
            malloc_tests("random", "512 B", "1024 B"),
        ),
        lambda: at_least(
            "malloc-test of 64 bytes; 1+1, 2+2, 4+4 threads; against the best", 1.1, results, malloc_tests("64 B")
        ),
        lambda: every_program(results),
        lambda: mean_goal(
            "geometric mean over all programs, time, against the best peer's",
            ahead,
            results,
            "time",
            [(PROGRAMS, 1.25), (OTHER_PROGRAMS, 1.15)],
        ),
        lambda: mean_goal(
            "geometric mean over the applications, time",
            "ahead by at least 10 %",
            results,
            "time",
            [(APPLICATIONS, 1.1)],
        ),
        lambda: mean_goal("geometric mean, peak resident memory", "the leanest in both", results, "peak memory", both),
        lambda: at_rest(results),
        lambda: slowest_call(results),
        lambda: warm_up(results),
        lambda: ideal(results),
    ]
    return [row() for row in rows]


def table(found: list[Goal]) -> str:
    lines = ["| what | reach | measured | verdict |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {g.what} | {g.reach} | {g.measured} | {g.verdict} |" for g in found)])


def show(name: str, text: Callable[[Results], str]) -> int:
    """The program `name FILE`."""
    if len(sys.argv) != 2:
        raise BenchError(f"which results? {name} FILE.jsonl")
    path = Path(sys.argv[1])
    print(text(results_of(read_records(path))))
    print(f"\nnext: bench/run.py --report {path}  (all tables and the page)")
    return 0


if __name__ == "__main__":
    end_with(lambda: show("bench/goals.py", lambda results: table(goals(results))), "bench/goals.py")
