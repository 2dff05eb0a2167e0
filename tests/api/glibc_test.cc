// What glibc offers beside the standard: mallinfo, malloc_info, malloc_stats, malloc_trim, mallopt, with real figures.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include <string>

#include "support.h"

using namespace folio_test;

extern "C" {
void *libc_malloc(size_t size) asm("__libc_malloc");
void libc_free(void *object) asm("__libc_free");
void *libc_calloc(size_t count, size_t size) asm("__libc_calloc");
void *libc_realloc(void *object, size_t size) asm("__libc_realloc");
void *libc_memalign(size_t alignment, size_t size) asm("__libc_memalign");
void *libc_valloc(size_t size) asm("__libc_valloc");
void *libc_pvalloc(size_t size) asm("__libc_pvalloc");
}

namespace {

// What glibc exports beside the standard's names, of which a program may mix both.
TEST(LibcNames, AreOfTheFamily) {
  for (void *const object : {libc_malloc(100), libc_calloc(10, 10), libc_realloc(malloc(10), 100),
                             libc_memalign(256, 100), libc_valloc(100), libc_pvalloc(100)}) {
    ASSERT_NE(object, nullptr);
    EXPECT_GE(malloc_usable_size(object), 100u);
    free(realloc(object, 1000));
  }
  libc_free(malloc(100));
}

TEST(Mallinfo2, FollowsTheProgram) {
  struct mallinfo2 before = mallinfo2();
  std::vector<void *> objects;
  for (int i = 0; i < 10000; i++) objects.push_back(opaque(malloc(1000)));
  void *huge = opaque(malloc(50 * kMiB));
  struct mallinfo2 during = mallinfo2();
  EXPECT_GE(during.uordblks + during.hblkhd, before.uordblks + before.hblkhd + 10000 * 1000);
  EXPECT_GE(during.arena + during.hblkhd, before.arena + before.hblkhd) << "what is held does not shrink";
  EXPECT_GE(during.hblkhd, before.hblkhd + 50 * kMiB) << "huge objects are glibc's mapped ones";
  EXPECT_EQ(during.hblks, before.hblks + 1);
  EXPECT_GE(during.arena, during.uordblks);
  free(huge);
  for (void *object : objects) free(object);
  struct mallinfo2 after = mallinfo2();
  EXPECT_LT(after.uordblks, before.uordblks + kMiB);
  EXPECT_EQ(after.hblks, before.hblks);
  EXPECT_GT(after.fordblks, 0u);
}

TEST(Mallinfo, IsMallinfo2InInts) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  void *object = opaque(malloc(10 * kMiB));
  struct mallinfo narrow = mallinfo();
  struct mallinfo2 wide = mallinfo2();
  EXPECT_EQ(static_cast<size_t>(narrow.hblkhd), wide.hblkhd);
  EXPECT_EQ(static_cast<size_t>(narrow.hblks), wide.hblks);
  EXPECT_EQ(static_cast<size_t>(narrow.uordblks), wide.uordblks);
  free(object);
#pragma GCC diagnostic pop
}

TEST(MallocTrim, SaysWhetherItGaveBack) {
  std::vector<void *> objects;
  for (int i = 0; i < 50000; i++) {
    objects.push_back(opaque(malloc(1000)));
    memset(objects.back(), 1, 1000);
  }
  for (void *object : objects) free(object);
  EXPECT_EQ(malloc_trim(0), 1);
  malloc_trim(0);
  EXPECT_EQ(malloc_trim(0), 0) << "nothing is left to give";
}

// The parameters that programs set; none changes what is served.
TEST(Mallopt, AcceptsGlibcsParameters) {
  EXPECT_EQ(mallopt(M_MMAP_THRESHOLD, 128 * 1024), 1);
  EXPECT_EQ(mallopt(M_TRIM_THRESHOLD, 128 * 1024), 1);
  EXPECT_EQ(mallopt(M_TOP_PAD, 64 * 1024), 1);
  EXPECT_EQ(mallopt(M_MMAP_MAX, 1000), 1);
  EXPECT_EQ(mallopt(M_ARENA_MAX, 1), 1);
  EXPECT_EQ(mallopt(M_ARENA_TEST, 1), 1);
  EXPECT_EQ(mallopt(M_CHECK_ACTION, 3), 1);
  EXPECT_EQ(mallopt(M_PERTURB, 0), 1);
  void *object = opaque(malloc(1000));
  EXPECT_TRUE(folio_is_ours(object));
  free(object);
}

TEST(MallocInfo, WritesTheSchema) {
  char *text = nullptr;
  size_t length = 0;
  FILE *stream = open_memstream(&text, &length);
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(malloc_info(0, stream), 0);
  fclose(stream);
  std::string xml(text, length);
  free(text);
  EXPECT_EQ(xml.rfind("<malloc version=\"1\">\n", 0), 0u) << xml;
  EXPECT_EQ(xml.substr(xml.size() - 10), "</malloc>\n");
  for (const char *part :
       {"<heap nr=\"0\">", "</heap>", "<total type=\"fast\" count=\"", "<total type=\"rest\" count=\"",
        "<total type=\"mmap\" count=\"", "<system type=\"current\" size=\"", "<system type=\"max\" size=\"",
        "<aspace type=\"total\" size=\"", "<aspace type=\"mprotect\" size=\""}) {
    EXPECT_NE(xml.find(part), std::string::npos) << part;
  }
}

// The manual page says -1, glibc's code returns EINVAL.
TEST(MallocInfo, RefusesOptions) { EXPECT_EQ(malloc_info(1, stdout), EINVAL); }

// Standard error, read back from a file.
template <class Action>
std::string stderr_of(Action action) {
  char name[] = "/tmp/folio-test-XXXXXX";
  int file = mkstemp(name);
  int saved = dup(STDERR_FILENO);
  fflush(stderr);
  dup2(file, STDERR_FILENO);
  action();
  fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text(100000, '\0');
  ssize_t length = pread(file, text.data(), text.size(), 0);
  text.resize(length < 0 ? 0 : static_cast<size_t>(length));
  close(file);
  unlink(name);
  return text;
}

TEST(MallocStats, WritesToStderr) {
  std::string text = stderr_of([] { malloc_stats(); });
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(text.back(), '\n');
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 50);
}

}  // namespace
