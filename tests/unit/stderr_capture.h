// What is written to file descriptor 2 meanwhile, by raw writes too; and words of reports.
#pragma once

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <string>

#include "config/size_classes.h"

namespace folio_test {

inline std::string hex(const void* address) {
  char text[32];
  snprintf(text, sizeof text, "%p", address);
  return text;
}

inline std::string object_words(folio::BinId bin) {
  return std::to_string(info_of(bin).size) + "-byte object (bin " + std::to_string(index(bin)) + ")";
}

class StderrCapture {
 public:
  StderrCapture() : file_(tmpfile()), before_(dup(2)) {
    EXPECT_NE(file_, nullptr);
    EXPECT_EQ(dup2(fileno(file_), 2), 2);
  }
  ~StderrCapture() { stop(); }
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;

  // Ends the capture; what was written since it began.
  std::string stop() {
    if (file_ == nullptr) return text_;
    dup2(before_, 2);
    close(before_);
    char piece[4096];
    off_t at = 0;
    for (ssize_t n; (n = pread(fileno(file_), piece, sizeof piece, at)) > 0; at += n) {
      text_.append(piece, static_cast<size_t>(n));
    }
    fclose(file_);
    file_ = nullptr;
    return text_;
  }

 private:
  FILE* file_;
  int before_;
  std::string text_;
};

}  // namespace folio_test
