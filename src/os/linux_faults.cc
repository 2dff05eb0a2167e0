// Linux: faults.h, by madvise, a handler of SIGSEGV, and the libc's _dl_find_object.
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "os/faults.h"
#include "os/linux_call.h"
#include "os/os.h"

namespace folio::os {

namespace {

// What the headers of older systems lack. glibc 2.35 has the function; what it fills in has room for more.
constexpr int kGuardInstall = 102, kGuardRemove = 103;
struct FoundObject {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  const link_map* map;
  void* eh_frame;
  void* reserved[8];
};
extern "C" [[gnu::weak]] int folio_find_object(void* address, FoundObject* found) asm("_dl_find_object");

}  // namespace

bool install_guard(void* address, size_t bytes) { return !failed(call(SYS_madvise, address, bytes, kGuardInstall)); }

bool remove_guard(void* address, size_t bytes) { return !failed(call(SYS_madvise, address, bytes, kGuardRemove)); }

bool forbid(void* address, size_t bytes) { return !failed(call(SYS_mprotect, address, bytes, PROT_NONE)); }

namespace {

constinit OnFault* fault_handler = nullptr;
// What had the signal before. A handler that wants to be called once only has been, when it is the default action.
constinit struct sigaction before {};

#if defined(__x86_64__)
Access access_of(const mcontext_t& context) {
  constexpr int64_t kWrites = 2;
  return (context.gregs[REG_ERR] & kWrites) != 0 ? Access::kWrite : Access::kRead;
}

void read_registers(const mcontext_t& context, Registers& registers) {
  // By DWARF's numbers.
  constexpr int kOrder[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                            REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  static_assert(sizeof kOrder / sizeof kOrder[0] == arch::kDwarfRegisters);
  for (unsigned i = 0; i < arch::kDwarfRegisters; ++i)
    registers.at[i] = static_cast<uint64_t>(context.gregs[kOrder[i]]);
  registers.pc = static_cast<uint64_t>(context.gregs[REG_RIP]);
}
#elif defined(__aarch64__)
// Records of the kernel's lie in what the context reserves: one says why the processor faulted.
Access access_of(const mcontext_t& context) {
  constexpr uint32_t kWhy = 0x45535201;  // ESR_MAGIC
  constexpr uint64_t kDataAbort = 0x24, kWrites = 1u << 6;
  struct Record {
    uint32_t magic, bytes;
    uint64_t syndrome;
  };
  const auto* at = reinterpret_cast<const char*>(context.__reserved);
  const auto* const end = at + sizeof context.__reserved - sizeof(Record);
  while (at <= end) {
    const auto& record = *reinterpret_cast<const Record*>(at);
    if (record.magic == 0 || record.bytes == 0) break;
    if (record.magic == kWhy) {
      if ((record.syndrome >> 26 & ~uint64_t{1} & 63) != kDataAbort) break;
      return (record.syndrome & kWrites) != 0 ? Access::kWrite : Access::kRead;
    }
    at += record.bytes;
  }
  return Access::kUnknown;
}

void read_registers(const mcontext_t& context, Registers& registers) {
  for (unsigned i = 0; i < 31; ++i) registers.at[i] = context.regs[i];
  registers.at[arch::kStackRegister] = context.sp;
  registers.at[arch::kDwarfRegisters - 1] = registers.pc = context.pc;
}
#endif

void take_fault(int signal, siginfo_t* info, void* context);

// Whether the same fault, with the same registers, comes once more after so many in a row that no program means them.
bool goes_round(const Registers& registers) {
  constexpr unsigned kTimesMost = 100;
  constexpr unsigned kPlaces = 64;  // by the stack, so that threads do not end each other's rows
  constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
  static constinit Atomic<uint64_t> lasts[kPlaces]{};
  static constinit Atomic<unsigned> rows[kPlaces]{};
  const uint64_t place = (registers.at[arch::kStackRegister] >> 12) * kMix >> 32;
  Atomic<uint64_t>& last = lasts[place % kPlaces];
  Atomic<unsigned>& times = rows[place % kPlaces];
  uint64_t now = registers.pc;
  for (const uint64_t value : registers.at) now = (now ^ value) * kMix;
  const bool again = last.load(order::relaxed) == now;  // relaxed, here and below: a guess
  last.store(now, order::relaxed);
  const unsigned n = again ? times.load(order::relaxed) + 1 : 0;
  times.store(n, order::relaxed);  // relaxed: as above
  return n >= kTimesMost;
}

// To what had the signal before, as if this handler were not there.
void pass_on(int signal, siginfo_t* info, void* context, bool round) {
  const bool sent = info->si_code <= 0;  // by a process, and so not by an instruction that would fault again
  if ((before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == SIG_IGN && sent) return;
  if ((before.sa_flags & SA_SIGINFO) == 0 && (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN)) {
    // A handler that the program has installed since, and that has called this one, stays. But not if it takes the
    // fault for handled then and returns, as Java's does: the instruction would fault for ever.
    struct sigaction standard {
    }, now{};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, nullptr, &now);
    const bool mine = (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == take_fault;
    if (mine || sent || round) sigaction(signal, &standard, nullptr);
    // It comes when this handler returns, or with the instruction that is then done again.
    if (sent) call(SYS_tgkill, call(SYS_getpid), call(SYS_gettid), signal);
    return;
  }
  const struct sigaction theirs = before;
  if ((theirs.sa_flags & static_cast<int>(SA_RESETHAND)) != 0) {
    before.sa_flags &= ~SA_SIGINFO;
    before.sa_handler = SIG_DFL;
  }
  if ((theirs.sa_flags & SA_SIGINFO) != 0) {
    theirs.sa_sigaction(signal, info, context);
  } else {
    theirs.sa_handler(signal);
  }
}

void take_fault(int signal, siginfo_t* info, void* context) {
  const int number = errno;
  bool round = false;
  if (info->si_code > 0) {
    const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
    Fault fault{static_cast<const char*>(info->si_addr), access_of(machine), {}};
    read_registers(machine, fault.registers);
    round = goes_round(fault.registers);
    fault_handler(fault);
  }
  errno = number;
  pass_on(signal, info, context, round);
}

// The segment (PT_LOAD) of a loaded file that holds its unwind table, by the program headers in the file's first page.
// Between segments there may be nothing: those of aarch64 are aligned to 64 KiB. A program that hides its headers from
// others may have made that page inaccessible.
void find_segment(Module* module) {
  const uint8_t* const file = module->start;
  const auto bytes = static_cast<size_t>(module->end - file);
  using Header = ElfW(Ehdr);
  using Part = ElfW(Phdr);
  constexpr size_t kPageBytesLeast = 4096;
  const auto* const header = reinterpret_cast<const Header*>(file);
  uint64_t word;
  if (copy_if_mapped(&word, file, sizeof word) != Answer::kYes) return;
  if (bytes < kPageBytesLeast || reinterpret_cast<uintptr_t>(file) % alignof(Header) != 0 ||
      __builtin_memcmp(file, ELFMAG, SELFMAG) != 0 || header->e_phentsize != sizeof(Part) ||
      header->e_phoff % alignof(Part) != 0 || header->e_phoff > kPageBytesLeast ||
      header->e_phnum > (kPageBytesLeast - header->e_phoff) / sizeof(Part)) {
    return;
  }
  const auto* const parts = reinterpret_cast<const Part*>(file + header->e_phoff);
  const auto table = reinterpret_cast<uintptr_t>(module->unwind_table);
  const auto last = reinterpret_cast<uintptr_t>(module->end);
  for (unsigned n = 0; n < header->e_phnum; ++n) {
    const uintptr_t start = module->bias + parts[n].p_vaddr;
    const size_t length = parts[n].p_memsz;
    if (parts[n].p_type != PT_LOAD || table - start >= length || start > last || length > last - start) continue;
    module->table_start = reinterpret_cast<const uint8_t*>(start);
    module->table_end = module->table_start + length;
  }
}

}  // namespace

bool on_fault(OnFault* handler) {
  fault_handler = handler;
  struct sigaction now {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return false;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == take_fault) return true;
  before = now;
  struct sigaction mine {};
  // What the program's handler wanted of its mask and of system calls holds as long as it is called from here.
  mine.sa_mask = before.sa_mask;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK | (before.sa_flags & (SA_NODEFER | SA_RESTART));
  mine.sa_sigaction = take_fault;
  return sigaction(SIGSEGV, &mine, nullptr) == 0;
}

bool find_module(const void* code, Module* module) {
  FoundObject found;
  if (&folio_find_object == nullptr || folio_find_object(const_cast<void*>(code), &found) != 0) return false;
  const char* const path = found.map->l_name;
  *module = {path == nullptr || path[0] == '\0' ? nullptr : path,
             static_cast<uintptr_t>(found.map->l_addr),
             static_cast<const uint8_t*>(found.map_start),
             static_cast<const uint8_t*>(found.map_end),
             static_cast<const uint8_t*>(found.eh_frame),
             nullptr,
             nullptr};
  if (module->unwind_table != nullptr) find_segment(module);
  return true;
}

}  // namespace folio::os
