"""Each command as a user calls it: what it prints, its exit status, its errors."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from io import StringIO
from pathlib import Path

import pytest
from conftest import (
    HEAP,
    LIBRARY,
    STILL,
    environment,
    eventually,
    folio,
    folio_here,
    folio_json,
    heap,
    line_of,
    running,
    stop,
)
from folio.output import Output, bar, let_wrap, one_line, share, size, table
from folio.permission import reason
from folio.run import show, summary
from folio.watching import Watch, watch
from rich.console import Console
from rich.text import Text

GROW = "x = [bytearray(b'x') * (n % 3000) for n in range(60000)]"  # 90 MB that are touched
COMMANDS = [
    "run",
    "compare",
    "doctor",
    "bins",
    "where",
    "leaks",
    "census",
    "pins",
    "snapshot",
    "diff",
    "calls",
    "collect",
    "limit",
]
COMMANDS += ["metrics", "check"]
WIDTH = 80


def wide_lines(text):
    """Lines beyond 80 columns that could have been broken."""
    return [line for line in text.splitlines() if len(line) > WIDTH and not re.search(r"/\S{30,}|^next:", line)]


class TestOutput:
    def test_sizes(self):
        assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, -2048)] == [
            *("0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.00 GiB", "-2.0 KiB")
        ]

    def test_shares(self):
        assert (share(1, 3), share(0, 3), share(1, 1 << 20)) == ("33.3 %", "0.0 %", "< 0.1 %")

    def test_bars_have_eighths(self):
        assert (bar(1, 2, 4), bar(1, 16, 2), bar(0, 1, 4)) == ("██", "▏", "")

    def test_numbers_are_whole_where_names_leave_no_room(self):
        made = table("type", "held by", "bytes", "objects", left=2)
        let_wrap(made, 0, 1)
        made.add_row("no type", "_ZN6engine_a_name_that_is_long", "1,234,567", "7,654,321")
        console = Console(width=40, file=StringIO())
        console.print(made)
        assert "1,234,567" in console.file.getvalue()
        assert "7,654,321" in console.file.getvalue()
        assert "…" not in console.file.getvalue()

    def test_and_where_not_even_they_fit(self):
        made = table("part", "size", "", left=1)
        made.add_row("cached in threads", "1,234.5 MiB", "\u2588" * 20)
        narrow = Output(width=20, file=StringIO())
        narrow.print(made)
        assert "cached in threads  1,234.5 MiB  " + "\u2588" * 20 in narrow.file.getvalue()

    def test_names_do_not_steer_the_terminal(self):
        with running(["/usr/bin/python3", "-c", "print(flush=1);input()", "\x1b]0;title\a\x1b[2J"]) as process:
            line_of(process)
            for words in (["doctor"], ["leaks", "--wait", "0"], ["profile", "--for", "0.1s"]):
                done = folio_here(words[0], process.pid, *words[1:])
                assert "input() \ufffd]0;" in done.stdout
                assert "\x1b" not in done.stdout + done.stderr
        assert "\x1b" not in folio("run", "--", "true", "\x1b[2J").stderr

    def test_nor_do_those_in_tables(self):
        """Of threads, types and functions, whoever wrote the program's files. They are no markup either."""
        made = table("type", "function", left=2)
        made.add_row("engine[abi:v1]::part\x1b[2J[/]", Text("of\x9b31m ").append("the file", "dim"))
        shown = Output(width=100, file=StringIO(), force_terminal=True)
        shown.print(made)
        text = shown.file.getvalue()
        assert "engine[abi:v1]::part\ufffd[2J[/]" in text
        assert "of\ufffd31m \x1b[2mthe file\x1b[0m" in text

    def test_names_of_threads(self):
        script = """
import threading
def work():
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write("\x1b[2J[/]")
    kept.extend(b"%d" % i * 300 for i in range(3000))
kept = [b"%d" % i * 300 for i in range(3000)]
thread = threading.Thread(target=lambda: (work(), print(flush=True), input()))
thread.start()
"""
        with running(["/usr/bin/python3", "-c", script], options="profile:4096") as process:
            line_of(process)
            done = folio_here("profile", process.pid)
        assert "\ufffd[2J[/]" in done.stdout, done.stderr
        assert "\x1b" not in done.stdout + done.stderr

    def test_long_commands(self):
        assert one_line("a\nb   c") == "a b c"
        assert len(one_line("x" * 300, 50)) == 50


