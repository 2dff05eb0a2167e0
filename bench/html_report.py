"""The HTML report: one file without outside resources, readable in light and in dark."""

from __future__ import annotations

from pathlib import Path

import goals
import html_complexity
import html_plots
import jinja2
from cases import Case
from markupsafe import Markup
from records import WARM_UP, Record
from report import (
    OWN,
    Results,
    counts_table,
    means_table,
    number,
    shares_lines,
    standings_table,
    startup_difference,
    table,
)

# Read now: a report comes after a long run, during which the file may change and this code does not.
TEMPLATE = (Path(__file__).resolve().parent / "html_report.html.j2").read_text()


def rows_of(markdown_table: str) -> list[list[str]]:
    """A table of report.py as cells: the head first."""
    lines = markdown_table.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def by_allocator(rows: list[list[str]], names: int) -> list[list[str]]:
    """A row an allocator, a column a figure, whose names are in that column: so the table fits on a page."""
    turned = [list(column) for column in zip(*rows, strict=True)][names:]
    turned[0][0] = ""
    return turned


def libraries(records: list[Record]) -> dict[str, dict]:
    return {r.allocator: r.library for r in records}


def machines(records: list[Record]) -> list[dict]:
    """Each machine that has runs here: usually one."""
    found: list[dict] = []
    for record in records:
        if record.machine not in found:
            found.append(record.machine)
    return found


def of_case(results: Results, case: Case) -> Results:
    """That case, and the allocators that ran it: a limit has one."""
    samples = results.of_case(case)
    return Results([case], [name for name in results.allocators if results.of(case, name)], samples)


def page(results: Results, records: list[Record]) -> str:
    compared = len(results.allocators) > 1
    overview = [html_plots.forest(results), html_plots.profile(results)] if compared else []
    sections = [
        {
            "id": f"case-{index}",
            "case": case,
            "plots": [Markup(plot) for plot in html_plots.plots_of(results, case)],
            "rows": by_allocator(rows_of(table(only)), 1),
            "counts": by_allocator(rows_of(counts_table(only, case)), 0),
        }
        for index, case in enumerate(results.cases)
        if (only := of_case(results, case))
    ]
    loads = [r.load for r in records]
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE).render(
        own=OWN,
        base=results.base,
        compared=compared,
        standing=rows_of(standings_table(results)) if compared and OWN in results.allocators else [],
        shares=[line.removeprefix("- ") for line in shares_lines(results)] if compared else [],
        means=rows_of(means_table(results)) if compared else [],
        goals=rows_of(goals.table(goals.goals(results))) if goals.concern(results) else [],
        work=Markup(html_plots.work_graphs(results, records[0].machine.get("cores", 1))),
        overview=[Markup(plot) for plot in overview if plot],
        sections=sections,
        startup=startup_difference(results),
        libraries=libraries(records),
        machines=machines(records),
        load=f"{number(min(loads))} to {number(max(loads))}",
        times=(min(r.time for r in records), max(r.time for r in records)),
        rounds=len({s.round for s in results.samples if not s.problem}),
        runs=len(records),
        quick=any(r.quick and r.round != WARM_UP for r in records),
        sizes=html_complexity.modules() + html_complexity.peers(),
    )
