// What another thread may do between the steps of a thread that acquires or vacates a chunk, done there: at each atomic
// operation in turn. No chunk may be handed out twice, and none be lost.
#include <set>

#include "os/os.h"
#include "space/chunks.h"
#include "unit/explore_at.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr unsigned kPointsMost = 1000;

class ChunksExplore : public ::testing::Test {
 protected:
  // From where no cluster is open, and no place vacant.
  ChunksExplore() {
    bool is_new = false;
    for (char* chunk = nullptr; !is_new || !aligned_to(chunk + kChunkBytes, kClusterBytes);) {
      chunk = acquire_chunk(false, &is_new);
    }
    others_ = chunks_in_use();
  }
  ~ChunksExplore() override { EXPECT_NE(explored_, 0u); }

  char* acquire() {
    char* const chunk = acquire_chunk();
    EXPECT_NE(chunk, nullptr);
    EXPECT_TRUE(is_cluster(chunk, kClusterCommitted));
    EXPECT_TRUE(mine_.insert(chunk).second) << "handed out twice";
    clusters_.insert(cluster_start(chunk));
    return chunk;
  }
  void vacate(char* chunk) {
    mine_.erase(chunk);  // first: an interruption may get it
    return_chunk(chunk);
  }
  // What is left of the clusters comes before another one is opened.
  void use_up(unsigned point) {
    const size_t opened = clusters_.size();
    while (mine_.size() < opened * kClusterChunks) acquire();
    ASSERT_EQ(clusters_.size(), opened) << "lost at point " << point;
    ASSERT_EQ(chunks_in_use(), others_ + mine_.size()) << point;
    for (char* const chunk : mine_) chunk[0] = chunk[kChunkBytes - 1] = 1;
  }
  void forget() {
    others_ = chunks_in_use();
    mine_.clear();
    clusters_.clear();
  }

  // Interrupts `body` at each of its points by `interruption`, from a start that `prepare` makes each time.
  void explore(const std::function<void()>& prepare, const std::function<void()>& body,
               const std::function<void()>& interruption) {
    for (unsigned point = 1; point < kPointsMost; ++point) {
      prepare();
      const bool ran = explore_at(point, body, interruption);
      use_up(point);
      forget();
      if (HasFatalFailure() || !ran) return;
      ++explored_;
    }
    ADD_FAILURE() << "more points than expected";
  }

  unsigned explored_ = 0;
  size_t others_ = 0;
  std::set<char*> mine_, clusters_;
};

TEST_F(ChunksExplore, TwoOpenAClusterAtTheSameTime) {
  explore([] {}, [this] { acquire(); }, [this] { acquire(); });
}

TEST_F(ChunksExplore, OthersUseUpWhatOneOpens) {
  const auto more = [this] {
    for (unsigned i = 0; i < kClusterChunks + 1; ++i) acquire();
  };
  explore([] {}, [this] { acquire(); }, more);
}

TEST_F(ChunksExplore, TwoTakeTheLastOne) {
  const auto but_one = [this] {
    for (unsigned i = 0; i < kClusterChunks - 1; ++i) acquire();
  };
  explore(
      but_one, [this] { acquire(); }, [this] { acquire(); });
}

TEST_F(ChunksExplore, APlaceIsVacatedWhileOthersAcquire) {
  char* chunk = nullptr;
  const auto one = [&] { chunk = acquire(); };
  explore(
      one, [&] { vacate(chunk); }, [this] { acquire(); });
  explore(
      one, [this] { acquire(); }, [&] { vacate(chunk); });
}

TEST_F(ChunksExplore, TwoTakeAVacantPlace) {
  const auto one = [this] { vacate(acquire()); };
  explore(
      one, [this] { acquire(); }, [this] { acquire(); });
}

}  // namespace
