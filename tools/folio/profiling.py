"""Takes a heap profile of a running process: switches sampling on, looks at the samples often enough, switches it off.

What is looked at is unwound at once, with what is mapped then; names are looked up at the end (folio.symbols).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice

import numpy as np

from folio import output
from folio.book import Book, Columns, Sum, chance, peak_of
from folio.calls import Seam, must_run
from folio.errors import FolioError, ProcessGone
from folio.modules import MadeCode, Modules
from folio.pages import among
from folio.process import PAGE
from folio.profile_file import ProfileFile
from folio.reader import Reader
from folio.samples import LIVE, POLL_SECONDS_LEAST, Batch, Ends, Feed, Samples
from folio.symbols import Frame, Symbols, trimmed
from folio.unwind import Unwinder

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = "interrupted"
POLL_SECONDS, CALMER = 0.25, 1.1
BATCHES = 2  # of stacks that are held in memory: up to 128 MiB


def grouped(items: Iterator[Batch | Ends], most: int) -> Iterator[list[Batch | Ends]]:
    while group := list(islice(items, most)):
        yield group


@dataclass
class Profile:
    """All that was found, with names. Stacks by their number: frames, the innermost first."""

    pid: int
    target: str  # what names it on a command line; "": it has ended
    command: str
    program: str  # the file that it runs
    interval: int
    seconds: float  # for which allocations were seen; 0: it was only read
    since_start: bool  # of the process: allocations are, too
    complete: bool  # nothing live was allocated before it was profiled
    columns: Columns
    began: int  # numbers of samples up to this were made before that
    resident: np.ndarray  # of each sample, the share of its bytes on resident pages
    pages_known: bool  # else that is not known
    stacks: list[list[Frame]]
    threads: dict[int, str]
    bins: list[tuple[int, int]]  # (bin, the largest size)
    now_ms: int
    missed: int = 0  # samples, and the bytes of their objects
    missed_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def allocated(self) -> Sum:
        """With those that were missed: of these the number and all their bytes are known."""
        sum_ = self.columns.bytes(self.masks()["allocated"][0])
        if not self.missed or not self.missed_bytes:
            return sum_
        p = float(chance(self.missed_bytes / self.missed, self.interval))
        more, each = self.missed_bytes / p, self.missed_bytes / self.missed / p
        return Sum(sum_.value + more, sum_.variance + self.missed * each**2 * (1 - p), sum_.samples, sum_.step)

    @cached_property
    def peak(self) -> tuple[np.ndarray, int]:
        return peak_of(self.columns)

    def masks(self) -> dict[str, tuple[np.ndarray, np.ndarray | float]]:
        """Which samples a figure is of, and the share of each that counts."""
        columns = self.columns
        new = columns.number > self.began
        folded = columns.number == 0
        return {
            "live": (columns.live, 1.0),
            "peak": (self.peak[0], 1.0),
            "allocated": (new | folded, 1.0),
            "resident": (columns.live, self.resident),
        }

    def bin_of(self, size: int) -> str:
        return next((f"{most}" for _, most in self.bins if size <= most), "large")


class Session:
    """Of one process. Between `begin` and `end` it is profiled, unless it is anyway."""

    def __init__(self, reader: Reader | ProfileFile, interval: int, since_start: bool = False) -> None:
        self.reader = reader
        self.still = getattr(reader.process, "still", False)  # a file: it is read once
        self.seam = None if self.still or isinstance(reader, ProfileFile) else Seam(reader)
        self.modules = Modules(reader.process)
        self.made = MadeCode(reader.process)
        self.samples = Samples(reader)
        self.unwinder = Unwinder(self.modules, self.made, reader.layout.sample_stack_bytes)
        self.symbols = Symbols(self.unwinder.places)
        self.unwinder.at_module = self.symbols.open
        self.feed: Feed | None = None
        self.book = Book()
        self.threads: dict[int, str] = {}
        self.interval, self.since_start = interval, since_start
        self.was_on = self.is_on = self.complete = False
        self.joined: int | None = None  # the number of another command's closing, with which sampling ends
        self.over_time = True
        self.pages_known = self.has_ended = False
        self.pause = 2 * POLL_SECONDS_LEAST  # slots are used again soon where little lives long
        self.seen = self.seen_bytes = self.missed = 0
        self.lost = self.lost_before = 0  # of those that were missed: they had no slot
        self.command = output.one_line(reader.process.command(), 200)
        self.program = reader.process.program()
        self.resident: dict[int, float] = {}
        self.began = self.made_last = 0
        self.counts = self.counts_then = self.seam.counts() if self.seam else np.zeros(0, np.uint64)
        self.began_at = self.now = time.monotonic()

    def _chosen_bytes(self) -> int:
        return int((self.counts - self.counts_then)[self.reader.layout.bins + 2]) if self.seam else 0

    def current_interval(self) -> int:
        """0: it is not profiled now."""
        if isinstance(self.reader, ProfileFile):
            return self.reader.interval
        layout, process = self.reader.layout, self.reader.process
        if self.seam and self.seam.mode() != layout.mode_closed:
            return 0
        return int.from_bytes(process.read(layout.seam_setting, 8), "little")

    def in_sandbox(self) -> bool:
        """Whether the library's process_vm_readv, by which it copies stacks, may get the process killed."""
        return self.reader.process.status().get("Seccomp") == "2"

    def begin(self) -> None:
        now = self.current_interval()
        self.was_on = now != 0 or self.still
        self.began, self.lost_before = (0, 0) if self.since_start else self.samples.counts()
        if self.was_on:
            self.interval = now
            self.complete = isinstance(self.reader, ProfileFile) or self.reader.option("profile").value == now != 0
            if self.seam and not self.complete and not self.since_start:
                self.joined = self.seam.number_now()
                self.samples.after = self.began  # since when the other command profiles is not known
        elif self.seam:
            must_run(self.reader.process)
            self.samples.after = self.began  # of an earlier profile more is not known
            self.is_on = True
            self.seam.close(self.interval, carefully=self.in_sandbox())
        if self.since_start:
            self.counts_then = np.zeros_like(self.counts_then)
        self.began_at = time.monotonic()

    def end(self) -> None:
        if self.is_on and self.seam:
            self.is_on = False
            self.seam.open()

    def poll(self) -> None:
        if self.seam:
            self.seam.check_image()
            self.counts = self.seam.counts()
            if self.is_on and not self.seam.holds():
                self.is_on = False
                raise FolioError("sampling ended: another command took it over, or this one was stopped for too long")
            if self.joined is not None and not (self.current_interval() and self.seam.number_now() == self.joined):
                self.joined = None
                raise FolioError("sampling ended with the other command that had begun it; run this one again for more")
        self.take()

    def finish_from(self, file: ProfileFile) -> None:
        """The process has ended, and this is what it left."""
        self.samples.go_on_in(file)
        self.pages_known, self.has_ended = False, True
        self.modules.process = file.process
        self.take()

    def start_feed(self) -> None:
        """From now on samples are read in another thread; `poll` only has to unwind them."""
        self.feed = Feed(self.samples)
        self.feed.start()

    def stop_feed(self) -> None:
        if self.feed is not None:
            feed, self.feed = self.feed, None
            self._add_all(feed.stop())

    def take(self) -> None:
        made, lost = self.samples.counts()
        if self.feed is not None:
            self._add_all(self.feed.take())
        else:
            ends = Ends()
            self._add_all(self.samples.poll(ends))
            self.book.end(ends.numbers, ends.freed_ms)
        self.now = time.monotonic()
        missed = max(made - self.began - self.seen, 0)
        if missed > self.missed:
            self.pause = max(self.pause / 2, POLL_SECONDS_LEAST)
        else:
            self.pause = min(self.pause * CALMER, POLL_SECONDS)
        if self.feed is not None:
            self.feed.pause = self.pause
        self.missed, self.made_last = missed, made
        self.lost = min(lost - self.lost_before, missed)

    def _add_all(self, items: Iterator[Batch | Ends]) -> None:
        with suppress(ProcessGone):  # then the mappings that were seen last hold
            self.modules.poll()
        # All is read before the first is unwound, as far as there is room.
        for group in grouped(items, BATCHES):
            with suppress(ProcessGone):
                self.modules.poll()  # what was loaded meanwhile
            self.made.poll()
            for item in group:
                if isinstance(item, Ends):
                    self.book.end(item.numbers, item.freed_ms)
                else:
                    self._add(item)

    def _add(self, batch: Batch) -> None:
        marks = batch.samples["mark"]
        which = (marks & 3 == LIVE) | (marks >> 2 > self.began)
        new = batch.samples[which]
        self._name_threads(set(new["thread"].tolist()))
        unwound = self.unwinder.unwind(new["registers"], batch.words, batch.first[which], new["stack_bytes"])
        self.book.add(new, unwound.frames, unwound.ends)
        counted = new["mark"] >> 2 > self.began
        self.seen += int(counted.sum())
        self.seen_bytes += int(new["size"][counted].sum())

    def _name_threads(self, found: set[int]) -> None:
        for thread in found - self.threads.keys():
            try:
                file = self.reader.process.root / "task" / str(thread) / "comm"
                self.threads[thread] = file.read_text(errors="replace").strip()
            except (OSError, AttributeError):
                self.threads[thread] = ""

    def poll_pages(self) -> None:
        """Which of the live objects' pages are resident."""
        if not getattr(self.reader.process, "tells_pages", True):
            return
        self.pages_known = True
        ranges = self.reader.scanner.scan_all(self.reader.process.mappings())
        pages = ranges.resident()
        columns = self.book.columns()
        live = columns.live & (columns.size > 0)
        start, end = columns.object[live], columns.object[live] + columns.size[live]
        share = np.zeros(int(live.sum()))
        # Bytes, not pages: of the first and the last page only a part is the object's.
        first, last = start // PAGE, (end - 1) // PAGE
        inner = np.searchsorted(pages, last + 1) - np.searchsorted(pages, first)
        share += inner * PAGE
        share -= np.where(among(pages, first), start - first * PAGE, 0)
        share -= np.where(among(pages, last), (last + 1) * PAGE - end, 0)
        self.resident = dict(zip(columns.number[live].tolist(), (share / (end - start)).tolist(), strict=True))

    def profile(self) -> Profile:
        columns = self.book.columns()
        library = self.reader.layout.library
        own = "" if library.linked_in else library.path
        known, stacks = self.symbols.all(), []
        for places, end in self.book.stacks:
            frames = list(chain.from_iterable(map(known.__getitem__, places)))
            stacks.append(trimmed(frames, own) + ([Frame(end)] if end else []))
        resident = np.array([self.resident.get(number, 0.0) for number in columns.number.tolist()])
        return Profile(
            pid=self.reader.process.pid,
            target="" if self.has_ended else str(self.reader.process.path if self.still else self.reader.process.pid),
            command=self.command,
            program=self.program,
            interval=self.interval,
            seconds=self.now - self.began_at if self.over_time else 0.0,
            since_start=self.since_start,
            complete=self.complete,
            columns=columns,
            began=self.began,
            resident=resident,
            pages_known=self.pages_known,
            stacks=stacks,
            threads=dict(self.threads),
            bins=[(info.number, info.size) for info in self.reader.infos],
            now_ms=self._now_ms(columns),
            missed=self.missed,
            missed_bytes=max(self._chosen_bytes() - self.seen_bytes, 0),
            notes=self._notes(columns),
        )

    def _now_ms(self, columns: Columns) -> int:
        if isinstance(self.reader, ProfileFile):
            return self.reader.now_ms
        if self.still and (now_ms := getattr(self.reader.process, "now_ms", None)):
            return int(now_ms)
        if self.still:
            return int(max(columns.written_ms.max(initial=0), columns.freed_ms.max(initial=0)))
        ahead = self.seam.ahead if self.seam else None
        return int((self.now + (ahead or 0.0)) * 1000)

    def _notes(self, columns: Columns) -> list[str]:
        """What the profile cannot know, a line each, and what to do about it."""
        notes = []
        if self.missed:
            whole = max(self.made_last - self.began, 1)
            lost = max(self._chosen_bytes() - self.seen_bytes, 0)
            of_bytes = f" ({output.share(lost, lost + self.seen_bytes)} of their bytes)" if lost else ""
            why = []
            if overwritten := self.missed - self.lost:
                why.append(f"{overwritten:,} were overwritten before they were read, since their objects lived short")
            if self.lost:
                why.append(f"{self.lost:,} came while another thread made room for more")
            notes.append(
                f"{self.missed:,} of {whole:,} samples{of_bytes} are in no function's figure: {'; '.join(why)}; a "
                "larger --interval loses fewer"
            )
        newer = sorted(m.short for m in self.modules.known.values() if m.newer)
        if newer:
            notes.append(f"newer than what is read: {', '.join(newer)}; names in them may be wrong")
        unnamed: dict[str, str] = {}
        # The outermost frames start threads and programs: their names tell nothing.
        for place in {place for places, _ in self.book.stacks for place in places[:-3]}:
            frame = self.symbols.all()[place][0]
            if not frame.named and frame.module is not None:
                unnamed[frame.module.short] = frame.module.problem
        gone = sorted(name for name, problem in unnamed.items() if problem)
        plain = sorted(name for name, problem in unnamed.items() if not problem)
        if gone:
            notes.append(f"no names in {', '.join(gone)}: {unnamed[gone[0]]}; restart the process on the new file")
        if plain:
            notes.append(
                f"places without a name in {', '.join(plain)}: stripped; their debug symbols (Debian: -dbgsym or -dbg "
                "packages; debuginfod-find debuginfo BUILD-ID) give names"
            )
        if self.unwinder.without_table:
            names = ", ".join(sorted(self.unwinder.without_table))
            notes.append(
                f"stacks end early in {names}: no unwind table and no frame pointers there (-fno-omit-frame-pointer, "
                "or -fasynchronous-unwind-tables)"
            )
        cut = sum(end == "[stack cut]" for _, end in self.book.stacks)
        if cut:
            notes.append(
                f"{output.counted(cut, 'stack')} of {len(self.book.stacks):,} reached beyond the "
                f"{self.reader.layout.sample_stack_bytes >> 10} KiB that are kept: their callers are [stack cut]"
            )
        return notes


