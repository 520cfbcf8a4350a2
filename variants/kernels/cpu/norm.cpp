// Gated RMS norm over the heads of a query, each way in one pass over the sums that rectified attention leaves.
//
// y = s x r sigmoid(g x) with r = 1 / sqrt(mean(x^2) + epsilon), over groups of heads that share a mean.

#include "map.h"
#include "rows.h"

#include <ATen/Parallel.h>
#include <ATen/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

namespace attnbench {
namespace {

using at::Tensor;
using map::load, map::store, map::sigmoid;

// queries whose part of the parameters' gradients is added up in order before it meets the others'
constexpr int64_t ROWS = 64;

// x: (batch, heads, queries, columns), contiguous. A row is a query of a group of heads.
struct Rows {
  const float *x, *scale, *gate;
  int64_t batch, heads, queries, columns, group, chunks;

  Rows(const Tensor& sums, const Tensor& scales, const Tensor& gates, int64_t heads_together)
      : x(sums.const_data_ptr<float>()),
        scale(scales.const_data_ptr<float>()),
        gate(gates.numel() ? gates.const_data_ptr<float>() : nullptr),
        batch(sums.size(0)),
        heads(sums.size(1)),
        queries(sums.size(2)),
        columns(sums.size(3)),
        group(heads_together),
        chunks((queries + ROWS - 1) / ROWS) {
    TORCH_CHECK(sums.is_contiguous() && scales.is_contiguous() && gates.is_contiguous(), "expected contiguous tensors");
    TORCH_CHECK(scales.numel() == heads * columns && (!gate || gates.numel() == heads * columns) && heads % group == 0,
                "expected scale and gate of heads * columns, and heads in whole groups");
  }

  int64_t tasks() const { return batch * (heads / group) * chunks; }

  // Calls work(first entry of a row, the row's number, task) for the rows of a task, one in the order of the other.
  template <typename Work>
  void each(int64_t task, const Work& work) const {
    const int64_t part = task / chunks, first = task % chunks * ROWS;
    for (int64_t i = first; i < std::min(first + ROWS, queries); i++)
      work(part * group * queries * columns + i * columns, part * queries + i);
  }

  // The first of the parameters of a task's heads.
  int64_t parameter(int64_t task) const { return task / chunks % (heads / group) * group * columns; }

  // Calls work(entry, offset among the group's parameters, lanes) for the vectors of the row that begins at `start`.
  template <typename Work>
  void vectors(int64_t start, const Work& work) const {
    for (int64_t h = 0; h < group; h++)
      for (int64_t c = 0; c < columns; c += WIDTH)
        work(start + h * queries * columns + c, h * columns + c, std::min(WIDTH, columns - c));
  }
};

// The output, and r of each row: (batch, groups, queries).
std::tuple<Tensor, Tensor> forward(
    const Tensor& sums, const Tensor& scale, const Tensor& gate, int64_t group, double epsilon) {
  const Rows rows(sums, scale, gate, group);
  Tensor output = at::empty_like(sums), inverse = at::empty({rows.batch, rows.heads / group, rows.queries}, sums.options());
  float *out = output.data_ptr<float>(), *r = inverse.data_ptr<float>();
  const float length = static_cast<float>(group * rows.columns);
  at::parallel_for(0, rows.tasks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; task++) {
      const int64_t own = rows.parameter(task);
      rows.each(task, [&](int64_t start, int64_t row) {
        // the mean of the squares, over all heads of the group; the row is still in the cache for the loop after it
        Vec squares(0.0f);
        rows.vectors(start, [&](int64_t at, int64_t, int64_t lanes) {
          const Vec x = load(rows.x + at, lanes);
          squares = at::vec::fmadd(x, x, squares);
        });
        r[row] = 1.0f / std::sqrt(sum(squares) / length + static_cast<float>(epsilon));
        const Vec factor(r[row]);
        rows.vectors(start, [&](int64_t at, int64_t j, int64_t lanes) {
          const Vec x = load(rows.x + at, lanes);
          Vec y = x * factor * load(rows.scale + own + j, lanes);
          if (rows.gate) y = y * sigmoid(load(rows.gate + own + j, lanes) * x);
          store(y, out + at, lanes);
        });
      });
    }
  });
  return {output, inverse};
}

