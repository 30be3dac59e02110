// contract.json read and refused: every field of the wrong kind, and everything in which graphs, caches and ports may disagree.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>

#include "error_matchers.h"
#include "runtime/contract_fixture.h"
#include "transload/contract.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ReadContract, GivesEveryFieldOfTheFile) {
  FixtureOptions options;
  options.windows = {5, std::nullopt, 5};
  options.steps = {{4, 16}, {1, 16}, {1, 8}};
  const ScratchFolder folder;
  write_fixture(folder, fixture_contract(options), options.inv_freq);
  const BundleContract contract = read_contract(folder.path());
  EXPECT_EQ(contract.folder, folder.path());
  EXPECT_EQ(contract.family, "tiny");
  EXPECT_EQ(contract.hidden_size, 4U);
  EXPECT_EQ(contract.vocab_size, 7U);
  EXPECT_EQ(contract.max_positions, 500U);
  EXPECT_EQ(contract.layers_in_model, 3U);
  EXPECT_TRUE(contract.head);
  EXPECT_FALSE(contract.last_row_only);
  EXPECT_EQ(contract.compute, DType::f32);
  EXPECT_EQ(contract.mask_fill, -1e9F);
  ASSERT_TRUE(contract.embedding.has_value());
  EXPECT_EQ(contract.embedding->file, "weights.bin");
  EXPECT_EQ(contract.bos_token, std::nullopt);
  EXPECT_THAT(contract.eos_tokens, ElementsAre(1, 2));
  EXPECT_EQ(contract.tokenizer, "");
  EXPECT_THAT(contract.rope_rule("sw").inv_freq, ElementsAre(1.0F, 0.25F, 0.0625F));
  EXPECT_THAT([&] { contract.rope_rule("full"); }, Fails(ErrorCode::internal, HasSubstr("'full'")));

  EXPECT_THAT(contract.contexts(), ElementsAre(8U, 16U));
  EXPECT_THAT(contract.queries(16), ElementsAre(1U, 4U));
  EXPECT_THAT(contract.queries(9), IsEmpty());
  EXPECT_EQ(contract.find_step(4, 8), nullptr);
  const StepFile* step = contract.find_step(4, 16);
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->file, "step_q4_c16.onnx");
  ASSERT_EQ(step->contract.caches.size(), 3U);
  EXPECT_EQ(step->contract.caches[0].rule, SlotRule::ring);
  EXPECT_EQ(step->contract.caches[0].slots, 4U);
  EXPECT_EQ(step->contract.caches[1].rule, SlotRule::append);
  EXPECT_EQ(step->contract.caches[1].window, std::nullopt);
  ASSERT_EQ(step->contract.inputs.size(), 11U);
  EXPECT_EQ(step->contract.inputs[1].role, PortRole::rope_cos);
  EXPECT_EQ(step->contract.inputs[5].layer, 0U);
  EXPECT_EQ(step->contract.mask_groups.size(), 2U);
  EXPECT_THAT(step->contract.rope_groups, ElementsAre("sw"));
  EXPECT_EQ(step->contract.end_layer, 3U);
}

TEST(ReadContract, GroupsThatNoLayerUsesAreLeftOutOfTheSteps) {
  FixtureOptions options;
  options.half_rope = true;
  Json json = fixture_contract(options);
  const_cast<Json*>(json.find("masks"))->array().push_back(Json::Object{{"group", "wide"}, {"window", 9}});
  const ScratchFolder folder;
  write_fixture(folder, json, options.inv_freq);
  const BundleContract contract = read_contract(folder.path());
  EXPECT_EQ(contract.steps[0].contract.mask_groups.size(), 2U);
  EXPECT_EQ(contract.steps[0].contract.rope_width, RopeWidth::half);
}

FixtureOptions block_sparse_options() {
  FixtureOptions options;
  options.block_sparse = BlockSparse{.block = 4, .local_blocks = 2, .vertical_stride = 3, .head_step = 1};
  return options;
}

