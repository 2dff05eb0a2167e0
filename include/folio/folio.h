/* folio.h - the C interface of Folio, a malloc for 64-bit machines.
 *
 * Self-contained C11 (and C++). Every function may be called from any thread at any time, also while others
 * allocate, fork or end; none may be called from a signal handler that interrupted an allocation, except where
 * said. "Object" is what an allocation returns. Sizes are bytes. Unless said otherwise:
 *   - what was asked for with 9 bytes or more is 16-byte aligned, with fewer 8-byte aligned;
 *   - a size of 0 is served as a size of 1: a unique pointer that may be freed;
 *   - a size over PTRDIFF_MAX, an overflowing product, or no memory: null, with errno ENOMEM, and everything that
 *     was valid before stays valid.
 * The names without a prefix (malloc, free, ...) that the override variants of the library define behave the same.
 */
#ifndef FOLIO_FOLIO_H
#define FOLIO_FOLIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FOLIO_VERSION_MAJOR 0
#define FOLIO_VERSION_MINOR 1
#define FOLIO_VERSION_PATCH 0

#if defined(__GNUC__)
#define FOLIO_API __attribute__((visibility("default")))
#define FOLIO_NODISCARD __attribute__((warn_unused_result))
#define FOLIO_MALLOC __attribute__((malloc))
#else
#define FOLIO_API
#define FOLIO_NODISCARD
#define FOLIO_MALLOC
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Allocation: ISO C (C11, C23), POSIX.1-2024 ------------------------------------------------------------ */

/* At least `size` bytes, contents undefined. ISO C malloc. */
FOLIO_API FOLIO_NODISCARD FOLIO_MALLOC void *folio_malloc(size_t size);

/* An array of `count` elements of `size` bytes, all zero. ISO C calloc. */
FOLIO_API FOLIO_NODISCARD FOLIO_MALLOC void *folio_calloc(size_t count, size_t size);

/* Resizes `object` to at least `size` bytes, keeping the contents up to the smaller of both sizes; it may move.
 * A null object is malloc(size). realloc(object, 0) frees the object and returns null, as glibc does; C23 leaves it
 * undefined. On failure the object stays as it was. */
FOLIO_API FOLIO_NODISCARD void *folio_realloc(void *object, size_t size);

/* realloc(object, count * size), failing with ENOMEM when the product overflows. POSIX.1-2024. */
FOLIO_API FOLIO_NODISCARD void *folio_reallocarray(void *object, size_t count, size_t size);

/* Frees an object; null does nothing. errno is kept. Misuse gives a line on stderr, then the process aborts, or the
 * call does nothing, by the option `errors` (docs/errors.md). */
FOLIO_API void folio_free(void *object);

/* C23: frees an object whose requested size the caller knows. A size that cannot belong to the object is misuse. */
FOLIO_API void folio_free_sized(void *object, size_t size);
FOLIO_API void folio_free_aligned_sized(void *object, size_t alignment, size_t size);

/* `size` bytes at a multiple of `alignment`, a power of two (else null with EINVAL). ISO C17 aligned_alloc: the size
 * need not be a multiple of the alignment. */
FOLIO_API FOLIO_NODISCARD FOLIO_MALLOC void *folio_aligned_alloc(size_t alignment, size_t size);

/* POSIX: stores the object in *out and returns 0, or returns EINVAL (alignment not a power of two and a multiple of
 * sizeof(void *)) or ENOMEM, leaving *out and errno alone. */
FOLIO_API FOLIO_NODISCARD int folio_posix_memalign(void **out, size_t alignment, size_t size);

/* ---- More ways to allocate ------------------------------------------------------------------------------- */

/* Like malloc, but all zero; like aligned_alloc, but all zero. */
FOLIO_API FOLIO_NODISCARD FOLIO_MALLOC void *folio_zalloc(size_t size);
FOLIO_API FOLIO_NODISCARD FOLIO_MALLOC void *folio_aligned_zalloc(size_t alignment, size_t size);

/* realloc that keeps `alignment` when the object moves. The object may come from any Folio function. */
FOLIO_API FOLIO_NODISCARD void *folio_aligned_realloc(void *object, size_t alignment, size_t size);

/* Like realloc; the bytes between `old_size` (what the program last asked for) and `size` are zero. */
FOLIO_API FOLIO_NODISCARD void *folio_rezalloc(void *object, size_t old_size, size_t size);

/* Makes the object at least `size` bytes without moving it. True if it now is; false leaves it as it was. */
FOLIO_API bool folio_expand(void *object, size_t size);

