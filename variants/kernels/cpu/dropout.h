// Dropout of attention weights: which of them are kept, as ops/dropout.py defines it, computed where it is needed.
//
// A block of Philox4x32-7 has 16 bits for each of eight keys of one query. 64 keys of a row are one word of bits, which
// costs about as much as one pass over them.
#pragma once

#include "gemm.h"
#include "map.h"
#include "rows.h"

#include <array>
#include <cstdint>
#include <optional>

namespace attnbench {
inline namespace CPU_CAPABILITY {

constexpr int ROUNDS = 7;
constexpr int64_t KEYS_OF_BLOCK = 8, KEYS_OF_WORD = 64;

// Numbers of 32 bits in lanes of 64, of which the upper half may hold anything: a product reads the lower alone.
#if defined(CPU_CAPABILITY_AVX512)
using Lanes = __m512i;
constexpr int64_t LANES = 8;
inline Lanes in_all(uint64_t x) { return _mm512_set1_epi64(static_cast<int64_t>(x)); }
inline Lanes load_lanes(const int64_t* x) { return _mm512_loadu_si512(x); }
inline Lanes plus(Lanes a, Lanes b) { return _mm512_add_epi64(a, b); }
inline Lanes times(Lanes a, Lanes b) { return _mm512_mul_epu32(a, b); }
inline Lanes upper(Lanes a) { return _mm512_srli_epi64(a, 32); }
inline Lanes differ(Lanes a, Lanes b, Lanes c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// the lower halves of both in one lane
inline Lanes join(Lanes low, Lanes high) { return _mm512_mask_blend_epi32(0xAAAA, low, _mm512_slli_epi64(high, 32)); }
#elif defined(CPU_CAPABILITY_AVX2)
using Lanes = __m256i;
constexpr int64_t LANES = 4;
inline Lanes in_all(uint64_t x) { return _mm256_set1_epi64x(static_cast<int64_t>(x)); }
inline Lanes load_lanes(const int64_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
inline Lanes plus(Lanes a, Lanes b) { return _mm256_add_epi64(a, b); }
inline Lanes times(Lanes a, Lanes b) { return _mm256_mul_epu32(a, b); }
inline Lanes upper(Lanes a) { return _mm256_srli_epi64(a, 32); }
inline Lanes differ(Lanes a, Lanes b, Lanes c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
inline Lanes join(Lanes low, Lanes high) { return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xAA); }
#else
using Lanes = uint64_t;
constexpr int64_t LANES = 1;
inline Lanes in_all(uint64_t x) { return x; }
inline Lanes load_lanes(const int64_t* x) { return static_cast<uint64_t>(*x); }
inline Lanes plus(Lanes a, Lanes b) { return a + b; }
inline Lanes times(Lanes a, Lanes b) { return (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF); }
inline Lanes upper(Lanes a) { return a >> 32; }
inline Lanes differ(Lanes a, Lanes b, Lanes c) { return a ^ b ^ c; }
inline Lanes join(Lanes low, Lanes high) { return (low & 0xFFFFFFFF) | high << 32; }
#endif

// The bits of the keys of blocks, one block in a lane: 16 bits for each of its first four keys, then of the others.
struct Bits {
  Lanes first, second;
};

// One row of weights: a query of a head of an example.
struct DropRow {
  uint32_t query, head, example;
};

class Dropout {
 public:
  // seed: none where nothing is dropped; least: the smallest of 65,536 values that keep a weight; order (examples, keys):
  // which key lies at each place, none where they lie as they came.
  Dropout(const std::optional<at::Tensor>& seed, int64_t least, const std::optional<at::Tensor>& order, const Heads& heads)
      : active(seed.has_value()),
        least_(least),
        scale_(least < LEVELS ? static_cast<float>(static_cast<double>(LEVELS) / static_cast<double>(LEVELS - least)) : 0.0f),
        order_(order.has_value() ? order->const_data_ptr<int32_t>() : nullptr),
        keys_(heads.keys),
        heads_(heads.per_example) {
    if (!active) return;
    TORCH_CHECK(seed->numel() == 1 && seed->scalar_type() == at::kLong && seed->is_cpu(), "expected one int64 as the seed");
    TORCH_CHECK(least >= 0 && least <= LEVELS, "expected a threshold from 0 to 65536, got ", least);
    TORCH_CHECK(!order_ || (order->is_contiguous() && order->numel() * heads.per_example == heads.all * heads.keys),
                "expected an order (examples, keys)");
    const auto bits = static_cast<uint64_t>(*seed->const_data_ptr<int64_t>());
    auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    for (int round = 0; round < ROUNDS; round++, low += 0x9E3779B9u, high += 0xBB67AE85u) low_[round] = low, high_[round] = high;
  }

  // Whether any weight is dropped: the kernels ask once for each block, and are else as they are without dropout.
  const bool active;

  DropRow row(int64_t head, int64_t query) const {
    return {static_cast<uint32_t>(query), static_cast<uint32_t>(head % heads_), static_cast<uint32_t>(head / heads_)};
  }

  // Bit n is set where the key at place first + n is kept, for n below count, at most 64; 64 divides `first`. The other
  // bits may be anything.
  uint64_t kept(const DropRow& row, int64_t first, int64_t count) const {
    // of 16 bits no comparison could keep nothing
    if (least_ == LEVELS) return 0;
    if (order_) {
      int32_t places[KEYS_OF_WORD];
      for (int64_t n = 0; n < count; n++) places[n] = static_cast<int32_t>(first + n);
      return kept_at(row, places, count);
    }
    return in_order(row, first);
  }

  // x[n], for n below count, times the factor of the key at place first + n; 64 divides `first`.
  void drop(const DropRow& row, int64_t first, int64_t count, float* x) const {
    for (int64_t j = 0; j < count; j += KEYS_OF_WORD) {
      const int64_t left = std::min(KEYS_OF_WORD, count - j);
      const uint64_t word = kept(row, first + j, left);
      map::by_vectors(left, [&](int64_t v, int64_t n) { (Vec::loadu(x + j + v, n) * factors(word >> v)).store(x + j + v, n); });
    }
  }

  // out[n] = the factor of the key at place index[n], for n below count, and zeros to the end of the vector.
  void factors_at(const DropRow& row, const int32_t* index, int64_t count, float* out) const {
    for (int64_t x = 0; x < count; x += WIDTH) {
      const int64_t left = std::min(WIDTH, count - x);
      const uint64_t word = least_ == LEVELS ? 0 : kept_at(row, index + x, left);
      factors(left < WIDTH ? word & ((uint64_t{1} << left) - 1) : word).store(out + x);
    }
  }

  // For each lane the factor by its bit of `word`: the scale, or zero.
  Vec factors(uint64_t word) const {
#if defined(CPU_CAPABILITY_AVX512)
    return _mm512_maskz_mov_ps(static_cast<__mmask16>(word), _mm512_set1_ps(scale_));
#elif defined(CPU_CAPABILITY_AVX2)
    const __m256i own = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int32_t>(word & 0xFF)), own);
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(set, own)), _mm256_set1_ps(scale_));
#else
    float each[WIDTH];
    for (int64_t lane = 0; lane < WIDTH; lane++) each[lane] = word >> lane & 1 ? scale_ : 0.0f;
    return Vec::loadu(each);
#endif
  }

