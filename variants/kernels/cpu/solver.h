// Thresholds of sparsemax, entmax and top-k on the few candidates of one row; weights and factors from a threshold.
//
// The methods are those of ops/thresholds.py: Newton on the norm of what is above the threshold, from max - 1, which stays
// below the root, so that the candidates above max - 1 always contain the support.
//
// Everything is measured from the maximum of the row. A threshold in the scores' own size would be rounded to their
// spacing, 0.06 at a million, while weights of n equal scores ask for it to a part of 1 / n.
#pragma once

#include "rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

namespace attnbench {
inline namespace CPU_CAPABILITY {

// sparsemax and entmax15 work on scores times alpha - 1; entmax, any alpha from 1 to 2, and topk on the scores themselves.
// `e` below is alpha - 1, and for topk the number of scores that are kept.
enum class Kind { sparsemax, entmax15, entmax, topk };

// What the backward needs of a row: the maximum of its scaled scores, NaN where a score is none and infinite where
// there is no key; and the threshold less that maximum, or for `entmax` kappa = -ln max p. inverse: for topk, one over the
// sum of the exponentials.
struct Level {
  float top, threshold, inverse;
};

constexpr float TINY = std::numeric_limits<float>::min();
constexpr float EPSILON = std::numeric_limits<float>::epsilon();
// far above the eleven steps of the hardest rows found; only a NaN would go on
constexpr int MOST_STEPS = 64;
// candidates of a row from which a pass for a better start of Newton's method saves more passes than it costs
constexpr int64_t MANY = 128;

// Largest step after which the threshold is right to the last bits: the error that is left is of order `order` in it.
inline float tolerance(float order) {
  return std::max(std::pow(1e-4f * EPSILON, order), 4 * EPSILON);
}

// Calls work(chain, entry) for the vectors that hold `count` entries. Four chains of sums do not wait for one another, and
// shorter ones round less: weights of equal scores are all rounded to the same side.
template <typename Work>
inline void in_chains(int64_t count, const Work& work) {
  int64_t x = 0;
  for (; x + 4 * WIDTH <= count; x += 4 * WIDTH)
    for (int chain = 0; chain < 4; chain++) work(chain, x + chain * WIDTH);
  // no chain by a number that is not known here: the sums would leave the registers
  for (; x < count; x += WIDTH) work(0, x);
}

inline float sum(const std::array<Vec, 4>& chains) {
  return sum((chains[0] + chains[1]) + (chains[2] + chains[3]));
}

// z: `count` candidates above max - 1 less the maximum, filled up with -inf; returns the threshold, from -1 to 0.
inline float sparsemax_threshold(const float* z, int64_t count) {
  float t = -1.0f, before = 0.0f;
  const Vec zero(0.0f), one(1.0f);
  for (int step = 0; step < MOST_STEPS; step++) {
    std::array<Vec, 4> excess{zero, zero, zero, zero}, members = excess;
    const Vec bound(t);
    in_chains(count, [&](int chain, int64_t x) {
      const Vec over = Vec::loadu(z + x) - bound;
      excess[chain] = excess[chain] + at::vec::maximum(over, zero);
      members[chain] = members[chain] + ((over > zero) & one);
    });
    const float size = sum(members), change = (sum(excess) - 1.0f) / std::max(size, 1.0f);
    t += change;
    // the step from a support that stays is exact; a bound on its length would count once for each key
    if (size == before || !(change > 0.0f)) break;
    before = size;
  }
  return t;
}

// Where sum (z - t)^2 over all candidates is 1: the threshold itself where all are in the support, and else above it.
inline float everybodys_threshold(const float* z, int64_t count) {
  const Vec zero(0.0f), one(1.0f);
  std::array<Vec, 4> sums{zero, zero, zero, zero}, squares = sums;
  in_chains(count, [&](int chain, int64_t x) {
    // from max - 1, below which the filling lies: a start may be as coarse as that
    const Vec over = at::vec::maximum(Vec::loadu(z + x) + one, zero);
    sums[chain] = sums[chain] + over;
    squares[chain] = at::vec::fmadd(over, over, squares[chain]);
  });
  const float n = static_cast<float>(count), mean = sum(sums) / n, spread = sum(squares) - n * mean * mean;
  // the smaller root of n t^2 - 2 t sum z + sum z^2 = 1; with a spread of 1 or more not all can be in the support
  return spread < 1.0f ? mean - std::sqrt((1.0f - spread) / n) - 1.0f : -1.0f;
}

// z and the result as for sparsemax. A step of Newton's method on a norm, which is convex, ends below the root from
// wherever it starts; many candidates are worth a start that may be above it.
inline float entmax15_threshold(const float* z, int64_t count) {
  float t = count > MANY ? std::max(everybodys_threshold(z, count), -1.0f) : -1.0f;
  const float enough = tolerance(0.5f);
  const Vec zero(0.0f);
  for (int step = 0; step < MOST_STEPS; step++) {
    std::array<Vec, 4> squares{zero, zero, zero, zero}, sums = squares;
    const Vec bound(t);
    in_chains(count, [&](int chain, int64_t x) {
      const Vec over = at::vec::maximum(Vec::loadu(z + x) - bound, zero);
      squares[chain] = at::vec::fmadd(over, over, squares[chain]);
      sums[chain] = sums[chain] + over;
    });
    const float norm = std::sqrt(sum(squares));
    // a step of Newton's method on the norm: its slope is -sum / norm
    const float change = (norm - 1.0f) * norm / std::max(sum(sums), TINY);
    // the largest entry alone has weight 1 at -1: no threshold is lower
    t = std::max(t + change, -1.0f);
    if (!(std::abs(change) > enough)) break;
  }
  return t;
}

// c in (1 + c w)^(1/e), the weight of a score w below the maximum as a multiple of the largest.
inline float slope_of(float e, float kappa) {
  return std::min(e * std::exp(e * kappa), std::numeric_limits<float>::max());
}

// w: `count` candidates less their maximum, filled up with -inf. Those that drop out on the way are taken away, since
// the threshold never falls again; what is left and `count` are returned in place, and kappa = -ln max p.
inline float entmax_level(float* w, int32_t* index, int64_t& count, float e) {
  const Vec power(std::max(1.0f / e - 1.0f, 1e-30f)), one(1.0f), zero(0.0f);
  const float enough = tolerance(std::max(e, 0.5f));
  float kappa = 0.0f;
  for (int step = 0; step < MOST_STEPS; step++) {
    const Vec slope(slope_of(e, kappa)), lowest(-1.0f);
    Vec slopes(0.0f), totals(0.0f);
    int64_t left = 0;
    for (int64_t x = 0; x < count; x += WIDTH) {
      const Vec score = Vec::loadu(w + x), inside = at::vec::maximum(score * slope, lowest), base = one + inside;
      const Vec powers = (inside.log1p() * power).exp();
      slopes = slopes + powers;
      totals = at::vec::fmadd(powers, base, totals);
      // what is at -1 has weight zero and stays there, since kappa only grows; log1p and exp of it are saved from now
      // on
      left += compress(inside - lowest, score, load_positions(index + x), w + left, index + left);
    }
    count = left;
    // the last vector is filled up, as at the start: -inf weighs nothing
    Vec(-INF).store(w + count);
    const float total = std::max(sum(totals), TINY);
    const float ratio = total / std::max(sum(slopes), TINY);
    // the step for kappa, as in thresholds.entmax; log1p and expm1 keep its digits for small e
    const float change = -std::log1p(ratio * std::expm1(-e * (std::log(total) - kappa))) / e;
    kappa += change;
    if (!(change > enough)) break;
  }
  return kappa;
}

// A number that at least k of n scores reach, n a multiple of WIDTH: the k-th of the largest of groups. -inf where so many
// are not finite. `room`: as long as n.
inline float bound_of_largest(const float* x, int64_t n, int64_t k, float* room) {
  // twice as many groups as are asked for: of equal distributions 1.4 k of all scores lie above
  const int64_t groups = whole_vectors(2 * k);
  if (n <= groups) return -INF;
  for (int64_t g = 0; g < groups; g += WIDTH) {
    Vec largest = Vec::loadu(x + g);
    for (int64_t j = g + groups; j < n; j += groups) largest = at::vec::maximum(largest, Vec::loadu(x + j));
    largest.store(room + g);
  }
  std::nth_element(room, room + k - 1, room + groups, std::greater<float>());
  return room[k - 1];
}

// The weights of scores less the maximum of their row, by its level.
template <Kind M>
struct Weights {
  Vec threshold, slope, power, factor;

  Weights(const Level& level, float e)
      : threshold(level.threshold),
        slope(M == Kind::entmax ? slope_of(e, level.threshold) : 0.0f),
        power(M == Kind::entmax ? 1.0f / e : 0.0f),
        factor(M == Kind::entmax ? std::exp(-level.threshold) : level.inverse) {}

  Vec operator()(const Vec& z) const {
    if constexpr (M == Kind::topk) {
      return Vec::blendv(Vec(0.0f), z.exp() * factor, z >= threshold);
    } else if constexpr (M == Kind::entmax) {
      const Vec inside = at::vec::maximum(z * slope, Vec(-1.0f));
      return (inside.log1p() * power).exp() * factor;
    } else {
      const Vec over = at::vec::maximum(z - threshold, Vec(0.0f));
      return M == Kind::sparsemax ? over : over * over;
    }
  }
};

// The reach of `near` that takes what lies at `z` below the maximum as well.
inline float just_past(float z) {
  return std::max(std::nextafter(-z, INF), TINY);
}

// The threshold of topk: the k-th largest of `count` scores less the maximum, the smallest of fewer.
inline float kth_largest(const float* z, int64_t count, int64_t k, float* room) {
  std::copy_n(z, count, room);
  const int64_t last = std::min(k, count) - 1;
  std::nth_element(room, room + last, room + count, std::greater<float>());
  return room[last];
}

// z: filled up with -inf.
inline float sum_of_weights(const float* z, int64_t count, const Level& level) {
  const Weights<Kind::topk> weigh(level, 0.0f);
  Vec total(0.0f);
  for (int64_t x = 0; x < count; x += WIDTH) total = total + weigh(Vec::loadu(z + x));
  return sum(total);
}

// g = p^(2 - alpha) on the support, 0 elsewhere: dp/ds = diag(g) - g g^T / sum g.
template <Kind M>
inline Vec factor(const Vec& weight, float e) {
  const Vec zero(0.0f);
  if constexpr (M == Kind::sparsemax) return (weight > zero) & Vec(1.0f);
  if constexpr (M == Kind::entmax15) return weight.sqrt();
  // softmax is the limit of alpha = 1
  if constexpr (M == Kind::topk) return weight;
  return Vec::blendv(zero, (weight.log() * Vec(1.0f - e)).exp(), weight > zero);
}

// Leaves of n scores, a multiple of WIDTH, the weights and positions of those with weight; returns how many they are,
// and the level of the row. `top` is their maximum, finite. The outputs, and `room`, need place for n entries and a vector.
template <Kind M>
inline int64_t solve(const float* scores, int64_t n, float top, float e, float* kept, int32_t* index, float* room, Level& level) {
  // no entry this far below the maximum can have weight, wherever the threshold will be
  float reach = M == Kind::entmax ? 1.0f / e : 1.0f;
  const auto k = static_cast<int64_t>(e);
  if constexpr (M == Kind::topk) reach = just_past(bound_of_largest(scores, n, k, room) - top);
  int64_t count = near(scores, n, top, reach, kept, index), size = 0;
  level = {top, 0.0f, 1.0f};
  if constexpr (M == Kind::topk)
    level.threshold = kth_largest(kept, count, k, room), level.inverse = 1.0f / sum_of_weights(kept, count, level);
  else if constexpr (M == Kind::entmax)
    level.threshold = entmax_level(kept, index, count, e);
  else
    level.threshold = M == Kind::sparsemax ? sparsemax_threshold(kept, count) : entmax15_threshold(kept, count);
  const Weights<M> weigh(level, e);
  for (int64_t x = 0; x < count; x += WIDTH) {
    const Vec weights = weigh(Vec::loadu(kept + x));
    // candidates that turned out to have no weight fall out; in place, since writing never passes reading
    size += compress(weights, weights, load_positions(index + x), kept + size, index + size);
  }
  return size;
}

// The same from a level that is known.
template <Kind M>
inline int64_t support(const float* scores, int64_t n, const Level& level, float e, float* kept, int32_t* index) {
  // of entmax, where 1 + c z is zero; a score at the threshold of topk is kept
  const float reach = M == Kind::entmax ? 1.0f / slope_of(e, level.threshold)
                      : M == Kind::topk ? just_past(level.threshold)
                                        : -level.threshold;
  const int64_t count = near(scores, n, level.top, reach, kept, index);
  const Weights<M> weigh(level, e);
  for (int64_t x = 0; x < count; x += WIDTH) weigh(Vec::loadu(kept + x)).store(kept + x);
  return count;
}

// (exp(y) - 1 - y) / y^2, for 0 <= y <= 1/2 by its series, to the last bit of float32.
inline Vec remainder(const Vec& y) {
  Vec total(1.0f / 39916800.0f);
  constexpr std::array<float, 9> inverse{1.0f / 3628800, 1.0f / 362880, 1.0f / 40320, 1.0f / 5040, 1.0f / 720,
                                         1.0f / 120,     1.0f / 24,     1.0f / 6,     1.0f / 2};
  for (const float term : inverse) total = at::vec::fmadd(total, y, Vec(term));
  return total;
}

// Gradient in alpha of one row, from its weights and the gradients that come to them; see thresholds.alpha_gradient.
inline float alpha_gradient(const float* weights, const float* grad_weights, int64_t count, float e) {
  float mean_log = 0, mean_phi = 0, mean_coming = 0, mean_psi = 0, with_psi = 0, with_log = 0, with_phi = 0;
  const Vec zero(0.0f), half(0.5f), scale(e), inverse(1.0f / e);
  Vec sums[7] = {zero, zero, zero, zero, zero, zero, zero};
  for (int64_t x = 0; x < count; x += WIDTH) {
    const int64_t left = std::min(WIDTH, count - x);
    const Vec p = Vec::loadu(weights + x, left), dp = Vec::loadu(grad_weights + x, left);
    // lanes past the end hold p = 0: every term below has the factor p
    const Vec log = at::vec::maximum(p, Vec(TINY)).log();
    const Vec y = zero - log * scale;
    const Vec grown = y.expm1();
    const Vec phi = grown * inverse;
    // near 0 the quotient cancels, and its limit is half the square of the logarithm
    const Vec psi = Vec::blendv((grown - y) * inverse * inverse, log * log * remainder(y), y <= half);
    const Vec terms[7] = {p * log, p * phi, p * dp, p * psi, p * dp * psi, p * dp * log, p * dp * phi};
    for (int k = 0; k < 7; k++) sums[k] = sums[k] + terms[k];
  }
  mean_log = sum(sums[0]), mean_phi = sum(sums[1]), mean_coming = sum(sums[2]), mean_psi = sum(sums[3]);
  with_psi = sum(sums[4]), with_log = sum(sums[5]), with_phi = sum(sums[6]);
  const float slope = with_psi - mean_coming * mean_psi + mean_phi * (with_log - mean_coming * mean_log) -
                      mean_log * (with_phi - mean_coming * mean_phi);
  return -slope / (1.0f + e * mean_phi);
}

}  // namespace CPU_CAPABILITY
}  // namespace attnbench
