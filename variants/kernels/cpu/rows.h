// Rows of floats in ATen's vectors: their maximum, the entries near it, and sums of gathered rows.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnbench {
inline namespace CPU_CAPABILITY {

using Vec = at::vec::Vectorized<float>;
constexpr int64_t WIDTH = Vec::size();
constexpr float INF = std::numeric_limits<float>::infinity();

inline float sum(const Vec& x) {
  return at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return a + b; }, x);
}

inline void scale_row(float* row, int64_t n, float factor) {
  at::vec::map([factor](Vec x) { return x * Vec(factor); }, row, row, n);
}

inline int64_t whole_vectors(int64_t n) {
  return (n + WIDTH - 1) / WIDTH * WIDTH;
}

// Largest of n entries, n a multiple of WIDTH, -inf of none; NaN where one is NaN.
inline float row_max(const float* x, int64_t n) {
  // two chains, since a maximum waits for the one before it
  Vec first(-INF), second(-INF);
  int64_t j = 0;
  for (; j + 2 * WIDTH <= n; j += 2 * WIDTH) {
    first = at::vec::maximum(first, Vec::loadu(x + j));
    second = at::vec::maximum(second, Vec::loadu(x + j + WIDTH));
  }
  if (j < n) first = at::vec::maximum(first, Vec::loadu(x + j));
  return at::vec::vec_reduce_all<float>(
      [](Vec a, Vec b) { return at::vec::maximum(a, b); }, at::vec::maximum(first, second));
}

// Positions of the entries of one vector.
#if defined(CPU_CAPABILITY_AVX512)
using Positions = __m512i;

inline Positions positions_from(int64_t first) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(first)));
}

inline Positions load_positions(const int32_t* index) {
  return _mm512_loadu_si512(index);
}
#elif defined(CPU_CAPABILITY_AVX2)
using Positions = __m256i;

inline Positions positions_from(int64_t first) {
  return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int32_t>(first)));
}

inline Positions load_positions(const int32_t* index) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index));
}

// For each of the 256 sets of lanes, the order that moves them to the front.
struct Fronts {
  alignas(32) std::array<std::array<int32_t, 8>, 256> order{};
  constexpr Fronts() {
    for (int set = 0; set < 256; set++) {
      int at = 0;
      for (int lane = 0; lane < 8; lane++)
        if (set >> lane & 1) order[set][at++] = lane;
    }
  }
};
inline constexpr Fronts FRONTS{};
#else
using Positions = std::array<int32_t, WIDTH>;

inline Positions positions_from(int64_t first) {
  Positions positions;
  for (int64_t lane = 0; lane < WIDTH; lane++) positions[lane] = static_cast<int32_t>(first + lane);
  return positions;
}

inline Positions load_positions(const int32_t* index) {
  Positions positions;
  std::copy_n(index, WIDTH, positions.begin());
  return positions;
}
#endif

// Writes the values and positions of the lanes where `tested` > 0 to the front of both outputs, and returns how many
// they are. A whole vector is written to each.
inline int64_t compress(
    const Vec& tested, const Vec& values, const Positions& positions, float* kept, int32_t* index) {
#if defined(CPU_CAPABILITY_AVX512)
  const __mmask16 set = _mm512_cmp_ps_mask(tested, _mm512_setzero_ps(), _CMP_GT_OQ);
  _mm512_storeu_ps(kept, _mm512_maskz_compress_ps(set, values));
  _mm512_storeu_si512(index, _mm512_maskz_compress_epi32(set, positions));
  return __builtin_popcount(set);
#elif defined(CPU_CAPABILITY_AVX2)
  const int set = _mm256_movemask_ps(_mm256_cmp_ps(tested, _mm256_setzero_ps(), _CMP_GT_OQ));
  const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(FRONTS.order[set].data()));
  _mm256_storeu_ps(kept, _mm256_permutevar8x32_ps(values, order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(index), _mm256_permutevar8x32_epi32(positions, order));
  return __builtin_popcount(set);
#else
  float sign[WIDTH], value[WIDTH];
  tested.store(sign);
  values.store(value);
  int64_t count = 0;
  for (int64_t lane = 0; lane < WIDTH; lane++)
    if (sign[lane] > 0) {
      kept[count] = value[lane];
      index[count++] = positions[lane];
    }
  return count;
#endif
}

// Whether any lane is positive.
inline bool any_positive(const Vec& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ) != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ)) != 0;
#else
  return (x > Vec(0.0f)).zero_mask() != (1 << WIDTH) - 1;
#endif
}

