#include "diag/stats.h"

#include <ctype.h>

#include <map>
#include <thread>

#include "os/os.h"
#include "space/metadata.h"
#include "unit/core/heap.h"
#include "unit/stderr_capture.h"

using namespace folio;
using namespace folio_test;

namespace {

class Stats : public ::testing::Test {
 protected:
  Stats() {
    options.decay = 3600000;  // nothing goes by itself
    options.housekeeper = kHousekeeperOff;
    collect_everything("test");
  }
  ~Stats() override {
    for (void* object : held_) free_object(object);
    expect_everything_free();
  }
  void* hold(size_t size) {
    held_.push_back(alloc(size));
    return held_.back();
  }
  std::vector<void*> held_;

 private:
  SavedOptions saved_;
};

TEST_F(Stats, LiveIsExactlyWhatIsHeld) {
  EXPECT_EQ(totals().live, 0u);
  uint64_t live = 0, huge = 0;
  for (const size_t size : edge_sizes()) {
    hold(size);
    if (size > kLargeMost) {
      huge += usable(held_.back());
    } else if (size > kMediumMost) {
      live += round_up(usable(held_.back()), kGranuleBytes);  // with what lies before its cache line
    } else {
      live += info_of(bin_id(chunk_code(held_.back()))).size;
    }
    free_object(alloc(size));  // something to be cached
    if (kSanitized && held_.size() % 10 != 0) continue;
    ASSERT_EQ(totals().live, live + huge) << size;
    ASSERT_EQ(totals().huge_live, huge);
  }
}

TEST_F(Stats, CachedObjectsAreNotLive) {
  std::vector<void*> objects;
  for (unsigned i = 0; i < 1000; ++i) objects.push_back(alloc(100));
  const uint64_t size = info_of(bin_of(100)).size;
  EXPECT_EQ(totals().live, 1000 * size);
  for (void* object : objects) free_object(object);
  const Totals t = totals();
  EXPECT_EQ(t.live, 0u);
  EXPECT_EQ(t.cached, bin_stats(bin_of(100)).cached * size);
  EXPECT_EQ(bin_stats(bin_of(100)).taken, bin_stats(bin_of(100)).cached);
  EXPECT_GT(t.cached, 0u);
}

TEST_F(Stats, WhatAnotherThreadCachesIsCountedToo) {
  uint64_t in_thread = 0;
  std::thread([&] {
    for (unsigned i = 0; i < 100; ++i) free_object(alloc(100));
    in_thread = bin_stats(bin_of(100)).cached;
    EXPECT_GE(totals().threads, 1u);
  }).join();
  EXPECT_GT(in_thread, 0u);
  EXPECT_EQ(bin_stats(bin_of(100)).cached, bin_stats(bin_of(100)).taken) << "handed on, and still cached";
  EXPECT_EQ(totals().live, 0u);
}

TEST_F(Stats, EveryResidentByteIsExplained) {
  std::mt19937 random(8);
  for (unsigned i = 0; i < rounds(20000); ++i) {
    hold(random() % (i % 50 == 0 ? 300000 : 3000));
    if (random() % 3 != 0) {
      std::swap(held_[random() % held_.size()], held_.back());
      free_object(held_.back());
      held_.pop_back();
    }
    if (i % 1000 == 0) collect_everything("test");
  }
  const Totals t = totals();
  uint64_t resident = 0;
  for (const BinId bin : all_bins()) resident += bin_stats(bin).resident;
  EXPECT_EQ(t.resident, resident + large_stats(process_fields).resident + t.huge_live);
  EXPECT_EQ(t.live + t.cached + t.fragmented + t.dirty, t.resident) << "with nothing waiting that is huge";
}

TEST_F(Stats, DirtyIsWhatIsFreeAndResident) {
  options.dirty_floor = 16;
  options.huge_pages = kHugePagesNever;  // they come with what is free around an object
  EXPECT_EQ(totals().dirty, 0u);
  void* const object = alloc(500 * kKiB);
  memset(object, 1, 500 * kKiB);
  EXPECT_EQ(totals().dirty, 0u);
  free_object(object);
  const size_t granules = round_up(500 * kKiB + kLineOffsetMost, std::max(kGranuleBytes, os::page_bytes()));
  EXPECT_EQ(totals().dirty, granules);
  void* const huge = alloc(12 * kMiB);
  free_object(huge);
  EXPECT_EQ(totals().dirty, granules + 12 * kMiB);
  const Totals before = totals();
  EXPECT_GT(collect_everything("test"), 0u);
  EXPECT_EQ(totals().dirty, 0u);
  EXPECT_GE(totals().purged, before.purged + 12 * kMiB + 500 * kKiB);
  EXPECT_GT(totals().purge_calls, before.purge_calls);
}

TEST_F(Stats, MetadataAndAddressSpace) {
  hold(100);
  hold(3 * kMiB);
  hold(12 * kMiB);
  const Totals t = totals();
  EXPECT_EQ(t.metadata, metadata_bytes());
  EXPECT_GT(t.metadata, 0u);
  EXPECT_GE(t.reserved, t.chunks * kChunkBytes + large_stats(process_fields).reserved + 16 * kMiB);
  EXPECT_GE(t.chunks, bin_stats(bin_of(100)).chunks);
  EXPECT_GE(t.threads, 1u);
}

// ---- A reader of JSON that accepts nothing else ----

class Json {
 public:
  explicit Json(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}

