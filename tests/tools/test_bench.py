"""The pure functions of bench/ and tools/try.py, and the benchmark programs in their smallest form."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import cases
import instructions
import measure
import report
import run


def load_try():
    """tools/try.py: its name is a keyword, so no import statement reaches it."""
    spec = importlib.util.spec_from_file_location("try_tool", measure.ROOT / "tools" / "try.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


try_tool = load_try()

CASE = cases.Case("c", "program", [], [cases.SPEED])


def sample(allocator, speed, number=0, problem=""):
    return report.Sample("c", allocator, number, {"ops_per_second": speed}, problem)


class TestReport:
    def test_summary_is_median_and_extremes(self):
        assert report.summarize([3.0, 1.0, 10.0]) == report.Summary(3.0, 1.0, 10.0)
        assert report.summarize([1.0, 2.0]) == report.Summary(1.5, 1.0, 2.0)
        assert report.summarize([]) is None

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0, "0"), (1234.5, "1234"), (12.345, "12.3"), (0.5, "0.500"), (0.00012, "0.000120"), (-2.5, "-2.50")],
    )
    def test_number(self, value, text):
        assert report.number(value) == text

    def test_advantage_above_one_leads(self):
        assert report.advantage(200, 100, more_is_better=True) == 2
        assert report.advantage(200, 100, more_is_better=False) == 0.5
        assert report.advantage(0, 100, more_is_better=False) is None

    def test_best_peer_is_never_folio(self):
        medians = {"folio": 9.0, "a": 3.0, "b": 5.0}
        assert report.best_peer(medians, more_is_better=True) == "b"
        assert report.best_peer(medians, more_is_better=False) == "a"
        assert report.best_peer({"folio": 1.0}, more_is_better=True) is None

    def test_table(self):
        samples = [sample("a", 2e6), sample("a", 4e6, 1), sample("folio", 12e6)]
        lines = report.table(samples, [CASE], ["a", "folio"]).splitlines()
        assert lines[0] == "| case | figure | folio | a | ahead of the best peer |"
        assert lines[2] == "| c | speed, million/s | 12.0 | 3.00 (2.00–4.00) | 4.00 x a |"
        assert all(line.count("|") == 6 for line in lines)

    def test_a_sample_with_a_problem_has_no_figure_and_wins_nothing(self):
        samples = [sample("a", 99e6, problem="over 8 GiB"), sample("b", 3e6), sample("folio", 6e6)]
        line = report.table(samples, [CASE], ["a", "b", "folio"]).splitlines()[2]
        assert line == "| c | speed, million/s | 6.00 | over 8 GiB | 3.00 | 2.00 x b |"

    def test_startup_difference(self):
        case = cases.Case("startup", "/bin/true", [], [cases.Figure("wall", "time", "ms", 1e3)])
        samples = [
            report.Sample("startup", "glibc", 0, {"wall": 0.001}),
            report.Sample("startup", "folio", 0, {"wall": 0.0015}),
        ]
        assert report.startup_difference(samples, case) == "startup of /bin/true against glibc: +0.500 ms"
        assert report.startup_difference(samples[:1], case) == ""


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
        assert [c.name for c in cases.select(["larson"])] == ["larson 2 threads", "larson 16 threads"]
        assert {c.program for c in cases.select(["malloc_test"])} == {"malloc_test"}
        assert cases.select(["nothing"]) == []
        assert cases.select([]) == cases.CASES

    def test_case_names_differ(self):
        assert len({c.name for c in cases.CASES}) == len(cases.CASES)

    def test_the_last_line_is_the_result(self):
        assert run.read_result(b'noise\n{"a": 1}\n') == {"a": 1}
        for bad in (b"", b"[1]\n", b"{\n"):
            with pytest.raises(measure.BenchError):
                run.read_result(bad)

    def test_peers_by_name_and_by_file(self, tmp_path):
        chosen = run.choose_peers(["glibc", f"mine={tmp_path}/x.so"])
        assert [a.name for a in chosen] == ["glibc", "mine"]
        with pytest.raises(measure.BenchError, match='no peer "nonesuch"'):
            run.choose_peers(["nonesuch"])


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


class TestTry:
    def runs(self, *results):
        return [measure.Run({"status": status}, stdout, b"") for status, stdout in results]

    def test_figures_have_units(self):
        assert try_tool.show("time", [1.5, 1.0, 2.0]) == "1.50 s (1.00–2.00)"
        assert try_tool.show("time", [0.0021]) == "2.1 ms (2.1–2.1)"
        assert try_tool.show("page faults", [1234, 1235, 1240]) == "1,235 (1,234–1,240)"

    def test_table_has_the_ratio_of_medians(self):
        lines = try_tool.table([[2.0, 2.0, 100.0, 0.0]], [[1.0, 3.0, 25.0, 7.0]]).splitlines()
        assert [line.split()[-1] for line in lines[1:]] == ["0.50", "1.50", "0.25", "–"]

    def test_differences_are_found(self):
        same = self.runs((0, b"x"), (0, b"x"))
        assert try_tool.differences(same, same) == []
        assert try_tool.differences(same, self.runs((0, b"x"), (0, b"y"))) == ["its output is not the same on both"]
        assert try_tool.differences(same, self.runs((139, b"x"))) == [
            "its exit status is not the same on both: 0 on glibc, 139 on Folio"
        ]

    def test_output_that_varies_on_glibc_alone_is_not_compared(self):
        assert try_tool.differences(self.runs((0, b"x"), (0, b"y")), self.runs((0, b"z"))) == []

    def test_loader_logs(self):
        log = "     12:\tcalling init: /a/libfolio.so\n     12:\tcalling init: /lib/libc.so.6\n"
        assert try_tool.logs_show([log, "", log], Path("/a/libfolio.so")) == 2
        assert try_tool.logs_show([log], Path("/b/libfolio.so")) == 0

    def test_commands_are_split_as_a_shell_does(self):
        assert try_tool.user_work("a 'b c'") == ["a", "b c"]
        with pytest.raises(measure.BenchError, match="No closing quotation"):
            try_tool.user_work("a 'b")


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
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="no C++ compiler")
class TestPrograms:
    def test_all_are_here(self):
        assert set(SMALL) == {path.stem for path in measure.PROGRAMS.glob("*.cc")}
        assert {c.program for c in cases.CASES} - {"/bin/true"} <= set(SMALL)

    @pytest.mark.parametrize("name", SMALL)
    def test_result_has_every_figure_of_its_cases(self, name, built):
        program, libc = measure.build_program(name, built), measure.Allocator("glibc", None)
        result = measure.launch(measure.build_launcher(built), libc, [str(program), *SMALL[name]], timeout=60)
        assert result.status == 0, result.stderr
        line = json.loads(result.stdout)
        assert line["program"] == name
        assert measure.serves(libc, line["malloc"])
        assert line["seconds"] > 0
        idle = {"after_1s_percent", "after_5s_percent"}  # not with idle=0
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
