// Lists of tiles: which keys each query sees where that is no interval, and the mask of a row of one tile.
#pragma once

#include "dropout.h"
#include "gemm.h"

#include <algorithm>
#include <cstdint>

namespace attnbench {

constexpr uint64_t EVERY = ~uint64_t{0};

// Which keys each query sees, where that is no interval: for each block of 64 queries the tiles of 64 keys in which any
// is seen, and for each query of such a tile a word of bits. In the backward a block is of keys, and a tile of queries.
struct Lists {
  // (patterns · blocks + 1), where the tiles of a block begin; (tiles), which; (tiles, 64), bits; (examples, tiles of
  // keys), bits of keys that are real
  const int32_t *offsets = nullptr, *tiles = nullptr;
  const int64_t *words = nullptr, *real = nullptr;
  int64_t patterns = 0, blocks = 0, real_words = 0;
  bool of_keys = false;

  Lists(at::TensorList parts, const Heads& heads, bool keys) : of_keys(keys) {
    if (parts.empty()) return;
    TORCH_CHECK(parts.size() == 4, "expected offsets, tiles, words and real keys, got ", parts.size(), " tensors");
    offsets = parts[0].const_data_ptr<int32_t>(), tiles = parts[1].const_data_ptr<int32_t>();
    words = parts[2].const_data_ptr<int64_t>(), real = parts[3].const_data_ptr<int64_t>();
    blocks = ((keys ? heads.keys : heads.queries) + KEYS_OF_WORD - 1) / KEYS_OF_WORD;
    patterns = (parts[0].numel() - 1) / std::max<int64_t>(1, blocks);
    real_words = (heads.keys + KEYS_OF_WORD - 1) / KEYS_OF_WORD;
    TORCH_CHECK(patterns * blocks + 1 == parts[0].numel() && (patterns == 1 || patterns == heads.per_example),
                "expected a list for each block, of one pattern or of each head");
    TORCH_CHECK(parts[2].numel() == parts[1].numel() * KEYS_OF_WORD, "expected 64 words for each tile");
    TORCH_CHECK(parts[3].numel() * heads.per_example == real_words * heads.all, "expected real keys of each example");
  }

  explicit operator bool() const { return offsets; }

  // Calls work(place, entries, number) for the tiles of a block, neighbours joined while they have at most `most` entries;
  // `number`: that of the first tile in the lists; `all`: how many entries there are.
  template <typename Work>
  void by_pieces(const Heads& heads, int64_t head, int64_t block, int64_t most, int64_t all, const Work& work) const {
    const int32_t* own = offsets + (patterns == 1 ? 0 : head % heads.per_example) * blocks + block;
    for (int64_t number = own[0], count; number < own[1]; number += count) {
      const int64_t place = tiles[number] * KEYS_OF_WORD;
      count = 1;
      while (number + count < own[1] && tiles[number + count] == tiles[number] + count && (count + 1) * KEYS_OF_WORD <= most)
        count++;
      work(place, std::min(count * KEYS_OF_WORD, all - place), number);
    }
  }

  // Of the entries x of row `row` of a block, from `place` on, those that are not seen become `hidden`; all, where a row
  // is a key that is not real.
  void hide(int64_t example, int64_t row, int64_t r, int64_t place, int64_t number, int64_t n, float* x, float hidden) const {
    for (int64_t t = 0; t * KEYS_OF_WORD < n; t++) {
      const int64_t key = of_keys ? row : place + t * KEYS_OF_WORD;
      const auto is_real = static_cast<uint64_t>(real[example * real_words + key / KEYS_OF_WORD]);
      const uint64_t may = of_keys ? (is_real >> key % KEYS_OF_WORD & 1 ? EVERY : 0) : is_real;
      const uint64_t word = static_cast<uint64_t>(words[(number + t) * KEYS_OF_WORD + r]) & may;
      if (word == EVERY) continue;
      float* part = x + t * KEYS_OF_WORD;
      const int64_t left = std::min(KEYS_OF_WORD, n - t * KEYS_OF_WORD);
      for (int64_t k = 0; k < left; k++) part[k] = word >> k & 1 ? part[k] : hidden;
    }
  }
};

}  // namespace attnbench
