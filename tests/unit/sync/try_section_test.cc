#include "sync/try_section.h"

#include <atomic>
#include <thread>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// A transaction that does as it is told. Software cannot go back to begin() as an abort does, so abort() leaves the
// section by an exception, and what the section does after an abort is shown by a begin() that returns the abort's
// status.
struct Scripted {
  static constexpr unsigned kStarted = ~0u;
  static constexpr unsigned kExplicit = 1u << 0;
  static constexpr unsigned kMayRetry = 1u << 1;
  static constexpr unsigned kCapacity = 1u << 3;

  struct Aborted {};

  static std::vector<unsigned> statuses;  // what the next begins return; then kStarted
  static unsigned begins, commits, aborts;

  static void script(std::vector<unsigned> next) {
    statuses = std::move(next);
    begins = commits = aborts = 0;
  }
  static unsigned begin() {
    const unsigned number = begins++;
    return number < statuses.size() ? statuses[number] : kStarted;
  }
  static void commit() { ++commits; }
  static void abort() {
    ++aborts;
    throw Aborted{};
  }
};
std::vector<unsigned> Scripted::statuses;
unsigned Scripted::begins, Scripted::commits, Scripted::aborts;

using ScriptedSection = BasicTrySection<Scripted>;

TEST(TrySection, RunsTheBodyOnce) {
  TrySection section;
  unsigned ran = 0;
  EXPECT_TRUE(section.run(false, [&] {
    EXPECT_TRUE(section.held());
    ++ran;
  }));
  EXPECT_EQ(ran, 1u);
  EXPECT_FALSE(section.held());
}

TEST(TrySection, BusyIsReportedAndRunsNothing) {
  TrySection section;
  EXPECT_TRUE(section.run(false, [&] {
    EXPECT_FALSE(section.run(false, [] { ADD_FAILURE() << "two inside"; }));
    EXPECT_TRUE(section.held()) << "who finds it busy leaves it busy";
  }));
  EXPECT_TRUE(section.run(false, [] {}));
}

TEST(TrySection, ForgetHolderFreesIt) {
  TrySection section;
  section.run(false, [&] {
    section.forget_holder();
    EXPECT_FALSE(section.held());
    EXPECT_TRUE(section.run(false, [] {}));
  });
}

TEST(TrySection, OneInsideAtATime) {
  TrySection section;
  const bool use_transactions = arch::Transaction::has();
  uint64_t plain = 0;  // a data race if two were inside, or if one did not see what the last one wrote
  std::atomic<uint64_t> ran{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      uint64_t mine = 0;
      for (unsigned i = 0; i < rounds(1000000); ++i) mine += section.run(use_transactions, [&] { ++plain; }) ? 1 : 0;
      ran += mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(ran, 0u);
  EXPECT_EQ(plain, ran);
}

TEST(TrySectionTransaction, CommitsWithoutTheFlag) {
  ScriptedSection section;
  Scripted::script({});
  unsigned ran = 0;
  EXPECT_TRUE(section.run(true, [&] {
    EXPECT_FALSE(section.held()) << "a transaction only reads the flag";
    ++ran;
  }));
  EXPECT_EQ(ran, 1u);
  EXPECT_EQ(Scripted::begins, 1u);
  EXPECT_EQ(Scripted::commits, 1u);
  EXPECT_EQ(Scripted::aborts, 0u);
}

TEST(TrySectionTransaction, IsNotUsedUnlessAskedFor) {
  ScriptedSection section;
  Scripted::script({});
  EXPECT_TRUE(section.run(false, [&] { EXPECT_TRUE(section.held()); }));
  EXPECT_EQ(Scripted::begins, 0u);
}

TEST(TrySectionTransaction, RetriesAnAbortThatMayPass) {
  ScriptedSection section;
  Scripted::script({Scripted::kMayRetry, Scripted::kMayRetry | Scripted::kExplicit});
  unsigned ran = 0;
  EXPECT_TRUE(section.run(true, [&] {
    EXPECT_FALSE(section.held());
    ++ran;
  }));
  EXPECT_EQ(ran, 1u);
  EXPECT_EQ(Scripted::begins, 3u);
  EXPECT_EQ(Scripted::commits, 1u);
}

TEST(TrySectionTransaction, TakesTheFlagAfterAFewAborts) {
  ScriptedSection section;
  Scripted::script(std::vector<unsigned>(100, Scripted::kMayRetry));
  unsigned ran = 0;
  EXPECT_TRUE(section.run(true, [&] {
    EXPECT_TRUE(section.held());
    ++ran;
  }));
  EXPECT_EQ(ran, 1u);
  EXPECT_EQ(Scripted::begins, ScriptedSection::kAttempts);
  EXPECT_EQ(Scripted::commits, 0u);
  EXPECT_FALSE(section.held());
}

TEST(TrySectionTransaction, TakesTheFlagAtOnceWhereRetryingIsHopeless) {
  for (const unsigned status : {0u, Scripted::kExplicit, Scripted::kCapacity}) {
    ScriptedSection section;
    Scripted::script({status});
    unsigned ran = 0;
    EXPECT_TRUE(section.run(true, [&] {
      EXPECT_TRUE(section.held());
      ++ran;
    }));
    EXPECT_EQ(ran, 1u);
    EXPECT_EQ(Scripted::begins, 1u) << status;
    EXPECT_EQ(Scripted::commits, 0u);
  }
}

TEST(TrySectionTransaction, SubscribesToTheFlagBeforeTheBody) {
  ScriptedSection section;
  section.run(false, [&] {
    Scripted::script({});
    EXPECT_THROW(section.run(true, [] { ADD_FAILURE() << "the body ran beside the holder"; }), Scripted::Aborted);
    EXPECT_EQ(Scripted::aborts, 1u);
    EXPECT_EQ(Scripted::commits, 0u);
  });
}

TEST(TrySectionTransaction, AfterThatAbortItIsBusy) {
  // What the processor does after the abort above: back to begin, with a status that says "explicit", no retry.
  ScriptedSection section;
  section.run(false, [&] {
    Scripted::script({Scripted::kExplicit});
    EXPECT_FALSE(section.run(true, [] { ADD_FAILURE() << "two inside"; }));
    EXPECT_EQ(Scripted::begins, 1u);
    EXPECT_TRUE(section.held());
  });
  EXPECT_TRUE(section.run(true, [] {}));
}

}  // namespace
