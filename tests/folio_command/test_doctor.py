"""What doctor says of what is not Folio's, of padding, and beside what others share; on real processes."""

import re
import shutil

import pytest
from conftest import STILL, folio_here, folio_json, heap, line_of, running
from folio.advice import of_padding
from folio.foreign import kind_of, runtime_of, sharing_of, stacks_of, zero_filled
from folio.parts import explain
from folio.process import parse_maps
from folio.reader import Reader

MAPS = """\
55d0a0000000-55d0a0001000 r-xp 00000000 08:01 11   /usr/bin/program
55d0a0001000-55d0a0002000 rw-p 00001000 08:01 11   /usr/bin/program
55d0a0002000-55d0a0004000 rw-p 00000000 00:00 0
55d0a1000000-55d0a1100000 rw-p 00000000 00:00 0    [heap]
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000801000 rw-p 00000000 00:00 0
7f0001000000-7f0002000000 rw-p 00000000 00:00 0
7f0003000000-7f0004000000 rw-s 00000000 00:01 12   /dev/shm/segment
7f0005000000-7f0006000000 rw-s 00000000 00:01 13   /memfd:java_heap (deleted)
7ffd00000000-7ffd00020000 rw-p 00000000 00:00 0    [stack]
7ffd00030000-7ffd00032000 r-xp 00000000 00:00 0    [vdso]
"""
FOREIGN = """
import ctypes, mmap, threading, time
shared = mmap.mmap(-1, 8 << 20)
shared.write(b"x" * (8 << 20))
own = mmap.mmap(-1, 12 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
own.write(b"x" * (12 << 20))
def deep():
    ctypes.memset(ctypes.create_string_buffer(1), 0, 1)
    held = (ctypes.c_char * 16)()
    time.sleep(600)
threads = [threading.Thread(target=deep, daemon=True) for _ in range(6)]
for thread in threads:
    thread.start()
time.sleep(0.3)
print("{}", flush=True)
input()
"""


class TestKinds:
    def test_of_mappings(self):
        mappings = parse_maps(MAPS)
        stacks, data = stacks_of(mappings, []), zero_filled(mappings)
        assert [kind_of(mapping, stacks, data, "anonymous") for mapping in mappings] == [
            *(
                "files",
                "files",
                "files",
                "break",
                "anonymous",
                "stacks",
                "anonymous",
                "shared",
                "java",
                "stacks",
                "kernel",
            )
        ]

    def test_a_thread_that_sleeps_tells_its_stack(self):
        mappings = parse_maps(MAPS)
        assert stacks_of(mappings, [0x7F0001800000]) == {0x7F0000001000, 0x7F0001000000}

    @pytest.mark.parametrize(
        ("path", "program", "runtime"),
        [
            ("/usr/lib/jvm/lib/server/libjvm.so", "/usr/bin/java", "java"),
            ("/usr/bin/node", "/usr/bin/node", "v8"),
            ("/usr/lib/libnode.so.108", "/usr/bin/other", "v8"),
            ("/usr/lib/chromium/chromium", "/usr/lib/chromium/chromium", "v8"),
            ("/usr/bin/redis-server", "/usr/bin/redis-server", "anonymous"),
        ],
    )
    def test_whose_the_rest_is(self, path, program, runtime):
        mappings = parse_maps(f"7f0000000000-7f0000001000 r-xp 00000000 08:01 11   {path}\n")
        assert runtime_of(mappings, program) == runtime

    def test_of_a_process_with_each(self):
        with running(["/usr/bin/python3", "-c", FOREIGN], options=STILL) as process:
            line_of(process)
            found = folio_json("doctor", process.pid)
            text = folio_here("doctor", process.pid).stdout
        kinds = {name: kind["bytes"] for name, kind in found["not_folio_by_kind"].items()}
        assert sum(kinds.values()) == found["parts"]["not_folio"]["bytes"] == sum(found["not_folio"].values())
        assert 8 << 20 <= kinds["shared"] <= 9 << 20
        assert 12 << 20 <= kinds["anonymous"] <= 14 << 20
        assert 7 * 8192 <= kinds["stacks"] <= 4 << 20
        assert kinds["files"] > 1 << 20
        assert "stacks of 7 threads" in text
        assert re.search(r"shared memory.*\n +→ Each process that maps it counts it", text)

    def test_the_heap_of_v8(self):
        if not shutil.which("node"):
            pytest.skip("no node")
        code = "let x = []; for (let i = 0; i < 3e5; i++) x.push({i}); console.log(1); setInterval(() => x, 1e6)"
        with running(["node", "-e", code]) as process:
            process.stdout.readline()
            found = folio_json("doctor", process.pid)["not_folio_by_kind"]
        assert found["v8"]["bytes"] > 10 << 20
        assert "--max-old-space-size" in found["v8"]["advice"]

    def test_the_heap_of_java(self, tmp_path):
        if not shutil.which("java"):
            pytest.skip("no java")
        source = tmp_path / "Keeps.java"
        source.write_text(
            "public class Keeps { public static void main(String[] a) throws Exception { "
            'byte[] x = new byte[30 << 20]; System.out.println("{}"); System.in.read(); } }'
        )
        with running(["java", "-Xmx64m", str(source)]) as process:
            if process.stdout.readline() != "{}\n":
                pytest.skip("a java that does not run a source file")
            found = folio_json("doctor", process.pid)["not_folio_by_kind"]
        assert found["java"]["bytes"] > 30 << 20
        assert "-Xmx" in found["java"]["advice"]


