// transload run: generates tokens from a checkpoint or a bundle. Text goes through the Python package, which drives this command.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "transload/error.h"
#include "transload/generate.h"
#include "transload/peak_memory.h"

namespace transload::cli {
namespace {

constexpr const char* kBlanks = " \t\r,";

struct RunArguments {
  std::string path;
  std::string config;
  std::string prompt_ids;
  std::string stop;
  bool ignore_eos = false;
  bool json = false;
  bool stats = false;
  bool quiet = false;
  DecoderOptions decoder;
  SamplingOptions sampling;
  GenerateOptions generate;
  std::vector<std::string> for_python;  // the arguments as given, when text is asked for
};

// A word of the input, fit for a message.
std::string shown(const std::string& word) {
  constexpr size_t kShown = 40;
  std::string text;
  for (const char c : word.substr(0, kShown)) {
    text += c >= 0x20 && c < 0x7F ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return word.size() > kShown ? text + "..." : text;
}

// "1,2 3" as token ids.
std::vector<int32_t> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  for (size_t at = text.find_first_not_of(kBlanks); at != std::string::npos; at = text.find_first_not_of(kBlanks, at)) {
    const size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || stop != text.data() + end || id < 0) {
      throw Error(ErrorCode::usage,
                  fmt::format("token ids: got '{}', expected numbers such as 1,2,3", shown(text.substr(at, end - at))));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

// Whether there was another line; without its end.
bool next_line(std::string& line) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  line.clear();
  int c = 0;
  while ((c = std::getc(stdin)) != EOF && c != '\n') {
    if (line.size() == kMostBytes) {
      throw Error(ErrorCode::usage, fmt::format("line of standard input: got no end, expected one within {} bytes", kMostBytes));
    }
    line.push_back(static_cast<char>(c));
  }
  if (std::ferror(stdin) != 0) throw Error(ErrorCode::io_failure, "cannot read standard input");
  return c != EOF || !line.empty();
}

void put(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::io_failure, "cannot write to standard output");
  }
}

std::string rate_text(double tokens_per_second) {
  return tokens_per_second > 0 ? fmt::format("{:.1f} tokens/s", tokens_per_second) : "- tokens/s";
}

void print_stats(const GenerateSummary& summary, const Decoder& decoder, double load_seconds) {
  std::fputs(fmt::format("load {:.2f} s, prompt {} tokens at {}, generated {} at {}, KV cache {}, weights {}, peak memory {}\n",
                         load_seconds, summary.prompt_tokens, rate_text(summary.prompt_tokens_per_second()),
                         summary.tokens.size(), rate_text(summary.tokens_per_second()), size_text(decoder.kv_bytes()),
                         size_text(decoder.info().weight_bytes), size_text(peak_memory_bytes()))
                 .c_str(),
             stderr);
}

// A line that vanishes when the work is done, for a terminal only.
class LoadingNote {
 public:
  LoadingNote(const std::string& path, bool quiet) : shown_(!quiet && isatty(STDERR_FILENO) != 0) {
    if (shown_) std::fputs(fmt::format("loading {}", path).c_str(), stderr);
  }
  LoadingNote(const LoadingNote&) = delete;
  ~LoadingNote() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
  }

 private:
  bool shown_;
};

class Replies {
 public:
  explicit Replies(const RunArguments& arguments) : arguments_(arguments), sampler_(arguments.sampling) {
    const auto start = std::chrono::steady_clock::now();
    const LoadingNote note(arguments.path, arguments.quiet);
    decoder_ = open_decoder(arguments.path, arguments.decoder);
    load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    options_ = arguments.generate;
    options_.stop_tokens.clear();
    for (const int32_t id : parse_ids(arguments.stop)) options_.stop_tokens.push_back(id);
    const std::vector<int64_t>& eos = decoder_->info().eos_tokens;
    if (!arguments.ignore_eos) options_.stop_tokens.insert(options_.stop_tokens.end(), eos.begin(), eos.end());
  }

