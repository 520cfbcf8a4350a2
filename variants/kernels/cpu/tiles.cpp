// Attention by tiles of scores, for any map of `map.h`: one product, the map, and a product on.
//
// The forward goes by blocks of queries. The backward computes scores again and goes by blocks of keys, whose gradients
// are then plain products with long inner dimensions; only that of the queries is added up over blocks. Each query sees
// an interval of keys, of which only rows on an edge are cut, or what lists of tiles name. Tiles outside are never
// computed.

#include "distances.h"
#include "dropout.h"
#include "gemm.h"
#include "lists.h"
#include "map.h"
#include "rows.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zero.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace attnbench {
namespace {

using at::Tensor;

// of the rows and columns of a tile, so that two tiles stay in the second-level cache; 64 divides both
constexpr int64_t ROWS = MOST_ROWS, COLUMNS = 256;
// numbers of a query that a map may have
constexpr int64_t MOST_NUMBERS = 16;

// What every task of a pass reads. numbers (numbers, heads in all, queries): those of the map; sinks (heads in all): the
// score of one key more without a value, which has a part of the sum.
struct Pass {
  Heads heads;
  Dropout dropout;
  const Map& map;
  const Lists lists;
  const Distances distances;
  const int32_t* lowers;
  const float *numbers, *sinks;
  float scale, epsilon;
  // rows of a block
  int64_t rows;

