// What differs between processors, behind one set of names (namespace arch). The only includer of the files beside it.
//
// Each of them provides:
//   kAddressBits                          user addresses are below 2^kAddressBits
//   pause(), prefetch(address)            hints; prefetch for writing
//   store_barrier()                       stores before it are seen by other processors before stores behind it
//   thread_pointer()                      base of the thread's TLS, for the rseq area
//   syscall6(n, a...)                     the raw system call: result or -errno; errno itself is never touched
//   kMachine                              as ELF files of it are marked
//   kRegisters, get_registers(to)         what a stack is unwound from: the registers that a call keeps, the stack
//                                         pointer and the program counter, in this order; returns the stack pointer
//   kRegisterNumbers, kStackRegister, kReturnColumn, kDwarfRegisters, plain_return_address(address)
//                                         what the tables that unwind a stack call these registers
//   ThreadCursor                          kHas: it has a shorter way to a thread's cursor than the compiler; load(),
//                                         set(to)
//   FOLIO_WIDE_VECTORS                    marks a function for vectors of 32 bytes, which the processor may not have
//   has_wide_vectors()                    whether it has them
//   Transaction                           hardware transactional memory: has(), begin(), commit(), abort()
#pragma once

#if defined(__x86_64__)
#include "arch/x86_64.h"
#elif defined(__aarch64__)
#include "arch/aarch64.h"
#else
#error "Folio runs on x86-64 and aarch64"
#endif
#include "arch/probe.h"
