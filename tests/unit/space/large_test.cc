#include "space/large.h"

#include "unit/space/large_objects.h"

namespace {

// ---- Objects ----

TEST_F(Large, AnObjectIsWholeGranulesFromACacheLineOfItsFirstPage) {
  for (const size_t size :
       {size_t{1}, 33 * kKiB, step - kLineOffsetMost, step - kLineOffsetMost + 1, kMiB, kLargeMost}) {
    char* const object = alloc(size);
    ASSERT_NE(object, nullptr);
    EXPECT_EQ(chunk_code(object), kCodeLarge);
    EXPECT_TRUE(aligned_to(object, 64));
    EXPECT_LE(offset_of(object), kLineOffsetMost);
    EXPECT_EQ(usable(object), usable_from(size, offset_of(object))) << size;
    EXPECT_GE(usable(object), large_good_size(size));
    memset(object, 1, usable(object));
    EXPECT_EQ(large_stats(process_fields).objects, 1u);
    EXPECT_EQ(large_stats(process_fields).taken, round_up(size + kLineOffsetMost, step));
    expect_exact_accounts();
    EXPECT_TRUE(large_free(object));
  }
}

TEST_F(Large, ObjectsStartAtManyCacheLines) {
  std::vector<unsigned> counts(64);
  std::vector<char*> objects;
  for (unsigned i = 0; i < 4000; ++i) {
    objects.push_back(alloc_steps(1));
    ++counts[offset_of(objects.back()) / 64];
  }
  for (unsigned line = 0; line < 64; ++line) {
    EXPECT_GT(counts[line] * 64 * 2, objects.size()) << line;
    EXPECT_LT(counts[line] * 64, objects.size() * 2) << line;
  }
  std::map<char*, char*> by_start;
  for (char* object : objects) by_start[start_of(object)] = object;
  free_all(objects);
  // By the address alone.
  objects.clear();
  for (unsigned i = 0; i < 100; ++i) {
    objects.push_back(alloc_steps(2));
    const auto before = by_start.find(start_of(objects.back()));
    if (before != by_start.end()) EXPECT_EQ(before->second, objects.back());
  }
  free_all(objects);
}

TEST_F(Large, AlignedToAsMuchAsACluster) {
  for (size_t alignment = 1; alignment <= kClusterBytes; alignment *= 2) {
    std::vector<char*> objects;
    for (const size_t size : {size_t{0}, size_t{1}, 40 * kKiB, 300 * kKiB, 3 * kMiB, kLargeMost}) {
      objects.push_back(alloc(size, alignment));
      ASSERT_NE(objects.back(), nullptr);
      EXPECT_TRUE(aligned_to(objects.back(), alignment)) << alignment << " " << size;
      if (alignment > 64) EXPECT_EQ(offset_of(objects.back()), 0u);
      EXPECT_GE(usable(objects.back()), std::max<size_t>(size, 1));
      EXPECT_EQ(std::count(objects.begin(), objects.end(), objects.back()), 1);
    }
    expect_exact_accounts();
    free_all(objects);
  }
}

TEST_F(Large, EveryAddressFindsItsObject) {
  const std::vector<char*> objects = row({3, 1, 200});
  for (char* object : objects) {
    const size_t bytes = usable(object);
    for (size_t at = 0; at < bytes; at += 1 + bytes / 100) {
      const LargePlace place = large_place(object + at);
      ASSERT_EQ(place.base, object);
      ASSERT_TRUE(place.holds(object + at));
      ASSERT_EQ(place.starts(object + at), at == 0);
    }
    EXPECT_FALSE(large_place(object).holds(object + bytes));
    if (offset_of(object) != 0) EXPECT_FALSE(large_place(object - 1).holds(object - 1)) << "before its cache line";
  }
  int on_stack = 0;
  EXPECT_EQ(large_place(&on_stack).field, nullptr);
  EXPECT_EQ(large_place(nullptr).field, nullptr);
  EXPECT_FALSE(large_place(nullptr).holds(nullptr));
  free_all(objects);
  for (char* object : objects) EXPECT_FALSE(large_place(object).starts(object));
}

TEST_F(Large, OnlyTheStartOfALiveObjectIsFreed) {
  char* const object = alloc(100 * kKiB);
  for (char* wrong : {object + 1, object + 64, object + kGranuleBytes, object + 200 * kKiB}) {
    EXPECT_FALSE(large_free(wrong));
  }
  if (offset_of(object) != 0) EXPECT_FALSE(large_free(start_of(object)));
  EXPECT_FALSE(large_resize(object + kGranuleBytes, 200 * kKiB));
  EXPECT_TRUE(large_free(object));
  EXPECT_FALSE(large_free(object));
  EXPECT_FALSE(large_resize(object, 200 * kKiB));
}

TEST_F(Large, AParkedObjectIsNotLiveAndNobodyElses) {
  char* const object = alloc_steps(3);
  memset(object, 1, usable(object));
  const unsigned granules = large_park(object);
  EXPECT_EQ(granules, 3 * kStepGranules);
  EXPECT_EQ(large_granules(3 * step - kLineOffsetMost), granules);
  EXPECT_EQ(large_granules(3 * step - kLineOffsetMost + 1), granules + kStepGranules);
  EXPECT_EQ(large_park(object), 0u) << "the second free";
  EXPECT_FALSE(large_free(object));
  EXPECT_FALSE(large_resize(object, 10 * step));
  EXPECT_FALSE(large_place(object).starts(object));
  EXPECT_EQ(large_stats(process_fields).objects, 0u);
  EXPECT_EQ(large_stats(process_fields).parked, 3 * step);
  EXPECT_EQ(large_stats(process_fields).taken, 0u);
  expect_exact_accounts();
  char* const other = alloc_steps(3);
  EXPECT_NE(other, object);
  EXPECT_TRUE(large_free(other));
  EXPECT_EQ(resident_bytes(start_of(object), 3 * step), 3 * step) << "no purge takes it";
  large_purge(process_fields, true, kNoLimit);
  EXPECT_EQ(resident_bytes(start_of(object), 3 * step), 3 * step) << "no purge takes it";
  EXPECT_EQ(large_unpark(object, usable(object), 1, false), object);
  EXPECT_TRUE(large_place(object).starts(object));
  EXPECT_EQ(large_stats(process_fields).objects, 1u);
  EXPECT_EQ(large_stats(process_fields).parked, 0u);
  EXPECT_EQ(object[0], 1) << "nothing was written";
  ASSERT_EQ(large_park(object), granules);
  EXPECT_EQ(large_unpark(object, 2 * step, 1, true), object);
  for (size_t i = 0; i < 2 * step; ++i) ASSERT_EQ(object[i], 0) << i;
  // Aligned, it begins where its granules do.
  ASSERT_EQ(large_park(object), granules);
  memset(start_of(object), 1, 3 * step);
  char* const aligned = static_cast<char*>(large_unpark(object, 3 * step, kGranuleBytes, true));
  EXPECT_EQ(aligned, start_of(object));
  EXPECT_EQ(usable(aligned), 3 * step);
  for (size_t i = 0; i < 3 * step; ++i) ASSERT_EQ(aligned[i], 0) << i;
  ASSERT_EQ(large_park(aligned), granules);
  EXPECT_EQ(large_unpark(aligned, 2 * step, 64, false), object) << "else at its line";
  ASSERT_EQ(large_park(object), granules);
  large_give(aligned);
  EXPECT_EQ(large_stats(process_fields).parked, 0u);
  expect_exact_accounts();
}

// ---- Runs ----

TEST_F(Large, FreedNeighboursMerge) {
  std::vector<char*> objects = row({10, 20, 30, 1});
  EXPECT_TRUE(large_free(objects[0]));
  EXPECT_TRUE(large_free(objects[2]));
  EXPECT_TRUE(large_free(objects[1]));
  char* const all = alloc_steps(60);
  EXPECT_EQ(start_of(all), start_of(objects[0]));
  expect_exact_accounts();
  free_all({all, objects[3]});
}

TEST_F(Large, TheLowestOfThoseWhosePagesAreThere) {
  const std::vector<char*> o = row({2, 1, 8, 1, 4, 1});
  free_all({o[0], o[2], o[4]});
  char* const first = alloc_steps(4);
  char* const second = alloc_steps(4);
  char* const third = alloc_steps(4);
  EXPECT_EQ(start_of(first), start_of(o[2]));
  EXPECT_EQ(start_of(second), start_of(o[2]) + 4 * step);
  EXPECT_EQ(start_of(third), start_of(o[4]));
  free_all({first, second, third, o[1], o[3], o[5]});
}

TEST_F(Large, ElseTheShortestRunThenTheLowest) {
  const std::vector<char*> o = row({4, 1, 8, 1, 4, 1, 6, 1});
  free_all({o[0], o[2], o[4], o[6]});
  large_purge(process_fields, true, kNoLimit);
  char* const first = alloc_steps(4);
  char* const second = alloc_steps(4);
  char* const third = alloc_steps(4);
  char* const fourth = alloc_steps(4);
  EXPECT_EQ(start_of(first), start_of(o[0])) << "of equal ones the lowest";
  EXPECT_EQ(start_of(second), start_of(o[4]));
  EXPECT_EQ(start_of(third), start_of(o[6])) << "the one of 6 before the one of 8";
  EXPECT_EQ(start_of(fourth), start_of(o[2]));
  free_all({first, second, third, fourth, o[1], o[3], o[5], o[7]});
}

TEST_F(Large, FewestPagesToTouchComesBeforeTheShortest) {
  const std::vector<char*> o = row({4, 1, 8, 1, 5, 1});
  free_all({o[0], o[4]});
  EXPECT_EQ(large_purge(process_fields, true, kNoLimit), 9 * step);
  EXPECT_TRUE(large_free(o[2]));
  char* const object = alloc_steps(4);
  EXPECT_EQ(start_of(object), start_of(o[2])) << "resident, though it is the longest";
  char* const next = alloc_steps(4);
  EXPECT_EQ(start_of(next), start_of(o[2]) + 4 * step);
  char* const last = alloc_steps(4);
  EXPECT_EQ(start_of(last), start_of(o[0])) << "then the shortest";
  free_all({object, next, last, o[1], o[3], o[5]});
}

TEST_F(Large, InARunWhereFewestPagesAreMissing) {
  const std::vector<char*> o = row({12, 8, 1});
  EXPECT_TRUE(large_free(o[0]));
  large_purge(process_fields, true, kNoLimit);
  EXPECT_TRUE(large_free(o[1]));  // | 12 untouched | 8 resident | taken
  char* const object = alloc_steps(10);
  EXPECT_EQ(start_of(object), start_of(o[0]) + 10 * step) << "it ends where the resident pages end";
  free_all({object, o[2]});
}

// The place of a run of `count` granules, at a multiple of `align`, by trying all of them. -1: none, or with `ready`
// none whose pages are there.
int best_by_trying_all(Field& f, unsigned count, unsigned align, bool ready) {
  const auto taken = [&](unsigned g) { return (f.occupancy(g / 64).load(order::relaxed) >> g % 64 & 1) != 0; };
  const auto resident = [&](unsigned g) { return (f.resident(g / 64).load(order::relaxed) >> g % 64 & 1) != 0; };
  int best = -1;
  unsigned best_missing = 0, best_length = 0;
  for (unsigned at = 0; at < f.granules;) {
    unsigned end = at;
    while (end < f.granules && !taken(end)) ++end;
    for (unsigned from = static_cast<unsigned>(round_up(at, align)); from + count <= end; from += align) {
      unsigned missing = 0;
      for (unsigned g = from; g < from + count; ++g) missing += !resident(g);
      if (ready && missing != 0) continue;
      const bool tighter = missing != 0 && end - at < best_length;
      if (best >= 0 && (missing > best_missing || (missing == best_missing && !tighter))) continue;
      best = static_cast<int>(from);
      best_missing = missing;
      best_length = end - at;
    }
    at = end + 1;
  }
  return best;
}

TEST_F(Large, TheBestRunIsThatOfASearchThroughAll) {
  std::mt19937 random(3);
  std::vector<char*> live;
  for (unsigned i = 0; i < rounds(3000); ++i) {
    if (live.size() < 40 && random() % 2 == 0) {
      const auto steps = 1 + static_cast<unsigned>(random() % (random() % 8 == 0 ? 300 / kStepGranules : 20));
      Field* expected = nullptr;
      int best = -1;
      for (const bool ready : {true, false}) {
        for (Field* f = process_fields.first.load(order::acquire); f != nullptr && best < 0;
             f = f->next.load(order::acquire)) {
          best = best_by_trying_all(*f, steps * kStepGranules, kStepGranules, ready);
          if (best >= 0) expected = f;
        }
      }
      char* const object = alloc_steps(steps);
      ASSERT_NE(object, nullptr);
      if (best >= 0) {
        ASSERT_EQ(start_of(object), expected->base + static_cast<size_t>(best) * kGranuleBytes) << i;
      }
      live.push_back(object);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(large_free(live.back()));
      live.pop_back();
    }
    if (random() % 10 == 0) large_purge(process_fields, true, random() % 3 * kMiB);
    if (i % 100 == 0) expect_exact_accounts();
  }
  free_all(live);
}

// ---- In place ----

TEST_F(Large, GrowsIntoWhatIsFreeAndNoFurther) {
  const std::vector<char*> o = row({4, 6, 1});
  fill(o[0], usable(o[0]), 5);
  const size_t before = usable(o[0]);
  EXPECT_FALSE(large_resize(o[0], before + 1)) << "its neighbour lives";
  EXPECT_EQ(usable(o[0]), before);
  EXPECT_TRUE(large_free(o[1]));
  EXPECT_FALSE(large_resize(o[0], before + 6 * step + 1)) << "a granule more than there is";
  expect_exact_accounts();
  EXPECT_TRUE(large_resize(o[0], before + 2 * step));
  EXPECT_EQ(usable(o[0]), before + 2 * step);
  EXPECT_TRUE(large_resize(o[0], before + 6 * step));
  EXPECT_TRUE(filled(o[0], before, 5));
  EXPECT_EQ(delta_.dirty(), 0);
  expect_exact_accounts();
  free_all({o[0], o[2]});
}

TEST_F(Large, NothingGrowsPastTheEndOfItsField) {
  std::vector<char*> objects = {alloc_steps(1)};
  const Field& field = *static_cast<Field*>(descriptor_at(objects[0]));
  char* const end = field.base + (size_t{field.granules} << kGranuleShift);
  while (start_of(objects.back()) + step != end) objects.push_back(alloc_steps(1));
  const size_t room = usable(objects.back());
  EXPECT_TRUE(large_resize(objects.back(), room));
  EXPECT_FALSE(large_resize(objects.back(), room + 1));
  free_all(objects);
}

TEST_F(Large, ShrinkingGivesBackWhatIsTooMuch) {
  options.huge_pages = kHugePagesNever;
  char* const object = alloc(5 * kMiB);
  memset(object, 7, usable(object));
  char* const cut = object + 2 * kMiB;
  const size_t size = kMiB + 1;  // a granule more than 1 MiB wherever in its first page the object starts
  EXPECT_TRUE(large_resize(object, size));
  EXPECT_EQ(usable(object), usable_from(size, offset_of(object)));
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(round_up(5 * kMiB + kLineOffsetMost, step) -
                                                 round_up(size + offset_of(object), step)));
  EXPECT_FALSE(large_place(cut).holds(cut));
  char* const other = alloc(3 * kMiB);
  EXPECT_EQ(start_of(other), start_of(object) + round_up(size + offset_of(object), step)) << "it serves others at once";
  expect_exact_accounts();
  free_all({object, other});
}

