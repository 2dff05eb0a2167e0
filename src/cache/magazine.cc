// Moves objects between magazines, searches them, and keeps the pool of empty ones.
#include "cache/magazine.h"

#include "cache/shards.h"
#include "space/metadata.h"
#include "store/give.h"

namespace folio {

namespace {

// A stack of lists of empty magazines per shard, each on its own cache line.
struct alignas(64) Pool {
  MagazineStack lists;
};
constinit Pool pools[kShardsMost];
// The pool grows by one page, so that a thread that needs few magazines touches no more.
constexpr unsigned kPageMagazines = kPageBytesLeast / kMagazineBytes;
static_assert(kPageMagazines <= kEmptyBatch);

}  // namespace

void Magazine::set_capacity(unsigned capacity) {
  const unsigned n = count();
  if (bottom() == capacity) return;
  Slot* const source = top();
  Slot* const target = slot(capacity - n);
  __builtin_memmove(target, source, n * sizeof(Slot));
  format(capacity);
  park(target);
}

void Magazine::take_from(Magazine* from, unsigned n) {
  Slot* const source = from->top();
  Slot* const target = top() - n;
  __builtin_memcpy(target, source, n * sizeof(Slot));
  from->park(source + n);
  park(target);
}

void Magazine::give_to(Magazine* to, unsigned n) {
  Slot* const source = top();
  to->format(n);
  __builtin_memcpy(to->slot(0), source, n * sizeof(Slot));
  to->park(to->slot(0));
  park(source + n);
}

// Compares the low halves of eight addresses at a time; if one is equal, compares whole addresses from there on.
bool holds(const Slot* from, unsigned count, const void* object) {
  typedef uint32_t Halves __attribute__((vector_size(16)));  // of two objects, low and high
  const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(object));
  const Halves sought = {low, low, low, low};
  const auto load = [](const Slot* objects) {
    Halves two;
    __builtin_memcpy(&two, objects, sizeof two);
    return two;
  };
  const Slot* const end = from + count;
  for (; end - from >= 8; from += 8) {
    const auto same = ((load(from) == sought) | (load(from + 2) == sought)) |
                      ((load(from + 4) == sought) | (load(from + 6) == sought));
    if (__builtin_expect((same[0] | same[2]) != 0, false)) break;
  }
  for (; from < end; ++from) {
    if (*from == object) return true;
  }
  return false;
}

namespace {
constinit MetadataSeldom pages;
}  // namespace

Magazine* magazines_get() {
  Magazine* list = find_in_shards([](unsigned shard) { return pools[shard].lists.pop(); });
  if (list == nullptr) {
    if (!pages.waits()) list = static_cast<Magazine*>(pages.alloc(kPageMagazines * kMagazineBytes, kMagazineBytes));
    if (list == nullptr) return nullptr;
    for (unsigned i = 0; i + 1 < kPageMagazines; ++i) list[i].set_next(list + i + 1);
  }
  list->forget_stack_link();
  return list;
}

void magazines_put(Magazine* list) { pools[own_shard()].lists.push(list); }

unsigned bundle_drain(BinId bin, Magazine* bundle, const char* function) {
  unsigned drained = 0;
  while (bundle != nullptr) {
    ObjectList lists[kGiveListsMost];
    unsigned n = 0;
    Magazine *const first = bundle, *last = bundle;
    for (; bundle != nullptr && n < kGiveListsMost; bundle = bundle->next()) {
      lists[n++] = {bundle->top(), bundle->count()};
      last = bundle;
    }
    if (n == 1) {
      give_objects(bin, lists[0].objects, lists[0].count, function);
    } else {
      give_lists(bin, lists, n, function);
    }
    last->set_next(nullptr);
    magazines_put(first);
    drained += n;
  }
  return drained;
}

}  // namespace folio
