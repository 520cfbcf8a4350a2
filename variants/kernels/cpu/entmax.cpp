// Attention with sparsemax or entmax weights, a block of queries at a time, forward and backward.
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

  Level level(int64_t row) const { return {levels[2 * row], levels[2 * row + 1]}; }
  // whether a score of the row is no number: then none of what it gives is
  bool spoiled(int64_t row) const { return std::isnan(levels[2 * row]); }
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

// The rows of one head that a block holds. `width` keys are seen by some of them, `stride` apart in the scratch.
struct Span {
  int64_t head, first, row0, rows, width, stride, seen_in_all;
  const int32_t* limits;
  const float *query, *key, *value;

  Span(const Heads& heads, int64_t head_, int64_t first_)
      : head(head_),
        first(first_),
        row0(head_ * heads.queries + first),
        rows(std::min(ROWS, heads.queries - first)),
        width(0),
        stride(0),
        seen_in_all(0),
        limits(heads.limits_of(head_) + first),
        query(heads.query + row0 * heads.columns),
        key(heads.key + heads.keys_of(head_) * heads.columns),
        value(heads.value + heads.keys_of(head_) * heads.columns) {
    for (int64_t r = 0; r < rows; r++) seen_in_all += limits[r];
    width = limits[rows - 1];
    stride = whole_vectors(width);
  }

  int64_t reach(int64_t r) const { return whole_vectors(limits[r]); }

