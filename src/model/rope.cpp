// Rotary frequencies, in the single-precision steps transformers takes, so that tables agree to the last bits.
#include "model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/printable.h"

namespace transload {
namespace {

constexpr uint32_t kMaxOriginalPositions = 1U << 30;

// theta^(2j/r)
std::vector<float> position_periods(double theta, uint32_t width) {
  std::vector<float> periods(width / 2);
  for (uint32_t j = 0; j < width / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(width);
    periods[j] = std::pow(static_cast<float>(theta), exponent);
  }
  return periods;
}

std::vector<float> default_frequencies(double theta, uint32_t width) {
  std::vector<float> frequencies = position_periods(theta, width);
  for (float& value : frequencies) value = 1.0F / value;
  return frequencies;
}

constexpr double kDefaultTheta = 10000.0;

// Above `minimum`, and neither zero nor infinite in single precision.
double number_above(ConfigReader& reader, std::string_view key, double minimum, double stand_in) {
  constexpr double kSmallest = 1e-15;
  constexpr double kLargest = 1e15;
  const double value = reader.number(key, stand_in);
  if (value > minimum && value >= kSmallest && value <= kLargest) return value;
  reader.fault(ErrorCode::config_invalid, fmt::format("{}: out of range: got {}, expected more than {} and at most {}",
                                                      reader.field(key), value, minimum, kLargest));
  return stand_in;
}

double positive(ConfigReader& reader, std::string_view key) { return number_above(reader, key, 0, 1.0); }

std::optional<double> maybe_positive(ConfigReader& reader, std::string_view key) {
  if (!reader.has(key)) {
    reader.ignore(key);
    return std::nullopt;
  }
  return positive(reader, key);
}

// Llama 3.1: long wavelengths are divided by `factor`, short ones stay, those between are blended.
void scale_llama3(ConfigReader& reader, std::vector<float>& frequencies) {
  const double factor = positive(reader, "factor");
  const double low = positive(reader, "low_freq_factor");
  const double high = positive(reader, "high_freq_factor");
  const double original = reader.u32("original_max_position_embeddings", 1, kMaxOriginalPositions);
  if (high <= low) {
    reader.fault(ErrorCode::config_invalid,
                 fmt::format("{}: got {}, expected more than 'low_freq_factor' {}", reader.field("high_freq_factor"), high, low));
    return;
  }
  const auto divisor = static_cast<float>(factor);
  for (float& value : frequencies) {
    const float wavelength = (1.0F / value) * static_cast<float>(2 * std::numbers::pi);
    if (wavelength < static_cast<float>(original / high)) continue;
    if (wavelength > static_cast<float>(original / low)) {
      value /= divisor;
      continue;
    }
    const float turns = (1.0F / wavelength) * static_cast<float>(original);
    const float smooth = (turns - static_cast<float>(low)) / static_cast<float>(high - low);
    value = (1.0F - smooth) * value / divisor + smooth * value;
  }
}

// YaRN, https://arxiv.org/abs/2309.00071: a ramp over dimensions from extrapolation to interpolation.
void scale_yarn(ConfigReader& reader, double theta, uint32_t original, uint32_t max_positions, RopeGroup& group) {
  const double factor = maybe_positive(reader, "factor").value_or(static_cast<double>(max_positions) / original);
  // Absent and 0 both mean the value of the paper.
  const auto or_default = [&](std::string_view key, double fallback) {
    const double value = reader.maybe_number(key).value_or(0);
    return value != 0 ? value : fallback;
  };
  const double beta_fast = or_default("beta_fast", 32);
  const double beta_slow = or_default("beta_slow", 1);
  const bool truncate = reader.boolean("truncate", true);
  const double mscale = reader.maybe_number("mscale").value_or(0);
  const double mscale_all_dim = reader.maybe_number("mscale_all_dim").value_or(0);
  const auto magnitude = [&](double weight) { return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0; };
  const double implied = mscale != 0 && mscale_all_dim != 0 ? magnitude(mscale) / magnitude(mscale_all_dim) : magnitude(1);
  group.attention_factor = static_cast<float>(maybe_positive(reader, "attention_factor").value_or(implied));
  if (beta_fast <= 0 || beta_slow <= 0 || beta_fast < beta_slow) {
    reader.fault(ErrorCode::config_invalid, fmt::format("{}: got {}, expected at least 'beta_slow' {}, both more than 0",
                                                        reader.field("beta_fast"), beta_fast, beta_slow));
    return;
  }

  // The dimension whose wavelength makes `rotations` turns within the original length.
  const auto dimension_of = [&](double rotations) {
    return group.width * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = dimension_of(beta_fast);
  double high = dimension_of(beta_slow);
  if (truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(group.width - 1));
  if (low == high) high += 0.001;

  const std::vector<float> periods = position_periods(theta, group.width);
  for (size_t j = 0; j < periods.size(); ++j) {
    const float ramp = (static_cast<float>(j) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float kept = 1.0F - std::clamp(ramp, 0.0F, 1.0F);
    const float extrapolated = 1.0F / periods[j];
    const float interpolated = 1.0F / (static_cast<float>(factor) * periods[j]);
    group.inv_freq[j] = interpolated * (1.0F - kept) + extrapolated * kept;
  }
}

// LongRoPE, https://arxiv.org/abs/2402.13753: one divisor for each frequency, of two lists.
void scale_longrope(ConfigReader& reader, double theta, uint32_t original, const RopeDefaults& defaults, RopeGroup& group) {
  const double factor = maybe_positive(reader, "factor").value_or(static_cast<double>(defaults.max_positions) / original);
  const double implied = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
  const uint32_t context = defaults.context != 0 ? defaults.context : defaults.max_positions;
  const bool is_long = context > original;
  const std::optional<double> given = maybe_positive(reader, "attention_factor");
  const std::optional<double> short_scale = maybe_positive(reader, "short_mscale");  // the attention factor of each regime
  const std::optional<double> long_scale = maybe_positive(reader, "long_mscale");
  if (short_scale.has_value() != long_scale.has_value()) {
    reader.fault(ErrorCode::config_missing, fmt::format("{}: missing: got only '{}', expected both",
                                                        reader.field(short_scale ? "long_mscale" : "short_mscale"),
                                                        short_scale ? "short_mscale" : "long_mscale"));
  }
  const std::optional<double> regime = is_long ? long_scale : short_scale;
  group.attention_factor = static_cast<float>(regime ? *regime : given.value_or(implied));
  const std::vector<double> short_factor = reader.numbers("short_factor");
  const std::vector<double> long_factor = reader.numbers("long_factor");
  const auto check = [&](std::string_view key, const std::vector<double>& factors) {
    if (reader.is_faulty(key)) return false;
    const size_t expected = group.width / 2;
    if (factors.size() != expected) {
      reader.fault(ErrorCode::config_invalid,
                   fmt::format("{}: wrong number of factors: got {}, expected {}", reader.field(key), factors.size(), expected));
      return false;
    }
    if (std::any_of(factors.begin(), factors.end(), [](double value) { return value <= 0; })) {
      reader.fault(ErrorCode::config_invalid,
                   fmt::format("{}: got a factor that is not positive, expected more than 0", reader.field(key)));
      return false;
    }
    return true;
  };
  const bool has_short = check("short_factor", short_factor);
  if (!check("long_factor", long_factor) || !has_short) return;
  const std::vector<double>& factors = is_long ? long_factor : short_factor;
  const std::vector<float> periods = position_periods(theta, group.width);
  for (size_t j = 0; j < periods.size(); ++j) group.inv_freq[j] = 1.0F / (static_cast<float>(factors[j]) * periods[j]);
}

// rope_type, or its older spelling type; "su" is an early name of longrope.
std::string rope_kind(ConfigReader& reader) {
  const std::optional<std::string> kind = reader.maybe_text("rope_type");
  const std::optional<std::string> older = reader.maybe_text("type");
  if (kind && older && *kind != *older) {
    reader.fault(ErrorCode::config_invalid, fmt::format("{}: contradicts 'rope_type': got '{}', expected '{}'",
                                                        reader.field("type"), printable(*older, 40), printable(*kind, 40)));
  }
  std::string found = kind ? *kind : older.value_or("default");
  return found == "su" ? "longrope" : found;
}

uint32_t rotary_width(ConfigReader& reader, const RopeDefaults& defaults) {
  const double partial = maybe_positive(reader, "partial_rotary_factor").value_or(defaults.partial_rotary_factor.value_or(1.0));
  const double width = std::floor(defaults.head_dim * partial);
  if (partial > 1 || width < 2 || std::fmod(width, 2) != 0) {
    reader.fault(ErrorCode::config_invalid,
                 fmt::format("{}: rotary width is odd or outside the head: got {} of {} elements, expected an even number",
                             reader.field("partial_rotary_factor"), defaults.head_dim * partial, defaults.head_dim));
    return 2;
  }
  return static_cast<uint32_t>(width);
}

// Each factor may be in range by itself and their product not: tables of zeros or infinities would pass for a model.
void refuse_unusable(ConfigReader& reader, const RopeGroup& group) {
  const auto is_usable = [](float value) { return std::isfinite(value) && value > 0; };
  const auto refuse = [&](std::string_view what, float value) {
    reader.fault(ErrorCode::config_invalid, fmt::format("{}: its parameters give an unusable {}: got {}, expected more than 0",
                                                        reader.field("rope_type"), what, value));
  };
  if (!is_usable(group.attention_factor)) refuse("attention factor", group.attention_factor);
  const auto unusable = std::find_if_not(group.inv_freq.begin(), group.inv_freq.end(), is_usable);
  if (unusable != group.inv_freq.end()) refuse("frequency", *unusable);
}

}  // namespace

std::optional<double> maybe_theta(ConfigReader& config, std::string_view key) {
  if (config.has(key)) return number_above(config, key, 1.0, kDefaultTheta);
  config.ignore(key);
  return std::nullopt;
}

void refuse_contradiction(ConfigReader& config, std::string_view key, ConfigReader& other, std::string_view other_key) {
  if (!config.has(key) || !other.has(other_key)) return;  // and leaves a field that nobody knows unread
  const Json* value = config.raw(key);
  const Json* expected = other.raw(other_key);
  if (!value->is_number() || !expected->is_number()) return;
  if (value->number() == expected->number()) return;
  config.fault(ErrorCode::config_invalid, fmt::format("{}: contradicts {}: got {}, expected {}", config.field(key),
                                                      other.field(other_key), value->number(), expected->number()));
}

RopeGroup rope_group(ConfigReader& parameters, std::string name, const RopeDefaults& defaults) {
  RopeGroup group;
  group.name = std::move(name);
  const std::string kind = rope_kind(parameters);
  group.width = rotary_width(parameters, defaults);
  std::optional<double> given = maybe_theta(parameters, "rope_theta");
  if (!given) given = defaults.theta;
  if (!given) {
    parameters.fault(ErrorCode::config_missing,
                     fmt::format("{}: missing: got none, expected a number", parameters.field("rope_theta")));
  }
  const double theta = given.value_or(kDefaultTheta);
  group.inv_freq = default_frequencies(theta, group.width);

  const auto original = [&] {
    const uint32_t fallback = defaults.original_max_positions.value_or(defaults.max_positions);
    return parameters.maybe_u32("original_max_position_embeddings", 2, kMaxOriginalPositions).value_or(std::max(fallback, 2U));
  };
  if (kind == "default") return group;
  if (kind == "linear") {
    const auto factor = static_cast<float>(positive(parameters, "factor"));
    for (float& value : group.inv_freq) value /= factor;
  } else if (kind == "llama3") {
    scale_llama3(parameters, group.inv_freq);
  } else if (kind == "yarn") {
    scale_yarn(parameters, theta, original(), defaults.max_positions, group);
  } else if (kind == "longrope") {
    scale_longrope(parameters, theta, original(), defaults, group);
  } else {
    const std::string reason =
        kind == "dynamic"
            ? " (its frequencies change with the running length, which keys already in a static cache cannot follow)"
            : "";
    parameters.fault(ErrorCode::config_unsupported,
                     fmt::format("{}: rope kind not supported{}: got '{}', expected default, linear, llama3, yarn or longrope",
                                 parameters.field("rope_type"), reason, printable(kind, 40)));
    parameters.ignore_rest();
  }
  refuse_unusable(parameters, group);
  return group;
}

RopeGroup rope_of_config(ConfigReader& config, std::string name, const RopeDefaults& defaults) {
  for (const std::string_view size : {"hidden_size", "num_attention_heads", "head_dim"}) {
    if (config.is_faulty(size)) return {};  // whatever is measured by the width of a head would only repeat that fault
  }
  RopeDefaults filled = defaults;
  if (const auto theta = maybe_theta(config, "rope_theta")) filled.theta = theta;
  if (const auto partial = maybe_positive(config, "partial_rotary_factor")) filled.partial_rotary_factor = partial;
  if (const auto original = config.maybe_u32("original_max_position_embeddings", 2, kMaxOriginalPositions)) {
    filled.original_max_positions = original;
  }
  std::optional<ConfigReader> parameters = config.maybe_object("rope_parameters");
  std::optional<ConfigReader> scaling = config.maybe_object("rope_scaling");
  if (parameters && scaling) {
    config.fault(ErrorCode::config_invalid,
                 fmt::format("{}: given together with 'rope_parameters': got both, expected one", config.field("rope_scaling")));
    scaling->ignore_rest();
  }
  std::optional<ConfigReader>& kind = parameters ? parameters : scaling;
  if (!kind) return rope_group(config, std::move(name), filled);
  for (const std::string_view key : {"rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}) {
    refuse_contradiction(config, key, *kind, key);
  }
  return rope_group(*kind, std::move(name), filled);
}

}  // namespace transload