TEST(ReadContract, GivesThePatternAndTheHeadsOfABlockSparseMask) {
  const BundleContract contract = read_fixture(block_sparse_options());
  const StepContract& step = contract.steps[0].contract;
  const MaskGroup* group = find_mask_group(step, "blocksparse");
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->block_sparse, (BlockSparse{4, 2, 3, 1}));
  EXPECT_EQ(group->heads, 4U);
  EXPECT_EQ(group->window, std::nullopt);
  EXPECT_EQ(step.caches[1].rule, SlotRule::append);
  EXPECT_EQ(find_mask_group(step, "sw5")->heads, 1U);
  EXPECT_EQ(find_mask_group(step, "full"), nullptr);
}

// A place in contract.json, e.g. "steps.0.caches.1.slots"; a member that is absent is added.
Json& at(Json& root, std::string_view path) {
  Json* value = &root;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    if (value->is_object() && value->find(key) == nullptr) value->set(key, Json());
    value = value->is_array() ? &value->array().at(std::stoul(key)) : const_cast<Json*>(value->find(key));
    path = dot == std::string_view::npos ? "" : path.substr(dot + 1);
  }
  return *value;
}

void drop(Json& object, std::string_view key) {
  std::erase_if(object.object(), [&](const Json::Member& member) { return member.first == key; });
}

struct Malformed {
  const char* path;  // the field that is replaced; a path that ends in '-' removes it
  Json value;
  ErrorCode code;
  const char* text;
};

void PrintTo(const Malformed& row, std::ostream* out) { *out << row.path << " = " << write_json(row.value, 0); }

class MalformedContract : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedContract, IsRefusedByName) {
  const Malformed& row = GetParam();
  for (const bool roll : {false, true}) {
    FixtureOptions options;
    options.roll = roll;
    Json json = fixture_contract(options);
    const std::string path = row.path;
    if (path.back() == '-') {
      const size_t dot = path.rfind('.');
      Json& object = dot == std::string::npos ? json : at(json, path.substr(0, dot));
      const size_t begin = dot == std::string::npos ? 0 : dot + 1;
      drop(object, path.substr(begin, path.size() - begin - 1));
    } else {
      at(json, path) = row.value;
    }
    const ScratchFolder folder;
    write_fixture(folder, json, options.inv_freq);
    EXPECT_THAT([&] { read_contract(folder.path()); }, Fails(row.code, AllOf(HasSubstr("contract.json: "), HasSubstr(row.text),
                                                                             HasSubstr("got "), HasSubstr("expected "))))
        << (roll ? "roll" : "ring");
  }
}

constexpr ErrorCode kInvalid = ErrorCode::config_invalid;

TEST(ReadContract, RefusesABrokenBlockSparsePattern) {
  const Malformed rows[] = {
      {"masks.1.block_sparse", 4, kInvalid, "block_sparse"},
      {"masks.1.block_sparse.block", 0, kInvalid, "block_sparse.block'"},
      {"masks.1.block_sparse.local_blocks", 0, kInvalid, "block_sparse.local_blocks'"},
      {"masks.1.block_sparse.vertical_stride", 0, kInvalid, "block_sparse.vertical_stride'"},
      {"masks.1.block_sparse.head_step", -1, kInvalid, "block_sparse.head_step'"},
      {"masks.1.block_sparse.heads", 3, kInvalid, "heads of its mask group do not match: got 3, expected a multiple of 2"},
      {"masks.1.block_sparse.heads", 2, kInvalid, "tensor 'mask_blocksparse': step 'step_q1_c16.onnx': shape does not match"},
      {"masks.1.window", 9, kInvalid, "got it with window 9, expected window null"},
  };
  for (const Malformed& row : rows) {
    Json json = fixture_contract(block_sparse_options());
    at(json, row.path) = row.value;
    const ScratchFolder folder;
    write_fixture(folder, json, block_sparse_options().inv_freq);
    EXPECT_THAT([&] { read_contract(folder.path()); }, Fails(row.code, AllOf(HasSubstr("contract.json: "), HasSubstr(row.text))))
        << row.path;
  }
}
constexpr ErrorCode kMissing = ErrorCode::config_missing;

