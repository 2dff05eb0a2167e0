"""Heap profiles of running processes: sums against the truth, stacks, threads, and what a process is left as."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    HEAP,
    LIBRARY,
    ROOT,
    environment,
    folio,
    folio_here,
    folio_json,
    gcore,
    heap,
    kill,
    line_of,
    running,
    stop,
)
from folio.book import Columns, Sum, chance, median_life_ms, peak_of, sum_of
from folio.calls import Seam
from folio.errors import FolioError
from folio.profiling import Session, profiled
from folio.reader import Reader
from folio.samples import LIVE, Ends
from folio.sites import by_bin, by_thread, total
from folio.symbols import short, trimmed
from profiled import PROGRAM, ROUND, UNLOADED, by_name, must_be_near_round, names, program, taken, tell

# Begins a program under a filter of system calls that allows all.
IN_SANDBOX = """
import ctypes, os, sys
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
# Loads the call's number; where it is process_vm_readv the process is killed, else the call is allowed.
code = (ctypes.c_uint64 * 4)(0x20, 0x15 | 1 << 24 | 310 << 32, 0x06 | 0x80000000 << 32, 0x06 | 0x7FFF0000 << 32)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.cast(code, ctypes.c_void_p))), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def mode_of(pid):
    reader = Reader(pid)
    return "closed" if Seam(reader).mode() == reader.layout.mode_closed else "open"


class TestSums:
    def test_each_site_is_within_its_error(self):
        with program() as process:
            found = by_name(taken(process, 2048, "a"))
        must_be_near_round(found)
        for name in ROUND:
            own = found[name].own["live"]
            low, high = own.interval()
            assert low <= own.value <= high
        assert found["middle_site"].own["live"].error > 1000
        # Of objects much larger than the interval all but every one is a sample.
        assert found["large_site"].own["live"].samples >= 98

    def test_total_against_the_truth_over_many_rounds(self):
        rounds, scores = 300, []
        truth = sum(ROUND.values())
        with program() as process:
            reader = Reader(process.pid)
            for _ in range(rounds):
                session = Session(reader, 4096)
                with profiled(session):
                    tell(process, "a")
                found = np.concatenate([batch.samples for batch in session.samples.poll(Ends())])
                assert (found["mark"] & 3 == LIVE).all()
                sum_ = sum_of(found["size"], chance(found["size"], found["interval"]), np.ones(len(found)))
                scores.append((sum_.value - truth) / sum_.error)
                tell(process, "f")
        # Three standard errors leave out 1 in 370; by chance more than 6 of 300 do in one of 4000 such tests.
        assert sum(abs(score) > 3 for score in scores) <= 6
        assert abs(np.mean(scores)) < 4.5 / math.sqrt(rounds)
        assert 0.8 < np.std(scores) < 1.2

    def test_what_is_freed_is_not_live_but_was_allocated(self):
        with program() as process:
            profile = taken(process, 2048, "af")
        assert total(profile, "live").value == 0
        allocated = total(profile, "allocated")
        truth = sum(ROUND.values())
        assert abs(allocated.value - truth) <= 5 * allocated.error
        assert profile.missed == 0

    def test_frees_by_another_thread(self):
        with program() as process:
            profile = taken(process, 2048, "ax")
        assert (
            dict.fromkeys(ROUND, 0).items()
            <= {
                name: by_name(profile, "live")[name].own["live"].value if name in by_name(profile, "live") else 0
                for name in ROUND
            }.items()
        )

    def test_short_lived_objects_are_seen_or_counted_as_missed(self):
        with program() as process:
            profile = taken(process, 1024, "c" * 5)
        new = int(((profile.columns.number > profile.began) * profile.columns.count).sum())
        assert new > 0
        assert new + profile.missed == pytest.approx(5 * 2000 * (1 - math.exp(-500 / 1024)), abs=300)
        allocated = profile.allocated()
        assert abs(allocated.value - 5 * 2000 * 500) < 5 * allocated.error
        if profile.missed:
            assert any("were overwritten" in note for note in profile.notes)

    def test_resident_bytes_are_those_of_touched_pages(self):
        with running([str(HEAP), "scattered", "1000"], options="profile:1") as process:
            process.stdout.readline()
            session = Session(Reader(process.pid), 1)
            with profiled(session):
                session.poll()
                session.poll_pages()
            profile = session.profile()
            block = profile.columns.size == 3000 * os.sysconf("SC_PAGE_SIZE")
            assert block.sum() == 1
            assert profile.resident[block][0] == pytest.approx(1 / 3, abs=0.01)