class TestText:
    def test_no_paragraph_for_what_is_less_than_a_hundredth(self):
        with heap("known", options=STILL) as (pid, _):
            found = folio_json("doctor", pid)
            text = folio_here("doctor", pid).stdout
        titles = {"live": "live", "own": "Folio's code and data", "metadata": "metadata", "dirty": "dirty"}
        for part, title in titles.items():
            large = found["parts"][part]["bytes"] >= 0.01 * found["rss"]
            assert (f"\n{title} (" in text) == large, title
        assert "\nFolio's code and data (" not in text

    def test_private_and_shared(self):
        with heap("known", options=STILL) as (pid, _):
            reported = folio_json("doctor", pid)["sharing"]
            with open(f"/proc/{pid}/smaps_rollup") as file:
                lines = dict(line.split()[:2] for line in file.readlines()[1:])
            text = folio_here("doctor", pid).stdout
        assert reported["private"] == (int(lines["Private_Clean:"]) + int(lines["Private_Dirty:"])) << 10
        # Other processes that map the same libraries come and go meanwhile.
        assert abs(reported["proportional"] - (int(lines["Pss:"]) << 10)) < 1 << 20
        assert re.search(r"^private \S+ MiB, shared with others \S+ [KM]iB; its share of both \(PSS\) ", text, re.M)

    def test_where_the_kernel_does_not_say_it(self, tmp_path):
        assert sharing_of(tmp_path).private == 0


class TestPadding:
    def test_the_cause_is_folios_own_wish_for_huge_pages(self):
        with heap("known", options=STILL + ",huge_pages:never") as (pid, _):
            parts = explain(Reader(pid))
        parts.bins[0].padding = 5 << 20
        reported = of_padding(parts, locked=False, never=False)
        assert "(5.0 MiB of small objects)" in reported.cause
        assert "Folio asks for these itself" in reported.cause
        assert "large ones from 256 KiB on and huge ones that need not be zero" in reported.cause
        assert "huge_pages:never" in reported.advice
        assert "/sys/kernel" not in reported.cause + reported.advice
        assert "huge_pages:never does without" not in of_padding(parts, locked=False, never=True).advice

    def test_locked_memory_is_another_cause(self):
        code = "import ctypes; ctypes.CDLL(None).mlockall(3); x = [bytes(100)] * 300; print(flush=True); input()"
        with running(["/usr/bin/python3", "-c", code]) as process:
            process.stdout.readline()
            with open(f"/proc/{process.pid}/status") as status:
                if "VmLck:\t       0 kB" in status.read():
                    pytest.skip("memory may not be locked here")
            part = folio_json("doctor", process.pid)["parts"]["padding"]
        assert part["bytes"] > 1 << 20
        assert "the program locks its memory" in part["cause"]
        assert "MCL_ONFAULT" in part["advice"]
