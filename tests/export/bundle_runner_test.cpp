// Written graphs run by the interpreter through the contract, against outputs that another implementation computed.
#include "export/bundle_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "error_matchers.h"
#include "io/scratch_folder.h"
#include "runtime/golden.h"
#include "transload/export_onnx.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Pieces = std::vector<std::pair<uint32_t, uint32_t>>;  // (q, real tokens), the last repeated
const Pieces kOneByOne{{1, 1}};
const Pieces kEights{{8, 3}, {8, 8}, {8, 1}, {8, 7}, {8, 8}};
const Pieces kEightsThenOnes{{8, 8}, {8, 5}, {8, 8}, {8, 3}, {1, 1}};

const Golden& golden(const std::string& name) {
  static std::map<std::string, Golden> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, read_golden(name)).first->second;
}

double f16_tolerance(const std::string& name) {
  const std::string about = read_text_file(golden(name).folder / "about.json");
  const Json json = parse_json(about, "about.json");
  return json.find("goldens")->find("golden.safetensors")->find("tolerance")->find("fp16_graph_max_abs_logits")->number();
}

ExportOnnxOptions options_of(CacheLayout layout, std::vector<uint32_t> contexts = {64}, std::vector<uint32_t> queries = {1, 8}) {
  ExportOnnxOptions options;
  options.contexts = std::move(contexts);
  options.queries = std::move(queries);
  options.step.cache_layout = layout;
  options.workers = 1;
  return options;
}

// `most`, or for a run in the short regime of a longrope model what that run reads: the context chooses the regime.
uint32_t context_of(const std::string& name, uint32_t most) {
  return name.ends_with("_short") ? static_cast<uint32_t>(golden(name).positions) : most;
}

std::vector<std::string> all_golden_names() {
  std::vector<std::string> names = golden_names();
  for (const std::string& name : phi_golden_names()) names.push_back(name);
  return names;
}

// A bundle in a folder of its own, and what running it needs.
struct Exported {
  explicit Exported(const std::string& name, const ExportOnnxOptions& options) {
    export_onnx(golden(name).checkpoint(), bundle(), options);
  }
  std::filesystem::path bundle() const { return folder.path() / "bundle"; }
  BundleRunner runner(uint32_t context = 0) { return BundleRunner(bundle(), store, pool, context); }

  ScratchFolder folder;
  WeightStore store;
  WorkerPool pool{1};
};

// Reads `count` tokens, or rows of hidden states, after those read before; every result row.
std::vector<float> read_in_pieces(BundleRunner& runner, const Pieces& pieces, std::span<const int32_t> tokens,
                                  std::span<const float> hidden = {}) {
  const uint64_t width = runner.contract().hidden_size;
  const uint64_t count = hidden.empty() ? tokens.size() : hidden.size() / width;
  std::vector<float> results;
  uint64_t done = 0;
  for (size_t piece = 0; done < count; ++piece) {
    const auto [q, most] = pieces[std::min(piece, pieces.size() - 1)];
    const auto real = static_cast<uint32_t>(std::min<uint64_t>(most, count - done));
    const BundleRunner::Call call{runner.contract().find_step(q, runner.cache().context()), real};
    const std::vector<float> rows = hidden.empty() ? runner.call_tokens(call, tokens.subspan(done, real))
                                                   : runner.call_hidden(call, hidden.subspan(done * width, real * width));
    results.insert(results.end(), rows.begin(), rows.end());
    done += real;
  }
  return results;
}

double worst(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(double{got[i]} - double{expected[i]});
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
  }
  return worst;
}

// Cached entries of a layer of the slice against the golden's layer `first_layer + layer`.
double worst_entries(const KvCache& cache, const Golden& golden, uint32_t layer, uint32_t first_layer = 0) {
  const LayerEntries entries = cache.entries(layer);
  double result = 0;
  for (const char* kind : {"k", "v"}) {
    const Golden::Values& all = golden.at(kind);
    const Tensor& tensor = *kind == 'k' ? entries.keys : entries.values;
    const uint64_t positions = all.shape[2];
    const uint64_t head_dim = all.shape[3];
    std::vector<float> got(element_count(tensor.shape));
    std::memcpy(got.data(), tensor.bytes.data(), tensor.bytes.size());
    for (uint64_t head = 0; head < all.shape[1]; ++head) {
      const uint64_t from = (((first_layer + layer) * all.shape[1] + head) * positions + entries.first) * head_dim;
      result = std::max(result, worst(std::span(got).subspan(head * entries.count * head_dim, entries.count * head_dim),
                                      std::span(all.data).subspan(from, entries.count * head_dim)));
    }
  }
  return result;
}

