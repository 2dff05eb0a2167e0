#include "config/options.h"

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr char kSee[] = " (see docs/options.md)";

std::vector<std::string> complaints;

void complain(const char* line, size_t length) { complaints.emplace_back(line, length); }

struct Parsed {
  Options options;
  std::vector<std::string> complaints;
};

Parsed parse(const std::string& text) {
  Parsed parsed;
  complaints.clear();
  parse_options(text.c_str(), parsed.options, complain);
  parsed.complaints = complaints;
  return parsed;
}

// The only complaint, without its end, which all have in common.
std::string complaint(const std::string& text) {
  const Parsed parsed = parse(text);
  if (parsed.complaints.size() != 1) return "there were " + std::to_string(parsed.complaints.size());
  const std::string& line = parsed.complaints[0];
  const size_t end = line.size() - (sizeof kSee - 1);
  EXPECT_EQ(line.substr(end), kSee);
  return line.substr(0, end);
}

bool is_default(const Options& options) {
  return memcmp(&options, &static_cast<const Options&>(Options{}), sizeof options) == 0;
}

std::vector<std::string> split(const char* values) {
  std::vector<std::string> all(1);
  for (; *values != '\0'; ++values) {
    if (*values == '|') {
      all.emplace_back();
    } else {
      all.back() += *values;
    }
  }
  return all;
}

TEST(Options, NothingToParse) {
  for (const char* text : {"", ",", ",,,"}) {
    const Parsed parsed = parse(text);
    EXPECT_TRUE(parsed.complaints.empty()) << text;
    EXPECT_TRUE(is_default(parsed.options)) << text;
  }
}

TEST(Options, EveryRowTakesEveryValueItNames) {
  for (unsigned i = 0; i < option_count; ++i) {
    const OptionRow& row = option_rows[i];
    const std::string name = row.name;
    EXPECT_EQ(find_option(row.name, name.size()), &row);
    EXPECT_GT(strlen(row.help), 20u) << name;
    std::vector<std::pair<std::string, int64_t>> values;
    if (row.values != nullptr) {
      const std::vector<std::string> names = split(row.values);
      for (size_t v = 0; v < names.size(); ++v) values.emplace_back(names[v], v);
    } else if (row.kind == OptionKind::kNumber || row.kind == OptionKind::kLimit) {
      EXPECT_LT(row.least, row.most) << name;
      for (const int64_t n : {row.least, row.least + 1, row.most - 1, row.most})
        values.emplace_back(std::to_string(n), n);
    }
    for (const auto& [text, value] : values) {
      const Parsed parsed = parse(name + ":" + text);
      EXPECT_TRUE(parsed.complaints.empty()) << parsed.complaints[0];
      EXPECT_EQ(parsed.options.*row.field, value) << name << ":" << text;
      // No other option moves.
      Options rest = parsed.options;
      rest.*row.field = Options{}.*row.field;
      EXPECT_TRUE(is_default(rest)) << name;
    }
  }
}

TEST(Options, PathsAreTextUpToAComma) {
  const std::string text = "profile_file:/tmp/a:b=c,decay:5";
  const Parsed parsed = parse(text);
  EXPECT_TRUE(parsed.complaints.empty());
  EXPECT_EQ(parsed.options.decay, 5);
  EXPECT_NE(parsed.options.profile_file, 0);
  const char* path;
  EXPECT_EQ(option_path(0, &path), 0u);
  EXPECT_EQ(complaint("profile_file:"),
            "folio: FOLIO_OPTIONS: \"\" is no value for \"profile_file\": a path of 1 to 900 bytes, without commas");
  EXPECT_EQ(complaint("profile_file:" + std::string(901, 'x')).find("folio: FOLIO_OPTIONS: \"xxx"), 0u);
  Options into;
  parse_options(text.c_str(), into, [](const char*, size_t) {});
  const size_t length = option_path(into.profile_file, &path);
  EXPECT_EQ(std::string(path, length), "/tmp/a:b=c");
}

TEST(Options, EveryDefaultIsAValueOfItsRow) {
  const Options standard;
  for (unsigned i = 0; i < option_count; ++i) {
    const OptionRow& row = option_rows[i];
    EXPECT_GE(standard.*row.field, row.least) << row.name;
    EXPECT_LE(standard.*row.field,
              row.values == nullptr ? row.most : static_cast<int64_t>(split(row.values).size()) - 1)
        << row.name;
  }
}