class TestAll:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_help_has_an_example(self, command):
        done = folio_here(command, "--help")
        assert done.returncode == 0
        assert f"Example: folio {command}" in done.stdout
        assert f"Usage: folio {command}" in done.stdout

    @pytest.mark.parametrize(
        "command", ["doctor", "bins", "leaks", "census", "pins", "calls", "collect", "limit", "metrics"]
    )
    def test_no_process(self, command):
        done = folio_here(command, "999999999")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"folio {command}: there is no process 999999999; `pgrep -a NAME`")
        assert len(done.stderr.splitlines()) == 1

    @pytest.mark.parametrize("words", [["check"], ["check", "--json"], ["doctor", "--help"]])
    def test_a_full_disk_is_said_in_a_line(self, words):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "folio", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                env=environment(None) | {"FOLIO_LIBRARY": str(LIBRARY)},
            )  # fmt: skip
        assert done.returncode == 2
        assert re.fullmatch(r"folio \w+: the output cannot be written: No space left on device; .*\n", done.stderr)

    def test_not_on_folio(self):
        with running([str(HEAP), "known"], None) as process:
            process.stdout.readline()
            done = folio_here("doctor", str(process.pid))
        assert done.returncode == 2
        assert re.fullmatch(r"folio doctor: process \d+ \(\S+\) is not on Folio: start it by .*\n", done.stderr)

    def test_not_permitted(self):
        with running([str(HEAP), "known"]) as process:
            process.stdout.readline()
            if os.geteuid() == 0:
                code = f"import os, sys; os.setuid(65534); sys.argv = ['folio', 'doctor', '{process.pid}']"
                code += "; from folio.cli import main; main()"
                done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
                if "ModuleNotFoundError" in done.stderr or "Permission denied" in done.stderr:
                    pytest.skip("nobody may not read this environment")
                said = f"process {process.pid} may not be read: it runs as root (uid 0), you are "
                assert (done.returncode, done.stderr.count("\n")) == (2, 1)
                assert done.stderr.startswith(f"folio doctor: {said}")
                assert done.stderr.endswith("use sudo, or be that user\n")

    def test_a_refusal_names_what_may_be_the_cause(self):
        usual = {"uids": {1000}, "own_uid": 1000, "may_all": False, "scope": 0, "filtered": False, "readable": True}

        def reported(**more):
            text = reason(**(usual | more))
            assert "\n" not in text
            return text

        assert "it runs as root (uid 0), you are uid 12345: use sudo" in reported(uids={0}, own_uid=12345)
        assert "this root has no CAP_SYS_PTRACE" in reported(own_uid=0)
        assert reported(uids={0}, own_uid=0).startswith("this root has no CAP_SYS_PTRACE: where this is a container")
        assert "--cap-add SYS_PTRACE" in reported(own_uid=0)
        assert "use sudo, or `sudo sysctl kernel.yama.ptrace_scope=0`" in reported(scope=1)
        assert "ptrace_scope is 2, so its owner alone may not: use sudo" in reported(scope=2)
        assert "until the machine starts" in reported(scope=3)
        assert "set-user-id" in reported(readable=False)
        assert reported(filtered=True).startswith("a seccomp filter is in force here")
        assert "SYS_PTRACE" in reported(filtered=True)
        assert "although this user may look into every process" in reported(may_all=True)

    @pytest.mark.parametrize(
        "words",
        [["doctor"], ["doctor", "x"], ["nosuch"], ["bins", "1", "--nosuch"], ["where", "1"], ["doctor", "a\nb"]]
        + [["leaks", "1", f"--wait={time}"] for time in ("inf", "nan", "1e30", "1e10", "-1", "x")]
        + [["top", "1", "--json", "--every=inf"], ["map", "1", "--every=1e12"], ["check", "--for=1e8", "--", "true"]],
    )  # fmt: skip
    def test_usage_errors_are_one_line(self, words):
        done = folio_here(*words)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "--help" in done.stderr

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            (["bins", "1", "--row", "5"], "folio bins: there is no option --row; did you mean --rows?"),
            (["bins", "1", "--rows:5"], "folio bins: there is no option --rows:5; write --rows=5"),
            (["check", "--pd", "4"], "folio check: there is no option --pd; did you mean --pid?"),
            (["bins", "1", "--zebra"], "folio bins: there is no option --zebra"),
            (["compare", "--hmlt", "x"], "folio compare: there is no option --hmlt; did you mean --html?"),
            (["check", "-x"], "folio check: there is no option -x"),
            (["doctr", "1"], "folio: there is no command doctr; did you mean doctor?"),
            (["zebra"], "folio: there is no command zebra"),
        ],
    )
    def test_only_near_words_are_guessed(self, words, says):
        done = folio_here(*words)
        name = says.partition(":")[0]
        assert (done.returncode, done.stderr) == (2, f"{says}; see {name} --help\n")

    def test_options_with_an_equals_sign(self, python_process, tmp_path):
        done = folio_here("bins", python_process, "--rows=5")
        assert done.stdout.splitlines()[6].lstrip().startswith("rest")
        done = folio_here("bins", python_process, "-r=5")
        assert done.stdout.splitlines()[6].lstrip().startswith("rest")
        os.chdir(tmp_path)
        assert folio_here("map", python_process, "-o=a.html").returncode == 0
        assert [file.name for file in tmp_path.iterdir()] == ["a.html"]
        done = folio("run", "--quiet", "--", "/usr/bin/python3", "-c=print(1)")  # not the command's own
        assert "SyntaxError" in done.stderr

    def test_no_colours_in_a_pipe(self, python_process):
        for words in (["doctor", python_process], ["bins", python_process], ["check"]):
            assert "\x1b" not in folio(*map(str, words)).stdout

    def test_closed_pipe(self, python_process):
        command = f"{sys.executable} -m folio doctor {python_process} | head -1"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
        assert done.stderr == ""

    @pytest.mark.parametrize("words", ["doctor PID", "metrics PID", "metrics --alerts", "bins PID --json"])
    def test_nobody_reads_stdout(self, python_process, words):
        """Exit status 1 would be a finding of its own."""
        command = f"{sys.executable} -m folio {words.replace('PID', str(python_process))}"
        reader, writer = os.pipe()
        os.close(reader)
        for closed, more in ((writer, ""), (None, " >&-")):
            done = subprocess.run(
                ["sh", "-c", command + more], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
            )
            assert (done.returncode, done.stderr) == (0, "")
        os.close(writer)

    def test_what_has_no_memory(self):
        with subprocess.Popen(["true"]) as zombie:
            os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
            done = folio_here("doctor", zombie.pid)
            assert done.returncode == 2
            assert "has ended, and waits for its parent to take note; `pgrep" in done.stderr
        if "kthreadd" in Path("/proc/2/comm").read_text():
            done = folio_here("doctor", "2")
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert "process 2 is a thread of the kernel" in done.stderr

    def test_files_that_cannot_be_written(self, python_process, tmp_path):
        folder = tmp_path / "folder.html"
        folder.mkdir()
        for words in (["map", python_process, "-o", folder], ["run", "--json", folder, "--", "true"]):
            done = folio(*words)
            assert done.returncode == 2
            assert done.stderr.splitlines()[-1].endswith("Is a directory; name a file in a folder that can be written")
            assert "Traceback" not in done.stderr
        done = folio("run", "--json", tmp_path / "none/file", "--", "sh", "-c", "echo ran")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)

    @pytest.mark.parametrize("command", ["run", "profile", "check"])
    def test_an_empty_name(self, command):
        done = folio(command, "--", "")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"folio {command}: cannot run ")


