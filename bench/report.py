"""From samples to tables: intervals, ratios, ranks and geometric means, in Markdown. Pure functions of the samples."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field

from cases import APPLICATION, PROGRAM, Case, Figure
from folio.rounds import LEVEL, UNKNOWN, Interval, geometric_mean, median_interval, ratio_interval, verdict
from measure import BUILT_PEERS, DEBIAN_PEERS, IDEALS
from records import Record, Sample, cases_of, samples_of

OWN = "folio"
CLOSE = 0.97  # of the best peer: within 3 %
MEASURES = ("time", "peak memory")
COUNTED = (PROGRAM, APPLICATION)
# Its margins are so large that a mean with it says little about the rest.
OUTLIER = "malloc_test"


@dataclass(frozen=True)
class Group:
    """Cases over which a mean is taken."""

    name: str
    kinds: tuple[str, ...]
    leave_out: str = ""  # a program

    def has(self, case: Case) -> bool:
        return case.kind in self.kinds and case.program != self.leave_out


ALL = Group("all", COUNTED)
PROGRAMS = Group("programs", (PROGRAM,))
OTHER_PROGRAMS = Group("without malloc-test", (PROGRAM,), OUTLIER)
APPLICATIONS = Group("applications", (APPLICATION,))


@dataclass
class Results:
    """Samples, and what the tables and plots of a report are made from."""

    cases: list[Case]
    allocators: list[str]
    samples: list[Sample]
    ideals: list[str] = field(default_factory=list, init=False)  # limits: in no rank and no mean
    _rounds: dict = field(default_factory=dict, repr=False)
    _intervals: dict = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.ideals = [a for a in IDEALS if a in self.allocators]
        self.allocators = [a for a in self.allocators if a not in IDEALS]
        known = [OWN, "glibc", *BUILT_PEERS, *DEBIAN_PEERS]
        self.allocators = sorted(self.allocators, key=lambda a: known.index(a) if a in known else len(known))
        self.cases = [case for case in self.cases if any(s.case == case.name for s in self.samples)]

    @property
    def base(self) -> str:
        """What means are relative to."""
        return OWN if OWN in self.allocators else self.allocators[0]

    def of_case(self, case: Case) -> list[Sample]:
        return [s for s in self.samples if s.case == case.name]

    def of(self, case: Case, allocator: str) -> list[Sample]:
        return [s for s in self.samples if s.case == case.name and s.allocator == allocator]

    def problem(self, case: Case, allocator: str) -> str:
        return next((s.problem for s in self.of(case, allocator) if s.problem), "")

    def by_round(self, case: Case, figure: Figure, allocator: str) -> dict[int, float]:
        """Empty if any round had a problem: a median of those that went well would flatter."""
        key = (case.name, figure, allocator)
        if key not in self._rounds:
            samples = [] if self.problem(case, allocator) else self.of(case, allocator)
            self._rounds[key] = {
                s.round: s.values[figure.key] * figure.scale for s in samples if figure.key in s.values
            }
        return self._rounds[key]

    def median(self, case: Case, figure: Figure, allocator: str) -> Interval | None:
        key = (case.name, figure, allocator)
        if key not in self._intervals:
            self._intervals[key] = median_interval(list(self.by_round(case, figure, allocator).values()))
        return self._intervals[key]

    def medians(self, case: Case, figure: Figure) -> dict[str, float]:
        found = {name: self.median(case, figure, name) for name in self.allocators}
        return {name: interval.value for name, interval in found.items() if interval is not None}

    def advantage(self, case: Case, figure: Figure, one: str, other: str) -> Interval | None:
        """How many times better `one` is than `other`: above 1 it leads, in speed as in memory."""
        ours, theirs = (self.by_round(case, figure, name) for name in (one, other))
        return ratio_interval(ours, theirs) if figure.more_is_better else ratio_interval(theirs, ours)


def results_of(records: list[Record]) -> Results:
    return Results(cases_of(records), list(dict.fromkeys(r.allocator for r in records)), samples_of(records))


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{value:.{min(max(digits, 0), 6)}f}"


def interval_text(interval: Interval | None, show=number) -> str:
    if interval is None:
        return "–"
    value, low, high = show(interval.value), show(interval.low), show(interval.high)
    return value if value == low == high else f"{value} ({low}–{high})"


def factor(value: float) -> str:
    return f"{value:.2f}"


def best_peer(medians: dict[str, float], more_is_better: bool) -> str | None:
    peers = {name: value for name, value in medians.items() if name != OWN}
    if not peers:
        return None
    return (max if more_is_better else min)(peers, key=lambda name: peers[name])


def against_best(results: Results, case: Case, figure: Figure) -> tuple[str | None, Interval | None]:
    """The best peer, and Folio's advantage over it."""
    medians = results.medians(case, figure)
    best = best_peer(medians, figure.more_is_better)
    if best is None or OWN not in medians:
        return best, None
    return best, results.advantage(case, figure, OWN, best)


def against_text(best: str | None, advantage: Interval | None) -> str:
    if best is None or advantage is None:
        return "–" if best is None else best
    word = verdict(advantage)
    return f"{interval_text(advantage, factor)} x {best}" + (f", {word}" if word == LEVEL else "")