  DropRow drop_row(const Dropout& dropout, int64_t r) const { return dropout.row(head, first + r); }
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
template <Map M>
void score(const Span& span, int64_t columns, float scale, float* scores) {
  if (!span.width) return;
  multiply(matrix(scores, span.rows, span.width, span.stride), matrix(span.query, span.rows, columns, columns),
           matrix(span.key, span.width, columns, columns).t(), M == Map::entmax15 ? 0.5f * scale : scale, false);
  for (int64_t r = 0; r < span.rows; r++)
    // to the end of the whole vectors, so that the reader of a row needs no tail
    std::fill(scores + r * span.stride + span.limits[r], scores + (r + 1) * span.stride, -INF);
}

// NaN for the keys that a row sees, and zero for those that it does not.
void spoil(float* row, int64_t seen, int64_t stride) {
  std::fill(row, row + seen, NOT_A_NUMBER);
  std::fill(row + seen, row + stride, 0.0f);
}

template <Map M>
void weigh_densely(const Span& span, const Supports& kept, float e, float* scores) {
  for (int64_t r = 0; r < span.rows; r++) {
    const Level level = kept.level(r);
    const Vec top(level.top);
    const Weights<M> weigh(level.threshold, e);
    float* row = scores + r * span.stride;
    if (kept.spoiled(r)) spoil(row, span.limits[r], span.stride);
    else
      for (int64_t j = 0; j < span.stride; j += WIDTH) weigh(Vec::loadu(row + j) - top).store(row + j);
  }
}

// out = left * right, n entries, in place or not.
void multiply_entries(const float* left, const float* right, int64_t n, float* out) {
  Dropout::by_vectors(n, [&](int64_t v, int64_t entries) {
    (Vec::loadu(left + v, entries) * Vec::loadu(right + v, entries)).store(out + v, entries);
  });
}

template <Map M>
void attend_block(
    const Span& span, const Dropout& dropout, int64_t columns, const Workspace& workspace, const Supports& kept, float e,
    float scale, float* output) {
  score<M>(span, columns, scale, workspace.scores);
  int64_t positive = 0;
  Cursor writing{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    const float* scores = workspace.scores + r * span.stride;
    // a pass of its own: Newton starts at max - 1, below which no entry can have weight
    const float top = row_max(scores, span.reach(r));
    Level level{INF, 0.0f};
    int64_t size = 0;
    if (std::isfinite(top)) size = solve<M>(scores, span.reach(r), top, e, workspace.kept, workspace.index, level);
    // NaN or +inf in the scores makes the row NaN; a row of -inf has no key, and nothing comes near infinity
    else if (top != -INF) level.top = NOT_A_NUMBER;
    kept.levels[2 * r] = level.top;
    kept.levels[2 * r + 1] = level.threshold;
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
    weigh_densely<M>(span, kept, e, workspace.scores);
    if (dropout.active)
      for (int64_t r = 0; r < span.rows; r++)
        dropout.drop(span.drop_row(dropout, r), 0, span.limits[r], workspace.scores + r * span.stride);
    multiply(matrix(output, span.rows, columns, columns), matrix(workspace.scores, span.rows, span.width, span.stride),
             matrix(span.value, span.width, columns, columns), 1.0f, false);
    return;
  }
  Cursor reading{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    int64_t size = kept.count[r];
    const int64_t at = reading.next(size);
    const float* weights = at < 0 ? workspace.kept : kept.weights + at;
    const int32_t* index = at < 0 ? workspace.index : kept.index + at;
    if (at < 0)
      size = support<M>(workspace.scores + r * span.stride, span.reach(r), kept.level(r), e, workspace.kept,
                        workspace.index);
    if (dropout.active) {
      // of the support alone; what is kept for the backward stays undropped, since the map is differentiated there
      dropout.factors_at(span.drop_row(dropout, r), index, size, workspace.factors);
      multiply_entries(weights, workspace.factors, size, workspace.products);
      weights = workspace.products;
    }
    float* out = output + r * columns;
    by_columns(columns, [&](auto vectors, int64_t first) {
      mix<decltype(vectors)::value>(weights, index, size, span.value + first, columns, out + first);
    });
    // such a row has no support, so nothing would have been written for it but zeros
    if (kept.spoiled(r)) std::fill_n(out, columns, NOT_A_NUMBER);
  }
}

// What one task of the backward writes to.
struct Sums {
  float *query, *key, *value, *alpha;
};

// Gradients of one row from its support: g * (grad_weights - mean) in the place of `products`, and that of alpha.
template <Map M>
void differentiate_row(
    const float* weights, int64_t size, float e, float scale, float* products, float* factors, float* alpha) {
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
  const Vec scales(scale);
  for (int64_t x = 0; x < size; x += WIDTH)
    (Vec::loadu(products + x) * Vec::loadu(factors + x) * scales).store(products + x);
}

template <Map M>
void differentiate_sparsely(const Span& span, const Dropout& dropout, int64_t columns, const Workspace& workspace,
                            const Supports& kept, float e, float scale, const float* grad_output, const Sums& to) {
  Cursor reading{kept.room};
  for (int64_t r = 0; r < span.rows; r++) {
    int64_t size = kept.count[r];
    const int64_t at = reading.next(size);
    const float* weights = at < 0 ? workspace.kept : kept.weights + at;
    const int32_t* index = at < 0 ? workspace.index : kept.index + at;
    if (at < 0)
      size = support<M>(workspace.scores + r * span.stride, span.reach(r), kept.level(r), e, workspace.kept,
                        workspace.index);
    const int64_t row = r * columns;
    const float* dropped = weights;
    if (dropout.active) {
      // as in the forward; room for all scores of a block is free, since only dense blocks have gradients there
      dropout.factors_at(span.drop_row(dropout, r), index, size, workspace.factors);
      multiply_entries(weights, workspace.factors, size, workspace.grad_weights);
      dropped = workspace.grad_weights;
    }
    by_columns(columns, [&](auto vectors, int64_t first) {
      dot_and_spread<decltype(vectors)::value>(dropped, index, size, grad_output + row + first, span.value + first,
                                               to.value + first, columns, first > 0, workspace.products);
    });
    // the gradient of a weight before it was dropped
    if (dropout.active) multiply_entries(workspace.products, workspace.factors, size, workspace.products);
    differentiate_row<M>(weights, size, e, scale, workspace.products, workspace.factors, to.alpha ? to.alpha + r : nullptr);
    by_columns(columns, [&](auto vectors, int64_t first) {
      mix_and_spread<decltype(vectors)::value>(workspace.products, index, size, span.query + row + first, span.key + first,
                                               to.key + first, columns, to.query + row + first);
    });
    if (!kept.spoiled(r)) continue;
    // such a row has no support; left at that, a loss that diverged would send zeros back
    std::fill_n(to.query + row, columns, NOT_A_NUMBER);
    std::fill_n(to.key, span.limits[r] * columns, NOT_A_NUMBER);
    std::fill_n(to.value, span.limits[r] * columns, NOT_A_NUMBER);
    if (to.alpha) to.alpha[r] = NOT_A_NUMBER;
  }
}

template <Map M>
void differentiate_densely(const Span& span, const Dropout& dropout, int64_t columns, const Workspace& workspace,
                           const Supports& kept, float e, float scale, const float* grad_output, const Sums& to) {
  const Tensor grad_rows = matrix(grad_output, span.rows, columns, columns);
  const Tensor query = matrix(span.query, span.rows, columns, columns);
  multiply(matrix(workspace.grad_weights, span.rows, span.width, span.stride), grad_rows,
           matrix(span.value, span.width, columns, columns).t(), 1.0f, false);
  weigh_densely<M>(span, kept, e, workspace.scores);
  for (int64_t r = 0; r < span.rows; r++) {
    float *weights = workspace.scores + r * span.stride, *products = workspace.grad_weights + r * span.stride;
    if (dropout.active) dropout.drop(span.drop_row(dropout, r), 0, span.limits[r], products);
    std::fill(products + span.width, products + span.stride, 0.0f);
    differentiate_row<M>(weights, span.stride, e, scale, products, workspace.factors, to.alpha ? to.alpha + r : nullptr);
    if (kept.spoiled(r)) spoil(products, span.limits[r], span.stride);
    // the values had the dropped weights, the map has the others
    if (dropout.active) dropout.drop(span.drop_row(dropout, r), 0, span.limits[r], weights);
  }
  // by pieces of the keys, so that the sums stay in the cache while the products add to them
  for (int64_t j = 0; j < span.width; j += KEYS) {
    const int64_t n = std::min(KEYS, span.width - j);
    const Tensor weights = matrix(workspace.scores + j, span.rows, n, span.stride);
    const Tensor gradients = matrix(workspace.grad_weights + j, span.rows, n, span.stride);
    multiply(matrix(to.value + j * columns, n, columns, columns), weights.t(), grad_rows, 1.0f, true);
    multiply(matrix(to.key + j * columns, n, columns, columns), gradients.t(), query, 1.0f, true);
  }
  multiply(matrix(to.query, span.rows, columns, columns), matrix(workspace.grad_weights, span.rows, span.width, span.stride),
           matrix(span.key, span.width, columns, columns), 1.0f, false);
}

template <Map M>
void differentiate_block(const Span& span, const Dropout& dropout, int64_t columns, const Workspace& workspace,
                         const Supports& kept, float e, float scale, const float* grad_output, const Sums& to) {
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
  if (dense || !held) score<M>(span, columns, scale, workspace.scores);
  (dense ? differentiate_densely<M> : differentiate_sparsely<M>)(
      span, dropout, columns, workspace, kept, e, scale, grad_output, to);
}

// Calls work(std::integral_constant<Map, ...>) for the map of that number.
template <typename Work>
void with_map(int64_t map, const Work& work) {
  switch (map) {
    case 0: return work(std::integral_constant<Map, Map::sparsemax>());
    case 1: return work(std::integral_constant<Map, Map::entmax15>());
    case 2: return work(std::integral_constant<Map, Map::entmax>());
    default: TORCH_CHECK(false, "expected map 0, 1 or 2, got ", map);
  }
}

// Where the supports of a block lie: `rows` are the first row's place among levels and counts, `block` its own among
// the pieces of the other two.
Supports supports_at(const Tensor& weights, const Tensor& index, const Tensor& counts, const Tensor& levels,
                     int64_t block, int64_t row) {
  const int64_t room = weights.size(1);
  return {weights.data_ptr<float>() + block * room, levels.data_ptr<float>() + 2 * row,
          index.data_ptr<int32_t>() + block * room, counts.data_ptr<int32_t>() + row, room};
}

// map: 0 sparsemax, 1 entmax15, 2 entmax with alpha = 1 + excess (heads,). Returns the output, and what the backward
// takes where `keep`: supports, on average up to `room` entries a row, their sizes, and the level of each row.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& limits, const Tensor& excess, int64_t map,
    double scale, int64_t room, bool keep, const std::optional<Tensor>& seed, int64_t least,
    const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Dropout dropout(seed, least, order, heads);
  TORCH_CHECK(excess.is_contiguous() && (!heads.all || excess.size(0) == heads.per_example), "expected one excess a head");
  // int32: positions of keys, and half the memory of int64
  const auto whole = query.options().dtype(at::kInt);
  const int64_t blocks = (heads.queries + ROWS - 1) / ROWS, threads = at::get_num_threads();
  // without a backward a thread uses one piece again and again
  const int64_t pieces = keep ? heads.all * blocks : threads, rows = keep ? heads.all * heads.queries : threads * ROWS;
  const int64_t entries = room * std::min(ROWS, heads.queries);
  Tensor output = at::empty_like(query), levels = at::empty({rows, 2}, query.options()), counts = at::empty({rows}, whole);
  Tensor weights = at::empty({pieces, entries}, query.options()), index = at::empty({pieces, entries}, whole);
  const Scratch scratch(Workspace::bytes(heads.keys));
  with_map(map, [&](auto kind) {
    at::parallel_for(0, heads.all * blocks, 1, [&](int64_t begin, int64_t end) {
      // the products below skip autograd and version counters, in threads of the pool too
      const at::AutoDispatchBelowADInplaceOrView plain;
      const Workspace workspace(scratch.share(), heads.keys);
      const int64_t thread = at::get_thread_num();
      for (int64_t task = begin; task < end; task++) {
        const Span span(heads, task / blocks, task % blocks * ROWS);
        const Supports kept =
            supports_at(weights, index, counts, levels, keep ? task : thread, keep ? span.row0 : thread * ROWS);
        attend_block<decltype(kind)::value>(
            span, dropout, heads.columns, workspace, kept, excess.const_data_ptr<float>()[span.head % heads.per_example],
            static_cast<float>(scale), output.data_ptr<float>() + span.row0 * heads.columns);
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
  const Dropout dropout(seed, least, order, heads);
  TORCH_CHECK(grad_output.is_contiguous() && grad_output.sizes() == query.sizes(), "expected a grad_output like the query");
  const int64_t blocks = (heads.queries + ROWS - 1) / ROWS, columns = heads.columns;
  // a task has all queries of the heads that share keys, so that one writer sums their gradients; where such groups are
  // few, their queries are shared out, every share with sums of its own, added in order
  const int64_t of_group = heads.group * blocks, shares = heads.shares(of_group);
  const std::vector<int64_t> parts{shares, heads.shared, heads.keys, columns};
  Tensor to_query = at::empty_like(query), to_key = at::zeros(parts, key.options());
  Tensor to_value = at::zeros(parts, key.options());
  Tensor to_alpha = at::empty({learns ? heads.all : 0, heads.queries}, query.options());
  const Scratch scratch(Workspace::bytes(heads.keys));
  with_map(map, [&](auto kind) {
    at::parallel_for(0, heads.shared * shares, 1, [&](int64_t begin, int64_t end) {
      const at::AutoDispatchBelowADInplaceOrView plain;
      const Workspace workspace(scratch.share(), heads.keys);
      for (int64_t task = begin; task < end; task++) {
        const int64_t group = task / shares, share = task % shares;
        const int64_t own = (share * heads.shared + group) * heads.keys * columns;
        // every shares-th block, so that causal rows are shared evenly
        for (int64_t at = share; at < of_group; at += shares) {
          const int64_t head = group * heads.group + at / blocks, block = at % blocks;
          const Span span(heads, head, block * ROWS);
          const Supports kept = supports_at(weights, index, counts, levels, head * blocks + block, span.row0);
          const Sums to{to_query.data_ptr<float>() + span.row0 * columns, to_key.data_ptr<float>() + own,
                        to_value.data_ptr<float>() + own, learns ? to_alpha.data_ptr<float>() + span.row0 : nullptr};
          differentiate_block<decltype(kind)::value>(
              span, dropout, columns, workspace, kept, excess.const_data_ptr<float>()[head % heads.per_example],
              static_cast<float>(scale), grad_output.const_data_ptr<float>() + span.row0 * columns, to);
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
