// An unwinder: reads .eh_frame_hdr and .eh_frame, runs their instructions (DW_CFA_), and steps from call to call.
#include "insight/frames.h"

#include "os/os.h"

namespace folio {
namespace {

using os::Module;
using os::Registers;

// ---- Reading ----

// Reads bytes of a loaded file, never beyond `end`. The length of a table comes from the table itself.
struct Bytes {
  const uint8_t* at;
  const uint8_t* end;

  bool has(size_t bytes) const { return static_cast<size_t>(end - at) >= bytes; }
  template <class T>
  T take() {
    T value{};
    if (has(sizeof value)) {
      __builtin_memcpy(&value, at, sizeof value);
      at += sizeof value;
    } else {
      at = end;
    }
    return value;
  }
  void skip(uint64_t bytes) { at = has(bytes) ? at + bytes : end; }
  uint64_t number() {  // LEB128
    uint64_t value = 0;
    for (unsigned shift = 0; at != end; shift += 7) {
      const uint8_t byte = *at++;
      if (shift < 64) value |= uint64_t{byte & 127u} << shift;
      if ((byte & 128) == 0) break;
    }
    return value;
  }
  int64_t signed_number() {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte = 0;
    do {
      if (at == end) return 0;
      byte = *at++;
      if (shift < 64) value |= uint64_t{byte & 127u} << shift;
      shift += 7;
    } while ((byte & 128) != 0);
    if (shift < 64 && (byte & 64) != 0) value |= ~uint64_t{0} << shift;
    return static_cast<int64_t>(value);
  }
};

constexpr uint64_t kPageBytesLeast = 4096;
bool is_mapped(uint64_t at) {
  const uint64_t word = at - at % sizeof(void*);
  const os::Answer answer = os::word_is(reinterpret_cast<void* const*>(word), nullptr);
  return answer == os::Answer::kYes || answer == os::Answer::kOther;
}

// Whether a part of a file's tables can be read: damaged ones lead anywhere. Outside the segment that holds the index
// the first and the last page are asked for.
bool can_read(const Module& module, const uint8_t* from, uint64_t bytes) {
  const auto first = reinterpret_cast<uint64_t>(from), last = first + bytes - 1;
  if (last < first) return false;
  if (from >= module.table_start && from < module.table_end) return bytes <= uint64_t(module.table_end - from);
  return is_mapped(first) && (last / kPageBytesLeast == first / kPageBytesLeast || is_mapped(last));
}

// How tables encode an address (DW_EH_PE_): the low four bits say how long it is, the others what it is relative to.
constexpr uint8_t kLengthBits = 0x0f, kRelativeToItself = 0x10, kRelativeToTable = 0x30;
int64_t take_value(Bytes& bytes, uint8_t encoding) {
  switch (encoding & kLengthBits) {
    case 0x0:
      return static_cast<int64_t>(bytes.take<uint64_t>());
    case 0x2:
      return bytes.take<uint16_t>();
    case 0x3:
      return bytes.take<uint32_t>();
    case 0x4:
      return static_cast<int64_t>(bytes.take<uint64_t>());
    case 0xa:
      return bytes.take<int16_t>();
    case 0xb:
      return bytes.take<int32_t>();
    case 0xc:
      return bytes.take<int64_t>();
    default:
      bytes.at = bytes.end;
      return 0;
  }
}
uint64_t take_address(Bytes& bytes, uint8_t encoding) {
  const auto here = reinterpret_cast<uintptr_t>(bytes.at);
  return static_cast<uint64_t>(take_value(bytes, encoding)) + ((encoding & 0x70) == kRelativeToItself ? here : 0);
}

// Reads words of the stack up to its end, where that is known, else up to the end of the page in use: other threads may
// unmap what lies behind at any moment. Asks the kernel once for each page whether it is mapped.
class Stack {
 public:
  explicit Stack(uint64_t from) : from_(from), end_(os::stack_end(reinterpret_cast<const void*>(from))) {}
  // What lies there need not be an object that AddressSanitizer knows.
  __attribute__((no_sanitize("address"))) bool read(uint64_t at, uint64_t* word) {
    constexpr uint64_t kFarthest = 1u << 20;
    if (at < from_ || at + sizeof *word > end_ || at - from_ > kFarthest || at % sizeof *word != 0) return false;
    const auto* const there = reinterpret_cast<void* const*>(at);
    const uint64_t page = at / kPageBytesLeast;
    if (page != page_) {
      if (!is_mapped(at)) return false;
      page_ = page;
    }
    *word = reinterpret_cast<uint64_t>(*there);
    return true;
  }

