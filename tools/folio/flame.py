"""Flame graphs of a profile: a page in one file, and the files of other tools (folded stacks, speedscope)."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from folio import __version__, output
from folio.errors import writing
from folio.profiling import Profile
from folio.sites import WHATS, by_stack, sites, total
from folio.symbols import START, Frame, short

SMALLEST = 2e-4  # of the whole: what is narrower than a pixel is left out of the page
NAME_MOST = 240
ROWS_MOST = 40


class Node:
    """A frame under all its callers: (value, variance) by what."""

    __slots__ = ("below", "frame", "sums")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.sums = [[0.0, 0.0] for _ in WHATS]
        self.below: dict[tuple[str, str], Node] = {}

    def add(self, what: int, value: float, variance: float) -> None:
        self.sums[what][0] += value
        self.sums[what][1] += variance

    def child(self, frame: Frame) -> Node:
        key = (frame.function, frame.module.name if frame.module else "")
        if key not in self.below:
            self.below[key] = Node(frame)
        return self.below[key]


def tree(profile: Profile) -> Node:
    root = Node(Frame("all"))
    for what, name in enumerate(WHATS):
        for number, sum_ in by_stack(profile, name).items():
            node = root
            node.add(what, sum_.value, sum_.variance)
            for frame in reversed(profile.stacks[number]):
                if START.match(frame.function):
                    continue  # in every stack
                node = node.child(frame)
                node.add(what, sum_.value, sum_.variance)
    return root


class Packed:
    """The tree as lists for JSON, each name once: [name, values, errors, children]."""

    def __init__(self, root: Node) -> None:
        self.names: list[list[str]] = []
        self.index: dict[tuple[str, str, str], int] = {}
        self.least = [value * SMALLEST for value, _ in root.sums]
        self.root = self.pack(root)

    def name(self, frame: Frame) -> int:
        module = frame.module.short if frame.module else ""
        key = (frame.function, module, frame.where)
        if key not in self.index:
            self.index[key] = len(self.names)
            full = frame.function if len(frame.function) <= NAME_MOST else frame.function[:NAME_MOST] + "…"
            self.names.append([short(frame.function, 80), full, module, frame.where])
        return self.index[key]

    def pack(self, node: Node) -> list[Any]:
        below = [
            self.pack(child)
            for child in sorted(node.below.values(), key=lambda child: -child.sums[0][0])
            if any(value >= least and value > 0 for (value, _), least in zip(child.sums, self.least, strict=True))
        ]
        values = [round(value) for value, _ in node.sums]
        return [self.name(node.frame), values, [round(math.sqrt(variance)) for _, variance in node.sums], below]


def figures(profile: Profile) -> list[dict[str, Any]]:
    """The head of the page."""
    sums = ((what, total(profile, what)) for what in WHATS)
    return [
        {"name": what, "value": round(sum_.value), "error": round(sum_.error), "samples": sum_.samples}
        for what, sum_ in sums
    ]


def modules(profile: Profile) -> list[str]:
    """By how many frames are theirs: their colours."""
    count = Counter(frame.module.short for stack in profile.stacks for frame in stack[1:] if frame.module)
    return [name for name, _ in count.most_common()]


def page(profile: Profile, by: str = "live") -> str:
    packed = Packed(tree(profile))
    rows = [
        {
            "name": packed.name(site.frame),
            "own": [round(site.own[what].value) if what in site.own else 0 for what in WHATS],
            "error": [round(site.own[what].error) if what in site.own else 0 for what in WHATS],
            "below": [round(site.below[what].value) if what in site.below else 0 for what in WHATS],
        }
        for site in sorted(sites(profile, "live"), key=lambda s: -sum(sum_.value for sum_ in s.own.values()))
        if site.own
    ][:ROWS_MOST]
    data = {
        "whats": WHATS,
        "by": by,
        "figures": figures(profile),
        "names": packed.names,
        "root": packed.root,
        "sites": rows,
        "modules": modules(profile),
        "complete": profile.complete,
        "seconds": round(profile.seconds, 3),
        "interval": profile.interval,
    }
    environment = Environment(loader=PackageLoader("folio", "."), autoescape=True, trim_blocks=True)
    environment.globals["size"] = output.size
    return environment.get_template("flame.html.j2").render(
        title=f"process {profile.pid}: {profile.command}", data=data, notes=profile.notes, version=__version__
    )


def folded(profile: Profile, what: str) -> str:
    """A line a stack, the outermost frame first, and its bytes: what flamegraph.pl and others read."""
    sums: dict[str, float] = {}
    for number, sum_ in by_stack(profile, what).items():
        names = [short(frame.function, 200).replace(";", ":") for frame in reversed(profile.stacks[number])]
        line = ";".join(names)
        sums[line] = sums.get(line, 0.0) + sum_.value
    return "".join(f"{line} {round(value)}\n" for line, value in sorted(sums.items()) if round(value))


def speedscope(profile: Profile) -> str:
    frames: dict[tuple[str, str, int], int] = {}
    shared: list[dict[str, Any]] = []

    def number_of(frame: Frame) -> int:
        key = (frame.function, frame.file, frame.line)
        if key not in frames:
            frames[key] = len(frames)
            entry: dict[str, Any] = {"name": short(frame.function, 200)}
            if frame.file:
                entry |= {"file": frame.file, "line": frame.line}
            shared.append(entry)
        return frames[key]

    profiles = []
    for what in WHATS:
        sums = {number: round(sum_.value) for number, sum_ in by_stack(profile, what).items()}
        stacks = [[number_of(frame) for frame in reversed(profile.stacks[number])] for number in sums]
        profiles.append(
            {
                "type": "sampled",
                "name": f"{what} bytes",
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(sums.values()),
                "samples": stacks,
                "weights": list(sums.values()),
            }
        )
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": f"folio {__version__}",
            "name": f"process {profile.pid}: {profile.command}",
            "activeProfileIndex": 0,
            "shared": {"frames": shared},
            "profiles": profiles,
        }
    )


def write(file: Path, text: str | bytes) -> None:
    with writing(file):
        file.write_bytes(text.encode() if isinstance(text, str) else text)
