// Reserved address space that ends with the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <string>

#include "os/os.h"

namespace {

using namespace folio;

const size_t page = os::page_bytes();

// The VmFlags of the mapping that holds the address.
inline std::string mapping_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  const auto at = reinterpret_cast<uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t from, to;
    if (sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) inside = at >= from && at < to;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

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
