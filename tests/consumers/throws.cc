// Memory is out: std::bad_alloc arrives where it should, also when the C++ library is linked statically.
#include <cstdint>
#include <cstdio>
#include <new>
#include <string>

int main() {
  volatile std::size_t much = std::size_t{1} << 62;
  int caught = 0;
  for (int i = 0; i < 3; i++) {
    try {
      ::operator delete(::operator new(much));
    } catch (const std::bad_alloc&) {
      caught++;
    }
    try {
      std::string text(100, 'x');
      text.reserve(text.max_size());
    } catch (const std::bad_alloc&) {
      caught++;
    }
  }
  void* const refused = ::operator new(much, std::nothrow);
  std::printf("caught %d\n", caught);
  return caught == 6 && refused == nullptr ? 0 : 1;
}
