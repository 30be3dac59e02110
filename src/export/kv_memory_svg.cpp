// Draws the KV cache of every layout as stacked bars: one panel for each context, one axis in bytes under all of them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "base/grouped.h"
#include "export/markup.h"
#include "io/whole_file.h"
#include "transload/error.h"
#include "transload/kv_memory.h"

namespace transload {
namespace {

// Pixels. The right margin holds the longest label of a bar that ends at the axis' end: "999.99 GB (99.9 % less)".
constexpr double kLeft = 90;
constexpr double kPlotWidth = 580;
constexpr double kRight = 190;
constexpr double kWidth = kLeft + kPlotWidth + kRight;
constexpr double kTop = 104;
constexpr double kHeading = 26;
constexpr double kBar = 20;
constexpr double kBarPitch = 26;
constexpr double kPanelGap = 16;
constexpr double kAxisHeight = 58;

// Differ in lightness as well, for readers and printers without colour.
constexpr const char* kSlidingColor = "#f2a541";
constexpr const char* kFullColor = "#1f5a99";
constexpr const char* kTextColor = "#222222";
constexpr const char* kGridColor = "#dddddd";

struct Unit {
  const char* name;
  double bytes;
};
constexpr std::array<Unit, 5> kUnits{{{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};

const Unit& unit_for(double bytes) {
  const auto unit = std::find_if(kUnits.rbegin(), kUnits.rend(), [&](const Unit& u) { return bytes >= u.bytes; });
  return unit == kUnits.rend() ? kUnits.front() : *unit;
}

std::string size_label(double bytes) {
  const Unit& unit = unit_for(bytes);
  return unit.bytes == 1 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes / unit.bytes, unit.name);
}

// 1, 2 or 5 times a power of ten, at least a sixth of `most`: three to six steps on the axis.
double tick_step(double most) {
  const double decade = std::pow(10, std::floor(std::log10(most / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (6 * factor * decade >= most) return factor * decade;
  }
  return 10 * decade;
}

std::string element_name(uint32_t element_bytes) {
  const char* names[] = {"int8", "fp16", "fp32"};
  const uint32_t sizes[] = {1, 2, 4};
  const auto* size = std::find(std::begin(sizes), std::end(sizes), element_bytes);
  if (size == std::end(sizes)) {
    throw Error(ErrorCode::usage, fmt::format("bytes of a cache element: got {}, expected 1, 2 or 4", element_bytes));
  }
  return names[size - std::begin(sizes)];
}

class Drawing {
 public:
  Drawing(const KvMemory& memory, uint32_t element_bytes) : memory_(memory), element_bytes_(element_bytes) {
    uint64_t most = 1;
    size_t bars = 0;
    for (const KvContextMemory& entry : memory.contexts) {
      for (const KvLayoutMemory& layout : entry.layouts) most = std::max(most, layout.elements);
      bars += entry.layouts.size();
    }
    most_bytes_ = static_cast<double>(most) * element_bytes;
    bottom_ = kTop + static_cast<double>(memory.contexts.size()) * (kHeading + kPanelGap) + static_cast<double>(bars) * kBarPitch;
  }

  std::string text() {
    const std::string title =
        fmt::format("KV cache of {}, {} elements", markup_escaped(memory_.family), element_name(element_bytes_));
    append(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" )"
           R"(font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{2}">)",
           kWidth, bottom_ + kAxisHeight, kTextColor);
    append("<title>{}</title>", title);
    append("<desc>Bytes of keys and values for one sequence, by cache layout and context.</desc>");
    append(R"(<rect width="100%" height="100%" fill="#ffffff"/>)");
    append(R"(<text x="20" y="32" font-size="19" font-weight="bold">{}</text>)", title);
    append(
        R"(<text x="20" y="54">Keys and values of one sequence; less than with uniform, which keeps the whole context in every layer.</text>)");
    legend();
    axis();
    double y = kTop;
    for (const KvContextMemory& entry : memory_.contexts) y = panel(entry, y);
    append("</svg>");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void append(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  double length(uint64_t elements) const { return static_cast<double>(elements) * element_bytes_ / most_bytes_ * kPlotWidth; }

  void legend() {
    uint64_t sliding = 0;
    uint64_t full = 0;
    if (!memory_.contexts.empty() && !memory_.contexts.front().layouts.empty()) {
      for (const KvLayerSummary& layer : memory_.contexts.front().layouts.front().layers) {
        ++(layer.attention == "sliding" ? sliding : full);
      }
    }
    double x = 20;
    for (const auto& [count, name, color] :
         {std::tuple{full, "full attention", kFullColor}, std::tuple{sliding, "sliding window", kSlidingColor}}) {
      if (count == 0) continue;
      append(R"(<rect x="{}" y="68" width="14" height="14" fill="{}"/>)", x, color);
      append(R"(<text x="{}" y="80">{}: {} layer{}</text>)", x + 20, name, count, count == 1 ? "" : "s");
      x += 220;
    }
  }

  void axis() {
    const Unit& unit = unit_for(most_bytes_);
    const double step = tick_step(most_bytes_);
    for (int tick = 0; tick * step <= most_bytes_ * (1 + 1e-9); ++tick) {
      const double x = kLeft + tick * step / most_bytes_ * kPlotWidth;
      append(R"(<line x1="{0:.2f}" y1="{1}" x2="{0:.2f}" y2="{2}" stroke="{3}"/>)", x, kTop, bottom_ + 5, kGridColor);
      append(R"(<text x="{:.2f}" y="{}" text-anchor="middle" font-size="12">{:g}</text>)", x, bottom_ + 20,
             tick * step / unit.bytes);
    }
    append(R"(<line x1="{0}" y1="{2}" x2="{1}" y2="{2}" stroke="{3}"/>)", kLeft, kLeft + kPlotWidth, bottom_, kTextColor);
    append(R"(<text x="{}" y="{}" text-anchor="middle">KV cache, {}{}</text>)", kLeft + kPlotWidth / 2, bottom_ + 42, unit.name,
           unit.bytes == 1 ? std::string(" (bytes)") : fmt::format(" ({} bytes)", grouped(static_cast<uint64_t>(unit.bytes))));
  }

  double panel(const KvContextMemory& entry, double y) {
    // A white ground keeps grid lines out of the heading.
    append(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="#ffffff"/>)", kLeft - 1, y, kPlotWidth + 2, kHeading - 4);
    append(R"(<text x="20" y="{}" font-weight="bold">context {}</text>)", y + 16, grouped(entry.context));
    y += kHeading;
    const uint64_t uniform = entry.layouts.empty() ? 0 : entry.layouts.back().elements;
    for (const KvLayoutMemory& layout : entry.layouts) {
      bar(entry.context, layout, uniform, y);
      y += kBarPitch;
    }
    return y + kPanelGap;
  }

  void bar(uint32_t context, const KvLayoutMemory& layout, uint64_t uniform, double y) {
    append(R"(<text x="{}" y="{}" text-anchor="end">{}</text>)", kLeft - 10, y + 15, markup_escaped(layout.layout));
    double x = kLeft;
    for (const auto& [elements, kind, color] : {std::tuple{layout.elements - layout.sliding_elements, "full", kFullColor},
                                                std::tuple{layout.sliding_elements, "sliding", kSlidingColor}}) {
      if (elements == 0) continue;
      append(
          R"(<rect class="bar" data-context="{}" data-layout="{}" data-kind="{}" x="{:.3f}" y="{}" width="{:.3f}" height="{}" )"
          R"(fill="{}"><title>{} layers: {} bytes</title></rect>)",
          context, markup_escaped(layout.layout), kind, x, y, length(elements), kBar, color, kind,
          grouped(elements * element_bytes_));
      x += length(elements);
    }
    std::string label = size_label(static_cast<double>(layout.elements) * element_bytes_);
    if (layout.elements < uniform) {
      label +=
          fmt::format(" ({:.1f} % less)", 100 * static_cast<double>(uniform - layout.elements) / static_cast<double>(uniform));
    }
    // Ground behind the letters, where grid lines would run through them; 7 pixels hold the mean letter of any sans-serif.
    append(R"(<rect x="{:.2f}" y="{}" width="{}" height="{}" fill="#ffffff"/>)", x + 5, y, 7 * label.size(), kBar);
    append(R"(<text x="{:.2f}" y="{}">{}</text>)", x + 8, y + 15, label);
  }

  const KvMemory& memory_;
  uint32_t element_bytes_;
  double most_bytes_ = 1;
  double bottom_ = 0;
  std::string out_;
};

}  // namespace

std::string kv_memory_svg(const KvMemory& memory, uint32_t element_bytes) { return Drawing(memory, element_bytes).text(); }

void write_kv_memory_svg(const KvMemory& memory, uint32_t element_bytes, const std::filesystem::path& path) {
  write_file_whole(path, kv_memory_svg(memory, element_bytes));
}

}  // namespace transload
