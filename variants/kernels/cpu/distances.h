// Numbers by distance: those of a query that are added to its scores, and its weights summed, by how far a key is from it.
#pragma once

#include "gemm.h"
#include "map.h"
#include "rows.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace attnbench {
inline namespace CPU_CAPABILITY {

// Key less query, clipped to -clip … clip, is number 0 … 2 clip. The first query has position `offset`; keys have that of
// their place, or as `order` (examples, keys) says, which rises among the keys that are seen.
struct Distances {
  // what is added; along the queries (heads in all, queries, size), in the backward (size, heads in all, queries)
  const float* added = nullptr;
  int64_t size = 0, clip = 0, offset = 0, stride = 0, keys = 0;
  const int32_t* order = nullptr;

  Distances(const std::optional<at::Tensor>& bias, int64_t first, const std::optional<at::Tensor>& places, const Heads& heads)
      : offset(first), stride(heads.all * heads.queries), keys(heads.keys) {
    if (!bias) return;
    TORCH_CHECK(bias->is_contiguous() && stride && bias->numel() % stride == 0, "expected contiguous numbers of each query");
    added = bias->const_data_ptr<float>();
    size = bias->numel() / stride, clip = size / 2;
    order = places ? places->const_data_ptr<int32_t>() : nullptr;
  }

  explicit operator bool() const { return added; }

  int64_t position(int64_t example, int64_t place) const { return order ? order[example * keys + place] : place; }

  // The first of the places from … to at a position of at least `least`, or `to`.
  int64_t first_at(int64_t example, int64_t from, int64_t to, int64_t least) const {
    if (!order) return std::clamp(least, from, to);
    const int32_t* own = order + example * keys;
    return std::lower_bound(own + from, own + to, least) - own;
  }

  // Of a row of keys from place j on, seen from low to high: far(from, to, number) where all entries have one number,
  // near(entry, number) between.
  template <typename Far, typename Near>
  void of_query(int64_t example, int64_t query, int64_t j, int64_t low, int64_t high, const Far& far, const Near& near) const {
    const int64_t at = query + offset;
    const int64_t left = first_at(example, j + low, j + high, at - clip + 1) - j;
    const int64_t right = first_at(example, j + left, j + high, at + clip) - j;
    far(low, left, 0), far(right, high, 2 * clip);
    for (int64_t c = left; c < right; c++) near(c, position(example, j + c) - at + clip);
  }

  // The same of a row of queries from i on, for the key at `place`.
  template <typename Far, typename Near>
  void of_key(int64_t example, int64_t place, int64_t i, int64_t low, int64_t high, const Far& far, const Near& near) const {
    const int64_t ahead = position(example, place) - i - offset;
    const int64_t left = std::clamp(ahead - clip + 1, low, high), right = std::clamp(ahead + clip, left, high);
    far(low, left, 2 * clip), far(right, high, 0);
    for (int64_t c = left; c < right; c++) near(c, ahead - c + clip);
  }

  // row += numbers of the query, `own`
  void add(int64_t example, int64_t query, int64_t j, int64_t low, int64_t high, const float* own, float* row) const {
    of_query(
        example, query, j, low, high,
        [&](int64_t from, int64_t to, int64_t number) {
          const Vec all(own[number]);
          map::by_vectors(to - from, [&](int64_t v, int64_t n) { map::store(map::load(row + from + v, n) + all, row + from + v, n); });
        },
        [&](int64_t c, int64_t number) { row[c] += own[number]; });
  }

  // sums += row, by number
  void collect(int64_t example, int64_t query, int64_t j, int64_t low, int64_t high, const float* row, float* sums) const {
    of_query(
        example, query, j, low, high,
        [&](int64_t from, int64_t to, int64_t number) {
          Vec total(0.0f);
          map::by_vectors(to - from, [&](int64_t v, int64_t n) { total = total + Vec::set(Vec(0.0f), map::load(row + from + v, n), n); });
          sums[number] += sum(total);
        },
        [&](int64_t c, int64_t number) { sums[number] += row[c]; });
  }

  // row += the numbers of its queries, or those += row; `numbers`: of the query with entry 0, `stride` apart
  template <bool INTO_ROW, typename Numbers>
  void exchange(int64_t example, int64_t place, int64_t i, int64_t low, int64_t high, float* row, Numbers* numbers) const {
    of_key(
        example, place, i, low, high,
        [&](int64_t from, int64_t to, int64_t number) {
          map::by_vectors(to - from, [&](int64_t v, int64_t n) {
            auto* there = numbers + number * stride + from + v;
            const Vec total = map::load(row + from + v, n) + map::load(there, n);
            if constexpr (INTO_ROW) map::store(total, row + from + v, n);
            else map::store(total, there, n);
          });
        },
        [&](int64_t c, int64_t number) {
          if constexpr (INTO_ROW) row[c] += numbers[number * stride + c];
          else numbers[number * stride + c] += row[c];
        });
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace attnbench
