// transload kv: how much memory the KV cache takes, by layer and by layout, without reading weights.
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>

#include "cli/command.h"
#include "transload/kv_memory.h"

namespace transload::cli {
namespace {

struct KvArguments {
  std::string checkpoint;
  std::string config;
  std::string contexts_text;
  std::vector<uint32_t> contexts;
  std::string dtype = "fp16";
  std::string layout = "auto";
  std::string svg;
  bool json = false;
};

const std::map<std::string, uint32_t> kElementBytes{{"fp32", 4}, {"fp16", 2}, {"int8", 1}};

// Layers whose caches are alike, as one row: "0-2, 4-6, 8-10, ...".
struct LayerGroup {
  KvLayerSummary like;
  std::vector<uint32_t> layers;
};

std::vector<LayerGroup> group_layers(const KvLayoutMemory& layout) {
  std::vector<LayerGroup> groups;
  for (const KvLayerSummary& layer : layout.layers) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const LayerGroup& g) {
      return g.like.attention == layer.attention && g.like.rule == layer.rule && g.like.slots == layer.slots &&
             g.like.elements == layer.elements;
    });
    if (group == groups.end()) {
      groups.push_back({layer, {layer.layer}});
    } else {
      group->layers.push_back(layer.layer);
    }
  }
  return groups;
}

// Runs of neighbours, cut after `most` characters.
std::string layer_list(const std::vector<uint32_t>& layers, size_t most) {
  constexpr std::string_view kMore = ", ...";
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t last = i;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + 1) ++last;
    const std::string run = last == i ? std::to_string(layers[i]) : fmt::format("{}-{}", layers[i], layers[last]);
    const size_t room = last + 1 == layers.size() ? most : most - kMore.size();
    if (!text.empty() && text.size() + 2 + run.size() > room) return text + std::string(kMore);
    text += (text.empty() ? "" : ", ") + run;
    i = last + 1;
  }
  return text;
}

void print_layers(const KvLayoutMemory& layout, uint32_t element_bytes) {
  constexpr size_t kListWidth = 17;
  fmt::print("  {:<{}} {:>5} {:<9} {:<6} {:>9} {:>12} {:>14}\n", "layers", kListWidth, "count", "attention", "rule", "slots",
             "bytes/layer", "bytes");
  for (const LayerGroup& group : group_layers(layout)) {
    const uint64_t bytes = group.like.elements * element_bytes;
    fmt::print("  {:<{}} {:>5} {:<9} {:<6} {:>9} {:>12} {:>14}\n", layer_list(group.layers, kListWidth), kListWidth,
               group.layers.size(), group.like.attention, group.like.rule, grouped(group.like.slots), grouped(bytes),
               grouped(bytes * group.layers.size()));
  }
}

void print_layouts(const KvContextMemory& entry, uint32_t element_bytes) {
  const uint64_t uniform = entry.layouts.back().elements;
  fmt::print("  {:<8} {:>14} {:>14} {:>14} {:>14} {:>8}\n", "layout", "full", "sliding", "total", "saved", "saved %");
  for (const KvLayoutMemory& layout : entry.layouts) {
    const uint64_t saved = uniform - layout.elements;
    fmt::print("  {:<8} {:>14} {:>14} {:>14} {:>14} {:>8.1f}\n", layout.layout,
               grouped((layout.elements - layout.sliding_elements) * element_bytes),
               grouped(layout.sliding_elements * element_bytes), grouped(layout.elements * element_bytes),
               grouped(saved * element_bytes), 100 * static_cast<double>(saved) / static_cast<double>(uniform));
  }
}

// Strings that draw one column of a bar.
struct BarStyle {
  const char* full;
  const char* sliding;
  size_t columns;  // of the longest bar
};

// The first of these that is set decides, as in locale(7).
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string text(value);
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

BarStyle bar_style() {
  constexpr size_t kBeside = 24;  // layout before a bar, size behind it
  constexpr size_t kLeast = 10;
  constexpr size_t kMost = 100;
  winsize size{};
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const bool known = terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  const size_t width = known ? size.ws_col : 80;
  const size_t columns = std::clamp(width > kBeside ? width - kBeside : 0, kLeast, kMost);
  if (terminal && locale_is_utf8()) return {"\u2588", "\u2592", columns};
  return {"#", "=", columns};
}