  // A whole document: one value, then white space.
  bool document() {
    const bool good = value("");
    while (at_ < end_ && isspace(static_cast<unsigned char>(*at_)) != 0) ++at_;
    return good && at_ == end_;
  }
  // Numbers by their paths: "live", "bins[0].size".
  std::map<std::string, uint64_t> numbers;
  std::map<std::string, std::string> strings;  // with their escapes

 private:
  bool take(char c) { return at_ < end_ && *at_ == c ? ++at_, true : false; }
  bool value(const std::string& path) {
    if (at_ < end_ && *at_ == '{') return object(path);
    if (at_ < end_ && *at_ == '[') return array(path);
    if (at_ < end_ && *at_ == '"') return string(path);
    return number(path);
  }
  bool object(const std::string& path) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string key;
      if (!take('"')) return false;
      while (at_ < end_ && (isalnum(static_cast<unsigned char>(*at_)) != 0 || *at_ == '_')) key += *at_++;
      if (key.empty() || !take('"') || !take(':') || !value(path.empty() ? key : path + "." + key)) return false;
    } while (take(','));
    return take('}');
  }
  bool array(const std::string& path) {
    if (!take('[')) return false;
    if (take(']')) return true;
    unsigned i = 0;
    do {
      if (!value(path + "[" + std::to_string(i++) + "]")) return false;
    } while (take(','));
    return take(']');
  }
  bool string(const std::string& path) {
    std::string found;
    for (++at_; at_ < end_ && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < ' ') return false;
      found += *at_;
      if (*at_ == '\\') found += *++at_;
    }
    return take('"') && strings.emplace(path, found).second;
  }
  bool number(const std::string& path) {
    const char* const start = at_;
    while (at_ < end_ && isdigit(static_cast<unsigned char>(*at_)) != 0) ++at_;
    const size_t digits = static_cast<size_t>(at_ - start);
    if (digits == 0 || (digits > 1 && *start == '0')) return false;
    return numbers.emplace(path, std::stoull(std::string(start, digits))).second;  // a key twice is wrong, too
  }
  const char* at_;
  const char* end_;
};

void append(void* to, const char* text, size_t length) { static_cast<std::string*>(to)->append(text, length); }

// Of this test, whose name has nothing to escape.
std::string own_program() {
  char path[400];
  return {path, os::program_path(path, sizeof path)};
}

