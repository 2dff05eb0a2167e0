#include "bad.h"

namespace Bad {

constexpr int limit = 1;
int GlobalCount = 0;
enum class state_of { kOne, two };
union both {
  int one;
  float two;
};
using number = int;

template <class value>
class box {
 public:
  value Get() const { return item; }

 private:
  value item;
};

int Count(int *Pointer) {
  if (Pointer) return 0;
  return *Pointer;
}

}  // namespace Bad
