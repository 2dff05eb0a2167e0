"""A process that begins another program (exec), as wrappers do: nothing of the first is shown of the second."""

import json
import os
import re
import resource
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
from conftest import HEAP, LIBRARY, STILL, eventually, folio, folio_here, line_of, running
from folio.bins import sample
from folio.calls import Seam, count
from folio.errors import FolioError, NewProgram
from folio.finding import Wanted
from folio.metrics import Collector
from folio.parts import explain, explain_well
from folio.reader import Reader, of_new_program
from folio.run import show, summary
from folio.watching import Watch, watch

WRAPPED = f"import os, sys; print(flush=True); input(); os.execv('{HEAP}', ['heap', 'known'])"


@contextmanager
def wrapper(then=WRAPPED, first="/usr/bin/python3"):
    """A program on Folio that begins the heap of known size when it is told to."""
    with running([first, "-c", then], options=STILL) as process:
        line_of(process)
        yield process


def go_on(process):
    """Returns what the second program says of itself."""
    process.stdin.write("\n")
    process.stdin.flush()
    return json.loads(line_of(process))


def after(patch, times, process):
    """So many sleeps later the process goes on; one sleeps no more."""
    left = [times]

    def sleep(_):
        left[0] -= 1
        if left[0] == 0:
            go_on(process)

    patch.setattr(time, "sleep", sleep)


class TestReader:
    def test_it_notices(self):
        with wrapper() as process:
            reader = Reader(process.pid)
            explain(reader)
            go_on(process)
            for question in (reader.view, reader.reading, reader.options, lambda: reader.counter("purged")):
                with pytest.raises(NewProgram, match=f"process {process.pid} began another program"):
                    question()

    def test_it_finds_folio_anew(self):
        with wrapper() as process:
            Reader(process.pid)
            known = go_on(process)
            parts = explain_well(of_new_program(process.pid))
            group = known["groups"][0]
            assert parts.exact
            (bin_,) = [each for each in parts.bins if each.size == group["size"]]
            assert bin_.live_objects == group["held"]

    @pytest.mark.parametrize("prefix", [[], ["setarch", "-R"]])
    def test_the_same_program_again_is_another_one(self, prefix):
        """Also where addresses are not random, and all of it lies where it lay before."""
        begin = "os.execv(sys.executable, ['python3', '-c', sys.argv[1], *sys.argv[1:]])"
        code = f"import os, sys; print(1, flush=True); input(); {begin}"
        if prefix and subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
            pytest.skip("addresses cannot be fixed here")
        with running([*prefix, "/usr/bin/python3", "-c", code, code], options=STILL) as process:
            line_of(process)
            reader = Reader(process.pid)
            go_on(process)
            with pytest.raises(NewProgram):
                reader.view()
            assert explain_well(of_new_program(process.pid)).exact

    def test_another_one_that_is_not_on_folio(self):
        alone = WRAPPED.replace("input();", "input(); del os.environ['LD_PRELOAD'];")
        with wrapper(alone) as process:
            reader = Reader(process.pid)
            go_on(process)
            with pytest.raises(NewProgram):
                reader.view()
            with pytest.raises(FolioError, match="is not on Folio"):
                Reader(process.pid)


class TestCommands:
    def test_bins_begins_again(self, capsys):
        with wrapper() as process:
            reader = Reader(process.pid)
            with pytest.MonkeyPatch.context() as patch:
                after(patch, 2, process)
                samples, ended = sample(reader, 0.01, 3)
            said = capsys.readouterr().err
        assert not ended
        assert len(samples) == 3
        assert all(parts.exact and parts.large.objects for _, parts in samples), "all of the second program"
        assert f"process {process.pid} began another program (exec): heap known" in said

    @pytest.mark.parametrize("words", [["bins", "--json"], ["map", "--json", "-o", "MAP"], ["top", "--json"]])
    def test_with_every_they_go_on(self, words, tmp_path):
        words = [str(tmp_path / "map.html") if word == "MAP" else word for word in words]
        with wrapper() as process, pytest.MonkeyPatch.context() as patch:
            after(patch, 3, process)
            done = folio_here(words[0], process.pid, *words[1:], "--every", "0.1", "--times", "5")
        assert done.returncode == 0, done.stderr
        reported = f"process {process.pid} began another program (exec): heap known; what is shown begins there\n"
        assert done.stderr == reported
        if words[0] == "top":
            looks = [json.loads(line) for line in done.stdout.splitlines()]
            assert len(looks) == 5
            assert all(look["exact"] and sum(look["parts"].values()) == look["rss"] for look in looks)

    def test_calls_counts_nothing_of_another_program(self):
        with wrapper() as process:
            reader = Reader(process.pid)
            seam = Seam(reader)
            with pytest.MonkeyPatch.context() as patch:
                after(patch, 1, process)
                with pytest.raises(NewProgram):
                    count(seam, 0.1)

    def test_metrics_are_of_the_program_that_runs(self):
        with wrapper() as process:
            collector = Collector(Wanted([process.pid]))
            before = list(collector.collect())
            known = go_on(process)
            after = {family.name: family for family in collector.collect()}
        assert before
        (up,) = after["folio_up"].samples
        assert (up.value, up.labels["process"]) == (1, HEAP.name[:15])
        objects = {s.labels["size"]: s.value for s in after["folio_live_objects"].samples}
        assert objects["64"] == known["groups"][0]["held"]


