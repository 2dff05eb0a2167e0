// As program.c, for new and the C++ library.
#include <folio/folio.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  const bool ours = std::strcmp(arguments[1], "ours") == 0;
  const auto number = std::make_unique<int>(3);
  const std::string text(1000, 'x');
  bool in_thread = !ours;
  std::thread([&in_thread] {
    const std::vector<double> numbers(100);
    in_thread = folio_is_ours(numbers.data());
  }).join();
  void* const folios = folio_malloc(100);
  std::printf("new %d string %d thread %d folio_malloc %d\n", folio_is_ours(number.get()), folio_is_ours(text.data()),
              in_thread, folio_is_ours(folios));
  const bool good = folio_is_ours(number.get()) == ours && folio_is_ours(text.data()) == ours && in_thread == ours &&
                    folio_is_ours(folios);
  folio_free(folios);
  return good ? 0 : 1;
}
