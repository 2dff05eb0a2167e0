"""What the soak holds the figures of a process against: the bound of docs/limits.md, and its own history."""

import os
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20

# The options as they come: what each thread may cache, what busy ones may beyond that.
THREAD_CACHE, THREAD_CACHE_POOL = 32 * KIB, 8 * MIB
# What the statistics may still call dirty: pages that came ahead, and what is being purged.
DIRTY = 8 * MIB
# Stacks that the libc keeps for threads to come, and what these touch of them.
STACKS = 6 * MIB
# Of a thread whose end nobody tells: its cache stays (docs/limits.md#metadata), and what it had cached pins pages.
LOST = 24 * KIB
# What the C library allocates for itself: vectors of thread-local storage, buffers.
LIBC = 1 * MIB
# What differs from rest to rest anyway: which objects the threads happen to have cached, and so which pages stay.
NOISE_RSS, NOISE_SHARE, NOISE_MAPS = 6 * MIB, 0.05, 64
RESTS_LEAST = 8  # for a trend, two in each quarter


def process(pid: int) -> dict[str, int]:
    """What the kernel says of it, when nothing moves."""
    at = Path(f"/proc/{pid}")
    rollup = (at / "smaps_rollup").read_text()
    rss = int(re.search(r"^Rss:\s+(\d+)", rollup, re.M)[1]) * KIB
    return {
        "rss": rss,
        "maps": len((at / "maps").read_text().splitlines()),
        "fds": len(os.listdir(at / "fd")),
        "tasks": len(os.listdir(at / "task")),
    }


def largest_mappings(pid: int, count: int = 12) -> str:
    """Those with the most resident pages, a line each."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    first = r"^([0-9a-f]+-[0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n"
    found = re.findall(first + r"Size: +(\d+) kB(?:\n.*?)*?\nRss: +(\d+) kB", text, re.M)
    rows = sorted(((int(rss), span, mode, int(size), name) for span, mode, name, size, rss in found), reverse=True)
    return "\n".join(f"{r:10,} of {size:12,} KiB  {mode} {span} {name}" for r, span, mode, size, name in rows[:count])


def mib(number: float) -> str:
    return f"{number / MIB:.1f} MiB"


def parts(figures: dict[str, int]) -> str:
    """What is resident, and what the statistics say of it."""
    named = [("live", figures["live_held"])] + [(n, figures[n]) for n in ("cached", "fragmented", "dirty", "metadata")]
    return f"{mib(figures['rss'])} resident, MiB: " + ", ".join(f"{name} {value / MIB:.1f}" for name, value in named)


def bound(figures: dict[str, int], base: dict[str, int]) -> str | None:
    """What is wrong with resident memory two ticks after the last call: CPU caches, depot and dirty pages are gone."""
    threads, resident = figures["threads"], figures["resident"]
    caches = 2 * (threads * THREAD_CACHE + THREAD_CACHE_POOL * max(1, -(-resident // (128 * MIB))))
    held = max(figures["live_held"], 0)
    lost = figures["unreported"] * LOST
    most = base["rss"] + held + caches + figures["fragmented"] + figures["metadata"] + lost + STACKS + LIBC
    if figures["dirty"] > DIRTY:
        return f"bound: {mib(figures['dirty'])} are dirty, the statistics say"
    if figures["rss"] <= most:
        return None
    return (
        f"bound: {mib(figures['rss'])} are resident, at most {mib(most)} may be: {mib(base['rss'])} before it began, "
        f"{mib(held)} live, {mib(caches)} in caches of {threads} threads, {mib(figures['fragmented'])} fragmented, "
        f"{mib(figures['metadata'])} metadata, {mib(lost)} lost with threads; dirty is {mib(figures['dirty'])}, "
        f"cached {mib(figures['cached'])}"
    )


def exact(figures: dict[str, int]) -> str | None:
    """Whether the statistics know what is live, when nothing moves."""
    held, said = figures["live_held"], figures["live"]
    others = LIBC + figures["unreported"] * LOST + figures["spare"]
    if held <= said <= held + others:
        return None
    return f"statistics: {said} bytes are live, they say; the program holds {held}, and at most {others} are others'"


@dataclass
class History:
    """The figures of all rests."""

    base: dict[str, int] = field(default_factory=dict)
    empty: list[dict[str, int]] = field(default_factory=list)
    full: list[dict[str, int]] = field(default_factory=list)

    def add(self, everything: bool, figures: dict[str, int]) -> None:
        (self.empty if everything else self.full).append(figures)

    def growth(self, name: str) -> float:
        """From the median of the second quarter to that of the last, over rests with everything freed."""
        quarter = len(self.empty) // 4
        values = [figures[name] for figures in self.empty]
        return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])

    def trend(self) -> str | None:
        """What has grown that may not."""
        if len(self.empty) < RESTS_LEAST:
            return None
        rss = NOISE_RSS + NOISE_SHARE * self.empty[-1]["rss"] + self.growth("unreported") * LOST
        for name, most in [("rss", rss), ("maps", NOISE_MAPS), ("fds", 0), ("tasks", 0)]:
            if self.growth(name) > most:
                values = ", ".join(str(figures[name]) for figures in self.empty)
                return (
                    f"growth: {name} has grown by {self.growth(name):.0f} (at most {most:.0f}); at rest it was {values}"
                )
        return None

    def summary(self) -> str:
        """For the last line."""
        last = self.empty[-1]
        text = f"with everything freed {mib(last['rss'])} resident ({mib(self.base['rss'])} before it began)"
        if len(self.empty) >= RESTS_LEAST:
            text += f", growth since the second quarter {mib(self.growth('rss'))}"
        return text + f"; {last['unreported']} threads whose end nobody told"
