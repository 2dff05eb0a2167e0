"""`folio where`: what an address of a process is."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import numpy as np

from folio import output
from folio.elf_symbols import DataFiles, Types
from folio.errors import FolioError
from folio.heap import FOLIO_OBJECTS, PLACES, Heap
from folio.parts import kind_of
from folio.reader import Reader
from folio.referrers import referrers
from folio.referrers import show as show_referrers
from folio.source import PAGE

TAKEN = "taken by the program"
USER_BITS = 48 if os.uname().machine == "aarch64" else 47  # of an address that a program can have
ADDRESS_BITS = 64
NOWHERE = ("not mapped", "the kernel's", "no address")
PLACE_NAMES = {"thread": "a thread's magazine", "cpu": "a CPU cache", "depot": "the depot"}


def parse_address(text: str) -> int:
    try:
        value = int(text, 0) if text.lower().startswith("0x") or text.isdecimal() else int(text, 16)
    except ValueError:
        raise FolioError(f'"{text}" is no address: write it as 0x7f12345678, as a debugger prints it') from None
    if not 0 <= value < 1 << 64:
        raise FolioError(f"{text} is no address of 64 bits")
    return value


def is_resident(reader: Reader, address: int) -> bool | None:
    """None where it is not known."""
    if not reader.process.tells_pages:
        return None
    page = address // PAGE * PAGE
    return len(reader.scanner.scan(page, page + PAGE).resident()) > 0


def in_chunk(heap: Heap, entry: int, address: int) -> dict[str, Any]:
    bin_ = heap.bins[int(heap.codes[entry])]
    info = bin_.info
    chunk = address >> heap.layout.chunk_shift << heap.layout.chunk_shift
    row = int(np.searchsorted(bin_.chunks, chunk))
    first = int(bin_.first[row])
    number = (address - first) // info.size
    found: dict[str, Any] = {"bin": info.number, "slot_bytes": info.size, "chunk": chunk}
    if not 0 <= number < info.objects:
        return {**found, "kind": "unused part of a chunk", "state": "belongs to no object"}
    base = first + number * info.size
    folio, bit = divmod(number, FOLIO_OBJECTS)

    def has(words: np.ndarray) -> bool:
        return bool(int(words[row, folio]) >> bit & 1)

    place = next((p for p in PLACES if has(bin_.cached[p])), None)
    state = f"free, in {PLACE_NAMES[place]}" if place else TAKEN if has(bin_.taken) else "free"
    return {
        **found,
        "kind": "object",
        "base": base,
        "usable_bytes": info.size,
        "offset": address - base,
        "state": state,
        "folio": folio,
        "object_of_folio": bit,
        "folio_taken": int(bin_.taken[row, folio]).bit_count(),
        "folio_objects": min(FOLIO_OBJECTS, info.objects - folio * FOLIO_OBJECTS),
    }


def in_large(heap: Heap, entry: int, address: int) -> dict[str, Any]:
    field = next((f for f in heap.fields if f.descriptor == heap.descriptors[entry]), None)
    if field is None:
        return {"kind": "Folio's address space", "state": "a field of large objects that is just being made"}
    shift = heap.layout.granule_shift
    granule = (address - field.base) >> shift
    at = int(np.searchsorted(field.first, granule, side="right")) - 1
    if at < 0 or granule >= field.first[at] + field.length[at]:
        taken = int(field.taken[granule // 64]) >> granule % 64 & 1
        state = "is just being purged or taken" if taken else "free"
        if field.parked[granule]:
            state = f"free, in {PLACE_NAMES['cpu']}"
        return {"kind": "granule of large objects", "state": state, "granule": granule, "field": field.base}
    base = field.base + (int(field.first[at]) << shift) + int(field.offset[at])
    usable = (int(field.length[at]) << shift) - int(field.offset[at]) - int(field.spare[at])
    kind = "large object"
    if address < base or address >= base + usable:
        kind = "room before a large object" if address < base else "room behind a large object"
    return {
        "kind": kind,
        "base": base,
        "usable_bytes": usable,
        "offset": address - base,
        "state": TAKEN,
        "granule": granule,
        "granules": int(field.length[at]),
        "field": field.base,
    }


def block_of(heap: Heap, address: int) -> int:
    """The place of the huge block that holds it, -1 for none. Not all of a block has entries."""
    return int(heap.huge.holding(np.array([min(address, 1 << 62)]))[0])


def in_huge(heap: Heap, at: int, address: int) -> dict[str, Any]:
    """`at`: the place of the block."""
    huge = heap.huge
    base, live = int(huge.base[at]), bool(huge.live[at])
    usable = int(huge.usable[at]) if live else 0
    beyond = live and address >= base + usable
    return {
        "kind": "address space beyond a huge object" if beyond else "huge object",
        "base": base,
        "usable_bytes": usable,
        "reserved_bytes": int(huge.reserved[at]),
        "offset": address - base,
        "state": TAKEN if live else "free, waits for reuse",
    }


def in_guarded(heap: Heap, address: int) -> dict[str, Any]:
    """An address beside an object, on its page or on the inaccessible ones around it, is named after that object."""
    page = heap.guard_page
    near = [each for each in heap.guarded if each.page - page <= address < each.page + 2 * page]
    near.sort(key=lambda each: (not each.page <= address < each.page + page, not each.live))
    if not near:
        return {"kind": "room for guarded objects", "state": "none was here yet"}
    each = near[0]
    inside = each.base <= address < each.base + each.size
    beside = "room before a guarded object" if address < each.base else "room behind a guarded object"
    return {
        "kind": "guarded object" if inside else beside,
        "base": each.base,
        "usable_bytes": each.size,
        "offset": address - each.base,
        "state": TAKEN if each.live else "free, and inaccessible",
        "allocated": asdict(each.allocated),
        "freed": asdict(each.freed) if each.freed else None,
    }


def elsewhere(reader: Reader, heap: Heap, address: int) -> dict[str, Any]:
    for piece in heap.snapshot.pieces:
        if piece.start <= address < piece.start + piece.reserved:
            used = address < piece.start + piece.used
            return {"kind": "Folio's metadata", "state": "in use" if used else "not handed out yet"}
    layout = reader.layout
    fixed = heap.snapshot.fixed
    cursor = fixed.word(layout.region_cursor)
    free = cursor >> 32 <= address >> layout.cluster_shift < cursor & 0xFFFFFFFF
    for rest in (fixed.word(layout.open_clusters), fixed.word(layout.open_clusters + 8)):
        free = free or 0 <= (address >> layout.chunk_shift) - (rest >> 32) < rest & 0xFFFFFFFF
    if free:
        return {"kind": "Folio's address space", "state": "no chunk carved from it yet"}
    library = layout.library
    if library.start <= address < library.end and not library.linked_in:
        return {"kind": "Folio's own code or data", "state": library.path}
    for mapping in reader.process.mappings():
        if mapping.start <= address < mapping.end:
            return {"kind": "not Folio's", "state": kind_of(mapping), "flags": mapping.flags}
    if address >> USER_BITS == 0:
        return {"kind": "not mapped", "state": "an access would fault"}
    if address >> USER_BITS == (1 << ADDRESS_BITS - USER_BITS) - 1:
        return {
            "kind": "the kernel's",
            "state": "no program can read it; a number just below zero looks so too",
        }
    state = "no address has such upper bits: it is a number, a pointer that was overwritten, or one with a tag"
    return {"kind": "no address", "state": state}


def locate(reader: Reader, heap: Heap, address: int) -> dict[str, Any]:
    entry = heap.entry(address)
    block = block_of(heap, address)
    if block >= 0:
        found = in_huge(heap, block, address)
    elif entry < 0:
        found = elsewhere(reader, heap, address)
    elif heap.codes[entry] == heap.layout.code_guarded:
        found = in_guarded(heap, address)
    elif heap.codes[entry] >= heap.layout.code_huge_start:
        found = {"kind": "Folio's address space", "state": "a huge object that is just being made"}
    elif heap.codes[entry] == heap.layout.code_large:
        found = in_large(heap, entry, address)
    else:
        found = in_chunk(heap, entry, address)
    # Where nothing can be mapped the kernel refuses to look.
    return {"address": address, **found, "resident": found["kind"] not in NOWHERE and is_resident(reader, address)}


def without_tag(heap: Heap, address: int) -> int | None:
    """Its lower bits, where it can be no address, and they are one of Folio's."""
    lower = address & (1 << USER_BITS) - 1
    return lower if lower != address and (heap.entry(lower) >= 0 or block_of(heap, lower) >= 0) else None


