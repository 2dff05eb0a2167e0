"""Guarded objects (option guard) as the command sees them: what an address is, and that no sum is wrong for them."""

import subprocess

import pytest
from conftest import HEAP, STATIC, exact, figures, folio_here, folio_json, gcore, heap, line_of, running, stop
from folio.calls import Seam
from folio.reader import Reader

OPTIONS = "guard:1"
PAGE = 4096


def counted_mallocs(process):
    """Returns when the program has made 8022 of them."""
    process.stdin.write("m")
    process.stdin.flush()
    process.stdout.readline()


def places(pid, *addresses):
    return [folio_json("where", pid, hex(address)) for address in addresses]


def names_of(calls):
    """The functions that addr2line finds for what `folio where` says, FILE+OFFSET each."""
    found = []
    for call in calls:
        file, _, offset = call.strip().rpartition("+")
        done = subprocess.run(["addr2line", "-fie", file, offset], capture_output=True, text=True, check=True)
        found += done.stdout.split()[::2]
    return " ".join(found)


@pytest.mark.parametrize("program", [HEAP, STATIC])
class TestWhere:
    def test_names_live_and_freed_ones(self, program):
        with heap("guarded", options=OPTIONS, program=program) as (pid, known):
            freed, live, beside = places(pid, known["freed"] + 7, known["live"], known["live"] + PAGE)
            assert (freed["kind"], freed["base"], freed["offset"]) == ("guarded object", known["freed"], 7)
            assert (live["kind"], live["base"], live["usable_bytes"]) == ("guarded object", known["live"], 1000)
            assert (freed["state"], live["state"]) == ("free, and inaccessible", "taken by the program")
            assert (freed["resident"], live["resident"]) == (False, True)
            assert freed["allocated"]["thread"] == freed["freed"]["thread"] == pid
            assert live["freed"] is None
            assert beside["kind"] == "room behind a guarded object" and beside["base"] == known["live"]
            assert beside["offset"] == PAGE and not beside["resident"]

    def test_says_which_calls(self, program):
        with heap("guarded", options=OPTIONS, program=program) as (pid, known):
            said = folio_here("where", pid, hex(known["freed"])).stdout
            assert f"allocated by thread {pid}:" in said and f"freed by thread {pid}:" in said
            if program == HEAP:  # a static program without an unwinder has no stacks
                allocated, freed = said.partition("allocated by")[2].split("freed by")
                assert "guarded" in names_of(line for line in allocated.splitlines() if "heap+0x" in line)
                assert "guarded" in names_of(line for line in freed.splitlines() if "heap+0x" in line)

    def test_what_was_never_used(self, program):
        with heap("guarded", options=OPTIONS, program=program) as (pid, known):
            (unused,) = places(pid, known["live"] // (1 << 21) * (1 << 21) + 400 * PAGE)
            assert (unused["kind"], unused["state"]) == ("room for guarded objects", "none was here yet")


class TestSums:
    def test_they_are_live_memory(self):
        with heap("guarded", options=OPTIONS) as (pid, _):
            reader = Reader(pid)
            parts = exact(reader)
            live = sum(each.live for each in reader.view().guarded)
            assert parts.guarded.objects == live >= 50
            assert parts.guarded.live == live * PAGE
            assert parts.guarded.dirty == 0
            assert parts.unexplained == 0
            assert parts.swapped == 0
            assert parts.huge.objects == 0

    def test_there_are_none_by_default(self):
        with heap("guarded") as (pid, known):
            parts = exact(Reader(pid))
            assert parts.guarded.objects == parts.guarded.live == 0
            assert places(pid, known["live"])[0]["kind"] == "object"

    def test_the_commands_show_them(self):
        with heap("guarded", options=OPTIONS) as (pid, _):
            assert "in guarded ones (" in " ".join(folio_here("doctor", pid).stdout.split())
            assert "guarded" in folio_here("bins", pid).stdout
            assert "guarded" in folio_here("metrics", pid).stdout

    def test_census_does_not_call_them_large(self):
        with heap("guarded", options=OPTIONS) as (pid, _):
            bins = [each for row in folio_json("census", pid)["types"] for each in row["bins"]]
            live = exact(Reader(pid)).guarded.objects
            assert "guarded" in folio_here("census", pid).stdout
        assert sum(each["objects"] for each in bins if each.get("guarded")) == live
        assert all(each["size"] or each.get("guarded") or each["bytes"] > each["objects"] << 15 for each in bins)


class TestFiles:
    def test_a_snapshot_holds_them(self, tmp_path):
        with heap("guarded", options=OPTIONS) as (pid, known):
            stop(pid)
            assert folio_here("snapshot", pid, "-o", tmp_path / "heap").returncode == 0
            assert figures(tmp_path / "heap") == figures(pid)
            assert figures(pid)["guarded"]["objects"] >= 50
            for name in ("freed", "live"):
                alive, kept = (folio_json("where", of, hex(known[name])) for of in (pid, tmp_path / "heap"))
                for key in ("kind", "state", "base", "resident", "allocated", "freed"):
                    assert kept[key] == alive[key]

    def test_a_core_holds_them(self, tmp_path):
        with heap("guarded", options=OPTIONS) as (pid, known):
            stop(pid)
            core = gcore(pid, tmp_path)
            found, alive = figures(core), figures(pid)
            assert found["guarded"] == alive["guarded"]
            assert folio_json("where", core, hex(known["freed"]))["kind"] == "guarded object"
        assert "guarded" in folio_here("diff", core, core, "--json").stdout


class TestCalls:
    def test_the_count_is_exact_and_guards_go_on(self):
        with running([str(HEAP), "counted"], options="guard:1073741824") as process:
            line_of(process)
            seam = Seam(Reader(process.pid))
            assert seam.mode() == seam.layout.mode_guarding
            for _ in range(2):
                seam.close(0)
                before = seam.counts()
                counted_mallocs(process)
                assert int((seam.counts() - before)[: seam.layout.bins].sum()) == 8022
                seam.open()
                assert seam.mode() == seam.layout.mode_guarding
                before = seam.counts()
                counted_mallocs(process)
                assert not (seam.counts() - before).any()
