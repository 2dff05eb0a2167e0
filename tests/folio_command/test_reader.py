"""The reader: finding the layout, versions, reading in bulk, torn views."""

import re
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import HEAP, LIBRARY, ROOT, STATIC, eventually, exact, heap, kill, line_of, running, stop
from folio import layout, pages
from folio.errors import FolioError, NotPermitted, ProcessGone
from folio.finding import by_name
from folio.heap import Bin, BinInfo, Heap
from folio.parts import explain
from folio.process import PAGE, Process
from folio.reader import Reader, add_resident, moved_bytes

# The rest goes on in another thread: the main one is a zombie from then on.
MAIN_LEAVES = """
import ctypes, threading, time
def rest():
    while open("/proc/self/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    print(threading.get_native_id(), flush=True)
    input()
threading.Thread(target=rest).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def live_objects(view):
    return sum(bin_.count(bin_.live) for bin_ in view.bins.values())


class TestFinding:
    def test_by_symbol(self, python_process):
        reader = Reader(python_process)
        assert reader.layout.library.path == str(LIBRARY)
        assert not reader.layout.library.linked_in
        assert reader.layout.chunk_bytes == 256 << 10

    def test_statically_linked(self):
        with heap("known", program=STATIC) as (pid, _):
            assert Reader(pid).layout.library.linked_in

    def test_stripped_static_by_magic(self, tmp_path):
        program = tmp_path / "stripped"
        subprocess.run(["strip", "-o", program, STATIC], check=True)
        with running([str(program), "known"], None) as process:
            process.stdout.readline()
            assert live_objects(Reader(process.pid).view()) > 10000

    @pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
    def test_updated_library(self, replaced, tmp_path):
        """The file has gone, or another build is in its place: the process still has the old one."""
        library = tmp_path / "libfolio.so.0"
        shutil.copy(LIBRARY, library)
        with running([str(HEAP), "known"], library) as process:
            process.stdout.readline()
            library.unlink()
            if replaced:
                shutil.copy(LIBRARY.parent / "libfolio-embed.so", library)
            assert live_objects(Reader(process.pid).view()) > 10000

    def test_musl(self, tmp_path):
        if shutil.which("musl-gcc") is None or not (ROOT / "build-musl/libfolio.o").exists():
            pytest.skip("no libfolio.o for musl: make musl")
        source, program = tmp_path / "a.c", tmp_path / "a"
        source.write_text(
            "#include <stdlib.h>\n#include <stdio.h>\nint main(void) {"
            "for (int i = 0; i < 5000; ++i) if (!malloc(64)) return 1;"
            'puts("{}"); fflush(stdout); return getchar() == 0; }'
        )
        command = ["musl-gcc", "-fno-builtin", "-static", source, ROOT / "build-musl/libfolio.o", "-o", program]
        subprocess.run(command, check=True)
        with running([str(program)], None) as process:
            line_of(process)
            reader = Reader(process.pid)
            assert live_objects(reader.view()) >= 5000
            assert abs(explain(reader).unexplained) <= 0.01 * reader.process.rss()

    def test_another_version_is_one_line(self, tmp_path):
        versions = f"layout version {layout.VERSION + 1}, this tool reads version {layout.VERSION}"
        with pytest.raises(FolioError, match=f"{versions}: use the `folio` command"):
            self.read_patched(tmp_path, 8, layout.VERSION + 1)

    def test_an_older_descriptor_is_one_line(self, tmp_path):
        with pytest.raises(FolioError, match="older than this tool"):
            self.read_patched(tmp_path, 12, 252)

    def read_patched(self, tmp_path, offset, value):
        data = bytearray(LIBRARY.read_bytes())
        at = data.find(layout.MAGIC + struct.pack("<I", layout.VERSION))
        struct.pack_into("<I", data, at + offset, value)
        library = tmp_path / "libfolio.so.0"
        library.write_bytes(data)
        with running([str(HEAP), "known"], library) as process:
            process.stdout.readline()
            Reader(process.pid)

    def test_not_on_folio(self):
        with running([str(HEAP), "known"], None) as process:
            process.stdout.readline()
            with pytest.raises(FolioError, match="is not on Folio: start it by `folio run"):
                Reader(process.pid)

    def test_a_name_that_the_kernel_cuts_inside_a_character(self, tmp_path):
        program = shutil.copy(HEAP, tmp_path / "warteschlangen\u00fc")
        with running([program, "known"]) as process:
            process.stdout.readline()
            assert Path(f"/proc/{process.pid}/comm").read_bytes() == b"warteschlangen\xc3\n"
            assert Reader(process.pid).process.name() == f"process {process.pid} (warteschlangen\ufffd)"
            assert by_name("warteschlangen\u00fc") == [process.pid]

    def test_the_main_thread_has_left(self):
        with running(["/usr/bin/python3", "-c", MAIN_LEAVES]) as process:
            thread = int(process.stdout.readline())
            reader = Reader(process.pid)
            assert reader.process.target == str(process.pid) != str(thread)
            assert "_exit" in reader.process.title()
            assert exact(reader).exact and live_objects(reader.view()) > 1000
            assert reader.process.is_there()
            kill(process.pid)
            with pytest.raises(ProcessGone, match="ended while it was read"):
                explain(reader)

    def test_no_process(self):
        with pytest.raises(ProcessGone, match="there is no process 999999999"):
            Reader(999999999)

    def test_not_permitted(self):
        with pytest.raises((NotPermitted, FolioError)):
            Reader(1)

    def test_ended_while_it_was_read(self):
        with running([str(HEAP), "known"]) as process:
            process.stdout.readline()
            reader = Reader(process.pid)
            kill(process.pid)  # now it waits to be reaped: it has no memory any more
            with pytest.raises(ProcessGone, match="ended while it was read"):
                explain(reader)


class TestTheReaderOfTheDocuments:
    def test_counts_the_same(self):
        with heap("known", options="decay:3600000,housekeeper:off") as (pid, _):
            command = [sys.executable, ROOT / "docs/reader.py", str(pid)]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            view = Reader(pid).view()
        for bin_ in view.bins.values():
            taken = bin_.count(bin_.taken)
            if taken:
                assert re.search(rf"bin +{bin_.info.number}: +{taken} objects of {bin_.info.size} bytes", said)
        assert f"huge: {int(view.huge.usable[view.huge.live].sum())} bytes live" in said


class TestDepot:
    def test_of_all_shards(self):
        with heap("passed", "20000", options="cpu_cache:0,decay:3600000,housekeeper:off") as (pid, _):
            stop(pid)
            reader = Reader(pid)
            layout, process = reader.layout, reader.process

            def waiting():
                view = reader.view()
                return {number: bin_.count(bin_.cached["depot"]) for number, bin_ in view.bins.items()}

            before = waiting()
            assert sum(before.values()) > 10000
            shard = layout.bins * layout.depot_bin_bytes
            first = process.read(layout.depot, shard)
            process.write(layout.depot + (layout.depot_shards - 1) * shard, first)
            process.write(layout.depot, bytes(shard))
            assert waiting() == before


class TestReading:
    def test_gone_pages_read_as_zero(self, python_process):
        process = Process(python_process)
        mapping = next(m for m in process.mappings() if m.name.startswith("[stack"))
        data = process.read_ranges([(mapping.end - 16, 16), (16, PAGE), (mapping.end - 8, 8)])
        assert len(data) == 16 + PAGE + 8
        assert not data[16 : 16 + PAGE].any()
        assert bytes(data[-8:]) == bytes(data[8:16])

    def test_many_ranges_in_order(self, python_process):
        process = Process(python_process)
        start = Reader(python_process).layout.address
        whole = process.read(start, 240)
        assert process.read_ranges([(start + i % 240, 1) for i in range(5000)]).tobytes() == (whole * 21)[:5000]

    @pytest.mark.parametrize("regions", [7, pages.REGIONS])
    def test_the_older_way_tells_the_same_pages(self, regions, monkeypatch):
        """Also where there are more ranges than one call, or a buffer of the kernel's, has room for."""
        monkeypatch.setattr(pages, "REGIONS", regions)
        with heap("scattered", "2000") as (pid, _):
            process = Process(pid)
            mappings = process.mappings()
            new = pages.PageScanner(process).scan_all(mappings)
            old = pages.PageScanner(process, old=True).scan_all(mappings)
            assert new.resident().tolist() == old.resident().tolist()
            assert len(new.start) > 2000
            assert explain(Reader(pid)).unexplained == 0

    def test_ten_gigabytes_of_untouched_objects(self):
        with heap("wide", "10") as (pid, known):
            reader = Reader(pid)
            times = []
            for _ in range(3):
                begin = time.thread_time()  # what other processes take does not count
                view = reader.view()
                times.append(time.thread_time() - begin)
            bin_ = max(view.bins.values(), key=lambda b: len(b.chunks))
            live = bin_.count(bin_.live)
            metadata = len(view.snapshot.metadata.bytes) >> 20
            print(f"\n10 GiB: metadata of {metadata} MiB read in {min(times):.3f} s of CPU time")
            assert bin_.info.size == known["size"]
            assert known["count"] <= live <= known["count"] + 62
            assert len(bin_.chunks) * reader.layout.chunk_bytes >= 10 << 30
            assert min(times) < 1
            before = reader.process.rss()
            explain(reader)
            assert reader.process.rss() - before < 1 << 20  # reading touches nothing for the process

    def test_options_have_names_and_units(self, python_process):
        options = {option.name: option.shown for option in Reader(python_process).options()}
        assert options["decay"] == "1000 ms"
        assert options["collect_from_outside"] == "off"


