// The parser of FOLIO_OPTIONS. Called once at start, by core/lifecycle.cc; allocates nothing.
#include "config/options.h"

#include "base/text.h"

namespace folio {

constinit Options options;

extern constinit const OptionRow option_rows[] = {
#define FOLIO_ENUM(name, standard, values, help) {#name, &Options::name, values, 0, 0, "", help, false},
#define FOLIO_SIZE(name, standard, least, most, unit, help) \
  {#name, &Options::name, nullptr, least, most, unit, help, false},
#define FOLIO_LIMIT(name, help) \
  {#name, &Options::name, nullptr, 0, kLimitMost, "bytes (also with K, M, G or T), 1% to 100%, or cgroup", help, true},
#include "config/options.def"
#undef FOLIO_ENUM
#undef FOLIO_SIZE
#undef FOLIO_LIMIT
};
constinit const unsigned option_count = sizeof option_rows / sizeof option_rows[0];

namespace {

struct Piece {
  const char* text;
  size_t length;
};

size_t length_of(const char* s) {
  size_t n = 0;
  while (s[n] != '\0') ++n;
  return n;
}

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

const OptionRow& nearest(Piece key) {
  const OptionRow* best = &option_rows[0];
  unsigned least = ~0u;
  for (unsigned i = 0; i < option_count; ++i) {
    const unsigned d = distance(key, {option_rows[i].name, length_of(option_rows[i].name)});
    if (d < least) {
      least = d;
      best = &option_rows[i];
    }
  }
  return *best;
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
    n = n * 10 + (value.text[i] - '0');
    if (n > most) return -1;
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
  line << "folio: FOLIO_OPTIONS: \"";
  line.put(value.text, value.length) << "\" is no value for \"" << row.name << "\": ";
  if (row.values != nullptr) {
    line << row.values;
  } else {
    line << static_cast<uint64_t>(row.least) << " to " << static_cast<uint64_t>(row.most) << " " << row.unit;
  }
  say_standard(line, row);
  finish(line, complain);
}

void parse_one(Piece key, Piece value, bool has_value, Options& into, Complain* complain) {
  const OptionRow* row = find_option(key.text, key.length);
  if (row == nullptr) {
    Text line;
    line << "folio: FOLIO_OPTIONS: unknown option \"";
    line.put(key.text, key.length) << "\"; did you mean \"" << nearest(key).name << "\"?";
    return finish(line, complain);
  }
  into.*row->field = Options{}.*row->field;  // after a mistake the default holds, whatever stood before
  if (!has_value) {
    Text line;
    line << "folio: FOLIO_OPTIONS: \"" << row->name << "\" has no value; write " << row->name << ":VALUE";
    return finish(line, complain);
  }
  const int64_t n = row->is_limit            ? limit(value)
                    : row->values != nullptr ? enum_value(row->values, value)
                                             : number(value, row->most);
  if (row->is_limit ? n == kNoLimit : n < row->least) return complain_about_value(*row, value, complain);
  into.*row->field = n;
}

}  // namespace

const OptionRow* find_option(const char* name, size_t length) {
  for (unsigned i = 0; i < option_count; ++i) {
    if (equal({option_rows[i].name, length_of(option_rows[i].name)}, {name, length})) return &option_rows[i];
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
