#include "policy/cgroup.h"

#include "unit/policy/files.h"
#include "unit/support.h"

using namespace folio;
using namespace folio_test;

namespace {

constexpr char kV2Mount[] = "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
constexpr char kV1Mount[] = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

MemoryCgroup found() {
  MemoryCgroup cgroup;
  find_memory_cgroup(&cgroup);
  return cgroup;
}

TEST(Cgroup, TheSmallestLimitOnThePathCounts) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "0::/pod/container/worker\n");
  files.write("/proc/self/mountinfo", std::string("22 1 8:1 / / rw - ext4 /dev/sda rw\n").append(kV2Mount));
  const std::string at = "/sys/fs/cgroup";
  files.write(at + "/pod/memory.max", "900000000\n");
  files.write(at + "/pod/container/memory.max", "800000000\n");
  files.write(at + "/pod/container/worker/memory.max", "max\n");
  EXPECT_TRUE(found().known);
  EXPECT_EQ(found().limit, 800000000);
  EXPECT_STREQ(found().folder, "/sys/fs/cgroup/pod/container/worker");
  files.write(at + "/pod/container/worker/memory.high", "700000000\n");
  EXPECT_EQ(found().limit, 700000000);
  files.write(at + "/pod/memory.high", "600000000\n");
  EXPECT_EQ(found().limit, 600000000);
}

TEST(Cgroup, NoLimitIsZero) {
  const FakeFiles files;
  files.write_container("max");
  EXPECT_TRUE(found().known);
  EXPECT_EQ(found().limit, 0);
  files.write_container("0");  // no process could be in it
  EXPECT_EQ(found().limit, 0);
}

TEST(Cgroup, InANamespaceTheMountIsTheProcesssOwn) {
  const FakeFiles files;
  files.write_container("500000000");
  EXPECT_EQ(found().limit, 500000000);
  EXPECT_STREQ(found().folder, "/sys/fs/cgroup");
}

TEST(Cgroup, WithoutANamespaceTheMountIsAPartOfTheHierarchy) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "5:cpu,cpuacct:/docker/4711\n4:memory:/docker/4711\n");
  files.write("/proc/self/mountinfo",
              "34 31 0:31 /docker/4711 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
              "35 31 0:32 /docker/4711 /sys/fs/cgroup/memory ro,relatime master:9 - cgroup cgroup rw,memory\n");
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "400000000\n");
  files.write("/sys/fs/cgroup/cpu/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(found().limit, 400000000);
  EXPECT_STREQ(found().folder, "");
  // A name that only begins alike is another cgroup; what is mounted is all that there is then.
  files.write("/proc/self/cgroup", "4:memory:/docker/47112\n");
  files.write("/sys/fs/cgroup/memory2/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(found().limit, 400000000);
}

TEST(Cgroup, Version1HasNumbersForNoLimit) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "4:memory:/a/b\n0::/\n");
  files.write("/proc/self/mountinfo", kV1Mount);
  files.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  files.write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_TRUE(found().known);
  EXPECT_EQ(found().limit, 0);
  files.write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "300000000\n");
  EXPECT_EQ(found().limit, 300000000);
}

TEST(Cgroup, HybridMountsAreBothRead) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "4:memory:/v1\n1:name=systemd:/x\n0::/v2\n");
  files.write("/proc/self/mountinfo",
              std::string(kV1Mount).append("41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"));
  files.write("/sys/fs/cgroup/memory/v1/memory.limit_in_bytes", "300000000\n");
  EXPECT_EQ(found().limit, 300000000);
  EXPECT_STREQ(found().folder, "/sys/fs/cgroup/unified/v2");
  files.write("/sys/fs/cgroup/unified/v2/memory.max", "200000000\n");
  EXPECT_EQ(found().limit, 200000000);
}

TEST(Cgroup, WhatLiesAboveTheNamespaceIsNotIt) {
  const FakeFiles files;
  files.write_container("500000000");
  files.write("/proc/self/mountinfo",
              "50 23 0:26 /.. /host/sys/fs/cgroup ro - cgroup2 cgroup rw\n"
              "51 23 0:26 /../other /else ro - cgroup2 cgroup rw\n"
              "31 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  files.write("/host/sys/fs/cgroup/memory.max", "100\n");
  files.write("/else/memory.max", "100\n");
  EXPECT_EQ(found().limit, 500000000);
  EXPECT_STREQ(found().folder, "/sys/fs/cgroup");
}

// As after `unshare -C` without a new mount. It had been told to have no limit.
TEST(Cgroup, WithoutAMountOfItsOwnNothingIsKnown) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "4:memory:/\n0::/\n");
  files.write("/proc/self/mountinfo",
              "36 31 0:33 /.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
              "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  EXPECT_FALSE(found().known) << "memory is not in version 2";
  files.write("/proc/self/cgroup", "0::/\n");
  files.write("/proc/self/mountinfo", "41 31 0:38 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  EXPECT_FALSE(found().known);
  files.write("/proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/root rw\n");
  EXPECT_FALSE(found().known);
}

TEST(Cgroup, NamesOfMountsAreDecoded) {
  const FakeFiles files;
  files.write("/proc/self/cgroup", "0::/a\n");
  files.write("/proc/self/mountinfo", "31 23 0:26 / /sys/my\\040cgroup rw - cgroup2 none rw\n");
  files.write("/sys/my cgroup/a/memory.max", "12345678\n");
  EXPECT_EQ(found().limit, 12345678);
}

TEST(Cgroup, FilesThatAreNotThereOrSayNothing) {
  const FakeFiles files;
  EXPECT_FALSE(found().known);
  files.write("/proc/self/cgroup", "2:cpu:/\n");  // memory is in no cgroup
  files.write("/proc/self/mountinfo", kV1Mount);
  EXPECT_FALSE(found().known);
  files.write("/proc/self/cgroup", "0::/\n");
  files.remove("/proc/self/mountinfo");
  EXPECT_FALSE(found().known);
  files.write("/proc/self/mountinfo", kV2Mount);
  files.write("/sys/fs/cgroup/memory.max", "");
  EXPECT_TRUE(found().known);
  EXPECT_EQ(found().limit, 0);
}

TEST(Cgroup, GarbageIsSurvived) {
  const FakeFiles files;
  std::mt19937 random(5);
  const std::string alphabet = "0:/ -\\\n,memorycgroup2 .";
  for (unsigned round = 0; round < rounds(300); ++round) {
    std::string cgroup = "0::/a\n4:memory:/", mounts = round % 2 == 0 ? kV2Mount : kV1Mount;
    for (std::string* text : {&cgroup, &mounts}) {
      for (unsigned i = random() % 200; i > 0; --i) {
        text->insert(random() % (text->size() + 1), 1, alphabet[random() % alphabet.size()]);
      }
    }
    files.write("/proc/self/cgroup", cgroup + "/" + std::string(random() % 3000, 'x'));
    files.write("/proc/self/mountinfo", mounts + std::string(random() % 9000, 'y'));
    EXPECT_EQ(found().limit, 0);
  }
}

TEST(Cgroup, NumberIn) {
  const auto n = [](const std::string& text) { return number_in(text.data(), text.size()); };
  EXPECT_EQ(n("0"), 0);
  EXPECT_EQ(n("123\n"), 123);
  EXPECT_EQ(n("max"), -1);
  EXPECT_EQ(n(""), -1);
  EXPECT_EQ(n("1152921504606846975"), (int64_t{1} << 60) - 1);
  EXPECT_EQ(n("1152921504606846976"), -1);
  EXPECT_EQ(n("99999999999999999999999999"), -1);
}

}  // namespace
