/* program ours|theirs: succeeds if malloc, and what only the libc allocates, is Folio's, or is not; and if the folio_
 * functions work beside it in either case. */
#include <folio/folio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
  if (count != 2) return 2;
  const bool ours = strcmp(arguments[1], "ours") == 0;
  void *object = malloc(1);
  char *copy = strdup("the libc calls malloc");
  void *folios = folio_malloc(100);
  printf("malloc %d strdup %d folio_malloc %d version %s\n", folio_is_ours(object), folio_is_ours(copy),
         folio_is_ours(folios), folio_version());
  const bool good = object != NULL && copy != NULL && folio_is_ours(object) == ours && folio_is_ours(copy) == ours &&
                    folio_is_ours(folios) && strcmp(folio_version(), "0.1.0") == 0;
  free(object);
  free(copy);
  folio_free(folios);
  return good ? 0 : 1;
}
