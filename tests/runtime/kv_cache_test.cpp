// KvCache: what each row of a call sees, against a list of entries by position; commits all or nothing; grow, seed, snapshot,
// fork.
#include "transload/kv_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "base/half.h"
#include "error_matchers.h"
#include "runtime/contract_fixture.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const BundleContract> shared(const FixtureOptions& options) {
  return std::make_shared<const BundleContract>(read_fixture(options));
}

float element(const TensorView& tensor, size_t index) {
  if (tensor.dtype == DType::f16) {
    uint16_t half = 0;
    std::memcpy(&half, tensor.bytes.data() + index * 2, 2);
    return f16_to_f32(half);
  }
  float value = 0;
  std::memcpy(&value, tensor.bytes.data() + index * 4, 4);
  return value;
}

void set_element(Tensor& tensor, size_t index, float value) {
  if (tensor.dtype == DType::f16) {
    const uint16_t half = f32_to_f16(value);
    std::memcpy(tensor.bytes.data() + index * 2, &half, 2);
  } else {
    std::memcpy(tensor.bytes.data() + index * 4, &value, 4);
  }
}

Tensor zeros(std::string name, DType dtype, Shape shape) {
  Tensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.resize(tensor_bytes(dtype, tensor.shape));
  return tensor;
}

// Names its position, head and kind, and is exact in f16; no entry is 0, as empty slots are.
float entry_value(uint64_t position, uint64_t head, bool is_value) {
  return static_cast<float>((position + 1) * 8 + head * 2 + (is_value ? 1 : 0));
}

const TensorView& find_input(const std::vector<TensorView>& inputs, const std::string& name) {
  for (const TensorView& view : inputs) {
    if (view.name == name) return view;
  }
  throw std::runtime_error("no input " + name);
}

constexpr float kPadding = -3;

// The k_new and v_new tensors of a graph: entries named after their position, padding after the real ones; roll returns the end
// of cache ++ new.
std::vector<Tensor> graph_outputs(const StepContract& step, const std::vector<TensorView>& inputs, uint64_t position,
                                  uint32_t real) {
  std::vector<Tensor> out;
  for (const Port& port : step.outputs) {
    if (port.role != PortRole::k_new && port.role != PortRole::v_new) continue;
    const bool is_value = port.role == PortRole::v_new;
    const CacheLayer& cache = step.caches[*port.layer];
    const TensorView& stored = find_input(inputs, (is_value ? "v_cache_" : "k_cache_") + std::to_string(cache.layer));
    Tensor tensor = zeros(port.name, port.dtype, port.shape);
    const uint64_t from_cache = cache.new_entries - step.query;
    for (uint64_t head = 0; head < cache.kv_heads; ++head) {
      for (uint64_t i = 0; i < cache.new_entries; ++i) {
        for (uint64_t d = 0; d < cache.head_dim; ++d) {
          float value = kPadding;
          if (i < from_cache) {
            value = element(stored, (head * cache.slots + cache.slots - from_cache + i) * cache.head_dim + d);
          } else if (i - from_cache < real) {
            value = entry_value(position + i - from_cache, head, is_value);
          }
          set_element(tensor, (head * cache.new_entries + i) * cache.head_dim + d, value);
        }
      }
    }
    out.push_back(std::move(tensor));
  }
  return out;
}

std::vector<TensorView> views(const std::vector<Tensor>& tensors) {
  std::vector<TensorView> out;
  for (const Tensor& tensor : tensors) out.push_back(tensor.view());
  return out;
}

const StepContract& step_of(const BundleContract& contract, uint32_t q, uint32_t context) {
  const StepFile* step = contract.find_step(q, context);
  if (step == nullptr) throw std::runtime_error("no such step");
  return step->contract;
}

void read_tokens(const BundleContract& contract, KvCache& cache, uint32_t q, uint32_t real) {
  const StepContract& step = step_of(contract, q, cache.context());
  const std::vector<TensorView> inputs = cache.inputs(step, cache.position(), real);
  cache.commit(step, views(graph_outputs(step, inputs, cache.position(), real)), cache.position(), real);
}

std::vector<std::vector<std::byte>> buffers(const KvCache& cache) { return cache.snapshot().buffers; }

