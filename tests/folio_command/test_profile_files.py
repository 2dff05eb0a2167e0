"""The files of a profile, read by the tools that they are for, and profiles that are served."""

import gzip
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import ROOT, environment, eventually, folio_here, folio_json, heap
from folio.pprof import Message, estimate, load
from folio.sites import WHATS
from profiled import ROUND, program, tell

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
PPROF = "github.com/google/pprof@v0.0.0-20261016150608-1facf8f91b50"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Of a process that did a round: 750 samples of the least site, so that a fifth is 5 standard errors."""
    folder = tmp_path_factory.mktemp("profile")
    names = {kind: folder / f"heap.{kind}" for kind in ("html", "pprof", "folded", "speedscope")}
    with program("profile:256") as process:
        tell(process, "a")
        words = [word for kind, file in names.items() for word in (f"--{kind}", file)]
        done = folio_here("profile", str(process.pid), *words)
        assert done.returncode == 0, done.stderr
        tell(process, "a")
        done = folio_here("profile", str(process.pid), "--pprof", folder / "more.pprof")
        assert done.returncode == 0, done.stderr
    return names | {"more": folder / "more.pprof"}


@pytest.fixture(scope="module")
def pprof(tmp_path_factory):
    """Google's own reader."""
    if known := shutil.which("pprof"):
        return known
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go to build pprof with")
    # Kept, as it takes a minute to build.
    folder = Path(tempfile.gettempdir()) / f"folio-pprof-{os.getuid()}"
    if not (folder / "pprof").exists():
        homes = {"GOBIN": str(folder), "GOPATH": str(folder / "go"), "GOFLAGS": "-modcacherw"}
        done = subprocess.run([go, "install", PPROF], env=os.environ | homes, capture_output=True, timeout=400)
        shutil.rmtree(folder / "go", ignore_errors=True)
        if done.returncode != 0:
            pytest.skip("pprof cannot be fetched")
    return str(folder / "pprof")


