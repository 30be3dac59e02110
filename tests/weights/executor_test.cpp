// The executor as its callers see it: results, progress, errors that leave nothing behind, and memory.
#include "weights/executor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/half.h"
#include "error_matchers.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/output_directory.h"
#include "io/scratch_folder.h"
#include "weights/plan.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

template <class T>
std::vector<T> values_of(const Recipe& recipe) {
  const std::vector<std::byte> bytes = materialize(recipe);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A bf16 tensor in a file of its own, without data on disk: zeros.
TensorInfo sparse_tensor(const std::filesystem::path& path, const std::string& name, Shape shape) {
  TensorInfo info{name, DType::bf16, std::move(shape), 0, 0, nullptr};
  info.bytes = tensor_bytes(info.dtype, info.shape);
  std::ofstream(path).put('\0');
  std::filesystem::resize_file(path, info.bytes);
  info.file = InputFile::open(path);
  return info;
}

Plan plan_of(const std::vector<std::pair<std::string, Recipe>>& tensors) {
  PlannedFile file{"weights.bin", 0, {}, {}};
  for (const auto& [name, recipe] : tensors) {
    file.tensors.push_back({name, file.size, recipe});
    file.size += recipe.bytes();
  }
  return {{file}};
}

TEST(Materialize, ComputesSmallTensors) {
  const Recipe matrix = constant({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(values_of<float>(transpose(matrix)), ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(values_of<float>(affine(slice(matrix, 1, 1, 3), 10, 1)), ElementsAre(21, 31, 51, 61));
  EXPECT_THAT(values_of<float>(concat({matrix, slice(matrix, 1, 0, 1)}, 1)), ElementsAre(1, 2, 3, 1, 4, 5, 6, 4));
  EXPECT_THAT(values_of<uint16_t>(cast(constant({2}, {1.0F, 1e6F}), DType::f16)), ElementsAre(0x3C00, 0x7C00));
  EXPECT_THAT(values_of<int64_t>(constant_i64({2}, {-1, 5})), ElementsAre(-1, 5));
  EXPECT_TRUE(materialize(constant({0, 3}, {})).empty());
  EXPECT_THAT([] { materialize(random(DType::f32, {uint64_t{1} << 30}, 0, 1)); },
              Fails(ErrorCode::internal, HasSubstr("expected at most 67108864")));
  EXPECT_THAT([] { materialize(Recipe()); }, Fails(ErrorCode::internal, HasSubstr("got nothing")));
}

TEST(Materialize, UnpairsRotaryRowsOfEachHead) {
  const Recipe rows = constant({8, 1}, {0, 1, 2, 3, 10, 11, 12, 13});
  EXPECT_THAT(values_of<float>(unpair_rotary_rows(rows, 2)), ElementsAre(0, 2, 1, 3, 10, 12, 11, 13));
}

TEST(Random, IsAFunctionOfSeedAndIndexAndAboutNormal) {
  const Recipe noise = random(DType::f32, {1000, 100}, 42, 0.5F, 2.0F);
  const std::vector<float> values = values_of<float>(noise);
  EXPECT_EQ(values, values_of<float>(noise));
  const std::vector<float> part = values_of<float>(slice(noise, 0, 300, 301));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 300 * 100));
  EXPECT_NE(values, values_of<float>(random(DType::f32, {1000, 100}, 43, 0.5F, 2.0F)));
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  double neighbours = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = (static_cast<double>(values[i]) - 2.0) / 0.5;
    sum += x;
    squares += x * x;
    fourths += x * x * x * x;
    if (i > 0) neighbours += x * (static_cast<double>(values[i - 1]) - 2.0) / 0.5;
  }
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0, 0.015);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(fourths / n, 2.7, 0.1);  // a sum of four uniforms; a normal has 3
  EXPECT_NEAR(neighbours / n, 0, 0.015);
  // Pinned: synthetic checkpoints must stay the same over versions and machines.
  EXPECT_EQ(digest_of({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}),
            "24e3b8e172d07ba4471d4a3e27ea8c03");
}

TEST(Executor, CountsOverflowsAndNansOfEachTensor) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  const Recipe values = constant({6}, {1, 70000, nan, infinity, -65520, 65519});
  ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  const std::vector<TensorResult> results =
      execute(plan_of({{"f16", cast(values, DType::f16)}, {"bf16", cast(values, DType::bf16)}, {"f32", values}}), output);
  ASSERT_EQ(results.size(), 3U);
  EXPECT_EQ(results[0].overflow_count, 2U);
  EXPECT_EQ(results[0].nan_count, 1U);
  EXPECT_EQ(results[1].overflow_count, 0U);
  EXPECT_EQ(results[1].nan_count, 1U);
  EXPECT_EQ(results[2].nan_count, 1U);
  EXPECT_EQ(results[2].offset, 24U);
  EXPECT_EQ(results[2].file, "weights.bin");
}

