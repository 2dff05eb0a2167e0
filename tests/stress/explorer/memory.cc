#include "stress/explorer/memory.h"

#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "space/chunk_table.h"

namespace explorer {

using folio::ExploredOp;

const char* kind_name(ExploredOp::Kind kind) {
  switch (kind) {
    case ExploredOp::kLoad:
      return "load";
    case ExploredOp::kStore:
      return "store";
    case ExploredOp::kCompareExchange:
      return "cas";
    default:
      return "rmw";
  }
}

namespace {

size_t hash(uintptr_t n) { return static_cast<size_t>((n * 0x9e3779b97f4a7c15u) >> 20); }

uint64_t read_bits(const void* word, unsigned bytes) {
  switch (bytes) {
    case 8:
      return *static_cast<const uint64_t*>(word);
    case 4:
      return *static_cast<const uint32_t*>(word);
    case 2:
      return *static_cast<const uint16_t*>(word);
    default:
      return *static_cast<const uint8_t*>(word);
  }
}

void write_bits(void* word, unsigned bytes, uint64_t bits) {
  switch (bytes) {
    case 8:
      *static_cast<uint64_t*>(word) = bits;
      break;
    case 4:
      *static_cast<uint32_t*>(word) = static_cast<uint32_t>(bits);
      break;
    case 2:
      *static_cast<uint16_t*>(word) = static_cast<uint16_t>(bits);
      break;
    default:
      *static_cast<uint8_t*>(word) = static_cast<uint8_t>(bits);
  }
}

uint64_t after(const ExploredOp& op, uint64_t before) {
  uint64_t bits = 0;
  switch (op.kind) {
    case ExploredOp::kLoad:
      bits = before;
      break;
    case ExploredOp::kStore:
    case ExploredOp::kExchange:
    case ExploredOp::kCompareExchange:
      bits = op.operand;
      break;
    case ExploredOp::kOr:
      bits = before | op.operand;
      break;
    case ExploredOp::kAnd:
      bits = before & op.operand;
      break;
    case ExploredOp::kAdd:
      bits = before + op.operand;
      break;
    case ExploredOp::kSub:
      bits = before - op.operand;
      break;
  }
  return op.bytes == 8 ? bits : bits & ((uint64_t{1} << op.bytes * 8) - 1);
}

// The entry of a table with open addressing; empty ones have the number 0.
template <class Entry, class Number>
Entry& find_entry(std::vector<Entry>& table, size_t& used, Number Entry::*number, uintptr_t wanted) {
  if (table.empty() || used * 2 > table.size()) {
    std::vector<Entry> larger(table.empty() ? 4096 : table.size() * 2);
    used = 0;
    table.swap(larger);
    for (Entry& e : larger) {
      if (e.*number != 0) find_entry(table, used, number, e.*number) = std::move(e);
    }
  }
  const size_t mask = table.size() - 1;
  for (size_t at = hash(wanted) & mask;; at = (at + 1) & mask) {
    Entry& e = table[at];
    if (e.*number == wanted) return e;
    if (e.*number != 0) continue;
    e.*number = wanted;
    ++used;
    return e;
  }
}

std::string place(const void* where) {
  if (where == nullptr) return "?";
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uintptr_t*>(to) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &base);
  char command[256], text[256] = "";
  snprintf(command, sizeof command, "addr2line -spe /proc/%d/exe 0x%lx 2>/dev/null", static_cast<int>(getpid()),
           reinterpret_cast<uintptr_t>(where) - base - 1);
  if (FILE* out = popen(command, "r")) {
    if (fgets(text, sizeof text, out) == nullptr) text[0] = '\0';
    pclose(out);
  }
  if (char* end = strchr(text, '\n')) *end = '\0';
  return text;
}

}  // namespace

