"""`folio profile`: the heap profile of a running process, from outside, and the difference of two.

Where the process is not profiled already, sampling is switched on by writing into the library's data
(docs/layout.md#seeing-every-malloc), and off again at the end, also after Ctrl-C or a signal.
"""

from __future__ import annotations

import gc
import os
import re
import shlex
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from folio import output
from folio.arguments import YEAR
from folio.errors import FolioError, NotPermitted, ProcessGone
from folio.limit import SIZE
from folio.profile_file import ProfileFile, is_profile, is_stored
from folio.profile_show import as_dict, show
from folio.profiling import Profile, Session, Stop, profiled, watch
from folio.reader import Reader
from folio.sites import WHATS

INTERVAL, SECONDS = 512 << 10, 30.0
GARBAGE_STEP = 100_000  # new objects from one search for cycles to the next: frames and sums are many, and are none
START_SECONDS = 10  # within which a program that is started must have loaded Folio
LIVE_SECONDS = 2
SAMPLES = "samples"  # the name of a file of them, before its process's number
PAGES_SECONDS = 0.5  # from one look at the pages to the next, which takes longer than one at the samples
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    by: str = ""
    rows: int = 12
    json: bool = False
    pprof: Path | None = None
    folded: Path | None = None
    speedscope: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        if self.by and self.by not in WHATS:
            raise FolioError(f"--sort {self.by}: there is {', '.join(WHATS)}")
        for file in (self.pprof, self.folded, self.speedscope, self.html):
            if file is not None and not file.absolute().parent.is_dir():
                raise FolioError(f"{file.parent} is no folder: make it first")


def parse_seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0
    if not 0 < seconds <= YEAR:
        raise FolioError(f"--for {text}: a number of seconds, or with s, m or h, for example 30s; at most a year")
    return seconds


def parse_interval(text: str) -> int:
    match = SIZE.fullmatch(text)
    interval = int(match[1]) << 10 * " KMGT".index(match[2].upper() or " ") if match else 0
    if not 0 < interval <= 1 << 40:
        raise FolioError(f"--interval {text}: bytes, up to 1T, also with K, M or G; 512K is a good value")
    return interval


def countdown(session: Session, wanted: Wanted) -> Any:
    def at_poll(left: float) -> None:
        if output.messages.is_terminal and not wanted.json:
            output.messages.print(f"{left:.0f} s left, {output.counted(session.seen, 'sample')}  ", end="\r")

    return at_poll


def finish(profile: Profile, wanted: Wanted, console: Any, how: str) -> None:
    write_files(profile, wanted)
    if wanted.json:
        output.as_json(as_dict(profile, wanted.rows, wanted.by))
    else:
        show(profile, wanted.rows, wanted.by, console, how)


def write_files(profile: Profile, wanted: Wanted) -> None:
    if not (wanted.pprof or wanted.folded or wanted.speedscope or wanted.html):
        return
    from folio import flame, pprof

    if wanted.pprof:
        flame.write(wanted.pprof, pprof.build(profile))
    if wanted.folded:
        flame.write(wanted.folded, flame.folded(profile, wanted.by))
    if wanted.speedscope:
        flame.write(wanted.speedscope, flame.speedscope(profile))
    if wanted.html:
        flame.write(wanted.html, flame.page(profile, wanted.by))


def show_live(session: Session, wanted: Wanted, stop: Stop) -> str:
    """The table again and again, until Ctrl-C or the end of the process."""
    last = 0.0

    def at_poll(left: float) -> None:
        nonlocal last
        if time.monotonic() - last < LIVE_SECONDS:
            return
        session.poll_pages()
        last = time.monotonic()
        output.console.clear()
        show(session.profile(), wanted.rows, wanted.by or "live", output.console, "live; Ctrl-C ends")

    return watch(session, 10 * 365 * 86400.0, at_poll, stop)


def opened(target: str) -> Reader | ProfileFile:
    """A process by its number, or a file of samples, a core file or a snapshot."""
    if not target.isdecimal() and is_profile(target):
        return ProfileFile(Path(target))
    return Reader(int(target) if target.isdecimal() else target)


def without_samples(target: str, reader: Reader | ProfileFile) -> str:
    """Why there are none: a core file leaves out what is mapped from a file, as those of profile_file are."""
    if isinstance(reader, Reader):
        from folio.snapshot_file import sample_tables

        starts = [start for start, _ in sample_tables(reader.process, reader.layout)]
        for mapping in reader.process.mappings():
            if mapping.path.startswith("/") and any(mapping.start <= start < mapping.end for start in starts):
                file = mapping.path
                return f"{target} holds no samples, which the process kept in {file}: folio profile {shlex.quote(file)}"
    return f"{target} holds no samples: run the program with FOLIO_OPTIONS=profile:{INTERVAL}"


