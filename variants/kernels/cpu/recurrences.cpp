// Linear recurrences with a matrix as state, S -> D S + k^T (v - e D S), which q reads: for the family of
// ops/recurrences.py.
//
// A task is a head, or some of its value columns, from the first step to the last: its state stays in the caches. Steps
// go in chunks of 16, where scores among them are a matrix, and the state is read and written by products. A longer
// chunk would compute more scores and save no product with a state. The forward keeps the state before every fourth
// chunk; the backward computes what lies between again.
//
// Decays: what reads a state, or writes to one, is multiplied by exponentials of sums of log decays, at most 1. Scores
// of channels that decay apart are products of q_i exp(G_i) and k_j exp(-G_j), G summed from the chunk's first step, as
// long as G is above -REACH. Behind that, exponentials are taken for each pair of steps: exact at any strength, and
// slower. Which rows these are depends on no later step.

#include "gemm.h"
#include "rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace attnbench {
namespace {

using at::Tensor;

constexpr int64_t CHUNK = 16, CHUNKS = 4, BLOCK = CHUNK * CHUNKS;
// exp(32) times a key or a gradient is far inside float32, and sums up to 32 are exact to 2e-6
constexpr float REACH = 32.0f;

// A left factor: its entry (i, k) stands at data[i * row + k * inner]; a transposed matrix is one with the strides
// exchanged.
struct Left {
  const float* data;
  int64_t row, inner;
};

// Entries of the left factor that may differ from zero, in 16 rows and columns.
enum class Part { all, lower, upper };

// R rows and V vectors of columns of a product, summed in registers.
template <int R, int V>
inline void product_tile(int64_t from, int64_t to, const Left& a, const float* b, int64_t stride, float scale,
                         const float* keep, bool add, float* c, int64_t columns) {
  Vec sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = Vec(0.0f);
  for (int64_t k = from; k < to; k++) {
    Vec row[V];
    for (int v = 0; v < V; v++) row[v] = Vec::loadu(b + k * stride + v * WIDTH);
    for (int r = 0; r < R; r++) {
      const Vec entry(a.data[r * a.row + k * a.inner]);
      for (int v = 0; v < V; v++) sums[r][v] = at::vec::fmadd(entry, row[v], sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      float* at = c + r * columns + v * WIDTH;
      Vec found = sums[r][v] * Vec(scale);
      if (keep) found = at::vec::fmadd(Vec(keep[r]), Vec::loadu(at), found);
      if (add) found = found + Vec::loadu(at);
      found.store(at);
    }
}

// c (rows, columns) = scale * a @ b, plus keep[i] times row i where `keep`, plus c where `add`; b has rows of `stride`.
// rows and columns are multiples of 16. Small products of known sizes, which calls to a library would outweigh.
inline void product(int64_t rows, int64_t inner, int64_t columns, const Left& a, const float* b, int64_t stride,
                    float* c, float scale = 1.0f, const float* keep = nullptr, bool add = false,
                    Part part = Part::all) {
  const auto strip = [&](auto height, auto vectors, int64_t i, int64_t j) {
    constexpr int R = height(), V = vectors();
    const int64_t from = part == Part::upper ? i : 0, to = part == Part::lower ? std::min(inner, i + R) : inner;
    product_tile<R, V>(from, to, {a.data + i * a.row, a.row, a.inner}, b + j, stride, scale, keep ? keep + i : nullptr,
                       add, c + i * columns + j, columns);
  };
  using std::integral_constant;
  int64_t j = 0;
  // eight sums under way hide the latency of a multiply-add
  for (; j + 2 * WIDTH <= columns; j += 2 * WIDTH)
    for (int64_t i = 0; i < rows; i += 4) strip(integral_constant<int, 4>(), integral_constant<int, 2>(), i, j);
  for (; j < columns; j += WIDTH)
    for (int64_t i = 0; i < rows; i += 8) strip(integral_constant<int, 8>(), integral_constant<int, 1>(), i, j);
}

// to (columns, rows) = the transpose of from (rows, columns); both multiples of 16.
inline void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t i = 0; i < rows; i += 16)
    for (int64_t j = 0; j < columns; j += 16)
      at::vec::transpose_mxn<float, 16, 16>(from + i * columns + j, columns, to + j * rows + i, rows);
}

// Calls work(offset) for the vectors of a row of n, a multiple of 16.
template <typename Work>
inline void by_vectors(int64_t n, const Work& work) {
  for (int64_t c = 0; c < n; c += WIDTH) work(c);
}

inline float dot(const float* x, const float* y, int64_t n) {
  Vec total(0.0f);
  by_vectors(n, [&](int64_t c) { total = at::vec::fmadd(Vec::loadu(x + c), Vec::loadu(y + c), total); });
  return sum(total);
}

// x of (batch, heads, steps, columns), columns side by side, or of (batch, heads, steps); null where there is none.
struct Steps {
  const float* data = nullptr;
  int64_t batch = 0, head = 0, step = 0, heads = 1;

