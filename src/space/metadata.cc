#include "space/metadata.h"

#include "base/bits.h"
#include "os/os.h"

namespace folio {

constinit Atomic<MetadataPiece*> metadata_pieces{nullptr};

namespace {

using Piece = MetadataPiece;

constexpr size_t kFirstPieceBytes = size_t{2} << 20;
constexpr size_t kPieceBytesMost = size_t{64} << 20;
constexpr size_t kPieceBytesLeast = size_t{256} << 10;

constinit Atomic<size_t> handed_out{0};

Piece* new_piece(Piece* previous, size_t needed) {
  size_t bytes = previous == nullptr ? kFirstPieceBytes : previous->bytes * 2;
  if (bytes > kPieceBytesMost) bytes = kPieceBytesMost;
  while (bytes < needed + sizeof(Piece)) bytes *= 2;
  for (;; bytes /= 2) {
    if (bytes < kPieceBytesLeast || bytes < needed + sizeof(Piece)) return nullptr;
    if (void* at = os::reserve(bytes, os::page_bytes())) {
      auto* piece = static_cast<Piece*>(at);
      piece->bytes = bytes;
      piece->previous = previous;
      piece->used.store(sizeof(Piece), order::relaxed);  // relaxed: published below
      return piece;
    }
  }
}

void* alloc_from(Piece* piece, size_t bytes, size_t alignment) {
  size_t used = piece->used.load(order::relaxed);  // relaxed: offsets only, the memory is zero already
  size_t start;
  do {
    start = round_up(used, alignment);
    if (start + bytes > piece->bytes) return nullptr;
  } while (!piece->used.compare_exchange(used, start + bytes, order::relaxed));  // relaxed: as above
  handed_out.fetch_add(bytes, order::relaxed);                                   // relaxed: a statistic
  return reinterpret_cast<char*>(piece) + start;
}

}  // namespace

void* metadata_alloc(size_t bytes, size_t alignment) {
  for (;;) {
    // [metadata-piece] acquire: sees the piece's header; pairs with the compare_exchange below.
    Piece* piece = metadata_pieces.load(order::acquire);
    if (piece != nullptr) {
      if (void* at = alloc_from(piece, bytes, alignment)) return at;
    }
    Piece* next = new_piece(piece, bytes + alignment);
    if (next == nullptr) return nullptr;
    // [metadata-piece] acq_rel: publishes the header. The loser of a race gives its piece back and uses the winner's.
    if (!metadata_pieces.compare_exchange(piece, next, order::acq_rel)) os::unreserve(next, next->bytes);
  }
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

size_t metadata_bytes() { return handed_out.load(order::relaxed); }  // relaxed: a statistic

}  // namespace folio
