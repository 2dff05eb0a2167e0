"""`folio collect`: asks a process to give back what it can.

Without a signal: the command writes a number into a word of the library's data, and the housekeeper, which looks at it
at least every two seconds, collects and writes the number back. Only where the process was started with the option
collect_from_outside; without it nothing looks, and the command says so and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from folio import output
from folio.errors import FolioError
from folio.reader import Reader
from folio.source import Source

POLL_SECONDS = 0.05


def wait_for_answer(process: Source, answered: Callable[[], bool], timeout: float, why: str) -> None:
    """`why` there may be none."""
    end = time.monotonic() + timeout
    while not answered():
        process.must_live()
        if time.monotonic() > end:
            raise FolioError(
                f"no answer from process {process.pid} within {timeout:g} s: {why}; ask again, or wait longer with "
                "--timeout"
            )
        time.sleep(POLL_SECONDS)


def ask(reader: Reader, timeout: float) -> None:
    """Returns when the process has collected."""
    layout, process = reader.layout, reader.process
    wanted, done = (
        layout.collect_request + each for each in (layout.collect_wanted_offset, layout.collect_done_offset)
    )
    number = int.from_bytes(process.read(wanted, 4), "little") + 1 & 0xFFFFFFFF
    process.write(wanted, number.to_bytes(4, "little"))
    why = "its housekeeper starts with the first slow calls of malloc, and a stopped process does not run"
    wait_for_answer(process, lambda: int.from_bytes(process.read(done, 4), "little") == number, timeout, why)


def takes_wishes(reader: Reader) -> None:
    """Raises FolioError if the process would never see one."""
    pid = reader.process.pid
    if not reader.option("collect_from_outside").value:
        raise FolioError(
            f"process {pid} does not take wishes from outside: start it with FOLIO_OPTIONS=collect_from_outside:on "
            "(`folio run --options collect_from_outside:on -- PROGRAM`)"
        )
    if reader.option("housekeeper").shown == "off":
        raise FolioError(f"process {pid} has no housekeeper to see it: start it without housekeeper:off")


def collect(pid: int, timeout: float, json: bool) -> int:
    reader = Reader(pid)
    takes_wishes(reader)
    reader.process.must_live()
    before, purged_before = reader.process.rss(), reader.counter("purged")
    ask(reader, timeout)
    after, purged = reader.process.rss(), reader.counter("purged") - purged_before
    if json:
        output.as_json({"version": 1, "pid": pid, "purged": purged, "rss_before": before, "rss_after": after})
        return 0
    output.say(f"process {pid} gave back {output.size(purged)}: resident {output.size(before)} → {output.size(after)}")
    output.say("what threads have in their magazines stays: only they may touch these", "dim")
    output.next_command(f"folio doctor {pid}  (what is left, and why)")
    return 0
