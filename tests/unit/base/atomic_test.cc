#include "base/atomic.h"

#include <thread>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kThreads = 4;

template <class Body>
void in_threads(Body&& body) {
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

template <class T>
class AtomicOf : public ::testing::Test {};
using Words = ::testing::Types<uint8_t, uint32_t, uint64_t, int64_t>;
TYPED_TEST_SUITE(AtomicOf, Words);

TYPED_TEST(AtomicOf, EachOperationDoesWhatItsNameSays) {
  Atomic<TypeParam> word{5};
  EXPECT_EQ(word.load(order::acquire), 5);
  word.store(6, order::release);
  EXPECT_EQ(word.exchange(0x30, order::acq_rel), 6);
  EXPECT_EQ(word.fetch_or(0x0c, order::relaxed), 0x30);
  EXPECT_EQ(word.fetch_and(0x18, order::seq_cst), 0x3c);
  EXPECT_EQ(word.fetch_add(3, order::relaxed), 0x18);
  EXPECT_EQ(word.fetch_sub(1, order::relaxed), 0x1b);
  EXPECT_EQ(word.load(order::seq_cst), 0x1a);
  EXPECT_EQ(Atomic<TypeParam>{}.load(order::relaxed), 0);
}

TYPED_TEST(AtomicOf, CompareExchangeTellsWhatItFound) {
  Atomic<TypeParam> word{1};
  TypeParam expected = 2;
  EXPECT_FALSE(word.compare_exchange(expected, 9, order::acq_rel));
  EXPECT_EQ(expected, 1);
  EXPECT_EQ(word.load(order::relaxed), 1);
  EXPECT_TRUE(word.compare_exchange(expected, 9, order::acq_rel));
  EXPECT_EQ(expected, 1);
  EXPECT_EQ(word.load(order::relaxed), 9);
}

TEST(Atomic, IsNoBiggerThanItsWordAndZeroFilledMemoryIsOne) {
  static_assert(sizeof(Atomic<uint8_t>) == 1 && sizeof(Atomic<uint64_t>) == 8 && sizeof(Atomic<void*>) == 8);
  alignas(8) unsigned char memory[8] = {};
  EXPECT_EQ(reinterpret_cast<Atomic<void*>*>(memory)->load(order::relaxed), nullptr);
}

TEST(Atomic, NoUpdateIsLostBetweenThreads) {
  Atomic<uint64_t> sum{0}, bits{0}, retried{0};
  Atomic<uint8_t> small{0};
  const unsigned n = rounds(100000);
  in_threads([&](unsigned i) {
    for (unsigned round = 0; round < n; ++round) {
      sum.fetch_add(2, order::relaxed);
      sum.fetch_sub(1, order::relaxed);
      uint64_t now = retried.load(order::relaxed);
      while (!retried.compare_exchange(now, now + 1, order::relaxed)) {
      }
      // Neighbouring bits of one word by different threads: each must see its own as it left it.
      const uint64_t mine = uint64_t{1} << i;
      ASSERT_EQ(bits.fetch_or(mine, order::relaxed) & mine, 0u);
      ASSERT_EQ(bits.fetch_and(~mine, order::relaxed) & mine, mine);
    }
    small.fetch_or(static_cast<uint8_t>(1u << i), order::relaxed);
  });
  EXPECT_EQ(sum.load(order::relaxed), uint64_t{kThreads} * n);
  EXPECT_EQ(retried.load(order::relaxed), uint64_t{kThreads} * n);
  EXPECT_EQ(bits.load(order::relaxed), 0u);
  EXPECT_EQ(small.load(order::relaxed), (1u << kThreads) - 1);
}

TEST(Atomic, ReleasePublishesToAcquire) {
  Atomic<uint32_t> turn{0};
  uint64_t plain = 0;
  const unsigned n = rounds(20000);
  std::thread writer([&] {
    for (uint32_t i = 1; i <= n; ++i) {
      while (turn.load(order::acquire) % 2 != 0) std::this_thread::yield();
      plain = i;
      turn.fetch_add(1, order::release);
    }
  });
  for (uint32_t i = 1; i <= n; ++i) {
    while (turn.load(order::acquire) % 2 == 0) std::this_thread::yield();
    ASSERT_EQ(plain, i);
    turn.fetch_add(1, order::release);
  }
  writer.join();
}

}  // namespace
