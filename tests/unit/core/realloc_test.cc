#include "core/realloc.h"

#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include "space/huge.h"
#include "space/huge_pace.h"
#include "space/room.h"
#include "store/occupancy.h"
#include "unit/cache/magazines.h"
#include "unit/child.h"
#include "unit/core/heap.h"
#include "unit/stderr_capture.h"

using namespace folio;
using namespace folio_test;

namespace {

void* resize(void* object, size_t size) { return opaque(reallocate(object, 1, size, "realloc")); }

// As the kernel counts them, which leaves out pages that were only read.
int64_t resident_pages() {
  int64_t all = 0, resident = 0;
  FILE* const file = fopen("/proc/self/statm", "r");
  EXPECT_EQ(fscanf(file, "%ld %ld", &all, &resident), 2);
  fclose(file);
  return resident;
}

class Realloc : public ::testing::Test {
 protected:
  ~Realloc() override { expect_everything_free(); }
};

TEST_F(Realloc, OfNullAllocates) {
  void* const object = resize(nullptr, 100);
  ASSERT_NE(object, nullptr);
  EXPECT_EQ(chunk_code(object), index(bin_of(100)));
  free_object(object);
  void* const empty = resize(nullptr, 0);
  EXPECT_NE(empty, nullptr);
  free_object(empty);
}

TEST_F(Realloc, ToZeroFrees) {
  void* const object = alloc(100);
  EXPECT_EQ(resize(object, 0), nullptr);
  EXPECT_EQ(alloc(100), object);
  free_object(object);
}

TEST_F(Realloc, FromEverySizeToEverySizeKeepsTheContents) {
  std::vector<size_t> sizes;
  for (const size_t size :
       {1, 8, 9, 16, 17, 64, 100, 256, 1000, 1024, 1025, 2000, 4096, 5000, 16448, 16449, 32832, 32833}) {
    sizes.push_back(size);
  }
  for (const size_t size : {20 * kKiB, 100 * kKiB, 900 * kKiB, kMiB, kMiB + 1, 3 * kMiB, kLargeMost, kLargeMost + 1}) {
    sizes.push_back(size);
  }
  for (const size_t from : sizes) {
    for (const size_t to : sizes) {
      if (kSanitized && from + to > 12 * kMiB) continue;
      void* const object = alloc(from);
      fill(object, from, 1);
      void* const resized = resize(object, to);
      ASSERT_NE(resized, nullptr);
      ASSERT_TRUE(filled(resized, std::min(from, to), 1)) << from << " to " << to;
      ASSERT_GE(usable(resized), to);
      memset(resized, 2, to);
      free_object(resized);
    }
  }
}

TEST_F(Realloc, StaysWhereItFitsWell) {
  for (const size_t size : {size_t{100}, size_t{1000}, size_t{5000}, 20 * kKiB}) {
    void* const object = alloc(size);
    const size_t room = usable(object);
    EXPECT_EQ(resize(object, room), object) << "grows to the end of its slot";
    EXPECT_EQ(resize(object, room / 2), object) << "shrinks to half";
    void* const moved = resize(object, room / 2 - room / 16);
    EXPECT_NE(moved, object) << "and less is worth another bin";
    EXPECT_LT(usable(moved), room);
    free_object(moved);
  }
  void* const small = alloc(64);
  EXPECT_EQ(resize(small, 1), small) << "little is to be had";
  free_object(small);
}

// Containers double and halve, and bins lie just above powers of two.
TEST_F(Realloc, HalfOfAPowerOfTwoStays) {
  for (size_t size = 128; size <= 32 * kKiB; size *= 2) {
    void* const object = alloc(size);
    EXPECT_EQ(resize(object, size / 2), object) << size;
    EXPECT_EQ(resize(object, size), object) << size;
    free_object(object);
  }
}

// A buffer that crosses the border between large and huge objects again and again is copied once.
TEST_F(Realloc, HugeObjectsThatShrinkStayInTheirBlock) {
  void* object = alloc(8 * kMiB - 8192);
  fill(object, 8 * kMiB - 8192, 1);
  object = resize(object, 8 * kMiB + 8192);
  EXPECT_EQ(chunk_code(object), kCodeHugeStart);
  for (const size_t size : {8 * kMiB - 8192, 9 * kMiB, 2 * kMiB, 16 * kMiB}) {
    EXPECT_EQ(resize(object, size), object) << size;
    EXPECT_EQ(usable(object), round_up(size, os::page_bytes()));
    EXPECT_TRUE(filled(object, 2 * kMiB, 1));
  }
  void* const large = resize(object, 2 * kMiB - 1);
  EXPECT_EQ(chunk_code(large), kCodeLarge);
  EXPECT_TRUE(filled(large, 2 * kMiB - 1, 1));
  free_object(large);
}

TEST_F(Realloc, HugeObjectsGrowInTheirBlockAndThenByPages) {
  void* const object = alloc(12 * kMiB);
  fill(object, 12 * kMiB, 1);
  EXPECT_EQ(resize(object, 16 * kMiB), object);
  EXPECT_EQ(usable(object), 16 * kMiB);
  void* const moved = resize(object, 16 * kMiB + 1);
  EXPECT_NE(moved, object);
  EXPECT_TRUE(filled(moved, 12 * kMiB, 1));
  EXPECT_EQ(resize(moved, 9 * kMiB), moved);
  EXPECT_EQ(usable(moved), 9 * kMiB);
  free_object(moved);
}

TEST_F(Realloc, LargeObjectsShrinkInPlaceAndGrowIntoFreeNeighbours) {
  auto* const object = static_cast<char*>(alloc(5 * kMiB));
  fill(object, 5 * kMiB, 1);
  EXPECT_EQ(resize(object, kMiB), object);
  EXPECT_LT(usable(object), kMiB + 2 * std::max(kGranuleBytes, os::page_bytes()));
  EXPECT_EQ(resize(object, 7 * kMiB), object);
  EXPECT_TRUE(filled(object, kMiB, 1));
  // Somebody settles in what was cut off: it moves then.
  EXPECT_EQ(resize(object, kMiB), object);
  std::vector<char*> others;
  do others.push_back(static_cast<char*>(alloc(64 * kKiB)));
  while (others.back() < object || others.back() > object + 3 * kMiB);
  void* const moved = resize(object, 7 * kMiB);
  EXPECT_NE(moved, object);
  EXPECT_TRUE(filled(moved, kMiB, 1));
  void* const medium = resize(moved, 5000);
  EXPECT_EQ(chunk_code(medium), index(bin_of(5000))) << "so little is worth a bin";
  EXPECT_TRUE(filled(medium, 5000, 1));
  free_object(medium);
  for (char* other : others) free_object(other);
}

// Of buffers that grow in turns by steps: how many bytes are copied for each that they have at last.
double copied_by_growth(size_t most) {
  constexpr size_t kBuffers = 32, kStep = 4 * kKiB;
  std::vector<void*> buffers(kBuffers, nullptr);
  size_t copied = 0;
  for (size_t size = kStep; size <= most; size += kStep) {
    for (void*& buffer : buffers) {
      void* const before = buffer;
      if (before != nullptr) memset(static_cast<char*>(before) + size - 2 * kStep, 1, 1);
      buffer = resize(before, size);
      if (before != nullptr && buffer != before) copied += size - kStep;
    }
  }
  for (void* buffer : buffers) {
    for (size_t at = 0; at + kStep < most; at += kStep) EXPECT_EQ(static_cast<char*>(buffer)[at], 1) << at;
    free_object(buffer);
  }
  return static_cast<double>(copied) / static_cast<double>(kBuffers * most);
}

TEST_F(Realloc, LargeObjectsThatGrowInStepsHaveRoomAfterAMove) {
  stay_on_this_cpu();  // each CPU's cache has others
  const double with_room = copied_by_growth(kMiB);
  memory_room.tight.set(true);
  const double without = copied_by_growth(kMiB);
  memory_room.tight.set(false);
  EXPECT_LT(with_room, 6);
  EXPECT_GT(without, 2 * with_room) << "where memory is short each has what it asks for";
}

TEST_F(Realloc, LargeObjectsKeepAQuarterAndGiveBackMore) {
  void* const object = alloc(4 * kMiB);
  const size_t room = usable(object);
  EXPECT_EQ(resize(object, room - room / 4), object);
  EXPECT_EQ(usable(object), room);
  EXPECT_EQ(resize(object, room - room / 4 - 2 * kGranuleBytes), object);
  EXPECT_LT(usable(object), room - room / 4 + os::page_bytes());
  free_object(object);
}

// Their bins get huge pages (store/cluster.h) if most objects there have grown so, by a quarter at most: what is not
// copied may never be written.
TEST_F(Realloc, ObjectsOfBinsThatGrowAreOnHugePages) {
  const auto has_huge_chunks = [](size_t of, size_t before, unsigned one_in) {
    return kPassed == in_child([&] {
             std::vector<void*> objects;
             const auto quick = [] { note_huge_page(0, true); };  // however slow the one before was
             for (unsigned i = 0; i < 10000; ++i) quick(), objects.push_back(alloc(1500));
             for (unsigned i = 0; i < 4000; ++i) {
               quick();
               objects.push_back(i % one_in == 0 ? resize(alloc(before), 5000) : alloc(5000));
             }
             unsigned huge = 0;
             visit_chunks(process_store, bin_of(of), [&](Descriptor& d) {
               huge += d.backing() == Backing::kHuge;
               return true;
             });
             return huge > 12 ? kPassed : kFailed;  // so many have them whether they grow or not
           });
  };
  const bool can_be = has_huge_chunks(1500, 4000, 1);
  EXPECT_EQ(has_huge_chunks(5000, 4000, 1), can_be);
  EXPECT_FALSE(has_huge_chunks(5000, 2000, 1));
  EXPECT_FALSE(has_huge_chunks(5000, 4000, 4));
}

// The child of a fork that comes between the realloc and its take has one take too many for a growing object.
TEST_F(Realloc, AVanishedThreadsGrowthIsForgotten) {
  process_store.of(bin_of(5000)).growing.set(true);
  std::vector<void*> objects;
  for (unsigned i = 0; i < 200; ++i) objects.push_back(alloc(5000));
  EXPECT_FALSE(process_store.of(bin_of(5000)).growing.get());
  EXPECT_EQ(process_store.of(bin_of(5000)).grown.get(), 0);
  for (void* object : objects) free_object(object);
}

// In a child, where the pages of the new place have not been there before.
TEST_F(Realloc, WhatWasNeverWrittenIsNotThereAfterAMoveEither) {
  if (kThreadSanitizer) GTEST_SKIP() << "what is read has shadows there, which are resident";
  SavedOptions saved;
  options.huge_pages = kHugePagesNever;
  EXPECT_EQ(in_child([] {
              const size_t before = 6 * kMiB, after = 15 * kMiB / 2, page = os::page_bytes();
              auto* const object = static_cast<char*>(alloc(before));
              void* const neighbour = alloc(before);
              object[5] = 1;
              object[before / 2] = 2;
              memset(object + before - 3 * page, 3, 3 * page);
              const int64_t resident = resident_pages();
              auto* const moved = static_cast<char*>(resize(object, after));
              if (moved == object || moved[5] != 1 || moved[before / 2] != 2 || moved[before - 1] != 3) return kFailed;
              const int64_t more = resident_pages() - resident;
              free_object(moved);
              free_object(neighbour);
              return more <= 300 ? kPassed : kFailed;  // in place of 1,536; the kernel counts late
            }),
            kPassed);
}

TEST_F(Realloc, TheAlignmentIsKept) {
  for (size_t alignment = 16; alignment <= 8 * kMiB; alignment *= 4) {
    void* object = opaque(allocate_aligned(alignment, 100, false));
    fill(object, 100, 1);
    for (const size_t size : {size_t{200}, size_t{5000}, 100 * kKiB, 2 * kMiB, 9 * kMiB, 700 * kKiB, size_t{300}}) {
      object = opaque(reallocate(object, alignment, size, "realloc"));
      ASSERT_NE(object, nullptr);
      ASSERT_TRUE(aligned_to(object, alignment)) << alignment << " " << size;
      ASSERT_TRUE(filled(object, 100, 1)) << alignment << " " << size;
      ASSERT_GE(usable(object), size);
    }
    free_object(object);
  }
}

TEST_F(Realloc, AMisalignedObjectIsMovedToWhereItIsAligned) {
  // From any function: an object that was not allocated with that alignment.
  std::vector<void*> objects;
  for (unsigned i = 0; i < 10; ++i) {
    void* object = alloc(48);
    fill(object, 48, i);
    object = opaque(reallocate(object, 4096, 48, "realloc"));
    EXPECT_TRUE(aligned_to(object, 4096));
    EXPECT_TRUE(filled(object, 48, i));
    objects.push_back(object);
  }
  for (void* object : objects) free_object(object);
}

TEST_F(Realloc, RefusedSizesLeaveTheObjectAsItWas) {
  for (const size_t size : {size_t{64}, 100 * kKiB, 3 * kMiB, 12 * kMiB}) {
    void* const object = alloc(size);
    fill(object, size, 1);
    const size_t room = usable(object);
    for (const size_t refused : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 4095, SIZE_MAX - 4096, size_t{PTRDIFF_MAX} + 1,
                                 size_t{PTRDIFF_MAX}, size_t{1} << 48}) {
      errno = 0;
      EXPECT_EQ(resize(object, refused), nullptr) << refused;
      EXPECT_EQ(errno, ENOMEM) << refused;
      EXPECT_FALSE(expand(object, refused, "expand")) << refused;
      EXPECT_EQ(usable(object), room) << refused;
    }
    EXPECT_TRUE(filled(object, size, 1));
    free_object(object);
  }
}

