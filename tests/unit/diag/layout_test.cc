// The layout read as a tool reads it: by its offsets alone, through copies, without a header of the library but
// layout.h.
// What it finds must be what the library itself says.
#include "diag/layout.h"

#include "cache/thread_cache.h"
#include "os/os.h"
#include "space/huge.h"
#include "space/large.h"
#include "space/metadata.h"
#include "space/region.h"
#include "store/bin.h"
#include "store/occupancy.h"
#include "unit/core/heap.h"

extern "C" const folio::Layout folio_layout;

using namespace folio;
using namespace folio_test;

namespace {

template <class T>
T copied(const void* address, size_t offset = 0) {
  static const bool peeks = can_peek();
  const char* const from = static_cast<const char*>(address) + offset;
  T value{};
  if (peeks) {
    EXPECT_TRUE(os::peek(&value, from, sizeof value));
  } else {
    memcpy(&value, from, sizeof value);
  }
  return value;
}

class Reader {
 public:
  uint8_t code(const void* address) const {
    const uintptr_t chunk = reinterpret_cast<uintptr_t>(address) >> layout_.chunk_shift;
    const uintptr_t entries = uintptr_t{1} << (layout_.table_bits - layout_.chunk_shift);
    const auto entry = copied<uint16_t>(layout_.chunk_table, chunk % entries * layout_.chunk_entry_bytes);
    const auto code = static_cast<uint8_t>(entry / layout_.chunk_entry_step);
    return code < layout_.code_watched ? code : static_cast<uint8_t>(code - layout_.code_watched);
  }
  // The descriptor of an address's chunk, or of its huge object.
  const char* descriptor(const void* address) const {
    const uintptr_t chunk = reinterpret_cast<uintptr_t>(address) >> layout_.chunk_shift;
    const uintptr_t windows = uintptr_t{1} << (layout_.table_bits - layout_.chunk_shift - layout_.window_shift);
    const auto* window =
        copied<const char*>(layout_.windows, (chunk >> layout_.window_shift) % windows * sizeof(void*));
    const size_t slot = chunk & ((size_t{1} << layout_.window_shift) - 1);
    return window == nullptr ? nullptr
                             : copied<const char*>(window, layout_.window_descriptors_offset + slot * sizeof(void*));
  }
  uint32_t bin_size(unsigned bin) const { return info<uint32_t>(bin, layout_.bin_info_size_offset); }
  template <class T>
  T info(unsigned bin, uint32_t offset) const {
    return copied<T>(layout_.bin_info, size_t{bin} * layout_.bin_info_bytes + offset);
  }
  // Whether a walk over all fields comes by this one.
  bool in_fields(const char* descriptor) const {
    const auto* field = copied<const char*>(layout_.fields);
    while (field != nullptr && field != descriptor) field = copied<const char*>(field, layout_.field_next_offset);
    return field != nullptr;
  }
  // The entry of the large object that starts at the address; granules taken in its field, in occupancy words.
  uint32_t entry(const char* field, const void* object) const {
    const auto granules = copied<uint32_t>(field, layout_.field_granules_offset);
    const size_t number =
        static_cast<size_t>(static_cast<const char*>(object) - copied<char*>(field, layout_.field_base_offset)) >>
        layout_.granule_shift;
    return copied<uint32_t>(
        field, layout_.field_bytes + granules / 8 * layout_.field_bitmaps + number * layout_.field_entry_bytes);
  }
  uint64_t taken_granules(const char* field) const {
    const auto granules = copied<uint32_t>(field, layout_.field_granules_offset);
    uint64_t n = 0;
    for (size_t i = 0; i < granules / 64; ++i) n += popcount(copied<uint64_t>(field, layout_.field_bytes + i * 8));
    return n;
  }
  // Bits set in the occupancy words: the last ones of a descriptor.
  uint64_t taken(const char* descriptor) const {
    const auto bin = copied<uint8_t>(descriptor, layout_.descriptor_bin_offset);
    const auto folios = info<uint16_t>(bin, layout_.bin_info_folios_offset);
    const size_t hints = (folios + 63u) / 64u;
    uint64_t n = 0;
    for (size_t i = 0; i < folios; ++i) {
      n += popcount(
          copied<uint64_t>(descriptor, layout_.descriptor_bytes + (3 * hints + 3 * layout_.page_words + i) * 8));
    }
    return n;
  }
  // Objects of a bin in the thread caches.
  uint64_t in_threads(unsigned bin) const {
    uint64_t n = 0;
    const auto* cache = copied<const char*>(layout_.thread_caches);
    while (cache != nullptr) {
      const auto* cursors = copied<const char*>(cache, layout_.thread_cache_cursors_offset);
      if (cursors != nullptr && copied<const char*>(cursors, layout_.codes * sizeof(void*)) == cache) {
        const auto cursor = copied<uintptr_t>(cursors, bin * sizeof(void*));
        n += count(cursor - cursor % layout_.magazine_bytes, cursor % layout_.magazine_bytes / sizeof(void*));
      }
      cache = copied<const char*>(cache, layout_.thread_cache_next_offset);
    }
    return n;
  }
  uint64_t in_cpus(unsigned bin) const {
    uint64_t n = 0;
    for (unsigned i = 0; i < layout_.cpu_cache_count; ++i) {
      const auto* cache = copied<const char*>(layout_.cpu_caches, i * sizeof(void*));
      if (cache == nullptr) continue;
      n += copied<uint32_t>(cache, layout_.cpu_cache_lists_offset + size_t{bin} * layout_.cpu_list_bytes +
                                       layout_.cpu_list_objects_offset);
    }
    return n;
  }
  uint64_t in_depot(unsigned bin) const {
    uint64_t n = 0;
    constexpr uint64_t kNext = (uint64_t{1} << 48) - 512;
    const unsigned shift = lowest_bit(layout_.magazine_bytes);
    for (unsigned i = 0; i < 2 * layout_.depot_shards; ++i) {
      const size_t entry = size_t{i / 2} * layout_.bins + bin;
      const auto head = copied<uint64_t>(layout_.depot, entry * layout_.depot_bin_bytes + i % 2 * 8);
      for (uint64_t bundle = head >> layout_.stack_tag_bits << shift; bundle != 0;
           bundle = copied<uint64_t>(reinterpret_cast<void*>(bundle), layout_.magazine_link_offset)) {
        for (uint64_t magazine = bundle; magazine != 0; magazine = header(magazine) & kNext) {
          n += count(magazine, header(magazine) % layout_.magazine_bytes);
        }
      }
    }
    return n;
  }

