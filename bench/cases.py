"""What bench/run.py measures: each case is a program with parameters and the figures that are read from its result."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """A field of a program's result line or of the kernel's accounting, and how the table shows it."""

    key: str
    label: str
    unit: str
    scale: float = 1.0
    more_is_better: bool = False


SPEED = Figure("ops_per_second", "speed", "million/s", 1e-6, more_is_better=True)
TIME = Figure("seconds", "time", "s")
PEAK = Figure("rss_peak_bytes", "peak memory", "MiB", 2.0**-20)


@dataclass(frozen=True)
class Case:
    """`program` of bench/programs with `arguments`; an absolute path is a program of the system."""

    name: str
    program: str
    arguments: list[str]
    figures: list[Figure]
    quick: list[str] = field(default_factory=list)  # further arguments, later ones hold, for --quick
    repeat: int = 1  # runs a round, of which the median counts

    def command_arguments(self, quick: bool) -> list[str]:
        return [*self.arguments, *(self.quick if quick else [])]


def burst(name: str, *arguments: str) -> Case:
    figures = [
        Figure("after_0s_percent", "resident at once", "% of burst"),
        Figure("after_1s_percent", "after 1 s", "% of burst"),
        Figure("after_5s_percent", "after 5 s", "% of burst"),
        TIME,
    ]
    return Case(name, "burst", list(arguments), figures, ["bytes=128m"])


def malloc_test(name: str, *arguments: str) -> Case:
    return Case(name, "malloc_test", list(arguments), [SPEED, PEAK], ["objects=3000000"])


def larson(threads: int) -> Case:
    arguments = ["seconds=2", f"threads={threads}"]
    return Case(f"larson {threads} threads", "larson", arguments, [SPEED, PEAK], ["seconds=1"])


def nanoseconds(call: str) -> list[Figure]:
    return [
        Figure(f"{call}_{key}_ns", f"{call} {label}", "us", 1e-3)
        for key, label in [
            ("p99_9", "p99.9"),
            ("p99_99", "p99.99"),
            ("max_undisturbed", "longest"),
            ("max", "longest*"),
        ]
    ]


CASES = [
    malloc_test("malloc-test 1+1, 64 B", "pairs=1", "size=64"),
    malloc_test("malloc-test 1+1, random", "pairs=1", "size=0", "objects=10000000"),
    malloc_test("malloc-test 4+4, 64 B", "pairs=4", "size=64"),
    malloc_test("malloc-test 4+4, random", "pairs=4", "size=0", "objects=10000000"),
    larson(2),
    larson(16),
    Case(
        "vyukov chain",
        "vyukov_chain",
        [],
        [TIME, Figure("peak_by_live", "peak memory", "x live")],
        ["threads=40", "objects=20000"],
    ),
    Case("random lifetimes 1 thread", "random_lifetimes", ["ops=40000000"], [SPEED, PEAK], ["ops=4000000"]),
    Case(
        "random lifetimes 4 threads",
        "random_lifetimes",
        ["threads=4", "ops=60000000"],
        [SPEED, PEAK],
        ["ops=8000000"],
    ),
    Case("tight loop 64 B", "tight_loop", [], [Figure("ns_per_pair", "a pair", "ns")], ["pairs=20000000"]),
    Case(
        "tight loop 64 B, batches",
        "tight_loop",
        ["batch=200"],
        [Figure("ns_per_pair", "a pair", "ns")],
        ["pairs=20000000"],
    ),
    burst("burst 1 thread", "threads=1"),
    burst("burst 1 thread, random order", "threads=1", "random=1"),
    burst("burst 4 threads", "threads=4"),
    Case(
        "idle threads",
        "idle_threads",
        [],
        [
            Figure("bytes_per_thread_at_once", "at once, each", "KiB", 2.0**-10),
            Figure("bytes_per_thread_after_idle", "after 5 s, each", "KiB", 2.0**-10),
        ],
        ["threads=200"],
    ),
    Case("pauses", "pauses", [], [*nanoseconds("malloc"), *nanoseconds("free"), SPEED], ["seconds=1"]),
    Case(
        "super server",
        "super_server",
        ["ops=16000000"],
        [
            SPEED,
            PEAK,
            Figure("malloc_slowest_ns", "slowest malloc", "us", 1e-3),
            Figure("free_slowest_ns", "slowest free", "us", 1e-3),
        ],
        ["ops=2000000"],
    ),
    Case(
        "startup",
        "/bin/true",
        [],
        [Figure("wall", "time", "ms", 1e3), Figure("max_rss_kib", "resident", "KiB")],
        repeat=60,
    ),
]


def select(only: list[str]) -> list[Case]:
    """The cases whose name or program contains one of the words, spaces and underscores being the same."""

    def plain(text: str) -> str:
        return text.lower().replace("_", " ").replace("-", " ")

    if not only:
        return CASES
    return [c for c in CASES if any(plain(word) in plain(c.name) or plain(word) in plain(c.program) for word in only)]
