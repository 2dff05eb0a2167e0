"""`folio compare`, and what it shares with the laboratory of bench/: rounds, launching."""

import json
import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from conftest import BROWSER, LIBRARY, folio, needs_browser
from folio import rounds
from folio.compare import MEASURES, Comparison, cautions, differences, in_short, take_report, verdict
from folio.compare_page import page, ratio_axis, ratio_ticks, ticks, unit_of
from folio.errors import FolioError
from folio.launching import LAUNCH_PY, Allocator, Run, find_launcher, launch
from folio.rounds import Interval

GLIBC = Allocator("glibc", None)
WORK = ["/usr/bin/python3", "-c", "x = [bytes(n % 3000) for n in range(3000)]; print(len(x))"]


def run_of(status=0, stdout=b"x", wall=1.0, peak=1024):
    usage = {"wall": wall, "user": wall, "sys": 0.0, "max_rss_kib": peak, "minor_faults": 5, "major_faults": 0}
    return Run({**usage, "status": status}, stdout, b"")


def comparison(ours, theirs, **more):
    made = Comparison(["p"], {}, len(ours), [GLIBC, Allocator("Folio", LIBRARY)], **more)
    made.runs = {"glibc": [run_of(wall=w) for w in theirs], "Folio": [run_of(wall=w) for w in ours]}
    return made


class TestRounds:
    def test_each_round_begins_with_another(self):
        assert [rounds.turn("abc", n) for n in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]

    def test_verdicts(self):
        lower, level = rounds.Interval(0.8, 0.7, 0.9, 5), rounds.Interval(1.02, 0.9, 1.1, 5)
        assert verdict(lower) == "20 % less"
        assert verdict(rounds.Interval(1.5, 1.2, 1.7, 5)) == "50 % more"
        assert verdict(level) == "no difference seen"
        assert verdict(rounds.Interval(2.0, 2.0, 2.0, 1)) == verdict(None) == ""


