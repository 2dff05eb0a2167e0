// aarch64 (AAPCS64, Linux). Included through arch/arch.h only.
#pragma once

#include <stdint.h>

#include "base/atomic.h"

namespace folio::arch {

inline constexpr unsigned kAddressBits = 48;

FOLIO_INLINE void pause() { asm volatile("yield"); }
FOLIO_INLINE void store_barrier() { asm volatile("dmb ishst" : : : "memory"); }
FOLIO_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 1, 3); }

FOLIO_INLINE char* thread_pointer() { return static_cast<char*>(__builtin_thread_pointer()); }

FOLIO_INLINE long syscall6(long n, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  register long x8 asm("x8") = n;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}

inline constexpr uint16_t kMachine = 183;  // EM_AARCH64

// x19 to x30, sp, pc.
inline constexpr unsigned kRegisters = 14;
FOLIO_INLINE const char* get_registers(uint64_t* to) {
  const char* stack;
  asm volatile(
      "stp x19, x20, [%1]; stp x21, x22, [%1, 16]; stp x23, x24, [%1, 32]; stp x25, x26, [%1, 48];"
      "stp x27, x28, [%1, 64]; stp x29, x30, [%1, 80]; adr %0, 0f; str %0, [%1, 104]; 0: mov %0, sp; str %0, [%1, 96]"
      : "=&r"(stack)
      : "r"(to)
      : "memory");
  return stack;
}

// As for x86-64; the program counter has no number, and none needs it there. A return address may be signed.
inline constexpr uint8_t kRegisterNumbers[kRegisters] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32};
inline constexpr unsigned kStackRegister = 31, kReturnColumn = 30, kDwarfRegisters = 33;
FOLIO_INLINE uint64_t plain_return_address(uint64_t address) { return address & ((uint64_t{1} << kAddressBits) - 1); }

// The compiler's own access to the cursors is as good as any.
class ThreadCursor {
 public:
  static constexpr bool kHas = false;
  explicit ThreadCursor(unsigned) {}
  void** load() const { return nullptr; }
  void set(void**) const {}
};

// Vectors of 16 bytes are what each one has.
#define FOLIO_WIDE_VECTORS
inline bool has_wide_vectors() { return false; }

// No transactions: Arm's TME never reached a processor that Linux supports.
struct Transaction {
  static constexpr unsigned kStarted = ~0u;
  static constexpr unsigned kExplicit = 1u << 0;
  static constexpr unsigned kMayRetry = 1u << 1;

  static bool has() { return false; }
  FOLIO_INLINE static unsigned begin() { return 0; }
  FOLIO_INLINE static void commit() {}
  FOLIO_INLINE static void abort() {}
};

}  // namespace folio::arch
