#include "diag/layout.h"

#include <stddef.h>

#include "cache/cpu_cache.h"
#include "cache/depot.h"
#include "cache/thread_caches.h"
#include "config/options.h"
#include "core/clock.h"
#include "core/ladder.h"
#include "folio/bin.h"
#include "space/chunk_table.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"

namespace folio {

extern "C" {
[[gnu::visibility("default")]] extern const Layout folio_layout;
const Layout folio_layout = {
    .magic = {'F', 'o', 'l', 'i', 'o', 'L', 'a', 'y'},
    .version = kLayoutVersion,
    .bytes = sizeof(Layout),
    .chunk_shift = kChunkShift,
    .window_shift = kWindowShift,
    .address_bits = arch::kAddressBits,
    .codes = kCodes,
    .bins = kBins,
    .bin_info_bytes = sizeof(BinInfo),
    .code_huge_start = kCodeHugeStart,
    .code_huge_inside = kCodeHugeInside,
    .chunk_table = chunk_table,
    .windows = windows,
    .bin_info = kSizes.info,
    .bin_array = bins,
    .page_counts = &page_counts,
    .thread_caches = &all_thread_caches,
    .cpu_caches = cpu_caches,
    .depot = depot,
    .options = &options,
    .window_bytes = sizeof(Window),
    .window_descriptors_offset = offsetof(Window, descriptor),
    .descriptor_bytes = sizeof(Descriptor),
    .descriptor_block_offset = offsetof(Descriptor, block),
    .descriptor_bin_offset = offsetof(Descriptor, bin),
    .descriptor_seal_offset = offsetof(Descriptor, seal),
    .huge_bytes = sizeof(HugeBlock),
    .huge_base_offset = offsetof(HugeBlock, base),
    .huge_reserved_offset = offsetof(HugeBlock, reserved_bytes),
    .huge_usable_offset = offsetof(HugeBlock, usable_bytes),
    .huge_touched_offset = offsetof(HugeBlock, touched_bytes),
    .huge_state_offset = offsetof(HugeBlock, state),
    .magazine_bytes = kMagazineBytes,
    .magazine_header_offset = kMagazineBytes - sizeof(uint64_t),
    .thread_cache_bytes = sizeof(ThreadCache),
    .thread_cache_next_offset = offsetof(ThreadCache, next_all),
    .thread_cache_tops_offset = offsetof(ThreadCache, tops),
    .cpu_cache_count = kCpusMost,
    .cpu_cache_lists_offset = offsetof(CpuCache, lists),
    .cpu_list_bytes = sizeof(CpuList),
    .cpu_list_objects_offset = offsetof(CpuList, objects),
    .depot_bin_bytes = sizeof(DepotBin),
    .bin_info_size_offset = offsetof(BinInfo, size),
    .bin_info_objects_offset = offsetof(BinInfo, objects),
    .bin_info_folios_offset = offsetof(BinInfo, folios),
    .page_words = kPageWords,
    .magazine_link_offset = kMagazineBytes - 2 * sizeof(uint64_t),
    .stack_tag_bits = MagazineStack::kTagBits,
    .resident_offset = offsetof(PageCounts, resident),
    .dirty_offset = offsetof(PageCounts, dirty),
    .purged_offset = offsetof(PageCounts, purged),
    .purge_calls_offset = offsetof(PageCounts, purge_calls),
    .code_large = kCodeLarge,
    .granule_shift = kGranuleShift,
    .fields = &fields,
    .chunk_entry_bytes = sizeof chunk_table[0],
    .chunk_entry_step = kTopBytes,
    .field_bytes = sizeof(Field),
    .field_base_offset = offsetof(Field, base),
    .field_next_offset = offsetof(Field, next),
    .field_granules_offset = offsetof(Field, granules),
    .metadata_pieces = &metadata_pieces,
    .region_cursor = &region_cursor,
    .region_reserved = &region_reserved,
    .option_rows = option_rows,
    .collect_request = &collect_request,
    .metadata_piece_used_offset = offsetof(MetadataPiece, used),
    .metadata_piece_bytes_offset = offsetof(MetadataPiece, bytes),
    .metadata_piece_previous_offset = offsetof(MetadataPiece, previous),
    .option_count = sizeof(Options) / sizeof(int64_t),
    .option_row_bytes = sizeof(OptionRow),
    .collect_wanted_offset = offsetof(CollectRequest, wanted),
    .collect_done_offset = offsetof(CollectRequest, done),
    .hint_block_bytes = sizeof(HintBlock),
    .cpu_cache_bytes = sizeof(CpuCache),
    .depot_shards = kShardsMost,
    .descriptor_first_offset = offsetof(Descriptor, first),
    .code_watched = kCodeWatched,
    .limit_state_bytes = sizeof(LimitState),
    .limit_request_bytes = sizeof(LimitRequest),
    .limit_state = &limit_state,
    .limit_request = &limit_request,
};
}

}  // namespace folio
