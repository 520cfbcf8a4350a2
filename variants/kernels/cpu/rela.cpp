// Attention with rectified scores as weights: tiles of scores by one product, rectified, and multiplied on.
//
// The forward goes by blocks of queries. The backward goes by blocks of keys, whose gradients are then plain products
// with long inner dimensions; only that of the queries is added up over blocks.

#include "dropout.h"
#include "gemm.h"
#include "rows.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zero.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

namespace attnbench {
namespace {

using at::Tensor;

// of the rows and columns of a tile, so that two tiles stay in the second-level cache
constexpr int64_t ROWS = 128, COLUMNS = 256;

// Scores are scaled here and not by their product: it would scale the queries first, and products that cancel to zero
// would leave a rounding, which the norm behind multiplies by up to 1e4. The eager definition scales after it too.
void rectify(float scale, float* x, int64_t n) {
  const Vec zero(0.0f), factor(scale);
  int64_t j = 0;
  for (; j + WIDTH <= n; j += WIDTH) (at::vec::maximum(Vec::loadu(x + j), zero) * factor).store(x + j);
  for (; j < n; j++) x[j] = x[j] < 0.0f ? 0.0f : x[j] * scale;
}

// Scales and rectifies the scores, and leaves of `grad_weights` what stands at a positive score. NaN passes, as in autograd of
// relu: a score that is no number is not below zero.
void rectify_both(float scale, float* scores, float* grad_weights, int64_t n) {
  const Vec zero(0.0f), factor(scale);
  int64_t j = 0;
  for (; j + WIDTH <= n; j += WIDTH) {
    const Vec weight = at::vec::maximum(Vec::loadu(scores + j), zero) * factor;
    weight.store(scores + j);
    (Vec::loadu(grad_weights + j) & (weight != zero)).store(grad_weights + j);
  }
  for (; j < n; j++) {
    const float score = scores[j] * scale;
    const bool stops = score <= 0.0f;
    scores[j] = stops ? 0.0f : score;
    grad_weights[j] = stops ? 0.0f : grad_weights[j];
  }
}

// Scales and rectifies scores of one row and drops weights; 64 divides `first`, the place of the first key.
void rectify_and_drop(const Dropout& dropout, const DropRow& row, int64_t first, float scale, int64_t n, float* x) {
  const Vec zero(0.0f), factor(scale);
  for (int64_t j = 0; j < n; j += KEYS_OF_WORD) {
    const int64_t left = std::min(KEYS_OF_WORD, n - j);
    const uint64_t word = dropout.kept(row, first + j, left);
    Dropout::by_vectors(left, [&](int64_t v, int64_t entries) {
      // a product, so that NaN passes
      const Vec weight = at::vec::maximum(Vec::loadu(x + j + v, entries), zero) * factor;
      (weight * dropout.factors(word >> v)).store(x + j + v, entries);
    });
  }
}

// `rectify_both` for one key and n queries, by the bit `bit` of a word for each query. Both lose what was dropped.
void rectify_and_drop_both(
    const Dropout& dropout, const uint32_t* words, int bit, float scale, float* scores, float* grad_weights, int64_t n) {
  const Vec zero(0.0f), factor(scale);
  Dropout::by_vectors(n, [&](int64_t v, int64_t entries) {
    const Vec weight = at::vec::maximum(Vec::loadu(scores + v, entries), zero) * factor;
    const Vec factors = dropout.factors(words + v, bit);
    (weight * factors).store(scores + v, entries);
    ((Vec::loadu(grad_weights + v, entries) * factors) & (weight != zero)).store(grad_weights + v, entries);
  });
}

void attend_block(const Heads& heads, const Dropout& dropout, int64_t head, int64_t first, float scale, float* tile,
                  float* output) {
  const int64_t columns = heads.columns, rows = std::min(ROWS, heads.queries - first);
  const int32_t* limits = heads.limits_of(head) + first;
  const Tensor query = matrix(heads.query + (head * heads.queries + first) * columns, rows, columns, columns);
  const Tensor out = matrix(output + (head * heads.queries + first) * columns, rows, columns, columns);
  // limits never fall, so the last query of the block sees the most keys
  const int64_t width = limits[rows - 1];
  // no product would write the output of a block that sees nothing
  if (!width) out.zero_();
  for (int64_t j = 0; j < width; j += COLUMNS) {
    const int64_t n = std::min(COLUMNS, width - j), at = (heads.keys_of(head) + j) * columns;
    const Tensor scores = matrix(tile, rows, n, n);
    // a tile of scores, used while it is in the second-level cache
    multiply(scores, query, matrix(heads.key + at, n, columns, columns).t(), 1.0f, false);
    if (!dropout.active) rectify(scale, tile, rows * n);
    else
      for (int64_t r = 0; r < rows; r++)
        rectify_and_drop(dropout, dropout.row(head, first + r), j, scale, std::clamp<int64_t>(limits[r] - j, 0, n),
                         tile + r * n);
    // rows at the end of the block see more: the first one that sees the whole tile ends the loop
    for (int64_t r = 0; r < rows && limits[r] < j + n; r++)
      std::fill(tile + r * n + std::max<int64_t>(0, limits[r] - j), tile + (r + 1) * n, 0.0f);
    // the first tile writes, the others add: no pass to clear the output
    multiply(out, scores, matrix(heads.value + at, n, columns, columns), 1.0f, j > 0);
  }
}

Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& limits, double scale,
               const std::optional<Tensor>& seed, int64_t least, const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Dropout dropout(seed, least, order, heads);
  Tensor output = at::empty_like(query);
  const int64_t blocks = (heads.queries + ROWS - 1) / ROWS;
  const Scratch scratch(Scratch::bytes<float>(ROWS * COLUMNS));
  at::parallel_for(0, heads.all * blocks, 1, [&](int64_t begin, int64_t end) {
    // the products below skip autograd and version counters, in threads of the pool too
    const at::AutoDispatchBelowADInplaceOrView plain;
    float* tile = scratch.share().take<float>(ROWS * COLUMNS);
    for (int64_t task = begin; task < end; task++)
      attend_block(heads, dropout, task / blocks, task % blocks * ROWS, static_cast<float>(scale), tile,
                   output.data_ptr<float>());
  });
  return output;
}

// Gradients of a block of keys and their values, and what they add to those of the queries, of all heads that share the
// keys. The tiles are transposed: a row for each key, a column for each query.
void differentiate_block(const Heads& heads, const Dropout& dropout, int64_t group, int64_t first, float scale,
                         const float* grad_output, float* tile, float* grad_weights, uint32_t* words, float* to_query,
                         float* to_key, float* to_value) {
  // heads that share keys are of one example
  const int32_t* limits = heads.limits_of(group * heads.group);
  // limits never fall: from the last one on lie keys that no query sees, and there may be anything in them
  const int64_t columns = heads.columns, seen = heads.queries ? limits[heads.queries - 1] : 0;
  const int64_t all = std::min(ROWS, heads.keys - first), rows = std::clamp<int64_t>(seen - first, 0, all);
  const int64_t at = (group * heads.keys + first) * columns;
  for (float* sum : {to_key, to_value}) std::fill_n(sum + at + rows * columns, (all - rows) * columns, 0.0f);
  if (!rows) return;
  const Tensor key = matrix(heads.key + at, rows, columns, columns), value = matrix(heads.value + at, rows, columns, columns);
  const Tensor key_sum = matrix(to_key + at, rows, columns, columns), value_sum = matrix(to_value + at, rows, columns, columns);
  // queries before this one see none of these keys
  const int64_t start = std::upper_bound(limits, limits + heads.queries, first) - limits;
  // pieces of the queries of one head after the other
  const int64_t pieces = (heads.queries - start + COLUMNS - 1) / COLUMNS;
  for (int64_t piece = 0; piece < heads.group * pieces; piece++) {
    const int64_t member = piece / pieces, i = start + piece % pieces * COLUMNS;
    const int64_t n = std::min(COLUMNS, heads.queries - i);
    const int64_t from = ((group * heads.group + member) * heads.queries + i) * columns;
    const Tensor query = matrix(heads.query + from, n, columns, columns);
    const Tensor grad_rows = matrix(grad_output + from, n, columns, columns);
    const Tensor scores = matrix(tile, rows, n, n), gradients = matrix(grad_weights, rows, n, n);
    // transposed tiles: the gradients of keys and values are then plain products, which run faster than those that
    // read their left factor by columns (NOTES.md)
    multiply(scores, key, query.t(), 1.0f, false);
    multiply(gradients, value, grad_rows.t(), 1.0f, false);
    // a query that does not see the last of these keys
    if (limits[i] < first + rows)
      for (int64_t r = 0; r < rows; r++) {
        // limits never fall: the queries that do not see this key stand in front
        const int64_t blind = std::upper_bound(limits + i, limits + i + n, first + r) - (limits + i);
        std::fill_n(tile + r * n, blind, 0.0f);
      }
    // one pass leaves the weights in the tile and the gradients of the scores in `grad_weights`
    if (!dropout.active) rectify_both(scale, tile, grad_weights, rows * n);
    else {
      // the same bits as in the forward: for each query those of the keys of this block, 32 to a word
      for (int64_t c = 0; c < n; c++)
        for (int64_t r = 0; r < rows; r += KEYS_OF_WORD) {
          const DropRow row = dropout.row(group * heads.group + member, i + c);
          const uint64_t word = dropout.kept(row, first + r, std::min(KEYS_OF_WORD, rows - r));
          words[r / 32 * COLUMNS + c] = static_cast<uint32_t>(word);
          words[(r / 32 + 1) * COLUMNS + c] = static_cast<uint32_t>(word >> 32);
        }
      for (int64_t r = 0; r < rows; r++)
        rectify_and_drop_both(dropout, words + r / 32 * COLUMNS, static_cast<int>(r % 32), scale, tile + r * n,
                              grad_weights + r * n, n);
    }
    multiply(value_sum, scores, grad_rows, 1.0f, piece > 0);
    multiply(key_sum, gradients, query, scale, piece > 0);
    // the sum for the queries goes over all blocks of keys of this task, in one order
    multiply(matrix(to_query + (member * heads.queries + i) * columns, n, columns, columns), gradients.t(), key, scale, true);
  }
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& limits,
    double scale, const std::optional<Tensor>& seed, int64_t least, const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Dropout dropout(seed, least, order, heads);
  TORCH_CHECK(grad_output.is_contiguous() && grad_output.sizes() == query.sizes(), "expected a grad_output like the query");
  const int64_t blocks = (heads.keys + ROWS - 1) / ROWS;
  // where heads are few, the keys of each are shared out, every share with sums of its own, added in order
  const int64_t shares = heads.shares(blocks);
  // zeros: every block of keys adds to it
  Tensor to_query = at::zeros({shares, heads.all, heads.queries, heads.columns}, query.options());
  Tensor to_key = at::empty_like(key), to_value = at::empty_like(value);
  // of bits, a word for 32 keys of a query
  constexpr int64_t WORDS = ROWS / 32 * COLUMNS;
  const Scratch scratch(2 * Scratch::bytes<float>(ROWS * COLUMNS) + Scratch::bytes<uint32_t>(WORDS));
  at::parallel_for(0, heads.shared * shares, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    Scratch::Share room = scratch.share();
    float *tile = room.take<float>(ROWS * COLUMNS), *grad_weights = room.take<float>(ROWS * COLUMNS);
    uint32_t* words = room.take<uint32_t>(WORDS);
    for (int64_t task = begin; task < end; task++) {
      const int64_t group = task / shares, share = task % shares;
      float* sums =
          to_query.data_ptr<float>() + (share * heads.all + group * heads.group) * heads.queries * heads.columns;
      // every shares-th block, so that causal keys are shared evenly
      for (int64_t block = share; block < blocks; block += shares)
        differentiate_block(heads, dropout, group, block * ROWS, static_cast<float>(scale),
                            grad_output.const_data_ptr<float>(), tile, grad_weights, words, sums, to_key.data_ptr<float>(),
                            to_value.data_ptr<float>());
    }
  });
  // the shares are added in the order of their numbers, so a run gives the same bits with the same threads
  return {shares == 1 ? to_query[0] : to_query.sum(0), to_key, to_value};
}

TORCH_LIBRARY_FRAGMENT(attnbench_cpu, m) {
  m.def(
      "rela_forward(Tensor query, Tensor key, Tensor value, Tensor limits, float scale, Tensor? seed, int least, "
      "Tensor? order) -> Tensor");
  m.def(
      "rela_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor limits, float scale, "
      "Tensor? seed, int least, Tensor? order) -> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(attnbench_cpu, CPU, m) {
  m.impl("rela_forward", &forward);
  m.impl("rela_backward", &backward);
}

}  // namespace
}  // namespace attnbench