  explicit Steps(const std::optional<Tensor>& x) {
    if (!x || !x->defined()) return;
    TORCH_CHECK(x->dim() == 3 || x->stride(3) == 1 || x->size(3) == 1, "expected columns side by side");
    data = x->const_data_ptr<float>();
    batch = x->stride(0), head = x->stride(1), step = x->stride(2), heads = x->size(1);
  }

  explicit operator bool() const { return data; }
  const float* of(int64_t both, int64_t at) const {
    return data + both / heads * batch + both % heads * head + at * step;
  }
};

enum class Decay { none, head, channel };

// What every task of a pass reads. A head is numbered over the batch, `all` of them; part: value columns of a task.
struct Pass {
  Steps query, key, value, log_decay, erase;
  Decay decay;
  int64_t all, steps, per_token, width, wide, parts, part;

  Pass(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& decays,
       const std::optional<Tensor>& erases)
      : query(q), key(k), value(v), log_decay(decays), erase(erases),
        decay(!log_decay ? Decay::none : decays->dim() == 3 ? Decay::head : Decay::channel),
        all(k.size(0) * k.size(1)), steps(k.size(2)), per_token(steps / q.size(2)), width(k.size(3)), wide(v.size(3)) {
    TORCH_CHECK(width % 16 == 0 && wide % 16 == 0, "expected widths that are multiples of 16, got ", width, " and ",
                wide);
    // where heads are few, columns of the values, which do not know of each other, go to several threads
    const int64_t most = std::min<int64_t>(wide / 16, at::get_num_threads() / std::max<int64_t>(1, all));
    parts = std::max<int64_t>(1, most);
    part = (wide / 16 + parts - 1) / parts * 16;
    parts = (wide + part - 1) / part;
  }

  int64_t blocks() const { return (steps + BLOCK - 1) / BLOCK; }
  int64_t columns(int64_t first) const { return std::min(part, wide - first); }
  // The row of the query that reads after this step, or none.
  int64_t reads(int64_t step) const { return (step + 1) % per_token ? -1 : step / per_token; }
};

// A chunk as its products take it: 16 rows, zeros behind the last step. near: as scores among its steps take them; far:
// as a state before or after the chunk does.
struct Chunk {
  float *near_query, *near_erase, *near_key, *far_query, *far_erase, *far_key, *near_keys_turned;
  // exp of the decays from the chunk's first step to each, and behind each to its last: of channels, or [0] of each row
  float *since, *until;
  // scores of queries and of erasures, strictly below the diagonal for these; decays between steps, of a head
  float *scores, *erased, *between;
  // what the chunk leaves of each row of the state
  float* kept;
  float* written;
  int64_t first, steps;
  // rows whose decays allow products
  int64_t fast;

  static int64_t bytes(int64_t width, int64_t wide) {
    return 9 * Scratch::bytes<float>(CHUNK * width) + 3 * Scratch::bytes<float>(CHUNK * CHUNK) +
           Scratch::bytes<float>(width) + Scratch::bytes<float>(CHUNK * wide);
  }

