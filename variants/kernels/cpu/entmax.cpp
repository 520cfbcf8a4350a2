// Attention with weights of sparsemax, entmax or top-k, a block of queries at a time, forward and backward.
//
// Scores of a block by one matrix product; the support of each row is found among the few scores above max - 1 and kept,
// so that values are gathered, and the backward makes no product over all keys. Where a block's weights are dense, it
// goes through dense products instead. Nothing of queries x keys outlives its block.

#include "dropout.h"
#include "gemm.h"
#include "solver.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <numeric>
#include <tuple>

namespace attnbench {
namespace {

using at::Tensor;

constexpr int64_t ROWS = 128;
// of the keys in one product for their gradients, so that these stay in the first-level cache
constexpr int64_t KEYS = 256;
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
// share of positive weights from which dense products cost less than gathering, estimated from operation counts
constexpr double DENSE = 0.20;

// Supports of the rows of one block, one behind the other, as long as there is room; `count`: their sizes.
struct Supports {
  float *weights, *levels;
  int32_t *index, *count;
  int64_t room;

  Level level(int64_t row) const { return {levels[3 * row], levels[3 * row + 1], levels[3 * row + 2]}; }
  // whether a score of the row is no number: then none of what it gives is
  bool spoiled(int64_t row) const { return std::isnan(levels[3 * row]); }
};

// Goes through the supports in the order of the rows. A support for which there is no room left is not held.
struct Cursor {
  int64_t room, at = 0;

  // where a support of that size lies, or -1
  int64_t next(int64_t size) {
    if (at + size > room) return -1;
    at += size;
    return at - size;
  }
};

// What all blocks of a pass read; excess (heads of an example): alpha - 1 of each, or k.
struct Pass {
  Heads heads;
  Dropout dropout;
  float scale;
  const float* excess;
};

// The rows of one head that a block holds. `width` keys are seen by some of them, `stride` apart in the scratch; `e`: the
// excess of the head.
struct Span {
  const Pass& pass;
  int64_t head, first;

  const Heads& heads = pass.heads;
  const Dropout& dropout = pass.dropout;
  float scale = pass.scale, e = pass.excess[head % heads.per_example];
  int64_t columns = heads.columns, wide = heads.wide, row0 = head * heads.queries + first;
  int64_t rows = std::min(ROWS, heads.queries - first);
  const int32_t* limits = heads.limits_of(head) + first;
  int64_t width = limits[rows - 1], stride = whole_vectors(width);
  int64_t seen_in_all = std::accumulate(limits, limits + rows, int64_t{0});
  const float* query = heads.query + row0 * columns;
  const float* key = heads.key + heads.keys_of(head) * columns;
  const float* value = heads.value + heads.keys_of(head) * wide;

  int64_t reach(int64_t r) const { return whole_vectors(limits[r]); }

  DropRow drop_row(int64_t r) const { return dropout.row(head, first + r); }
};

// Room of a thread for one block.
struct Workspace {
  float *scores, *grad_weights, *kept, *products, *factors;
  int32_t* index;

  static int64_t bytes(int64_t keys) {
    const int64_t row = whole_vectors(keys) + WIDTH;
    return 2 * Scratch::bytes<float>(ROWS * row) + 3 * Scratch::bytes<float>(row) + Scratch::bytes<int32_t>(row);
  }