class TestStacks:
    def test_callers(self):
        with program() as process:
            profile = taken(process, 512, "a")
        seen = {tuple(names(profile, stack)) for stack in profile.columns.stack.tolist()}
        wanted = {("small_site", "malloc"), ("middle_site", "operator new"), ("large_site", "calloc")}
        assert {(stack[1], stack[0]) for stack in seen if stack[1].endswith("_site")} == wanted
        for stack in seen:
            assert stack[-1] in ("_start", "[unknown caller]") or "__libc_start" in stack[-1], stack
            if stack[1].endswith("_site"):
                assert stack[2:4] == ("round_of_all", "main"), stack

    def test_lines(self):
        with program() as process:
            profile = taken(process, 512, "a")
        frames = [f for stack in profile.stacks for f in stack if short(f.function) == "small_site"]
        text = Path(frames[0].file).read_text().splitlines()
        assert "malloc(64)" in text[frames[0].line - 1]

    def test_cut_stacks_say_so(self):
        with program() as process:
            profile = taken(process, 512, "d")
        deep = [names(profile, s) for s in set(profile.columns.stack.tolist()) if "deep_site" in names(profile, s)]
        assert deep
        for stack in deep:
            assert stack[-1] == "[stack cut]"
            assert stack.count("deep_site") > 30
            assert "[unknown caller]" not in stack
        assert any("[stack cut]" in note for note in profile.notes)

    def test_aligned_frames_and_signals(self):
        with program() as process:
            profile = taken(process, 512, "rs")
        stacks = [names(profile, stack) for stack in set(profile.columns.stack.tolist())]
        aligned = [stack for stack in stacks if "aligned_site" in stack]
        handled = [stack for stack in stacks if "handler" in stack]
        assert aligned and handled
        for stack in aligned + handled:
            assert "main" in stack and stack[-1] == "_start", stack
        for stack in handled:
            assert "raise" in stack or any("kill" in name for name in stack), stack

    def test_threads_by_name(self):
        # What one thread chooses while another one makes room for more samples has none; some may be overwritten.
        for _ in range(20):
            with program() as process:
                profile = taken(process, 512, "tu")
            reported = [note for note in profile.notes if "made room for more" in note or "were overwritten" in note]
            assert bool(reported) == bool(profile.missed)
            if not profile.missed:
                break
        found = by_thread(profile, "live")
        for i in range(4):
            (name,) = [name for name in found if name.startswith(f"worker-{i} (")]
            assert abs(found[name].value - 200_000) < 5 * found[name].error + 20_000  # its vector, too
        assert set(by_bin(profile, "live")) >= {"1088"}

    def test_a_library_that_was_unloaded(self):
        with program() as process:
            profile = taken(process, 512, "lu")
            assert "unloaded" not in Path(f"/proc/{process.pid}/maps").read_text()
        own = by_name(profile)["unloaded_site"].own["live"]
        assert abs(own.value - 500_000) < 5 * own.error

    def test_stripped_program(self, tmp_path):
        stripped = tmp_path / "plain"
        shutil.copy(PROGRAM, stripped)
        subprocess.run(["strip", str(stripped)], check=True)
        with program(file=stripped) as process:
            profile = taken(process, 512, "a")
        (places,) = [{name for s in profile.columns.stack.tolist() for name in names(profile, s)}]
        assert any(re.fullmatch(r"plain\+0x[0-9a-f]+", name) for name in places)
        assert any("plain: stripped" in note for note in profile.notes)
        found = sorted(by_name(profile).values(), key=lambda site: -site.own["live"].value)
        assert abs(found[0].own["live"].value - ROUND["large_site"]) < 1e5  # three places, as with names

    def test_code_made_at_run_time_has_the_names_of_the_map(self, tmp_path):
        from folio.modules import MadeCode

        with program() as process:
            made = MadeCode(Reader(process.pid).process)
            file = f"/tmp/perf-{process.pid}.map"
            try:
                with open(file, "w") as out:
                    out.write("7f0000001000 40 py::work:/srv/app.py\n7f0000001040 20 py::rest\n")
                made.poll()
                assert made.name(0x7F0000001010) == "py::work:/srv/app.py"
                assert made.name(0x7F0000001040) == "py::rest"
                assert made.name(0x7F0000001060) == made.name(0x100) == ""
            finally:
                os.unlink(file)


