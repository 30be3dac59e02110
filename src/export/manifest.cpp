// Builds a manifest: tool version, options, digests of the sources' headers and of everything that was written.
#include "export/manifest.h"

#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"
#include "transload/version.h"

namespace transload {
std::string manifest_text(Json::Object manifest) { return write_json(Json(std::move(manifest)), 1) + "\n"; }

Json::Object manifest_object(const Checkpoint& checkpoint, std::string_view target, Json options, const Plan& plan,
                             const std::vector<TensorResult>& results) {
  const std::string no_digest(32, '0');
  Json::Array sources;
  for (size_t i = 0; i < checkpoint.files().size(); ++i) {
    const InputFile& file = *checkpoint.files()[i];
    sources.push_back(
        Json::Object{{"file", file.name()}, {"bytes", file.size()}, {"header_xxh3_128", checkpoint.header_digest(i)}});
  }
  Json::Array files;
  Json::Array tensors;
  size_t index = 0;
  for (const PlannedFile& file : plan.files) {
    Json::Object row{{"file", file.name}, {"bytes", file.size}};
    // The bytes we made (a whole text, or a header before the tensors); tensors have digests of their own below.
    if (file.bytes.size() == 1)
      row.emplace_back(file.tensors.empty() ? "xxh3_128" : "header_xxh3_128", digest_of(file.bytes[0].bytes));
    files.push_back(std::move(row));
    const auto add = [&](const std::string& name, uint64_t offset, uint64_t bytes) {
      tensors.push_back(Json::Object{{"name", name},
                                     {"file", file.name},
                                     {"offset", offset},
                                     {"bytes", bytes},
                                     {"xxh3_128", results.empty() ? no_digest : results[index].digest}});
      ++index;
    };
    for (const PlannedTensor& tensor : file.tensors) {
      add(tensor.name, tensor.offset, tensor.recipe.bytes());
      if (tensor.scales) add(tensor.scales->name, tensor.scales->offset, scales_bytes(tensor));
    }
  }
  return {{"format", "transload-manifest"},    {"version", 1},
          {"tool_version", TRANSLOAD_VERSION}, {"target", target},
          {"options", std::move(options)},     {"sources", std::move(sources)},
          {"files", std::move(files)},         {"tensors", std::move(tensors)}};
}

}  // namespace transload
