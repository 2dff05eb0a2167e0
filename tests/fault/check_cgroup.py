#!/usr/bin/env python3
"""Limits and pressure on a real kernel: a memory cgroup of little more than what is live, and its files.

A cgroup is made below the one that the variable FOLIO_TEST_CGROUP names (a folder below /sys/fs/cgroup that was given
to these tests), or, where the process is in the root of the hierarchy that it sees, as in a container, below that. Else
cgroups are somebody else's to make, and the test is left out.
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import with_paths

BURSTS = Path()
MIB = 1 << 20
LIVE = 200 * MIB
OWN = 24 * MIB  # of the program's code and stack, the kernel's tables


def run(options: str, live: int, cgroup: Path | None = None) -> tuple[int, dict[str, int], str]:
    """Of a program of which at most `live` is: exit status, what it said, stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FOLIO_")}

    def enter() -> None:
        assert cgroup is not None
        (cgroup / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [BURSTS, str(live * 3 // 4 // MIB), "2"],  # with its pointers, and what large objects are rounded up to
        env=environment | {"FOLIO_OPTIONS": options},
        preexec_fn=enter if cgroup else None,
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = {name: int(value) for name, value in (word.split("=") for word in done.stdout.split())}
    return done.returncode, said, done.stderr


def parent_cgroup() -> Path:
    """Where a cgroup may be made: never beside or above the one that the tests are in. Raises SkipTest."""
    if given := os.environ.get("FOLIO_TEST_CGROUP"):
        return Path(given)
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    version_1 = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    version_2 = [path for number, controllers, path in lines if number == "0" and not controllers]
    # Where version 1 has the memory, the path in the other hierarchy says nothing.
    paths, folder = (version_1, "/sys/fs/cgroup/memory") if version_1 else (version_2, "/sys/fs/cgroup")
    if paths == ["/"] and (Path(folder) / "cgroup.procs").exists() and os.access(folder, os.W_OK):
        return Path(folder)
    raise unittest.SkipTest("the memory cgroup here is somebody else's: name one to use in FOLIO_TEST_CGROUP")


class Container(unittest.TestCase):
    """A real cgroup."""

    def setUp(self) -> None:
        parent = parent_cgroup()
        self.cgroup = parent / f"folio-test-{os.getpid()}"
        try:
            if (parent / "cgroup.subtree_control").exists():
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.cgroup.mkdir()
        except OSError as error:
            self.skipTest(f"no cgroup can be made in {parent}: {error.strerror}")
        self.addCleanup(self.cgroup.rmdir)
        if not (self.file("max") or self.file("limit_in_bytes")):
            self.skipTest(f"{parent} has no memory controller")

    def file(self, name: str) -> Path | None:
        file = self.cgroup / f"memory.{name}"
        return file if file.exists() else None

    def limit(self, count: int) -> int:
        """Sets the limit; what it is then."""
        file = self.file("max") or self.file("limit_in_bytes")
        assert file is not None
        file.write_text(str(count))
        if swap := self.file("swap.max"):
            swap.write_text("0")
        return int(file.read_text())

    def kills(self) -> int:
        file = self.file("events") or self.file("oom_control")
        assert file is not None
        lines = [line.split() for line in file.read_text().splitlines()]
        return sum(int(count) for name, count in lines if name == "oom_kill")

    def test_little_more_than_what_is_live(self) -> None:
        """1.1 times what is live suffices, and nothing is killed."""
        limit = self.limit(LIVE * 11 // 10 + OWN)
        status, said, errors = run("limit_soft:cgroup", LIVE, self.cgroup)
        self.assertEqual((status, errors, self.kills()), (0, "", 0))
        self.assertEqual(said["soft"], limit - limit // 16)

    def test_the_hard_limit_comes_before_the_kernels(self) -> None:
        """malloc fails in place of a kill."""
        self.limit(LIVE // 2)
        status, _, errors = run("limit_hard:cgroup", LIVE, self.cgroup)
        self.assertEqual((status, errors, self.kills()), (1, "", 0))


class Soft(unittest.TestCase):
    """Without a cgroup: the same numbers, as the kernel counts them."""

    def test_little_more_than_what_is_live(self) -> None:
        """With the limit that such a container would give."""
        container = LIVE * 11 // 10 + OWN
        status, said, errors = run(f"limit_soft:{container - container // 16}", LIVE)
        self.assertEqual((status, errors), (0, ""))
        self.assertLess(said["peak_kib"] << 10, container)

    def test_it_holds_more_without(self) -> None:
        """Else the test above shows nothing."""
        status, said, _ = run("decay:60000", LIVE)  # on a slow machine it would decay meanwhile
        self.assertEqual(status, 0)
        self.assertGreater(said["peak_kib"] << 10, LIVE * 11 // 10 + OWN)

    def test_a_hard_limit_fails_in_time(self) -> None:
        """Before the program has it all."""
        status, _, errors = run(f"limit_hard:{LIVE // 2}", LIVE)
        self.assertEqual((status, errors), (1, ""))


class Pressure(unittest.TestCase):
    """The option reads the system's files."""

    def test_descriptors_are_out_of_the_way(self) -> None:
        """The lowest free one stays the program's; without the option there are none."""
        status, said, errors = run("", 8 * MIB)
        self.assertEqual((status, said["lowest"], said["high"], errors), (0, 3, 0, ""))
        status, said, errors = run("pressure:on", 8 * MIB)
        self.assertEqual((status, said["lowest"]), (0, 3))
        if said["high"] == 0:
            self.assertIn('"pressure:on": neither /proc/pressure/memory nor', errors)
        else:
            self.assertEqual(errors, "")
            self.assertLessEqual(said["high"], 2)


if __name__ == "__main__":
    with_paths.main(globals(), "BURSTS")
