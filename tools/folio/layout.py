"""The layout descriptor of a process: where it is, what it says (docs/layout.md). The version is checked here."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from folio.errors import FolioError, NotOnFolio
from folio.source import Mapping, Source

MAGIC = b"FolioLay"
VERSION = 8
HEAD = struct.Struct("<8sII")
TABLE_OFFSET = 48  # of the first pointer, in all versions so far
LISTED = """chunk_shift window_shift table_bits codes bins bin_info_bytes code_huge_start code_huge_inside
chunk_table* windows* bin_info* bin_array* page_counts* thread_caches* cpu_caches* depot* options* window_bytes
window_descriptors_offset descriptor_bytes descriptor_block_offset descriptor_bin_offset descriptor_seal_offset
huge_bytes huge_base_offset huge_reserved_offset huge_usable_offset huge_touched_offset huge_state_offset
magazine_bytes magazine_header_offset thread_cache_bytes thread_cache_next_offset thread_cache_cursors_offset
cpu_cache_count cpu_cache_lists_offset cpu_list_bytes cpu_list_objects_offset depot_bin_bytes bin_info_size_offset
bin_info_objects_offset bin_info_folios_offset page_words magazine_link_offset stack_tag_bits resident_offset
dirty_offset purged_offset purge_calls_offset code_large granule_shift fields* chunk_entry_bytes chunk_entry_step
field_bytes field_base_offset field_next_offset field_granules_offset metadata_pieces* region_cursor* region_reserved*
option_rows* collect_request* metadata_piece_used_offset metadata_piece_bytes_offset metadata_piece_previous_offset
option_count option_row_bytes collect_wanted_offset collect_done_offset hint_block_bytes cpu_cache_bytes depot_shards
descriptor_first_offset code_watched limit_state_bytes limit_request_bytes limit_state* limit_request*
seam_counts_bytes seam_shards mode_open mode_closed seam_number_offset front_bytes seam_mode* seam_setting*
seam_counts* front* true_front* sample_tables_most sample_slots sample_bytes sample_stack_bytes sample_tables*
sample_counts* seam_until_offset sample_registers_offset thread_cache_thread_offset cpu_cache_large_bytes_offset
code_guarded mode_guarding guard_page_offset guard_count_offset guard_marks_offset guard_slots_offset guard_slot_bytes
guard_object_offset guard_size_offset guard_allocated_offset guard_freed_offset guard_frames guard_interval*
seam_carefully_offset seam_setting_bytes window_number_offset cluster_shift open_clusters* field_entry_bytes
field_bitmaps thread_cache_large_bytes_offset parked_granules_most"""
FIELDS = LISTED.split()
FORM = struct.Struct("<" + "".join("Q" if name.endswith("*") else "I" for name in FIELDS))
NAMES = [name.rstrip("*") for name in FIELDS]
NUMBER_END = 1 << 20  # all sizes, shifts and counts are below that


class Layout:
    """The numbers of the descriptor, by their names: layout.chunk_shift."""

    def __init__(self, address: int, values: dict[str, int], library: Library) -> None:
        self.address = address
        self.values = values
        self.library = library

    def __getattr__(self, name: str) -> int:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def chunk_bytes(self) -> int:
        return 1 << self.chunk_shift

    @property
    def chunk_table_bytes(self) -> int:
        return self.chunk_entry_bytes << self.table_bits - self.chunk_shift

    @property
    def window_count(self) -> int:
        return 1 << self.table_bits - self.chunk_shift - self.window_shift

    @property
    def window_chunks(self) -> int:
        return 1 << self.window_shift


@dataclass(frozen=True)
class Library:
    """The file that holds Folio, as the process has it: a shared library, or the program itself."""

    path: str
    start: int
    end: int  # of its own mappings, with zero-filled data
    linked_in: bool  # the program itself: what else is in its mappings is not Folio's


def parse(address: int, head: bytes, body: bytes, library: Library) -> Layout:
    magic, version, size = HEAD.unpack(head)
    if magic != MAGIC:
        raise FolioError(
            "the layout descriptor was not found where its symbol says: is the file on disk another build?"
        )
    if version != VERSION:
        raise FolioError(
            f"this process's Folio has layout version {version}, this tool reads version {VERSION}: "
            "use the `folio` command of the same release as the library"
        )
    if size < HEAD.size + FORM.size:
        raise FolioError(
            f"this process's Folio is older than this tool (descriptor of {size} bytes, {HEAD.size + FORM.size} are "
            "needed): restart it with the newer library, or use the older tool"
        )
    values = dict(zip(NAMES, FORM.unpack(body), strict=True))
    if any(values[name] >= NUMBER_END for name in FIELDS if not name.endswith("*")):
        raise FolioError(
            "the layout descriptor makes no sense: the file is damaged, or the program has written over it"
        )
    return Layout(address, values, library)


def symbol_in(path: Path) -> tuple[int, int] | None:
    """The descriptor's address in the file and the end of its zero-filled data; None if it has no such symbol."""
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            end = max((s["p_vaddr"] + s["p_memsz"] for s in elf.iter_segments("PT_LOAD")), default=0)
            base = min((s["p_vaddr"] - s["p_offset"] for s in elf.iter_segments("PT_LOAD")), default=0)
            for name in (".dynsym", ".symtab"):
                section = elf.get_section_by_name(name)
                found = section.get_symbol_by_name("folio_layout") if section is not None else None
                if found:
                    return found[0]["st_value"] - base, end - base
    except (OSError, ELFError):
        pass
    return None