// Positions of the keys and values that each real row may see, as the graph combines cache and mask: exactly those of the window.
void check_rows(const StepContract& step, const std::vector<TensorView>& inputs, uint64_t position, uint32_t real) {
  for (const CacheLayer& cache : step.caches) {
    const TensorView& mask = find_input(inputs, "mask_" + cache.mask_group);
    const uint64_t columns = mask.shape[3];
    const uint64_t dropped = cache.rule == SlotRule::roll ? 1 : 0;
    const uint64_t old_keys = cache.slots - dropped;
    ASSERT_EQ(columns, old_keys + step.query);
    for (const bool is_value : {false, true}) {
      const TensorView& stored = find_input(inputs, (is_value ? "v_cache_" : "k_cache_") + std::to_string(cache.layer));
      for (uint64_t row = 0; row < real; ++row) {
        const uint64_t newest = position + row;
        std::vector<uint64_t> expected;
        for (uint64_t key = 0; key <= newest; ++key) {
          if (!cache.window || key + *cache.window > newest) expected.push_back(key);
        }
        for (uint64_t head = 0; head < cache.kv_heads; ++head) {
          std::vector<uint64_t> seen;
          for (uint64_t column = 0; column < columns; ++column) {
            if (element(mask, row * columns + column) != 0) continue;
            if (column >= old_keys) {
              seen.push_back(position + column - old_keys);
              continue;
            }
            const size_t at = (head * cache.slots + column + dropped) * cache.head_dim;
            const float value = element(stored, at);
            for (size_t d = 1; d < cache.head_dim; ++d) ASSERT_EQ(element(stored, at + d), value);
            seen.push_back(static_cast<uint64_t>(value) / 8 - 1);
            ASSERT_EQ(value, entry_value(seen.back(), head, is_value)) << "layer " << cache.layer << " column " << column;
          }
          std::sort(seen.begin(), seen.end());
          ASSERT_EQ(seen, expected) << slot_rule_name(cache.rule) << " layer " << cache.layer << " at " << position << " row "
                                    << row;
        }
      }
    }
    for (uint64_t row = 0; row < step.query; ++row) EXPECT_EQ(element(mask, row * columns + old_keys + row), 0) << "own key";
    for (uint64_t i = 0; i < step.query * columns; ++i) {
      const float value = element(mask, i);
      ASSERT_TRUE(value == 0 || value == (mask.dtype == DType::f16 ? -1e4F : -1e9F)) << value;
    }
  }
}

void check_entries(const KvCache& cache, const StepContract& layout) {
  for (const CacheLayer& layer : layout.caches) {
    const LayerEntries entries = cache.entries(layer.layer);
    ASSERT_EQ(entries.count, std::min<uint64_t>(cache.position(), layer.slots));
    ASSERT_EQ(entries.first, cache.position() - entries.count);
    for (const bool is_value : {false, true}) {
      const TensorView view = (is_value ? entries.values : entries.keys).view();
      ASSERT_EQ(view.shape, (Shape{layer.kv_heads, entries.count, layer.head_dim}));
      for (uint64_t head = 0; head < layer.kv_heads; ++head) {
        for (uint64_t i = 0; i < entries.count; ++i) {
          ASSERT_EQ(element(view, (head * entries.count + i) * layer.head_dim), entry_value(entries.first + i, head, is_value));
        }
      }
    }
  }
}

class RandomCalls : public testing::TestWithParam<uint32_t> {};

