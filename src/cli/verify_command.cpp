// transload verify: holds a written bundle against its digests and, with a checkpoint, against what the checkpoint computes.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "transload/error.h"
#include "transload/evaluate.h"
#include "transload/peak_memory.h"
#include "transload/verify.h"
#include "transload/verify_trtllm.h"

namespace transload::cli {
namespace {

struct VerifyArguments {
  std::string bundle;
  std::string checkpoint;
  std::string config;
  std::string golden;
  std::string tokens;
  std::string prompt_ids;
  std::string report;
  bool json = false;
  bool quiet = false;
  std::optional<QuantLayout> layout;
  VerifyOptions options;
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (const uint32_t id : parse_numbers("--prompt-ids", text)) ids.push_back(static_cast<int32_t>(id));
  return ids;
}

CLI::Validator report_file() {
  return CLI::Validator(
      [](const std::string& text) {
        return text.ends_with(".html") || text.ends_with(".json")
                   ? std::string()
                   : fmt::format("got '{}', expected a file that ends in .html or .json", text);
      },
      "");
}

CLI::Validator positive_number() {
  return CLI::Validator(
      [](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        const bool fits = !text.empty() && *end == '\0' && std::isfinite(value) && value > 0;
        return fits ? std::string() : fmt::format("got '{}', expected a number above 0", text);
      },
      "");
}

void refuse_option(bool given, const char* name, const char* of) {
  if (given) throw Error(ErrorCode::usage, fmt::format("{}: got the option, expected none for {}", name, of));
}

int run_verify_trtllm(const VerifyArguments& arguments) {
  constexpr const char* kWhat = "a TensorRT-LLM checkpoint";
  const VerifyOptions& graphs = arguments.options;
  refuse_option(!arguments.golden.empty(), "--golden", kWhat);
  refuse_option(!arguments.tokens.empty(), "--tokens", kWhat);
  refuse_option(!arguments.prompt_ids.empty(), "--prompt-ids", kWhat);
  refuse_option(graphs.prompt_length.has_value(), "--prompt-length", kWhat);
  refuse_option(graphs.steps.has_value(), "--steps", kWhat);
  refuse_option(graphs.tolerance.has_value(), "--tolerance", kWhat);
  if (arguments.report.ends_with(".html")) {
    throw Error(ErrorCode::usage,
                fmt::format("a report of {} is JSON: got '{}', expected a file that ends in .json", kWhat, arguments.report));
  }
  refuse_output_among("--report", arguments.report, {arguments.bundle, arguments.checkpoint, arguments.config});
  VerifyTrtllmOptions options;
  if (!arguments.checkpoint.empty()) options.checkpoint = arguments.checkpoint;
  if (!arguments.config.empty()) options.config = arguments.config;
  options.layout = arguments.layout;
  options.threads = graphs.threads;
  options.progress = make_progress("comparing", arguments.quiet);
  const VerifyTrtllmReport report = verify_trtllm(arguments.bundle, options);
  if (arguments.json) {
    fmt::print("{}\n", verify_trtllm_json(report));
  } else {
    fmt::print("{}time: {:.2f} s, peak memory {}\n", verify_trtllm_text(report), report.seconds, size_text(peak_memory_bytes()));
  }
  if (!arguments.report.empty()) write_verify_trtllm_report(arguments.report, report);
  return report.passed() ? 0 : exit_code(ErrorCode::verify_mismatch);
}

int run_verify(VerifyArguments& arguments) {
  if (is_trtllm_folder(arguments.bundle)) return run_verify_trtllm(arguments);
  refuse_option(arguments.layout.has_value(), "--layout", "a bundle of graphs");
  VerifyOptions& options = arguments.options;
  if (!arguments.checkpoint.empty()) options.checkpoint = arguments.checkpoint;
  if (!arguments.config.empty()) options.config = arguments.config;
  if (!arguments.golden.empty()) options.golden = arguments.golden;
  refuse_output_among("--report", arguments.report,
                      {arguments.bundle, arguments.checkpoint, arguments.golden, arguments.tokens, arguments.config});
  if (!arguments.tokens.empty()) {
    options.prompt = read_token_file(arguments.tokens);
    if (options.prompt.empty()) {
      throw Error(ErrorCode::usage, "prompt is empty: got 0 tokens, expected at least 1", {arguments.tokens, {}, {}});
    }
  }
  options.hash_progress = make_progress("hashing", arguments.quiet);
  options.run_progress = make_token_progress("comparing", arguments.quiet);
  if (!arguments.quiet) options.on_forecast = print_forecast;
  const VerifyReport report = verify(arguments.bundle, options);
  if (arguments.json) {
    fmt::print("{}\n", verify_report_json(report));
  } else {
    print_verify_report(report);
  }
  // Last: a report that cannot be written must not take the verdict with it.
  if (!arguments.report.empty()) write_verify_report(arguments.report, report);
  return report.passed() ? 0 : exit_code(ErrorCode::verify_mismatch);
}

}  // namespace

void print_forecast(const VerifyForecast& forecast) {
  std::fputs(fmt::format("memory: about {} (checkpoint {}, bundle {}, KV cache {}, values {})\n", size_text(forecast.total()),
                         size_text(forecast.checkpoint_weights), size_text(forecast.bundle_weights), size_text(forecast.kv),
                         size_text(forecast.activations))
                 .c_str(),
             stderr);
}

void print_verify_report(const VerifyReport& report) {
  fmt::print("{}time: {:.2f} s, peak memory {}\n", verify_report_text(report), report.seconds, size_text(report.peak_memory));
}

void add_verify(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command = app.add_subcommand(
      "verify", "Prove that a written bundle, or TensorRT-LLM checkpoint, computes what its checkpoint computes");
  auto arguments = std::make_shared<VerifyArguments>();
  VerifyOptions& options = arguments->options;
  command->add_option("BUNDLE", arguments->bundle, "folder that export wrote, or a TensorRT-LLM checkpoint of any converter")
      ->required();
  command
      ->add_option("--checkpoint", arguments->checkpoint,
                   "what the bundle was exported from; without it only digests and structure are verified")
      ->type_name("CHECKPOINT")
      ->check(not_empty());
  command->add_option("--config", arguments->config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--golden", arguments->golden,
                   "what another implementation computes (tools/make_golden.py), to hold the reference against")
      ->type_name("FILE|DIR")
      ->check(not_empty());
  CLI::Option* tokens =
      command->add_option("--tokens", arguments->tokens, "prompt: a file of token ids, or a .safetensors with 'tokens'")
          ->type_name("FILE")
          ->check(not_empty());
  CLI::Option* ids =
      command->add_option("--prompt-ids", arguments->prompt_ids, "prompt: token ids")->type_name("ID[,ID...]")->excludes(tokens);
  command
      ->add_option_function<uint32_t>(
          "--prompt-length", [&options](uint32_t length) { options.prompt_length = length; },
          "prompt: this many pseudo-random ids (default: enough to cross the smallest window)")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 30).description(""))
      ->type_name("N")
      ->excludes(tokens)
      ->excludes(ids);
  command
      ->add_option_function<uint32_t>(
          "--steps", [&options](uint32_t steps) { options.steps = steps; },
          "decode steps of one token after the prompt (default: 8)")
      ->check(whole_number())
      ->check(CLI::Range(0, 1 << 30).description(""))
      ->type_name("N");
  command
      ->add_option_function<std::string>(
          "--tolerance", [&options](const std::string& text) { options.tolerance = std::stod(text); },
          "largest error of a value relative to the largest value (default: by precision, see docs/verify.md)")
      ->check(positive_number())
      ->type_name("X");
  add_layout(*command, arguments->layout, kStoredLayoutHelp, kStoredLayoutDefault);
  command
      ->add_option("--report", arguments->report,
                   "also write the report: one page with plots, or JSON (of a TensorRT-LLM checkpoint JSON only)")
      ->type_name("FILE.html|FILE.json")
      ->check(report_file());
  add_count(*command, "--threads", options.threads, kMostThreads, kThreadsHelp);
  command->add_flag("--json", arguments->json, "print the report as JSON");
  command->add_flag("--quiet", arguments->quiet, "no progress and no forecast");
  command->final_callback([arguments, ids] {
    if (ids->count() > 0) arguments->options.prompt = parse_ids(arguments->prompt_ids);
  });
  commands.push_back({command, [arguments] { return run_verify(*arguments); }});
}

}  // namespace transload::cli
