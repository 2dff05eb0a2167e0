// Remembers until when no huge page is asked for.
#include "store/huge_pace.h"

#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

namespace {

constexpr uint64_t kQuickUs = 1500;  // at most
constexpr uint64_t kPauseTimes = 64;
constinit Hint<uint64_t> not_before{0};  // of os::now_ms()

}  // namespace

bool huge_pages_due() {
  const uint64_t until = not_before.get();
  return until == 0 || os::now_ms() >= until;
}

void note_huge_page(uint64_t us) { not_before.set(us <= kQuickUs ? 0 : os::now_ms() + kPauseTimes * us / 1000); }

}  // namespace folio