  Chunk(Scratch::Share& room, const Pass& pass) {
    for (float** each : {&near_query, &near_erase, &near_key, &far_query, &far_erase, &far_key, &near_keys_turned,
                         &since, &until})
      *each = room.take<float>(CHUNK * pass.width);
    for (float** each : {&scores, &erased, &between}) *each = room.take<float>(CHUNK * CHUNK);
    kept = room.take<float>(pass.width);
    written = room.take<float>(CHUNK * pass.part);
    if (pass.decay != Decay::head) far_query = near_query, far_erase = near_erase;
    if (pass.decay == Decay::none) far_key = near_key;
  }
};

// Rows of `x`, zeros behind them.
inline void load(const Steps& x, int64_t head, int64_t first, int64_t steps, int64_t columns, float* to) {
  for (int64_t i = 0; i < steps; i++) std::copy_n(x.of(head, first + i), columns, to + i * columns);
  std::fill_n(to + steps * columns, (CHUNK - steps) * columns, 0.0f);
}

// Rows of the query, or of the gradient of the output, at the steps that one reads.
inline void load_read(const Pass& pass, const Steps& x, int64_t head, int64_t first, int64_t steps, int64_t columns,
                      float* to) {
  for (int64_t i = 0; i < CHUNK; i++) {
    const int64_t row = i < steps ? pass.reads(first + i) : -1;
    if (row < 0)
      std::fill_n(to + i * columns, columns, 0.0f);
    else
      std::copy_n(x.of(head, row), columns, to + i * columns);
  }
}

inline void multiply_row(const float* x, const float* factors, int64_t n, float* to) {
  by_vectors(n, [&](int64_t c) { (Vec::loadu(x + c) * Vec::loadu(factors + c)).store(to + c); });
}

// Calls work(j, factors) for the steps j before step i of the chunk, nearest first: factors (width) are exponentials of
// the decays behind j up to i.
template <typename Work>
inline void by_pairs(const Pass& pass, int64_t head, const Chunk& chunk, int64_t i, float* sums, float* factors,
                     const Work& work) {
  std::fill_n(sums, pass.width, 0.0f);
  for (int64_t j = i - 1; j >= 0; j--) {
    const float* decay = pass.log_decay.of(head, chunk.first + j + 1);
    by_vectors(pass.width, [&](int64_t c) {
      const Vec total = Vec::loadu(sums + c) + Vec::loadu(decay + c);
      total.store(sums + c);
      total.exp().store(factors + c);
    });
    work(j, factors);
  }
}

void decay_by_head(const Pass& pass, int64_t head, Chunk& chunk) {
  const int64_t width = pass.width;
  float from_first = 0.0f, sums[CHUNK] = {};
  std::fill_n(chunk.between, CHUNK * CHUNK, 0.0f);
  for (int64_t i = 0; i < chunk.steps; i++) {
    const float decay = *pass.log_decay.of(head, chunk.first + i);
    from_first += decay;
    chunk.since[i] = std::exp(from_first);
    // sums of the decays behind j up to i, never a difference of two
    for (int64_t j = 0; j < i; j++) sums[j] += decay;
    for (int64_t c = 0; c < CHUNK; c += WIDTH) Vec::loadu(sums + c).exp().store(chunk.between + i * CHUNK + c);
    std::fill(chunk.between + i * CHUNK + i + 1, chunk.between + (i + 1) * CHUNK, 0.0f);
  }
  std::copy_n(chunk.between + (chunk.steps - 1) * CHUNK, CHUNK, chunk.until);
  std::fill_n(chunk.kept, width, chunk.since[chunk.steps - 1]);
  const auto times = [&](const float* x, const float* factors, float* to) {
    for (int64_t i = 0; i < chunk.steps; i++)
      by_vectors(width, [&](int64_t c) {
        (Vec::loadu(x + i * width + c) * Vec(factors[i])).store(to + i * width + c);
      });
    std::fill_n(to + chunk.steps * width, (CHUNK - chunk.steps) * width, 0.0f);
  };
  times(chunk.near_query, chunk.since, chunk.far_query);
  times(chunk.near_key, chunk.until, chunk.far_key);
  if (pass.erase) times(chunk.near_erase, chunk.since, chunk.far_erase);
}

void decay_by_channel(const Pass& pass, int64_t head, Chunk& chunk, float* sums) {
  const int64_t width = pass.width;
  std::fill_n(sums, width, 0.0f);
  for (int64_t i = 0; i < chunk.steps; i++) {
    const float* decay = pass.log_decay.of(head, chunk.first + i);
    float *query = chunk.near_query + i * width, *erase = chunk.near_erase + i * width;
    float* since = chunk.since + i * width;
    Vec lowest(0.0f);
    by_vectors(width, [&](int64_t c) {
      const Vec total = Vec::loadu(sums + c) + Vec::loadu(decay + c), factor = total.exp();
      total.store(sums + c);
      lowest = at::vec::minimum(lowest, total);
      factor.store(since + c);
      (Vec::loadu(query + c) * factor).store(query + c);
      if (pass.erase) (Vec::loadu(erase + c) * factor).store(erase + c);
    });
    const float least = at::vec::vec_reduce_all<float>([](Vec a, Vec b) { return at::vec::minimum(a, b); }, lowest);
    if (chunk.fast == i && least > -REACH) chunk.fast = i + 1;
  }
  const float* last = chunk.since + (chunk.steps - 1) * width;
  std::copy_n(last, width, chunk.kept);
  if (chunk.fast < chunk.steps) std::fill_n(sums, width, 0.0f);
  for (int64_t i = chunk.steps - 1; i >= 0; i--) {
    float *key = chunk.near_key + i * width, *until = chunk.until + i * width, *far = chunk.far_key + i * width;
    const float* behind = i + 1 < chunk.steps ? pass.log_decay.of(head, chunk.first + i + 1) : nullptr;
    by_vectors(width, [&](int64_t c) {
      const Vec own = Vec::loadu(key + c), since = Vec::loadu(chunk.since + i * width + c);
      Vec factor;
      if (chunk.fast == chunk.steps) {
        factor = Vec::loadu(last + c) / since;
      } else {
        const Vec total = behind ? Vec::loadu(sums + c) + Vec::loadu(behind + c) : Vec(0.0f);
        total.store(sums + c);
        factor = total.exp();
      }
      factor.store(until + c);
      (own * factor).store(far + c);
      (i < chunk.fast ? own / since : Vec(0.0f)).store(key + c);
    });
  }
  std::fill_n(chunk.far_key + chunk.steps * width, (CHUNK - chunk.steps) * width, 0.0f);
}

// All of a chunk but what it writes. scratch: two rows.
void prepare(const Pass& pass, int64_t head, int64_t first, Chunk& chunk, float* scratch) {
  const int64_t width = pass.width;
  chunk.first = first;
  chunk.steps = std::min(CHUNK, pass.steps - first);
  chunk.fast = 0;
  load_read(pass, pass.query, head, first, chunk.steps, width, chunk.near_query);
  load(pass.key, head, first, chunk.steps, width, chunk.near_key);
  if (pass.erase) load(pass.erase, head, first, chunk.steps, width, chunk.near_erase);
  if (pass.decay == Decay::none) std::fill_n(chunk.kept, width, 1.0f);
  if (pass.decay == Decay::head) decay_by_head(pass, head, chunk);
  if (pass.decay == Decay::channel) decay_by_channel(pass, head, chunk, scratch);
  transpose(chunk.near_key, CHUNK, width, chunk.near_keys_turned);
  product(CHUNK, width, CHUNK, {chunk.near_query, width, 1}, chunk.near_keys_turned, CHUNK, chunk.scores);
  if (pass.erase)
    product(CHUNK, width, CHUNK, {chunk.near_erase, width, 1}, chunk.near_keys_turned, CHUNK, chunk.erased);
  for (int64_t i = 0; i < CHUNK; i++) {
    float *scores = chunk.scores + i * CHUNK, *erased = chunk.erased + i * CHUNK;
    if (pass.decay == Decay::channel && i >= chunk.fast && i < chunk.steps) {
      const int64_t read = pass.reads(first + i);
      const float* query = read < 0 ? nullptr : pass.query.of(head, read);
      const float* erase = pass.erase ? pass.erase.of(head, first + i) : nullptr;
      scores[i] = query ? dot(query, pass.key.of(head, first + i), width) : 0.0f;
      by_pairs(pass, head, chunk, i, scratch, scratch + width, [&](int64_t j, const float* factors) {
        const float* key = pass.key.of(head, first + j);
        Vec of_query(0.0f), of_erase(0.0f);
        by_vectors(width, [&](int64_t c) {
          const Vec left = Vec::loadu(key + c) * Vec::loadu(factors + c);
          if (query) of_query = at::vec::fmadd(Vec::loadu(query + c), left, of_query);
          if (erase) of_erase = at::vec::fmadd(Vec::loadu(erase + c), left, of_erase);
        });
        scores[j] = sum(of_query);
        erased[j] = sum(of_erase);
      });
    }
    if (pass.decay == Decay::head) {
      multiply_row(scores, chunk.between + i * CHUNK, CHUNK, scores);
      if (pass.erase) multiply_row(erased, chunk.between + i * CHUNK, CHUNK, erased);
    }
    std::fill(scores + i + 1, scores + CHUNK, 0.0f);
    if (pass.erase) std::fill(erased + i, erased + CHUNK, 0.0f);
  }
}

// What the steps of a chunk write along their keys, less what they erase: the solution of a triangular system.
void write(const Pass& pass, int64_t head, int64_t column, const float* state, Chunk& chunk) {
  const int64_t columns = pass.columns(column);
  float* written = chunk.written;
  for (int64_t i = 0; i < chunk.steps; i++)
    std::copy_n(pass.value.of(head, chunk.first + i) + column, columns, written + i * columns);
  std::fill_n(written + chunk.steps * columns, (CHUNK - chunk.steps) * columns, 0.0f);
  if (!pass.erase) return;
  product(CHUNK, pass.width, columns, {chunk.far_erase, pass.width, 1}, state, columns, written, -1.0f, nullptr, true);
  for (int64_t i = 1; i < chunk.steps; i++)
    for (int64_t c = 0; c < columns; c += WIDTH) {
      Vec total = Vec::loadu(written + i * columns + c);
      for (int64_t j = 0; j < i; j++)
        total = at::vec::fnmadd(Vec(chunk.erased[i * CHUNK + j]), Vec::loadu(written + j * columns + c), total);
      total.store(written + i * columns + c);
    }
}

// The state after a chunk, in place.
inline void advance(const Pass& pass, int64_t columns, const Chunk& chunk, float* state) {
  product(pass.width, CHUNK, columns, {chunk.far_key, 1, pass.width}, chunk.written, columns, state, 1.0f, chunk.kept);
}

// Columns `column` and on of a state, (width, wide), to and from the task's own.
inline void copy_in(const Pass& pass, const float* from, int64_t column, float* state) {
  const int64_t columns = pass.columns(column);
  for (int64_t r = 0; r < pass.width; r++)
    if (from)
      std::copy_n(from + r * pass.wide + column, columns, state + r * columns);
    else
      std::fill_n(state + r * columns, columns, 0.0f);
}

inline void copy_out(const Pass& pass, const float* state, int64_t column, float* to) {
  const int64_t columns = pass.columns(column);
  for (int64_t r = 0; r < pass.width; r++) std::copy_n(state + r * columns, columns, to + r * pass.wide + column);
}

inline const float* first_of(const std::optional<Tensor>& x) {
  return x && x->defined() ? x->const_data_ptr<float>() : nullptr;
}

// The outputs, the last state, and where `keep` the states before each block: (heads in all, blocks, width, wide).
std::tuple<Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& log_decay,
    const std::optional<Tensor>& erase, const std::optional<Tensor>& state, bool keep) {
  const Pass pass(query, key, value, log_decay, erase);
  const int64_t width = pass.width, wide = pass.wide, size = width * wide, length = query.size(2);
  Tensor output = at::empty({query.size(0), query.size(1), length, wide}, query.options());
  Tensor last = at::empty({query.size(0), query.size(1), width, wide}, query.options());
  Tensor states = at::empty({keep ? pass.all : 0, pass.blocks(), width, wide}, query.options());
  const float* initial = first_of(state);
  const Scratch scratch(Chunk::bytes(width, pass.part) + Scratch::bytes<float>(width * pass.part) +
                        Scratch::bytes<float>(CHUNK * pass.part) + Scratch::bytes<float>(2 * width));
  at::parallel_for(0, pass.all * pass.parts, 1, [&](int64_t begin, int64_t end) {
    Scratch::Share room = scratch.share();
    Chunk chunk(room, pass);
    float *own = room.take<float>(width * pass.part), *read = room.take<float>(CHUNK * pass.part);
    float* rows = room.take<float>(2 * width);
    for (int64_t task = begin; task < end; task++) {
      const int64_t head = task / pass.parts, column = task % pass.parts * pass.part, columns = pass.columns(column);
      copy_in(pass, initial ? initial + head * size : nullptr, column, own);
      for (int64_t first = 0; first < pass.steps; first += CHUNK) {
        if (keep && first % BLOCK == 0)
          copy_out(pass, own, column, states.data_ptr<float>() + (head * pass.blocks() + first / BLOCK) * size);
        prepare(pass, head, first, chunk, rows);
        write(pass, head, column, own, chunk);
        product(CHUNK, width, columns, {chunk.far_query, width, 1}, own, columns, read);
        product(CHUNK, CHUNK, columns, {chunk.scores, CHUNK, 1}, chunk.written, columns, read, 1.0f, nullptr, true,
                Part::lower);
        for (int64_t i = 0; i < chunk.steps; i++)
          if (const int64_t row = pass.reads(first + i); row >= 0)
            std::copy_n(read + i * columns, columns, output.data_ptr<float>() + (head * length + row) * wide + column);
        advance(pass, columns, chunk, own);
      }
      copy_out(pass, own, column, last.data_ptr<float>() + head * size);
    }
  });
  return {output, last, states};
}

