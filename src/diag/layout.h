// The layout descriptor: where everything is, for a reader outside the process. Exported as `folio_layout`; found by
// its symbol, or by its magic number in the library's data. docs/layout.md describes how to read it.
#pragma once

#include <stdint.h>

namespace folio {

inline constexpr uint32_t kLayoutVersion = 6;

struct Layout {
  char magic[8];     // "FolioLay"
  uint32_t version;  // kLayoutVersion
  uint32_t bytes;    // sizeof(Layout)
  uint32_t chunk_shift, window_shift, address_bits, codes;
  uint32_t bins, bin_info_bytes, code_huge_start, code_huge_inside;
  const void *chunk_table, *windows, *bin_info, *bin_array;
  const void *page_counts, *thread_caches, *cpu_caches, *depot, *options;
  uint32_t window_bytes, window_descriptors_offset;
  uint32_t descriptor_bytes, descriptor_block_offset, descriptor_bin_offset, descriptor_seal_offset;
  uint32_t huge_bytes, huge_base_offset, huge_reserved_offset, huge_usable_offset, huge_touched_offset,
      huge_state_offset;
  uint32_t magazine_bytes, magazine_header_offset;
  uint32_t thread_cache_bytes, thread_cache_next_offset, thread_cache_tops_offset;
  uint32_t cpu_cache_count, cpu_cache_lists_offset, cpu_list_bytes, cpu_list_objects_offset, depot_bin_bytes;
  uint32_t bin_info_size_offset, bin_info_objects_offset, bin_info_folios_offset;
  uint32_t page_words, magazine_link_offset, stack_tag_bits;
  uint32_t resident_offset, dirty_offset, purged_offset, purge_calls_offset;
  uint32_t code_large, granule_shift;
  const void *fields;
  uint32_t chunk_entry_bytes, chunk_entry_step;
  uint32_t field_bytes, field_base_offset, field_next_offset, field_granules_offset;
  const void *metadata_pieces, *region_cursor, *region_reserved, *option_rows, *collect_request;
  uint32_t metadata_piece_used_offset, metadata_piece_bytes_offset, metadata_piece_previous_offset;
  uint32_t option_count, option_row_bytes;
  uint32_t collect_wanted_offset, collect_done_offset;
  uint32_t hint_block_bytes, cpu_cache_bytes, depot_shards, descriptor_first_offset;
  uint32_t code_watched;
  uint32_t limit_state_bytes, limit_request_bytes;
  const void *limit_state, *limit_request;
};

}  // namespace folio
