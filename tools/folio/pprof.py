"""Profiles in the format of Google's pprof (protobuf, gzip): written, and read again.

The messages are described here, from github.com/google/pprof's profile.proto, and made by the protobuf library when the
module is loaded; so no generated code has to fit the library's version.
"""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from folio.book import Sum, chance
from folio.errors import FolioError
from folio.modules import Module
from folio.profiling import Profile
from folio.symbols import Frame

# Message: field, number and type; + is repeated.
SCHEMA = {
    "Profile": "sample_type 1 ValueType+, sample 2 Sample+, mapping 3 Mapping+, location 4 Location+, "
    "function 5 Function+, string_table 6 string+, drop_frames 7 int64, keep_frames 8 int64, time_nanos 9 int64, "
    "duration_nanos 10 int64, period_type 11 ValueType, period 12 int64, comment 13 int64+, "
    "default_sample_type 14 int64",
    "ValueType": "type 1 int64, unit 2 int64",
    "Sample": "location_id 1 uint64+, value 2 int64+, label 3 Label+",
    "Label": "key 1 int64, str 2 int64, num 3 int64, num_unit 4 int64",
    "Mapping": "id 1 uint64, memory_start 2 uint64, memory_limit 3 uint64, file_offset 4 uint64, filename 5 int64, "
    "build_id 6 int64, has_functions 7 bool, has_filenames 8 bool, has_line_numbers 9 bool, has_inline_frames 10 bool",
    "Location": "id 1 uint64, mapping_id 2 uint64, address 3 uint64, line 4 Line+, is_folded 5 bool",
    "Line": "function_id 1 uint64, line 2 int64",
    "Function": "id 1 uint64, name 2 int64, system_name 3 int64, filename 4 int64, start_line 5 int64",
}
TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("resident_space", "bytes"),
)
# What these tools leave out, with what it calls, so that who calls it is seen to allocate.
DROPPED = r"operator new(\[\])?(\(.*\))?|(re|c|m)alloc|reallocarray|aligned_alloc|(posix_)?memalign|p?valloc|folio_.*"
AGES = ((1_000, "under 1 s"), (10_000, "1 to 10 s"), (60_000, "10 to 60 s"), (3_600_000, "1 to 60 min"))


def make_messages() -> type:
    file = descriptor_pb2.FileDescriptorProto(name="folio/profile.proto", package="folio.pprof", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for each in fields.split(", "):
            field_name, number, kind = each.split()
            made = message.field.add(name=field_name, number=int(number))
            made.label = kinds.LABEL_REPEATED if kind.endswith("+") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("+")
            if kind in SCHEMA:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".folio.pprof.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("folio.pprof.Profile"))


Message: Any = make_messages()


class Writer:
    def __init__(self) -> None:
        self.out = Message()
        self.strings: dict[str, int] = {}
        self.functions: dict[tuple[str, str], int] = {}
        self.mappings: dict[Module, int] = {}
        self.locations: dict[tuple[Frame, ...], int] = {}
        self.by_identity: dict[tuple[int, ...], int] = {}  # the same by the frames' identities: stacks share frames
        self.string("")

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings)
            self.out.string_table.append(text)
        return self.strings[text]

    def mapping(self, module: Module) -> int:
        """Its addresses are its own: those in memory change with each run, and may be used again."""
        if module not in self.mappings:
            number = len(self.mappings) + 1
            self.mappings[module] = number
            # So far apart that no two overlap, though the addresses in them are offsets.
            start = number << 40
            end = start + max((address + length for _, length, address in module.code), default=1)
            self.out.mapping.add(
                id=number,
                memory_start=start,
                memory_limit=end,
                filename=self.string(module.name),
                build_id=self.string(module.build_id),
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
                has_inline_frames=True,
            )
        return self.mappings[module]

    def function(self, frame: Frame) -> int:
        key = (frame.function, frame.file)
        if key not in self.functions:
            self.functions[key] = len(self.functions) + 1
            name = self.string(frame.function)
            self.out.function.add(id=self.functions[key], name=name, system_name=name, filename=self.string(frame.file))
        return self.functions[key]

    def location(self, frames: tuple[Frame, ...]) -> int:
        """A place, and what is inlined there, the innermost first."""
        if frames not in self.locations:
            number = len(self.locations) + 1
            self.locations[frames] = number
            outer = frames[-1]
            mapping = self.mapping(outer.module) if outer.module else 0
            made = self.out.location.add(id=number, mapping_id=mapping)
            if mapping:
                made.address = (mapping << 40) + outer.address
            for frame in frames:
                made.line.add(function_id=self.function(frame), line=frame.line)
        return self.locations[frames]

    def stack(self, frames: list[Frame]) -> list[int]:
        found, inlined = [], []
        for frame in frames:
            inlined.append(frame)
            if not frame.inlined:
                found.append(self.known(inlined))
                inlined = []
        return found + ([self.known(inlined)] if inlined else [])

    def known(self, frames: list[Frame]) -> int:
        key = tuple(map(id, frames))
        if key not in self.by_identity:
            self.by_identity[key] = self.location(tuple(frames))
        return self.by_identity[key]


def age_of(profile: Profile, row: int) -> str:
    columns = profile.columns
    if not columns.live[row]:
        return "freed"
    age = profile.now_ms - int(columns.written_ms[row])
    return next((name for most, name in AGES if age < most), "over 1 h")


