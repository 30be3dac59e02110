// A program outside the tree: exports a checkpoint through the installed library and prints what was written.
#include <cstdio>

#include "transload/checkpoint.h"
#include "transload/error.h"
#include "transload/export_onnx.h"
#include "transload/version.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: consumer CHECKPOINT DIR\n");
    return 2;
  }
  try {
    const transload::Checkpoint checkpoint = transload::Checkpoint::open(argv[1]);
    transload::ExportOnnxOptions options;
    options.contexts = {32};
    const transload::ExportSummary summary = transload::export_onnx(checkpoint, argv[2], options);
    std::printf("transload %s: %s, %llu tensors, %llu bytes\n", transload::version(), summary.family.c_str(),
                static_cast<unsigned long long>(summary.tensor_count), static_cast<unsigned long long>(summary.total_bytes));
  } catch (const transload::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return transload::exit_code(error.code());
  }
  return 0;
}