INSTANTIATE_TEST_SUITE_P(
    Fields, MalformedContract,
    testing::Values(
        Malformed{"format", "other", kInvalid, "field 'format': unknown format: got 'other'"},
        Malformed{"format", 1, kInvalid, "field 'format': wrong type: got 1, expected a string"},
        Malformed{"version", 2, ErrorCode::config_unsupported, "field 'version': unknown version: got 2, expected 1"},
        Malformed{"version", true, kInvalid, "field 'version': wrong type: got true"},
        Malformed{"version-", {}, kMissing, "field 'version': missing"},
        Malformed{"family", 3, kInvalid, "field 'family': wrong type"},
        Malformed{"hidden_size", 0, kInvalid, "field 'hidden_size': out of range: got 0"},
        Malformed{"hidden_size", 4.0, kInvalid, "field 'hidden_size': wrong type: got 4.0"},
        Malformed{"vocab_size", int64_t{1} << 40, kInvalid, "field 'vocab_size': out of range"},
        Malformed{"max_positions", -1, kInvalid, "field 'max_positions': out of range: got -1"},
        Malformed{"layers", Json::Array{}, kInvalid, "field 'layers': wrong type: got []"},
        Malformed{"layers.first-", {}, kMissing, "field 'layers.first': missing"},
        Malformed{"layers.first", 2, kInvalid, "field 'layers.end': not a slice: got 2 to 2"},
        Malformed{"layers.end", 3, kInvalid, "field 'layers.end': not a slice: got 0 to 3, expected layers of 2"},
        Malformed{"layers.end", 1, kInvalid, "number of caches does not match: got 2, expected 1"},
        Malformed{"head", 1, kInvalid, "field 'head': wrong type: got 1, expected true or false"},
        Malformed{"head", false, kInvalid, "tensor 'logits': step 'step_q1_c16.onnx': unexpected or repeated role"},
        Malformed{"logits", "some", kInvalid, "field 'logits': unknown value: got 'some', expected one of 'all', 'last'"},
        Malformed{"logits", "last", kInvalid, "tensor 'logits': step 'step_q4_c16.onnx': shape does not match: got [4,7]"},
        Malformed{"cache_layout", "both", kInvalid, "field 'cache_layout': unknown value"},
        Malformed{"compute", "bf16", kInvalid, "field 'compute': unknown value: got 'bf16'"},
        Malformed{"compute", "f16", kInvalid,
                  "field 'mask_fill': out of range: got -1000000000, expected a negative number of f16"},
        Malformed{"weights", "q4", kInvalid, "field 'weights': unknown value"},
        Malformed{"mask_fill", 0, kInvalid, "field 'mask_fill': out of range: got 0"},
        Malformed{"mask_fill", "-1", kInvalid, "field 'mask_fill': wrong type"},
        Malformed{"mask_fill", -1e300, kInvalid, "field 'mask_fill': out of range: got -inf"},
        Malformed{"input_form", "words", kInvalid, "field 'input_form': unknown value"},
        Malformed{"input_form", "ids", kInvalid, "field 'embedding': does not match 'input_form': got an object, expected null"},
        Malformed{"embedding", {}, kInvalid, "field 'embedding': does not match 'input_form': got null"},
        Malformed{"embedding-", {}, kMissing, "field 'embedding': missing"},
        Malformed{"embedding.file", "../weights.bin", kInvalid, "field 'embedding.file': not a plain file name"},
        Malformed{"embedding.offset", -4, kInvalid, "field 'embedding.offset': out of range"},
        Malformed{"embedding.dtype", "i32", kInvalid, "field 'embedding.dtype': unknown value"},
        Malformed{"embedding.shape", Json::Array{7}, kInvalid,
                  "field 'embedding.shape': does not match: got [7], expected [7,4]"},
        Malformed{"embedding.shape", Json::Array{7, "4"}, kInvalid, "field 'embedding.shape': wrong type"},
        Malformed{"bos_token", -1, kInvalid, "field 'bos_token': out of range"},
        Malformed{"eos_tokens", 2, kInvalid, "field 'eos_tokens': wrong type: got 2, expected a list of integers"},
        Malformed{"eos_tokens", Json::Array{1, Json()}, kInvalid, "field 'eos_tokens': wrong type: got null"},
        Malformed{"tokenizer", "a/b", kInvalid, "field 'tokenizer': not a plain file name: got 'a/b'"},
        Malformed{"tokenizer", "..", kInvalid, "field 'tokenizer': not a plain file name"},
        Malformed{"tokenizer", "", kInvalid, "field 'tokenizer': not a plain file name"},
        Malformed{"tokenizer", std::string("a\0b", 3), kInvalid, "field 'tokenizer': not a plain file name: got 'a\\x00b'"},
        Malformed{"tokenizer", "gone.json", ErrorCode::file_missing, "expected 'gone.json'"}));

