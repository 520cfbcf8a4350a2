// Matrix products of one thread inside a parallel region, through ATen's own entry point, and the scratch they use.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/Parallel.h>
#include <ATen/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace attnbench {

// A view of floats in rows, `stride` apart.
inline at::Tensor matrix(const float* data, int64_t rows, int64_t columns, int64_t stride) {
  return at::from_blob(const_cast<float*>(data), {rows, columns}, {stride, 1}, at::TensorOptions().dtype(at::kFloat));
}

// out = scale * left @ right, added to what is there where `add`.
inline void multiply(at::Tensor out, const at::Tensor& left, const at::Tensor& right, float scale, bool add) {
  // ATen's gemm itself is not exported, so small tensors around our memory go to addmm; inside a parallel region MKL
  // runs it in the calling thread (NOTES.md)
  at::addmm_out(out, out, left, right, add ? 1.0f : 0.0f, scale);
}

// The same number of bytes for every thread, allocated where the memory of a process is counted.
class Scratch {
 public:
  explicit Scratch(int64_t bytes)
      // a cache line apart, so that no two threads write to one
      : stride_((bytes + 63) / 64 * 64),
        memory_(at::empty({at::get_num_threads() * stride_ + 64}, at::TensorOptions().dtype(at::kByte))) {}

  // Hands out the calling thread's share piece by piece.
  class Share {
   public:
    explicit Share(char* from) : next_(from) {}
    template <typename T>
    T* take(int64_t count) {
      T* piece = reinterpret_cast<T*>(next_);
      next_ += bytes<T>(count);
      return piece;
    }

   private:
    char* next_;
  };

  template <typename T>
  static int64_t bytes(int64_t count) {
    return (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }

  Share share() const {
    auto start = reinterpret_cast<std::uintptr_t>(memory_.data_ptr());
    start = (start + 63) / 64 * 64;
    return Share(reinterpret_cast<char*>(start) + at::get_thread_num() * stride_);
  }

 private:
  int64_t stride_;
  at::Tensor memory_;
};

// Query, key and value as the kernels take them: contiguous floats, (heads in all, positions, columns), columns a
// multiple of a vector, those of the values, `wide` of them, by themselves. Keys and values may have fewer heads, `shared`
// of them in all, each for the `group` heads of queries that stand side by side. limits (batch, queries): how many keys,
// from the first, each query may see; it never falls.
struct Heads {
  const float *query, *key, *value;
  const int32_t* limits;
  int64_t all, shared, group, per_example, queries, keys, columns, wide;

  Heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& seen)
      : query(q.const_data_ptr<float>()),
        key(k.const_data_ptr<float>()),
        value(v.const_data_ptr<float>()),
        limits(seen.const_data_ptr<int32_t>()),
        all(q.size(0)),
        shared(k.size(0)),
        group(shared ? all / shared : 1),
        per_example(q.size(0) / std::max<int64_t>(1, seen.size(0))),
        queries(q.size(1)),
        keys(k.size(1)),
        columns(q.size(2)),
        wide(v.size(2)) {
    TORCH_CHECK(q.is_contiguous() && k.is_contiguous() && v.is_contiguous() && seen.is_contiguous(),
                "expected contiguous tensors");
    TORCH_CHECK(group * shared == all && v.size(0) == shared && v.size(1) == keys && k.size(2) == columns &&
                    seen.size(1) == queries,
                "expected key and value (heads, keys, columns) beside the query, and limits (batch, queries)");
  }

  const int32_t* limits_of(int64_t head) const { return limits + head / per_example * queries; }

  // Where the keys of that head of queries begin, in rows of all keys; so do its values.
  int64_t keys_of(int64_t head) const { return head / group * keys; }

  // Into how many shares the `blocks` of each head of keys go, so that few heads still give every thread two tasks.
  int64_t shares(int64_t blocks) const {
    const int64_t tasks = 2 * at::get_num_threads();
    // one where there is no head or no block: their sums are tensors without entries, or zeros
    return std::max<int64_t>(1, shared ? std::min(blocks, (tasks + shared - 1) / shared) : 1);
  }
};

}  // namespace attnbench
