// The parser of FOLIO_OPTIONS. Called once at start, by core/lifecycle.cc; allocates nothing.
#include "config/options.h"

#include "base/text.h"

namespace folio {

constinit Options options;

constexpr int64_t kPathLengthMost = 900;

extern constinit const OptionRow option_rows[] = {
#define FOLIO_ENUM(name, standard, values, help) {#name, &Options::name, values, 0, 0, "", help, OptionKind::kNumber},
#define FOLIO_SIZE(name, standard, least, most, unit, help) \
  {#name, &Options::name, nullptr, least, most, unit, help, OptionKind::kNumber},
#define FOLIO_LIMIT(name, help)                                                                               \
  {#name, &Options::name,    nullptr, 0, kLimitMost, "bytes (also with K, M, G or T), 1% to 100%, or cgroup", \
   help,  OptionKind::kLimit},
#define FOLIO_PATH(name, help) {#name, &Options::name, nullptr, 0, kPathLengthMost, "bytes", help, OptionKind::kPath},
#include "config/options.def"
#undef FOLIO_ENUM
#undef FOLIO_SIZE
#undef FOLIO_LIMIT
#undef FOLIO_PATH
};
constinit const unsigned option_count = sizeof option_rows / sizeof option_rows[0];

namespace {

struct Piece {
  const char* text;
  size_t length;
};

bool equal(Piece a, Piece b) {
  if (a.length != b.length) return false;
  for (size_t i = 0; i < a.length; ++i) {
    if (a.text[i] != b.text[i]) return false;
  }
  return true;
}

// How people also write it: DECAY, cpu-cache.
char folded(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c == '-' ? '_' : c; }

// Levenshtein's distance, for "did you mean"; words longer than a key is are as far away as can be.
unsigned distance(Piece a, Piece b) {
  constexpr size_t kMost = 40;
  if (a.length > kMost || b.length > kMost) return ~0u;
  unsigned row[kMost + 1];
  for (unsigned j = 0; j <= b.length; ++j) row[j] = j;
  for (unsigned i = 1; i <= a.length; ++i) {
    unsigned diagonal = row[0];
    row[0] = i;
    for (unsigned j = 1; j <= b.length; ++j) {
      const unsigned change = diagonal + (folded(a.text[i - 1]) == folded(b.text[j - 1]) ? 0 : 1);
      diagonal = row[j];
      const unsigned insert = row[j - 1] + 1, remove = row[j] + 1;
      row[j] = change < insert ? (change < remove ? change : remove) : (insert < remove ? insert : remove);
    }
  }
  return row[b.length];
}

// The row whose name is likely meant, or null: a word that differs in more than a third of its letters is another word.
const OptionRow* nearest(Piece key) {
  const OptionRow* best = nullptr;
  auto least = static_cast<unsigned>((key.length + 1) / 3 + 1);
  for (unsigned i = 0; i < option_count; ++i) {
    const unsigned d = distance(key, {option_rows[i].name, __builtin_strlen(option_rows[i].name)});
    if (d < least) {
      least = d;
      best = &option_rows[i];
    }
  }
  return best;
}

// The position of `value` among "a|b|c", or -1.
int64_t enum_value(const char* values, Piece value) {
  for (int64_t position = 0;; ++position) {
    size_t length = 0;
    while (values[length] != '\0' && values[length] != '|') ++length;
    if (equal({values, length}, value)) return position;
    if (values[length] == '\0') return -1;
    values += length + 1;
  }
}

// A decimal number of at most `most`, or -1.
int64_t number(Piece value, int64_t most) {
  if (value.length == 0) return -1;
  int64_t n = 0;
  for (size_t i = 0; i < value.length; ++i) {
    if (value.text[i] < '0' || value.text[i] > '9') return -1;
    const int64_t digit = value.text[i] - '0';
    if (digit > most || n > (most - digit) / 10) return -1;
    n = n * 10 + digit;
  }
  return n;
}

// A limit, encoded as options.h says, or kNoLimit.
constexpr int64_t kNoLimit = INT64_MIN;
int64_t limit(Piece value) {
  constexpr char kSuffixes[] = "kmgt";
  if (equal(value, {"cgroup", 6})) return kLimitOfCgroup;
  if (value.length == 0) return kNoLimit;
  const char last = folded(value.text[value.length - 1]);
  unsigned shift = 0;
  for (unsigned i = 0; i < 4; ++i) shift = last == kSuffixes[i] ? 10 * (i + 1) : shift;
  if (shift == 0 && last != '%') {
    const int64_t bytes = number(value, kLimitMost);
    return bytes < 0 ? kNoLimit : bytes;
  }
  const int64_t n = number({value.text, value.length - 1}, last == '%' ? 100 : kLimitMost >> shift);
  if (n < 0 || (last == '%' && n == 0)) return kNoLimit;
  return last == '%' ? -n : n << shift;
}

void say_standard(Text& line, const OptionRow& row) {
  const Options standard;
  const auto n = static_cast<uint64_t>(standard.*row.field);
  line << "; the default ";
  if (row.values == nullptr) {
    line << n;
  } else {
    const char* at = row.values;
    for (uint64_t i = 0; i < n; ++at) i += *at == '|' ? 1 : 0;
    for (; *at != '\0' && *at != '|'; ++at) line.put(*at);
  }
  line << " holds";
}

void finish(Text& line, Complain* complain) {
  line << " (see docs/options.md)";
  complain(line.data(), line.length());
}

void complain_about_value(const OptionRow& row, Piece value, Complain* complain) {
  Text line;
  constexpr size_t kShownMost = 200;
  line << "folio: FOLIO_OPTIONS: \"";
  line.put(value.text, value.length < kShownMost ? value.length : kShownMost)
      << "\" is no value for \"" << row.name << "\": ";
  if (row.values != nullptr) {
    line << row.values;
  } else if (row.kind == OptionKind::kPath) {
    line << "a path of 1 to " << static_cast<uint64_t>(kPathLengthMost) << " bytes, without commas";
    return finish(line, complain);
  } else {
    line << static_cast<uint64_t>(row.least) << " to " << static_cast<uint64_t>(row.most) << " " << row.unit;
  }
  say_standard(line, row);
  finish(line, complain);
}

void complain_about_key(Piece key, Complain* complain) {
  Text line;
  line << "folio: FOLIO_OPTIONS: unknown option \"";
  line.put(key.text, key.length) << "\"";
  if (const OptionRow* meant = nearest(key)) line << "; did you mean \"" << meant->name << "\"?";
  finish(line, complain);
}

// `written` is the key alone, or with an equals sign, as other programs have it, and perhaps a value.
void complain_about_no_value(Piece written, const OptionRow& row, Complain* complain) {
  const size_t name = __builtin_strlen(row.name);
  const bool equals = written.length > name;
  Text line;
  line << "folio: FOLIO_OPTIONS: \"";
  line.put(written.text, written.length) << (equals ? "\" has no colon; write " : "\" has no value; write ");
  line << row.name << ":";
  if (written.length > name + 1) {
    line.put(written.text + name + 1, written.length - name - 1);
  } else {
    line << "VALUE";
  }
  finish(line, complain);
}

void parse_one(Piece written, Piece value, bool has_value, Options& into, Complain* complain) {
  Piece key = written;
  for (size_t i = 0; !has_value && i < written.length && key.length == written.length; ++i) {
    if (written.text[i] == '=') key.length = i;
  }
  const OptionRow* row = find_option(key.text, key.length);
  if (row == nullptr) return complain_about_key(key, complain);
  into.*row->field = Options{}.*row->field;  // after a mistake the default holds, whatever stood before
  if (!has_value) return complain_about_no_value(written, *row, complain);
  if (row->kind == OptionKind::kPath) {
    if (value.length == 0 || value.length > kPathLengthMost) return complain_about_value(*row, value, complain);
    into.*row->field = static_cast<int64_t>(reinterpret_cast<intptr_t>(value.text));
    return;
  }
  const int64_t n = row->kind == OptionKind::kLimit ? limit(value)
                    : row->values != nullptr        ? enum_value(row->values, value)
                                                    : number(value, row->most);
  if (row->kind == OptionKind::kLimit ? n == kNoLimit : n < row->least)
    return complain_about_value(*row, value, complain);
  into.*row->field = n;
}

}  // namespace

bool set_option(const OptionRow& row, int64_t value) {
  static constexpr Option Options::*kChange[] = {
      &Options::errors, &Options::decay, &Options::dirty_floor, &Options::thread_cache, &Options::thread_cache_pool,
      &Options::depot};
  bool changes = false;
  for (const auto field : kChange) changes |= field == row.field;
  int64_t most = row.most;
  for (const char* at = row.values; at != nullptr && *at != '\0'; ++at) most += *at == '|' ? 1 : 0;
  if (!changes || value < row.least || value > most) return false;
  options.*row.field = value;
  return true;
}

size_t option_path(int64_t value, const char** text) {
  *text = reinterpret_cast<const char*>(static_cast<intptr_t>(value));
  size_t length = 0;
  while (value != 0 && (*text)[length] != '\0' && (*text)[length] != ',') ++length;
  return length;
}

const OptionRow* find_option(const char* name, size_t length) {
  for (unsigned i = 0; i < option_count; ++i) {
    if (equal({option_rows[i].name, __builtin_strlen(option_rows[i].name)}, {name, length})) return &option_rows[i];
  }
  return nullptr;
}

void parse_options(const char* text, Options& into, Complain* complain) {
  while (*text != '\0') {
    Piece key{text, 0};
    while (text[key.length] != '\0' && text[key.length] != ',' && text[key.length] != ':') ++key.length;
    text += key.length;
    const bool has_value = *text == ':';
    if (has_value) ++text;
    Piece value{text, 0};
    while (has_value && text[value.length] != '\0' && text[value.length] != ',') ++value.length;
    text += value.length;
    if (*text == ',') ++text;
    if (key.length != 0 || has_value) parse_one(key, value, has_value, into, complain);
  }
}

}  // namespace folio