INSTANTIATE_TEST_SUITE_P(
    Groups, MalformedContract,
    testing::Values(
        Malformed{"rope.0.group", "", kInvalid, "field 'rope[0].group': empty"},
        Malformed{"rope.0.group", "full", kInvalid, "cache 0: unknown rope group: got 'sw'"},
        Malformed{"rope.0.width", 5, kInvalid, "field 'rope[0].width': odd: got 5"},
        Malformed{"rope.0.width", 8, kInvalid, "field 'rope[0].table_width': does not match: got 6, expected width 8 or half"},
        Malformed{"rope.0.table_width", 3, kInvalid, "tensor 'cos_sw': step 'step_q1_c16.onnx': shape does not match"},
        Malformed{"rope.0.attention_factor", 0, kInvalid, "field 'rope[0].attention_factor': out of range"},
        Malformed{"rope.0", 3, kInvalid, "field 'rope[0]': wrong type: got 3, expected an object"},
        Malformed{"rope", Json::Array{}, kInvalid, "cache 0: unknown rope group"},
        Malformed{"masks.0.window", 6, kInvalid,
                  "cache 0: window does not match its mask group: got window 5, expected window 6"},
        Malformed{"masks.0.group", "full", kInvalid, "field 'masks[1].group': repeated: got 'full' twice"},
        Malformed{"masks.1.group", "wide", kInvalid, "cache 1: unknown mask group: got 'full'"},
        Malformed{"masks.1.window", 7, kInvalid, "cache 1: window does not match its mask group: got full attention"},
        Malformed{"masks.1.window-", {}, kMissing, "field 'masks[1].window': missing"}));

INSTANTIATE_TEST_SUITE_P(
    Steps, MalformedContract,
    testing::Values(
        Malformed{"steps", Json::Array{}, kInvalid, "field 'steps': no graphs: got 0"},
        Malformed{"steps.0.file", "/etc/passwd", kInvalid, "field 'steps[0].file': not a plain file name"},
        Malformed{"steps.0.file", "step_q4_c16.onnx", kInvalid, "field 'steps': repeated file: got 'step_q4_c16.onnx' twice"},
        Malformed{"steps.1.q", 1, kInvalid, "field 'steps': repeated graph: got q 1 context 16 twice"},
        Malformed{"steps.0.q", 2, kInvalid, "new entries do not match: got"},
        Malformed{"steps.0.context", 17, kInvalid, "cache 1: slots do not match rule, window and context: got 16, expected 17"},
        Malformed{"steps.0.context", 3, kInvalid, "cache 0: slots do not match rule, window and context"},
        Malformed{"steps.0.caches.0.layer", 1, kInvalid, "cache 0: layers out of order: got 1, expected 0"},
        Malformed{"steps.0.caches.1.model_layer", 7, kInvalid, "cache 1: layer of the model does not match: got 7, expected 1"},
        Malformed{"steps.0.caches.0.rule", "append", kInvalid, "cache 0: slot rule does not match: got 'append'"},
        Malformed{"steps.0.caches.1.rule", "ring", kInvalid, "cache 1: slot rule does not match: got 'ring'"},
        Malformed{"steps.0.caches.0.rule", "heap", kInvalid, "field 'steps[0].caches[0].rule': unknown value"},
        Malformed{"steps.0.caches.0.mask_group", "full", kInvalid, "cache 0: window does not match its mask group"},
        Malformed{"steps.0.caches.0.window", 0, kInvalid, "field 'steps[0].caches[0].window': out of range"},
        Malformed{"steps.0.caches.0.slots", 9, kInvalid, "cache 0: slots do not match rule, window and context: got 9"},
        Malformed{"steps.0.caches.0.new_entries", 3, kInvalid, "cache 0: new entries do not match: got 3"},
        Malformed{"steps.0.caches.1.head_dim", 5, kInvalid, "cache 1: rotary width exceeds the head: got 6, expected 5"},
        Malformed{"steps.0.caches.1.kv_heads", 3, kInvalid, "shape does not match: got [1,2,16,6], expected [1,3,16,6]"},
        Malformed{"steps.1.caches.1.kv_heads", 3, kInvalid, "cache 1: differs from that of 'step_q1_c16.onnx': got 3 heads"},
        Malformed{"steps.1.caches.0.rope_group", "", kInvalid, "cache 0: differs from that of 'step_q1_c16.onnx'"},
        Malformed{"steps.0.caches", Json::Array{}, kInvalid, "number of caches does not match: got 0, expected 2"}));