  const int32_t* lowers_of(int64_t head) const { return lowers + head / heads.per_example * heads.queries; }
  // columns of a tile: lists name short pieces, and join them where they can
  int64_t columns() const { return lists ? COLUMNS : 2 * rows; }
  const float* numbers_of(int64_t which, int64_t row) const {
    return numbers + which * heads.all * heads.queries + row;
  }
};

// Sums and largest scores of the queries of a block, and what the map reads for each.
struct Block {
  float top[ROWS], total[ROWS], numbers[ROWS][MOST_NUMBERS];
};

// What the forward writes; by_distance: sums of weights, or none.
struct Outputs {
  float *output, *tops, *inverses, *by_distance;
};

void attend_block(const Pass& pass, int64_t head, int64_t first, float* tile, Block& block, const Outputs& to) {
  const Heads& heads = pass.heads;
  const Map& map = pass.map;
  const int64_t columns = heads.columns, wide = heads.wide, rows = std::min(pass.rows, heads.queries - first);
  const int64_t start = head * heads.queries + first;
  const int32_t *limits = heads.limits_of(head) + first, *lowers = pass.lowers_of(head) + first;
  const Tensor query = matrix(heads.query + start * columns, rows, columns, columns);
  const Tensor out = matrix(to.output + start * wide, rows, wide, wide);
  const int64_t example = head / heads.per_example, distances = pass.distances.size;
  float* by_distance = to.by_distance ? to.by_distance + start * distances : nullptr;
  if (by_distance) std::fill_n(by_distance, rows * distances, 0.0f);
  for (int64_t r = 0; r < rows; r++) {
    block.top[r] = pass.sinks ? pass.sinks[head] : -INF;
    block.total[r] = 0.0f;
    for (int64_t k = map.tops; k < map.forward_rows; k++)
      block.numbers[r][k] = *pass.numbers_of(k - map.tops, start + r);
  }
  bool started = false;
  // the entries j to j + n; `number`: of the first tile in the lists
  const auto attend_piece = [&](int64_t j, int64_t n, int64_t number) {
    const int64_t at = heads.keys_of(head) + j;
    const Tensor scores = matrix(tile, rows, n, n);
    // a tile of scores, used while it is in the second-level cache
    multiply(scores, query, matrix(heads.key + at * columns, n, columns, columns).t(), 1.0f, false);
    for (int64_t r = 0; r < rows; r++) {
      float *row = tile + r * n, *numbers = block.numbers[r];
      int64_t low = 0, high = n;
      if (pass.lists)
        pass.lists.hide(example, first + r, r, j, number, n, row, -INF);
      else
        low = std::clamp<int64_t>(lowers[r] - j, 0, n), high = std::clamp<int64_t>(limits[r] - j, low, n);
      if (pass.distances)
        pass.distances.add(example, first + r, j, low, high, pass.distances.added + (start + r) * distances, row);
      if (map.tops && low < high) {
        const float top = pass.scale * at::vec::reduce_all<float>(
            [](Vec a, Vec b) { return at::vec::maximum(a, b); }, row + low, high - low);
        // nothing is seen here, and there may be no finite score yet to subtract
        if (top == -INF) low = high = n;
        if (top > block.top[r]) {
          // what was summed before is less the old maximum; it is none on the first tile, or where all scores are -inf
          const float factor = std::exp(block.top[r] - top);
          block.total[r] *= factor;
          if (started) scale_row(to.output + (start + r) * wide, wide, factor);
          if (by_distance) scale_row(by_distance + r * distances, distances, factor);
          block.top[r] = top;
        }
        numbers[0] = block.top[r];
      }
      // scaled by the map and not by the product, which would scale the queries first: products that cancel to zero
      // would leave a rounding, which the norm behind ReLA multiplies by up to 1e4
      if (low < high) map.weigh(pass.scale, high - low, row + low, numbers, &block.total[r]);
      std::fill(row, row + low, 0.0f);
      std::fill(row + high, row + n, 0.0f);
      if (pass.dropout.active) pass.dropout.drop(pass.dropout.row(head, first + r), j, high, row);
      if (by_distance) pass.distances.collect(example, first + r, j, low, high, row, by_distance + r * distances);
    }
    // the first tile writes, the others add: no pass to clear the output
    multiply(out, scores, matrix(heads.value + at * wide, n, wide, wide), 1.0f, started);
    started = true;
  };
  if (pass.lists) {
    pass.lists.by_pieces(heads, head, first / pass.rows, pass.columns(), heads.keys, attend_piece);
  } else {
    // neither edge falls, so the first query of the block has the first key and the last query the last; words of
    // dropout begin at every 64th key
    const int64_t from = lowers[0] / KEYS_OF_WORD * KEYS_OF_WORD, width = limits[rows - 1];
    for (int64_t j = from; j < width; j += pass.columns()) attend_piece(j, std::min(pass.columns(), width - j), 0);
  }
  // no product writes the output of a block that sees nothing
  if (!started) out.zero_();
  if (!map.sums) return;
  for (int64_t r = 0; r < rows; r++) {
    if (pass.sinks) {
      float sink = pass.sinks[head];
      if (map.tops) block.numbers[r][0] = block.top[r] == -INF ? 0.0f : block.top[r];
      map.weigh(1.0f, 1, &sink, block.numbers[r], &block.total[r]);
    }
    const float total = block.total[r] + pass.epsilon, inverse = total == 0.0f ? 1.0f : 1.0f / total;
    scale_row(to.output + (start + r) * wide, wide, inverse);
    if (by_distance) scale_row(by_distance + r * distances, distances, inverse);
    to.inverses[start + r] = inverse;
    // a query without a key has no largest score; with zero none of the map's numbers becomes infinite
    if (map.tops) to.tops[start + r] = block.top[r] == -INF ? 0.0f : block.top[r];
  }
}

const Map& map_at(int64_t address, int64_t numbers) {
  const Map& map = *reinterpret_cast<const Map*>(address);
  TORCH_CHECK(numbers <= MOST_NUMBERS, "expected at most ", MOST_NUMBERS, " numbers of a query, got ", numbers);
  return map;
}

// The output, and for each query the largest score and one over the sum; empty where the map has none. bias (heads in all,
// queries, size): numbers by distance, of which `collect` asks for sums of weights, the last of what is returned.
std::tuple<Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& lowers, const Tensor& limits, double scale,
    int64_t address, const Tensor& numbers, const std::optional<Tensor>& sinks, double epsilon, int64_t rows,
    at::TensorList lists, const std::optional<Tensor>& bias, int64_t back, int64_t offset, bool collect,
    const std::optional<Tensor>& seed, int64_t least, const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Map& map = map_at(address, numbers.size(0) + 1);
  const Pass pass{heads, Dropout(seed, least, order, heads), map, Lists(lists, heads, false),
                  Distances(bias, back, offset, order, heads),
                  lowers.const_data_ptr<int32_t>(), numbers.const_data_ptr<float>(),
                  sinks ? sinks->const_data_ptr<float>() : nullptr, static_cast<float>(scale), static_cast<float>(epsilon),
                  rows};
  TORCH_CHECK(!pass.lists || (map.tops && rows == KEYS_OF_WORD), "expected blocks of 64 rows, and a map with a largest score");
  TORCH_CHECK(rows % KEYS_OF_WORD == 0 && rows <= ROWS, "expected blocks of 64 or 128 rows, got ", rows);
  Tensor output = at::empty({heads.all, heads.queries, heads.wide}, query.options());
  Tensor by_distance = at::empty({collect ? heads.all : 0, heads.queries, pass.distances.size}, query.options());
  Tensor tops = at::empty({map.tops ? heads.all : 0, heads.queries}, query.options());
  Tensor inverses = at::empty({map.sums ? heads.all : 0, heads.queries}, query.options());
  const Outputs to{output.data_ptr<float>(), tops.data_ptr<float>(), inverses.data_ptr<float>(),
                   collect ? by_distance.data_ptr<float>() : nullptr};
  const int64_t blocks = (heads.queries + rows - 1) / rows;
  const Scratch scratch(Scratch::bytes<float>(ROWS * COLUMNS) + Scratch::bytes<Block>(1));
  at::parallel_for(0, heads.all * blocks, 1, [&](int64_t begin, int64_t end) {
    // the products below skip autograd and version counters, in threads of the pool too
    const at::AutoDispatchBelowADInplaceOrView plain;
    Scratch::Share room = scratch.share();
    float* tile = room.take<float>(ROWS * COLUMNS);
    Block* block = room.take<Block>(1);
    for (int64_t task = begin; task < end; task++)
      attend_block(pass, task / blocks, task % blocks * rows, tile, *block, to);
  });
  return {output, tops, inverses, by_distance};
}