 private:
  uint64_t from_, end_, page_ = 0;
};

// ---- The tables ----

// The unwind table's entry for the code around an address.
struct Code {
  Bytes common, own;  // instructions
  uint64_t start;
  uint64_t code_unit;
  int64_t data_unit;
};

// The entry of the sorted index (.eh_frame_hdr) for an address; null if there is none.
const uint8_t* find_entry(const Module& module, uint64_t pc) {
  const uint8_t* const table = module.unwind_table;
  if (table == nullptr) return nullptr;
  constexpr size_t kHeaderMost = 4 + 2 * sizeof(uint64_t);
  Bytes bytes{table, table + kHeaderMost};
  constexpr uint8_t kVersion = 1, kSorted = kRelativeToTable | 0xb;  // as all linkers write it
  const auto version = bytes.take<uint8_t>(), frames = bytes.take<uint8_t>(), count = bytes.take<uint8_t>();
  if (version != kVersion || bytes.take<uint8_t>() != kSorted) return nullptr;
  take_value(bytes, frames);
  const auto entries = static_cast<uint64_t>(take_value(bytes, count));
  struct Entry {
    int32_t code, entry;
  };
  constexpr uint64_t kEntriesMost = uint64_t{1} << 32;
  if (entries > kEntriesMost || !can_read(module, bytes.at, entries * sizeof(Entry))) return nullptr;
  const auto* const first = reinterpret_cast<const Entry*>(bytes.at);
  const auto wanted = static_cast<int64_t>(pc - reinterpret_cast<uintptr_t>(table));
  uint64_t low = 0, high = entries;  // first[low].code <= wanted, if any is
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (first[middle].code <= wanted ? low : high) = middle;
  }
  return first[low].code <= wanted ? table + first[low].entry : nullptr;
}

// A record, without its length.
bool open_record(const Module& module, const uint8_t* at, Bytes* record) {
  if (!can_read(module, at, sizeof(uint32_t))) return false;
  Bytes bytes{at, at + sizeof(uint32_t)};
  const auto length = bytes.take<uint32_t>();
  constexpr uint32_t kLong = ~0u;
  if (length == kLong || !can_read(module, bytes.at, length)) return false;
  *record = {bytes.at, bytes.at + length};
  return true;
}

// The part that several entries share (CIE). *encoding: of their addresses; *augmented: their instructions follow data.
bool read_common(const Module& module, const uint8_t* at, Code* code, uint8_t* encoding, bool* augmented) {
  Bytes bytes;
  if (!open_record(module, at, &bytes) || bytes.take<uint32_t>() != 0) return false;
  const auto version = bytes.take<uint8_t>();
  if (version != 1 && version != 3) return false;
  const auto* letters = reinterpret_cast<const char*>(bytes.at);
  while (bytes.at != bytes.end && *bytes.at != 0) ++bytes.at;
  if (bytes.take<uint8_t>() != 0 || bytes.at == bytes.end) return false;
  code->code_unit = bytes.number();
  code->data_unit = bytes.signed_number();
  const uint64_t column = version == 1 ? bytes.take<uint8_t>() : bytes.number();
  if (column != arch::kReturnColumn) return false;
  *encoding = 0;
  *augmented = letters[0] == 'z';
  if (*augmented) {
    const uint64_t length = bytes.number();
    Bytes data = bytes;
    bytes.skip(length);
    for (++letters; *letters != '\0'; ++letters) {
      if (*letters == 'R') *encoding = data.take<uint8_t>();
      if (*letters == 'L') data.skip(1);
      if (*letters == 'P') {
        const auto of_function = data.take<uint8_t>();
        take_value(data, of_function);
      }
    }
  } else if (letters[0] != '\0') {
    return false;
  }
  code->common = bytes;
  return true;
}

bool find_code(const Module& module, uint64_t pc, Code* code) {
  Bytes bytes;
  const uint8_t* const entry = find_entry(module, pc);
  if (entry == nullptr || !open_record(module, entry, &bytes)) return false;
  const uint8_t* const here = bytes.at;
  const auto back = bytes.take<uint32_t>();
  uint8_t encoding;
  bool augmented;
  if (back == 0 || !read_common(module, here - back, code, &encoding, &augmented)) return false;
  code->start = take_address(bytes, encoding);
  const auto length = static_cast<uint64_t>(take_value(bytes, encoding & kLengthBits));
  if (pc < code->start || pc - code->start >= length) return false;
  if (augmented) bytes.skip(bytes.number());
  code->own = bytes;
  return true;
}

// ---- Their instructions ----

enum class Rule : uint8_t { kSame, kUnknown, kAt, kIs, kRegister };
struct Row {
  uint64_t frame_register, frame_offset;  // together the canonical frame address
  int32_t value[arch::kDwarfRegisters];
  Rule rule[arch::kDwarfRegisters];

