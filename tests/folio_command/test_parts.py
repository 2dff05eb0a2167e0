"""Resident memory as parts: exact on a heap that is known to the byte, and summing to RSS on real programs."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from conftest import HEAP, LIBRARY, STATIC, STILL, eventually, exact, heap, running
from folio.parts import explain
from folio.picture import HUGE, picture_of
from folio.process import PAGE
from folio.reader import Reader
from folio.where import locate


def sums(parts):
    assert abs(parts.unexplained) <= 0.01 * parts.rss
    assert all(value >= 0 for value in parts.values().values())
    return parts


@pytest.fixture(scope="module", params=["preloaded", "static"])
def seen(request):
    # Without huge pages, whose free part would be padding.
    with heap(
        "known", options=STILL + ",huge_pages:never", program=HEAP if request.param == "preloaded" else STATIC
    ) as (pid, known):
        reader = Reader(pid)
        yield reader, known, explain(reader)


class TestKnownHeap:
    def group(self, seen, i):
        reader, known, parts = seen
        group = known["groups"][i]
        found = locate(reader, reader.view(), group["first"])
        return group, next(b for b in parts.bins if b.number == found["bin"])

    def test_the_sum_is_exact(self, seen):
        assert sums(seen[2]).unexplained == 0

    @pytest.mark.parametrize("i", range(3))
    def test_live_objects_are_those_held(self, seen, i):
        group, bin_ = self.group(seen, i)
        assert bin_.live_objects == group["held"]

    def test_small_objects_are_live_to_the_byte(self, seen):
        for i in (0, 1):
            group, bin_ = self.group(seen, i)
            assert bin_.live == group["held"] * bin_.size

    def test_what_is_freed_among_others_is_fragmented(self, seen):
        group, bin_ = self.group(seen, 1)
        cached = sum(bin_.cached.values())
        assert bin_.dirty == bin_.padding == 0
        # Every second one is held, so every page is; the last one may reach beyond the last object.
        free = group["freed"] * bin_.size - cached
        assert free <= bin_.fragmented <= free + PAGE + 64 * bin_.size

    def test_large_objects_count_where_touched(self, seen):
        _, known, parts = seen
        group = known["groups"][3]
        # The C++ library has one of its own, for exceptions that find no memory, and touches its beginning.
        assert 0 <= parts.large.objects - group["held"] <= 1
        assert 0 <= parts.large.live - group["held_pages"] * PAGE <= 2 * PAGE
        # The youngest of those that were freed wait in the CPU cache, up to its budget.
        assert parts.large.dirty + parts.large.cached == group["freed_pages"] * PAGE
        assert 0 < parts.large.cached <= 2 << 20

    def test_huge_objects_count_where_touched(self, seen):
        huge = seen[2].huge
        assert huge.objects == 2
        assert huge.live == (9 << 20) + 8 * PAGE
        assert huge.dirty == 10 << 20
        assert huge.padding == 0


# The last pages of its object have no entry in the chunk table.
LONG_OBJECT = """
import ctypes
x = bytearray(3 << 29)
x[-1] = x[-(1 << 20)] = 1
print(ctypes.addressof(ctypes.c_char.from_buffer(x)) + len(x) - 1, flush=True)
input()
"""


class TestRealPrograms:
    def test_python(self, python_process):
        parts = sums(explain(Reader(python_process)))
        values = parts.values()
        assert values["live"] > 4 << 20
        assert values["fragmented"] > 0
        assert 100 << 10 < values["metadata"] < 4 << 20
        assert any("libc.so" in name for name in parts.foreign)

    def test_redis_under_load(self, tmp_path):
        if not shutil.which("redis-server") or not shutil.which("redis-benchmark"):
            pytest.skip("no redis-server: apt-get install redis-server")
        arguments = ["--port", "0", "--unixsocket", "s", "--save", "", "--dir", "."]
        with running(["env", "-C", str(tmp_path), "redis-server", *arguments]) as server:
            eventually((tmp_path / "s").exists)
            if "redis-server" not in Reader(server.pid).process.command():
                pytest.fail("not the server")
            arguments = ["-s", "s", "-q", "-l", "-c", "20", "-r", "20000", "-d", "300", "-t", "set"]
            load = subprocess.Popen(["redis-benchmark", *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL)
            try:
                reader = Reader(server.pid)
                for _ in range(8):
                    time.sleep(0.15)
                    parts = sums(exact(reader))
                assert load.poll() is None
            finally:
                load.kill()
                load.wait()
            assert parts.values()["live"] > 0

    def test_a_huge_object_beyond_its_entries(self):
        with running(["/usr/bin/python3", "-c", LONG_OBJECT], options=STILL) as process:
            last = int(process.stdout.readline())
            reader = Reader(process.pid)
            reading = reader.reading()
            parts, picture = sums(explain(reader, reading)), picture_of(reading)
            assert reading.heap.entry(last) < 0
            found = locate(reader, reading.heap, last)
        assert parts.huge.live >= 3 * PAGE  # its first page, and those written
        assert (found["kind"], found["resident"]) == ("huge object", True)
        assert picture.live[picture.bins == HUGE].sum() == parts.huge.live
        chunk = last // picture.chunk_bytes * picture.chunk_bytes
        assert picture.live[picture.chunks == chunk].sum() >= PAGE

    def test_the_library_itself_is_told_apart(self, python_process):
        parts = explain(Reader(python_process))
        assert 64 << 10 <= parts.own <= 1 << 20
        assert str(LIBRARY) not in parts.foreign

    def test_many_threads(self):
        with heap("load", "16") as (pid, _):
            parts = sums(exact(Reader(pid)))
            assert parts.threads == 17
            assert parts.cached("thread") > 0

    def test_what_was_freed_is_dirty_until_it_is_purged(self):
        with heap("quiet", "8", options=STILL) as (pid, known):
            parts = sums(explain(Reader(pid)))
            assert parts.values()["dirty"] >= 0.9 * known["freed"]
        with heap("quiet", "8", options="decay:50,housekeeper:on") as (pid, known):

            def purged():
                parts = explain(Reader(pid))
                exact = abs(parts.unexplained) <= 0.01 * parts.rss  # not amid a purge
                return parts if exact and parts.values()["dirty"] <= 0.1 * known["freed"] else None

            sums(eventually(purged))


class TestHugePages:
    def huge_bytes(self, pid):
        return 1024 * int(re.search(r"AnonHugePages: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[1])

    def test_they_are_the_kernels_and_their_density_is_known(self):
        mib = 64
        # Where one is slow to come, on a busy machine, Folio asks for none for a while.
        for _ in range(10):
            with heap("thinned", str(mib), options=STILL) as (pid, _):
                if self.has_known_density(pid, least=mib // 2 * 3 // 4):
                    return
        pytest.skip("huge pages are slow to come here")

    def has_known_density(self, pid, least):
        """False: the heap has fewer huge pages than `least`."""
        reader = Reader(pid)
        parts = sums(explain(reader))
        found = parts.huge_pages
        reported = self.huge_bytes(pid)
        if not found.known or not reported:
            pytest.skip("no huge pages here, or a kernel before Linux 6.7")
        assert (found.count + found.others) << reader.layout.cluster_shift == reported
        if found.count < least:
            return False
        share = {name: count / found.count for name, count in found.by_density.items()}
        assert 0.4 <= share["7/8 and more"] <= 0.6
        assert 0.4 <= share["1/4 to 1/2"] <= 0.6
        # What is free in them is what a purge could take; the heap has hardly anything else.
        assert found.free <= parts.values()["dirty"] + parts.values()["padding"]
        # What nothing has yet of the last of them is Folio's all the same.
        anonymous = sum(n for kind, n in parts.foreign.items() if kind.startswith("anonymous"))
        assert anonymous < reader.layout.chunk_bytes
        assert found.entries_saved == (found.count + found.others) * 511
        return True

    def test_where_there_are_none_clusters_could_have_them(self):
        with heap("thinned", "64", options=STILL + ",huge_pages:never") as (pid, _):
            parts = explain(Reader(pid))
            found = parts.huge_pages
            if not found.known:
                pytest.skip("a kernel before Linux 6.7")
            assert found.count == found.free == 0
            clusters = max(bin_.chunks for bin_ in parts.bins) // 8
            assert clusters >= 32
            assert clusters - 2 <= found.dense <= clusters  # those at its ends may be of several bins, or not full

    def test_an_older_kernel_does_not_tell(self):
        with heap("thinned", "64", options=STILL) as (pid, _):
            found = explain(Reader(pid, old_pagemap=True)).huge_pages
            assert not found.known
            assert found.count == 0