void Memory::mutate(const char* text) {
  const std::string all = text;
  const size_t kind = all.find(':', all.find(':') + 1), order = all.find('=');
  if (kind == std::string::npos || order == std::string::npos) abort();
  mutant_file_ = "/" + all.substr(0, all.find(':'));
  mutant_line_ = static_cast<unsigned>(atoi(all.c_str() + all.find(':') + 1));
  mutant_kind_ = all.substr(kind + 1, order - kind - 1);
  const std::string to = all.substr(order + 1);
  const struct {
    const char* name;
    int order;
  } names[] = {{"relaxed", folio::order::relaxed}, {"acquire", folio::order::acquire},
               {"release", folio::order::release}, {"acq_rel", folio::order::acq_rel},
               {"seq_cst", folio::order::seq_cst}, {"plain", kStoreOnly}};
  for (const auto& n : names) {
    if (to == n.name) {
      mutant_order_ = n.order;
      return;
    }
  }
  abort();
}

bool Memory::is_mutant(const ExploredOp& op) const {
  const size_t length = strlen(op.file);
  if (length < mutant_file_.size() || mutant_file_ != op.file + length - mutant_file_.size()) return false;
  if (mutant_kind_ != kind_name(op.kind)) return false;
  ++mutants_;
  return true;
}

void Memory::begin() {
  ++execution_;
  for (unsigned i = 0; i < kThreadsMost; ++i) {
    clocks_[i] = {};
    clocks_[i].of[i] = 1;
  }
  raced_ = false;
  commits_.clear();
}

Location& Memory::location(void* word, unsigned bytes) {
  Location& l = find_entry(locations_, locations_used_, &Location::word, reinterpret_cast<uintptr_t>(word));
  const uint64_t now = read_bits(word, bytes);
  // Anew where a plain write came in between, too: whoever may look at the word at all has seen that.
  if (l.execution == execution_ && l.stores.back().value == now) return l;
  if (l.execution != execution_) {
    for (auto& touches : l.touches) touches.clear();
    l.writers = l.readers = {};
  }
  l.execution = execution_;
  l.strict = 0;
  l.stores.clear();
  l.stores.push_back({now, {}});
  for (auto& accesses : l.accesses) accesses.clear();
  return l;
}

bool Memory::note_use(unsigned thread, Location& l, uint8_t uses) const {
  if (l.shared) return false;
  if (l.used_in != execution_) l.users = l.uses = 0;
  l.used_in = execution_;
  l.users = static_cast<uint8_t>(l.users | 1u << thread);
  l.uses = static_cast<uint8_t>(l.uses | uses);
  const bool by_one = (l.users & (l.users - 1)) == 0;
  const bool one_kind = (l.uses & (l.uses - 1)) == 0;  // reads, or what may be done in any order
  return l.shared = !by_one && !one_kind;
}

uint32_t Memory::floor(unsigned thread, const Location& location, bool strict) const {
  uint32_t oldest = strict ? location.strict : 0;
  for (unsigned u = 0; u < kThreadsMost; ++u) {
    const auto& accesses = location.accesses[u];
    for (size_t i = accesses.size(); i-- != 0;) {
      if (accesses[i].epoch > clocks_[thread].of[u]) continue;
      oldest = std::max(oldest, accesses[i].store);
      break;
    }
  }
  return oldest;
}

bool Memory::done(const Location& location, const ExploredOp& op, uint32_t store) const {
  return order_of(op) == kStoreOnly || location.stores[store].value == op.expected;
}

