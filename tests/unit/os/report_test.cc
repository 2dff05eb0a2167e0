#include "os/report.h"

#include <signal.h>

#include "unit/stderr_capture.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr char kWhole[] = "folio: free(0x7f0012345678): what is wrong (see docs/errors.md#some-anchor)\n";

void report() {
  Text line = misuse_line("free", reinterpret_cast<void*>(0x7f0012345678));
  line << "what is wrong";
  report_misuse(line, "some-anchor");
}

TEST(Report, WarnWritesOneLineAndGoesOn) {
  const SavedOptions saved;
  options.errors = kErrorsWarn;
  StderrCapture capture;
  report();
  EXPECT_EQ(capture.stop(), kWhole);
}

TEST(Report, IgnoreWritesNothing) {
  const SavedOptions saved;
  options.errors = kErrorsIgnore;
  StderrCapture capture;
  report();
  EXPECT_EQ(capture.stop(), "");
}

// An emulator has a line of its own to add.
TEST(ReportDeathTest, AbortIsTheDefaultAndWritesTheSameLine) {
  EXPECT_EQ(options.errors, kErrorsAbort);
  EXPECT_EXIT(report(), testing::KilledBySignal(SIGABRT),
              "^folio: free\\(0x7f0012345678\\): what is wrong \\(see docs/errors.md#some-anchor\\)\n(qemu: .*)?$");
}

}  // namespace