  // The same where lanes are rows, each with a word of its own, half of one: by bit `bit` of each.
  Vec factors(const uint32_t* words, int bit) const {
#if defined(CPU_CAPABILITY_AVX512)
    const __m512i own = _mm512_set1_epi32(static_cast<int32_t>(1u << bit));
    return _mm512_maskz_mov_ps(_mm512_test_epi32_mask(_mm512_loadu_si512(words), own), _mm512_set1_ps(scale_));
#elif defined(CPU_CAPABILITY_AVX2)
    const __m256i own = _mm256_set1_epi32(static_cast<int32_t>(1u << bit));
    const __m256i set = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(words)), own);
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(set, own)), _mm256_set1_ps(scale_));
#else
    float each[WIDTH];
    for (int64_t lane = 0; lane < WIDTH; lane++) each[lane] = words[lane] >> bit & 1 ? scale_ : 0.0f;
    return Vec::loadu(each);
#endif
  }

 private:
  static constexpr int64_t LEVELS = 65536;

  // Salmon, Moraes, Dror & Shaw 2011; the counter of a lane is (block, query, head, example).
  Bits philox(const DropRow& row, Lanes block) const {
    const Lanes a = in_all(0xD2511F53), b = in_all(0xCD9E8D57);
    Lanes c0 = block, c1 = in_all(row.query), c2 = in_all(row.head), c3 = in_all(row.example);
    for (int round = 0; round < ROUNDS; round++) {
      const Lanes first = times(c0, a), second = times(c2, b);
      c0 = differ(upper(second), c1, in_all(low_[round]));
      c1 = second;
      c2 = differ(upper(first), c3, in_all(high_[round]));
      c3 = first;
    }
    return {join(c0, c1), join(c2, c3)};
  }

  uint64_t in_order(const DropRow& row, int64_t first) const {
    const auto block = static_cast<uint64_t>(first / KEYS_OF_BLOCK);
#if defined(CPU_CAPABILITY_AVX512)
    // unpacking brings even lanes into one vector and odd ones into the other: in this order both come out sorted
    const Bits bits = philox(row, plus(in_all(block), _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7)));
    const __m512i least = _mm512_set1_epi16(static_cast<int16_t>(least_));
    const uint64_t low = _mm512_cmpge_epu16_mask(_mm512_unpacklo_epi64(bits.first, bits.second), least);
    const uint64_t high = _mm512_cmpge_epu16_mask(_mm512_unpackhi_epi64(bits.first, bits.second), least);
    return low | high << 32;
