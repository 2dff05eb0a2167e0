// Run-time options: a struct and a parser, both made from options.def. Read once at start; no option is ever needed.
//
// Who may touch it: the parser writes the one instance while the library starts, set_option writes options that may
// change later; everybody reads. A read before the start finds the defaults.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

namespace folio {

// Values of the enumerations, in the order of options.def.
enum ErrorsOption { kErrorsAbort = 0, kErrorsWarn = 1, kErrorsIgnore = 2 };
enum StatsOption { kStatsNone = 0, kStatsExit = 1 };
enum HousekeeperOption { kHousekeeperAuto = 0, kHousekeeperOn = 1, kHousekeeperOff = 2 };
enum HugePagesOption { kHugePagesAuto = 0, kHugePagesNever = 1 };
enum CollectFromOutsideOption { kCollectFromOutsideOff = 0, kCollectFromOutsideOn = 1 };
enum PressureOption { kPressureOff = 0, kPressureOn = 1 };

// How a limit is stored: in bytes; or as the option says it, until policy/limit replaces that by bytes at start: -1 to
// -100 for a share in percent, kLimitOfCgroup for the cgroup's limit.
inline constexpr int64_t kLimitOfCgroup = -1000;

// A number that threads read while another thread may set it, like a Hint, but one that tests may copy.
class Option {
 public:
  constexpr Option(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor): it stands for a number
  Option(const Option& other) : value_(static_cast<int64_t>(other)) {}
  Option& operator=(const Option& other) { return *this = static_cast<int64_t>(other); }
  Option& operator=(int64_t value) {
    value_.store(value, order::relaxed);  // relaxed: as a Hint
    return *this;
  }
  // NOLINTNEXTLINE(google-explicit-constructor): as above
  operator int64_t() const { return value_.load(order::relaxed); }  // relaxed: as a Hint

 private:
  Atomic<int64_t> value_;
};

struct Options {
#define FOLIO_ENUM(name, standard, values, help) Option name = standard;
#define FOLIO_SIZE(name, standard, least, most, unit, help) Option name = standard;
#define FOLIO_LIMIT(name, help) Option name = 0;
#define FOLIO_PATH(name, help) Option name = 0;
#include "config/options.def"
#undef FOLIO_ENUM
#undef FOLIO_SIZE
#undef FOLIO_LIMIT
#undef FOLIO_PATH
};

// The text of a path, in the environment, up to its end or a comma; its length. 0 if the option is not set.
size_t option_path(int64_t value, const char** text);

extern Options options;

enum class OptionKind : uint8_t { kNumber = 0, kLimit = 1, kPath = 2 };

struct OptionRow {
  const char* name;
  Option Options::*field;
  const char* values;  // enumerations: "a|b|c"; else null
  int64_t least;
  int64_t most;
  const char* unit;
  const char* help;
  OptionKind kind;
};
inline constexpr int64_t kLimitMost = int64_t{1} << 62;

extern const OptionRow option_rows[];
extern const unsigned option_count;

// The row of that name, or null.
const OptionRow* find_option(const char* name, size_t length);

// Gives an option another value while the process runs. False if it is read at the start only, or the value is none.
bool set_option(const OptionRow& row, int64_t value);

// Parses "key:value,key:value" into `into`. Each error is one line, given to `complain` without its newline; parsing
// goes on after it.
using Complain = void(const char* line, size_t length);
void parse_options(const char* text, Options& into, Complain* complain);

}  // namespace folio
