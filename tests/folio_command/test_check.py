"""`folio check`: what is loaded, what the kernel has, and whose malloc a program's libraries call."""

import json
import re
import resource
import shutil
import subprocess
import sys

import pytest
from conftest import (
    LIBRARY,
    OPENER,
    OWN,
    PLUGIN,
    ROOT,
    SYMBOLIC,
    environment,
    folio,
    folio_here,
    folio_json,
    heap,
    line_of,
    running,
)
from folio.bindings import Binding, sorted_out, stub_holder

WIDTH = 80
MIB = 1 << 20


class TestCheck:
    def test_here(self):
        done = folio_here("check")
        assert done.returncode == 0
        for text in (str(LIBRARY), "decay:1000", "rseq", "huge pages", "PSI", "overcommit", "RLIMIT_AS"):
            assert text in done.stdout
        assert re.match(r"Folio serves a program started with it \(/bin/sh, process \d+\)\n", done.stdout)
        assert all(len(line) <= WIDTH for line in done.stdout.splitlines() if str(LIBRARY) not in line)

    def test_a_process_and_its_options(self):
        with heap("quiet", "1", options="decay:123") as (pid, _):
            found = folio_json("check", "--pid", str(pid))
            assert folio_here("check", "--pid", pid).stdout.startswith(f"Folio serves process {pid}: ")
        assert found["folio"]["options"]["decay"] == "123 ms"
        assert found["folio"]["library"] == str(LIBRARY)
        assert all(feature["meaning"] for feature in found["features"])

    def test_a_path_among_the_options(self):
        with heap("quiet", "1", options="profile_file:/tmp/a file,decay:5") as (pid, _):
            assert folio_json("check", "--pid", pid)["folio"]["options"]["profile_file"] == "/tmp/a file"
            assert "profile_file:/tmp/a file" in " ".join(folio_here("check", "--pid", pid).stdout.split())
        assert folio_json("check")["folio"]["options"]["profile_file"] == "none"

    def test_a_library_that_is_none(self, tmp_path):
        no_library = tmp_path / "libfolio.so"
        no_library.write_text("not a library")
        done = folio_here("check", "--lib", no_library)
        assert done.returncode == 2
        assert "is not on Folio" in done.stderr
        assert folio_here("check", "--lib", tmp_path / "none").returncode == 2

    def test_a_process_or_a_program(self):
        assert "one of both" in folio_here("check", "--pid", "1", "--", "true").stderr


class TestAddressSpace:
    """Under RLIMIT_AS neither the command nor what it starts may fail without a word."""

    def check(self, mib, *words):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, resource.getrlimit(resource.RLIMIT_AS)[1]))

        return subprocess.run(
            [sys.executable, "-m", "folio", *words],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment(None) | {"FOLIO_LIBRARY": str(LIBRARY)},
            preexec_fn=limit,
        )

    @pytest.mark.parametrize("mib", [1000, 300, 200])
    def test_enough(self, mib):
        done = self.check(mib, "check")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"· RLIMIT_AS: {mib}" in done.stdout
        assert "ulimit -v unlimited" in done.stdout

    @pytest.mark.parametrize("mib", [125, 100, 60])
    def test_too_little_for_the_library(self, mib):
        done = self.check(mib, "check")
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("Folio serves no program here\n")
        assert f"✗ RLIMIT_AS: {mib}.0 MiB" in done.stdout
        least = re.search(r"cannot be mapped below ([\d.]+)\s+MiB", done.stdout)
        assert float(least[1]) > 128
        assert "PAGEMAP_SCAN" in done.stdout, "what else there is to say"

    def test_too_little_for_the_command(self):
        done = self.check(100, "doctor", "1")
        assert done.returncode == 2
        assert re.fullmatch(r"folio doctor: RLIMIT_AS is 100 MiB here, .*`ulimit -v unlimited`.*\n", done.stderr)
        assert self.check(100, "doctor", "--help").returncode == 0

    def test_programs_do_not_inherit_what_makes_room(self):
        done = self.check(1000, "run", "--quiet", "--", "sh", "-c", "echo ${OPENBLAS_NUM_THREADS-none}")
        assert done.stdout == "none\n"


def tried(*program):
    return json.loads(folio_here("check", "--json", "--", *program).stdout)


