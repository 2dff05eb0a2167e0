"""Counting the mallocs of a running process: `folio calls`, and what it leaves behind."""

import os
import re
import signal
import threading
from contextlib import contextmanager

import pytest
from conftest import HEAP, LIBRARY, STATIC, folio_here, folio_json, heap, kill, line_of, running
from folio.calls import Seam
from folio.reader import Reader

KNOWN = {32: 5000, 1088: 3000, None: 22}  # by the largest size of the bin: what `heap counted` does at each m
REQUESTED = 24 * 5000 + 1000 * 3000 + 100000 * 20 + 2 * (20 << 20)


def tell(process, letter):
    """Returns when it has done what the letter says."""
    process.stdin.write(letter)
    process.stdin.flush()
    process.stdout.readline()


@contextmanager
def counted(program):
    with running([str(program), "counted"], None if program == STATIC else LIBRARY) as process:
        line_of(process)
        yield process


def by_size(reader, counts):
    sizes = {info.number: info.size for info in reader.infos}
    return {sizes.get(i): int(n) for i, n in enumerate(counts) if n}


@pytest.mark.parametrize("program", [HEAP, STATIC])
class TestCounting:
    def test_exactly_while_it_is_asked_for(self, program):
        with counted(program) as process:
            reader = Reader(process.pid)
            seam = Seam(reader)
            before = seam.counts()
            tell(process, "m")
            assert not (seam.counts() - before).any()
            for _ in range(3):
                seam.close(0)
                assert seam.mode() == reader.layout.mode_closed
                before = seam.counts()
                tell(process, "m")
                counts = seam.counts() - before
                assert by_size(reader, counts[: reader.layout.bins]) == KNOWN
                assert counts[reader.layout.bins :].tolist() == [REQUESTED, 0, 0, 0]
                seam.open()
                assert seam.mode() == reader.layout.mode_open
                before = seam.counts()
                tell(process, "m")
                assert not (seam.counts() - before).any()

    def test_chosen_objects_are_seen_when_freed(self, program):
        with counted(program) as process:
            reader = Reader(process.pid)
            seam = Seam(reader)
            seam.close(4096)
            tell(process, "m")
            chosen, chosen_bytes, freed = seam.counts()[reader.layout.bins + 1 :].tolist()
            # 22 large ones, and about 3 of 13 of the 3000 of 1000 bytes; 1 of 171 of the 5000 small ones.
            assert 500 < chosen < 900
            assert chosen_bytes > 2 * 20 << 20
            assert freed == chosen


class TestCommand:
    def test_of_threads_that_allocate(self):
        with heap("load", "4") as (pid, _):
            found = folio_json("calls", str(pid), "--for", "0.5")
            assert found["calls"] > 10000
            assert found["calls"] == sum(bin_["calls"] for bin_ in found["bins"])
            assert 0.5 <= found["seconds"] < 30
            assert {bin_["size"] for bin_ in found["bins"]} >= {32, 64, 224, 1088, 3008}
            done = folio_here("calls", str(pid), "--for", "0.2", "--rows", "2")
            assert re.search(
                r"^[\d,]+ mallocs in \d+\.\d s: [\d,]+ and .* a second, .* each in the mean$", done.stdout, re.M
            )
            assert re.search(r"^to [\d,]+ +[\d,]+ +[\d,]+ +\d+\.\d %$", done.stdout, re.M)
            assert re.search(r"and \d+ more sizes: --rows \d+", done.stdout)
            assert done.stdout.endswith(f"folio bins {pid}  (what these sizes hold)\n")
            reader = Reader(pid)
            assert Seam(reader).mode() == reader.layout.mode_open

    def test_of_a_process_that_does_not_allocate(self):
        with heap("known") as (pid, _):
            assert folio_json("calls", str(pid), "--for", "0.2")["calls"] == 0
            assert "no malloc within" in folio_here("calls", str(pid), "--for", "0.1").stdout

    def test_ctrl_c_opens_it_again(self):
        with heap("load", "2") as (pid, _):
            reader = Reader(pid)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            done = folio_here("calls", str(pid), "--for", "60")
            assert done.returncode == 130
            assert Seam(reader).mode() == reader.layout.mode_open

    def test_a_process_that_ends_meanwhile(self):
        with heap("load", "2") as (pid, _):
            threading.Timer(0.5, kill, (pid,)).start()
            done = folio_here("calls", str(pid), "--for", "2")
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1

    def test_a_process_that_has_not_begun(self, monkeypatch):
        with heap("known") as (pid, _):
            monkeypatch.setattr(Seam, "mode", lambda self: 1)
            done = folio_here("calls", str(pid))
        assert done.returncode == 2
        assert "has not begun to use Folio" in done.stderr
