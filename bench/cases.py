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
PEAK_BY_LIVE = Figure("peak_by_live", "peak memory", "x live")


# What a case counts as. Ranks and means are over programs and applications only: a limit has no allocator in it and
# runs once a round, and what START measures is the loader's work more than the allocator's.
PROGRAM, APPLICATION, LIMIT, START = "program", "application", "limit", "start"


@dataclass(frozen=True)
class Case:
    """`program` of bench/programs with `arguments`; an absolute path is a program of the system."""

    name: str
    program: str
    arguments: list[str]
    figures: list[Figure]
    quick: list[str] = field(default_factory=list)  # further arguments, later ones hold, for --quick
    repeat: int = 1  # runs a round, of which the median counts
    kind: str = PROGRAM

    @property
    def threads(self) -> int | None:
        """As its arguments say; of pairs each is two."""
        given = dict(word.split("=", 1) for word in self.arguments if "=" in word)
        if given.get("pairs", "").isdigit():
            return 2 * int(given["pairs"])
        return int(given["threads"]) if given.get("threads", "").isdigit() else None

    def command_arguments(self, quick: bool) -> list[str]:
        return [*self.arguments, *(self.quick if quick else [])]


def burst(name: str, *arguments: str) -> Case:
    figures = [
        Figure("after_0s_percent", "resident at once", "% of burst"),
        Figure("after_1s_percent", "after 1 s", "% of burst"),
        Figure("after_2s_percent", "after 2 s", "% of burst"),
        Figure("after_5s_percent", "after 5 s", "% of burst"),
        TIME,
    ]
    return Case(name, "burst", list(arguments), figures, ["bytes=128m", "idle=2"])


def survivors(name: str, *arguments: str) -> Case:
    figures = [
        Figure("freed_by_pages", "resident at once", "x live pages"),
        Figure("rested_by_pages", "at rest", "x live pages"),
        Figure("faults_again", "faults when it comes again", ""),
        TIME,
    ]
    return Case(name, "survivors", list(arguments), figures, ["bytes=32m", "rest_ms=0"])


def order(name: str, *arguments: str) -> Case:
    figures = [
        Figure("fresh_ns", "walk, fresh", "ns a node"),
        Figure("walk_ns", "walk afterwards", "ns a node"),
        Figure("pages", "pages of 64 nodes", ""),
        Figure("build_ns", "building it", "ns a node"),
        TIME,
    ]
    return Case(name, "order", list(arguments), figures, ["objects=10000", "turns=2"])


def malloc_test(name: str, *arguments: str) -> Case:
    return Case(name, "malloc_test", list(arguments), [SPEED, PEAK], ["objects=3000000"])


def larson(threads: int) -> Case:
    arguments = ["seconds=2", f"threads={threads}"]
    return Case(f"larson {threads} threads", "larson", arguments, [SPEED, PEAK], ["seconds=1"])


def tight_loop(name: str, *arguments: str, kind: str = PROGRAM) -> Case:
    figures = [Figure("ns_per_pair", "a pair", "ns")]
    return Case(name, "tight_loop", list(arguments), figures, ["pairs=20000000"], kind=kind)


def symmetric_exchange(name: str, *arguments: str) -> Case:
    return Case(name, "symmetric_exchange", list(arguments), [SPEED, PEAK_BY_LIVE], ["ops=2000000"])


def nalloc_test(name: str, *arguments: str) -> Case:
    return Case(name, "nalloc_tests", list(arguments), [SPEED, PEAK], ["ops=2000000"])


def by_live(stage: str, label: str) -> Figure:
    return Figure(f"{stage}_by_live", label, "x live")


def nanoseconds(call: str) -> list[Figure]:
    return [
        Figure(f"{call}_{key}_ns", f"{call} {label}", "us", 1e-3)
        for key, label in [
            ("p99_9", "p99.9"),
            ("p99_99", "p99.99"),
            ("p99_999", "p99.999"),
            ("max_undisturbed", "longest"),
            ("max", "longest*"),
        ]
    ]