TEST(Options, TheEnumsAreNumberedAsTheTextSays) {
  EXPECT_EQ(parse("errors:abort").options.errors, kErrorsAbort);
  EXPECT_EQ(parse("errors:warn").options.errors, kErrorsWarn);
  EXPECT_EQ(parse("errors:ignore").options.errors, kErrorsIgnore);
  EXPECT_EQ(parse("stats:none").options.stats, kStatsNone);
  EXPECT_EQ(parse("stats:exit").options.stats, kStatsExit);
  EXPECT_EQ(parse("housekeeper:auto").options.housekeeper, kHousekeeperAuto);
  EXPECT_EQ(parse("housekeeper:on").options.housekeeper, kHousekeeperOn);
  EXPECT_EQ(parse("housekeeper:off").options.housekeeper, kHousekeeperOff);
}

TEST(Options, SeveralAtOnceTheLastOfOneHolds) {
  const Parsed parsed = parse(",decay:5,errors:warn,,decay:7,cpu_cache:0,");
  EXPECT_TRUE(parsed.complaints.empty());
  EXPECT_EQ(parsed.options.decay, 7);
  EXPECT_EQ(parsed.options.errors, kErrorsWarn);
  EXPECT_EQ(parsed.options.cpu_cache, 0);
}

TEST(Options, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(complaint("decai:5"), "folio: FOLIO_OPTIONS: unknown option \"decai\"; did you mean \"decay\"?");
  EXPECT_EQ(complaint("decai"), "folio: FOLIO_OPTIONS: unknown option \"decai\"; did you mean \"decay\"?");
  EXPECT_EQ(complaint("error:warn"), "folio: FOLIO_OPTIONS: unknown option \"error\"; did you mean \"errors\"?");
  EXPECT_EQ(complaint("cpucache:1"), "folio: FOLIO_OPTIONS: unknown option \"cpucache\"; did you mean \"cpu_cache\"?");
  EXPECT_EQ(complaint("stat:exit"), "folio: FOLIO_OPTIONS: unknown option \"stat\"; did you mean \"stats\"?");
  EXPECT_EQ(complaint(" decay:5"), "folio: FOLIO_OPTIONS: unknown option \" decay\"; did you mean \"decay\"?");
  EXPECT_EQ(complaint("thread_cache_poo:5"),
            "folio: FOLIO_OPTIONS: unknown option \"thread_cache_poo\"; did you mean \"thread_cache_pool\"?");
}

TEST(Options, EveryMisspellingByOneLetterFindsItsKey) {
  for (unsigned i = 0; i < option_count; ++i) {
    const std::string name = option_rows[i].name;
    for (size_t at = 0; at < name.size(); ++at) {
      for (const std::string& wrong : {std::string(name).replace(at, 1, "#"), std::string(name).erase(at, 1) + "",
                                       std::string(name).insert(at, "#")}) {
        if (find_option(wrong.c_str(), wrong.size()) != nullptr) continue;
        EXPECT_EQ(complaint(wrong + ":1"),
                  "folio: FOLIO_OPTIONS: unknown option \"" + wrong + "\"; did you mean \"" + name + "\"?");
      }
    }
  }
}

TEST(Options, FarFromEveryKeyNoneIsNamed) {
  for (const char* word : {"zebra", "foo", "--", "rows", "verbose"}) {
    EXPECT_EQ(complaint(std::string(word) + ":1"),
              std::string("folio: FOLIO_OPTIONS: unknown option \"") + word + "\"");
  }
}

TEST(Options, AnEqualsSignInPlaceOfTheColon) {
  EXPECT_EQ(complaint("decay=200"), "folio: FOLIO_OPTIONS: \"decay=200\" has no colon; write decay:200");
  EXPECT_EQ(complaint("errors=warn,"), "folio: FOLIO_OPTIONS: \"errors=warn\" has no colon; write errors:warn");
  EXPECT_EQ(complaint("decay="), "folio: FOLIO_OPTIONS: \"decay=\" has no colon; write decay:VALUE");
  EXPECT_EQ(complaint("decai=5"), "folio: FOLIO_OPTIONS: unknown option \"decai\"; did you mean \"decay\"?");
  EXPECT_EQ(complaint("foo=bar"), "folio: FOLIO_OPTIONS: unknown option \"foo\"");
  EXPECT_EQ(parse("decay:5,decay=200").options.decay, Options{}.decay);
}

TEST(Options, NumbersOutOfRangeOrNoNumbers) {
  for (const char* value : {"banana", "-1", "3600001", "1.5", "1s", " 1", "1 ", "0x10", "+1", "18446744073709551617",
                            "99999999999999999999999999999999999999", ""}) {
    EXPECT_EQ(complaint("decay:" + std::string(value)),
              "folio: FOLIO_OPTIONS: \"" + std::string(value) +
                  "\" is no value for \"decay\": 0 to 3600000 ms; the default 1000 holds");
    EXPECT_TRUE(is_default(parse("decay:" + std::string(value)).options)) << value;
  }
  EXPECT_EQ(parse("decay:0000000000000000000000005").options.decay, 5);
}

