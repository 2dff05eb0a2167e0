#!/usr/bin/env python3
"""Runs the cases of limits.cc, some of them under a limit of address space or memory that holds from exec on."""

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import with_paths

LIMITS = Path()
LIBRARY = Path()

MIB = 1 << 20
TIMEOUT_S = 120
SKIPPED = 77


def limited(limits: dict[int, int]) -> None:
    """In the child: soft limits, so that the program may lift them."""
    for which, value in limits.items():
        resource.setrlimit(which, (value, resource.getrlimit(which)[1]))


class Case(unittest.TestCase):
    """Runs programs that must succeed."""

    def run_well(
        self,
        *command: str | Path,
        address_space: int | None = None,
        data: int | None = None,
        preload: bool = False,
    ) -> str:
        """Stdout of a program that must end with status 0."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FOLIO_")}
        if preload:
            environment["LD_PRELOAD"] = str(LIBRARY)
        limits = {resource.RLIMIT_AS: address_space, resource.RLIMIT_DATA: data}
        limits = {which: value for which, value in limits.items() if value is not None}
        done = subprocess.run(
            command,
            env=environment,
            preexec_fn=(lambda: limited(limits)) if limits else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode == SKIPPED:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        self.assertEqual(done.stderr, "")
        return done.stdout


class Start(Case):
    """Programs start under a tight limit, as in containers and batch systems."""

    def test_true(self) -> None:
        """The smallest program."""
        for mib in (1024, 384, 192):
            with self.subTest(mib=mib):
                self.run_well("/bin/true", address_space=mib * MIB, preload=True)

    def test_shell_and_tools(self) -> None:
        """Some that allocate."""
        for mib in (1024, 384, 192):
            with self.subTest(mib=mib):
                stdout = self.run_well(
                    "/bin/sh", "-c", "seq 20000 | sort -n | tail -1", address_space=mib * MIB, preload=True
                )
                self.assertEqual(stdout, "20000\n")

    def test_modest_program(self) -> None:
        """Forty megabytes of all sizes, and threads."""
        for mib in (1024, 320, 224):
            with self.subTest(mib=mib):
                self.run_well(LIMITS, "modest", address_space=mib * MIB)

    def test_the_programs_own_mappings(self) -> None:
        """What Folio reserves grows no faster than the limit: who has more address space can map more itself."""
        left = [
            int(self.run_well(LIMITS, "own_mappings", address_space=mib * MIB))
            for mib in (200, 220, 260, 300, 400, 600)
        ]
        self.assertEqual(left, sorted(set(left)))
        self.assertGreater(left[-1], 400)


def charged(maps: str) -> int:
    """What counts against RLIMIT_DATA and vm.overcommit_memory=2: private and writable."""
    total = 0
    for line in maps.splitlines():
        if not line:
            continue
        span, rights = line.split()[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if rights[1] == "w" and rights[3] == "p" and "[stack]" not in line:
            total += end - start
    return total


class Data(Case):
    """What is only reserved costs nothing: no limit on data, no charge."""

    PROGRAMS = (
        ("/bin/true",),
        ("/bin/ls", "/"),
        ("/bin/sh", "-c", "seq 20000 | sort -n | tail -1"),
        (sys.executable, "-c", "print(sum(range(100)))"),
    )

    def test_limit_on_data(self) -> None:
        """RLIMIT_DATA, which on glibc these programs do not notice either."""
        for command in self.PROGRAMS:
            for mib in (64, 16):
                with self.subTest(command=command, mib=mib):
                    self.run_well(*command, data=mib * MIB, preload=True)

    def test_charge(self) -> None:
        """At most 14 MiB more than on glibc: small chunks are committed 2 MiB by 2 MiB."""
        script = "print(open('/proc/self/maps').read())"
        for command in (("/bin/cat", "/proc/self/maps"), (sys.executable, "-c", script)):
            with self.subTest(command=command):
                plain, ours = (charged(self.run_well(*command, preload=preload)) for preload in (False, True))
                self.assertLess(ours, plain + 14 * MIB)

    def test_refused_and_lifted(self) -> None:
        """At the limit null, and nothing lost."""
        for size in (100, 3000, 20000, 100000, 3000000, 9000000):
            with self.subTest(size=size):
                self.run_well(LIMITS, "data", str(size))

    def test_turns_of_sizes(self) -> None:
        """What one size has freed at the limit serves the next."""
        self.run_well(LIMITS, "data_turns")


class Locked(Case):
    """mlockall fills what is accessible, and only that."""

    def test_mlockall(self) -> None:
        """What there is, and what comes."""
        for which in (1, 2, 3):  # MCL_CURRENT, MCL_FUTURE
            with self.subTest(which=which):
                self.run_well(LIMITS, "locked", str(which))


class Exhaustion(Case):
    """Address space runs out in the middle."""

    def test_one_size(self) -> None:
        """Until null; then again as much, and more when the limit lifts."""
        for size in (16, 100, 1000, 5000, 30000, 200000, 1000000, 1500000, 3000000, 9000000, 40000000):
            with self.subTest(size=size):
                self.run_well(LIMITS, "exhaust", str(size))

    def test_mixed_sizes(self) -> None:
        """What one kind of object used serves another."""
        self.run_well(LIMITS, "mixed")

    def test_huge_objects_grow_without_a_copy(self) -> None:
        """Where freed objects of a few hundred bytes have what is left of the address space."""
        for hard_mib in (0, 900):
            with self.subTest(hard_mib=hard_mib):
                self.run_well(LIMITS, "grow_huge", str(hard_mib))

    def test_refused_realloc(self) -> None:
        """The old object stays."""
        self.run_well(LIMITS, "refused")

    def test_new_thread(self) -> None:
        """A thread's first malloc."""
        self.run_well(LIMITS, "thread")

    def test_mappings(self) -> None:
        """max_map_count."""
        for case in ("mappings", "mapping_turns", "mapping_holes"):
            with self.subTest(case=case):
                self.run_well(LIMITS, case)

    def test_own_limit(self) -> None:
        """limit_hard, which address space has nothing to do with."""
        self.run_well(LIMITS, "own_limit")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A memory cgroup of either version with that limit, or None where we may make none."""
    for root, limit_file in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        if not root.is_dir():
            continue
        try:
            group = Path(tempfile.mkdtemp(prefix="folio-test-", dir=root))
        except OSError:
            continue
        try:
            (group / limit_file).write_text(str(limit_bytes), encoding="ascii")
            with contextlib.suppress(OSError):
                (group / "memory.swap.max").write_text("0", encoding="ascii")
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


class Container(Case):
    """A cgroup's memory limit is not seen by malloc: the kernel kills. So what is freed must go back in time."""

    def test_bursts_of_many_sizes(self) -> None:
        """Eight bursts of 100 MiB, one after the other, in a container of 192 MiB."""
        with memory_group(192 * MIB) as group:
            if group is None:
                self.skipTest("no memory cgroup can be made here")
            command = f"echo $$ > {group}/cgroup.procs && exec {LIMITS} bursts 100"
            self.run_well("/bin/sh", "-c", command)


if __name__ == "__main__":
    with_paths.main(globals(), "LIMITS", "LIBRARY")
