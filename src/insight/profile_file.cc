// Puts the samples' tables into a shared file, keeps its header true, and writes copies of a profile.
#include "insight/profile_file.h"

#include "arch/arch.h"
#include "base/bits.h"
#include "os/os.h"

namespace folio {

namespace {

constexpr size_t kHeaderBytes = size_t{64} << 10;  // a multiple of every page
constexpr size_t kMapsMost = size_t{1} << 20;
constexpr size_t kTablesOffset = kHeaderBytes + 2 * kMapsMost;
static_assert(sizeof(ProfileHeader) <= kHeaderBytes);
constexpr size_t in_whole_pages(size_t bytes) { return round_up(bytes, kHeaderBytes); }

// Set before the process has a second thread, or a fork's child has its first.
constinit os::KeptFile file;
constinit char name[os::kPathMost] = {};
constinit os::KeptFile maps;
constinit Atomic<ProfileHeader*> shared{nullptr};

constinit Atomic<bool> copying{false};
constinit Hint<uint64_t> copied_ms{0};

ProfileHeader* open_header() {
  // [profile-file] acquire: sees the descriptors; pairs with profile_file_open. unseen: as there
  return shared.load(order::acquire);
}

void fill(ProfileHeader& header) {
  __builtin_memcpy(header.magic, kProfileMagic, sizeof header.magic);
  header.version = kProfileVersion;
  header.header_bytes = sizeof(ProfileHeader);
  header.machine = arch::kMachine;
  header.process = os::process_id();
  header.registers = arch::kRegisters;
  header.sample_bytes = sizeof(Sample);
  header.stack_bytes = kSampleStackBytes;
  header.slots = kSampleSlots;
  header.tables_most = kSampleTables;
}

void set_counts(ProfileHeader& header, uint64_t interval, uint64_t now_ms) {
  header.interval.set(interval);
  header.made.set(sample_counts.made.get());
  header.lost.set(sample_counts.lost.get());
  header.written_ms.set(now_ms);
}

// Into the copy that nobody reads.
void copy_maps(ProfileHeader& header) {
  // Relaxed: whoever wrote it had the flag, as this one. One bit of it: others may write to the file.
  const uint32_t to = 1 - (header.maps_which.load(order::relaxed) & 1);
  char* const lines = reinterpret_cast<char*>(&header) + kHeaderBytes + to * kMapsMost;
  size_t bytes = 0;
  while (bytes < kMapsMost) {
    const size_t more = os::read_kept(maps, lines + bytes, kMapsMost - bytes, bytes);
    if (more == 0) break;
    bytes += more;
  }
  if (bytes == 0) return;  // whoever closes all descriptors closes this one
  header.maps_bytes[to].set(bytes);
  // [profile-maps] release: after the lines; pairs with readers in other processes. unseen: as there
  header.maps_which.store(to, order::release);
}

}  // namespace

bool profile_file_open(const char* path, size_t length) {
  if (length + 16 > sizeof name) return false;
  __builtin_memcpy(name, path, length);
  name[length++] = '.';
  char digits[10];
  unsigned count = 0;
  for (uint32_t rest = os::process_id(); rest != 0 || count == 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  while (count != 0) name[length++] = digits[--count];
  name[length] = '\0';
  if (!os::keep_file("/proc/self/maps", &maps) || !os::create_file(name, &file)) return false;
  auto* const header = static_cast<ProfileHeader*>(os::map_file(file, 0, kTablesOffset));
  if (header == nullptr) {
    os::remove_file(name);
    return false;
  }
  fill(*header);
  for (unsigned i = 0; i < 2; ++i) header->maps_offset[i].set(kHeaderBytes + i * kMapsMost);
  copy_maps(*header);
  // [profile-file] release: publishes the descriptors; pairs with open_header. unseen: the explorer has no files
  shared.store(header, order::release);
  return true;
}

void* profile_file_table(unsigned k, size_t bytes) {
  ProfileHeader* const header = open_header();
  if (header == nullptr) return nullptr;
  size_t offset = kTablesOffset;
  for (unsigned i = 0; i < k; ++i) offset += in_whole_pages(sample_table_bytes(i));
  void* const table = os::map_file(file, offset, in_whole_pages(bytes));
  if (table != nullptr) header->table_offset[k].set(offset);
  return table;
}

bool profile_file_has_tables() {
  ProfileHeader* const header = open_header();
  return header != nullptr && header->table_offset[0].get() != 0;
}

void profile_file_note(uint64_t interval, uint64_t now_ms) {
  constexpr uint64_t kCopyEachMs = 1000;
  ProfileHeader* const header = open_header();
  if (header == nullptr) return;
  set_counts(*header, interval, now_ms);
  if (now_ms - copied_ms.get() < kCopyEachMs) return;
  // [profile-maps] acquire: the copy of the one before is complete; pairs with the store below. unseen: as above
  if (copying.exchange(true, order::acquire)) return;
  copied_ms.set(now_ms);
  copy_maps(*header);
  copying.store(false, order::release);  // [profile-maps] release: pairs with the exchange. unseen: as above
}

void profile_file_end() {
  if (open_header() != nullptr && !profile_file_has_tables()) os::remove_file(name);
}

bool profile_file_after_fork() {
  copying.store(false, order::relaxed);                        // relaxed: the child has one thread
  return shared.exchange(nullptr, order::relaxed) != nullptr;  // relaxed: as above
}

namespace {

struct Writer {
  ProfileWrite* write;
  void* context;
};

bool write_line(void* context, const char* line, size_t length) {
  const auto& writer = *static_cast<Writer*>(context);
  writer.write(writer.context, line, length);
  writer.write(writer.context, "\n", 1);
  return true;
}

// A table as it is: its samples, their stacks, and then the marks once more.
void write_table(const Writer& out, unsigned k) {
  alignas(64) static constexpr char kNone[kSampleStackBytes] = {};
  Sample* const table = sample_table(k);
  const unsigned slots = sample_slots(k);
  out.write(out.context, reinterpret_cast<const char*>(table), slots * sizeof(Sample));
  for (unsigned slot = 0; slot < slots; ++slot) {
    const bool used = (table[slot].mark.load(order::relaxed) & 3) >= kSampleLive;  // relaxed: the marks tell what fits
    out.write(out.context, used ? sample_stack(table, slots, slot) : kNone, kSampleStackBytes);
  }
  for (unsigned slot = 0; slot < slots; ++slot) {
    // [sample] acquire: what was copied is of the mark copied with it, or this one differs; pairs with sample_object.
    // unseen: as there
    const uint64_t mark = table[slot].mark.load(order::acquire);
    out.write(out.context, reinterpret_cast<const char*>(&mark), sizeof mark);
  }
}

}  // namespace

void profile_write(uint64_t interval, ProfileWrite* write, void* context) {
  Writer out{write, context};
  ProfileHeader header{};
  fill(header);
  set_counts(header, interval, os::now_ms());
  size_t offset = sizeof header;
  unsigned tables = 0;
  for (; tables < kSampleTables && sample_table(tables) != nullptr; ++tables) {
    header.table_offset[tables].set(offset);
    header.marks_offset[tables] = offset + sample_data_bytes(tables);
    offset += sample_table_bytes(tables);  // a mark is as long as a hint
  }
  header.maps_offset[0].set(offset);
  header.maps_bytes[0].set(UINT64_MAX);
  write(context, reinterpret_cast<const char*>(&header), sizeof header);
  for (unsigned k = 0; k < tables; ++k) write_table(out, k);
  os::read_lines("/proc/self/maps", write_line, &out);
}

}  // namespace folio
