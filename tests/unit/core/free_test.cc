#include "core/free.h"

#include <errno.h>
#include <sys/mman.h>

#include <thread>

#include "core/realloc.h"
#include "space/chunk_table.h"
#include "unit/core/heap.h"
#include "unit/stderr_capture.h"

using namespace folio;
using namespace folio_test;

namespace {

std::string words_of(const void* object) { return object_words(bin_id(chunk_code(object))); }

class Free : public ::testing::Test {
 protected:
  Free() {
    options.errors = kErrorsWarn;
    options.housekeeper = kHousekeeperOff;  // it would read options that the destructor writes
  }
  ~Free() override { expect_everything_free(); }

  // What the body writes to standard error, without "folio: FUNC(ADDRESS): " and what follows the anchor.
  template <class Body>
  static std::string reported(Body&& body) {
    StderrCapture capture;
    body();
    return capture.stop();
  }
  static std::string reported_by_collect() {
    return reported([] { collect_everything("FUNC"); });
  }
  static std::string line(const void* address, const std::string& what, const char* anchor) {
    return "folio: FUNC(" + hex(address) + "): " + what + " (see docs/errors.md#" + anchor + ")\n";
  }
  static std::string freed(void* object) {
    return reported([=] { release(object, "FUNC"); });
  }
  static std::string interior(const void* address, const void* object) {
    return line(address, "not the start of an object: inside a " + words_of(object) + " at " + hex(object),
                "invalid-free");
  }

 private:
  SavedOptions saved_;
};

TEST_F(Free, NullIsFine) {
  EXPECT_EQ(freed(nullptr), "");
  EXPECT_EQ(reported([] { release_sized(nullptr, 100, "FUNC"); }), "");
}

TEST_F(Free, ErrnoIsKept) {
  errno = 4321;
  for (const size_t size : edge_sizes()) free_object(alloc(size));
  std::vector<void*> objects;
  for (unsigned i = 0; i < 5000; ++i) objects.push_back(alloc(100));
  for (void* object : objects) free_object(object);
  free_object(opaque(allocate_aligned(8 * kMiB, 1, false)));
  EXPECT_EQ(errno, 4321);
}

// So often that the thread caches the bin, if it caches it at all.
void use_often(size_t size) {
  std::vector<void*> objects;
  for (unsigned i = 0; i < 200; ++i) objects.push_back(alloc(size));
  for (void* object : objects) free_object(object);
}

TEST_F(Free, TheObjectFreedLastIsFoundAtOnce) {
  for (const size_t size : {size_t{1}, size_t{16}, size_t{100}, size_t{1000}, size_t{5000}}) {
    use_often(size);
    void* const object = alloc(size);
    EXPECT_EQ(freed(object), "");
    EXPECT_EQ(freed(object), line(object, "double free of a " + words_of(object), "double-free")) << size;
    EXPECT_EQ(freed(object), line(object, "double free of a " + words_of(object), "double-free")) << size;
  }
}

// What is found when magazines are emptied is told of one of the functions that do so.
std::string without_function(const std::string& reported) {
  return reported.substr(std::min(reported.size(), reported.find('(')));
}

TEST_F(Free, FurtherBackItIsFoundWhenTheMagazineIsEmptied) {
  for (const size_t size : {64, 1000, 5000}) {
    void* const object = alloc(size);
    void* const other = alloc(size);
    EXPECT_EQ(freed(object), "");
    EXPECT_EQ(freed(other), "");
    EXPECT_EQ(freed(object), "");
    const std::string reported = reported_by_collect();
    EXPECT_EQ(without_function(reported),
              without_function(line(object, "double free of a " + words_of(object), "double-free")));
  }
}

TEST_F(Free, AnInteriorPointerIsFoundWhenTheMagazineIsEmptied) {
  for (const size_t size : {64, 1000, 5000}) {
    auto* const object = static_cast<char*>(alloc(size));
    EXPECT_EQ(freed(object + 16), "");
    EXPECT_EQ(without_function(reported_by_collect()), without_function(interior(object + 16, object)));
    EXPECT_EQ(freed(object), "");
  }
}

TEST_F(Free, WhatIsNotFoliosIsFoundAtOnce) {
  int on_stack = 0;
  static int in_data = 0;
  void* const mapped = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* const libcs = malloc(100);
  for (void* foreign : {static_cast<void*>(&on_stack), static_cast<void*>(&in_data), mapped, libcs,
                        reinterpret_cast<void*>(uintptr_t{16})}) {
    EXPECT_EQ(freed(opaque(foreign)), line(foreign, "not an address of Folio's", "foreign-pointer"));
    EXPECT_EQ(reported([&] { release_sized(opaque(foreign), 8, "FUNC"); }),
              line(foreign, "not an address of Folio's", "foreign-pointer"));
    Extent extent;
    EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(foreign, "FUNC", &extent)); }),
              line(foreign, "not an address of Folio's", "foreign-pointer"));
  }
  free(libcs);
  munmap(mapped, 4096);
}

