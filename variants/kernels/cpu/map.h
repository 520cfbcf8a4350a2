// A map of scores to weights, elementwise: what `written.py` writes for one, and what the tiles call. Vectors of floats.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
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

inline Vec select(const Vec& condition, const Vec& yes, const Vec& no) { return Vec::blendv(no, yes, condition); }

// within one unit of the last place: a map may subtract exponentials, and then their rounding is all that is left
inline Vec exp(const Vec& x) { return x.exp(); }

inline Vec sigmoid(const Vec& x) { return Vec(1.0f) / (Vec(1.0f) + exp(x.neg())); }

inline Vec sign(const Vec& x) {
  const Vec zero(0.0f);
  return select(x > zero, Vec(1.0f), select(x < zero, Vec(-1.0f), x));
}

inline float total_of(const Vec& x) {
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return a + b; }, x);
}

}  // namespace map
}  // namespace CPU_CAPABILITY
}  // namespace attnbench
