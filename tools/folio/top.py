"""`folio top`: the parts of a process's memory over time, its bins and its caches, on a live screen.

A look is made once an interval, in a thread of its own, so that keys are answered meanwhile. What the library does not
count, such as mallocs a second, is not shown: rates are differences between two looks.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from folio import output
from folio.bins import occupancy, ordered, wasted
from folio.caches import Held, ThreadNames, caches_of, resident_of
from folio.errors import FolioError, NewProgram, NotOnFolio, ProcessGone
from folio.heap import FOLIO_OBJECTS, Heap
from folio.limit import distance, held_by, limits_of
from folio.parts import TITLES, BinParts, HugePages, Parts, explain, not_exact
from folio.reader import Reader, of_new_program

HISTORY = 120  # looks
SPARK = " ▁▂▃▄▅▆▇█"
SORTS = {"held": "what they hold", "wasted": "what they waste", "rate": "how fast they change", "size": "size"}
SORTED_BY = {"held": "resident", "wasted": "not live", "rate": "live, change", "size": "object"}  # columns
STYLES = {
    "live": "green",
    "cached_threads": "cyan",
    "cached_cpus": "cyan",
    "cached_depot": "cyan",
    "fragmented": "yellow",
    "dirty": "magenta",
    "metadata": "blue",
    "padding": "magenta",
    "own": "blue",
    "not_folio": "white",
}
FILLS = ((0.0, "empty"), (0.25, "to a quarter"), (0.5, "to a half"), (0.75, "to three quarters"), (1.0, "almost full"))


@dataclass(frozen=True)
class Poll:
    """What is kept of a look: sums only, since there are many."""

    at: float
    values: dict[str, int]  # of the parts, and "rss" and "purged"
    live: dict[int, int]  # bytes, by bin


@dataclass(frozen=True)
class Last:
    """The newest look, whole."""

    parts: Parts
    heap: Heap
    purged: int
    limit: str  # how near it is; empty where there is none


@dataclass
class Watched:
    """A process, and what was seen of it."""

    pid: int
    reader: Reader
    command: str = ""
    polls: deque[Poll] = field(default_factory=lambda: deque(maxlen=HISTORY))
    last: Last | None = None
    ended: str = ""
    changed: str = ""  # it runs another program than at first

    def __post_init__(self) -> None:
        self.names = ThreadNames(self.reader.process.root)
        self.command = output.one_line(self.reader.process.command(), 60)

    def poll(self) -> None:
        if self.ended:
            return
        try:
            try:
                self.add_poll()
            except NewProgram:
                self.begin_again()
                self.add_poll()
        except NewProgram:
            pass  # and another one: at the next look
        except NotOnFolio:
            self.ended = "runs another program now (exec), which is not on Folio: this is what was seen before"
        except ProcessGone:
            self.ended = "has ended: this is what was seen last"
        except FolioError as error:
            self.ended = str(error)

    def add_poll(self) -> None:
        # Once: where much moved meanwhile, the next look is better than the same again.
        reading = self.reader.reading(most=1)
        parts = explain(self.reader, reading)
        purged = self.reader.counter("purged")
        limit = distance(limits_of(self.reader), held_by(self.reader, reading.heap))
        self.last = Last(parts, reading.heap, purged, limit)
        if parts.exact or not self.polls:
            values = parts.values() | {"rss": parts.rss, "purged": purged}
            self.polls.append(Poll(time.monotonic(), values, {b.number: b.live for b in parts.bins}))

    def begin_again(self) -> None:
        self.reader = of_new_program(self.pid)
        self.polls.clear()
        self.command = ""
        self.__post_init__()
        self.changed = "runs another program since it is watched (exec): what is shown is of that one"

    def rate(self, what: str) -> float | None:
        """Of a part of the last two looks, in bytes a second; also of "rss" and "purged"."""
        if len(self.polls) < 2:
            return None
        before, now = self.polls[-2], self.polls[-1]
        return (now.values.get(what, 0) - before.values.get(what, 0)) / max(now.at - before.at, 1e-3)

    def rate_of_bin(self, number: int) -> float:
        if len(self.polls) < 2:
            return 0.0
        before, now = self.polls[-2], self.polls[-1]
        return (now.live.get(number, 0) - before.live.get(number, 0)) / max(now.at - before.at, 1e-3)


def rate_text(rate: float | None) -> str:
    if rate is None or abs(rate) < 1:
        return ""
    return f"{'+' if rate > 0 else ''}{output.size(rate)}/s"


def spark(values: list[int], width: int) -> str:
    """The last `width` values, the greatest of them a whole cell high."""
    values = values[-width:]
    most = max(values, default=0)
    return "".join(SPARK[round(8 * v / most)] if most and v > 0 else " " for v in values).rjust(width)


def parts_text(watched: Watched, width: int) -> Text:
    """A line for each part: size, share, bar, change a second, and the last looks."""
    text = Text(no_wrap=True)
    assert watched.last is not None
    last = watched.last.parts
    rest = max(width - 59, 10)
    bars, sparks = rest // 2, rest - rest // 2
    for key, value in last.values().items():
        history = [poll.values[key] for poll in watched.polls]
        text.append(f"{TITLES[key]:<21} {output.size(value):>10} {output.share(value, last.rss):>8} ")
        text.append(f"{output.bar(value, last.rss, bars):<{bars}} ", STYLES[key])
        text.append(f"{rate_text(watched.rate(key)):>14} ", "dim")
        text.append(spark(history, sparks) + "\n", STYLES[key])
    history = [poll.values["rss"] for poll in watched.polls]
    text.append(f"{'resident (RSS)':<21} {output.size(last.rss):>10} {'100.0 %':>8} {'':<{bars}} ", "bold")
    text.append(f"{rate_text(watched.rate('rss')):>14} {spark(history, sparks)}", "bold")
    return text


def huge_pages_text(found: HugePages) -> str:
    """Two lines, each of less than 80 columns where the numbers are not huge themselves."""
    by_share = ", ".join(f"{count:,} {name}" for name, count in found.by_density.items() if count)
    saved = f"{found.entries_saved:,} page-table entries saved"
    return f"huge pages: {found.count:,}; {output.size(found.free)} free in them, {saved}\n  in use: {by_share}"


class BinScreen(ModalScreen[None]):
    """One bin: its chunks, and how full their folios are."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "back")]
    CSS = """
    BinScreen { align: center middle }
    VerticalScroll { width: 76; height: 90%; border: round $accent; padding: 0 1 }
    """

    def __init__(self, heap: Heap, parts: BinParts) -> None:
        super().__init__()
        self.text = bin_text(heap, parts)

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(self.text, id="bin"))
        yield Footer()


