"""The pure functions of bench/, and the benchmark programs in their smallest form."""

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import cases
import environment
import host_memory
import instructions
import measure
import simulate


class TestMeasure:
    def test_maps_hold_the_real_file_only(self, tmp_path):
        real, link = tmp_path / "libx.so.0.1", tmp_path / "libx.so"
        real.touch()
        link.symlink_to(real)
        maps = f"7f00-7f01 r-xp 00000000 08:01 12                 {real}\n7f02-7f03 rw-p 00000000 00:00 0 [heap]\n"
        assert measure.maps_hold(maps, link)
        assert not measure.maps_hold(maps, tmp_path / "lib")
        assert not measure.maps_hold(maps.replace(".so.0.1", ".so.0.1.2"), link)

    def test_whose_malloc_it_is(self, tmp_path):
        library = tmp_path / "libx.so"
        library.touch()
        assert measure.serves(measure.Allocator("x", library), str(library))
        assert not measure.serves(measure.Allocator("x", library), "/lib/libc.so.6")
        assert measure.serves(measure.Allocator("glibc", None), "/lib/libc.so.6")
        assert not measure.serves(measure.Allocator("glibc", None), str(library))

    def test_a_library_that_is_not_loaded_is_noticed(self, tmp_path):
        no_library = tmp_path / "libx.so"
        no_library.write_text("not a shared object")
        launcher = measure.build_launcher(tmp_path)
        with pytest.raises(measure.BenchError, match="x: not loaded"):
            measure.prove_loaded(launcher, measure.Allocator("x", no_library))
        with pytest.raises(measure.BenchError, match="no file"):
            measure.prove_loaded(launcher, measure.Allocator("x", tmp_path / "none.so"))

    def test_launch_reports_status_output_and_memory(self, tmp_path):
        launcher, libc = measure.build_launcher(tmp_path), measure.Allocator("glibc", None)
        result = measure.launch(launcher, libc, ["sh", "-c", "echo out; echo err >&2; exit 7"])
        assert (result.status, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
        # Far below what this interpreter has resident: the launcher's reason to exist.
        assert 0 < result.usage["max_rss_kib"] < 6000
        assert measure.launch(launcher, libc, ["sh", "-c", "kill -9 $$"]).status == 128 + 9

    def test_launch_says_what_cannot_be_run(self, tmp_path):
        launcher, libc = measure.build_launcher(tmp_path), measure.Allocator("glibc", None)
        with pytest.raises(measure.BenchError, match="cannot run no-such-program: No such file"):
            measure.launch(launcher, libc, ["no-such-program"])
        with pytest.raises(measure.BenchError, match="not done after 0 s"):
            measure.launch(launcher, libc, ["sleep", "60"], timeout=0.2)


class TestRun:
    def test_selection_by_name_or_program(self):
        assert [c.name for c in cases.select(["larson"])] == [f"larson {n} threads" for n in (2, 8, 16)]
        assert {c.program for c in cases.select(["malloc_test"])} == {"malloc_test"}
        assert cases.select(["nothing"]) == []
        assert cases.select([]) == cases.CASES

    def test_case_names_differ(self):
        assert len({c.name for c in cases.CASES}) == len(cases.CASES)


class TestEnvironment:
    def test_a_build_folder_that_is_a_link(self, tmp_path, monkeypatch):
        (tmp_path / "elsewhere" / "venv-bench").mkdir(parents=True)
        (tmp_path / "build").symlink_to(tmp_path / "elsewhere")
        monkeypatch.setattr(environment, "VENV", tmp_path / "build" / "venv-bench")
        monkeypatch.setattr(sys, "prefix", str(tmp_path / "build" / "venv-bench"))
        environment.enter()  # it is there already: nothing is started


CALLGRIND = """\
events: Ir
ob=(1) /tmp/program
fl=(1) a.cc
fn=(1) main
5 100
cfn=(2) measured_loop
calls=1 9
6 950
fn=(2)
9 40
+1 20
cob=(2) /lib/libx.so
cfi=(2) b.c
cfn=(3) malloc
calls=10 50
+0 500
cob=(2)
cfn=(4) free
calls=10 70
* 390
fn=(3)
50 500
"""


class TestHostMemory:
    def test_a_balloon_that_reports_free_pages_takes_memory_back(self, tmp_path):
        assert not host_memory.is_taken_back(tmp_path)
        for name, kind, features in (("virtio0", "0x0002", "1" * 64), ("virtio1", "0x0005", "0110010" + "0" * 57)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "device").write_text(kind + "\n")
            (tmp_path / name / "features").write_text(features + "\n")
            assert host_memory.is_taken_back(tmp_path) == (kind == "0x0005")
        (tmp_path / "virtio1" / "features").write_text("0110000" + "0" * 57)
        assert not host_memory.is_taken_back(tmp_path)

    def test_what_is_available(self):
        assert host_memory.available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2 << 20
        assert host_memory.available("") == 0

    def test_what_is_held_is_there_and_then_gone(self):
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        held, before = host_memory.Held(64 << 20), resident()
        held.hold()
        held.hold()
        assert resident() - before >= 63 << 20
        held.release()
        held.release()
        assert resident() - before < 16 << 20
        nothing = host_memory.Held(0)
        nothing.hold()
        assert nothing.memory is None


class TestInstructions:
    def test_profile_of_the_loop(self):
        profile = instructions.parse_callgrind(CALLGRIND)
        assert profile == instructions.Profile(own=60, called=890, calls=20, objects={"/lib/libx.so"})

    def test_a_pair_is_the_difference_and_the_two_calls(self):
        few = instructions.Profile(own=60, called=890, calls=20)
        many = instructions.Profile(own=110, called=1130, calls=40)
        assert instructions.per_pair(few, many, 10) == instructions.Count(pair=26.0, loop=3.0)
        with pytest.raises(measure.BenchError, match="inlined"):
            instructions.per_pair(few, many, 11)


CACHEGRIND = """\
==1== I   refs:      231,022,401
==1== I1  misses:          3,594
==1== LLi misses:          3,161
==1== D   refs:       76,211,473  (52,684,556 rd   + 23,526,917 wr)
==1== D1  misses:      3,703,849  ( 1,982,896 rd   +  1,720,953 wr)
==1== LLd misses:      1,430,868  (   788,919 rd   +    641,949 wr)
==1== LL misses:       1,434,029  (   792,080 rd   +    641,949 wr)
"""


class TestSimulate:
    def test_what_cachegrind_prints(self):
        assert simulate.parse_cachegrind(CACHEGRIND) == simulate.Misses(231022401, 3703849, 1430868)
        with pytest.raises(measure.BenchError, match="D1"):
            simulate.parse_cachegrind("I refs: 1")

    def test_the_others_by_the_first(self):
        lines = simulate.table({"folio": [2000, 0, 1, 1, 1, 5], "x": [1000, 3, 1, 2, 1, 5]}, "folio")
        assert lines[2] == "| folio | 2.0 k | 0.0 k | 0.0 k | 0.0 k | 0.0 k | 0.0 k |"
        assert lines[3] == "| x | 0.50 | – | 1.00 | 2.00 | 1.00 | 1.00 |"

    @pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind")
    def test_pages_that_miss(self, tmp_path):
        launcher, glibc = measure.build_launcher(tmp_path), measure.Allocator("glibc", None)
        source, walk = tmp_path / "walk.c", tmp_path / "walk"
        source.write_text("volatile char b[64 << 20]; int main() { for (long i = 0; i < 64 << 20; i += 4096) b[i]; }")
        measure.compile_to(walk, [measure.compiler("c"), str(source)])
        misses = simulate.simulate(launcher, [str(walk)], glibc, simulate.PAGES)
        assert misses.second >= 16384  # each page once, beyond both levels

    def test_every_case_has_a_program(self):
        for words in simulate.CASES.values():
            assert (measure.PROGRAMS / f"{words.split()[0]}.cc").is_file()


SMALL = {
    "malloc_test": ["pairs=2", "objects=100000", "size=0", "touch=2"],
    "larson": ["1", "7", "500", "100", "100", "1", "3"],
    "vyukov_chain": ["threads=5", "objects=500", "touch=2"],
    "random_lifetimes": ["ops=100000", "slots=100", "threads=2"],
    "tight_loop": ["pairs=100000", "batch=10"],
    "burst": ["bytes=1m", "threads=2", "idle=0", "random=1"],
    "idle_threads": ["threads=10", "ops=100", "idle=0"],
    "pauses": ["seconds=1", "burst=1m"],
    "super_server": ["ops=100000", "threads=3"],
    "lever_boreham": ["pairs=100000", "threads=2"],
    "symmetric_exchange": ["ops=100000"],
    "nalloc_tests": ["test=3", "ops=100000", "threads=2"],
    "warm_up": ["objects=3000000", "slot_ms=20"],
    "factor": ["p=10000000019", "q=20000000089"],
    "group_cycles": ["ops=100000"],
    "large_buffers": ["ops=50"],
    "realloc_growth": ["elements=100000", "vectors=8"],
    "calloc_arrays": ["ops=10"],
    "fragmentation": ["bytes=4m", "rest=0"],
    "order": ["objects=1000", "turns=2", "replaced=10000", "threads=2"],
    "survivors": ["bytes=4m", "rest_ms=0", "trim=1"],
    "key_value": ["bytes=4m", "operations=100000", "writes=3", "threads=2"],
    "thread_churn": ["threads=50"],
    "false_sharing": ["rounds=20", "writes=1000"],
    "burst_idle": ["bytes=4m", "bursts=1", "idle_ms=0"],
    "big_heap": ["heap=16m", "replaced=1000", "aligned=100"],
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder where programs are built, which here all have the same header before them, read once."""
    folder = tmp_path_factory.mktemp("bench")
    header = folder / "before.h"
    header.write_text(f'#include "{measure.PROGRAMS / "bench.h"}"\n')
    precompile = [measure.compiler("c++"), *measure.CXX_FLAGS, "-x", "c++-header", str(header)]
    measure.compile_to(folder / "before.h.gch", precompile)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "CXX_FLAGS", [*measure.CXX_FLAGS, "-include", str(header)])
        yield folder


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")
class TestPrograms:
    def test_all_are_here(self):
        assert set(SMALL) == {path.stem for path in measure.PROGRAMS.glob("*.cc")}
        assert {c.program for c in cases.CASES} - {"/bin/true"} <= set(SMALL)

    @pytest.mark.parametrize("name", SMALL)
    def test_result_has_every_figure_of_its_cases(self, name, built):
        program, libc = measure.build_program(name, built), measure.Allocator("glibc", None)
        for _ in range(5):  # on a busy machine a program with small parameters may find that it measured nothing
            result = measure.launch(measure.build_launcher(built), libc, [str(program), *SMALL[name]], timeout=300)
            if result.status == 0:
                break
        assert result.status == 0, result.stderr
        line = json.loads(result.stdout)
        assert line["program"] == name
        assert measure.serves(libc, line["malloc"])
        assert line["seconds"] > 0
        # Not with idle=0, nor with idle_ms=0.
        idle = {f"after_{s}s_percent" for s in (1, 2, 5)} | {f"after_{ms}ms_percent" for ms in (500, 1000, 2000, 5000)}
        wanted = {f.key for c in cases.CASES if c.program == name for f in c.figures} - idle
        assert wanted <= set(line)

    def test_wrong_parameters_are_refused(self, built):
        program = str(measure.build_program("tight_loop", built))
        launcher, libc = measure.build_launcher(built), measure.Allocator("glibc", None)
        for arguments, message in [
            (["sise=3"], b'no parameter "sise"'),
            (["size=big"], b'"big" is no value for size'),
            (["size=-1"], b'"-1" is no value for size'),
            (["batch=0"], b"batch is 1 to 1024"),
        ]:
            result = measure.launch(launcher, libc, [program, *arguments])
            assert result.status == 2
            assert message in result.stderr
