// factor: a number is factored by continued fractions, on numbers that are all allocated by malloc.
//
// Source: in the manner of cfrac, which allocators have been measured by since Zorn and Grunwald and which Evans'
// announcement of jemalloc (2005) reports. The method: Morrison and Brillhart, "A method of factoring and the
// factorization of F7", Mathematics of Computation 29, 1975. Written anew; figures of the original are not comparable.
//
// Stresses: tens of millions of objects of 8 to 40 bytes that live for a moment, in one thread; few that stay.
//
// n = p * q. The continued fraction of the square root of n gives A and Q with A^2 = +-Q (mod n) and Q below
// 2 sqrt(n). Those Q that have only primes of the factor base are kept, until some of them must have a product that is
// a square: A^2 = B^2, and gcd(A + B, n) may be a factor. Each trial division of Q makes a new quotient, used or not.
//
// All is checked: each relation as it is found, both sides of the last congruence, and that the factors multiply to n.

#include <vector>

#include "bench.h"
#include "number.h"

namespace {

using bench::Number;
using bench::Param;

Param p{"p", 100000000000000003, "one factor, a prime"};
Param q{"q", 300000000000000011, "the other factor, another prime"};
Param base_size{"base", 200, "primes in the factor base"};

constexpr size_t kSpare = 10;  // relations beyond those that must be dependent; each fails once in two

// A^2 = (-1)^exponents[0] * product of primes[i]^exponents[i + 1] (mod n)
struct Relation {
  Number a;
  std::vector<uint8_t> exponents;
};

struct Factoring {
  Number n;
  std::vector<uint32_t> primes;
  std::vector<Relation> relations;
  uint64_t steps = 0;
};

uint64_t power(uint64_t x, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  for (; exponent != 0; exponent >>= 1, x = x * x % modulus) {
    if (exponent & 1) result = result * x % modulus;
  }
  return result;
}

bool is_prime(uint32_t x) {
  for (uint32_t d = 2; d * d <= x; ++d) {
    if (x % d == 0) return false;
  }
  return true;
}

// Only primes of which n is a square can divide a Q.
void choose_primes(Factoring *f) {
  f->primes.push_back(2);
  for (uint32_t x = 3; f->primes.size() < base_size; x += 2) {
    if (!is_prime(x)) continue;
    uint32_t rest;
    f->n.divided(x, &rest);
    if (rest != 0 && power(rest, (x - 1) / 2, x) == 1) f->primes.push_back(x);
  }
}

bool divides_out(const std::vector<uint32_t> &primes, const Number &value, std::vector<uint8_t> *exponents) {
  Number rest = value.copy();
  for (size_t i = 0; i < primes.size() && !rest.is(1); ++i) {
    for (;;) {
      uint32_t remainder;
      Number quotient = rest.divided(primes[i], &remainder);
      if (remainder != 0) break;
      rest = std::move(quotient);
      ++(*exponents)[i + 1];
    }
  }
  return rest.is(1);
}

void check(const Factoring &f, const Relation &relation, const Number &value) {
  Number square = relation.a * relation.a % f.n;
  if (relation.exponents[0] != 0) square = f.n - square;
  if (Number::compare(square, value % f.n) != 0) bench::die("a relation does not hold");
}

// The recurrences of the paper; names as there, with the index before in `old_`.
void find_relations(Factoring *f) {
  const size_t wanted = f->primes.size() + 1 + kSpare;
  const Number g = f->n.square_root();
  Number old_a(0), a(1), big_p(0), old_q = f->n.copy(), big_q(1);
  std::vector<uint8_t> exponents(f->primes.size() + 1);
  bool negative = false;
  while (f->relations.size() < wanted) {
    const Number partial = (g + big_p) / big_q;
    Number next_a = (partial * a + old_a) % f->n;
    old_a = std::move(a);
    a = std::move(next_a);
    Number next_p = partial * big_q - big_p;
    Number next_q =
        Number::compare(big_p, next_p) >= 0 ? old_q + partial * (big_p - next_p) : old_q - partial * (next_p - big_p);
    old_q = std::move(big_q);
    big_q = std::move(next_q);
    big_p = std::move(next_p);
    negative = !negative;
    ++f->steps;
    if (big_q.is(1))
      bench::die("the continued fraction has a period of only %llu; choose other factors",
                 static_cast<unsigned long long>(f->steps));
    exponents.assign(exponents.size(), 0);
    if (!divides_out(f->primes, big_q, &exponents)) continue;
    exponents[0] = negative;
    f->relations.push_back({a.copy(), exponents});
    check(*f, f->relations.back(), big_q);
  }
}

// Of the relations `used`, whose product is a square on both sides: a factor, or n or 1 if there is no luck.
Number factor_of(const Factoring &f, const std::vector<bool> &used) {
  Number left(1), right(1);
  std::vector<uint32_t> sums(f.primes.size() + 1);
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    left = left * f.relations[i].a % f.n;
    for (size_t k = 0; k < sums.size(); ++k) sums[k] += f.relations[i].exponents[k];
  }
  for (size_t k = 0; k < sums.size(); ++k) {
    if (sums[k] % 2 != 0) bench::die("a product is no square");
    if (k == 0) continue;
    const Number prime(f.primes[k - 1]);
    for (uint32_t i = 0; i < sums[k] / 2; ++i) right = right * prime % f.n;
  }
  if (Number::compare(left * left % f.n, right * right % f.n) != 0) bench::die("a congruence does not hold");
  return Number::gcd(left + right, f.n.copy());
}