TEST_F(Stats, JsonSaysWhatTheTotalsSay) {
  for (const size_t size : edge_sizes()) hold(size);
  for (unsigned i = 0; i < 500; ++i) free_object(alloc(100 + i));
  std::string text;
  write_json(append, &text);
  const Totals t = totals();
  Json json(text);
  ASSERT_TRUE(json.document()) << text;
  std::map<std::string, uint64_t>& n = json.numbers;
  EXPECT_EQ(n["version"], 1u);
  EXPECT_EQ(n["live"], t.live);
  EXPECT_EQ(n["cached"], t.cached);
  EXPECT_EQ(n["fragmented"], t.fragmented);
  EXPECT_EQ(n["dirty"], t.dirty);
  EXPECT_EQ(n["resident"], t.resident);
  EXPECT_EQ(n["huge_live"], t.huge_live);
  EXPECT_EQ(n["metadata"], t.metadata);
  EXPECT_EQ(n["reserved"], t.reserved);
  EXPECT_EQ(n["chunks"], t.chunks);
  EXPECT_EQ(n["threads"], t.threads);
  EXPECT_EQ(n["purged"], t.purged);
  EXPECT_EQ(n["purge_calls"], t.purge_calls);
  EXPECT_EQ(n["busy_sections"], t.busy_sections);
  EXPECT_GT(n["process_rss"], 0u);
  EXPECT_EQ(n["pid"], os::process_id());
  EXPECT_EQ(json.strings["program"], own_program());
  const LargeStats large = large_stats(process_fields);
  EXPECT_GT(large.objects, 0u);
  EXPECT_EQ(n["large.objects"], large.objects);
  EXPECT_EQ(n["large.taken"], large.taken);
  EXPECT_EQ(n["large.resident"], large.resident);
  EXPECT_EQ(n["large.dirty"], large.dirty);
  uint64_t live = t.huge_live + large.taken, chunks = 0;
  for (unsigned i = 0; n.count("bins[" + std::to_string(i) + "].bin") != 0; ++i) {
    const std::string row = "bins[" + std::to_string(i) + "].";
    const BinId bin = bin_id(static_cast<unsigned>(n[row + "bin"]));
    const BinStats s = bin_stats(bin);
    EXPECT_EQ(n[row + "size"], info_of(bin).size);
    EXPECT_EQ(n[row + "chunks"], s.chunks);
    EXPECT_EQ(n[row + "taken"], s.taken);
    EXPECT_EQ(n[row + "cached"], s.cached);
    EXPECT_EQ(n[row + "resident"], s.resident);
    EXPECT_EQ(n[row + "dirty"], s.dirty);
    live += (s.taken - s.cached) * info_of(bin).size;
    chunks += s.chunks;
  }
  EXPECT_EQ(live, t.live);
  EXPECT_EQ(chunks, t.chunks);
}

TEST_F(Stats, JsonOfAnIdleHeapIsWhole) {
  std::string text;
  write_json(append, &text);
  EXPECT_TRUE(Json(text).document()) << text;
}

TEST_F(Stats, TextFitsAScreenAndNamesEachPart) {
  for (const size_t size : edge_sizes()) hold(size);
  std::string text;
  write_text(append, &text);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
  EXPECT_EQ(text.back(), '\n');
  const std::string process = "  process " + std::to_string(os::process_id()) + ": ";
  EXPECT_EQ(text.rfind("folio: statistics\n" + process, 0), 0u);
  const std::string program = own_program();
  EXPECT_NE(text.find(program.substr(program.size() > 70 ? program.size() - 70 : 0) + "\n"), std::string::npos);
  for (const char* part :
       {"live", "cached", "fragmented", "dirty", "metadata", "RSS", "reserved", "chunks", "threads"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    EXPECT_LE(end - at, 100u) << text.substr(at, end - at);
    at = end + 1;
  }
}

TEST_F(Stats, AtExitItGoesToStandardError) {
  StderrCapture capture;
  print_at_exit();
  EXPECT_EQ(capture.stop().rfind("folio: statistics\n", 0), 0u);
}

TEST_F(Stats, CanBeReadWhileOthersWork) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(t + 1);
      void* held[64] = {};
      while (!stop) {
        void*& object = held[random() % 64];
        free_object(object);
        object = alloc(random() % 5000);
      }
      for (void* object : held) free_object(object);
    });
  }
  for (unsigned i = 0; i < rounds(40); ++i) {
    std::string text;
    write_json(append, &text);
    ASSERT_TRUE(Json(text).document()) << text;
    const Totals t = totals();
    ASSERT_LT(t.live, size_t{1} << 30);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