class TestSwitching:
    def test_on_and_off_again(self):
        with heap("load", "2") as (pid, _):
            found = folio_json("profile", str(pid), "--interval", "64K", "--for", "0.5")
            assert found["samples"] > 100
            assert found["interval"] == 65536
            assert mode_of(pid) == "open"

    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
    def test_signals_end_it_early_with_what_was_seen(self, how):
        with heap("load", "2") as (pid, _):
            threading.Timer(1, os.kill, (os.getpid(), how)).start()
            begun = time.monotonic()
            done = folio_here("profile", str(pid), "--for", "5m", "--json")
            assert time.monotonic() - begun < 60
            assert done.returncode == 0
            assert mode_of(pid) == "open"

    def test_one_that_is_profiled_from_its_start_is_only_read(self):
        with program("profile:1024") as process:
            tell(process, "a")
            begun = time.monotonic()
            found = folio_json("profile", str(process.pid), "--interval", "4K")
            assert time.monotonic() - begun < 20
            assert found["interval"] == 1024
            assert found["total"]["live"]["bytes"] >= 0.9 * sum(ROUND.values())
            assert mode_of(process.pid) == "closed"

    def test_one_that_joins_another_command_knows_what_came_since_and_ends_with_it(self):
        with program() as process:
            first, second = Session(Reader(process.pid), 1024), Session(Reader(process.pid), 4096)
            with profiled(first):
                tell(process, "a")
                with profiled(second):
                    tell(process, "a")
                    second.poll()
                    first.end()
                    tell(process, "a")
                    with pytest.raises(FolioError, match="ended with the other command"):
                        second.poll()
            found = second.profile()
            assert found.interval == 1024
            for what in ("live", "allocated"):
                assert 0.8 * sum(ROUND.values()) < total(found, what).value < 1.2 * sum(ROUND.values())

    def test_another_program_in_its_place(self):
        with program() as process:
            session = Session(Reader(process.pid), 1024)
            with profiled(session):
                tell(process, "a")
                session.poll()
                tell(process, "e")
                with pytest.raises(FolioError, match="another program"):
                    session.poll()
            assert mode_of(process.pid) == "open"
            assert by_name(session.profile())["large_site"].own["live"].value > 0

    def test_a_process_that_ends_meanwhile(self):
        with heap("load", "2") as (pid, _):
            timer = threading.Timer(5, kill, (pid,))
            timer.start()
            done = folio_here("profile", str(pid), "--for", "60", "--interval", "64K")
            timer.join()
        assert done.returncode == 0
        assert "the process ended" in done.stdout
        assert "next: folio profile --html heap.html -- PROGRAM" in done.stdout

    def test_one_that_its_sandbox_would_kill(self):
        with running([sys.executable, "-c", IN_SANDBOX, str(PROGRAM), str(UNLOADED)]) as process:
            line_of(process)
            found = by_name(taken(process, 2048, "a"))
            must_be_near_round(found)
            assert "main" in [frame.function for frame in found["small_site"].path]  # whole stacks
            assert process.poll() is None

    def test_what_a_program_prints_is_not_among_the_json(self):
        done = folio("profile", "--json", "--interval", "64", "--", sys.executable, "-c", "print('out')")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["interval"] == 64
        assert "out" in done.stderr

    def test_a_program_that_ends_at_once(self):
        done = folio("profile", "--interval", "64", "--", "/bin/ls", "/")
        assert "no profile" not in done.stderr, done.stderr
        assert "samples" in done.stderr

    def test_a_stopped_process(self):
        with heap("known") as (pid, _):
            stop(pid)
            for command in ("profile", "calls"):
                done = folio_here(command, str(pid), "--for", "0.2")
                assert done.returncode == 2
                assert f"kill -CONT {pid}" in done.stderr
            os.kill(pid, signal.SIGCONT)

    def test_errors_are_a_line(self):
        with heap("known") as (pid, _):
            for words, said in (
                (("profile",), "no process"),
                (("profile", "1073741824"), "no process 1073741824"),
                (("profile", str(pid), "--interval", "x"), "--interval x"),
                (("profile", str(pid), "--for", "soon"), "--for soon"),
                (("profile", str(pid), "--for", "99999999999h"), "--for 99999999999h"),
                (("profile", str(pid), "--sort", "name"), "--sort name"),
                (("profile", str(pid), "--html", "/no/such/folder/x.html"), "is no folder"),
                (("profile", str(pid), "--live", "--json"), "--live"),
                (("profile", "--diff", "/no/a", "/no/b"), "/no/a"),
            ):
                done = folio_here(*words)
                assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
                assert said in done.stderr


