"""`folio metrics`: the parts of doctor as OpenMetrics, printed, to a file, or served to Prometheus.

Processes are found anew at each look, so nothing is kept of one that ended: it has folio_up 0 and no other figure.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest

from folio import output
from folio.errors import FolioError, NewProgram, NotOnFolio, ProcessGone
from folio.finding import Others, Wanted
from folio.library import version_in
from folio.limit import held_by, limits_of
from folio.parts import BinParts, Parts, RunParts, explain_well
from folio.process import Process
from folio.reader import Reader, of_new_program

SHIPPED = Path(__file__).with_name("monitoring")
PROCESS = ("pid", "process")
BIN = (*PROCESS, "bin", "size")


class Families:
    """Of one look at all processes."""

    def __init__(self) -> None:
        def in_bytes(name: str, help: str, labels: tuple[str, ...] = PROCESS) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, help, labels=labels, unit="bytes")

        self.up = GaugeMetricFamily("folio_up", "1 if the process could be read, else 0.", labels=PROCESS)
        self.found = GaugeMetricFamily(
            "folio_found_processes", "Processes on Folio that were found, by name or cgroup.", labels=("by", "what")
        )
        # A gauge, not an info: node_exporter refuses files with types that only OpenMetrics has.
        self.library = GaugeMetricFamily(
            "folio_library_info", "The library that serves it; always 1.", labels=(*PROCESS, "version", "path")
        )
        self.resident = in_bytes(
            "folio_resident_bytes", "Resident memory by part; the parts sum to it.", (*PROCESS, "part")
        )
        self.bins = in_bytes("folio_bin_resident_bytes", "Of these parts, what each bin holds.", (*BIN, "part"))
        self.objects = GaugeMetricFamily("folio_live_objects", "Objects that the program holds.", labels=BIN)
        self.threads = GaugeMetricFamily("folio_thread_caches", "Thread caches, also waiting ones.", labels=PROCESS)
        self.swapped = in_bytes("folio_swapped_bytes", "Swapped out, of the whole process.")
        self.reserved = in_bytes("folio_reserved_bytes", "Address space reserved for objects.")
        self.purged = CounterMetricFamily(
            "folio_purged_bytes_total", "Given back to the kernel since the start.", labels=PROCESS, unit="bytes"
        )
        self.purges = CounterMetricFamily("folio_purges_total", "Calls that gave memory back.", labels=PROCESS)
        self.held = in_bytes(
            "folio_held_bytes", "What the limits are about: free and cached pages, huge objects, metadata."
        )
        self.limits = in_bytes(
            "folio_limit_bytes", "The limits in force; none where there is none.", (*PROCESS, "limit")
        )
        self.left = in_bytes("folio_limit_left_bytes", "How far they are; below 0: exceeded.", (*PROCESS, "limit"))
        self.level = GaugeMetricFamily(
            "folio_limit_level",
            "Rung of the ladder: 0 calm, 1 near, 2 tight, 3 soft limit, 4 hard limit or its reserve.",
            labels=PROCESS,
        )
        self.refused = CounterMetricFamily(
            "folio_limit_refused_total", "Requests that got no memory while there were limits.", labels=PROCESS
        )
        self.huge_pages = GaugeMetricFamily(
            "folio_huge_pages",
            "Huge pages under chunks of small objects, by the share that is in use.",
            labels=(*PROCESS, "in_use"),
        )
        self.huge_pages_free = in_bytes(
            "folio_huge_pages_free_bytes", "Of those, pages that no object touches: what huge pages cost."
        )
        self.entries_saved = GaugeMetricFamily(
            "folio_huge_pages_entries_saved", "Page-table entries that all huge pages of the heap save.", labels=PROCESS
        )
        self.dense = GaugeMetricFamily(
            "folio_dense_clusters", "Clusters of small pages that are dense enough for a huge page.", labels=PROCESS
        )
        self.error = in_bytes("folio_error_bound_bytes", "How far a part may be off, for what moved meanwhile.")
        self.seconds = GaugeMetricFamily(
            "folio_read_seconds", "How long it took to read the process.", labels=PROCESS, unit="seconds"
        )

    def all(self) -> list[Metric]:
        return list(vars(self).values())

    def add(self, labels: list[str], reader: Reader, parts: Parts) -> None:
        path = reader.layout.library.path
        self.library.add_metric([*labels, version_in(path), path], 1)
        for part, value in (parts.values() | {"unexplained": parts.unexplained}).items():
            self.resident.add_metric([*labels, part], value)
        for bin_ in parts.bins:
            self.add_bin([*labels, str(bin_.number), str(bin_.size)], bin_.live_objects, parts_of_bin(bin_))
        for name, runs in (("large", parts.large), ("huge", parts.huge), ("guarded", parts.guarded)):
            self.add_bin([*labels, name, ""], runs.objects, parts_of_runs(runs))
        self.threads.add_metric(labels, parts.threads)
        self.swapped.add_metric(labels, parts.swapped)
        self.reserved.add_metric(labels, parts.reserved)
        self.purged.add_metric(labels, reader.counter("purged"))
        self.purges.add_metric(labels, reader.counter("purge_calls"))
        self.add_limits(labels, reader)
        if parts.huge_pages.known:
            for in_use, count in parts.huge_pages.by_density.items():
                self.huge_pages.add_metric([*labels, in_use], count)
            self.huge_pages_free.add_metric(labels, parts.huge_pages.free)
            self.entries_saved.add_metric(labels, parts.huge_pages.entries_saved)
            self.dense.add_metric(labels, parts.huge_pages.dense)
        self.error.add_metric(labels, parts.moved)
        self.seconds.add_metric(labels, parts.seconds)

    def add_limits(self, labels: list[str], reader: Reader) -> None:
        limits, held = limits_of(reader), held_by(reader, reader.view())
        self.held.add_metric(labels, held)
        for name, limit in (("soft", limits.soft), ("hard", limits.hard)):
            if limit:
                self.limits.add_metric([*labels, name], limit)
                self.left.add_metric([*labels, name], limit - held)
        self.level.add_metric(labels, max(limits.level, limits.pressure))
        self.refused.add_metric(labels, limits.refused)

    def add_bin(self, labels: list[str], objects: int, values: dict[str, int]) -> None:
        self.objects.add_metric(labels, objects)
        for part, value in values.items():
            self.bins.add_metric([*labels, part], value)


def parts_of_bin(bin_: BinParts) -> dict[str, int]:
    """By the names of Parts.values()."""
    cached = {"cached_threads": "thread", "cached_cpus": "cpu", "cached_depot": "depot"}
    values = {"live": bin_.live} | {part: bin_.cached[place] for part, place in cached.items()}
    return values | {"fragmented": bin_.fragmented, "dirty": bin_.dirty, "padding": bin_.padding}


def parts_of_runs(runs: RunParts) -> dict[str, int]:
    return {
        "live": runs.live,
        "cached_threads": runs.cached_by_threads,
        "cached_cpus": runs.cached - runs.cached_by_threads,
        "dirty": runs.dirty,
        "padding": runs.padding,
    }


class Collector:
    """Looks at the processes each time it is asked, and for those that are wanted by name or cgroup."""

    def __init__(self, wanted: Wanted, *, tells: bool = False) -> None:
        """`tells`: on stderr which processes are new or gone."""
        self.wanted = wanted
        self.tells = tells
        self.names = dict.fromkeys(wanted.pids, "")  # of those that ended the last one known
        self.started: dict[int, str] = {}  # of those given by number: another one may get the number later
        self.others = Others()
        self.found: dict[int, str] | None = None  # by name or cgroup at the last look, those on Folio: their names
        self.failures: dict[int, FolioError] = {}  # of the last look
        self.lock = threading.Lock()  # each request to the server is a thread

    def collect(self) -> Iterator[Metric]:
        families = Families()
        with self.lock:
            self.failures = {}
            for pid in self.names:
                try:
                    self.names[pid] = self.add(families, pid)
                except FolioError as error:
                    self.failures[pid] = error
                families.up.add_metric([str(pid), self.names[pid]], 0 if pid in self.failures else 1)
            if self.wanted.looks_up:
                self.look_up(families)
        yield from families.all()

    def look_up(self, families: Families) -> None:
        by_wish = self.wanted.found()
        pids = sorted({pid for found in by_wish.values() for pid in found} - self.names.keys())
        self.others.keep(pids)
        found: dict[int, str] = {}
        for pid in pids:
            name = self.add_found(families, pid)
            if name is not None:
                found[pid] = name
        for (by, what), all_of_it in by_wish.items():
            count = sum(pid in found or pid in self.names for pid in all_of_it)
            families.found.add_metric([by, what], count)
        if self.tells and self.found is not None:
            for pid in found.keys() - self.found.keys():
                output.note(f"new: process {pid} ({found[pid]})")
            for pid in self.found.keys() - found.keys():
                output.note(f"gone: process {pid} ({self.found[pid]})")
        self.found = found

    def add_found(self, families: Families, pid: int) -> str | None:
        """Its name; None where it has ended or is not on Folio, which nobody has said it were."""
        try:
            process = Process(pid)
            if self.others.has(process):
                return None
            name = process.text("comm").strip()
        except FolioError:
            return None
        try:
            name = self.add(families, pid)
        except NotOnFolio:
            self.others.add(process)
            return None
        except ProcessGone:
            return None
        except FolioError as error:
            self.failures[pid] = error
        families.up.add_metric([str(pid), name], 0 if pid in self.failures else 1)
        return name

    def add(self, families: Families, pid: int) -> str:
        """All figures of a process, or none where it raises FolioError. Returns its name."""
        try:
            one, name = self.read(Reader(pid))
        except NewProgram:
            one, name = self.read(of_new_program(pid))
        for family, its in zip(families.all(), one.all(), strict=True):
            family.samples += its.samples
        return name

    def read(self, reader: Reader) -> tuple[Families, str]:
        process = reader.process
        name = process.text("comm").strip()
        if process.pid in self.names and self.started.setdefault(process.pid, process.image[0]) != process.image[0]:
            raise FolioError(f"process {process.pid} is another one now: the one that was asked for has ended")
        one = Families()
        one.add([str(process.pid), name], reader, explain_well(reader))
        return one, name

    @property
    def count(self) -> int:
        return len(self.names) + len(self.found or {})

    def status(self) -> int:
        """Of the last look: 0, all were read; 1, some; 2, none."""
        if self.count == 0:
            return 2
        return 0 if not self.failures else 1 if len(self.failures) < self.count else 2

    def complain(self) -> None:
        for error in self.failures.values():
            output.note(f"folio metrics: {error}")
        if self.count == 0:
            output.note(f"folio metrics: no process on Folio {self.wanted}; `pgrep -a NAME` finds processes by name")


def write_whole(path: Path, text: bytes) -> None:
    """Who reads the file meanwhile sees the old one or the new one, and need not be its owner."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise FolioError(f"--textfile {path}: {error.strerror}; name a file in a folder that can be written") from None


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT, or PORT alone: on loopback."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise FolioError(f"--listen {text}: write HOST:PORT, for example 127.0.0.1:9399")
    return host.strip("[]") or "127.0.0.1", int(port)