// Where the gradients of a head, or of a part of its columns, go; those of value and state know their columns.
struct Gradients {
  float *query, *key, *value, *log_decay, *erase;
};

// Memory of a task of the backward, beside the chunks of a block.
struct Workspace {
  // of 16 rows: gradients of outputs and of what was written, and its transpose; gradients of what reads and writes;
  // what decays get from earlier steps of the chunk through the state after it
  float *of_output, *of_written, *written_turned, *of_query, *of_erase, *of_near_key, *of_far_key, *through_state;
  // gradients of both kinds of scores
  float *of_scores, *of_erased;
  // the state before each chunk of a block, the gradient of the one after a chunk, and transposes
  float *states, *of_state, *state_turned, *of_state_turned;
  float *rows, *decays;

  static int64_t bytes(int64_t width, int64_t part) {
    return 3 * Scratch::bytes<float>(CHUNK * part) + 5 * Scratch::bytes<float>(CHUNK * width) +
           2 * Scratch::bytes<float>(CHUNK * CHUNK) + Scratch::bytes<float>(CHUNKS * width * part) +
           3 * Scratch::bytes<float>(width * part) + 2 * Scratch::bytes<float>(2 * width);
  }

  Workspace(Scratch::Share& room, int64_t width, int64_t part) {
    for (float** each : {&of_output, &of_written, &written_turned}) *each = room.take<float>(CHUNK * part);
    for (float** each : {&of_query, &of_erase, &of_near_key, &of_far_key, &through_state})
      *each = room.take<float>(CHUNK * width);
    for (float** each : {&of_scores, &of_erased}) *each = room.take<float>(CHUNK * CHUNK);
    states = room.take<float>(CHUNKS * width * part);
    for (float** each : {&of_state, &state_turned, &of_state_turned}) *each = room.take<float>(width * part);
    rows = room.take<float>(2 * width);
    decays = room.take<float>(2 * width);
  }
};

