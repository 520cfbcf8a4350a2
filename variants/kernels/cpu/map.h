// A map of scores to weights, elementwise: what `written.py` writes for one, and what the tiles call. Vectors of floats.
#pragma once

// not a part of vec.h where vectors have 512 bits
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace attnbench {

// The functions of a map over one row of a tile. `rows`: numbers that all keys of a query share.
struct Map {
  // whether weights are divided by a sum over the keys, and whether that is taken less the largest score, `rows[0]`
  bool sums, tops;
  // numbers of a query in the forward, in the backward, and those of which a gradient is asked
  int64_t forward_rows, backward_rows, learned;
  // n scores of one query become weights, not yet divided; what they are divided by is added to `total`
  void (*weigh)(float scale, int64_t n, float* x, const float* rows, float* total);
  // Scores of one key and n queries become weights; `gradients` of the weights become those of the scores, scaled.
  // `inverse`: one over the sum of each query; `of_sum`: the gradient of the sum; to_rows[k] + at are added to.
  void (*differentiate)(float scale, int64_t n, float* x, float* gradients, const float* const* rows, int64_t at,
                        const float* inverse, const float* of_sum, float* const* to_rows);
};

inline namespace CPU_CAPABILITY {
namespace map {

using Vec = at::vec::Vectorized<float>;

inline Vec load(const float* from, int64_t lanes) {
  return lanes == Vec::size() ? Vec::loadu(from) : Vec::loadu(from, lanes);
}

inline void store(const Vec& x, float* to, int64_t lanes) {
  lanes == Vec::size() ? x.store(to) : x.store(to, lanes);
}

// Calls work(offset, lanes) for the vectors that n entries make up; the last may be short.
template <typename Work>
inline void by_vectors(int64_t n, const Work& work) {
  int64_t j = 0;
  for (; j + Vec::size() <= n; j += Vec::size()) work(j, int64_t{Vec::size()});
  if (j < n) work(j, n - j);
}

// The functions of written text, by the names of PyTorch's operators; `maximum` and `minimum` are those of at::vec, which
// let NaN through.

inline Vec number(double x) { return Vec(static_cast<float>(x)); }

#define ATTNBENCH_UNARY(name) \
  inline Vec name(const Vec& x) { return x.name(); }
ATTNBENCH_UNARY(neg)
ATTNBENCH_UNARY(abs)
ATTNBENCH_UNARY(reciprocal)
ATTNBENCH_UNARY(sqrt)
ATTNBENCH_UNARY(rsqrt)
// within one unit of the last place: a map may subtract exponentials, and then their rounding is all that is left
ATTNBENCH_UNARY(exp)
ATTNBENCH_UNARY(exp2)
ATTNBENCH_UNARY(expm1)
ATTNBENCH_UNARY(log)
ATTNBENCH_UNARY(log2)
ATTNBENCH_UNARY(log10)
ATTNBENCH_UNARY(log1p)
ATTNBENCH_UNARY(sin)
ATTNBENCH_UNARY(cos)
ATTNBENCH_UNARY(asin)
ATTNBENCH_UNARY(acos)
ATTNBENCH_UNARY(atan)
ATTNBENCH_UNARY(sinh)
ATTNBENCH_UNARY(cosh)
ATTNBENCH_UNARY(tanh)
ATTNBENCH_UNARY(erf)
ATTNBENCH_UNARY(erfc)
ATTNBENCH_UNARY(floor)
ATTNBENCH_UNARY(ceil)
ATTNBENCH_UNARY(trunc)
ATTNBENCH_UNARY(round)
#undef ATTNBENCH_UNARY

inline Vec pow(const Vec& x, const Vec& y) { return x.pow(y); }

// a condition is a vector of bits
inline Vec where(const Vec& condition, const Vec& yes, const Vec& no) { return Vec::blendv(no, yes, condition); }

inline Vec logical_not(const Vec& condition) {
  // not compared with itself: the bits of true are those of NaN
  return condition ^ (Vec(0.0f) == Vec(0.0f));
}

inline Vec as_number(const Vec& condition) { return condition & Vec(1.0f); }

inline Vec relu(const Vec& x) { return at::vec::maximum(x, Vec(0.0f)); }

inline Vec sigmoid(const Vec& x) { return Vec(1.0f) / (Vec(1.0f) + exp(x.neg())); }

inline Vec sign(const Vec& x) {
  const Vec zero(0.0f);
  return where(x > zero, Vec(1.0f), where(x < zero, Vec(-1.0f), x));
}

inline Vec threshold_backward(const Vec& gradient, const Vec& x, const Vec& threshold) {
  return where(x <= threshold, Vec(0.0f), gradient);
}

inline Vec sigmoid_backward(const Vec& gradient, const Vec& y) { return gradient * y * (Vec(1.0f) - y); }

inline Vec tanh_backward(const Vec& gradient, const Vec& y) { return gradient * (Vec(1.0f) - y * y); }

inline float total_of(const Vec& x) {
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return a + b; }, x);
}

}  // namespace map
}  // namespace CPU_CAPABILITY
}  // namespace attnbench