TEST_P(RandomCalls, EveryRowSeesExactlyTheKeysOfItsWindowOnce) {
  std::mt19937 random(GetParam());
  const auto pick = [&](uint32_t least, uint32_t most) { return std::uniform_int_distribution<uint32_t>(least, most)(random); };
  FixtureOptions options;
  options.roll = GetParam() % 2 == 1;
  options.compute = GetParam() % 4 < 2 ? "f32" : "f16";
  options.windows = {pick(1, 24), pick(1, 60)};
  const bool all_sliding = GetParam() % 3 == 0;
  if (!all_sliding) options.windows.push_back(std::nullopt);
  options.max_positions = 120;
  const std::vector<uint32_t> queries{1, pick(2, 6), pick(7, 20)};
  const std::vector<uint32_t> contexts{pick(20, 30), pick(31, 50), 64};
  options.steps.clear();
  for (const uint32_t q : queries) {
    for (const uint32_t context : contexts) options.steps.emplace_back(q, context);
  }
  const auto contract = shared(options);
  KvCache cache(contract);
  for (int call = 0; call < 60; ++call) {
    if (pick(0, 9) == 0 && cache.context() < 64) cache.grow(contexts[cache.context() == contexts[0] ? 1 : 2]);
    const uint32_t q = queries[pick(0, 2)];
    const StepContract& step = step_of(*contract, q, cache.context());
    const auto room = static_cast<uint32_t>(cache.capacity() - cache.position());
    if (room == 0) {
      if (cache.context() == 64) break;
      cache.grow(64);
      continue;
    }
    const uint32_t real = std::min(pick(1, q), room);
    const KvCache::Snapshot before = cache.snapshot();
    const std::vector<TensorView> inputs = cache.inputs(step, cache.position(), real);
    check_rows(step, inputs, cache.position(), real);
    const std::vector<Tensor> outputs = graph_outputs(step, inputs, cache.position(), real);
    if (pick(0, 3) == 0) {  // another continuation, in a fork or undone, leaves no trace
      KvCache fork = cache.fork();
      KvCache& other = pick(0, 1) == 0 ? fork : cache;
      std::vector<Tensor> strange = outputs;
      for (Tensor& tensor : strange) set_element(tensor, 0, 77);
      other.commit(step, views(strange), other.position(), real);
      if (&other == &cache) cache.restore(before);
    }
    cache.commit(step, views(outputs), cache.position(), real);
    check_entries(cache, step);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(cache.position(), 19U);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCalls, testing::Range(0U, 60U));

TEST(KvCacheMasks, OpenTheWindowInRingAndRoll) {
  for (const bool roll : {false, true}) {
    FixtureOptions options;
    options.windows = {4, std::nullopt};
    options.roll = roll;
    options.steps = {{1, 8}, {2, 8}};
    const auto contract = shared(options);
    KvCache cache(contract);
    for (int i = 0; i < 4; ++i) read_tokens(*contract, cache, 1, 1);
    const std::vector<TensorView> inputs = cache.inputs(step_of(*contract, 2, 8), 4, 2);
    const TensorView& mask = find_input(inputs, "mask_sw4");
    std::string open;
    for (size_t i = 0; i < 10; ++i) open += element(mask, i) == 0 ? 'o' : '-';
    // ring slots hold positions 3, 1, 2; roll keys, with the oldest dropped, 1, 2, 3.
    EXPECT_EQ(open, roll ? "oooo--oooo" : "oooo-o-ooo");
  }
}

// The rule as lists of positions: the blocks near the row's own, and every vertical_stride-th block, shifted by head.
TEST(KvCacheMasks, OpenTheBlocksOfEachHead) {
  for (const uint32_t head_step : {0U, 1U, 2U}) {
    FixtureOptions options;
    options.windows = {std::nullopt};
    options.block_sparse = BlockSparse{.block = 2, .local_blocks = 2, .vertical_stride = 4, .head_step = head_step};
    options.steps = {{4, 32}};
    const auto contract = shared(options);
    KvCache cache(contract);
    const StepContract& step = step_of(*contract, 4, 32);
    while (cache.position() + 4 <= 32) {
      const uint64_t position = cache.position();
      const std::vector<TensorView> inputs = cache.inputs(step, position, 3);
      const TensorView& mask = find_input(inputs, "mask_blocksparse");
      ASSERT_EQ(mask.shape, (Shape{1, 4, 4, 36}));
      for (uint64_t head = 0; head < 4; ++head) {
        for (uint64_t row = 0; row < 4; ++row) {
          std::set<uint64_t> expected;
          const int64_t own_block = static_cast<int64_t>(position + row) / 2;
          for (int64_t block = 0; block <= own_block; ++block) {
            const bool is_near = block == own_block || block == own_block - 1;
            const bool is_vertical = (block + static_cast<int64_t>(head * head_step)) % 4 == 3;
            for (uint64_t key = 2 * block; key < 2 * uint64_t(block) + 2 && key <= position + row; ++key) {
              if (is_near || is_vertical) expected.insert(key);
            }
          }
          std::set<uint64_t> open;
          for (uint64_t column = 0; column < 36; ++column) {
            const float value = element(mask, (head * 4 + row) * 36 + column);
            ASSERT_TRUE(value == 0 || value == -1e9F);
            if (value == 0) open.insert(column < 32 ? column : position + column - 32);
          }
          EXPECT_EQ(open, expected) << "position " << position << " row " << row << " head " << head;
        }
      }
      read_tokens(*contract, cache, 4, 3);
    }
    EXPECT_EQ(cache.capacity(), 32U);
  }
}

TEST(KvCacheRotaryRows, AreCosinesOfFp32AnglesTimesTheAttentionFactor) {
  for (const bool half : {false, true}) {
    for (const char* compute : {"f32", "f16"}) {
      FixtureOptions options;
      options.half_rope = half;
      options.compute = compute;
      options.attention_factor = 1.25;
      options.inv_freq = {1.0F, 0.21544346F, 0.046415888F};
      options.steps = {{4, 16}};
      const auto contract = shared(options);
      KvCache cache(contract);
      read_tokens(*contract, cache, 4, 3);
      const std::vector<TensorView> inputs = cache.inputs(step_of(*contract, 4, 16), 3, 4);
      for (const bool is_cos : {true, false}) {
        const TensorView& rows = find_input(inputs, is_cos ? "cos_sw" : "sin_sw");
        ASSERT_EQ(rows.shape[3], half ? 3U : 6U);
        for (size_t row = 0; row < 4; ++row) {
          for (size_t column = 0; column < rows.shape[3]; ++column) {
            const float angle = static_cast<float>(3 + row) * options.inv_freq[column % 3];
            const auto turned = static_cast<float>(is_cos ? std::cos(double{angle}) : std::sin(double{angle})) * 1.25F;
            const float expected = rows.dtype == DType::f16 ? f16_to_f32(f32_to_f16(turned)) : turned;
            EXPECT_EQ(element(rows, row * rows.shape[3] + column), expected);
          }
        }
      }
    }
  }
}

struct Fault {
  const char* name;
  ErrorCode code;
  const char* text;
  std::function<void(std::vector<Tensor>&, uint64_t& position, uint32_t& real)> make;
};

TEST(KvCacheCommit, NamesTheFaultAndLeavesEveryBuffer) {
  const auto poison = [](size_t index, float value) {
    return [=](std::vector<Tensor>& outputs, uint64_t&, uint32_t&) {
      set_element(outputs[index], element_count(outputs[index].shape) - 1, value);
    };
  };
  const std::vector<Fault> faults{
      {"one too few", ErrorCode::usage, "cache tensors: got 3, expected 4 (keys and values of 2 layers)",
       [](auto& outputs, auto&, auto&) { outputs.pop_back(); }},
      {"one too many", ErrorCode::usage, "cache tensors: got 5, expected 4 (keys and values of 2 layers)",
       [](auto& outputs, auto&, auto&) { outputs.push_back(outputs.front()); }},
      {"none", ErrorCode::usage, "cache tensors: got 0, expected 4 (keys and values of 2 layers)",
       [](auto& outputs, auto&, auto&) { outputs.clear(); }},
      {"wrong shape", ErrorCode::shape_mismatch, "tensor 'v_new_0': shape does not match: got [1,2,1,6], expected [1,2,",
       [](auto& outputs, auto&, auto&) {
         outputs[1] = zeros("x", outputs[1].dtype, {1, 2, 1, 6});
       }},
      {"wrong rank", ErrorCode::shape_mismatch, "tensor 'k_new_1': shape does not match: got [2,2,6], expected [1,2,2,6]",
       [](auto& outputs, auto&, auto&) {
         outputs[2].shape = {2, 2, 6};
       }},
      {"bytes missing", ErrorCode::shape_mismatch, "tensor 'k_new_1': bytes do not match the shape",
       [](auto& outputs, auto&, auto&) { outputs[2].bytes.pop_back(); }},
      {"wrong dtype", ErrorCode::dtype_mismatch, "tensor 'k_new_0': dtype does not match: got f64, expected f",
       [](auto& outputs, auto&, auto&) { outputs[0] = zeros("k_new_0", DType::f64, outputs[0].shape); }},
      {"NaN", ErrorCode::numeric_fault, "tensor 'v_new_1': values are not finite: got 1 of 24, expected 0",
       poison(3, std::numeric_limits<float>::quiet_NaN())},
      {"infinity", ErrorCode::numeric_fault, "tensor 'k_new_1': values are not finite: got 1 of 24, expected 0",
       poison(2, -std::numeric_limits<float>::infinity())},
      {"repeated position", ErrorCode::usage, "repeated position: got 4, expected 5",
       [](auto&, uint64_t& position, auto&) { position = 4; }},
      {"skipped position", ErrorCode::usage, "skipped position: got 6, expected 5",
       [](auto&, uint64_t& position, auto&) { position = 6; }},
      {"no real tokens", ErrorCode::usage, "count of real tokens out of range: got 0, expected 1 to 2",
       [](auto&, auto&, uint32_t& real) { real = 0; }},
      {"more than q", ErrorCode::usage, "count of real tokens out of range: got 3, expected 1 to 2",
       [](auto&, auto&, uint32_t& real) { real = 3; }},
  };
  for (const bool roll : {false, true}) {
    for (const char* compute : {"f32", "f16"}) {
      for (const Fault& fault : faults) {
        FixtureOptions options;
        options.roll = roll;
        options.compute = compute;
        options.steps = {{1, 8}, {2, 8}};
        const auto contract = shared(options);
        KvCache cache(contract);
        for (int i = 0; i < 5; ++i) read_tokens(*contract, cache, 1, 1);
        const auto before = buffers(cache);
        const StepContract& step = step_of(*contract, 2, 8);
        std::vector<Tensor> outputs = graph_outputs(step, cache.inputs(step, 5, 2), 5, 2);
        const std::vector<Tensor> good = outputs;
        uint64_t position = 5;
        uint32_t real = 2;
        fault.make(outputs, position, real);
        EXPECT_THAT([&] { cache.commit(step, views(outputs), position, real); }, Fails(fault.code, HasSubstr(fault.text)))
            << fault.name << (roll ? ", roll" : ", ring");
        EXPECT_EQ(cache.position(), 5U) << fault.name;
        EXPECT_EQ(buffers(cache), before) << fault.name;
        cache.commit(step, views(good), 5, 2);
        EXPECT_EQ(cache.position(), 7U);
        EXPECT_NE(buffers(cache), before);
      }
    }
  }
}

TEST(KvCache, RefusesPositionsBeyondTheCapacityAndLetsPaddingReachPastIt) {
  FixtureOptions options;
  options.steps = {{1, 8}, {4, 8}};
  const auto contract = shared(options);
  KvCache cache(contract);
  EXPECT_EQ(cache.capacity(), 8U);
  read_tokens(*contract, cache, 4, 4);
  read_tokens(*contract, cache, 4, 3);
  const StepContract& wide = step_of(*contract, 4, 8);
  const auto outputs = graph_outputs(wide, cache.inputs(wide, 7, 1), 7, 1);
  EXPECT_THAT([&] { cache.commit(wide, views(outputs), 7, 2); },
              Fails(ErrorCode::usage, HasSubstr("position beyond the capacity: got 9 tokens, expected at most 8")));
  read_tokens(*contract, cache, 4, 1);
  EXPECT_THAT([&] { cache.inputs(step_of(*contract, 1, 8), 8, 1); },
              Fails(ErrorCode::usage, HasSubstr("position beyond the capacity: got 9 tokens, expected at most 8")));
  cache.clear();
  EXPECT_EQ(cache.position(), 0U);
  for (const auto& buffer : buffers(cache)) EXPECT_EQ(buffer, std::vector<std::byte>(buffer.size()));
}

TEST(KvCache, CapacityEndsAtTheContextUnlessEveryWindowFitsItsSlots) {
  for (const bool roll : {false, true}) {
    for (const auto& [context, capacity] : {std::pair{roll ? 4U : 3U, roll ? 4U : 3U}, std::pair{roll ? 5U : 4U, 500U}}) {
      FixtureOptions options;
      options.windows = {5, 5};
      options.roll = roll;
      options.steps = {{1, context}};
      const auto contract = shared(options);
      EXPECT_EQ(KvCache(contract).capacity(), capacity) << roll << " " << context;
      EXPECT_EQ(KvCache::capacity_of(*contract, context), capacity);
    }
  }
}

TEST(KvCache, RefusesGraphsItCannotCallAndContextsThatShrink) {
  FixtureOptions options;
  options.steps = {{1, 16}, {1, 8}, {2, 16}};
  const auto contract = shared(options);
  EXPECT_EQ(KvCache(contract).context(), 8U);
  EXPECT_THAT([&] { KvCache(contract, 9); },
              Fails(ErrorCode::usage, HasSubstr("no graph for this context: got 9, expected one of 8, 16")));
  KvCache cache(contract);
  EXPECT_THAT([&] { cache.inputs(step_of(*contract, 1, 16), 0, 1); },
              Fails(ErrorCode::usage, HasSubstr("graph is for another context: got 16, expected 8 (grow first)")));
  StepContract foreign = step_of(*contract, 1, 8);
  foreign.query = 2;
  EXPECT_THAT([&] { cache.inputs(foreign, 0, 1); },
              Fails(ErrorCode::usage, HasSubstr("no such graph in the bundle: got q 2 of context 8, expected one of q 1")));
  cache.grow(16);
  EXPECT_THAT([&] { cache.grow(8); }, Fails(ErrorCode::usage, HasSubstr("context cannot shrink: got 8, expected at least 16")));
  EXPECT_THAT([&] { cache.grow(99); }, Fails(ErrorCode::usage, HasSubstr("no graph for this context: got 99")));
  EXPECT_EQ(cache.context(), 16U);
}

TEST(KvCache, RefusesBuffersBeyondWhatTheMachineCouldGive) {
  // 100 TB to 14 EB.
  for (const uint32_t context : {1U << 30, 1U << 29}) {
    for (const uint32_t heads : {1U << 12, 1U << 28}) {
      FixtureOptions options;
      options.steps = {{1, context}};
      options.kv_heads = heads;
      EXPECT_THAT([&] { KvCache{shared(options)}; },
                  Fails(ErrorCode::io_failure,
                        AllOf(HasSubstr(fmt::format("KV cache of context {} does not fit in memory: got ", context)),
                              HasSubstr("expected at most "))));
    }
  }
}

// Entries of positions 0 .. count-1, as a prefill done elsewhere gives them.
struct Prefill {
  std::vector<Tensor> tensors;
  std::vector<KvCache::SeedLayer> layers() const {
    std::vector<KvCache::SeedLayer> out;
    for (size_t i = 0; i + 1 < tensors.size(); i += 2) out.push_back({tensors[i].view(), tensors[i + 1].view()});
    return out;
  }
};

Prefill prefill(const StepContract& layout, DType dtype, uint64_t count) {
  Prefill out;
  for (const CacheLayer& cache : layout.caches) {
    for (const bool is_value : {false, true}) {
      Tensor tensor = zeros("seed", dtype, {cache.kv_heads, count, cache.head_dim});
      for (uint64_t i = 0; i < cache.kv_heads * count * cache.head_dim; ++i) {
        const uint64_t entry = i / cache.head_dim;
        set_element(tensor, i, entry_value(entry % count, entry / count, is_value));
      }
      out.tensors.push_back(std::move(tensor));
    }
  }
  return out;
}

TEST(KvCacheSeed, EqualsCommittingTokenByToken) {
  for (const bool roll : {false, true}) {
    for (const char* compute : {"f32", "f16"}) {
      for (const uint64_t count : {1U, 3U, 4U, 5U, 9U, 16U}) {
        FixtureOptions options;
        options.roll = roll;
        options.compute = compute;
        options.windows = {5, std::nullopt, 1};
        const auto contract = shared(options);
        KvCache stepped(contract);
        for (uint64_t i = 0; i < count; ++i) read_tokens(*contract, stepped, 1, 1);
        KvCache seeded(contract);
        seeded.seed(prefill(step_of(*contract, 1, 16), contract->compute, count).layers(), count);
        EXPECT_EQ(seeded.position(), count);
        EXPECT_EQ(buffers(seeded), buffers(stepped)) << compute << (roll ? " roll " : " ring ") << count;
      }
    }
  }
}

TEST(KvCacheSeed, IsRefusedTwiceOrWithTheWrongLengthAndChangesNothingThen) {
  const FixtureOptions options;
  const auto contract = shared(options);
  const StepContract& layout = step_of(*contract, 1, 16);
  KvCache cache(contract);
  const auto untouched = buffers(cache);
  const Prefill good = prefill(layout, DType::f32, 9);
  const auto seed = [&](const Prefill& given, uint64_t count) { return [&, count] { cache.seed(given.layers(), count); }; };
  EXPECT_THAT(seed(good, 0), Fails(ErrorCode::usage, HasSubstr("count of seed tokens out of range: got 0, expected 1 to 16")));
  const Prefill longer = prefill(layout, DType::f32, 17);
  EXPECT_THAT(seed(longer, 17),
              Fails(ErrorCode::usage, HasSubstr("count of seed tokens out of range: got 17, expected 1 to 16")));
  EXPECT_THAT(seed(good, 8), Fails(ErrorCode::shape_mismatch,
                                   HasSubstr("tensor 'keys of layer 0': shape does not match: got [2,9,6], expected [2,8,6]")));
  Prefill fewer = good;
  fewer.tensors.resize(2);
  EXPECT_THAT(seed(fewer, 9),
              Fails(ErrorCode::usage, HasSubstr("cache tensors: got 2, expected 4 (keys and values of 2 layers)")));
  Prefill wrong = good;
  set_element(wrong.tensors[3], 5, std::numeric_limits<float>::infinity());
  EXPECT_THAT(seed(wrong, 9), Fails(ErrorCode::numeric_fault, HasSubstr("tensor 'values of layer 1': values are not finite")));
  wrong = prefill(layout, DType::f16, 9);
  EXPECT_THAT(seed(wrong, 9), Fails(ErrorCode::dtype_mismatch, HasSubstr("dtype does not match: got f16, expected f32")));
  EXPECT_EQ(cache.position(), 0U);
  EXPECT_EQ(buffers(cache), untouched);

  seed(good, 9)();
  const auto seeded = buffers(cache);
  EXPECT_THAT(seed(good, 9), Fails(ErrorCode::usage, HasSubstr("cache is not empty: got 9 stored tokens, expected 0")));
  EXPECT_EQ(buffers(cache), seeded);
}

TEST(KvCacheSnapshot, RestoresExactlyAndOnlyWhatItWasTakenFrom) {
  FixtureOptions options;
  options.steps = {{1, 8}, {1, 16}};
  const auto contract = shared(options);
  KvCache cache(contract);
  for (int i = 0; i < 3; ++i) read_tokens(*contract, cache, 1, 1);
  const KvCache::Snapshot snapshot = cache.snapshot();
  for (int i = 0; i < 4; ++i) read_tokens(*contract, cache, 1, 1);
  cache.restore(snapshot);
  EXPECT_EQ(cache.position(), 3U);
  EXPECT_EQ(buffers(cache), snapshot.buffers);
  check_entries(cache, step_of(*contract, 1, 8));

  KvCache stranger(shared(options));
  EXPECT_THAT([&] { stranger.restore(snapshot); }, Fails(ErrorCode::usage, HasSubstr("snapshot is of another bundle")));
  KvCache::Snapshot cut = snapshot;
  cut.buffers.pop_back();
  EXPECT_THAT([&] { cache.restore(cut); }, Fails(ErrorCode::usage, HasSubstr("snapshot is damaged: got 3 buffers")));
  KvCache::Snapshot far = snapshot;
  far.position = 9;
  EXPECT_THAT([&] { cache.restore(far); }, Fails(ErrorCode::usage, HasSubstr("snapshot is damaged")));
  cache.grow(16);
  EXPECT_THAT([&] { cache.restore(snapshot); },
              Fails(ErrorCode::usage, HasSubstr("snapshot is of another context: got 8, expected 16")));
  EXPECT_EQ(cache.position(), 3U);
}

TEST(KvCacheBytes, CountKeysAndValuesOfEveryLayerAtEachContextAndDtype) {
  FixtureOptions options;
  options.steps = {{1, 8}, {1, 16}};
  for (const bool roll : {false, true}) {
    for (const char* compute : {"f32", "f16"}) {
      options.roll = roll;
      options.compute = compute;
      const auto contract = shared(options);
      const uint64_t element_bytes = contract->compute == DType::f16 ? 2 : 4;
      KvCache cache(contract);
      const uint64_t window_slots = roll ? 5 : 4;
      EXPECT_EQ(cache.bytes(), 2 * 2 * 6 * (window_slots + 8) * element_bytes);
      EXPECT_EQ(cache.bytes(), kv_elements(step_of(*contract, 1, 8)).hybrid * element_bytes);
      cache.grow(16);
      EXPECT_EQ(cache.bytes(), 2 * 2 * 6 * (window_slots + 16) * element_bytes);
    }
  }
  EXPECT_THAT([&] { KvCache(shared(options)).entries(2); },
              Fails(ErrorCode::usage, HasSubstr("no such layer: got 2, expected 0 to 1")));
}

}  // namespace
}  // namespace transload
