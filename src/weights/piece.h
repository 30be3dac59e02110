// Makes one piece: reads what a range of an output tensor comes from, converts it and puts it in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "weights/channel_reader.h"
#include "weights/convert.h"
#include "weights/lower.h"

namespace transload {

// Memory aligned to cache lines and left uninitialised: pages that are never used cost nothing.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}
  std::byte* data() { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// The buffers of one worker; not thread-safe.
class PieceMaker {
 public:
  explicit PieceMaker(const PieceLimits& limits = {});
  // Elements begin..end-1 of `tensor` to `out`, which is aligned for its type.
  NumericCounts make(const LoweredTensor& tensor, uint64_t begin, uint64_t end, std::byte* out);
  // One of its pieces: the rows of its strips follow one another in `out`.
  NumericCounts make_piece(const LoweredTensor& tensor, uint64_t piece, std::byte* out);
  static uint64_t buffer_bytes(const PieceLimits& limits);

 private:
  struct Job;
  NumericCounts make_tile(const LoweredTensor& tensor, uint64_t begin, uint64_t end, std::byte* out);
  static Job job_of(const LoweredTensor& tensor, const Fragment& fragment);
  struct Span {
    const std::byte* data;
    size_t first;  // place of the first value asked for, in values from `data`
  };
  void fill(const Job& job, const Fragment& part, std::byte* out);
  void fill_rows(const Job& job, const Fragment& part, std::byte* out);
  void fill_turned(const Job& job, const Fragment& part, std::byte* out);
  void fill_scattered(const Job& job, const Fragment& part, std::byte* out);
  void convert_straight(const Job& job, uint64_t in, uint64_t count, std::byte* out);
  uint64_t span_elements(const Job& job) const;
  Span read_span(const Job& job, uint64_t in, uint64_t count);

  RunConverter converter_;
  NumericCounts counts_;
  Buffer staging_;
  Buffer tile_;
  ChannelReader channels_;
};

}  // namespace transload