  Workspace(Scratch::Share share, int64_t keys) {
    const int64_t row = whole_vectors(keys) + WIDTH;
    scores = share.take<float>(ROWS * row);
    grad_weights = share.take<float>(ROWS * row);
    kept = share.take<float>(row);
    products = share.take<float>(row);
    factors = share.take<float>(row);
    index = share.take<int32_t>(row);
  }
};

// Scores of a block, for entmax15 halved, -inf where a row may not see.
template <Kind M>
void score(const Span& span, float* scores) {
  if (!span.width) return;
  const int64_t columns = span.columns;
  const float scale = M == Kind::topk ? 1.0f : M == Kind::entmax15 ? 0.5f * span.scale : span.scale;
  multiply(matrix(scores, span.rows, span.width, span.stride), matrix(span.query, span.rows, columns, columns),
           matrix(span.key, span.width, columns, columns).t(), scale, false);
  for (int64_t r = 0; r < span.rows; r++) {
    float* row = scores + r * span.stride;
    // not in the product, which scales the queries first: scores that are equal would be rounded apart
    if (M == Kind::topk) scale_row(row, span.limits[r], span.scale);
    // to the end of the whole vectors, so that the reader of a row needs no tail
    std::fill(row + span.limits[r], row + span.stride, -INF);
  }
}

// NaN for the keys that a row sees, and zero for those that it does not.
void spoil(float* row, int64_t seen, int64_t stride) {
  std::fill(row, row + seen, NOT_A_NUMBER);
  std::fill(row + seen, row + stride, 0.0f);
}

template <Kind M>
void weigh_densely(const Span& span, const Supports& kept, float* scores) {
  for (int64_t r = 0; r < span.rows; r++) {
    const Level level = kept.level(r);
    const Vec top(level.top);
    const Weights<M> weigh(level, span.e);
    float* row = scores + r * span.stride;
    if (kept.spoiled(r)) spoil(row, span.limits[r], span.stride);
    else
      for (int64_t j = 0; j < span.stride; j += WIDTH) weigh(Vec::loadu(row + j) - top).store(row + j);
  }
}

// out = left * right, n entries, in place or not.
void multiply_entries(const float* left, const float* right, int64_t n, float* out) {
  map::by_vectors(n, [&](int64_t v, int64_t entries) {
    (Vec::loadu(left + v, entries) * Vec::loadu(right + v, entries)).store(out + v, entries);
  });
}

template <Kind M>
void attend_block(const Span& span, const Workspace& workspace, const Supports& kept, float* output) {
  score<M>(span, workspace.scores);
  int64_t positive = 0;
  Cursor writing{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    const float* scores = workspace.scores + r * span.stride;
    // a pass of its own: Newton starts at max - 1, below which no entry can have weight
    const float top = row_max(scores, span.reach(r));
    Level level{INF, 0.0f, 0.0f};
    int64_t size = 0;
    if (std::isfinite(top)) size = solve<M>(scores, span.reach(r), top, span.e, workspace.kept, workspace.index, workspace.products, level);
    // NaN or +inf in the scores makes the row NaN; a row of -inf has no key, and nothing comes near infinity
    else if (top != -INF) level.top = NOT_A_NUMBER;
    std::copy_n(&level.top, 3, kept.levels + 3 * r);
    kept.count[r] = static_cast<int32_t>(size);
    positive += size;
    // where no room is left the support is not kept, but its level is: it is found again from the scores
    const int64_t at = writing.next(size);
    if (at < 0) continue;
    std::copy_n(workspace.kept, size, kept.weights + at);
    std::copy_n(workspace.index, size, kept.index + at);
  }
  // the share of all keys that the rows of the block may see
  if (static_cast<double>(positive) > DENSE * static_cast<double>(span.seen_in_all)) {
    weigh_densely<M>(span, kept, workspace.scores);
    if (span.dropout.active)
      for (int64_t r = 0; r < span.rows; r++)
        span.dropout.drop(span.drop_row(r), 0, span.limits[r], workspace.scores + r * span.stride);
    multiply(matrix(output, span.rows, span.wide, span.wide), matrix(workspace.scores, span.rows, span.width, span.stride),
             matrix(span.value, span.width, span.wide, span.wide), 1.0f, false);
    return;
  }
  Cursor reading{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    int64_t size = kept.count[r];
    const int64_t at = reading.next(size);
    const float* weights = at < 0 ? workspace.kept : kept.weights + at;
    const int32_t* index = at < 0 ? workspace.index : kept.index + at;
    if (at < 0)
      size = support<M>(workspace.scores + r * span.stride, span.reach(r), kept.level(r), span.e, workspace.kept,
                        workspace.index);
    if (span.dropout.active) {
      // of the support alone; what is kept for the backward stays undropped, since the map is differentiated there
      span.dropout.factors_at(span.drop_row(r), index, size, workspace.factors);
      multiply_entries(weights, workspace.factors, size, workspace.products);
      weights = workspace.products;
    }
    float* out = output + r * span.wide;
    by_columns(span.wide, [&](auto vectors, int64_t first) {
      mix<decltype(vectors)::value>(weights, index, size, span.value + first, span.wide, out + first);
    });
    // such a row has no support, so nothing would have been written for it but zeros
    if (kept.spoiled(r)) std::fill_n(out, span.wide, NOT_A_NUMBER);
  }
}

// What one task of the backward writes to.
struct Sums {
  float *query, *key, *value, *alpha;
};

// Gradients of one row from its support: g * (grad_weights - mean) in the place of `products`, and that of alpha.
template <Kind M>
void differentiate_row(
    const Span& span, const float* weights, int64_t size, float* products, float* factors, float* alpha) {
  const float e = span.e;
  Vec total(0.0f), weighted(0.0f);
  for (int64_t x = 0; x < size; x += WIDTH) {
    const int64_t left = std::min(WIDTH, size - x);
    const Vec g = factor<M>(Vec::loadu(weights + x, left), e);
    g.store(factors + x);
    total = total + g;
    weighted = at::vec::fmadd(g, Vec::loadu(products + x, left), weighted);
  }
  // a row without weights has no factors: the floor keeps 0/0 out of it
  const Vec mean(sum(weighted) / std::max(sum(total), TINY));
  for (int64_t x = 0; x < size; x += WIDTH) (Vec::loadu(products + x) - mean).store(products + x);
  // of what comes to the weights less its mean, which changes nothing in the sum and keeps its digits
  if (alpha) *alpha = size ? alpha_gradient(weights, products, size, e) : 0.0f;
  const Vec scales(span.scale);
  for (int64_t x = 0; x < size; x += WIDTH)
    (Vec::loadu(products + x) * Vec::loadu(factors + x) * scales).store(products + x);
}

template <Kind M>
void differentiate_sparsely(const Span& span, const Workspace& workspace, const Supports& kept, const float* grad_output,
                            const Sums& to) {
  const int64_t columns = span.columns, wide = span.wide;
  Cursor reading{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    int64_t size = kept.count[r];
    const int64_t at = reading.next(size);
    const float* weights = at < 0 ? workspace.kept : kept.weights + at;
    const int32_t* index = at < 0 ? workspace.index : kept.index + at;
    if (at < 0)
      size = support<M>(workspace.scores + r * span.stride, span.reach(r), kept.level(r), span.e, workspace.kept,
                        workspace.index);
    const float* dropped = weights;
    if (span.dropout.active) {
      // as in the forward; room for all scores of a block is free, since only dense blocks have gradients there
      span.dropout.factors_at(span.drop_row(r), index, size, workspace.factors);
      multiply_entries(weights, workspace.factors, size, workspace.grad_weights);
      dropped = workspace.grad_weights;
    }
    by_columns(wide, [&](auto vectors, int64_t first) {
      dot_and_spread<decltype(vectors)::value>(dropped, index, size, grad_output + r * wide + first, span.value + first,
                                               to.value + first, wide, first > 0, workspace.products);
    });
    // the gradient of a weight before it was dropped
    if (span.dropout.active) multiply_entries(workspace.products, workspace.factors, size, workspace.products);
    differentiate_row<M>(span, weights, size, workspace.products, workspace.factors, to.alpha ? to.alpha + r : nullptr);
    by_columns(columns, [&](auto vectors, int64_t first) {
      mix_and_spread<decltype(vectors)::value>(workspace.products, index, size, span.query + r * columns + first,
                                               span.key + first, to.key + first, columns, to.query + r * columns + first);
    });
    if (!kept.spoiled(r)) continue;
    // such a row has no support; left at that, a loss that diverged would send zeros back
    std::fill_n(to.query + r * columns, columns, NOT_A_NUMBER);
    std::fill_n(to.key, span.limits[r] * columns, NOT_A_NUMBER);
    std::fill_n(to.value, span.limits[r] * wide, NOT_A_NUMBER);
    if (to.alpha) to.alpha[r] = NOT_A_NUMBER;
  }
}

template <Kind M>
void differentiate_densely(const Span& span, const Workspace& workspace, const Supports& kept, const float* grad_output,
                           const Sums& to) {
  const int64_t columns = span.columns, wide = span.wide;
  const Tensor grad_rows = matrix(grad_output, span.rows, wide, wide);
  const Tensor query = matrix(span.query, span.rows, columns, columns);
  multiply(matrix(workspace.grad_weights, span.rows, span.width, span.stride), grad_rows,
           matrix(span.value, span.width, wide, wide).t(), 1.0f, false);
  weigh_densely<M>(span, kept, workspace.scores);
  for (int64_t r = 0; r < span.rows; r++) {
    float *weights = workspace.scores + r * span.stride, *products = workspace.grad_weights + r * span.stride;
    if (span.dropout.active) span.dropout.drop(span.drop_row(r), 0, span.limits[r], products);
    std::fill(products + span.width, products + span.stride, 0.0f);
    differentiate_row<M>(span, weights, span.stride, products, workspace.factors, to.alpha ? to.alpha + r : nullptr);
    if (kept.spoiled(r)) spoil(products, span.limits[r], span.stride);
    // the values had the dropped weights, the map has the others
    if (span.dropout.active) span.dropout.drop(span.drop_row(r), 0, span.limits[r], weights);
  }
  // by pieces of the keys, so that the sums stay in the cache while the products add to them
  for (int64_t j = 0; j < span.width; j += KEYS) {
    const int64_t n = std::min(KEYS, span.width - j);
    const Tensor weights = matrix(workspace.scores + j, span.rows, n, span.stride);
    const Tensor gradients = matrix(workspace.grad_weights + j, span.rows, n, span.stride);
    multiply(matrix(to.value + j * wide, n, wide, wide), weights.t(), grad_rows, 1.0f, true);
    multiply(matrix(to.key + j * columns, n, columns, columns), gradients.t(), query, 1.0f, true);
  }
  multiply(matrix(to.query, span.rows, columns, columns), matrix(workspace.grad_weights, span.rows, span.width, span.stride),
           matrix(span.key, span.width, columns, columns), 1.0f, false);
}

template <Kind M>
void differentiate_block(const Span& span, const Workspace& workspace, const Supports& kept, const float* grad_output,
                         const Sums& to) {
  int64_t positive = 0;
  bool held = true;
  Cursor reading{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    positive += kept.count[r];
    // one support that is not held, and the block needs its scores again
    held = reading.next(kept.count[r]) >= 0 && held;
  }
  const bool dense = static_cast<double>(positive) > DENSE * static_cast<double>(span.seen_in_all);
  // the usual case needs no product over all keys in the backward: supports and weights were kept
  if (dense || !held) score<M>(span, workspace.scores);
  (dense ? differentiate_densely<M> : differentiate_sparsely<M>)(span, workspace, kept, grad_output, to);
}

// Calls work(std::integral_constant<Kind, ...>) for the map of that number.
template <typename Work>
void with_map(int64_t map, const Work& work) {
  switch (map) {
    case 0: return work(std::integral_constant<Kind, Kind::sparsemax>());
    case 1: return work(std::integral_constant<Kind, Kind::entmax15>());
    case 2: return work(std::integral_constant<Kind, Kind::entmax>());
    case 3: return work(std::integral_constant<Kind, Kind::topk>());
    default: TORCH_CHECK(false, "expected a map from 0 to 3, got ", map);
  }
}

// Where the supports of a block lie: `rows` are the first row's place among levels and counts, `block` its own among
// the pieces of the other two.
Supports supports_at(const Tensor& weights, const Tensor& index, const Tensor& counts, const Tensor& levels,
                     int64_t block, int64_t row) {
  const int64_t room = weights.size(1);
  return {weights.data_ptr<float>() + block * room, levels.data_ptr<float>() + 3 * row,
          index.data_ptr<int32_t>() + block * room, counts.data_ptr<int32_t>() + row, room};
}

// map: 0 sparsemax, 1 entmax15, 2 entmax with alpha = 1 + excess (heads,), 3 top-k with k = excess. Returns the output, and what the backward
// takes where `keep`: supports, on average up to `room` entries a row, their sizes, and the level of each row.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& limits, const Tensor& excess, int64_t map,
    double scale, int64_t room, bool keep, const std::optional<Tensor>& seed, int64_t least,
    const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Pass pass{heads, Dropout(seed, least, order, heads), static_cast<float>(scale), excess.const_data_ptr<float>()};
  TORCH_CHECK(excess.is_contiguous() && (!heads.all || excess.size(0) == heads.per_example), "expected one excess a head");
  // int32: positions of keys, and half the memory of int64
  const auto whole = query.options().dtype(at::kInt);
  const int64_t blocks = (heads.queries + ROWS - 1) / ROWS, threads = at::get_num_threads();
  // without a backward a thread uses one piece again and again
  const int64_t pieces = keep ? heads.all * blocks : threads, rows = keep ? heads.all * heads.queries : threads * ROWS;
  const int64_t entries = room * std::min(ROWS, heads.queries);
  Tensor output = at::empty({heads.all, heads.queries, heads.wide}, query.options());
  Tensor levels = at::empty({rows, 3}, query.options()), counts = at::empty({rows}, whole);
  Tensor weights = at::empty({pieces, entries}, query.options()), index = at::empty({pieces, entries}, whole);
  const Scratch scratch(Workspace::bytes(heads.keys));
  with_map(map, [&](auto kind) {
    at::parallel_for(0, heads.all * blocks, 1, [&](int64_t begin, int64_t end) {
      // the products below skip autograd and version counters, in threads of the pool too
      const at::AutoDispatchBelowADInplaceOrView plain;
      const Workspace workspace(scratch.share(), heads.keys);
      const int64_t thread = at::get_thread_num();
      for (int64_t task = begin; task < end; task++) {
        const Span span{pass, task / blocks, task % blocks * ROWS};
        const Supports kept =
            supports_at(weights, index, counts, levels, keep ? task : thread, keep ? span.row0 : thread * ROWS);
        attend_block<decltype(kind)::value>(span, workspace, kept, output.data_ptr<float>() + span.row0 * heads.wide);
      }
    });
  });
  return {output, weights, index, counts, levels};
}

// Gradients of query, key, value, and, where `learns`, of alpha for each row (heads in all, queries), else empty.
std::tuple<Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& limits,
    const Tensor& excess, const Tensor& weights, const Tensor& index, const Tensor& counts, const Tensor& levels,
    int64_t map, double scale, bool learns, const std::optional<Tensor>& seed, int64_t least,
    const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Pass pass{heads, Dropout(seed, least, order, heads), static_cast<float>(scale), excess.const_data_ptr<float>()};
  TORCH_CHECK(grad_output.is_contiguous() && grad_output.numel() == heads.all * heads.queries * heads.wide,
              "expected a grad_output as wide as the values, and for each query");
  const int64_t blocks = (heads.queries + ROWS - 1) / ROWS;
  // a task has all queries of the heads that share keys, so that one writer sums their gradients; where such groups are
  // few, their queries are shared out, every share with sums of its own, added in order
  const int64_t of_group = heads.group * blocks, shares = heads.shares(of_group);
  Tensor to_query = at::empty_like(query), to_key = at::zeros({shares, heads.shared, heads.keys, heads.columns}, key.options());
  Tensor to_value = at::zeros({shares, heads.shared, heads.keys, heads.wide}, key.options());
  Tensor to_alpha = at::empty({learns ? heads.all : 0, heads.queries}, query.options());
  const Scratch scratch(Workspace::bytes(heads.keys));
  with_map(map, [&](auto kind) {
    at::parallel_for(0, heads.shared * shares, 1, [&](int64_t begin, int64_t end) {
      const at::AutoDispatchBelowADInplaceOrView plain;
      const Workspace workspace(scratch.share(), heads.keys);
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / shares, share = task % shares;
        const int64_t own = (share * heads.shared + group) * heads.keys;
        // every shares-th block, so that causal rows are shared evenly
        for (int64_t at = share; at < of_group; at += shares) {
          const int64_t head = group * heads.group + at / blocks, block = at % blocks;
          const Span span{pass, head, block * ROWS};
          const Supports kept = supports_at(weights, index, counts, levels, head * blocks + block, span.row0);
          const Sums to{to_query.data_ptr<float>() + span.row0 * span.columns, to_key.data_ptr<float>() + own * span.columns,
                        to_value.data_ptr<float>() + own * span.wide, learns ? to_alpha.data_ptr<float>() + span.row0 : nullptr};
          differentiate_block<decltype(kind)::value>(
              span, workspace, kept, grad_output.const_data_ptr<float>() + span.row0 * span.wide, to);
        }
      }
    });
  });
  if (shares == 1) return {to_query, to_key[0], to_value[0], to_alpha};
  return {to_query, to_key.sum(0), to_value.sum(0), to_alpha};
}

TORCH_LIBRARY_FRAGMENT(attnbench_cpu, m) {
  m.def(
      "entmax_forward(Tensor query, Tensor key, Tensor value, Tensor limits, Tensor excess, int map, float scale, "
      "int room, bool keep, Tensor? seed, int least, Tensor? order) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "entmax_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor limits, Tensor excess, "
      "Tensor weights, Tensor index, Tensor counts, Tensor levels, int map, float scale, bool learns, Tensor? seed, "
      "int least, Tensor? order) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(attnbench_cpu, CPU, m) {
  m.impl("entmax_forward", &forward);
  m.impl("entmax_backward", &backward);
}

}  // namespace
}  // namespace attnbench
