"""The plots of the HTML report, as SVG in the page. Text and axes take the page's colour, light or dark."""

from __future__ import annotations

import io
import re

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt
from cases import PROGRAM, Case, Figure
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from report import ALL, MEASURES, OWN, Results, figure_for, memory_figure, standings, time_figure

INK = "#010203"  # stands for the page's text colour; no allocator has it
PERCENTILE = re.compile(r"^(.+)_p(\d+(?:_\d+)?)_ns$")
STAGE = re.compile(r"^after_(\d+)(m?s)_percent$")
# Told apart on white and on black, and by most who do not see all colours; Folio's is the first.
COLORS = [
    *("#e6550d", "#3182bd", "#31a354", "#9467bd", "#bc8f00", "#17a5b5"),
    *("#d6568f", "#8c6d55", "#7f7f7f", "#5b8c00", "#4060d0", "#c03030"),
]
CROWDED = 300  # the highest by the lowest value of a logarithmic axis on which only powers of ten have labels
MARKERS = "os^Dv<>Ph8X*"

mpl.rcParams.update(
    {
        "svg.fonttype": "none",
        "text.parse_math": False,  # a command of the user's may have $ in it
        "svg.hashsalt": "folio",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        **dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor"], INK),
        **dict.fromkeys(["xtick.color", "ytick.color", "grid.color"], INK),
    }
)


def svg(canvas: Canvas, label: str) -> str:
    out = io.StringIO()
    canvas.savefig(out, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None})
    plt.close(canvas)
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Ids of whole figures repeat from plot to plot and nothing refers to them.
    text = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|legend)_\d+"', "", text)
    text = re.sub(r"<svg ", f'<svg role="img" aria-label="{re.sub(chr(34), "", label)}" ', text, count=1)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def color(results: Results, allocator: str) -> str:
    return COLORS[results.allocators.index(allocator) % len(COLORS)]


def marker(results: Results, allocator: str) -> str:
    return MARKERS[results.allocators.index(allocator) % len(MARKERS)]


def legend(canvas: Canvas, results: Results) -> None:
    handles = [
        Line2D([], [], color=color(results, a), marker=marker(results, a), linestyle="", markersize=5, label=a)
        for a in results.allocators
    ]
    columns = min(len(handles), int(canvas.get_figwidth()))
    tight = {"columnspacing": 0.8, "handletextpad": 0.0, "labelspacing": 0.3, "fontsize": 8}
    canvas.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, **tight)


