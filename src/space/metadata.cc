// The bump allocator of metadata, in pieces that double in size, are committed as they are used, and touched a little
// ahead of that.
#include "space/metadata.h"

#include "base/bits.h"
#include "os/os.h"
#include "sync/relaxed.h"

namespace folio {

constinit Atomic<MetadataPiece*> metadata_pieces{nullptr};

namespace {

using Piece = MetadataPiece;

constexpr size_t kFirstPieceBytes = size_t{2} << 20;
constexpr size_t kPieceBytesMost = size_t{64} << 20;
constexpr size_t kPieceBytesLeast = size_t{256} << 10;
constexpr size_t kCommitBytes = size_t{256} << 10;  // at a time
constexpr size_t kTouchBytes = size_t{32} << 10;    // at a time, see touch_ahead

constinit Counter<size_t> handed_out{0};

// Makes a piece usable from `from` to `to`, or further where the kernel grants it. Returns where the usable part ends;
// 0 if the kernel refuses.
size_t commit(void* start, size_t from, size_t to, size_t bytes) {
  const size_t steps = round_up(to, kCommitBytes), pages = round_up(to, os::page_bytes());
  const size_t ends[] = {steps < bytes ? steps : bytes, pages};
  for (const size_t end : ends) {
    if (os::commit(static_cast<char*>(start) + from, end - from)) return end;
  }
  return 0;
}

constinit Hint<bool> charge_refused{false};  // by the last commit
constinit Hint<bool> refused_last{false};    // the last metadata_alloc, for whatever reason

// `start` to `end` of the piece was handed out. Where that crosses into another step of kTouchBytes, one system call
// brings what is left of the step: a page by a fault of its own costs twice as much, and many have two, being read
// before they are written. (A `git --version` has 182 faults in place of 241, and takes 0.92 of the time.) What is
// longer than a page is often written in parts only, so its pages come by faults.
void touch_ahead(char* piece, size_t start, size_t end, size_t committed) {
  const size_t page = os::page_bytes(), step = round_down(end - 1, kTouchBytes);
  if (start > step || page >= kTouchBytes) return;
  const size_t from = end - start > page ? round_up(end, page) : step;
  const size_t to = step + kTouchBytes < committed ? step + kTouchBytes : round_down(committed, page);
  if (from < to) os::populate(piece + from, to - from);
}

Piece* new_piece(Piece* previous, size_t needed) {
  size_t bytes = previous == nullptr ? kFirstPieceBytes : previous->bytes * 2;
  if (bytes > kPieceBytesMost) bytes = kPieceBytesMost;
  while (bytes < needed + sizeof(Piece)) bytes *= 2;
  for (;; bytes /= 2) {
    if (bytes < kPieceBytesLeast || bytes < needed + sizeof(Piece)) return nullptr;
    if (void* at = os::reserve(bytes, os::page_bytes())) {
      const size_t committed = commit(at, 0, needed + sizeof(Piece), bytes);
      if (committed == 0) {
        os::unreserve(at, bytes);
        return nullptr;
      }
      touch_ahead(static_cast<char*>(at), 0, sizeof(Piece), committed);
      auto* piece = static_cast<Piece*>(at);
      piece->committed.store(committed, order::relaxed);  // relaxed: published below
      piece->bytes = bytes;
      piece->previous = previous;
      piece->used.store(sizeof(Piece), order::relaxed);  // relaxed: published below
      return piece;
    }
  }
}

bool commit_to(Piece* piece, size_t to) {
  // [commit] acquire: after the kernel has made it writable; pairs with the store below.
  const size_t committed = piece->committed.load(order::acquire);
  if (to <= committed) return true;
  const size_t end = commit(piece, round_down(committed, os::page_bytes()), to, piece->bytes);
  if ((end == 0) != charge_refused.get()) charge_refused.set(end == 0);
  // [commit] release: who sees it may write there. Of two that do so at once the shorter may come last: then some of it
  // is committed once more.
  if (end != 0) piece->committed.store(end, order::release);
  return end != 0;
}

// Null, and `*refused`, where it has room but the kernel no memory for it.
void* alloc_from(Piece* piece, size_t bytes, size_t alignment, bool* refused) {
  size_t used = piece->used.load(order::relaxed);  // relaxed: offsets only, the memory is zero already
  size_t start;
  do {
    start = round_up(used, alignment);
    if (start + bytes > piece->bytes) return nullptr;
    *refused = !commit_to(piece, start + bytes);
    if (*refused) return nullptr;
  } while (!piece->used.compare_exchange(used, start + bytes, order::relaxed));  // relaxed: as above
  handed_out.add(bytes);
  // Relaxed: more than this thread has committed may be there, and less is not: what is beyond is not populated.
  touch_ahead(reinterpret_cast<char*>(piece), start, start + bytes, piece->committed.load(order::relaxed));
  return reinterpret_cast<char*>(piece) + start;
}

}  // namespace

bool metadata_charge_is_refused() { return charge_refused.get(); }

bool metadata_is_refused() { return refused_last.get(); }

namespace {

void* find_or_grow(size_t bytes, size_t alignment) {
  for (;;) {
    // [metadata-piece] acquire: sees the piece's header; pairs with the compare_exchange below.
    Piece* piece = metadata_pieces.load(order::acquire);
    if (piece != nullptr) {
      bool refused = false;
      void* const at = alloc_from(piece, bytes, alignment, &refused);
      if (at != nullptr || refused) return at;
    }
    Piece* next = new_piece(piece, bytes + alignment);
    if (next == nullptr) return nullptr;
    // [metadata-piece] release: publishes the header. The loser of a race gives its piece back and uses the winner's.
    if (!metadata_pieces.compare_exchange(piece, next, order::release)) os::unreserve(next, next->bytes);
  }
}

}  // namespace

void* metadata_alloc(size_t bytes, size_t alignment) {
  void* const at = find_or_grow(bytes, alignment);
  if ((at == nullptr) != refused_last.get()) refused_last.set(at == nullptr);
  return at;
}

void metadata_add(void* memory, size_t bytes) {
  auto* const piece = static_cast<Piece*>(memory);
  piece->committed.store(bytes, order::relaxed);  // relaxed: published below
  piece->bytes = bytes;
  piece->used.store(sizeof(Piece), order::relaxed);     // relaxed: published below
  Piece* first = metadata_pieces.load(order::relaxed);  // relaxed: a guess
  do {
    piece->previous = first;
    // [metadata-piece] release: publishes the header; pairs with the loads in metadata_alloc and metadata_holds.
  } while (!metadata_pieces.compare_exchange(first, piece, order::release));
}

bool metadata_holds(const void* address, size_t bytes) {
  // [metadata-piece] acquire: sees the pieces' headers; pairs with metadata_alloc.
  for (const Piece* piece = metadata_pieces.load(order::acquire); piece != nullptr; piece = piece->previous) {
    const auto offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(piece);
    const size_t used = piece->used.load(order::relaxed);  // relaxed: it only grows
    if (offset < used) return offset >= sizeof(Piece) && bytes <= used - offset;
  }
  return false;
}

size_t metadata_bytes() { return handed_out.get(); }

}  // namespace folio
