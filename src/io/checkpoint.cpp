// Opens a checkpoint: finds its files, reads their headers, and checks that index and shards tell the same story.
#include "transload/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/checked.h"
#include "base/plain_file_name.h"
#include "base/printable.h"
#include "io/bundle_files.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "transload/error.h"

namespace transload {

namespace fs = std::filesystem;

struct Checkpoint::State {
  CheckpointFormat format = CheckpointFormat::safetensors;
  fs::path path;
  fs::path directory;
  std::vector<std::shared_ptr<const InputFile>> files;
  std::vector<std::string> digests;  // of the files, in their order
  std::vector<TensorInfo> tensors;
  uint64_t tensor_bytes = 0;
  fs::path config_path;
  std::optional<Json> config;
  std::optional<Json> gguf_metadata;
};

namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";
// What a bundle holds and no checkpoint does. Without this its host.safetensors would be read as a model of no layers.
// Containers that other tools write; most are pickles, which run code when they are read.
constexpr std::array<std::string_view, 7> kOtherExtensions = {".bin", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx"};

// Tensor name -> file name, as the index says.
using WeightMap = std::map<std::string, std::string, std::less<>>;

bool has_other_extension(const fs::path& path) {
  return std::find(kOtherExtensions.begin(), kOtherExtensions.end(), path.extension().string()) != kOtherExtensions.end();
}

[[noreturn]] void refuse_other_format(const fs::path& path, const std::string& got) {
  throw Error(
      ErrorCode::file_missing,
      fmt::format("no weights that can be read: got '{}', expected .safetensors or .gguf (convert it with the tool that wrote "
                  "it, e.g. save_pretrained with safe_serialization=True)",
                  printable(got)),
      {path.string(), {}, {}});
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const bool found = fs::exists(path, error);
  if (error) throw_os_error("cannot look up", path.string(), error.value());
  return found;
}

// Names in a folder, sorted.
std::vector<std::string> list_names(const fs::path& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator each(folder, error), end; !error && each != end; each.increment(error)) {
    names.push_back(each->path().filename().string());
  }
  if (error) throw_os_error("cannot list folder", folder.string(), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> with_extension(const std::vector<std::string>& names, std::string_view extension) {
  std::vector<std::string> matching;
  std::copy_if(names.begin(), names.end(), std::back_inserter(matching),
               [&](const std::string& name) { return fs::path(name).extension() == extension; });
  return matching;
}

bool has_gguf_magic(const InputFile& file) {
  std::array<std::byte, 4> magic{};
  if (file.size() < magic.size()) return false;
  file.read_at(0, magic);
  return std::string_view(reinterpret_cast<const char*>(magic.data()), magic.size()) == "GGUF";
}

WeightMap read_index(const fs::path& path) {
  const std::string file = path.filename().string();
  const Json root = parse_json(read_text_file(path), file);
  const Json* weight_map = root.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    throw Error(ErrorCode::bad_header,
                fmt::format("'weight_map': got {}, expected an object of file names",
                            weight_map == nullptr ? std::string_view("nothing") : weight_map->kind_name()),
                {file, {}, {}});
  }
  if (weight_map->object().empty()) {
    throw Error(ErrorCode::bad_header, "'weight_map': got no entries, expected at least one", {file, {}, {}});
  }
  WeightMap map;
  for (const auto& [tensor, value] : weight_map->object()) {
    if (!value.is_string() || !is_plain_file_name(value.string())) {
      const std::string got = value.is_string() ? fmt::format("'{}'", printable(value.string())) : std::string(value.kind_name());
      throw Error(ErrorCode::bad_header,
                  fmt::format("file of the tensor: got {}, expected the name of a file in the same folder", got),
                  {file, tensor, {}});
    }
    map.emplace(tensor, value.string());
  }
  return map;
}

std::vector<std::string> indexed_files(const WeightMap& map, const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map) names.push_back(file);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::vector<std::string> faults;
  for (const std::string& name : names) {
    if (!is_there(folder / name)) faults.push_back(fmt::format("no such file: '{}'", printable(name)));
  }
  if (!faults.empty()) throw Error(ErrorCode::file_missing, join_faults(faults), {std::string(kIndexName), {}, {}});
  return names;
}

// Index and shards must agree in both directions.
void check_index(const WeightMap& map, const std::vector<TensorInfo>& tensors) {
  std::vector<std::string> unlisted;
  std::map<std::string_view, std::string_view> stored;
  for (const TensorInfo& tensor : tensors) {
    stored.emplace(tensor.name, tensor.file->name());
    if (!map.contains(tensor.name)) {
      unlisted.push_back(
          fmt::format("tensor '{}' of '{}' is not in the index", printable(tensor.name), printable(tensor.file->name())));
    }
  }
  std::vector<std::string> missing;
  for (const auto& [tensor, file] : map) {
    const auto found = stored.find(tensor);
    if (found != stored.end() && found->second == file) continue;
    const std::string got = found == stored.end() ? "no such tensor" : fmt::format("it in '{}'", printable(found->second));
    missing.push_back(fmt::format("tensor '{}': got {}, expected it in '{}'", printable(tensor), got, printable(file)));
  }
  if (!missing.empty()) throw Error(ErrorCode::tensor_missing, join_faults(missing), {std::string(kIndexName), {}, {}});
  if (!unlisted.empty()) throw Error(ErrorCode::bad_header, join_faults(unlisted), {std::string(kIndexName), {}, {}});
}

void sort_by_name(std::vector<TensorInfo>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice = std::adjacent_find(tensors.begin(), tensors.end(),
                                        [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  if (twice == tensors.end()) return;
  throw Error(ErrorCode::duplicate_name,
              fmt::format("tensor stored twice: got it also in '{}', expected one file", printable(twice->file->name())),
              {std::next(twice)->file->name(), twice->name, std::next(twice)->offset});
}

Json read_config(const fs::path& path) {
  const std::string file = path.filename().string();
  Json config = parse_json(read_text_file(path), file);
  if (!config.is_object()) {
    throw Error(ErrorCode::config_invalid, fmt::format("config: got {}, expected an object", config.kind_name()), {file, {}, {}});
  }
  return config;
}

bool is_rank_name(std::string_view name) {
  constexpr std::string_view kPrefix = "rank";
  constexpr std::string_view kSuffix = ".safetensors";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() <= kPrefix.size() + kSuffix.size()) return false;
  name = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

// A config.json with an "architecture", which no Hugging Face config has.
bool has_trtllm_config(const fs::path& folder) {
  try {
    const Json config = parse_json(read_text_file(folder / kConfigName), std::string(kConfigName));
    return config.find("architecture") != nullptr && config.find("model_type") == nullptr;
  } catch (const Error&) {
    return false;  // what reads the file for its own sake says what is wrong
  }
}

// Its rank files hold the same names; without this they would be read as shards.
void refuse_trtllm(const fs::path& path, const fs::path& folder, const std::vector<std::string>& names) {
  const auto rank = std::find_if(names.begin(), names.end(), [](const std::string& name) { return is_rank_name(name); });
  if (rank == names.end() || !has_trtllm_config(folder)) return;
  throw Error(
      ErrorCode::file_missing,
      fmt::format("a TensorRT-LLM checkpoint: got '{}', expected a Hugging Face checkpoint or a GGUF file (use 'transload "
                  "import trtllm' or 'transload verify')",
                  *rank),
      {path.string(), {}, {}});
}

// What a path holds: a GGUF file, or safetensors files with or without an index.
struct Contents {
  std::shared_ptr<const InputFile> gguf;
  std::vector<std::string> safetensors;  // names in the folder, sorted
  std::optional<WeightMap> index;
};

Contents find_in_folder(const fs::path& folder) {
  Contents contents;
  if (is_there(folder / kIndexName)) {
    contents.index = read_index(folder / kIndexName);
    contents.safetensors = indexed_files(*contents.index, folder);
    return contents;
  }
  const std::vector<std::string> names = list_names(folder);
  contents.safetensors = with_extension(names, ".safetensors");
  // Beside a whole model other files (adapters, samples) are none of it.
  if (std::binary_search(names.begin(), names.end(), kSingleName)) {
    contents.safetensors = {std::string(kSingleName)};
    return contents;
  }
  if (std::binary_search(names.begin(), names.end(), kContractFile)) {
    throw Error(ErrorCode::file_missing,
                fmt::format("an exported bundle, no checkpoint: got '{}' in the folder, expected the checkpoint it was made from",
                            kContractFile),
                {folder.string(), {}, {}});
  }
  refuse_trtllm(folder, folder, contents.safetensors);
  const std::vector<std::string> gguf = with_extension(names, ".gguf");
  if (gguf.size() + contents.safetensors.size() > 1 && !gguf.empty()) {
    throw Error(ErrorCode::usage,
                fmt::format("several checkpoints in the folder: got {} GGUF and {} safetensors files, expected the path of one",
                            gguf.size(), contents.safetensors.size()),
                {folder.string(), {}, {}});
  }
  if (!contents.safetensors.empty()) return contents;
  if (gguf.size() == 1) {
    contents.gguf = InputFile::open(folder / gguf.front());
    return contents;
  }
  const auto other = std::find_if(names.begin(), names.end(), [](const std::string& name) { return has_other_extension(name); });
  if (other != names.end()) refuse_other_format(folder, *other);
  throw Error(ErrorCode::file_missing,
              fmt::format("no checkpoint in the folder: got none, expected '{}', '{}' or a GGUF file", kSingleName, kIndexName),
              {folder.string(), {}, {}});
}

Contents find_contents(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return find_in_folder(path);
  Contents contents;
  auto file = InputFile::open(path);
  if (has_gguf_magic(*file) || path.extension() == ".gguf") {
    contents.gguf = std::move(file);
  } else if (has_other_extension(path) || path.extension() == ".json") {
    refuse_other_format(path, path.filename().string());
  } else {
    contents.safetensors.push_back(path.filename().string());
    refuse_trtllm(path, path.parent_path(), contents.safetensors);
  }
  return contents;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& path, const std::optional<fs::path>& config) {
  if (path.empty()) throw Error(ErrorCode::usage, "checkpoint: got an empty path, expected a folder or a file");
  auto state = std::make_shared<State>();
  std::error_code error;
  state->path = path;
  state->directory = fs::is_directory(path, error) ? path : path.parent_path();
  if (state->directory.empty()) state->directory = ".";

  const Contents contents = find_contents(path);
  if (contents.gguf) {
    state->format = CheckpointFormat::gguf;
    state->files.push_back(contents.gguf);
    GgufHeader header = read_gguf(contents.gguf);
    state->digests.push_back(std::move(header.digest));
    state->tensors = std::move(header.tensors);
    state->gguf_metadata = std::move(header.metadata);
  }
  for (const std::string& name : contents.safetensors) {
    const auto& file = state->files.emplace_back(InputFile::open(state->directory / name));
    SafetensorsHeader header = read_safetensors(file);
    state->digests.push_back(std::move(header.digest));
    std::move(header.tensors.begin(), header.tensors.end(), std::back_inserter(state->tensors));
  }
  sort_by_name(state->tensors);
  if (contents.index) check_index(*contents.index, state->tensors);
  for (const TensorInfo& tensor : state->tensors) {
    state->tensor_bytes = checked_add(state->tensor_bytes, tensor.bytes, "bytes of all tensors");
  }

  if (config || !contents.gguf) {
    const fs::path config_path = config.value_or(state->directory / kConfigName);
    state->config_path = config_path;
    state->config = read_config(config_path);
  }
  Checkpoint checkpoint;
  checkpoint.state_ = std::move(state);
  return checkpoint;
}

CheckpointFormat Checkpoint::format() const { return state_->format; }
const fs::path& Checkpoint::path() const { return state_->path; }
const fs::path& Checkpoint::directory() const { return state_->directory; }
const std::vector<TensorInfo>& Checkpoint::tensors() const { return state_->tensors; }
const std::vector<std::shared_ptr<const InputFile>>& Checkpoint::files() const { return state_->files; }
uint64_t Checkpoint::tensor_bytes_total() const { return state_->tensor_bytes; }
std::string Checkpoint::config_file() const { return state_->config_path.filename().string(); }
const std::filesystem::path& Checkpoint::config_path() const { return state_->config_path; }
const Json* Checkpoint::config() const { return state_->config ? &*state_->config : nullptr; }
const Json* Checkpoint::gguf_metadata() const { return state_->gguf_metadata ? &*state_->gguf_metadata : nullptr; }
const std::string& Checkpoint::header_digest(size_t file_index) const { return state_->digests.at(file_index); }

const TensorInfo* Checkpoint::find_tensor(std::string_view name) const {
  const auto found = std::lower_bound(state_->tensors.begin(), state_->tensors.end(), name,
                                      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return found != state_->tensors.end() && found->name == name ? &*found : nullptr;
}

}  // namespace transload
