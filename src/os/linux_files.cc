// Linux: the files of os.h, and what is read from them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "os/linux_call.h"
#include "os/os.h"

namespace folio::os {

constinit const char* files_root = "";

namespace {

// With `path` below files_root; -1 if there is no such file, or no room for its name.
long open_file(const char* path) {
  char whole[2 * kPathMost];
  size_t length = 0;
  const char* const parts[] = {files_root, path};
  for (const char* part : parts) {
    for (; *part != '\0' && length < sizeof whole - 1; ++part) whole[length++] = *part;
    if (*part != '\0') return -1;
  }
  whole[length] = '\0';
  const long file = call(SYS_openat, AT_FDCWD, whole, O_RDONLY | O_CLOEXEC);
  return failed(file) ? -1 : file;
}

struct stat identity(long file) {
  struct stat found {};
  if (failed(call(SYS_fstat, file, &found))) found.st_ino = 0;
  return found;
}

}  // namespace

bool read_lines(const char* path, bool (*visit)(void* context, const char* line, size_t length), void* context) {
  const long file = open_file(path);
  if (file < 0) return false;
  char buffer[512] = {}, line[kLineMost];
  size_t length = 0;
  bool more = true;
  long n;
  while (more && (n = call(SYS_read, file, buffer, sizeof buffer)) > 0) {
    for (long i = 0; more && i < n; ++i) {
      if (buffer[i] == '\n') {
        more = visit(context, line, length);
        length = 0;
      } else if (length < kLineMost) {
        line[length++] = buffer[i];
      }
    }
  }
  if (more && length != 0) visit(context, line, length);
  call(SYS_close, file);
  return true;
}

namespace {

// Under a descriptor above those that programs count on; `low` is closed.
bool keep(long low, KeptFile* file) {
  constexpr int kLeast = 500;
  if (low < 0) return false;
  const long high = call(SYS_fcntl, low, F_DUPFD_CLOEXEC, kLeast);
  call(SYS_close, low);
  if (failed(high)) return false;
  const struct stat found = identity(high);
  *file = {static_cast<int>(high), found.st_dev, found.st_ino};
  return true;
}

bool is_kept(const KeptFile& file) {
  if (file.descriptor < 0) return false;
  const struct stat found = identity(file.descriptor);
  return found.st_ino == file.number && found.st_dev == file.device;
}

}  // namespace

bool keep_file(const char* path, KeptFile* file) { return keep(open_file(path), file); }

size_t read_kept(const KeptFile& file, char* text, size_t bytes, size_t offset) {
  if (!is_kept(file)) return 0;
  const long n = call(SYS_pread64, file.descriptor, text, bytes, offset);
  return failed(n) ? 0 : static_cast<size_t>(n);
}

bool create_file(const char* path, KeptFile* file) {
  constexpr char kOld[] = ".old";
  char old[kPathMost + sizeof kOld];
  size_t length = 0;
  for (; path[length] != '\0' && length < kPathMost; ++length) old[length] = path[length];
  for (size_t i = 0; i < sizeof kOld; ++i) old[length + i] = kOld[i];
  call(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, old, 0);
  const long made = call(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  return keep(failed(made) ? -1 : made, file);
}

void remove_file(const char* path) { call(SYS_unlinkat, AT_FDCWD, path, 0); }

void* map_file(const KeptFile& file, size_t offset, size_t bytes) {
  rlimit limit{};  // beyond it the kernel sends a signal
  if (failed(call(SYS_prlimit64, 0, RLIMIT_FSIZE, nullptr, &limit)) || offset + bytes > limit.rlim_cur) return nullptr;
  if (!is_kept(file) || failed(call(SYS_fallocate, file.descriptor, 0, offset, bytes))) return nullptr;
  const long at = call(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, offset);
  return failed(at) ? nullptr : reinterpret_cast<void*>(at);
}

size_t physical_bytes() {
  struct sysinfo info {};
  return failed(call(SYS_sysinfo, &info)) ? 0 : static_cast<size_t>(info.totalram) * info.mem_unit;
}

size_t resident_bytes() {
  const long file = call(SYS_openat, AT_FDCWD, "/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (failed(file)) return 0;
  char text[128] = {};
  const long n = call(SYS_read, file, text, sizeof text - 1);
  call(SYS_close, file);
  if (failed(n)) return 0;
  const char* at = text;
  while (*at != '\0' && *at != ' ') ++at;
  size_t pages = 0;
  for (++at; *at >= '0' && *at <= '9'; ++at) pages = pages * 10 + static_cast<size_t>(*at - '0');
  return pages * page_bytes();
}

}  // namespace folio::os
