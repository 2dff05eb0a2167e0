"""How closely each program's first figure is known beside each peer, and which runs can still make it closer."""

from __future__ import annotations

from folio.rounds import Interval
from records import Record
from report import Results, results_of

Key = tuple[str, str]  # a case, an allocator


def ratios(results: Results) -> dict[Key, Interval]:
    """Of each case's first figure, as far as there is one: how many times better the base is than each other one."""
    found = {}
    for case in results.cases:
        for name in results.allocators:
            ratio = results.advantage(case, case.figures[0], results.base, name) if case.figures else None
            if name != results.base and ratio is not None:
                found[case.name, name] = ratio
    return found


def settled(records: list[Record], percent: float) -> set[Key]:
    """What needs no further run: the peers whose ratio is known so well, and the base where all peers' are."""
    results = results_of(records)
    known = ratios(results)
    done = {key for key, ratio in known.items() if ratio.settled(percent)}
    open_cases = {case for case, _ in known.keys() - done}
    return done | {(case.name, results.base) for case in results.cases if case.name not in open_cases}


def summary(results: Results, percent: float) -> str:
    """A sentence for the head of a report."""
    known = {key: ratio for key, ratio in ratios(results).items() if ratio.known}
    if not known:
        return ""
    close = sum(ratio.settled(percent) for ratio in known.values())
    (case, name), widest = max(known.items(), key=lambda item: item[1].percent)
    return (
        f"{close} of {len(known)} ratios of first figures are known to ± {percent:g} %; the widest to "
        f"± {widest.percent:.1f} % ({case}, {name})."
    )