def candidates(mappings: list[Mapping], program: str) -> list[list[Mapping]]:
    """The mappings of each file that may hold Folio: of its name first, then the program, then others."""
    by_path: dict[str, list[Mapping]] = {}
    for mapping in mappings:
        if mapping.path and mapping.inode:
            by_path.setdefault(mapping.path, []).append(mapping)

    def rank(path: str) -> int:
        if re.search(r"/libfolio\.so[^/]*$", path):
            return 0
        return 1 if path == program else 2 if "/libfolio" in path else 3

    files = [path for path, parts in by_path.items() if any(set(part.flags) & {"x", "?"} for part in parts)]
    return [by_path[path] for path in sorted(files, key=rank)]


def find_by_magic(process: Source, parts: list[Mapping], mappings: list[Mapping]) -> int | None:
    """The descriptor among a file's mappings. A page of the file may be mapped twice: only one copy is relocated."""
    for part in parts:
        if "r" not in part.flags or part.flags.endswith("s"):
            continue
        for start, length in process.readable(part.start, part.end):
            data = process.read(start, length)
            at = data.find(MAGIC)
            while at >= 0:
                table = int.from_bytes(data[at + TABLE_OFFSET : at + TABLE_OFFSET + 8], "little")
                if any(m.start <= table < m.end for m in mappings):
                    return start + at
                at = data.find(MAGIC, at + 1)
    return None


def find(process: Source) -> Layout:
    """Raises FolioError if the process is not on Folio, or on one that this tool cannot read."""
    if known := process.known_layout():
        return read_at(process, *known)
    program = process.program()
    mappings = process.mappings()
    files = candidates(mappings, program)
    for parts in files:
        start = parts[0].start - parts[0].offset
        # Where the library was replaced since, by an upgrade, the file on disk is another one: then it is searched for.
        if (found := symbol_in(process.file(parts[0]))) and process.read(start + found[0], len(MAGIC)) == MAGIC:
            return read_at(process, start + found[0], library_of(parts, start + found[1], program))
    for parts in files:
        known = "/libfolio" in parts[0].path
        if (known or parts[0].path == program) and (address := find_by_magic(process, parts, mappings)) is not None:
            return read_at(process, address, library_of(parts, 0, program))
    process.must_have_file(program)
    raise NotOnFolio(process.name())


def library_of(parts: list[Mapping], end: int, program: str) -> Library:
    return Library(parts[0].path, parts[0].start, max(end, parts[-1].end), parts[0].path == program)


def read_at(process: Source, address: int, library: Library) -> Layout:
    data = process.read(address, HEAD.size + FORM.size)
    layout = parse(address, data[: HEAD.size], data[HEAD.size :], library)
    if not any(m.start <= layout.windows < m.end for m in process.mappings()):
        state = "was just starting, and the loader was" if process.still else "is just starting, and the loader is"
        again = "take another one" if process.still else "ask again"
        raise FolioError(f"{process.name()} {state} not done with Folio; {again}")
    return layout