class TestDoctor:
    def test_text(self, python_process):
        done = folio("doctor", str(python_process))
        assert done.returncode in (0, 1)
        for part in ("live", "cached in threads", "fragmented", "metadata", "not Folio's", "unexplained"):
            assert part in done.stdout
        assert done.stdout.splitlines()[-1].startswith("next: folio ")
        assert wide_lines(done.stdout) == []

    def test_json_sums_to_rss(self, python_process):
        found = folio_json("doctor", str(python_process))
        total = sum(part["bytes"] for part in found["parts"].values())
        assert total + found["unexplained"] == found["rss"]
        assert abs(found["unexplained"]) <= 0.01 * found["rss"]
        assert all(part["cause"].endswith(".") and part["advice"].endswith(".") for part in found["parts"].values())
        with open(f"/proc/{python_process}/statm") as statm:
            assert found["rss"] == int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @pytest.mark.parametrize("allocator", ["pymalloc", "malloc"])
    def test_pools_of_pythons_own_are_reported(self, allocator):
        command = ["env", f"PYTHONMALLOC={allocator}", "/usr/bin/python3", "-c", "print(flush=True); input()"]
        with running(command) as process:
            process.stdout.readline()
            advice = folio_json("doctor", str(process.pid))["parts"]["not_folio"]["advice"]
        assert ("PYTHONMALLOC=malloc puts them on Folio" in advice) == (allocator == "pymalloc")

    def test_status_for_scripts(self):
        with heap("quiet", "64", options=STILL) as (pid, _):
            assert folio_here("doctor", str(pid)).returncode == 1
            assert folio_here("doctor", str(pid), "--limit", "100").returncode == 0


