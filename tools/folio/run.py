"""`folio run`: a program on Folio, and what its memory was when it was largest.

The program is a child of this process, in its terminal and process group. Signals that are sent to this process go on
to it; those of the terminal reach it by themselves. At the end this process exits, or dies, as the program did.
"""

from __future__ import annotations

import os
import resource
import shlex
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from folio import output
from folio.errors import FolioError, writing
from folio.library import must_be_folio

if TYPE_CHECKING:  # it takes a while to load, and a program that nobody watches need not wait for it
    from folio.watching import Watch

NEAR = 0.8  # of the peak: below that the look shows something else
REPORTED = 0.01  # of RSS: what moved during the look, where it is more
FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
MEMORY_SIGNALS = [f"signal {int(number)}" for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)]
FROM_TERMINAL = ("SIGINT", "SIGQUIT")


def preload_with(library: Path, environment: dict[str, str], options: str) -> dict[str, str]:
    """The environment in which a program runs on Folio."""
    changed = dict(environment)
    others = [p for p in environment.get("LD_PRELOAD", "").split(":") if p and "libfolio.so" not in p]
    changed["LD_PRELOAD"] = ":".join([str(library), *others])
    joined = ",".join(text for text in (environment.get("FOLIO_OPTIONS", ""), options) if text)
    if joined:
        changed["FOLIO_OPTIONS"] = joined
    return changed


def spawn(command: list[str], environment: dict[str, str], to_messages: bool = False) -> int:
    """Starts the program. Signals wait until it is known where they go on to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in FORWARDED + FROM_TERMINAL])
    try:
        # Python ignores two signals that programs know by their defaults.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        actions = [(os.POSIX_SPAWN_DUP2, 2, 1)] if to_messages else []  # what it prints goes where messages go
        pid = os.posix_spawnp(
            command[0], command, environment, file_actions=actions, setsigmask=before, setsigdef=defaults
        )
        forward_signals(pid)
        return pid
    except (OSError, ValueError) as error:  # the latter of an empty name
        why = error.strerror if isinstance(error, OSError) else "it is empty"
        raise FolioError(f"cannot run {command[0] or repr('')}: {why}; is it the name of a program?") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def forward_signals(pid: int) -> None:
    def forward(number: int, _: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return

    for name in FORWARDED:
        signal.signal(getattr(signal, name), forward)
    for name in FROM_TERMINAL:
        # The terminal sends these to both; what other programs send to this one alone goes on.
        signal.signal(getattr(signal, name), signal.SIG_IGN if sys.stdin.isatty() else forward)


def leave_as(status: int) -> int:
    """The exit status to leave with; does not return where the program was ended by a signal."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file is enough
    os.kill(os.getpid(), number)
    return 128 + number


def peak_of(usage: resource.struct_rusage, seen: Watch, own: int) -> tuple[int, str]:
    """Linux counts what this process had resident into the child's peak; below that, what was seen holds."""
    counted = usage.ru_maxrss << 10
    if counted > own:
        return counted, ""
    return (seen.peak, "at least ") if seen.peak else (counted, "less than ")


def summary(
    command: list[str], seconds: float, status: int, usage: resource.struct_rusage, seen: Watch, own: int
) -> dict[str, Any]:
    peak, prefix = peak_of(usage, seen, own)
    ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"
    return {
        "version": 1,
        "command": command,
        "ended": ended,
        "seconds": round(seconds, 6),
        "user_seconds": usage.ru_utime,
        "system_seconds": usage.ru_stime,
        "peak_bytes": peak,
        "peak_is": prefix.strip() or "exact",
        "page_faults": usage.ru_minflt + usage.ru_majflt,
        "looks": seen.looks,
        "programs": len(seen.programs),
        "largest_look": look_as_dict(seen, peak),
    }


def look_as_dict(seen: Watch, peak: int) -> dict[str, Any] | None:
    """The largest exact look; where there is none, one that is not."""
    parts = seen.parts or seen.inexact
    if parts is None:
        return None
    about = {"rss": parts.rss, "unexplained": parts.unexplained, "exact": parts.exact, "error_bound": parts.moved}
    return parts.values() | about | {"of_peak": round(min(parts.rss / max(peak, 1), 1), 4), "program": seen.program}


def show(figures: dict[str, Any], seen: Watch) -> None:
    """On stderr: stdout is the program's."""
    prefix = "" if figures["peak_is"] == "exact" else figures["peak_is"] + " "
    cpu = figures["user_seconds"] + figures["system_seconds"]
    output.note(
        f"\nfolio run: {output.one_line(shlex.join(figures['command']))}\n"
        f"ended with {figures['ended']} after {figures['seconds']:.2f} s ({cpu:.2f} s of CPU time); peak memory "
        f"{prefix}{output.size(figures['peak_bytes'])}, {figures['page_faults']:,} page faults"
    )
    if figures["ended"] in MEMORY_SIGNALS:
        shown = output.one_line(shlex.join(figures["command"]), 60)
        output.note(f"next: folio check -- {shown}  (whose malloc its libraries call)")
        return
    if figures["largest_look"] is None:
        why = seen.problem or "it ended before its memory could be looked at"
        output.note(f"no picture of its memory: {why}")
        output.note("next: folio compare -- PROGRAM  (against glibc's malloc)")
        return
    show_look(figures["largest_look"], figures["peak_bytes"], seen)
    output.note(
        f"next: folio compare -- {output.one_line(shlex.join(figures['command']), 60)}  (against glibc's malloc)"
    )


def show_look(look: dict[str, Any], peak: int, seen: Watch) -> None:
    from folio.doctor import show_parts
    from folio.parts import not_exact

    parts = seen.parts or seen.inexact
    assert parts is not None
    of = f", of {seen.program}" if len(seen.programs) > 1 else ""
    off = f" (parts off by up to {output.size(parts.moved)})" if parts.moved > REPORTED * parts.rss else ""
    output.note(
        f"the largest of {output.counted(seen.looks, 'look')} at its memory, at {100 * look['of_peak']:.0f} % of the "
        f"peak{of}{off}:"
        if parts.exact
        else f"no look at its memory was exact; {not_exact(parts)}:"
    )
    show_parts(parts, output.messages)
    if look["of_peak"] < NEAR:
        output.note(f"the peak ({output.size(peak)}) is not what is shown: it came and went between two looks")
    if seen.pools:
        output.note(seen.pools)


def run(command: list[str], library: Path, options: str, quiet: bool, json: Path | None) -> int:
    import json as json_module

    must_be_folio(library)
    if json is not None and not json.absolute().parent.is_dir():
        raise FolioError(f"--json {json}: {json.parent} is no folder: make it first")
    seen, ended = None, threading.Event()
    if not quiet or json:
        from folio.watching import Watch, watch

        seen = Watch()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    begin = time.monotonic()
    pid = spawn(command, preload_with(library, dict(os.environ), options))
    if seen is not None:
        thread = threading.Thread(target=watch, args=(pid, seen, ended), daemon=True)
        thread.start()
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begin
    ended.set()
    if seen is not None:
        thread.join(timeout=2)
        figures = summary(command, seconds, status, usage, seen, own)
        if json:
            with writing(json):
                json.write_text(json_module.dumps(figures, indent=2) + "\n")
        if not quiet:
            with suppress(BrokenPipeError):  # the status is the program's all the same
                show(figures, seen)
    return leave_as(status)
