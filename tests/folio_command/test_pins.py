"""`folio pins` on a program that says which of its objects keep pages."""

import re
import subprocess

from conftest import PLANTED, eventually, folio_here, folio_json, heap, running
from folio.process import PAGE

SESSION, BUFFER, NODE, OWNED = 256, 704, 16, 1216  # what the bins make of their sizes
KINDS = {
    "session_at": ("shapes::Session", "(anonymous namespace)::pinning_sessions", SESSION),
    "buffer_at": ("no type", "(anonymous namespace)::pinning_buffers", BUFFER),
    "node_at": ("no type", "(anonymous namespace)::pinning_list", NODE),
    "owned_at": ("no type", "(anonymous namespace)::Owner", OWNED),
}


def planted_bytes(addresses, size):
    """Free bytes of the pages on which these objects lie, at least half free; the objects of a kind share no page with
    those of another."""
    live: dict[int, int] = {}
    for base in addresses:
        for page in {base // PAGE, (base + size - 1) // PAGE}:
            low, high = max(base, page * PAGE), min(base + size, (page + 1) * PAGE)
            live[page] = live.get(page, 0) + high - low
    return sum(PAGE - used for used in live.values() if used <= PAGE // 2)


class TestPins:
    def test_a_heap_without_objects(self, tmp_path):
        program = tmp_path / "none"
        subprocess.run(
            ["cc", "-x", "c", "-", "-o", program],
            input=b"int pause(void); int main(void) { for (;;) pause(); }",
            check=True,
        )
        with running([str(program)]) as process:
            eventually(lambda: folio_here("bins", process.pid).returncode == 0)
            assert folio_json("pins", process.pid)["groups"] == []

    def test_a_snapshot_tells_by_size(self, tmp_path):
        with heap("pins", "2000", program=PLANTED, options="decay:3600000,housekeeper:off,dirty_floor:1000") as (
            pid,
            _,
        ):
            file = tmp_path / "a.snap"
            assert folio_here("snapshot", str(pid), "-o", file).returncode == 0
            live = folio_json("pins", str(pid))
        kept = folio_json("pins", file)
        assert kept["source"] == "snapshot"
        for key in ("pages", "free", "kept_by_caches"):
            assert kept[key] == live[key]
        assert {(g["type"], g["holder"]) for g in kept["groups"]} == {(None, None)}
        by_size = {}
        for group in live["groups"]:
            objects, pinned = by_size.get(group["size"], (0, 0))
            by_size[group["size"]] = objects + group["objects"], pinned + group["pinned"]
        assert {g["size"] for g in kept["groups"]} == by_size.keys()
        for group in kept["groups"]:
            objects, pinned = by_size[group["size"]]
            assert group["objects"] == objects
            assert abs(group["pinned"] - pinned) <= len(live["groups"])  # each is rounded
            assert group["gives"] > 0 or group["shared_pages"] > 0
        done = folio_here("pins", file)
        assert re.search(r"^not known +not known +\d", done.stdout, re.M)
        assert "A snapshot has no contents of objects" in " ".join(done.stdout.split())
        assert re.search(rf"^next: folio where {file} 0x[0-9a-f]+$", done.stdout, re.M)
        for command in ("census", "leaks"):
            done = folio_here(command, file)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert f"this needs the process, or a core file; `folio bins {file}` and `folio pins" in done.stderr

    def test_each_group_with_its_bytes(self):
        with heap("pins", "4000", program=PLANTED) as (pid, reported):
            found = folio_json("pins", str(pid))
            groups = {(g["type"], g["holder"], g["size"]): g for g in found["groups"]}
            right = total = 0
            for name, key in KINDS.items():
                planted = planted_bytes(reported[name], key[2])
                group = groups[key]
                assert group["objects"] >= 0.95 * len(reported[name])
                assert set(group["samples"]) <= set(reported[name])
                right += min(group["pinned"], planted)
                total += planted
                assert group["gives"] >= 0.9 * group["pinned"]
            assert total > 2000 * PAGE
            assert right >= 0.95 * total
            assert sum(g["pinned"] for g in found["groups"]) <= found["free"]

    def test_shown(self):
        with heap("pins", "800", program=PLANTED) as (pid, _):
            done = folio_here("pins", str(pid), "--rows", "2")
            assert done.returncode == 0
            title, counts = done.stdout.splitlines()[:2]
            assert title.startswith(f"process {pid}: ")
            assert re.match(r"[\d,]+ pages \(\d+\.\d MiB\) are resident and at least 50 % free: ", counts)
            assert re.search(r"^(shapes::Session|no type) +(pinning_\w+|Owner) ", done.stdout, re.M)
            assert re.search(r"^next: folio where \d+ 0x[0-9a-f]+ --referrers$", done.stdout, re.M)

    def test_neighbours_share_pages(self):
        """Of two sizes in a bin, in turn: each page has objects of both kinds."""
        with heap("mixed", "2000", program=PLANTED) as (pid, _):
            found = folio_json("pins", str(pid))
            mine = [g for g in found["groups"] if "mixed" in g["holder"]]
            assert {g["holder"] for g in mine} == {"(anonymous namespace)::mixed_a", "(anonymous namespace)::mixed_b"}
            for group, other in (mine, mine[::-1]):
                assert group["neighbours"][0]["holder"] == other["holder"]
                assert group["gives"] < group["pinned"] / 2
                assert group["shared_pages"] > 100