TEST_F(Realloc, ExpandNeverMoves) {
  const SavedOptions saved;
  options.cpu_cache = 0;  // else it keeps what was freed
  for (const size_t size : edge_sizes()) {
    if (size == 0) continue;
    void* const object = alloc(size);
    const size_t room = usable(object);
    EXPECT_TRUE(expand(object, 0, "expand"));
    EXPECT_TRUE(expand(object, room, "expand"));
    // Nothing else is live, so what follows a large object is free.
    const bool has_more =
        size > kLargeMost ? huge_at(object)->reserved_bytes > room : size > kMediumMost && room + 1 <= kLargeMost;
    EXPECT_EQ(expand(object, room + 1, "expand"), has_more) << size;
    EXPECT_GE(usable(object), room) << "and never takes anything away";
    free_object(object);
  }
  EXPECT_FALSE(expand(nullptr, 1, "expand"));
}

TEST_F(Realloc, ExpandedMemoryIsThere) {
  for (const size_t size : {3 * kMiB, 9 * kMiB}) {
    void* const object = alloc(size);
    fill(object, size, 1);
    const size_t most = size < kLargeMost ? kLargeMost : 16 * kMiB;
    EXPECT_TRUE(expand(object, most, "expand"));
    const size_t room = usable(object);
    EXPECT_GE(room, most);
    EXPECT_FALSE(expand(object, room + 1, "expand")) << "above it another kind of object begins, or another block";
    EXPECT_EQ(usable(object), room);
    memset(static_cast<char*>(object) + size, 1, room - size);
    EXPECT_TRUE(filled(object, size, 1));
    free_object(object);
  }
}

