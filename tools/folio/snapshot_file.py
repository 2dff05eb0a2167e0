"""A heap in a file, to be read later and elsewhere: what Folio knows, which pages were resident, the mappings.

The file is a zip archive, so that parts of it can be read without this tool:

    folio.json                            version of the format, whose heap, when, how far sums may be off, mappings
    starts, lengths, bytes .npy           memory: ranges of addresses, and their bytes one after the other
    page_gaps, page_counts, page_kinds    runs of pages with something in them: pages from the end of the last run to
                                          this one, pages, categories (folio.pages)

Objects' contents are not in it, but the stacks of samples are: what the program had on its stack when an object was
chosen.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from folio import __version__
from folio.core_file import CoreFile, build_id_in, file_of_build
from folio.errors import FolioError
from folio.foreign import seen_of
from folio.layout import FORM, HEAD, Layout, Library
from folio.pages import Ranges
from folio.snapshot import Memory, Snapshot
from folio.source import PAGE, Mapping, Source, StoredSource

MAGIC = b"PK\x03\x04"
VERSION = 1
ABOUT = "folio.json"
ARRAYS = {"starts": np.int64, "lengths": np.int64, "bytes": np.uint8} | dict.fromkeys(
    ("page_gaps", "page_counts", "page_kinds"), np.int64
)
KEPT_VARIABLES = ("FOLIO_OPTIONS", "PYTHONMALLOC")  # others may hold secrets, and no command asks for them
DAMAGE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, KeyError, ValueError, TypeError, IndexError, OverflowError,
    NotImplementedError, RuntimeError, MemoryError, SyntaxError, TokenError,
)  # fmt: skip


class SnapshotFile(StoredSource):
    kind = "snapshot"
    has_contents = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with zipfile.ZipFile(path) as archive:
                self.about = self._about(archive)
                arrays = {name: load(archive, name) for name in ARRAYS}
            self._take(arrays)
        except DAMAGE:
            raise FolioError(f"snapshot {path} is damaged, or cut short: copy it again, or take another one") from None
        except OSError as error:
            raise FolioError(f"snapshot {path} cannot be read: {os.strerror(error.errno or 0)}") from None

    def _about(self, archive: zipfile.ZipFile) -> dict[str, Any]:
        if ABOUT not in archive.namelist():
            raise FolioError(f"{self.path} is a zip archive, but no snapshot; `folio snapshot PID -o FILE` makes one")
        about: dict[str, Any] = json.loads(archive.read(ABOUT))
        if about["version"] != VERSION:
            raise FolioError(
                f"snapshot {self.path} has format {about['version']}, this tool reads format {VERSION}: "
                f"read it with the `folio` command that wrote it ({about['tool']})"
            )
        if about["page_bytes"] != PAGE:
            self.refuse(f"is of a machine with pages of {about['page_bytes']} bytes: read it on such a machine")
        return about

    def _take(self, arrays: dict[str, np.ndarray]) -> None:
        about = self.about
        self.pid, self.tells_pages = int(about["pid"]), bool(about["tells_pages"])
        self.moved_bytes, self.seen = int(about["moved_bytes"]), about["seen"]
        self.now_ms = about["monotonic_ms"]  # by the clock of samples; None where a core did not tell
        self.memory = Memory(list(zip(arrays["starts"].tolist(), arrays["lengths"].tolist(), strict=True)))
        self.memory.bytes[:] = arrays["bytes"]
        ends = np.cumsum(arrays["page_gaps"] + arrays["page_counts"])
        starts = ends - arrays["page_counts"]
        self._pages = Ranges(starts * PAGE, ends * PAGE, arrays["page_kinds"])
        self._mappings = [Mapping(*row) for row in about["mappings"]]
        mapped = sum(mapping.end - mapping.start for mapping in self._mappings)
        if min(arrays["page_gaps"].min(initial=0), arrays["page_counts"].min(initial=0)) < 0 or (
            self.tells_pages and float(arrays["page_counts"].sum(dtype=np.float64)) * PAGE > mapped
        ):
            raise ValueError("pages")  # what would take all the memory and time of who reads it
        self._layout = int(about["layout"]), Library(**about["library"])
        self.old_pages = bool(about["old_pages"])

    # ---- Who it is ----

    def title(self) -> str:
        if self.about["of"] == "core":
            return f"snapshot {self.path} from a core of process {self.pid}: {self.command()}"
        taken = self.about["taken"].replace("T", " ").removesuffix("+00:00") + " UTC"
        return f"snapshot {self.path}, {taken}, of process {self.pid} on {self.about['host']}: {self.command()}"

    def program(self) -> str:
        return str(self.about["program"])

    def command(self) -> str:
        return str(self.about["command"])

    def environment(self) -> dict[str, str]:
        return dict(self.about["environment"])

    def known_layout(self) -> tuple[int, Library]:
        return self._layout

    # ---- Memory ----

    def rss(self) -> int:
        return int(self.about["rss"])

    def pages(self) -> Ranges:
        return self._pages if self.tells_pages else super().pages()

    def mappings(self) -> list[Mapping]:
        return self._mappings

    def file(self, mapping: Mapping) -> Path:
        return file_of_build(mapping.path, self.about["build_ids"].get(mapping.path, ""))

    def readable(self, start: int, end: int) -> list[tuple[int, int]]:
        memory = self.memory
        first = max(int(np.searchsorted(memory.starts, start, side="right")) - 1, 0)
        last = int(np.searchsorted(memory.starts, end))
        cut = [
            (max(start, low), min(end, low + length))
            for low, length in zip(memory.start_list[first:last], memory.length_list[first:last], strict=True)
        ]
        return [(low, high - low) for low, high in cut if low < high]

    def read_into(self, buffer: np.ndarray, ranges: Sequence[tuple[int, int]]) -> None:
        to = 0
        for address, length in ranges:
            at = self.memory.offset_of(address, length)
            if at < 0 and length:
                self.must_have_contents()
            buffer[to : to + length] = self.memory.bytes[at : at + length]
            to += length

    def must_hold(self, address: int, length: int) -> None:
        if self.memory.offset_of(address, length) < 0:
            raise FolioError(f"snapshot {self.path} is damaged: it lacks metadata; take another one")

    def must_have_contents(self) -> None:
        self.refuse(
            "holds what Folio knows of the objects, not their contents: this needs the process, or a core file; "
            f"`folio bins {self.target}` and `folio pins {self.target}` tell of a snapshot what it knows by size"
        )


def load(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    array: np.ndarray = np.load(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
    if array.dtype != ARRAYS[name] or array.ndim != 1:
        raise ValueError(name)
    return array


# ---- Writing ----


def library_spans(layout: Layout) -> list[tuple[int, int]]:
    """What commands read of the library's data, beside what a Snapshot copies."""
    return [
        (layout.address, HEAD.size + FORM.size),
        (layout.bin_info, layout.codes * layout.bin_info_bytes),
        (layout.option_rows, layout.option_count * layout.option_row_bytes),
        (layout.metadata_pieces, 8),
        (layout.limit_state, layout.limit_state_bytes),
        (layout.limit_request, layout.limit_request_bytes),
        (layout.seam_mode, 4),
        (layout.seam_setting, max(layout.seam_number_offset + 4, layout.seam_until_offset + 8)),
        (layout.seam_counts, layout.seam_shards * layout.seam_counts_bytes),
        (layout.guard_interval, 8),
        (layout.sample_tables, layout.sample_tables_most * 8),
        (layout.sample_counts, 16),
    ]