// Gradients that come, those of weights by distance among them, and where others go; to_numbers (learned, heads in all,
// queries), to_bias like the bias.
struct Gradients {
  const float *output, *inverses, *of_sums, *by_distance;
  float *to_query, *to_key, *to_value, *to_numbers, *to_bias;
};

// Pointers into the numbers of a map, or into their gradients, from `row` on.
template <typename Number>
std::vector<Number*> numbers_from(Number* first, int64_t count, int64_t stride, int64_t row) {
  std::vector<Number*> found;
  for (int64_t k = 0; k < count; k++) found.push_back(first + k * stride + row);
  return found;
}

// Gradients of a block of keys and their values, and what they add to those of the queries, of all heads that share the
// keys. The tiles are transposed: a row for each key, a column for each query.
void differentiate_block(const Pass& pass, int64_t group, int64_t first, float* tile, float* grad_weights,
                         uint32_t* words, const Gradients& to) {
  const Heads& heads = pass.heads;
  const Map& map = pass.map;
  // heads that share keys are of one example
  const int32_t *limits = heads.limits_of(group * heads.group), *lowers = pass.lowers_of(group * heads.group);
  // limits never fall: from the last one on lie keys that no query sees, and there may be anything in them
  const int64_t columns = heads.columns, wide = heads.wide, seen = heads.queries ? limits[heads.queries - 1] : 0;
  const int64_t all = std::min(pass.rows, heads.keys - first);
  int64_t rows = std::clamp<int64_t>(seen - first, 0, all);
  // queries before `start` end before these keys, queries from `stop` on begin behind them
  const int64_t start = std::upper_bound(limits, limits + heads.queries, first) - limits;
  const int64_t stop = std::lower_bound(lowers, lowers + heads.queries, first + rows) - lowers;
  if (start >= stop) rows = 0;
  float *const to_key = to.to_key + (group * heads.keys + first) * columns;
  float *const to_value = to.to_value + (group * heads.keys + first) * wide;
  std::fill_n(to_key + rows * columns, (all - rows) * columns, 0.0f);
  std::fill_n(to_value + rows * wide, (all - rows) * wide, 0.0f);
  if (!rows) return;
  const Tensor key = matrix(heads.key + (group * heads.keys + first) * columns, rows, columns, columns);
  const Tensor value = matrix(heads.value + (group * heads.keys + first) * wide, rows, wide, wide);
  const Tensor key_sum = matrix(to_key, rows, columns, columns), value_sum = matrix(to_value, rows, wide, wide);
  bool started = false;
  // queries i to i + n of a head; `number`: of the first tile in the lists
  const auto differentiate_piece = [&](int64_t head, int64_t i, int64_t n, int64_t number) {
    const int64_t own = head * heads.queries + i, example = head / heads.per_example;
    const Tensor query = matrix(heads.query + own * columns, n, columns, columns);
    const Tensor grad_rows = matrix(to.output + own * wide, n, wide, wide);
    const Tensor scores = matrix(tile, rows, n, n), gradients = matrix(grad_weights, rows, n, n);
    // transposed tiles: the gradients of keys and values are then plain products, which run faster than those that
    // read their left factor by columns (NOTES.md)
    multiply(scores, key, query.t(), 1.0f, false);
    multiply(gradients, value, grad_rows.t(), 1.0f, false);
    if (pass.dropout.active)
      // the same bits as in the forward: for each query those of the keys of this block, 32 to a word
      for (int64_t c = 0; c < n; c++)
        for (int64_t r = 0; r < rows; r += KEYS_OF_WORD) {
          const uint64_t word = pass.dropout.kept(pass.dropout.row(head, i + c), first + r, std::min(KEYS_OF_WORD, rows - r));
          words[r / 32 * COLUMNS + c] = static_cast<uint32_t>(word);
          words[(r / 32 + 1) * COLUMNS + c] = static_cast<uint32_t>(word >> 32);
        }
    const int64_t stride = heads.all * heads.queries;
    const auto numbers = numbers_from(pass.numbers, map.backward_rows, stride, own);
    const auto to_numbers = numbers_from(to.to_numbers, map.learned, stride, own);
    const int64_t of_own = own * pass.distances.size;
    if (pass.distances) pass.distances.add_to_tile(example, first, rows, i, n, pass.distances.added + of_own, tile);
    if (to.by_distance) pass.distances.add_to_tile(example, first, rows, i, n, to.by_distance + of_own, grad_weights);
    for (int64_t r = 0; r < rows; r++) {
      float *row = tile + r * n, *grads = grad_weights + r * n;
      int64_t low = 0, high = n;
      if (pass.lists) {
        pass.lists.hide(example, first + r, r, i, number, n, row, -INF);
        pass.lists.hide(example, first + r, r, i, number, n, grads, 0.0f);
      } else {
        // the queries whose limit lies behind this key, up to those that begin behind it
        low = std::upper_bound(limits + i, limits + i + n, first + r) - (limits + i);
        high = std::max<int64_t>(low, std::upper_bound(lowers + i, lowers + i + n, first + r) - (lowers + i));
      }
      const auto drop = [&](float* x) {
        map::by_vectors(n, [&](int64_t v, int64_t entries) {
          const Vec factors = pass.dropout.factors(words + r / 32 * COLUMNS + v, static_cast<int>(r % 32));
          (Vec::loadu(x + v, entries) * factors).store(x + v, entries);
        });
      };
      for (float* x : {row, grads}) std::fill(x, x + low, 0.0f), std::fill(x + high, x + n, 0.0f);
      if (pass.dropout.active) drop(grads);
      // one pass leaves the weights in the tile and the gradients of the scores in `grad_weights`
      if (low < high)
        map.differentiate(pass.scale, high - low, row + low, grads + low, numbers.data(), low, to.inverses + own + low,
                          to.of_sums + own + low, to_numbers.data());
      if (pass.dropout.active) drop(row);
    }
    if (pass.distances) pass.distances.collect_tile(example, first, rows, i, n, grad_weights, to.to_bias + of_own);
    multiply(value_sum, scores, grad_rows, 1.0f, started);
    multiply(key_sum, gradients, query, pass.scale, started);
    // the sum for the queries goes over all blocks of keys of this task, in one order
    multiply(matrix(to.to_query + own * columns, n, columns, columns), gradients.t(), key, pass.scale, true);
    started = true;
  };
  // pieces of the queries of one head after the other
  for (int64_t head = group * heads.group; head < (group + 1) * heads.group; head++) {
    if (pass.lists) {
      const auto work = [&](int64_t i, int64_t n, int64_t number) { differentiate_piece(head, i, n, number); };
      pass.lists.by_pieces(heads, head, first / pass.rows, pass.columns(), heads.queries, work);
    } else {
      for (int64_t i = start; i < stop; i += pass.columns()) differentiate_piece(head, i, std::min(pass.columns(), stop - i), 0);
    }
  }
  if (!started) key_sum.zero_(), value_sum.zero_();
}