/* ---- Questions ------------------------------------------------------------------------------------------- */

/* The usable size that malloc(size) would have at least: that of the smallest object for 0, as malloc(0) returns one; 0
 * where whole pages would be more than PTRDIFF_MAX. Guarded objects (option guard) have no more than was asked for. */
FOLIO_API size_t folio_good_size(size_t size);

/* All bytes of the object that the program may use; 0 for null. */
FOLIO_API size_t folio_usable_size(const void *object);

/* True if the address lies in address space that Folio manages. Any address; never faults. Constant time, but for
 * addresses that are not Folio's while huge objects reserve more than 1 GiB: up to 0.2 ms (folio_place, below). */
FOLIO_API bool folio_is_ours(const void *address);

/* What an address is. Any address, also an interior one. Constant time for objects of up to 32 KiB, and in the first
 * GiB of a huge one. In a large object (up to 8 MiB): a step for each 16 KiB between its start and the address.
 * Further inside a huge object: a search downward by steps of 1 GiB. So too for an address that is not Folio's, while
 * huge objects reserve more than 1 GiB. */
typedef struct folio_place {
  void *base;         /* start of the object that holds the address */
  size_t usable_size; /* its usable bytes, from base */
  uint32_t bin;       /* its bin; 0 for a large or huge object */
  bool taken;         /* false: the object is free (in no cache, not the program's) */
} folio_place;

/* Fills *place and returns true, or returns false for an address in no object of Folio. */
FOLIO_API bool folio_locate(const void *address, folio_place *place);

/* ---- Memory ---------------------------------------------------------------------------------------------- */

/* Gives back to the kernel what can be given back now: the calling thread's cache, CPU caches, depot and all free
 * pages. Returns the bytes given back, those included that the program had and never touched. What other threads cache
 * stays with them. Its time grows with the heap: a look at every chunk, and a system call for each 256 KiB, or each run
 * of free pages, that is given back. Others allocate and free meanwhile. */
FOLIO_API size_t folio_collect(void);

/* Sees to it that Folio's housekeeper runs, the thread that gives free memory back while the program is quiet, for as
 * long as the program has several threads. False if the option `housekeeper` is off, or no thread can be had.
 * libfolio.so starts it by itself where the program calls pthread_create; libfolio.a, libfolio.o and libfolio-embed.so
 * cannot see that. Call it after you have started threads, not under a lock that pthread_create may take. */
FOLIO_API bool folio_start_housekeeper(void);

/* ---- Limits and pressure (docs/memory.md) ---------------------------------------------------------------- */

/* What Folio may hold, in bytes, 0 for no limit: all pages of objects, free and cached ones included, huge objects as a
 * whole, and metadata. Sets both limits, whatever the options said, and gives back at once what is over `soft`.
 *   soft  as it comes near, free memory goes back to the kernel in steps: at the limit at once, by the call that would
 *         exceed it. What the program itself holds may exceed it.
 *   hard  beyond it allocation fails, of objects over 32 KiB a little before it (a 32nd, 1 to 32 MiB), so that the
 *         program can still allocate small ones while it unwinds. Everything that can go has gone then.
 * A limit below 4 MiB, but for 0, is 4 MiB. False, and nothing changes, where `soft` is above `hard`, or one of them
 * over PTRDIFF_MAX. For one thread at a time: two calls at once may leave a mixture of both, until the next one. */
FOLIO_API bool folio_set_limit(size_t soft, size_t hard);

/* How near memory is to a limit, Folio's own or the system's. */
/* NOLINTBEGIN(readability-identifier-naming): as C names what it has no scope for */
enum {
  FOLIO_LEVEL_CALM = 0,
  FOLIO_LEVEL_NEAR = 1,    /* 7/8 of the soft limit: no new huge pages */
  FOLIO_LEVEL_TIGHT = 2,   /* 15/16: caches are emptied */
  FOLIO_LEVEL_AT_SOFT = 3, /* the soft limit: what is free goes at once */
  FOLIO_LEVEL_AT_HARD = 4  /* the hard limit, or a little below: objects over 32 KiB are refused */
};
/* NOLINTEND(readability-identifier-naming) */

typedef struct folio_limit {
  size_t struct_size; /* set by the caller to sizeof(folio_limit) */
  size_t soft, hard;  /* the limits in force; 0: none */
  size_t held;        /* what they are about */
  uint64_t refused;   /* count: requests that got no memory while there were limits */
  int level;          /* one of the above, of limits and pressure the higher one */
} folio_limit;

