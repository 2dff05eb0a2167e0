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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from folio import output
from folio.errors import FolioError, ProcessGone

GLANCE_SECONDS = 0.02
GROWTH = 1.05  # since the last look
REST = 4  # times what a look took, before the next
FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
FROM_TERMINAL = ("SIGINT", "SIGQUIT")


@dataclass
class Watch:
    """What was seen of the program while it ran."""

    parts: Any = None  # folio.parts.Parts at the largest resident memory seen
    peak: int = 0  # VmHWM, as last seen
    looks: int = 0
    problem: str = ""
    pools: str = ""  # what to do about those of its own


def preload_with(library: Path, environment: dict[str, str], options: str) -> dict[str, str]:
    """The environment in which a program runs on Folio."""
    changed = dict(environment)
    others = [p for p in environment.get("LD_PRELOAD", "").split(":") if p and "libfolio.so" not in p]
    changed["LD_PRELOAD"] = ":".join([str(library), *others])
    joined = ",".join(text for text in (environment.get("FOLIO_OPTIONS", ""), options) if text)
    if joined:
        changed["FOLIO_OPTIONS"] = joined
    return changed


def spawn(command: list[str], environment: dict[str, str]) -> int:
    """Starts the program. Signals wait until it is known where they go on to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in FORWARDED + FROM_TERMINAL])
    try:
        # Python ignores two signals that programs know by their defaults.
        defaults = [signal.SIGPIPE, signal.SIGXFSZ]
        pid = os.posix_spawnp(command[0], command, environment, setsigmask=before, setsigdef=defaults)
        forward_signals(pid)
        return pid
    except OSError as error:
        raise FolioError(f"cannot run {command[0]}: {error.strerror}; is it the name of a program?") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def watch(pid: int, seen: Watch, ended: threading.Event) -> None:
    """Glances at its size, and looks closer when it has grown, so that the largest look is near the peak."""
    from folio.parts import explain
    from folio.pools import own_pools
    from folio.reader import Reader

    reader, rest_until = None, 0.0
    while not ended.wait(GLANCE_SECONDS):
        try:
            reader = reader or Reader(pid)
            seen.peak = max(seen.peak, int(reader.process.status().get("VmHWM", "0 kB").split()[0]) << 10)
            begin = time.monotonic()
            if begin < rest_until or (seen.parts is not None and reader.process.rss() < GROWTH * seen.parts.rss):
                continue
            parts = explain(reader)
            rest_until = time.monotonic() + REST * (time.monotonic() - begin)
            seen.looks += 1
            if seen.parts is None or parts.rss > seen.parts.rss:
                seen.parts = parts
                seen.pools = own_pools(reader.process.program(), reader.process.environment())
        except ProcessGone:
            return
        except FolioError as error:
            seen.problem = str(error)


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
        "largest_look": seen.parts.values() | {"rss": seen.parts.rss} if seen.parts else None,
    }


def show(figures: dict[str, Any], seen: Watch) -> None:
    """On stderr: stdout is the program's."""
    prefix = "" if figures["peak_is"] == "exact" else figures["peak_is"] + " "
    cpu = figures["user_seconds"] + figures["system_seconds"]
    output.note(
        f"\nfolio run: {output.one_line(shlex.join(figures['command']))}\n"
        f"ended with {figures['ended']} after {figures['seconds']:.2f} s ({cpu:.2f} s of CPU time); peak memory "
        f"{prefix}{output.size(figures['peak_bytes'])}, {figures['page_faults']:,} page faults"
    )
    if seen.parts is None:
        why = seen.problem or "it ended before its memory could be looked at"
        output.note(f"no picture of its memory: {why}")
        output.note("next: folio compare -- PROGRAM  (against glibc's malloc)")
        return
    from folio.doctor import show_parts

    output.note(f"its memory when it was largest, of {output.counted(figures['looks'], 'look')}:")
    show_parts(seen.parts, output.messages)
    if seen.pools:
        output.note(seen.pools)
    output.note(
        f"next: folio compare -- {output.one_line(shlex.join(figures['command']), 60)}  (against glibc's malloc)"
    )


def run(command: list[str], library: Path, options: str, quiet: bool, json: Path | None) -> int:
    import json as json_module

    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    begin = time.monotonic()
    pid = spawn(command, preload_with(library, dict(os.environ), options))
    seen, ended = Watch(), threading.Event()
    thread = threading.Thread(target=watch, args=(pid, seen, ended), daemon=True)
    if not quiet or json:
        thread.start()
    _, status, usage = os.wait4(pid, 0)
    seconds = time.monotonic() - begin
    ended.set()
    if thread.is_alive():
        thread.join(timeout=2)
    figures = summary(command, seconds, status, usage, seen, own)
    if json:
        json.write_text(json_module.dumps(figures, indent=2) + "\n")
    if not quiet:
        show(figures, seen)
    return leave_as(status)
