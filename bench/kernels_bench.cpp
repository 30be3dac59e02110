// Conversion and quantisation kernels on blocks that fit in the L2 cache, for every instruction set of this machine.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "weights/dequantize.h"
#include "weights/kernels.h"
#include "weights/quant_kernels.h"
#include "weights/random.h"

namespace transload {
namespace {

constexpr size_t kValues = 128 << 10;  // 256 KiB of halves
constexpr size_t kChannel = 3072;

std::vector<uint16_t> some_halves() {
  std::vector<float> values(kValues);
  random_values(1, 0.02F, 0, 0, values.size(), values.data());
  std::vector<uint16_t> halves(kValues);
  convert_f32_to_bf16(values.data(), halves.data(), halves.size());
  return halves;
}

// `bytes` is what one pass reads; a rate is bytes read per second. No target: code that is not a vector kernel.
void add(const std::string& name, const std::string& target, size_t bytes, const std::function<void()>& pass) {
  benchmark::RegisterBenchmark((target.empty() ? name : name + "/" + target).c_str(),
                               [target, bytes, pass](benchmark::State& state) {
                                 use_kernel_target(target);
                                 for (auto _ : state) {
                                   pass();
                                   benchmark::ClobberMemory();
                                 }
                                 state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(bytes));
                                 use_kernel_target("");
                               });
}

void add_all(std::vector<uint16_t>& halves, std::vector<uint16_t>& more, std::vector<float>& floats,
             std::vector<std::byte>& blocks) {
  for (const std::string& target : kernel_targets()) {
    add("bf16_to_f16", target, kValues * 2,
        [&] { benchmark::DoNotOptimize(convert_bf16_to_f16(halves.data(), more.data(), kValues)); });
    add("bf16_to_f32", target, kValues * 2, [&] { convert_bf16_to_f32(halves.data(), floats.data(), kValues); });
    add("f16_to_f32", target, kValues * 2, [&] { convert_f16_to_f32(halves.data(), floats.data(), kValues); });
    add("f32_to_f16", target, kValues * 4,
        [&] { benchmark::DoNotOptimize(convert_f32_to_f16(floats.data(), more.data(), kValues)); });
    add("f32_to_bf16", target, kValues * 4,
        [&] { benchmark::DoNotOptimize(convert_f32_to_bf16(floats.data(), more.data(), kValues)); });
    add("count_nan_bf16", target, kValues * 2, [&] { benchmark::DoNotOptimize(count_nan_bf16(halves.data(), kValues)); });
    // One channel of 3,072 values after another: what quantising to the sm80 layout does once they are f32.
    for (const int bits : {8, 4}) {
      add("quantize_int" + std::to_string(bits), target, kValues * 2, [&floats, &more, bits] {
        static std::vector<int8_t> q(kChannel);
        auto* out = reinterpret_cast<uint8_t*>(more.data());
        for (size_t i = 0; i + kChannel <= kValues; i += kChannel) {
          benchmark::DoNotOptimize(max_magnitude_f32(floats.data() + i, kChannel));
          benchmark::DoNotOptimize(quantize_values(floats.data() + i, kChannel, 0.001F, 1, bits, q.data()));
          (bits == 8 ? permute_int8 : permute_int4)(q.data(), kChannel, out + i * static_cast<size_t>(bits) / 8,
                                                    static_cast<size_t>(8 * bits));
        }
      });
    }
    add("transpose_u8", target, kValues, [&] {
      transpose_u8(reinterpret_cast<const uint8_t*>(halves.data()), 4096 + 64, reinterpret_cast<uint8_t*>(more.data()), 32, 32,
                   4096);
    });
    add("transpose_u16", target, kValues * 2, [&] { transpose_u16(halves.data(), 2048, more.data(), 64, 64, 2048); });
  }
  add("random", "", kValues * 4, [&] { random_values(1, 0.02F, 0, 0, kValues, floats.data()); });
  for (const DType dtype : {DType::q4_0, DType::q8_0, DType::q4_k, DType::q6_k}) {
    const DTypeInfo& info = dtype_info(dtype);
    const size_t count = kValues / info.block_elements;
    add("dequantize_" + std::string(info.name), "", count * info.block_bytes,
        [&blocks, &floats, dtype, count] { dequantize(dtype, blocks.data(), count, floats.data()); });
  }
}

}  // namespace
}  // namespace transload

int main(int argc, char** argv) {
  std::vector<uint16_t> halves = transload::some_halves();
  std::vector<uint16_t> more(halves.size());
  std::vector<float> floats(halves.size(), 0.5F);
  std::vector<std::byte> blocks(halves.size() * 2, std::byte{0x2A});
  transload::add_all(halves, more, floats, blocks);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