def serve(registry: CollectorRegistry, collector: Collector, listen: str) -> None:
    """Until Ctrl-C or a signal."""
    host, port = parse_listen(listen)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise FolioError(f"--listen {listen}: {error.strerror}; choose another address or port") from None
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{server.server_port}/metrics"
    processes = "1 process" if collector.count == 1 else f"{collector.count} processes"
    later = ", and those that come later," if collector.wanted.looks_up else ""
    output.note(f"serves {processes}{later} at {url}; Ctrl-C ends")
    output.note(f"next: curl -H 'Accept: application/openmetrics-text' {url}")
    thread.join()


def as_dict(family: Metric) -> dict[str, Any]:
    samples = [{"labels": sample.labels, "value": sample.value} for sample in family.samples]
    return {"type": family.type, "help": family.documentation, "unit": family.unit, "samples": samples}


def metrics(wanted: Wanted, listen: str | None, textfile: Path | None, json: bool) -> int:
    if sum(map(bool, (listen, textfile, json))) > 1:
        raise FolioError("--listen, --textfile and --json: one of them")
    if textfile and textfile.suffix != ".prom":
        raise FolioError(f"--textfile {textfile}: node_exporter reads only files whose names end in .prom")
    wanted.check()
    collector = Collector(wanted, tells=listen is not None)
    registry = CollectorRegistry()
    registry.register(collector)
    found = list(registry.collect()) if json else []
    text = b"" if json else generate_latest(registry)
    collector.complain()
    if textfile:
        write_whole(textfile, text)
    elif listen and (wanted.looks_up or collector.status() != 2):
        serve(registry, collector, listen)
    elif collector.status() == 2:
        return 2
    elif json:
        output.as_json({"version": 1, "metrics": {family.name: as_dict(family) for family in found}})
    else:
        sys.stdout.write(text.decode())
        if output.messages.is_terminal and sys.stdout.isatty():  # else they are for a machine
            output.note("next: the same with --listen 127.0.0.1:9399  (for Prometheus)")
    return collector.status()


def show_shipped(name: str) -> int:
    sys.stdout.write((SHIPPED / name).read_text())
    return 0
