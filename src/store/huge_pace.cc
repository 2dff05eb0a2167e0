// Remembers until when no huge page is asked for.
#include "store/huge_pace.h"

#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constexpr uint64_t kQuickUs = 1500;  // at most
constexpr uint64_t kPauseTimes = 64;
constexpr uint64_t kPlainUs = 400;  // at most: surely a huge page
constexpr uint64_t kKnownMs = 10'000, kNoneMs = 1000;
constinit Hint<uint64_t> not_before{0};   // of os::now_ms(), as the next
constinit Hint<uint64_t> known_until{0};  // that huge pages come

}  // namespace

bool huge_pages_due() {
  const uint64_t until = not_before.get();
  return until == 0 || os::now_ms() >= until;
}

// 512 small pages take as long as a slow huge one: they come in its place where huge pages are off, or there is none.
void note_huge_page(uint64_t us) {
  const uint64_t now = os::now_ms();
  if (us > kQuickUs) return not_before.set(now + kPauseTimes * us / 1000);
  if (us > kPlainUs && now >= known_until.get()) {
    if (!os::huge_pages_come()) return not_before.set(now + kNoneMs);
    known_until.set(now + kKnownMs);
  }
  not_before.set(0);
}

}  // namespace folio
