"""`folio pins` on a program that says which of its objects keep pages."""

import re

from conftest import PLANTED, folio_here, folio_json, heap
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
