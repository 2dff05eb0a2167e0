"""Tables and the picture of bench/scaling.py, from its JSON lines."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import html_plots
import matplotlib.pyplot as plt
import scaling_model as model
from matplotlib.figure import Figure as Canvas
from records import first_line
from scaling_counts import WORKLOADS, Workload

CORES = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256]
NOT_LINES = {
    "section",
    "section busy",
    "hints",
    "occupancy",
    "residency",
    "fields",
    "metadata",
}  # many lines each, or own ones
LEAST = 1e-5  # visits an operation below which a line is not looked at


@dataclass
class Data:
    """The lines of one file of results, by kind."""

    costs: dict
    counts: dict[tuple[str, int], dict]  # by workload and threads
    runs: dict[tuple[str, int], list[dict]]

    @classmethod
    def of(cls, lines: list[dict]) -> Data:
        data = cls({}, {}, {})
        for line in lines:
            if line["kind"] == "costs":
                data.costs = line
            elif line["kind"] == "counts":
                data.counts[line["workload"], line["threads"]] = line
            elif line["kind"] == "run":
                data.runs.setdefault((line["workload"], line["threads"]), []).append(line)
        return data

    def threads(self, workload: Workload) -> list[int]:
        return sorted(threads for name, threads in self.counts if name == workload.name)

    def here(self) -> model.Machine:
        return model.Machine("this machine", self.costs["pass_ns"])

    def cost(self, workload: Workload, threads: int) -> float:
        """Processor time of an operation in nanoseconds, as measured here."""
        return statistics.median(run["cpu_ns"] for run in self.runs[workload.name, threads])


def total(places: dict[str, dict], what: str = "all", only: set[str] | None = None) -> float:
    return sum(counts[what] for place, counts in places.items() if only is None or place in only)


def hot_lines(count: dict) -> dict[str, float]:
    """Visits an operation, by line, of those that all threads share."""
    lines = {
        place: counts["all"]
        for place, counts in count["places"].items()
        if place not in NOT_LINES and counts["all"] > LEAST
    }
    if count["hottest"] > LEAST:
        lines["the hottest line of hints and occupancy"] = count["hottest"]
    return lines


def spread(count: dict) -> float:
    """Passes an operation of lines of the metadata, each of which few threads visit."""
    shared = total(count["shared"], only=NOT_LINES - {"section", "section busy"})
    return max(0.0, shared - count["hottest"])


def entries(count: dict) -> float:
    """Entries an operation to the CPU's own cache: slow calls."""
    return total(count["places"], only={"section"})


def load(data: Data, workload: Workload, threads: int, machine: model.Machine) -> model.Load:
    """What an operation costs where `threads` cores run: measured with as few threads as there can be, then counted.

    An operation that enters its CPU's cache more often, or needs more of spread lines, works longer.
    """
    least = data.threads(workload)[0]
    few, count, here = data.counts[workload.name, least], data.counts[workload.name, threads], data.here()
    shared_here = (sum(hot_lines(few).values()) + spread(few)) * here.pass_ns if least > 1 else 0
    work = max(0.1, data.cost(workload, least) - shared_here)
    work += data.costs["entry_ns"] * max(0.0, entries(count) - entries(few)) + machine.pass_ns * spread(count)
    return model.Load(work, tuple(visits * machine.pass_ns for visits in hot_lines(count).values()))


def nearest(data: Data, workload: Workload, cores: int) -> int:
    """The counted number of threads for a number of cores: the next above, or the largest."""
    counted = data.threads(workload)
    return next((threads for threads in counted if threads >= cores), counted[-1])


def predicted(data: Data, workload: Workload, cores: int, machine: model.Machine) -> float:
    """Million operations in a second."""
    return 1e3 * model.throughput(load(data, workload, nearest(data, workload, cores), machine), cores)


def saturated(data: Data, workload: Workload, machine: model.Machine) -> tuple[str, float]:
    """The hottest line by the counts of the most threads, and the number of cores that keep it busy."""
    threads = data.threads(workload)[-1]
    lines = hot_lines(data.counts[workload.name, threads])
    if not lines:
        return "none", float("inf")
    return max(lines, key=lambda line: lines[line]), model.saturation(load(data, workload, threads, machine))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1e-5 else "0"


def per_mille(value: float) -> str:
    """Of small numbers an operation: how many for 1000 operations."""
    return f"{1000 * max(value, 0):.2f}"


def counts_table(data: Data, workload: Workload) -> str:
    head = ["threads", "read-modify-writes", "on shared lines", "CPU cache", "busy", "depot: gives", "takes", "failed"]
    head += ["occupancy: takes", "gives", "hints", "hottest line"]
    rows = []
    for threads in data.threads(workload):
        count = data.counts[workload.name, threads]
        places = count["places"]
        depots = {place for place in places if place.startswith("depot")}
        lines = hot_lines(count)
        hottest = max(lines, key=lambda line: lines[line], default="")
        values = [
            total(places),
            sum(lines.values()) + spread(count),
            total(places, only={"section"}),
            total(places, only={"section busy"}),
            total(places, "gave", depots),
            total(places, "took", depots),
            total(places, "failed"),
            total(places, "took", {"occupancy"}),
            total(places, "gave", {"occupancy"}),
            total(places, only={"hints"}),
        ]
        hot = f"{hottest}: {per_mille(lines[hottest])}" if lines else "none"
        rows.append([str(threads), *map(per_mille, values), hot])
    return table(head, rows)


