"""What each part of a process's memory is, why it is there, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from folio import output
from folio.parts import Parts
from folio.source import Source


@dataclass(frozen=True)
class Advice:
    cause: str
    advice: str


def advices(parts: Parts, options: dict[str, int], source: Source, pools: str, locked: bool) -> dict[str, Advice]:
    """`pools`: what to do about those of the program's own; `locked`: it has locked memory."""
    worst = max(parts.bins, key=lambda b: b.fragmented, default=None)
    worst_text = f", most in bin {worst.number} ({worst.size} bytes)" if worst and worst.fragmented else ""
    objects = sum(b.live_objects for b in parts.bins)
    kinds = [("large", parts.large), ("huge", parts.huge), ("guarded", parts.guarded)]
    more = "".join(
        f", {output.size(each.live)} in {name} ones ({each.objects:,})" for name, each in kinds if each.objects
    )
    several = parts.threads > 1 or options.get("housekeeper") == 1 or options.get("collect_from_outside")
    goes = "It goes by itself" if several else "It goes as the program calls malloc or free"
    collect = (
        f"`folio collect {source.target}` hastens it"
        if options.get("collect_from_outside") and not source.still
        else "FOLIO_OPTIONS=decay:100 hastens it, collect_from_outside:on lets `folio collect` do so"
    )
    return {
        "live": Advice(
            f"{output.counted(objects, 'object')} that the program holds{more}.",
            f"Only the program can free them; `folio bins {source.target}` shows their sizes.",
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
        "padding": of_padding(parts, locked, options.get("huge_pages") == 1),
        "own": Advice(
            "The library's own pages, mostly code that other processes share.",
            "Nothing to do.",
        ),
        "not_folio": Advice(
            "What the program has beside its heap, by kind.",
            pools or "Folio has no part in it; what bounds each kind is named below.",
        ),
    }


def of_padding(parts: Parts, locked: bool, never: bool) -> Advice:
    """Folio asks for huge pages itself, whatever the system's setting says, as long as it is not `never`."""
    places = [("of small objects", sum(b.padding for b in parts.bins)), ("of large ones", parts.large.padding)]
    places.append(("of huge ones", parts.huge.padding))
    places.append(("of clusters that are not used up", parts.beside))
    where = ", ".join(f"{output.size(size)} {name}" for name, size in places if size)
    in_front = f"Free pages that nobody touched{f' ({where})' if where else ''}"
    if locked:
        return Advice(
            f"{in_front}: the program locks its memory (mlockall, mlock), so the kernel gives all pages at once.",
            "mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) locks pages only when they are touched.",
        )
    if never:
        return Advice(
            f"{in_front}, although Folio asks for no huge pages (huge_pages:never).",
            "The program asked for them itself (madvise, MAP_POPULATE), or a debugger has touched them.",
        )
    return Advice(
        f"{in_front}: the kernel gave them along with a huge page. Folio asks for these itself (madvise) under small "
        "objects of which there are many, large ones from 256 KiB on and huge ones that need not be zero, or moved as "
        "they grew; under other huge ones they come by the system's setting `always`, or as the program asks.",
        "FOLIO_OPTIONS=huge_pages:never does without both, for more TLB misses.",
    )


def largest(kinds: dict[str, int]) -> str:
    return max(kinds, key=lambda kind: kinds[kind]) if kinds else "nothing"