std::string repeated(const char* text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

void print_bars(const KvContextMemory& entry, uint32_t element_bytes, const BarStyle& style) {
  const auto most = static_cast<double>(entry.layouts.back().elements);  // uniform is the longest
  const auto columns = [&](uint64_t elements) {
    return static_cast<size_t>(std::lround(static_cast<double>(elements) / most * static_cast<double>(style.columns)));
  };
  for (const KvLayoutMemory& layout : entry.layouts) {
    const size_t full = columns(layout.elements - layout.sliding_elements);
    const size_t end = std::max<size_t>(1, columns(layout.elements));
    fmt::print("  {:<8} {}{} {}\n", layout.layout, repeated(style.full, full), repeated(style.sliding, end - std::min(end, full)),
               size_text(layout.elements * element_bytes));
  }
  const KvLayoutMemory& uniform = entry.layouts.back();
  std::string legend;
  if (uniform.sliding_elements < uniform.elements) legend += fmt::format(" {} full attention", style.full);
  if (uniform.sliding_elements > 0) legend += fmt::format(" {} sliding window", style.sliding);
  fmt::print("  {:<8}{}\n", "", legend);
}

void print_memory(const KvMemory& memory, const KvArguments& arguments, uint32_t element_bytes) {
  const BarStyle style = bar_style();
  fmt::print("KV cache of one sequence of {}: bytes of keys and values in {}\n", memory.family, arguments.dtype);
  for (const KvContextMemory& entry : memory.contexts) {
    const auto shown = std::find_if(entry.layouts.begin(), entry.layouts.end(),
                                    [&](const KvLayoutMemory& layout) { return layout.layout == arguments.layout; });
    fmt::print("\ncontext {}, layout {}\n", grouped(entry.context), shown->layout);
    print_layers(*shown, element_bytes);
    fmt::print("\n");
    print_layouts(entry, element_bytes);
    fmt::print("\n");
    print_bars(entry, element_bytes, style);
  }
}

int run_kv(const KvArguments& arguments) {
  refuse_output_among("--svg", arguments.svg, {arguments.checkpoint, arguments.config});
  const Checkpoint checkpoint = Checkpoint::open(
      arguments.checkpoint, arguments.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(arguments.config));
  const KvMemory memory = kv_memory(checkpoint, arguments.contexts);
  const uint32_t element_bytes = kElementBytes.at(arguments.dtype);
  if (!arguments.svg.empty()) write_kv_memory_svg(memory, element_bytes, arguments.svg);
  if (arguments.json) {
    fmt::print("{}\n", kv_memory_json(memory, element_bytes));
  } else {
    print_memory(memory, arguments, element_bytes);
  }
  return 0;
}

}  // namespace

void add_kv(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command =
      app.add_subcommand("kv", "Show the memory of the KV cache by layer, context and layout; reads headers only");
  auto arguments = std::make_shared<KvArguments>();
  command
      ->add_option("CHECKPOINT", arguments->checkpoint,
                   "local folder with config.json and .safetensors, one .safetensors beside its config.json, or a .gguf")
      ->required();
  command->add_option("--context", arguments->contexts_text, "context lengths")->required()->type_name("C[,C...]");
  command->add_option("--dtype", arguments->dtype, "element of keys and values")
      ->check(CLI::IsMember({"fp16", "fp32", "int8"}).description(""))
      ->type_name("fp16|fp32|int8")
      ->default_str("fp16");
  command->add_option("--layout", arguments->layout, "layout to show by layer; uniform keeps the whole context in every layer")
      ->check(CLI::IsMember({"auto", "ring", "roll", "uniform"}).description(""))
      ->type_name("auto|ring|roll|uniform")
      ->default_str("auto");
  command->add_option("--svg", arguments->svg, "also draw a picture; appears whole or not at all, replaces an older one")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--config", arguments->config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--json", arguments->json, "print JSON, with every layer of every layout");
  command->final_callback([arguments] { arguments->contexts = parse_numbers("--context", arguments->contexts_text); });
  commands.push_back({command, [arguments] { return run_kv(*arguments); }});
}

}  // namespace transload::cli
