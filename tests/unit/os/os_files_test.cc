// Files of the system, in whose place the tests put others.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "os/os.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// A folder with one file, in the place of the system's.
class OtherFiles {
 public:
  explicit OtherFiles(const std::string& text) {
    EXPECT_NE(mkdtemp(folder_), nullptr);
    os::files_root = folder_;
    write(text);
  }
  ~OtherFiles() {
    os::files_root = "";
    unlink((std::string(folder_) + "/file").c_str());
    rmdir(folder_);
  }
  OtherFiles(const OtherFiles&) = delete;
  OtherFiles& operator=(const OtherFiles&) = delete;

  void write(const std::string& text) const {
    FILE* const file = fopen((std::string(folder_) + "/file").c_str(), "w");
    fwrite(text.data(), 1, text.size(), file);
    fclose(file);
  }

 private:
  char folder_[32] = "/tmp/folio_os_XXXXXX";
};

bool note_line(void* lines, const char* line, size_t length) {
  static_cast<std::vector<std::string>*>(lines)->emplace_back(line, length);
  return static_cast<std::vector<std::string>*>(lines)->size() < 4;
}

TEST(Os, ReadLinesReadsLines) {
  std::vector<std::string> lines;
  const auto read = [&](const std::string& text) {
    const OtherFiles files(text);
    lines.clear();
    return os::read_lines("/file", note_line, &lines);
  };
  using Lines = std::vector<std::string>;
  EXPECT_TRUE(read(""));
  EXPECT_EQ(lines, Lines{});
  EXPECT_TRUE(read("one\n\nlast without its end"));
  EXPECT_EQ(lines, (Lines{"one", "", "last without its end"}));
  EXPECT_TRUE(read("1\n2\n3\n4\n5\n6"));  // it wants no more than four
  EXPECT_EQ(lines, (Lines{"1", "2", "3", "4"}));
  const std::string text(511, 'a'), end(2 * os::kLineMost, 'b');
  EXPECT_TRUE(read(text + "\n" + end + "\nc"));
  EXPECT_EQ(lines, (Lines{text, end.substr(0, os::kLineMost), "c"}));
  EXPECT_FALSE(os::read_lines("/no/such/file", note_line, &lines));
  EXPECT_FALSE(os::read_lines(std::string(3 * os::kPathMost, 'x').c_str(), note_line, &lines));
}

TEST(Os, ReadLinesLeavesNoDescriptorAndNoErrno) {
  const OtherFiles files("1\n2\n");
  std::vector<std::string> lines;
  const int lowest = dup(0);
  close(lowest);
  errno = 7;
  os::read_lines("/file", note_line, &lines);
  os::read_lines("/none", note_line, &lines);
  EXPECT_EQ(errno, 7);
  const int again = dup(0);
  EXPECT_EQ(again, lowest);
  close(again);
}

TEST(Os, AKeptFileIsReadAnewEachTime) {
  const OtherFiles files("first");
  os::KeptFile file;
  char text[8];
  EXPECT_EQ(os::read_kept(file, text, sizeof text), 0u);
  EXPECT_FALSE(os::keep_file("/none", &file));
  ASSERT_TRUE(os::keep_file("/file", &file));
  EXPECT_GE(file.descriptor, 500);
  EXPECT_EQ(fcntl(file.descriptor, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(os::read_kept(file, text, sizeof text), 5u);
  files.write("second time");
  ASSERT_EQ(os::read_kept(file, text, sizeof text), 8u);
  EXPECT_EQ(std::string(text, 8), "second t");
  // Whoever closes all descriptors may open another file there.
  ASSERT_EQ(dup2(0, file.descriptor), file.descriptor);
  EXPECT_EQ(os::read_kept(file, text, sizeof text), 0u);
  close(file.descriptor);
  EXPECT_EQ(os::read_kept(file, text, sizeof text), 0u);
}

TEST(Os, PhysicalBytesIsWhatTheLibcSays) {
  const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  EXPECT_EQ(os::physical_bytes(), pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace
