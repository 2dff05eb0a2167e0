"""`folio calls`: how many mallocs a process makes, of which sizes, counted exactly for a while.

Nothing is counted until somebody asks: the command writes into the library's data (docs/layout.md#seeing-every-malloc),
from then on every malloc takes the slow path, and at the end, also after Ctrl-C, the fast path is opened again. Where
the command is killed, the process itself opens it some seconds later.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path

import numpy as np

from folio import output
from folio.errors import FolioError
from folio.process import Process
from folio.reader import Reader

HELD_SECONDS = 10  # until a process is as it was, where the command was killed
RENEW_SECONDS = 2


def time_namespace(pid: int | str, which: str = "time") -> str:
    """Empty where the kernel has none."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{which}")
    except OSError:
        return ""


def clock_offset(pid: int | str) -> float | None:
    """How far a process's monotonic clock is from the system's own, in seconds; None: it is not known."""
    if time_namespace(pid) != time_namespace(pid, "time_for_children"):
        return None  # the file is about that one
    try:
        text = Path(f"/proc/{pid}/timens_offsets").read_text()
    except OSError:
        return None
    found = re.search(r"^monotonic\s+(-?\d+)\s+(\d+)$", text, re.M)
    return int(found[1]) + int(found[2]) / 1e9 if found else None


def clock_ahead(pid: int | str) -> float | None:
    """How many seconds a process's monotonic clock is ahead of this one's; None: it is not known."""
    if time_namespace(pid) == time_namespace("self"):
        return 0.0
    own, other = clock_offset("self"), clock_offset(pid)
    return other - own if own is not None and other is not None else None


class Seam:
    """Of one process. While it is closed, a thread writes again and again that this command is still there."""

    def __init__(self, reader: Reader) -> None:
        self.process, self.layout = reader.process, reader.layout
        self.number: int | None = None  # of this closing; any other one has another number
        self.renewer: threading.Thread | None = None
        self.leave = threading.Event()
        # In another time namespace the process's clock is another one, by which it must not open too early.
        self.ahead = clock_ahead(self.process.root.name)

    def check_image(self) -> None:
        """Nothing is written into another program that has taken the process over (exec), or counted there."""
        self.process.must_live()

    def mode(self) -> int:
        return int.from_bytes(self.process.read(self.layout.seam_mode, 4), "little")

    def begun(self) -> bool:
        """Whether the process uses Folio already."""
        layout = self.layout
        return self.mode() in (layout.mode_open, layout.mode_closed, layout.mode_guarding)

    def interval(self) -> int:
        """Of the closing that was the last."""
        return int.from_bytes(self.process.read(self.layout.seam_setting, 8), "little")

    def number_now(self) -> int:
        at = self.layout.seam_setting + self.layout.seam_number_offset
        return int.from_bytes(self.process.read(at, 4), "little")

    def holds(self) -> bool:
        """Whether it is closed as it was here: nobody has opened it, or closed it anew."""
        self.check_image()
        return self.mode() == self.layout.mode_closed and self.number_now() == self.number

    def close(self, interval: int, carefully: bool = False) -> None:
        """From now on one object in so many bytes is chosen, or, where that is 0, every malloc is counted.

        Where this command is killed or stopped, the process opens it by itself after HELD_SECONDS. `carefully`: stacks
        are copied without process_vm_readv.
        """
        layout, process = self.layout, self.process
        self.check_image()
        if not self.begun():
            raise FolioError(f"process {process.pid} has not begun to use Folio: ask again when it has")
        self._stop_renewing()
        self.number = self.number_now() + 1 & 0xFFFFFFFF
        process.write(layout.seam_setting, interval.to_bytes(8, "little"))
        process.write(layout.seam_setting + layout.seam_carefully_offset, int(carefully).to_bytes(4, "little"))
        self._keep()
        at = layout.seam_setting + layout.seam_number_offset
        process.write(at, self.number.to_bytes(4, "little"))
        process.write(layout.seam_mode, layout.mode_closed.to_bytes(4, "little"))
        process.write(layout.front, bytes(layout.front_bytes))
        self.renewer = threading.Thread(target=self._renew, daemon=True)
        self.renewer.start()

    def _keep(self) -> None:
        until = int((time.monotonic() + self.ahead + HELD_SECONDS) * 1000) if self.ahead is not None else 0
        self.process.write(self.layout.seam_setting + self.layout.seam_until_offset, until.to_bytes(8, "little"))

    def _renew(self) -> None:
        try:
            while not self.leave.wait(RENEW_SECONDS) and self.holds():
                self._keep()
        except FolioError:
            return  # it has ended or runs another program: whoever looks next says so

    def _stop_renewing(self) -> None:
        if self.renewer is not None:
            self.leave.set()
            self.renewer.join()
            self.renewer = None
            self.leave.clear()

    def open(self) -> None:
        """As it was; nothing where it was closed by somebody else since.

        Also where it seems to be open: whoever opened it while it was closed here may have left the front closed, and
        each malloc slow for good.
        """
        layout, process = self.layout, self.process
        self._stop_renewing()
        self.check_image()
        if self.number_now() != self.number:
            return
        guarding = any(process.read(layout.guard_interval, 8))  # then the front stays as it is
        if not guarding:
            process.write(layout.front, process.read(layout.true_front, layout.front_bytes))
        mode = layout.mode_guarding if guarding else layout.mode_open
        process.write(layout.seam_mode, mode.to_bytes(4, "little"))

    def counts(self) -> np.ndarray:
        """Calls by bin, and then bytes, chosen, their bytes, and freed of these."""
        layout = self.layout
        text = self.process.read(layout.seam_counts, layout.seam_shards * layout.seam_counts_bytes)
        self.check_image()
        shards = np.frombuffer(text, np.uint64).reshape(layout.seam_shards, -1)
        return shards.sum(axis=0)[: layout.bins + 4]


