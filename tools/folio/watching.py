"""Looks at a program and at those that it starts while they run, so that the largest look is near the peak.

A glance at a process's size is cheap, a look is not: so there is one only when the process is larger than the largest
one that was looked at. Only looks whose parts sum to what the kernel counts are kept. A program that a process begins
anew (exec, as wrappers do) is looked at as well: of all processes and programs the largest look is what stays.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from folio.errors import FolioError, NewProgram, ProcessGone
from folio.parts import Parts, explain
from folio.pools import own_pools
from folio.process import Process
from folio.reader import Reader

GLANCE_SECONDS = 0.01  # while a size changes; while none does, glances get rarer
GLANCE_SECONDS_MOST = 0.05
GROWTH = 1.03  # since the largest look
REST = 3  # times what a look took, before the next
GROWTH_AT_ONCE = 1.15  # so much needs no rest,
GROWTH_AT_REST = 1.005  # nor this, where it has just stopped growing: that may be the peak
FAMILY_SECONDS = 0.1  # between two searches for children, and so many times what the last one took
FAMILY_REST = 20
FAMILY_MOST = 256


@dataclass
class Member:
    """A process that runs: the program, or one that it has started."""

    process: Process
    reader: Reader | None = None  # of the program that it runs now
    glanced: int = 0  # its size at the last glance
    not_before: float = 0.0  # where it was not on Folio


@dataclass
class Watch:
    """What was seen of them while they ran."""

    parts: Parts | None = None  # at the largest resident memory seen, of the looks that are exact
    inexact: Parts | None = None  # the same of the others
    program: str = ""  # the file of that look
    peak: int = 0  # the largest resident memory that was seen of any of them
    looks: int = 0  # exact ones
    programs: set[tuple[int, tuple[str, ...]]] = field(default_factory=set)  # on Folio, that were looked at
    problem: str = ""
    pools: str = ""  # what to do about those of its own
    rest_until: float = 0.0
    pause: float = GLANCE_SECONDS

    @property
    def largest(self) -> int:
        return max((parts.rss for parts in (self.parts, self.inexact) if parts is not None), default=0)

    def glance(self, member: Member) -> None:
        """Looks closer where it is larger than all that was seen."""
        rss, before = member.process.rss(), member.glanced
        member.glanced = rss
        self.peak = max(self.peak, rss)
        if rss != before:
            self.pause = GLANCE_SECONDS
        grown, now = rss / max(self.largest, 1), time.monotonic()
        at_once = GROWTH_AT_REST if rss == before else GROWTH_AT_ONCE
        if now < member.not_before or (grown < at_once and (grown < GROWTH or now < self.rest_until)):
            return
        member.reader = member.reader or Reader(member.process.pid)
        self.read(member.reader)
        self.rest_until = time.monotonic() + REST * (time.monotonic() - now)

    def read(self, reader: Reader) -> None:
        self.add(explain(reader, reader.reading(most=1)), reader)  # the next one is better than the same again
        peak = int(reader.process.status().get("VmHWM", "0 kB").split()[0]) << 10
        reader.process.must_live()
        self.peak = max(self.peak, peak)

    def add(self, parts: Parts, reader: Reader) -> None:
        self.programs.add((reader.process.pid, reader.process.image))
        if not parts.exact:
            if self.inexact is None or parts.rss > self.inexact.rss:
                self.inexact = parts
            return
        self.looks += 1
        if self.parts is None or parts.rss > self.parts.rss:
            self.parts, self.program = parts, reader.process.program()
            self.pools = own_pools(self.program, reader.process.environment())


def family(pid: int) -> list[int]:
    """A process and all that come from it, as far as the kernel tells, itself first."""
    found = [pid]
    for each in found:
        try:
            files = list(Path(f"/proc/{each}/task").glob("*/children"))
            found += [int(child) for file in files for child in file.read_text().split()]
        except OSError:
            continue
        if len(found) > FAMILY_MOST:
            break
    return found[:FAMILY_MOST]


class Family:
    """The processes that are watched."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.members: dict[int, Member] = {}
        self.search_at = 0.0

    def search(self) -> None:
        """For new ones, now and then."""
        begin = time.monotonic()
        if begin < self.search_at:
            return
        for pid in family(self.pid):
            if pid not in self.members:
                try:
                    self.members[pid] = Member(Process(pid))
                except ProcessGone:
                    continue
        took = time.monotonic() - begin
        self.search_at = begin + max(FAMILY_SECONDS, FAMILY_REST * took)

    def glance(self, seen: Watch) -> None:
        for pid, member in list(self.members.items()):
            begin = time.monotonic()
            try:
                seen.glance(member)
                if pid == self.pid:
                    seen.problem = ""
            except ProcessGone:
                del self.members[pid]
            except NewProgram:
                member.reader = None
                seen.pause = GLANCE_SECONDS
            except FolioError as error:  # it may be on Folio after its next exec
                member.reader, member.not_before = None, begin + REST * (time.monotonic() - begin)
                if pid == self.pid:
                    seen.problem = str(error)


def watch(pid: int, seen: Watch, ended: threading.Event) -> None:
    """Until it has ended."""
    watched = Family(pid)
    while not ended.wait(seen.pause):
        seen.pause = min(1.2 * seen.pause, GLANCE_SECONDS_MOST)
        watched.search()
        watched.glance(seen)