TEST(Executor, GivesEmptyTensorsTheDigestOfNothing) {
  ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  const Recipe empty = constant({0}, {});
  const Recipe one = constant({1}, {1});
  const auto results = execute(plan_of({{"a", empty}, {"b", one}, {"c", empty}, {"d", empty}, {"e", one}, {"f", empty}}), output);
  EXPECT_EQ(results[0].digest, digest_of(""));
  EXPECT_EQ(results[5].digest, digest_of(""));
  EXPECT_EQ(results[1].digest, results[4].digest);
}

TEST(Executor, ReportsProgressThatNeverDecreasesAndEndsAtTheTotal) {
  ScratchFolder folder;
  const Plan plan = plan_of({{"a", random(DType::f16, {700, 1000}, 1, 1)},
                             {"b", transpose(random(DType::f32, {300, 500}, 2, 1))},
                             {"c", transpose(source(sparse_tensor(folder.path() / "c.bin", "c", {3000, 100})))}});
  ExecuteOptions options;
  options.workers = 4;
  options.limits.band_bytes = 1 << 16;  // cuts c into tiles
  ASSERT_GT(lower(plan.files[0].tensors[2].recipe, options.limits).tile_columns, 0U);
  uint64_t last = 0;
  bool in_call = false;
  options.progress = [&](uint64_t done, uint64_t total) {
    EXPECT_FALSE(in_call);
    in_call = true;
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 700U * 1000 * 2 + 300 * 500 * 4 + 3000 * 100 * 2);
    last = done;
    in_call = false;
  };
  OutputDirectory output(folder.path() / "out", false);
  execute(plan, output, options);
  EXPECT_EQ(last, plan.tensor_bytes());
}

TEST(Executor, RunsThousandsOfSmallTensors) {
  ScratchFolder folder;
  const std::filesystem::path path = folder.path() / "norms.bin";
  const TensorInfo all = sparse_tensor(path, "norms", {20000, 1024});
  std::vector<std::pair<std::string, Recipe>> norms;
  for (uint64_t i = 0; i < 20000; ++i)
    norms.emplace_back(fmt::format("norm{}", i), cast(slice(source(all), 0, i, i + 1), DType::f32));
  OutputDirectory output(folder.path() / "out", false);
  const auto results = execute(plan_of(norms), output);
  EXPECT_EQ(results.size(), 20000U);
  EXPECT_EQ(results.back().digest, digest_of(std::string(4096, '\0')));
}

// Bytes that this process has read from files so far.
uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t count = 0;
  io >> name >> count;
  return name == "rchar:" ? count : 0;
}

PlannedTensor quantized(const std::string& name, PlannedFile& file, const Recipe& recipe, DType scale_dtype) {
  PlannedTensor tensor{name, file.size, recipe, PlannedScales{name + ".scale", 0, scale_dtype}};
  file.size += recipe.bytes();
  tensor.scales->offset = file.size;
  file.size += scales_bytes(tensor);
  return tensor;
}