def must_run(process: Process) -> None:
    if process.status().get("State", "")[:1] in ("T", "t"):
        raise FolioError(f"process {process.pid} is stopped and allocates nothing: kill -CONT {process.pid}")


def count(seam: Seam, seconds: float) -> tuple[np.ndarray, float]:
    """What was called, and in how many seconds."""
    pid = seam.process.pid
    if seam.mode() == seam.layout.mode_closed and seam.interval():
        raise FolioError(
            f"process {pid} is profiled just now, one sample in {output.size(seam.interval())}, and counting would end "
            f"that: count when it is over; `folio profile {pid}` shows who allocates"
        )
    try:
        seam.close(0)
        begun, before = time.monotonic(), seam.counts()
        time.sleep(seconds)
        counts, took = seam.counts() - before, time.monotonic() - begun
        if not seam.holds():
            raise FolioError(
                f"process {pid} was not counted to the end: another command profiles or counts it, or this one was "
                "stopped meanwhile; run it again"
            )
        return counts, took
    finally:
        seam.open()


def calls(pid: int, seconds: float, rows: int, json: bool) -> int:
    reader = Reader(pid)
    must_run(reader.process)
    if not json:
        output.say(f"counting the mallocs of process {pid} for {seconds:g} s", "dim")
    counts, took = count(Seam(reader), seconds)
    by_bin, requested = counts[: reader.layout.bins], int(counts[reader.layout.bins])
    total = int(by_bin.sum())
    sizes = {info.number: info.size for info in reader.infos}
    order = [int(i) for i in np.argsort(-by_bin.astype(np.int64), kind="stable") if by_bin[i]]
    if json:
        bins = [{"bin": i, "size": sizes.get(i), "calls": int(by_bin[i])} for i in order]
        output.as_json(
            {"version": 1, "pid": pid, "seconds": took, "calls": total, "requested_bytes": requested, "bins": bins}
        )
        return 0
    if total == 0:
        output.say(f"no malloc within {took:.1f} s")
    else:
        each = output.size(requested / total)
        output.say(
            f"{total:,} mallocs in {took:.1f} s: {total / took:,.0f} and {output.size(requested / took)} a second, "
            f"{each} each in the mean",
            "bold",
        )
        made = output.table("bytes", "calls", "a second", "share")
        for i in order[:rows]:
            share = f"{100 * int(by_bin[i]) / total:.1f} %"
            name = f"to {sizes[i]:,}" if i else f"over {max(sizes.values()):,}"
            made.add_row(name, f"{int(by_bin[i]):,}", f"{int(by_bin[i]) / took:,.0f}", share)
        output.console.print(made)
        if len(order) > rows:
            output.say(f"and {len(order) - rows} more sizes: --rows {len(order)}", "dim")
    output.next_command(f"folio bins {pid}  (what these sizes hold)")
    return 0