// From gradients of what scores and states take to those of query, key and erasure without their decays.
void undecay(const Pass& pass, int64_t head, const Chunk& chunk, const Workspace& work) {
  const int64_t width = pass.width;
  const bool channels = pass.decay == Decay::channel;
  std::fill_n(work.rows, width, 0.0f);
  for (int64_t i = 0; i < chunk.steps; i++) {
    const float* key = pass.key.of(head, chunk.first + i);
    by_vectors(width, [&](int64_t c) {
      const int64_t at = i * width + c;
      Vec until(1.0f);
      if (channels) {
        const Vec since = Vec::loadu(chunk.since + at);
        until = Vec::loadu(chunk.until + at);
        (Vec::loadu(work.of_query + at) * since).store(work.of_query + at);
        if (pass.erase) (Vec::loadu(work.of_erase + at) * since).store(work.of_erase + at);
        (i < chunk.fast ? Vec::loadu(work.of_near_key + at) / since : Vec(0.0f)).store(work.of_near_key + at);
      } else if (pass.decay == Decay::head) {
        until = Vec(chunk.until[i]);
      }
      const Vec far = Vec::loadu(work.of_far_key + at) * until, before = Vec::loadu(work.rows + c);
      far.store(work.of_far_key + at);
      before.store(work.through_state + at);
      at::vec::fmadd(Vec::loadu(key + c), far, before).store(work.rows + c);
    });
  }
  if (!channels) return;
  for (int64_t i = chunk.fast; i < chunk.steps; i++) {
    const int64_t read = pass.reads(chunk.first + i);
    const float* query = read < 0 ? nullptr : pass.query.of(head, read);
    const float* erase = pass.erase ? pass.erase.of(head, chunk.first + i) : nullptr;
    by_pairs(pass, head, chunk, i, work.rows, work.rows + width, [&](int64_t j, const float* factors) {
      const float* key = pass.key.of(head, chunk.first + j);
      const Vec of_score(work.of_scores[i * CHUNK + j]), of_erased(pass.erase ? work.of_erased[i * CHUNK + j] : 0.0f);
      by_vectors(width, [&](int64_t c) {
        const Vec factor = Vec::loadu(factors + c), left = Vec::loadu(key + c) * factor;
        const auto add = [](const Vec& x, const Vec& y, float* to) { at::vec::fmadd(x, y, Vec::loadu(to)).store(to); };
        add(of_score, left, work.of_query + i * width + c);
        Vec reader = query ? Vec::loadu(query + c) * of_score : Vec(0.0f);
        if (erase) {
          add(of_erased, left, work.of_erase + i * width + c);
          reader = at::vec::fmadd(Vec::loadu(erase + c), of_erased, reader);
        }
        add(reader, factor, work.of_near_key + j * width + c);
      });
    });
  }
}

