// The verification report as one self-contained page: style and pictures inside, no script, for light and dark screens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "export/markup.h"
#include "export/verify_compare.h"
#include "export/verify_report.h"
#include "io/whole_file.h"
#include "transload/verify.h"

namespace transload {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --text: #1c2430; --soft: #5b6675; --page: #fbfcfe; --card: #ffffff; --line: #d5dce6;
  --good: #0a7d43; --bad: #b3261e; --one: #0063a8; --two: #b8500b; --three: #00785a; --limit: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6ebf2; --soft: #9fabbb; --page: #12161c; --card: #1a2028; --line: #36404d;
  --good: #5fd39a; --bad: #ff8a80; --one: #6cb6ff; --two: #ffab70; --three: #63d6b4; --limit: #ff8a80; } }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.verdict { border: 1px solid var(--line); border-left: .5rem solid var(--good); background: var(--card); padding: 1rem 1.25rem; }
.verdict.failed { border-left-color: var(--bad); } .verdict p { margin: .5rem 0 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; background: var(--card); border: 1px solid var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .45rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
.facts th { text-align: left; color: var(--soft); font-weight: 600; width: 9rem; vertical-align: top; }
.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.key span { margin-right: 1.5rem; white-space: nowrap; } .key svg { width: 1.2rem; height: .9rem; border: 0; background: none; }
.axis { stroke: var(--line); stroke-width: 1; } .tick { fill: var(--soft); font-size: 12px; }
.limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 6 4; } .limit-text { fill: var(--limit); font-size: 12px; }
.s0 { --c: var(--one); } .s1 { --c: var(--two); } .s2 { --c: var(--three); }
.s0 path, .s1 path, .s2 path { fill: none; stroke: var(--c); stroke-width: 1.5; }
.s0 .dot, .s1 .dot, .s2 .dot { fill: var(--c); stroke: none; }
)";

struct Series {
  std::string name;
  std::vector<double> values;  // one for each place on the x axis; 0 is drawn at the bottom
};

struct Plot {
  std::string title;
  std::string x_name;
  std::vector<uint64_t> x;  // labels
  std::vector<Series> series;
  double limit = 0;
};

constexpr double kWidth = 900;
constexpr double kHeight = 320;
constexpr double kLeft = 60;
constexpr double kRight = 20;
constexpr double kTop = 16;
constexpr double kBottom = 40;

// Powers of ten that hold every value and the limit.
class LogScale {
 public:
  explicit LogScale(const Plot& plot) {
    double least = plot.limit > 0 ? plot.limit : 1e-4;
    double most = least;
    for (const Series& series : plot.series) {
      for (const double value : series.values) {
        if (value <= 0 || !std::isfinite(value)) continue;
        least = std::min(least, value);
        most = std::max(most, value);
      }
    }
    low_ = std::max(-12, static_cast<int>(std::floor(std::log10(least))));
    high_ = std::min(12, static_cast<int>(std::ceil(std::log10(most))));
    if (high_ <= low_) high_ = low_ + 1;
  }
  int low() const { return low_; }
  int high() const { return high_; }
  double y(double value) const {
    const double exponent = value > 0 ? std::clamp(std::log10(value), double(low_), double(high_)) : low_;
    return kTop + (high_ - exponent) / (high_ - low_) * (kHeight - kTop - kBottom);
  }

 private:
  int low_ = 0;
  int high_ = 0;
};

double x_at(const Plot& plot, size_t index) {
  const double span = kWidth - kLeft - kRight;
  return plot.x.size() < 2 ? kLeft + span / 2
                           : kLeft + span * static_cast<double>(index) / static_cast<double>(plot.x.size() - 1);
}

// Series differ in shape as well as in colour.
std::string marker(size_t series, double x, double y) {
  if (series == 0) return fmt::format("<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"/>", x, y);
  if (series == 1) {
    return fmt::format("<rect class=\"dot\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"6.5\" height=\"6.5\"/>", x - 3.25, y - 3.25);
  }
  return fmt::format("<polygon class=\"dot\" points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\"/>", x, y - 4.5, x - 4.5,
                     y + 3.5, x + 4.5, y + 3.5);
}

std::string axes(const Plot& plot, const LogScale& scale) {
  std::string out;
  for (int exponent = scale.low(); exponent <= scale.high(); ++exponent) {
    const double y = scale.y(std::pow(10.0, exponent));
    out += fmt::format("<line class=\"axis\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", kLeft, kWidth - kRight, y);
    out += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">1e{}</text>", kLeft - 8, y + 4, exponent);
  }
  const size_t every = std::max<size_t>(1, (plot.x.size() + 15) / 16);
  for (size_t i = 0; i < plot.x.size(); i += every) {
    out += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x_at(plot, i),
                       kHeight - kBottom + 18, plot.x[i]);
  }
  return out + fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                           (kLeft + kWidth - kRight) / 2, kHeight - 6, markup_escaped(plot.x_name));
}

