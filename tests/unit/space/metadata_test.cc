#include "space/metadata.h"

#include <errno.h>

#include <algorithm>
#include <string>
#include <thread>

#include "base/bits.h"
#include "os/os.h"
#include "unit/child.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

struct Extent {
  char* start;
  size_t bytes;
};

// No two of them share a byte.
void expect_apart(std::vector<Extent> all) {
  std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.start < b.start; });
  for (size_t i = 1; i < all.size(); ++i) {
    ASSERT_LE(all[i - 1].start + all[i - 1].bytes, all[i].start) << "overlap of " << all[i - 1].bytes << " bytes";
  }
}

Extent allocate(size_t bytes, size_t alignment) {
  auto* at = static_cast<char*>(metadata_alloc(bytes, alignment));
  EXPECT_NE(at, nullptr) << bytes;
  EXPECT_TRUE(aligned_to(at, alignment)) << bytes << " " << alignment;
  EXPECT_TRUE(all_zero(at, bytes)) << bytes;
  memset(at, 0xa5, bytes);
  return {at, bytes};
}

TEST(Metadata, AlignedZeroedAndApartAcrossPieces) {
  // Twelve MiB: the first piece has two, the next ones twice as much each.
  std::mt19937 random(4);
  std::vector<Extent> all;
  const size_t before = metadata_bytes();
  size_t sum = 0;
  while (sum < 12 * kMiB) {
    const size_t alignment = kMetadataAlignment << random() % 7;
    const size_t bytes = random() % 100 == 0 ? random() % (600 * kKiB) : random() % 5000;
    all.push_back(allocate(bytes + 1, alignment));
    sum += bytes + 1;
  }
  EXPECT_EQ(metadata_bytes(), before + sum);
  expect_apart(std::move(all));
}

TEST(Metadata, DefaultAlignmentIsACacheLine) {
  metadata_alloc(1);
  EXPECT_TRUE(aligned_to(metadata_alloc(1), 64));
}

TEST(Metadata, MoreThanAnyPieceHas) {
  for (const size_t bytes : {5 * kMiB, 63 * kMiB, 64 * kMiB, 200 * kMiB}) {
    auto* at = static_cast<char*>(metadata_alloc(bytes));
    ASSERT_NE(at, nullptr) << bytes;
    at[0] = at[bytes - 1] = 1;
  }
  allocate(100, 64);
}

TEST(Metadata, TooMuchIsNullAndLeavesErrnoAlone) {
  const size_t before = metadata_bytes();
  errno = 0;
  EXPECT_EQ(metadata_alloc(size_t{1} << 60), nullptr);
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(metadata_bytes(), before);
  allocate(64, 64);
}

TEST(Metadata, ThreadsGetTheirOwn) {
  constexpr unsigned kThreads = 4;
  std::vector<Extent> all[kThreads];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      for (unsigned i = 0; i < rounds(2000); ++i) {
        const size_t alignment = kMetadataAlignment << random() % 4;
        all[t].push_back(allocate(1 + random() % 3000, alignment));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Extent> together;
  for (const auto& mine : all) together.insert(together.end(), mine.begin(), mine.end());
  expect_apart(std::move(together));
}

TEST(Metadata, TakesSmallerPiecesWhereAddressSpaceIsShort) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need more address space than a limit leaves";
  const int result = in_child([] {
    while (metadata_bytes() < 4 * kMiB) metadata_alloc(64 * kKiB);  // so that the next piece would be a large one
    if (!limit_address_space(3 * kMiB)) return kCannot;
    size_t got = 0;
    while (metadata_alloc(16 * kKiB) != nullptr) got += 16 * kKiB;
    // All but a last, smallest piece and what was left of the one before it.
    return got >= 2 * kMiB ? kPassed : kFailed;
  });
  if (result == kCannot) GTEST_SKIP() << "no limits here";
  EXPECT_EQ(result, kPassed);
}

// Memory that comes from elsewhere serves first, and when it is used up the next piece is an ordinary one.
TEST(Metadata, AddedMemoryServes) {
  const int result = in_child([] {
    constexpr size_t kBytes = 256 * kKiB;
    auto* const added = static_cast<char*>(os::reserve(kBytes, kBytes));
    if (added == nullptr || !os::commit(added, kBytes)) return kCannot;
    metadata_add(added, kBytes);
    size_t got = 0;
    for (;;) {
      auto* const at = static_cast<char*>(metadata_alloc(kKiB));
      if (at == nullptr || !all_zero(at, kKiB) || !metadata_holds(at, kKiB)) return kFailed;
      memset(at, 0xa5, kKiB);
      if (at < added || at >= added + kBytes) break;
      got += kKiB;
    }
    return got >= kBytes - 2 * kKiB ? kPassed : kFailed;
  });
  EXPECT_EQ(result, kPassed);
}

// Whether the page of each of these addresses is resident: a letter for each.
std::string resident_at(const char* start, size_t bytes) {
  const size_t page = os::page_bytes();
  std::string letters;
  for (const char* at = start; at < start + bytes; at += page) {
    unsigned char there = 0;
    letters += !residency(at, page, &there) ? '?' : (there & 1) != 0 ? 'x' : '.';
  }
  return letters;
}

constexpr size_t kStep = 32 * kKiB;  // what comes at once
char* piece() { return reinterpret_cast<char*>(metadata_pieces.load(order::relaxed)); }
size_t used() { return metadata_pieces.load(order::relaxed)->used.load(order::relaxed); }

// Hands metadata out until the last page of a step, of which at most half is left.
void go_to_end_of_step() {
  metadata_alloc(64);  // a piece
  while (used() % kStep < kStep - os::page_bytes() / 2) metadata_alloc(64);
}

// Runs it in a child, in which nothing has touched what comes.
template <class Body>
void expect_in_child(Body&& body) {
  const int result = in_child([&] {
    if (os::page_bytes() >= kStep || !can_populate()) return kCannot;
    body();
    return ::testing::Test::HasFailure() ? kFailed : kPassed;
  });
  if (result == kCannot) GTEST_SKIP() << kCannotPopulate;
  EXPECT_EQ(result, kPassed);
}

TEST(Metadata, AStepComesAtOnce) {
  expect_in_child([] {
    go_to_end_of_step();
    const size_t next = round_up(used(), kStep);
    EXPECT_EQ(resident_at(piece() + next, kStep), std::string(kStep / os::page_bytes(), '.'));
    while (used() <= next) metadata_alloc(64);
    EXPECT_EQ(resident_at(piece() + next, kStep), std::string(kStep / os::page_bytes(), 'x'));
    EXPECT_EQ(resident_at(piece() + next + kStep, os::page_bytes()), ".");
  });
}

TEST(Metadata, LongOnesComeAsTheyAreTouched) {
  expect_in_child([] {
    go_to_end_of_step();
    const size_t long_one = 3 * kStep, page = os::page_bytes(), start = round_up(used(), page);
    metadata_alloc(long_one, page);
    EXPECT_EQ(resident_at(piece() + start, long_one), std::string(long_one / page, '.'));
    const size_t end = start + long_one, rest = round_up(end, kStep) - end;
    EXPECT_EQ(resident_at(piece() + end, rest), std::string(rest / page, 'x'));
  });
}

}  // namespace
