// Several spaces of large objects in one process: none takes from the others' fields, purges them, ages them or counts
// what they hold.
#include "space/fields.h"

#include <random>

#include "unit/space/large_objects.h"

namespace {

// Beside the process's.
constinit Fields second{}, third{};

Fields* home_of(const void* object) { return large_place(object).field->home; }
char* alloc_in(Fields& fields, size_t size) { return static_cast<char*>(large_alloc(fields, size, 1, false)); }

class FieldsTest : public ::testing::Test {
 protected:
  ~FieldsTest() override {
    for (Fields* fields : {&process_fields, &second, &third}) {
      EXPECT_EQ(large_stats(*fields).taken, 0u);
      EXPECT_EQ(large_stats(*fields).objects, 0u);
      EXPECT_TRUE(large_check(*fields));
      large_purge(*fields, true, kNoLimit);
    }
    EXPECT_EQ(delta_.resident(), 0);
    EXPECT_EQ(delta_.dirty(), 0);
  }
  PageDelta delta_;
};

TEST_F(FieldsTest, EachHasObjectsOfItsOwn) {
  const uint64_t elsewhere = large_stats(third).reserved + large_stats(process_fields).reserved;
  char* const here = alloc_in(second, kMiB);
  EXPECT_EQ(home_of(here), &second);
  EXPECT_EQ(large_stats(second).objects, 1u);
  EXPECT_EQ(large_stats(third).reserved + large_stats(process_fields).reserved, elsewhere) << "nothing was opened";
  char* const there = alloc_in(third, kMiB);
  EXPECT_EQ(home_of(there), &third);
  EXPECT_NE(large_place(here).field, large_place(there).field);
  EXPECT_EQ(large_stats(third).objects, 1u);
  // A free finds its way, and what it leaves serves its own space alone.
  EXPECT_TRUE(large_free(here));
  EXPECT_EQ(large_stats(second).objects, 0u);
  EXPECT_EQ(large_stats(third).objects, 1u);
  char* const more = alloc_in(third, kMiB);
  EXPECT_EQ(home_of(more), &third);
  EXPECT_EQ(alloc_in(second, kMiB), here) << "the run that was just freed";
  for (char* object : {here, there, more}) EXPECT_TRUE(large_free(object));
}

TEST_F(FieldsTest, APurgeAndAgesAreOfOneSpace) {
  for (Fields* fields : {&second, &third}) {
    char* const object = alloc_in(*fields, kMiB);
    memset(object, 1, kMiB);
    EXPECT_TRUE(large_free(object));
  }
  const uint64_t dirty = large_stats(second).dirty;
  EXPECT_GE(dirty, kMiB);
  EXPECT_EQ(large_stats(third).dirty, dirty);
  large_age(third);
  EXPECT_EQ(large_purge(second, false, kNoLimit), 0u) << "nothing of it has aged";
  EXPECT_EQ(large_purge(third, false, kNoLimit), dirty);
  EXPECT_EQ(large_stats(second).dirty, dirty);
  EXPECT_EQ(large_purge(third, true, kNoLimit), 0u) << "nothing of another one";
  EXPECT_EQ(large_purge(second, true, kNoLimit), dirty);
}

TEST_F(FieldsTest, ParkedObjectsGoBackByTheSpace) {
  std::vector<char*> parked;
  for (Fields* fields : {&second, &third}) {
    parked.push_back(alloc_in(*fields, 2 * step - kLineOffsetMost));
    large_park(parked.back());
  }
  large_give_parked(second);
  EXPECT_EQ(large_stats(second).parked, 0u);
  EXPECT_EQ(large_stats(third).parked, 2 * step);
  large_give_parked(third);
  EXPECT_EQ(large_stats(third).parked, 0u);
}

// Random objects out of three spaces, of as many fields as it takes.
TEST_F(FieldsTest, AnyMixComesFromWhereItWasAskedOf) {
  Fields* const all[] = {&process_fields, &second, &third};
  std::map<char*, Fields*> live;
  size_t objects[3] = {};
  std::minstd_rand random(1);
  const auto which = [&](const Fields* fields) { return std::find(std::begin(all), std::end(all), fields) - all; };
  for (unsigned i = 0; i < 4000; ++i) {
    if (random() % 5 < 3) {
      const auto n = random() % 3;
      char* const object = alloc_in(*all[n], 1 + random() % kMiB);
      ASSERT_NE(object, nullptr);
      ASSERT_EQ(home_of(object), all[n]);
      ASSERT_TRUE(live.emplace(object, all[n]).second) << "handed out twice";
      ++objects[n];
    } else if (!live.empty()) {
      const auto it = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      --objects[which(it->second)];
      ASSERT_TRUE(large_free(it->first));
      live.erase(it);
    }
    if (i % 64 == 0) large_age(*all[random() % 3]);
    if (i % 32 == 0) large_purge(*all[random() % 3], random() % 2 == 0, random() % 4 * kMiB);
  }
  for (unsigned n = 0; n < 3; ++n) {
    EXPECT_EQ(large_stats(*all[n]).objects, objects[n]);
    EXPECT_GT(all[n]->count.get(), 1u) << "several fields";
    EXPECT_TRUE(large_check(*all[n]));
  }
  for (const auto& [object, fields] : live) EXPECT_TRUE(large_free(object));
}

}  // namespace