def bin_text(heap: Heap, parts: BinParts) -> Text:
    bin_ = heap.bins[parts.number]
    text = Text(f"bin {parts.number}: objects of {parts.size:,} bytes\n\n", "bold", no_wrap=True)
    for name, value in [("live", parts.live), ("cached", sum(parts.cached.values())), ("fragmented", parts.fragmented),
                        ("dirty", parts.dirty), ("padding", parts.padding)]:  # fmt: skip
        text.append(f"{name:<12} {output.size(value):>10}  {output.bar(value, parts.resident, 40)}\n", "")
    folios = np.bitwise_count(bin_.live) / FOLIO_OBJECTS
    text.append(f"\nfolios ({FOLIO_OBJECTS} objects), by how many of their objects are live\n", "bold")
    edges = [0.0, 1e-9, 0.25, 0.5, 0.75, 1.0, 2.0]
    names = [*(name for _, name in FILLS), "full"]
    for name, low, high in zip(names, edges[:-1], edges[1:], strict=True):
        count = int(((folios >= low) & (folios < high)).sum())
        text.append(f"{name:<18} {count:>8,}  {output.bar(count, folios.size, 40)}\n")
    text.append("\nchunks\n", "bold")
    live = np.bitwise_count(bin_.live).sum(axis=1)
    for address, count in zip(bin_.chunks, live, strict=True):
        share = int(count) / bin_.info.objects
        text.append(f"{int(address):#x}  {100 * share:5.1f} % live  {output.bar(share, 1, 30)}\n")
    return text


