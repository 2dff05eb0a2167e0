// The random driver of tests/model with a fuzzer as its source: what it finds interesting is kept and varied.
#include <stdio.h>
#include <stdlib.h>

#include "config/options.h"
#include "model/driver.h"
#include "store/bin.h"
#include "store/check.h"

namespace {

// The first byte sets the options, so that small caches and no decay are tried too.
void set_options(uint8_t choice) {
  using folio::options;
  options = folio::Options{};
  options.housekeeper = folio::kHousekeeperOff;
  if ((choice & 1) != 0) options.cpu_cache = 0;
  if ((choice & 2) != 0) options.decay = 0;
  if ((choice & 4) != 0) options.dirty_floor = 0;
  if ((choice & 8) != 0) options.thread_cache_pool = 0;
  if ((choice & 16) != 0) options.depot = 64;
}

void stop(const char* what) {
  fprintf(stderr, "driver_fuzz: %s\n", what);
  abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  set_options(bytes[0]);
  folio_test::BytesSource source(bytes + 1, count - 1);
  folio_test::Driver driver(source, 1, {.live_most = size_t{32} << 20, .huge_most = size_t{8} << 20});
  while (source.more() && driver.ok()) driver.step();
  driver.free_all();
  if (!driver.ok()) stop(driver.failure().c_str());
  for (unsigned bin = 1; bin < folio::kBins; ++bin) {
    if (!folio::check_bin(folio::process_store, folio::bin_id(bin))) stop("a bin's invariants do not hold");
  }
  return 0;
}
