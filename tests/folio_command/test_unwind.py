"""Unwind tables against another reader of them, memory read in pieces, and sums over stacks against plain ones."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import LIBRARY
from elftools.dwarf.callframe import FDE, RegisterRule
from elftools.elf.elffile import ELFFile
from folio.book import Sum
from folio.cfi import ARCHES, BROKEN, UnwindTable
from folio.elf_symbols import read_file
from folio.frame_entries import AT, EXPRESSION, REGISTER, SAME, UNDEFINED, VALUE, VALUE_EXPRESSION, Entries, State
from folio.modules import open_module
from folio.process import PAGE, Process
from folio.sites import NO_STACK, WHATS, by_stack, plus, sites
from folio.symbols import is_glue
from profiled import PROGRAM, UNLOADED, program, taken

KINDS = {
    RegisterRule.UNDEFINED: UNDEFINED,
    RegisterRule.SAME_VALUE: SAME,
    RegisterRule.OFFSET: AT,
    RegisterRule.VAL_OFFSET: VALUE,
    RegisterRule.REGISTER: REGISTER,
    RegisterRule.EXPRESSION: EXPRESSION,
    RegisterRule.VAL_EXPRESSION: VALUE_EXPRESSION,
}
STANDARD = [
    next(iter(Path("/usr/lib").glob(pattern)), Path(pattern)) for pattern in ("*/libc.so.6", "*/libstdc++.so.6")
]
OTHER = Path("/usr/aarch64-linux-gnu/lib/libc.so.6")
ENTRIES = 1500  # of a file, evenly spread


def plainly(line):
    """A line of pyelftools's table as State has it."""
    cfa = line["cfa"]
    rules = {
        number: (KINDS[rule.type], rule.arg if rule.arg is not None else 0)
        for number, rule in line.items()
        if number not in ("pc", "cfa")
    }
    return (-1 if cfa.expr else cfa.reg, cfa.offset or 0, cfa.expr, rules)


