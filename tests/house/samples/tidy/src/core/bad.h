#pragma once

#define bad_macro 1
struct in_header {
  int Member;
};
