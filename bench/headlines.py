#!/usr/bin/env python3
"""What the documents that Folio descends from report as their results, and the same tests here.

    headlines.py FILE    prints the table in Markdown, from the raw lines of a results file

`bench/run.py --headlines` runs the cases. A document's own allocator, and those of its field that no package carries,
are built by hand and given as `--peers supermalloc=FILE hoard=FILE scalloc=FILE`. A verdict is by medians: as far ahead
of the document's field as the document says of its own allocator, and not behind that one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import environment

if __name__ == "__main__":
    environment.enter()

from folio.rounds import Interval
from goals import MISSED, NOT_MEASURED, REACHED, case_named, figure_of, show
from measure import end_with
from report import OWN, Results, best_peer, factor, interval_text

DEBIAN = "-debian"  # an older version of the same allocator, by its name in a run
SPEED, PEAK, TIME = "ops_per_second", "rss_peak_bytes", "seconds"


@dataclass(frozen=True)
class Document:
    name: str
    own: str  # its allocator, by the name that a run has for it; "": none to be had
    field: tuple[str, ...]  # whom it compares with, as far as they are to be had


# DLmalloc is the ancestor of glibc's.
SUPERMALLOC = Document("SuperMalloc", "supermalloc", ("glibc", "hoard", "jemalloc", "tbb"))
SNMALLOC = Document(
    "snmalloc",
    "snmalloc",
    ("glibc", "hoard", "jemalloc", "rpmalloc", "scalloc", "supermalloc", "tbb", "tcmalloc", "tcmalloc-google"),
)
NALLOC = Document("nalloc", "", ("glibc", "hoard", "jemalloc", "tbb", "tcmalloc", "tcmalloc-google"))
# phkmalloc, FreeBSD's of 2005, is not to be had; glibc's takes its place.
JEMALLOC = Document("jemalloc's announcement", "jemalloc", ("glibc",))


@dataclass(frozen=True)
class Headline:
    document: Document
    where: str
    says: str
    case: str
    key: str = SPEED
    times: float = 1  # the document's own allocator beside the best of its field; 1 where it gives no number


HEADLINES = [
    *(
        Headline(
            SUPERMALLOC,
            where,
            f"malloc-test, {threads}: {times} times the best",
            f"malloc-test {n}+{n}, {size}",
            SPEED,
            times,
        )
        for n, where, threads, times in [
            (1, "abstract, figure 6", "1 producer", 2.1),
            (8, "abstract, figure 6", "8 producers, transactions", 2.75),
            (32, "abstract, figure 7", "32 producers, locks", 3.4),
        ]
        for size in ("64 B", "1024 B")
    ),
    Headline(SUPERMALLOC, "figure 11", "Larson: 1.42 us an operation, the next 1.47", "larson 8 threads", SPEED, 1.035),
    Headline(SUPERMALLOC, "figure 12", "SuperServer: 941 MiB, the next 1437", "super server", PEAK, 1.53),
    Headline(
        SUPERMALLOC, "figure 12", "its slowest allocation: 0.53 ms, level", "super server", "slowest_undisturbed_ns"
    ),
    Headline(SUPERMALLOC, "figure 12", "its time: 12.8 s, the best 11.5", "super server", SPEED, 0.9),
    Headline(SUPERMALLOC, "figure 13", "Vyukov's chain: 219 MiB, the next 228", "vyukov chain", "peak_by_live", 1.04),
    Headline(SUPERMALLOC, "figure 13", "its time: 21.3 s, the best 20.1", "vyukov chain", TIME, 0.94),
    Headline(
        SNMALLOC,
        "figure 4",
        "objects swapped among threads: thread caches are best",
        "symmetric exchange 8 threads, random",
    ),
    Headline(SNMALLOC, "figure 5", "malloc-test, 8 to 2048 bytes at random: far ahead", "malloc-test 4+4, random"),
    Headline(SNMALLOC, "figure 6", "malloc-test, tiny objects: best of all sizes", "malloc-test 4+4, 8 to 48 B"),
    Headline(
        SNMALLOC,
        "figure 7",
        "peak memory where all is touched: among the least",
        "malloc-test 1+1, random, all touched",
        PEAK,
    ),
    Headline(SNMALLOC, "figure 8", "full speed at once; SuperMalloc after 100 s", "warm-up", "warm_after_seconds"),
    Headline(NALLOC, "results", "private pools: slightly better than tcmalloc", "nalloc 1, private pools, 8"),
    Headline(NALLOC, "benchmark 2", "a global pool", "nalloc 2, global pool, 8"),
    Headline(NALLOC, "benchmark 3", "one producer", "nalloc 3, one producer, 8"),
    Headline(
        JEMALLOC, "Lever and Boreham", "5 threads: 15 and 80 times phkmalloc", "lever-boreham 5 threads", SPEED, 15
    ),
    Headline(JEMALLOC, "cfrac", "17.6 s, phkmalloc 18.7", "factor", TIME, 1.06),
    Headline(JEMALLOC, "sh6bench", "17.1 s, phkmalloc 13.7 at best", "group cycles 1 thread", SPEED, 0.8),
    Headline(JEMALLOC, "sh6bench", "its peak: 22 % less", "group cycles 1 thread", "peak_by_live", 1.28),
]

UNRESOLVED = "not resolved"  # what it takes lies inside the interval


@dataclass(frozen=True)
class Row:
    headline: Headline
    ahead: Interval | None  # Folio beside the best of the document's field
    best: str
    own_ahead: Interval | None  # the document's own allocator beside the best of its field
    beside_own: Interval | None  # Folio beside the document's own

    @property
    def verdict(self) -> str:
        own_missing = bool(self.headline.document.own) and self.beside_own is None
        if self.ahead is None or own_missing:
            return NOT_MEASURED
        if self.ahead.low < self.headline.times <= self.ahead.high:
            return UNRESOLVED
        level = self.beside_own is None or self.beside_own.value >= 1
        return REACHED if level and self.ahead.value >= self.headline.times else MISSED


def plain(name: str) -> str:
    return name.removesuffix(DEBIAN)


def row_of(results: Results, headline: Headline) -> Row:
    case = case_named(results, headline.case)
    figure = figure_of(case, headline.key) if case else None
    if case is None or figure is None:
        return Row(headline, None, "", None, None)
    medians = results.medians(case, figure)
    document = headline.document
    own = next((name for name in medians if plain(name) == document.own), "")
    field = {n: v for n, v in medians.items() if plain(n) in document.field and n != own}
    best = best_peer(field, figure.more_is_better) or ""

    def beside(one: str, other: str) -> Interval | None:
        return results.advantage(case, figure, one, other) if one in medians and other in medians else None

    return Row(headline, beside(OWN, best), best, beside(own, best), beside(OWN, own))


def rows(results: Results) -> list[Row]:
    return [row_of(results, headline) for headline in HEADLINES]


def text(interval: Interval | None, of: str = "") -> str:
    return "–" if interval is None else interval_text(interval, factor) + (f" x {of}" if of else "")


def table(found: list[Row]) -> str:
    lines = [
        "| document | what it says | the case here | Folio beside its field | its own allocator beside it "
        "| Folio beside its own | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        head = row.headline
        cells = [
            f"{head.document.name}, {head.where}",
            head.says,
            head.case,
            text(row.ahead, row.best),
            text(row.own_ahead),
            text(row.beside_own),
            row.verdict,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def concern(results: Results) -> bool:
    """Whether a run has all of the cases."""
    names = {case.name for case in results.cases}
    return OWN in results.allocators and {headline.case for headline in HEADLINES} <= names


if __name__ == "__main__":
    end_with(lambda: show("bench/headlines.py", lambda results: table(rows(results))), "bench/headlines.py")
