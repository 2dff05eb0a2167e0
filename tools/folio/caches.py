"""What each cache holds: of which thread, of which CPU, the depot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from folio.heap import Heap
from folio.parts import Parts


@dataclass(frozen=True)
class Held:
    """`bytes` of free objects, small and large ones, whether their pages are resident or not."""

    place: str  # thread, cpu or depot
    number: int  # of the thread, as the reader's ps shows it, or of the CPU's cache
    name: str  # of the thread
    bytes: int


class ThreadNames:
    """Of one process. What a thread calls itself may be another number in a container than outside of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[int, tuple[int, str]] = {}

    def of(self, number: int) -> tuple[int, str]:
        """By the thread's own number: the reader's one, and its name; its own and none where it has ended."""
        if number not in self.known:
            self.known = dict(self._read())
        return self.known.get(number, (number, ""))

    def _read(self) -> list[tuple[int, tuple[int, str]]]:
        found = []
        for task in (self.root / "task").glob("*"):
            try:
                lines = (line.partition(":") for line in (task / "status").read_text(errors="replace").splitlines())
            except OSError:
                continue
            reported = {key: value.strip() for key, _, value in lines}
            inside = int(reported.get("NSpid", task.name).split()[-1])
            found.append((inside, (int(task.name), reported.get("Name", ""))))
        return found


def caches_of(heap: Heap, names: ThreadNames) -> list[Held]:
    """All that hold something, the largest first."""
    threads, cpus = (dict(heap.cached_by_owner.get(place, {})) for place in ("thread", "cpu"))
    for held, large in ((threads, heap.large_in_threads()), (cpus, heap.large_in_cpus())):
        for owner, size in large.items():
            held[owner] = held.get(owner, 0) + size
    rows = [Held("thread", *names.of(heap.thread_number(i)), held) for i, held in threads.items()]
    rows += [Held("cpu", cpu, "", held) for cpu, held in cpus.items()]
    rows.append(Held("depot", 0, "", sum(heap.cached_by_owner.get("depot", {}).values())))
    return sorted((row for row in rows if row.bytes), key=lambda row: -row.bytes)


def resident_of(parts: Parts) -> int:
    """Of all of these, what is resident: the parts of doctor."""
    values = parts.values()
    return values["cached_threads"] + values["cached_cpus"] + values["cached_depot"]