class TestProgramThatIsStarted:
    def test_profiled_to_its_end(self):
        work = "x = [b'%d' % i * 99 for i in range(9999)]; import time; time.sleep(1); exit(7)"
        script = f'exec /usr/bin/python3 -c "{work}"'
        done = folio("profile", "--interval", "1K", "--json", "--", "sh", "-c", script)
        assert done.returncode == 7, done.stderr
        found = json.loads(done.stdout)
        assert found["since_start"] and "python3" in found["command"]
        assert found["samples"] > 500
        assert found["total"]["peak"]["bytes"] > 1 << 20

    def test_one_that_is_not_there(self):
        done = folio("profile", "--", "/no/such/program")
        assert done.returncode == 2
        assert "cannot run" in done.stderr


class TestFiles:
    def test_of_a_process_that_was_killed(self, tmp_path):
        with program(f"profile:1024,profile_file:{tmp_path}/heap") as process:
            tell(process, "a")
            kill(process.pid)
            file = tmp_path / f"heap.{process.pid}"
            found = folio_json("profile", file)
        assert found["pid"] == process.pid and found["interval"] == 1024
        assert found["total"]["resident"] is None
        for function in found["functions"]:
            name = short(function["frame"]["function"])
            if name in ROUND:
                own = function["itself"]["live"]
                assert abs(own["bytes"] - ROUND[name]) < 5 * own["standard_error"] + 1
        assert {short(each["frame"]["function"]) for each in found["functions"]} >= set(ROUND)

    def test_a_core_file_tells_where_they_are(self, tmp_path):
        with program(f"profile:1024,profile_file:{tmp_path}/a heap") as process:
            tell(process, "a")
            core = gcore(process.pid, tmp_path)
        done = folio_here("profile", core)
        file = f"{tmp_path}/a heap.{process.pid}"
        assert done.returncode == 2
        assert f"holds no samples, which the process kept in {file}: folio profile '{file}'" in done.stderr
        assert folio_json("profile", file)["pid"] == process.pid

    def test_as_the_program_writes_it(self, tmp_path):
        file = tmp_path / "written"
        work = f"""
import ctypes
kept = [b"%d" % i * 300 for i in range(3000)]
with open({str(file)!r}, "wb") as out:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    write = kind(lambda _, text, length: out.write(ctypes.string_at(text, length)) and None)
    ctypes.CDLL(None).folio_profile_write(write, None)
"""
        done = subprocess.run(
            ["/usr/bin/python3", "-c", work], env=environment(LIBRARY, "profile:4096"), capture_output=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found = folio_json("profile", file)
        truth = sum(len(b"%d" % i * 300) for i in range(3000))
        assert 0.9 * truth < found["total"]["live"]["bytes"] < truth + (4 << 20)  # and the interpreter's own
        assert any("python3" in each["module"] for function in found["functions"] for each in [function["frame"]])

    def test_damaged_ones_are_refused_in_a_line(self, tmp_path):
        with program(f"profile:4096,profile_file:{tmp_path}/heap") as process:
            tell(process, "a")
            whole = (tmp_path / f"heap.{process.pid}").read_bytes()
        random = np.random.default_rng(5)
        for damaged in (
            whole[:40],
            whole[: 3 << 20],
            whole[:8] + b"\7" + whole[9:],
            whole[:48] + random.bytes(4048) + whole[4096:],
            b"FolioPro",
        ):
            file = tmp_path / "damaged"
            file.write_bytes(damaged)
            done = folio_here("profile", file)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr

    def test_files_that_are_none_are_not_taken_for_programs(self, tmp_path):
        for content, said in ((b"", "neither a core file nor a snapshot"), (b"\x1f\x8b\x08\0", "packed")):
            file = tmp_path / "file"
            file.write_bytes(content)
            done = folio_here("profile", str(file))
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
            assert said in done.stderr

    def test_of_another_processor(self, tmp_path):
        """An aarch64 program, under qemu, whose stacks are unwound here."""
        library, compiler = ROOT / "build-cross/libfolio.so", shutil.which("aarch64-linux-gnu-g++")
        if not (library.exists() and compiler and shutil.which("qemu-aarch64")):
            pytest.skip("no qemu-aarch64, cross compiler, or build of the preset cross")
        built = tmp_path / "profiled"
        source = Path(__file__).with_name("profiled.cc")
        subprocess.run([compiler, "-std=c++20", "-O2", "-g", "-fno-builtin", source, "-o", built], check=True)
        words = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_PRELOAD={library}", str(built)]
        with running(words, None, f"profile:1024,profile_file:{tmp_path}/heap") as process:
            process.stdout.readline()
            tell(process, "a")
            found = folio_json("profile", tmp_path / f"heap.{process.pid}")
        functions = {short(each["frame"]["function"]): each for each in found["functions"]}
        for name, truth in ROUND.items():
            own = functions[name]["itself"]["live"]
            assert abs(own["bytes"] - truth) < 5 * own["standard_error"] + 1
            callers = [short(frame["function"]) for frame in functions[name]["callers"]]
            assert callers[:2] == ["round_of_all", "main"]

    def test_snapshots_hold_samples(self, tmp_path):
        pytest.importorskip("folio.snapshot_file")
        with program("profile:1024") as process:
            tell(process, "a")
            assert folio_here("snapshot", str(process.pid), "-o", tmp_path / "heap").returncode == 0
            running = folio_json("profile", str(process.pid))
        found = folio_json("profile", tmp_path / "heap")
        assert found["total"]["live"] == running["total"]["live"]
        assert found["functions"] == running["functions"]
        damaged = tmp_path / "damaged"
        damaged.write_bytes((tmp_path / "heap").read_bytes()[:-100])
        done = folio_here("profile", damaged)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)

    def test_core_files_hold_samples(self, tmp_path):
        with program("profile:1024") as process:
            tell(process, "a")
            core = gcore(process.pid, tmp_path)
            running = folio_json("profile", str(process.pid))
        for file in (core, tmp_path / "of_core"):
            if file != core:
                assert folio_here("snapshot", core, "-o", file).returncode == 0
            found = folio_json("profile", file)
            live = found["total"]["live"]
            assert live["bytes"] == running["total"]["live"]["bytes"]
            assert [each["frame"]["function"] for each in found["functions"]] == [
                each["frame"]["function"] for each in running["functions"]
            ]


