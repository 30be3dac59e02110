// transload inspect: what is in a checkpoint, without reading its weights.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "transload/inspect.h"

namespace transload::cli {
namespace {

struct InspectArguments {
  std::string checkpoint;
  std::string config;
  bool json = false;
};

void print_model(const Inspection& found) {
  fmt::print("family          {}\n", found.family);
  fmt::print("layers          {} ({}), S = sliding window, F = full attention\n", found.layers, found.layer_pattern);
  if (found.window > 0) fmt::print("window          {} tokens, the current one included\n", found.window);
  fmt::print("hidden size     {}\nintermediate    {}\n", found.hidden_size, found.intermediate_size);
  fmt::print("heads           {} query, {} key/value, head_dim {}\n", found.heads, found.kv_heads, found.head_dim);
  fmt::print("vocabulary      {}{}\n", grouped(found.vocab_size), found.tied_head ? ", head tied to the embedding" : "");
  fmt::print("max positions   {}\n", grouped(found.max_positions));
}

int run_inspect(const InspectArguments& arguments) {
  const Checkpoint checkpoint = Checkpoint::open(
      arguments.checkpoint, arguments.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(arguments.config));
  const Inspection found = inspect(checkpoint);
  if (arguments.json) {
    fmt::print("{}\n", inspection_json(found));
    return 0;
  }
  fmt::print("format          {}\n", found.format);
  fmt::print("tensors         {} of {} parameters, {}\n", grouped(found.tensor_count), grouped(found.parameter_count),
             size_text(found.tensor_bytes));
  for (const DTypeCount& count : found.dtypes) {
    fmt::print("  {:<10}{:>6} tensors {:>18} bytes\n", count.dtype, grouped(count.tensors), grouped(count.bytes));
  }
  if (found.problem.empty()) print_model(found);
  for (const FileSummary& file : found.files) fmt::print("file            {} {}\n", file.name, grouped(file.bytes));
  for (const std::string& field : found.unknown_fields) fmt::print("unknown field   {}\n", field);
  if (!found.problem.empty()) fmt::print("not exportable  {}\n", found.problem);
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command = app.add_subcommand("inspect", "Show family, dimensions, layer pattern, dtypes and sizes of a checkpoint");
  auto arguments = std::make_shared<InspectArguments>();
  command
      ->add_option("CHECKPOINT", arguments->checkpoint,
                   "local folder with config.json and .safetensors, one .safetensors beside its config.json, or a .gguf")
      ->required();
  command->add_option("--config", arguments->config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--json", arguments->json, "print JSON");
  commands.push_back({command, [arguments] { return run_inspect(*arguments); }});
}

}  // namespace transload::cli
