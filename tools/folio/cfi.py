"""Unwind tables of a file (.eh_frame): for a place in its code, where the caller's registers are.

A table is not read as a whole: its index (.eh_frame_hdr) says where the entry of a place is, and only what is asked for
is decoded (folio.frame_entries).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

from folio.frame_entries import EXPRESSION, REGISTER, SAME, UNDEFINED, VALUE, Entries, State

INDEX_ENCODING = 0x3B  # pairs of signed 4-byte numbers, relative to the index: what linkers write
FARTHEST = 1 << 48  # from a frame: no address is further
BROKEN = (
    *(DWARFError, ELFError, AssertionError, KeyError, IndexError, struct.error, ValueError),
    *(OverflowError, MemoryError),  # places and lengths that no file has
)


@dataclass(frozen=True)
class Arch:
    """The registers that a sample has (src/arch), by their DWARF numbers, in its order."""

    registers: tuple[int, ...]
    stack: int  # these are indices
    counter: int
    frame: int
    returns: int  # DWARF number of the column that holds the return address
    link: int  # index of the register that holds it at a function's first instruction; -1: the stack does


ARCHES = {
    "x64": Arch((3, 6, 12, 13, 14, 15, 7, 16), stack=6, counter=7, frame=1, returns=16, link=-1),
    "AArch64": Arch((*range(19, 31), 31, 32), stack=12, counter=13, frame=10, returns=30, link=11),
}


@dataclass(frozen=True)
class Row:
    """How to get from a place to its caller: the CFA, and each register of Arch as (kind, argument)."""

    register: int  # DWARF number; -1: the expression
    offset: int
    expression: Any
    rules: tuple[tuple[int, Any], ...]
    signal: bool  # the caller was interrupted: its program counter is no return address

    @property
    def simple(self) -> bool:
        return self.register >= 0 and all(kind < EXPRESSION for kind, _ in self.rules)

    @property
    def last(self) -> bool:
        """The outermost frame: there is no caller."""
        return self.rules[-1][0] == UNDEFINED


def evaluate(parser: DWARFExprParser, expression: Any, stack: list[int], register: Callable, read: Callable) -> int:
    """A DWARF expression, as far as compilers use them for unwinding. Raises ValueError for another."""
    for op in parser.parse_expr(expression):
        name, args = op.op_name.removeprefix("DW_OP_"), op.args
        if name.startswith("breg"):
            stack.append(register(args[0] if name == "bregx" else int(name[4:])) + args[-1])
        elif name.startswith("lit"):
            stack.append(int(name[3:]))
        elif name.startswith("const"):
            stack.append(args[0])
        elif name == "deref":
            stack.append(read(stack.pop()))
        elif name == "plus_uconst":
            stack.append(stack.pop() + args[0])
        elif name in BINARY:
            right, left = stack.pop(), stack.pop()
            stack.append(BINARY[name](left, right))
        else:
            raise ValueError(name)
    return stack[-1] & 0xFFFFFFFFFFFFFFFF


BINARY: dict[str, Callable[[int, int], int]] = {
    "plus": lambda a, b: a + b,
    "minus": lambda a, b: a - b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "mul": lambda a, b: a * b,
    "ge": lambda a, b: int(a >= b),
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
}


class UnwindTable:
    """Of one ELF file; addresses are the file's own."""

    def __init__(self, elf: ELFFile, arch: Arch) -> None:
        self.arch = arch
        structs = DWARFStructs(little_endian=True, dwarf_format=32, address_size=8)
        self.parser = DWARFExprParser(structs)
        self.starts = self.places = np.zeros(0, np.int64)  # of the code of each entry, and where the entry is
        self.entries: Entries | None = None
        self.rows: dict[Any, Row | None] = {}  # each that was made, by what it says: most functions begin and end alike
        try:
            self._open(elf)
        except BROKEN:
            self.entries = None  # frame pointers have to do

    def _open(self, elf: ELFFile) -> None:
        index = next(iter(elf.iter_segments("PT_GNU_EH_FRAME")), None)
        section = elf.get_section_by_name(".eh_frame")
        if index is not None:
            data = index.data()
            at = index["p_vaddr"]
            start = at + 4 + struct.unpack_from("<i", data, 4)[0] if data[1] == 0x1B else None
            if start is not None and data[2] == 0x03 and data[3] == INDEX_ENCODING:
                count = struct.unpack_from("<I", data, 8)[0]
                table = np.frombuffer(data, "<i4", 2 * count, 12).reshape(-1, 2).astype(np.int64)
                self.starts, self.places = at + table[:, 0], at + table[:, 1] - start
                self.entries = Entries(section.data() if section is not None else self._from(elf, start), start)
                return
        if section is None:
            return
        self.entries = Entries(section.data(), section["sh_addr"])
        found = np.array(sorted(self.entries.all()), np.int64).reshape(-1, 2)
        self.starts, self.places = found[:, 0], found[:, 1]

    @staticmethod
    def _from(elf: ELFFile, address: int) -> bytes:
        """What the file has from an address on: its section headers were stripped."""
        for segment in elf.iter_segments("PT_LOAD"):
            if 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
                return segment.data()[address - segment["p_vaddr"] :]
        raise ValueError("no segment has it")

    def row(self, address: int) -> Row | None:
        """None: no entry covers it."""
        number = int(np.searchsorted(self.starts, address, side="right")) - 1
        if self.entries is None or number < 0:
            return None
        try:
            state = self.entries.state(int(self.places[number]), address)
        except BROKEN:
            return None
        if state is None or (state.register < 0 and state.expression is None):
            return None
        if state.expression is not None or any(kind >= EXPRESSION for kind, _ in state.rules.values()):
            return self._row(state)
        key = (state.register, state.offset, state.signal, *state.rules.items())
        if key not in self.rows:
            self.rows[key] = self._row(state)
        return self.rows[key]

    def _row(self, state: State) -> Row | None:
        arch, told = self.arch, state.rules

        def rule(index: int) -> tuple[int, Any]:
            column = arch.returns if index == arch.counter else arch.registers[index]
            if found := told.get(column):
                return found
            if index == arch.stack:
                return VALUE, 0
            # A link register that was not saved yet still has the return address.
            return (REGISTER, arch.returns) if index == arch.counter else (SAME, 0)

        rules = tuple(rule(i) for i in range(len(arch.registers)))
        numbers = [state.offset, *(argument for kind, argument in rules if kind < EXPRESSION)]
        if max(map(abs, numbers)) >= FARTHEST:
            return None  # damaged
        return Row(state.register, state.offset, state.expression, rules, state.signal)
