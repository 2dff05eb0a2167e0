"""`folio calls`: how many mallocs a process makes, of which sizes, counted exactly for a while.

Nothing is counted until somebody asks: the command writes into the library's data (docs/layout.md#seeing-every-malloc),
from then on every malloc takes the slow path, and at the end, also after Ctrl-C, the fast path is opened again.
"""

from __future__ import annotations

import time

import numpy as np

from folio import output
from folio.errors import FolioError
from folio.layout import MAGIC
from folio.reader import Reader


class Seam:
    """Of one process."""

    def __init__(self, reader: Reader) -> None:
        self.process, self.layout = reader.process, reader.layout

    def check_image(self) -> None:
        """Nothing is written into another program that has taken the process over (exec)."""
        if self.process.read(self.layout.address, len(MAGIC)) != MAGIC:
            raise FolioError(f"process {self.process.pid} runs another program now")

    def mode(self) -> int:
        return int.from_bytes(self.process.read(self.layout.seam_mode, 4), "little")

    def close(self, interval: int) -> None:
        """From now on every malloc is counted; one object in so many bytes is chosen, or none where it is 0."""
        layout, process = self.layout, self.process
        self.check_image()
        if self.mode() not in (layout.mode_open, layout.mode_closed):
            raise FolioError(f"process {process.pid} has not begun to use Folio: ask again when it has")
        at = layout.seam_setting + layout.seam_number_offset
        number = int.from_bytes(process.read(at, 4), "little") + 1 & 0xFFFFFFFF
        process.write(layout.seam_setting, interval.to_bytes(8, "little"))
        process.write(at, number.to_bytes(4, "little"))
        process.write(layout.seam_mode, layout.mode_closed.to_bytes(4, "little"))
        process.write(layout.front, bytes(layout.front_bytes))

    def open(self) -> None:
        """As it was; nothing where it is not closed."""
        layout, process = self.layout, self.process
        self.check_image()
        if self.mode() != layout.mode_closed:
            return
        process.write(layout.front, process.read(layout.true_front, layout.front_bytes))
        process.write(layout.seam_mode, layout.mode_open.to_bytes(4, "little"))

    def counts(self) -> np.ndarray:
        """Calls by bin, and then bytes, chosen, their bytes, and freed of these."""
        layout = self.layout
        text = self.process.read(layout.seam_counts, layout.seam_shards * layout.seam_counts_bytes)
        shards = np.frombuffer(text, np.uint64).reshape(layout.seam_shards, -1)
        return shards.sum(axis=0)[: layout.bins + 4]


def count(seam: Seam, seconds: float) -> tuple[np.ndarray, float]:
    """What was called, and in how many seconds."""
    try:
        seam.close(0)
        begun, before = time.monotonic(), seam.counts()
        time.sleep(seconds)
        return seam.counts() - before, time.monotonic() - begun
    finally:
        seam.open()


def calls(pid: int, seconds: float, rows: int, json: bool) -> int:
    reader = Reader(pid)
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