class TestRun:
    def watched(self, process, seen, then):
        ended = threading.Event()
        thread = threading.Thread(target=watch, args=(process.pid, seen, ended))
        thread.start()
        try:
            then()
        finally:
            ended.set()
            thread.join()

    def test_the_look_is_of_the_second_program(self):
        with wrapper() as process:
            seen = Watch()

            def then():
                eventually(lambda: seen.parts)
                go_on(process)
                eventually(lambda: len(seen.programs) == 2 and seen.program == str(HEAP))

            self.watched(process, seen, then)
        assert seen.parts.exact
        assert seen.parts.huge.objects >= 2

    @pytest.mark.parametrize(
        "shell",
        ["exec {0}", "sleep 0.3; exec {0}", "exec sh -c 'sleep 0.2; exec {0}'", "{0}; true", "exec timeout 300 {0}"],
    )
    def test_wrappers(self, shell, tmp_path):
        grow = tmp_path / "grow.py"
        grow.write_text("import time\nx = [bytearray(b'x') * 5000 for n in range(20000)]\ntime.sleep(1.5)\n")
        file = tmp_path / "summary.json"
        done = folio("run", "--json", file, "--", "sh", "-c", shell.format(f"/usr/bin/python3 {grow}"))
        look = json.loads(file.read_text())["largest_look"]
        assert done.returncode == 0
        assert look["exact"]
        assert look["live"] > 90 << 20
        assert abs(look["unexplained"]) <= 0.01 * look["rss"]
        assert look["of_peak"] >= 0.9
        assert "python3" in look["program"]
        assert re.search(r"the largest of \d+ looks? at its memory, at (9\d|100) % of the peak", done.stderr)

    def test_a_look_that_is_not_exact_is_not_shown_as_one(self, capsys):
        from folio.run import show, summary

        with running([str(HEAP), "known"]) as process:
            line_of(process)
            parts = explain(Reader(process.pid))
            seen = Watch()
            exact = explain_well(Reader(process.pid))
            parts.rss *= 2  # as the kernel counted what came while it was read
            seen.add(parts, Reader(process.pid))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            show(summary(["x"], 1.0, 0, usage, seen, 1 << 60), seen)
            said = capsys.readouterr().err
            assert "no look at its memory was exact; the parts and what the kernel counts differ by" in said
            seen.add(exact, Reader(process.pid))
            show(summary(["x"], 1.0, 0, usage, seen, 1 << 60), seen)
            said = capsys.readouterr().err
            assert "the largest of 1 look at its memory" in said
            assert "differ by" not in said

    def test_a_look_far_from_the_peak_is_reported(self, capsys):
        with running([str(HEAP), "known"]) as process:
            line_of(process)
            seen = Watch()
            seen.read(Reader(process.pid))
            usage = resource.getrusage(resource.RUSAGE_SELF)
            seen.peak = 10 * seen.parts.rss
            show(summary(["x"], 1.0, 0, usage, seen, 1 << 60), seen)
        said = capsys.readouterr().err
        assert "at its memory, at 10 % of the peak" in said
        assert re.search(r"the peak \(\S+ MiB\) is not what is shown: it came and went between two looks", said)

    def test_the_largest_of_several_processes_is_shown(self, tmp_path):
        """Each for itself, as the kernel counts the peak."""
        grow = "import time; x = [bytearray(b'x') * 5000 for n in range({})]; time.sleep(2)"
        small, large = (f'/usr/bin/python3 -c "{grow.format(count)}"' for count in (3000, 16000))
        file = tmp_path / "summary.json"
        folio("run", "--json", file, "--", "sh", "-c", f"{small} & {large} & {small} & wait")
        look = json.loads(file.read_text())["largest_look"]
        assert 16000 * 5000 < look["live"] < 22000 * 5000
        assert look["exact"]

    @pytest.mark.parametrize(
        ("library", "said"),
        [
            ("/usr/lib/x86_64-linux-gnu/libz.so.1", "is not Folio's library"),
            (str(LIBRARY.with_name("libfolio-embed.so")), "takes the place of no malloc"),
            (__file__, "is no shared library"),
        ],
    )
    def test_a_library_that_is_not_folio(self, library, said):
        if not os.path.exists(library):
            pytest.skip("not there")
        done = folio_here("run", "--lib", library, "--", "touch", "/nonexistent/x")
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
        assert said in done.stderr
