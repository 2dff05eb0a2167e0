"""Which objects can be reached from the roots through other objects.

Memory is read once, in address order, so most objects are read before it is known whether they are reached. What a
reached object points to is reached at once; pointers of the others are kept, as long as their target is not reached
either, and followed at the end.
"""

from __future__ import annotations

import numpy as np

from folio.scan import Found

KEPT_MOST = 1 << 26  # pointers, of 8 bytes, before they are followed and those sorted out that are settled
FEW = 256  # objects at once: with fewer, plain Python is faster than numpy
MANY = 2048  # pointers of one object: numpy is faster

NOT_REACHED = np.iinfo(np.int64).min


class Reach:
    """`reached`: those that count as reached from the beginning (default: none)."""

    def __init__(self, count: int, *, reached: np.ndarray | None = None, parents: bool = False) -> None:
        self.count = count
        self.reached = np.zeros(count, dtype=bool) if reached is None else reached
        # Who led to an object: an object, -2 - i for root i, -1 for one that counted from the beginning.
        self.parents = np.full(count, NOT_REACHED, dtype=np.int64) if parents else None
        self.roots: list[np.ndarray] = []  # addresses of root words, if parents are wanted
        self.root_count = 0
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self.kept_count = 0
        self.kept_most = KEPT_MOST

    # ---- What is found ----

    def from_roots(self, addresses: np.ndarray, targets: np.ndarray) -> None:
        fresh = ~self.reached[targets]
        targets = targets[fresh]
        self.reached[targets] = True
        if self.parents is not None:
            self.parents[targets] = -2 - (self.root_count + np.arange(len(targets)))
            self.roots.append(addresses[fresh])
            self.root_count += len(targets)

    def from_objects(self, sources: np.ndarray, targets: np.ndarray) -> None:
        fresh = ~self.reached[targets]
        sources, targets = sources[fresh], targets[fresh]
        follow = self.reached[sources]
        self.mark(sources[follow], targets[follow])
        follow |= self.reached[targets]
        if follow.all():
            return
        self.kept.append((sources[~follow].astype(np.int32), targets[~follow].astype(np.int32)))
        self.kept_count += len(self.kept[-1][0])
        if self.kept_count > self.kept_most:
            self.flood()
            self.kept_most = max(KEPT_MOST, 2 * self.kept_count)

    def add(self, found: Found) -> None:
        if found.step.heap:
            self.from_objects(found.sources, found.targets)
        else:
            self.from_roots(found.addresses, found.targets)

    def mark(self, sources: np.ndarray, targets: np.ndarray) -> None:
        self.reached[targets] = True
        if self.parents is not None:
            self.parents[targets] = sources

    def missing(self) -> int:
        """How many are not reached."""
        return int((~self.reached).sum())

    # ---- Following ----

    def flood(self) -> None:
        """Follows the pointers that were kept, and keeps those between objects that are still not reached."""
        sources, targets = self.edges()
        graph = Graph(self.count, sources, targets)
        start = np.zeros(self.count, dtype=bool)
        start[sources] = True
        graph.follow(np.flatnonzero(start & self.reached), self.reached, self.parents)
        left = ~self.reached[sources]
        self.kept = [(sources[left], targets[left])]
        self.kept_count = int(left.sum())

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        empty = np.zeros(0, dtype=np.int32)
        kept = self.kept or [(empty, empty)]
        return np.concatenate([a for a, _ in kept]), np.concatenate([b for _, b in kept])


class Graph:
    """Pointers between objects, by their source."""

    def __init__(self, count: int, sources: np.ndarray, targets: np.ndarray) -> None:
        if len(sources) and (np.diff(sources) < 0).any():
            order = np.argsort(sources, kind="stable")
            sources, targets = sources[order], targets[order]
        self.first = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(sources, minlength=count), out=self.first[1:])
        self.targets = np.ascontiguousarray(targets)

    def follow(self, front: np.ndarray, reached: np.ndarray, parents: np.ndarray | None = None) -> None:
        """Marks all that can be reached from `front`, whose own marks are set. Chains may be as long as they like."""
        stamp = np.empty(len(reached), dtype=np.int32)
        while len(front):
            degree = self.first[front + 1] - self.first[front]
            if len(front) <= FEW and int(degree.max()) <= MANY:
                front = np.array(self._slowly(front.tolist(), reached, parents), dtype=np.int64)
                continue
            total = int(degree.sum())
            sources = np.repeat(front, degree)
            place = np.repeat(self.first[front] - np.cumsum(degree) + degree, degree) + np.arange(total)
            targets = self.targets[place]
            fresh = ~reached[targets]
            sources, targets = sources[fresh], targets[fresh]
            reached[targets] = True
            if parents is not None:
                parents[targets] = sources
            stamp[targets] = np.arange(len(targets))
            front = targets[stamp[targets] == np.arange(len(targets))].astype(np.int64)

    def _slowly(self, front: list[int], reached: np.ndarray, parents: np.ndarray | None) -> list[int]:
        """Level by level, until one has many objects or none."""
        first, targets, marks = memoryview(self.first), memoryview(self.targets), memoryview(reached)
        above = memoryview(parents) if parents is not None else None
        while front and len(front) <= FEW:
            following: list[int] = []
            for n, at in enumerate(front):
                start, end = first[at], first[at + 1]
                if end - start > MANY:
                    return front[n:] + following
                for i in range(start, end):
                    to = targets[i]
                    if not marks[to]:
                        marks[to] = True
                        if above is not None:
                            above[to] = at
                        following.append(to)
            front = following
        return front
