// Random recipes over small tensors of every type, run with tiny pieces and compared with values computed one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <random>

#include "io/file.h"
#include "io/hash.h"
#include "io/output_directory.h"
#include "io/scratch_folder.h"
#include "weights/executor.h"
#include "weights/reference_floats.h"

namespace transload {
namespace {

// One element as the reference sees it: its value, its stored bits, and for block types the block it belongs to.
struct Element {
  float value = 0;
  uint64_t bits = 0;
  std::string block;
  uint64_t overflows = 0;
};

// A recipe beside its elements in row-major order, moved and converted by the plainest code there is.
struct Sample {
  Recipe recipe;
  std::vector<Element> elements;

  DType dtype() const { return recipe.dtype(); }
  const Shape& shape() const { return recipe.shape(); }
};

Element from_bits(DType dtype, uint64_t bits) {
  Element element;
  element.bits = bits;
  const auto half = static_cast<uint16_t>(bits);
  const auto byte = static_cast<uint8_t>(bits);
  const auto word = static_cast<uint32_t>(bits);
  if (dtype == DType::f64) element.value = static_cast<float>(std::bit_cast<double>(bits));
  if (dtype == DType::f32) element.value = std::bit_cast<float>(word);
  if (dtype == DType::f16) element.value = reference::f16_to_f32(half);
  if (dtype == DType::bf16) element.value = reference::bf16_to_f32(half);
  if (dtype == DType::f8_e4m3) element.value = reference::f8_e4m3_to_f32(byte);
  if (dtype == DType::f8_e5m2) element.value = reference::f8_e5m2_to_f32(byte);
  if (dtype == DType::i64) element.value = static_cast<float>(static_cast<int64_t>(bits));
  if (dtype == DType::i32) element.value = static_cast<float>(static_cast<int32_t>(word));
  if (dtype == DType::i16) element.value = static_cast<float>(static_cast<int16_t>(half));
  if (dtype == DType::i8) element.value = static_cast<float>(static_cast<int8_t>(byte));
  if (dtype == DType::u64) element.value = static_cast<float>(bits);
  if (dtype == DType::u32) element.value = static_cast<float>(word);
  if (dtype == DType::u16) element.value = static_cast<float>(half);
  if (dtype == DType::u8 || dtype == DType::boolean) element.value = static_cast<float>(byte);
  return element;
}

Element to_dtype(const Element& from, DType dtype) {
  Element element = from;
  element.block.clear();
  if (dtype == DType::f32) element.bits = reference::bits_of(from.value);
  if (dtype == DType::f16) {
    element.bits = reference::f32_to_f16(from.value);
    element.value = reference::f16_to_f32(static_cast<uint16_t>(element.bits));
    element.overflows += reference::overflows_f16(from.value) ? 1 : 0;
  }
  if (dtype == DType::bf16) {
    element.bits = reference::f32_to_bf16(from.value);
    element.value = reference::bf16_to_f32(static_cast<uint16_t>(element.bits));
  }
  return element;
}

class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (int i = 0; i < 2; ++i) add_stored(static_cast<DType>(dtype), small_shape(static_cast<DType>(dtype)));
      if (has_reference(static_cast<DType>(dtype))) high_.push_back(stored_.size());
      add_stored(static_cast<DType>(dtype), high_shape(static_cast<DType>(dtype)));
    }
    const std::filesystem::path path = folder_.write("source.bin", bytes_);
    const std::shared_ptr<const InputFile> file = InputFile::open(path);
    for (size_t i = 0; i < infos_.size(); ++i) {
      infos_[i].file = file;
      stored_[i].recipe = source(infos_[i]);
    }
  }

  uint64_t below(uint64_t limit) { return std::uniform_int_distribution<uint64_t>(0, limit - 1)(random_); }
  // A stored matrix with more rows than columns, or a part of it, turned whole: what is cut into tiles.
  Sample turned() {
    Sample sample = stored_[high_[below(high_.size())]];
    if (below(2) == 0 && !is_block(sample.dtype())) sample = sliced(sample, 1);
    if (below(3) == 0) sample = sliced(sample, 0);
    if (below(3) > 0) sample = casted(sample, std::array{DType::f32, DType::f16, DType::bf16}[below(3)]);
    return transposed(sample);
  }

  const std::filesystem::path& folder() const { return folder_.path(); }

  Sample any() {
    Sample sample = leaf();
    for (uint64_t left = below(8); left > 0; --left) sample = changed(sample);
    return sample;
  }

 private:
  // mxfp4 and the K types share the path of q8_0 and q4_1, whose values the reference knows.
  static bool has_reference(DType dtype) { return !is_block(dtype) || dtype == DType::q8_0 || dtype == DType::q4_1; }

  Shape small_shape(DType dtype) {
    Shape shape;
    for (uint64_t rank = 1 + below(3); rank > 0; --rank) shape.push_back(1 + below(9));
    if (is_block(dtype)) shape.back() = dtype_info(dtype).block_elements * (1 + below(3));
    return shape;
  }

  Shape high_shape(DType dtype) {
    const uint64_t width = is_block(dtype) ? dtype_info(dtype).block_elements : 2 + below(9);
    return {width + 5 + below(50), width};
  }

  void add_stored(DType dtype, Shape shape) {
    if (!has_reference(dtype)) return;
    const DTypeInfo& row = dtype_info(dtype);
    TensorInfo info;
    info.name = std::string(row.name);
    info.dtype = dtype;
    info.shape = std::move(shape);
    info.offset = bytes_.size();
    info.bytes = tensor_bytes(dtype, info.shape);
    Sample sample;
    for (uint64_t i = 0; i < info.bytes / row.block_bytes; ++i) {
      if (is_block(dtype)) {
        add_block(dtype, sample);
      } else {
        add_scalar(dtype, sample);
      }
    }
    bytes_.append(below(7), '\0');
    infos_.push_back(info);
    stored_.push_back(sample);
  }

  void add_scalar(DType dtype, Sample& sample) {
    uint64_t bits = random_();
    const uint64_t kind = below(4);
    // Half of the floats near 1, the rest any bits: NaN, infinity, subnormal.
    if (kind < 2 && dtype == DType::f64) bits = std::bit_cast<uint64_t>(static_cast<double>(below(1000)) * 0.37);
    if (kind < 2 && dtype == DType::f32) bits = reference::bits_of(static_cast<float>(below(200000)) * 0.37F);
    const uint64_t width = dtype_info(dtype).block_bytes;
    if (width < 8) bits &= (uint64_t{1} << (8 * width)) - 1;
    // Half NaNs are quiet here: whether a cast to f32 and back quiets one is left open, since such casts may vanish.
    if (dtype == DType::f16 && (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF) != 0) bits |= 0x200;
    if (dtype == DType::bf16 && (bits & 0x7F80) == 0x7F80 && (bits & 0x7F) != 0) bits |= 0x40;
    for (uint64_t i = 0; i < width; ++i) bytes_ += static_cast<char>(bits >> (8 * i) & 0xFF);
    sample.elements.push_back(from_bits(dtype, bits));
  }

  void add_block(DType dtype, Sample& sample) {
    std::string block;
    const auto add_half = [&] {
      const uint16_t half = reference::f32_to_f16(static_cast<float>(below(2000)) - 1000.0F);
      block += static_cast<char>(half & 0xFF);
      block += static_cast<char>(half >> 8);
      return reference::f16_to_f32(half);
    };
    const float scale = add_half();
    const float minimum = dtype == DType::q4_1 ? add_half() : 0.0F;
    std::vector<float> values(32);
    const size_t quants = dtype == DType::q4_1 ? 16 : 32;
    for (size_t i = 0; i < quants; ++i) {
      const auto quant = static_cast<uint8_t>(below(256));
      block += static_cast<char>(quant);
      if (dtype == DType::q8_0) {
        values[i] = scale * static_cast<float>(static_cast<int8_t>(quant));
      } else {
        const float low = scale * static_cast<float>(quant & 15);
        const float high = scale * static_cast<float>(quant >> 4);
        values[i] = low + minimum;
        values[i + 16] = high + minimum;
      }
    }
    for (const float value : values) sample.elements.push_back({value, 0, block, 0});
    bytes_ += block;
  }

  Sample leaf() {
    const uint64_t kind = below(10);
    if (kind > 2) return stored_[below(stored_.size())];
    const Shape shape{1 + below(7), 1 + below(7)};
    Sample sample;
    if (kind == 0) {
      std::vector<float> values;
      for (uint64_t i = 0; i < element_count(shape); ++i) values.push_back(static_cast<float>(below(100)) - 50.5F);
      for (const float value : values) sample.elements.push_back(from_bits(DType::f32, reference::bits_of(value)));
      sample.recipe = constant(shape, values);
    } else if (kind == 1) {
      std::vector<int64_t> values;
      for (uint64_t i = 0; i < element_count(shape); ++i) values.push_back(static_cast<int64_t>(random_()));
      for (const int64_t value : values) sample.elements.push_back(from_bits(DType::i64, static_cast<uint64_t>(value)));
      sample.recipe = constant_i64(shape, values);
    } else {
      sample.recipe = random(DType::f32, shape, random_(), 0.5F, 1.0F);
      const std::vector<std::byte> bytes = materialize(sample.recipe);
      for (size_t i = 0; i < bytes.size() / 4; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, bytes.data() + 4 * i, 4);
        sample.elements.push_back(from_bits(DType::f32, bits));
      }
    }
    return sample;
  }

  // `make` gives the index in `from` of each element of the result.
  template <class Index>
  static Sample moved(const Sample& from, Recipe recipe, const Index& index) {
    Sample sample;
    sample.recipe = std::move(recipe);
    for (uint64_t i = 0; i < element_count(sample.shape()); ++i) {
      sample.elements.push_back(from.elements[index(i)]);
      // Values of blocks that were moved singly are stored as f32.
      if (is_block(from.dtype()) && !is_block(sample.dtype()))
        sample.elements.back() = to_dtype(sample.elements.back(), DType::f32);
    }
    return sample;
  }

  static uint64_t inner(const Shape& shape, size_t axis) {
    return std::accumulate(shape.begin() + static_cast<ptrdiff_t>(axis) + 1, shape.end(), uint64_t{1}, std::multiplies<>());
  }

  Sample sliced(const Sample& from) { return sliced(from, static_cast<uint32_t>(below(from.shape().size()))); }
  Sample sliced(const Sample& from, uint32_t axis) {
    const uint64_t unit = axis + 1 == from.shape().size() ? dtype_info(from.dtype()).block_elements : 1;
    const uint64_t size = from.shape()[axis];
    const uint64_t begin = below(size / unit) * unit;
    const uint64_t end = begin + unit + below((size - begin) / unit) * unit;
    const uint64_t in = inner(from.shape(), axis);
    return moved(from, slice(from.recipe, axis, begin, end), [&](uint64_t i) {
      const uint64_t row = i / in / (end - begin);
      return (row * size + begin + i / in % (end - begin)) * in + i % in;
    });
  }

  Sample joined(const Sample& a, const Sample& b, uint32_t axis) {
    Sample sample;
    sample.recipe = concat({a.recipe, b.recipe}, axis);
    const uint64_t a_run = a.shape()[axis] * inner(a.shape(), axis);
    const uint64_t b_run = b.shape()[axis] * inner(b.shape(), axis);
    for (uint64_t row = 0; row < a.elements.size() / a_run; ++row) {
      for (uint64_t i = 0; i < a_run; ++i) sample.elements.push_back(a.elements[row * a_run + i]);
      for (uint64_t i = 0; i < b_run; ++i) sample.elements.push_back(b.elements[row * b_run + i]);
    }
    return sample;
  }

  // With itself or a slice of itself, or with another tensor of the same size along the other axes.
  Sample concatenated(const Sample& from) {
    const auto axis = static_cast<uint32_t>(below(from.shape().size()));
    if (below(3) > 0) return joined(sliced(from, axis), below(2) == 0 ? from : sliced(from, axis), axis);
    Shape shape = from.shape();
    shape[axis] = 1 + below(4);
    if (is_block(from.dtype())) return joined(from, from, axis);
    std::vector<float> values(element_count(shape), 2.5F);
    Sample other;
    other.recipe = constant(shape, values);
    for (const float value : values) other.elements.push_back(from_bits(DType::f32, reference::bits_of(value)));
    return joined(casted(from, DType::f32), other, axis);
  }

  static Sample transposed(const Sample& from) {
    const uint64_t rows = from.shape()[0];
    const uint64_t columns = from.shape()[1];
    return moved(from, transpose(from.recipe), [&](uint64_t i) { return i % rows * columns + i / rows; });
  }

  static Sample reshaped(const Sample& from, const Shape& shape) {
    return moved(from, reshape(from.recipe, shape), [](uint64_t i) { return i; });
  }

  static Sample unpaired(const Sample& from, uint64_t heads) {
    const uint64_t width = from.shape()[1];
    const uint64_t size = from.shape()[0] / heads;
    return moved(from, unpair_rotary_rows(from.recipe, heads), [&](uint64_t i) {
      const uint64_t row = i / width;
      const uint64_t in_head = row % size;
      return (row / size * size + 2 * (in_head % (size / 2)) + in_head / (size / 2)) * width + i % width;
    });
  }

  static Sample casted(const Sample& from, DType dtype) {
    Sample sample = from;
    sample.recipe = cast(from.recipe, dtype);
    if (from.dtype() == dtype) return sample;
    for (Element& element : sample.elements) element = to_dtype(element, dtype);
    return sample;
  }

  static Sample scaled(const Sample& from, float scale, float offset) {
    Sample sample = from;
    sample.recipe = affine(from.recipe, scale, offset);
    for (Element& element : sample.elements) {
      volatile float product = element.value * scale;  // rounded before the sum
      element.value = product + offset;
      element = to_dtype(element, DType::f32);
    }
    return sample;
  }

  // A random factorisation with up to three axes.
  Shape refactored(uint64_t count) {
    Shape shape;
    for (int i = 0; i < 2; ++i) {
      uint64_t factor = 1 + below(count);
      while (count % factor != 0) --factor;
      shape.push_back(factor);
      count /= factor;
    }
    shape.push_back(count);
    return shape;
  }

  Sample changed(const Sample& from) {
    const bool is_matrix = from.shape().size() == 2;
    switch (below(8)) {
      case 0:
      case 1:
        return sliced(from);
      case 2:
        return from.elements.size() < 4000 ? concatenated(from) : sliced(from);
      case 3:
        return is_matrix ? transposed(from) : reshaped(from, {from.shape()[0], inner(from.shape(), 0)});
      case 4: {
        for (const uint64_t heads : {3, 2, 1}) {
          if (is_matrix && from.shape()[0] % (2 * heads) == 0) return unpaired(from, heads);
        }
        return reshaped(from, {from.shape()[0], inner(from.shape(), 0)});
      }
      case 5:
        return reshaped(from, refactored(from.elements.size()));
      case 6:
        return casted(from, std::array{DType::f32, DType::f16, DType::bf16}[below(3)]);
      default:
        return scaled(from, static_cast<float>(below(5)) * 0.3F - 0.6F, static_cast<float>(below(3)) - 1.0F);
    }
  }

  std::mt19937_64 random_;
  ScratchFolder folder_;
  std::string bytes_;
  std::vector<TensorInfo> infos_;
  std::vector<Sample> stored_;
  std::vector<size_t> high_;  // of stored_
};

