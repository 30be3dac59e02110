// Reads numbers of the command line: plain decimal, alone or in lists. Keeps outputs away from inputs.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "cli/command.h"
#include "transload/error.h"

namespace transload::cli {
namespace {

constexpr const char* kDigits = "0123456789";

bool is_plain_decimal(const std::string& text) {
  return !text.empty() && text.find_first_not_of(kDigits) == std::string::npos && (text.size() == 1 || text[0] != '0');
}

}  // namespace

CLI::Option* add_count(CLI::App& app, const std::string& flag, uint32_t& value, uint32_t most, const std::string& help) {
  return app.add_option(flag, value, help)->check(whole_number())->check(CLI::Range(1U, most).description(""))->type_name("N");
}

CLI::Option* add_shards(CLI::App& app, uint32_t& shards) {
  constexpr uint32_t kMostShards = 10000;
  return add_count(app, "--shards", shards, kMostShards, "number of .safetensors files (default: one per 4 GB)");
}

CLI::Option* add_overwrite(CLI::App& app, bool& overwrite) {
  return app.add_flag("--overwrite", overwrite, "replace the output folder, and all that is in it, once the new one is complete");
}

CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        // The largest seed is 18446744073709551615; strings of digits of one length compare as numbers do.
        const std::string largest = "18446744073709551615";
        const bool fits = text.size() < largest.size() || (text.size() == largest.size() && text <= largest);
        return is_plain_decimal(text) && fits ? std::string() : fmt::format("got '{}', expected a whole number", text);
      },
      "");
}

CLI::Validator number() {
  return CLI::Validator(
      [](const std::string& text) {
        char* end = nullptr;
        std::strtod(text.c_str(), &end);
        return !text.empty() && *end == '\0' ? std::string() : fmt::format("got '{}', expected a number", text);
      },
      "");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) { return text.empty() ? std::string("got an empty path, expected a file") : std::string(); },
      "");
}

std::vector<uint32_t> parse_numbers(const std::string& flag, const std::string& text) {
  constexpr size_t kMostDigits = 9;  // below 2^32
  std::vector<uint32_t> numbers;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string digits = text.substr(begin, end - begin);
    if (!is_plain_decimal(digits) || digits.size() > kMostDigits) {
      throw CLI::ValidationError(
          flag, fmt::format("got '{}', expected whole numbers of at most {} digits, with commas between", text, kMostDigits));
    }
    numbers.push_back(static_cast<uint32_t>(std::stoul(digits)));
    begin = end + 1;
  }
  return numbers;
}

void refuse_output_among(const std::string& flag, const std::string& output, const std::vector<std::string>& inputs) {
  std::error_code ignored;
  // A trailing slash would leave an empty last component.
  const auto plain = [&](const std::string& path) {
    return std::filesystem::absolute(std::filesystem::path(path) / ".", ignored).lexically_normal().parent_path();
  };
  const auto resolved = [&](const std::string& path) { return std::filesystem::weakly_canonical(plain(path), ignored); };
  const auto is_at = [](const std::filesystem::path& file, const std::filesystem::path& input) {
    return file == input || file.parent_path() == input;
  };
  for (const std::string& input : inputs) {
    if (output.empty() || input.empty()) continue;
    if (is_at(plain(output), plain(input)) || is_at(resolved(output), resolved(input))) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} is or lies in what is read: got '{}', expected a file outside '{}'", flag, output, input));
    }
  }
}

}  // namespace transload::cli