// Gradients of the decays of a chunk, of the score of each step with itself, which nothing decays, and of the rest; all
// are written. work.decays: what decays get from the state before the chunk through the one after it.
void finish(const Pass& pass, int64_t head, const Chunk& chunk, const Workspace& work, const float* of_self,
            const Gradients& to) {
  const int64_t width = pass.width;
  for (int64_t i = chunk.steps - 1; i >= 0; i--) {
    const int64_t step = chunk.first + i, read = pass.reads(step);
    const float *query = read < 0 ? nullptr : pass.query.of(head, read), *key = pass.key.of(head, step);
    const float* erase = pass.erase ? pass.erase.of(head, step) : nullptr;
    const Vec self(of_self[i]);
    Vec total(0.0f);
    by_vectors(width, [&](int64_t c) {
      const int64_t at = i * width + c;
      const Vec k = Vec::loadu(key + c), near = Vec::loadu(work.of_near_key + at);
      // a decay multiplies what later steps read of earlier ones: all later readers, less what they read of later keys
      Vec change = at::vec::fnmadd(k, near, Vec::loadu(work.decays + c));
      Vec of_key = near + Vec::loadu(work.of_far_key + at);
      if (query) {
        const Vec q = Vec::loadu(query + c), of_query = Vec::loadu(work.of_query + at);
        change = at::vec::fmadd(q, of_query, change);
        at::vec::fmadd(self, k, of_query).store(to.query + read * width + c);
        of_key = at::vec::fmadd(self, q, of_key);
      }
      of_key.store(to.key + step * width + c);
      if (erase) {
        const Vec of_erase = Vec::loadu(work.of_erase + at);
        change = at::vec::fmadd(Vec::loadu(erase + c), of_erase, change);
        of_erase.store(to.erase + step * width + c);
      }
      change.store(work.decays + c);
      const Vec of_decay = change + Vec::loadu(work.through_state + at);
      if (pass.decay == Decay::channel) of_decay.store(to.log_decay + step * width + c);
      total = total + of_decay;
    });
    if (pass.decay == Decay::head) to.log_decay[step] = sum(total);
  }
}

