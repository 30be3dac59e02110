// The verification report for a terminal.
#include <fmt/format.h>

#include <cmath>

#include "export/verify_report.h"
#include "transload/verify.h"

namespace transload {
namespace {

std::string layers_text(const std::vector<LayerResult>& layers) {
  std::string out = fmt::format("  {:>5} {:>11} {:>10} {:>8} {:>11} {:>10} {:>10}\n", "layer", "max abs", "relative", "SQNR dB",
                                "cosine", "keys rel.", "values rel.");
  for (const LayerResult& layer : layers) {
    out += fmt::format("  {:>5} {:>11} {:>10} {:>8} {:>11.8f} {:>10} {:>10}\n", layer.layer, error_text(layer.out.max_abs),
                       error_text(layer.out.relative()), decibel_text(layer.out.sqnr_db), layer.out.cosine,
                       error_text(layer.keys.relative()), error_text(layer.values.relative()));
  }
  return out;
}

std::string head_text(const HeadResult& head) {
  return fmt::format(
      "  logits: max abs {}, relative {}, SQNR {} dB, cosine {:.8f}\n"
      "          KL at most {}, mean {}; best token equal in {} of {} rows, top 5 shared {:.1f} %\n",
      error_text(head.logits.max_abs), error_text(head.logits.relative()), decibel_text(head.logits.sqnr_db), head.logits.cosine,
      error_text(head.max_kl), error_text(head.mean_kl), head.top1_equal, head.rows, head.top5_overlap * 100);
}

std::string verdict_text(const VerifyReport& report) {
  std::string out = verdict_of(report) + "\n";
  if (!report.failure) return out;
  const VerifyFailure& failure = *report.failure;
  out += fmt::format("  {}\n", failure.what);
  if (!failure.weights.empty()) {
    out += fmt::format("  weights read since the last values that agree: {}\n", list_text(failure.weights));
  }
  return out;
}

}  // namespace

std::string error_text(double value) { return value == 0 ? "0" : fmt::format("{:.2e}", value); }

std::string decibel_text(double value) {
  return std::isfinite(value) ? fmt::format("{:.1f}", value) : value > 0 ? "equal" : "-inf";
}

std::string list_text(const std::vector<std::string>& items) {
  constexpr size_t kMost = 6;
  std::string out;
  for (size_t i = 0; i < items.size() && i < kMost; ++i) out += (i > 0 ? ", " : "") + items[i];
  if (items.size() > kMost) out += fmt::format(" and {} more", items.size() - kMost);
  return out;
}

std::string verdict_of(const VerifyReport& report) {
  if (!report.failure) {
    return report.checkpoint.empty() ? "verification passed: digests and structure only"
                                     : "verification passed: the graphs compute what the checkpoint computes";
  }
  const VerifyFailure& failure = *report.failure;
  std::string where;
  if (failure.layer) where += fmt::format("layer {}, ", *failure.layer);
  if (!failure.tensor.empty()) where += fmt::format("tensor '{}', ", failure.tensor);
  if (failure.position) where += fmt::format("position {}, ", *failure.position);
  return fmt::format("verification failed: {}file '{}'", where, failure.file);
}

std::string tolerance_text(const VerifyReport& report) {
  std::string out = fmt::format("{}: relative error at most {:.1e}", report.precision, report.tolerance);
  if (report.sqnr_floor_db > 0) out += fmt::format(", SQNR at least {:.0f} dB", report.sqnr_floor_db);
  if (!report.widest_tensor.empty()) {
    out += fmt::format("; more for ill-conditioned values, most {:.1e} for '{}'", report.widest_tolerance, report.widest_tensor);
  }
  return out;
}

std::string extremes_text(const VerifyReport& report) {
  if (report.worst_tensor.empty()) return report.values_compared > 0 ? "every value equal" : "";
  return fmt::format("largest error {} in '{}', least SQNR {} dB in '{}'", error_text(report.worst_relative), report.worst_tensor,
                     decibel_text(report.least_sqnr_db), report.noisiest_tensor);
}

std::string coverage_text(const VerifyReport& report) {
  std::string out =
      fmt::format("{} compared in {} calls, prompt of {}; {} values; {} of {} graphs run", report.tokens, report.steps.size(),
                  report.prompt_tokens, report.values_compared, report.graphs - report.graphs_not_run.size(), report.graphs);
  if (!report.graphs_not_run.empty()) out += fmt::format(" (not {})", list_text(report.graphs_not_run));
  if (report.has_windows) out += report.wrapped ? "; a window was crossed" : "; no window was crossed";
  return out;
}

std::string verify_report_text(const VerifyReport& report) {
  std::string out;
  out += fmt::format("bundle     {}\n", report.bundle);
  if (!report.checkpoint.empty()) out += fmt::format("checkpoint {} ({})\n", report.checkpoint, report.family);
  out += fmt::format("digests    {} over {} bytes\n", report.digests_checked, report.bytes_hashed);
  if (!report.precision.empty()) out += fmt::format("tolerance  {}\n", tolerance_text(report));
  if (!report.steps.empty()) out += fmt::format("tokens     {}\n", coverage_text(report));
  if (report.values_compared > 0) out += fmt::format("values     {}\n", extremes_text(report));
  if (report.golden_head) {
    out += fmt::format("golden     {}: reference against it\n", report.golden);
    out += layers_text(report.golden_layers) + head_text(*report.golden_head);
  }
  if (report.embedding) {
    out += fmt::format("embedding  all rows: max abs {}, relative {}\n", error_text(report.embedding->max_abs),
                       error_text(report.embedding->relative()));
  }
  if (!report.layers.empty()) out += "graphs against reference, by layer\n" + layers_text(report.layers);
  if (report.head) out += head_text(*report.head);
  for (const std::string& note : report.notes) out += fmt::format("note: {}\n", note);
  return out + verdict_text(report);
}

}  // namespace transload