  void set(uint64_t number, Rule to, int64_t offset = 0) {
    if (number >= arch::kDwarfRegisters) return;
    rule[number] = to;
    value[number] = static_cast<int32_t>(offset);
  }
};

class Machine {
 public:
  Machine(const Code& code, uint64_t pc) : code_(code), pc_(pc), place_(code.start) {}

  bool run() {
    if (!run(code_.common)) return false;
    initial_ = row_;
    return run(code_.own);
  }
  const Row& row() const { return row_; }

 private:
  static constexpr unsigned kRemembered = 2;

  // Up to the address; false where it says what is not understood.
  bool run(Bytes bytes) {
    while (bytes.at != bytes.end && place_ <= pc_) {
      const auto instruction = bytes.take<uint8_t>();
      const uint64_t low = instruction & 63u;
      switch (instruction >> 6) {
        case 1:
          advance(low);
          break;
        case 2:
          row_.set(low, Rule::kAt, offset(bytes.number()));
          break;
        case 3:
          restore(low);
          break;
        default:
          if (!extended(instruction, bytes)) return false;
      }
    }
    return true;
  }

  bool extended(uint8_t instruction, Bytes& bytes) {
    switch (instruction) {
      case 0x00:
        return true;  // nop
      case 0x01:
        return false;  // set_loc
      case 0x02:
        advance(bytes.take<uint8_t>());
        return true;  // advance_loc1
      case 0x03:
        advance(bytes.take<uint16_t>());
        return true;  // advance_loc2
      case 0x04:
        advance(bytes.take<uint32_t>());
        return true;  // advance_loc4
      case 0x05:
        return one(bytes, Rule::kAt, true);  // offset_extended
      case 0x06:
        restore(bytes.number());
        return true;  // restore_extended
      case 0x07:
        row_.set(bytes.number(), Rule::kUnknown);
        return true;  // undefined
      case 0x08:
        row_.set(bytes.number(), Rule::kSame);
        return true;  // same_value
      case 0x09:
        return one(bytes, Rule::kRegister, false);  // register
      case 0x0a:
        return remember();  // remember_state
      case 0x0b:
        return recall();  // restore_state
      case 0x0c:
      case 0x0d:
      case 0x0e:
      case 0x12:
      case 0x13:
        return frame(instruction, bytes);
      case 0x10:
      case 0x16:
        return expression(bytes);  // expression, val_expression
      case 0x11:
        return signed_one(bytes, Rule::kAt);  // offset_extended_sf
      case 0x14:
        return one(bytes, Rule::kIs, true);  // val_offset
      case 0x15:
        return signed_one(bytes, Rule::kIs);  // val_offset_sf
      case 0x2d:
        return true;  // AARCH64_negate_ra_state
      case 0x2e:
        bytes.number();
        return true;  // GNU_args_size
      default:
        return false;  // def_cfa_expression, others
    }
  }

  // def_cfa, def_cfa_register, def_cfa_offset, def_cfa_sf, def_cfa_offset_sf
  bool frame(uint8_t instruction, Bytes& bytes) {
    if (instruction != 0x0e && instruction != 0x13) row_.frame_register = bytes.number();
    if (instruction == 0x0c || instruction == 0x0e) row_.frame_offset = bytes.number();
    if (instruction >= 0x12) row_.frame_offset = static_cast<uint64_t>(bytes.signed_number() * code_.data_unit);
    return true;
  }