std::string plot_html(const Plot& plot) {
  const LogScale scale(plot);
  double worst = 0;
  for (const Series& series : plot.series) {
    for (const double value : series.values) worst = std::max(worst, value);
  }
  const std::string description = fmt::format("Relative error, logarithmic, against {}. Largest {}; tolerance {:.0e}.",
                                              plot.x_name, error_text(worst), plot.limit);
  std::string out = fmt::format("<h2>{}</h2>\n<p class=\"key\">", markup_escaped(plot.title));
  for (size_t s = 0; s < plot.series.size(); ++s) {
    out += fmt::format("<span class=\"s{}\"><svg viewBox=\"0 0 20 14\" aria-hidden=\"true\">{}</svg> {}</span>", s,
                       marker(s, 10, 7), markup_escaped(plot.series[s].name));
  }
  out += fmt::format("</p>\n<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}. {}\">", kWidth, kHeight,
                     markup_escaped(plot.title), markup_escaped(description));
  out += axes(plot, scale);
  for (size_t s = 0; s < plot.series.size(); ++s) {
    std::string path;
    std::string dots;
    for (size_t i = 0; i < plot.series[s].values.size(); ++i) {
      const double y = scale.y(plot.series[s].values[i]);
      path += fmt::format("{}{:.1f} {:.1f}", i == 0 ? "M" : "L", x_at(plot, i), y);
      dots += marker(s, x_at(plot, i), y);
    }
    out += fmt::format("<g class=\"s{}\"><path d=\"{}\"/>{}</g>", s, path, dots);
  }
  const double limit = scale.y(plot.limit);
  out +=
      fmt::format("<line class=\"limit\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>", kLeft, kWidth - kRight, limit);
  out += fmt::format("<text class=\"limit-text\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">tolerance {:.0e}</text>",
                     kWidth - kRight - 4, limit > kTop + 14 ? limit - 5 : limit + 14, plot.limit);
  return out + "</svg>\n";
}

Plot layers_plot(const std::string& title, const std::vector<LayerResult>& layers, double limit) {
  Plot plot{title, "layer", {}, {{"layer output", {}}, {"keys", {}}, {"values", {}}}, limit};
  for (const LayerResult& layer : layers) {
    plot.x.push_back(layer.layer);
    plot.series[0].values.push_back(layer.out.relative());
    plot.series[1].values.push_back(layer.keys.relative());
    plot.series[2].values.push_back(layer.values.relative());
  }
  return plot;
}

Plot steps_plot(const VerifyReport& report) {
  Plot plot{
      "Error by call", "position of the call's first token", {}, {{"worst layer output", {}}, {"head", {}}}, report.tolerance};
  for (const StepResult& step : report.steps) {
    plot.x.push_back(step.position);
    const auto worst = std::max_element(step.layer_relative.begin(), step.layer_relative.end());
    plot.series[0].values.push_back(worst == step.layer_relative.end() ? 0 : *worst);
    plot.series[1].values.push_back(step.head_relative);
  }
  return plot;
}

std::string row(const std::vector<std::string>& cells, const char* tag = "td") {
  std::string out = "<tr>";
  for (const std::string& cell : cells) out += fmt::format("<{0}>{1}</{0}>", tag, markup_escaped(cell));
  return out + "</tr>\n";
}

std::string layers_table(const std::vector<LayerResult>& layers) {
  std::string out = "<div class=\"wide\"><table><thead>" +
                    row({"layer", "max abs", "relative", "SQNR dB", "cosine", "keys relative", "keys SQNR dB", "values relative",
                         "values SQNR dB"},
                        "th") +
                    "</thead><tbody>\n";
  for (const LayerResult& layer : layers) {
    out += row({std::to_string(layer.layer), error_text(layer.out.max_abs), error_text(layer.out.relative()),
                decibel_text(layer.out.sqnr_db), fmt::format("{:.8f}", layer.out.cosine), error_text(layer.keys.relative()),
                decibel_text(layer.keys.sqnr_db), error_text(layer.values.relative()), decibel_text(layer.values.sqnr_db)});
  }
  return out + "</tbody></table></div>\n";
}

std::string head_table(const HeadResult& head) {
  return "<h2>Logits</h2>\n<div class=\"wide\"><table><thead>" +
         row({"rows", "max abs", "relative", "SQNR dB", "cosine", "KL at most", "KL mean", "best token equal", "top 5 shared"},
             "th") +
         "</thead><tbody>\n" +
         row({std::to_string(head.rows), error_text(head.logits.max_abs), error_text(head.logits.relative()),
              decibel_text(head.logits.sqnr_db), fmt::format("{:.8f}", head.logits.cosine), error_text(head.max_kl),
              error_text(head.mean_kl), fmt::format("{} of {}", head.top1_equal, head.rows),
              fmt::format("{:.1f} %", head.top5_overlap * 100)}) +
         "</tbody></table></div>\n";
}

