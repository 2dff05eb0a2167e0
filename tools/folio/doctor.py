"""`folio doctor`: each part of a process's resident memory, why it is there, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from folio import limit as limits
from folio import output
from folio.advice import Advice, advices
from folio.foreign import Kind, Sharing, kinds, seen_of
from folio.parts import MOVED, TITLES, Parts, as_known, explain_well, not_exact
from folio.pools import own_pools
from folio.reader import Reader
from folio.source import Source

HEALTHY, RETAINS, NOT_EXACT = 0, 1, 3  # exit statuses; 2 is an error
RETAINED_LEAST = 16 << 20
FOREIGN_SHOWN = 5
HUGE_PAGE = 2 << 20
SMALL = 0.01  # of RSS: below that a part gets no paragraph
BY_ACCOUNT = (
    "A core does not tell which pages were resident. These are the pages that Folio accounts for: handed out, and not "
    "purged since. Only the running process tells RSS, what was swapped out or never touched, padding, and what is not "
    "Folio's: `folio doctor PID` then, or `folio snapshot PID`, which keeps it."
)


def status_of(parts: Parts, limit_percent: float) -> int:
    if not parts.exact:
        return NOT_EXACT
    too_much = parts.retained > RETAINED_LEAST and parts.retained > limit_percent / 100 * max(parts.folio, 1)
    return RETAINS if too_much else HEALTHY


@dataclass(frozen=True)
class Found:
    """All that is shown of a heap."""

    source: Source
    parts: Parts
    advice: dict[str, Advice]
    foreign: dict[str, Kind]
    sharing: Sharing | None
    limits: limits.Limits
    held: int
    status: int
    percent: float  # of what Folio has, how much may be not live


def find(reader: Reader, percent: float) -> Found:
    options = {option.name: option.value for option in reader.options()}
    parts = explain_well(reader)
    source = reader.process
    pools, seen = own_pools(source.program(), source.environment()), seen_of(source)
    return Found(
        source,
        parts,
        advices(parts, options, source, pools, seen.locked),
        kinds(source, seen, parts.mappings, parts.foreign_at, parts.foreign.get(MOVED, 0)),
        seen.sharing,
        limits.limits_of(reader),
        limits.held_by(reader, reader.view()),
        status_of(parts, percent),
        percent,
    )


def as_dict(found: Found) -> dict[str, Any]:
    parts, known = found.parts, not found.parts.by_account
    return {
        "version": 1,
        "pid": found.source.pid,
        "source": found.source.kind,
        "pages_known": known,
        "rss": parts.rss if known else None,
        "held": parts.folio,
        "parts": {
            key: {"bytes": value, "cause": found.advice[key].cause, "advice": found.advice[key].advice}
            for key, value in parts.values().items()
        },
        "unexplained": parts.unexplained if known else None,
        "exact": parts.exact,
        "sharing": asdict(found.sharing) if found.sharing else None,
        "retained": parts.retained,
        "error_bound": parts.moved,
        "swapped": parts.swapped if known else None,
        "reserved_address_space": parts.reserved,
        "threads": parts.threads,
        "metadata": parts.metadata_kinds,
        "not_folio": parts.foreign if known else None,
        "not_folio_by_kind": {name: asdict(kind) for name, kind in found.foreign.items()} if known else None,
        "fragmented_by_bin": {str(b.number): b.fragmented for b in parts.bins if b.fragmented},
        "dirty_by_bin": {str(b.number): b.dirty for b in parts.bins if b.dirty},
        "large": as_known(asdict(parts.large), parts),
        "huge": as_known(asdict(parts.huge), parts),
        "guarded": as_known(asdict(parts.guarded), parts),
        "huge_pages": asdict(parts.huge_pages) if known else None,
        "limit": limits.as_dict(found.limits, found.held),
        "read_seconds": round(parts.seconds, 6),
        "status": found.status,
    }


def show_parts(parts: Parts, console: Console = output.console) -> None:
    """Only the figures and bars."""
    made = output.table("part", "size", "of all" if parts.by_account else "of RSS", "")
    made.columns[3].justify = "left"
    for key, value in parts.values().items():
        made.add_row(TITLES[key], output.size(value), output.share(value, parts.rss), output.bar(value, parts.rss, 24))
    rest = parts.unexplained
    if not parts.by_account:
        made.add_row("unexplained", output.size(rest), output.share(rest, parts.rss), "", style="dim")
    name = "Folio's account" if parts.by_account else "resident (RSS)"
    made.add_row(name, output.size(parts.rss), "100.0 %", "", style="bold")
    console.print(made)


def bound_of(source: Source, parts: Parts) -> str:
    """How far the sums may be off."""
    if parts.by_account:
        return BY_ACCOUNT
    how = "as it stood" if source.still else f"read in {parts.seconds * 1000:.1f} ms"
    if parts.moved:
        return f"{how}; the parts may be off by {output.size(parts.moved)}: what moved while it was read"
    return f"{how}; nothing moved while it was read"


def show_sharing(sharing: Sharing | None) -> None:
    if sharing and sharing.private:
        output.say(
            f"private {output.size(sharing.private)}, shared with others {output.size(sharing.shared)}; "
            f"its share of both (PSS) {output.size(sharing.proportional)}"
        )


def show(found: Found) -> None:
    source, parts, status = found.source, found.parts, found.status
    output.say(output.one_line(source.title()), "bold")
    output.indented(bound_of(source, parts), 0, "dim")
    output.say("")
    show_parts(parts)
    show_sharing(found.sharing)
    if not parts.exact:
        output.indented(f"not exact: {not_exact(parts)}", 0, "yellow")
    output.say("")
    for key, value in parts.values().items():
        if value >= SMALL * parts.rss:
            show_part(found, key, value)
    show_huge_pages(parts)
    again = "take another snapshot" if source.still else "run it again"
    verdicts = {
        HEALTHY: "healthy: ",
        RETAINS: f"more than {found.percent:g} % of what Folio has is not live: ",
        NOT_EXACT: f"the process changed too fast to be summed up; {again}: ",
    }
    text = f"{output.size(parts.retained)} of Folio's {output.size(parts.folio)} are not live (status {status})"
    output.say("\n" + verdicts[status] + text, "green" if status == HEALTHY else "yellow")
    if distance := limits.distance(found.limits, found.held):
        output.say(distance if source.still else f"{distance}; `folio limit {source.target}` shows the ladder")
    if parts.swapped:
        output.say(f"swapped out, so in no part: {output.size(parts.swapped)}", "dim")


def show_part(found: Found, key: str, value: int) -> None:
    output.say(f"{TITLES[key]} ({output.size(value)})", "bold")
    output.indented(found.advice[key].cause, 2)
    output.indented("→ " + found.advice[key].advice, 2, "cyan")
    if key == "not_folio":
        show_foreign(found.parts, found.foreign)


def show_huge_pages(parts: Parts) -> None:
    found = parts.huge_pages
    if (found.count + found.others + found.dense) * HUGE_PAGE < SMALL * parts.rss:
        return
    output.say(f"huge pages ({found.count:,} of small objects)", "bold")
    if found.count:
        by_share = ", ".join(f"{count:,} {name}" for name, count in found.by_density.items() if count)
        output.indented(f"By how much of them is in use: {by_share}.", 2)
    dense = f"{output.counted(found.dense, 'cluster')} of 2 MiB, of small pages, could be huge."
    if not found.count and not found.others:
        output.indented(dense, 2)
        return
    output.indented(
        f"They cost {output.size(found.free)} of free pages that stay for them, and save "
        f"{found.entries_saved:,} page-table entries ({found.others:,} are under large or huge objects). {dense}",
        2,
    )
    output.indented("→ FOLIO_OPTIONS=huge_pages:never does without them, for more TLB misses.", 2, "cyan")


def show_foreign(parts: Parts, foreign: dict[str, Kind]) -> None:
    for kind in foreign.values():
        output.indented(f"{output.size(kind.bytes):>11}  {kind.title}", 2)
        if kind.bytes >= SMALL * parts.rss:
            output.indented(f"→ {kind.advice}", 15, "cyan")
    output.indented("the largest mappings:", 2, "dim")
    ordered = sorted(parts.foreign.items(), key=lambda item: -item[1])
    for name, value in ordered[:FOREIGN_SHOWN]:
        output.indented(f"{output.size(value):>11}  {name}", 2, "dim")
    if rest := sum(value for _, value in ordered[FOREIGN_SHOWN:]):
        output.indented(f"{output.size(rest):>11}  in {len(ordered) - FOREIGN_SHOWN} more", 2, "dim")


def doctor(target: str, limit: float, json: bool) -> int:
    reader = Reader(target)
    source, target = reader.process, reader.process.target
    found = find(reader, limit)
    if json:
        output.as_json(as_dict(found))
        return found.status
    show(found)
    values = found.parts.values()
    worst = max(values.items(), key=lambda item: item[1] if item[0] not in ("not_folio", "own") else 0)[0]
    collectable = worst in ("dirty", "cached_cpus", "cached_depot") and reader.option("collect_from_outside").value
    collectable = collectable and not source.still
    output.next_command(f"folio collect {target}" if collectable else f"folio bins {target}  (which sizes hold it)")
    return found.status