// ---- Zeroed ----

TEST_F(Large, ZeroedIsZeroWhateverItsPagesHeld) {
  std::mt19937 random(4);
  std::vector<char*> live;
  for (unsigned i = 0; i < rounds(600); ++i) {
    const size_t size = 30 * kKiB + random() % (random() % 8 == 0 ? 7 * kMiB : 500 * kKiB);
    char* const object = alloc(size, size_t{1} << random() % 18, true);
    ASSERT_TRUE(all_zero(object, size)) << size << " in round " << i;
    // Of some all pages hold something, of others few do.
    if (random() % 2 == 0) {
      memset(object, 0xa5, usable(object));
    } else {
      for (size_t at = random() % page; at < usable(object); at += page * (1 + random() % 9)) object[at] = 1;
    }
    live.push_back(object);
    while (live.size() > 5) {
      std::swap(live[random() % live.size()], live.back());
      large_free(live.back());
      live.pop_back();
    }
    if (random() % 16 == 0) large_purge(process_fields, true, random() % 2 == 0 ? kNoLimit : kMiB);
  }
  free_all(live);
}

TEST_F(Large, ZeroedMemoryThatWasNeverUsedIsNotTouched) {
  char* const object = alloc(6 * kMiB, 1, true);
  EXPECT_EQ(resident_bytes(start_of(object), round_up(6 * kMiB + kLineOffsetMost, step)), 0u);
  EXPECT_TRUE(large_free(object));
}

