"""Snapshots: the same figures as at the time, later and elsewhere; differences; damage is one line."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import (
    HEAP,
    LIBRARY,
    STILL,
    environment,
    eventually,
    figures,
    folio_here,
    folio_json,
    gcore,
    heap,
    line_of,
    one_line,
    running,
    stop,
    stopped_heap,
)
from folio.calls import Seam
from folio.layout import LISTED
from folio.parts import explain
from folio.reader import Reader
from folio.snapshot import Memory
from folio.snapshot_file import SnapshotFile, leave_out_torn, sample_tables, write

# bin_array says nothing that the descriptors do not; front and true_front are how malloc is counted.
NOT_KEPT = {"bin_array", "front", "true_front"}


def taken(target, file):
    done = folio_here("snapshot", target, "-o", file)
    assert done.returncode == 0, done.stderr
    return file


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """heap known, stopped: PID, what it says, snapshot."""
    with stopped_heap("known") as (pid, known):
        yield pid, known, taken(pid, tmp_path_factory.mktemp("snapshots") / "heap.snap")


class TestSameFigures:
    @pytest.mark.parametrize("words", [("known",), ("load", "3"), ("passed", "20000"), ("thinned", "32")])
    def test_of_a_process(self, words, tmp_path):
        with stopped_heap(*words) as (pid, _):
            file = taken(pid, tmp_path / "a.snap")
            assert figures(file) == figures(pid)
            assert figures(file, by_account=True) == figures(pid, by_account=True)

    def test_of_a_core(self, tmp_path):
        with heap("known", options=STILL) as (pid, _):
            core = gcore(pid, tmp_path)
        file = taken(core, tmp_path / "core.snap")
        assert figures(file) == figures(core)
        assert file.stat().st_size < core.stat().st_size // 100
        title = f"snapshot {file} from a core of process {pid}: {Reader(str(core)).process.command()}"
        assert Reader(str(file)).process.title() == title  # when and where it was dumped a core does not tell

    def test_of_a_snapshot(self, stopped, tmp_path):
        again = taken(stopped[2], tmp_path / "again.snap")
        assert figures(again) == figures(stopped[2])
        assert SnapshotFile(again).about == SnapshotFile(stopped[2]).about

    def test_doctor(self, stopped):
        alive, kept = (folio_json("doctor", str(of)) for of in (stopped[0], stopped[2]))
        shared = []
        for found in (alive, kept):
            for key in ("read_seconds", "source"):
                del found[key]
            sharing = found.pop("sharing")  # what others share changes with them
            shared.append(sharing["private"] + sharing["shared"])
            assert {"stacks", "files"} <= found["not_folio_by_kind"].keys()
        assert shared[0] == shared[1] > 0
        assert json.dumps(kept).replace(str(stopped[2]), str(stopped[0])) == json.dumps(alive)

    def test_bins_where_and_map(self, stopped, tmp_path):
        for words in (["bins"], ["where"], ["map"]):
            more = [hex(stopped[1]["groups"][1]["a_freed"])] if words == ["where"] else []
            more += ["-o", tmp_path / "map.html"] if words == ["map"] else []
            alive, kept = (folio_json(*words, str(of), *more) for of in (stopped[0], stopped[2]))
            assert (alive.pop("source"), kept.pop("source")) == ("process", "snapshot")
            for found in (alive, kept):
                found["samples"] = found.get("samples") if words != ["bins"] else found["samples"][0]["bins"]
            assert kept == alive

    def test_elsewhere(self, tmp_path):
        """The process and the library it had are gone, the file is moved, another process reads it."""
        library = tmp_path / "libfolio.so.0"
        shutil.copy(LIBRARY, library)
        with running([str(HEAP), "known"], library, STILL) as process:
            line_of(process)
            stop(process.pid)
            file = taken(process.pid, tmp_path / "a.snap")
            before = folio_json("bins", file)
        library.unlink()
        (tmp_path / "far").mkdir()
        file.rename(tmp_path / "far/b.snap")
        clean = {"HOME": str(tmp_path), "PATH": "/nowhere"}
        command = [sys.executable, "-m", "folio", "bins", "b.snap", "--json"]
        done = subprocess.run(command, cwd=tmp_path / "far", env=clean, capture_output=True, text=True, timeout=300)
        after = json.loads(done.stdout)
        del before["samples"][0]["seconds"], after["samples"][0]["seconds"]
        assert after == before
        assert folio_here("doctor", tmp_path / "far/b.snap").returncode in (0, 1)

    def test_everything_that_the_layout_leads_to_is_kept(self, stopped):
        reader = Reader(str(stopped[2]))
        for name in (name.rstrip("*") for name in LISTED.split() if name.endswith("*")):
            if name == "chunk_table":  # of which only the entries of windows in use are
                continue
            at = getattr(reader.layout, name)
            assert bool(reader.process.readable(at, at + 4)) == (name not in NOT_KEPT), name

    def test_options_and_limits(self, stopped):
        alive, kept = Reader(stopped[0]), Reader(str(stopped[2]))
        assert kept.options() == alive.options()
        for name in ("resident", "dirty", "purged", "purge_calls"):
            assert kept.counter(name) == alive.counter(name)

    def test_paths_among_the_options_without_what_follows_them(self, tmp_path):
        with running([str(HEAP), "known"], LIBRARY, f"{STILL},profile_file:{tmp_path}/profile") as process:
            line_of(process)
            alive = Reader(process.pid)
            kept = Reader(str(taken(process.pid, tmp_path / "a.snap")))
            assert kept.options() == alive.options()
            assert kept.option("profile_file").shown == f"{tmp_path}/profile"
            at = kept.option("profile_file").value
            there = alive.process.read(at, 192).split(b"\0")
            assert any(there[1:]), "no other variable follows"
        length = len(there[0]) // 64 * 64 + 64
        assert kept.process.read(at, length) == there[0].ljust(length, b"\0")

    def test_contents_are_not_in_it(self, stopped, tmp_path):
        process = Reader(str(stopped[2])).process
        assert not process.has_contents
        one = stopped[1]["groups"][0]["first"]
        assert process.readable(one, one + 64) == []
        with pytest.raises(Exception, match="not their contents: this needs the process, or a core file"):
            process.read(one, 64)
        # Nor anywhere else: a text that a program holds.
        secret = "xyzzy" * 500
        code = f"import sys; a = [sys.argv[0] + '{secret}' + str(i) for i in range(999)]; print(flush=True); input()"
        with running(["/usr/bin/python3", "-c", code]) as process:
            line_of(process)
            file = taken(process.pid, tmp_path / "secret.snap")
        with zipfile.ZipFile(file) as archive:
            assert b"xyzzyxyzzy" not in archive.read("bytes.npy")

    def test_it_changes_no_more(self, stopped):
        one_line(folio_here("bins", stopped[2], "--every", "1"), "--every needs a running process")
        for command in ("top", "calls", "collect", "limit", "metrics"):
            one_line(folio_here(command, stopped[2]), "this needs a running process")


class TestSamples:
    @pytest.mark.parametrize("place", ["in metadata", "in a file"])
    def test_all_are_kept_with_their_stacks(self, place, tmp_path):
        options = STILL + (f",profile_file:{tmp_path}/profile" if place == "in a file" else "")
        with heap("counted", options=options) as (pid, _):
            reader = Reader(pid)
            seam = Seam(reader)
            seam.close(4096)
            assert seam.mode() == reader.layout.mode_closed
            Path(f"/proc/{pid}/fd/0").write_text("m\n")
            eventually(lambda: reader.process.read_word(reader.layout.sample_counts) > 200)
            stop(pid)
            file = taken(pid, tmp_path / "a.snap")
            kept = Reader(str(file))
            tables = sample_tables(reader.process, reader.layout)
            assert tables
            assert sample_tables(kept.process, kept.layout) == tables
            for start, length in tables:
                assert kept.process.read(start, length) == reader.process.read(start, length)
            inside = reader.view().snapshot.metadata.offset_of(*tables[0]) >= 0
            assert inside == (place == "in metadata")

    def test_what_was_replaced_meanwhile_is_left_out(self):
        layout = SimpleNamespace(sample_bytes=32)
        memory = Memory([(4096, 128)])
        memory.words[:] = [4 * 7 + 2, 1, 1, 1, 4 * 8 + 2, 1, 1, 1, 4 * 9 + 2, 1, 1, 1, 0, 0, 0, 0]
        now = memory.words.copy()
        now[4], now[8] = 4 * 11 + 2, 4 * 9 + 3  # another one, and freed
        source = SimpleNamespace(read_ranges=lambda ranges: now.view(np.uint8))
        leave_out_torn(source, memory, 4096, 4, layout)
        assert memory.words[::4].tolist() == [4 * 7 + 2, 0, 4 * 9 + 2, 0]


class TestChanging:
    def test_it_is_the_reading_that_it_was_made_of(self, tmp_path):
        with heap("load", "4") as (pid, _):
            reader = Reader(pid)
            for _ in range(10):
                reading = reader.reading()
                then = asdict(explain(reader, reading))
                write(reader, reading, tmp_path / "a.snap")
                del then["seconds"]
                assert figures(tmp_path / "a.snap") == then

    def test_the_bound_is_kept(self, tmp_path):
        with heap("load", "4") as (pid, known):
            in_flight, startup = 4 * 62 * 3392, 160 << 10
            file = tmp_path / "a.snap"

            def moved_and_right():
                found = figures(taken(pid, file))
                live = sum(bin_["live_objects"] * bin_["size"] for bin_ in found["bins"])
                off = found["moved"] + in_flight
                assert known["bytes"] - off <= live <= known["bytes"] + off + startup
                return found["moved"]

            for _ in range(4):
                moved_and_right()
            assert eventually(moved_and_right) == SnapshotFile(file).about["moved_bytes"]
        assert "may be off by" in folio_here("doctor", file).stdout


GROWS = (
    "import sys\nkept = []\nfor line in sys.stdin: kept += [bytearray(3000) for _ in range(2000)]; print(flush=True)"
)


class TestDiff:
    @pytest.fixture(scope="class")
    @classmethod
    def grown(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("diff")
        with running(["/usr/bin/python3", "-c", GROWS], LIBRARY, STILL) as process:
            for name in ("before", "after"):
                process.stdin.write("\n")
                process.stdin.flush()
                line_of(process)
                taken(process.pid, folder / name)
            yield process.pid, folder

    def test_what_grew_comes_first(self, grown):
        found = folio_json("diff", grown[1] / "before", grown[1] / "after")
        first = found["bins"][0]
        assert 3000 < first["size"] < 4000
        assert first["grown"]["objects"] == 2000
        assert first["grown"]["live"] >= 2000 * 3000
        assert all(row["after"]["live"] - row["before"]["live"] == row["grown"]["live"] for row in found["bins"])
        back = folio_json("diff", grown[1] / "after", grown[1] / "before")
        assert back["bins"][-1]["grown"]["objects"] == -2000

    def test_text(self, grown):
        done = folio_here("diff", grown[1] / "before", grown[1] / "after", "--rows", "2")
        assert done.returncode == 0
        row = next(line for line in done.stdout.splitlines() if "+2,000" in line)
        assert re.search(r"\+2,000 +\+5\.7 MiB", row)
        assert done.stdout.splitlines()[-1].startswith("next: folio doctor ")

    def test_against_the_process_and_a_core(self, grown, tmp_path):
        pid, folder = grown
        stop(pid)
        for later in (str(pid), gcore(pid, tmp_path)):
            found = folio_json("diff", folder / "after", later)
            assert not any(row["grown"]["objects"] for row in found["bins"])
            assert found["pages_known"] == (later == str(pid))

    def test_nothing_grew(self, grown):
        done = folio_here("diff", grown[1] / "after", grown[1] / "after")
        assert "no bin changed" in done.stdout


class TestWriting:
    def test_whole_or_not_at_all(self, stopped, tmp_path):
        file = tmp_path / "a.snap"
        file.write_text("what was there before")
        code = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (1000, 1000)); from folio.cli import main; main()"
        command = [sys.executable, "-B", "-c", code, "snapshot", str(stopped[0]), "-o", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(None), timeout=300)
        one_line(done, "cannot be written: File too large")
        assert file.read_text() == "what was there before"
        assert os.listdir(tmp_path) == ["a.snap"]
        taken(stopped[0], file)
        assert figures(file) == figures(stopped[0])
        assert file.stat().st_mode & 0o077 == 0

    def test_no_place_for_it(self, stopped, tmp_path):
        one_line(folio_here("snapshot", str(stopped[0]), "-o", tmp_path / "none/a"), "is no folder")
        one_line(folio_here("snapshot", str(stopped[0]), "-o", "/dev/null"), "no ordinary file")
        assert Path("/dev/null").is_char_device()

    def test_a_process_that_is_not_on_folio(self, tmp_path):
        with running([str(HEAP), "known"], None) as process:
            line_of(process)
            one_line(folio_here("snapshot", str(process.pid), "-o", tmp_path / "a"), "is not on Folio")
        assert os.listdir(tmp_path) == []


class TestDamage:
    @pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
    def test_cut_short(self, stopped, share, tmp_path):
        data = stopped[2].read_bytes()
        (tmp_path / "cut").write_bytes(data[: int(len(data) * share)])
        one_line(folio_here("doctor", tmp_path / "cut"), str(tmp_path / "cut"))

    def test_changed_bytes(self, stopped, tmp_path):
        """The same answer, or one line: what is read has a checksum."""
        data, chance, refused = stopped[2].read_bytes(), random.Random(5), 0
        file = tmp_path / "changed"
        file.write_bytes(data)
        right = folio_here("bins", file).stdout
        for _ in range(200):
            changed = bytearray(data)
            changed[chance.randrange(4, len(data))] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            done = folio_here("bins", file)
            if done.returncode == 2:
                one_line(done, "changed")
                refused += 1
            else:
                assert done.stdout == right
        assert refused > 100

    @pytest.mark.parametrize(
        ("name", "change"),
        [
            ("page_counts.npy", lambda data: data[:-8] + (1 << 40).to_bytes(8, "little")),
            ("page_gaps.npy", lambda data: data[:-8] + b"\xff" * 8),
            ("starts.npy", lambda data: data.replace(b"}  ", b"}( ")),
        ],
    )
    def test_made_to_do_harm(self, stopped, tmp_path, name, change):
        """What has the right checksums takes neither time nor memory either."""
        made = self.rewritten(stopped[2], tmp_path / "made", lambda each, data: change(data) if each == name else data)
        one_line(folio_here("doctor", made), "damaged")

    def rewritten(self, source, target, change):
        with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                if (text := change(name, old.read(name))) is not None:
                    new.writestr(name, text)
        return target

    def test_another_version_and_other_archives(self, stopped, tmp_path):
        def newer(name, data):
            return data.replace(b'"version": 1', b'"version": 2') if name == "folio.json" else data

        one_line(folio_here("doctor", self.rewritten(stopped[2], tmp_path / "a", newer)), "format 2, this tool reads")
        other = self.rewritten(stopped[2], tmp_path / "b", lambda name, data: data if name == "bytes.npy" else None)
        one_line(folio_here("doctor", other), "is a zip archive, but no snapshot")
        lacks = self.rewritten(stopped[2], tmp_path / "c", lambda name, data: data if name != "bytes.npy" else None)
        one_line(folio_here("doctor", lacks), "damaged")

    def test_another_layout(self, stopped, tmp_path):
        def older(name, data):
            at = data.find(b"FolioLay") if name == "bytes.npy" else -1
            return data if at < 0 else data[: at + 8] + struct.pack("<I", 1) + data[at + 12 :]

        one_line(folio_here("doctor", self.rewritten(stopped[2], tmp_path / "a", older)), "layout version 1")


def test_its_size(tmp_path):
    """A figure to report: of a heap of 256 MiB, with holes at random."""
    code = "import random\nrandom.seed(1)\nkept = [bytes(range(150)) for i in range(1)]\n"
    code += "kept = [b'x' * random.randrange(20, 400) for _ in range(1_000_000)]\n"
    code += "random.shuffle(kept)\ndel kept[::3]\nprint(flush=True)\ninput()"
    with running(["/usr/bin/python3", "-c", code], LIBRARY, "decay:100") as process:
        line_of(process)
        file = taken(process.pid, tmp_path / "a.snap")
        found = figures(file)
    size = file.stat().st_size
    print(f"\n{found['rss'] / 2**20:.0f} MiB resident: a snapshot of {size / 2**20:.2f} MiB")
    assert size < found["rss"] / 50