def profile(target: str, interval: str | None, seconds: str | None, live: bool, wanted: Wanted) -> int:
    if live and (seconds or wanted.json):
        raise FolioError("--live goes on until Ctrl-C: not with --for or --json")
    wanted.check()
    bytes_ = parse_interval(interval) if interval else INTERVAL
    session = Session(opened(target), bytes_)
    time_given = parse_seconds(seconds) if seconds else None
    if session.still and (live or interval or seconds):
        raise FolioError(f"--live, --for and --interval need a running process; {target} is a file")
    with Stop() as stop, profiled(session):
        if session.was_on and interval and parse_interval(interval) != session.interval:
            output.note(f"it is profiled already, at one sample in {output.size(session.interval)}: that stays")
        length = time_given if time_given is not None else 0.0 if session.was_on and session.joined is None else SECONDS
        if live:
            how = show_live(session, wanted, stop)
        else:
            if length and not wanted.json:
                output.note(
                    f"profiling process {target} for {length:g} s, one sample in {output.size(session.interval)}"
                )
            how = watch(session, length, countdown(session, wanted), stop)
    if how == "the process ended" and session.seen == 0:
        raise ProcessGone(int(target), known=True)
    if session.still and not session.book.rows:
        raise FolioError(without_samples(target, session.reader))
    finish(session.profile(), replace(wanted, by=wanted.by or "live"), output.console, how)
    return 0


# ---- A program that is started ----


def attach(pid: int, interval: int) -> Session | None:
    """None: the program ended first, or is not on Folio within some seconds."""
    end, pause = time.monotonic() + START_SECONDS, 0.002
    while time.monotonic() < end:
        try:
            session = Session(Reader(pid), interval, since_start=True)
            if session.seam.begun():
                session.begin()
                session.start_feed()
                return session
        except ProcessGone:
            return None
        except NotPermitted:
            raise
        except FolioError:
            pass  # the loader is still at work, maybe of the next program of a script
        time.sleep(pause)
        pause = min(1.5 * pause, 0.2)
    return None


def drop_others(folder: Path, pid: int) -> None:
    """Files of samples of the program's children, and of what it was before an exec: nobody reads them."""
    for file in folder.iterdir():
        if file.name != f"{SAMPLES}.{pid}":
            file.unlink(missing_ok=True)


def follow(pid: int, interval: int, folder: Path) -> tuple[Session | None, int]:
    """Looks at the program until it ends; where it runs another program (exec), the profile is of the last one."""
    session, pages = attach(pid, interval), 0.0
    while True:
        drop_others(folder, pid)
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return session, status
        try:
            if session is not None:
                session.poll()
                if time.monotonic() - pages > PAGES_SECONDS:
                    session.poll_pages()
                    pages = time.monotonic()
        except ProcessGone:
            pass  # it is about to be waited for
        except FolioError:
            if session is not None:
                session.stop_feed()
            session = attach(pid, interval)
            continue
        time.sleep(session.pause if session is not None else 0.05)


def profile_program(command: list[str], library: Path, interval: str | None, wanted: Wanted) -> int:
    """Its samples lie in a file, so that they are there when it has ended."""
    from folio.run import leave_as, preload_with, spawn

    wanted.check()
    bytes_ = parse_interval(interval) if interval else INTERVAL
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="folio-profile-", dir=memory) as folder:
        options = f"profile:{bytes_},profile_file:{folder}/{SAMPLES}"
        pid = spawn(command, preload_with(library, dict(os.environ), options), to_messages=wanted.json)
        session, status = follow(pid, bytes_, Path(folder))
        how = "as it was at its end"
        kept = Path(f"{folder}/{SAMPLES}.{pid}")
        try:
            if session is not None:
                session.stop_feed()
                session.finish_from(ProfileFile(kept))
            elif kept.exists():  # it ended before it was looked at
                session = Session(ProfileFile(kept), bytes_)
                session.begin()
                session.poll()
        except FolioError:
            how = "as it was at the last look before its end"
    if session is None:
        output.note(f"no profile: {shlex.join(command)} ended before it was looked at, or is not on Folio")
    else:
        finish(session.profile(), replace(wanted, by=wanted.by or "peak"), output.messages, how)
    return leave_as(status)


def is_to_read(file: str) -> bool:
    """Not a program: a file that nobody may run is damaged, packed or a wrong one, and whoever reads it says so."""
    return is_profile(file) or is_stored(file) or (os.path.isfile(file) and not os.access(file, os.X_OK))


def run(
    words: list[str],
    interval: str | None,
    seconds: str | None,
    live: bool,
    wanted: Wanted,
    diff: tuple[Path, Path] | None,
    listen: str | None,
    library: Path | None,
) -> int:
    """As the command line says."""
    gc.set_threshold(GARBAGE_STEP)
    if diff:
        from folio.profile_diff import diff as do

        if words:
            raise FolioError("--diff compares two files, without a process")
        return do(*diff, wanted.rows, wanted.by or "live", wanted.json)
    if not words:
        raise FolioError("no process: folio profile PID, or folio profile -- PROGRAM; `pgrep -a NAME` finds processes")
    if len(words) > 1 or not (words[0].isdecimal() or is_to_read(words[0])):
        from folio.library import find_library

        if listen or live or seconds:
            raise FolioError(
                "--listen, --live and --for go with a PID; a program that is started is profiled to its end"
            )
        return profile_program(words, find_library(library), interval, wanted)
    if listen:
        from folio.profile_serve import serve

        if not words[0].isdecimal():
            raise FolioError(f"--listen needs a running process; {words[0]} is a file")
        bytes_ = parse_interval(interval) if interval else INTERVAL
        return serve(Session(Reader(int(words[0])), bytes_), listen)
    return profile(words[0], interval, seconds, live, wanted)
