"""Entries of a file's .eh_frame: what its instructions say of one place in the code (DWARF 5, section 6.4; for the
heads of entries the Linux Standard Base).

A profile asks for some thousand places, so instructions run only as far as the place, and nothing else is made of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SAME, AT, VALUE, REGISTER, UNDEFINED, EXPRESSION, VALUE_EXPRESSION = range(7)
OMITTED, PC_RELATIVE = 0xFF, 0x10
FIXED = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
ADVANCES = {0x02: "<B", 0x03: "<H", 0x04: "<I"}
# Of a register and an unsigned number, or a signed one: the kind of rule, and whether the number is in units of data.
WITH_NUMBER = {0x05: (AT, True), 0x09: (REGISTER, False), 0x14: (VALUE, True)}
WITH_SIGNED = {0x11: AT, 0x15: VALUE}
WITH_BLOCK = {0x10: EXPRESSION, 0x16: VALUE_EXPRESSION}


@dataclass
class State:
    """What holds at a place: how the CFA is found, and for each register that is told of a kind and an argument."""

    register: int = -1  # of the CFA; -1: the expression, if there is one
    offset: int = 0
    expression: Any = None
    rules: dict[int, tuple[int, Any]] = field(default_factory=dict)
    signal: bool = False

    def copy(self) -> State:
        return State(self.register, self.offset, self.expression, self.rules.copy(), self.signal)


@dataclass
class Common:
    """What entries share."""

    code: int  # in units of which the code's addresses advance
    data: int
    encoding: int  # of addresses
    has_data: bool  # each entry has data of its own before its instructions
    state: State


class Entries:
    """Raises struct.error, IndexError or ValueError where the section is damaged."""

    def __init__(self, text: bytes, address: int) -> None:
        self.text, self.address = text, address
        self.known: dict[int, Common] = {}
        self.opened: dict[int, tuple[Common, int, int, int, int]] = {}

    # ---- Numbers ----

    def _unsigned(self, at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = self.text[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _signed(self, at: int) -> tuple[int, int]:
        value, end = self._unsigned(at)
        bits = 7 * (end - at)
        return (value - (1 << bits) if value >> (bits - 1) else value), end

    def _encoded(self, encoding: int, at: int) -> tuple[int, int]:
        kind = encoding & 0x0F
        if kind == 0x01:
            return self._unsigned(at)
        if kind == 0x09:
            return self._signed(at)
        if kind not in FIXED:
            raise ValueError(f"an encoding of {encoding:#x}")
        return struct.unpack_from(FIXED[kind], self.text, at)[0], at + struct.calcsize(FIXED[kind])

    def _address(self, encoding: int, at: int) -> tuple[int, int]:
        value, end = self._encoded(encoding, at)
        if encoding & 0xF0 not in (0, PC_RELATIVE):
            raise ValueError(f"an encoding of {encoding:#x}")
        return value + (self.address + at if encoding & PC_RELATIVE else 0), end

    # ---- Entries ----

    def _head(self, at: int) -> tuple[int, int, int, int]:
        """What an entry names as what it shares, where it does, where the rest begins, and its end."""
        if at < 0:
            raise ValueError("no entry")
        length, wide = struct.unpack_from("<I", self.text, at)[0], False
        at += 4
        if length == 0xFFFFFFFF:
            length, wide = struct.unpack_from("<Q", self.text, at)[0], True
            at += 8
        end = at + length
        if length == 0 or end > len(self.text):
            raise ValueError("no entry")
        return struct.unpack_from("<Q" if wide else "<I", self.text, at)[0], at, at + (8 if wide else 4), end

    def _common(self, at: int) -> Common:
        if at not in self.known:
            self.known[at] = self._read_common(at)
        return self.known[at]

    def _read_common(self, at: int) -> Common:
        number, _, at, end = self._head(at)
        if number != 0:
            raise ValueError("an entry where what others share should be")
        version, at = self.text[at], at + 1
        zero = self.text.index(b"\0", at)
        letters, at = self.text[at:zero], zero + 1
        code, at = self._unsigned(at)
        data, at = self._signed(at)
        _, at = self._unsigned(at) if version > 1 else (0, at + 1)
        encoding = 0
        if letters.startswith(b"z"):
            length, at = self._unsigned(at)
            encoding = self._encoding_among(letters[1:], at)
            at += length
        elif letters:
            raise ValueError("an old kind of entry")
        common = Common(code, data, encoding, bool(letters), State())
        self._run(common, common.state, at, end, 0, 1 << 64)
        common.state.signal = b"S" in letters
        return common

    def _encoding_among(self, letters: bytes, at: int) -> int:
        for letter in letters:
            if letter == ord("R"):
                return self.text[at]
            if letter == ord("L"):
                at += 1
            elif letter == ord("P"):
                _, at = self._encoded(self.text[at], at + 1)
            elif letter not in b"SBG":
                break
        return 0

    def _open(self, at: int) -> tuple[Common, int, int, int, int]:
        """What it shares, the code that it is of (start and end), its instructions (start and end)."""
        back, where, at, end = self._head(at)
        common = self._common(where - back)
        if common.encoding == OMITTED:
            raise ValueError("an entry without a place")
        start, at = self._address(common.encoding, at)
        length, at = self._encoded(common.encoding, at)
        if common.has_data:
            skipped, at = self._unsigned(at)
            at += skipped
        return common, start, start + length, at, end

    def all(self) -> Iterator[tuple[int, int]]:
        """(start of its code, place) of each that is of code."""
        at = 0
        while at + 4 <= len(self.text):
            if not any(self.text[at : at + 4]):
                at += 4
                continue
            number, _, _, end = self._head(at)
            if number:
                yield self._open(at)[1], at
            at = end

    def state(self, at: int, address: int) -> State | None:
        """What the entry there says of an address; None: it does not cover it."""
        if at not in self.opened:
            self.opened[at] = self._open(at)
        common, start, end, first, last = self.opened[at]
        if not start <= address < end:
            return None
        state = common.state.copy()
        self._run(common, state, first, last, start, address)
        return state

    # ---- Instructions ----

    def _run(self, common: Common, state: State, at: int, end: int, here: int, address: int) -> None:
        """Up to those for code behind `address`."""
        text, rules, kept = self.text, state.rules, []
        while at < end:
            op = text[at]
            at += 1
            high, low = op & 0xC0, op & 0x3F
            if high == 0x40 or op in ADVANCES:
                if high:
                    here += low * common.code
                else:
                    here += struct.unpack_from(ADVANCES[op], text, at)[0] * common.code
                    at += struct.calcsize(ADVANCES[op])
            elif high == 0x80:
                number, at = self._unsigned(at)
                rules[low] = AT, number * common.data
            elif high == 0xC0 or op == 0x06:  # as at the start
                register, at = (low, at) if high else self._unsigned(at)
                self._restore(common, rules, register)
            elif op == 0x01:
                here, at = struct.unpack_from("<Q", text, at)[0], at + 8
            elif op == 0x0A:
                kept.append(state.copy())
            elif op == 0x0B:
                old = kept.pop()
                state.register, state.offset, state.expression = old.register, old.offset, old.expression
                rules.clear()
                rules.update(old.rules)
            elif op not in (0x00, 0x2D):  # nothing; the return address is signed
                is_cfa = 0x0C <= op <= 0x0F or op in (0x12, 0x13)
                at = self._cfa(common, state, op, at) if is_cfa else self._rule(common, rules, op, at)
            if here > address:
                return

    @staticmethod
    def _restore(common: Common, rules: dict[int, tuple[int, Any]], register: int) -> None:
        first = common.state.rules
        if register in first:
            rules[register] = first[register]
        else:
            rules.pop(register, None)

    def _cfa(self, common: Common, state: State, op: int, at: int) -> int:
        if op == 0x0F:
            length, at = self._unsigned(at)
            state.register, state.offset, state.expression = -1, 0, list(self.text[at : at + length])
            return at + length
        if op in (0x0C, 0x0D, 0x12):
            state.register, at = self._unsigned(at)
            state.expression = None
        if op in (0x0C, 0x0E):
            state.offset, at = self._unsigned(at)
        elif op in (0x12, 0x13):
            number, at = self._signed(at)
            state.offset = number * common.data
        return at

    def _rule(self, common: Common, rules: dict[int, tuple[int, Any]], op: int, at: int) -> int:
        register, at = self._unsigned(at)
        if op == 0x2E:  # bytes of arguments on the stack: of no matter here
            return at
        if op in (0x07, 0x08):
            rules[register] = (UNDEFINED if op == 0x07 else SAME), 0
        elif op in WITH_NUMBER:
            kind, is_data = WITH_NUMBER[op]
            number, at = self._unsigned(at)
            rules[register] = kind, number * common.data if is_data else number
        elif op in WITH_SIGNED:
            number, at = self._signed(at)
            rules[register] = WITH_SIGNED[op], number * common.data
        elif op in WITH_BLOCK:
            length, at = self._unsigned(at)
            rules[register] = WITH_BLOCK[op], list(self.text[at : at + length])
            at += length
        else:
            raise ValueError(f"an instruction {op:#x}")
        return at