// What divides a query's weights passes back: the gradient of its sum, and through that the gradient of the sink's score.
// `further`: products of the sums by distance with their gradients, (heads in all, queries), or none.
void differentiate_sums(const Pass& pass, int64_t head, const float* output, const float* further, const Gradients& to,
                        float* of_sums, float* to_sinks) {
  const Heads& heads = pass.heads;
  const int64_t start = head * heads.queries, wide = heads.wide;
  for (int64_t r = start; r < start + heads.queries; r++)
    of_sums[r] = -to.inverses[r] * ((further ? further[r] : 0.0f) + at::vec::map2_reduce_all<float>(
        [](Vec x, Vec y) { return x * y; }, [](Vec x, Vec y) { return x + y; }, to.output + r * wide, output + r * wide,
        wide));
  if (!pass.sinks) return;
  std::vector<float> scores(heads.queries, pass.sinks[head]), gradients(heads.queries, 0.0f);
  const int64_t stride = heads.all * heads.queries;
  pass.map.differentiate(1.0f, heads.queries, scores.data(), gradients.data(),
                         numbers_from(pass.numbers, pass.map.backward_rows, stride, start).data(), 0, to.inverses + start,
                         of_sums + start, numbers_from(to.to_numbers, pass.map.learned, stride, start).data());
  double sum = 0.0;
  for (const float gradient : gradients) sum += gradient;
  to_sinks[head] = static_cast<float>(sum);
}

