#include "store/hints.h"

#include <memory>
#include <random>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// One window of chunks that are nowhere: hints never touch a chunk's memory.
class Hints : public ::testing::Test {
 protected:
  Hints() : window_(std::make_unique<Window>()), block_(std::make_unique<HintBlock>()) {
    window_->number = 3;
    block_->window = window_.get();
    block_->bin = small_;
    EXPECT_TRUE(chunk_table_open(window_->chunk(0), kWindowChunks * kChunkBytes));
  }

  ~Hints() override {
    for (unsigned slot = 0; slot < kWindowChunks; ++slot) set_chunk(window_.get(), window_->chunk(slot), nullptr, 0);
  }

  Descriptor& open(unsigned slot, BinId bin) {
    block_->bin = bin;
    descriptors_.emplace_back(Descriptor::bytes_for(bin) / sizeof(uint64_t));
    auto* d = reinterpret_cast<Descriptor*>(descriptors_.back().data());
    d->first = window_->chunk(slot);
    d->block = block_.get();
    d->bin = bin;
    d->seal = Descriptor::seal_for(d->first, bin);
    set_chunk(window_.get(), d->first, d, index(bin));
    return *d;
  }

  void set_word(Descriptor& d, unsigned folio, uint64_t word) { d.occupancy(folio).store(word, order::relaxed); }

  bool raised(const Descriptor& d, Fullness fullness) {
    return find_chunk(*block_, fullness, window_slot(d.first)) == &d;
  }

  static constexpr Fullness kClasses[] = {kNearlyFull, kPartlyFull, kEmpty};
  std::unique_ptr<Window> window_;
  std::unique_ptr<HintBlock> block_;
  std::vector<std::vector<uint64_t>> descriptors_;
  const BinId small_ = bin_id(1);  // the bin with the most folios
};

TEST(Fullness, ByHowMuchRoomThereIs) {
  const uint64_t all = ~uint64_t{0};
  EXPECT_EQ(fullness_of(0, all), kEmpty);
  EXPECT_EQ(fullness_of(all, all), kFull);
  for (unsigned taken = 1; taken < 64; ++taken) {
    EXPECT_EQ(fullness_of(low_mask(taken), all), taken >= 48 ? kNearlyFull : kPartlyFull) << taken;
    EXPECT_EQ(fullness_of(~low_mask(64 - taken), all), taken >= 48 ? kNearlyFull : kPartlyFull) << taken;
  }
}

TEST(Fullness, OfFewObjectsNearlyIsThreeQuartersToo) {
  for (unsigned objects = 1; objects < 64; ++objects) {
    const uint64_t valid = low_mask(objects);
    EXPECT_EQ(fullness_of(0, valid), kEmpty);
    EXPECT_EQ(fullness_of(valid, valid), kFull);
    for (unsigned taken = 1; taken < objects; ++taken) {
      EXPECT_EQ(fullness_of(low_mask(taken), valid), 4 * taken >= 3 * objects ? kNearlyFull : kPartlyFull)
          << taken << " of " << objects;
    }
  }
}

TEST(Fullness, OfAWordThatIsNotFull) {
  std::mt19937_64 random(3);
  for (const unsigned objects : {1u, 2u, 5u, 31u, 63u, 64u}) {
    const uint64_t valid = low_mask(objects);
    for (unsigned i = 0; i < 20000; ++i) {
      // Words of every fullness.
      uint64_t word = random() & valid;
      if (i % 3 == 0) word |= random() | random();
      if (i % 7 == 0) word &= random() & random();
      word &= valid;
      if (word == valid) continue;
      ASSERT_EQ(fullness_below_full(word, valid), fullness_of(word, valid)) << std::hex << word;
    }
  }
}

TEST_F(Hints, AZeroFilledChunkIsAllEmpty) {
  Descriptor& d = open(0, small_);
  EXPECT_EQ(find_folio(d, kEmpty), 0);
  EXPECT_EQ(find_folio(d, kPartlyFull), -1);
  EXPECT_EQ(find_folio(d, kNearlyFull), -1);
  for (const Fullness fullness : kClasses) EXPECT_EQ(find_chunk(*block_, fullness), nullptr) << "not opened yet";
  raise_chunk(d, kEmpty);
  EXPECT_EQ(find_chunk(*block_, kEmpty), &d);
}

TEST_F(Hints, TheLowestRaisedFolioIsFound) {
  Descriptor& d = open(7, small_);
  const unsigned last = d.info().folios - 1u;
  for (const Fullness fullness : {kNearlyFull, kPartlyFull}) {
    for (const unsigned folio : {last, 400u, 64u, 63u, 3u}) {
      raise_folio(d, folio, fullness);
      EXPECT_EQ(find_folio(d, fullness), static_cast<int>(folio));
    }
    EXPECT_TRUE(raised(d, fullness)) << "raising a folio's raises the chunk's";
    // All of them were empty in truth: lowering sticks.
    for (const unsigned folio : {3u, 63u, 64u, 400u, last}) {
      EXPECT_EQ(find_folio(d, fullness), static_cast<int>(folio));
      lower_folio(d, folio, fullness);
    }
    EXPECT_EQ(find_folio(d, fullness), -1);
  }
}

TEST_F(Hints, EmptyIsStoredTheOtherWayRound) {
  Descriptor& d = open(7, small_);
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    set_word(d, folio, ~uint64_t{0});
    EXPECT_EQ(find_folio(d, kEmpty), static_cast<int>(folio));
    lower_folio(d, folio, kEmpty);
  }
  EXPECT_EQ(find_folio(d, kEmpty), -1) << "bits beyond the last folio are no folios";
  set_word(d, 100, 0);
  raise_folio(d, 100, kEmpty);
  EXPECT_EQ(find_folio(d, kEmpty), 100);
  EXPECT_TRUE(raised(d, kEmpty));
}