class TestBins:
    def test_table(self, python_process):
        done = folio_here("bins", str(python_process), "--rows", "5")
        lines = done.stdout.splitlines()
        assert lines[0].split() == [
            *("bin", "object", "live", "cached", "resident", "fragmented", "dirty", "padding", "occupied")
        ]
        assert lines[6].lstrip().startswith("rest")
        assert wide_lines(done.stdout) == []

    def test_sorts(self, python_process):
        rows = folio_json("bins", str(python_process), "--sort", "wasted")["samples"][0]["bins"]
        wasted = [row["resident"] - row["live"] for row in rows]
        assert wasted == sorted(wasted, reverse=True)
        assert folio_here("bins", str(python_process), "--sort", "x").returncode == 2

    def test_parts_of_a_bin_sum_to_what_is_resident(self, python_process):
        for row in folio_json("bins", str(python_process))["samples"][0]["bins"]:
            parts = row["live"] + sum(row["cached"].values()) + row["fragmented"] + row["dirty"] + row["padding"]
            assert parts == row["resident"]

    # Without huge pages, of which a part may be of no bin.
    def test_the_last_row_sums_the_others_and_is_doctors(self):
        with heap("known", options=STILL + ",huge_pages:never") as (pid, _):
            found = folio_json("bins", pid)["samples"][0]
            parts = folio_json("doctor", pid)["parts"]
            lines = folio_here("bins", pid, "--rows", "3").stdout.splitlines()
        total = found["total"]
        for name in ("live", "fragmented", "dirty", "padding"):
            assert total[name] == parts[name]["bytes"]
        assert total["resident"] == sum(
            parts[name]["bytes"]
            for name in ("live", "cached_threads", "cached_cpus", "cached_depot", "fragmented", "dirty", "padding")
        )
        last = next(i for i, line in enumerate(lines) if line.lstrip().startswith("all "))
        objects = [int(line.split()[i].replace(",", "")) for line in lines[1:last] for i in [1 + (line.split()[0] not in
                   ("large", "huge")) + (line.split()[0] == "rest")]]  # fmt: skip
        assert int(lines[last].split()[1].replace(",", "")) == sum(objects) == total["live_objects"]

    def test_heat_map(self, python_process):
        done = folio_here("bins", str(python_process), "--every", "0.1", "--times", "4", "--rows", "3")
        rows = [line for line in done.stdout.partition("occupancy over")[2].splitlines() if line.endswith("%")]
        assert len(rows) == 3
        assert all(len(re.search(r" B  (.*)  ", row)[1]) == 4 for row in rows)

    def test_the_next_command_is_not_of_a_process_that_ended(self, monkeypatch):
        with running([str(HEAP), "quiet", "1"]) as process:
            process.stdout.readline()
            monkeypatch.setattr(time, "sleep", lambda _: process.kill())  # between two looks
            done = folio_here("bins", str(process.pid), "--every", "0.1")
        assert done.returncode == 0
        assert "ended while it was read" in done.stderr
        assert str(process.pid) not in done.stdout.splitlines()[-1]


