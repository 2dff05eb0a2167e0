// The contract with the operating system for guarded objects (insight/guards.h): pages that fault, who is told of the
// fault, and which file a code address is of. As in os.h no function allocates, takes a lock of this process or changes
// errno, but for on_fault; all but that are safe in a signal handler.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "arch/arch.h"

namespace folio::os {

// ---- Pages that fault ----

// Makes a page-aligned part of committed memory fault and gives its physical pages back; the mapping stays one. False
// if the kernel cannot (Linux before 6.13, or the memory is locked).
bool install_guard(void* address, size_t bytes);
// Takes that back: the memory reads as zero.
bool remove_guard(void* address, size_t bytes);

// The same for any kernel, by a mapping of its own: what lies there stays, until purge(). commit() takes it back.
bool forbid(void* address, size_t bytes);

// ---- Faults ----

// The registers of a thread, by the numbers that DWARF gives them (arch/arch.h).
struct Registers {
  uint64_t pc;
  uint64_t at[arch::kDwarfRegisters];
};

enum class Access : uint32_t { kUnknown, kRead, kWrite };
struct Fault {
  const char* address;
  Access access;
  Registers registers;
};

using OnFault = void(const Fault&);

// From now on each fault of memory (SIGSEGV) calls `handler` first, in a signal handler on the thread that faulted;
// then it goes to what had the signal before: the program's handler, or the end of the process, as if nobody had been
// told. A handler that the program sets later takes the place of this one. For the start of the process, once. False if
// the system refuses.
bool on_fault(OnFault* handler);

// ---- Code ----

// The loaded file that holds a code address.
struct Module {
  const char* path;      // null: the program itself
  uintptr_t bias;        // address less what the file says it is: what addr2line wants is the rest
  const uint8_t* start;  // of the file in memory, with what gaps there are
  const uint8_t* end;
  const uint8_t* unwind_table;  // .eh_frame_hdr, or null
  const uint8_t* table_start;   // of the segment that holds the table; null if the file does not say
  const uint8_t* table_end;
};
// False if it is of none, or the libc does not tell (glibc before 2.35, a static program without an unwinder).
bool find_module(const void* code, Module* module);

}  // namespace folio::os