  bool one(Bytes& bytes, Rule rule, bool factored) {
    const uint64_t number = bytes.number(), value = bytes.number();
    row_.set(number, rule, factored ? offset(value) : static_cast<int64_t>(value));
    return true;
  }
  bool signed_one(Bytes& bytes, Rule rule) {
    const uint64_t number = bytes.number();
    row_.set(number, rule, bytes.signed_number() * code_.data_unit);
    return true;
  }
  bool expression(Bytes& bytes) {
    row_.set(bytes.number(), Rule::kUnknown);
    bytes.skip(bytes.number());
    return true;
  }
  bool remember() {
    if (depth_ == kRemembered) return false;
    remembered_[depth_++] = row_;
    return true;
  }
  bool recall() {
    if (depth_ == 0) return false;
    row_ = remembered_[--depth_];
    return true;
  }
  void restore(uint64_t number) {
    if (number < arch::kDwarfRegisters) row_.set(number, initial_.rule[number], initial_.value[number]);
  }
  void advance(uint64_t units) { place_ += units * code_.code_unit; }
  int64_t offset(uint64_t units) const { return static_cast<int64_t>(units) * code_.data_unit; }

  const Code& code_;
  uint64_t pc_, place_;
  Row row_{}, initial_{}, remembered_[kRemembered];
  unsigned depth_ = 0;
};

// ---- Steps ----

// From a call to its caller. `pc`: an address of the code that calls, for the tables.
bool step_out(Registers& registers, uint64_t pc, Stack& stack) {
  Module module;
  Code code;
  if (!os::find_module(reinterpret_cast<void*>(pc), &module) || !find_code(module, pc, &code)) return false;
  Machine machine(code, pc);
  if (!machine.run()) return false;
  const Row& row = machine.row();
  if (row.frame_register >= arch::kDwarfRegisters) return false;
  const uint64_t frame = registers.at[row.frame_register] + row.frame_offset;
  if (frame < registers.at[arch::kStackRegister]) return false;
  Registers caller = registers;
  for (unsigned i = 0; i < arch::kDwarfRegisters; ++i) {
    const auto number = static_cast<uint64_t>(static_cast<int64_t>(row.value[i]));
    switch (row.rule[i]) {
      case Rule::kSame:
        break;
      case Rule::kUnknown:
        caller.at[i] = 0;
        break;
      case Rule::kIs:
        caller.at[i] = frame + number;
        break;
      case Rule::kRegister:
        caller.at[i] = number < arch::kDwarfRegisters ? registers.at[number] : 0;
        break;
      case Rule::kAt:
        if (!stack.read(frame + number, &caller.at[i])) return false;
    }
  }
  caller.pc = arch::plain_return_address(caller.at[arch::kReturnColumn]);
  caller.at[arch::kStackRegister] = frame;
  if (caller.pc == 0 || (caller.pc == registers.pc && frame == registers.at[arch::kStackRegister])) return false;
  registers = caller;
  return true;
}

}  // namespace

void frames_from(Registers registers, Frames& frames) {
  frames = {};
  Stack stack(registers.at[arch::kStackRegister]);
  for (unsigned i = 0; i < kFramesMost; ++i) {
    frames.at[i] = reinterpret_cast<void*>(registers.pc);
    // A call may be the last instruction of its function: its return address then belongs to the next function.
    if (!step_out(registers, i == 0 ? registers.pc : registers.pc - 1, stack)) return;
  }
}

void take_frames(Frames& frames) {
  uint64_t kept[arch::kRegisters] = {};
  Registers registers{};
  const auto* const from = arch::get_registers(kept);
  for (unsigned i = 0; i < arch::kRegisters; ++i) registers.at[arch::kRegisterNumbers[i]] = kept[i];
  const uint64_t here = registers.pc = kept[arch::kRegisters - 1];
  Module own{};
  if (!os::find_module(reinterpret_cast<void*>(here), &own)) {
    frames = {};
    return;
  }
  const auto inside = [&] {
    const auto* const at = reinterpret_cast<const uint8_t*>(registers.pc);
    return own.path != nullptr && at >= own.start && at < own.end;
  };
  Stack stack(reinterpret_cast<uintptr_t>(from));
  bool more = step_out(registers, here, stack);
  while (more && inside()) more = step_out(registers, registers.pc - 1, stack);
  frames = {};
  for (unsigned i = 0; more && i < kFramesMost; ++i) {
    frames.at[i] = reinterpret_cast<void*>(registers.pc);
    more = step_out(registers, registers.pc - 1, stack);
  }
}

}  // namespace folio