// ---- Fields ----

TEST_F(Large, AFullFieldOpensAnother) {
  std::vector<char*> objects;
  std::set<void*> seen;
  const uint64_t before = large_stats(process_fields).reserved;
  while (large_stats(process_fields).reserved == before || seen.size() < 2) {
    objects.push_back(alloc(kLargeMost));
    ASSERT_NE(objects.back(), nullptr);
    seen.insert(descriptor_at(objects.back()));
  }
  EXPECT_EQ((large_stats(process_fields).reserved - before) % kFieldBytesMost, 0u);
  for (void* field : seen) EXPECT_TRUE(static_cast<Field*>(field)->sealed());
  free_all(objects);
  const uint64_t after = large_stats(process_fields).reserved;
  objects = {alloc(kLargeMost)};
  EXPECT_EQ(descriptor_at(objects[0]), process_fields.first.load(order::acquire)) << "the first that has room";
  EXPECT_EQ(large_stats(process_fields).reserved, after);
  free_all(objects);
}

size_t mapped_bytes() {
  FILE* statm = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (statm != nullptr && fscanf(statm, "%zu", &pages) != 1) pages = 0;
  if (statm != nullptr) fclose(statm);
  return pages * page;
}

// A field as large as the address space that is left, and then none, each time with everything as it was.
TEST_F(Large, WhereAddressSpaceIsShortFieldsAreSmaller) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    if (metadata_alloc(64) == nullptr) return kFailed;
    while (large_alloc(process_fields, kLargeMost, 1, false) != nullptr &&
           large_stats(process_fields).reserved < kFieldBytesMost) {
    }
    const uint64_t before = large_stats(process_fields).reserved;
    if (!limit_address_space(30 * kMiB)) return kCannot;
    unsigned n = 0;
    while (n < 100 && alloc(kLargeMost) != nullptr) ++n;
    const uint64_t grown = large_stats(process_fields).reserved - before;
    if (n == 100 || grown == 0 || grown > 30 * kMiB || !large_check(process_fields)) return kFailed;
    const size_t mapped = mapped_bytes();
    for (unsigned i = 0; i < 100; ++i) {
      if (alloc(kLargeMost) != nullptr) return kFailed;
    }
    return mapped_bytes() == mapped && large_check(process_fields) ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// Address space for a field, none for what describes it: nothing may be lost by trying.
