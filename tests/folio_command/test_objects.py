"""What the commands that follow pointers are made of, without a process, or on a quiet one."""

import subprocess

import numpy as np
import pytest
from conftest import HEAP, heap, running
from folio import roots
from folio.elf_symbols import DataFiles, demangled
from folio.leaks import heads_of
from folio.objects import Objects
from folio.pages import Ranges
from folio.process import Mapping, Process
from folio.reach import FEW, Graph, Reach
from folio.reader import Reader
from folio.roots import Thread
from folio.scan import STEP, Block, Scanner, Step, Touched, steps_of_ranges
from folio.source import PAGE
from folio.survey import view


def graph(count, *pointers):
    sources, targets = (np.array(each, dtype=np.int32) for each in zip(*pointers, strict=True))
    return Graph(count, sources, targets)


def marks(count, *marked):
    found = np.zeros(count, dtype=bool)
    found[list(marked)] = True
    return found


def test_terabytes_that_are_only_reserved():
    """As shadows and the heaps of other runtimes have them: what is looked at is bounded by what is touched."""
    start = np.array([1 << 30, 3 << 40, (3 << 40) + STEP])
    touched, reads = Touched(Ranges(start, start + PAGE, np.zeros(3, dtype=np.int64)), 0), []

    class Counting(Touched):
        def within(self, *place):
            reads.append(place)
            return super().within(*place)

    touched.__class__ = Counting
    steps = list(steps_of_ranges([(1 << 30, 1 << 46), (1 << 47, 1 << 40)], touched, False))
    assert np.concatenate([step.starts for step in steps]).tolist() == start.tolist()
    assert len(reads) < 20


def test_words_with_something_beside_the_address():
    """All of them, and nothing else, as a plain search has it; also only those into chunks that are wanted."""
    with heap("known") as (pid, _):
        seen = view(Reader(pid))
    objects, random = seen.objects, np.random.default_rng(1)
    some = random.integers(0, objects.count, 2000)
    bases = objects.bases(some).astype(np.uint64)
    beside = random.integers(0, 1 << 16, 2000).astype(np.uint64)
    far = random.integers(0, 1 << 63, 2000).astype(np.uint64)
    near = np.uint64(objects.low) + random.integers(0, objects.span, 2000).astype(np.uint64)
    sixteen = np.uint64(16)
    words = np.concatenate(
        [bases, bases | beside << np.uint64(48), bases << sixteen | beside, bases + beside, far, near, near << sixteen]
    )
    random.shuffle(words)
    place = dict(zip(objects.bases(np.arange(objects.count)).tolist(), range(objects.count), strict=True))
    low = (1 << 48) - 1
    plain = [
        place[each]
        for word in words.tolist()
        for each, other in ((word & low, word >> 48), (word >> 16, word))
        if other and each in place
    ]
    assert len(plain) > 3000
    block = Block(Step(np.array([8]), np.array([8 * len(words)]), False), words)
    for wanted in (None, objects.chunks_with(some[:1])):
        scanner = Scanner(seen.reader.process, objects, tags=True, wanted=wanted)
        scratch, marked = np.empty(len(words), dtype=np.uint64), np.empty(len(words), dtype=bool)
        at, targets = scanner._pointers(words, scratch, marked)
        found = scanner._tagged(block, scratch, marked)
        if wanted is None:
            assert sorted(found.tolist()) == sorted(plain)
            assert set(some.tolist()) <= set(targets.tolist())
        else:
            chosen = {n for n in range(objects.count) if wanted[objects.places(objects.bases(np.array([n])))[0]]}
            assert 0 < len(chosen) < objects.count
            assert sorted(found.tolist()) == sorted(n for n in plain if n in chosen)
            assert (objects.numbers(words[at]) == targets).all()
            assert set(targets.tolist()) <= chosen | {-1}


