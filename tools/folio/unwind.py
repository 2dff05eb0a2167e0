"""Unwinds many raw stacks at once.

All stacks go up a frame together: what each place in the code asks for is looked up once, and done for all stacks that
are there in a few operations on arrays. The few rules that are expressions are evaluated stack by stack. Where a place
has no unwind table, the frame pointer is followed if what it leads to can be a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from folio.cfi import BROKEN, Row, evaluate
from folio.frame_entries import AT, EXPRESSION, REGISTER, SAME, UNDEFINED, VALUE, VALUE_EXPRESSION
from folio.modules import MadeCode, Module, Modules

DEPTH_MOST = 1024
ALL = slice(None)
STACK_MOST = 1 << 26  # what lies further away is no frame of the same stack
CUT, UNKNOWN, WHOLE = "[stack cut]", "[unknown caller]", ""
ADDRESS_MASK = (1 << 48) - 1  # aarch64: signed return addresses have more


@dataclass(frozen=True)
class Place:
    """A place in code: of a module by its own address, or of code made at run time by a name."""

    module: Module | None
    address: int
    name: str = ""


NOWHERE, BY_FRAME_POINTER, END, COMPLEX, SIMPLE = range(5)


Numbers = tuple[tuple[int, int], list[int], list[int]]  # see Rules


class Rules:
    """What is known of the places met so far, as arrays that grow. Rule 0: no code is there."""

    def __init__(self, registers: int) -> None:
        self.count = 0
        self.rows: list[Row | None] = []
        self.kind = np.zeros(1024, np.int8)
        self.place = np.zeros(1024, np.int64)
        self.signal = np.zeros(1024, bool)
        # Of simple rows: the CFA's register and offset, and for each register kind and argument.
        self.base = np.zeros((1024, 2), np.int64)
        self.kinds = np.zeros((1024, registers), np.int8)
        self.arguments = np.zeros((1024, registers), np.int64)
        self.add(NOWHERE, None, -1, ((0, 0), [0] * registers, [0] * registers))

    def add(self, kind: int, row: Row | None, place: int, numbers: Numbers) -> int:
        at = self.count
        if at == len(self.kind):
            for name in ("kind", "place", "signal", "base", "kinds", "arguments"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.rows.append(row)
        self.kind[at], self.place[at] = kind, place
        self.base[at], self.kinds[at], self.arguments[at] = numbers
        self.signal[at] = row is not None and row.signal
        self.count += 1
        return at


@dataclass
class Unwound:
    """The stacks of some samples: places, the innermost first, and how each ended."""

    frames: list[tuple[int, ...]]
    ends: list[str]


class Unwinder:
    def __init__(self, modules: Modules, made: MadeCode, stack_most: int) -> None:
        self.modules, self.made, self.arch = modules, made, modules.arch
        self.stack_most = stack_most
        self.count = len(self.arch.registers)
        self.places: list[Place] = []
        self.numbers: dict[tuple[Module | None, int, str], int] = {}
        self.at_module: Callable[[Module], object] = (
            lambda _: None
        )  # called with each module of a place, again and again
        self.without_table: dict[str, int] = {}  # stacks that ended in this module for want of a table
        self._forget()

    def _forget(self) -> None:
        self.changes = self.modules.changes
        self.rules = Rules(self.count)
        self.rule_of: dict[int, int] = {}
        self.numbers_of: dict[int, Numbers] = {}  # by the identity of the row, which the rules keep

    # ---- What is known of a place ----

    def _number(self, module: Module | None, address: int, name: str) -> int:
        key = (module, address, name)
        if key not in self.numbers:
            self.numbers[key] = len(self.places)
            self.places.append(Place(module, address, name))
        return self.numbers[key]

    def _numbers(self, row: Row | None) -> Numbers:
        """A table has each row once."""
        if id(row) not in self.numbers_of:
            self.numbers_of[id(row)] = self._make_numbers(row)
        return self.numbers_of[id(row)]

    def _make_numbers(self, row: Row | None) -> Numbers:
        arch = self.arch
        if row is None or not row.simple or row.register not in arch.registers:
            return (0, 0), [0] * self.count, [0] * self.count
        kinds, arguments = [], []
        for kind, argument in row.rules:
            if kind == REGISTER:
                known = argument in arch.registers
                kind, argument = (REGISTER, arch.registers.index(argument)) if known else (UNDEFINED, 0)
            kinds.append(kind)
            arguments.append(argument)
        return (arch.registers.index(row.register), row.offset), kinds, arguments

    def _rule(self, address: int) -> int:
        if address in self.rule_of:
            return self.rule_of[address]
        code = self.modules.find(address)
        if code is None:
            self.rule_of[address] = 0
            return 0
        if code.module is None:
            name = self.made.name(address)
            place = self._number(None, 0 if name else address, name)
            number = self.rules.add(BY_FRAME_POINTER, None, place, self._numbers(None))
        else:
            self.at_module(code.module)
            own = code.module.address(address - code.start + code.offset)
            row = code.module.row(own)
            if row is None:
                # Where the loader starts a program it has no table: that is the outermost frame.
                kind = END if code.module.short.startswith(("ld-linux", "ld-musl")) else BY_FRAME_POINTER
            elif row.last:
                kind = END
            else:
                kind = SIMPLE if row.simple and row.register in self.arch.registers else COMPLEX
            number = self.rules.add(kind, row, self._number(code.module, own, ""), self._numbers(row))
        self.rule_of[address] = number
        return number

    # ---- All stacks together ----

    def unwind(self, registers: np.ndarray, words: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> Unwound:
        """`registers`: a row of 8-byte numbers each; `words`: from `first` on those of each stack, beginning at its
        stack pointer; `lengths`: so many bytes of it are known."""
        if self.changes != self.modules.changes:
            self._forget()
        work = Work(self, registers, words, first, lengths)
        while work.step():
            pass
        return work.result()


class Work:
    """One call of unwind. Arrays by the stacks that still go on, but for those named `all_`."""

    def __init__(
        self, by: Unwinder, registers: np.ndarray, words: np.ndarray, first: np.ndarray, lengths: np.ndarray
    ) -> None:
        self.by, self.arch = by, by.arch
        self.regs = registers[:, : by.count].astype(np.int64)
        self.words, self.first = words.view(np.int64), first
        self.all_lengths = np.minimum(lengths, by.stack_most).astype(np.int64)
        self.which = np.arange(len(registers))
        self.exact = np.ones(len(registers), bool)  # the program counter is no return address
        self.low = self.regs[:, self.arch.stack].copy()
        self.all_ends = [WHOLE] * len(registers)
        self.columns: list[tuple[np.ndarray, np.ndarray]] = []

    def end(self, chosen: np.ndarray, how: str) -> None:
        for number in self.which[chosen]:
            self.all_ends[number] = how

    def keep(self, chosen: np.ndarray) -> None:
        self.which, self.regs = self.which[chosen], self.regs[chosen]
        self.exact, self.low = self.exact[chosen], self.low[chosen]

    def load(self, address: np.ndarray, chosen: np.ndarray | slice = ALL) -> tuple[np.ndarray, np.ndarray]:
        """The words there, and whether they were copied."""
        which, low = self.which[chosen], self.low[chosen]
        offset = address - low
        good = (offset >= 0) & (offset + 8 <= self.all_lengths[which]) & (offset & 7 == 0)
        place = np.where(good, self.first[which] + (offset >> 3), 0)
        return np.where(good, self.words[place], 0) if len(self.words) else np.zeros(len(which), np.int64), good

    def step(self) -> bool:
        """One frame up. False: all stacks have ended."""
        if len(self.which) == 0 or len(self.columns) >= DEPTH_MOST:
            return False
        counter = self.regs[:, self.arch.counter]
        found, back = np.unique(np.where(self.exact, counter, counter - 1), return_inverse=True)
        known, rule = self.by.rule_of, self.by._rule
        numbers = [known[address] if address in known else rule(address) for address in found.tolist()]
        rules = np.array(numbers, np.int64)[back]
        kinds = self.by.rules.kind[rules]
        self.end(kinds == NOWHERE, UNKNOWN)
        going = kinds != NOWHERE
        self.keep(going)
        rules, kinds = rules[going], kinds[going]
        self.columns.append((self.which, self.by.rules.place[rules]))
        going = kinds != END
        self.keep(going)
        rules, kinds = rules[going], kinds[going]
        cfa, new, good = self.simple(rules)
        for i in np.flatnonzero(kinds == COMPLEX):
            self.complex(i, self.by.rules.rows[rules[i]], cfa, new, good)
        self.frame_pointers(np.flatnonzero(kinds == BY_FRAME_POINTER), cfa, new, good)
        self.judge(rules, kinds, cfa, new, good)
        return True

    def simple(self, rules: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """CFA, the caller's registers, and whether the return address was found; of other kinds, to be replaced."""
        known, regs = self.by.rules, self.regs
        base, kinds, arguments = known.base[rules], known.kinds[rules], known.arguments[rules]
        cfa = regs[np.arange(len(rules)), base[:, 0]] + base[:, 1]
        new, good = regs.copy(), np.ones(len(rules), bool)
        at, i = np.nonzero(kinds == AT)
        new[at, i], there = self.load(cfa[at] + arguments[at, i], at)
        good[at[~there & (i == self.arch.counter)]] = False
        at, i = np.nonzero(kinds == VALUE)
        new[at, i] = cfa[at] + arguments[at, i]
        at, i = np.nonzero(kinds == REGISTER)
        new[at, i] = regs[at, arguments[at, i]]
        new[kinds == UNDEFINED] = 0
        return cfa, new, good

    def complex(self, i: int, row: Row | None, cfa: np.ndarray, new: np.ndarray, good: np.ndarray) -> None:
        arch, table = self.arch, None
        places = [m for m in self.by.modules.known.values() if m.table is not None]
        table = places[0].table if places else None
        here = np.array([i])

        def read(address: int) -> int:
            word, there = self.load(np.array([address], np.uint64).astype(np.int64), here)
            if not there[0]:
                raise ValueError("not copied")
            return int(word[0]) & 0xFFFFFFFFFFFFFFFF

        def register(number: int) -> int:
            return int(self.regs[i, arch.registers.index(number)]) & 0xFFFFFFFFFFFFFFFF

        def value(kind: int, argument: object, index: int, at: int) -> int:
            if kind in (EXPRESSION, VALUE_EXPRESSION):
                found = evaluate(table.parser, argument, [at], register, read)  # type: ignore[union-attr]
                return found if kind == VALUE_EXPRESSION else read(found)
            if kind == SAME:
                return register(arch.registers[index])
            if kind == REGISTER:
                return register(int(argument))  # type: ignore[call-overload]
            if kind == UNDEFINED:
                return 0
            return at + int(argument) if kind == VALUE else read(at + int(argument))  # type: ignore[call-overload]

        try:
            assert row is not None and table is not None
            if row.register >= 0:
                at = register(row.register) + row.offset
            else:
                at = evaluate(table.parser, row.expression, [], register, read)
            words = [value(kind, argument, n, at) for n, (kind, argument) in enumerate(row.rules)]
            new[i] = np.array(words, np.uint64).astype(np.int64)
            cfa[i], good[i] = at if at < 1 << 63 else 0, True
        except BROKEN:
            # What the frame needs lies beyond what was copied.
            cfa[i], good[i] = self.low[i] + self.all_lengths[self.which[i]], False

    def frame_pointers(self, chosen: np.ndarray, cfa: np.ndarray, new: np.ndarray, good: np.ndarray) -> None:
        if len(chosen) == 0:
            return
        arch = self.arch
        frame = self.regs[chosen, arch.frame]
        (outer, there), (caller, also) = self.load(frame, chosen), self.load(frame + 8, chosen)
        new[chosen] = 0
        new[chosen, arch.frame], new[chosen, arch.counter], new[chosen, arch.stack] = outer, caller, frame + 16
        cfa[chosen] = frame + 16
        sure = there & also & (frame >= self.regs[chosen, arch.stack])
        sure &= np.array([self.by._rule(int(address) - 1) != 0 for address in caller], bool)
        good[chosen] = sure

    def judge(self, rules: np.ndarray, kinds: np.ndarray, cfa: np.ndarray, new: np.ndarray, good: np.ndarray) -> None:
        """Who goes on, and how the others have ended."""
        arch = self.arch
        if arch.link >= 0:
            new[:, arch.counter] &= ADDRESS_MASK
        lengths = self.all_lengths[self.which]
        depth = cfa - self.low
        beyond = (depth > lengths - 8) & (depth < STACK_MOST) & (lengths >= self.by.stack_most)
        pointers = kinds == BY_FRAME_POINTER
        rising = (cfa > self.regs[:, arch.stack]) | (self.exact & (cfa == self.regs[:, arch.stack]))
        ended = new[:, arch.counter] == 0
        going = good & rising & ~ended
        self.end(~going & ~(good & ended) & ~pointers, UNKNOWN)
        self.end(~going & ~(good & ended) & beyond, CUT)
        lost = ~going & pointers & ~beyond
        self.end(lost, UNKNOWN)
        for rule in rules[lost]:
            place = self.by.places[self.by.rules.place[rule]]
            name = place.module.short if place.module else "code made at run time"
            self.by.without_table[name] = self.by.without_table.get(name, 0) + 1
        self.regs, self.exact = new, self.by.rules.signal[rules]
        self.keep(going)

    def result(self) -> Unwound:
        self.end(np.ones(len(self.which), bool), UNKNOWN)  # deeper than anyone looks
        count = len(self.all_ends)
        if not self.columns:
            return Unwound([()] * count, self.all_ends)
        which = np.concatenate([each for each, _ in self.columns])
        places = np.concatenate([each for _, each in self.columns])
        found = places[np.argsort(which, kind="stable")].tolist()
        edges = np.cumsum(np.bincount(which, minlength=count)).tolist()
        return Unwound([tuple(found[a:b]) for a, b in zip([0, *edges], edges, strict=False)], self.all_ends)