class Top(App[None]):
    CSS = """
    #head { height: auto; text-style: bold } #parts { height: auto; margin: 1 0 }
    DataTable { height: 1fr }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort", "sort"),
        Binding("space", "freeze", "freeze"),
        Binding("t", "caches", "bins or caches"),
        Binding("enter", "open", "open a bin", priority=False),
        Binding("n", "next", "next process"),
    ]

    def __init__(self, readers: list[Reader], every: float) -> None:
        super().__init__()
        self.watched = [Watched(reader.process.pid, reader) for reader in readers]
        self.every = every
        self.shown = 0
        self.sort = "held"
        self.caches = False
        self.frozen = False
        self.polling = False

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Static(id="parts")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.title = "folio top"
        self.begin_poll()
        self.set_interval(self.every, self.begin_poll)

    # ---- Looks ----

    def begin_poll(self) -> None:
        if self.frozen or self.polling:
            return
        self.polling = True
        self.run_worker(self.poll_all, thread=True)

    def poll_all(self) -> None:
        for watched in self.watched:
            watched.poll()
        self.call_from_thread(self.end_poll)

    def end_poll(self) -> None:
        self.polling = False
        self.draw()

    # ---- The screen ----

    @property
    def now(self) -> Watched:
        return self.watched[self.shown]

    def draw(self) -> None:
        watched = self.now
        self.query_one("#head", Static).update(self.head_text(watched))
        if watched.last is None:
            return
        self.query_one("#parts", Static).update(parts_text(watched, self.size.width))
        if self.caches:
            titles, rows = cache_rows(watched, watched.last)
        else:
            titles, rows = self.bin_rows(watched)
        fill(self.query_one("#table", DataTable), titles, rows)

    def head_text(self, watched: Watched) -> Text:
        text = Text(f"process {watched.pid}: {output.plain(watched.command)}", no_wrap=True)
        if len(self.watched) > 1:
            text.append(f"  ({self.shown + 1} of {len(self.watched)})")
        if last := watched.last:
            off = f", off by up to {output.size(last.parts.moved)}" if last.parts.moved else ""
            purged = rate_text(watched.rate("purged"))
            text.append(f"\n{output.counted(last.parts.threads, 'thread')} with a cache, "
                        f"purged {output.size(last.purged)} in all{' ' + purged if purged else ''}, "
                        f"read in {last.parts.seconds * 1000:.0f} ms{off}", "dim")  # fmt: skip
            if not last.parts.exact:
                text.append(f"\nnot exact: {not_exact(last.parts)}", "yellow")
            if last.parts.huge_pages.count:
                text.append(f"\n{huge_pages_text(last.parts.huge_pages)}", "dim")
            if last.limit:
                text.append(f"\n{last.limit}", "yellow" if "calm" not in last.limit else "dim")
        if watched.changed:
            text.append(f"\n{watched.changed}", "yellow")
        if watched.ended:
            text.append(f"\n{watched.ended}", "red")
        elif self.frozen:
            text.append("\nfrozen: space goes on", "reverse")
        return text

    def rows(self, watched: Watched, parts: Parts) -> list[BinParts]:
        if self.sort == "rate":
            return sorted(parts.bins, key=lambda b: -abs(watched.rate_of_bin(b.number)))
        return ordered(parts, self.sort)

    def bin_rows(self, watched: Watched) -> tuple[list[str], dict[str, list[str]]]:
        """The titles, of which that of the order is marked, and the cells by the rows' keys."""
        assert watched.last is not None
        names = ["bin", "object", "live objects", "resident", "not live", "occupied", "live, change"]
        mark = "▲" if self.sort == "size" else "▼"
        titles = [f"{name} {mark}" if name == SORTED_BY[self.sort] else name for name in names]
        rows = {
            str(b.number): [
                str(b.number),
                f"{b.size:,}".rjust(8),
                f"{b.live_objects:,}".rjust(12),
                output.size(b.resident).rjust(10),
                output.size(wasted(b)).rjust(10),
                f"{100 * occupancy(b):.0f} %".rjust(8),
                rate_text(watched.rate_of_bin(b.number)).rjust(12),
            ]
            for b in self.rows(watched, watched.last.parts)
        }
        return titles, rows

    # ---- Keys ----

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]
        self.notify(f"bins by {SORTS[self.sort]}", timeout=2)
        self.draw()

    def action_freeze(self) -> None:
        self.frozen = not self.frozen
        self.draw()

    def action_caches(self) -> None:
        self.caches = not self.caches
        self.draw()

    def action_next(self) -> None:
        self.shown = (self.shown + 1) % len(self.watched)
        self.draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.open_bin(event.row_key.value)

    def action_open(self) -> None:
        pass  # the table says which row: on_data_table_row_selected

    def open_bin(self, key: str | None) -> None:
        last = self.now.last
        if key is None or not key.isdigit() or last is None:
            return
        parts = next((b for b in last.parts.bins if b.number == int(key)), None)
        if parts is not None:
            self.push_screen(BinScreen(last.heap, parts))