std::string layout_name(CacheLayout layout) { return layout == CacheLayout::roll ? "roll" : "ring"; }

class EveryGolden : public testing::TestWithParam<std::tuple<std::string, CacheLayout>> {};

TEST_P(EveryGolden, LogitsAndCachesEqualTheReferenceForAnyPieces) {
  const auto& [name, layout] = GetParam();
  const Golden& expected = golden(name);
  Exported exported(name, options_of(layout, {context_of(name, 64)}));
  BundleRunner runner = exported.runner();
  for (const Pieces& pieces : {kOneByOne, kEightsThenOnes, kEights}) {
    runner.reset();
    const std::vector<float> logits = read_in_pieces(runner, pieces, expected.read_tokens());
    EXPECT_LE(worst(logits, expected.at("logits").data), expected.max_abs_logits) << pieces.size() << " pieces";
    for (uint32_t layer = 0; layer < expected.at("k").shape[0]; ++layer) {
      EXPECT_LE(worst_entries(runner.cache(), expected, layer), expected.max_abs_logits) << "layer " << layer;
    }
  }
}

TEST_P(EveryGolden, F16ComputeIsClose) {
  const auto& [name, layout] = GetParam();
  const bool is_mixture = name.starts_with("phimoe");
  ExportOnnxOptions options = options_of(layout, {context_of(name, 64)});
  options.step.compute = options.step.weights = DType::f16;
  Exported exported(name, options);
  BundleRunner runner = exported.runner();
  const std::vector<float> logits = read_in_pieces(runner, kEightsThenOnes, golden(name).read_tokens());
  const Golden::Values& expected = golden(name).at("logits");
  const uint64_t vocab = expected.shape[1];
  uint64_t rows = 0;
  uint64_t close_rows = 0;
  for (uint64_t begin = 0; begin < logits.size(); begin += vocab, ++rows) {
    const double error = worst(std::span(logits).subspan(begin, vocab), std::span(expected.data).subspan(begin, vocab));
    if (error <= f16_tolerance(name)) ++close_rows;
  }
  EXPECT_EQ(rows, golden(name).positions);
  // Where two experts are nearly equal, f16 can choose the other: a token then differs, and a little those that see it.
  EXPECT_GE(close_rows, is_mixture ? rows * 3 / 4 : rows);
  EXPECT_GT(worst(logits, expected.data), 1e-6);
  EXPECT_EQ(runner.cache().bytes() * 2, kv_elements(runner.contract().steps[0].contract).hybrid * 4);
}

