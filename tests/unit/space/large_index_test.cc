// The index over fields, with fields that have no address space: what it finds is what a walk over all of them finds.
#include "space/large_index.h"

#include <vector>

#include "space/metadata.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kFields = kBlockFields + 2 * kGroupFields + 5;  // in two blocks
constinit FieldBlock first_block{};

class LargeIndex : public ::testing::Test {
 protected:
  LargeIndex() {
    if (!made().empty()) return;
    for (unsigned i = 0; i < kFields; ++i) {
      auto* const field = static_cast<Field*>(metadata_alloc(sizeof(Field)));
      EXPECT_TRUE(index_prepare(first_block));
      EXPECT_TRUE(index_enter(first_block, *field));
      made().push_back(field);
    }
  }
  ~LargeIndex() override {
    for (Field* f : made()) {
      for (const Room r : {Room::kFree, Room::kReady}) lower_room(*f, r, 0);
      for (const Mark m : {Mark::kDirty, Mark::kAged}) lower_mark(*f, m);
    }
    for (const Room r : {Room::kFree, Room::kReady}) EXPECT_EQ(first_with(r, 1), -1);
    for (const Mark m : {Mark::kDirty, Mark::kAged}) EXPECT_EQ(all_marked(m), std::vector<int>());
  }
  // Entered once: the index never forgets a field.
  static std::vector<Field*>& made() {
    static std::vector<Field*> fields;
    return fields;
  }
  static Field& field(unsigned i) { return *made()[i]; }
  static int number_of(const Field* f) {
    if (f == nullptr) return -1;
    for (unsigned i = 0; i < kFields; ++i) {
      if (made()[i] == f) return static_cast<int>(i);
    }
    return -2;
  }
  static int first_with(Room r, unsigned granules) {
    FieldPlace at{&first_block};
    return number_of(find_room(r, granules, &at));
  }
  static std::vector<int> all_with(Room r, unsigned granules) {
    std::vector<int> found;
    FieldPlace at{&first_block};
    while (const Field* f = find_room(r, granules, &at)) found.push_back(number_of(f));
    return found;
  }
  static std::vector<int> all_marked(Mark m) {
    std::vector<int> found;
    FieldPlace at{&first_block};
    while (const Field* f = find_marked(m, &at)) found.push_back(number_of(f));
    return found;
  }
};

TEST_F(LargeIndex, FieldsAreFoundInTheOrderInWhichTheyWereEntered) {
  EXPECT_EQ(all_with(Room::kFree, 1), std::vector<int>());
  const std::vector<int> numbers = {0, 1, 63, 64, 4000, 4095, 4096, 4100, static_cast<int>(kFields) - 1};
  for (const int n : numbers) raise_room(field(static_cast<unsigned>(n)), Room::kFree, 7);
  EXPECT_EQ(all_with(Room::kFree, 7), numbers);
  EXPECT_EQ(all_with(Room::kFree, 1), numbers);
  EXPECT_EQ(all_with(Room::kFree, 8), std::vector<int>());
  EXPECT_EQ(all_with(Room::kReady, 1), std::vector<int>()) << "the other kind";
  for (const int n : numbers) raise_mark(field(static_cast<unsigned>(n)), Mark::kDirty);
  EXPECT_EQ(all_marked(Mark::kDirty), numbers);
  EXPECT_EQ(all_marked(Mark::kAged), std::vector<int>());
  age_marks(first_block);
  EXPECT_EQ(all_marked(Mark::kAged), numbers);
  lower_mark(field(64), Mark::kAged);
  EXPECT_EQ(all_marked(Mark::kDirty), numbers) << "dirty still";
  EXPECT_EQ(all_marked(Mark::kAged).size(), numbers.size() - 1);
}

TEST_F(LargeIndex, RoomIsRaisedToWhatIsMoreAndNeverLoweredByThat) {
  raise_room(field(5), Room::kReady, 100);
  raise_room(field(5), Room::kReady, 10);
  EXPECT_EQ(room_of(field(5), Room::kReady), 100u);
  EXPECT_EQ(first_with(Room::kReady, 100), 5);
  lower_room(field(5), Room::kReady, 10);
  EXPECT_EQ(first_with(Room::kReady, 11), -1);
  EXPECT_EQ(first_with(Room::kReady, 10), 5);
}

// The group's hint is lowered by who finds it stale, to what its fields have, and raised again with any of them.
TEST_F(LargeIndex, AStaleGroupIsLoweredToWhatItsFieldsHave) {
  Field& f = field(70);
  Atomic<uint16_t>& group = f.block->groups.room_of(Room::kFree, 1);
  raise_room(f, Room::kFree, 4096);
  raise_room(field(71), Room::kFree, 3);
  lower_room(f, Room::kFree, 9);
  EXPECT_EQ(group.load(order::relaxed), 4096);
  EXPECT_EQ(first_with(Room::kFree, 10), -1);
  EXPECT_EQ(group.load(order::relaxed), 9);
  EXPECT_EQ(first_with(Room::kFree, 9), 70);
  raise_room(field(127), Room::kFree, 50);
  EXPECT_EQ(group.load(order::relaxed), 50);
  // From the middle of a group on, its first fields are not known to have less.
  FieldPlace at = {f.block, 71};
  lower_room(field(127), Room::kFree, 2);
  EXPECT_EQ(find_room(Room::kFree, 5, &at), nullptr);
  EXPECT_EQ(first_with(Room::kFree, 9), 70);
}

TEST_F(LargeIndex, AWalkOverAllFindsTheSame) {
  std::minstd_rand random(7);
  std::vector<unsigned> room(kFields);
  std::vector<bool> dirty(kFields), aged(kFields);
  for (unsigned step = 0; step < rounds(20000); ++step) {
    // Most in few groups, so that hints meet.
    const auto i = static_cast<unsigned>(random() % 4 == 0 ? random() % kFields : random() % 200);
    const auto granules = static_cast<unsigned>(1 + random() % 600);
    switch (random() % 6) {
      case 0:
        raise_room(field(i), Room::kFree, granules);
        room[i] = std::max(room[i], granules);
        break;
      case 1:
        lower_room(field(i), Room::kFree, granules / 2);
        room[i] = granules / 2;
        break;
      case 2:
        raise_mark(field(i), Mark::kDirty);
        dirty[i] = true;
        break;
      case 3:
        lower_mark(field(i), random() % 2 == 0 ? Mark::kDirty : Mark::kAged);
        for (const Mark m : {Mark::kDirty, Mark::kAged}) {
          const uint64_t word =
              field(i).block->group[field(i).number / kGroupFields].hints.mark(m).load(order::relaxed);
          (m == Mark::kDirty ? dirty : aged)[i] = (word >> field(i).number % kGroupFields & 1) != 0;
        }
        break;
      case 4:
        if (random() % 50 != 0) break;
        age_marks(first_block);
        for (unsigned n = 0; n < kFields; ++n) aged[n] = aged[n] || dirty[n];
        break;
      default: {
        const auto first = std::find_if(room.begin(), room.end(), [&](unsigned n) { return n >= granules; });
        ASSERT_EQ(first_with(Room::kFree, granules), first == room.end() ? -1 : first - room.begin()) << step;
        if (random() % 20 != 0) break;
        std::vector<int> marked;
        for (unsigned n = 0; n < kFields; ++n) {
          if (aged[n]) marked.push_back(static_cast<int>(n));
        }
        ASSERT_EQ(all_marked(Mark::kAged), marked) << step;
      }
    }
  }
}

}  // namespace