INSTANTIATE_TEST_SUITE_P(
    Ports, MalformedContract,
    testing::Values(
        Malformed{"steps.0.inputs.0.name", "", kInvalid, "field 'steps[0].inputs[0].name': empty"},
        Malformed{"steps.0.inputs.0.name", "logits", kInvalid, "repeated tensor name: got 'logits'"},
        Malformed{"steps.0.inputs.0.role", "logits", kInvalid, "field 'steps[0].inputs[0].role': unknown value: got 'logits'"},
        Malformed{"steps.0.inputs.0.role", "token_ids", kInvalid,
                  "tensor 'x': step 'step_q1_c16.onnx': unexpected or repeated role"},
        Malformed{"steps.0.inputs.0.dtype", "f64", kInvalid, "field 'steps[0].inputs[0].dtype': unknown value"},
        Malformed{"steps.0.inputs.0.dtype", "f16", kInvalid,
                  "tensor 'x': step 'step_q1_c16.onnx': dtype does not match: got f16"},
        Malformed{"steps.0.inputs.0.shape", Json::Array{1, 1, 5}, kInvalid,
                  "tensor 'x': step 'step_q1_c16.onnx': shape does not match"},
        Malformed{"steps.0.inputs.0.shape", Json::Array{1, 0, 4}, kInvalid,
                  "field 'steps[0].inputs[0].shape': out of range: got 0"},
        Malformed{"steps.0.inputs.1.group", "full", kInvalid, "tensor 'cos_sw': step 'step_q1_c16.onnx': unexpected or repeated"},
        Malformed{"steps.0.inputs.2.role", "rope_cos", kInvalid,
                  "tensor 'sin_sw': step 'step_q1_c16.onnx': unexpected or repeated"},
        Malformed{"steps.0.inputs.3.group", 3, kInvalid, "field 'steps[0].inputs[3].group': wrong type"},
        Malformed{"steps.0.inputs.3.layer", 0, kInvalid,
                  "tensor 'mask_sw5': step 'step_q1_c16.onnx': 'mask' tensor of the wrong kind: got layer 0"},
        Malformed{"steps.0.inputs.5.layer", 1, kInvalid, "tensor 'k_cache_0': step 'step_q1_c16.onnx': shape does not match"},
        Malformed{"steps.0.inputs.5.layer-", {}, kInvalid, "'k_cache' tensor of the wrong kind: got no layer, expected a layer"},
        Malformed{"steps.0.inputs.7.role", "v_cache", kInvalid,
                  "tensor 'v_cache_1': step 'step_q1_c16.onnx': unexpected or repeated"},
        Malformed{"steps.0.outputs.1.role", "k_cache", kInvalid, "field 'steps[0].outputs[1].role': unknown value"},
        Malformed{"steps.0.outputs.1.shape", Json::Array{2, 1, 6}, kInvalid, "tensor 'k_new_0': step 'step_q1_c16.onnx': shape"},
        Malformed{"steps.0.outputs", Json::Array{}, kInvalid, "missing tensor: got none, expected 'logits'"},
        Malformed{"steps.0.inputs", Json::Object{}, kInvalid, "field 'steps[0].inputs': wrong type: got {}"}));

