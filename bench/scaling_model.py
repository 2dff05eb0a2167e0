"""A small model of what many cores make of an allocator's counted atomic operations. docs/scaling.md describes it.

A closed network of queues: each core works for itself for `work` nanoseconds an operation (a malloc and its free), and
visits lines that others change too. A line serves one core at a time, and a visit costs one pass of it from core to
core. So there are two bounds,

    operations in a second  <=  cores / (work + demands)        demand of a line = visits an operation x cost of a pass
    operations in a second  <=  1 / (greatest demand)

and mean value analysis (exact for exponential times) gives the curve below them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Machine:
    """Nanoseconds of a read-modify-write for which the line comes from another core."""

    name: str
    pass_ns: float


@dataclass(frozen=True)
class Contention:
    """A column of figure 5 of the SuperMalloc paper [000], in nanoseconds for each increment under a lock."""

    name: str
    cores: int
    everybody: float  # "Global": one lock and counter for all threads
    per_cpu: float
    per_cpu_known: float  # without sched_getcpu
    per_thread: float  # without a lock

    def machine(self, *, alone: bool = False) -> Machine:
        """If the figure is what one thread waits while all cores take turns, a turn is the share of one core of it.

        The paper does not say; `alone` reads it as the time between two increments of all threads together, which is
        the worst that it can mean.
        """
        return Machine(self.name, self.everybody if alone else self.everybody / self.cores)


FIGURE_5 = [
    Contention("i7-4600U", 2, 149.0, 29.6, 17.2, 3.3),
    Contention("i7-4770", 4, 120.6, 18.0, 10.6, 2.1),
    Contention("E5-2665", 16, 485.5, 34.1, 13.3, 3.1),
]


@dataclass(frozen=True)
class Load:
    """What one operation does, on one machine: nanoseconds for itself, and demands on lines that all share."""

    work: float
    demands: tuple[float, ...]

    @property
    def alone(self) -> float:
        return self.work + sum(self.demands)


def bound(load: Load, cores: int) -> float:
    """Operations in a nanosecond that cannot be exceeded."""
    return min(cores / load.alone, 1 / max(load.demands, default=1e-9))


def throughput(load: Load, cores: int) -> float:
    """Operations in a nanosecond, by mean value analysis."""
    demands = np.array(load.demands)
    waiting = np.zeros(len(demands))
    rate = 0.0
    for n in range(1, cores + 1):
        times = demands * (1 + waiting)
        rate = n / (load.work + float(times.sum()))
        waiting = rate * times
    return rate


def saturation(load: Load) -> float:
    """The number of cores at which the two bounds meet: more add little."""
    return load.alone / max(load.demands, default=1e-9)


def hashed_caches(contention: Contention) -> float:
    """What a visit costs where P threads choose among P caches by hash: P/e of them meet nobody [000, section 8]."""
    return contention.everybody / math.e + contention.per_cpu * (1 - 1 / math.e)


def one_lock(contention: Contention, *, alone: bool) -> float:
    """Malloc-test in an allocator with one lock: an operation takes it twice. Operations in a nanosecond, all cores."""
    return throughput(Load(2 * contention.per_thread, (2 * contention.machine(alone=alone).pass_ns,)), contention.cores)
