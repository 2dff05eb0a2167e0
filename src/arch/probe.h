// USDT probes: places in the code on which a tracer may put a breakpoint, named by notes in the file (.note.stapsdt, as
// SystemTap's <sys/sdt.h> writes them; that header is not used, since it is not there for every build, and since the
// arguments have to be in given registers). A probe is one nop, behind a look at its semaphore, which a tracer raises.
//
// The arguments are where the ABI passes the first three of a call: OpenTelemetry's profiler reads them there, whatever
// the note says.
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#define FOLIO_PROBE_1 "8@%%rdi"
#define FOLIO_PROBE_3 "8@%%rdi 8@%%rsi 8@%%rdx"
#define FOLIO_PROBE_REGISTERS(a, b, c) \
  register uint64_t folio_a asm("rdi") = (a), folio_b asm("rsi") = (b), folio_c asm("rdx") = (c)
#else
#define FOLIO_PROBE_1 "8@x0"
#define FOLIO_PROBE_3 "8@x0 8@x1 8@x2"
#define FOLIO_PROBE_REGISTERS(a, b, c) \
  register uint64_t folio_a asm("x0") = (a), folio_b asm("x1") = (b), folio_c asm("x2") = (c)
#endif

// `semaphore` is the name of a FOLIO_PROBE_SEMAPHORE, as text; `form` one of the two above, and the arguments that it
// leaves out are 0.
#define FOLIO_PROBE(provider, name, semaphore, form, a, b, c)                       \
  do {                                                                              \
    /* The values first: a call that computes one would take the registers. */      \
    const uint64_t folio_1 = (a), folio_2 = (b), folio_3 = (c);                     \
    FOLIO_PROBE_REGISTERS(folio_1, folio_2, folio_3);                               \
    asm volatile(                                                                   \
        "990: nop\n"                                                                \
        ".pushsection .note.stapsdt, \"\", \"note\"\n"                              \
        ".balign 4\n"                                                               \
        ".4byte 992f - 991f, 994f - 993f, 3\n"                                      \
        "991: .asciz \"stapsdt\"\n"                                                 \
        "992: .balign 4\n"                                                          \
        "993: .8byte 990b, _.stapsdt.base, " semaphore                              \
        "\n"                                                                        \
        ".asciz \"" provider "\"\n.asciz \"" name                                   \
        "\"\n"                                                                      \
        ".asciz \"" form                                                            \
        "\"\n"                                                                      \
        "994: .balign 4\n"                                                          \
        ".popsection\n"                                                             \
        ".ifndef _.stapsdt.base\n"                                                  \
        ".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n" \
        ".weak _.stapsdt.base\n"                                                    \
        ".hidden _.stapsdt.base\n"                                                  \
        "_.stapsdt.base: .space 1\n"                                                \
        ".size _.stapsdt.base, 1\n"                                                 \
        ".popsection\n"                                                             \
        ".endif\n"                                                                  \
        :                                                                           \
        : "r"(folio_a), "r"(folio_b), "r"(folio_c)                                  \
        : "memory");                                                                \
  } while (false)

// Other than zero while somebody traces the probe; read as a volatile.
#define FOLIO_PROBE_SEMAPHORE(name)                                \
  extern "C" [[gnu::visibility("hidden")]] volatile uint16_t name; \
  [[gnu::used, gnu::section(".probes")]] volatile uint16_t name = 0