// by_distance: gradients of the sums of weights by distance, like the bias
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& output, const Tensor& inverses, const Tensor& query, const Tensor& key,
    const Tensor& value, const Tensor& lowers, const Tensor& limits, double scale, int64_t address, const Tensor& numbers,
    const std::optional<Tensor>& sinks, int64_t rows, at::TensorList lists, const std::optional<Tensor>& bias, int64_t back,
    int64_t offset, const std::optional<Tensor>& by_distance, const std::optional<Tensor>& further,
    const std::optional<Tensor>& seed, int64_t least, const std::optional<Tensor>& order) {
  const Heads heads(query, key, value, limits);
  const Map& map = map_at(address, numbers.size(0));
  const Pass pass{heads, Dropout(seed, least, order, heads), map, Lists(lists, heads, true),
                  Distances(bias, back, offset, order, heads),
                  lowers.const_data_ptr<int32_t>(), numbers.const_data_ptr<float>(),
                  sinks ? sinks->const_data_ptr<float>() : nullptr, static_cast<float>(scale), 0.0f, rows};
  TORCH_CHECK(grad_output.is_contiguous() && grad_output.sizes() == output.sizes(), "expected a grad_output like the output");
  const int64_t blocks = (heads.keys + rows - 1) / rows;
  // where heads are few, the keys of each are shared out, every share with sums of its own, added in order
  const int64_t shares = heads.shares(blocks);
  Tensor to_query = at::zeros({shares, heads.all, heads.queries, heads.columns}, query.options());
  Tensor to_numbers = at::zeros({shares, map.learned, heads.all, heads.queries}, query.options());
  Tensor to_bias = at::zeros({shares, heads.all, heads.queries, pass.distances.size}, query.options());
  Tensor to_key = at::empty_like(key), to_value = at::empty_like(value);
  Tensor of_sums = at::empty_like(inverses), to_sinks = at::zeros({heads.all}, query.options());
  const auto gradients_of = [&](int64_t share) {
    return Gradients{grad_output.const_data_ptr<float>(), inverses.const_data_ptr<float>(), of_sums.const_data_ptr<float>(),
                     by_distance ? by_distance->const_data_ptr<float>() : nullptr,
                     to_query.data_ptr<float>() + share * heads.all * heads.queries * heads.columns,
                     to_key.data_ptr<float>(), to_value.data_ptr<float>(),
                     to_numbers.data_ptr<float>() + share * map.learned * heads.all * heads.queries,
                     to_bias.data_ptr<float>() + share * pass.distances.size * heads.all * heads.queries};
  };
  if (map.sums)
    at::parallel_for(0, heads.all, 1, [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; head++)
        differentiate_sums(pass, head, output.const_data_ptr<float>(), further ? further->const_data_ptr<float>() : nullptr,
                           gradients_of(0), of_sums.data_ptr<float>(), to_sinks.data_ptr<float>());
    });
  // of bits, a word for 32 keys of a query
  constexpr int64_t WORDS = ROWS / 32 * COLUMNS;
  const Scratch scratch(2 * Scratch::bytes<float>(ROWS * COLUMNS) + Scratch::bytes<uint32_t>(WORDS));
  at::parallel_for(0, heads.shared * shares, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView plain;
    Scratch::Share room = scratch.share();
    float *tile = room.take<float>(ROWS * COLUMNS), *grad_weights = room.take<float>(ROWS * COLUMNS);
    uint32_t* words = room.take<uint32_t>(WORDS);
    for (int64_t task = begin; task < end; task++)
      // every shares-th block, so that causal keys are shared evenly
      for (int64_t block = task % shares; block < blocks; block += shares)
        differentiate_block(pass, task / shares, block * rows, tile, grad_weights, words, gradients_of(task % shares));
  });
  // the shares are added in the order of their numbers, so a run gives the same bits with the same threads
  const auto total = [&](const Tensor& parts) { return shares == 1 ? parts[0] : parts.sum(0); };
  return {total(to_query), to_key, to_value, total(to_numbers), to_sinks, total(to_bias)};
}

TORCH_LIBRARY_FRAGMENT(attnbench_cpu, m) {
  m.def(
      "tiles_forward(Tensor query, Tensor key, Tensor value, Tensor lowers, Tensor limits, float scale, int map, "
      "Tensor numbers, Tensor? sinks, float epsilon, int rows, Tensor[] lists, Tensor? bias, int back, int offset, "
      "bool collect, Tensor? seed, int least, Tensor? order) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "tiles_backward(Tensor grad_output, Tensor output, Tensor inverses, Tensor query, Tensor key, Tensor value, "
      "Tensor lowers, Tensor limits, float scale, int map, Tensor numbers, Tensor? sinks, int rows, Tensor[] lists, "
      "Tensor? bias, int back, int offset, Tensor? by_distance, Tensor? further, Tensor? seed, int least, "
      "Tensor? order) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(attnbench_cpu, CPU, m) {
  m.impl("tiles_forward", &forward);
  m.impl("tiles_backward", &backward);
}

}  // namespace
}  // namespace attnbench