TEST(Executor, MakesEqualRecipesOnceAndWritesThemToEveryPlace) {
  ScratchFolder folder;
  const TensorInfo straight = sparse_tensor(folder.path() / "straight.bin", "straight", {3000, 500});
  const TensorInfo turned = sparse_tensor(folder.path() / "turned.bin", "turned", {3000, 500});
  std::ofstream(straight.file->path(), std::ios::in | std::ios::binary) << "some bytes that are not zero";
  const auto norm = [] { return cast(constant({3}, {1, 2, 3}), DType::f16); };  // equal, but not the same expression
  for (const uint32_t workers : {1U, 4U}) {
    Plan plan;
    for (int rank = 0; rank < 3; ++rank) {
      PlannedFile file{fmt::format("rank{}", rank), static_cast<uint64_t>(rank), {}, {}};
      const auto add = [&](const std::string& name, const Recipe& recipe) {
        file.tensors.push_back({name, file.size, recipe});
        file.size += recipe.bytes();
      };
      add("norm", norm());
      add("turned", cast(transpose(source(turned)), DType::f16));
      add("straight", cast(source(straight), DType::f16));
      add("own", random(DType::f32, {5}, static_cast<uint64_t>(rank), 1));
      file.tensors.push_back(quantized("int8", file, quantize(source(straight), {8, QuantLayout::plain}), DType::f16));
      file.tensors.push_back(quantized("other", file, quantize(source(straight), {8, QuantLayout::plain}), DType::f32));
      add("again", norm());
      plan.files.push_back(file);
    }
    ExecuteOptions options;
    options.workers = workers;
    options.limits.band_bytes = 1 << 18;  // cuts the turned and the plain matrix into tiles
    uint64_t done = 0;
    options.progress = [&](uint64_t bytes, uint64_t total) {
      done = bytes;
      EXPECT_EQ(total, plan.tensor_bytes());
    };
    OutputDirectory output(folder.path() / "out", true);
    const uint64_t before = bytes_read();
    const std::vector<TensorResult> results = execute(plan, output, options);
    const uint64_t read = bytes_read() - before;
    output.commit();
    EXPECT_EQ(done, plan.tensor_bytes());
    // Four recipes read 3 MB each, and three of them are read back from tiles: 3 + 1.5 + 1.5 MB.
    if (before > 0) {
      EXPECT_LT(read, 19'000'000U);
    }
    ASSERT_EQ(results.size(), 27U);
    std::vector<std::string> names;
    for (size_t i = 0; i < 9; ++i) names.push_back(results[i].name);
    EXPECT_THAT(names, ElementsAre("norm", "turned", "straight", "own", "int8", "int8.scale", "other", "other.scale", "again"));
    for (size_t i = 0; i < results.size(); ++i) {
      const TensorResult& result = results[i];
      SCOPED_TRACE(result.file + " " + result.name);
      EXPECT_EQ(result.file, fmt::format("rank{}", i / 9));
      const std::string file = read_text_file(folder.path() / "out" / result.file);
      EXPECT_EQ(result.digest, digest_of(std::string_view(file).substr(result.offset, result.bytes)));
      if (result.name != "own") {
        EXPECT_EQ(result.digest, results[i % 9].digest);
      }
      EXPECT_EQ(result.quant_error.has_value(), result.name == "int8" || result.name == "other");
    }
    EXPECT_NE(results[3].digest, results[12].digest);
    EXPECT_NE(results[5].digest, results[7].digest);
    EXPECT_EQ(results[0].offset, 0U);
    EXPECT_EQ(results[9].offset, 1U);
  }
}

TEST(Executor, MakesTensorsInTheOrderOfTheirSources) {
  ScratchFolder folder;
  TensorInfo early = sparse_tensor(folder.path() / "a.bin", "early", {1000, 1000});
  TensorInfo late = sparse_tensor(folder.path() / "b.bin", "late", {1000, 1000});
  TensorInfo behind = early;
  behind.name = "behind";
  behind.shape = {500, 1000};
  behind.bytes = early.bytes / 2;
  behind.offset = early.bytes / 2;
  std::filesystem::resize_file(early.file->path(), 0);
  std::filesystem::resize_file(late.file->path(), 0);
  // The first that is made is the first to fail.
  const auto first_of = [&](const std::vector<TensorInfo>& sources) {
    std::vector<std::pair<std::string, Recipe>> tensors;
    for (const TensorInfo& info : sources) tensors.emplace_back(info.name, cast(source(info), DType::f16));
    ExecuteOptions options;
    options.workers = 1;
    OutputDirectory output(folder.path() / "out", false);
    try {
      execute(plan_of(tensors), output, options);
    } catch (const Error& error) {
      return error.site().tensor;
    }
    return std::string();
  };
  EXPECT_EQ(first_of({late, behind, early}), "early");
  EXPECT_EQ(first_of({late, behind}), "behind");
  EXPECT_EQ(first_of({behind, late}), "behind");
}

TEST(Executor, RunsManyRanksOfSmallTensors) {
  ScratchFolder folder;
  const TensorInfo all = sparse_tensor(folder.path() / "weights.bin", "weights", {16 * 500, 64});
  Plan plan;
  for (uint64_t rank = 0; rank < 16; ++rank) {
    PlannedFile file{fmt::format("rank{}", rank), 0, {}, {}};
    for (uint64_t i = 0; i < 500; ++i) {
      const uint64_t row = i % 2 == 0 ? i : i * 16 + rank;  // half of them on every rank
      const Recipe recipe = cast(slice(source(all), 0, row, row + 1), DType::f16);
      file.tensors.push_back({fmt::format("t{}", i), file.size, recipe});
      file.size += recipe.bytes();
    }
    plan.files.push_back(file);
  }
  OutputDirectory output(folder.path() / "out", false);
  const auto results = execute(plan, output);
  EXPECT_EQ(results.size(), 16U * 500);
  EXPECT_EQ(results.back().digest, digest_of(std::string(128, '\0')));
}

