"""`folio limit`: the limits of a process, how near they are, what each rung of the ladder would give; and sets them.

They are set as `folio collect` asks: the command writes a wish into the library's data, which the housekeeper sees, so
only where the process was started with the option collect_from_outside.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from folio import output
from folio.collect import takes_wishes, wait_for_answer
from folio.errors import FolioError
from folio.heap import Heap
from folio.parts import Parts, explain_well, not_exact
from folio.reader import Reader

STATE = struct.Struct("<5q4IQ")
REQUEST = struct.Struct("<IIqq")
KEEP = -1
OF_CGROUP = -1000
LEAST, MOST = 4 << 20, 1 << 62
LEVELS = ("calm", "near", "tight", "at the soft limit", "at the hard limit")
SIZE = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)

# By bit, as src/policy/limit.h has them.
OF_ONE = {
    0: "the kernel does not say which cgroup the process is in; the {0} limit is none",
    1: "`cgroup`, but the cgroup has no memory limit; the {0} limit is none",
    2: "a share, but how much memory there is is not known; the {0} limit is none",
    3: "too few bytes for any program; the {0} limit is 4 MiB",
    4: "the kernel does not say which cgroup the process is in; the {0} limit is a share of the machine's memory",
}
OF_BOTH = {
    16: "the soft limit was above the hard one, which holds for both",
    17: "pressure:on, but there is no file that tells of it; it is off",
    18: "pressure:on, but the housekeeper is off; so it is off too",
}


@dataclass(frozen=True)
class Limits:
    soft: int  # in force; 0: none
    hard: int
    asked_soft: int
    asked_hard: int
    begins: int  # where the soft limit does; 0: there are none
    problems: int
    level: int
    highest: int
    pressure: int  # the system's, as a level
    refused: int

    @property
    def reserve(self) -> int:
        """What large objects leave to small ones, below the hard limit."""
        return min(max(min(self.hard // 32, 32 << 20), 1 << 20), self.hard // 4)

    def what_is_wrong(self) -> list[str]:
        found = [
            text.format(which)
            for which, shift in (("soft", 0), ("hard", 8))
            for bit, text in OF_ONE.items()
            if self.problems >> (bit + shift) & 1
        ]
        return found + [text for bit, text in OF_BOTH.items() if self.problems >> bit & 1]


@dataclass(frozen=True)
class Rung:
    name: str
    begins: int
    what: str
    gives: int


def limits_of(reader: Reader) -> Limits:
    state = reader.process.read(reader.layout.limit_state, STATE.size)
    reader.process.must_live()
    return Limits(*STATE.unpack(state))


def held_by(reader: Reader, heap: Heap) -> int:
    """What the limits are about, as the library counts it."""
    huge = int(heap.huge.usable[heap.huge.live].sum())
    return max(reader.counter("resident"), 0) + huge + sum(piece.used for piece in heap.snapshot.pieces)


def rungs(limits: Limits, parts: Parts) -> list[Rung]:
    if limits.begins == 0:
        return []
    soft = limits.begins
    values = parts.values()
    made = [
        Rung("near", soft // 8 * 7, "no new huge pages", 0),
        Rung("tight", soft // 16 * 15, "caches are emptied", values["cached_cpus"] + values["cached_depot"]),
        Rung("soft limit", soft, "what is free goes at once", values["dirty"]),
    ]
    if limits.hard:
        made += [
            Rung("reserve", limits.hard - limits.reserve, "nothing for large objects", 0),
            Rung("hard limit", limits.hard, "nothing for any object", 0),
        ]
    return made


def asked(value: int) -> str:
    return "cgroup" if value == OF_CGROUP else f"{-value}%" if value < 0 else ""


def as_dict(limits: Limits, held: int) -> dict[str, Any]:
    """The part that doctor, top and this command have in common."""
    return {
        "soft": limits.soft,
        "hard": limits.hard,
        "asked_soft": asked(limits.asked_soft),
        "asked_hard": asked(limits.asked_hard),
        "held": held,
        "left_to_soft": limits.begins - held if limits.begins else None,
        "left_to_hard": limits.hard - held if limits.hard else None,
        "level": LEVELS[min(limits.level, 4)],
        "system_level": LEVELS[min(limits.pressure, 4)],
        "refused": limits.refused,
        "problems": limits.what_is_wrong(),
    }


def distance(limits: Limits, held: int) -> str:
    """One line; empty where there are no limits."""
    reported = []
    for name, limit in (("soft", limits.soft), ("hard", limits.hard)):
        if limit:
            left = limit - held
            far = f"{output.size(left)} left" if left >= 0 else f"{output.size(-left)} over"
            reported.append(f"{name} limit {output.size(limit)}, {far}")
    level = LEVELS[min(max(limits.level, limits.pressure), 4)]
    return f"{'; '.join(reported)} (level: {level})" if reported else ""


# ---- Setting ----


def parse(text: str | None, name: str) -> int:
    if text is None:
        return KEEP
    match = SIZE.fullmatch(text)
    bytes_ = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ") if match else MOST + 1
    if bytes_ > MOST or 0 < bytes_ < LEAST:
        raise FolioError(f"{name} {text}: write bytes, from 4M on, also with K, M, G or T; 0 for no limit")
    return bytes_


def set_limits(reader: Reader, soft: int, hard: int, timeout: float) -> None:
    """Returns when the process has them."""
    takes_wishes(reader)
    now = limits_of(reader)
    soft_then, hard_then = now.soft if soft == KEEP else soft, now.hard if hard == KEEP else hard
    if hard_then and soft_then > hard_then:
        raise FolioError(
            f"the soft limit ({output.size(soft_then)}) would be above the hard one ({output.size(hard_then)}): "
            "set both, --soft and --hard"
        )
    process, at = reader.process, reader.layout.limit_request
    number = REQUEST.unpack(process.read(at, REQUEST.size))[0] + 1 & 0xFFFFFFFF
    process.must_live()
    process.write(at + 8, struct.pack("<qq", soft, hard))
    process.write(at, struct.pack("<I", number))
    why = "a stopped process does not run, and one that has only begun has no housekeeper yet"
    wait_for_answer(process, lambda: REQUEST.unpack(process.read(at, REQUEST.size))[1] == number, timeout, why)


# ---- Showing ----


def show(pid: int, title: str, limits: Limits, held: int, steps: list[Rung]) -> None:
    output.say(output.one_line(title), "bold")
    output.say(f"Folio holds {output.size(held)}")
    for name, limit, wanted in (
        ("soft", limits.soft, asked(limits.asked_soft)),
        ("hard", limits.hard, asked(limits.asked_hard)),
    ):
        source = f" ({wanted})" if wanted else ""
        output.say(f"  {name} limit{source}: {output.size(limit) if limit else 'none'}")
    for text in limits.what_is_wrong():
        output.indented(f"· options: {text}", 2, "yellow")
    if limits.refused:
        output.say(f"  {output.counted(limits.refused, 'request')} got no memory", "red")
    if not steps:
        output.next_command(f"folio limit {pid} --soft 1G  (started with collect_from_outside:on)")
        return
    output.say(f"\nlevel: {LEVELS[min(limits.level, 4)]}; the system's: {LEVELS[min(limits.pressure, 4)]}\n")
    made = output.table("rung", "begins at", "left", "gives now", "what it does")
    made.columns[4].justify = "left"
    for rung in steps:
        gives = output.size(rung.gives) if rung.gives else "–"
        style = "yellow" if held > rung.begins else ""
        made.add_row(
            rung.name, output.size(rung.begins), output.size(rung.begins - held), gives, rung.what, style=style
        )
    output.console.print(made)
    output.next_command(f"folio doctor {pid}  (what holds it)")


def limit(pid: int, soft: str | None, hard: str | None, timeout: float, json: bool) -> int:
    wanted = parse(soft, "--soft"), parse(hard, "--hard")
    reader = Reader(pid)
    if wanted != (KEEP, KEEP):
        set_limits(reader, *wanted, timeout)
    parts = explain_well(reader)
    limits, held = limits_of(reader), held_by(reader, reader.view())
    steps = rungs(limits, parts)
    if json:
        ladder = [
            {"rung": rung.name, "begins": rung.begins, "left": rung.begins - held, "gives": rung.gives}
            for rung in steps
        ]
        output.as_json({"version": 1, "pid": pid} | as_dict(limits, held) | {"ladder": ladder})
    else:
        if not parts.exact:
            output.indented(f"what the rungs give is not exact: {not_exact(parts)}", 0, "yellow")
        show(pid, reader.process.title(), limits, held, steps)
    return 0