class TestWhere:
    @pytest.fixture(scope="class")
    @classmethod
    def known(cls):
        with heap("known", options=STILL) as (pid, said):
            yield str(pid), said

    def ask(self, known, address):
        return folio_json("where", known[0], hex(address))

    @pytest.mark.parametrize("i", range(4))
    def test_objects(self, known, i):
        group = known[1]["groups"][i]
        found = self.ask(known, group["first"] + 5)
        kind = "large object" if group["size"] > 32832 else "object"
        assert (found["kind"], found["state"]) == (kind, "taken by the program")
        assert (found["base"], found["offset"]) == (group["first"], 5)
        assert found["usable_bytes"] >= group["size"]
        assert found["resident"]

    def test_freed_objects(self, known):
        for i in (1, 2, 3):
            assert self.ask(known, known[1]["groups"][i]["a_freed"])["state"].startswith("free")

    def test_huge_objects(self, known):
        said = known[1]
        found = self.ask(known, said["huge"] + 1234567)
        assert (found["kind"], found["base"], found["offset"]) == ("huge object", said["huge"], 1234567)
        assert found["usable_bytes"] == 9 << 20
        assert not self.ask(known, said["half"] + 4096)["resident"]
        assert self.ask(known, said["half"] + 1)["resident"]
        assert self.ask(known, said["free_huge"])["state"] == "free, waits for reuse"

    def test_what_is_not_an_object(self, known):
        assert self.ask(known, known[1]["in_data"])["kind"] == "not Folio's"
        assert self.ask(known, 0)["kind"] == "not mapped"
        for word in ("zz", "-1", "0x1" + "0" * 16):
            assert folio_here("where", known[0], "--", word).returncode == 2

    @pytest.mark.parametrize(
        ("address", "kind"),
        [
            ("0xffffffff81000000", "the kernel's"),
            ("0xffff800000000000", "the kernel's"),
            ("0xffffffffff600000", "the kernel's"),
            ("0xffffffffffffffff", "the kernel's"),
            ("0x8000000000000000", "no address"),
            ("0x00ff7f0000000000", "no address"),
            ("0x5a5a5a5a5a5a5a5a", "no address"),
            ("0x7fffffffffff", "not mapped"),
        ],
    )
    @pytest.mark.skipif(os.uname().machine != "x86_64", reason="other addresses are the kernel's there")
    def test_addresses_that_no_program_has(self, known, address, kind):
        found = folio_json("where", known[0], address)
        assert (found["address"], found["kind"], found["resident"]) == (int(address, 16), kind, False)
        done = folio_here("where", known[0], address)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"  {kind}: " in done.stdout

    def test_an_object_under_a_tag_is_named(self, known):
        first = known[1]["groups"][0]["first"]
        done = folio_here("where", known[0], hex(first | 0xAB << 56))
        assert done.stdout.splitlines()[-1].startswith(f"next: folio where {known[0]} {first:#x}  (")

    def test_text(self, known):
        done = folio_here("where", known[0], hex(known[1]["groups"][0]["first"]))
        assert done.stdout.splitlines()[0] == one_line(f"process {known[0]}: {HEAP} known")
        assert re.search(r"object of 64 usable bytes at 0x[0-9a-f]+: taken by the program", done.stdout)
        assert re.search(r"object \d+ of folio \d+, of whose 64 \d+ are taken", done.stdout)


class TestCollect:
    def test_gives_back(self):
        options = "collect_from_outside:on,decay:3600000,dirty_floor:1000"
        with heap("quiet", "64", options=options) as (pid, known):
            found = folio_json("collect", str(pid), "--timeout", "60")
            assert found["purged"] >= 0.9 * known["freed"]
            assert found["rss_before"] - found["rss_after"] >= 0.9 * known["freed"]
            assert folio_json("doctor", str(pid))["parts"]["dirty"]["bytes"] < 1 << 20
            assert folio_json("collect", str(pid), "--timeout", "60")["purged"] < 1 << 20  # a second wish is served too

    def test_says_when_it_is_not_enabled(self):
        with heap("quiet", "1") as (pid, _):
            done = folio_here("collect", str(pid))
        assert done.returncode == 2
        assert "FOLIO_OPTIONS=collect_from_outside:on" in done.stderr
        with heap("quiet", "1", options="collect_from_outside:on,housekeeper:off") as (pid, _):
            assert "no housekeeper" in folio_here("collect", str(pid)).stderr

    def test_says_when_there_is_no_answer(self):
        with heap("quiet", "1", options="collect_from_outside:on") as (pid, _):
            stop(pid)
            done = folio_here("collect", str(pid), "--timeout", "0.2")
            os.kill(pid, signal.SIGCONT)
        assert done.returncode == 2
        assert "no answer" in done.stderr


