#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <asm/prctl.h>
#endif

#include "store/descriptor.h"
#include "stress/explorer/explorer.h"

namespace explorer {

using folio::ExploredOp;

namespace {

// Where the program's thread-local variables lie, of the one kernel thread.
int find_tls(dl_phdr_info* info, size_t, void* to) {
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
    auto* const range = static_cast<uintptr_t*>(to);
    range[0] = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
    range[1] = range[0] + info->dlpi_phdr[i].p_memsz;
  }
  return 1;  // the first is the program
}

// The program's first segment: code and constants, which nobody writes.
int find_constants(dl_phdr_info* info, size_t, void* to) {
  auto* const range = static_cast<uintptr_t*>(to);
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_W) != 0) continue;
    const uintptr_t start = info->dlpi_addr + header.p_vaddr;
    if (range[1] == 0) range[0] = start;
    range[1] = start + header.p_memsz;
  }
  return 1;  // the first is the program
}

uintptr_t thread_pointer() { return reinterpret_cast<uintptr_t>(__builtin_thread_pointer()); }

// From here on the thread-local storage is that one's.
[[gnu::noinline]] void set_thread_pointer(uintptr_t to) {
#if defined(__x86_64__)
  constexpr unsigned long kHasInstruction = 2;  // HWCAP2_FSGSBASE
  static const bool has = (getauxval(AT_HWCAP2) & kHasInstruction) != 0;
  if (has) {
    asm volatile("wrfsbase %0" : : "r"(to) : "memory");
  } else {
    syscall(SYS_arch_prctl, ARCH_SET_FS, to);
  }
#else
  asm volatile("msr tpidr_el0, %0" : : "r"(to) : "memory");
#endif
}

// Storage for a logical thread: of a thread that tells where it is and sleeps.
Storage make_storage() {
  static sem_t ready;
  static Storage made;
  sem_init(&ready, 0, 0);
  pthread_t thread;
  const auto sleep = [](void*) -> void* {
    made = {&folio::thread_cursors, &folio::thread_state, thread_pointer()};
    sem_post(&ready);
    for (;;) pause();
  };
  if (pthread_create(&thread, nullptr, sleep, nullptr) != 0) abort();
  pthread_detach(thread);
  while (sem_wait(&ready) != 0) {
  }
  return made;
}

// For all machines, one after the other.
const Storage& storage_of(unsigned thread) {
  static const std::vector<Storage> all = [] {
    std::vector<Storage> made;
    for (unsigned i = 0; i < kThreadsMost; ++i) made.push_back(make_storage());
    return made;
  }();
  return all[thread];
}

const TlsImage& new_storage() {
  static const TlsImage image = storage_of(0).image();
  return image;
}

// Address space without contents.
char* map_afresh(void* at, size_t bytes) {
  void* const start =
      mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == nullptr ? 0 : MAP_FIXED), -1, 0);
  if (start == MAP_FAILED) abort();
  return static_cast<char*>(start);
}

}  // namespace

// What an operation is for who only sees that. A fetch_... reads if somebody looks at what it returns.
static uint8_t uses_of(ExploredOp::Kind kind) {
  switch (kind) {
    case ExploredOp::kLoad:
      return Location::kReads;
    case ExploredOp::kAdd:
    case ExploredOp::kSub:
      return Location::kAdds;
    case ExploredOp::kOr:
      return Location::kSets;
    case ExploredOp::kAnd:
      return Location::kClears;
    default:
      return Location::kReads | Location::kWrites;
  }
}

Ghost::Ghost() : watched_(Machine::watching_) { Machine::watching_ = false; }
Ghost::~Ghost() { Machine::watching_ = watched_; }

