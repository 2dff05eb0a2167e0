// Profiles outside of their process, read as a tool reads them.
#include "insight/profile_file.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>

#include "core/lifecycle.h"
#include "core/seam.h"
#include "unit/child.h"
#include "unit/core/heap.h"

using namespace folio;
using namespace folio_test;

namespace {

class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(path_), nullptr); }
  ~Folder() { EXPECT_EQ(system(("rm -r " + std::string(path_)).c_str()), 0); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return std::string(path_) + "/" + name; }

 private:
  char path_[32] = "/tmp/folio_profile_XXXXXX";
};

struct SampleCopy {
  uint64_t mark, object, written_ms, freed_ms, size, interval;
  uint32_t thread, stack_bytes;
  uint64_t registers[14];
};
static_assert(sizeof(SampleCopy) <= sizeof(Sample));

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class Contents {
 public:
  explicit Contents(std::string bytes) : bytes_(std::move(bytes)) {}

  size_t bytes() const { return bytes_.size(); }
  const ProfileHeader& header() const { return *reinterpret_cast<const ProfileHeader*>(bytes_.data()); }

  std::string maps() const {
    const uint32_t which = header().maps_which.load(order::relaxed);
    return bytes_.substr(header().maps_offset[which].get(), header().maps_bytes[which].get());
  }

  // Of a phase. Each has the stack that its registers point to.
  std::vector<SampleCopy> samples(uint64_t phase) const {
    std::vector<SampleCopy> found;
    for (uint32_t k = 0; k < header().tables_most && header().table_offset[k].get() != 0; ++k) {
      const size_t slots = size_t{header().slots} << k, at = header().table_offset[k].get();
      for (size_t slot = 0; slot < slots; ++slot) {
        SampleCopy copy;
        memcpy(&copy, &bytes_.at(at + slot * header().sample_bytes), sizeof copy);
        if ((copy.mark & 3) != phase) continue;
        if (const size_t marks = header().marks_offset[k]; marks != 0) {
          EXPECT_EQ(memcmp(&bytes_.at(marks + slot * 8), &copy.mark, 8), 0);
        }
        const char* stack = &bytes_.at(at + slots * header().sample_bytes + slot * header().stack_bytes);
        EXPECT_NE(std::string_view(stack, copy.stack_bytes).find_first_not_of('\0'), std::string_view::npos);
        found.push_back(copy);
      }
    }
    return found;
  }

 private:
  std::string bytes_;
};

std::string only_file(const Folder& folder) {
  FILE* const list = popen(("ls " + folder.file("")).c_str(), "r");
  char name[256] = {};
  EXPECT_EQ(fscanf(list, "%255s", name), 1);
  pclose(list);
  return folder.file(name);
}

TEST(ProfileFile, OutlivesItsProcess) {
  for (const unsigned objects : {3u, 2000u}) {
    const Folder folder;
    const std::string prefix = folder.file("it");
    // In a child, since a process has one file, for good.
    ASSERT_EQ(in_child([&] {
                if (!profile_file_open(prefix.data(), prefix.size()) || !seam_close(1)) return kFailed;
                for (unsigned i = 0; i < objects; ++i) alloc(1000 + i);
                free_object(alloc(70000));
                raise(SIGKILL);
                return kFailed;
              }),
              -1);
    const std::string path = only_file(folder);
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    const Contents contents(bytes_of(path));
    const ProfileHeader& header = contents.header();
    EXPECT_EQ(memcmp(header.magic, kProfileMagic, sizeof header.magic), 0);
    EXPECT_EQ(header.version, kProfileVersion);
    EXPECT_EQ(folder.file("it." + std::to_string(header.process)), path);
    EXPECT_EQ(header.interval.get(), 1u);
    EXPECT_GE(header.made.get(), objects + 1u);
    EXPECT_EQ(header.lost.get(), 0u);
    EXPECT_EQ(contents.samples(kSampleFreed).size(), 1u);
    const auto live = contents.samples(kSampleLive);
    ASSERT_EQ(live.size(), objects);
    uint64_t sizes = 0;
    for (const SampleCopy& sample : live) sizes += sample.size;
    EXPECT_EQ(sizes, objects * 1000ull + uint64_t{objects} * (objects - 1) / 2);
    EXPECT_NE(contents.maps().find("[stack]"), std::string::npos);
    EXPECT_EQ(contents.maps().back(), '\n');
  }
}