def figure_rows(results: Results) -> list[tuple[Case, Figure, list[str]]]:
    """What was found of each figure: a cell for each allocator, Folio first, then the peers."""
    rows = []
    for case in results.cases:
        for figure in case.figures:
            if not results.medians(case, figure) and not any(results.problem(case, n) for n in results.allocators):
                continue  # with small parameters: a rest that was left out, for one
            cells = [
                interval_text(interval)
                if (interval := results.median(case, figure, name)) is not None
                # "over 8 GiB" and the like say more than a dash
                else results.problem(case, name) or "–"
                for name in results.allocators
            ]
            rows.append((case, figure, cells))
    return rows


def table(results: Results) -> str:
    """One line a figure; last, how many times better Folio is than the best of the peers."""
    lines = [
        f"| case | figure | {' | '.join(results.allocators)} | ahead of the best peer |",
        f"| --- | --- |{' --- |' * len(results.allocators)} --- |",
    ]
    for case, figure, cells in figure_rows(results):
        last = against_text(*against_best(results, case, figure))
        lines.append(f"| {case.name} | {figure.label}, {figure.unit} | {' | '.join(cells)} | {last} |")
    return "\n".join(lines)


def figures_csv(results: Results) -> str:
    """The same for programs."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["case", "figure", "unit", *results.allocators, "ahead of the best peer"])
    for case, figure, cells in figure_rows(results):
        last = against_text(*against_best(results, case, figure))
        writer.writerow([case.name, figure.label, figure.unit, *cells, last])
    return text.getvalue()


def time_figure(case: Case) -> Figure | None:
    """The figure that says how fast a program did its work; none if it only waits or measures single calls."""
    rates = [f for f in case.figures if f.more_is_better]
    times = [f for f in case.figures if f.unit in ("s", "ms", "us", "ns") and not f.more_is_better]
    return next(iter([*rates, *times]), None)


def memory_figure(case: Case) -> Figure:
    """The peak as the case reports it; else as the kernel counted it, which it does for every run."""
    own = [f for f in case.figures if f.key in ("rss_peak_bytes", "max_rss_kib")]
    return own[0] if own else Figure("max_rss_kib", "peak memory", "MiB", 2.0**-10)


def figure_for(case: Case, measure: str) -> Figure | None:
    return time_figure(case) if measure == "time" else memory_figure(case)


@dataclass(frozen=True)
class Standing:
    """Where Folio stands in one program by one measure."""

    case: str
    program: str
    measure: str
    rank: int
    of: int
    best: str
    advantage: Interval
    verdict: str


def standings(results: Results, measure: str, group: Group = ALL) -> list[Standing]:
    found = []
    for case, figure in figures_of(results, measure, group):
        medians = results.medians(case, figure)
        best, advantage = against_best(results, case, figure)
        if best is None or advantage is None:
            continue
        own, sign = medians[OWN], -1 if figure.more_is_better else 1
        rank = 1 + sum(sign * value < sign * own for name, value in medians.items() if name != OWN)
        found.append(
            Standing(case.name, case.program, measure, rank, len(medians), best, advantage, verdict(advantage))
        )
    return found


def ideals_table(results: Results) -> str:
    """How far each program is from a limit by time: 1 is the limit, 2 takes twice as long."""
    lines = [
        f"| program | {' | '.join(f'Folio to {name} | best peer to it' for name in results.ideals)} |",
        f"| --- |{' --- | --- |' * len(results.ideals)}",
    ]
    for case in results.cases:
        figure = time_figure(case)
        if figure is None or not ALL.has(case) or OWN not in results.medians(case, figure):
            continue
        best, cells = best_peer(results.medians(case, figure), figure.more_is_better), []
        for ideal in results.ideals:
            for name in (OWN, best):
                far = results.advantage(case, figure, ideal, name) if name is not None else None
                label = f" {name}" if name != OWN and far is not None else ""
                cells.append(interval_text(far, factor) + label)
        if any(cell != "–" for cell in cells):
            lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figures_of(results: Results, measure: str, group: Group) -> list[tuple[Case, Figure]]:
    pairs = [(case, figure_for(case, measure)) for case in results.cases if group.has(case)]
    return [(case, figure) for case, figure in pairs if figure is not None]


@dataclass(frozen=True)
class Mean:
    """Of one allocator: what it needs, relative to `Results.base`, as a geometric mean over programs."""

    allocator: str
    value: float
    programs: int
    of: int


def means(results: Results, measure: str, group: Group = ALL) -> list[Mean]:
    """Each over the programs that both the allocator and the base finished; below 1 it needs less than the base."""
    found = []
    wanted = figures_of(results, measure, group)
    for allocator in results.allocators:
        ratios = []
        for case, figure in wanted:
            medians = results.medians(case, figure)
            a, b = medians.get(allocator, 0), medians.get(results.base, 0)
            if a > 0 and b > 0:
                ratios.append(b / a if figure.more_is_better else a / b)
        mean = geometric_mean(ratios)
        if mean is not None:
            found.append(Mean(allocator, mean, len(ratios), len(wanted)))
    return found


@dataclass(frozen=True)
class Shares:
    """Of the programs: where Folio is first by medians, and where it is within 3 % of the best peer or ahead."""

    measure: str
    programs: int
    first: int
    close: int
    ahead: int
    level: int
    behind: int


def shares(rows: list[Standing], measure: str) -> Shares:
    words = [row.verdict for row in rows]
    return Shares(
        measure,
        len(rows),
        sum(row.rank == 1 for row in rows),
        sum(row.advantage.value >= CLOSE for row in rows),
        words.count("ahead"),
        words.count(LEVEL),
        words.count("behind"),
    )


# What the kernel counted of each run, in the order of the page.
COUNTS = [
    Figure("wall", "wall time", "s"),
    Figure("user", "user time", "s"),
    Figure("sys", "system time", "s"),
    Figure("minor_faults", "page faults", "thousand", 1e-3),
    Figure("major_faults", "faults with reading", "number"),
    Figure("max_rss_kib", "peak memory", "MiB", 2.0**-10),
]


def counts_table(results: Results, case: Case) -> str:
    """Of all processes of a run: of a server also those that load it."""
    lines = [
        f"| counted by the kernel | {' | '.join(results.allocators)} |",
        f"| --- |{' --- |' * len(results.allocators)}",
    ]
    for figure in COUNTS:
        cells = [interval_text(results.median(case, figure, name)) for name in results.allocators]
        lines.append(f"| {figure.label}, {figure.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "–"


def standings_table(results: Results) -> str:
    rows = {measure: {s.case: s for s in standings(results, measure)} for measure in MEASURES}
    judged = any(row.verdict != UNKNOWN for found in rows.values() for row in found.values())  # not with one round
    count = len(results.allocators)
    columns = (f"rank of {count}", "against the best peer", "verdict")[: 3 if judged else 2]
    heads = ["program", *(f"{measure}: {column}" for measure in MEASURES for column in columns)]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---'] * len(heads))} |"]
    for case in results.cases:
        if not ALL.has(case):
            continue
        cells = []
        for measure in MEASURES:
            row = rows[measure].get(case.name)
            if row is None:
                found = ["–", "–", ""]
            else:
                rank = f"{row.rank}" if row.of == count else f"{row.rank} of {row.of}"
                ratio = f"{interval_text(row.advantage, factor)} x {row.best}"
                found = [rank, ratio, "" if row.verdict == UNKNOWN else row.verdict]
            cells += found[: len(columns)]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def means_table(results: Results) -> str:
    groups = [g for g in (PROGRAMS, OTHER_PROGRAMS, APPLICATIONS) if any(g.has(case) for case in results.cases)]
    columns = [(measure, group) for group in groups for measure in MEASURES]
    found = {column: {m.allocator: m for m in means(results, *column)} for column in columns}
    heads = [f"{group.name}: {measure}" for measure, group in columns]
    lines = [f"| allocator | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for allocator in results.allocators:
        cells = []
        for column in columns:
            mean = found[column].get(allocator)
            short = mean is not None and mean.programs < mean.of
            note = f" ({mean.programs} of {mean.of})" if mean is not None and short else ""
            cells.append("–" if mean is None else factor(mean.value) + note)
        lines.append(f"| {allocator} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shares_lines(results: Results) -> list[str]:
    lines = []
    for measure in MEASURES:
        rows = standings(results, measure)
        if not rows:
            continue
        s = shares(rows, measure)
        known = s.ahead + s.level + s.behind  # none with one round
        intervals = f"; by intervals {s.ahead} ahead, {s.level} no difference seen, {s.behind} behind" if known else ""
        lines.append(
            f"- {measure}: first in {share(s.first, s.programs)} programs and applications, within 3 % or ahead in "
            f"{share(s.close, s.programs)}{intervals}."
        )
    return lines


def startup_difference(results: Results) -> str:
    """What Folio adds to a program that does nothing, against glibc; empty without both."""
    case = next((case for case in results.cases if case.name == "startup"), None)
    if case is None:
        return ""
    parts = []
    for figure in case.figures:
        own, libc = (results.median(case, figure, name) for name in (OWN, "glibc"))
        if own is None or libc is None:
            return ""
        difference = own.value - libc.value
        parts.append(f"{'-' if difference < 0 else '+'}{number(abs(difference))} {figure.unit}")
    return f"startup of {case.program} against glibc: {', '.join(parts)}"


def markdown(results: Results) -> str:
    """What goes into docs/performance.md, and what a run prints at its end."""
    parts = [table(results)]
    if OWN in results.allocators and len(results.allocators) > 1:
        parts += ["Folio by program. Above 1, it leads.", standings_table(results), "\n".join(shares_lines(results))]
    if len(results.allocators) > 1:
        parts += [f"Geometric means over programs, relative to {results.base}: below 1, less.", means_table(results)]
    if results.ideals and OWN in results.allocators:
        parts += ["Time beside limits (bench/peers/ideal.c): 1 is the limit.", ideals_table(results)]
    parts.append(startup_difference(results))
    return "\n\n".join(part for part in parts if part)
