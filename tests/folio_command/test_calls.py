"""Counting the mallocs of a running process: `folio calls`, and what it leaves behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HEAP, LIBRARY, STATIC, eventually, folio_here, folio_json, heap, kill, line_of, running
from folio import calls
from folio.calls import Seam, count
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


class TestWhoHoldsIt:
    """A command that is killed leaves nothing closed, and two commands do not disturb each other unnoticed."""

    @pytest.mark.parametrize("command", ["calls", "profile"])
    def test_killed_it_is_open_again_soon(self, command):
        with heap("load", "2") as (pid, _):
            seam = Seam(reader := Reader(pid))
            words = [sys.executable, "-m", "folio", command, str(pid), "--for", "600"]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as holder:
                try:
                    eventually(lambda: seam.mode() == reader.layout.mode_closed)
                    # The front comes last: killed before that, the process would never come by the seam, and stay fast.
                    eventually(lambda: not any(reader.process.read(reader.layout.front, reader.layout.front_bytes)))
                finally:
                    holder.kill()
            killed = time.monotonic()
            eventually(lambda: seam.mode() == reader.layout.mode_open)
            assert time.monotonic() - killed < 15

    def test_one_that_ends_while_another_begins_leaves_it_open(self, monkeypatch):
        with heap("load", "2") as (pid, _):
            reader = Reader(pid)
            process, layout = reader.process, reader.layout
            write = process.write
            first, second = Seam(reader), Seam(reader)
            first.close(65536)

            def write_and_then_begin(address, text):
                write(address, text)
                if address == layout.front:
                    monkeypatch.setattr(process, "write", write)
                    second.close(65536)

            monkeypatch.setattr(process, "write", write_and_then_begin)
            first.open()
            assert not second.holds()
            second.open()
            assert first.mode() == layout.mode_open
            front = process.read(layout.front, layout.front_bytes)
            assert front == process.read(layout.true_front, layout.front_bytes)

    def test_it_stays_closed_as_long_as_the_command_is_there(self, monkeypatch):
        monkeypatch.setattr(calls, "HELD_SECONDS", 1.5)
        monkeypatch.setattr(calls, "RENEW_SECONDS", 0.2)
        with heap("load", "2") as (pid, _):
            counts, took = count(Seam(Reader(pid)), 5)
            assert took >= 5
            assert counts.sum() > 0

    def test_who_was_stopped_for_too_long_says_so(self, monkeypatch):
        monkeypatch.setattr(calls, "HELD_SECONDS", 0.5)
        monkeypatch.setattr(calls, "RENEW_SECONDS", 600)
        with heap("load", "2") as (pid, _):
            done = folio_here("calls", str(pid), "--for", "3")
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            assert "was not counted to the end" in done.stderr

    def test_a_process_by_another_clock_is_held_by_that(self, monkeypatch):
        """In a time namespace, whose clock may be ahead or behind."""
        monkeypatch.setattr(calls, "HELD_SECONDS", 0.5)
        monkeypatch.setattr(calls, "RENEW_SECONDS", 0.1)
        for offset in (100_000, -100):
            words = ["unshare", "--time", "--monotonic", str(offset), "--fork", str(HEAP), "load", "2"]
            with running(words) as outer:
                if not outer.stdout.readline():
                    pytest.skip("time namespaces are not allowed here")
                (pid,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
                try:
                    seam = Seam(reader := Reader(pid))
                    assert seam.ahead == offset
                    seam.close(0)
                    time.sleep(2)
                    assert seam.holds()
                    seam._stop_renewing()  # as where the command is killed
                    eventually(lambda seam=seam, reader=reader: seam.mode() == reader.layout.mode_open)
                finally:
                    os.kill(pid, signal.SIGKILL)

    def test_a_process_by_a_clock_that_is_not_known_is_held_without_end(self, monkeypatch):
        monkeypatch.setattr(calls, "clock_ahead", lambda _: None)
        with heap("load", "2") as (pid, _):
            seam = Seam(reader := Reader(pid))
            seam.close(0)
            until = reader.layout.seam_setting + reader.layout.seam_until_offset
            assert reader.process.read_word(until) == 0
            seam.open()
            assert seam.mode() == reader.layout.mode_open

    def test_it_refuses_while_a_profile_runs(self):
        with heap("load", "2", options="profile:65536") as (pid, _):
            done = folio_here("calls", str(pid), "--for", "0.2")
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            assert f"process {pid} is profiled just now, one sample in 64.0 KiB" in done.stderr
            seam = Seam(reader := Reader(pid))
            assert (seam.mode(), seam.interval()) == (reader.layout.mode_closed, 65536)

    def test_only_the_last_one_opens_it(self):
        with heap("load", "2") as (pid, _):
            reader = Reader(pid)
            first, second = Seam(reader), Seam(reader)
            first.close(0)
            second.close(4096)
            assert not first.holds()
            first.open()
            assert (second.mode(), second.interval()) == (reader.layout.mode_closed, 4096)
            second.open()
            assert second.mode() == reader.layout.mode_open
