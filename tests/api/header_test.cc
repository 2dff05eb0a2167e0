// folio.h in any C++, included twice: plain structures, functions with C linkage.
#include <folio/folio.h>

#include <type_traits>

static_assert(std::is_standard_layout<folio_stats>::value && std::is_trivial<folio_stats>::value, "a plain structure");
static_assert(std::is_standard_layout<folio_place>::value && std::is_trivial<folio_place>::value, "a plain structure");
static_assert(std::is_same<decltype(&folio_usable_size), size_t (*)(const void *)>::value, "as in C");
static_assert(std::is_same<decltype(&folio_locate), bool (*)(const void *, folio_place *)>::value, "as in C");

// C linkage: redeclaring under extern "C" is no conflict.
extern "C" void *folio_malloc(size_t size);

int main() {
  void *object = folio_malloc(10);
  const bool good = object != nullptr && folio_is_ours(object);
  folio_free(object);
  return good ? 0 : 1;
}
