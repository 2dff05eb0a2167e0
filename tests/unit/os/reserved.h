// Reserved address space that ends with the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "os/os.h"
#include "unit/mappings.h"

namespace {

using namespace folio;
using folio_test::mapping_flags;

const size_t page = os::page_bytes();

// A reservation that ends with the test, all of it committed.
class Reserved {
 public:
  explicit Reserved(size_t bytes, size_t alignment = page)
      : at_(static_cast<char*>(os::reserve(bytes, alignment))), bytes_(bytes) {
    EXPECT_TRUE(os::commit(at_, bytes));
  }
  ~Reserved() {
    if (at_ != nullptr && !leaked_) munmap(at_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  char* at() const { return at_; }
  // Makes a hole. The rest then stays for good: the destructor could unmap what others have put into the hole.
  void unmap(size_t from, size_t bytes) {
    EXPECT_EQ(munmap(at_ + from, bytes), 0);
    leaked_ = true;
  }

 private:
  char* at_;
  size_t bytes_;
  bool leaked_ = false;
};

}  // namespace