class TestTornViews:
    """Under full load: as many objects are always live, give or take one a thread."""

    THREADS = 4

    def operations(self, process, address):
        return int.from_bytes(process.read(address, 8), "little")

    def test_totals_stay_within_the_stated_error(self):
        with heap("load", str(self.THREADS)) as (pid, known):
            reader = Reader(pid)
            # In flight: a thread in a slow call holds at most a magazine of up to 62 objects, of 3392 bytes at most.
            in_flight = self.THREADS * 62 * 3392
            startup = 160 << 10  # what the C++ library and threads have beside it
            worst = moved = 0
            for _ in range(25):
                reading = reader.reading()
                live = sum(b.count(b.live) * b.info.size for b in reading.heap.bins.values())
                worst = max(worst, abs(live - known["bytes"]))
                moved = max(moved, reading.moved_bytes)
                assert known["bytes"] - reading.moved_bytes - in_flight <= live
                assert live <= known["bytes"] + reading.moved_bytes + in_flight + startup
                parts = exact(reader)
                assert abs(parts.unexplained) <= 0.01 * parts.rss
            print(f"\nlive {known['bytes']:,} bytes: at worst {worst:,} off; stated bound up to {moved:,}")

    def test_what_reading_costs_the_process(self):
        """A figure to report; machines under test are too noisy for a limit."""
        with heap("load", "1") as (pid, known):
            reader = Reader(pid)
            rates = {"alone": [], "read": []}
            for _ in range(5):
                for name, rates_of in rates.items():
                    begin, before = time.monotonic(), self.operations(reader.process, known["operations_at"])
                    while time.monotonic() < begin + 0.3:
                        if name == "read":
                            explain(reader)
                            time.sleep(0.1)
                        else:
                            time.sleep(0.01)
                    done = self.operations(reader.process, known["operations_at"]) - before
                    rates_of.append(done / (time.monotonic() - begin))
            alone, read = (sorted(each)[2] for each in rates.values())
            print(f"\n{alone / 1e6:.1f} million operations a second alone, {read / 1e6:.1f} read 10 times a second")
            assert read > 0