TEST_F(Realloc, MisuseIsReportedAndNothingIsDone) {
  const SavedOptions saved;
  options.errors = kErrorsWarn;
  auto* const object = static_cast<char*>(alloc(1000));
  fill(object, 1000, 1);
  int on_stack = 0;
  for (void* wrong : {static_cast<void*>(object + 8), static_cast<void*>(&on_stack)}) {
    StderrCapture capture;
    EXPECT_EQ(resize(wrong, 50), nullptr);
    EXPECT_EQ(resize(wrong, 50000), nullptr);
    EXPECT_FALSE(expand(wrong, 5000, "realloc"));
    const std::string reported = capture.stop();
    EXPECT_EQ(std::count(reported.begin(), reported.end(), '\n'), 3) << reported;
    EXPECT_EQ(reported.rfind("folio: realloc(0x", 0), 0u) << reported;
  }
  EXPECT_TRUE(filled(object, 1000, 1));
  free_object(object);
}

TEST_F(Realloc, ZeroedMemoryIsZeroAlsoAfterAMoveThatCouldNotUnmap) {
  const int result = in_child([] {
    auto* const object = static_cast<char*>(alloc(12 * kMiB));
    memset(object, 'x', 12 * kMiB);
    if (resize(object, 10 * kMiB) != object) return kFailed;  // what is cut off stays, as it is little
    if (!refuse_call(SYS_munmap, ENOMEM)) return kCannot;
    if (resize(object, 20 * kMiB) == nullptr) return kFailed;
    void* const zeroed = opaque(allocate_zeroed(12 * kMiB));
    return zeroed == object && all_zero(zeroed, 12 * kMiB) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed) << "the block that was left";
}

TEST(ReallocShort, WithoutMemoryAShrunkObjectStays) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    void* const object = alloc(3 * kMiB);
    fill(object, 3 * kMiB, 1);
    if (!limit_address_space(kMiB)) return kCannot;
    for (const size_t size : {kLargeMost, 900 * kKiB, 70 * kKiB, 20 * kKiB}) {
      while (alloc(size) != nullptr) {
      }
    }
    errno = 0;
    if (resize(object, 9 * kMiB) != nullptr || errno != ENOMEM || !filled(object, 3 * kMiB, 1)) return kFailed;
    errno = 0;
    if (resize(object, 10 * kKiB) != object || errno != 0) return kFailed;
    return filled(object, 10 * kKiB, 1) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

}  // namespace