TEST_P(EveryGolden, SlicesTakeAndGiveHiddenStates) {
  const auto& [name, layout] = GetParam();
  const Golden& expected = golden(name);
  const auto layers = static_cast<uint32_t>(expected.at("k").shape[0]);
  const Golden::Values& hidden = expected.at("hidden");
  const uint64_t state = hidden.shape[1] * hidden.shape[2];
  for (const auto& [begin, end] : {std::pair{0U, 1U}, std::pair{1U, layers}}) {
    ExportOnnxOptions options = options_of(layout, {context_of(name, 32)});
    options.step.layers = {LayerRange::Kind::range, begin, end};
    options.step.head = false;
    Exported exported(name, options);
    BundleRunner runner = exported.runner();
    const auto rows = begin == 0 ? std::span<const float>() : std::span(hidden.data).subspan(begin * state, state);
    const std::vector<float> out =
        read_in_pieces(runner, kEightsThenOnes, std::span(expected.tokens).first(expected.prompt), rows);
    const auto after =
        end == layers ? std::span(expected.at("pre_norm").data) : std::span(hidden.data).subspan(end * state, state);
    EXPECT_LE(worst(out, after), expected.max_abs_logits) << begin << ":" << end;
    EXPECT_LE(worst_entries(runner.cache(), expected, 0, begin), expected.max_abs_logits);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryGolden,
                         testing::Combine(testing::ValuesIn(all_golden_names()),
                                          testing::Values(CacheLayout::ring, CacheLayout::roll)),
                         [](const auto& row) { return std::get<0>(row.param) + "_" + layout_name(std::get<1>(row.param)); });

TEST(BundleRunner, EveryFormOfInputsAndLinearsComputesTheSame) {
  for (const char* name : {"spark", "gemma3", "phimoe", "phi3small_unofficial"}) {
    for (const InputForm inputs : {InputForm::rows, InputForm::ids}) {
      for (const LinearForm linear : {LinearForm::matmul, LinearForm::conv1x1}) {
        ExportOnnxOptions options = options_of(CacheLayout::roll);
        options.step.inputs = inputs;
        options.step.linear = linear;
        options.step.rope_width = RopeWidth::half;
        options.step.weights = DType::f16;
        Exported exported(name, options);
        BundleRunner runner = exported.runner();
        const std::vector<float> logits = read_in_pieces(runner, kEightsThenOnes, golden(name).read_tokens());
        EXPECT_LE(worst(logits, golden(name).at("logits").data), golden(name).max_abs_logits) << name;
      }
    }
  }
}

TEST(BundleRunner, MovesToALargerContextWhenTokensNeedIt) {
  for (const CacheLayout layout : {CacheLayout::ring, CacheLayout::roll}) {
    const Golden& expected = golden("spark");
    Exported exported("spark", options_of(layout, {5, 6, 12, 40}, {1, 3, 5}));
    BundleRunner runner = exported.runner();
    EXPECT_EQ(runner.room(), 40U);
    std::vector<float> logits;
    std::span<const int32_t> tokens = expected.read_tokens();
    std::vector<uint32_t> contexts;
    for (const size_t piece : {4U, 2U, 7U, 8U}) {
      runner.reserve(piece);
      contexts.push_back(runner.cache().context());
      for (const BundleRunner::Call& call : runner.plan(piece, true)) {
        const std::vector<float> rows = runner.call_tokens(call, tokens.first(call.real));
        logits.insert(logits.end(), rows.begin(), rows.end());
        tokens = tokens.subspan(call.real);
      }
    }
    EXPECT_EQ(contexts, (std::vector<uint32_t>{5, 6, 40, 40}));  // 13 are one more than 12 hold
    EXPECT_LE(worst(logits, std::span(expected.at("logits").data).first(logits.size())), expected.max_abs_logits);
    EXPECT_EQ(runner.room(), 40U - 21U);
    EXPECT_THAT([&] { runner.reserve(20); },
                Fails(ErrorCode::usage, HasSubstr("tokens do not fit: got 41, expected at most 40")));

    BundleRunner fixed = exported.runner(12);
    EXPECT_EQ(fixed.room(), 12U);
    EXPECT_THAT([&] { fixed.reserve(13); }, Fails(ErrorCode::usage, HasSubstr("tokens do not fit: got 13, expected at most 12")));
  }
}

std::string plan_text(const std::vector<BundleRunner::Call>& calls) {
  std::string text;
  for (const BundleRunner::Call& call : calls) {
    text += fmt::format("{}{}/{}", text.empty() ? "" : " ", call.real, call.step->contract.query);
  }
  return text;
}

TEST(BundleRunner, PlansTheLargestCallsAndThenTheLeastThatHoldsTheRest) {
  Exported exported("spark", options_of(CacheLayout::ring, {64}, {8, 1, 3}));
  const BundleRunner runner = exported.runner();
  EXPECT_EQ(plan_text(runner.plan(0, false)), "");
  EXPECT_EQ(plan_text(runner.plan(1, false)), "1/1");
  EXPECT_EQ(plan_text(runner.plan(2, false)), "2/3");
  EXPECT_EQ(plan_text(runner.plan(20, true)), "8/8 8/8 4/8");
}

TEST(BundleRunner, GivesTheLastRowOfAFullCallWhereTheGraphGivesNoOther) {
  const Golden& expected = golden("spark");
  ExportOnnxOptions options = options_of(CacheLayout::ring, {64}, {1, 3, 8});
  options.step.logits = LogitsRows::last;
  Exported exported("spark", options);
  BundleRunner runner = exported.runner();
  EXPECT_EQ(plan_text(runner.plan(20, false)), "8/8 4/8 8/8");
  EXPECT_EQ(plan_text(runner.plan(4, false)), "1/1 3/3");
  EXPECT_EQ(plan_text(runner.plan(2, true)), "1/1 1/1");
  std::span<const int32_t> tokens = expected.read_tokens();
  const uint64_t vocab = runner.contract().vocab_size;
  for (const size_t count : {20U, 1U, 8U, 4U}) {
    std::vector<float> last;
    for (const BundleRunner::Call& call : runner.plan(count, false)) {
      last = runner.call_tokens(call, tokens.first(call.real));
      EXPECT_EQ(last.size(), call.real == call.step->contract.query ? vocab : 0U);
      tokens = tokens.subspan(call.real);
    }
    const auto row = std::span(expected.at("logits").data).subspan((runner.cache().position() - 1) * vocab, vocab);
    EXPECT_LE(worst(last, row), expected.max_abs_logits) << count;
  }

  options.queries = {3};
  Exported threes("spark", options);
  const BundleRunner wide = threes.runner();
  EXPECT_THAT([&] { wide.plan(2, false); },
              Fails(ErrorCode::usage, HasSubstr("logits of the last row only: got 2 tokens, expected at least 3")));
  EXPECT_THAT(
      [&] { wide.plan(3, true); },
      Fails(ErrorCode::usage, HasSubstr("logits of the last row only: got all rows asked for, expected a graph of q 1, not 3")));
}

TEST(BundleRunner, ShowsTheValuesOfTheGraphToAnObserver) {
  Exported exported("spark", options_of(CacheLayout::ring));
  BundleRunner runner = exported.runner();
  const Golden::Values& hidden = golden("spark").at("hidden");
  const uint64_t state = hidden.shape[1] * hidden.shape[2];
  double error = std::numeric_limits<double>::infinity();
  const BundleRunner::Call call{runner.contract().find_step(8, 64), 5};
  runner.call_tokens(call, golden("spark").read_tokens().first(5), [&](const Value& value, std::span<const float> values) {
    if (value.name != "layers_1_out") return;
    const uint64_t size = 5 * hidden.shape[2];
    error = worst(values.first(size), std::span(hidden.data).subspan(2 * state, size));
  });
  EXPECT_LE(error, golden("spark").max_abs_logits);
}

TEST(BundleRunner, RefusesRowsThatTheCallCannotTakeAndStoresNothing) {
  Exported exported("spark", options_of(CacheLayout::ring));
  BundleRunner runner = exported.runner();
  const BundleRunner::Call two{runner.contract().find_step(8, 64), 2};
  const auto tokens = [&](std::vector<int32_t> ids) { return [&, ids] { runner.call_tokens(two, ids); }; };
  EXPECT_THAT(tokens({1}), Fails(ErrorCode::usage, HasSubstr("rows do not match the call: got 1, expected 2")));
  EXPECT_THAT(tokens({1, -1}), Fails(ErrorCode::usage, HasSubstr("token id outside the vocabulary: got -1, expected 0 to 319")));
  EXPECT_THAT(tokens({320, 1}), Fails(ErrorCode::usage, HasSubstr("token id outside the vocabulary: got 320")));
  EXPECT_THAT(
      [&] {
        runner.call_tokens({two.step, 9}, std::vector<int32_t>(9));
      },
      Fails(ErrorCode::usage, HasSubstr("count of real tokens out of range: got 9, expected 1 to 8")));
  const std::vector<float> rows(2 * runner.contract().hidden_size);
  EXPECT_THAT([&] { runner.call_hidden(two, rows); },
              Fails(ErrorCode::usage, HasSubstr("bundle takes other rows: got hidden states, expected tokens")));
  EXPECT_EQ(runner.cache().position(), 0U);

  ExportOnnxOptions options = options_of(CacheLayout::ring);
  options.step.layers = {LayerRange::Kind::range, 1, 3};
  options.step.head = false;
  Exported slice("spark", options);
  BundleRunner upper = slice.runner();
  const BundleRunner::Call call{upper.contract().find_step(8, 64), 2};
  EXPECT_THAT(
      [&] {
        upper.call_tokens(call, std::vector<int32_t>{1, 2});
      },
      Fails(ErrorCode::usage, HasSubstr("bundle takes other rows: got tokens, expected hidden states")));
  EXPECT_THAT([&] { upper.call_hidden(call, std::span(rows).first(7)); },
              Fails(ErrorCode::usage, HasSubstr("hidden states are no whole rows: got 7 values, expected a multiple of 64")));
  std::vector<float> poisoned = rows;
  poisoned.back() = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT([&] { upper.call_hidden(call, poisoned); },
              Fails(ErrorCode::numeric_fault, AllOf(HasSubstr("step_q8_c64.onnx"), HasSubstr("values are not finite"))));
  EXPECT_EQ(upper.cache().position(), 0U);
  for (const auto& buffer : upper.cache().snapshot().buffers) EXPECT_EQ(buffer, std::vector<std::byte>(buffer.size()));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error("no " + from);
  return text.replace(at, from.size(), to);
}

TEST(BundleRunner, RefusesAGraphThatDiffersFromTheContract) {
  Exported exported("spark", options_of(CacheLayout::ring, {64}, {1}));
  const std::string contract = read_text_file(exported.bundle() / "contract.json");
  const auto call_with = [&](const std::string& text) {
    std::ofstream(exported.bundle() / "contract.json") << text;
    return [&] {
      BundleRunner runner = exported.runner();
      runner.call_tokens({&runner.contract().steps[0], 1}, std::vector<int32_t>{1});
    };
  };
  call_with(contract)();
  EXPECT_THAT(call_with(replaced(contract, "\"v_cache_1\"", "\"renamed\"")),
              Fails(ErrorCode::config_invalid, AllOf(HasSubstr("step_q1_c64.onnx: input "), HasSubstr("got 'v_cache_1' f32 [1,"),
                                                     HasSubstr("expected 'renamed' f32 [1,"))));
  EXPECT_THAT(call_with(replaced(contract, "\"logits\",\n     \"role\"", "\"probabilities\",\n     \"role\"")),
              Fails(ErrorCode::config_invalid, HasSubstr("got 'logits' f32 [1,320], expected 'probabilities' f32 [1,320]")));
}

TEST(BundleRunner, ComparesTheGraphBeforeItMakesInputsOfTheSizesThatTheContractClaims) {
  Exported exported("spark", options_of(CacheLayout::ring, {64}, {8}));
  constexpr int64_t kClaimed = 1 << 24;  // tokens a call: 4 GiB of rows, and more than any machine has of masks
  Json contract = parse_json(read_text_file(exported.bundle() / "contract.json"), "contract.json");
  Json& step = const_cast<Json&>(contract.find("steps")->array().front());
  const auto claim = [&](const Json* ports) {
    for (const Json& port : ports->array()) {
      Json::Array shape = port.find("shape")->array();
      const std::string& role = port.find("role")->string();
      if (role == "k_cache" || role == "v_cache") continue;
      const size_t axis = role == "logits" ? 0 : role == "embedding_rows" ? 1 : 2;
      if (role == "mask") shape.back() = shape.back().integer() - 8 + kClaimed;
      shape[axis] = kClaimed;
      const_cast<Json&>(port).set("shape", shape);
    }
  };
  claim(step.find("inputs"));
  claim(step.find("outputs"));
  step.set("q", kClaimed);
  for (const Json& cache : step.find("caches")->array()) const_cast<Json&>(cache).set("new_entries", kClaimed);
  std::ofstream(exported.bundle() / "contract.json") << write_json(contract);
  EXPECT_THAT(
      [&] {
        BundleRunner runner = exported.runner();
        runner.call_tokens({&runner.contract().steps[0], 1}, std::vector<int32_t>{1});
      },
      Fails(ErrorCode::config_invalid, HasSubstr("does not match contract.json")));
}

TEST(BundleRunner, RefusesEmbeddingRowsThatLieOutsideTheirFile) {
  Exported exported("spark", options_of(CacheLayout::ring, {64}, {1}));
  const std::string text = read_text_file(exported.bundle() / "contract.json");
  const uint64_t size = std::filesystem::file_size(exported.bundle() / "weights.bin");
  Json contract = parse_json(text, "contract.json");
  Json* place = const_cast<Json*>(contract.find("embedding"));
  ASSERT_EQ(place->find("file")->string(), "weights.bin");
  for (const auto& [offset, message] :
       {std::pair{size - 4, "rows end past the end of the file"}, std::pair{uint64_t{1}, "rows are not aligned: got offset 1"}}) {
    place->set("offset", offset);
    std::ofstream(exported.bundle() / "contract.json") << write_json(contract);
    EXPECT_THAT([&] { exported.runner(); }, Fails(ErrorCode::bad_offset, AllOf(HasSubstr("weights.bin@"), HasSubstr(message))));
  }
}

}  // namespace
}  // namespace transload
