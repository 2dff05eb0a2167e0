// Objects whose every byte is known. What one is made with says what it must hold, so an object that overlaps another,
// moves without its contents or is handed out twice shows at the next look.
#pragma once

#include "soak.h"

namespace soak {

enum class Kind : uint32_t { kPlain, kAlignedAlloc, kMemalign };

struct Object {
  char* at;
  size_t size;
  uint64_t tag;  // of this object alone, and of each of its lives between two reallocs
  Kind kind;
  uint32_t alignment_log;
};

inline constexpr size_t kSmallMost = 32 << 10;   // what workers keep in their table of small objects
inline constexpr size_t kWholeMost = 256 << 10;  // of larger objects only some pages are written and read

size_t small_size(Random& random);
size_t big_size(Random& random);

// Made by one of the functions of the malloc family, filled. `who` is charged with it.
Object make(Random& random, size_t size, Count& who);
void verify(const Object& object);
// Verified, freed by one of the functions that may.
void release(Random& random, Object object, Count& who);
void resize(Object& object, size_t size, Count& who);

// To workers, by bounded queues. False if there is no room.
bool send(unsigned worker, const Object& object);
bool receive(unsigned worker, Object& object);

// Calls visit for some of the objects that all workers hold at this moment, as the child of a fork may.
void visit_workers_objects(Random& random, void (*visit)(Random& random, const Object& object));

}  // namespace soak