// Gradients of a chunk; work.of_state is that of the state after it, and becomes that of the state before it.
void differentiate(const Pass& pass, int64_t head, int64_t column, const Chunk& chunk, const float* state,
                   const Steps& grad_output, const Workspace& work, const Gradients& to) {
  const int64_t width = pass.width, columns = pass.columns(column);
  for (int64_t r = 0; r < width; r++)
    work.decays[r] = chunk.kept[r] * dot(state + r * columns, work.of_state + r * columns, columns);
  for (int64_t i = 0; i < CHUNK; i++) {
    const int64_t row = i < chunk.steps ? pass.reads(chunk.first + i) : -1;
    if (row < 0)
      std::fill_n(work.of_output + i * columns, columns, 0.0f);
    else
      std::copy_n(grad_output.of(head, row) + column, columns, work.of_output + i * columns);
  }
  product(CHUNK, width, columns, {chunk.far_key, width, 1}, work.of_state, columns, work.of_written);
  product(CHUNK, CHUNK, columns, {chunk.scores, 1, CHUNK}, work.of_output, columns, work.of_written, 1.0f, nullptr,
          true, Part::upper);
  if (pass.erase)
    // the transposed system, from its end
    for (int64_t i = chunk.steps - 2; i >= 0; i--)
      for (int64_t c = 0; c < columns; c += WIDTH) {
        Vec total = Vec::loadu(work.of_written + i * columns + c);
        for (int64_t j = i + 1; j < chunk.steps; j++) {
          const Vec factor(chunk.erased[j * CHUNK + i]);
          total = at::vec::fnmadd(factor, Vec::loadu(work.of_written + j * columns + c), total);
        }
        total.store(work.of_written + i * columns + c);
      }
  for (int64_t i = 0; i < chunk.steps; i++)
    std::copy_n(work.of_written + i * columns, columns, to.value + (chunk.first + i) * pass.wide + column);
  transpose(chunk.written, CHUNK, columns, work.written_turned);
  transpose(state, width, columns, work.state_turned);
  transpose(work.of_state, width, columns, work.of_state_turned);
  product(CHUNK, columns, CHUNK, {work.of_output, columns, 1}, work.written_turned, CHUNK, work.of_scores);
  product(CHUNK, columns, width, {work.of_output, columns, 1}, work.state_turned, width, work.of_query);
  product(CHUNK, columns, width, {chunk.written, columns, 1}, work.of_state_turned, width, work.of_far_key);
  if (pass.erase) {
    product(CHUNK, columns, CHUNK, {work.of_written, columns, 1}, work.written_turned, CHUNK, work.of_erased, -1.0f);
    product(CHUNK, columns, width, {work.of_written, columns, 1}, work.state_turned, width, work.of_erase, -1.0f);
  }
  float of_self[CHUNK];
  for (int64_t i = 0; i < CHUNK; i++) {
    float *scores = work.of_scores + i * CHUNK, *erased = work.of_erased + i * CHUNK;
    of_self[i] = scores[i];
    std::fill(scores + i, scores + CHUNK, 0.0f);
    if (pass.erase) std::fill(erased + i, erased + CHUNK, 0.0f);
    if (pass.decay != Decay::head) continue;
    multiply_row(scores, chunk.between + i * CHUNK, CHUNK, scores);
    if (pass.erase) multiply_row(erased, chunk.between + i * CHUNK, CHUNK, erased);
    // a state is read with the decay of a row, scores without
    scale_row(work.of_query + i * width, width, i < chunk.steps ? chunk.since[i] : 0.0f);
    if (pass.erase) scale_row(work.of_erase + i * width, width, i < chunk.steps ? chunk.since[i] : 0.0f);
  }
  // rows behind the reach of products follow pair by pair
  const int64_t rows = pass.decay == Decay::channel ? chunk.fast : chunk.steps, inner = (rows + 7) / 8 * 8;
  const auto among = [&](const float* scores, const float* readers, float* of_readers, bool add) {
    float own[CHUNK * CHUNK];
    std::copy_n(scores, rows * CHUNK, own);
    std::fill_n(own + rows * CHUNK, (CHUNK - rows) * CHUNK, 0.0f);
    product(inner, inner, width, {own, CHUNK, 1}, chunk.near_key, width, of_readers, 1.0f, nullptr, true, Part::lower);
    product(CHUNK, inner, width, {own, 1, CHUNK}, readers, width, work.of_near_key, 1.0f, nullptr, add, Part::upper);
  };
  among(work.of_scores, chunk.near_query, work.of_query, false);
  if (pass.erase) among(work.of_erased, chunk.near_erase, work.of_erase, true);
  undecay(pass, head, chunk, work);
  finish(pass, head, chunk, work, of_self, to);
  product(width, CHUNK, columns, {chunk.far_query, 1, width}, work.of_output, columns, work.of_state, 1.0f, chunk.kept);
  if (pass.erase)
    product(width, CHUNK, columns, {chunk.far_erase, 1, width}, work.of_written, columns, work.of_state, -1.0f, nullptr,
            true);
}

