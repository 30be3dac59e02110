// A host of a decode-step bundle: what a program around a phone's runtime does, with KvCache. The runtime itself is the one
// function to replace; here it gives zeros. Usage: host BUNDLE (float32 rows or ids, a graph of one token).
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <vector>

#include "transload/contract.h"
#include "transload/error.h"
#include "transload/kv_cache.h"

namespace {

using transload::Port;
using transload::PortRole;
using transload::Tensor;
using transload::TensorView;

// Runs the graph `file` of the bundle: inputs and outputs in graph order.
using Runtime = std::function<std::vector<Tensor>(const transload::StepFile& step, const std::vector<TensorView>& inputs)>;

std::vector<Tensor> zeros(const transload::StepFile& step, const std::vector<TensorView>&) {
  std::vector<Tensor> outputs;
  for (const Port& port : step.contract.outputs) {
    outputs.push_back({port.name, port.dtype, port.shape, {}});
    outputs.back().bytes.resize(transload::tensor_bytes(port.dtype, port.shape));
  }
  return outputs;
}

// The token as the graph wants it: its id, or its row of the embedding.
Tensor token_input(const transload::BundleContract& contract, const Port& port, int32_t token) {
  Tensor out{port.name, port.dtype, port.shape, {}};
  out.bytes.resize(transload::tensor_bytes(port.dtype, port.shape));
  if (port.role == PortRole::token_ids) {
    *reinterpret_cast<int32_t*>(out.bytes.data()) = token;
    return out;
  }
  if (!contract.embedding || contract.embedding->dtype != port.dtype) {
    throw transload::Error(transload::ErrorCode::usage, "embedding: got another type than the graph's, expected one to copy");
  }
  std::ifstream file(contract.folder / contract.embedding->file, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(contract.embedding->offset + static_cast<uint64_t>(token) * out.bytes.size()));
  if (!file.read(reinterpret_cast<char*>(out.bytes.data()), static_cast<std::streamsize>(out.bytes.size()))) {
    throw transload::Error(transload::ErrorCode::io_failure, "cannot read the embedding row");
  }
  return out;
}

// Reads one token: the cache gives masks, rotary rows and its buffers, and takes the new entries. Returns the best next token.
int32_t read_token(const transload::BundleContract& contract, transload::KvCache& cache, const Runtime& runtime, int32_t token) {
  const transload::StepFile* step = contract.find_step(1, cache.context());
  if (step == nullptr || !contract.head || contract.compute != transload::DType::f32) {
    throw transload::Error(transload::ErrorCode::usage, "bundle: got no float32 graph of one token with a head, expected one");
  }
  const uint64_t position = cache.position();
  const std::vector<TensorView> from_cache = cache.inputs(step->contract, position, 1);
  std::vector<TensorView> inputs;
  Tensor tokens;
  size_t next = 0;
  for (const Port& port : step->contract.inputs) {
    if (port.role == PortRole::embedding_rows || port.role == PortRole::token_ids) {
      tokens = token_input(contract, port, token);
      inputs.push_back(tokens.view());
    } else {
      inputs.push_back(from_cache[next++]);
    }
  }
  const std::vector<Tensor> outputs = runtime(*step, inputs);
  std::vector<TensorView> entries;
  int32_t best = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (step->contract.outputs[i].role != PortRole::logits) {
      entries.push_back(outputs[i].view());
      continue;
    }
    const auto* logits = reinterpret_cast<const float*>(outputs[i].bytes.data());
    best = static_cast<int32_t>(std::max_element(logits, logits + contract.vocab_size) - logits);
  }
  cache.commit(step->contract, entries, position, 1);  // all or nothing
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw transload::Error(transload::ErrorCode::usage, "usage: host BUNDLE");
    const auto contract = std::make_shared<const transload::BundleContract>(transload::read_contract(argv[1]));
    transload::KvCache cache(contract);  // of the smallest context; grow() moves to a larger one
    int32_t token = 0;
    for (const int32_t id : {5, 17, 3}) token = read_token(*contract, cache, zeros, id);
    for (int i = 0; i < 8 && cache.position() < cache.capacity(); ++i) token = read_token(*contract, cache, zeros, token);
    std::cout << cache.position() << " tokens in " << cache.bytes() << " bytes of KV cache\n";
  } catch (const transload::Error& error) {
    std::cerr << error.what() << "\n";
    return transload::exit_code(error.code());
  }
}