std::string fact(const char* name, const std::string& text) {
  return text.empty() ? "" : fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", name, markup_escaped(text));
}

std::string facts(const VerifyReport& report) {
  std::string out = "<h2>What was verified</h2>\n<table class=\"facts\"><tbody>\n";
  out += fact("Bundle", report.bundle);
  out += fact("Checkpoint", report.checkpoint.empty() ? "none: digests and structure only" : report.checkpoint);
  out += fact("Family", report.family);
  out += fact("Golden file", report.golden);
  out += fact("Digests", fmt::format("{} over {} bytes", report.digests_checked, report.bytes_hashed));
  if (!report.precision.empty()) out += fact("Tolerance", tolerance_text(report));
  if (!report.steps.empty()) out += fact("Tokens", coverage_text(report));
  out += fact("Values", extremes_text(report));
  if (report.embedding) {
    out += fact("Embedding", fmt::format("all rows: max abs {}, relative {}", error_text(report.embedding->max_abs),
                                         error_text(report.embedding->relative())));
  }
  if (report.forecast.total() > 0) {
    out +=
        fact("Memory", fmt::format("{:.2f} GB forecast, {:.2f} GB measured", static_cast<double>(report.forecast.total()) / 1e9,
                                   static_cast<double>(report.peak_memory) / 1e9));
  }
  out += fact("Time", fmt::format("{:.1f} s", report.seconds));
  return out + "</tbody></table>\n";
}

std::string verdict_html(const VerifyReport& report) {
  std::string out =
      fmt::format("<div class=\"verdict{}\"><h1>{}</h1>\n", report.passed() ? "" : " failed", markup_escaped(verdict_of(report)));
  if (report.failure) {
    out += fmt::format("<p>{}</p>\n", markup_escaped(report.failure->what));
    if (!report.failure->weights.empty()) {
      out += fmt::format("<p>Weights read since the last values that agree: {}</p>\n",
                         markup_escaped(list_text(report.failure->weights)));
    }
  }
  return out + "</div>\n";
}

// Why a passed report may have points above the line.
std::string granted_html(const VerifyReport& report) {
  return report.widest_tensor.empty() ? "" : "<p>Ill-conditioned values were granted more than the line: see Tolerance.</p>\n";
}

std::string notes_html(const VerifyReport& report) {
  if (report.notes.empty()) return "";
  std::string out = "<h2>Notes</h2>\n<ul>\n";
  for (const std::string& note : report.notes) out += fmt::format("<li>{}</li>\n", markup_escaped(note));
  return out + "</ul>\n";
}

std::string steps_table(const VerifyReport& report) {
  std::string out = "<details><summary>Every call</summary>\n<div class=\"wide\"><table><thead>" +
                    row({"graph", "position", "tokens", "worst layer output", "head"}, "th") + "</thead><tbody>\n";
  for (const StepResult& step : report.steps) {
    const auto worst = std::max_element(step.layer_relative.begin(), step.layer_relative.end());
    out += row({step.file, std::to_string(step.position), fmt::format("{} of {}", step.real, step.query),
                error_text(worst == step.layer_relative.end() ? 0 : *worst), error_text(step.head_relative)});
  }
  return out + "</tbody></table></div></details>\n";
}

}  // namespace

std::string verify_report_html(const VerifyReport& report) {
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>transload: {}</title>\n<style>{}</style>\n</head>\n<body>\n", markup_escaped(verdict_of(report)),
                     kStyle);
  out += verdict_html(report) + facts(report) + notes_html(report);
  if (!report.layers.empty()) {
    out += plot_html(layers_plot("Error by layer", report.layers, report.tolerance)) + granted_html(report) +
           layers_table(report.layers);
  }
  if (!report.steps.empty()) out += plot_html(steps_plot(report)) + steps_table(report);
  if (report.head) out += head_table(*report.head);
  if (report.golden_head) {
    out +=
        plot_html(layers_plot("Reference against the golden file, by layer", report.golden_layers, golden_tolerance().relative));
    out += layers_table(report.golden_layers) + head_table(*report.golden_head);
  }
  return out + "</body>\n</html>\n";
}

void write_verify_report(const std::filesystem::path& path, const VerifyReport& report) {
  const bool json = path.extension() == ".json";
  write_file_whole(path, json ? verify_report_json(report) + "\n" : verify_report_html(report));
}

}  // namespace transload