class TestGraph:
    def test_follows_cycles_and_chains(self):
        reached = marks(6, 0)
        graph(6, (0, 1), (1, 2), (2, 0), (4, 5)).follow(np.array([0]), reached)
        assert reached.tolist() == [True, True, True, False, False, False]

    def test_a_chain_of_a_million(self):
        count = 1_000_000
        order = np.random.default_rng(1).permutation(count).astype(np.int32)
        reached, parents = marks(count, order[0]), np.full(count, -1, dtype=np.int64)
        Graph(count, order[:-1], order[1:]).follow(order[:1].astype(np.int64), reached, parents)
        assert reached.all()
        assert (parents[order[1:]] == order[:-1]).all()

    @pytest.mark.parametrize("fan", [2, FEW // 2, 10 * FEW])
    def test_trees_of_any_width(self, fan):
        count = 50_000
        child = np.arange(1, count, dtype=np.int32)
        parent = (child - 1) // fan
        reached, parents = marks(count, 0), np.full(count, -1, dtype=np.int64)
        Graph(count, parent, child).follow(np.array([0]), reached, parents)
        assert reached.all()
        assert (parents[1:] == parent).all()

    def test_as_a_plain_search_does(self):
        random = np.random.default_rng(2)
        for count in (10, 100, 3000):
            sources, targets = random.integers(0, count, (2, count * 5 // 4)).astype(np.int32)
            made = Graph(count, sources, targets)
            pointers: dict[int, list[int]] = {}
            for a, b in zip(sources.tolist(), targets.tolist(), strict=True):
                pointers.setdefault(a, []).append(b)
            wanted, stack = {0}, [0]
            while stack:
                for to in pointers.get(stack.pop(), []):
                    if to not in wanted:
                        wanted.add(to)
                        stack.append(to)
            reached = marks(count, 0)
            made.follow(np.array([0]), reached)
            assert set(np.flatnonzero(reached).tolist()) == wanted


class TestReach:
    def test_memory_in_any_order(self, monkeypatch):
        """Pointers of objects that turn out to be reached only later are followed all the same."""
        monkeypatch.setattr("folio.reach.KEPT_MOST", 50)
        random = np.random.default_rng(3)
        count = 1000
        order = random.permutation(count)
        reach = Reach(count + 10, parents=True)
        reach.kept_most = 50
        reach.from_roots(np.array([64]), order[:1])
        for at in random.permutation(count - 1).reshape(-1, 27):
            reach.from_objects(order[at], order[at + 1])
        reach.flood()
        assert reach.reached[:count].all()
        assert not reach.reached[count:].any()
        assert (reach.parents[order[1:]] == order[:-1]).all()
        assert reach.parents[order[0]] == -2

    def test_what_stays_is_what_leaks_point_to(self):
        reach = Reach(6)
        reach.from_objects(np.array([1, 2, 3, 4]), np.array([2, 3, 2, 5]))
        reach.from_roots(np.array([0]), np.array([4]))
        reach.flood()
        assert np.flatnonzero(~reach.reached).tolist() == [0, 1, 2, 3]
        assert sorted(zip(*(each.tolist() for each in reach.edges()), strict=True)) == [(1, 2), (2, 3), (3, 2)]


class TestHeads:
    @pytest.mark.parametrize(
        ("count", "pointers", "heads"),
        [
            (3, [(0, 1), (1, 2)], {0}),
            (3, [(0, 0), (1, 2)], {0, 1}),
            (4, [(0, 1), (1, 0), (1, 2), (2, 3)], {0}),
            (4, [(0, 1), (2, 3), (3, 2), (3, 0)], {2}),  # what lies below a cycle is no head, wherever it comes
            (5, [(0, 1), (1, 0), (2, 3), (3, 2), (4, 0)], {4, 2}),
        ],
    )
    def test_of(self, count, pointers, heads):
        assert set(heads_of(graph(count, *pointers), np.ones(count, dtype=bool)).tolist()) == heads

    def test_among_the_chosen(self):
        found = heads_of(graph(3, (0, 1), (1, 2)), marks(3, 1, 2))
        assert found.tolist() == [1]


class TestObjects:
    def test_each_object_by_its_first_and_last_byte(self):
        with heap("known") as (pid, reported):
            seen = view(Reader(pid))
            objects = seen.objects
            numbers = np.arange(objects.count)
            bases, sizes = objects.bases(numbers), objects.sizes(numbers)
            for offset in (0, sizes // 2, sizes - 1):
                assert (objects.numbers((bases + offset).astype(np.uint64)) == numbers).all()
            assert objects.near((bases + sizes - 1).astype(np.uint64)).all()
            for group in reported["groups"]:
                assert objects.number(group["first"]) >= 0
                assert objects.number(group["a_freed"]) == -1 if group["freed"] else True
            assert objects.number(reported["huge"]) >= 0
            assert objects.number(reported["free_huge"]) == -1
            assert objects.number(0) == objects.number((1 << 64) - 8) == objects.number(reported["in_data"]) == -1
            for row in range(len(objects.chunk)):
                some, at = objects.in_row(row)
                assert (bases[some] == at).all()
                assert (objects.bins(some) == objects.bin[row]).all()

    def test_of_an_empty_heap(self):
        with heap("known") as (pid, _):
            heap_view = Reader(pid).view()
        heap_view.bins, heap_view.fields = {}, []
        heap_view.huge.live[:] = False
        objects = Objects(heap_view)
        assert objects.count == 0
        assert not objects.near(np.array([0, 1 << 40], dtype=np.uint64)).any()


def mapping(start, end, flags="rw-p", name=""):
    return Mapping(start, end, flags, 0, 0, name)


class TestRoots:
    def test_without(self):
        left = roots.without([(0, 10), (20, 30), (5, 50)], [(2, 4), (3, 6), (22, 22), (9, 25)])
        assert left == [(0, 2), (6, 9), (25, 30), (6, 9), (25, 50)]

    def test_what_is_below_the_stack_pointer(self):
        limit, page = 1 << 23, 4096
        guard = mapping(0x10000, 0x10000 + page, "---p")
        stack = mapping(guard.end, guard.start + limit)
        pointer = stack.end - 1000
        dead = (stack.start, pointer - 128)
        assert roots.dead_parts([guard, stack], [Thread(1, pointer)], limit) == [dead]
        assert roots.dead_parts([guard, stack], [Thread(1, 0)], limit) == []
        assert roots.dead_parts([guard, stack], [Thread(1, pointer)], limit * 2) == []  # not the libc's
        assert roots.dead_parts([stack], [Thread(1, pointer)], limit) == []
        two = [Thread(1, pointer), Thread(2, pointer - 4096)]
        assert roots.dead_parts([guard, stack], two, limit) == []
        of_housekeeper = mapping(guard.end, guard.end + roots.HOUSEKEEPERS_STACK)
        sleeping = of_housekeeper.end - 1000
        dead = (of_housekeeper.start, sleeping - 128)
        assert roots.dead_parts([guard, of_housekeeper], [Thread(1, sleeping)], limit) == [dead]
        main = mapping(0x7000, 0x9000, name="[stack]")
        assert roots.dead_parts([main], [Thread(1, 0x8800)], limit) == [(0x7000, 0x8780)]
        assert roots.dead_parts([main], [Thread(1, 0x7010)], limit) == [(0x7000, 0x7000)]


class TestSymbols:
    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("main", "main"),
            ("_ZTVN6shapes3BoxIiEE", "vtable for shapes::Box<int>"),
            ("_ZN12_GLOBAL__N_14keptE", "(anonymous namespace)::kept"),
            ("_Zwrong", "_Zwrong"),
        ],
    )
    def test_demangled(self, name, shown):
        assert demangled(name) == shown

    def test_variables_as_nm_says(self):
        out = subprocess.run(["nm", HEAP], capture_output=True, text=True, check=True).stdout
        data = [line.split() for line in out.splitlines() if line.split()[-2:-1] in (["b"], ["d"], ["B"], ["D"])]
        with running([str(HEAP), "known"]) as process:
            process.stdout.readline()
            mappings = Process(process.pid).mappings()
            modules = DataFiles(Process(process.pid), mappings)
            base = next(m.start for m in mappings if m.path == str(HEAP))
            named = [(int(at, 16) + base, name) for at, _, name in data if "slots" in name or "operations" in name]
            assert len(named) == 2
            for address, name in named:
                assert modules.variable(address) == demangled(name)
                assert modules.variable(address + 4) == demangled(name)
            assert modules.variable(8) == ""
            assert modules.variable(base) == f"data of {HEAP.name}"
