// transload export onnx: options, dry run, and the summary of what was written.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/export_arguments.h"
#include "transload/export_onnx.h"
#include "transload/verify.h"

namespace transload::cli {
namespace {

struct OnnxArguments : ExportArguments {
  std::string layers = "all";
  std::string contexts;
  std::string queries = "1";
  bool no_head = false;
  std::string weights;
  std::string compute = "fp32";
  ExportOnnxOptions options;
};

// "all", "sliding", "full" or "A:B" with 0 <= A < B; whether B is in the model is checked against the model.
LayerRange parse_layers(const std::string& text) {
  if (text == "all") return {};
  if (text == "sliding") return {LayerRange::Kind::sliding, 0, 0};
  if (text == "full") return {LayerRange::Kind::full, 0, 0};
  const size_t colon = text.find(':');
  const auto number = [&](const std::string& digits) {
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) {
      throw CLI::ValidationError("--layers", "got '" + text + "', expected all, sliding, full or A:B with 0 <= A < B");
    }
    return static_cast<uint32_t>(std::stoul(digits));
  };
  if (colon == std::string::npos) number("");
  const LayerRange range{LayerRange::Kind::range, number(text.substr(0, colon)), number(text.substr(colon + 1))};
  if (range.begin >= range.end) number("");
  return range;
}

void print_kv(const KvSummary& kv, bool each_layer) {
  if (each_layer) {
    fmt::print("KV cache at context {}, by layer (fp16 bytes)\n", grouped(kv.context));
    for (const KvLayerSummary& layer : kv.layers) {
      fmt::print("  layer {:>3}  {:<8} {:<7} {:>8} slots {:>16}\n", layer.layer, layer.attention, layer.rule,
                 grouped(layer.slots), grouped(layer.elements * 2));
    }
  }
  fmt::print("KV cache at context {}: bytes by element size\n", grouped(kv.context));
  fmt::print("  {:<6}{:>18}{:>18}{:>18}\n", "", "this layout", "uniform", "saved");
  for (const auto& [name, size] : {std::pair{"fp32", 4U}, std::pair{"fp16", 2U}, std::pair{"int8", 1U}}) {
    fmt::print("  {:<6}{:>18}{:>18}{:>18}\n", name, grouped(kv.hybrid_elements * size), grouped(kv.uniform_elements * size),
               grouped((kv.uniform_elements - kv.hybrid_elements) * size));
  }
}

void print_summary(const ExportSummary& summary, const OnnxArguments& arguments, double seconds) {
  const bool dry = arguments.options.dry_run;
  fmt::print("{} {} tensors, {} parameters, {} of {} weights\n", dry ? "would read" : "read", grouped(summary.tensor_count),
             grouped(summary.parameter_count), size_text(summary.source_bytes), summary.family);
  fmt::print("{} {} ({} bytes) in {} files\n", dry ? "would write" : "wrote", arguments.destination, grouped(summary.total_bytes),
             summary.files.size());
  for (const FileSummary& file : summary.files) fmt::print("  {:<28}{:>18}\n", file.name, grouped(file.bytes));
  for (const KvSummary& kv : summary.kv) print_kv(kv, dry);
  if (dry) {
    fmt::print("memory: at most {} of block buffers\n", size_text(summary.worker_memory_bytes));
  } else {
    print_export_time(seconds, summary.write_seconds, summary.flush_seconds);
  }
}

// Runs on the bundle that was just written; it stays where it is whatever comes out.
VerifyReport verify_written(const OnnxArguments& arguments) {
  VerifyOptions options;
  options.checkpoint = arguments.checkpoint;
  if (!arguments.config.empty()) options.config = arguments.config;
  options.threads = arguments.options.workers;
  options.hash_progress = make_progress("hashing", arguments.quiet);
  options.run_progress = make_token_progress("comparing", arguments.quiet);
  if (!arguments.quiet) options.on_forecast = print_forecast;
  return verify(arguments.destination, options);
}

int run_export(OnnxArguments& arguments) {
  ExportOnnxOptions& options = arguments.options;
  const std::string weights = arguments.weights.empty() ? arguments.compute : arguments.weights;
  options.step.weights = weights == "fp16" ? DType::f16 : DType::f32;
  options.step.compute = arguments.compute == "fp16" ? DType::f16 : DType::f32;
  options.step.head = !arguments.no_head;
  options.progress = make_progress("writing", arguments.quiet || options.dry_run);
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint = open_checkpoint(arguments);
  const ExportSummary summary = export_onnx(checkpoint, arguments.destination, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // The explanation must not stand before the JSON on standard output.
  if (options.explain) fmt::print(arguments.json ? stderr : stdout, "{}", summary.explanation);
  if (!arguments.json) print_summary(summary, arguments, seconds);
  print_warnings(summary.warnings, summary.numeric_warnings);
  if (!arguments.verify) {
    if (arguments.json) fmt::print("{}\n", summary_json(summary));
    return 0;
  }
  const VerifyReport report = verify_written(arguments);
  if (arguments.json) {
    fmt::print("{{\"export\": {},\n\"verify\": {}}}\n", summary_json(summary), verify_report_json(report));
  } else {
    print_verify_report(report);
  }
  return verified(report.passed(), "bundle", arguments);
}

}  // namespace

void add_export_onnx(CLI::App& exports, std::vector<Command>& commands) {
  CLI::App* onnx = exports.add_subcommand("onnx", "Write static-shape ONNX graphs of one decode step, with an explicit KV cache");
  auto arguments = std::make_shared<OnnxArguments>();
  ExportOnnxOptions& options = arguments->options;
  StepOptions& step = options.step;
  const ExportHelp help{
      .checkpoint = "local folder with config.json and .safetensors, one .safetensors beside its config.json, or a .gguf",
      .output = "folder to write; appears whole or not at all",
      .strict = "refuse weights with NaN or with values that overflow fp16",
      .dry_run = "read headers only; print exact sizes, memory and the KV cache by layer",
      .verify = "then run the written graphs against the checkpoint, as 'transload verify' does",
      .explain = "also print graphs, recipes and pieces (long)"};
  add_export_paths(*onnx, *arguments, help);

  const std::string graphs = "Graphs";
  onnx->add_option("--context", arguments->contexts,
                   "context lengths: slots of a full-attention cache (default: 1024, or the model's maximum)")
      ->type_name("C[,C...]")
      ->group(graphs);
  onnx->add_option("--q", arguments->queries, "tokens per call: 1 for decode, 128 or so for prefill; graphs share weights.bin")
      ->type_name("Q[,Q...]")
      ->default_str("1")
      ->group(graphs);
  add_choice<CacheLayout>(*onnx, "--cache-layout", step.cache_layout,
                          {{"auto", CacheLayout::automatic}, {"ring", CacheLayout::ring}, {"roll", CacheLayout::roll}},
                          "sliding layers of window W: ring keeps W-1 slots, roll returns the rebuilt window; auto is ring",
                          "auto")
      ->group(graphs);
  onnx->add_option("--layers", arguments->layers, "all, the first sliding or full layer, or layers A to B-1")
      ->type_name("all|sliding|full|A:B")
      ->default_str("all")
      ->group(graphs);
  onnx->add_flag("--no-head", arguments->no_head, "leave out final norm and head: output hidden instead of logits")
      ->group(graphs);
  add_choice<LogitsRows>(*onnx, "--logits", step.logits, {{"all", LogitsRows::all}, {"last", LogitsRows::last}},
                         "rows of the logits output: one for each token of the call, or for the last alone", "all")
      ->group(graphs);
  add_choice<InputForm>(*onnx, "--inputs", step.inputs, {{"rows", InputForm::rows}, {"ids", InputForm::ids}},
                        "ids: int32 token ids; rows: embedding rows, which the host looks up", "rows")
      ->group(graphs);

  const std::string dialect = "Dialect and precision";
  add_choice<GeluForm>(
      *onnx, "--gelu", step.gelu,
      {{"model", GeluForm::model}, {"exact", GeluForm::exact}, {"tanh", GeluForm::tanh}, {"sigmoid", GeluForm::sigmoid}},
      "GELU form; other than the model's own changes the result", "model")
      ->group(dialect);
  add_choice<LinearForm>(*onnx, "--linear", step.linear,
                         {{"gemm", LinearForm::gemm}, {"matmul", LinearForm::matmul}, {"conv1x1", LinearForm::conv1x1}},
                         "linear layers: gemm and conv1x1 keep weights [out, in], matmul transposes them", "gemm")
      ->group(dialect);
  add_choice<RopeWidth>(*onnx, "--rope-width", step.rope_width, {{"full", RopeWidth::full}, {"half", RopeWidth::half}},
                        "cos and sin inputs: both halves written out, or one", "full")
      ->group(dialect);
  onnx->add_option("--weights", arguments->weights, "stored precision of matrices (default: as --compute)")
      ->check(CLI::IsMember({"fp32", "fp16"}).description(""))
      ->type_name("fp32|fp16")
      ->group(dialect);
  onnx->add_option("--compute", arguments->compute, "precision of inputs, outputs, KV cache and arithmetic")
      ->check(CLI::IsMember({"fp32", "fp16"}).description(""))
      ->type_name("fp32|fp16")
      ->default_str("fp32")
      ->group(dialect);
  onnx->add_option("--opset", step.opset, "ONNX opset, 17 to 23; 17 or 18 for Qualcomm's converter")
      ->check(whole_number())
      ->type_name("N")
      ->default_str("18")
      ->group(dialect);

  add_export_running(*onnx, *arguments, options, help);

  onnx->final_callback([arguments, onnx] {
    arguments->options.step.layers = parse_layers(arguments->layers);
    arguments->options.queries = parse_numbers("--q", arguments->queries);
    if (onnx->count("--context") > 0) arguments->options.contexts = parse_numbers("--context", arguments->contexts);
  });
  commands.push_back({onnx, [arguments] { return run_export(*arguments); }});
}

}  // namespace transload::cli
