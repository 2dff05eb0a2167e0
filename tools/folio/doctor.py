"""`folio doctor`: each part of a process's resident memory, why it is there, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from folio import limit as limits
from folio import output
from folio.parts import TITLES, Parts, explain_well
from folio.pools import own_pools
from folio.reader import Reader

HEALTHY, RETAINS, NOT_EXACT = 0, 1, 3  # exit statuses; 2 is an error
RETAINED_LEAST = 16 << 20
FOREIGN_SHOWN = 5


@dataclass(frozen=True)
class Advice:
    cause: str
    advice: str


def advices(parts: Parts, options: dict[str, int], pid: int, pools: str) -> dict[str, Advice]:
    """`pools`: what to do about those of the program's own."""
    worst = max(parts.bins, key=lambda b: b.fragmented, default=None)
    worst_text = f", most in bin {worst.number} ({worst.size} bytes)" if worst and worst.fragmented else ""
    objects = sum(b.live_objects for b in parts.bins)
    kinds = [("large", parts.large), ("huge", parts.huge)]
    more = "".join(
        f", {output.size(each.live)} in {name} ones ({each.objects:,})" for name, each in kinds if each.objects
    )
    several = parts.threads > 1 or options.get("housekeeper") == 1 or options.get("collect_from_outside")
    goes = "It goes by itself" if several else "It goes as the program calls malloc or free"
    collect = (
        f"`folio collect {pid}` hastens it"
        if options.get("collect_from_outside")
        else "FOLIO_OPTIONS=decay:100 hastens it, collect_from_outside:on lets `folio collect` do so"
    )
    return {
        "live": Advice(
            f"{output.counted(objects, 'object')} that the program holds{more}.",
            f"Only the program can free them; `folio bins {pid}` shows their sizes.",
        ),
        "cached_threads": Advice(
            f"Free objects in the magazines of {output.counted(parts.threads, 'thread')}.",
            "FOLIO_OPTIONS=thread_cache:8,thread_cache_pool:2 keeps less, for more slow calls.",
        ),
        "cached_cpus": Advice(
            "Free objects that threads on the same CPU pass to each other.",
            "What two ticks do not use goes; FOLIO_OPTIONS=cpu_cache:256 keeps less.",
        ),
        "cached_depot": Advice(
            "Free objects on their way from threads that free to threads that allocate.",
            "What two ticks do not use goes; FOLIO_OPTIONS=depot:4096 keeps less.",
        ),
        "fragmented": Advice(
            f"Free objects on pages that a taken neighbour keeps{worst_text}.",
            "It is used before new memory is; what lives long is best allocated together, before what lives short.",
        ),
        "dirty": Advice(
            f"Free pages that wait to be used again before they are purged (decay {options.get('decay', 0)} ms).",
            f"{goes}; {collect}.",
        ),
        "metadata": Advice(
            f"What Folio knows of its chunks; largest: {largest(parts.metadata_kinds)}.",
            "It follows the number of objects, and is never given back: fewer, larger objects need less.",
        ),
        "padding": Advice(
            "Pages that the kernel gave along with a huge page, and nobody touched.",
            "Set /sys/kernel/mm/transparent_hugepage/enabled to madvise.",
        ),
        "own": Advice(
            "The library's own pages, mostly code that other processes share.",
            "Nothing to do.",
        ),
        "not_folio": Advice(
            "Files, stacks, and what the program maps by itself.",
            pools or "Look at the mappings below; Folio has no part in them.",
        ),
    }


def largest(kinds: dict[str, int]) -> str:
    return max(kinds, key=lambda kind: kinds[kind]) if kinds else "nothing"


def status_of(parts: Parts, limit_percent: float) -> int:
    if not parts.exact:
        return NOT_EXACT
    too_much = parts.retained > RETAINED_LEAST and parts.retained > limit_percent / 100 * max(parts.folio, 1)
    return RETAINS if too_much else HEALTHY


def as_dict(pid: int, parts: Parts, advice: dict[str, Advice], status: int, limit: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": 1,
        "pid": pid,
        "rss": parts.rss,
        "parts": {
            key: {"bytes": value, "cause": advice[key].cause, "advice": advice[key].advice}
            for key, value in parts.values().items()
        },
        "unexplained": parts.unexplained,
        "retained": parts.retained,
        "error_bound": parts.moved,
        "swapped": parts.swapped,
        "reserved_address_space": parts.reserved,
        "threads": parts.threads,
        "metadata": parts.metadata_kinds,
        "not_folio": parts.foreign,
        "fragmented_by_bin": {str(b.number): b.fragmented for b in parts.bins if b.fragmented},
        "dirty_by_bin": {str(b.number): b.dirty for b in parts.bins if b.dirty},
        "large": asdict(parts.large),
        "huge": asdict(parts.huge),
        "huge_pages": asdict(parts.huge_pages),
        "limit": limit,
        "read_seconds": round(parts.seconds, 6),
        "status": status,
    }