const std::vector<uint32_t>& Memory::readable(unsigned thread, const Location& location, const ExploredOp& op) {
  const auto newest = static_cast<uint32_t>(location.stores.size() - 1);
  readable_.assign(1, newest);
  const bool compares = op.kind == ExploredOp::kCompareExchange;
  if (newest == 0 || (op.kind != ExploredOp::kLoad && !compares)) return readable_;
  const int order = order_of(op);
  const bool strict = !compares && order == folio::order::seq_cst;
  const bool learns = !compares && acquires(order);
  for (uint32_t i = newest, oldest = floor(thread, location, strict); i-- > oldest;) {
    const Location::Store& s = location.stores[i];
    if (compares && (order == kStoreOnly || s.value == op.expected)) continue;  // it would have to be the newest
    // Where the value is the same, one that was stored earlier and teaches no more allows all that the other does.
    bool replaced = false;
    for (uint32_t& other : readable_) {
      const Location::Store& o = location.stores[other];
      if (o.value != s.value || (compares && other == newest && o.value == op.expected)) continue;
      if (learns && !o.message.covers(s.message)) continue;
      if (strict && !s.message.covers(o.message)) continue;
      if (!strict) other = i;
      replaced = true;
      break;
    }
    if (!replaced) readable_.push_back(i);
  }
  return readable_;
}

uint64_t Memory::perform(unsigned thread, Location& l, const ExploredOp& op, uint32_t store) {
  Clock& clock = clocks_[thread];
  void* const word = reinterpret_cast<void*>(l.word);
  const bool only_stores = order_of(op) == kStoreOnly;
  const int order = only_stores ? op.order : order_of(op);
  const bool compares = op.kind == ExploredOp::kCompareExchange;
  const bool fails = compares && !done(l, op, store);
  const bool reads = op.kind != ExploredOp::kStore, writes = op.kind != ExploredOp::kLoad && !fails;
  const uint32_t epoch = ++clock.of[thread];
  note(thread, l.word, op.bytes, kAtomic + (writes ? 1u : 0u), nullptr);
  const uint64_t value = l.stores[store].value;
  if (reads && !only_stores) {
    l.accesses[thread].push_back({epoch, store});
    if (!fails && acquires(order)) clock.join(l.stores[store].message);
    if (order == folio::order::seq_cst && !fails) l.strict = std::max(l.strict, store);
  }
  if (writes) {
    Clock message;
    if (reads && !only_stores) message = l.stores[store].message;
    if (releases(order)) message.join(clock);
    const uint64_t next = after(op, value);
    l.stores.push_back({next, message});
    const auto newest = static_cast<uint32_t>(l.stores.size() - 1);
    l.accesses[thread].push_back({epoch, newest});
    if (order == folio::order::seq_cst) l.strict = newest;
    write_bits(word, op.bytes, next);
  }
  ++clock.of[thread];
  return compares && !fails ? op.expected : value;
}

void Memory::stored_plainly(unsigned thread, void* word, uint64_t value) {
  Location& l = find_entry(locations_, locations_used_, &Location::word, reinterpret_cast<uintptr_t>(word));
  if (l.execution != execution_) abort();  // what it was before is not known
  const uint32_t epoch = ++clocks_[thread].of[thread];
  l.stores.push_back({value, {}});
  l.accesses[thread].push_back({epoch, static_cast<uint32_t>(l.stores.size() - 1)});
  ++clocks_[thread].of[thread];
}

uint64_t Memory::perform(void* word, const ExploredOp& op) {
  const uint64_t before = read_bits(word, op.bytes);
  if (op.kind == ExploredOp::kCompareExchange && before != op.expected) return before;
  const uint64_t next = after(op, before);
  if (op.kind != ExploredOp::kLoad) write_bits(word, op.bytes, next);
  return before;
}

// ---- Races ----

Memory::Cell& Memory::cell(uintptr_t number) {
  Cell& c = find_entry(cells_, cells_used_, &Cell::number, number);
  if (c.execution != execution_) {
    memset(c.seen, 0, sizeof c.seen);
    c.execution = execution_;
  }
  return c;
}