TEST(ProfileFile, AnEarlierOneIsKeptAside) {
  const Folder folder;
  const auto open = [&] {
    const std::string path = folder.file("it");
    return profile_file_open(path.data(), path.size()) ? kPassed : kFailed;
  };
  ASSERT_EQ(in_child([&] {
              std::ofstream(folder.file("it." + std::to_string(getpid()))) << "before";
              return open();
            }),
            kPassed);
  FILE* const list = popen(("cat " + folder.file("*.old")).c_str(), "r");
  char text[16] = {};
  EXPECT_EQ(fread(text, 1, sizeof text, list), 6u);
  pclose(list);
  EXPECT_STREQ(text, "before");
}

TEST(ProfileFile, WhereThereCanBeNoneSamplesStayInMemory) {
  EXPECT_EQ(in_child([] {
              const std::string path = "/nonexistent/it";
              if (profile_file_open(path.data(), path.size()) || !seam_close(1)) return kFailed;
              free_object(alloc(1000));
              return sample_counts.made.get() == 1 && sample_counts.lost.get() == 0 ? kPassed : kFailed;
            }),
            kPassed);
}

// Beyond its limit the kernel would end the process by a signal.
TEST(ProfileFile, KeepsToTheLimitOfFileSizes) {
  for (const rlim_t most : {rlim_t{1} << 20, rlim_t{3} << 20}) {
    const Folder folder;
    EXPECT_EQ(in_child([&] {
                const rlimit limit{most, most};
                if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return kCannot;
                const std::string path = folder.file("it");
                const bool opened = profile_file_open(path.data(), path.size());
                struct stat status;
                const std::string name = path + "." + std::to_string(getpid());
                if ((stat(name.c_str(), &status) == 0) != opened) return kFailed;  // none that is empty stays
                if (!seam_close(1)) return kFailed;
                for (unsigned i = 0; i < 100; ++i) alloc(1000);
                return sample_counts.made.get() == 100 ? kPassed : kFailed;
              }),
              kPassed);
  }
}

// As programs do that become daemons. What was copied of the mappings stays.
TEST(ProfileFile, OutlivesItsDescriptors) {
  const Folder folder;
  ASSERT_EQ(in_child([&] {
              const std::string path = folder.file("it");
              if (!profile_file_open(path.data(), path.size()) || !seam_close(1)) return kFailed;
              for (int descriptor = 3; descriptor < 1024; ++descriptor) close(descriptor);
              for (unsigned i = 0; i < 3; ++i) {
                alloc(1000);
                usleep(1100000);  // a copy a second
              }
              alloc(1000);
              return kPassed;
            }),
            kPassed);
  EXPECT_NE(Contents(bytes_of(only_file(folder))).maps().find("[stack]"), std::string::npos);
}

// A child of a fork leaves the parent's file alone, and has samples of its own.
TEST(ProfileFile, IsTheParents) {
  const Folder folder;
  ASSERT_EQ(in_child([&] {
              start();
              const std::string path = folder.file("it");
              if (!profile_file_open(path.data(), path.size()) || !seam_close(1)) return kFailed;
              void* const inherited = alloc(1000);
              const int child = in_child([&] {
                if (sample_table(0) != nullptr) return kFailed;
                free_object(inherited);
                for (unsigned i = 0; i < 100; ++i) alloc(500);
                return sample_table(0) != nullptr ? kPassed : kFailed;
              });
              alloc(2000);
              return child;
            }),
            kPassed);
  const auto live = Contents(bytes_of(only_file(folder))).samples(kSampleLive);
  ASSERT_EQ(live.size(), 2u);
  EXPECT_EQ(live[0].size + live[1].size, 3000u);
}

TEST(ProfileFile, TheProgramWritesTheSame) {
  ASSERT_EQ(
      in_child([] {
        if (!seam_close(1)) return kFailed;
        std::vector<void*> objects;
        for (unsigned i = 0; i < 300; ++i) objects.push_back(alloc(1000));
        free_object(objects[0]);
        std::string bytes;
        profile_write(
            1, [](void* to, const char* piece, size_t n) { static_cast<std::string*>(to)->append(piece, n); }, &bytes);
        seam_open();
        const Contents contents(bytes);
        const bool all = contents.samples(kSampleLive).size() == 299 && contents.samples(kSampleFreed).size() >= 1 &&
                         contents.maps().find("[stack]") != std::string::npos && contents.header().interval.get() == 1;
        return all && !::testing::Test::HasFailure() ? kPassed : kFailed;
      }),
      kPassed);
}

}  // namespace
