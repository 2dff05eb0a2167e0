// Allocates, resizes, moves, frees and purges huge blocks, and keeps the freed ones in stacks.
#include "space/huge.h"

#include "config/options.h"
#include "os/os.h"
#include "space/field.h"
#include "space/huge_pace.h"
#include "space/metadata.h"
#include "space/pages.h"
#include "space/region.h"
#include "space/room.h"
#include "sync/relaxed.h"
#include "sync/tagged_stack.h"

namespace folio {

namespace {

using BlockStack = TaggedStack<HugeBlock, 6>;  // descriptors are aligned to a cache line
// Blocks that wait: freed onto `fresh`, whose newest serves first; purged from `old`, whose oldest is on top, and which
// takes all of `fresh`, turned round, when it is empty. So each block moves once, however many wait.
struct Waiting {
  BlockStack fresh, old;
};
// By power of two, and by how many eighths of it may be resident.
constexpr unsigned kParts = 8;
constinit Waiting waiting[kHugeOrders][kParts];
constinit Counter<int64_t> waiting_bytes{0};  // that may be resident
constinit Counter<uint32_t> age_now{0};       // what huge_age() counts
constinit BlockStack spare_descriptors;       // whose address space is gone
constinit Counter<size_t> reserved{0};
constinit Counter<size_t> live_count{0};

size_t clusters_of(size_t bytes) { return (bytes + kClusterBytes - 1) >> kClusterShift; }

constexpr size_t kEnteredMost = kHugeEntered << kChunkShift;
size_t entered_of(size_t bytes) { return bytes < kEnteredMost ? bytes : kEnteredMost; }

// Enters or clears the block's first chunks in the chunk table, but for those in a hole. False if there is no memory.
bool enter(HugeBlock& block, unsigned start_code, unsigned inside_code, os::PageRange hole = {nullptr, 0}) {
  const char *const from = static_cast<char*>(hole.start), *const to = from + hole.bytes;
  const size_t bytes = entered_of(block.reserved_bytes);
  if (!chunk_table_open(block.base, bytes)) return false;
  for (size_t at = 0; at < bytes; at += kChunkBytes) {
    if (block.base + at < to && block.base + at + kChunkBytes > from) continue;
    Window* window = window_make(block.base + at);
    if (window == nullptr) return false;
    set_chunk(window, block.base + at, start_code == kCodeNone ? nullptr : &block, at == 0 ? start_code : inside_code);
  }
  return true;
}

// Whether what is beyond the object may be resident up to a cluster's end: not where a limit is set, which counts
// objects to the page. (A container of 88 MiB with limit_hard:cgroup, full of objects of 9 MiB, was killed.)
bool whole_clusters(const HugeBlock& block) { return block.advised && !room_is_counted(); }

// Makes the first `bytes`, whole pages, usable. False if the kernel refuses.
bool commit(HugeBlock& block, size_t bytes) {
  const size_t have = block.committed_bytes;
  if (bytes <= have) return true;
  // What grows is likely to grow on: an eighth more, so that 20,000 steps of a page are not as many system calls.
  size_t more = have == 0 ? bytes : bytes + (bytes / 8 & ~(os::page_bytes() - 1));
  // A cluster of which a part is touched gets small pages for good.
  if (whole_clusters(block)) more = round_up(more, kClusterBytes);
  if (more > block.reserved_bytes) more = block.reserved_bytes;
  if (!os::commit(block.base + have, more - have)) {
    if (more == bytes || !os::commit(block.base + have, bytes - have)) return false;
    more = bytes;
  }
  block.committed_bytes = more;
  return true;
}

HugeBlock* new_descriptor() {
  if (HugeBlock* block = spare_descriptors.pop()) return block;
  return static_cast<HugeBlock*>(metadata_alloc(sizeof(HugeBlock)));
}

// So many clusters of the block count as foreseen, unless they are too many. They are never too many if they were more.
bool count_foreseen(HugeBlock& block, size_t clusters) {
  const size_t had = block.foreseen;
  if (clusters > had && !foreseen_huge.add(clusters - had)) return false;
  if (clusters < had) foreseen_huge.note(-static_cast<int64_t>(had - clusters));
  block.foreseen = static_cast<uint32_t>(clusters);
  return true;
}
void limit_foreseen(HugeBlock& block, size_t bytes) {  // at most those of the first `bytes` bytes
  if (const size_t clusters = clusters_of(bytes); clusters < block.foreseen) count_foreseen(block, clusters);
}

// Takes the block's address space out of use and gives it back. The descriptor is reused; a stale look at it is safe.
bool unmap_block(HugeBlock* block) {
  enter(*block, kCodeNone, kCodeNone);
  if (!os::unreserve(block->base, block->reserved_bytes)) {
    enter(*block, kCodeHugeStart, kCodeHugeInside);
    return false;
  }
  reserved.sub(block->reserved_bytes);
  count_foreseen(*block, 0);
  spare_descriptors.push(block);
  return true;
}

unsigned part_of(unsigned order, size_t bytes) {
  const size_t part = (bytes == 0 ? 0 : bytes - 1) / ((kClusterBytes << order) / kParts);
  return part < kParts ? static_cast<unsigned>(part) : kParts - 1;
}

// By the largest power of two of clusters in the block: new_block may have got less than a whole one.
Waiting& place_of(const HugeBlock& block) {
  const unsigned order = highest_bit(block.reserved_bytes >> kClusterShift);
  return waiting[order][part_of(order, block.touched_bytes)];
}

// Page accounts hold waiting blocks only: what a live huge object has touched is not known.
void count_waiting(const HugeBlock& block, int64_t sign) {
  count_resident(sign * static_cast<int64_t>(block.touched_bytes));
  count_dirty(sign * static_cast<int64_t>(block.touched_bytes), true);
  waiting_bytes.add(sign * static_cast<int64_t>(block.touched_bytes));
}

void put_waiting(HugeBlock& block) {
  count_waiting(block, 1);
  place_of(block).fresh.push(&block);
}

HugeBlock* pop(unsigned order, unsigned part) {
  HugeBlock* block = waiting[order][part].fresh.pop();
  if (block == nullptr) block = waiting[order][part].old.pop();
  if (block != nullptr) count_waiting(*block, -1);
  return block;
}

// While it turns `fresh` round, a thread that finds both empty reserves another block. If this thread never runs again,
// these waiting blocks are lost.
HugeBlock* pop_oldest(Waiting& w) {
  if (HugeBlock* block = w.old.pop()) return block;
  HugeBlock* next = nullptr;
  for (HugeBlock* block = w.fresh.pop_all(); block != nullptr; block = next) {
    next = block->link.load(order::relaxed);  // relaxed: the list is ours
    w.old.push(block);
  }
  return w.old.pop();
}

// A waiting block for `bytes`, of this order or else of the next one: the one whose resident part is nearest to
// `bytes`. Null if there is none.
HugeBlock* get_waiting(unsigned order, size_t bytes) {
  for (unsigned o = order; o <= order + 1 && o < kHugeOrders; ++o) {
    const unsigned wanted = part_of(o, bytes);
    const unsigned farthest = o == order ? kParts : 3;  // not a far larger one: the rest of it would go
    for (unsigned distance = 0; distance < farthest; ++distance) {
      const unsigned parts[] = {wanted + distance, wanted - distance};
      for (const unsigned part : parts) {
        if (part == 0 || part >= kParts) continue;
        if (HugeBlock* block = pop(o, part)) return block;
      }
    }
  }
  return pop(order, 0);  // with few pages
}

// Purges the last `most` bytes of a block that the caller has popped, and the rest of the cluster in which they begin:
// else the kernel would make a whole huge page of it again. Where nothing would be left, or the kernel refuses, as for
// locked pages, the block is unmapped. Where that fails too, for want of a mapping to split, it waits on. Returns
// bytes.
size_t purge_block(HugeBlock& block, size_t most) {
  const size_t touched = block.touched_bytes;
  const size_t kept = touched > most ? round_down(touched - most, kClusterBytes) : 0;
  const bool parted = kept != 0 && purge_pages(block.base + kept, touched - kept);
  if (!parted && unmap_block(&block)) {
    page_counts.purged.add(touched);
    return touched;
  }
  const size_t left = parted ? kept : purge_pages(block.base, touched) ? 0 : touched;
  block.touched_bytes = left;
  limit_foreseen(block, left);
  count_waiting(block, 1);
  (parted ? place_of(block).old : place_of(block).fresh).push(&block);
  return touched - left;
}

// Also where the system's setting would give it huge pages: no advice leaves that to the system again.
void withdraw(HugeBlock& block) {
  if (!block.advised) return;
  os::refuse_huge_pages(block.base, block.reserved_bytes);
  block.advised = false;
}

// Where at least half of the last cluster is used, it may be a huge page, too.
void commit_last_cluster(HugeBlock& block) {
  if (!whole_clusters(block)) return;
  const size_t have = block.committed_bytes, more = round_up(have, kClusterBytes) - have;
  if (more <= kClusterBytes / 2 && more != 0 && os::commit(block.base + have, more))
    block.committed_bytes = have + more;
}

bool may_be_huge() { return options.huge_pages != kHugePagesNever && !room_is_tight() && huge_pages_due(); }

// Has the kernel back a block by huge pages, but for the first `there` bytes, whose pages are there. Not while huge
// pages are slow to come: unless they are trusted the first one is timed, of a `fresh` block. (One that the program has
// had may be registered with a userfaultfd, for which a touch waits.)
void advise(HugeBlock& block, size_t there, bool fresh) {
  if (block.advised || !may_be_huge()) return;
  const size_t next = round_up(there, kClusterBytes);
  const size_t clusters = next < block.usable_bytes ? (block.usable_bytes - next) >> kClusterShift : 0;
  const bool trusted = trust_huge_pages(static_cast<unsigned>(clusters));
  if (!trusted && !fresh) return;
  const size_t most = room_is_counted() ? round_down(block.usable_bytes, kClusterBytes) : block.reserved_bytes;
  if (!os::prefer_huge_pages(block.base, most)) return;
  block.advised = true;
  commit_last_cluster(block);
  if (trusted) return;
  time_huge_page(block.base + next);
  if (!huge_pages_due()) withdraw(block);
}

// A block of its own for `size` bytes, whole pages, which are usable then.
HugeBlock* new_block(size_t size, size_t alignment) {
  const unsigned order = log2_ceil(clusters_of(size));
  // A power of two leaves room to grow in place; where address space is short, what is needed must do.
  size_t bytes = kClusterBytes << order;
  const bool refused = options.huge_pages == kHugePagesNever || room_is_counted();  // as whole_clusters
  const auto pages = refused ? os::HugePages::kRefused : os::HugePages::kBySystem;
  void* base = reserve_apart(bytes, alignment, entered_of(bytes), pages);
  if (base == nullptr) {
    bytes = clusters_of(size) << kClusterShift;
    base = reserve_apart(bytes, alignment, entered_of(bytes), pages);
  }
  if (base == nullptr) return nullptr;
  HugeBlock* block = new_descriptor();
  if (block == nullptr) {
    os::unreserve(base, bytes);
    return nullptr;
  }
  block->base = static_cast<char*>(base);
  block->reserved_bytes = bytes;
  block->usable_bytes = block->touched_bytes = block->committed_bytes = block->foreseen = 0;
  block->unmap_when_freed = alignment > kClusterBytes || bytes != kClusterBytes << order;
  block->advised = block->zeroed = false;
  block->state.store(kHugeFree, order::relaxed);  // relaxed: not published yet
  reserved.add(bytes);
  const bool entered = enter(*block, kCodeHugeStart, kCodeHugeInside);
  // A block that is committed in part is two mappings, of which the kernel grants a process 65,530 in all. Where there
  // are many, the whole is committed, and merges with its neighbours.
  constexpr size_t kMany = 256;
  if (entered && live_count.get() >= kMany) commit(*block, bytes);
  if (entered && commit(*block, size)) return block;
  if (!unmap_block(block) && entered) put_waiting(*block);
  return nullptr;
}

// Pages from `bytes` on go, as the program did not ask for them, where it is worth a system call. Of a block with huge
// pages only whole ones: the rest of a split one would come back as small pages. (Buffers of 5 to 25 MiB in turns had
// 26,500 page faults in place of 2,500.)
void trim(HugeBlock& block, size_t bytes, bool whole) {
  if (block.touched_bytes <= bytes + (room_is_counted() ? 0 : bytes / 4)) return;
  const size_t kept = whole ? round_up(bytes, kClusterBytes) : bytes, beyond = block.touched_bytes - kept;
  if (block.touched_bytes > kept && purge_pages(block.base + kept, beyond)) block.touched_bytes = kept;
}

size_t most_resident(const HugeBlock& block) {
  return block.touched_bytes > block.usable_bytes ? block.touched_bytes : block.usable_bytes;
}

void set_usable(HugeBlock& block, size_t bytes) {
  page_counts.huge_live.add(bytes - block.usable_bytes);  // wraps where it shrinks
  block.usable_bytes = bytes;
}

// All that the program could use may be resident; so may the rest of the last cluster, where it is one huge page.
void touch(HugeBlock& block) {
  const size_t end = round_up(block.usable_bytes, kClusterBytes);
  const size_t most = end < block.committed_bytes ? end : block.committed_bytes;
  if (block.touched_bytes < most) block.touched_bytes = most;
}

// As huge_alloc, for an object that takes the place of one of `replaced` bytes.
HugeBlock* alloc(size_t size, size_t alignment, size_t replaced) {
  if (size > PTRDIFF_MAX) return nullptr;
  const size_t bytes = round_up(size == 0 ? 1 : size, os::page_bytes());
  const unsigned order = log2_ceil(clusters_of(bytes));
  if (order >= kHugeOrders) return nullptr;
  HugeBlock* block = alignment <= kClusterBytes ? get_waiting(order, bytes) : nullptr;
  const size_t more = bytes > replaced ? bytes - replaced : 0;
  const bool room = take_room_for_huge(more);
  if (block != nullptr && room_is_counted()) withdraw(*block);  // it may serve less than it had huge pages for
  if (block != nullptr && !(room && commit(*block, bytes))) {
    put_waiting(*block);
    block = nullptr;
  }
  const size_t align = alignment < kClusterBytes ? kClusterBytes : alignment;
  if (room && block == nullptr) block = new_block(bytes, align);
  // Address space may be limited: what waits is worth less than a new object.
  if (room && block == nullptr && huge_purge(true, ~size_t{0}) != 0) block = new_block(bytes, align);
  if (block == nullptr && room) page_counts.huge_live.sub(more);
  if (block == nullptr) return nullptr;
  trim(*block, bytes, whole_clusters(*block));
  count_huge_refilled(block->usable_bytes, bytes, block->touched_bytes);
  block->usable_bytes = more;  // counted above
  set_usable(*block, bytes);
  live_count.add(1);
  block->seen = false;
  // Relaxed: whoever frees it got the address from the caller.
  block->state.store(kHugeLive, order::relaxed);
  arch::store_barrier();  // also where the program passes it on by a relaxed store: CONCURRENCY.md, "Addresses"
  return block;
}

// Returns `purged` and what was purged here.
size_t purge_oldest_of(Waiting& w, bool all, size_t most, size_t purged) {
  constexpr unsigned kRefusedMost = 64;  // by the kernel: then all may be locked
  for (unsigned refused = 0; purged < most && refused < kRefusedMost;) {
    HugeBlock* const block = pop_oldest(w);
    if (block == nullptr) break;
    if (!all && block->freed_at == age_now.get()) {
      w.old.push(block);
      break;
    }
    // Uncounted during the purge. A fork waits until the kernel's call has ended; its child has lost the block, and
    // must not count it.
    count_waiting(*block, -1);
    const size_t gone = purge_block(*block, most - purged);
    purged += gone;
    refused += gone == 0 ? 1 : 0;
  }
  return purged;
}

}  // namespace

HugeBlock* huge_alloc(size_t size, size_t alignment) { return alloc(size, alignment, 0); }

// Buffers of 5 to 25 MiB in turns, four live, take 35 ms in place of 195, a burst beside an array that
// doubles to 64 MiB 0.72 of its time.
// Rejected: for arrays of zeroes too, which are sparse more often; and by looks at pages of objects that are freed: a
// free that touches pages waits for a userfaultfd.
void huge_foresee(HugeBlock* block, bool zeroed) {
  const size_t touched = block->touched_bytes, had = block->foreseen;
  const bool may = !zeroed && block->usable_bytes > kLargeMost && may_be_huge();
  if (may && count_foreseen(*block, clusters_of(most_resident(*block)))) {
    advise(*block, touched, touched == 0);
    if (block->advised) return;
  }
  withdraw(*block);
  const size_t there = clusters_of(touched);
  count_foreseen(*block, there < had ? there : had);
}

bool huge_free(HugeBlock* block) {
  uint32_t live_state = kHugeLive;
  // Relaxed: decides which of two frees is the second; the stack publishes the block.
  if (!block->state.compare_exchange(live_state, kHugeFree, order::relaxed)) return false;
  live_count.sub(1);
  touch(*block);  // it was the program's: all of it may be resident
  page_counts.huge_live.sub(block->usable_bytes);
  if (block->unmap_when_freed && unmap_block(block)) return true;
  block->freed_at = age_now.get();
  put_waiting(*block);
  return true;
}

bool huge_resize(HugeBlock* block, size_t size) {
  if (size > block->reserved_bytes) return false;  // whole pages; before rounding, which may wrap
  const size_t bytes = round_up(size, os::page_bytes());
  const size_t had = block->usable_bytes, more = bytes > had ? bytes - had : 0;
  if (more != 0 && !take_room_for_huge(more)) return false;
  if (!commit(*block, bytes)) {
    page_counts.huge_live.sub(more);
    return false;
  }
  touch(*block);
  block->usable_bytes = had + more;  // counted above
  set_usable(*block, bytes);
  trim(*block, bytes, false);
  const size_t most = most_resident(*block);
  limit_foreseen(*block, most);
  if (block->advised && block->foreseen != 0 && !count_foreseen(*block, clusters_of(most))) withdraw(*block);
  return true;
}

HugeBlock* huge_move(HugeBlock* block, size_t size, void (*leaves)(void* object)) {
  HugeBlock* target = alloc(size, kClusterBytes, block->usable_bytes);
  if (target == nullptr) return nullptr;
  const bool fresh = target->touched_bytes == 0;
  if (!may_be_huge()) withdraw(*target);
  touch(*block);
  // Whole clusters, so that huge pages stay whole. Where the rest of the last one cannot be committed, it is copied.
  const size_t bytes = round_up(block->usable_bytes, kClusterBytes);
  os::PageRange hole;
  const size_t moved = os::move_pages(block->base, target->base, commit(*block, bytes) ? bytes : bytes - kClusterBytes,
                                      block->usable_bytes, kClusterBytes, &hole);
  if (hole.bytes != 0) {
    // The kernel took the target's mapping away and then failed: it is out of memory. The target is never used again.
    enter(*target, kCodeNone, kCodeNone, hole);  // where another thread's may be by now
    count_foreseen(*target, 0);
    set_usable(*target, 0);
    live_count.sub(1);
    reserved.sub(target->reserved_bytes);
    target->state.store(kHugeGone, order::relaxed);  // relaxed: nobody else knows it
    const size_t at = static_cast<size_t>(static_cast<char*>(hole.start) - target->base), behind = at + hole.bytes;
    if (at != 0) os::unreserve(target->base, at);
    if (behind != target->reserved_bytes) os::unreserve(target->base + behind, target->reserved_bytes - behind);
    return nullptr;
  }
  if (target->touched_bytes < bytes) target->touched_bytes = bytes;
  if (moved == bytes && target->committed_bytes < bytes) target->committed_bytes = bytes;
  advise(*target, bytes, fresh);   // it grows: the program writes what it gets (256 MiB 0.16 s in place of 0.32)
  block->unmap_when_freed = true;  // the program may have mapped what is left in it
  if (leaves != nullptr) leaves(block->base);
  target->seen = block->seen, target->zeroed = block->zeroed;
  huge_free(block);
  return target;
}

size_t huge_purge(bool all, size_t most_bytes) {
  size_t purged = 0;
  if (waiting_bytes.get() <= 0) return purged;
  for (auto& parts : waiting) {
    for (Waiting& w : parts) purged = purge_oldest_of(w, all, most_bytes, purged);
  }
  return purged;
}

void huge_age() { age_now.add(1); }

HugeBlock* huge_beyond(const void* address) {
  // Nothing else of Folio's lies in a block, so its last entry is the next one below.
  if (reserved.get() <= kEnteredMost) return nullptr;
  uint64_t number = window_number(address);
  if (number >> (arch::kAddressBits - kChunkShift - kWindowShift) != 0) return nullptr;
  for (unsigned from = window_slot(address) + 1;; from = kWindowChunks) {
    if (Window* window = window_at(number)) {
      for (unsigned i = from; i-- != 0;) {
        // Relaxed: what was looked for was entered before the address was handed out.
        if (window->descriptor[i].load(order::relaxed) == nullptr) continue;
        HugeBlock* block = huge_at(window->chunk(i));
        return block != nullptr && static_cast<const char*>(address) < block->base + block->reserved_bytes ? block
                                                                                                           : nullptr;
      }
    }
    if (number-- == 0) return nullptr;
  }
}

size_t huge_reserved_bytes() { return reserved.get(); }
size_t huge_live_bytes() { return page_counts.huge_live.get(); }
size_t huge_live_count() { return live_count.get(); }

}  // namespace folio
