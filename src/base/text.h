// Text without allocation: a fixed buffer that is filled piece by piece. For messages, statistics and options; safe in
// a signal handler. What does not fit is cut off.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace folio {

class Text {
 public:
  Text& operator<<(const char* s) {
    while (*s != '\0') put(*s++);
    return *this;
  }
  Text& operator<<(uint64_t n) {
    char digits[20];
    unsigned count = 0;
    do {
      digits[count++] = static_cast<char>('0' + n % 10);
      n /= 10;
    } while (n != 0);
    while (count != 0) put(digits[--count]);
    return *this;
  }
  Text& operator<<(const void* address) {
    const auto n = reinterpret_cast<uintptr_t>(address);
    *this << "0x";
    int shift = 60;
    while (shift > 0 && (n >> shift) == 0) shift -= 4;
    for (; shift >= 0; shift -= 4) put("0123456789abcdef"[(n >> shift) & 15]);
    return *this;
  }
  Text& put(const char* s, size_t length) {
    for (size_t i = 0; i < length; ++i) put(s[i]);
    return *this;
  }
  // Right-aligned in `width` columns.
  Text& column(uint64_t n, unsigned width) {
    unsigned digits = 1;
    for (uint64_t rest = n; rest >= 10; rest /= 10) ++digits;
    for (; digits < width; ++digits) put(' ');
    return *this << n;
  }
  void put(char c) {
    if (length_ < sizeof buffer_) buffer_[length_++] = c;
  }

  const char* data() const { return buffer_; }
  size_t length() const { return length_; }
  void clear() { length_ = 0; }

 private:
  char buffer_[1000];
  size_t length_ = 0;
};

}  // namespace folio
