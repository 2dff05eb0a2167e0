"""Unwind tables of a file (.eh_frame): for a place in its code, where the caller's registers are.

A table is not read as a whole: its index (.eh_frame_hdr) says where the entry of a place is, and only entries that are
asked for are decoded, by pyelftools.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from elftools.common.exceptions import DWARFError, ELFError
from elftools.dwarf.callframe import FDE, CallFrameInfo, RegisterRule
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

SAME, AT, VALUE, REGISTER, UNDEFINED, EXPRESSION, VALUE_EXPRESSION = range(7)
INDEX_ENCODING = 0x3B  # pairs of signed 4-byte numbers, relative to the index: what linkers write
KINDS = {
    RegisterRule.UNDEFINED: UNDEFINED,
    RegisterRule.SAME_VALUE: SAME,
    RegisterRule.OFFSET: AT,
    RegisterRule.VAL_OFFSET: VALUE,
    RegisterRule.REGISTER: REGISTER,
    RegisterRule.EXPRESSION: EXPRESSION,
    RegisterRule.VAL_EXPRESSION: VALUE_EXPRESSION,
}
BROKEN = (DWARFError, ELFError, AssertionError, KeyError, IndexError, struct.error, ValueError)


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
        self.starts: np.ndarray | list[int] = []
        self.entries: list[Any] | np.ndarray = []  # offsets, or entries themselves
        self.rows: dict[int, list[tuple[int, Row]]] = {}  # of an entry
        self.frames: CallFrameInfo | None = None
        try:
            self._open(elf, structs)
        except BROKEN:
            self.frames = None  # frame pointers have to do

    def _open(self, elf: ELFFile, structs: DWARFStructs) -> None:
        index = next(iter(elf.iter_segments("PT_GNU_EH_FRAME")), None)
        section = elf.get_section_by_name(".eh_frame")
        if index is not None:
            data = index.data()
            at = index["p_vaddr"]
            start = at + 4 + struct.unpack_from("<i", data, 4)[0] if data[1] == 0x1B else None
            if start is not None and data[2] == 0x03 and data[3] == INDEX_ENCODING:
                count = struct.unpack_from("<I", data, 8)[0]
                table = np.frombuffer(data, "<i4", 2 * count, 12).reshape(-1, 2).astype(np.int64)
                self.starts, self.entries = at + table[:, 0], at + table[:, 1] - start
                text = section.data() if section is not None else self._from(elf, start)
                self.frames = CallFrameInfo(BytesIO(text), len(text), start, structs, for_eh_frame=True)
                return
        if section is None:
            return
        text = section.data()
        self.frames = CallFrameInfo(BytesIO(text), len(text), section["sh_addr"], structs, for_eh_frame=True)
        found = [entry for entry in self.frames.get_entries() if isinstance(entry, FDE)]
        found.sort(key=lambda entry: entry["initial_location"])
        self.starts, self.entries = [entry["initial_location"] for entry in found], found

    @staticmethod
    def _from(elf: ELFFile, address: int) -> bytes:
        """What the file has from an address on: its section headers were stripped."""
        for segment in elf.iter_segments("PT_LOAD"):
            if 0 <= address - segment["p_vaddr"] < segment["p_filesz"]:
                return segment.data()[address - segment["p_vaddr"] :]
        raise ValueError("no segment has it")

    def row(self, address: int) -> Row | None:
        """None: no entry covers it."""
        if self.frames is None:
            return None
        number = bisect.bisect_right(self.starts, address) - 1
        if number < 0:
            return None
        if number not in self.rows:
            try:
                self.rows[number] = self._decode(number)
            except BROKEN:
                self.rows[number] = []
        rows = self.rows[number]
        at = bisect.bisect_right(rows, address, key=lambda row: row[0]) - 1
        if at < 0 or rows[at][1] is None:
            return None
        return rows[at][1]

    def _decode(self, number: int) -> list[tuple[int, Row | None]]:
        assert self.frames is not None
        entry = self.entries[number]
        if not isinstance(entry, FDE):
            entry = self.frames._parse_entry_at(int(entry))
        signal = b"S" in (entry.cie.header["augmentation"] or b"")
        rows: list[tuple[int, Row | None]] = []
        for line in entry.get_decoded().table:
            rows.append((line["pc"], self._row(line, signal)))
        return [*rows, (entry["initial_location"] + entry["address_range"], None)]

    def _row(self, line: dict[Any, Any], signal: bool) -> Row:
        arch, cfa = self.arch, line["cfa"]

        def rule(index: int) -> tuple[int, Any]:
            column = arch.returns if index == arch.counter else arch.registers[index]
            if found := line.get(column):
                return KINDS.get(found.type, UNDEFINED), found.arg if found.arg is not None else 0
            if index == arch.stack:
                return VALUE, 0
            # A link register that was not saved yet still has the return address.
            return (REGISTER, arch.returns) if index == arch.counter else (SAME, 0)

        rules = tuple(rule(i) for i in range(len(arch.registers)))
        return Row(-1 if cfa.expr else cfa.reg, cfa.offset or 0, cfa.expr, rules, signal)