// x - top and the position of each of n entries less than `reach` below `top`, n a multiple of WIDTH; returns how many.
// The outputs need room for n entries and a vector; the vector after the last is filled with -inf.
inline int64_t near(const float* x, int64_t n, float top, float reach, float* kept, int32_t* index) {
  // the difference first: top - reach would be rounded at the size of the scores
  const Vec highest(top), room(reach);
  int64_t count = 0, j = 0;
  const auto take = [&](const Vec& values) {
    const Vec below = values - highest;
    count += compress(below + room, below, positions_from(j), kept + count, index + count);
    j += WIDTH;
  };
  while (j + 4 * WIDTH <= n) {
    const Vec a = Vec::loadu(x + j), b = Vec::loadu(x + j + WIDTH);
    const Vec c = Vec::loadu(x + j + 2 * WIDTH), d = Vec::loadu(x + j + 3 * WIDTH);
    // few entries are candidates: four vectors are dismissed by one test
    const Vec largest = at::vec::maximum(at::vec::maximum(a, b), at::vec::maximum(c, d));
    if (!any_positive(largest - highest + room)) {
      j += 4 * WIDTH;
      continue;
    }
    take(a), take(b), take(c), take(d);
  }
  while (j < n) take(Vec::loadu(x + j));
  // readers take whole vectors
  Vec(-INF).store(kept + count);
  return count;
}

// out[0 .. V vectors) = sum of weights[x] * rows[index[x]].
template <int V>
inline void mix(const float* weights, const int32_t* index, int64_t count, const float* rows, int64_t stride, float* out) {
  Vec total[V];
  // V vectors of a row are summed in registers while the gathered rows pass by
  for (int v = 0; v < V; v++) total[v] = Vec(0.0f);
  for (int64_t x = 0; x < count; x++) {
    const float* row = rows + index[x] * stride;
    const Vec weight(weights[x]);
    for (int v = 0; v < V; v++) total[v] = at::vec::fmadd(weight, Vec::loadu(row + v * WIDTH), total[v]);
  }
  for (int v = 0; v < V; v++) total[v].store(out + v * WIDTH);
}

// products[x] (+)= grad · rows[index[x]], and sums[index[x]] += weights[x] * grad, over V vectors.
template <int V>
inline void dot_and_spread(
    const float* weights, const int32_t* index, int64_t count, const float* grad, const float* rows, float* sums,
    int64_t stride, bool add, float* products) {
  Vec given[V];
  for (int v = 0; v < V; v++) given[v] = Vec::loadu(grad + v * WIDTH);
  for (int64_t x = 0; x < count; x++) {
    const float* row = rows + index[x] * stride;
    float* total = sums + index[x] * stride;
    const Vec weight(weights[x]);
    // two sums, so that one multiply-add does not wait for the other
    Vec even(0.0f), odd(0.0f);
    for (int v = 0; v < V; v++) {
      Vec& part = v % 2 ? odd : even;
      part = at::vec::fmadd(given[v], Vec::loadu(row + v * WIDTH), part);
      at::vec::fmadd(weight, given[v], Vec::loadu(total + v * WIDTH)).store(total + v * WIDTH);
    }
    const float product = sum(even + odd);
    products[x] = add ? products[x] + product : product;
  }
}

// out = sum of weights[x] * rows[index[x]], and sums[index[x]] += weights[x] * grad, over V vectors.
template <int V>
inline void mix_and_spread(
    const float* weights, const int32_t* index, int64_t count, const float* grad, const float* rows, float* sums,
    int64_t stride, float* out) {
  Vec given[V], mixed[V];
  for (int v = 0; v < V; v++) {
    given[v] = Vec::loadu(grad + v * WIDTH);
    mixed[v] = Vec(0.0f);
  }
  for (int64_t x = 0; x < count; x++) {
    const float* row = rows + index[x] * stride;
    float* total = sums + index[x] * stride;
    const Vec weight(weights[x]);
    for (int v = 0; v < V; v++) {
      mixed[v] = at::vec::fmadd(weight, Vec::loadu(row + v * WIDTH), mixed[v]);
      at::vec::fmadd(weight, given[v], Vec::loadu(total + v * WIDTH)).store(total + v * WIDTH);
    }
  }
  for (int v = 0; v < V; v++) mixed[v].store(out + v * WIDTH);
}

// Calls work.template operator()<V>(offset) for pieces of V vectors that make up `columns`, a multiple of WIDTH.
template <typename Work>
inline void by_columns(int64_t columns, const Work& work) {
  int64_t at = 0;
  for (; at + 4 * WIDTH <= columns; at += 4 * WIDTH) work(std::integral_constant<int, 4>(), at);
  for (; at + 2 * WIDTH <= columns; at += 2 * WIDTH) work(std::integral_constant<int, 2>(), at);
  for (; at < columns; at += WIDTH) work(std::integral_constant<int, 1>(), at);
}

}  // namespace CPU_CAPABILITY
}  // namespace attnbench