  void reply(const std::vector<int32_t>& prompt, bool stream) {
    const auto is_stop = [&](int32_t id) {
      return std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), id) != options_.stop_tokens.end();
    };
    const GenerateSummary summary = generate(*decoder_, prompt, options_, sampler_, [&](int32_t id) {
      if (stream && !is_stop(id)) put(fmt::format("{} ", id));
    });
    if (stream) put("\n");
    if (arguments_.json) put(generate_json(summary, prompt, *decoder_, peak_memory_bytes()) + "\n");
    if (summary.finish == FinishReason::context && !arguments_.quiet) {
      std::fputs(fmt::format("context of {} is full after {} new tokens\n", decoder_->capacity(), summary.tokens.size()).c_str(),
                 stderr);
    }
    if (arguments_.stats) print_stats(summary, *decoder_, load_seconds_);
  }

  void reset() { decoder_->reset(); }

 private:
  const RunArguments& arguments_;
  GenerateOptions options_;
  Sampler sampler_;
  std::unique_ptr<Decoder> decoder_;
  double load_seconds_ = 0;
};

int run_generation(RunArguments& arguments) {
  if (!arguments.for_python.empty()) return run_python_module("transload.run", arguments.for_python);
  if (!arguments.config.empty()) arguments.decoder.config = arguments.config;
  const bool from_input = arguments.prompt_ids == "-";
  const std::vector<int32_t> prompt = from_input ? std::vector<int32_t>() : parse_ids(arguments.prompt_ids);
  if (!from_input && prompt.empty()) throw Error(ErrorCode::usage, "prompt is empty: got 0 tokens, expected at least 1");
  Replies replies(arguments);
  if (!from_input) {
    replies.reply(prompt, !arguments.json);
    return 0;
  }
  for (std::string line; next_line(line);) {
    if (line == "reset" || line.find_first_not_of(kBlanks) == std::string::npos) {
      replies.reset();
    } else {
      replies.reply(parse_ids(line), true);
    }
  }
  return 0;
}

// The options that were given, spelled so that no value looks like an option.
std::vector<std::string> given_arguments(const CLI::App& command) {
  std::vector<std::string> out;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    const std::string value = option->results().empty() ? std::string() : option->results().front();
    const bool is_flag = option->get_items_expected_max() == 0;
    if (option->get_positional()) {
      out.push_back(value);
    } else if (is_flag || (option->get_items_expected_min() == 0 && value.empty())) {
      out.push_back(option->get_name());
    } else {
      out.push_back(option->get_name() + "=" + value);
    }
  }
  return out;
}

// Of these three, one; text and chat have options of their own.
void choose_prompt(const CLI::App& command, RunArguments& arguments) {
  const bool chat = command.count("--chat") > 0;
  const bool text = chat || command.count("--prompt") > 0;
  const size_t given = command.count("--prompt-ids") + command.count("--prompt") + command.count("--chat");
  if (given != 1) {
    throw CLI::ValidationError(fmt::format("prompt: got {} of --prompt-ids, --prompt and --chat, expected one", given));
  }
  for (const char* flag : {"--tokenizer", "--tokenizer-pre"}) {
    if (!text && command.count(flag) > 0) throw CLI::ValidationError(fmt::format("{} applies to --prompt and --chat", flag));
  }
  for (const char* flag : {"--system", "--thinking", "--no-thinking"}) {
    if (!chat && command.count(flag) > 0) throw CLI::ValidationError(fmt::format("{} applies to --chat", flag));
  }
  if (command.count("--top-logits") > 0 && (text || !arguments.json)) {
    throw CLI::ValidationError("--top-logits applies to --prompt-ids with --json");
  }
  if (text) arguments.for_python = given_arguments(command);
}

void add_sampling(CLI::App& command, SamplingOptions& sampling) {
  const std::string group = "Sampling (all but the first need a --temperature above 0)";
  command.add_option("--temperature", sampling.temperature, "randomness; 0 takes the best token")
      ->check(number())
      ->type_name("T")
      ->default_str("0")
      ->group(group);
  command.add_option("--top-k", sampling.top_k, "draw among the K best tokens (default: all)")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 30).description(""))
      ->type_name("K")
      ->group(group);
  command.add_option("--top-p", sampling.top_p, "draw among the best tokens of total probability P")
      ->check(number())
      ->type_name("P")
      ->default_str("1")
      ->group(group);
  command.add_option("--min-p", sampling.min_p, "draw among tokens of at least P times the best one's probability")
      ->check(number())
      ->type_name("P")
      ->default_str("0")
      ->group(group);
  command
      .add_option_function<uint64_t>(
          "--seed", [&sampling](const uint64_t& seed) { sampling.seed = seed; },
          "equal seeds give equal draws (default: different each time)")
      ->check(whole_number())
      ->type_name("N")
      ->group(group);
}

}  // namespace