class TestShowing:
    def test_ratios_of_medians(self):
        made = comparison([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
        assert made.ratio("Folio", MEASURES[0]).value == pytest.approx(0.5)
        assert MEASURES[0].show(made.median("glibc", MEASURES[0])) == "2.00 s (1.90–2.10)"
        assert MEASURES[2].show(made.median("glibc", MEASURES[2])) == "1.0 MiB (1.0–1.0)"

    def test_in_short(self):
        made = comparison([1.0, 1.1, 0.9], [2.0, 2.1, 1.9])
        assert in_short(made, "Folio").replace("\n", " ") == (
            "Folio beside glibc: it takes 50 % less time, 50 % less CPU time; no difference is seen in peak memory, "
            "page faults."
        )
        assert in_short(comparison([1.0], [2.0]), "Folio") == ""

    def test_the_servers_own_report(self):
        run = Run({"wall": 3.5}, b"", b'noise\n{"seconds": 1.5, "rest_bytes": 4096}\n')
        take_report(run)
        assert run.usage == {"wall": 1.5, "rest_bytes": 4096}
        for bad in (b"", b"killed\n", b'{"seconds": 1}\n', b"[1]\n"):
            with pytest.raises(FolioError, match="the example did not report"):
                take_report(Run({"wall": 3.5}, b"", bad))

    def test_what_differs_is_said(self):
        same = [run_of(), run_of()]
        assert differences(same, same, "glibc", "Folio") == ([], [])
        assert differences(same, [run_of(stdout=b"y")], "glibc", "Folio")[0] == [
            "its output is not the same on glibc and Folio"
        ]
        assert differences(same, [run_of(status=139)], "glibc", "Folio")[0] == [
            "its exit status is not the same on glibc and Folio: 0 on glibc, 139 on Folio"
        ]

    def test_what_varies_by_itself_is_not_compared(self):
        warnings, notes = differences([run_of(stdout=b"x"), run_of(stdout=b"y")], [run_of()], "glibc", "Folio")
        assert warnings == []
        assert notes == ["its output differs from run to run on glibc alone; not compared"]


class TestCautions:
    def test_none(self):
        assert cautions(comparison([1.0, 1.01] * 5, [2.0, 2.01] * 5)) == []

    def test_too_few_rounds(self):
        assert cautions(comparison([1.0], [2.0]))[0].startswith("one run on each: no intervals")
        assert cautions(comparison([1.0] * 3, [2.0] * 3))[0].startswith("fewer than 6 runs")

    def test_runs_that_vary(self):
        (said,) = cautions(comparison([1.0, 1.5, 2.0, 1.2, 0.8, 1.1], [1.0] * 6))
        assert re.match(r"the runs vary: a ratio of time is known to ± \d+ % only", said)

    def test_a_busy_machine(self):
        (said,) = cautions(comparison([1.0] * 6, [2.0] * 6, load=1000.0))
        assert said.startswith("the machine was busy before the first run (load 1000.0 on ")


class TestPage:
    def test_ticks(self):
        assert ticks(10.4) == [0, 2, 4, 6, 8, 10]
        assert ticks(0.3) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
        for most in (1, 7, 999, 123456):
            assert 3 <= len(ticks(most)) <= 7

    def test_units(self):
        assert unit_of("seconds", 0.03) == (1e-3, "ms")
        assert unit_of("bytes", 3 << 20) == (2**20, "MiB")
        assert unit_of("count", 999) == (1, "")

    @pytest.mark.parametrize("ends", [(0.98, 1.02), (0.5, 2), (0.01, 100), (0.7, 1.001), (0.999, 30)])
    def test_the_axis_of_ratios(self, ends):
        low, high = ratio_axis([Interval(1, *ends, 6)])
        assert low < ends[0] < ends[1] < high
        found = ratio_ticks(low, high)
        assert "1" in [text for _, text in found]
        places = [at for at, _ in found]
        assert all(b - a >= 10.9 for a, b in pairwise(places))
        assert 0 <= places[0] <= places[-1] <= 100

    def test_says_what_it_shows(self):
        text = page(comparison([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], load=1000.0))
        head = text.index("<h2>")
        assert 0 < text.index("Folio beside glibc: it takes 50 % less time") < head
        assert 0 < text.index("fewer than 6 runs") < head
        assert 0 < text.index("the machine was busy") < head
        assert "One dot is one run of the program" in text
        assert "95 %" in text
        assert "time, in s<" in text
        assert "peak memory, in MiB<" in text
        assert text.count('class="dot" style="left: ') == 4 * 2 * 3 + 1  # and that of the explanation
        middle = re.search(
            r'<span class="name">time</span>\s+<span class="plot less".*?class="median" style="left: ([\d.]+)%',
            text,
            re.DOTALL,
        )
        one = re.search(r'class="one" style="left: ([\d.]+)%', text)
        assert float(middle[1]) < float(one[1])

    def test_a_difference_in_output_comes_first(self):
        made = comparison([1.0] * 6, [2.0] * 6)
        made.warnings.append("its output is not the same on glibc and Folio")
        text = page(made)
        assert text.index("Not the same work:</b> its output is not the same") < text.index("<h2>")

    def test_one_round(self):
        text = page(comparison([1.0], [2.0]))
        assert "One run on each: no difference can be told." in text
        assert "Beside glibc" not in text
        assert 'class="band"' not in text

    @needs_browser
    @pytest.mark.parametrize("width", [390, 1000])
    def test_it_fits(self, tmp_path, width):
        script = "<script>document.title = [innerWidth, page.scrollWidth - page.clientWidth].join()</script>"
        text = page(comparison([1.0, 1.1, 0.9] * 2, [2.0, 2.1, 1.9] * 2))
        (tmp_path / "page.html").write_text(text + script.replace("page", "document.documentElement"))
        frame = f"<iframe src=page.html style='width: {width}px; height: 900px; border: 0'></iframe>"
        frame += "<script>onload = () => { document.title = frames[0].document.title; };</script>"
        (tmp_path / "frame.html").write_text("<!doctype html>" + frame)
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
        command += ["--virtual-time-budget=3000", "--dump-dom", f"file://{tmp_path}/frame.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert f"<title>{width},0</title>" in done.stdout


class TestLauncher:
    def test_without_a_compiler(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CC", raising=False)
        assert find_launcher(tmp_path) == (LAUNCH_PY, False)

    def test_in_python_it_reports_the_same(self):
        run = launch(LAUNCH_PY, GLIBC, ["/bin/sh", "-c", "echo out; exit 7"])
        assert (run.status, run.stdout) == (7, b"out\n")
        assert 0 < run.usage["max_rss_kib"] < 20000
        assert launch(LAUNCH_PY, GLIBC, ["/bin/sh", "-c", "kill -9 $$"]).status == 128 + 9
        with pytest.raises(FolioError, match="cannot run no-such-program: No such file"):
            launch(LAUNCH_PY, GLIBC, ["no-such-program"])


class TestCommand:
    def test_until_the_ratios_are_known(self, tmp_path):
        done = folio("compare", "--scratch", tmp_path, "--json", "--until", "100000", "--", "true")
        found = json.loads(done.stdout)
        assert found["rounds"] == 6
        assert any("within ± 100000 %: stopped after 6 rounds" in note for note in found["notes"])
        done = folio("compare", "--scratch", tmp_path, "--json", "-n", "2", "--until", "0.01", "--", "true")
        found = json.loads(done.stdout)
        assert found["rounds"] == 2
        late = re.compile(r"after 2 rounds the ratios of time are within ± [\d.]+ %, not 0.01")
        assert any(late.search(note) for note in found["notes"])

    def test_json_and_html(self, tmp_path):
        page = tmp_path / "a.html"
        done = folio("compare", "-n", "2", "--scratch", tmp_path, "--json", "--html", page, "--", *WORK)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert list(found["libraries"]) == ["glibc", "Folio"]
        assert set(found["measures"]) == {"time", "cpu", "peak", "faults"}
        assert len(found["measures"]["time"]["Folio"]["values"]) == 2
        html = page.read_text()
        assert "peak memory" in html
        assert not re.search(r'(?:src|href)="?(?:https?:|//)', html)
        assert "prefers-color-scheme: dark" in html

    def test_text(self, tmp_path):
        done = folio("compare", "-n", "2", "--scratch", tmp_path, "--command", "/usr/bin/python3 -c 'print(1)'")
        assert done.returncode == 0, done.stderr
        for text in ("time", "CPU time", "peak memory", "page faults", "glibc", "Folio", "95 % intervals"):
            assert text in done.stdout
        assert "fewer than 6 runs: these are about their ranges; -n 10 says more" in done.stdout
        assert "PYTHONMALLOC" not in done.stdout
        assert all(len(line) <= 80 for line in done.stdout.splitlines() if not line.startswith("next"))

    @pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
    def test_the_server(self, tmp_path):
        done = folio("compare", "-n", "1", "--scratch", tmp_path, "--example", "server", "--json")
        assert done.returncode == 0, done.stderr
        measures = json.loads(done.stdout)["measures"]
        for name in ("glibc", "Folio"):
            (seconds,), (rest,), (peak,) = (measures[key][name]["values"] for key in ("time", "rest", "peak"))
            assert 0 < seconds < 60  # without the two seconds at its end
            assert 1 << 20 < rest <= peak + (1 << 20)  # the kernel counts pages of each thread apart, and late

    def test_a_program_or_an_example(self):
        assert "one of both" in folio("compare", "--example", "server", "--", "true").stderr
        assert "there is server, python" in folio("compare", "--example", "nosuch").stderr

    def test_pools_of_pythons_own_are_reported(self, tmp_path):
        command = ["compare", "-n", "1", "--scratch", tmp_path, "--json", "--", "python3", "-c", "print(1)"]
        notes = json.loads(folio(*command, PATH="/usr/bin:/bin", PYTHONMALLOC="pymalloc").stdout)["notes"]
        assert any("PYTHONMALLOC=malloc puts them on Folio" in note for note in notes)

    def test_another_library(self, tmp_path):
        other = tmp_path / "libother.so.1"
        other.write_bytes(LIBRARY.read_bytes())
        done = folio("compare", "-n", "1", "--scratch", tmp_path, "--with", f"twin={other}", "--json", "--", *WORK)
        assert list(json.loads(done.stdout)["libraries"]) == ["glibc", "Folio", "twin"]
        assert "no file" in folio("compare", "--with", "/nosuch", "--", "true").stderr

    def test_a_library_that_the_loader_cannot_be_told_of(self, tmp_path):
        folder = tmp_path / "a folder"
        folder.mkdir()
        copy = folder / "libfolio.so.0"
        copy.write_bytes(LIBRARY.read_bytes())
        for command in ("compare", "run"):
            done = folio(command, "--lib", copy, "--", "true")
            assert done.returncode == 2 and "LD_PRELOAD ends names at spaces" in done.stderr, command

    def test_ctrl_c_after_the_program_has_ended(self, tmp_path, monkeypatch):
        launcher, _ = find_launcher(tmp_path)
        communicate = subprocess.Popen.communicate

        def interrupted(process, *arguments, **named):
            communicate(process)
            raise KeyboardInterrupt

        monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            launch(launcher, GLIBC, ["true"])

    def test_a_static_program_is_refused(self, tmp_path):
        launcher, small = find_launcher(tmp_path)
        if not small:
            pytest.skip("no C compiler: no static program")
        done = folio("compare", "--scratch", tmp_path, "--", launcher, tmp_path / "r", "-", "true")
        assert done.returncode == 2
        assert "link the program with libfolio.o" in done.stderr

    def test_output_that_differs_is_status_1(self, tmp_path):
        command = "import os; print('libfolio' in os.environ.get('LD_PRELOAD', ''))"
        done = folio("compare", "-n", "1", "--scratch", tmp_path, "--", "/usr/bin/python3", "-c", command)
        assert done.returncode == 1
        assert "warning: its output is not the same on glibc and Folio" in done.stdout