TEST_F(Free, HugeObjectsAreCheckedAtOnce) {
  auto* const object = static_cast<char*>(alloc(9 * kMiB));
  for (char* const inside : {object + 1, object + 8, object + kMiB, object + 2 * kMiB, object + 9 * kMiB - 1}) {
    EXPECT_EQ(freed(inside),
              line(inside, "not the start of an object: inside a huge object of 9437184 bytes at " + hex(object),
                   "invalid-free"));
  }
  EXPECT_EQ(freed(object), "");
  EXPECT_EQ(freed(object), line(object, "double free of a huge object", "double-free"));
  Extent extent;
  EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(object, "FUNC", &extent)); }),
            line(object, "double free of a huge object", "double-free"));
}

// Else each of its mallocs looks at the time. A free that the thread keeps does not.
TEST_F(Free, AThreadOfLargeObjectsAloneHasItsMallocsCounted) {
  uint32_t counted = 0;
  std::thread([&] {
    const auto turns = [](unsigned n) {
      for (unsigned i = 0; i < n; ++i) free_object(alloc(200 * kKiB));
    };
    turns(2);  // the first one comes from the field
    if (thread_state.cache == nullptr) return;
    const uint32_t before = thread_state.cache->activity.get();
    turns(16);
    counted = thread_state.cache->activity.get() - before;
  }).join();
  EXPECT_EQ(counted, 16u);
}

TEST_F(Free, LargeObjectsAreCheckedAtOnce) {
  const char* const gone = "no large object is there: freed before, or never returned";
  auto* const object = static_cast<char*>(alloc(3 * kMiB));
  const std::string room = std::to_string(usable(object));
  for (char* const inside : {object + 1, object + 8, object + kGranuleBytes, object + 2 * kMiB, object + 3 * kMiB}) {
    EXPECT_EQ(freed(inside),
              line(inside, "not the start of an object: inside a large object of " + room + " bytes at " + hex(object),
                   "invalid-free"));
  }
  // What a realloc has cut off is no longer its.
  char* const tail = object + 2 * kMiB;
  ASSERT_EQ(reallocate(object, 1, kMiB, "FUNC"), object);
  EXPECT_EQ(freed(tail), line(tail, gone, "double-free"));
  EXPECT_EQ(freed(object), "");
  EXPECT_EQ(freed(object), line(object, gone, "double-free"));
  Extent extent;
  EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(object, "FUNC", &extent)); }), line(object, gone, "double-free"));
  EXPECT_EQ(reported([&] { release_sized(object, 100 * kKiB, "FUNC"); }), line(object, gone, "double-free"));
  // A larger one lies there by now.
  auto* const around = static_cast<char*>(alloc(4 * kMiB));
  ASSERT_EQ(round_down(reinterpret_cast<uintptr_t>(around), kGranuleBytes),
            round_down(reinterpret_cast<uintptr_t>(object), kGranuleBytes));
  EXPECT_EQ(freed(tail), line(tail,
                              "not the start of an object: inside a large object of " + std::to_string(usable(around)) +
                                  " bytes at " + hex(around),
                              "invalid-free"));
  free_object(around);
}

TEST_F(Free, ADamagedFieldIsReportedAndNotUsed) {
  auto* const object = static_cast<char*>(alloc(100 * kKiB));
  Field& field = *static_cast<Field*>(descriptor_at(object));
  char* const base = field.base;
  field.base += kChunkBytes;
  const std::string damaged =
      line(object, "descriptor of chunk " + hex(chunk_start(object)) + " is damaged", "damaged-descriptor");
  EXPECT_EQ(freed(object), damaged);
  Extent extent;
  EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(object, "FUNC", &extent)); }), damaged);
  field.base = base;
  EXPECT_EQ(freed(object), "");
}

TEST_F(Free, ExtentOfEveryObject) {
  for (const size_t size : edge_sizes()) {
    void* const object = alloc(size);
    Extent extent{};
    ASSERT_TRUE(find_extent(object, "FUNC", &extent));
    EXPECT_EQ(extent.code, chunk_code(object));
    EXPECT_GE(extent.usable_bytes, size);
    EXPECT_EQ(extent.code == kCodeHugeStart, size > kLargeMost);
    EXPECT_EQ(extent.code == kCodeLarge, size > kMediumMost && size <= kLargeMost);
    if (extent.code < kBins) EXPECT_LE(extent.usable_bytes, kSizes.info[extent.code].size);
    free_object(object);
  }
}

