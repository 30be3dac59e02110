// transload eval: negative log likelihood and perplexity of token ids, to compare exports and quantisations.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "transload/evaluate.h"
#include "transload/peak_memory.h"

namespace transload::cli {
namespace {

struct EvalArguments {
  std::string path;
  std::string ids;
  std::string config;
  std::string save;
  bool json = false;
  bool quiet = false;
  DecoderOptions decoder;
  EvaluateOptions evaluate;
};

int run_eval(EvalArguments& arguments) {
  if (!arguments.config.empty()) arguments.decoder.config = arguments.config;
  refuse_output_among("--save", arguments.save, {arguments.path, arguments.ids, arguments.config});
  const std::vector<int32_t> ids = read_token_file(arguments.ids);
  const std::unique_ptr<Decoder> decoder = open_decoder(arguments.path, arguments.decoder);
  arguments.evaluate.progress = make_token_progress("reading", arguments.quiet);
  const Evaluation found = evaluate(*decoder, ids, arguments.evaluate);
  if (!arguments.save.empty()) save_evaluation(arguments.save, ids, found);
  if (arguments.json) {
    fmt::print("{}\n", evaluation_json(found, *decoder, peak_memory_bytes()));
    return 0;
  }
  // Weights without sense give perplexities of dozens of digits.
  fmt::print("perplexity      {}\nmean nll        {:.6f} nats a token\n",
             found.perplexity < 1e9 ? fmt::format("{:.4f}", found.perplexity) : fmt::format("{:.3e}", found.perplexity),
             found.mean_nll);
  fmt::print("tokens          {} in {} chunk{}, {} predicted\n", grouped(found.tokens), grouped(found.chunks),
             found.chunks == 1 ? "" : "s", grouped(found.predictions));
  fmt::print("time            {:.2f} s, {:.1f} tokens/s, peak memory {}\n", found.seconds,
             found.seconds > 0 ? static_cast<double>(found.tokens) / found.seconds : 0.0, size_text(peak_memory_bytes()));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command = app.add_subcommand("eval", "Measure how well a checkpoint or a bundle predicts a text of token ids");
  auto arguments = std::make_shared<EvalArguments>();
  command
      ->add_option(
          "CHECKPOINT|BUNDLE", arguments->path,
          "a checkpoint (folder or .gguf) runs in fp32 from its stored weights; a folder with contract.json by its graphs")
      ->required();
  command
      ->add_option("--ids", arguments->ids, "token ids: numbers with blanks or commas between, or a .safetensors with 'tokens'")
      ->required()
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--chunk", arguments->evaluate.chunk,
                   "cut the text into pieces of N tokens, each read from the start (default: as many as fit)")
      ->check(whole_number())
      ->check(CLI::Range(2, 1 << 30).description(""))
      ->type_name("N");
  command
      ->add_option("--context", arguments->decoder.context,
                   "bundle: use the graphs of this context (default: the smallest that fits); checkpoint: most tokens in all")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 30).description(""))
      ->type_name("C");
  command
      ->add_option("--save", arguments->save,
                   "write tokens and nll as .safetensors, with --top also each row's best tokens; replaces an older file")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--top", arguments->evaluate.top, "best next tokens to save of every row")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("K")
      ->needs("--save");
  add_count(*command, "--threads", arguments->decoder.threads, kMostThreads, kThreadsHelp);
  command->add_option("--config", arguments->config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_flag("--json", arguments->json, "print JSON");
  command->add_flag("--quiet", arguments->quiet, "no progress");
  commands.push_back({command, [arguments] { return run_eval(*arguments); }});
}

}  // namespace transload::cli