// The chunk table can be read before it is committed.
void Memory::check_committed(unsigned thread, uintptr_t address, unsigned kind, const void* where) {
  if ((kind & 1) == 0 && address - reinterpret_cast<uintptr_t>(folio::chunk_table) < sizeof folio::chunk_table) return;
  const Commit* missed = nullptr;
  for (const Commit& c : commits_) {
    if (address - c.start >= c.bytes) continue;
    if (c.epoch <= clocks_[thread].of[c.thread]) return;
    missed = &c;
  }
  if (missed == nullptr || raced_) return;
  race_ = {
      {nullptr, where}, {missed->thread, thread}, {false, (kind & 1) != 0}, {false, kind >= kAtomic}, address, true};
  raced_ = true;
}

void Memory::note(unsigned thread, uintptr_t address, unsigned bytes, unsigned kind, const void* where) {
  if (!commits_.empty()) check_committed(thread, address, kind, where);
  Cell& c = cell(address / 8);
  const auto mask = static_cast<uint8_t>(((1u << bytes) - 1) << address % 8);
  for (unsigned half = 0; half < 2; ++half) {
    const auto part = static_cast<uint8_t>(mask & (0xf << 4 * half));
    if (part != 0) note_half(c, half, thread, address, part, kind, where);
  }
}

void Memory::note_half(Cell& c, unsigned half, unsigned thread, uintptr_t address, uint8_t mask, unsigned kind,
                       const void* where) {
  // Of which kinds another one is a race.
  static constexpr uint8_t kAgainst[] = {1 << 1 | 1 << 3, 0xf, 1 << 1, 1 << 0 | 1 << 1};
  const Clock& clock = clocks_[thread];
  auto& mine = c.last[kind][thread];
  const auto me = static_cast<uint8_t>(1u << thread);
  if ((c.seen[kind] & me) == 0) {
    c.seen[kind] |= me;
    mine = {};
  }
  if (mine.epoch[half] == clock.of[thread] && (mine.bytes & mask) == mask) return;
  for (unsigned other = kPlain; other < kAtomic + 2 && !raced_; ++other) {
    if ((kAgainst[kind] >> other & 1) == 0) continue;
    for (unsigned rest = c.seen[other] & ~unsigned{me}; rest != 0; rest &= rest - 1) {
      const auto u = static_cast<unsigned>(__builtin_ctz(rest));
      const auto& last = c.last[other][u];
      if ((last.bytes & mask) == 0 || last.epoch[half] <= clock.of[u]) continue;
      race_ = {{last.where, where},
               {u, thread},
               {(other & 1) != 0, (kind & 1) != 0},
               {other >= kAtomic, kind >= kAtomic},
               address,
               false};
      raced_ = true;
      break;
    }
  }
  // Bytes that were accessed earlier than others of the half pass for accessed now.
  mine.epoch[half] = clock.of[thread];
  mine.bytes = static_cast<uint8_t>(mine.bytes | mask);
  mine.where = where;
}

void Memory::plain(unsigned thread, uintptr_t address, size_t bytes, bool write, const void* where) {
  for (const uintptr_t end = address + bytes; address < end;) {
    const uintptr_t next = std::min(end, (address / 8 + 1) * 8);
    note(thread, address, static_cast<unsigned>(next - address), kPlain + (write ? 1u : 0u), where);
    address = next;
  }
}

void Memory::forget(uintptr_t start, size_t bytes) {
  for (Cell& c : cells_) {
    if (c.number * 8 - start < bytes) c.execution = 0;
  }
  for (Location& l : locations_) {
    if (l.word - start < bytes) l.execution = 0;
  }
}

std::string Memory::race() const {
  if (!raced_) return "";
  std::string text = "a race";
  for (unsigned i = 0; i < 2; ++i) {
    text += i == 0 ? ": thread " : " and thread ";
    text += std::to_string(race_.thread[i]);
    if (i == 0 && race_.uncommitted) {
      text += " commits";
      continue;
    }
    text += (race_.write[i] ? " writes" : " reads");
    text += race_.atomic[i] ? " (atomic)" : " at " + place(race_.where[i]);
  }
  return text;
}

}  // namespace explorer