class TestTable:
    def test_shows_functions_with_errors(self):
        with program("profile:2048") as process:
            tell(process, "a")
            done = folio_here("profile", str(process.pid))
        assert re.search(r"^live [\d.]+ MiB ± [\d.]+ KiB; of it resident", done.stdout, re.M)
        assert re.search(r"large_site profiled.cc:\d+", done.stdout)
        assert re.search(r"← round_of_all ← main", done.stdout)
        assert "next: folio profile" in done.stdout
        assert max(len(line.rstrip()) for line in done.stdout.splitlines() if "_site" in line or "←" in line) <= 80

    def test_says_where_samples_are_too_few(self):
        with program("profile:4194304") as process:
            tell(process, "a")
            done = folio_here("profile", str(process.pid))
        assert "say little" in done.stdout


class TestArithmetic:
    def test_chances(self):
        assert chance(512, 512) == pytest.approx(1 - math.exp(-1))
        assert chance(0, 512) > 0
        assert chance(1e9, 1) == 1

    def test_intervals_of_few_samples_hold_the_truth(self):
        random, inside = np.random.default_rng(1), 0
        size, interval, count = 100.0, 1000.0, 60  # some six samples
        p = float(chance(size, interval))
        for _ in range(2000):
            n = random.binomial(count, p)
            each = np.full(n, size)
            low, high = sum_of(each, np.full(n, p), np.ones(n)).interval() if n else (0.0, 3.7 * size / p)
            inside += low <= size * count <= high
        assert inside >= 0.94 * 2000

    def test_median_life_counts_the_living_as_long_as_they_were(self):
        def columns(written, freed):
            n = len(written)
            ones = np.ones(n, np.int64)
            return Columns(
                *(np.array(x) for x in (range(1, n + 1), [0] * n, written, freed)), ones * 10**9, ones, ones, ones, ones
            )

        assert median_life_ms(columns([0, 0, 0], [10, 20, 30]), 100) == (20.0, 30.0)
        assert median_life_ms(columns([0, 0, 50], [10, 0, 0]), 100)[0] is None
        assert median_life_ms(columns([0, 0, 0, 90], [10, 20, 30, 0]), 100)[0] == 20.0
        chosen, when = peak_of(columns([0, 5, 20], [10, 15, 0]))
        assert (chosen.tolist(), when) == ([True, True, False], 5)

    def test_names(self):
        assert short("std::vector<int, std::allocator<int>>::push_back(int&&)") == (
            "std::vector<int, std::allocator<int>>::push_back"
        )
        assert short("void* ns::f<int>(int) const") == "ns::f<int>"
        letters = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char>>"
        assert short(f"{letters}::append({letters} const&)") == "std::string::append"
        assert short("(anonymous namespace)::f(int)") == "(anonymous namespace)::f"
        assert short("operator new[](unsigned long)") == "operator new[]"
        assert short("a::operator()(int) const").startswith("a::operator()")
        assert trimmed([], "") == []
        assert Sum().interval() == (0, 0)


def test_library_is_there():
    assert LIBRARY.exists() and PROGRAM.exists()