def groups(profile: Profile) -> Iterator[tuple[tuple[int, int, str, str], np.ndarray]]:
    """Samples by stack, thread, bin and age, with the five figures of each."""
    columns = profile.columns
    each = np.zeros((len(columns), len(TYPES)))
    for first, what in ((0, "allocated"), (2, "live")):
        chosen = profile.masks()[what][0] | columns.live  # what lives was allocated, if only before
        each[:, first] = chosen * columns.count / columns.chance
        each[:, first + 1] = each[:, first] * columns.size
    each[:, 4] = each[:, 3] * profile.resident
    found: dict[tuple[int, int, str, str], np.ndarray] = {}
    bins = {size: profile.bin_of(size) for size in set(columns.size.tolist())}
    for row, (stack, thread, size) in enumerate(
        zip(columns.stack.tolist(), columns.thread.tolist(), columns.size.tolist(), strict=True)
    ):
        key = (stack, thread, bins[size], age_of(profile, row))
        found[key] = found[key] + each[row] if key in found else each[row].copy()
    yield from found.items()


def build(profile: Profile, default: str = "inuse_space") -> bytes:
    writer = Writer()
    out = writer.out
    types = TYPES if profile.pages_known else TYPES[:-1]
    for kind, unit in types:
        out.sample_type.add(type=writer.string(kind), unit=writer.string(unit))
    out.period_type.type, out.period_type.unit = writer.string("space"), writer.string("bytes")
    out.period = profile.interval
    out.drop_frames = writer.string(DROPPED)
    out.time_nanos = time.time_ns()
    out.duration_nanos = int(profile.seconds * 1e9)
    out.default_sample_type = writer.string(default)
    out.comment.append(writer.string(f"folio profile of process {profile.pid}: {profile.command}"))
    stacks: dict[int, list[int]] = {}
    modules = {frame.module for frames in profile.stacks for frame in frames if frame.module}
    for module in sorted(modules, key=lambda module: (module.name != profile.program, module.name)):
        writer.mapping(module)  # readers name the profile by the first one
    for (stack, thread, bin_, age), values in groups(profile):
        if stack not in stacks:
            stacks[stack] = writer.stack(profile.stacks[stack])
        sample = out.sample.add(
            location_id=stacks[stack], value=np.rint(values[: len(types)]).astype(np.int64).tolist()
        )
        name = f"{profile.threads.get(thread) or 'ended'} ({thread})"
        for key, text in (("bin", bin_), ("thread", name), ("age", age)):
            sample.label.add(key=writer.string(key), str=writer.string(text))
    return gzip.compress(out.SerializeToString(), 6)


@dataclass
class Loaded:
    """A profile from a file: bytes of each stack of function names, the innermost first."""

    file: Path
    interval: int
    seconds: float
    comment: str
    files: dict[str, str] = field(default_factory=dict)  # of functions
    sums: dict[str, dict[tuple[str, ...], Sum]] = field(default_factory=dict)  # by inuse_space and alloc_space


def load(file: Path) -> Loaded:
    try:
        data = file.read_bytes()
        message = Message.FromString(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise FolioError(f"{file}: {error.strerror}; `folio profile PID --pprof FILE` writes one") from None
    except (DecodeError, EOFError, zlib.error, ValueError):
        raise FolioError(
            f"{file} is no profile in pprof's format: `folio profile PID --pprof FILE` writes one"
        ) from None
    try:
        return taken(file, message)
    except (IndexError, OverflowError):
        raise FolioError(f"{file} is damaged: `folio profile PID --pprof FILE` writes another one") from None


def taken(file: Path, message: Message) -> Loaded:
    text = list(message.string_table) or [""]
    types = [text[each.type] for each in message.sample_type]
    if "inuse_space" not in types or "inuse_objects" not in types:
        raise FolioError(f"{file} is no heap profile: it has {', '.join(types) or 'no figures'}, but no inuse_space")
    functions = {each.id: text[each.name] for each in message.function}
    lines = {
        place.id: [functions[line.function_id] for line in place.line if line.function_id in functions]
        or [f"{place.address:#x}"]
        for place in message.location
    }
    comment = text[message.comment[0]] if message.comment else ""
    loaded = Loaded(file, max(message.period, 1), message.duration_nanos / 1e9, comment)
    loaded.files = {text[each.name]: text[each.filename] for each in message.function}
    for kind, objects in (("inuse_space", "inuse_objects"), ("alloc_space", "alloc_objects")):
        if kind not in types or objects not in types:
            continue
        at, at_objects = types.index(kind), types.index(objects)
        sums = loaded.sums.setdefault(kind, {})
        for sample in message.sample:
            stack = tuple(name for place in sample.location_id for name in lines.get(place, ["?"]))
            new = estimate(sample.value[at], sample.value[at_objects], loaded.interval)
            old = sums.get(stack, Sum())
            sums[stack] = Sum(
                old.value + new.value, old.variance + new.variance, old.samples + new.samples, max(old.step, new.step)
            )
    return loaded


def estimate(bytes_: int, objects: int, interval: int) -> Sum:
    """The sum that was written: its samples are of one bin, so of about one size, which gives how many they were."""
    if objects <= 0 or bytes_ <= 0:
        return Sum()
    size = bytes_ / objects
    p = float(chance(size, interval))
    spread = (size / p) ** 2 * (1 - p)
    return Sum(float(bytes_), objects * p * spread, max(round(objects * p), 1), spread**0.5)
