// Any file is a GGUF file whose tensors lie apart inside it, decode, and whose tokenizer records read alone, or an Error.
#include <algorithm>
#include <vector>

#include "io/gguf.h"
#include "memory_file.h"
#include "transload/error.h"
#include "weights/dequantize.h"

namespace transload {
namespace {

void decode_first_block(const TensorInfo& tensor) {
  const DTypeInfo& info = dtype_info(tensor.dtype);
  std::vector<std::byte> block(info.block_bytes);
  std::vector<float> values(info.block_elements);
  tensor.file->read_at(tensor.offset, block);
  dequantize(tensor.dtype, block.data(), 1, values.data());
}

std::string tokenizer_file(const GgufHeader& header, std::string_view bytes) {
  std::string file = gguf_tokenizer_header(header.tokenizer_record_count);
  for (const auto& [offset, count] : header.tokenizer_records) file += bytes.substr(offset, count);
  return file;
}

}  // namespace
}  // namespace transload

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace transload;
  static MemoryFile memory;
  GgufHeader header;
  try {
    header = read_gguf(memory.open_with(as_text(data, size)));
  } catch (const Error&) {
    return 0;
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    must(tensor.bytes == tensor_bytes(tensor.dtype, tensor.shape) && tensor.bytes > 0);
    must(tensor.offset >= end);
    end = tensor.offset + tensor.bytes;
    if (is_block(tensor.dtype)) decode_first_block(tensor);
  }
  must(end <= size);

  static MemoryFile tokenizer_memory;
  const GgufHeader tokenizer = read_gguf(tokenizer_memory.open_with(tokenizer_file(header, as_text(data, size))));
  must(tokenizer.tensors.empty() && tokenizer.metadata.object().size() == header.tokenizer_record_count);
  return 0;
}
