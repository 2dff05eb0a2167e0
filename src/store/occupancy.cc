// The process's store; the walk over a bin's chunks; from an address to its object.
#include "store/occupancy.h"

namespace folio {

constinit Store process_store{};

Descriptor* next_chunk(HintBlock** block, unsigned* slot) {
  while (*block != nullptr) {
    while (*slot < kWindowChunks) {
      // Relaxed: an index; chunk_in decides what is there.
      const uint64_t rest = (*block)->opened[*slot / 64].load(order::relaxed) & ~low_mask(*slot % 64);
      *slot = rest == 0 ? (*slot / 64 + 1) * 64 : *slot / 64 * 64 + lowest_bit(rest);
      if (rest == 0) continue;
      if (Descriptor* const d = chunk_in(**block, (*slot)++)) return d;
    }
    *block = (*block)->next;
    *slot = 0;
  }
  return nullptr;
}

Place place_of(const void* address) {
  auto* d = static_cast<Descriptor*>(descriptor_at(address));
  if (d == nullptr) return {nullptr, 0, nullptr, nullptr, false};
  // The chunk table and the descriptor must agree on the bin, and the seal must hold; else the descriptor was
  // overwritten, and nothing in it is used.
  if (index(d->bin) != chunk_code(address) || !d->sealed()) return {nullptr, 0, nullptr, nullptr, true};
  const BinInfo& info = d->info();
  const unsigned object = object_number(*d, address);
  if (object >= info.objects) return {nullptr, 0, nullptr, nullptr, false};
  return {d, object, object_at(*d, object), d->slot(object) + info.size, false};
}

}  // namespace folio