#elif defined(CPU_CAPABILITY_AVX2)
    const __m256i least = _mm256_set1_epi16(static_cast<int16_t>(least_));
    uint64_t word = 0;
    for (int half = 0; half < 2; half++) {
      const Bits bits = philox(row, plus(in_all(block + 4 * half), _mm256_setr_epi64x(0, 1, 2, 3)));
      const __m256i even = _mm256_unpacklo_epi64(bits.first, bits.second), odd = _mm256_unpackhi_epi64(bits.first, bits.second);
      // unsigned: the larger of both is the value itself
      const __m256i of_even = _mm256_cmpeq_epi16(_mm256_max_epu16(even, least), even);
      const __m256i of_odd = _mm256_cmpeq_epi16(_mm256_max_epu16(odd, least), odd);
      // packing goes by halves of the register, which brings the blocks back into their order
      const auto both = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_packs_epi16(of_even, of_odd)));
      word |= static_cast<uint64_t>(both) << (32 * half);
    }
    return word;
#else
    uint64_t word = 0;
    for (int64_t n = 0; n < KEYS_OF_WORD; n += KEYS_OF_BLOCK) {
      const Bits bits = philox(row, block + static_cast<uint64_t>(n / KEYS_OF_BLOCK));
      for (int64_t key = 0; key < KEYS_OF_BLOCK; key++)
        word |= static_cast<uint64_t>(is_kept(bits, key)) << (n + key);
    }
    return word;
#endif
  }

  // A block for each key: for few keys, or keys that have been moved. Bit n is that of the key at place index[n].
  uint64_t kept_at(const DropRow& row, const int32_t* index, int64_t count) const {
    const int32_t* order = order_ ? order_ + row.example * keys_ : nullptr;
    uint64_t word = 0;
    for (int64_t n = 0; n < count; n += LANES) {
      int64_t keys[LANES], blocks[LANES];
      for (int64_t lane = 0; lane < LANES; lane++) {
        // past the end any key will do
        const int64_t place = index[std::min(n + lane, count - 1)];
        keys[lane] = order ? order[place] : place;
        blocks[lane] = keys[lane] / KEYS_OF_BLOCK;
      }
      word |= of_lanes(philox(row, load_lanes(blocks)), keys) << n;
    }
    return word;
  }

  // Whether each lane keeps its key.
  uint64_t of_lanes(const Bits& bits, const int64_t* keys) const {
#if defined(CPU_CAPABILITY_AVX512)
    const __m512i key = load_lanes(keys), four = _mm512_set1_epi64(4), low = _mm512_set1_epi64(0xFFFF);
    const __m512i half = _mm512_mask_blend_epi64(_mm512_test_epi64_mask(key, four), bits.first, bits.second);
    const __m512i shift = _mm512_slli_epi64(_mm512_and_si512(key, _mm512_set1_epi64(3)), 4);
    const __m512i found = _mm512_and_si512(_mm512_srlv_epi64(half, shift), low);
    return _mm512_cmpge_epu64_mask(found, _mm512_set1_epi64(least_));
#elif defined(CPU_CAPABILITY_AVX2)
    const __m256i key = load_lanes(keys), four = _mm256_set1_epi64x(4), low = _mm256_set1_epi64x(0xFFFF);
    const __m256i in_second = _mm256_cmpeq_epi64(_mm256_and_si256(key, four), four);
    const __m256i half = _mm256_blendv_epi8(bits.first, bits.second, in_second);
    const __m256i shift = _mm256_slli_epi64(_mm256_and_si256(key, _mm256_set1_epi64x(3)), 4);
    const __m256i found = _mm256_and_si256(_mm256_srlv_epi64(half, shift), low);
    const __m256i over = _mm256_cmpgt_epi64(found, _mm256_set1_epi64x(least_ - 1));
    return static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(over)));
#else
    return is_kept(bits, *keys % KEYS_OF_BLOCK);
#endif
  }

#if !defined(CPU_CAPABILITY_AVX512) && !defined(CPU_CAPABILITY_AVX2)
  bool is_kept(const Bits& bits, int64_t key) const {
    return static_cast<int64_t>((key < 4 ? bits.first : bits.second) >> (16 * (key % 4)) & 0xFFFF) >= least_;
  }
#endif

  int64_t least_;
  float scale_;
  const int32_t* order_;
  int64_t keys_, heads_;
  std::array<uint32_t, ROUNDS> low_{}, high_{};
};

}  // namespace CPU_CAPABILITY
}  // namespace attnbench
