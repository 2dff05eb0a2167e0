// x86-64 (System V ABI). Included through arch/arch.h only.
#pragma once

#include <stdint.h>

#include "base/atomic.h"

namespace folio::arch {

inline constexpr unsigned kAddressBits = 47;

FOLIO_INLINE void pause() { __builtin_ia32_pause(); }
FOLIO_INLINE void store_barrier() { asm volatile("" : : : "memory"); }  // the processor keeps the order
// For writing. Spelled out: the builtin falls back to a prefetch for reading unless a newer processor is promised;
// those without the instruction take it as a no-op.
FOLIO_INLINE void prefetch(const void* address) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
}

FOLIO_INLINE char* thread_pointer() {
  char* base;
  asm("movq %%fs:0, %0" : "=r"(base));
  return base;
}

FOLIO_INLINE long syscall6(long n, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}

inline constexpr uint16_t kMachine = 62;  // EM_X86_64

// rbx, rbp, r12 to r15, rsp, rip.
inline constexpr unsigned kRegisters = 8;
FOLIO_INLINE const char* get_registers(uint64_t* to) {
  const char* stack;
  asm volatile(
      "movq %%rbx, 0(%1); movq %%rbp, 8(%1); movq %%r12, 16(%1); movq %%r13, 24(%1); movq %%r14, 32(%1);"
      "movq %%r15, 40(%1); movq %%rsp, 48(%1); leaq 0f(%%rip), %0; movq %0, 56(%1); 0: movq %%rsp, %0"
      : "=&r"(stack)
      : "r"(to)
      : "memory");
  return stack;
}

// The numbers that DWARF gives to registers: those of get_registers in their order, the stack pointer's, and that of
// the column in which the return address is found; how many there are. A return address as it is.
inline constexpr uint8_t kRegisterNumbers[kRegisters] = {3, 6, 12, 13, 14, 15, 7, 16};
inline constexpr unsigned kStackRegister = 7, kReturnColumn = 16, kDwarfRegisters = 17;
FOLIO_INLINE uint64_t plain_return_address(uint64_t address) { return address; }

// One element of folio_thread_cursors, the thread-local array of cursors (cache/thread_cache.h), by its offset there.
//
// Written in assembly because a compiler spends more instructions on the address of a thread-local element. "memory"
// keeps the order with the slow paths, which use the array by its C++ name, and a free's store of the object before the
// new cursor: a fork may come in between.
//
// A step stores the cursor that was loaded, changed: 12 and 15 instructions for malloc and free. Rejected: a step on
// memory (addq $8), an instruction less, which loads the cursor once more. (A malloc and free by turns took 1.11 times
// as long, Larson's one thread 1.07, a program of short-lived numbers 1.04.)
//
// Rejected: %fs with base and index, in the same number of instructions. Processors forward a stored value to the next
// load without waiting for the cache only where the address is one register. (Intel Golden Cove: 0.7 ns instead of 3.9
// ns a step; AMD Zen 4: a smaller difference of the same kind.)
class ThreadCursor {
 public:
  static constexpr bool kHas =
#if defined(FOLIO_EMBED)
      false;  // may be loaded by dlopen, so its TLS has no fixed offset
#else
      true;
#endif

  FOLIO_INLINE explicit ThreadCursor(unsigned offset) : at_(offset) {
    asm("addq folio_thread_cursors@gottpoff(%%rip), %0" : "+c"(at_) : : "cc");  // rcx: rax is for malloc's result
  }
  FOLIO_INLINE void** load() const {
    void** cursor;
    asm volatile("movq %%fs:(%1), %0" : "=d"(cursor) : "r"(at_) : "memory");  // rdx: as above
    return cursor;
  }
  FOLIO_INLINE void set(void** to) const { asm volatile("movq %0, %%fs:(%1)" : : "r"(to), "r"(at_) : "memory"); }

 private:
  uintptr_t at_;
};

// A leaf of what the processor says of itself. Takes microseconds in a virtual machine.
struct CpuId {
  uint32_t a, b, c = 0, d;
  explicit CpuId(uint32_t leaf) : a(leaf) { asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d)); }
};

// Whether FOLIO_WIDE_VECTORS may run: the processor has AVX2, and the kernel saves its registers.
#define FOLIO_WIDE_VECTORS [[gnu::target("avx2")]]
inline bool has_wide_vectors() {
  constexpr uint32_t kOsXsave = 1u << 27, kAvx2 = 1u << 5, kXmmAndYmm = 6;
  if (CpuId(0).a < 7 || (CpuId(1).c & kOsXsave) == 0) return false;  // a lower leaf's answer could look like 7's
  uint32_t saved, upper;
  asm volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  return (saved & kXmmAndYmm) == kXmmAndYmm && (CpuId(7).b & kAvx2) != 0;
}

// Restricted transactional memory (Intel RTM). Written as bytes so that no compiler flag is needed; has() decides at
// run time, also against processors whose microcode makes every transaction abort.
struct Transaction {
  static constexpr unsigned kStarted = ~0u;
  static constexpr unsigned kExplicit = 1u << 0;
  static constexpr unsigned kMayRetry = 1u << 1;

  static bool has() {
#if defined(__SANITIZE_THREAD__)
    return false;  // ThreadSanitizer sees the body's accesses, but not what orders them
#endif
    if (CpuId(0).a < 7) return false;
    const CpuId features(7);
    constexpr uint32_t kRtm = 1u << 11, kAlwaysAborts = 1u << 11;
    return (features.b & kRtm) != 0 && (features.d & kAlwaysAborts) == 0;
  }
  // kStarted, or why the transaction that was begun here aborted.
  FOLIO_INLINE static unsigned begin() {
    unsigned status = kStarted;
    asm volatile(".byte 0xc7,0xf8; .long 0" : "+a"(status) : : "memory");  // xbegin to the next instruction
    return status;
  }
  FOLIO_INLINE static void commit() { asm volatile(".byte 0x0f,0x01,0xd5" : : : "memory"); }  // xend
  FOLIO_INLINE static void abort() { asm volatile(".byte 0xc6,0xf8,0x01" : : : "memory"); }   // xabort 1
};

}  // namespace folio::arch
