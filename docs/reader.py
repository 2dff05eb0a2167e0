"""Counts what is taken in a running process on Folio, by docs/layout.md alone: reader.py PID, as the same user."""

import re
import struct
import sys
from pathlib import Path

# Made by tools/layout_lists.py.
FIELDS = """chunk_shift window_shift table_bits codes bins bin_info_bytes code_huge_start code_huge_inside
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
NAMES = FIELDS.split()
FORMAT = "<" + "".join("Q" if name.endswith("*") else "I" for name in NAMES)

pid = int(sys.argv[1])
memory = Path(f"/proc/{pid}/mem").open("rb", buffering=0)  # noqa: SIM115 (to the end)


def read(address, form):
    memory.seek(address)
    return struct.unpack(form, memory.read(struct.calcsize(form)))


def find_layout():
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        if re.search(r"^\S+ r\S+ .*/libfolio", line):
            memory.seek(start)
            data = memory.read(end - start)
            at = data.find(b"FolioLay\10\0\0\0")
            if at >= 0 and struct.unpack_from("<Q", data, at + 48)[0] >= start:  # not a copy without addresses
                return start + at
    sys.exit("no Folio in this process, or of another version")


L = dict(zip((name.rstrip("*") for name in NAMES), read(find_layout() + 16, FORMAT), strict=True))
taken = [0] * L["codes"]
huge = 0
for window in read(L["windows"], f"<{1 << (L['table_bits'] - L['chunk_shift'] - L['window_shift'])}Q"):
    if window == 0:
        continue
    first = read(window + L["window_number_offset"], "<Q")[0] << L["window_shift"]
    first %= 1 << L["table_bits"] - L["chunk_shift"]  # the table's entry
    count = 1 << L["window_shift"]
    entries = read(L["chunk_table"] + first * L["chunk_entry_bytes"], f"<{count}H")
    codes = [entry // L["chunk_entry_step"] for entry in entries]
    codes = [code if code < L["code_watched"] else code - L["code_watched"] for code in codes]
    descriptors = read(window + L["window_descriptors_offset"], f"<{count}Q")
    for code, descriptor in zip(codes, descriptors, strict=True):
        if code == L["code_huge_start"] and descriptor and read(descriptor + L["huge_state_offset"], "<I")[0] == 1:
            huge += read(descriptor + L["huge_usable_offset"], "<Q")[0]
        if not 0 < code < L["bins"]:
            continue
        info = L["bin_info"] + code * L["bin_info_bytes"]
        folios = read(info + L["bin_info_folios_offset"], "<H")[0]
        hints = (folios + 63) // 64
        words = descriptor + L["descriptor_bytes"] + 8 * (3 * hints + 3 * L["page_words"])
        taken[code] += sum(word.bit_count() for word in read(words, f"<{folios}Q"))

for number in range(1, L["bins"]):
    if taken[number]:
        size = read(L["bin_info"] + number * L["bin_info_bytes"] + L["bin_info_size_offset"], "<I")[0]
        print(f"bin {number:2}: {taken[number]:8} objects of {size} bytes, live or cached")
large = 0
field = read(L["fields"], "<Q")[0]
while field:
    granules = read(field + L["field_granules_offset"], "<I")[0]
    first = field + L["field_bytes"] + granules // 8 * L["field_bitmaps"]
    step = L["field_entry_bytes"]
    entries = read(first, f"<{granules * step // 4}I")[:: step // 4]
    large += sum((entry & 0xFFFF) << L["granule_shift"] for entry in entries if entry >> 31)
    field = read(field + L["field_next_offset"], "<Q")[0]
print(f"large: {large} bytes live")
print(f"huge: {huge} bytes live")