TEST_F(Large, WithoutMemoryForItsDescriptorAFieldGoesBack) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    while (alloc(kLargeMost) != nullptr && large_stats(process_fields).reserved < kFieldBytesMost) {
    }
    rlimit before;
    getrlimit(RLIMIT_AS, &before);
    if (!limit_address_space(40 * kMiB)) return kCannot;
    // What is left of the metadata goes first, then address space but for a field of the smallest kind.
    while (metadata_alloc(4096) != nullptr) {
    }
    while (metadata_alloc(64) != nullptr) {
    }
    if (!limit_address_space(kLargeMost + 2 * kClusterBytes + 128 * kKiB)) return kCannot;
    const uint64_t reserved = large_stats(process_fields).reserved;
    size_t mapped = 0;
    for (unsigned i = 0; i < 50; ++i) {
      while (alloc(kLargeMost) != nullptr) {
      }
      if (i == 0) mapped = mapped_bytes();
    }
    if (mapped_bytes() != mapped || !large_check(process_fields)) return kFailed;
    setrlimit(RLIMIT_AS, &before);
    return alloc(kLargeMost) != nullptr && large_stats(process_fields).reserved > reserved ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// In a child, since what is lent stays so.
TEST_F(Large, AChunkThatIsLentIsZeroAndNoLongerTheFields) {
  const int result = in_child([this] {
    const std::vector<char*> o = row({10, 300, 10});
    const uint64_t reserved = large_stats(process_fields).reserved;
    EXPECT_TRUE(large_free(o[1]));
    for (unsigned i = 0; i < 3 * kClusterChunks; ++i) {
      char* const chunk = lend_chunk();
      EXPECT_TRUE(chunk != nullptr && aligned_to(chunk, kChunkBytes));
      EXPECT_TRUE(os::commit(chunk, kChunkBytes));
      EXPECT_TRUE(all_zero(chunk, kChunkBytes));
      memset(chunk, 1, kChunkBytes);
      EXPECT_FALSE(large_free(chunk));
      EXPECT_FALSE(large_place(chunk).holds(chunk));
      EXPECT_EQ(large_stats(process_fields).objects, 2u);
      EXPECT_EQ(large_stats(process_fields).taken, 20 * step);
      expect_exact_accounts();
    }
    EXPECT_TRUE(large_free(o[0]));
    EXPECT_TRUE(large_free(o[2]));
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(delta_.resident(), 0);
    // Until there is none; no field is opened for it.
    while (lend_chunk() != nullptr) {
    }
    EXPECT_EQ(large_stats(process_fields).reserved, reserved);
    EXPECT_EQ(alloc(100 * kKiB) == nullptr, false) << "another field";
    EXPECT_GT(large_stats(process_fields).reserved, reserved);
    return HasFailure() ? kFailed : kPassed;
  });
  EXPECT_EQ(result, kPassed);
}

