// What the tests of large objects share: objects by steps, and a fixture that starts and ends with nothing live.
#pragma once

#include "space/large.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "base/bits.h"
#include "os/os.h"
#include "space/chunk_table.h"
#include "space/fields.h"
#include "space/large_index.h"
#include "space/metadata.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr size_t kNoLimit = ~size_t{0};
const size_t page = os::page_bytes();
const size_t step = std::max(page, kGranuleBytes);  // objects are whole ones of these
const auto kStepGranules = static_cast<unsigned>(step / kGranuleBytes);

char* alloc(size_t size, size_t alignment = 1, bool zeroed = false) {
  return static_cast<char*>(large_alloc(process_fields, size, alignment, zeroed));
}
// An object of so many steps, whatever its cache line.
char* alloc_steps(size_t steps) { return alloc(steps * step - kLineOffsetMost); }
size_t usable(const void* object) { return large_place(object).usable; }
// What an object that starts there has for the program: units of 4 KiB, up to three of which are spare.
[[maybe_unused]] size_t usable_from(size_t size, size_t offset) {
  const size_t all = round_up(size + kLineOffsetMost, step), needed = round_up(size + kLineOffsetMost, kSpareUnit);
  return (all - needed < 3 * kSpareUnit ? needed : all - 3 * kSpareUnit) - offset;
}
char* start_of(const void* object) {
  return reinterpret_cast<char*>(round_down(reinterpret_cast<uintptr_t>(object), kGranuleBytes));
}
[[maybe_unused]] size_t offset_of(const void* object) { return reinterpret_cast<uintptr_t>(object) % kGranuleBytes; }

// All that the object holds, with what is spare.
[[maybe_unused]] void touch_granules(void* object) {
  memset(object, 1, round_up(offset_of(object) + usable(object), step) - offset_of(object));
}

[[maybe_unused]] void fill(void* object, size_t bytes, unsigned seed) {
  auto* at = static_cast<unsigned char*>(object);
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<unsigned char>(i * 31 + (i >> 8) * 7 + seed);
}
[[maybe_unused]] bool filled(const void* object, size_t bytes, unsigned seed) {
  const auto* at = static_cast<const unsigned char*>(object);
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != static_cast<unsigned char>(i * 31 + (i >> 8) * 7 + seed)) return false;
  }
  return true;
}

// What the kernel says; 0 and a failure where it does not.
size_t resident_bytes(const void* start, size_t bytes) {
  std::vector<unsigned char> pages(bytes / page);
  EXPECT_EQ(mincore(const_cast<void*>(start), bytes, pages.data()), 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; })) * page;
}
[[maybe_unused]] size_t resident_in_fields() {
  size_t sum = 0;
  for (Field* f = process_fields.first.load(order::acquire); f != nullptr; f = f->next.load(order::acquire)) {
    sum += resident_bytes(f->base, size_t{f->granules} << kGranuleShift);
  }
  return sum;
}

// Starts and ends with nothing live and nothing resident.
class Large : public ::testing::Test {
 protected:
  Large() { large_purge(process_fields, true, kNoLimit); }
  ~Large() override {
    EXPECT_EQ(large_stats(process_fields).taken, 0u);
    EXPECT_EQ(large_stats(process_fields).objects, 0u);
    expect_exact_accounts();
    large_purge(process_fields, true, kNoLimit);
    EXPECT_EQ(delta_.resident(), 0);
    EXPECT_EQ(delta_.dirty(), 0);
    EXPECT_TRUE(large_check(process_fields));
  }
  void expect_exact_accounts() const {
    EXPECT_TRUE(large_check(process_fields));
    EXPECT_EQ(delta_.resident(), static_cast<int64_t>(large_stats(process_fields).resident));
    EXPECT_EQ(delta_.dirty(), static_cast<int64_t>(large_stats(process_fields).dirty));
  }
  // Objects of these steps side by side at the start of the lowest free run, and one more behind them.
  std::vector<char*> row(const std::vector<unsigned>& steps) {
    std::vector<char*> objects;
    for (const unsigned n : steps) {
      objects.push_back(alloc_steps(n));
      memset(objects.back(), 1, usable(objects.back()));
      if (objects.size() < 2) continue;
      EXPECT_EQ(start_of(objects.back()), start_of(objects.end()[-2]) + steps[objects.size() - 2] * step);
    }
    return objects;
  }
  static void free_all(const std::vector<char*>& objects) {
    for (char* object : objects) EXPECT_TRUE(large_free(object));
  }
  PageDelta delta_;
  SavedOptions saved_;
};

}  // namespace