def cache_rows(watched: Watched, last: Last) -> tuple[list[str], dict[str, list[str]]]:
    """A row for each cache, and what they sum to."""
    held = caches_of(last.heap, watched.names)
    rows = {f"{c.place} {c.number}": [cache_name(c), c.name, output.size(c.bytes).rjust(12)] for c in held}
    rows["all"] = ["all", "", output.size(sum(cache.bytes for cache in held)).rjust(12)]
    rows["resident"] = ["of it resident, as above", "", output.size(resident_of(last.parts)).rjust(12)]
    return ["cache", "name of the thread", "free objects in it ▼"], rows


def cache_name(cache: Held) -> str:
    return {"thread": f"thread {cache.number}", "cpu": f"CPU cache {cache.number}", "depot": "depot"}[cache.place]


def fill(table: DataTable, titles: list[str], rows: dict[str, list[str]]) -> None:
    """Writes what has changed only: to make a table anew costs more than the look."""
    clean = {key: [Text(output.plain(cell)) for cell in cells] for key, cells in rows.items()}
    shown = [str(column.label) for column in table.ordered_columns]
    if shown == titles and [row.key.value for row in table.ordered_rows] == list(rows):
        for key, cells in clean.items():
            for column, cell, before in zip(table.ordered_columns, cells, table.get_row(key), strict=True):
                if cell != before:
                    table.update_cell(key, column.key, cell)
        return
    row, scroll = table.cursor_row, table.scroll_y
    table.clear(columns=shown != titles)
    if shown != titles:
        table.add_columns(*titles)
    for key, cells in clean.items():
        table.add_row(*cells, key=key)
    if table.row_count:
        table.move_cursor(row=min(row, table.row_count - 1), scroll=False)
        table.scroll_to(y=scroll, animate=False)


def after(watched: list[Watched]) -> str:
    """What to do next: with the first that is still there, else with the program when it runs again."""
    for each in watched:
        if not each.ended and each.reader.process.is_there():
            return f"folio doctor {each.pid}  (why the memory is there)"
    many = "these programs have" if len({each.pid for each in watched}) > 1 else "the program has"
    return f"folio run -- PROGRAM  ({many} ended: what one needs at its peak)"


def show(pids: list[int], every: float) -> int:
    app = Top([Reader(pid) for pid in pids], every)
    app.run()
    output.next_command(after([app.now, *app.watched]))
    return 0
