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

// of a block of a pass
constexpr int64_t MOST_ROWS = 128;

// Key less query, clipped to -back … ahead, is number 0 … back + ahead. The first query has position `offset`; keys have
// that of their place, or as `order` (examples, keys) says, which rises among the keys that are seen.
struct Distances {
  // what is added, (heads in all, queries, size)
  const float* added = nullptr;
  int64_t size = 0, back, ahead, offset, keys;
  const int32_t* order = nullptr;

  Distances(const std::optional<at::Tensor>& bias, int64_t before, int64_t first, const std::optional<at::Tensor>& places,
            const Heads& heads)
      : back(before), offset(first), keys(heads.keys) {
    if (!bias) return;
    size = bias->size(-1), ahead = size - 1 - back;
    TORCH_CHECK(bias->is_contiguous() && bias->numel() == heads.all * heads.queries * size, "expected numbers of each query");
    added = bias->const_data_ptr<float>();
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
  // near(from, to, number of the first) between, where it grows by one with each.
  template <typename Far, typename Near>
  void of_query(int64_t example, int64_t query, int64_t j, int64_t low, int64_t high, const Far& far, const Near& near) const {
    const int64_t at = query + offset;
    const int64_t left = first_at(example, j + low, j + high, at - back + 1) - j;
    const int64_t right = first_at(example, j + left, j + high, at + ahead) - j;
    far(low, left, 0), far(right, high, size - 1);
    if (!order && left < right) return near(left, right, j + left - at + back);
    for (int64_t c = left; c < right; c++) near(c, c + 1, position(example, j + c) - at + back);
  }

  // row += numbers of the query, `own`
  void add(int64_t example, int64_t query, int64_t j, int64_t low, int64_t high, const float* own, float* row) const {
    of_query(
        example, query, j, low, high,
        [&](int64_t from, int64_t to, int64_t number) {
          const Vec all(own[number]);
          map::by_vectors(to - from, [&](int64_t v, int64_t n) { map::store(map::load(row + from + v, n) + all, row + from + v, n); });
        },
        [&](int64_t from, int64_t to, int64_t number) {
          map::by_vectors(to - from, [&](int64_t v, int64_t n) {
            map::store(map::load(row + from + v, n) + map::load(own + number + v, n), row + from + v, n);
          });
        });
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
        [&](int64_t from, int64_t to, int64_t number) {
          map::by_vectors(to - from, [&](int64_t v, int64_t n) {
            map::store(map::load(sums + number + v, n) + map::load(row + from + v, n), sums + number + v, n);
          });
        });
  }

  // `add` for a transposed tile, a row of n queries from i on for each of `rows` keys from `place` on.
  void add_to_tile(int64_t example, int64_t place, int64_t rows, int64_t i, int64_t n, const float* own, float* tile) const {
    map::by_vectors(n, [&](int64_t c, int64_t lanes) {
      float lines[WIDTH][MOST_ROWS] = {}, block[WIDTH][WIDTH];
      for (int64_t lane = 0; lane < lanes; lane++) add(example, i + c + lane, place, 0, rows, own + (c + lane) * size, lines[lane]);
      for (int64_t r = 0; r < rows; r++) {
        if (r % WIDTH == 0) at::vec::transpose_mxn<float, WIDTH, WIDTH>(*lines + r, MOST_ROWS, *block, WIDTH);
        float* row = tile + r * n + c;
        map::store(map::load(row, lanes) + Vec::loadu(block[r % WIDTH]), row, lanes);
      }
    });
  }

  // `collect` of such a tile
  void collect_tile(int64_t example, int64_t place, int64_t rows, int64_t i, int64_t n, const float* tile, float* sums) const {
    map::by_vectors(n, [&](int64_t c, int64_t lanes) {
      float lines[WIDTH][MOST_ROWS], block[WIDTH][WIDTH] = {};
      for (int64_t r = 0; r < rows; r++) {
        map::load(tile + r * n + c, lanes).store(block[r % WIDTH]);
        if (r % WIDTH == WIDTH - 1 || r == rows - 1)
          at::vec::transpose_mxn<float, WIDTH, WIDTH>(*block, WIDTH, *lines + r / WIDTH * WIDTH, MOST_ROWS);
      }
      for (int64_t lane = 0; lane < lanes; lane++)
        collect(example, i + c + lane, place, 0, rows, lines[lane], sums + (c + lane) * size);
    });
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace attnbench
