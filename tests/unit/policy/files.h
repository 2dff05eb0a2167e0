// Files in the place of the system's, and lines that are complained about.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "os/os.h"

namespace folio_test {

class FakeFiles {
 public:
  FakeFiles() {
    char name[] = "/tmp/folio_files_XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    root_ = name;
    folio::os::files_root = root_.c_str();
  }
  ~FakeFiles() {
    folio::os::files_root = "";
    std::filesystem::remove_all(root_);
  }
  FakeFiles(const FakeFiles&) = delete;
  FakeFiles& operator=(const FakeFiles&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void remove(const std::string& path) const { std::filesystem::remove_all(root_ + path); }

  // A process in one cgroup of version 2, which is mounted as in a container.
  void write_container(const std::string& max) const {
    write("/proc/self/cgroup", "0::/\n");
    write("/proc/self/mountinfo", "31 23 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n");
    write("/sys/fs/cgroup/memory.max", max + "\n");
  }

 private:
  std::string root_;
};

inline std::vector<std::string> complaints;
inline void complain(const char* line, size_t length) { complaints.emplace_back(line, length); }

}  // namespace folio_test
