/* folio.h in plain C11: includes itself twice, names every function, and is compiled pedantically. Running it calls
 * each function once. */
#include <folio/folio.h>

#if !defined(FOLIO_VERSION_MAJOR) || !defined(FOLIO_VERSION_MINOR) || !defined(FOLIO_VERSION_PATCH)
#error "the version macros"
#endif

_Static_assert(sizeof(folio_place) == 24, "the layout of folio_place is part of the interface");
_Static_assert(offsetof(folio_stats, struct_size) == 0, "struct_size comes first");

static size_t written;

static void count_bytes(void *context, const char *text, size_t length) {
  (void)context;
  (void)text;
  written += length;
}

/* Number of the first call that does not do what it should, or 0. */
static int call_each(void) {
  void *object = folio_malloc(10);
  if (object == NULL || folio_usable_size(object) < 10) return 1;
  object = folio_realloc(object, 100);
  object = folio_reallocarray(object, 10, 20);
  object = folio_rezalloc(object, 200, 400);
  object = folio_aligned_realloc(object, 64, 500);
  if (object == NULL || (uintptr_t)object % 64 != 0) return 2;
  if (!folio_expand(object, 500)) return 3;
  folio_place place;
  if (!folio_is_ours(object) || !folio_locate(object, &place) || place.base != object) return 4;
  folio_free_aligned_sized(object, 64, 500);
  folio_free_sized(folio_calloc(3, 4), 12);
  folio_free(folio_zalloc(10));
  folio_free(folio_aligned_alloc(32, 10));
  folio_free(folio_aligned_zalloc(32, 10));
  if (folio_posix_memalign(&object, 32, 10) != 0) return 5;
  folio_free(object);
  if (folio_good_size(10) < 10) return 6;
  folio_stats stats = {.struct_size = sizeof(folio_stats)};
  if (!folio_stats_get(&stats)) return 7;
  folio_write_fn *write = count_bytes;
  folio_stats_text(write, NULL);
  folio_stats_json(write, NULL);
  if (written < 100) return 8;
  int64_t value = 0;
  if (folio_version() == NULL || !folio_option_get("decay", &value)) return 9;
  (void)folio_collect();
  return 0;
}

int main(void) { return call_each(); }