CASES = [
    *(
        malloc_test(f"malloc-test {n}+{n}, {name}", f"pairs={n}", f"size={size}", f"objects={objects}")
        for n in (1, 2, 4)
        for size, name, objects in [
            (64, "64 B", 30_000_000),
            (512, "512 B", 10_000_000),
            (1024, "1024 B", 10_000_000),
            (0, "random", 10_000_000),
        ]
    ),
    *(
        malloc_test(f"malloc-test {n}+{n}, {name}", f"pairs={n}", f"size={size}", f"objects={objects}")
        for n in (8, 32)
        for size, name, objects in [(64, "64 B", 30_000_000), (1024, "1024 B", 10_000_000)]
    ),
    malloc_test("malloc-test 4+4, 8 to 48 B", "pairs=4", "size=0", "min=8", "max=48", "objects=30000000"),
    malloc_test("malloc-test 1+1, random, all touched", "pairs=1", "size=0", "objects=10000000", "touch=2"),
    larson(2),
    larson(8),
    larson(16),
    Case(
        "vyukov chain",
        "vyukov_chain",
        [],
        [TIME, Figure("peak_by_live", "peak memory", "x live")],
        ["threads=40", "objects=20000"],
    ),
    Case(
        "random lifetimes 1 thread", "random_lifetimes", ["threads=1", "ops=40000000"], [SPEED, PEAK], ["ops=4000000"]
    ),
    Case(
        "random lifetimes 4 threads",
        "random_lifetimes",
        ["threads=4", "ops=60000000"],
        [SPEED, PEAK],
        ["ops=8000000"],
    ),
    Case(
        "random lifetimes 16 threads, to 8 KB",
        "random_lifetimes",
        ["threads=16", "ops=16000000", "slots=4000", "max=8000"],
        [SPEED, PEAK],
        ["ops=2000000"],
    ),
    Case(
        "random lifetimes 2 threads, to 200 KB",
        "random_lifetimes",
        ["threads=2", "ops=1000000", "slots=300", "max=200000"],
        [SPEED, PEAK],
        ["ops=100000"],
    ),
    Case("false sharing, active", "false_sharing", ["passive=0"], [TIME], ["rounds=400"]),
    Case("false sharing, passive", "false_sharing", ["passive=1"], [TIME], ["rounds=400"]),
    tight_loop("tight loop 64 B"),
    tight_loop("tight loop 64 B, batches", "batch=200"),
    tight_loop("ideal stack", "ideal=1", kind=LIMIT),
    tight_loop("ideal stack, batches", "ideal=1", "batch=200", kind=LIMIT),
    Case("lever-boreham 1 thread", "lever_boreham", ["threads=1"], [SPEED], ["pairs=10000000"]),
    *(
        Case(
            f"lever-boreham {threads} threads",
            "lever_boreham",
            [f"threads={threads}"],
            [SPEED, Figure("slowest_by_fastest", "slowest thread", "x fastest")],
            ["pairs=10000000"],
        )
        for threads in (2, 5)
    ),
    symmetric_exchange("symmetric exchange 2 threads, 64 B", "threads=2", "size=64"),
    symmetric_exchange("symmetric exchange 2 threads, random", "threads=2"),
    symmetric_exchange("symmetric exchange 8 threads, random", "threads=8", "ops=15000000"),
    *(nalloc_test(f"nalloc 1, private pools, {n}", "test=1", f"threads={n}") for n in (1, 2, 8)),
    *(nalloc_test(f"nalloc 2, global pool, {n}", "test=2", f"threads={n}") for n in (2, 8)),
    *(nalloc_test(f"nalloc 3, one producer, {n}", "test=3", f"threads={n}") for n in (2, 8)),
    Case(
        "warm-up",
        "warm_up",
        [],
        [
            Figure("warm_after_seconds", "to 95 % of full speed", "ms", 1e3),
            Figure("full_ops_per_second", "full speed", "million/s", 1e-6, more_is_better=True),
        ],
        ["objects=4000000"],
    ),
    Case("factor", "factor", [], [TIME, PEAK], ["p=1000000000039", "q=2000000000003"]),
    Case("group cycles 1 thread", "group_cycles", ["threads=1"], [SPEED, PEAK_BY_LIVE], ["ops=4000000"]),
    Case("group cycles 4 threads", "group_cycles", ["threads=4"], [SPEED, PEAK_BY_LIVE], ["ops=4000000"]),
    Case("large buffers", "large_buffers", [], [TIME, PEAK_BY_LIVE], ["ops=500"]),
    Case("large buffers 4 threads", "large_buffers", ["threads=4"], [TIME, PEAK_BY_LIVE], ["ops=500"]),
    Case("realloc growth", "realloc_growth", [], [TIME, PEAK_BY_LIVE], ["elements=4000000", "vectors=64"]),
    Case(
        "calloc arrays",
        "calloc_arrays",
        [],
        [TIME, Figure("peak_by_touched", "peak memory", "x touched")],
        ["ops=60"],
    ),
    Case(
        "fragmentation",
        "fragmentation",
        [],
        [
            by_live("full", "full"),
            by_live("thinned", "nine in ten freed"),
            by_live("rested", "1 s later"),
            by_live("refilled", "other sizes"),
            Figure("emptied_by_full", "empty for 1 s", "x full"),
            TIME,
        ],
        ["bytes=32m", "rest=0"],
    ),
    *(
        survivors(f"survivors {size} B, one in {every}, {which}", f"size={size}", f"every={every}", *arguments)
        for size, every in [(200, 64), (1000, 64), (1000, 4), (8000, 4)]
        for which, arguments in [("malloc_trim", ["trim=1", "rest_ms=0"]), ("4 threads", ["threads=4"])]
    ),
    *(
        order(f"order {name}, {size} B", f"objects={objects}", f"size={size}")
        for name, objects in [("10,000", 10**4), ("100,000", 10**5), ("1,000,000", 10**6)]
        for size in (16, 64, 400)
    ),
    order("order after a long life, 4 threads", "objects=1000000", "replaced=10000000", "threads=4"),
    *(
        Case(
            f"key-value store {name}",
            "key_value",
            ["bytes=2g", *arguments],
            [Figure("ns_per_operation", "an operation", "ns"), Figure("fill_seconds", "filling it", "s"), PEAK, TIME],
            ["bytes=64m", "operations=1000000"],
        )
        for name, arguments in [("2 GiB", []), ("2 GiB, half writes, 2 threads", ["writes=2", "threads=2"])]
    ),
    Case(
        "thread churn",
        "thread_churn",
        [],
        [Figure("us_per_thread", "a thread", "us"), PEAK],
        ["threads=1000"],
    ),
    burst("burst 1 thread", "threads=1"),
    burst("burst 1 thread, random order", "threads=1", "random=1"),
    burst("burst 4 threads", "threads=4"),
    Case(
        "bursts and idleness",
        "burst_idle",
        [],
        [
            Figure("burst_percent", "resident at the burst", "% of burst"),
            Figure("after_500ms_percent", "after 0.5 s", "% of burst"),
            Figure("after_1000ms_percent", "after 1 s", "% of burst"),
            Figure("after_2000ms_percent", "after 2 s", "% of burst"),
            Figure("after_5000ms_percent", "after 5 s", "% of burst"),
            TIME,
        ],
        ["bytes=32m", "bursts=2", "idle_ms=500"],
    ),
    Case(
        "idle threads",
        "idle_threads",
        [],
        [
            Figure("bytes_per_thread_at_once", "at once, each", "KiB", 2.0**-10),
            Figure("bytes_per_thread_after_idle", "after 5 s, each", "KiB", 2.0**-10),
        ],
        ["threads=200", "idle=1"],
    ),
    Case("pauses", "pauses", [], [*nanoseconds("malloc"), *nanoseconds("free"), SPEED], ["seconds=1"]),
    Case(
        "super server",
        "super_server",
        ["ops=16000000"],
        [
            SPEED,
            PEAK,
            Figure("slowest_undisturbed_ns", "longest call up to 1 MiB", "us", 1e-3),
            Figure("malloc_and_touch_max_undisturbed_ns", "longest malloc and touch up to 1 MiB", "us", 1e-3),
            Figure("slowest_ns", "longest* call up to 1 MiB", "us", 1e-3),
            Figure("malloc_p99_999_ns", "malloc p99.999", "us", 1e-3),
            Figure("free_p99_999_ns", "free p99.999", "us", 1e-3),
        ],
        ["ops=2000000"],
    ),
    Case(
        "startup",
        "/bin/true",
        [],
        [Figure("wall", "time", "ms", 1e3), Figure("max_rss_kib", "resident", "KiB")],
        repeat=60,
        kind=START,
    ),
]


def select(only: list[str]) -> list[Case]:
    """The cases whose name or program contains one of the words, spaces and underscores being the same."""

    def plain(text: str) -> str:
        return text.lower().replace("_", " ").replace("-", " ")

    if not only:
        return CASES
    return [c for c in CASES if any(plain(word) in plain(c.name) or plain(word) in plain(c.program) for word in only)]