// Gradients of the sums, and of scale and gate, (heads * columns); that of an absent gate is empty.
std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& grad_output, const Tensor& sums, const Tensor& inverse, const Tensor& scale, const Tensor& gate,
    int64_t group) {
  const Rows rows(sums, scale, gate, group);
  TORCH_CHECK(grad_output.is_contiguous() && grad_output.sizes() == sums.sizes(), "expected a grad_output like the sums");
  const int64_t width = group * rows.columns;
  Tensor to_sums = at::empty_like(sums);
  Tensor to_scale = at::zeros({rows.batch, rows.heads / group, rows.chunks, width}, sums.options());
  Tensor to_gate = rows.gate ? at::zeros_like(to_scale) : at::empty({0}, sums.options());
  const float *given = grad_output.const_data_ptr<float>(), *r = inverse.const_data_ptr<float>();
  float *out = to_sums.data_ptr<float>(), *scales = to_scale.data_ptr<float>(), *gates = to_gate.data_ptr<float>();
  at::parallel_for(0, rows.tasks(), 1, [&](int64_t begin, int64_t end) {
    const Vec one(1.0f);
    for (int64_t task = begin; task < end; task++) {
      const int64_t own = rows.parameter(task);
      rows.each(task, [&](int64_t start, int64_t row) {
        const Vec factor(r[row]);
        Vec along(0.0f);
        rows.vectors(start, [&](int64_t at, int64_t j, int64_t lanes) {
          const Vec x = load(rows.x + at, lanes), u = load(given + at, lanes), scaled = u * load(rows.scale + own + j, lanes);
          Vec normed = x * factor, passed = scaled;
          if (rows.gate) {
            const Vec g = load(rows.gate + own + j, lanes), open = sigmoid(g * x);
            const Vec turned = scaled * normed * open * (one - open);
            // partial sums of the parameters' gradients: of this task alone, so no two threads add to one number
            float* sums_of_gate = gates + task * width + j;
            store(at::vec::fmadd(turned, x, load(sums_of_gate, lanes)), sums_of_gate, lanes);
            normed = normed * open;
            passed = scaled * open;
            store(at::vec::fmadd(passed, factor, turned * g), out + at, lanes);
          } else {
            store(passed * factor, out + at, lanes);
          }
          float* sums_of_scale = scales + task * width + j;
          store(at::vec::fmadd(u, normed, load(sums_of_scale, lanes)), sums_of_scale, lanes);
          along = at::vec::fmadd(passed, x, along);
        });
        // what goes through the mean of the squares is the same multiple of x for the whole row
        const Vec back(-r[row] * r[row] * r[row] * sum(along) / static_cast<float>(width));
        rows.vectors(start, [&](int64_t at, int64_t, int64_t lanes) {
          store(at::vec::fmadd(back, load(rows.x + at, lanes), load(out + at, lanes)), out + at, lanes);
        });
      });
    }
  });
  // all tasks in one order
  const auto total = [](const Tensor& parts) { return parts.sum(at::IntArrayRef{0, 2}).flatten(); };
  return {to_sums, total(to_scale), rows.gate ? total(to_gate) : to_gate};
}

TORCH_LIBRARY_FRAGMENT(attnbench_cpu, m) {
  m.def(
      "gated_norm_forward(Tensor sums, Tensor scale, Tensor gate, int group, float epsilon) -> (Tensor, Tensor)");
  m.def(
      "gated_norm_backward(Tensor grad_output, Tensor sums, Tensor inverse, Tensor scale, Tensor gate, int group) "
      "-> (Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(attnbench_cpu, CPU, m) {
  m.impl("gated_norm_forward", &forward);
  m.impl("gated_norm_backward", &backward);
}

}  // namespace
}  // namespace attnbench
