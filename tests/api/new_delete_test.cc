// Every replaceable operator new and delete: which call which, alignment, new_handler, bad_alloc.
#include <sys/resource.h>

#include <new>
#include <string>

#include "support.h"

using namespace folio_test;

namespace {

constexpr std::align_val_t kAlignment{256};
constexpr size_t kTooMuch = size_t{1} << 62;

// Restores the new_handler, and its own state for the handlers below.
class NewHandler : public testing::Test {
 protected:
  void SetUp() override { calls = 0; }
  void TearDown() override { std::set_new_handler(nullptr); }
  static int calls;
};
int NewHandler::calls = 0;

void check(void *object, size_t size, size_t alignment) {
  ASSERT_NE(object, nullptr);
  EXPECT_TRUE(folio_is_ours(object));
  EXPECT_TRUE(aligned_to(object, alignment));
  EXPECT_GE(malloc_usable_size(object), size);
  memset(object, 1, size);
}

TEST(NewDelete, EveryPlainForm) {
  for (size_t size : {0, 1, 64, 5000, 100000, 4000000}) {
    size = opaque(size);
    size_t alignment = size >= 16 ? 16 : 8;
    void *object = ::operator new(size);
    check(object, size, alignment);
    ::operator delete(object);
    object = ::operator new(size);
    ::operator delete(object, size);
    object = ::operator new(size, std::nothrow);
    check(object, size, alignment);
    ::operator delete(object, std::nothrow);
    object = ::operator new[](size);
    check(object, size, alignment);
    ::operator delete[](object);
    object = ::operator new[](size);
    ::operator delete[](object, size);
    object = ::operator new[](size, std::nothrow);
    check(object, size, alignment);
    ::operator delete[](object, std::nothrow);
  }
}

TEST(NewDelete, EveryAlignedForm) {
  for (size_t a = 1; a <= size_t{4} << 20; a *= 4) {
    std::align_val_t alignment{a};
    for (size_t size : {size_t{0}, size_t{1}, size_t{100}, a, 5 * a + 1}) {
      size = opaque(size);
      void *object = ::operator new(size, alignment);
      check(object, size, a);
      ::operator delete(object, alignment);
      object = ::operator new(size, alignment);
      ::operator delete(object, size, alignment);
      object = ::operator new(size, alignment, std::nothrow);
      check(object, size, a);
      ::operator delete(object, alignment, std::nothrow);
      object = ::operator new[](size, alignment);
      check(object, size, a);
      ::operator delete[](object, alignment);
      object = ::operator new[](size, alignment);
      ::operator delete[](object, size, alignment);
      object = ::operator new[](size, alignment, std::nothrow);
      check(object, size, a);
      ::operator delete[](object, alignment, std::nothrow);
    }
  }
}

TEST(NewDelete, DeleteOfNullDoesNothing) {
  auto null = [] { return opaque(static_cast<void *>(nullptr)); };
  ::operator delete(null());
  ::operator delete (null(), size_t{10});
  ::operator delete(null(), std::nothrow);
  ::operator delete(null(), kAlignment);
  ::operator delete (null(), size_t{10}, kAlignment);
  ::operator delete(null(), kAlignment, std::nothrow);
  ::operator delete[](null());
  ::operator delete[](null(), size_t{10});
  ::operator delete[](null(), std::nothrow);
  ::operator delete[](null(), kAlignment);
  ::operator delete[](null(), size_t{10}, kAlignment);
  ::operator delete[](null(), kAlignment, std::nothrow);
}

TEST(NewDelete, Expressions) {
  struct alignas(128) Wide {
    char bytes[300];
  };
  Wide *one = opaque(new Wide);
  EXPECT_TRUE(aligned_to(one, 128));
  delete one;
  Wide *many = opaque(new Wide[10]);
  EXPECT_TRUE(aligned_to(many, 128));
  delete[] many;
  std::string *text = opaque(new std::string[100]);
  text[99] = std::string(10000, 'x');
  EXPECT_TRUE(folio_is_ours(text));
  delete[] text;
}

// malloc and free are what new and delete stand on here, so mixing them is harmless.
TEST(NewDelete, MixesWithMalloc) {
  free(::operator new(opaque(size_t{100})));
  ::operator delete(opaque(malloc(100)));
}

TEST(NewFails, ThrowsBadAlloc) {
  for (size_t size : refused_sizes()) {
    size = opaque(size);
    EXPECT_THROW(opaque(::operator new(size)), std::bad_alloc) << size;
    EXPECT_THROW(opaque(::operator new[](size)), std::bad_alloc) << size;
    EXPECT_THROW(opaque(::operator new(size, kAlignment)), std::bad_alloc) << size;
    EXPECT_THROW(opaque(::operator new[](size, kAlignment)), std::bad_alloc) << size;
    EXPECT_EQ(::operator new(size, std::nothrow), nullptr) << size;
    EXPECT_EQ(::operator new[](size, std::nothrow), nullptr) << size;
    EXPECT_EQ(::operator new(size, kAlignment, std::nothrow), nullptr) << size;
    EXPECT_EQ(::operator new[](size, kAlignment, std::nothrow), nullptr) << size;
  }
}

TEST(NewFails, LeavesTheHeapUsable) {
  for (int i = 0; i < 1000; i++) {
    EXPECT_THROW(opaque(::operator new(opaque(kTooMuch))), std::bad_alloc);
    std::vector<int> numbers(1000, i);
    EXPECT_EQ(numbers[999], i);
  }
}

// The handler is called again and again, until it changes something.
TEST_F(NewHandler, IsCalledUntilItGivesUp) {
  std::set_new_handler([] {
    if (++calls == 5) std::set_new_handler(nullptr);
  });
  EXPECT_THROW(opaque(::operator new(opaque(kTooMuch))), std::bad_alloc);
  EXPECT_EQ(calls, 5);
}

TEST_F(NewHandler, IsCalledByEveryForm) {
  auto handler = [] {
    if (++calls % 3 == 0) std::set_new_handler(nullptr);
  };
  size_t size = opaque(kTooMuch);
  std::set_new_handler(handler);
  EXPECT_THROW(opaque(::operator new[](size)), std::bad_alloc);
  std::set_new_handler(handler);
  EXPECT_THROW(opaque(::operator new(size, kAlignment)), std::bad_alloc);
  std::set_new_handler(handler);
  EXPECT_THROW(opaque(::operator new[](size, kAlignment)), std::bad_alloc);
  std::set_new_handler(handler);
  EXPECT_EQ(::operator new(size, std::nothrow), nullptr);
  std::set_new_handler(handler);
  EXPECT_EQ(::operator new[](size, std::nothrow), nullptr);
  std::set_new_handler(handler);
  EXPECT_EQ(::operator new(size, kAlignment, std::nothrow), nullptr);
  std::set_new_handler(handler);
  EXPECT_EQ(::operator new[](size, kAlignment, std::nothrow), nullptr);
  EXPECT_EQ(calls, 7 * 3);
}

struct HandlersOwn : std::bad_alloc {};

TEST_F(NewHandler, WhatItThrowsArrives) {
  std::set_new_handler([] { throw HandlersOwn(); });
  EXPECT_THROW(opaque(::operator new(opaque(kTooMuch))), HandlersOwn);
  EXPECT_THROW(opaque(::operator new[](opaque(kTooMuch), kAlignment)), HandlersOwn);
}

// nothrow: a bad_alloc from the handler becomes null.
TEST_F(NewHandler, WhatItThrowsBecomesNullForNothrow) {
  std::set_new_handler([] {
    calls++;
    throw HandlersOwn();
  });
  EXPECT_EQ(::operator new(opaque(kTooMuch), std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](opaque(kTooMuch), std::nothrow), nullptr);
  EXPECT_EQ(::operator new(opaque(kTooMuch), kAlignment, std::nothrow), nullptr);
  EXPECT_EQ(calls, 3);
}

size_t address_space_bytes() {
  FILE *file = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  if (file == nullptr || fscanf(file, "%zu", &pages) != 1) ADD_FAILURE() << "/proc/self/statm";
  if (file != nullptr) fclose(file);
  return pages * page_bytes();
}

// A handler that makes room is rewarded by the allocation.
TEST_F(NewHandler, CanMakeRoom) {
  constexpr size_t kBytes = size_t{2} << 30;
  static struct rlimit unlimited;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &unlimited), 0);
  struct rlimit tight = unlimited;
  tight.rlim_cur = address_space_bytes() + kBytes / 2;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  std::set_new_handler([] {
    if (++calls == 3) setrlimit(RLIMIT_AS, &unlimited);
    if (calls > 3) std::set_new_handler(nullptr);
  });
  void *object = nullptr;
  EXPECT_NO_THROW(object = ::operator new(opaque(kBytes)));
  EXPECT_EQ(calls, 3);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &unlimited), 0);
  ::operator delete(object);
}

// malloc never calls it.
TEST_F(NewHandler, IsNotForMalloc) {
  std::set_new_handler([] { calls++; });
  EXPECT_EQ(opaque(malloc(opaque(kTooMuch))), nullptr);
  EXPECT_EQ(calls, 0);
}

}  // namespace
