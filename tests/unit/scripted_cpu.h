// For tests of what depends on the number of the CPU, on machines that have few: os::cpu() is replaced when linking
// (tests/CMakeLists.txt sees that this header is included).
#pragma once

namespace folio_test {

// What os::cpu() returns to the calling thread; null: the truth.
inline unsigned (*cpu_of_thread)() = nullptr;

}  // namespace folio_test

extern "C" unsigned folio_true_cpu() __asm__("__real__ZN5folio2os3cpuEv");
extern "C" unsigned folio_scripted_cpu() __asm__("__wrap__ZN5folio2os3cpuEv");
extern "C" unsigned folio_scripted_cpu() {
  return folio_test::cpu_of_thread != nullptr ? folio_test::cpu_of_thread() : folio_true_cpu();
}
