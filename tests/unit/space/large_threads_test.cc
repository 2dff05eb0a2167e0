#include "unit/space/large_objects.h"

namespace {

void hide(Field& f) {
  for (const Room r : {Room::kFree, Room::kReady}) {
    lower_room(f, r, 0);
    f.block->groups.room_of(r, f.number / kGroupFields).store(0, order::relaxed);
  }
}

// A thread that stops for ever while it lowers a hint of the longest free run hides what others free meanwhile.
TEST_F(Large, WhatAHintHidesComesToLight) {
  const std::vector<char*> objects = row({40, 1, 40, 1});
  EXPECT_TRUE(large_free(objects[0]));
  EXPECT_TRUE(large_free(objects[2]));
  unsigned count = 0;
  for (Field* f = process_fields.first.load(order::relaxed); f != nullptr; f = f->next.load(order::relaxed), ++count) {
    hide(*f);
  }
  const uint64_t reserved = large_stats(process_fields).reserved;
  std::vector<char*> found;
  for (unsigned i = 0; i <= count; ++i) found.push_back(alloc_steps(40));
  EXPECT_LE(large_stats(process_fields).reserved, reserved + kFieldBytesMost) << "found before many fields are opened";
  EXPECT_EQ(std::count(found.begin(), found.end(), objects[0]), 1);
  for (Field* f = process_fields.first.load(order::relaxed); f != nullptr; f = f->next.load(order::relaxed)) {
    hide(*f);
  }
  for (char* object : found) EXPECT_TRUE(large_free(object));
  for (unsigned i = 0; i <= count + 1; ++i) {
    void* const whole = large_alloc(process_fields, kLargeMost, 1, false, false);
    if (whole != nullptr) EXPECT_TRUE(large_free(whole));
  }
  free_all({objects[1], objects[3]});
}

TEST_F(Large, ThreadsUseWhatAnotherPurges) {
  std::atomic<bool> stop{false};
  std::thread purger([&] {
    for (unsigned i = 0; !stop.load(std::memory_order_relaxed); ++i) {
      large_age(process_fields);
      large_purge(process_fields, i % 2 == 0, i % 3 == 0 ? 256 * kKiB : kNoLimit);
    }
  });
  std::vector<std::thread> users;
  for (unsigned t = 0; t < 3; ++t) {
    users.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      struct Held {
        char* object;
        size_t bytes;
      };
      std::vector<Held> held;
      const auto value = static_cast<int>(t + 1);
      const auto intact = [&](const Held& h) {
        return h.object[0] == value && memcmp(h.object, h.object + 1, h.bytes - 1) == 0;
      };
      for (unsigned round = 0; round < rounds(3000); ++round) {
        const size_t size = 20 * kKiB + random() % (random() % 8 == 0 ? 4 * kMiB : 200 * kKiB);
        const unsigned what = random() % 8;
        if (held.size() < 6 && what < 4) {
          const bool zeroed = random() % 4 == 0;
          char* const object = alloc(size, 1, zeroed);
          ASSERT_NE(object, nullptr);
          if (zeroed) ASSERT_TRUE(all_zero(object, size));
          held.push_back({object, usable(object)});
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          ASSERT_TRUE(intact(held.back()));
          if (what < 6) {
            ASSERT_TRUE(large_free(held.back().object));
            held.pop_back();
            continue;
          }
          const size_t kept = std::min(size, held.back().bytes);
          if (large_resize(held.back().object, size)) {
            ASSERT_TRUE(intact({held.back().object, kept}));
            held.back().bytes = usable(held.back().object);
            ASSERT_GE(held.back().bytes, size);
          }
        } else {
          continue;
        }
        memset(held.back().object, value, held.back().bytes);
      }
      for (const Held& h : held) {
        ASSERT_TRUE(intact(h));
        ASSERT_TRUE(large_free(h.object));
      }
    });
  }
  for (std::thread& user : users) user.join();
  stop = true;
  purger.join();
  expect_exact_accounts();
}

TEST_F(Large, OfTwoFreesAtOnceOneSucceeds) {
  for (unsigned round = 0; round < rounds(300); ++round) {
    char* const object = alloc(40 * kKiB);
    std::atomic<unsigned> ready{0}, freed{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        ++ready;
        while (ready != 2) std::this_thread::yield();
        freed += large_free(object) ? 1 : 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(freed, 1u);
  }
}

// ---- large_check must see what is wrong, or the tests that call it prove nothing ----

TEST_F(Large, CheckSeesWhatIsWrong) {
  const std::vector<char*> o = row({5, 5});
  Field& f = *large_place(o[0]).field;
  const unsigned first = large_place(o[0]).granule, second = large_place(o[1]).granule;
  const auto wrong = [&](const char* what, auto&& harm, auto&& undo) {
    harm();
    EXPECT_FALSE(large_check(process_fields)) << what;
    undo();
    EXPECT_TRUE(large_check(process_fields)) << what;
  };
  const auto flip = [](Field::Word& word, unsigned granule) {
    return [&word, granule] { word.store(word.load(order::relaxed) ^ uint64_t{1} << granule % 64, order::relaxed); };
  };
  const auto in_word = flip(f.occupancy(first / 64), first + 1);
  wrong("a granule of an object is free", in_word, in_word);
  const auto behind = flip(f.occupancy((second + 300) / 64), second + 300);
  wrong("a granule is taken by nobody", behind, behind);
  const auto pages = flip(f.resident(second / 64), second);
  wrong("pages of an object are not counted", pages, pages);
  const uint32_t entry = f.entry(first).load(order::relaxed);
  wrong(
      "objects overlap", [&] { f.entry(first).store(entry + kStepGranules, order::relaxed); },
      [&] { f.entry(first).store(entry, order::relaxed); });
  const unsigned room = room_of(f, Room::kFree);
  wrong(
      "a run is hidden", [&] { lower_room(f, Room::kFree, 3); }, [&] { raise_room(f, Room::kFree, room); });
  Atomic<uint16_t>& group = f.block->groups.room_of(Room::kFree, f.number / kGroupFields);
  wrong(
      "a group's run is hidden", [&] { group.store(3, order::relaxed); }, [&] { raise_room(f, Room::kFree, room); });
  EXPECT_TRUE(large_free(o[1]));
  const unsigned ready = room_of(f, Room::kReady);
  wrong(
      "a run whose pages are there is hidden", [&] { lower_room(f, Room::kReady, 1); },
      [&] { raise_room(f, Room::kReady, ready); });
  wrong(
      "dirty pages are hidden", [&] { lower_mark(f, Mark::kDirty); }, [&] { raise_mark(f, Mark::kDirty); });
  wrong(
      "the header was overwritten", [&] { f.seal ^= 1; }, [&] { f.seal ^= 1; });
  EXPECT_TRUE(large_free(o[0]));
}

}  // namespace