def dots(results: Results, case: Case) -> str:
    """One panel a figure: the median with its interval, behind it every round."""
    figures = [figure for figure in case.figures if results.medians(case, figure)]
    names = [name for name in results.allocators if results.of(case, name)]
    if not figures:
        return ""
    columns = min(3, len(figures))
    rows = -(-len(figures) // columns)
    size = (3.3 * columns + 0.6, (0.24 * len(names) + 0.9) * rows)
    canvas, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, figure in zip(axes.flat, figures, strict=False):
        values = []
        for y, name in enumerate(names):
            interval = results.median(case, figure, name)
            rounds = list(results.by_round(case, figure, name).values())
            if interval is None:
                where = axis.get_yaxis_transform()
                axis.text(0.02, y, results.problem(case, name) or "–", transform=where, va="center", fontsize=8)
                continue
            values += rounds
            tint = color(results, name)
            axis.plot(rounds, [y] * len(rounds), "|", color=tint, alpha=0.45, markersize=9)
            axis.plot([interval.low, interval.high], [y, y], color=tint, linewidth=2.2)
            axis.plot([interval.value], [y], marker(results, name), color=tint, markersize=6)
        scale_axis(axis.xaxis, values)
        axis.set_title(f"{figure.label}, {figure.unit}", fontsize=9, loc="left")
        axis.set_xlabel("more is better" if figure.more_is_better else "less is better", fontsize=8)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
    for axis in list(axes.flat)[len(figures) :]:
        axis.set_visible(False)
    return svg(canvas, f"{case.name}: medians and intervals")


def scale_axis(line: Axis, values: list[float]) -> None:
    """From 0, so that lengths can be compared; logarithmic where that would press most values into one place."""
    x = line.axis_name == "x"
    if values and min(values) > 0 and max(values) > 12 * min(values):
        (line.axes.set_xscale if x else line.axes.set_yscale)("log")
        plain_ticks(line)
    elif values and max(values) > 0:
        (line.axes.set_xlim if x else line.axes.set_ylim)(0, max(values) * 1.08)


def forest(results: Results) -> str:
    """Folio against the best peer of each program."""
    rows = {measure: found for measure in MEASURES if (found := standings(results, measure))}
    if not rows:
        return ""
    longest = max(len(found) for found in rows.values())
    size = (5.5 * len(rows), 0.26 * longest + 1.1)
    canvas, axes = plt.subplots(1, len(rows), figsize=size, squeeze=False, layout="constrained")
    for axis, (measure, found) in zip(axes.flat, rows.items(), strict=True):
        for y, row in enumerate(found):
            tint = {"ahead": "#31a354", "behind": "#d6404e"}.get(row.verdict, "#8a8a8a")
            axis.plot([row.advantage.low, row.advantage.high], [y, y], color=tint, linewidth=2.2)
            axis.plot([row.advantage.value], [y], "o", color=tint, markersize=5)
        axis.axvline(1, color=INK, linewidth=0.8)
        axis.set_xscale("log")
        plain_ticks(axis.xaxis)
        axis.set_yticks(range(len(found)), [row.case for row in found])
        axis.set_ylim(len(found) - 0.5, -0.5)
        axis.set_title(f"{measure}: times better than the best peer", fontsize=9, loc="left")
        axis.set_xlabel("right of 1: Folio leads", fontsize=8)
    return svg(canvas, "Folio against the best peer of each program")


def plain_ticks(line: Axis) -> None:
    """Numbers as people write them, on a logarithmic axis; between the powers of ten where there is room."""

    def minor(value: float, _: int) -> str:
        low, high = line.get_view_interval()
        return f"{value:,.6g}" if high < CROWDED * low and f"{value:e}"[0] in "25" else ""

    line.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    line.set_minor_formatter(minor)
    line.set_tick_params(which="minor", labelsize=7)


def profile(results: Results) -> str:
    """All programs at a glance: which share of them an allocator does within x times the best."""
    canvas, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    for axis, measure in zip(axes, MEASURES, strict=True):
        costs: dict[str, list[float]] = {name: [] for name in results.allocators}
        total = 0
        for case in results.cases:
            figure = figure_for(case, measure) if ALL.has(case) else None
            medians = {n: v for n, v in results.medians(case, figure).items() if v > 0} if figure else {}
            if not medians:
                continue
            total += 1
            best = max(medians.values()) if figure.more_is_better else min(medians.values())
            for name, value in medians.items():
                costs[name].append(best / value if figure.more_is_better else value / best)
        limit = max([2.0, *(c for found in costs.values() for c in found)]) * 1.1
        for name, found in costs.items():
            steps = sorted(found)
            shares = [100 * (i + 1) / total for i in range(len(steps))]
            x, y = [1.0, *steps, limit], [0.0, *shares, shares[-1] if shares else 0.0]
            axis.step(x, y, where="post", color=color(results, name), linewidth=2 if name == OWN else 1.3)
        axis.set_xscale("log")
        plain_ticks(axis.xaxis)
        axis.set_ylim(0, 103)
        axis.set_xlabel(f"{measure}, times the best of the program")
        axis.set_ylabel("programs done, %")
    legend(canvas, results)
    return svg(canvas, "share of programs done within a multiple of the best time and memory")


def families(results: Results) -> list[list[Case]]:
    """Cases that are one program with several numbers of threads, and report their operations."""
    found: dict[tuple, dict[int, Case]] = {}
    for case in results.cases:
        rest = tuple(sorted(w for w in case.arguments if w.partition("=")[0] not in ("threads", "pairs", "ops")))
        reports = any("ops_per_second" in sample.values for sample in results.of_case(case))
        if case.kind == PROGRAM and case.threads and reports:
            found.setdefault((case.program, rest), {})[case.threads] = case
    return [[cases[n] for n in sorted(cases)] for cases in found.values() if len(cases) > 1]


def work_graphs(results: Results, cpus: int) -> str:
    """Threads x time to completion, by threads: where the line rises, threads are in each other's way.

    Threads beyond the CPUs have none of their own and do not count; time is that of an operation.
    """
    found = families(results)
    if not found:
        return ""
    rate = Figure("ops_per_second", "", "", more_is_better=True)
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    size = (3.7 * columns, 2.3 * rows + 0.6)
    canvas, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, family in zip(axes.flat, found, strict=False):
        for name in results.allocators:
            points = [
                (case.threads, 1e9 * min(case.threads, cpus) / interval.value)
                for case in family
                if (interval := results.median(case, rate, name)) is not None
            ]
            if points:
                tint = color(results, name)
                axis.plot(*zip(*points, strict=True), marker=marker(results, name), color=tint, markersize=4)
        axis.set(xscale="log", yscale="log", xlabel="threads", ylabel="CPUs x ns an operation")
        axis.set_xticks([case.threads for case in family], [str(case.threads) for case in family])
        axis.xaxis.minorticks_off()
        plain_ticks(axis.yaxis)
        axis.set_title(family_name(family), fontsize=9, loc="left")
    for axis in list(axes.flat)[len(found) :]:
        axis.set_visible(False)
    legend(canvas, results)
    return svg(canvas, "work by number of threads")


def family_name(family: list[Case]) -> str:
    """What the names of the cases have in common, but for the numbers of threads."""
    first, second = (re.sub(r" \d+\+\d+,?|,? \d+( threads?)?\b(?! B)", "", case.name) for case in family[:2])
    return first if first == second else family[0].program


def time_memory(results: Results, case: Case) -> str:
    """Work done in a second against peak memory: the upper left corner is best."""
    fast, small = time_figure(case), memory_figure(case)
    if fast is None or len(results.allocators) < 2:
        return ""
    canvas, axis = plt.subplots(figsize=(4.7, 2.8), layout="constrained")
    xs, ys = [], []
    for name in results.allocators:
        x, y = results.median(case, small, name), results.median(case, fast, name)
        if x is None or y is None:
            continue
        tint = color(results, name)
        axis.plot([x.low, x.high], [y.value] * 2, color=tint, alpha=0.6)
        axis.plot([x.value] * 2, [y.low, y.high], color=tint, alpha=0.6)
        axis.plot([x.value], [y.value], marker(results, name), color=tint, markersize=7)
        xs += [x.value, x.high]
        ys += [y.value, y.high]
    if len(xs) < 4:  # one point compares nothing
        plt.close(canvas)
        return ""
    scale_axis(axis.xaxis, xs)
    scale_axis(axis.yaxis, ys)
    axis.set_xlabel(f"{small.label}, {small.unit}")
    axis.set_ylabel(f"{fast.label}, {fast.unit}{'' if fast.more_is_better else ' (less is better)'}")
    legend(canvas, results)
    return svg(canvas, f"{case.name}: {fast.label} against {small.label}")


def numbers_of(results: Results, case: Case, allocator: str) -> list[dict]:
    return [s.values for s in results.of(case, allocator) if not s.problem]


def middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def latencies(results: Results, case: Case) -> list[str]:
    """For each kind of call of which a program reports two percentiles or more: time by percentile."""
    found: dict[str, dict[str, dict[float, float]]] = {}
    for name in results.allocators:
        runs = numbers_of(results, case, name)
        for key in runs[0] if runs else []:
            if match := PERCENTILE.match(key):
                percent = float(match[2].replace("_", "."))
                value = middle([run[key] for run in runs if key in run])
                found.setdefault(match[1], {}).setdefault(name, {})[percent] = value
    return [
        latency(results, case, call, curves)
        for call, curves in found.items()
        if max(len(curve) for curve in curves.values()) > 1
    ]


def latency(results: Results, case: Case, call: str, curves: dict[str, dict[float, float]]) -> str:
    canvas, axis = plt.subplots(figsize=(4.7, 3.6), layout="constrained")
    percents = sorted({p for curve in curves.values() for p in curve})
    for name, curve in curves.items():
        points = [(100 / (100 - p), ns / 1000) for p, ns in sorted(curve.items()) if p < 100 and ns > 0]
        axis.plot(*zip(*points, strict=True), marker=marker(results, name), color=color(results, name), markersize=4)
    axis.set(xscale="log", yscale="log", xlabel="percentile", ylabel=f"{call}, us")
    plain_ticks(axis.yaxis)
    axis.set_xticks([100 / (100 - p) for p in percents if p < 100], [f"{p:g} %" for p in percents if p < 100])
    axis.xaxis.minorticks_off()
    legend(canvas, results)
    return svg(canvas, f"{case.name}: latency of {call} by percentile")


def stages_of(values: dict) -> list[tuple[str | float, float]]:
    """Memory over time, as a program reports it: `stages`, pairs of a name and bytes, or by seconds after the work."""
    if isinstance(values.get("stages"), list):
        return [(str(name), float(size) / 2**20) for name, size in values["stages"]]
    matches = [(match, float(value)) for key, value in values.items() if (match := STAGE.match(key))]
    return sorted((int(m[1]) / (1000 if m[2] == "ms" else 1), value) for m, value in matches)


def stages(results: Results, case: Case) -> str:
    curves = {}
    for name in results.allocators:
        runs = [stages_of(values) for values in numbers_of(results, case, name)]
        runs = [run for run in runs if len(run) > 1]
        if runs:
            places = [place for place, _ in runs[0]]
            curves[name] = [(place, middle([run[i][1] for run in runs])) for i, place in enumerate(places)]
    if not curves:
        return ""
    canvas, axis = plt.subplots(figsize=(4.7, 2.8), layout="constrained")
    for name, curve in curves.items():
        axis.plot(*zip(*curve, strict=True), marker=marker(results, name), color=color(results, name), markersize=5)
    axis.set_ylim(bottom=0)
    if isinstance(next(iter(curves.values()))[0][0], str):
        axis.set_ylabel("resident, MiB")
    else:
        axis.set(xlabel="seconds after the work", ylabel="resident, % of what was freed")
    legend(canvas, results)
    return svg(canvas, f"{case.name}: memory over time")


def plots_of(results: Results, case: Case) -> list[str]:
    found = [dots(results, case), time_memory(results, case), *latencies(results, case), stages(results, case)]
    return [plot for plot in found if plot]