TEST_F(Large, WhatCannotBePurgedIsNotLent) {
  const int result = in_child([this] {
    char* const object = alloc(kLargeMost);
    memset(object, 1, kLargeMost);
    while (alloc(kLargeMost) != nullptr && large_stats(process_fields).reserved == kFieldBytesMost) {
    }
    EXPECT_TRUE(large_free(object));
    if (!refuse_call(SYS_madvise, EAGAIN)) return kCannot;
    const uint64_t dirty = large_stats(process_fields).dirty;
    EXPECT_EQ(lend_chunk(), nullptr);
    EXPECT_EQ(large_stats(process_fields).dirty, dirty);
    expect_exact_accounts();
    return HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(result, kPassed);
}

// ---- Purging ----

TEST_F(Large, AccountsAreWhatTheKernelSays) {
  if (kSanitized || kEmulated) GTEST_SKIP() << "by hand it takes long; an emulator does not know";
  std::mt19937 random(5);
  std::vector<char*> live;
  for (unsigned i = 0; i < 300; ++i) {
    live.push_back(alloc(20 * kKiB + random() % (3 * kMiB)));
    touch_granules(live.back());
    if (random() % 3 == 0) {
      const size_t size = 40 * kKiB + random() % (2 * kMiB);
      if (large_resize(live.back(), size)) touch_granules(live.back());
    }
    while (live.size() > 8) {
      std::swap(live[random() % live.size()], live.back());
      large_free(live.back());
      live.pop_back();
    }
    if (i % 5 == 0) large_purge(process_fields, random() % 2 == 0, random() % 4 * kMiB);
    if (i % 7 == 0) large_age(process_fields);
    ASSERT_EQ(delta_.resident(), static_cast<int64_t>(resident_in_fields())) << i;
    if (i % 20 == 0) expect_exact_accounts();
  }
  free_all(live);
  large_purge(process_fields, true, kNoLimit);
  EXPECT_EQ(resident_in_fields(), 0u);
}

TEST_F(Large, OnlyWhatHasAgedGoesOnATick) {
  options.huge_pages = kHugePagesNever;
  char* const first = alloc(kMiB);
  memset(first, 1, kMiB);
  EXPECT_TRUE(large_free(first));
  EXPECT_EQ(large_purge(process_fields, false, kNoLimit), 0u);
  large_age(process_fields);
  EXPECT_EQ(delta_.dirty(), delta_.resident()) << "marking purges nothing";
  char* const second = alloc(300 * kKiB);  // takes the mark of its granules away
  const auto used = static_cast<size_t>(round_up(300 * kKiB + kLineOffsetMost, step));
  EXPECT_TRUE(large_free(second));
  EXPECT_EQ(large_purge(process_fields, false, kNoLimit), round_up(kMiB + kLineOffsetMost, step) - used);
  EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(used));
  large_age(process_fields);
  EXPECT_EQ(large_purge(process_fields, false, kNoLimit), used);
  EXPECT_EQ(large_purge(process_fields, true, kNoLimit), 0u) << "nothing twice";
}

TEST_F(Large, PurgeGoesInStepsOfAboutWhatIsAsked) {
  std::vector<char*> objects = row({64, 64, 64, 64});
  free_all(objects);
  const auto dirty = static_cast<size_t>(delta_.dirty());
  size_t sum = 0, most = 0;
  unsigned calls = 0;
  while (const size_t purged = large_purge(process_fields, true, 300 * kKiB)) {
    sum += purged;
    most = std::max(most, purged);
    ++calls;
    expect_exact_accounts();
  }
  EXPECT_EQ(sum, dirty);
  EXPECT_LE(most, 300 * kKiB + kPurgeRunBytes);
  EXPECT_GE(calls, dirty / (300 * kKiB + kPurgeRunBytes));
}

TEST_F(Large, WhatTheKernelRefusedIsTriedAgain) {
  char* const object = alloc(kMiB);
  memset(object, 7, kMiB);
  char* const locked = start_of(object) + (400 * kKiB & ~(page - 1));
  if (!lock_page(locked)) {
    EXPECT_TRUE(large_free(object));
    GTEST_SKIP() << "no memory may be locked here";
  }
  EXPECT_TRUE(large_free(object));
  large_purge(process_fields, true, kNoLimit);
  EXPECT_GT(delta_.dirty(), 0) << "what is locked stays";
  expect_exact_accounts();
  char* const zeroed = alloc(kMiB, 1, true);
  EXPECT_TRUE(all_zero(zeroed, kMiB)) << "and is cleared where it has to be";
  EXPECT_TRUE(large_free(zeroed));
  unlock_page(locked);
  large_purge(process_fields, true, kNoLimit);
  EXPECT_EQ(delta_.dirty(), 0);
}

TEST_F(Large, AFreeRaisesTheHintsOfWhatFitsThere) {
  // Objects over several words, each second one freed from above: each time the lowest one is used again.
  std::vector<unsigned> steps(400 / kStepGranules, 1);
  const std::vector<char*> o = row(steps);
  for (size_t i = o.size() - 2; i < o.size(); i -= 2) {
    EXPECT_TRUE(large_free(o[i]));
    char* const again = alloc_steps(1);
    ASSERT_EQ(start_of(again), start_of(o[i])) << i;
    EXPECT_TRUE(large_free(again));
  }
  for (size_t i = 1; i < o.size(); i += 2) EXPECT_TRUE(large_free(o[i]));
  for (size_t i = o.size() - 2; i % 2 != 0; --i) EXPECT_TRUE(large_free(o[i]));
}

// After each step the hints promise what is there (large_check), and a run that is there is taken.
TEST_F(Large, TheHintsPromiseEachRunThatIsThere) {
  std::mt19937 random(7);
  std::vector<char*> objects(40);
  for (unsigned i = 0; i < 6000; ++i) {
    char*& object = objects[random() % objects.size()];
    if (object != nullptr) EXPECT_TRUE(large_free(object));
    object = random() % 4 == 0 ? nullptr : alloc_steps(1 + random() % (1u << (1 + random() % 8)));
    if (i % 500 == 499) large_purge(process_fields, random() % 2 == 0, (random() % 64) << 20);
    ASSERT_TRUE(large_check(process_fields)) << i;
  }
  for (char* object : objects) {
    if (object != nullptr) EXPECT_TRUE(large_free(object));
  }
}

}  // namespace
