#include "store/descriptor.h"

#include <set>

#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

// A descriptor of a chunk that is nowhere; only its layout is looked at.
class Shape {
 public:
  explicit Shape(BinId bin, char* chunk = reinterpret_cast<char*>(kChunkBytes * 12345))
      : words_(Descriptor::bytes_for(bin) / sizeof(uint64_t)) {
    d().first = first_object(chunk, info_of(bin));
    d().bin = bin;
    d().seal = Descriptor::seal_for(d().first, bin);
  }
  Descriptor& d() { return *reinterpret_cast<Descriptor*>(words_.data()); }
  const char* begin() const { return reinterpret_cast<const char*>(words_.data()); }
  const char* end() const { return begin() + words_.size() * sizeof(uint64_t); }

 private:
  std::vector<uint64_t> words_;
};

TEST(Descriptor, WordsAreApartAndFillIt) {
  for (const BinId bin : all_bins()) {
    Shape shape(bin);
    Descriptor& d = shape.d();
    std::set<const char*> words;
    const auto add = [&](const Word& word) {
      const auto* at = reinterpret_cast<const char*>(&word);
      ASSERT_TRUE(words.insert(at).second) << "two words in one place, bin " << index(bin);
      ASSERT_GE(at, shape.begin() + sizeof(Descriptor));
      ASSERT_LE(at + sizeof(Word), shape.end());
    };
    for (unsigned hint = 0; hint < 3; ++hint) {
      for (unsigned w = 0; w < d.hint_words(); ++w) add(d.hint(hint, w));
    }
    for (unsigned w = 0; w < kPageWords; ++w) {
      add(d.resident(w));
      add(d.dirty(w));
      add(d.aged(w));
    }
    for (unsigned folio = 0; folio < d.info().folios; ++folio) add(d.occupancy(folio));
    // All of it is used.
    EXPECT_EQ(words.size() * sizeof(Word) + sizeof(Descriptor), Descriptor::bytes_for(bin)) << "bin " << index(bin);
  }
}

TEST(Descriptor, ThereAreBitsForEveryFolioAndObject) {
  for (const BinId bin : all_bins()) {
    Shape shape(bin);
    const Descriptor& d = shape.d();
    EXPECT_GE(d.hint_words() * 64, d.info().folios);
    unsigned objects = 0;
    for (unsigned folio = 0; folio < d.info().folios; ++folio) objects += popcount(d.valid(folio));
    EXPECT_EQ(objects, d.info().objects) << "bin " << index(bin);
  }
}

TEST(Descriptor, MetadataIsASmallPartOfAChunk) {
  // The smallest objects need the most: a bit of occupancy for each, and little beside it.
  for (const BinId bin : all_bins()) EXPECT_LE(Descriptor::bytes_for(bin) * 50, kChunkBytes) << "bin " << index(bin);
}

TEST(Descriptor, TheSealNoticesWhatItSeals) {
  char* const chunk = reinterpret_cast<char*>(kChunkBytes * 777);
  Shape shape(bin_id(5), chunk);
  Descriptor& d = shape.d();
  char* const first = d.first;
  EXPECT_EQ(d.chunk(), chunk);
  EXPECT_TRUE(d.sealed());
  for (unsigned i = 0; i < 256; ++i) {
    d.bin = bin_id(i);
    EXPECT_EQ(d.sealed(), i == 5) << i;
  }
  d.bin = bin_id(5);
  for (unsigned bit = 0; bit < 48; ++bit) {
    d.first = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(first) ^ uintptr_t{1} << bit);
    EXPECT_FALSE(d.sealed()) << bit;
  }
  d.first = first;
  EXPECT_TRUE(d.sealed());
  for (unsigned bit = 0; bit < 32; ++bit) {
    d.seal ^= 1u << bit;
    EXPECT_FALSE(d.sealed()) << bit;
    d.seal ^= 1u << bit;
  }
  // What overwrites memory most often.
  memset(static_cast<void*>(&d), 0, sizeof d);
  EXPECT_FALSE(d.sealed());
  memset(static_cast<void*>(&d), 0xff, sizeof d);
  EXPECT_FALSE(d.sealed());
}

TEST(Descriptor, ObjectsStartInTheirSlotsAndEveryAddressFindsItsOwn) {
  for (const BinId bin : all_bins()) {
    Shape shape(bin);
    const Descriptor& d = shape.d();
    const BinInfo& info = d.info();
    for (unsigned object = 0; object < info.objects; ++object) {
      char* const slot = d.slot(object);
      ASSERT_EQ(static_cast<size_t>(slot - d.first), size_t{object} * info.size);
      ASSERT_EQ(object_at(d, object), slot);
      for (const char* at : {slot, slot + info.size / 2, slot + info.size - 1}) {
        ASSERT_EQ(object_number(d, at), object) << "bin " << index(bin);
      }
    }
    for (const char* at = d.chunk(); at < d.first; at += 61) {
      ASSERT_GE(object_number(d, at), info.objects) << "what is before the first is no object, bin " << index(bin);
    }
    for (const char* at = d.slot(info.objects); at < d.chunk() + kChunkBytes; at += 61) {
      ASSERT_GE(object_number(d, at), info.objects) << "the chunk's end is no object, bin " << index(bin);
    }
  }
}

TEST(Descriptor, ChunksInARowAreColouredDifferently) {
  for (const BinId bin : all_bins()) {
    const BinInfo& info = info_of(bin);
    std::set<size_t> offsets;
    for (size_t number = 1000; number < 1000 + kColours; ++number) {
      char* const chunk = reinterpret_cast<char*>(number * kChunkBytes);
      char* const first = first_object(chunk, info);
      const size_t offset = static_cast<size_t>(first - chunk);
      EXPECT_EQ(offset % os::page_bytes(), 0u);
      EXPECT_EQ(offset % (size_t{1} << info.natural_shift), 0u) << "aligned as its size is, bin " << index(bin);
      EXPECT_LE(offset + size_t{info.objects} * info.size, kChunkBytes) << "bin " << index(bin);
      offsets.insert(offset);
    }
    const size_t step = std::max(os::page_bytes(), size_t{1} << info.natural_shift);
    EXPECT_EQ(offsets.size(), std::max<size_t>(1, kColours * kPageBytesLeast / step)) << "bin " << index(bin);
  }
}

}  // namespace