Machine::Machine() {
  char* const stacks = static_cast<char*>(
      mmap(nullptr, kThreadsMost * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (stacks == MAP_FAILED) abort();
  for (unsigned i = 0; i < kThreadsMost; ++i) {
    threads_[i].stack = stacks + i * kStackBytes;
    threads_[i].storage = storage_of(i);
    threads_[i].initial = new_storage();
    threads_[i].storage.set(new_storage());
  }
  main_pointer_ = thread_pointer();
  own_[0] = {reinterpret_cast<uintptr_t>(stacks), reinterpret_cast<uintptr_t>(stacks) + kThreadsMost * kStackBytes};
  pthread_attr_t attributes;
  void* bottom = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) abort();
  pthread_attr_getstack(&attributes, &bottom, &bytes);
  pthread_attr_destroy(&attributes);
  own_[1] = {reinterpret_cast<uintptr_t>(bottom), reinterpret_cast<uintptr_t>(bottom) + bytes};
  uintptr_t tls[2] = {};
  dl_iterate_phdr(find_tls, tls);
  for (unsigned i = 0; i < kThreadsMost; ++i) {
    const uintptr_t distance = threads_[i].storage.thread_pointer - main_pointer_;
    own_[2 + i] = {tls[0] + distance, tls[1] + distance};
  }
  uintptr_t constants[2] = {};
  dl_iterate_phdr(find_constants, constants);
  constants_ = {constants[0], constants[1]};
  if (const char* mutant = getenv("FOLIO_MUTATE")) memory_.mutate(mutant);
  if (arena_ == nullptr) arena_ = map_afresh(nullptr, kArenaBytes);
  notes_sites_ = getenv("FOLIO_EXPLORE_SITES") != nullptr;
  here_ = this;
}

void* Machine::reserve(size_t bytes, size_t alignment) {
  const Ghost ghost;
  if (here_ == nullptr || !here_->running_) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(arena_) + here_->arena_used_;
  const size_t used = folio::round_up(start, alignment) + bytes - reinterpret_cast<uintptr_t>(arena_);
  if (used > kArenaBytes) return nullptr;
  here_->arena_used_ = used;
  return arena_ + used - bytes;
}

bool Machine::unmap(void* start, size_t bytes) {
  const Ghost ghost;
  if (here_ != nullptr) here_->memory_.forget(reinterpret_cast<uintptr_t>(start), bytes);
  const bool ours = arena_ != nullptr && static_cast<size_t>(static_cast<char*>(start) - arena_) < kArenaBytes;
  if (ours) map_afresh(start, bytes);
  return ours;
}

Machine::~Machine() {
  write_sites();
  munmap(threads_[0].stack, kThreadsMost * kStackBytes);
  here_ = nullptr;
}

class Machine::As {
 public:
  As(const Machine& machine, unsigned thread) : before_(thread_pointer()) {
    set_thread_pointer(machine.threads_[thread].storage.thread_pointer);
  }
  ~As() { set_thread_pointer(before_); }
  As(const As&) = delete;
  As& operator=(const As&) = delete;

 private:
  uintptr_t before_;
};

void Machine::prepare(unsigned i, const Body& body) {
  Thread& t = threads_[i];
  t.storage.set(t.initial);
  as(i, body);
  t.initial = t.storage.image();
}

void Machine::as(unsigned i, const Body& body) {
  const unsigned before = current_;
  current_ = i;
  {
    const As scope(*this, i);
    body();
  }
  current_ = before;
}

Machine::End Machine::run(const Plan& plan, Chooser& chooser) {
  plan.reset();
  if (arena_used_ != 0) map_afresh(arena_, arena_used_);
  arena_used_ = 0;
  plan_ = &plan;
  chooser_ = &chooser;
  count_ = static_cast<unsigned>(plan.threads.size());
  enabled_ = (1u << count_) - 1;
  trace_.clear();
  stale_reads_ = 0;
  steps_ = 0;
  learned_ = false;
  end_ = End::kWhole;
  memory_.begin();
  owner_written_ = 0;
  for (unsigned i = 0; i < kThreadsMost; ++i) {
    threads_[i].storage.set(threads_[i].initial);
    memory_.location(&threads_[i].storage.cursors->owner, 8);
    life_[i] = first_life_[i] | 4;
    start(threads_[i]);
  }
  running_ = folio_exploring = true;
  current_ = kNobody;
  pass(kNobody, chosen());
  watching_ = false;
  running_ = folio_exploring = false;
  return end_;
}

void Machine::start(Thread& t) {
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack;
  t.context.uc_stack.ss_size = kStackBytes;
  t.context.uc_link = nullptr;
  makecontext(&t.context, enter, 0);
  t.finished = false;
  t.points = 0;
}

void Machine::enter() {
  Machine& m = *here_;
  watching_ = true;
  m.plan_->threads[m.current_]();
  watching_ = false;
  m.threads_[m.current_].finished = true;
  m.leave();
}

uint64_t Machine::operation(void* word, const ExploredOp& op) {
  if (here_ != nullptr && here_->running_) {
    const bool watched = watching_;
    watching_ = false;
    const uint64_t value = here_->operate(word, op);
    watching_ = watched;
    return value;
  }
  if (outside_point != nullptr) outside_point();
  return Memory::perform(word, op);
}

// For tests/stress/explorer/mutate.py: which operations of the source this test came by.
void Machine::write_sites() const {
  if (!notes_sites_) return;
  FILE* const file = fopen(getenv("FOLIO_EXPLORE_SITES"), "a");
  if (file == nullptr) abort();
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  for (const auto& [path, line, kind] : sites_) {
    fprintf(file, "%s.%s %s:%u:%s\n", test->test_suite_name(), test->name(), path, line,
            kind_name(static_cast<ExploredOp::Kind>(kind)));
  }
  fclose(file);
}

uint64_t Machine::operate(void* word, const ExploredOp& op) {
  const unsigned me = current_;
  if (owner_written_ != 0) note_owner();
  if (notes_sites_) sites_.insert({op.file, op.line, op.kind});
  const int order = memory_.order_of(op);
  Touch touch = {nullptr, op.kind != ExploredOp::kLoad, order == folio::order::seq_cst, false};
  const bool point = note_use({word, op.bytes}, uses_of(op.kind));
  if (point) {
    chooser_->comes_to(me, reinterpret_cast<uintptr_t>(word), touch);
    at_point();
  } else {
    pass_by();
  }
  last_ = {word, op.bytes};
  Location& location = memory_.location(word, op.bytes);
  const std::vector<uint32_t>& choices = memory_.readable(me, location, op);
  const unsigned choice = choices.size() == 1 ? 0 : chooser_->read(static_cast<unsigned>(choices.size()));
  if (choice != 0) {
    trace_.push_back(static_cast<uint8_t>(kRead | choice));
    ++stale_reads_;
  }
  touch.location = &location;
  touch.stale = choice != 0;
  const uint64_t value = memory_.perform(me, location, op, choices[choice]);
  if (point) chooser_->touched(me, touch);
  return value;
}

// Whether there is a point before it.
bool Machine::note_use(const Operand& operand, uint8_t uses) {
  if (operand.word == nullptr) return false;
  Location& location = memory_.location(operand.word, operand.bytes);
  learned_ = memory_.note_use(current_, location, uses) || learned_;
  return location.shared || points_ == Points::kAll || (points_ == Points::kWrites && uses != Location::kReads);
}

void Machine::commit(const void* start, size_t bytes) {
  const Ghost ghost;
  if (here_ != nullptr && here_->running_) here_->note_commit(reinterpret_cast<uintptr_t>(start), bytes);
}

void Machine::note_commit(uintptr_t start, size_t bytes) {
  if (bytes == folio::kChunkBytes) {
    // All of a chunk, of which some could be used before.
    auto* const d = static_cast<folio::Descriptor*>(folio::descriptor_at(reinterpret_cast<void*>(start)));
    const size_t had =
        d == nullptr ? 0 : memory_.location(&d->committed, 2).stores.front().value * folio::kPageBytesLeast;
    start += had;
    bytes -= had;
  }
  memory_.commit(current_, start, bytes);
}

// No point: nobody else goes on. A schedule counts it nevertheless.
void Machine::pass_by() {
  trace_.push_back(static_cast<uint8_t>(current_));
  if (trace_.size() < kStepsMost) return;
  end_ = End::kOverrun;
  pass(current_, kNobody);
}

void Machine::at_point() {
  Thread& t = threads_[current_];
  ++t.points;
  if (t.points == stop_at_[current_]) return leave();
  if (stop_all_at_ != 0 && steps_ >= stop_all_at_) {
    enabled_ = 0;
    return leave();
  }
  if (trace_.size() >= kStepsMost) {
    end_ = End::kOverrun;
    return pass(current_, kNobody);
  }
  const unsigned next = chosen();
  if (next != current_) pass(current_, next);
}

unsigned Machine::chosen() {
  const unsigned next = chooser_->choose(current_, enabled_);
  if (next == kNobody) {
    end_ = End::kCut;
  } else {
    trace_.push_back(static_cast<uint8_t>(next));
    ++steps_;
  }
  return next;
}

// The current thread is not to go on any more.
void Machine::leave() {
  enabled_ &= ~(1u << current_);
  pass(current_, enabled_ == 0 ? kNobody : chosen());
}

void Machine::pass(unsigned from, unsigned to) {
  current_ = to;
  set_thread_pointer(to == kNobody ? main_pointer_ : threads_[to].storage.thread_pointer);
  ucontext_t& left = from == kNobody ? main_ : threads_[from].context;
  ucontext_t& entered = to == kNobody ? main_ : threads_[to].context;
  swapcontext(&left, &entered);
}

void Machine::note_access(uintptr_t address, size_t bytes, bool write, const void* where) {
  if (constants_.holds(address)) return;
  if (write && address == reinterpret_cast<uintptr_t>(&threads_[current_].storage.cursors->owner)) {
    owner_written_ |= 1u << current_;
  }
  for (const Range& own : own_) {
    if (own.holds(address)) return;
  }
  watching_ = false;
  memory_.plain(current_, address, bytes, write, where);
  watching_ = true;
}

// ---- Other threads, as the kernel shows them ----

// The owner of a thread's cursors is written plainly, and read by others through the kernel: the same as a relaxed
// store. It has happened by the time of the thread's next operation.
void Machine::note_owner() {
  for (uint32_t rest = owner_written_; rest != 0; rest &= rest - 1) {
    const unsigned t = lowest(rest);
    folio::ThreadCache** const owner = &threads_[t].storage.cursors->owner;
    memory_.stored_plainly(t, owner, reinterpret_cast<uint64_t>(*owner));
  }
  owner_written_ = 0;
}

// kNobody if it is in none's storage.
unsigned Machine::thread_at(const void* address) const {
  for (unsigned i = 0; i < kThreadsMost; ++i) {
    if (own_[2 + i].holds(reinterpret_cast<uintptr_t>(address))) return i;
  }
  return kNobody;
}

// A look by way of the kernel: a point.
uint64_t Machine::life_of(unsigned thread) {
  const Ghost ghost;
  const ExploredOp peek = {ExploredOp::kLoad, folio::order::seq_cst, 8, 0, 0, __FILE__, 0};
  return running_ ? operate(&life_[thread], peek) : life_[thread];
}

void Machine::turn(Life life) {
  const Ghost ghost;
  const ExploredOp change = {ExploredOp::kStore,
                             folio::order::seq_cst,
                             8,
                             (life_[current_] & ~uint64_t{3}) | static_cast<uint64_t>(life),
                             0,
                             __FILE__,
                             0};
  operate(&life_[current_], change);
}

void Machine::live_anew() {
  const Ghost ghost;
  if (owner_written_ != 0) note_owner();
  const unsigned me = current_;
  threads_[me].storage.set(new_storage());
  memory_.stored_plainly(me, &threads_[me].storage.cursors->owner, 0);
  const ExploredOp change = {
      ExploredOp::kStore, folio::order::seq_cst, 8, (life_[me] & ~uint64_t{3}) + 4, 0, __FILE__, 0};
  operate(&life_[me], change);
}

bool Machine::copy_storage(void* to, const void* from, size_t bytes, bool* mapped) {
  if (here_ == nullptr) return false;
  Machine& m = *here_;
  const unsigned thread = m.thread_at(from);
  if (thread == kNobody) return false;
  const Ghost ghost;
  *mapped = (m.life_of(thread) & 3) != static_cast<uint64_t>(Life::kUnmapped);
  if (!*mapped) return true;
  memcpy(to, from, bytes);
  void** const owner = reinterpret_cast<void**>(&m.threads_[thread].storage.cursors->owner);
  const auto at = static_cast<size_t>(reinterpret_cast<const char*>(owner) - static_cast<const char*>(from));
  if (at >= bytes || !m.running_) return true;
  const ExploredOp peek = {ExploredOp::kLoad, folio::order::relaxed, 8, 0, 0, __FILE__, 0};
  const uint64_t read = m.operate(owner, peek);
  memcpy(static_cast<char*>(to) + at, &read, sizeof read);
  return true;
}

// Each life has another one.
bool Machine::thread_id(uint32_t* id) {
  if (here_ == nullptr || here_->current_ == kNobody) return false;
  *id = static_cast<uint32_t>(here_->life_[here_->current_] >> 2) * 16 + here_->current_ + 1;
  return true;
}

bool Machine::thread_exists(uint32_t id, bool* exists) {
  if (here_ == nullptr || id == 0 || id % 16 > kThreadsMost || id % 16 == 0) return false;
  const uint64_t life = here_->life_of(id % 16 - 1);
  *exists = (life & 3) == static_cast<uint64_t>(Life::kRuns) && life >> 2 == id / 16;
  return true;
}

void Machine::note_object(uintptr_t object) {
  const Ghost ghost;
  objects_.insert(object);
  memory_.plain(current_, object, 8, true, __builtin_return_address(0));
}

void Machine::note_purge(uintptr_t start, size_t bytes, const void* where) {
  const Ghost ghost;
  for (auto at = objects_.lower_bound(start); at != objects_.end() && *at < start + bytes; ++at) {
    memory_.plain(current_, *at, 8, true, where);
  }
}

std::string Machine::schedule() const {
  std::string text;
  for (size_t i = 0; i < trace_.size();) {
    if ((trace_[i] & kRead) != 0) {
      text += "~" + std::to_string(trace_[i++] & ~kRead) + " ";
      continue;
    }
    size_t j = i;
    while (j < trace_.size() && trace_[j] == trace_[i]) ++j;
    text += std::to_string(trace_[i]) + "*" + std::to_string(j - i) + " ";
    i = j;
  }
  return text;
}

}  // namespace explorer
