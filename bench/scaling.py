#!/usr/bin/env python3
"""Counts what threads meet on, and predicts the speed on up to 256 cores. docs/scaling.md says how.

Three parts: counted runs with 1 to 128 threads (libfolio-count.so, each thread with a CPU of its own); what a
read-modify-write and the pass of a line cost on this machine; timed runs of libfolio.so, which give the work of an
operation, and something to hold the model against. All of it goes into JSON lines; tables and picture come from them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

import argparse
import json
import os
import time
from dataclasses import asdict

import scaling_report as report
from measure import (
    CXX_FLAGS,
    PROGRAMS,
    ROOT,
    Allocator,
    BenchError,
    add_places,
    build_launcher,
    build_program,
    compile_to,
    compiler,
    end_with,
    is_stale,
    launch,
    make_folder,
    serves,
)
from records import machine
from rich.console import Console
from rich.progress import track
from scaling_counts import PAIR_OF_BATCHES, WORKLOADS, Counts, Workload, build_library, check, count

THREADS = [1, 2, 4, 8, 16, 32, 64, 128]
COUNTED_OPS, TIMED_OPS = 20_000_000, 30_000_000
QUICK_OPS = 500_000
LINE_COSTS = ROOT / "bench" / "line_costs.cc"

console = Console(stderr=True, highlight=False)


def as_dict(places: dict[str, Counts]) -> dict:
    return {place: {**asdict(counts), "all": counts.all} for place, counts in places.items() if counts.all > 0}


def count_line(library: Path, launcher: Path, build: Path, workload: Workload, threads: int, ops: int) -> dict:
    tally = count(launcher, library, build_program(workload.program, build), workload, threads, ops)
    places, shared = as_dict(tally.places), as_dict(tally.shared)
    return {
        **{"kind": "counts", "workload": workload.name, "threads": threads, "ops": ops},
        **{"places": places, "shared": shared, "hottest": tally.hottest},
    }


def run_line(
    library: Path, launcher: Path, build: Path, workload: Workload, threads: int, ops: int, options: str = ""
) -> dict:
    command = [str(build_program(workload.program, build)), *workload.command(threads, ops)]
    allocator = Allocator("folio", library, (("FOLIO_OPTIONS", options),))
    run = launch(launcher, allocator, command, timeout=120)
    check(run, command)
    said = json.loads(run.stdout)
    if not serves(allocator, said["malloc"]):
        raise BenchError(f"{command[0]} has its malloc from {said['malloc']}")
    # What ran, rounded up to whole batches.
    done = said["ops_per_second"] * said["seconds"]
    cpu_ns = (run.usage["user"] + run.usage["sys"]) * 1e9 / done
    return {
        **{"kind": "run", "workload": workload.name, "threads": threads, "ops_per_second": said["ops_per_second"]},
        **{"cpu_ns": cpu_ns, "load": os.getloadavg()[0]},
    }


def entry_ns(counting: Path, library: Path, launcher: Path, build: Path, ops: int) -> float:
    """What a call costs that enters the CPU cache: the same work with and without thread caches."""
    workload, threads = WORKLOADS[-1], 1
    entries, times = [], []
    for options in ("", "thread_cache:0,thread_cache_pool:0"):
        program = build_program(workload.program, build)
        tally = count(launcher, counting, program, workload, threads, ops // 4, options)
        entries.append(tally.places["section"].all)
        runs = [run_line(library, launcher, build, workload, threads, ops, options)["cpu_ns"] for _ in range(3)]
        times.append(min(runs))
    return max(0.0, times[1] - times[0]) / max(1e-9, entries[1] - entries[0])


def costs_line(counting: Path, library: Path, launcher: Path, build: Path, quick: bool) -> dict:
    program = build / "line_costs"
    if is_stale(program, [LINE_COSTS, *PROGRAMS.glob("*.h"), *(ROOT / "src" / "sync").glob("*.h")]):
        include = [f"-I{ROOT / 'bench'}", f"-I{ROOT / 'src'}"]
        compile_to(program, [compiler("c++"), *CXX_FLAGS, *include, str(LINE_COSTS)])
    command = [str(program), *(["limit=200"] if quick else [])]
    run = launch(launcher, Allocator("glibc", None), command, timeout=120)
    check(run, command)
    said = json.loads(run.stdout)
    costs = {name: said[name] for name in report.COSTS if name in said}
    costs["entry_ns"] = entry_ns(counting, library, launcher, build, QUICK_OPS if quick else 8_000_000)
    if not all(costs.values()):
        raise BenchError("the machine is too busy: never did two threads run together for 0.2 ms")
    return {"kind": "costs", **costs, "cores": machine()["cores"], "machine": machine()}


def plan(arguments: argparse.Namespace) -> list[tuple[str, Workload, int]]:
    counts = [("count", w, t) for w in WORKLOADS for t in arguments.threads if t >= w.threads_each]
    rounds = 1 if arguments.quick else arguments.rounds
    runs = [("run", w, t) for _ in range(rounds) for _, w, t in counts if t <= 64]
    return counts + runs


def measure_all(arguments: argparse.Namespace, file: Path) -> list[dict]:
    launcher = build_launcher(arguments.build)
    counting = build_library(arguments.lib.parent)
    if not arguments.lib.is_file():
        raise BenchError(f"no {arguments.lib}: make build")
    lines = [costs_line(counting, arguments.lib.resolve(), launcher, arguments.build, arguments.quick)]
    for what, workload, threads in track(plan(arguments), "counting and timing", console=console):
        least = threads * PAIR_OF_BATCHES if workload.program == "malloc_test" else 0
        ops = QUICK_OPS if arguments.quick else COUNTED_OPS if what == "count" else TIMED_OPS
        step = count_line if what == "count" else run_line
        library = counting if what == "count" else arguments.lib.resolve()
        lines.append(step(library, launcher, arguments.build, workload, threads, max(ops, least)))
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def read_lines(file: Path) -> list[dict]:
    try:
        return [json.loads(line) for line in file.read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise BenchError(f"cannot read {file}: {error}") from None


def html(text: str, picture: str) -> str:
    style = "body{font:14px sans-serif;max-width:1100px;margin:2em auto;color-scheme:light dark}pre{overflow-x:auto}"
    return (
        f'<!doctype html><meta charset="utf-8"><title>Scaling</title><style>{style}</style>{picture}<pre>{text}</pre>'
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS, metavar="N", help="in all, to count with")
    parser.add_argument("--quick", action="store_true", help="few operations: checks that all runs, measures little")
    add_places(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results go (default: results/ in --build)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="timed runs of each (default 7)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="run nothing, report this JSON-lines file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the picture there, on white")
    arguments = parser.parse_args()
    make_folder(arguments.build)
    out = arguments.out or arguments.build / "results"
    make_folder(out)
    file = arguments.report or out / time.strftime("scaling-%Y%m%d-%H%M%S.jsonl")
    data = report.Data.of(read_lines(file) if arguments.report else measure_all(arguments, file))
    text = report.markdown(data)
    file.with_suffix(".md").write_text(text)
    file.with_suffix(".html").write_text(html(text, report.svg(data)))
    if arguments.picture:
        report.picture(data).savefig(arguments.picture, metadata={"Date": None})
    print(text)
    print(f"next: {file.with_suffix('.html')}  (the same with the picture); docs/scaling.md says what it means")
    return 0


if __name__ == "__main__":
    end_with(main, "bench/scaling.py")