TEST_F(Hints, EveryBinsLastFolioIsTheLastOneFound) {
  for (const BinId bin : all_bins()) {
    Descriptor& d = open(1, bin);
    for (unsigned folio = 0; folio < d.info().folios; ++folio) {
      ASSERT_EQ(find_folio(d, kEmpty), static_cast<int>(folio)) << "bin " << index(bin);
      set_word(d, folio, d.valid(folio));
      lower_folio(d, folio, kEmpty);
    }
    EXPECT_EQ(find_folio(d, kEmpty), -1) << "bin " << index(bin);
  }
}

TEST_F(Hints, WhatIsStillTrueIsRaisedAgain) {
  Descriptor& d = open(7, small_);
  for (const Fullness fullness : kClasses) {
    set_word(d, 5, fullness == kNearlyFull ? low_mask(60) : fullness == kPartlyFull ? low_mask(10) : 0);
    raise_folio(d, 5, fullness);
    lower_folio(d, 5, fullness);
    EXPECT_TRUE((find_folio(d, fullness)) == (fullness == kEmpty ? 0 : 5)) << fullness;
    lower_chunk(d, fullness);
    EXPECT_TRUE(raised(d, fullness)) << "a folio's hint is raised, so the chunk's is";
    set_word(d, 5, ~uint64_t{0});
    lower_folio(d, 5, fullness);
    if (fullness == kEmpty) continue;
    EXPECT_EQ(find_folio(d, fullness), -1);
    lower_chunk(d, fullness);
    EXPECT_FALSE(raised(d, fullness));
  }
}

TEST_F(Hints, AFolioOfAnotherClassIsRaisedThere) {
  // Whoever lowers a stale hint sets right what a stopped thread may have left.
  Descriptor& d = open(7, small_);
  raise_folio(d, 9, kPartlyFull);
  set_word(d, 9, low_mask(60));
  lower_folio(d, 9, kPartlyFull);
  EXPECT_EQ(find_folio(d, kPartlyFull), -1);
  EXPECT_EQ(find_folio(d, kNearlyFull), 9);
  EXPECT_TRUE(raised(d, kNearlyFull));
}

TEST_F(Hints, RepairingRaisesWhatTheWordsAskFor) {
  Descriptor& d = open(7, small_);
  for (unsigned folio = 0; folio < d.info().folios; ++folio) {
    set_word(d, folio, ~uint64_t{0});
    lower_folio(d, folio, kEmpty);
  }
  set_word(d, 11, 0);
  set_word(d, 22, low_mask(1));
  set_word(d, 33, low_mask(63));
  repair_chunk(d);
  EXPECT_EQ(find_folio(d, kEmpty), 11);
  EXPECT_EQ(find_folio(d, kPartlyFull), 22);
  EXPECT_EQ(find_folio(d, kNearlyFull), 33);
  for (const Fullness fullness : kClasses) EXPECT_TRUE(raised(d, fullness));
}

TEST_F(Hints, TheLowestRaisedChunkIsFoundFromAnyStart) {
  const unsigned slots[] = {0, 1, 63, 64, 200, 4032, kWindowChunks - 1};
  std::vector<Descriptor*> open_chunks;
  for (const unsigned slot : slots) open_chunks.push_back(&open(slot, bin_id(20)));
  for (const unsigned hint : {unsigned{kNearlyFull}, unsigned{kPartlyFull}, unsigned{kEmpty}, kDirty}) {
    EXPECT_EQ(find_chunk(*block_, hint), nullptr);
    for (Descriptor* d : open_chunks) raise_chunk(*d, hint);
    for (unsigned from = 0; from < kWindowChunks; ++from) {
      const unsigned* const next = std::lower_bound(std::begin(slots), std::end(slots), from);
      ASSERT_EQ(find_chunk(*block_, hint, from), open_chunks[static_cast<size_t>(next - slots)]) << from;
    }
    EXPECT_EQ(find_chunk(*block_, hint, kWindowChunks), nullptr);
  }
}

TEST_F(Hints, AStaleSummaryIsRepaired) {
  Descriptor& low = open(5, bin_id(20));
  Descriptor& high = open(300, bin_id(20));
  raise_chunk(low, kDirty);
  raise_chunk(high, kDirty);
  lower_chunk(low, kDirty);
  EXPECT_EQ(block_->summary[kDirty].load(order::relaxed), uint64_t{1} | uint64_t{1} << 4)
      << "lowering leaves the summary";
  EXPECT_EQ(find_chunk(*block_, kDirty), &high);
  EXPECT_EQ(block_->summary[kDirty].load(order::relaxed), uint64_t{1} << 4);
  lower_chunk(high, kDirty);
  EXPECT_EQ(find_chunk(*block_, kDirty), nullptr);
  EXPECT_EQ(block_->summary[kDirty].load(order::relaxed), 0u);
  raise_chunk(low, kDirty);
  EXPECT_EQ(find_chunk(*block_, kDirty), &low);
}

TEST_F(Hints, ASearchFromTheMiddleKeepsTheHintsBeforeIt) {
  Descriptor& d = open(5, bin_id(20));
  raise_chunk(d, kDirty);
  EXPECT_EQ(find_chunk(*block_, kDirty, 6), nullptr);
  EXPECT_EQ(find_chunk(*block_, kDirty), &d);
}

}  // namespace
