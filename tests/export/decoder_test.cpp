// Decoders over the golden checkpoints and over bundles exported from them: greedy tokens, likelihoods, refusals.
#include "transload/decoder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "error_matchers.h"
#include "golden_decoder.h"
#include "transload/evaluate.h"
#include "transload/export_onnx.h"
#include "transload/generate.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DecoderOver : public testing::TestWithParam<const char*> {
 protected:
  DecoderOver() : golden_(GetParam()), folder_(fs::temp_directory_path() / fmt_name()) { fs::create_directories(folder_); }
  ~DecoderOver() override { fs::remove_all(folder_); }
  std::string fmt_name() const { return std::string("transload_decoder_") + GetParam() + "_" + std::to_string(getpid()); }

  fs::path bundle(ExportOnnxOptions options) {
    export_onnx(Checkpoint::open(golden_.checkpoint), folder_ / "bundle", options);
    return folder_ / "bundle";
  }
  // Two contexts, so that generation has to grow.
  fs::path bundle() {
    ExportOnnxOptions options;
    options.contexts = {28, 64};
    options.queries = {1, 8};
    options.overwrite = true;
    return bundle(options);
  }

  void expect_greedy_tokens(Decoder& decoder) {
    Sampler sampler({});
    GenerateOptions options;
    options.max_new_tokens = static_cast<uint32_t>(golden_.greedy().size());
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(generate(decoder, golden_.prompt(), options, sampler, {}).tokens, golden_.greedy());
      decoder.reset();
    }
  }

  // From the reference logits: log(sum(exp)) minus the logit of the token that follows.
  void expect_nll(Decoder& decoder) {
    const Evaluation found = evaluate(decoder, golden_.tokens);
    ASSERT_EQ(found.nll.size(), golden_.tokens.size() - 1);
    double total = 0;
    for (size_t p = 0; p < found.nll.size(); ++p) {
      const std::span<const float> row = golden_.row(p);
      double sum = 0;
      for (const float logit : row) sum += std::exp(static_cast<double>(logit));
      const double expected = std::log(sum) - static_cast<double>(row[static_cast<size_t>(golden_.tokens[p + 1])]);
      EXPECT_NEAR(found.nll[p], expected, 2 * golden_.tolerance) << "position " << p;
      total += expected;
    }
    EXPECT_NEAR(found.mean_nll, total / static_cast<double>(found.nll.size()), golden_.tolerance);
  }

  GoldenDecoder golden_;
  fs::path folder_;
};

INSTANTIATE_TEST_SUITE_P(Goldens, DecoderOver, testing::ValuesIn(kGoldenNames), [](const auto& test) { return test.param; });

TEST_P(DecoderOver, TheCheckpointGivesTheGoldenTokensAndLikelihoods) {
  const auto decoder = open_decoder(golden_.checkpoint, {.config = {}, .context = 0, .threads = 2});
  EXPECT_EQ(decoder->info().kind, "checkpoint");
  EXPECT_EQ(decoder->info().vocab_size, golden_.vocab);
  EXPECT_EQ(decoder->capacity(), decoder->info().max_positions);
  EXPECT_GT(decoder->info().weight_bytes, 10000U);
  expect_greedy_tokens(*decoder);
  expect_nll(*decoder);
  EXPECT_GT(decoder->kv_bytes(), 0U);
}

TEST_P(DecoderOver, ItsBundleGivesTheSame) {
  const auto decoder = open_decoder(bundle(), {.config = {}, .context = 0, .threads = 2});
  EXPECT_EQ(decoder->info().kind, "bundle");
  EXPECT_EQ(decoder->info().eos_tokens, open_decoder(golden_.checkpoint)->info().eos_tokens);
  EXPECT_EQ(decoder->info().family, open_decoder(golden_.checkpoint)->info().family);
  const uint64_t small = decoder->kv_bytes();
  expect_greedy_tokens(*decoder);
  expect_nll(*decoder);
  EXPECT_GE(decoder->kv_bytes(), small);
  EXPECT_GT(decoder->info().weight_bytes, 10000U);
}

class BundleDecoder : public DecoderOver {};
INSTANTIATE_TEST_SUITE_P(Goldens, BundleDecoder, testing::Values("llama"), [](const auto& test) { return test.param; });

