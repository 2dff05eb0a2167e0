// Large objects of ever other sizes, beside some huge ones, in threads that free what others allocated: they grow and
// shrink in place, merge, are purged and handed out anew, and every byte is looked at.
#include "core/clock.h"
#include "stress/support.h"

#include "space/large.h"

namespace stress {
namespace {

const bool configured = configure(8);

constexpr size_t kLeast = size_t{20} << 10, kMost = size_t{10} << 20;

uint64_t word_at(const Object& object, size_t i) {
  return (object.tag + 1) * 0x9e3779b97f4a7c15u ^ i * 0xbf58476d1ce4e5b9u;
}

// Whole words; what follows them is looked at by its size alone.
void write_all(const Object& object, size_t from = 0) {
  auto* const words = reinterpret_cast<uint64_t*>(object.at);
  for (size_t i = from / 8; i < object.size / 8; ++i) words[i] = word_at(object, i);
}
bool all_there(const Object& object, size_t bytes) {
  const auto* const words = reinterpret_cast<const uint64_t*>(object.at);
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes / 8; ++i) wrong |= words[i] ^ word_at(object, i);
  return wrong == 0;
}

class LargeWorker {
 public:
  LargeWorker(unsigned seed, Mailboxes& mailboxes) : random_(seed), mailboxes_(mailboxes) {}
  LargeWorker(const LargeWorker&) = delete;
  LargeWorker& operator=(const LargeWorker&) = delete;
  ~LargeWorker() {
    for (const Object& object : kept_) release(object);
  }

  void step() {
    Object& kept = kept_[random_() % std::size(kept_)];
    const unsigned what = random_() % 16;
    if (kept.at == nullptr) {
      kept = allocate();
    } else if (what < 6) {
      release(kept);
      kept = Object();
    } else if (what < 12) {
      resize(kept);
    } else {
      kept = mailboxes_.swap(static_cast<unsigned>(random_()), kept);
    }
  }

  static void release(const Object& object) {
    if (object.at == nullptr) return;
    if (!all_there(object, object.size)) fail("an object whose contents changed", object);
    folio_free(object.at);
  }

 private:
  // Most of some hundred KiB; all sizes come.
  size_t size() {
    const size_t most = kMost >> random_() % 7;
    return kLeast + random_() % most;
  }

  Object allocate() {
    Object object;
    object.size = size();
    object.tag = static_cast<uint8_t>(random_());
    const unsigned how = random_() % 4;
    const size_t alignment = size_t{1} << random_() % 22;
    void* const at = how == 0   ? folio_calloc(1, object.size)
                     : how == 1 ? folio_aligned_alloc(alignment, object.size)
                                : folio_malloc(object.size);
    object.at = static_cast<unsigned char*>(at);
    if (at == nullptr) return fail("no memory", object), Object();
    if (how == 1 && reinterpret_cast<uintptr_t>(at) % alignment != 0) fail("an object that is not aligned", object);
    if (how == 0 && (object.at[0] != 0 || memcmp(object.at, object.at + 1, object.size - 1) != 0)) {
      fail("calloc that is not zero", object);
    }
    write_all(object);
    return object;
  }

  void resize(Object& object) {
    const size_t before = object.size;
    // Often by a little: in place, where there is room. At least kLeast, also after many that shrink.
    constexpr size_t kLess = size_t{16} << 10;
    const size_t little = std::max(before + random_() % (size_t{128} << 10), kLeast + kLess) - kLess;
    const size_t to = random_() % 2 == 0 ? size() : little;
    object.at = static_cast<unsigned char*>(folio_realloc(object.at, to));
    object.size = to;
    if (object.at == nullptr) return fail("realloc found no memory", object);
    const size_t kept = std::min(before, to) / 8 * 8;
    if (!all_there(object, kept)) fail("realloc lost the contents", object);
    write_all(object, kept);
  }

  std::minstd_rand random_;
  Mailboxes& mailboxes_;
  Object kept_[6];
};

// Rounds of work with a quiet moment after each, in which every invariant must hold.
TEST(Stress, LargeObjectsOfAllSizes) {
  ASSERT_TRUE(configured);
  ASSERT_TRUE(folio::clock_start_housekeeper());
  constexpr unsigned kThreads = 4;
  Mailboxes mailboxes(8);
  const Deadline deadline(6);
  std::vector<std::unique_ptr<LargeWorker>> workers;
  for (unsigned i = 0; i < kThreads; ++i) workers.push_back(std::make_unique<LargeWorker>(i + 1, mailboxes));
  uint64_t steps = 0;
  unsigned moments = 0;
  for (; !deadline.over() || moments == 0; ++moments) {
    constexpr unsigned kSteps = kSanitized ? 40 : 400;
    std::vector<std::thread> threads;
    for (auto& worker : workers) {
      threads.emplace_back([&worker] {
        for (unsigned n = 0; n < kSteps; ++n) worker->step();
      });
    }
    folio_collect();
    for (std::thread& t : threads) t.join();
    steps += kThreads * kSteps;
    ASSERT_EQ(eventually(bins_are_sound), "");
  }
  workers.clear();
  for (unsigned i = 0; i < mailboxes.count(); ++i) LargeWorker::release(mailboxes.swap(i, Object()));
  printf("%lu steps, %u quiet moments, %lu KiB in fields, %lu KiB purged\n", steps, moments,
         folio::large_stats(folio::process_fields).reserved >> 10, folio::totals().purged >> 10);
  expect_quiet_and_sound();
  EXPECT_EQ(folio::large_stats(folio::process_fields).objects, 0u);
}

}  // namespace
}  // namespace stress
