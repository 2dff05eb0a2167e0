// See docs/errors.md and docs/errors.md#double-free, and docs/missing.md.
const char* line = "(see docs/errors.md#gone)";
int folio_known;
int kKnown;
struct Word { void take(); };