TEST_F(Free, ExtentOfWhatIsNoObjectIsMisuse) {
  auto* const object = static_cast<char*>(alloc(64));
  Extent extent;
  EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(object + 8, "FUNC", &extent)); }), interior(object + 8, object));
  free_object(object);
  collect_everything("test");
  EXPECT_EQ(reported([&] { EXPECT_FALSE(find_extent(object, "FUNC", &extent)); }),
            line(object, "double free of a " + words_of(object), "double-free"))
      << "back in its folio it is known to be free";
}

TEST_F(Free, SizedTakesEverySizeThatTheObjectMayHave) {
  for (const size_t size : edge_sizes()) {
    void* const object = alloc(size);
    EXPECT_EQ(reported([&] { release_sized(object, size, "FUNC"); }), "") << size;
    void* const again = alloc(size);
    const size_t room = usable(again);
    EXPECT_EQ(reported([&] { release_sized(again, room, "FUNC"); }), "") << "all that it may use: " << room;
    void* const aligned = opaque(allocate_aligned(256, size, false));
    EXPECT_EQ(reported([&] { release_aligned_sized(aligned, size, "FUNC"); }), "") << size;
    void* const third = opaque(allocate_aligned(256, size, false));
    EXPECT_EQ(reported([&] { release_sized(third, size, "FUNC"); }), "") << size;
  }
}

TEST_F(Free, SizedFindsASizeThatIsTooLargeAtOnce) {
  for (const size_t size : {size_t{8}, size_t{64}, size_t{1000}, size_t{5000}, 30 * kKiB}) {
    void* const object = alloc(size);
    const size_t room = usable(object);
    for (const size_t wrong : {room + 1, 2 * room, 40 * kMiB, SIZE_MAX}) {
      if (wrong <= kSizes.info[chunk_code(object)].size) continue;  // within the slot, past the object: not looked at
      const std::string expected =
          line(object,
               "size " + std::to_string(wrong) + " given, but the object has " + std::to_string(room) +
                   " usable bytes (bin " + std::to_string(chunk_code(object)) + ")",
               "wrong-size");
      EXPECT_EQ(reported([&] { release_sized(object, wrong, "FUNC"); }), expected);
      EXPECT_EQ(reported([&] { release_aligned_sized(object, wrong, "FUNC"); }), expected);
    }
    EXPECT_EQ(freed(object), "") << "it still lives";
  }
  for (const size_t size : {100 * kKiB, 3 * kMiB, 9 * kMiB}) {
    void* const object = alloc(size);
    const size_t room = usable(object);
    for (const size_t wrong : {room + 1, 2 * room, 40 * kMiB, SIZE_MAX}) {
      const std::string expected =
          line(object,
               "size " + std::to_string(wrong) + " given, but the object has " + std::to_string(room) + " usable bytes",
               "wrong-size");
      EXPECT_EQ(reported([&] { release_sized(object, wrong, "FUNC"); }), expected);
      EXPECT_EQ(reported([&] { release_aligned_sized(object, wrong, "FUNC"); }), expected);
    }
    EXPECT_EQ(reported([&] { release_sized(object, size / 2, "FUNC"); }), "");
  }
}

TEST_F(Free, SizedOfAnInteriorPointer) {
  auto* const object = static_cast<char*>(alloc(300));
  EXPECT_EQ(reported([&] { release_sized(object + 16, 2000, "FUNC"); }), interior(object + 16, object));
  free_object(object);
}

TEST_F(Free, IgnoredMisuseChangesNothing) {
  options.errors = kErrorsIgnore;
  auto* const object = static_cast<char*>(alloc(64));
  auto* const huge = static_cast<char*>(alloc(3 * kMiB));
  int on_stack = 0;
  EXPECT_EQ(reported([&] {
              release(object, "FUNC");
              release(object, "FUNC");
              release(huge + 8, "FUNC");
              release(huge, "FUNC");
              release(huge, "FUNC");
              release(opaque(&on_stack), "FUNC");
            }),
            "");
  for (const BinId bin : all_bins()) EXPECT_TRUE(check_bin(process_store, bin));
}

TEST_F(Free, OfWhatAnotherThreadAllocated) {
  std::vector<void*> objects;
  std::thread([&] {
    for (const size_t size : edge_sizes()) objects.push_back(alloc(size));
  }).join();
  EXPECT_EQ(reported([&] {
              for (void* object : objects) release(object, "FUNC");
            }),
            "");
}

// An emulator has a line of its own to add.
TEST(FreeDeathTest, AbortIsTheDefault) {
  EXPECT_DEATH(
      {
        void* const object = alloc(64);
        release(object, "free");
        release(object, "free");
      },
      "^folio: free\\(0x[0-9a-f]+\\): double free of a 64-byte object \\(bin [0-9]+\\) \\(see "
      "docs/errors.md#double-free\\)\n(qemu: .*)?$");
}

}  // namespace
