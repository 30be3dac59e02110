// Verifies a written bundle: digests, structure, and that its graphs compute what the checkpoint computes, layer by layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transload/progress.h"

namespace transload {

// Peak resident memory of the process, in bytes.
struct VerifyForecast {
  uint64_t bundle_weights = 0;
  uint64_t checkpoint_weights = 0;
  uint64_t kv = 0;
  uint64_t activations = 0;
  uint64_t base = 0;  // program, graphs, tables
  uint64_t total() const { return bundle_weights + checkpoint_weights + kv + activations + base; }
};

struct VerifyOptions {
  std::optional<std::filesystem::path> checkpoint;  // none: digests and structure only
  std::optional<std::filesystem::path> config;      // instead of the checkpoint's config.json
  std::optional<std::filesystem::path> golden;      // .safetensors in the format of tests/data/decoders, or its folder
  std::vector<int32_t> prompt;                      // empty: the golden's, or pseudo-random ids
  std::optional<uint32_t> prompt_length;            // of a pseudo-random prompt; default: enough to wrap the smallest window
  std::optional<uint32_t> steps;                    // decode steps of one token after the prompt; default 8
  std::optional<double> tolerance;                  // replaces the relative error allowed at the bundle's precision
  uint32_t threads = 0;                             // 0: one per core, at most 8
  Progress hash_progress;                           // counts bytes
  Progress run_progress;                            // counts tokens
  std::function<void(const VerifyForecast&)> on_forecast;  // before anything large is touched
};

// Differences of one value over the rows compared; `expected` is the reference's.
struct Difference {
  double max_abs = 0;  // of got - expected, over finite values
  double scale = 0;    // largest |expected|
  double sqnr_db = 0;  // 10 log10(sum expected^2 / sum (got - expected)^2); +inf when equal
  double cosine = 1;
  uint64_t not_finite = 0;  // values of got that are NaN or infinite
  double relative() const { return scale > 0 ? max_abs / scale : max_abs; }
};

struct LayerResult {
  uint32_t layer = 0;  // of the checkpoint
  Difference out;      // layers_N_out over all rows of all calls
  Difference keys;     // new cache entries
  Difference values;
};

struct StepResult {
  uint64_t position = 0;  // of the call's first token
  uint32_t query = 0;
  uint32_t real = 0;
  std::string file;
  std::vector<double> layer_relative;  // relative error of each layer's output in this call
  double head_relative = 0;            // of logits, or hidden states without a head
};

struct HeadResult {
  Difference logits;
  double max_kl = 0;  // nats, of softmax(expected) to softmax(got), worst row
  double mean_kl = 0;
  uint64_t rows = 0;
  uint64_t top1_equal = 0;  // rows whose best token agrees
  double top5_overlap = 0;  // mean of |top 5 of one among top 5 of the other| / 5
};

// The first thing that differs: a digest, a field of the contract, or the first value in the order of computation.
struct VerifyFailure {
  std::string tensor;                   // as the bundle calls it
  std::optional<uint32_t> layer;        // of the checkpoint
  std::optional<uint64_t> position;     // of the first token that differs
  std::string file;                     // graph that gave it, or the file that differs
  std::vector<std::string> weights;     // constants read between the last values that agree and this one
  std::string what;                     // got and expected, for people
  std::optional<uint64_t> offset = {};  // of the tensor in the file, where its digest differs
};

struct VerifyReport {
  std::string bundle;
  std::string checkpoint;  // empty: only digests and structure were verified
  std::string golden;
  std::string family;
  std::string precision;      // row of the tolerance table, e.g. "weights f16, compute f32"
  double tolerance = 0;       // largest relative error
  double sqnr_floor_db = 0;   // least SQNR; 0 when the tolerance was given by the caller
  std::string widest_tensor;  // the ill-conditioned value that was granted most beyond the tolerance, and how much; or empty
  double widest_tolerance = 0;
  uint64_t digests_checked = 0;
  uint64_t bytes_hashed = 0;
  uint64_t graphs = 0;
  std::vector<std::string> graphs_not_run;
  uint64_t prompt_tokens = 0;
  uint64_t tokens = 0;           // compared in all
  uint64_t values_compared = 0;  // values of graphs, one for each name and call
  std::string worst_tensor;      // the value nearest to the tolerance, and how near
  double worst_relative = 0;
  std::string noisiest_tensor;  // the value of the least SQNR
  double least_sqnr_db = 0;
  bool has_windows = false;        // some layer slides
  bool wrapped = false;            // some window was crossed
  std::vector<std::string> notes;  // what a reader should know: files without digest, windows not crossed, other GELU forms
  VerifyForecast forecast;
  uint64_t peak_memory = 0;
  std::optional<Difference> embedding;  // all rows the host looks up
  std::vector<LayerResult> layers;
  std::vector<StepResult> steps;
  std::optional<HeadResult> head;
  std::vector<LayerResult> golden_layers;  // reference against the golden file
  std::optional<HeadResult> golden_head;
  std::optional<VerifyFailure> failure;
  double seconds = 0;
  bool passed() const { return !failure; }
};

// A difference is a result, not an exception: see VerifyReport::failure. Throws Error for what cannot be verified: a malformed
// bundle or checkpoint, a golden file of another model, usage (a prompt that does not fit, ids outside the vocabulary).
VerifyReport verify(const std::filesystem::path& bundle, const VerifyOptions& options);

std::string verify_report_json(const VerifyReport& report);
// One self-contained page: the verdict, tables, and plots of the error by layer and by step.
std::string verify_report_html(const VerifyReport& report);
// Writes the page, or JSON for a name that ends in .json, whole or not at all. Throws io_failure.
void write_verify_report(const std::filesystem::path& path, const VerifyReport& report);
// For a terminal.
std::string verify_report_text(const VerifyReport& report);

}  // namespace transload
