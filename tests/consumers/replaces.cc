// A program with some forms of operator new and delete of its own: the other forms come to them (C++20 [new.delete]).
// PLAIN, ALIGNED and ARRAYS say which; without Folio it is the C++ library that does so.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

constexpr std::size_t kMost = std::size_t{1} << 20;
constexpr unsigned kMagic = 0x5eed;
int news, deletes, failures;

struct Head {
  unsigned magic;
  void* whole;
};

// In front of the object a head, so that nobody else can free it.
void* take(std::size_t size, std::size_t alignment) {
  if (size > kMost) throw std::bad_alloc();
  if (alignment < 64) alignment = 64;
  char* const whole = static_cast<char*>(std::malloc(size + 2 * alignment));
  if (whole == nullptr) throw std::bad_alloc();
  char* const object = whole + alignment + (alignment - reinterpret_cast<std::size_t>(whole) % alignment) % alignment;
  reinterpret_cast<Head*>(object)[-1] = {kMagic, whole};
  ++news;
  return object;
}

void give(void* object) {
  if (object == nullptr) return;
  ++deletes;
  const Head head = static_cast<Head*>(object)[-1];
  if (head.magic != kMagic) {
    std::puts("a delete got what no new gave");
    std::abort();
  }
  std::free(head.whole);
}

[[maybe_unused]] std::size_t of(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

#if defined(PLAIN)
void* operator new(std::size_t size) { return take(size, 1); }
void operator delete(void* object) noexcept { give(object); }
#endif
#if defined(ALIGNED)
void* operator new(std::size_t size, std::align_val_t alignment) { return take(size, of(alignment)); }
void operator delete(void* object, std::align_val_t) noexcept { give(object); }
#endif
#if defined(ARRAYS)
void* operator new[](std::size_t size) { return take(size, 1); }
void operator delete[](void* object) noexcept { give(object); }
#endif

namespace {

constexpr std::align_val_t kAlignment{128};
volatile std::size_t one = 40, much = std::size_t{1} << 62;

// `own`: the forms that it comes to are the program's.
template <class New, class Delete>
void pair(const char* name, bool own, New make, Delete end) {
  const int news_before = news, deletes_before = deletes;
  void* const object = make();
  if (object == nullptr || news - news_before != (own ? 1 : 0)) failures += std::printf("%s: new\n", name);
  end(object);
  if (deletes - deletes_before != (own ? 1 : 0)) failures += std::printf("%s: delete\n", name);
}

void must_be_null(const char* name, void* object) {
  if (object != nullptr) failures += std::printf("%s: not null\n", name);
}

struct Small {
  int number[10];
  ~Small() { number[0] = 0; }
};

}  // namespace

int main() {
  bool plain = false, aligned = false, arrays = false;
#if defined(PLAIN)
  plain = true;
#endif
#if defined(ALIGNED)
  aligned = true;
#endif
#if defined(ARRAYS)
  arrays = true;
#endif
  const bool array = plain || arrays;
  for (int turn = 0; turn < 3; ++turn) {
    pair(
        "plain", plain, [] { return ::operator new(one); }, [](void* p) { ::operator delete(p); });
    pair(
        "sized", plain, [] { return ::operator new(one); }, [](void* p) { ::operator delete(p, one); });
    pair(
        "nothrow", plain, [] { return ::operator new(one, std::nothrow); },
        [](void* p) { ::operator delete(p, std::nothrow); });
    pair(
        "array", array, [] { return ::operator new[](one); }, [](void* p) { ::operator delete[](p); });
    pair(
        "sized array", array, [] { return ::operator new[](one); }, [](void* p) { ::operator delete[](p, one); });
    pair(
        "nothrow array", array, [] { return ::operator new[](one, std::nothrow); },
        [](void* p) { ::operator delete[](p, std::nothrow); });
    pair(
        "aligned", aligned, [] { return ::operator new(one, kAlignment); },
        [](void* p) { ::operator delete(p, kAlignment); });
    pair(
        "aligned sized", aligned, [] { return ::operator new(one, kAlignment); },
        [](void* p) { ::operator delete(p, one, kAlignment); });
    pair(
        "aligned nothrow", aligned, [] { return ::operator new(one, kAlignment, std::nothrow); },
        [](void* p) { ::operator delete(p, kAlignment, std::nothrow); });
    pair(
        "aligned array", aligned, [] { return ::operator new[](one, kAlignment); },
        [](void* p) { ::operator delete[](p, kAlignment); });
    pair(
        "aligned sized array", aligned, [] { return ::operator new[](one, kAlignment); },
        [](void* p) { ::operator delete[](p, one, kAlignment); });
    pair(
        "aligned nothrow array", aligned, [] { return ::operator new[](one, kAlignment, std::nothrow); },
        [](void* p) { ::operator delete[](p, kAlignment, std::nothrow); });
    pair(
        "object", plain, [] { return new Small; }, [](void* p) { delete static_cast<Small*>(p); });
    pair(
        "objects", array, [] { return new Small[3]; }, [](void* p) { delete[] static_cast<Small*>(p); });
    pair(
        "vector", plain, [] { return new std::vector<Small>; },
        [](void* p) { delete static_cast<std::vector<Small>*>(p); });
  }
  must_be_null("too much", ::operator new(much, std::nothrow));
  must_be_null("too much, array", ::operator new[](much, std::nothrow));
  if (aligned) must_be_null("too much, aligned", ::operator new(much, kAlignment, std::nothrow));
  if (failures == 0) std::puts("each form came to its own");
  return failures == 0 ? 0 : 1;
}