std::string expected_bytes(const Sample& sample) {
  const DTypeInfo& info = dtype_info(sample.dtype());
  std::string bytes;
  for (size_t i = 0; i < sample.elements.size(); i += info.block_elements) {
    const Element& element = sample.elements[i];
    if (info.block_elements > 1) bytes += element.block;
    if (info.block_elements > 1) continue;
    for (uint32_t b = 0; b < info.block_bytes; ++b) bytes += static_cast<char>(element.bits >> (8 * b) & 0xFF);
  }
  return bytes;
}

uint64_t expected_nans(const Sample& sample) {
  if (is_block(sample.dtype()) || !is_floating(sample.dtype())) return 0;
  uint64_t count = 0;
  for (const Element& element : sample.elements) count += std::isnan(element.value) ? 1 : 0;
  return count;
}

std::string read_range(const std::filesystem::path& path, uint64_t offset, uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  std::string bytes(size, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  return bytes;
}

Plan plan_of(World& world, const std::vector<Sample>& samples) {
  Plan plan;
  for (int f = 0; f < 2; ++f) {
    PlannedFile file;
    file.name = fmt::format("out{}", f);
    file.bytes.push_back({0, "header"});
    file.size = 6;
    for (size_t t = f == 0 ? 0 : samples.size() / 2; t < (f == 0 ? samples.size() / 2 : samples.size()); ++t) {
      file.size += world.below(5);
      file.tensors.push_back({fmt::format("t{}", t), file.size, samples[t].recipe});
      file.size += samples[t].recipe.bytes();
    }
    plan.files.push_back(std::move(file));
  }
  return plan;
}

// Runs the plan with 1 and 4 workers and compares everything with the reference.
void expect_reference(World& world, const std::vector<Sample>& samples, const std::vector<PieceLimits>& all_limits) {
  const Plan plan = plan_of(world, samples);
  std::vector<TensorResult> first;
  for (const uint32_t workers : {1U, 4U}) {
    for (const PieceLimits& limits : all_limits) {
      const std::filesystem::path destination = world.folder() / "bundle";
      OutputDirectory output(destination, true);
      ExecuteOptions options;
      options.workers = workers;
      options.limits = limits;
      const std::vector<TensorResult> results = execute(plan, output, options);
      output.commit();
      ASSERT_EQ(results.size(), samples.size());
      for (size_t i = 0; i < samples.size(); ++i) {
        SCOPED_TRACE(samples[i].recipe.text() + " of " + std::string(dtype_name(samples[i].dtype())));
        const std::string expected = expected_bytes(samples[i]);
        ASSERT_EQ(results[i].bytes, expected.size());
        ASSERT_EQ(read_range(destination / results[i].file, results[i].offset, expected.size()), expected);
        ASSERT_EQ(results[i].digest, digest_of(expected));
        ASSERT_EQ(results[i].nan_count, expected_nans(samples[i]));
        uint64_t overflows = 0;
        for (const Element& element : samples[i].elements) overflows += element.overflows;
        ASSERT_EQ(results[i].overflow_count, overflows);
      }
      ASSERT_EQ(read_range(destination / "out1", 0, 6), "header");
      if (first.empty()) first = results;
      ASSERT_EQ(results, first);
    }
  }
}

class ExecutorProperty : public testing::TestWithParam<uint32_t> {};

TEST_P(ExecutorProperty, RandomRecipesGiveTheBytesDigestsAndCountsOfTheReference) {
  World world(GetParam());
  std::vector<Sample> samples;
  for (int i = 0; i < 40; ++i) samples.push_back(world.any());
  std::vector<PieceLimits> limits{{}};
  for (int i = 0; i < 2; ++i)
    limits.push_back({16 + world.below(300), 8 + world.below(500), 4 + world.below(60), 1 + world.below(5000)});
  expect_reference(world, samples, limits);
}

TEST_P(ExecutorProperty, TilesOfTransposedMatricesGiveTheBytesDigestsAndCountsOfTheReference) {
  World world(GetParam());
  std::vector<Sample> samples;
  for (int i = 0; i < 40; ++i) samples.push_back(world.turned());
  const PieceLimits limits{256, 40 + world.below(300), 64, 1 + world.below(5000)};
  const auto is_tiled = [&](const Sample& sample) { return lower(sample.recipe, limits).tile_columns > 0; };
  EXPECT_GE(std::count_if(samples.begin(), samples.end(), is_tiled), 5);
  expect_reference(world, samples, {limits});
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExecutorProperty, testing::Range(0U, 40U));

}  // namespace
}  // namespace transload