class TestRun:
    def test_status_and_output_are_the_programs(self):
        done = folio("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert (done.returncode, done.stdout) == (7, "out\n")
        assert done.stderr.startswith("err\n")
        assert "ended with status 7" in done.stderr

    def test_it_is_on_folio_with_its_options(self):
        done = folio("run", "--quiet", "--options", "stats:exit", "--", "/usr/bin/python3", "-c", "print(1)")
        assert done.stdout == "1\n"
        assert done.stderr.startswith("folio: statistics")

    def test_death_by_a_signal_is_passed_on(self):
        assert folio("run", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
        assert folio("run", "--quiet", "--", "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL

    def test_after_a_crash_check_is_next(self):
        done = folio("run", "--", "sh", "-c", "kill -SEGV $$")
        assert done.returncode == -signal.SIGSEGV
        assert "\nnext: folio check -- sh -c 'kill -SEGV $$'  (whose malloc" in done.stderr

    def test_the_program_starts_with_the_signals_defaults(self):
        # Python ignores SIGPIPE, and a program that inherits that never ends in `yes | head`.
        status = folio("run", "--quiet", "--", "grep", "SigIgn", "/proc/self/status").stdout
        ignored = int(status.split()[1], 16)
        assert [s for s in (signal.SIGPIPE, signal.SIGXFSZ) if ignored >> (s - 1) & 1] == []

    def test_signals_go_on_to_the_program(self):
        # Not signal.pause: the signal may come just before it, and its handler would then wait with it.
        code = (
            "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(42))\nprint(flush=True)\n"
            "while True: time.sleep(0.05)"
        )
        command = [sys.executable, "-m", "folio", "run", "--lib", LIBRARY, "--", "/usr/bin/python3", "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None))
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == 42

    def test_a_signal_before_the_program_is_known(self, tmp_path):
        """It comes when the program runs already, and before there is anybody to send it on."""
        program = f"trap 'exit 42' TERM; touch {tmp_path}/runs; while :; do sleep 0.05; done"
        code = f"""
            import os, sys, time
            from pathlib import Path
            from folio import run

            def late(pid, forward=run.forward_signals):
                while not os.path.exists("{tmp_path}/runs"):
                    time.sleep(0.01)
                os.kill(os.getpid(), 15)
                forward(pid)

            run.forward_signals = late
            sys.exit(run.run(["sh", "-c", {program!r}], Path("{LIBRARY}"), "", True, None))"""
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, env=environment(None), timeout=300)
        assert done.returncode == 42

    def test_summary(self, tmp_path):
        file = tmp_path / "s.json"
        # Much more than the command itself has, which is beneath what the kernel counts.
        done = folio("run", "--json", file, "--", "/usr/bin/python3", "-c", GROW.replace("60000", "180000"))
        found = json.loads(file.read_text())
        assert found["ended"] == "status 0"
        assert found["peak_bytes"] > 240 << 20
        assert (found["largest_look"] is None) == (found["looks"] == 0)
        assert "next: folio compare" in done.stderr

    def watched(self, command, seen):
        """What is told of a program that runs until it was looked at."""
        with running([*command, f"{GROW}; print(flush=True); input()"]) as process:
            line_of(process)
            ended = threading.Event()
            thread = threading.Thread(target=watch, args=(process.pid, seen, ended))
            thread.start()
            try:
                eventually(lambda: seen.parts)
            finally:
                ended.set()
                thread.join()
        return summary(command, 1.0, 0, resource.getrusage(resource.RUSAGE_SELF), seen, 1 << 60)

    def test_the_largest_look(self, capsys):
        seen = Watch()
        found = self.watched(["/usr/bin/python3", "-c"], seen)
        look = found["largest_look"]
        assert found["looks"] >= 1
        assert found["peak_is"] == "at least"
        assert look["of_peak"] >= 0.9
        assert found["peak_bytes"] >= look["rss"]
        assert look["live"] > 80 << 20
        assert look["exact"]
        show(found, seen)
        said = capsys.readouterr().err
        assert "at its memory, at " in said
        assert "PYTHONMALLOC" not in said

    def test_pools_of_pythons_own_are_reported(self, capsys):
        seen = Watch()
        show(self.watched(["env", "PYTHONMALLOC=pymalloc", "/usr/bin/python3", "-c"], seen), seen)
        assert "PYTHONMALLOC=malloc puts them on Folio" in capsys.readouterr().err

    def test_errors(self):
        done = folio("run", "--", "no-such-program")
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert folio("run").returncode == 2

    def test_a_program_that_ends_at_once(self, capsys):
        assert folio("run", "--", "true").returncode == 0
        seen = Watch()
        show(summary(["true"], 0.01, 0, resource.getrusage(resource.RUSAGE_SELF), seen, 0), seen)
        assert "could be looked at" in capsys.readouterr().err
