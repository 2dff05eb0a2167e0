// Memory is out: std::bad_alloc arrives where it should, also when the C++ library is linked statically. With STRING
// the program has a string too: of a static library only what is used is there.
#include <cstdint>
#include <cstdio>
#include <new>
#if defined(STRING)
#include <string>
#endif

int main() {
  volatile std::size_t much = std::size_t{1} << 62;
  int caught = 0;
  for (int i = 0; i < 3; i++) {
    try {
      ::operator delete(::operator new(much));
    } catch (const std::bad_alloc&) {
      caught++;
    }
#if defined(STRING)
    try {
      std::string text(100, 'x');
      text.reserve(text.max_size());
    } catch (const std::bad_alloc&) {
      caught++;
    }
#else
    try {
      ::operator delete[](new char[much]);
    } catch (const std::bad_alloc&) {
      caught++;
    }
#endif
  }
  void* const refused = ::operator new(much, std::nothrow);
  std::printf("caught %d\n", caught);
  return caught == 6 && refused == nullptr ? 0 : 1;
}