TEST(Executor, NamesTheTensorWhenASourceIsCutShortAndLeavesNothing) {
  for (const auto& [workers, tiled] : {std::pair(1U, false), {4U, false}, {1U, true}, {4U, true}}) {
    ScratchFolder folder;
    const std::filesystem::path path = folder.path() / "model.safetensors";
    const TensorInfo good = sparse_tensor(folder.path() / "good.bin", "good", {1000, 1000});
    const TensorInfo cut = sparse_tensor(path, "model.layers.0.weight", {2000, 500});
    std::filesystem::resize_file(path, 1'000'000);
    ExecuteOptions options;
    options.workers = workers;
    options.limits.band_bytes = 1 << 18;
    const Recipe second = cast(tiled ? transpose(source(cut)) : source(cut), DType::f16);
    ASSERT_EQ(lower(second, options.limits).tile_columns > 0, tiled);
    const auto run = [&] {
      OutputDirectory output(folder.path() / "out", false);
      execute(plan_of({{"first", cast(source(good), DType::f16)}, {"second", second}, {"third", source(good)}}), output, options);
    };
    EXPECT_THAT(run, Fails(ErrorCode::bad_offset, AllOf(HasSubstr("model.safetensors@"), HasSubstr("tensor 'second'"),
                                                        HasSubstr("while writing 'second' of 'weights.bin'"))));
    EXPECT_THAT(folder.names(), ElementsAre("good.bin", "model.safetensors"));
  }
}

TEST(Executor, RefusesASourceWithoutAFile) {
  ScratchFolder folder;
  OutputDirectory output(folder.path() / "out", false);
  const TensorInfo unopened{"w", DType::f32, {4}, 0, 16, nullptr};
  EXPECT_THAT(
      [&] {
        execute(plan_of({{"t", source(unopened)}}), output);
      },
      Fails(ErrorCode::internal, HasSubstr("source without a file")));
}

// Runs `body` in a child process, so that limits and the peak of memory are its own; its return value is the exit status.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

TEST(Executor, TurnsAFileLimitIntoAnErrorThatLeavesNothing) {
  ScratchFolder folder;
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      OutputDirectory output(folder.path() / "out", false);
      execute(plan_of({{"large", random(DType::f32, {1000, 1000}, 1, 1)}}), output);
    } catch (const Error& error) {
      return error.code() == ErrorCode::io_failure && std::string(error.what()).find("weights.bin") != std::string::npos ? 0 : 2;
    }
    return 3;
  });
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(folder.names().empty());
}

TEST(Executor, ConvertsHalfAGigabyteStraightAndTransposedInLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  ScratchFolder folder;
  const TensorInfo wide = sparse_tensor(folder.path() / "wide.bin", "wide", {16384, 8192});
  const TensorInfo vocabulary = sparse_tensor(folder.path() / "vocabulary.bin", "vocabulary", {262144, 512});
  const int mebibytes = in_child([&] {
    OutputDirectory output(folder.path() / "out", false);
    ExecuteOptions options;
    options.workers = 2;
    execute(plan_of({{"straight", cast(source(wide), DType::f16)},
                     {"turned", cast(transpose(source(wide)), DType::f16)},
                     {"head", cast(transpose(source(vocabulary)), DType::f16)}}),
            output, options);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<int>(std::min(usage.ru_maxrss / 1024, 254L));
  });
  EXPECT_LE(mebibytes, 64);
  EXPECT_GE(mebibytes, 1);
}

TEST(Executor, QuantisesWideAndStackedWeightsInLittleMemory) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts";
  ScratchFolder folder;
  const TensorInfo experts = sparse_tensor(folder.path() / "experts.bin", "experts", {16, 12800, 256});
  const TensorInfo wide = sparse_tensor(folder.path() / "wide.bin", "wide", {5120, 17920});
  const int mebibytes = in_child([&] {
    PlannedFile file{"rank0.safetensors", 0, {}, {}};
    file.tensors.push_back(quantized("experts", file, quantize(source(experts), {8, QuantLayout::sm90}), DType::f16));
    file.tensors.push_back(quantized("wide", file, quantize(source(wide), {4, QuantLayout::sm80}), DType::f16));
    file.tensors.push_back(
        quantized("plain", file, quantize(cast(source(wide), DType::f32), {4, QuantLayout::plain}), DType::f16));
    OutputDirectory output(folder.path() / "out", false);
    ExecuteOptions options;
    options.workers = 2;
    execute({{file}}, output, options);
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<int>(std::min(usage.ru_maxrss / 1024, 254L));
  });
  EXPECT_LE(mebibytes, 64);
  EXPECT_GE(mebibytes, 1);
}

TEST(Executor, HoldsAtMostTwelveMebibytesAWorker) { EXPECT_LE(worker_buffer_bytes(), uint64_t{12} << 20); }

}  // namespace
}  // namespace transload
