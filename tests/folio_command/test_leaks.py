"""`folio leaks`, `folio census` and `folio where --referrers` on programs that say what they planted."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from conftest import LIBRARY, PLANTED, PLANTED_STATIC, folio_here, folio_json, gcore, kill, line_of, running, stop
from folio import leaks
from folio.reader import Reader

LEAKS = 1000


@contextmanager
def planted(*words, program=PLANTED, options=""):
    library = None if program == PLANTED_STATIC else LIBRARY
    with running([str(program), *map(str, words)], library, options) as process:
        yield process, json.loads(process.stdout.readline() if words[0] == "busy" else line_of(process))


def plain(addresses):
    """Without those just above a multiple of 4 GiB: a small number that was written over the lower half of an old
    pointer looks like their addresses."""
    return {address for address in addresses if address % (1 << 32) >= 1 << 16}


def bases_of(done):
    return plain(done.last.view.objects.bases(done.numbers).tolist())


def found_in(pid):
    """Addresses of all leaks."""
    return bases_of(leaks.search_for(Reader(pid), 0.2))


def all_of(reported):
    return plain(reported["direct"] + reported["indirect"] + reported["lone"])


class TestPlanted:
    @pytest.mark.parametrize("program", [PLANTED, PLANTED_STATIC])
    def test_all_and_nothing_else(self, program):
        with planted("leaks", 20000, program=program) as (process, reported):
            assert LEAKS * 9 // 10 <= len(all_of(reported)) <= LEAKS
            assert found_in(process.pid) == all_of(reported)

    def test_one_look_where_all_is_reached(self):
        with planted("mixed", 2000) as (process, _):
            found = folio_json("leaks", str(process.pid))
            assert (found["looks"], found["leaked"]["objects"]) == (1, 0)
            assert "\n1 look at " in folio_here("leaks", str(process.pid)).stdout

    def test_samples_hide_nothing(self, tmp_path):
        """They hold addresses of leaks, and copies of stacks that had them; also where they lie in a file."""
        with planted("leaks", 20000, options=f"profile:4096,profile_file:{tmp_path}/profile") as (process, reported):
            assert list(tmp_path.iterdir())
            assert found_in(process.pid) == all_of(reported)

    def test_guarded_objects_are_objects(self):
        """They are found, and what only they point to is no leak."""
        with planted("leaks", 20000, options="guard:16384") as (process, reported):
            guarded = {each.base for each in Reader(process.pid).view().guarded if each.live}
            assert guarded & all_of(reported)
            found = found_in(process.pid)
            assert not found - all_of(reported)
            assert (
                len(all_of(reported) - found) <= LEAKS // 10
            )  # an old word may look like the address of one, or of a chain
            assert folio_json("leaks", process.pid, "--wait", "0")["doubts"]["swapped"] == 0

    def test_among_a_million(self):
        with planted("leaks", 1_200_000) as (process, reported):
            found = leaks.search_for(Reader(process.pid), 0.2)
            assert found.last.view.objects.count > 950_000
            assert abs(len(found.numbers) - LEAKS) <= 1
            assert bases_of(found) == all_of(reported)

    def test_while_threads_move_objects(self):
        """At each moment some objects are where nobody sees them: they are cleared by further looks."""
        with planted("busy", 20000) as (process, reported):
            wrong = []
            for _ in range(3):
                found = found_in(process.pid)
                assert not all_of(reported) - found
                wrong.append(len(found - all_of(reported)))
            assert sorted(wrong)[1] <= LEAKS // 100

    def test_report(self):
        with planted("leaks", 20000) as (process, reported):
            found = folio_json("leaks", str(process.pid), "--wait", "0.1", "--rows", "3")
            assert found["settled"] and found["leaked"]["objects"] == LEAKS
            assert found["leaked"]["direct"] == len(reported["direct"]) + len(reported["lone"]) // 2
            by_type = {group["type"]: group for group in found["groups"] if group["type"] != "no type"}
            sessions, boxes = by_type["shapes::Session"], by_type["shapes::Box<int>"]
            assert (sessions["objects"], sessions["held_objects"]) == (100, 300)
            assert (boxes["objects"], boxes["held_objects"]) == (50, 50)
            assert by_type["shapes::Circle"]["objects"] == 200
            assert set(sessions["samples"]) <= set(reported["direct"])
            huge = max(found["groups"], key=lambda group: group["size_most"])
            assert (huge["objects"], huge["bytes"]) == (10, 10 * (9 << 20))
            assert found["doubts"]["cleared"] == found["doubts"]["tagged"] == 0
            assert found["doubts"]["threads"] >= 5
            assert found["doubts"]["pointed"] < found["doubts"]["places"] / 20

            done = folio_here("leaks", str(process.pid), "--wait", "0", "--rows", "3")
            assert done.returncode == 1
            assert re.match(
                r"process \d+: .*\n1,000 objects of [\d,]+ live ones leaked: \d+\.\d MiB of \d+\.\d MiB\n", done.stdout
            )
            assert re.search(r"^and \d+ more groups: --rows \d+$", done.stdout, re.M)
            assert "Registers are not seen" in done.stdout
            assert re.search(r"^next: folio where \d+ 0x[0-9a-f]+ --referrers$", done.stdout, re.M)

    def test_pointers_with_something_else_in_them(self):
        with planted("hidden") as (process, _):
            found = folio_json("leaks", str(process.pid), "--wait", "0")
            assert found["doubts"]["tagged"] == 200
            assert found["leaked"]["objects"] == 100  # those that are XORed: it cannot know
            assert "XORed" in "".join(found["doubts"]["lines"])

    def test_old_pointers_are_counted(self):
        """An array whose end nobody uses points to all places from which objects were freed."""
        with planted("stale", 5000) as (process, reported):
            doubts = folio_json("leaks", str(process.pid), "--wait", "0")["doubts"]
            assert reported["freed"] * 0.95 <= doubts["pointed"] <= doubts["places"]
            assert f"{100 * doubts['pointed'] / doubts['places']:.1f} % of the free places" in "".join(doubts["lines"])

    def test_no_leak(self):
        with planted("types") as (process, _):
            done = folio_here("leaks", str(process.pid), "--wait", "0")
            assert done.returncode == 0
            assert re.match(r"process \d+: .*\nno leak among [\d,]+ live objects\n", done.stdout)
            assert done.stdout.endswith(f"folio leaks {process.pid} --every 60  (what only grows)\n")

    def test_a_process_that_ends_meanwhile(self):
        with planted("leaks", 20000) as (process, _):
            threading.Timer(0.4, kill, (process.pid,)).start()
            done = folio_here("leaks", str(process.pid), "--wait", "1")
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1

    def test_no_page_becomes_resident(self):
        with planted("leaks", 20000) as (process, _):
            reader = Reader(process.pid)
            stop(process.pid)  # its own threads touch pages, too

            def pages():
                return set(reader.scanner.scan_all(reader.process.mappings()).resident().tolist())

            before = pages()
            found_in(process.pid)
            assert not pages() - before


class TestCores:
    """All registers are there, and nothing moves."""

    def test_the_same_as_of_the_process(self, tmp_path):
        with planted("leaks", 20000) as (process, reported):
            core = gcore(process.pid, tmp_path)
            of_process = folio_json("census", str(process.pid))["types"]
            node = hex(reported["inside_only"])
            way = folio_json("where", str(process.pid), node, "--referrers")["referrers"]["way"]
        found = folio_json("leaks", str(core))
        assert abs(found["leaked"]["objects"] - LEAKS) <= 1
        assert (found["source"], found["doubts"]["still"]) == ("core", True)
        assert folio_json("census", str(core))["types"] == of_process
        assert folio_json("where", str(core), node, "--referrers")["referrers"]["way"] == way
        assert "Registers are not seen" not in folio_here("leaks", str(core)).stdout
        assert re.match(
            r"(?s).*\n[\d,]+ pages .* are accounted for and at least 50 % free", folio_here("pins", str(core)).stdout
        )
        done = folio_here("leaks", str(core), "--every", "1")
        assert done.returncode == 2
        assert done.stderr.startswith("folio leaks: --every needs a running process")

    def test_snapshots_have_no_contents(self, tmp_path):
        file = tmp_path / "heap.snap"
        with planted("types") as (process, _):
            assert folio_here("snapshot", str(process.pid), "-o", str(file)).returncode == 0
        for command in (["leaks", file], ["census", file], ["where", file, "0x1000", "--referrers"]):
            done = folio_here(*map(str, command))
            assert done.returncode == 2
            assert "this needs the process, or a core file" in done.stderr


class TestGrowing:
    def test_what_only_grows(self, monkeypatch):
        with planted("growing", 1000) as (process, _):
            enough = threading.Event()
            fed = threading.Semaphore(0)

            def feed():
                while not enough.is_set():
                    process.stdin.write("x")
                    process.stdin.flush()
                    process.stdout.readline()
                    fed.release()
                    time.sleep(0.05)

            def pause(_seconds):
                """Until it has grown, however busy the machine: the second to come has begun since."""
                while fed.acquire(blocking=False):
                    pass
                assert fed.acquire(timeout=60) and fed.acquire(timeout=60)

            monkeypatch.setattr("folio.growing.time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
            feeder = threading.Thread(target=feed)
            feeder.start()
            try:
                pause(0)
                words = ["leaks", str(process.pid), "--every", "0.2", "--times", "3"]
                found = folio_json(*words)
                shown = folio_here(*words)
            finally:
                enough.set()
                feeder.join()
        assert len(found["looks"]) == 3
        groups = {group["type"]: group for group in found["groups"]}
        kept = groups["shapes::Session"]
        assert kept["held_by"][0]["holder"] == "(anonymous namespace)::kept"
        assert kept["counts"] == sorted(set(kept["counts"]))
        assert kept["stayed"] == kept["counts"][0] > 0
        assert kept["leaked"] == 0
        assert "shapes::Circle" not in groups  # they are replaced
        leaked = next(group for group in found["groups"] if group["size"] <= 3008 <= group["size_most"])
        assert leaked["leaked"] >= leaked["counts"][-1] - 100  # but those that are just being made
        assert shown.returncode == 1
        assert re.search(r"^shapes::Session  kept +256 ", shown.stdout, re.M)


class TestCensus:
    def counts(self, pid):
        return {row["type"]: row for row in folio_json("census", str(pid))["types"]}

    def check(self, pid):
        rows = self.counts(pid)
        counts = {name: row["objects"] for name, row in rows.items() if name and name.startswith("shapes::")}
        assert counts == {
            "shapes::Circle": 3000, "shapes::Box<int>": 2000, "shapes::Session": 1000, "shapes::Both": 500
        }  # fmt: skip
        assert rows[None]["objects"] >= 700
        assert {"bin": 13, "size": 256, "objects": 1000, "bytes": 256000} in rows["shapes::Session"]["bins"]

    def test_types(self):
        with planted("types") as (process, _):
            self.check(process.pid)
            shown = folio_here("census", str(process.pid), "--rows", "2")
            assert re.match(r"process \d+: .*\n[\d,]+ live objects, \d+\.\d MiB\n", shown.stdout)
            assert re.search(r"^no type +[\d,]+ ", shown.stdout, re.M)
            assert re.search(r"^and \d+ more types: --rows \d+$", shown.stdout, re.M)

    @pytest.mark.skipif(shutil.which("strip") is None, reason="needs binutils")
    def test_of_a_stripped_program(self, tmp_path):
        """By the names that the vtables lead to."""
        bare = tmp_path / "planted"
        subprocess.run(["strip", "-o", bare, PLANTED], check=True)
        with planted("types", program=bare) as (process, _):
            self.check(process.pid)

    def test_sums_are_those_of_bins(self):
        with planted("types") as (process, _):
            found = folio_json("census", str(process.pid))
            assert found["objects"] == sum(row["objects"] for row in found["types"])
            (sample,) = folio_json("bins", str(process.pid), "--rows", "1000")["samples"]
            live = sum(row["live_objects"] for row in sample["bins"])
            large = sum(b["objects"] for row in found["types"] for b in row["bins"] if b["bin"] == 0)
            assert found["objects"] - large == live


class TestReferrers:
    def test_who_points_to_it(self):
        with planted("pins", 400) as (process, reported):
            found = folio_json("where", str(process.pid), hex(reported["session_at"][7] + 3), "--referrers")
            assert found["type"] == "shapes::Session"
            there = found["referrers"]
            assert there["count"] == len(there["words"]) == 1
            assert (there["words"][0]["to"], there["words"][0]["type"]) == (0, None)
            assert there["way"][0]["root"] == "(anonymous namespace)::pinning_sessions"
            owned = folio_json("where", str(process.pid), hex(reported["owned_at"][7]), "--referrers")["referrers"]
            assert owned["words"][0]["type"] == "(anonymous namespace)::Owner"
            shown = folio_here("where", str(process.pid), hex(reported["node_at"][90]), "--referrers").stdout
            assert re.search(r"^  pointers to it: \d+$", shown, re.M)
            assert re.search(r"^    pinning_list at 0x[0-9a-f]+$", shown, re.M)
            assert re.search(r"^    \d+ more objects$", shown, re.M)

    def test_of_what_nothing_points_to(self):
        with planted("leaks", 2000) as (process, reported):
            words = ["where", str(process.pid), hex(reported["direct"][0])]
            assert folio_json(*words, "--referrers")["referrers"]["way"] == []
            assert "nothing leads to it" in folio_here(*words, "--referrers").stdout
            assert folio_here(*words).stdout.endswith(" --referrers\n")
            inside = folio_json("where", str(process.pid), hex(reported["inside_only"]), "--referrers")["referrers"]
            assert inside["words"][0]["to"] == 1234
            on_stack = folio_json("where", str(process.pid), hex(reported["on_stacks"][0]), "--referrers")["referrers"]
            assert on_stack["way"][0]["root"] == "a thread's stack or thread-local storage"

    def test_of_what_is_free(self):
        with planted("pins", 400) as (process, _):
            shown = folio_here("where", str(process.pid), hex(os.getpid()), "--referrers").stdout
            assert "is looked up for objects that the program has taken" in shown