def run_pprof(pprof, *words):
    done = subprocess.run([pprof, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def message_of(file):
    return Message.FromString(gzip.decompress(Path(file).read_bytes()))


class TestPprof:
    def test_read_by_pprof_itself(self, files, pprof):
        top = run_pprof(pprof, "-top", "-unit=B", "-nodefraction=0", files["pprof"])
        assert "Type: inuse_space" in top
        assert re.search(r"^File: folio_command_profiled$", top, re.M)
        for name, truth in ROUND.items():
            (flat,) = re.findall(rf"^ *([\d.]+)B .*\b{name}", top, re.M)
            assert abs(float(flat) - truth) < 0.2 * truth, (name, flat)
        cumulative = run_pprof(pprof, "-top", "-cum", "-sample_index=alloc_objects", files["pprof"])
        assert "round_of_all" in cumulative
        tags = run_pprof(pprof, "-tags", files["pprof"])
        for label in ("bin:", "thread:", "age:"):
            assert label in tags
        raw = run_pprof(pprof, "-raw", files["pprof"])
        assert "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]" in raw
        assert re.search(r"^PeriodType: space bytes\nPeriod: 256$", raw, re.M)

    def test_mappings_have_build_ids(self, files):
        message = message_of(files["pprof"])
        text = message.string_table
        known = {text[each.filename]: text[each.build_id] for each in message.mapping}
        assert any(name.endswith("/libc.so.6") and re.fullmatch("[0-9a-f]{40}", key) for name, key in known.items())
        spans = sorted((each.memory_start, each.memory_limit) for each in message.mapping)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        for place in message.location:
            if place.mapping_id:
                mapping = message.mapping[place.mapping_id - 1]
                assert mapping.memory_start <= place.address < mapping.memory_limit

    def test_difference(self, files):
        found = folio_json("profile", "--diff", files["pprof"], files["more"])
        changes = {each["function"].split("(")[0]: each for each in found["functions"]}
        for name, truth in ROUND.items():
            assert changes[name]["beyond_chance"]
            assert abs(changes[name]["change"] - truth) < 5 * changes[name]["standard_error"] + 1
        same = folio_json("profile", "--diff", files["pprof"], files["pprof"])
        assert not any(each["change"] or each["beyond_chance"] for each in same["functions"])
        done = folio_here("profile", "--diff", files["pprof"], files["more"])
        assert re.search(r"\+[\d.]+ MiB .* large_site", done.stdout)

    def test_others_are_refused_in_a_line(self, files, tmp_path):
        damaged = message_of(files["pprof"])
        del damaged.sample[0].value[1:]
        (tmp_path / "damaged").write_bytes(damaged.SerializeToString())
        for file in (files["folded"], files["html"], "/no/such/file", tmp_path / "damaged"):
            done = folio_here("profile", "--diff", files["pprof"], file)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert estimate(0, 0, 1024).value == 0
        assert load(files["pprof"]).interval == 256


class TestOtherFiles:
    def test_folded(self, files):
        sums = {}
        for line in files["folded"].read_text().splitlines():
            stack, _, value = line.rpartition(" ")
            for name in ROUND:
                if name in stack.split(";"):
                    sums[name] = sums.get(name, 0) + int(value)
        for name, truth in ROUND.items():
            assert abs(sums[name] - truth) < 0.2 * truth

    def test_speedscope(self, files):
        found = json.loads(files["speedscope"].read_text())
        frames = found["shared"]["frames"]
        assert [each["name"] for each in found["profiles"]] == [f"{what} bytes" for what in WHATS]
        for each in found["profiles"]:
            assert each["type"] == "sampled" and each["unit"] == "bytes"
            assert len(each["samples"]) == len(each["weights"])
            assert sum(each["weights"]) == each["endValue"]
            assert all(0 <= i < len(frames) for stack in each["samples"] for i in stack)

    def test_page_is_one_file_and_draws(self, files):
        text = files["html"].read_text()
        assert len(text) < 5 << 20
        assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
        browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
        if browser is None:
            pytest.skip("no browser")
        done = subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{files['html']}"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        boxes = re.findall(r'role="treeitem"[^>]*>([^<]*)<', done.stdout)
        assert {"large_site", "middle_site", "round_of_all", "main"} <= set(boxes)
        assert any(box.startswith("all: ") for box in boxes)
        assert re.search(r"<tbody id=\"sites\"><tr>.*large_site", done.stdout)


@contextmanager
def served(pid, *words):
    """The server, and its address."""
    command = [sys.executable, "-m", "folio", "profile", str(pid), "--listen", "127.0.0.1:0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(None), cwd=ROOT)
    try:
        line = process.stderr.readline()
        yield process, re.search(r"http://[\d.:]+", line)[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def fetched(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"
        return Message.FromString(gzip.decompress(answer.read()))


def sums_of(message):
    names = [message.string_table[each.type] for each in message.sample_type]
    return {name: sum(sample.value[i] for sample in message.sample) for i, name in enumerate(names)}


class TestServer:
    def test_heap_and_allocs(self):
        with heap("load", "1") as (pid, _), served(pid, "--interval", "256K") as (process, address):
            first = fetched(f"{address}/debug/pprof/allocs")
            eventually(lambda: sums_of(fetched(f"{address}/debug/pprof/allocs"))["alloc_space"] > 1 << 20)
            assert first.string_table[first.default_sample_type] == "alloc_space"
            live = fetched(f"{address}/debug/pprof/heap")
            assert live.string_table[live.default_sample_type] == "inuse_space"
            assert live.period == 256 << 10
            begun = time.monotonic()
            delta = sums_of(fetched(f"{address}/debug/pprof/allocs?seconds=2"))
            assert time.monotonic() - begun >= 2
            assert 0 < delta["alloc_space"] < sums_of(fetched(f"{address}/debug/pprof/allocs"))["alloc_space"]
            for path, status in (("/other", 404), ("/debug/pprof/heap?seconds=x", 400)):
                with pytest.raises(urllib.error.HTTPError) as error:
                    urllib.request.urlopen(address + path)
                assert error.value.code == status
            process.terminate()
            assert process.wait(timeout=60) == 0
            assert folio_json("profile", str(pid), "--for", "0.1")["seconds"] < 60  # it was switched off

    def test_freed_samples_are_folded_into_sums(self):
        import numpy as np
        from folio.book import Book
        from folio.samples import SAMPLE

        book, samples = Book(), np.zeros(10, SAMPLE)
        samples["mark"] = np.arange(1, 11, dtype=np.uint64) << 2 | np.where(np.arange(10) < 8, 3, 2).astype(np.uint64)
        samples["size"], samples["interval"], samples["written_ms"], samples["freed_ms"] = 1000, 1000, 5, 6
        book.add(samples, [(1, 2)] * 10, [""] * 10)
        before = book.columns()
        everything = np.ones(10, bool)
        book.fold()
        after = book.columns()
        assert len(after) == 3 and len(book.rows) == 2
        assert after.bytes(np.ones(3, bool)).value == pytest.approx(before.bytes(everything).value)
        assert after.bytes(np.ones(3, bool)).variance == pytest.approx(before.bytes(everything).variance)
        assert after.live.sum() == 2
        book.end([9], [7])
        assert book.columns().live.sum() == 1
