// Parses /proc/self/cgroup and /proc/self/mountinfo, and reads the limits from the process's folder up to the mount.
#include "policy/cgroup.h"

#include <stddef.h>

namespace folio {

namespace {

// A piece of a line, or a path that is put together.
struct Piece {
  const char* text;
  size_t length;
  bool is(const char* other) const {
    size_t i = 0;
    while (i < length && other[i] == text[i] && other[i] != '\0') ++i;
    return i == length && other[i] == '\0';
  }
};

struct Path {
  char text[os::kPathMost] = "";
  size_t length = 0;

  // False if it is too long.
  bool add(Piece piece) {
    if (length + piece.length >= sizeof text) return false;
    __builtin_memcpy(text + length, piece.text, piece.length);
    length += piece.length;
    text[length] = '\0';
    return true;
  }
  void cut(size_t to) { text[length = to] = '\0'; }
  Piece piece() const { return {text, length}; }
};

// The next piece of a line up to `end`, which is taken off.
Piece next(Piece* line, char end) {
  Piece piece{line->text, 0};
  while (piece.length < line->length && piece.text[piece.length] != end) ++piece.length;
  const size_t taken = piece.length < line->length ? piece.length + 1 : piece.length;
  *line = {line->text + taken, line->length - taken};
  return piece;
}

bool lists(Piece names, const char* name) {
  while (names.length != 0) {
    if (next(&names, ',').is(name)) return true;
  }
  return false;
}

// mountinfo writes blanks and the like as \040.
bool add_decoded(Path& path, Piece piece) {
  for (size_t i = 0; i < piece.length; ++i) {
    char c = piece.text[i];
    if (c == '\\' && i + 3 < piece.length) {
      c = static_cast<char>((piece.text[i + 1] - '0') * 64 + (piece.text[i + 2] - '0') * 8 + (piece.text[i + 3] - '0'));
      i += 3;
    }
    if (!path.add({&c, 1})) return false;
  }
  return true;
}

// What of `path` lies below `root`, which is "/" or a folder above it. False if it does not.
bool below(Piece path, Piece root, Piece* rest) {
  if (root.is("/")) root.length = 0;
  if (path.length < root.length || __builtin_memcmp(path.text, root.text, root.length) != 0) return false;
  *rest = {path.text + root.length, path.length - root.length};
  if (rest->is("/")) rest->length = 0;
  return rest->length == 0 || rest->text[0] == '/';
}

struct Search {
  MemoryCgroup* found;
  Path own[2];  // the process's paths: version 1, version 2
  bool has[2] = {false, false};
};

// A line of /proc/self/cgroup: number:controllers:path.
bool note_own(void* context, const char* text, size_t length) {
  auto& search = *static_cast<Search*>(context);
  Piece line{text, length};
  const Piece number = next(&line, ':'), controllers = next(&line, ':');
  const bool v2 = number.is("0") && controllers.length == 0;
  if (!v2 && !lists(controllers, "memory")) return true;
  search.own[v2].cut(0);
  search.has[v2] = search.own[v2].add(line);
  return true;
}

bool note_number(void* context, const char* text, size_t length) {
  *static_cast<int64_t*>(context) = number_in(text, length);
  return false;
}

// One file with a limit in a folder, which is as it was afterwards.
void note_limit(MemoryCgroup& found, Path& folder, Piece name) {
  const size_t before = folder.length;
  int64_t limit = -1;
  if (folder.add(name)) os::read_lines(folder.text, note_number, &limit);
  folder.cut(before);
  if (limit > 0 && (found.limit == 0 || limit < found.limit)) found.limit = limit;
}

// The first two are files of version 2, the third is one of version 1; no folder has both.
constexpr Piece kLimits[] = {{"/memory.max", 11}, {"/memory.high", 12}, {"/memory.limit_in_bytes", 22}};

// From the process's folder up to where the hierarchy is mounted.
void walk(MemoryCgroup& found, Path& folder, size_t mount_length) {
  for (;;) {
    for (const Piece& name : kLimits) note_limit(found, folder, name);
    if (folder.length <= mount_length) return;
    size_t length = folder.length - 1;
    while (length > mount_length && folder.text[length] != '/') --length;
    folder.cut(length);
  }
}

// A line of mountinfo: number parent device root folder options ... - type source options.
bool note_mount(void* context, const char* text, size_t length) {
  auto& search = *static_cast<Search*>(context);
  Piece line{text, length};
  for (unsigned i = 0; i < 3; ++i) next(&line, ' ');
  const Piece root = next(&line, ' '), folder = next(&line, ' ');
  while (line.length != 0 && !next(&line, ' ').is("-")) {
  }
  const Piece type = next(&line, ' ');
  next(&line, ' ');
  const bool v2 = type.is("cgroup2");
  if (!search.has[v2] || (!v2 && !(type.is("cgroup") && lists(line, "memory")))) return true;
  Path root_path, path;
  if (!add_decoded(root_path, root) || !add_decoded(path, folder)) return true;
  const size_t mount_length = path.length;
  // Where the process's path is not below what is mounted, as in a container without a namespace, the mount is its own;
  // but not one from above the namespace, whose root is shown as "/..".
  Piece rest;
  if (below(search.own[v2].piece(), root_path.piece(), &rest)) {
    if (!path.add(rest)) return true;
  } else if (root_path.length >= 3 && below(root_path.piece(), {"/..", 3}, &rest)) {
    return true;
  }
  MemoryCgroup& found = *search.found;
  // A hybrid system limits memory in version 1, so a mount of version 2 says nothing there.
  if (v2 != search.has[0]) found.known = true;
  if (v2 && found.folder[0] == '\0') __builtin_memcpy(found.folder, path.text, path.length + 1);
  walk(found, path, mount_length);
  return true;
}

}  // namespace

int64_t number_in(const char* text, size_t length) {
  constexpr uint64_t kMost = uint64_t{1} << 60;  // ten times that still is a number
  uint64_t n = 0;
  size_t i = 0;
  for (; i < length && text[i] >= '0' && text[i] <= '9' && n < kMost; ++i) {
    n = n * 10 + static_cast<uint64_t>(text[i] - '0');
  }
  return i == 0 || n >= kMost ? -1 : static_cast<int64_t>(n);
}

void find_memory_cgroup(MemoryCgroup* found) {
  *found = {};
  Search search{found, {}, {}};
  const bool own = os::read_lines("/proc/self/cgroup", note_own, &search);
  found->known = own && os::read_lines("/proc/self/mountinfo", note_mount, &search) && found->known;
}

}  // namespace folio
