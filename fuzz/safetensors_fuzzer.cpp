// Any file is a safetensors file whose tensors fill it without overlap, or an Error.
#include <algorithm>

#include "io/safetensors.h"
#include "memory_file.h"
#include "transload/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace transload;
  static MemoryFile memory;
  SafetensorsHeader header;
  try {
    header = read_safetensors(memory.open_with(as_text(data, size)));
  } catch (const Error&) {
    return 0;
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    must(tensor.bytes == tensor_bytes(tensor.dtype, tensor.shape));
    must(tensor.offset >= end);
    end = tensor.offset + tensor.bytes;
  }
  must(end <= size);
  must(header.tensors.empty() || end == size);
  return 0;
}