@pytest.mark.parametrize("path", [PROGRAM, UNLOADED, LIBRARY, *STANDARD, OTHER], ids=lambda path: path.name)
def test_tables_say_what_another_reader_finds(path):
    if not path.exists():
        pytest.skip(f"no {path}")
    with path.open("rb") as file:
        elf = ELFFile(file)
        section = elf.get_section_by_name(".eh_frame")
        entries = Entries(section.data(), section["sh_addr"])
        found = list(entries.all())
        theirs = elf.get_dwarf_info().EH_CFI_entries()
        whole = [entry for entry in theirs if isinstance(entry, FDE)]
        assert [start for start, _ in found] == [entry["initial_location"] for entry in whole]
        step = max(1, len(whole) // ENTRIES)
        for entry, (start, place) in list(zip(whole, found, strict=True))[::step]:
            try:
                lines = entry.get_decoded().table
            except BROKEN:
                continue  # it does not know the sizes of arguments on the stack
            end = start + entry["address_range"]
            for line, after in zip(lines, [each["pc"] for each in lines[1:]] + [end], strict=True):
                for address in {line["pc"], after - 1}:
                    if line["pc"] <= address < end and after > line["pc"]:
                        state = entries.state(place, address)
                        assert (state.register, state.offset, state.expression, state.rules) == plainly(line)
            assert entries.state(place, start - 1) is None
            assert entries.state(place, end) is None


def test_functions_that_push_arguments_have_rows():
    """The C++ library has some whose entries tell the size of arguments on the stack (DW_CFA_GNU_args_size)."""
    with STANDARD[1].open("rb") as file:
        elf = ELFFile(file)
        table = UnwindTable(elf, ARCHES[elf.get_machine_arch()])
        assert len(table.starts) > 1000
        assert all(table.row(int(start)) is not None for start in table.starts)


def test_damaged_tables_end_in_errors_that_are_known():
    with STANDARD[0].open("rb") as file:
        section = ELFFile(file).get_section_by_name(".eh_frame")
        text, address = section.data(), section["sh_addr"]
    places = list(Entries(text, address).all())[:200]
    random = np.random.default_rng(1)
    for _ in range(300):
        bad = bytearray(text[: places[-1][1] + 100])
        for at in random.integers(0, len(bad), 40):
            bad[at] = random.choice([0, 0xFF, 0x80, int(random.integers(256))])
        entries = Entries(bytes(bad), address)
        for start, place in places[::10]:
            with suppress(BROKEN):
                entries.state(place, start + 1)


def test_damaged_headers_make_a_file_without_tables(tmp_path):
    """Places and lengths beyond what a file can have, in each field of each header."""
    whole = STANDARD[0].read_bytes()
    with STANDARD[0].open("rb") as file:
        header = ELFFile(file).header
    parts = range(header["e_phoff"], header["e_phoff"] + header["e_phnum"] * header["e_phentsize"], 8)
    sections = range(header["e_shoff"], header["e_shoff"] + header["e_shnum"] * header["e_shentsize"], 8)
    for at in [*range(24, 64, 8), *parts, *list(sections)[::16]]:
        for word in (1 << 63, (1 << 63) - 1):
            bad = bytearray(whole)
            bad[at : at + 8] = word.to_bytes(8, "little")
            module = open_module("bad", None, bytes(bad), ARCHES["x64"])
            assert module.problem in ("", "cannot be read")
            module.row(module.base + 4096)
        path = tmp_path / "bad.so"
        path.write_bytes(bad)
        read_file(path)


def test_an_entry_with_a_number_beyond_all_addresses_has_no_row():
    """It would not fit into the arrays of those who unwind."""
    with STANDARD[0].open("rb") as file:
        table = UnwindTable(ELFFile(file), ARCHES["x64"])
    address = int(table.starts[10])
    state = table.entries.state(int(table.places[10]), address)
    assert table.row(address) is not None
    for offset, rules in ((1 << 66, {}), (16, {6: (AT, -(1 << 68))}), (16, {6: (VALUE, 1 << 68)})):
        damaged = State(state.register, offset, None, {**state.rules, **rules})
        table.entries.state = lambda *_, said=damaged: said
        assert table.row(address) is None


class TestMemory:
    """Of this process, with a hole in the midst."""

    def test_many_ranges_with_empty_ones_and_holes(self):
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        pages = 64
        base = libc.mmap(None, ctypes.c_size_t(pages * PAGE), 3, 0x22, -1, ctypes.c_long(0))
        there = np.ctypeslib.as_array((ctypes.c_uint8 * (pages * PAGE)).from_address(base))
        there[:] = np.random.default_rng(2).integers(1, 255, len(there))
        truth = there.copy()
        for hole in (7, 8, 31):
            libc.munmap(base + hole * PAGE, PAGE)
            truth[hole * PAGE : (hole + 1) * PAGE] = 0
        random = np.random.default_rng(3)
        starts = random.integers(0, (pages - 3) * PAGE, 3000)
        lengths = random.integers(0, 2 * PAGE, 3000) * (random.random(3000) < 0.7)
        ranges = [(base + int(at), int(n)) for at, n in zip(starts, lengths, strict=True)]
        wanted = np.concatenate([truth[at : at + n] for at, n in zip(starts, lengths, strict=True)])
        process = Process(os.getpid())
        assert (process.read_ranges(ranges) == wanted).all()
        assert (process.read_ranges(np.array(ranges)) == wanted).all()
        libc.munmap(base, pages * PAGE)

    def test_short_ranges_that_lie_near_each_other(self):
        """Some thousand are read together; in order and in disorder, with gaps of all lengths."""
        random = np.random.default_rng(4)
        truth = random.integers(0, 255, 1 << 22, dtype=np.uint8)
        process = Process(os.getpid())
        for gap in (1, 64, 600, 5000):
            starts = np.cumsum(random.integers(0, gap + 8, 1 + len(truth) // (2 * gap + 4200) * 2))
            lengths = random.integers(0, min(gap + 1, 4200), len(starts))
            for order in (np.arange(len(starts)), random.permutation(len(starts))):
                ranges = [(truth.ctypes.data + int(starts[i]), int(lengths[i])) for i in order]
                wanted = np.concatenate([truth[starts[i] : starts[i] + lengths[i]] for i in order])
                assert (process.read_ranges(ranges) == wanted).all()

    def test_what_is_no_address_reads_as_zeros(self):
        assert Process(os.getpid()).read_ranges([(-8, 8), (1 << 70, 8), (8, 0)]).tolist() == [0] * 16


def test_sites_are_the_sums_of_their_stacks():
    """Against the sums made one by one."""
    with program() as process:
        profile = taken(process, 1024, "adrstcfa")
    for by in WHATS:
        own, below = {}, {}
        for what in WHATS:
            for number, sum_ in by_stack(profile, what).items():
                frames = profile.stacks[number] or [NO_STACK]
                at = next((i for i, f in enumerate(frames) if not is_glue(f.function, f.file)), len(frames) - 1)
                keys = [(frame.function, frame.module.name if frame.module else "") for frame in frames[at:]]
                for key in dict.fromkeys(keys):
                    below[key, what] = plus(below.get((key, what), Sum()), sum_)
                own[keys[0], what] = plus(own.get((keys[0], what), Sum()), sum_)
        found = sites(profile, by)
        keys = [(site.frame.function, site.frame.module.name if site.frame.module else "") for site in found]
        assert len(set(keys)) == len(keys) > 10
        assert {(key, what): s for key, site in zip(keys, found, strict=True) for what, s in site.own.items()} == own
        assert {
            (key, what): s for key, site in zip(keys, found, strict=True) for what, s in site.below.items()
        } == below
        values = [site.own.get(by, Sum()).value for site in found]
        assert values == sorted(values, reverse=True)
