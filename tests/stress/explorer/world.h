// World: Folio's whole state, saved and put back between executions: its variables (found by the program's own symbol
// table, since most of them have internal linkage), the metadata region, and the chunk table's entries of chunks carved
// since.
#pragma once

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "config/options.h"
#include "os/os.h"
#include "space/metadata.h"
#include "store/bin.h"

namespace explorer {

class World {
 public:
  World() {
    read_symbols();
    if (variables_.count(kMetadataPiece) == 0) abort();  // a stripped program
  }

  void save() {
    end_committed();
    saved_.clear();
    for (const auto& variable : variables_) keep(variable.second);
    cursor_ = cursor();
    for (unsigned i = 0; i < 2; ++i) open_[i] = variable<uint64_t[2]>(kOpenClusters)[i];
    used_ = piece() == nullptr ? 0 : piece()->used;
    if (piece() != nullptr) keep({reinterpret_cast<char*>(piece()), used_});
  }

  void reset() const {
    close_chunks();
    wipe_metadata();
    for (const Saved& s : saved_) {
      // Most areas did not change: comparing dirties no cache line.
      if (memcmp(s.area.start, s.bytes.data(), s.area.bytes) != 0) memcpy(s.area.start, s.bytes.data(), s.area.bytes);
    }
  }

  template <class T>
  T& variable(const std::string& mangled) const {
    return *reinterpret_cast<T*>(variables_.find(mangled)->second.start);
  }

  static constexpr const char* kOpenClusters = "_ZN5folio13open_clustersE";

 private:
  static constexpr const char* kMetadataPiece = "_ZN5folio15metadata_piecesE";
  static constexpr size_t kBytesMost = size_t{1} << 20;  // the chunk table is larger

  struct Area {
    char* start;
    size_t bytes;
  };
  struct Saved {
    Area area;
    std::vector<char> bytes;
  };
  struct Piece {  // the head of space/metadata.cc's
    size_t used, bytes;
  };

  // Metadata that is handed out from now on has to be committed first.
  static void end_committed() {
    folio::MetadataPiece* const piece = folio::metadata_pieces.load(folio::order::relaxed);
    if (piece == nullptr) return;
    const size_t page = folio::os::page_bytes(), used = piece->used.load(folio::order::relaxed);
    if (used % page != 0) folio::metadata_alloc(page - used % page, 1);
    piece->committed.store(piece->used.load(folio::order::relaxed), folio::order::relaxed);
  }

  // What was handed out since save() is zero again.
  void wipe_metadata() const {
    if (piece() != nullptr && used_ != 0 && piece()->used > used_) {
      memset(reinterpret_cast<char*>(piece()) + used_, 0, piece()->used - used_);
    }
  }

  // The chunk table's entries of chunks that were handed out since save(): of the clusters that were open, and of those
  // that were carved from the same region.
  void close_chunks() const {
    for (const uint64_t rest : open_) close_entries(rest >> 32, (rest >> 32) + (rest & 0xffffffffu));
    const uint64_t now = cursor();
    if ((now & 0xffffffffu) != (cursor_ & 0xffffffffu)) return;
    close_entries((cursor_ >> 32) * folio::kClusterChunks, (now >> 32) * folio::kClusterChunks);
  }
  static void close_entries(uint64_t from, uint64_t to) {
    for (uint64_t chunk = from; chunk < to; ++chunk) {
      uint16_t& entry = folio::chunk_table[chunk % folio::kChunkTableEntries];
      if (entry != 0) entry = 0;  // else it may be readable only
    }
  }
  uint64_t cursor() const { return variable<uint64_t>("_ZN5folio13region_cursorE"); }

  Piece* piece() const { return variable<Piece*>(kMetadataPiece); }
  void keep(Area area) { saved_.push_back({area, {area.start, area.start + area.bytes}}); }

  void read_symbols() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) abort();
    const auto bytes = static_cast<size_t>(status.st_size);
    auto* image = static_cast<char*>(mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0));
    if (image == MAP_FAILED) abort();
    close(file);
    const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(image);
    const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(image + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type == SHT_SYMTAB) read_table(image, sections, sections[i]);
    }
    munmap(image, bytes);
  }

  void read_table(const char* image, const ElfW(Shdr) * sections, const ElfW(Shdr) & table) {
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(image + table.sh_offset);
    const char* names = image + sections[table.sh_link].sh_offset;
    for (size_t i = 0; i < table.sh_size / sizeof(ElfW(Sym)); ++i) {
      const ElfW(Sym)& s = symbols[i];
      if (ELF64_ST_TYPE(s.st_info) != STT_OBJECT || s.st_shndx == SHN_UNDEF || s.st_shndx >= SHN_LORESERVE) continue;
      if ((sections[s.st_shndx].sh_flags & SHF_WRITE) == 0 || s.st_size > kBytesMost) continue;
      const char* name = names + s.st_name;
      if (strncmp(name, "_ZN5folio", 9) == 0) variables_.insert({name, {base() + s.st_value, s.st_size}});
    }
  }

  // Where the program is loaded: 0 unless it is position independent.
  static char* base() {
    char* found = nullptr;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          *static_cast<char**>(to) = reinterpret_cast<char*>(info->dlpi_addr);
          return 1;  // the first is the program
        },
        &found);
    return found;
  }

  std::multimap<std::string, Area> variables_;
  std::vector<Saved> saved_;
  uint64_t cursor_ = 0;
  uint64_t open_[2] = {};
  size_t used_ = 0;
};

// Before each scenario: Folio as it was before the first one, with a region, a window and a metadata piece in use.
inline void begin_anew() {
  static const World* const first = [] {
    folio::options.decay = 3600000;  // the clock shall not tick by itself
    folio::options.housekeeper = folio::kHousekeeperOff;
    folio::options.watch = 0;  // its counts are no state of a scenario
    void* object = nullptr;
    folio::take_objects(folio::process_store, folio::bin_id(folio::kBins - 1), &object, 1);
    auto* world = new World;
    world->save();
    return world;
  }();
  first->reset();
}

}  // namespace explorer