@contextmanager
def profiled(session: Session) -> Iterator[None]:
    """The process is as it was at the end, whatever happens. Where that fails, sampling ends by itself soon."""
    try:
        session.begin()
        yield
    finally:
        with suppress(FolioError):
            session.end()


class Stop(threading.Event):
    """Set by Ctrl-C, SIGTERM and SIGHUP, and looked at between two steps: an exception might be lost within one.

    A second one ends the command as usual.
    """

    def __enter__(self) -> Stop:
        self.before = {number: signal.getsignal(number) for number in STOPPING}
        for number in STOPPING:
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.is_set():
            raise KeyboardInterrupt
        self.set()


def watch(session: Session, seconds: float, at_poll: Callable[[float], None], stop: Stop) -> str:
    """Looks for so many seconds; ends early with `stop` or the process. Returns how: "", or why early."""
    session.over_time = seconds > 0
    end = session.began_at + seconds
    how = ""
    try:
        session.poll()
        if seconds:
            session.start_feed()
        while (left := end - time.monotonic()) > 0:
            at_poll(left)
            if stop.wait(min(session.pause, left)):
                how = INTERRUPTED
                break
            session.poll()
    except ProcessGone:
        session.has_ended, how = True, "the process ended"
    except FolioError as error:
        how = str(error)
    with suppress(FolioError):
        session.end()
    session.stop_feed()
    if how in ("", INTERRUPTED):
        try:
            session.poll()
            session.poll_pages()
        except ProcessGone:
            session.has_ended, how = True, "the process ended"
        except FolioError as error:
            return str(error)
    return how