def runs_table(data: Data) -> str:
    """Measured here beside what the model says of two cores with as many threads."""
    rows = []
    for workload in WORKLOADS:
        for threads in sorted(t for name, t in data.runs if name == workload.name):
            if (workload.name, threads) not in data.counts:
                continue
            cost = data.cost(workload, threads)
            speed = statistics.median(run["ops_per_second"] for run in data.runs[workload.name, threads]) / 1e6
            cores = min(threads, data.costs["cores"])
            guess = 1e3 * model.throughput(load(data, workload, threads, data.here()), cores)
            paid = 1e3 * cores / cost
            row = [workload.name, str(threads), number(speed), number(paid), number(guess)]
            rows.append([*row, f"{(guess / paid - 1) * 100:+.0f} %"])
    head = ["workload", "threads", "measured, million/s", "by processor time", "predicted", "off"]
    return table(head, rows)


def prediction_table(data: Data) -> str:
    head = ["workload", "machine", *(str(c) for c in CORES), "hottest line", "busy from"]
    rows = []
    for workload in WORKLOADS:
        for machine in machines(data):
            line, cores = saturated(data, workload, machine)
            speeds = [number(predicted(data, workload, c, machine)) for c in CORES]
            rows.append([workload.name, machine.name, *speeds, line, f"{cores:.0f} cores"])
    return table(head, rows)


def machines(data: Data) -> list[model.Machine]:
    two_sockets = model.FIGURE_5[-1]
    worst = two_sockets.machine(alone=True)
    return [
        model.Machine(f"passes of {data.here().pass_ns:.0f} ns, as here", data.here().pass_ns),
        model.Machine(f"of {two_sockets.machine().pass_ns:.0f} ns, {two_sockets.name}", two_sockets.machine().pass_ns),
        model.Machine(f"of {worst.pass_ns:.0f} ns, the same at worst", worst.pass_ns),
    ]


def documents_table() -> str:
    """The model beside what the SuperMalloc paper and slides state."""
    rows = []
    for contention, stated in ((model.FIGURE_5[1], 1e3 / 340.8), (model.FIGURE_5[2], 3.7)):
        low, high = (1e3 * model.one_lock(contention, alone=alone) for alone in (True, False))
        what = f"{contention.name}: one lock (DLmalloc), million/s"
        rows.append([what, number(stated), f"{number(low)} to {number(high)}"])
    hashed = number(model.hashed_caches(model.FIGURE_5[2]))
    rows.append(["E5-2665: a visit of caches chosen by hash, ns", "212", hashed])
    rows.append(
        ["E5-2665: SuperMalloc's global list of 64 bytes is busy from", "not at 16 cores", f"{own_list():.0f} cores"]
    )
    ratio = (2 * 16 * 2.4) / (2 * 4 * 3.4)
    rows.append(["SuperMalloc, greatest speed of E5-2665 by that of i7-4770", number(132 / 94), number(ratio)])
    return table(["what", "stated", "model"], rows)


def own_list() -> float:
    """SuperMalloc's global cache moves lists of 1 MiB; its speed on 16 cores was 132 million operations a second."""
    demand = 2 * 64 / 2**20 * model.FIGURE_5[2].machine(alone=True).pass_ns
    return model.saturation(model.Load(16 / 132e6 * 1e9 - demand, (demand,)))


def picture(data: Data) -> Canvas:
    figure, axes = plt.subplots(1, len(WORKLOADS), figsize=(10.5, 3.6), layout="constrained")
    cores = sorted({*range(1, 33), *range(32, 257, 8)})
    for axis, workload in zip(axes, WORKLOADS, strict=True):
        for machine, tint in zip(machines(data), html_plots.COLORS, strict=False):
            speeds = [predicted(data, workload, c, machine) for c in cores]
            axis.plot(cores, speeds, color=tint, label=machine.name)
            most = max(load(data, workload, data.threads(workload)[-1], machine).demands, default=0)
            if most and 1e3 / most < 1.5 * max(speeds):
                axis.axhline(1e3 / most, color=tint, linestyle=":", linewidth=1)
        limit = predicted(data, workload, 1, machines(data)[0])
        axis.plot(cores, [c * limit for c in cores], color="0.6", linestyle="--", linewidth=1, label="no line shared")
        measured = [t for name, t in data.runs if name == workload.name and t <= data.costs["cores"]]
        axis.plot(
            measured, [1e3 * t / data.cost(workload, t) for t in measured], "o", color="0.3", label="measured here"
        )
        axis.set(xscale="log", yscale="log", title=workload.name, xlabel="cores")
        axis.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
        axis.minorticks_off()
    axes[0].set_ylabel("million operations a second")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def svg(data: Data) -> str:
    return html_plots.svg(picture(data), "predicted operations a second by the number of cores")


def markdown(data: Data) -> str:
    machine = data.costs.get("machine", {})
    costs = ", ".join(f"{key.removesuffix('_ns').replace('_', ' ')} {data.costs[key]:.1f} ns" for key in COSTS)
    parts = [f"{machine.get('cpu', first_line('/proc/cpuinfo'))}, {data.costs['cores']} cores: {costs}.\n"]
    for workload in WORKLOADS:
        if data.threads(workload):
            parts += [f"## {workload.name}, for 1000 operations\n", counts_table(data, workload)]
    parts += ["## Predicted, million operations a second\n", prediction_table(data)]
    parts += ["## Measured here, and predicted for as many cores\n", runs_table(data)]
    parts += ["## Beside the documents\n", documents_table()]
    return "\n".join(parts)


COSTS = ["rmw_ns", "section_ns", "rmw_two_cores_ns", "pass_ns", "stack_ns", "stack_two_cores_ns", "entry_ns"]
