"""`folio metrics`: what it says, read by Prometheus's own parsers, and what is shipped with it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import HEAP, LIBRARY, environment, eventually, folio_here, folio_json, heap, kill, running
from folio.errors import FolioError
from folio.finding import Wanted, by_cgroup, cgroup_folder, cgroup_mounts
from folio.metrics import SHIPPED, Collector, parse_listen
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

STILL = "decay:3600000,housekeeper:off,dirty_floor:1000"  # nothing is purged while it is looked at
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
IN_BINS = {"live", "cached_threads", "cached_cpus", "cached_depot", "fragmented", "dirty", "padding"}


class Said:
    """The samples of an exposition."""

    def __init__(self, text, parser=open_metrics):
        self.families = {family.name: family for family in parser(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def all(self, name, **labels):
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def sum(self, name, **labels):
        found = self.all(name, **labels)
        assert found, (name, labels)
        return sum(sample.value for sample in found)


@pytest.fixture(scope="module")
def seen():
    """A known heap in which nothing moves: what metrics, doctor and the program itself say of it."""
    # Without huge pages, of which a part may be of no bin.
    with heap("known", options=STILL + ",huge_pages:never") as (pid, known):
        done = folio_here("metrics", pid)
        assert (done.returncode, done.stderr) == (0, "")
        yield pid, known, done.stdout, Said(done.stdout)


class TestFigures:
    def test_json_says_the_same(self, seen):
        pid, _, _, said = seen
        found = folio_json("metrics", pid)["metrics"]
        assert set(found) == set(said.families)
        for name, family in found.items():
            assert family["type"] == said.families[name].type
            if name != "folio_read_seconds":
                values = [sample.value for sample in said.families[name].samples]
                assert [sample["value"] for sample in family["samples"]] == values

    def test_it_ends_as_the_standard_says(self, seen):
        assert seen[2].endswith("\n# EOF\n")

    def test_units_are_base_units_and_named(self, seen):
        for name, family in seen[3].families.items():
            assert family.unit in ("", "bytes", "seconds")
            assert re.search("_(bytes|seconds)$", name) is None or name.endswith("_" + family.unit)
            assert family.documentation.endswith(".")

    def test_parts_are_doctors_and_sum_to_rss(self, seen):
        pid, _, _, said = seen
        found = folio_json("doctor", pid)
        for part, value in found["parts"].items():
            assert said.sum("folio_resident_bytes", part=part) == value["bytes"], part
        with open(f"/proc/{pid}/statm") as statm:
            assert said.sum("folio_resident_bytes") == int(statm.read().split()[1]) * 4096

    def test_bins_sum_to_the_parts(self, seen):
        said = seen[3]
        assert {s.labels["part"] for s in said.all("folio_bin_resident_bytes")} == IN_BINS
        for part in IN_BINS:
            assert said.sum("folio_bin_resident_bytes", part=part) == said.sum("folio_resident_bytes", part=part)

    @pytest.mark.parametrize("i", range(3))
    def test_objects_are_those_held(self, seen, i):
        pid, known, _, said = seen
        group = known["groups"][i]
        where = folio_json("where", pid, hex(group["first"]))
        assert said.sum("folio_live_objects", bin=str(where["bin"])) == group["held"]

    def test_which_process_and_library(self, seen):
        pid, _, _, said = seen
        (up,) = said.all("folio_up")
        assert (up.value, up.labels) == (1, {"pid": str(pid), "process": HEAP.name[:15]})
        (library,) = said.all("folio_library_info")
        assert library.labels["path"] == str(LIBRARY)
        assert re.fullmatch(r"\d+\.\d+\.\d+", library.labels["version"])

    def test_what_was_given_back_is_counted(self):
        with heap("quiet", "64", options="collect_from_outside:on," + STILL.replace(",housekeeper:off", "")) as (
            pid,
            known,
        ):
            before = Said(folio_here("metrics", pid).stdout)
            assert folio_here("collect", pid, "--timeout", "60").returncode == 0
            after = Said(folio_here("metrics", pid).stdout)
        assert before.families["folio_purged_bytes"].type == "counter"
        purged = [said.sum("folio_purged_bytes_total") for said in (before, after)]
        assert purged[1] - purged[0] >= 0.9 * known["freed"]
        assert after.sum("folio_purges_total") > before.sum("folio_purges_total")

    def test_names_of_processes_are_escaped(self, tmp_path):
        program = tmp_path / 'a"b\\c'
        shutil.copy(HEAP, program)
        with heap("known", program=program) as (pid, _):
            said = Said(folio_here("metrics", pid).stdout)
        assert said.all("folio_up")[0].labels["process"] == 'a"b\\c'


class TestSeveral:
    def test_one_that_is_gone_leaves_the_others(self, python_process):
        with running(["sleep", "9"]) as ended:
            pass
        done = folio_here("metrics", python_process, ended.pid)
        said = Said(done.stdout)
        assert done.returncode == 1
        assert (
            done.stderr == f"folio metrics: there is no process {ended.pid}; `pgrep -a NAME` finds processes by name\n"
        )
        assert said.sum("folio_up", pid=str(python_process)) == 1
        assert said.sum("folio_up", pid=str(ended.pid)) == 0
        assert {s.labels["pid"] for s in said.all("folio_resident_bytes")} == {str(python_process)}

    def test_none(self):
        done = folio_here("metrics", "999999998", "999999999")
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 2)

    @pytest.mark.parametrize(
        "words",
        [[], ["1", "--listen", "x"], ["1", "--listen", "host:70000"], ["1", "--listen", "1", "--textfile", "f"]],
    )
    def test_errors_are_one_line(self, words):
        done = folio_here("metrics", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1


def of_name(tmp_path, name):
    """A program of a name that nobody else has."""
    return shutil.copy(HEAP, tmp_path / name)


def ups(families):
    (up,) = [family for family in families if family.name == "folio_up"]
    return {int(sample.labels["pid"]): sample.value for sample in up.samples}


def counts(families):
    (found,) = [family for family in families if family.name == "folio_found_processes"]
    return {(sample.labels["by"], sample.labels["what"]): sample.value for sample in found.samples}


class TestFound:
    @pytest.mark.parametrize("name", ["its-own-name", "a-name-that-is-longer-than-comm"])
    def test_by_name_new_ones_come_and_old_ones_go(self, tmp_path, name, capsys):
        program = of_name(tmp_path, name)
        collector = Collector(Wanted(names=[name]), tells=True)
        assert ups(collector.collect()) == {}
        assert collector.status() == 2
        with heap("quiet", "1", program=program) as (first, _):
            families = list(collector.collect())
            assert ups(families) == {first: 1}
            assert counts(families) == {("name", name): 1}
            assert collector.status() == 0
            with heap("quiet", "1", program=program) as (second, _):
                assert ups(collector.collect()) == {first: 1, second: 1}
            assert ups(collector.collect()) == {first: 1}
        families = list(collector.collect())
        assert ups(families) == {}
        assert counts(families) == {("name", name): 0}
        said = capsys.readouterr().err
        for line in ("new: process", "gone: process"):
            assert f"{line} {second} ({name[:15]})" in said

    def test_others_of_the_name_are_left_out(self, tmp_path):
        program = of_name(tmp_path, "its-own-name")
        collector = Collector(Wanted(names=["its-own-name"]))
        with running([program, "quiet", "1"], None) as other, heap("quiet", "1", program=program) as (pid, _):
            other.stdout.readline()
            for _ in range(5):
                assert ups(collector.collect()) == {pid: 1}
        assert collector.status() == 0

    def test_one_that_gets_onto_folio_later_is_found(self, tmp_path):
        program = of_name(tmp_path, "its-own-name")
        to_it = f"os.execve('{program}', ['x', 'quiet', '1'], os.environ | {{'LD_PRELOAD': '{LIBRARY}'}})"
        code = f"input(); import os; {to_it}"
        collector = Collector(Wanted(names=["its-own-name", "python3"]))
        with running(["/usr/bin/python3", "-c", code], None) as process:
            for _ in range(5):
                assert process.pid not in ups(collector.collect())
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert ups(collector.collect())[process.pid] == 1

    def test_by_cgroup_and_those_below_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr("folio.finding.cgroup_mounts", lambda: [tmp_path])
        group = tmp_path / "system.slice" / "a.service"
        (group / "below").mkdir(parents=True)
        collector = Collector(Wanted(cgroups=["/system.slice/a.service"]))
        with heap("quiet", "1") as (first, _), heap("quiet", "1") as (second, _), heap("quiet", "1"):
            (group / "cgroup.procs").write_text(f"{first}\n0\n")
            (group / "below" / "cgroup.procs").write_text(f"{second}\n")
            assert ups(collector.collect()) == {first: 1, second: 1}
            assert by_cgroup(group) == by_cgroup(cgroup_folder(str(group))) == sorted([first, second])
            shutil.rmtree(group)  # as systemd does when the service has ended
            assert ups(collector.collect()) == {}

    def test_a_folder_that_is_no_cgroup(self, tmp_path, monkeypatch):
        monkeypatch.setattr("folio.finding.cgroup_mounts", lambda: [tmp_path])
        (tmp_path / "x").mkdir()
        done = folio_here("metrics", "--cgroup", "x")
        assert (done.returncode, done.stdout) == (2, "")
        assert "is no cgroup; /proc/PID/cgroup tells that of a process" in done.stderr

    def test_a_cgroup_of_the_kernels(self):
        for mount in cgroup_mounts():
            folder = mount / f"folio-test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                with heap("quiet", "1") as (pid, _):
                    try:
                        (folder / "cgroup.procs").write_text(str(pid))
                    except OSError:  # as a cpuset without CPUs
                        continue
                    done = folio_here("metrics", "--cgroup", folder.name)
                    assert Said(done.stdout).sum("folio_up", pid=str(pid)) == 1
                    return
            finally:
                eventually(lambda folder=folder: gone(folder))
        pytest.skip("no cgroup can be made here")

    def test_none_is_an_error_but_where_it_serves(self, tmp_path):
        done = folio_here("metrics", "--name", "no-such-name")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "folio metrics: no process on Folio of the name no-such-name; `pgrep -a NAME` finds processes by name\n"
        )
        with serving("--name", "its-own-name", "--listen", "127.0.0.1:0") as (_, url):
            assert not Said(get(url)[1]).all("folio_up")
            with heap("quiet", "1", program=of_name(tmp_path, "its-own-name")) as (pid, _):
                assert Said(get(url)[1]).sum("folio_up", pid=str(pid)) == 1

    def test_a_number_that_another_process_has_got(self):
        collector = Collector(Wanted([1]))
        with heap("quiet", "1") as (pid, _):
            collector.names = {pid: ""}
            assert ups(collector.collect()) == {pid: 1}
            collector.started[pid] = "0"  # as if the first one had ended
            families = list(collector.collect())
        assert ups(families) == {pid: 0}
        assert "is another one now" in str(collector.failures[pid])
        assert not [f for f in families if f.name == "folio_resident_bytes" and f.samples]


def gone(folder):
    try:
        folder.rmdir()
    except OSError:
        return not folder.exists()
    return True


class TestTextfile:
    def test_its_name_must_be_one_that_is_read(self, python_process, tmp_path):
        done = folio_here("metrics", python_process, "--textfile", tmp_path / "folio.txt")
        assert (done.returncode, done.stdout) == (2, "")
        assert "node_exporter reads only files whose names end in .prom" in done.stderr
        assert not list(tmp_path.iterdir())

    def test_both_parsers_read_it(self, python_process, tmp_path):
        file = tmp_path / "folio.prom"
        file.write_text("old")
        done = folio_here("metrics", python_process, "--textfile", file)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        for parser in (open_metrics, plain_text):
            said = Said(file.read_text(), parser)
            assert said.sum("folio_resident_bytes", part="live") > 1 << 20
            assert said.sum("folio_purged_bytes_total") >= 0
        # What node_exporter reads knows fewer types than OpenMetrics, and refuses a file with any other.
        assert set(re.findall(r"^# TYPE \w+ (\w+)$", file.read_text(), re.MULTILINE)) == {"gauge", "counter"}
        assert list(tmp_path.iterdir()) == [file]
        assert file.stat().st_mode & 0o777 == 0o644

    def test_it_says_that_a_process_ended(self, tmp_path):
        file = tmp_path / "folio.prom"
        done = folio_here("metrics", "999999999", "--textfile", file)
        assert done.returncode == 2
        assert Said(file.read_text()).sum("folio_up") == 0

    def test_a_folder_that_is_none(self, python_process, tmp_path):
        done = folio_here("metrics", python_process, "--textfile", tmp_path / "no" / "folio.prom")
        assert done.returncode == 2
        assert "No such file or directory; name a file in a folder that can be written" in done.stderr


@contextmanager
def serving(*words):
    command = [sys.executable, "-m", "folio", "metrics", *map(str, words)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(None))
    try:
        line = server.stderr.readline()
        while not line.startswith("serves "):
            assert line
            line = server.stderr.readline()
        yield server, re.search(r"at (http://\S+); Ctrl-C ends\n", line)[1]
    finally:
        server.kill()
        server.communicate()


def get(url, accept=OPEN_METRICS):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=300) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


class TestListen:
    def test_each_scrape_looks_anew(self):
        with heap("quiet", "8") as (pid, _), serving(pid, pid, "--listen", "127.0.0.1:0") as (_, url):
            kind, text = get(url)
            assert kind.startswith(OPEN_METRICS)
            assert Said(text).sum("folio_up") == 1
            assert Said(get(url, "text/plain")[1], plain_text).sum("folio_resident_bytes") > 1 << 20
            kill(pid)
            said = Said(get(url)[1])
            assert said.all("folio_up")[0].labels["process"] == HEAP.name[:15]
            assert said.sum("folio_up") == 0
            assert not said.all("folio_resident_bytes")

    def test_an_address_in_use(self, python_process):
        with serving(python_process, "--listen", "127.0.0.1:0") as (server, url):
            port = url.split(":")[2].split("/")[0]
            done = folio_here("metrics", python_process, "--listen", port)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            assert "choose another address or port" in done.stderr
            server.send_signal(signal.SIGINT)
            assert server.wait(300) == 130

    def test_addresses(self):
        assert parse_listen("9399") == parse_listen(":9399") == ("127.0.0.1", 9399)
        assert parse_listen("[::1]:80") == ("::1", 80)
        with pytest.raises(FolioError, match="write HOST:PORT"):
            parse_listen("localhost")


class TestShipped:
    """Dashboard and rules ask for nothing that is not said."""

    @pytest.fixture(params=["--dashboard", "--alerts"])
    @staticmethod
    def text(request):
        done = folio_here("metrics", request.param)
        assert done.returncode == 0
        return done.stdout

    def test_figures_and_labels_exist(self, text, seen):
        names = {sample.name for sample in seen[3].samples}
        labels = {label for sample in seen[3].samples for label in sample.labels}
        parts = {sample.labels["part"] for sample in seen[3].all("folio_resident_bytes")}
        assert len(set(re.findall(r"\bfolio_\w+", text))) >= 2
        assert set(re.findall(r"\bfolio_\w+", text)) <= names
        for group in re.findall(r"(?:by|without|ignoring) \(([^)]*)\)", text):
            assert set(re.split(r", *", group)) <= labels
        asked = re.findall(r'part!?=~?\\?"([^"\\]*)', text)
        assert asked
        assert {part for each in asked for part in each.split("|")} <= parts

    def test_rules_fire_when_they_should(self, tmp_path):
        if shutil.which("promtool") is None:
            pytest.skip("no promtool: it comes with Prometheus")
        for file in (SHIPPED / "alerts.yml", Path(__file__).with_name("alerts_test.yml")):
            shutil.copy(file, tmp_path)
        done = subprocess.run(
            ["promtool", "test", "rules", tmp_path / "alerts_test.yml"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    def test_panels_do_not_overlap(self):
        panels = json.loads((SHIPPED / "dashboard.json").read_text())["panels"]
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) < 24
        assert len({panel["id"] for panel in panels}) == len(panels)