def show_parts(parts: Parts, console: Console = output.console) -> None:
    """Only the figures and bars."""
    made = output.table("part", "size", "of RSS", "")
    made.columns[3].justify = "left"
    for key, value in parts.values().items():
        made.add_row(TITLES[key], output.size(value), output.share(value, parts.rss), output.bar(value, parts.rss, 24))
    rest = parts.unexplained
    made.add_row("unexplained", output.size(rest), output.share(rest, parts.rss), "", style="dim")
    made.add_row("resident (RSS)", output.size(parts.rss), "100.0 %", "", style="bold")
    console.print(made)


def show(
    pid: int, command: str, parts: Parts, advice: dict[str, Advice], status: int, limit: float, distance: str
) -> None:
    output.say(output.one_line(f"process {pid}: {command}"), "bold")
    if parts.moved:
        bound = f"; the parts may be off by {output.size(parts.moved)}: what moved while it was read"
    else:
        bound = "; nothing moved while it was read"
    output.say(f"read in {parts.seconds * 1000:.1f} ms{bound}\n", "dim")
    show_parts(parts)
    output.say("")
    for key, value in parts.values().items():
        if value:
            output.say(f"{TITLES[key]} ({output.size(value)})", "bold")
            output.indented(advice[key].cause, 2)
            output.indented("→ " + advice[key].advice, 2, "cyan")
            if key == "not_folio":
                show_foreign(parts)
    show_huge_pages(parts)
    verdicts = {
        HEALTHY: "healthy: ",
        RETAINS: f"more than {limit:g} % of what Folio has is not live: ",
        NOT_EXACT: "the process changed too fast to be summed up; run it again: ",
    }
    text = f"{output.size(parts.retained)} of Folio's {output.size(parts.folio)} are not live (status {status})"
    output.say("\n" + verdicts[status] + text, "green" if status == HEALTHY else "yellow")
    if distance:
        output.say(f"{distance}; `folio limit {pid}` shows the ladder")
    if parts.swapped:
        output.say(f"swapped out, so in no part: {output.size(parts.swapped)}", "dim")


def show_huge_pages(parts: Parts) -> None:
    found = parts.huge_pages
    if not found.count and not found.others and not found.dense:
        return
    output.say(f"huge pages ({output.counted(found.count, 'chunk')} of small objects)", "bold")
    if found.count:
        by_share = ", ".join(f"{count:,} {name}" for name, count in found.by_density.items() if count)
        output.indented(f"By how much of them is in use: {by_share}.", 2)
    output.indented(
        f"They cost {output.size(found.free)} of free pages that stay for them, and save "
        f"{found.entries_saved:,} page-table entries ({found.others:,} are under large or huge objects). "
        f"{output.counted(found.dense, 'chunk')} of small pages could be huge.",
        2,
    )
    output.indented("→ FOLIO_OPTIONS=huge_pages:never does without them, for more TLB misses.", 2, "cyan")


def show_foreign(parts: Parts) -> None:
    ordered = sorted(parts.foreign.items(), key=lambda item: -item[1])
    for name, value in ordered[:FOREIGN_SHOWN]:
        output.indented(f"{output.size(value):>11}  {name}", 2, "dim")
    if rest := sum(value for _, value in ordered[FOREIGN_SHOWN:]):
        output.indented(f"{output.size(rest):>11}  in {len(ordered) - FOREIGN_SHOWN} more", 2, "dim")


def doctor(pid: int, limit: float, json: bool) -> int:
    reader = Reader(pid)
    options = {option.name: option.value for option in reader.options()}
    parts = explain_well(reader)
    advice = advices(parts, options, pid, own_pools(reader.process.program(), reader.process.environment()))
    status = status_of(parts, limit)
    in_force, held = limits.limits_of(reader), limits.held_by(reader, reader.view())
    if json:
        output.as_json(as_dict(pid, parts, advice, status, limits.as_dict(in_force, held)))
        return status
    show(pid, reader.process.command(), parts, advice, status, limit, limits.distance(in_force, held))
    worst = max(parts.values().items(), key=lambda item: item[1] if item[0] not in ("not_folio", "own") else 0)[0]
    collectable = worst in ("dirty", "cached_cpus", "cached_depot") and options.get("collect_from_outside")
    output.next_command(f"folio collect {pid}" if collectable else f"folio bins {pid}  (which sizes hold it)")
    return status
