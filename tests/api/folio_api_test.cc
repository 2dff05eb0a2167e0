// The questions that folio.h answers: what an address is, what is in use, which version and options are in force.
#include <sys/mman.h>

#include <string>
#include <thread>

#include "support.h"

using namespace folio_test;

namespace {

TEST(Version, IsTheHeaders) {
  std::string expected = std::to_string(FOLIO_VERSION_MAJOR) + "." + std::to_string(FOLIO_VERSION_MINOR) + "." +
                         std::to_string(FOLIO_VERSION_PATCH);
  EXPECT_EQ(folio_version(), expected);
  EXPECT_EQ(folio_version(), folio_version());
}

TEST(OptionGet, KnowsTheDefaults) {
  int64_t value = -1;
  EXPECT_TRUE(folio_option_get("decay", &value));
  EXPECT_EQ(value, 1000);
  EXPECT_TRUE(folio_option_get("errors", &value));
  EXPECT_EQ(value, 0);
  EXPECT_TRUE(folio_option_get("stats", &value));
  EXPECT_EQ(value, 0);
}

TEST(OptionGet, RefusesWhatIsNone) {
  int64_t value = 4711;
  for (const char *name : {"", "deca", "decayy", "Decay", "decay:1", " decay", "nonsense"}) {
    EXPECT_FALSE(folio_option_get(name, &value)) << name;
  }
  EXPECT_EQ(value, 4711);
}

TEST(OptionSet, HoldsFromThenOn) {
  int64_t value = -1;
  ASSERT_TRUE(folio_option_set("decay", 77));
  ASSERT_TRUE(folio_option_get("decay", &value));
  EXPECT_EQ(value, 77);
  ASSERT_TRUE(folio_option_set("decay", 1000));
  // What would end the process does nothing.
  char *object = opaque(static_cast<char *>(malloc(100000)));
  ASSERT_TRUE(folio_option_set("errors", 2));
  free(opaque(object + 16));
  ASSERT_TRUE(folio_option_set("errors", 0));
  free(object);
}

TEST(OptionSet, RefusesWhatCannotBe) {
  for (const char *name : {"", "decayy", "watch", "stats", "housekeeper", "cpu_cache", "limit_soft", "profile"}) {
    EXPECT_FALSE(folio_option_set(name, 1)) << name;
  }
  for (const int64_t bad : {int64_t{-1}, int64_t{3}, INT64_MAX}) EXPECT_FALSE(folio_option_set("errors", bad)) << bad;
  for (const int64_t bad : {int64_t{-1}, int64_t{3600001}, INT64_MIN}) {
    EXPECT_FALSE(folio_option_set("decay", bad)) << bad;
  }
  int64_t value = -1;
  ASSERT_TRUE(folio_option_get("errors", &value));
  EXPECT_EQ(value, 0);
}

TEST(IsOurs, AnyAddress) {
  static int in_data = 1;
  int on_stack = 1;
  void *mapped = mmap(nullptr, 4 * kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_FALSE(folio_is_ours(&in_data));
  EXPECT_FALSE(folio_is_ours(&on_stack));
  EXPECT_FALSE(folio_is_ours(mapped));
  EXPECT_FALSE(folio_is_ours(nullptr));
  EXPECT_FALSE(folio_is_ours(reinterpret_cast<void *>(&folio_version)));
  for (uintptr_t address : {uintptr_t{1}, uintptr_t{4096}, uintptr_t{0x7fffffffffff}, uintptr_t{0x800000000000},
                            uintptr_t{0xffff800000000000}, UINTPTR_MAX - (2 * kMiB), UINTPTR_MAX}) {
    EXPECT_FALSE(folio_is_ours(reinterpret_cast<void *>(address))) << address;
  }
  munmap(mapped, 4 * kMiB);
}

// Every bit of an address set alone, and from there up: no address faults.
TEST(IsOurs, NeverFaults) {
  size_t ours = 0;
  for (unsigned bit = 0; bit < 64; bit++) {
    for (uintptr_t address : {uintptr_t{1} << bit, ~uintptr_t{0} << bit, (uintptr_t{1} << bit) - 1}) {
      ours += folio_is_ours(reinterpret_cast<void *>(address));
      folio_place place;
      ours += folio_locate(reinterpret_cast<void *>(address), &place);
    }
  }
  EXPECT_EQ(ours, 0u);
}

TEST(IsOurs, EveryByteOfAnObject) {
  for (size_t size : {1, 100, 5000, 100000, 3000000}) {
    char *object = static_cast<char *>(opaque(malloc(size)));
    for (size_t at = 0; at < size; at += size / 100 + 1) EXPECT_TRUE(folio_is_ours(object + at));
    EXPECT_TRUE(folio_is_ours(object + size - 1));
    free(object);
  }
}

TEST(Locate, AnyByteOfAnyObject) {
  std::vector<size_t> sizes = bin_sizes();
  for (size_t beyond : {kMiB + 1, 3 * kMiB, 9 * kMiB}) sizes.push_back(beyond);
  uint32_t bin_before = 0;
  for (size_t size : sizes) {
    char *objects[5];
    for (char *&object : objects) object = static_cast<char *>(opaque(malloc(size)));
    uint32_t bin = 0;
    for (char *object : objects) {
      size_t usable = folio_usable_size(object);
      for (size_t at : {size_t{0}, size_t{1}, usable / 3, usable / 2, usable - 1}) {
        folio_place place = {};
        ASSERT_TRUE(folio_locate(object + at, &place)) << size << " + " << at;
        ASSERT_EQ(place.base, object) << size << " + " << at;
        ASSERT_EQ(place.usable_size, usable);
        ASSERT_TRUE(place.taken);
        bin = place.bin;
      }
    }
    constexpr size_t kBinMost = 32832;
    if (size <= kBinMost) {
      EXPECT_GT(bin, bin_before) << "bins ascend with their sizes, from 1";
      bin_before = bin;
    } else {
      EXPECT_EQ(bin, 0u) << "a large or a huge object";
    }
    for (char *object : objects) free(object);
  }
}

TEST(Locate, AlignedObjects) {
  for (size_t alignment = 8; alignment <= 16 * kMiB; alignment *= 2) {
    for (size_t size : {size_t{1}, alignment + 1}) {
      char *object = static_cast<char *>(opaque(aligned_alloc(alignment, size)));
      ASSERT_NE(object, nullptr);
      folio_place place = {};
      ASSERT_TRUE(folio_locate(object + size - 1, &place));
      EXPECT_EQ(place.base, object) << alignment << " " << size;
      EXPECT_EQ(place.usable_size, malloc_usable_size(object));
      free(object);
    }
  }
}

TEST(Locate, TellsWhatIsFree) {
  constexpr int kCount = 300;
  std::vector<void *> objects;
  for (int i = 0; i < kCount; i++) objects.push_back(opaque(malloc(1500)));
  for (int i = 0; i < kCount; i++) {
    if (i % 2 == 1) free(objects[static_cast<size_t>(i)]);
  }
  folio_collect();
  for (int i = 0; i < kCount; i++) {
    folio_place place = {};
    ASSERT_TRUE(folio_locate(objects[static_cast<size_t>(i)], &place));
    EXPECT_EQ(place.taken, i % 2 == 0) << i;
  }
  for (int i = 0; i < kCount; i += 2) free(objects[static_cast<size_t>(i)]);
}

TEST(Locate, RefusesWhatIsNoObject) {
  folio_place place = {};
  int on_stack = 0;
  EXPECT_FALSE(folio_locate(nullptr, &place));
  EXPECT_FALSE(folio_locate(&on_stack, &place));
  EXPECT_FALSE(folio_locate(reinterpret_cast<void *>(&folio_version), &place));
}

TEST(StatsGet, FillsOnlyWhatTheCallerHas) {
  folio_stats stats;
  memset(&stats, 0xee, sizeof stats);
  stats.struct_size = 0;
  EXPECT_FALSE(folio_stats_get(&stats));
  constexpr size_t kShort = offsetof(folio_stats, dirty);
  stats.struct_size = kShort;
  EXPECT_TRUE(folio_stats_get(&stats));
  size_t untouched;
  memset(&untouched, 0xee, sizeof untouched);
  EXPECT_EQ(stats.dirty, untouched);
  EXPECT_NE(stats.live, untouched);
  // A caller of a later version has more fields.
  struct {
    folio_stats known;
    size_t later[8];
  } larger = {};
  larger.known.struct_size = sizeof larger;
  EXPECT_TRUE(folio_stats_get(&larger.known));
  EXPECT_GT(larger.known.chunks, 0u);
}

TEST(StatsGet, LiveFollowsTheProgram) {
  for (size_t size : {16, 500, 20000, 400000, 5000000, 9000000}) {
    size_t count = 50 * kMiB / size;
    size_t before = stats_now().live;
    std::vector<void *> objects(count);
    size_t bytes = 0;
    for (void *&object : objects) {
      object = opaque(malloc(size));
      bytes += folio_usable_size(object);
    }
    folio_stats during = stats_now();
    // The vector itself is live, too.
    EXPECT_GE(during.live, before + bytes * 99 / 100) << size;
    // Counted by the size of their slots, or, of large objects, with what lies before their cache line.
    EXPECT_LE(during.live, before + bytes * 125 / 100 + count * sizeof(void *) * 3 / 2 + 65536) << size;
    EXPECT_GE(during.reserved, during.live);
    EXPECT_GT(during.metadata, 0u);
    EXPECT_GE(during.huge_live, size > 8 * kMiB ? bytes * 99 / 100 : 0);
    for (void *object : objects) free(object);
    folio_stats after = stats_now();
    EXPECT_LE(after.live, before + count * sizeof(void *) * 3 / 2 + 65536) << size;
  }
}

TEST(StatsGet, ThreadsAreCounted) {
  size_t before = stats_now().threads;
  EXPECT_GE(before, 1u);
  size_t during = 0;
  std::thread([&during] {
    free(opaque(malloc(100)));
    during = stats_now().threads;
  }).join();
  EXPECT_EQ(during, before + 1);
  EXPECT_EQ(stats_now().threads, before);
}

size_t resident_bytes() {
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  size_t total = 0, resident = 0;
  EXPECT_EQ(fscanf(file, "%zu %zu", &total, &resident), 2);
  fclose(file);
  return resident * page_bytes();
}

TEST(Collect, GivesMemoryBack) {
  for (size_t size : {64, 3000, 100000, 3000000}) {
    size_t count = 100 * kMiB / size;
    std::vector<void *> objects(count);
    folio_collect();
    size_t before = resident_bytes();
    for (void *&object : objects) {
      object = opaque(malloc(size));
      memset(object, 1, size);
    }
    size_t full = resident_bytes();
    ASSERT_GT(full, before + 80 * kMiB) << size;
    for (void *object : objects) free(object);
    uint64_t purged = stats_now().purged;
    size_t given_back = folio_collect();
    size_t after = resident_bytes();
    EXPECT_LT(after, before + 10 * kMiB + full / 50) << size;
    EXPECT_LE(given_back, full + full / 4) << "whole granules, also what the program did not touch of them";
    EXPECT_GE(stats_now().purged, purged + given_back);
    EXPECT_LT(stats_now().dirty, 4 * kMiB) << size;
  }
}

TEST(Collect, IsSafeWhenThereIsNothing) {
  folio_collect();
  for (int i = 0; i < 100; i++) EXPECT_LT(folio_collect(), kMiB);
}

struct Written {
  std::string text;
  size_t pieces = 0;
};

void append(void *context, const char *text, size_t length) {
  Written *written = static_cast<Written *>(context);
  written->text.append(text, length);  // allocates while the statistics are being written: allowed
  written->pieces++;
}

TEST(StatsText, IsOneScreen) {
  Written written;
  folio_stats_text(append, &written);
  EXPECT_GT(written.pieces, 0u);
  ASSERT_FALSE(written.text.empty());
  EXPECT_EQ(written.text.back(), '\n');
  size_t lines = 0, width = 0, longest = 0;
  for (char c : written.text) {
    width = c == '\n' ? 0 : width + 1;
    lines += c == '\n';
    longest = std::max(longest, width);
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
  }
  EXPECT_LE(lines, 50u);
  EXPECT_GE(lines, 3u);
  EXPECT_LE(longest, 120u);
  for (const char *word : {"live", "cached", "dirty", "RSS", "metadata"}) {
    EXPECT_NE(written.text.find(word), std::string::npos) << word;
  }
}

TEST(StatsJson, IsOneObject) {
  Written written;
  folio_stats_json(append, &written);
  ASSERT_FALSE(written.text.empty());
  EXPECT_EQ(written.text.front(), '{');
  for (const char *name : {"\"live\"", "\"cached\"", "\"dirty\"", "\"resident\"", "\"metadata\"", "\"reserved\""}) {
    EXPECT_NE(written.text.find(name), std::string::npos) << name;
  }
}

}  // namespace
