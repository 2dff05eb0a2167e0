#!/usr/bin/env python3
"""What docs/limits.md says may be retained, term by term: each with options that leave nothing to the others.

With the term's option raised the same program must keep more, or its test would show nothing.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import with_paths

PROGRAM = Path()
MIB = 1024  # in KiB, as all numbers here
THREADS = 64
CPUS = os.cpu_count() or 1
SHARDS = min(32, 1 << ((CPUS + 7) // 8 - 1).bit_length())
OWN = 1 * MIB  # the program's: vectors, buffers of the libc
THREAD_CACHES = 2 * (THREADS * 32 + 8 * MIB)
CPU_CACHES = CPUS * (1 * MIB + 64)
LARGE_IN_CPU_CACHES = 4 * CPUS * (1 * MIB + 64)
TOLERATED = 64 * MIB
AGAIN = 256 * MIB
DIRTY = 8 * MIB + 5 * MIB


def run(options: str, *words: object, one_cpu: bool = False) -> dict[str, int]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOLIO_")}
    done = subprocess.run(
        [*(["taskset", "-c", str(min(os.sched_getaffinity(0)))] if one_cpu else []), PROGRAM, *map(str, words)],
        env=environment | {"FOLIO_OPTIONS": options},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stderr == "", done.stderr
    return {name: int(value) for name, value in (word.split("=") for word in done.stdout.split())}


class Retained(unittest.TestCase):
    def holds(
        self, bound: int, options: str, raised: str, *words: object, others: tuple[str, ...] = (), one: bool = False
    ) -> None:
        """`others`: what is counted there is another term. `one`: on one CPU."""

        def beyond(options: str) -> int:
            said = run(options, *words, one_cpu=one)
            return said["retained"] - said["metadata"] - sum(said[name] for name in others)

        self.assertLessEqual(beyond(options), bound + OWN)
        self.assertGreater(beyond(f"{options},{raised}"), bound + OWN, "raised, it must hold more")

    def test_thread_caches(self) -> None:
        options = "cpu_cache:0,depot:0,decay:0,dirty_floor:0"
        self.holds(THREAD_CACHES, options, "thread_cache:8192,thread_cache_pool:65536", "thread_caches")

    def test_cpu_caches(self) -> None:
        options = "thread_cache:0,thread_cache_pool:0,depot:0,decay:60000,dirty_floor:0,housekeeper:off"
        # On one CPU, as how often the program moves would decide; what is counted late is up to 1 MiB.
        bound = 2 * LARGE_IN_CPU_CACHES // CPUS + MIB
        self.holds(bound, options, "cpu_cache:65536", "cpu_caches", others=("dirty", "fragmented"), one=True)

    def test_depot(self) -> None:
        # Magazines that are less than half full do not go there, so threads have room for whole ones.
        options = "cpu_cache:0,decay:60000,dirty_floor:0,housekeeper:off,depot:2048"
        bound = 2 * 2 * MIB + 2 * 256 + CPUS * (128 if SHARDS == 1 else 1024) + THREAD_CACHES
        self.holds(bound, options, "depot:262144", "depot", others=("dirty",))

    def test_dirty_without_a_housekeeper(self) -> None:
        caches = CPU_CACHES + LARGE_IN_CPU_CACHES
        for least, most in ((16, 400), (500, 4000), (16, 32000), (33000, 2000000), (9000000, 40000000)):
            with self.subTest(least=least, most=most):
                words = "dirty_alone", least, most
                self.holds(DIRTY + TOLERATED + caches, "decay:60000", "dirty_floor:1048576", *words, 1)
                # What turns out to be wanted again may stay.
                self.holds(DIRTY + AGAIN + caches, "decay:60000", "dirty_floor:1048576", *words, 3)

    def test_quiet_threads(self) -> None:
        """Two ticks later caches of threads are left, and what shares pages with their objects."""
        bound = 2 * (4 * 32 + 8 * MIB)
        raised = "decay:600000,dirty_floor:1048576"
        self.holds(bound, "decay:200", raised, "quiet", 1000, others=("fragmented",))

    def test_survivors(self) -> None:
        for size in (16, 40, 200, 1000, 5000, 30000):
            for one_in in (4, 64, 1000):
                with self.subTest(size=size, one_in=one_in):
                    said = run("", "survivors", size, one_in)
                    self.assertLessEqual(said["retained"], said["held"] * 15 // 100 + 4 * MIB)

    def test_metadata(self) -> None:
        """Of a chunk; beside that hints of the bin for each 8 GiB, and a window for each 8 GiB."""
        for size, bytes_each in ((8, 34 << 10), (16, 17 << 10), (64, 4.4 * 1024), (1024, 500), (9000, 500)):
            with self.subTest(size=size):
                shared = (3.1 * 1024 + 32 * 1024) / 256  # by the chunks of 512 MiB
                self.assertLessEqual(run("", "metadata", size)["bytes"], bytes_each * 1.02 + shared)


if __name__ == "__main__":
    with_paths.main(globals(), "PROGRAM")