class TestCalls:
    """Whose malloc the files of a program call."""

    def test_all_call_folios(self):
        found = tried(OPENER, "plain", PLUGIN)
        assert found["ended"] == "status 0"
        assert {str(OPENER), str(PLUGIN)} <= set(found["calls"]["folio"])
        assert (found["calls"]["others"], found["calls"]["own"]) == ({}, [])

    def test_libraries_that_bind_deeply(self):
        found = tried(OPENER, "deep", PLUGIN)["calls"]
        assert [file.endswith("/libc.so.6") for file in found["others"][str(PLUGIN)]] == [True]
        assert str(OPENER) in found["folio"]
        done = folio_here("check", "--", OPENER, "deep", PLUGIN)
        assert done.returncode == 1
        assert "✗ not Folio's: 1 file\n      libfolio_command_plugin.so\n" in done.stdout
        assert "RTLD_DEEPBIND" in done.stdout
        assert "PHP" not in done.stdout
        assert done.stdout.splitlines()[-1].startswith("next: LD_PRELOAD=./nodeepbind.so folio check -- ")
        assert "Folio serves only parts of " in done.stdout

    def test_a_program_that_ends_by_it(self):
        done = folio_here("check", "--", OPENER, "cross", PLUGIN)
        assert done.returncode == 1
        assert re.search(r"✗ the program was ended by SIG(ABRT|SEGV)", done.stdout)

    def test_a_malloc_of_its_own(self):
        # It would be called in place of Folio's only where it binds to itself, as after RTLD_DEEPBIND.
        done = folio_here("check", "--", OPENER, "deep", OWN)
        assert "· their own: 1 file" in done.stdout
        assert done.returncode == 0

    def test_a_library_that_the_loader_need_not_bind(self):
        found = tried(OPENER, "plain", SYMBOLIC)["calls"]
        assert (found["brought"], found["own"], found["others"]) == ([str(SYMBOLIC)], [], {})
        done = folio_here("check", "--", OPENER, "plain", SYMBOLIC)
        assert (done.returncode, "· a malloc that they bring: 1 file" in done.stdout) == (0, True)

    @pytest.mark.parametrize(("how", "plugin", "kind"), [
        ("plain", PLUGIN, "folio"), ("deep", PLUGIN, "others"), ("deep", OWN, "own"), ("plain", OWN, "folio"),
        ("plain", SYMBOLIC, "brought"),
    ])  # fmt: skip
    def test_of_a_process(self, how, plugin, kind):
        with running([str(OPENER), how, str(plugin)]) as process:
            line_of(process)
            found = folio_json("check", "--pid", process.pid)["calls"]
            status = folio_here("check", "--pid", process.pid).returncode
        assert [each for each in found if str(plugin) in found[each]] == [kind]
        assert str(OPENER) in found["folio"]
        assert status == (kind == "others")

    def test_linked_into_the_program(self):
        with heap("quiet", "1") as (pid, _):
            assert folio_json("check", "--pid", pid)["calls"]["others"] == {}

    def test_a_program_that_does_not_end(self):
        done = folio("check", "--for", "0.5", "--json", "--", "sleep", "1000")
        assert '"ended": ""' in done.stdout

    def test_programs_that_are_none(self):
        done = folio_here("check", "--", "no-such-program")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "cannot run no-such-program" in done.stderr

    @pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
    def test_the_documented_preload_takes_the_flag_away(self, tmp_path, monkeypatch):
        section = (ROOT / "docs/tool.md").read_text().partition("## folio check")[2].partition("\n## ")[0]
        source = tmp_path / "nodeepbind.c"
        source.write_text(re.search(r"```c\n(.*?)```", section, re.DOTALL)[1])
        shim = tmp_path / "nodeepbind.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source], check=True)
        monkeypatch.setenv("LD_PRELOAD", str(shim))
        found = tried(OPENER, "cross", PLUGIN)
        assert found["ended"] == "status 0"
        assert (found["calls"]["others"], found["calls"]["own"]) == ({}, [])

    def test_a_stub_stands_for_malloc(self):
        python, folio_file, libc = "/usr/bin/python3", "/x/libfolio.so", "/lib/libc.so"
        log = [
            Binding(python, python, "malloc"), Binding(python, folio_file, "malloc"),
            Binding("/a.so", python, "malloc"),
            Binding("/b.so", libc, "free"), Binding(libc, folio_file, "free"),
        ]  # fmt: skip
        assert stub_holder(log) == python
        found = sorted_out(log, folio_file, python)
        assert (found.served, found.deep, found.own) == ({python, "/a.so"}, {"/b.so": {libc}}, set())