def memory_of(reader: Any, snapshot: Snapshot) -> Memory:
    """All that commands read, in one."""
    source: Source = reader.process
    layout = snapshot.layout
    tables = sample_tables(source, layout)
    outside = [span for span in tables if snapshot.metadata.offset_of(*span) < 0]  # in a file (profile_file)
    spans = library_spans(layout) + reader.option_strings() + outside
    blocks = [(span, source.read_ranges([span])) for span in spans]
    blocks += [((at, len(text)), np.frombuffer(text, dtype=np.uint8)) for at, text in reader.option_paths()]
    blocks += snapshot.beside
    for of, ranges in ((snapshot.fixed, snapshot.fixed_spans), (snapshot.metadata, whole(snapshot.metadata))):
        for start, length in ranges:
            at = of.offset_of(start, length)
            blocks.append(((start, length), of.bytes[at : at + length]))
    memory = Memory(whole_words([span for span, _ in blocks]))
    for (start, length), data in blocks:  # the later of two is of the moment of the rest
        at = memory.offset_of(start, length)
        memory.bytes[at : at + length] = data
    for start, length in tables:
        leave_out_torn(source, memory, start, length // (layout.sample_bytes + layout.sample_stack_bytes), layout)
    return memory


def sample_tables(source: Source, layout: Layout) -> list[tuple[int, int]]:
    """(address, bytes) of those that there are."""
    data = source.read(layout.sample_tables, 8 * layout.sample_tables_most)
    each = layout.sample_bytes + layout.sample_stack_bytes
    starts = np.frombuffer(data, dtype=np.uint64).tolist()
    return [(start, (layout.sample_slots << k) * each) for k, start in enumerate(starts) if start]


def leave_out_torn(source: Source, memory: Memory, table: int, slots: int, layout: Layout) -> None:
    """Samples that another one has replaced since they were copied become empty: they may be half of each."""
    each = layout.sample_bytes
    at = memory.offset_of(table, slots * each)
    kept = memory.words[at // 8 : (at + slots * each) // 8 : each // 8]
    now = source.read_ranges([(table, slots * each)]).view(np.uint64)[:: each // 8]
    kept[(kept >> 2) != (now >> 2)] = 0


def whole(memory: Memory) -> list[tuple[int, int]]:
    return list(zip(memory.start_list, memory.length_list, strict=True))


def whole_words(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The words that hold the spans, as disjoint ranges."""
    merged: list[list[int]] = []
    for start, end in sorted((at // 8 * 8, -(-(at + length) // 8) * 8) for at, length in spans if length):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end - start) for start, end in merged]


def build_ids(source: Source, mappings: list[Mapping]) -> dict[str, str]:
    """Of the programs and libraries that are mapped."""
    if isinstance(source, SnapshotFile):
        return dict(source.about["build_ids"])
    paths = {mapping.path: mapping for mapping in mappings if mapping.path and set(mapping.flags) & {"x", "?"}}
    if isinstance(source, CoreFile):
        found = {path: source.build_id(path) for path in paths}
    else:
        found = {path: build_id_in(source.file(mapping)) for path, mapping in paths.items()}
    return {path: build_id for path, build_id in found.items() if build_id}


def moment(source: Source) -> dict[str, Any]:
    """When and where the process was read. A core does not tell."""
    if isinstance(source, SnapshotFile):
        return {key: source.about[key] for key in ("of", "taken", "host", "monotonic_ms")}
    if source.still:
        return {"of": source.kind, "taken": None, "host": None, "monotonic_ms": None}
    return {
        "of": source.kind,
        "taken": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "monotonic_ms": int(time.monotonic() * 1000),  # the clock of samples
    }


def about(reader: Any, reading: Any) -> dict[str, Any]:
    source, layout = reader.process, reader.layout
    environment = source.environment()
    return {
        "format": "folio-snapshot",
        "version": VERSION,
        "tool": __version__,
        **moment(source),
        "pid": source.pid,
        "command": source.command(),
        "program": source.program(),
        "environment": {key: environment[key] for key in KEPT_VARIABLES if key in environment},
        "page_bytes": PAGE,
        "layout": layout.address,
        "library": asdict(layout.library),
        "tells_pages": not reading.by_account,
        "old_pages": reader.scanner.old,
        "rss": reading.rss,
        "moved_bytes": reading.moved_bytes,
        "seen": asdict(seen_of(source)) if source.tells_pages else None,
        "mappings": [astuple(mapping) for mapping in reading.mappings],
        "build_ids": build_ids(source, reading.mappings),
    }


def write(reader: Any, reading: Any, path: Path) -> int:
    """Whole or not at all; readable by its owner only, as cores are. Returns its size."""
    snapshot, pages = reading.heap.snapshot, reading.pages
    for bin_ in reading.heap.bins.values():  # those of both views
        at = bin_.descriptors + reader.layout.descriptor_bytes + 8 * 3 * bin_.info.hint_words
        snapshot.metadata.scatter(at, bin_.resident)
    for field in reading.heap.fields:
        at = field.descriptor + reader.layout.field_bytes + 8 * len(field.taken)
        snapshot.metadata.scatter(np.array([at]), field.resident[None])
    memory = memory_of(reader, snapshot)
    if reading.by_account:
        pages = Ranges(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    arrays = {
        "starts": memory.starts,
        "lengths": memory.lengths,
        "bytes": memory.bytes,
        "page_gaps": (pages.start - np.concatenate(([0], pages.end[:-1]))[: len(pages.start)]) // PAGE,
        "page_counts": (pages.end - pages.start) // PAGE,
        "page_kinds": pages.categories,
    }
    text = json.dumps(about(reader, reading), indent=1, ensure_ascii=True)
    reader.process.must_live()
    return write_archive(path, text, {name: arrays[name].astype(kind) for name, kind in ARRAYS.items()})


def write_archive(path: Path, text: str, arrays: dict[str, np.ndarray]) -> int:
    partial = None
    try:
        if path.exists() and not path.is_file():
            raise FolioError(f"{path} is no ordinary file: name another with -o FILE")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            partial = Path(file.name)
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(ABOUT, text)
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        partial.replace(path)
        partial = None
        return size
    except OSError as error:
        raise FolioError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}; name another with -o FILE"
        ) from None
    finally:
        if partial is not None:
            partial.unlink(missing_ok=True)
