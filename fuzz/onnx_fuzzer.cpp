// Any file beside weights.bin is an ONNX graph that keeps every rule and reads back the same once written, or an Error.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "memory_file.h"
#include "targets/onnx/onnx_reader.h"
#include "targets/onnx/onnx_writer.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr uint64_t kMaxConstantBytes = uint64_t{1} << 20;

// A folder in memory where there is one, removed at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::is_directory("/dev/shm") ? "/dev/shm/fuzz-onnx-XXXXXX" : "/tmp/fuzz-onnx-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    write("weights.bin", std::string(16384, '\1'));
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path write(const char* name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

// graph_text without the recipes of constants: they become values inside the file.
std::string structure(const Graph& graph) {
  std::istringstream lines(graph_text(graph));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += (line.starts_with("constant ") ? line.substr(0, line.find(" = ")) : line) + "\n";
  }
  return text;
}

// Small enough to write, and of types that a graph holds inside.
bool can_be_inline(const Graph& graph) {
  uint64_t total = 0;
  for (const ValueId id : graph.constants()) {
    const Value& value = graph.value(id);
    total += value.constant.bytes();
    if (value.dtype == DType::i32) return false;
  }
  return total <= kMaxConstantBytes;
}

}  // namespace
}  // namespace transload

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace transload;
  static const Folder folder;
  Graph graph;
  try {
    graph = read_onnx(folder.write("input.onnx", as_text(data, size)));
  } catch (const Error& error) {
    must(error.code() != ErrorCode::internal);
    return 0;
  }
  check_graph(graph);
  if (!can_be_inline(graph)) return 0;
  OnnxWriteOptions options;
  options.opset = 23;
  const Graph again = read_onnx(folder.write("written.onnx", write_onnx(graph, options)));
  must(structure(again) == structure(graph));
  return 0;
}
