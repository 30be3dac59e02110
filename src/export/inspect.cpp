// Describes a checkpoint for a person: what its headers say and what the model reader makes of its config.
#include "transload/inspect.h"

#include <algorithm>
#include <map>

#include "base/printable.h"
#include "io/file.h"
#include "transload/decoder_model.h"
#include "transload/error.h"

namespace transload {
namespace {

// "SSSF SSSF ...": one letter a layer, a blank before each repetition of a pattern found.
std::string pattern_of(const std::vector<Layer>& layers) {
  std::string letters;
  for (const Layer& layer : layers) letters += layer.attention.window ? 'S' : 'F';
  if (letters.find_first_not_of(letters.front()) == std::string::npos) return letters;
  for (size_t period = 2; period <= letters.size() / 2; ++period) {
    // A word repeats with a period when it equals itself shifted by it.
    if (!std::equal(letters.begin() + static_cast<std::ptrdiff_t>(period), letters.end(), letters.begin())) continue;
    std::string spaced;
    for (size_t i = 0; i < letters.size(); ++i) {
      if (i > 0 && i % period == 0) spaced += ' ';
      spaced += letters[i];
    }
    return spaced;
  }
  return letters;
}

void describe_model(const DecoderModel& model, Inspection& out) {
  const Attention& attention = model.layers.front().attention;
  out.layers = static_cast<uint32_t>(model.layers.size());
  out.hidden_size = model.hidden_size;
  out.intermediate_size = model.intermediate_size;
  out.heads = attention.heads;
  out.kv_heads = attention.kv_heads;
  out.head_dim = attention.head_dim;
  out.vocab_size = model.vocab_size;
  out.max_positions = model.max_positions;
  out.tied_head = model.tied_head;
  out.layer_pattern = pattern_of(model.layers);
  for (const Layer& layer : model.layers) out.window = std::max(out.window, layer.attention.window.value_or(0));
}

}  // namespace

Inspection inspect(const Checkpoint& checkpoint) {
  Inspection out;
  out.format = checkpoint.format() == CheckpointFormat::gguf ? "gguf" : "safetensors";
  for (const auto& file : checkpoint.files()) out.files.push_back({printable(file->name()), file->size()});
  out.tensor_count = checkpoint.tensors().size();
  out.tensor_bytes = checkpoint.tensor_bytes_total();
  std::map<std::string, DTypeCount> dtypes;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    out.parameter_count += element_count(tensor.shape);
    DTypeCount& count = dtypes[std::string(dtype_name(tensor.dtype))];
    count.dtype = dtype_name(tensor.dtype);
    ++count.tensors;
    count.bytes += tensor.bytes;
  }
  for (auto& [name, count] : dtypes) out.dtypes.push_back(std::move(count));
  try {
    out.family = family_of(checkpoint);
    for (const std::string& field : unknown_config_fields(checkpoint)) out.unknown_fields.push_back(printable(field));
    describe_model(build_model(checkpoint), out);
  } catch (const Error& error) {
    out.problem = error.what();
  }
  return out;
}

}  // namespace transload