TEST_P(BundleDecoder, WithLogitsOfTheLastRowGivesTheSame) {
  ExportOnnxOptions options;
  options.contexts = {64};
  options.queries = {1, 4};
  options.step.logits = LogitsRows::last;
  const auto decoder = open_decoder(bundle(options));
  expect_greedy_tokens(*decoder);
  expect_nll(*decoder);
}

TEST_P(BundleDecoder, HandsOverEveryRowOrTheLastWithItsPosition) {
  const auto bundled = open_decoder(bundle());
  const auto reference = open_decoder(golden_.checkpoint);
  for (Decoder* decoder : {bundled.get(), reference.get()}) {
    for (const bool every_row : {true, false}) {
      decoder->reset();
      std::vector<uint64_t> positions;
      const auto note = [&](uint64_t position, std::span<const float> logits) {
        positions.push_back(position);
        const std::span<const float> expected = golden_.row(position);
        for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(logits[i], expected[i], golden_.tolerance);
      };
      decoder->read(std::span(golden_.tokens).first(11), note, every_row);
      decoder->read(std::span(golden_.tokens).subspan(11, 2), note, every_row);
      const std::vector<uint64_t> expected =
          every_row ? std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} : std::vector<uint64_t>{10, 12};
      EXPECT_EQ(positions, expected) << decoder->info().kind;
      EXPECT_EQ(decoder->position(), 13U);
    }
  }
}

TEST_P(BundleDecoder, RefusesTokensThatCannotBeReadAndReadsNone) {
  const auto bundled = open_decoder(bundle());
  const auto reference = open_decoder(golden_.checkpoint, {.config = {}, .context = 64, .threads = 0});
  for (Decoder* decoder : {bundled.get(), reference.get()}) {
    ASSERT_EQ(decoder->capacity(), 64U);
    const auto read = [decoder](std::vector<int32_t> tokens) {
      return [decoder, tokens] { decoder->read(tokens, [](uint64_t, std::span<const float>) {}); };
    };
    const auto vocab = static_cast<int32_t>(golden_.vocab);
    read({1, 2, 3})();
    EXPECT_THAT(read({}), Fails(ErrorCode::usage, HasSubstr("nothing to read: got 0 tokens, expected at least 1")));
    EXPECT_THAT(read({1, vocab}), Fails(ErrorCode::usage, HasSubstr("token id outside the vocabulary: got")));
    EXPECT_THAT(read({-1}), Fails(ErrorCode::usage, HasSubstr("got -1, expected 0 to")));
    EXPECT_THAT(read(std::vector<int32_t>(62, 1)),
                Fails(ErrorCode::usage, HasSubstr("tokens do not fit: got 65, expected at most 64")));
    EXPECT_EQ(decoder->position(), 3U);
    read(std::vector<int32_t>(61, 1))();
    EXPECT_EQ(decoder->position(), 64U);
    EXPECT_THAT(read({1}), Fails(ErrorCode::usage, HasSubstr("tokens do not fit: got 65, expected at most 64")));
  }
}

TEST_P(BundleDecoder, RefusesWhatCannotGenerate) {
  ExportOnnxOptions options;
  options.contexts = {16};
  options.overwrite = true;
  const fs::path whole = bundle(options);
  EXPECT_THAT([&] { open_decoder(whole, {.config = {}, .context = 17, .threads = 0}); },
              Fails(ErrorCode::usage, HasSubstr("17")));
  EXPECT_THAT([&] { open_decoder(whole, {.config = "config.json", .context = 0, .threads = 0}); },
              Fails(ErrorCode::usage, HasSubstr("config of a bundle")));
  EXPECT_THAT([&] { open_decoder(golden_.checkpoint, {.config = {}, .context = 1U << 30, .threads = 0}); },
              Fails(ErrorCode::usage, HasSubstr("context: got 1073741824, expected at most")));
  EXPECT_THAT([&] { open_decoder(folder_ / "gone"); }, Fails(ErrorCode::file_missing, HasSubstr("gone")));
  options.step.head = false;
  EXPECT_THAT([&] { open_decoder(bundle(options)); },
              Fails(ErrorCode::usage, HasSubstr("bundle cannot generate: got layers 0 to")));
  options.step.head = true;
  options.step.layers = {LayerRange::Kind::range, 1, 2};
  EXPECT_THAT([&] { open_decoder(bundle(options)); },
              Fails(ErrorCode::usage, HasSubstr("got layers 1 to 1 of 4 with a head, expected the whole model")));
}

}  // namespace
}  // namespace transload