 private:
  uint64_t header(uintptr_t magazine) const {
    return copied<uint64_t>(reinterpret_cast<void*>(magazine), layout_.magazine_header_offset);
  }
  uint64_t count(uintptr_t magazine, uint64_t top) const {
    const uint64_t bottom = header(magazine) >> 48 & 0xff;
    return bottom > top ? bottom - top : 0;
  }
  const Layout& layout_ = folio_layout;
};

const Reader reader;

// Nothing goes by itself while it is counted.
const struct Still {
  Still() {
    options.decay = 3600000;
    options.housekeeper = kHousekeeperOff;
  }
} still;

TEST(Layout, NamesItself) {
  EXPECT_EQ(memcmp(folio_layout.magic, "FolioLay", 8), 0);
  EXPECT_EQ(folio_layout.version, kLayoutVersion);
  EXPECT_EQ(folio_layout.bytes, sizeof(Layout));
  EXPECT_EQ(folio_layout.bins, kBins);
  EXPECT_EQ(folio_layout.codes, kCodes);
  EXPECT_EQ(folio_layout.table_bits, kTableBits);
}

TEST(Layout, LeadsFromEveryObjectToItsBin) {
  for (const size_t size : edge_sizes()) {
    void* const object = alloc(size);
    const unsigned code = reader.code(object);
    ASSERT_EQ(code, chunk_code(object)) << size;
    const char* const descriptor = reader.descriptor(object);
    ASSERT_NE(descriptor, nullptr);
    if (code == folio_layout.code_huge_start) {
      EXPECT_EQ(copied<void*>(descriptor, folio_layout.huge_base_offset), object);
      EXPECT_EQ(copied<size_t>(descriptor, folio_layout.huge_usable_offset), usable(object));
      EXPECT_EQ(copied<size_t>(descriptor, folio_layout.huge_reserved_offset), huge_at(object)->reserved_bytes);
      EXPECT_EQ(copied<size_t>(descriptor, folio_layout.huge_touched_offset), huge_at(object)->touched_bytes);
      EXPECT_EQ(copied<uint32_t>(descriptor, folio_layout.huge_state_offset), kHugeLive);
    } else if (code == folio_layout.code_large) {
      const char* const base = copied<char*>(descriptor, folio_layout.field_base_offset);
      const uint32_t granules = copied<uint32_t>(descriptor, folio_layout.field_granules_offset);
      EXPECT_LE(base, object);
      EXPECT_GE(base + (size_t{granules} << folio_layout.granule_shift), static_cast<char*>(object) + usable(object));
      EXPECT_TRUE(reader.in_fields(descriptor));
      const uint32_t entry = reader.entry(descriptor, object);
      const size_t offset = size_t{entry >> 16 & 63} * 64, bytes = size_t{entry & 0xffff} << folio_layout.granule_shift;
      EXPECT_EQ(entry >> 31, 1u);
      EXPECT_EQ(offset, static_cast<size_t>(static_cast<char*>(object) - base) % kGranuleBytes);
      const size_t spare = size_t{entry >> 22 & 3} * 4096;
      EXPECT_EQ(bytes - spare - offset, usable(object));
      const uint64_t parked = large_stats(process_fields).parked >> folio_layout.granule_shift;
      EXPECT_EQ(reader.taken_granules(descriptor), (entry & 0xffff) + parked) << "nothing else is live";
    } else {
      EXPECT_EQ(copied<uint8_t>(descriptor, folio_layout.descriptor_bin_offset), code);
      EXPECT_EQ(reader.bin_size(code), info_of(bin_id(code)).size);
      EXPECT_EQ(reader.info<uint32_t>(code, folio_layout.bin_info_objects_offset), info_of(bin_id(code)).objects);
      const char* const first = copied<char*>(descriptor, folio_layout.descriptor_first_offset);
      EXPECT_EQ((static_cast<char*>(object) - first) % info_of(bin_id(code)).size, 0);
    }
    free_object(object);
  }
  int on_stack = 0;
  EXPECT_EQ(reader.code(&on_stack), 0u);
}

TEST(Layout, CountsWhatIsTakenAndWhereItWaits) {
  for (const size_t size : {size_t{16}, size_t{100}, size_t{3000}, 20 * kKiB, 32 * kKiB}) {
    const BinId bin = bin_of(size);
    std::vector<void*> objects;
    for (unsigned i = 0; i < 2000 && i * size < 40 * kMiB; ++i) objects.push_back(alloc(size));
    const void* const some = objects[0];
    for (size_t i = 10; i < objects.size(); ++i) free_object(objects[i]);
    uint64_t taken = 0;
    visit_chunks(process_store, bin, [&](Descriptor& d) {
      taken += reader.taken(reinterpret_cast<const char*>(&d));
      return true;
    });
    const BinStats s = bin_stats(bin);
    EXPECT_EQ(taken, s.taken) << size;
    EXPECT_EQ(reader.in_threads(index(bin)) + reader.in_cpus(index(bin)) + reader.in_depot(index(bin)), s.cached)
        << size;
    EXPECT_EQ(s.taken - s.cached, 10u);
    EXPECT_EQ(reader.descriptor(some), static_cast<void*>(place_of(some).descriptor));
    for (unsigned i = 0; i < 10; ++i) free_object(objects[i]);
  }
}

TEST(Layout, WalksTheDepotsBundles) {
  depot_set_shared(process_caches.depot);
  options.cpu_cache = 0;  // so that whatever a thread hands on goes there
  std::vector<void*> objects;
  for (unsigned i = 0; i < 5000; ++i) objects.push_back(alloc(64));
  for (void* object : objects) free_object(object);
  const BinId bin = bin_of(64);
  EXPECT_GT(depot_objects(process_caches.depot, bin), 1000u);
  EXPECT_EQ(reader.in_depot(index(bin)), depot_objects(process_caches.depot, bin));
  options.cpu_cache = Options{}.cpu_cache;
}

TEST(Layout, HoldsTheAccountsAndTheOptions) {
  void* const object = alloc(3 * kMiB);
  free_object(object);
  const auto at = [](uint32_t offset) { return copied<int64_t>(folio_layout.page_counts, offset); };
  EXPECT_EQ(at(folio_layout.resident_offset), page_counts.resident.get());
  EXPECT_EQ(at(folio_layout.dirty_offset), page_counts.dirty.get());
  EXPECT_GE(at(folio_layout.dirty_offset), static_cast<int64_t>(3 * kMiB));
  collect_everything("test");
  EXPECT_EQ(at(folio_layout.dirty_offset), page_counts.dirty.get());
  EXPECT_EQ(static_cast<uint64_t>(at(folio_layout.purged_offset)), page_counts.purged.get());
  EXPECT_EQ(static_cast<uint64_t>(at(folio_layout.purge_calls_offset)), page_counts.purge_calls.get());
  EXPECT_NE(at(folio_layout.purged_offset), 0);
  const size_t place = reinterpret_cast<const char*>(&options.decay) - reinterpret_cast<const char*>(&options);
  EXPECT_EQ(copied<int64_t>(folio_layout.options, place), options.decay);
}

TEST(Layout, NamesEachOption) {
  ASSERT_EQ(folio_layout.option_count, option_count);
  for (unsigned i = 0; i < option_count; ++i) {
    const auto* row = static_cast<const char*>(folio_layout.option_rows) + size_t{i} * folio_layout.option_row_bytes;
    EXPECT_STREQ(copied<const char*>(row), option_rows[i].name);
    EXPECT_EQ(copied<size_t>(row, 8), i * sizeof(int64_t)) << "in the order of the table";
  }
}

TEST(Layout, HoldsEveryPieceOfMetadata) {
  free_object(alloc(100));          // the first piece, with a thread cache
  metadata_alloc(size_t{3} << 20);  // more than that piece has
  size_t used = 0, pieces = 0;
  bool held = false;
  const auto in = [&](const char* piece, uint32_t offset) { return copied<size_t>(piece, offset); };
  for (auto* piece = copied<const char*>(folio_layout.metadata_pieces); piece != nullptr;
       piece = copied<const char*>(piece, folio_layout.metadata_piece_previous_offset)) {
    const size_t bytes = in(piece, folio_layout.metadata_piece_bytes_offset);
    EXPECT_LE(in(piece, folio_layout.metadata_piece_used_offset), bytes);
    used += in(piece, folio_layout.metadata_piece_used_offset);
    const auto* cache = copied<const char*>(folio_layout.thread_caches);
    held = held || (cache >= piece && cache < piece + bytes);
    ++pieces;
  }
  EXPECT_GE(pieces, 2u);
  EXPECT_GE(used, metadata_bytes());
  EXPECT_TRUE(held);
}

TEST(Layout, HoldsTheRegionInUse) {
  void* const object = alloc(100);
  EXPECT_EQ(copied<size_t>(folio_layout.region_reserved), region_bytes());
  const auto cursor = copied<uint64_t>(folio_layout.region_cursor);
  EXPECT_LE(cursor >> 32, cursor & 0xffffffffu);
  free_object(object);
}

}  // namespace