TEST(Options, WordsThatAreNoValueOfAnEnum) {
  for (const char* value : {"banana", "Abort", "abor", "abortt", "abort|warn", "|", "", "0"}) {
    EXPECT_EQ(complaint("errors:" + std::string(value)),
              "folio: FOLIO_OPTIONS: \"" + std::string(value) +
                  "\" is no value for \"errors\": abort|warn|ignore; the default abort holds");
  }
  EXPECT_EQ(complaint("housekeeper:1"),
            "folio: FOLIO_OPTIONS: \"1\" is no value for \"housekeeper\": auto|on|off; the default auto holds");
  EXPECT_EQ(complaint("stats:on"),
            "folio: FOLIO_OPTIONS: \"on\" is no value for \"stats\": none|exit; the default none holds");
}

TEST(Options, EveryRowComplainsWithItsOwnRange) {
  for (unsigned i = 0; i < option_count; ++i) {
    const OptionRow& row = option_rows[i];
    if (row.kind == OptionKind::kPath) continue;
    const int64_t standard = Options{}.*row.field;
    const std::string range = row.values != nullptr ? std::string(row.values) + "; the default " +
                                                          split(row.values)[static_cast<size_t>(standard)]
                                                    : std::to_string(row.least) + " to " + std::to_string(row.most) +
                                                          " " + row.unit + "; the default " + std::to_string(standard);
    EXPECT_EQ(complaint(std::string(row.name) + ":?"),
              "folio: FOLIO_OPTIONS: \"?\" is no value for \"" + std::string(row.name) + "\": " + range + " holds");
  }
}

TEST(Options, NoValue) {
  EXPECT_EQ(complaint("decay"), "folio: FOLIO_OPTIONS: \"decay\" has no value; write decay:VALUE");
  EXPECT_EQ(complaint("stats,"), "folio: FOLIO_OPTIONS: \"stats\" has no value; write stats:VALUE");
}

TEST(Options, ParsingGoesOnAfterAnError) {
  const Parsed parsed = parse("foo:1,decay:abc,errors,errors:ignore,:3,decay:20:30,depot:9");
  ASSERT_EQ(parsed.complaints.size(), 5u);
  EXPECT_NE(parsed.complaints[3].find("unknown option \"\""), std::string::npos) << parsed.complaints[3];
  EXPECT_NE(parsed.complaints[4].find("\"20:30\" is no value for \"decay\""), std::string::npos)
      << parsed.complaints[4];
  EXPECT_EQ(parsed.options.errors, kErrorsIgnore);
  EXPECT_EQ(parsed.options.decay, Options{}.decay);
  EXPECT_EQ(parsed.options.depot, 9);
}

TEST(Options, GarbageOfAnyLengthIsSurvived) {
  // Longer than the buffer of a line: cut off, but one complaint all the same.
  EXPECT_EQ(parse(std::string(5000, 'x')).complaints.size(), 1u);
  EXPECT_EQ(parse("decay:" + std::string(5000, '9')).complaints.size(), 1u);
  std::mt19937 random(3);
  const std::string alphabet = "decayrostu_:,,:|0129 \x80\xff";
  for (unsigned round = 0; round < rounds(5000); ++round) {
    std::string text;
    for (unsigned i = random() % 60; i > 0; --i) text += alphabet[random() % alphabet.size()];
    const Parsed parsed = parse(text);
    for (const std::string& line : parsed.complaints) {
      ASSERT_EQ(line.rfind("folio: FOLIO_OPTIONS: ", 0), 0u) << line;
      ASSERT_EQ(line.find('\n'), std::string::npos);
    }
    for (unsigned i = 0; i < option_count; ++i) {
      const OptionRow& row = option_rows[i];
      const int64_t most = row.values != nullptr ? static_cast<int64_t>(split(row.values).size()) - 1 : row.most;
      ASSERT_GE(parsed.options.*row.field, row.least) << text;
      ASSERT_LE(parsed.options.*row.field, most) << text;
    }
  }
}

TEST(Options, FindOptionWantsTheWholeName) {
  EXPECT_EQ(find_option("decay", 4), nullptr);
  EXPECT_EQ(find_option("decayed", 7), nullptr);
  EXPECT_EQ(find_option("", 0), nullptr);
  ASSERT_NE(find_option("decay:1", 5), nullptr);
  EXPECT_STREQ(find_option("decay:1", 5)->name, "decay");
}

}  // namespace