// Gaussian elimination over the exponents modulo 2; each row remembers the relations that it is the sum of.
Number solve(const Factoring &f) {
  struct Row {
    std::vector<bool> odd, used;
  };
  const size_t count = f.relations.size(), columns = f.primes.size() + 1;
  std::vector<Row> rows(count);
  for (size_t i = 0; i < count; ++i) {
    rows[i] = {std::vector<bool>(columns), std::vector<bool>(count)};
    rows[i].used[i] = true;
    for (size_t k = 0; k < columns; ++k) rows[i].odd[k] = f.relations[i].exponents[k] % 2 != 0;
  }
  const auto add = [](std::vector<bool> *to, const std::vector<bool> &from) {
    for (size_t i = 0; i < to->size(); ++i) (*to)[i] = (*to)[i] != from[i];
  };
  size_t pivots = 0;
  for (size_t k = 0; k < columns; ++k) {
    size_t pivot = pivots;
    while (pivot < count && !rows[pivot].odd[k]) ++pivot;
    if (pivot == count) continue;
    std::swap(rows[pivot], rows[pivots]);
    for (size_t i = pivots + 1; i < count; ++i) {
      if (!rows[i].odd[k]) continue;
      add(&rows[i].odd, rows[pivots].odd);
      add(&rows[i].used, rows[pivots].used);
    }
    ++pivots;
  }
  for (size_t i = pivots; i < count; ++i) {
    Number factor = factor_of(f, rows[i].used);
    if (!factor.is(1) && Number::compare(factor, f.n) != 0) return factor;
  }
  bench::die("no dependency gave a factor; choose another base");
}

}  // namespace

int main(int argc, char **argv) {
  bench::parse(argc, argv, {&p, &q, &base_size});
  if (p < 3 || q < 3 || p == q || base_size < 8) bench::die("%s: p and q are two primes, base at least 8", argv[0]);
  const uint64_t begin = bench::now_ns();
  Factoring f{Number(p) * Number(q), {}, {}};
  choose_primes(&f);
  find_relations(&f);
  const Number one = solve(f), other = f.n / one;
  const double seconds = bench::seconds_since(begin);
  const uint64_t numbers = Number::allocated;
  if (Number::compare(one * other, f.n) != 0) bench::die("the factors do not multiply to n");
  const Number given(p);
  if (Number::compare(one, given) != 0 && Number::compare(other, given) != 0) bench::die("these are not p and q");
  bench::Json("factor")
      .speed(seconds, numbers)
      .param(p)
      .param(q)
      .param(base_size)
      .count("numbers", numbers)
      .count("steps", f.steps)
      .count("relations", f.relations.size())
      .print();
}
