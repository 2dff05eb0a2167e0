"""`folio where`: what an address of a process is."""

from __future__ import annotations

from typing import Any

import numpy as np

from folio import output
from folio.errors import FolioError
from folio.heap import FOLIO_OBJECTS, PLACES, Heap
from folio.parts import kind_of
from folio.process import PAGE
from folio.reader import Reader

PLACE_NAMES = {"thread": "a thread's magazine", "cpu": "a CPU cache", "depot": "the depot"}


def parse_address(text: str) -> int:
    try:
        value = int(text, 0) if text.lower().startswith("0x") or text.isdecimal() else int(text, 16)
    except ValueError:
        raise FolioError(f'"{text}" is no address: write it as 0x7f12345678, as a debugger prints it') from None
    if not 0 <= value < 1 << 64:
        raise FolioError(f"{text} is no address of 64 bits")
    return value


def is_resident(reader: Reader, address: int) -> bool:
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
    state = f"free, in {PLACE_NAMES[place]}" if place else "taken by the program" if has(bin_.taken) else "free"
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
        "state": "taken by the program",
        "granule": granule,
        "granules": int(field.length[at]),
        "field": field.base,
    }


def in_huge(heap: Heap, entry: int, address: int) -> dict[str, Any]:
    huge = heap.huge
    at = int(np.flatnonzero(huge.descriptors == heap.descriptors[entry])[0])
    base, live = int(huge.base[at]), bool(huge.live[at])
    usable = int(huge.usable[at]) if live else 0
    beyond = live and address >= base + usable
    return {
        "kind": "address space beyond a huge object" if beyond else "huge object",
        "base": base,
        "usable_bytes": usable,
        "reserved_bytes": int(huge.reserved[at]),
        "offset": address - base,
        "state": "taken by the program" if live else "free, waits for reuse",
    }


def elsewhere(reader: Reader, heap: Heap, address: int) -> dict[str, Any]:
    for piece in heap.snapshot.pieces:
        if piece.start <= address < piece.start + piece.reserved:
            used = address < piece.start + piece.used
            return {"kind": "Folio's metadata", "state": "in use" if used else "not handed out yet"}
    layout = reader.layout
    cursor = heap.snapshot.fixed.word(layout.region_cursor)
    if cursor >> 32 <= address >> layout.chunk_shift < cursor & 0xFFFFFFFF:
        return {"kind": "Folio's address space", "state": "no chunk carved from it yet"}
    library = layout.library
    if library.start <= address < library.end and not library.linked_in:
        return {"kind": "Folio's own code or data", "state": library.path}
    for mapping in reader.process.mappings():
        if mapping.start <= address < mapping.end:
            return {"kind": "not Folio's", "state": kind_of(mapping), "flags": mapping.flags}
    return {"kind": "not mapped", "state": "an access would fault"}


def locate(reader: Reader, heap: Heap, address: int) -> dict[str, Any]:
    entry = heap.entry(address)
    if entry < 0:
        found = elsewhere(reader, heap, address)
    elif heap.codes[entry] >= heap.layout.code_huge_start:
        found = in_huge(heap, entry, address)
    elif heap.codes[entry] == heap.layout.code_large:
        found = in_large(heap, entry, address)
    else:
        found = in_chunk(heap, entry, address)
    return {"address": address, **found, "resident": is_resident(reader, address)}


def sentence(found: dict[str, Any]) -> str:
    if "base" not in found:
        return f"{found['kind']}: {found['state']}"
    return f"{found['kind']} of {found['usable_bytes']:,} usable bytes at {found['base']:#x}: {found['state']}"


def where(pid: int, text: str, json: bool) -> int:
    address = parse_address(text)
    reader = Reader(pid)
    found = locate(reader, reader.view(), address)
    if json:
        output.as_json({"version": 1, "pid": pid, **found})
        return 0
    output.say(f"{address:#x}", "bold")
    output.say(f"  {sentence(found)}")
    if found.get("offset", -1) >= 0:
        output.say(f"  the address is byte {found['offset']:,} of it")
    if "bin" in found:
        output.say(f"  bin {found['bin']}, slots of {found['slot_bytes']:,} bytes; chunk {found['chunk']:#x}")
    if "folio" in found:
        taken, of = found["folio_taken"], found["folio_objects"]
        output.say(f"  object {found['object_of_folio']} of folio {found['folio']}, of whose {of} {taken} are taken")
    if "field" in found:
        output.say(f"  granule {found['granule']} of the field at {found['field']:#x}")
    output.say(f"  its page is {'resident' if found['resident'] else 'not resident'}")
    output.next_command(f"folio bins {pid}")
    return 0
