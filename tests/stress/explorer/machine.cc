#include <gtest/gtest.h>
#include <link.h>
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

#include "folio/descriptor.h"
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
    threads_[i].initial.load();
  }
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
  own_[2] = {tls[0], tls[1]};
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

void Machine::prepare(unsigned i, const Body& body) {
  LogicalTls mine;
  mine.load();
  threads_[i].initial.store();
  body();
  threads_[i].initial.load();
  mine.store();
}

void Machine::as(unsigned i, const Body& body) {
  LogicalTls mine;
  mine.load();
  threads_[i].tls.store();
  body();
  threads_[i].tls.load();
  mine.store();
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
  for (unsigned i = 0; i < count_; ++i) start(threads_[i]);
  main_tls_.load();
  running_ = folio_exploring = true;
  current_ = kNobody;
  pass(kNobody, chosen());
  watching_ = false;
  running_ = folio_exploring = false;
  main_tls_.store();
  return end_;
}

void Machine::start(Thread& t) {
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack;
  t.context.uc_stack.ss_size = kStackBytes;
  t.context.uc_link = nullptr;
  makecontext(&t.context, enter, 0);
  t.tls = t.initial;
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
  if (from != kNobody) threads_[from].tls.load();
  current_ = to;
  if (to != kNobody) threads_[to].tls.store();
  ucontext_t& left = from == kNobody ? main_ : threads_[from].context;
  ucontext_t& entered = to == kNobody ? main_ : threads_[to].context;
  swapcontext(&left, &entered);
}

void Machine::note_access(uintptr_t address, size_t bytes, bool write, const void* where) {
  for (const Range& own : own_) {
    if (own.holds(address)) return;
  }
  watching_ = false;
  memory_.plain(current_, address, bytes, write, where);
  watching_ = true;
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
