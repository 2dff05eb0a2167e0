// What os/faults.h promises; who is told of a fault is tested in core/guards_test.cc.
#include "os/faults.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

bool can_be_read(const char* at) {
  return os::word_is(reinterpret_cast<void* const*>(at), nullptr) != os::Answer::kNotThere;
}

class Pages : public ::testing::Test {
 protected:
  const size_t page_ = os::page_bytes();
  char* const start_ = static_cast<char*>(os::reserve(4 * page_, page_));
  Pages() {
    EXPECT_TRUE(os::commit(start_, 4 * page_));
    memset(start_, 1, 4 * page_);
  }
  ~Pages() override { os::unreserve(start_, 4 * page_); }
};

TEST_F(Pages, AGuardCannotBeReadAndIsZeroAfterIt) {
  if (kEmulated || !os::install_guard(start_ + page_, page_)) GTEST_SKIP() << "no guards here (Linux before 6.13)";
  EXPECT_TRUE(can_be_read(start_));
  EXPECT_FALSE(can_be_read(start_ + page_));
  EXPECT_FALSE(can_be_read(start_ + 2 * page_ - 8));
  EXPECT_TRUE(can_be_read(start_ + 2 * page_));
  EXPECT_TRUE(os::install_guard(start_ + page_, page_)) << "once more";
  EXPECT_TRUE(os::remove_guard(start_ + page_, page_));
  EXPECT_TRUE(all_zero(start_ + page_, page_));
  EXPECT_FALSE(all_zero(start_, 1));
  start_[page_] = 1;
}

TEST_F(Pages, WhatIsForbiddenStaysAsItWas) {
  EXPECT_TRUE(os::forbid(start_ + page_, page_));
  if (!kEmulated) EXPECT_FALSE(can_be_read(start_ + page_));
  EXPECT_TRUE(can_be_read(start_));
  EXPECT_TRUE(os::commit(start_ + page_, page_));
  EXPECT_EQ(start_[page_], 1);
  EXPECT_TRUE(os::forbid(start_ + page_, page_));
  EXPECT_TRUE(os::purge(start_ + page_, page_));
  EXPECT_TRUE(os::commit(start_ + page_, page_));
  EXPECT_TRUE(all_zero(start_ + page_, page_));
}

TEST(Modules, SayWhichFileCodeIsOf) {
  os::Module module;
  if (!os::find_module(reinterpret_cast<void*>(&can_be_read), &module)) GTEST_SKIP() << "this libc does not tell";
  EXPECT_EQ(module.path, nullptr) << "the program itself";
  EXPECT_NE(module.unwind_table, nullptr);
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&qsort), &info), 0);
  ASSERT_TRUE(os::find_module(info.dli_saddr, &module));
  EXPECT_STREQ(module.path, info.dli_fname);
  EXPECT_EQ(module.bias, reinterpret_cast<uintptr_t>(info.dli_fbase));
  EXPECT_LE(module.start, static_cast<const uint8_t*>(info.dli_saddr));
  EXPECT_GT(module.end, static_cast<const uint8_t*>(info.dli_saddr));
  int on_stack = 0;
  EXPECT_FALSE(os::find_module(&on_stack, &module));
  EXPECT_FALSE(os::find_module(nullptr, &module));
}

TEST(Modules, TheProgramsPath) {
  char path[4096] = {};
  const size_t length = os::program_path(path, sizeof path);
  ASSERT_GT(length, 0u);
  EXPECT_EQ(path[0], '/');
  EXPECT_NE(std::string(path).find("faults_test"), std::string::npos) << path;
  char little[4] = {};
  EXPECT_EQ(os::program_path(little, 3), 3u);
  EXPECT_EQ(little[3], '\0');
}

}  // namespace