TEST(ReadContract, RefusesMaskColumnsThatDoNotMatchTheSlotRule) {
  for (const bool roll : {false, true}) {
    FixtureOptions options;
    options.roll = roll;
    Json json = fixture_contract(options);
    at(json, "steps.1.inputs.3.shape.3") = roll ? 9 : 7;
    const ScratchFolder folder;
    write_fixture(folder, json, options.inv_freq);
    EXPECT_THAT([&] { read_contract(folder.path()); },
                Fails(kInvalid, HasSubstr("tensor 'mask_sw5': step 'step_q4_c16.onnx': shape does not match: got [1,1,4,")));
  }
}

TEST(ReadContract, RefusesWhatIsNoBundleAndNoJson) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { read_contract(folder.path()); }, Fails(ErrorCode::file_missing, HasSubstr("contract.json")));
  EXPECT_THAT([&] { read_contract(folder.path() / "none"); }, Fails(ErrorCode::file_missing, HasSubstr("contract.json")));
  folder.write("contract.json", "{\"format\": }");
  EXPECT_THAT([&] { read_contract(folder.path()); }, Fails(ErrorCode::bad_json, HasSubstr("contract.json@")));
  folder.write("contract.json", "[1]");
  EXPECT_THAT([&] { read_contract(folder.path()); }, Fails(kInvalid, HasSubstr("wrong type: got [1], expected an object")));
}

TEST(ReadContract, NamesEveryFileThatIsMissing) {
  const FixtureOptions options;
  const ScratchFolder folder;
  write_fixture(folder, fixture_contract(options), options.inv_freq);
  std::filesystem::remove(folder.path() / "weights.bin");
  std::filesystem::remove(folder.path() / "step_q4_c16.onnx");
  EXPECT_THAT([&] { read_contract(folder.path()); },
              Fails(ErrorCode::file_missing, AllOf(HasSubstr("'weights.bin'"), HasSubstr("'step_q4_c16.onnx'"))));
}

TEST(ReadContract, RefusesRotaryTablesThatDoNotFit) {
  const FixtureOptions options;
  const ScratchFolder folder;
  write_fixture(folder, fixture_contract(options), options.inv_freq);
  const auto read = [&] { read_contract(folder.path()); };
  folder.write("host.safetensors", fixture_tables({1, 2, 3}, "rope_full_inv_freq"));
  EXPECT_THAT(read, Fails(ErrorCode::tensor_missing, HasSubstr("host.safetensors: tensor 'rope_sw_inv_freq': missing")));
  folder.write("host.safetensors", fixture_tables({1, 2}));
  EXPECT_THAT(read, Fails(ErrorCode::shape_mismatch,
                          HasSubstr("tensor 'rope_sw_inv_freq': shape does not match: got [2], expected [3]")));
  folder.write("host.safetensors", fixture_tables({1, std::numeric_limits<float>::quiet_NaN(), 3}));
  EXPECT_THAT(read, Fails(kInvalid, HasSubstr("tensor 'rope_sw_inv_freq': frequency is not finite: got nan")));
  folder.write("host.safetensors",
               safetensors_bytes(R"({"rope_sw_inv_freq":{"dtype":"F16","shape":[3],"data_offsets":[0,6]}})", 6));
  EXPECT_THAT(read, Fails(ErrorCode::dtype_mismatch, HasSubstr("got f16, expected f32")));
  folder.write("host.safetensors", "short");
  EXPECT_THAT(read, Fails(ErrorCode::bad_header, HasSubstr("host.safetensors")));
  std::filesystem::remove(folder.path() / "host.safetensors");
  EXPECT_THAT(read, Fails(ErrorCode::file_missing, HasSubstr("host.safetensors")));
}

}  // namespace
}  // namespace transload