/* Fills the first limit->struct_size bytes; false if struct_size is 0. */
FOLIO_API bool folio_limit_get(folio_limit *limit);

/* Has `function` called with the level when it rises to `level` or above, and once a second while it stays there: for
 * caches of the program's own. With FOLIO_LEVEL_CALM it is not called any more, but for a call that has begun. It is
 * called by Folio's housekeeper, a thread that has all signals blocked and a stack of 256 KiB, outside of any of
 * Folio's paths: it may allocate and free, and take locks. Nothing goes back meanwhile, so it should return soon; it
 * must not end the thread. The levels are those of the limits, and with the option `pressure` the system's too. Starts
 * the housekeeper, which then stays while the program's first thread does; like folio_start_housekeeper, not to be
 * called under a lock that pthread_create may take. False if there is no such level, 16 functions are there already, or
 * there can be no housekeeper. In the child of a fork the functions stay. */
typedef void folio_pressure_fn(int level);
FOLIO_API bool folio_on_pressure(int level, folio_pressure_fn *function);

/* ---- Statistics ------------------------------------------------------------------------------------------ */

/* A picture taken while others run: each figure is true of some recent moment, sums are not exact under load.
 * All in bytes unless said. What is resident for objects is live + cached + fragmented + dirty, as far as it was
 * touched. */
typedef struct folio_stats {
  size_t struct_size;     /* set by the caller to sizeof(folio_stats) */
  size_t live;            /* in objects that the program holds, by bin size */
  size_t cached;          /* in magazines: thread caches, CPU caches and depot */
  size_t fragmented;      /* free, on pages that taken objects keep (what may be resident) */
  size_t dirty;           /* free, resident and waiting to be purged (estimate) */
  size_t resident;        /* pages that may be resident, objects only, whole huge objects included (estimate) */
  size_t huge_live;       /* part of live: in huge objects, above 8 MiB */
  size_t metadata;        /* metadata region in use */
  size_t reserved;        /* address space reserved for chunks, large and huge objects */
  size_t chunks;          /* count: chunks open, and those that wait to be opened again */
  size_t threads;         /* count: threads that have a thread cache */
  uint64_t purged;        /* given back to the kernel since start */
  uint64_t purge_calls;   /* count: madvise calls for it */
  uint64_t busy_sections; /* count: tries of a CPU cache that found it busy */
} folio_stats;

/* Fills the first stats->struct_size bytes; false if struct_size is 0. */
FOLIO_API bool folio_stats_get(folio_stats *stats);

/* Writes the statistics as text (one screen) or as JSON (one object) through `write`, in pieces. `write` may
 * allocate and free; threads may do this at the same time. */
typedef void folio_write_fn(void *context, const char *text, size_t length);
FOLIO_API void folio_stats_text(folio_write_fn *write, void *context);
FOLIO_API void folio_stats_json(folio_write_fn *write, void *context);

/* ---- Heap profile (docs/tool.md) --------------------------------------------------------------------------- */

/* Samples from now on one object in `interval` bytes (1 to 2^40), at random: its size, times, thread and the stack that
 * allocated it, which `folio profile` shows. A malloc takes some nanoseconds more meanwhile, a sampled one some
 * microseconds, a page and the space of its stack; the free of another object nothing. Where it runs already the
 * interval is set anew. False for another interval, or while another thread starts or stops it.
 * folio_profile_stop: samples that are there stay, until their objects are freed. */
FOLIO_API bool folio_profile_start(size_t interval);
FOLIO_API bool folio_profile_stop(void);
/* Writes the profile as it is, piece by piece, as `folio profile FILE` reads it: 2 MiB and more, binary. `write` may
 * allocate. Other threads go on; a sample that changes meanwhile is left out by readers. */
FOLIO_API void folio_profile_write(folio_write_fn *write, void *context);

/* ---- Version and options --------------------------------------------------------------------------------- */

/* "major.minor.patch", static. */
FOLIO_API const char *folio_version(void);

/* The value of an option (docs/options.md) as it is in force. True if there is one of that name. Enumerations are
 * numbered from 0 in the order in which the documentation lists them; switches are 0 or 1; no path is 0. */
FOLIO_API bool folio_option_get(const char *name, int64_t *value);

/* Gives an option another value: errors, decay, dirty_floor, thread_cache, thread_cache_pool or depot, which hold from
 * the next time on that they are looked at. False, and nothing changed, for another option, name or value. Limits have
 * folio_set_limit, the profile folio_profile_start. Thread-safe. */
FOLIO_API bool folio_option_set(const char *name, int64_t value);

#ifdef __cplusplus
}
#endif
#endif
