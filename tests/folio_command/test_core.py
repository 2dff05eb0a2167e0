"""Core files: the same figures as from the process, and one clear line where they cannot tell."""

import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest
from conftest import (
    HEAP,
    LIBRARY,
    STATIC,
    STILL,
    copied,
    eventually,
    figures,
    folio,
    folio_here,
    folio_json,
    gcore,
    heap,
    line_of,
    one_line,
    running,
    stop,
    stopped_heap,
)
from folio.limit import held_by
from folio.process import Process
from folio.reader import Reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cores")


@pytest.fixture(scope="module")
def stopped(folder):
    """heap known, stopped: PID, what it says, core."""
    with stopped_heap("known") as (pid, known):
        yield pid, known, gcore(pid, folder)


@pytest.fixture(scope="module")
def stopped_threads(folder):
    """The same of heap load 3."""
    with stopped_heap("load", "3") as (pid, known):
        yield pid, known, gcore(pid, folder)


def kernel_core(process, folder):
    """Of a stopped process, that ends: the signal waits for it, so it runs no further."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern:
        pytest.skip(f"cores of the kernel go elsewhere here: {pattern}")
    resource.prlimit(process.pid, resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    os.kill(process.pid, signal.SIGABRT)
    os.kill(process.pid, signal.SIGCONT)
    process.wait(timeout=60)
    cores = list(folder.glob("core*"))
    if not cores:
        pytest.skip("the kernel writes no core here")
    return cores[0]


class TestSameFigures:
    def check(self, pid, core):
        found = figures(core)
        assert found == figures(pid, by_account=True)
        assert sum(found["bins"][0]["cached_objects"].values()) >= 0

    @pytest.mark.parametrize("prepared", ["stopped", "stopped_threads"])
    def test_of_gcore(self, prepared, request):
        pid, _, core = request.getfixturevalue(prepared)
        self.check(pid, core)

    @pytest.mark.parametrize("words", [("passed", "20000"), ("thinned", "16")])
    def test_of_gcore_of_other_heaps(self, words, tmp_path):
        with stopped_heap(*words) as (pid, _):
            self.check(pid, gcore(pid, tmp_path))

    @pytest.mark.parametrize("program", [HEAP, STATIC], ids=["preloaded", "static"])
    def test_of_the_kernel(self, program, tmp_path):
        command = ["env", "-C", str(tmp_path), str(program), "known"]
        with running(command, None if program == STATIC else LIBRARY, STILL) as process:
            line_of(process)
            stop(process.pid)
            alive = figures(process.pid, by_account=True)
            core = kernel_core(process, tmp_path)
        assert figures(core) == alive

    def test_the_account_is_what_the_library_counts(self, stopped):
        reader = Reader(stopped[0])
        held = held_by(reader, reader.view())
        unused = 1 << 16  # metadata in use, to whole pages
        assert held <= figures(stopped[2])["rss"] <= held + unused

    def test_bins(self, stopped):
        alive, dead = (folio_json("bins", str(of))["samples"][0]["bins"] for of in (stopped[0], stopped[2]))

        def objects(bins):
            return {row["bin"]: (row["live_objects"], row["cached_objects"]) for row in bins}

        assert objects(alive) == objects(dead)
        assert "held" in dead[0]
        assert "resident" not in dead[0]

    def test_where(self, stopped):
        for address in (stopped[1]["groups"][0]["first"] + 5, stopped[1]["huge"], stopped[1]["groups"][3]["a_freed"]):
            alive, dead = (folio_json("where", str(of), hex(address)) for of in (stopped[0], stopped[2]))
            assert alive.pop("resident") in (True, False)
            assert dead.pop("resident") is None
            assert (alive.pop("source"), dead.pop("source")) == ("process", "core")
            assert alive == dead

    def test_map(self, stopped, tmp_path):
        found = folio_json("map", stopped[2], "-o", tmp_path / "map.html")
        assert not found["pages_known"]
        assert {part["name"] for part in found["parts"]} >= {"64 bytes", "large objects", "huge objects"}

    def test_options_and_who_it_is(self, stopped):
        core, process = Reader(str(stopped[2])), Process(stopped[0])
        assert core.option("decay").value == 3600000
        assert core.process.command() == process.command()
        assert core.process.program() == process.program()
        assert core.process.environment() == process.environment()
        assert core.process.pid == stopped[0]

    def test_registers_of_all_threads(self, stopped_threads):
        pid, _, file = stopped_threads
        core = Reader(str(file)).process
        threads = core.threads
        stack = next(m for m in Process(pid).mappings() if m.name == "[stack]")
        assert stack.start in [m.start for m in core.mappings() if m.name == "[stack]"]
        assert {thread.number for thread in threads} == {int(x) for x in os.listdir(f"/proc/{pid}/task")}
        main = next(thread for thread in threads if thread.number == pid)
        assert stack.start <= main.stack < stack.end
        assert main.stack in main.registers

    def test_contents_are_those_of_the_process(self, stopped):
        core, process = Reader(str(stopped[2])).process, Process(stopped[0])
        for mapping in process.mappings():
            if "w" in mapping.flags and not mapping.name.startswith("["):
                length = min(mapping.end - mapping.start, 1 << 20)
                assert core.read(mapping.start, length) == process.read(mapping.start, length)

    def test_mappings_are_those_of_the_process(self, stopped):
        core, process = Reader(str(stopped[2])).process, Process(stopped[0])
        files = {(m.start, m.end, m.path): m.flags for m in process.mappings() if m.path and "r" in m.flags}
        found = {(m.start, m.end, m.path): m.flags for m in core.mappings() if m.path}
        for key, flags in files.items():
            assert ("x" in flags) == ("x" in found[key]), key

    def test_what_was_only_read_comes_from_the_mapped_file(self, stopped):
        core, process = Reader(str(stopped[2])).process, Process(stopped[0])
        code = next(m for m in process.mappings() if m.path == str(LIBRARY) and "x" in m.flags)
        assert core.readable(code.start, code.end) == []
        assert core.read(code.start, 4096) == process.read(code.start, 4096)


class TestWhatItCannotTell:
    def test_is_said_and_left_out(self, stopped):
        done = folio_here("doctor", stopped[2])
        assert done.returncode in (0, 1)
        assert "does not tell which pages were resident" in " ".join(done.stdout.split())
        for part in ("padding (", "unexplained", "not Folio's  ", "resident (RSS)"):
            assert part not in done.stdout
        found = folio_json("doctor", stopped[2])
        assert found["rss"] is found["unexplained"] is found["swapped"] is found["not_folio"] is None
        assert not found["pages_known"]
        assert set(found["parts"]).isdisjoint({"padding", "own", "not_folio"})
        assert sum(part["bytes"] for part in found["parts"].values()) == found["held"]

    def test_bins_are_held_and_have_no_padding(self, stopped):
        headings = folio_here("bins", stopped[2]).stdout.split("\n")[0].split()
        assert headings == ["bin", "object", "live", "cached", "held", "fragmented", "dirty", "occupied"]
        found = folio_json("bins", stopped[2])["samples"][0]
        for row in (found["bins"][0], found["large"], found["huge"], found["total"]):
            assert row["padding"] is None
            assert "resident" not in row
        assert found["total"]["held"] == sum(row["held"] for row in found["bins"]) + sum(
            sum(found[name][part] for part in ("live", "cached", "dirty")) for name in ("large", "huge")
        )

    @pytest.mark.parametrize("command", ["top", "calls", "collect", "limit", "metrics"])
    def test_commands_for_running_processes_refuse(self, stopped, command):
        one_line(folio_here(command, stopped[2]), "this needs a running process")

    @pytest.mark.parametrize("command", ["bins", "map"])
    def test_it_does_not_change_over_time(self, stopped, command, tmp_path):
        more = ["-o", tmp_path / "map.html"] if command == "map" else []
        one_line(folio_here(command, stopped[2], "--every", "1", *more), "--every needs a running process")


class TestOtherPrograms:
    def test_not_on_folio(self, tmp_path):
        with running([str(HEAP), "known"], None) as process:
            line_of(process)
            core = gcore(process.pid, tmp_path)
        one_line(folio_here("doctor", core), f"core {core} (of {HEAP.name}) is not on Folio: start it by `folio run")

    def test_no_core(self, tmp_path):
        one_line(folio_here("doctor", HEAP), "is a program or library, no core file")
        (tmp_path / "text").write_text("nothing")
        one_line(folio_here("doctor", tmp_path / "text"), "is neither a core file nor a snapshot")
        (tmp_path / "core.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(99))
        one_line(folio_here("doctor", tmp_path / "core.zst"), "zstd -d")

    def test_a_file_whose_name_is_a_number(self, stopped, tmp_path):
        copied(stopped[2], tmp_path / "999999999")
        done = folio("bins", "./999999999", cwd=tmp_path)
        assert done.returncode == 0
        assert "next: folio doctor ./999999999" in done.stdout
        one_line(folio("bins", "999999999", cwd=tmp_path), "there is no process 999999999")


def with_build_id(source: Path, target: Path, first: int) -> str:
    """A copy of the library that has another build id."""
    data = bytearray(source.read_bytes())
    at = data.find(struct.pack("<III", 4, 20, 3) + b"GNU\0") + 16
    data[at] = first
    target.write_bytes(data)
    return data[at : at + 20].hex()


class TestMappedFiles:
    @pytest.fixture(scope="class")
    @classmethod
    def core_and_library(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("mapped")
        library = folder / "libfolio.so.0"
        with_build_id(LIBRARY, library, 0x11)
        with running([str(HEAP), "known"], library, STILL) as process:
            line_of(process)
            return gcore(process.pid, folder), library

    @pytest.fixture
    def of_another_build(self, core_and_library):
        core, library = core_and_library
        return core, library, with_build_id(LIBRARY, library, 0x11)

    def test_a_file_that_has_gone_is_named(self, of_another_build):
        core, library, build_id = of_another_build
        library.unlink()
        text = one_line(folio_here("bins", core), f"lacks what stands in {library}", build_id)
        assert "FOLIO_LIBRARY=FILE" in text

    def test_a_file_of_another_build_is_not_read(self, of_another_build):
        core, library, build_id = of_another_build
        shutil.copy(LIBRARY, library)
        one_line(folio_here("bins", core), build_id)

    def test_it_may_lie_elsewhere(self, of_another_build, tmp_path):
        core, library, _ = of_another_build
        before = folio_json("bins", core)
        library.rename(tmp_path / "elsewhere")
        done = folio("bins", core, "--json", FOLIO_LIBRARY=str(tmp_path / "elsewhere"))
        assert done.returncode == 0, done.stderr
        assert len(before["samples"][0]["bins"]) == done.stdout.count('"chunks"')


class TestDamage:
    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, tmp_path_factory):
        with heap("quiet", "1", options=STILL) as (pid, _):
            return gcore(pid, tmp_path_factory.mktemp("small"))

    @pytest.mark.parametrize("share", [0, 0.00001, 0.001, 0.1, 0.5, 0.9, 0.99])
    def test_cut_short(self, small, share, tmp_path):
        cut = tmp_path / "core"
        copied(small, cut)
        os.truncate(cut, int(small.stat().st_size * share))
        one_line(folio_here("doctor", cut), str(cut))

    def test_damaged_headers_and_notes(self, small, tmp_path):
        """Whatever stands there: an answer, or one line."""
        damaged, chance = tmp_path / "core", random.Random(7)
        copied(small, damaged)
        notes = re.search(r"NOTE +(\S+) \S+ \S+ (\S+)", self.headers(small))
        spans = [(0, 64 + 56 * 20), (int(notes[1], 16), int(notes[1], 16) + 2000)]
        said = set()
        for low, high in spans:
            for _ in range(60):
                at = chance.randrange(low, high)
                with damaged.open("r+b") as file:
                    file.seek(at)
                    before = file.read(1)
                    file.seek(at)
                    file.write(bytes([chance.randrange(256)]))
                done = folio_here("doctor", damaged)
                assert done.returncode in (0, 1, 2)
                assert len(done.stderr.splitlines()) == (1 if done.returncode == 2 else 0), done.stderr
                said.add(done.returncode)
                with damaged.open("r+b") as file:
                    file.seek(at)
                    file.write(before)
        assert said >= {0, 2}

    @staticmethod
    def headers(core):
        return subprocess.run(["readelf", "-lW", core], capture_output=True, text=True, check=True).stdout

    def test_a_core_without_the_metadata(self, tmp_path):
        """What a filter left out is not taken for an empty heap."""
        command = ["env", "-C", str(tmp_path), str(HEAP), "known"]
        with running(command, LIBRARY, STILL) as process:
            line_of(process)
            Path(f"/proc/{process.pid}/coredump_filter").write_text("0x10")
            stop(process.pid)
            core = kernel_core(process, tmp_path)
        one_line(folio_here("doctor", core), "lacks the memory that the process had written", "coredump_filter")


def test_the_process_may_go_on_meanwhile(tmp_path):
    """The core is of a moment: of a heap of which the same is always live."""
    with heap("load", "4") as (pid, known):
        before = Process(pid).read_word(known["operations_at"])
        core = gcore(pid, tmp_path)
        eventually(lambda: Process(pid).read_word(known["operations_at"]) > before)
        parts = figures(core)
    live = sum(bin_["live_objects"] * bin_["size"] for bin_ in parts["bins"])
    in_flight, startup = 4 * 62 * 3392, 160 << 10
    assert known["bytes"] - in_flight <= live <= known["bytes"] + in_flight + startup