def sentence(found: dict[str, Any]) -> str:
    if "base" not in found:
        return f"{found['kind']}: {found['state']}"
    return f"{found['kind']} of {found['usable_bytes']:,} usable bytes at {found['base']:#x}: {found['state']}"


def type_of(reader: Reader, base: int) -> str:
    """By the object's first word."""
    types = Types(DataFiles(reader.process, reader.process.mappings()))
    return types.names[int(types.of(np.array([reader.process.read_word(base)], dtype=np.uint64))[0])]


def place_in_file(reader: Reader, address: int) -> str:
    """As addr2line takes it: the file and the offset from where it is loaded."""
    mappings = reader.process.mappings()
    mapping = next((each for each in mappings if each.start <= address < each.end and each.inode), None)
    if mapping is None:
        return f"{address:#x}"
    first = min(each.start - each.offset for each in mappings if each.path == mapping.path)
    return f"{mapping.path}+{address - first:#x}"


def say_call(reader: Reader, did: str, call: dict[str, Any]) -> None:
    output.say(f"  {did} by thread {call['thread']}:")
    for frame in call["frames"]:
        output.say(f"    {place_in_file(reader, frame - 1)}")


def where(target: str, text: str, with_referrers: bool, rows: int, json: bool) -> int:
    address = parse_address(text)
    reader = Reader(target)
    source = reader.process
    heap = reader.view()
    found = locate(reader, heap, address)
    live = found["state"] == TAKEN
    if live and source.has_contents and found["resident"] is not False:
        found["type"] = type_of(reader, found["base"])
    if with_referrers:
        source.must_have_contents()
    if live and with_referrers:
        found["referrers"] = referrers(reader, found["base"], rows)
    if json:
        output.as_json({"version": 1, "pid": source.pid, "source": source.kind, "command": source.command(), **found})
        return 0
    output.say(output.one_line(source.title()))
    output.say(f"{address:#x}", "bold")
    output.indented(sentence(found), 2)
    if found.get("offset", -1) >= 0:
        output.say(f"  the address is byte {found['offset']:,} of it")
    if "bin" in found:
        output.say(f"  bin {found['bin']}, slots of {found['slot_bytes']:,} bytes; chunk {found['chunk']:#x}")
    if "folio" in found:
        taken, of = found["folio_taken"], found["folio_objects"]
        output.say(f"  object {found['object_of_folio']} of folio {found['folio']}, of whose {of} {taken} are taken")
    if "field" in found:
        output.say(f"  granule {found['granule']} of the field at {found['field']:#x}")
    for did in ("allocated", "freed"):
        if found.get(did):
            say_call(reader, did, found[did])
    if found["kind"] not in NOWHERE:
        state = {True: "its page is resident", False: "its page is not resident"}
        output.say(f"  {state.get(found['resident'], 'whether its page was resident a core does not tell')}")
    if "type" in found:
        output.say(f"  its first word: {found['type']}")
    if "referrers" in found:
        show_referrers(found["referrers"])
    elif with_referrers:
        output.say("  who points to it is looked up for objects that the program has taken")
    lower = without_tag(heap, address)
    more = f"folio where {source.target} {lower:#x}  (the same without its upper bits)" if lower is not None else ""
    if live and source.has_contents and not with_referrers:
        more = f"folio where {source.target} {text} --referrers"
    output.next_command(more or f"folio bins {source.target}")
    return 0
