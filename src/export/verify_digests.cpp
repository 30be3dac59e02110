// Reads manifest.json and hashes what it lists, in parallel by tensor.
#include "export/verify_digests.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "base/checked.h"
#include "base/printable.h"
#include "base/workers.h"
#include "io/bundle_files.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json_fields.h"
#include "transload/error.h"

namespace transload {
namespace {

constexpr uint64_t kHashBlockBytes = uint64_t{1} << 20;
constexpr size_t kDigestDigits = 32;

// 32 digits, or nothing where the field may be absent and is.
std::string digest(const JsonFields& fields, std::string_view field, bool needed) {
  if (!needed && !fields.has(field)) return {};
  std::string digits = fields.text(field);
  if (digits.size() != kDigestDigits || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fields.fault(field, fmt::format("not a digest: got '{}', expected 32 lower-case hex digits", printable(digits, 40)));
  }
  return digits;
}

uint64_t count(const JsonFields& fields, std::string_view field) { return static_cast<uint64_t>(fields.integer(field)); }

std::vector<ManifestFile> read_files(const JsonFields& manifest) {
  std::vector<ManifestFile> files;
  std::set<std::string> names;
  manifest.each_object("files", [&](const JsonFields& row) {
    ManifestFile file{row.plain_file("file"), count(row, "bytes"), digest(row, "xxh3_128", false),
                      digest(row, "header_xxh3_128", false)};
    if (!names.insert(file.name).second) {
      row.fault("file", fmt::format("listed twice: got '{}' again, expected distinct files", printable(file.name, 80)));
    }
    files.push_back(std::move(file));
  });
  return files;
}

std::vector<ManifestTensor> read_tensors(const JsonFields& manifest, const std::vector<ManifestFile>& files) {
  std::map<std::string, uint64_t> sizes;
  for (const ManifestFile& file : files) sizes[file.name] = file.bytes;
  std::vector<ManifestTensor> tensors;
  manifest.each_object("tensors", [&](const JsonFields& row) {
    ManifestTensor tensor{row.text("name"), row.plain_file("file"), count(row, "offset"), count(row, "bytes"),
                          digest(row, "xxh3_128", true)};
    const auto size = sizes.find(tensor.file);
    if (size == sizes.end()) {
      row.fault("file", fmt::format("not among the files: got '{}', expected one of 'files'", printable(tensor.file, 80)));
    }
    const auto end = checked_add(tensor.offset, tensor.bytes);
    if (!end || *end > size->second) {
      row.fault("offset", fmt::format("outside its file: got {} bytes from {}, expected an end of at most {}", tensor.bytes,
                                      tensor.offset, size->second));
    }
    tensors.push_back(std::move(tensor));
  });
  return tensors;
}

// One span to hash.
struct HashTask {
  std::string file;
  std::string tensor;  // empty: the file or its header
  std::string part;    // for messages: "" or " of the header"
  uint64_t offset = 0;
  uint64_t bytes = 0;
  std::string expected;
  std::shared_ptr<const InputFile> input;
  std::string got;
};

void hash(HashTask& task, std::vector<std::byte>& buffer, const std::function<void(uint64_t)>& advance) {
  Hasher hasher;
  for (uint64_t done = 0; done < task.bytes;) {
    const std::span<std::byte> block(buffer.data(), std::min(kHashBlockBytes, task.bytes - done));
    task.input->read_at(task.offset + done, block);
    hasher.update(block);
    done += block.size();
    advance(block.size());
  }
  task.got = hasher.hex();
}

void hash_all(std::vector<HashTask>& tasks, uint32_t threads, const Progress& progress) {
  uint64_t total = 0;
  std::vector<size_t> order(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    order[i] = i;
    total += tasks[i].bytes;
  }
  // The longest first: a tensor is hashed by one worker, and none should start the largest last.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tasks[a].bytes > tasks[b].bytes; });
  const uint32_t workers = threads == 0 ? default_workers() : threads;
  std::vector<std::vector<std::byte>> buffers(workers);
  std::mutex mutex;
  uint64_t done = 0;
  parallel_for(tasks.size(), workers, [&](uint64_t index, const WorkerContext& context) {
    std::vector<std::byte>& buffer = buffers[context.worker];
    if (buffer.empty()) buffer.resize(kHashBlockBytes);
    hash(tasks[order[index]], buffer, [&](uint64_t bytes) {
      if (!progress) return;
      const std::lock_guard lock(mutex);
      done += bytes;
      progress(done, total);
    });
  });
}

VerifyFailure failure_of(const HashTask& task) {
  VerifyFailure failure;
  failure.file = task.file;
  failure.tensor = task.tensor;
  failure.layer = layer_of_name(task.tensor);
  if (!task.tensor.empty()) failure.offset = task.offset;
  failure.what = fmt::format("digest{}: got {}, expected {}", task.part, task.got, task.expected);
  return failure;
}

Manifest manifest_of(const JsonFields& root) {
  if (const std::string format = root.text("format"); format != "transload-manifest") {
    root.fault("format", fmt::format("got '{}', expected 'transload-manifest'", printable(format, 60)),
               ErrorCode::config_unsupported);
  }
  if (const int64_t version = root.integer("version"); version != 1) {
    root.fault("version", fmt::format("got {}, expected 1", version), ErrorCode::config_unsupported);
  }
  Manifest manifest;
  manifest.files = read_files(root);
  manifest.tensors = read_tensors(root, manifest.files);
  return manifest;
}

}  // namespace

std::optional<uint32_t> layer_of_name(std::string_view name) {
  constexpr std::string_view kPrefix = "layers_";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  uint32_t layer = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  return error == std::errc() && rest != end && *rest == '_' ? std::optional(layer) : std::nullopt;
}

Manifest read_manifest(const std::filesystem::path& bundle) {
  if (!std::filesystem::exists(bundle / kManifestFile)) {
    throw Error(ErrorCode::file_missing,
                fmt::format("no bundle: got {}, expected a folder with {} as 'transload export' writes it, or a TensorRT-LLM "
                            "checkpoint (config.json with 'architecture', rank<N>.safetensors)",
                            std::filesystem::exists(bundle) ? "no such file in it" : "no such folder", kManifestFile),
                {bundle.string(), {}, {}});
  }
  const Json json = parse_json(read_text_file(bundle / kManifestFile), kManifestFile);
  const JsonFields root(json, kManifestFile);
  Manifest manifest = manifest_of(root);
  manifest.gelu = root.object("options").text("gelu");
  return manifest;
}

Manifest read_file_manifest(const std::filesystem::path& folder, const std::string& name) {
  const Json json = parse_json(read_text_file(folder / name), name);
  return manifest_of(JsonFields(json, name));
}

DigestCheck check_digests(const std::filesystem::path& bundle, const Manifest& manifest, uint32_t threads,
                          const Progress& progress) {
  DigestCheck check;
  std::map<std::string, std::shared_ptr<const InputFile>> inputs;
  for (const ManifestFile& file : manifest.files) {
    const std::filesystem::path path = bundle / file.name;
    if (!std::filesystem::exists(path)) {
      check.mismatches.push_back({{}, {}, {}, file.name, {}, "got no such file, expected the one that the manifest lists"});
      continue;
    }
    const auto input = InputFile::open(path);
    if (input->size() != file.bytes) {
      check.mismatches.push_back(
          {{}, {}, {}, file.name, {}, fmt::format("size: got {} bytes, expected {}", input->size(), file.bytes)});
      continue;
    }
    inputs[file.name] = input;
  }

  std::vector<HashTask> tasks;
  const auto add = [&](const std::string& file, const std::string& tensor, const char* part, uint64_t offset, uint64_t bytes,
                       const std::string& expected) {
    const auto input = inputs.find(file);
    if (input != inputs.end()) tasks.push_back({file, tensor, part, offset, bytes, expected, input->second, {}});
  };
  std::map<std::string, uint64_t> first_tensor;  // offset in each file that has tensors
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto [place, is_new] = first_tensor.try_emplace(tensor.file, tensor.offset);
    place->second = std::min(place->second, tensor.offset);
  }
  for (const ManifestFile& file : manifest.files) {
    if (!file.digest.empty()) add(file.name, "", "", 0, file.bytes, file.digest);
    const auto first = first_tensor.find(file.name);
    const uint64_t header_bytes = first == first_tensor.end() ? file.bytes : first->second;
    if (!file.header_digest.empty()) add(file.name, "", " of the header", 0, header_bytes, file.header_digest);
    if (file.digest.empty() && file.bytes > 0 && first == first_tensor.end()) {
      check.notes.push_back(fmt::format("'{}' has no digest in manifest.json", file.name));
    }
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    add(tensor.file, tensor.name, "", tensor.offset, tensor.bytes, tensor.digest);
  }
  hash_all(tasks, threads, progress);
  for (const HashTask& task : tasks) {
    ++check.digests;
    check.bytes += task.bytes;
    if (task.got != task.expected) check.mismatches.push_back(failure_of(task));
  }

  std::set<std::string> listed{kManifestFile};
  for (const ManifestFile& file : manifest.files) listed.insert(file.name);
  std::set<std::string> unlisted;
  for (const auto& entry : std::filesystem::directory_iterator(bundle)) {
    const std::string name = entry.path().filename().string();
    if (!listed.contains(name)) unlisted.insert(name);
  }
  for (const std::string& name : unlisted) {
    check.notes.push_back(fmt::format("'{}' is not in manifest.json: not checked", printable(name, 80)));
  }
  return check;
}

}  // namespace transload