// Gradients of query, key, value, log_decay, erase and the first state, contiguous; without entries where there is
// none.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const std::optional<Tensor>& grad_last, const Tensor& query, const Tensor& key,
    const Tensor& value, const std::optional<Tensor>& log_decay, const std::optional<Tensor>& erase,
    const Tensor& states) {
  const Pass pass(query, key, value, log_decay, erase);
  const int64_t width = pass.width, size = width * pass.wide, batch = key.size(0), heads = key.size(1);
  const int64_t length = query.size(2), steps = pass.steps, parts = pass.parts;
  // those that are sums over value columns once for each part, added in order below
  Tensor to_query = at::empty({parts, batch, heads, length, width}, query.options());
  Tensor to_key = at::empty({parts, batch, heads, steps, width}, query.options());
  Tensor to_value = at::empty({batch, heads, steps, pass.wide}, query.options());
  const bool channels = pass.decay == Decay::channel;
  const int64_t decays = channels ? width : pass.decay == Decay::head ? 1 : 0;
  Tensor to_decay = at::empty({parts, batch, heads, steps, decays}, query.options());
  Tensor to_erase = at::empty({pass.erase ? parts : 0, batch, heads, steps, width}, query.options());
  Tensor to_state = at::empty({batch, heads, width, pass.wide}, query.options());
  const Steps upstream(grad_output);
  const float* of_last = first_of(grad_last);
  const Scratch scratch(CHUNKS * Chunk::bytes(width, pass.part) + Workspace::bytes(width, pass.part));
  at::parallel_for(0, pass.all * parts, 1, [&](int64_t begin, int64_t end) {
    Scratch::Share room = scratch.share();
    std::vector<Chunk> chunks;
    for (int64_t at = 0; at < CHUNKS; at++) chunks.emplace_back(room, pass);
    const Workspace work(room, width, pass.part);
    for (int64_t task = begin; task < end; task++) {
      const int64_t head = task / parts, part = task % parts, column = part * pass.part, columns = pass.columns(column);
      const int64_t own = part * pass.all + head;
      const Gradients to{to_query.data_ptr<float>() + own * length * width,
                         to_key.data_ptr<float>() + own * steps * width,
                         to_value.data_ptr<float>() + head * steps * pass.wide,
                         to_decay.data_ptr<float>() + own * steps * decays,
                         pass.erase ? to_erase.data_ptr<float>() + own * steps * width : nullptr};
      copy_in(pass, of_last ? of_last + head * size : nullptr, column, work.of_state);
      for (int64_t block = pass.blocks() - 1; block >= 0; block--) {
        copy_in(pass, states.const_data_ptr<float>() + (head * pass.blocks() + block) * size, column, work.states);
        const int64_t count = (std::min(BLOCK, steps - block * BLOCK) + CHUNK - 1) / CHUNK;
        for (int64_t at = 0; at < count; at++) {
          float* state = work.states + at * width * pass.part;
          prepare(pass, head, block * BLOCK + at * CHUNK, chunks[at], work.rows);
          write(pass, head, column, state, chunks[at]);
          if (at + 1 == count) break;
          std::copy_n(state, width * columns, state + width * pass.part);
          advance(pass, columns, chunks[at], state + width * pass.part);
        }
        for (int64_t at = count - 1; at >= 0; at--)
          differentiate(pass, head, column, chunks[at], work.states + at * width * pass.part, upstream, work, to);
      }
      copy_out(pass, work.of_state, column, to_state.data_ptr<float>() + head * size);
    }
  });
  const auto total = [&](const Tensor& each) { return parts == 1 || !each.size(0) ? each.flatten(0, 1) : each.sum(0); };
  return {total(to_query), total(to_key), to_value, total(to_decay), total(to_erase), to_state};
}

TORCH_LIBRARY_FRAGMENT(attnbench_cpu, m) {
  m.def(
      "recurrence_forward(Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? erase, Tensor? state, "
      "bool keep) -> (Tensor, Tensor, Tensor)");
  m.def(
      "recurrence_backward(Tensor grad_output, Tensor? grad_last, Tensor query, Tensor key, Tensor value, "
      "Tensor? log_decay, Tensor? erase, Tensor states) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(attnbench_cpu, CPU, m) {
  m.impl("recurrence_forward", &forward);
  m.impl("recurrence_backward", &backward);
}

}  // namespace
}  // namespace attnbench
