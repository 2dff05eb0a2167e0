"""How a profile is shown: tables with errors in the terminal, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from folio import output
from folio.book import Sum, median_life_ms
from folio.profiling import Profile
from folio.sites import WHATS, Site, by_bin, by_thread, callers, sites, total
from folio.symbols import Frame, short

PATH_MOST = 3
PLAIN = ("malloc", "operator new", "operator new[]")


def with_error(sum_: Sum) -> str:
    """Of few samples an interval, since ± says little of them."""
    if sum_.samples == 0:
        return "–"
    if sum_.is_small:
        low, high = sum_.interval()
        return f"{output.size(low)} to {output.size(high)}"
    return f"{output.size(sum_.value)} ± {output.size(sum_.error)}" if sum_.error >= 0.5 else output.size(sum_.value)


def life(ms: float) -> str:
    return (
        "1 ms"
        if ms < 1
        else f"{ms:.0f} ms"
        if ms < 1000
        else f"{ms / 1000:.1f} s"
        if ms < 120_000
        else f"{ms / 60_000:.0f} min"
    )


def head(profile: Profile, how: str) -> list[str]:
    columns = profile.columns
    live = total(profile, "live")
    lines = [
        f"process {profile.pid}: {output.one_line(profile.command, 70)}",
        ("live " if profile.complete else "live, of what was allocated meanwhile: ") + with_error(live),
    ]
    if profile.pages_known:
        lines[-1] += f"; of it resident {with_error(total(profile, 'resident'))}"
    if profile.seconds:
        span = "since it started" if profile.since_start else f"within {profile.seconds:.1f} s"
        allocated = profile.allocated()
        rate = f", {output.size(allocated.value / profile.seconds)} a second" if profile.seconds >= 0.1 else ""
        lines.append(f"allocated {span}: {with_error(allocated)}{rate}")
    peak, when = total(profile, "peak"), profile.peak[1]
    if peak.value > 1.05 * live.value:
        lines.append(f"most live at once: {with_error(peak)}, {life(max(profile.now_ms - when, 0))} before the end")
    median, longest = median_life_ms(columns, profile.now_ms)
    if int((~columns.live).sum()) and len(columns) >= 16:
        lived = f"half of the objects are freed within {life(median)}" if median is not None else ""
        lines.append(lived or f"more than half of the objects outlive the {life(longest)} that were seen")
    count = int(columns.count.sum())
    lines.append(
        f"{output.counted(count, 'sample')}, one in {output.size(profile.interval)} at random"
        + (f"; {how}" if how else "")
    )
    return lines


def site_rows(profile: Profile, rows: int, by: str, made: Any) -> int:
    """Returns how many have no row."""
    whole = total(profile, by).value
    found = [site for site in sites(profile, by) if by in site.own]
    for site in found[:rows]:
        own = site.own[by]
        made.add_row(
            with_error(own),
            output.share(own.value, whole),
            output.size(site.below[by].value) if by in site.below else "",
            described(site),
        )
    return max(len(found) - rows, 0)


def described(site: Site) -> Text:
    """The function, and below it who called it."""
    text = Text(short(site.frame.function))
    if site.frame.where:
        text.append(f" {site.frame.where}", "dim")
    if site.through and site.through not in PLAIN:
        text.append(f" by {site.through}", "dim")
    if names := callers(site.path):
        text.append("\n← " + " ← ".join(names[:PATH_MOST]) + (" ← …" if len(names) > PATH_MOST else ""), "dim")
    return text


def few(profile: Profile, by: str) -> str:
    """What to do where the samples are too few to say much."""
    sum_ = total(profile, by)
    if sum_.samples and sum_.error <= 0.1 * sum_.value:
        return ""
    smaller = max(profile.interval // 16, 1024) >> 10
    if profile.since_start:
        more = f"--interval {smaller}K gives more"
    elif profile.complete:
        more = f"start it with FOLIO_OPTIONS=profile:{smaller << 10}, for more"
    else:
        more = f"a longer --for, or --interval {smaller}K, gives more"
    return f"{output.counted(sum_.samples, 'sample')} say little: {more}"


def show(profile: Profile, rows: int, by: str, console: Any, how: str = "") -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(output.plain(text), style=style), soft_wrap=True)

    lines = head(profile, how)
    say(lines[0], "bold")
    for line in lines[1:]:
        say(line)
    if len(profile.columns):
        made = output.table(by, "share", "with callees", left=0)
        made.add_column("function", overflow="fold", ratio=1)
        left = site_rows(profile, rows, by, made)
        console.print()
        console.print(made)
        if left:
            say(f"and {output.counted(left, 'more function')}: --rows {rows + left}", "dim")
        groups(profile, by, console)
    for note in [few(profile, by), *profile.notes]:
        if note:
            console.print()
            say(note, "dim")
    other, more = "live" if by == "allocated" else "allocated", "--html heap.html"
    words = f"{profile.target} {more}" if profile.target else f"{more} -- PROGRAM"
    say(f"\nnext: folio profile {words}  (a flame graph), --sort {other}, --pprof FILE", "dim")


def groups(profile: Profile, by: str, console: Any) -> None:
    """By thread and by bin, where there is more than one."""
    whole = total(profile, by).value
    for name, found in (("thread", by_thread(profile, by)), ("object size", by_bin(profile, by))):
        if len(found) < 2 or whole == 0:
            continue
        made = output.table(name, by, "share")
        for key, sum_ in list(found.items())[:5]:
            shown = f"to {int(str(key)):,} B" if name != "thread" and str(key).isdigit() else str(key)
            made.add_row(shown, with_error(sum_), output.share(sum_.value, whole))
        console.print()
        console.print(made)
        if len(found) > 5:
            console.print(Text(f"and {len(found) - 5} more", style="dim"))


# ---- JSON ----


def sum_dict(sum_: Sum) -> dict[str, Any]:
    low, high = sum_.interval()
    return {
        "bytes": round(sum_.value),
        "standard_error": round(sum_.error),
        "interval_95": [round(low), round(high)],
        "samples": sum_.samples,
    }


def frame_dict(frame: Frame) -> dict[str, Any]:
    return {
        "function": frame.function,
        "file": frame.file,
        "line": frame.line,
        "module": frame.module.name if frame.module else "",
        "build_id": frame.module.build_id if frame.module else "",
        "address": frame.address,
        "inlined": frame.inlined,
    }


def as_dict(profile: Profile, rows: int, by: str) -> dict[str, Any]:
    median, longest = median_life_ms(profile.columns, profile.now_ms)
    when = profile.peak[1]

    def all_of(sums: dict[str, Sum]) -> dict[str, Any]:
        known = {what: sum_dict(sums.get(what, Sum())) for what in WHATS}
        return known if profile.pages_known else known | {"resident": None}

    return {
        "version": 1,
        "pid": profile.pid,
        "command": profile.command,
        "interval": profile.interval,
        "seconds": profile.seconds,
        "since_start": profile.since_start,
        "samples": int(profile.columns.count.sum()),
        "missed": profile.missed,
        "missed_bytes": profile.missed_bytes,
        "total": all_of({what: total(profile, what) for what in WHATS} | {"allocated": profile.allocated()}),
        "objects": {
            what: {"count": round(sum_.value), "standard_error": round(sum_.error)}
            for what in ("live", "allocated")
            for sum_ in [total(profile, what, objects=True)]
        },
        "peak_seconds_ago": max(profile.now_ms - when, 0) / 1000 if when else None,
        "lifetime": {"median_ms": median, "longest_seen_ms": longest},
        "functions": [
            {
                "frame": frame_dict(site.frame),
                "itself": all_of(site.own),
                "with_callees": all_of(site.below),
                "callers": [frame_dict(frame) for frame in site.path],
            }
            for site in sites(profile, by)
            if site.own
        ][:rows],
        "threads": {str(key): sum_dict(sum_) for key, sum_ in by_thread(profile, by).items()},
        "bins": {str(key): sum_dict(sum_) for key, sum_ in by_bin(profile, by).items()},
        "notes": profile.notes,
    }