void add_run(CLI::App& app, std::vector<Command>& commands) {
  CLI::App* command = app.add_subcommand(
      "run", "Generate from a checkpoint or an exported bundle; tokens appear as they are chosen, without the stop token");
  auto arguments = std::make_shared<RunArguments>();
  GenerateOptions& generation = arguments->generate;
  command
      ->add_option(
          "CHECKPOINT|BUNDLE", arguments->path,
          "a checkpoint (folder or .gguf) runs in fp32 from its stored weights; a folder with contract.json by its graphs")
      ->required();
  const std::string prompt = "Prompt (one of them)";
  command
      ->add_option("--prompt-ids", arguments->prompt_ids,
                   "token ids; '-' reads one prompt a line, each continuing the last (an empty line or 'reset' starts anew)")
      ->type_name("IDS|-")
      ->group(prompt);
  // Text is the Python package's to read: only that it was given matters here.
  const auto unread = [](const std::string&) {};
  command->add_option_function<std::string>("--prompt", unread, "text to continue, as it is")->type_name("TEXT")->group(prompt);
  command
      ->add_option_function<std::string>("--chat", unread,
                                         "a message to answer by the model's chat template; alone: a conversation, line by line")
      ->expected(0, 1)
      ->type_name("[TEXT]")
      ->group(prompt);

  const std::string text = "Text (through the Python package 'transload', in $TRANSLOAD_PYTHON or python3)";
  command->add_option_function<std::string>("--system", unread, "system message of the conversation")
      ->type_name("TEXT")
      ->group(text);
  CLI::Option* thinking = command
                              ->add_flag_function(
                                  "--thinking", [](int64_t) {}, "let a model that can think before it answers")
                              ->group(text);
  command
      ->add_flag_function(
          "--no-thinking", [](int64_t) {}, "answer at once")
      ->excludes(thinking)
      ->group(text);
  command->add_option_function<std::string>("--tokenizer", unread, "tokenizer.json or .gguf to use instead of the model's own")
      ->type_name("FILE")
      ->group(text);
  command
      ->add_option_function<std::string>("--tokenizer-pre", unread,
                                         "how a GGUF vocabulary cuts text, where its own name for it is unknown")
      ->type_name("NAME")
      ->group(text);

  add_sampling(*command, arguments->sampling);
  const std::string end = "End";
  command->add_option("--max-new-tokens", generation.max_new_tokens, "tokens to generate")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 30).description(""))
      ->type_name("N")
      ->default_str("128")
      ->group(end);
  command->add_option("--stop", arguments->stop, "also stop at these token ids; the model's own stop tokens count anyway")
      ->type_name("ID[,ID...]")
      ->group(end);
  command->add_flag("--ignore-eos", arguments->ignore_eos, "do not stop at the model's own stop tokens")->group(end);

  const std::string running = "Running";
  command
      ->add_option("--context", arguments->decoder.context,
                   "bundle: use the graphs of this context (default: the smallest that fits); checkpoint: most tokens in all")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 30).description(""))
      ->type_name("C")
      ->group(running);
  add_count(*command, "--threads", arguments->decoder.threads, kMostThreads, kThreadsHelp)->group(running);
  command->add_option("--config", arguments->config, "config.json to use instead of the checkpoint's")
      ->type_name("FILE")
      ->check(not_empty())
      ->group(running);
  command
      ->add_option("--top-logits", generation.top_logits,
                   "with --prompt-ids and --json: the K best tokens of each step and their logits")
      ->check(whole_number())
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("K")
      ->group(running);
  command->add_flag("--json", arguments->json, "print one JSON object for each prompt")->group(running);
  command->add_flag("--stats", arguments->stats, "print speed and memory on standard error")->group(running);
  command->add_flag("--quiet", arguments->quiet, "no messages on standard error but errors and --stats")->group(running);
  command->final_callback([arguments, command] { choose_prompt(*command, *arguments); });
  commands.push_back({command, [arguments] { return run_generation(*arguments); }});
}

}  // namespace transload::cli
