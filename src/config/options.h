// Run-time options: a struct and a parser, both made from options.def. Read once at start; no option is ever needed.
//
// Who may touch it: the parser writes the one instance while the library starts; everybody reads it afterwards. A
// reader that is earlier sees the defaults.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

// Values of the enumerations, in the order of options.def.
enum ErrorsOption { kErrorsAbort = 0, kErrorsWarn = 1, kErrorsIgnore = 2 };
enum StatsOption { kStatsNone = 0, kStatsExit = 1 };
enum HousekeeperOption { kHousekeeperAuto = 0, kHousekeeperOn = 1, kHousekeeperOff = 2 };
enum HugePagesOption { kHugePagesAuto = 0, kHugePagesNever = 1 };
enum CollectFromOutsideOption { kCollectFromOutsideOff = 0, kCollectFromOutsideOn = 1 };
enum PressureOption { kPressureOff = 0, kPressureOn = 1 };

// A limit as it was written: bytes, or, until policy/limit has put bytes in its place when the process starts,
// -1 to -100 for a share in percent, or this for the cgroup's.
inline constexpr int64_t kLimitOfCgroup = -1000;

struct Options {
#define FOLIO_ENUM(name, standard, values, help) int64_t name = standard;
#define FOLIO_SIZE(name, standard, least, most, unit, help) int64_t name = standard;
#define FOLIO_LIMIT(name, help) int64_t name = 0;
#include "config/options.def"
#undef FOLIO_ENUM
#undef FOLIO_SIZE
#undef FOLIO_LIMIT
};

extern Options options;

struct OptionRow {
  const char* name;
  int64_t Options::*field;
  const char* values;  // enumerations: "a|b|c"; else null
  int64_t least;
  int64_t most;
  const char* unit;
  const char* help;
  bool is_limit;
};
inline constexpr int64_t kLimitMost = int64_t{1} << 62;

extern const OptionRow option_rows[];
extern const unsigned option_count;

// The row of that name, or null.
const OptionRow* find_option(const char* name, size_t length);

// Parses "key:value,key:value" into `into`. Each error is one line, given to `complain` without its newline; parsing
// goes on after it.
using Complain = void(const char* line, size_t length);
void parse_options(const char* text, Options& into, Complain* complain);

}  // namespace folio
