// A bounded queue of whole batches of objects under a condition variable: it costs next to nothing beside the objects,
// and nobody spins. The batches themselves are recycled and come from mmap: only the objects are the allocator's.

#pragma once

#include <condition_variable>
#include <mutex>

#include "bench.h"

namespace bench {

struct Batch {
  Batch *next;
  void **objects;
};

// Full batches wait in order; empty ones are handed back under the same lock, in exchange. Who has found the queue
// empty (or full) sleeps until `wake` batches have come (or gone), or all have.
class BatchQueue {
 public:
  struct Shape {
    size_t capacity;  // batches that it holds
    size_t wake;
    size_t batch;  // objects a batch
  };

  BatchQueue(Shape shape, size_t workers, uint64_t batches)
      : capacity_(shape.capacity), wake_(shape.wake), to_come_(batches) {
    const size_t count = capacity_ + workers;
    Batch *all = map_array<Batch>(count);
    void **slots = map_array<void *>(count * shape.batch);
    for (size_t i = 0; i < count; ++i) {
      all[i] = {empty_, slots + i * shape.batch};
      empty_ = &all[i];
    }
  }

  // An empty batch to begin with: there is one for each worker.
  Batch *take_empty() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pop_empty();
  }

  // Hands on a full batch; returns an empty one.
  Batch *push(Batch *full) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (length_ == capacity_) {
      while (length_ > capacity_ - wake_) room_.wait(lock);
    }
    full->next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = full;
    tail_ = full;
    if (++length_ > peak_length_) peak_length_ = length_;
    --to_come_;
    const bool enough = length_ == wake_ || to_come_ == 0;
    Batch *empty = pop_empty();
    lock.unlock();
    if (enough) filled_.notify_all();
    return empty;
  }

  // Returns the oldest full batch for an empty one, or null when all have been through.
  Batch *pop(Batch *emptied) {
    std::unique_lock<std::mutex> lock(mutex_);
    emptied->next = empty_;
    empty_ = emptied;
    while (length_ == 0) {
      if (to_come_ == 0) return nullptr;
      while (length_ < wake_ && to_come_ != 0) filled_.wait(lock);
    }
    Batch *full = head_;
    head_ = full->next;
    if (head_ == nullptr) tail_ = nullptr;
    const bool enough = --length_ == capacity_ - wake_;
    lock.unlock();
    if (enough) room_.notify_all();
    return full;
  }

  size_t peak_length() const { return peak_length_; }

 private:
  Batch *pop_empty() {
    Batch *first = empty_;
    empty_ = first->next;
    return first;
  }

  std::mutex mutex_;
  std::condition_variable room_, filled_;
  Batch *empty_ = nullptr, *head_ = nullptr, *tail_ = nullptr;
  size_t capacity_, wake_, length_ = 0, peak_length_ = 0;
  uint64_t to_come_;
};

}  // namespace bench