def bin_of(chunks: dict[int, tuple[int, int]]) -> Bin:
    """Of objects of 100 bytes, one word of them in each chunk: what is taken and what is resident."""
    taken, resident = (np.array([[words[i]] for words in chunks.values()], dtype=np.uint64) for i in range(2))
    addresses = np.array(list(chunks), dtype=np.int64)
    return Bin(BinInfo(1, 100, 64, 1, 1), addresses, addresses, addresses, taken, resident)


def heap_of(bins: dict[int, Bin]):
    return SimpleNamespace(bins=bins, fields=[], huge=[])


class TestMoved:
    """Between the two views of a reading."""

    def test_chunks_are_opened_and_given_back(self, monkeypatch):
        monkeypatch.setattr("folio.reader.live_huge", lambda heap: {})
        before = heap_of({1: bin_of({10: (0b11, 0b01), 20: (0b111, 0b01)}), 2: bin_of({50: (0b1, 0b1)})})
        after = heap_of({1: bin_of({20: (0b101, 0b10), 30: (0b1, 0b1)}), 3: bin_of({60: (0b1, 0b1)})})
        assert moved_bytes(before, after) == 100 * (1 + 1 + 1)  # freed, of a new chunk, of a new bin
        add_resident(after, before)
        assert after.bins[1].resident.tolist() == [[0b11], [0b1]]

    def test_a_field_that_came_while_it_was_copied(self):
        """The list names it already, but the first view's copy was made before: there it is no field yet."""
        with heap("known") as (pid, _):
            reader = Reader(pid)
            first, second = reader.snapshot(), reader.snapshot()
        field = first.fixed.word(reader.layout.fields)
        assert field
        first.metadata.scatter(np.array([field]), np.zeros((1, reader.layout.field_bytes // 8), dtype=np.uint64))
        before, after = Heap(first, reader.infos), Heap(second, reader.infos)
        assert (len(before.fields), len(after.fields)) == (0, 1)
        large = int(np.bitwise_count(after.fields[0].taken).sum()) << reader.layout.granule_shift
        assert 0 < large <= moved_bytes(before, after)
        add_resident(after, before)

    @pytest.mark.parametrize("left", range(3))
    def test_a_process_that_ends_while_it_is_read_is_no_empty_one(self, monkeypatch, left):
        """At the last look at its pages, and before: what is not there any more reads as zero."""
        with running([str(HEAP), "known"]) as process:
            line_of(process)
            reader = Reader(process.pid)
            scan, scans = reader.scanner.scan, []

            def scan_counted(*arguments):
                scans.append(arguments)
                if len(scans) == last:
                    process.kill()
                    eventually(lambda: reader.process.text("statm").startswith("0 "))
                return scan(*arguments)

            last = 0
            monkeypatch.setattr(reader.scanner, "scan", scan_counted)
            reader.snapshot()
            assert len(scans) > left
            last = 2 * len(scans) - left
            with pytest.raises(ProcessGone):
                reader.snapshot()
