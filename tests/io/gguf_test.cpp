// The GGUF reader: what it reads from whole files, and every way in which a file can lie.
#include "io/gguf.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "error_matchers.h"
#include "io/hash.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;

template <typename Number>
std::string le(Number value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
std::string text(const std::string& value) { return le<uint64_t>(value.size()) + value; }

// Value types and tensor types by the numbers of the format.
enum : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

std::string record(const std::string& key, uint32_t type, const std::string& value) { return text(key) + le(type) + value; }
std::string array_of(uint32_t type, uint64_t count, const std::string& elements) { return le(type) + le(count) + elements; }
std::string tensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
  std::string bytes = text(name) + le(static_cast<uint32_t>(dimensions.size()));
  for (const uint64_t dimension : dimensions) bytes += le(dimension);
  return bytes + le(type) + le(offset);
}

// A file put together from its parts; the counts are those of the parts unless a test overrides them.
struct GgufParts {
  std::string magic = "GGUF";
  std::string version = le<uint32_t>(3);
  std::vector<std::string> records;
  std::vector<std::string> tensors;
  std::string data;
  uint64_t alignment = 32;
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> record_count;

  std::string header() const {
    std::string bytes = magic + version + le(tensor_count.value_or(tensors.size())) + le(record_count.value_or(records.size()));
    for (const auto& part : records) bytes += part;
    for (const auto& part : tensors) bytes += part;
    return bytes;
  }
  std::string file() const {
    std::string bytes = header();
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    return bytes + data;
  }
};

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes, const std::string& name = "model.gguf") {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string folder = std::string(test->test_suite_name()) + "_" + test->name();
    for (char& letter : folder) letter = letter == '/' ? '_' : letter;
    folder_ = std::filesystem::path(testing::TempDir()) / ("gguf_test_" + folder);
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    file_ = InputFile::open(folder_ / name);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  ~TemporaryFile() { std::filesystem::remove_all(folder_); }
  const std::shared_ptr<const InputFile>& file() const { return file_; }

 private:
  std::filesystem::path folder_;
  std::shared_ptr<const InputFile> file_;
};

GgufHeader read_bytes(const std::string& bytes, const std::string& name = "model.gguf") {
  const TemporaryFile temporary(bytes, name);
  return read_gguf(temporary.file());
}

// Two tensors and a few records: what the malformed rows change.
GgufParts small_model() {
  GgufParts parts;
  parts.records = {record("general.architecture", string, text("llama")), record("llama.block_count", u32, le<uint32_t>(2)),
                   record("tokenizer.ggml.model", string, text("gpt2"))};
  parts.tensors = {tensor("token_embd.weight", {32, 4}, 8, 0), tensor("output_norm.weight", {32}, 0, 160)};
  parts.data = std::string(160 + 128, 'd');
  return parts;
}

TEST(Gguf, ReadsATensorTableWithShapesOutermostFirstAndAbsoluteOffsets) {
  const GgufParts parts = small_model();
  const uint64_t data_begin = parts.file().size() - parts.data.size();
  const GgufHeader header = read_bytes(parts.file());
  ASSERT_EQ(header.tensors.size(), 2U);
  EXPECT_EQ(header.tensors[0].name, "token_embd.weight");
  EXPECT_EQ(header.tensors[0].dtype, DType::q8_0);
  EXPECT_EQ(header.tensors[0].shape, (Shape{4, 32}));
  EXPECT_EQ(header.tensors[0].offset, data_begin);
  EXPECT_EQ(header.tensors[0].bytes, 4U * 34);
  EXPECT_EQ(header.tensors[1].dtype, DType::f32);
  EXPECT_EQ(header.tensors[1].shape, Shape{32});
  EXPECT_EQ(header.tensors[1].offset, data_begin + 160);
  EXPECT_EQ(header.tensors[1].file->name(), "model.gguf");
}

TEST(Gguf, ReadsEveryValueType) {
  GgufParts parts;
  parts.records = {
      record("u8", u8, le<uint8_t>(255)),
      record("i8", i8, le<int8_t>(-128)),
      record("u16", u16, le<uint16_t>(65535)),
      record("i16", i16, le<int16_t>(-32768)),
      record("u32", u32, le<uint32_t>(4294967295U)),
      record("i32", i32, le<int32_t>(-5)),
      record("f32", f32, le(0.25F)),
      record("boolean", boolean, le<uint8_t>(1)),
      record("string", string, text("h\xC3\xA9")),
      record("array", array, array_of(i32, 3, le(1) + le(-2) + le(3))),
      record("u64", u64, le<uint64_t>(uint64_t{1} << 62)),
      record("i64", i64, le(std::numeric_limits<int64_t>::min())),
      record("f64", f64, le(1e-300)),
      record("strings", array, array_of(string, 2, text("a") + text(""))),
      record("empty", array, array_of(u8, 0, "")),
  };
  const GgufHeader header = read_bytes(parts.file());
  EXPECT_EQ(header.metadata, Json(Json::Object{{"u8", 255},
                                               {"i8", -128},
                                               {"u16", 65535},
                                               {"i16", -32768},
                                               {"u32", int64_t{4294967295}},
                                               {"i32", -5},
                                               {"f32", 0.25},
                                               {"boolean", true},
                                               {"string", "h\xC3\xA9"},
                                               {"array", Json::Array{1, -2, 3}},
                                               {"u64", int64_t{1} << 62},
                                               {"i64", std::numeric_limits<int64_t>::min()},
                                               {"f64", 1e-300},
                                               {"strings", Json::Array{"a", ""}},
                                               {"empty", Json::Array{}}}));
}

TEST(Gguf, WhatJsonCannotHoldIsNull) {
  GgufParts parts;
  parts.records = {record("infinity", f32, le(std::numeric_limits<float>::infinity())),
                   record("nan", f64, le(std::numeric_limits<double>::quiet_NaN()))};
  // Lone continuation byte, overlong '/', surrogate, above U+10FFFF, cut sequence.
  const std::vector<std::string> bad_texts = {"\x80", "\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "ab\xE2\x82"};
  for (size_t i = 0; i < bad_texts.size(); ++i) {
    parts.records.push_back(record("text" + std::to_string(i), string, text(bad_texts[i])));
  }
  parts.records.push_back(record("good", string, text("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\xF0\x90\x80\x80\xE0\xA0\x80")));
  const GgufHeader header = read_bytes(parts.file());
  const auto& members = header.metadata.object();
  ASSERT_EQ(members.size(), 2 + bad_texts.size() + 1);
  for (size_t i = 0; i + 1 < members.size(); ++i) EXPECT_TRUE(members[i].second.is_null()) << members[i].first;
  EXPECT_TRUE(members.back().second.is_string());
}

TEST(Gguf, ArraysOfMoreThan1024ElementsAreSkipped) {
  std::string strings;
  std::string numbers;
  for (int i = 0; i < 1025; ++i) {
    strings += text("token" + std::to_string(i));
    numbers += le(i);
  }
  GgufParts parts = small_model();
  parts.records.push_back(record("tokenizer.ggml.tokens", array, array_of(string, 1025, strings)));
  parts.records.push_back(record("long", array, array_of(i32, 1025, numbers)));
  parts.records.push_back(record("kept", array, array_of(i32, 1024, numbers.substr(0, 4096))));
  const GgufHeader header = read_bytes(parts.file());
  EXPECT_TRUE(header.metadata.find("tokenizer.ggml.tokens")->is_null());
  EXPECT_TRUE(header.metadata.find("long")->is_null());
  EXPECT_EQ(header.metadata.find("kept")->array().size(), 1024U);
  EXPECT_EQ(header.metadata.find("kept")->array().back(), Json(1023));
}

TEST(Gguf, AVersion2FileReadsLikeVersion3) {
  GgufParts parts = small_model();
  parts.version = le<uint32_t>(2);
  EXPECT_EQ(read_bytes(parts.file()).tensors.size(), 2U);
}

TEST(Gguf, AlignmentMovesTheData) {
  GgufParts parts = small_model();
  parts.records.push_back(record("general.alignment", u32, le<uint32_t>(512)));
  parts.alignment = 512;
  parts.tensors[1] = tensor("output_norm.weight", {32}, 0, 512);
  parts.data = std::string(512 + 128, 'd');
  const GgufHeader header = read_bytes(parts.file());
  EXPECT_EQ(header.tensors[0].offset, 512U);
  EXPECT_EQ(header.tensors[1].offset, 1024U);
}

TEST(Gguf, RawTokenizerRecordsMakeAFileOfTheirOwn) {
  GgufParts parts = small_model();
  std::string strings;
  for (int i = 0; i < 100000; ++i) strings += text("token" + std::to_string(i));  // larger than the read buffer
  parts.records.push_back(record("tokenizer.ggml.tokens", array, array_of(string, 100000, strings)));
  parts.records.push_back(record("llama.context_length", u32, le<uint32_t>(64)));
  parts.records.push_back(record("tokenizer.ggml.eos_token_id", u32, le<uint32_t>(7)));
  const std::string bytes = parts.file();
  const GgufHeader header = read_bytes(bytes);
  EXPECT_EQ(header.tokenizer_record_count, 4U);
  EXPECT_EQ(header.tokenizer_records.size(), 3U);  // neighbours are joined

  std::string copy = gguf_tokenizer_header(header.tokenizer_record_count);
  EXPECT_EQ(copy.size(), 24U);
  for (const auto& [offset, count] : header.tokenizer_records) copy += bytes.substr(offset, count);
  const GgufHeader again = read_bytes(copy);
  EXPECT_TRUE(again.tensors.empty());
  EXPECT_EQ(again.metadata, Json(Json::Object{{"general.architecture", "llama"},
                                              {"tokenizer.ggml.model", "gpt2"},
                                              {"tokenizer.ggml.tokens", Json()},
                                              {"tokenizer.ggml.eos_token_id", 7}}));
}

TEST(Gguf, TheDigestIsThatOfTheHeaderBytes) {
  GgufParts parts = small_model();
  std::string numbers(400000, 'x');  // crosses the read buffer
  parts.records.push_back(record("long", array, array_of(u8, numbers.size(), numbers)));
  const std::string digest = digest_of(parts.header());
  EXPECT_EQ(read_bytes(parts.file()).digest, digest);
  parts.data[5] = 'e';
  EXPECT_EQ(read_bytes(parts.file()).digest, digest);
  parts.records[1] = record("llama.block_count", u32, le<uint32_t>(3));
  EXPECT_NE(read_bytes(parts.file()).digest, digest);
}

// The figures are those that gguf.GGUFReader of the Python package prints.
TEST(Gguf, ReadsFilesOfThePythonPackage) {
  const GgufHeader header = read_gguf(InputFile::open(TRANSLOAD_TEST_DATA "/decoders/llama_gguf_q8_0/model.gguf"));
  EXPECT_EQ(header.metadata.object().size(), 13U);
  EXPECT_EQ(header.metadata.find("general.architecture")->string(), "llama");
  EXPECT_EQ(header.metadata.find("llama.attention.head_count_kv")->integer(), 2);
  EXPECT_EQ(header.metadata.find("llama.attention.layer_norm_rms_epsilon")->number(), double{1e-6F});
  EXPECT_EQ(header.tokenizer_record_count, 1U);
  ASSERT_EQ(header.tensors.size(), 39U);
  EXPECT_EQ(header.tensors[0].name, "token_embd.weight");
  EXPECT_EQ(header.tensors[0].dtype, DType::f16);
  EXPECT_EQ(header.tensors[0].shape, (Shape{256, 64}));
  EXPECT_EQ(header.tensors[0].offset, 2848U);
  EXPECT_EQ(header.tensors[2].name, "blk.0.attn_k.weight");
  EXPECT_EQ(header.tensors[2].dtype, DType::q8_0);
  EXPECT_EQ(header.tensors[2].shape, (Shape{32, 64}));
  EXPECT_EQ(header.tensors[2].offset, 39968U);
  EXPECT_EQ(header.tensors[2].bytes, 2176U);
  EXPECT_EQ(header.tensors[38].name, "output.weight");
  EXPECT_EQ(header.tensors[38].offset, 220704U);

  const GgufHeader halves = read_gguf(InputFile::open(TRANSLOAD_TEST_DATA "/decoders/llama_gguf_f16/model.gguf"));
  ASSERT_EQ(halves.tensors.size(), 38U);
  EXPECT_EQ(halves.tensors[37].name, "output_norm.weight");
  EXPECT_EQ(halves.tensors[37].dtype, DType::f32);
  EXPECT_EQ(halves.tensors[37].offset, 381664U);
}

TEST(Gguf, TruncationAtEveryByteIsAnError) {
  const std::string whole = small_model().file();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THROW(read_bytes(whole.substr(0, bytes)), Error) << "cut to " << bytes << " bytes";
  }
  EXPECT_NO_THROW(read_bytes(whole));
}

TEST(Gguf, EveryTypeThatCannotBeDecodedIsRefusedByName) {
  const std::vector<std::pair<uint32_t, std::string>> types = {{4, "Q4_2"},
                                                               {5, "Q4_3"},
                                                               {9, "Q8_1"},
                                                               {15, "Q8_K"},
                                                               {16, "IQ2_XXS"},
                                                               {17, "IQ2_XS"},
                                                               {18, "IQ3_XXS"},
                                                               {19, "IQ1_S"},
                                                               {20, "IQ4_NL"},
                                                               {21, "IQ3_S"},
                                                               {22, "IQ2_S"},
                                                               {23, "IQ4_XS"},
                                                               {29, "IQ1_M"},
                                                               {31, "Q4_0_4_4"},
                                                               {34, "TQ1_0"},
                                                               {35, "TQ2_0"},
                                                               {36, "IQ4_NL_4_4"},
                                                               {40, "NVFP4"},
                                                               {41, "Q1_0"},
                                                               {42, "the unknown type 42"},
                                                               {4294967295U, "the unknown type 4294967295"}};
  for (const auto& [id, name] : types) {
    GgufParts parts = small_model();
    parts.tensors[0] = tensor("token_embd.weight", {256, 4}, id, 0);
    EXPECT_THAT([&] { read_bytes(parts.file()); },
                Fails(ErrorCode::dtype_unsupported, AllOf(HasSubstr("model.gguf@"), HasSubstr("tensor 'token_embd.weight'"),
                                                          HasSubstr("got " + name + ", expected"))));
  }
}

TEST(Gguf, EveryTypeThatCanBeDecodedIsRead) {
  const std::vector<std::pair<uint32_t, DType>> types = {
      {0, DType::f32},   {1, DType::f16},   {2, DType::q4_0},  {3, DType::q4_1},  {6, DType::q5_0},
      {7, DType::q5_1},  {8, DType::q8_0},  {10, DType::q2_k}, {11, DType::q3_k}, {12, DType::q4_k},
      {13, DType::q5_k}, {14, DType::q6_k}, {24, DType::i8},   {25, DType::i16},  {26, DType::i32},
      {27, DType::i64},  {28, DType::f64},  {30, DType::bf16}, {39, DType::mxfp4}};
  for (const auto& [id, dtype] : types) {
    GgufParts parts;
    parts.tensors = {tensor("x", {256, 3}, id, 0)};
    parts.data = std::string(tensor_bytes(dtype, {3, 256}), 'd');
    EXPECT_EQ(read_bytes(parts.file()).tensors.at(0).dtype, dtype);
  }
}

TEST(Gguf, APartOfASplitModelIsRefusedWithTheRemedy) {
  const auto refusal = Fails(ErrorCode::config_unsupported, HasSubstr("gguf-split --merge"));
  GgufParts counted = small_model();
  counted.records.push_back(record("split.count", u16, le<uint16_t>(3)));
  EXPECT_THAT([&] { read_bytes(counted.file()); }, refusal);

  GgufParts uncounted = small_model();
  uncounted.records.push_back(record("split.no", u16, le<uint16_t>(0)));
  EXPECT_THAT([&] { read_bytes(uncounted.file(), "model-00001-of-00003.gguf"); }, refusal);
  EXPECT_NO_THROW(read_bytes(uncounted.file(), "model.gguf"));

  GgufParts single = small_model();
  single.records.push_back(record("split.count", u16, le<uint16_t>(1)));
  EXPECT_NO_THROW(read_bytes(single.file(), "model-00001-of-00001.gguf"));
  EXPECT_NO_THROW(read_bytes(small_model().file(), "model-00001-of-00003.gguf"));
}

TEST(Gguf, HundredsOfThousandsOfNamesAreCheckedInLinearTimeAndWithinTheMemoryBound) {
  GgufParts parts;
  std::string records;
  const uint64_t count = 600000;
  for (uint64_t i = 0; i < count; ++i) records += record("key" + std::to_string(i), u8, le<uint8_t>(0));
  parts.records = {records};
  parts.record_count = count;
  EXPECT_THAT([&] { read_bytes(parts.file()); },
              Fails(ErrorCode::bad_header, HasSubstr("to keep in memory, expected at most 67108864")));
}

TEST(Gguf, ASparseFileThatClaimsAHugeStringCostsNoMemory) {
  GgufParts parts;
  parts.records = {record("huge", string, le(uint64_t{400} << 20))};
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "gguf_test_sparse.gguf";
  std::ofstream(path, std::ios::binary) << parts.header();
  std::filesystem::resize_file(path, uint64_t{1} << 40);
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_THAT([&] { read_gguf(InputFile::open(path)); },
              Fails(ErrorCode::bad_header, HasSubstr("while reading metadata key 'huge'")));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  std::filesystem::remove(path);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 8 * 1024);  // KiB
}

struct MalformedRow {
  std::string name;
  std::function<void(GgufParts&)> change;
  ErrorCode code;
  std::string message;
};
void PrintTo(const MalformedRow& row, std::ostream* out) { *out << row.name; }

class MalformedGguf : public testing::TestWithParam<MalformedRow> {};

TEST_P(MalformedGguf, IsRefusedNamingFileOffsetGotAndExpected) {
  GgufParts parts = small_model();
  GetParam().change(parts);
  EXPECT_THAT([&] { read_bytes(parts.file()); },
              Fails(GetParam().code,
                    AllOf(HasSubstr("model.gguf@"), HasSubstr("got "), HasSubstr("expected "), HasSubstr(GetParam().message))));
}

const MalformedRow kRows[] = {
    {"BadMagic", [](auto& p) { p.magic = "GGML"; }, ErrorCode::bad_header, "@0: not a GGUF file: got 'GGML', expected 'GGUF'"},
    {"Version1", [](auto& p) { p.version = le<uint32_t>(1); }, ErrorCode::config_unsupported,
     "@4: GGUF version: got 1, expected 2 or 3"},
    {"Version4", [](auto& p) { p.version = le<uint32_t>(4); }, ErrorCode::config_unsupported, "got 4, expected 2 or 3"},
    {"BigEndian", [](auto& p) { p.version = le<uint32_t>(0x03000000); }, ErrorCode::config_unsupported,
     "@4: big-endian GGUF: got version 3 byte-swapped"},
    {"AbsurdRecordCount", [](auto& p) { p.record_count = uint64_t{1} << 60; }, ErrorCode::bad_header,
     "@16: metadata count: got 1152921504606846976, expected at most "},
    {"AbsurdTensorCount", [](auto& p) { p.tensor_count = ~uint64_t{0}; }, ErrorCode::bad_header,
     "@8: tensor count: got 18446744073709551615, expected at most "},
    {"AbsurdKeyLength", [](auto& p) { p.records[0] = le(uint64_t{1} << 63); }, ErrorCode::bad_header,
     "@24: length of a metadata key: got 9223372036854775808, expected 1 to 65535"},
    {"EmptyKey", [](auto& p) { p.records[0] = record("", u8, le<uint8_t>(0)); }, ErrorCode::bad_header,
     "got 0, expected 1 to 65535"},
    {"KeyThatIsNotUtf8", [](auto& p) { p.records[0] = record("\xFF", u8, le<uint8_t>(0)); }, ErrorCode::bad_header,
     "@32: metadata key: got bytes that are not UTF-8"},
    {"AbsurdStringLength", [](auto& p) { p.records[0] = record("k", string, le(~uint64_t{0})); }, ErrorCode::bad_header,
     "@37: string length: got 18446744073709551615, expected at most "},
    {"AbsurdArrayLength", [](auto& p) { p.records[0] = record("k", array, array_of(f64, ~uint64_t{0} / 8 + 2, "")); },
     ErrorCode::bad_header, "@41: array length: got 2305843009213693953, expected at most "},
    {"AbsurdStringArrayLength", [](auto& p) { p.records[0] = record("k", array, array_of(string, 100000, "")); },
     ErrorCode::bad_header, "array length: got 100000, expected at most "},
    {"AbsurdStringInALongArray",
     [](auto& p) { p.records[0] = record("k", array, array_of(string, 2000, le<uint64_t>(1 << 30) + std::string(16000, '\0'))); },
     ErrorCode::bad_header, "@49: string length: got 1073741824, expected at most "},
    {"ArrayOfArrays", [](auto& p) { p.records[0] = record("k", array, array_of(array, 1, array_of(u8, 1, "x"))); },
     ErrorCode::bad_header, "@37: array element: got an array, expected a scalar or string\n  while reading metadata key 'k'"},
    {"UnknownValueType", [](auto& p) { p.records[0] = record("k", 13, "x"); }, ErrorCode::bad_header,
     "@33: value type: got 13, expected 0 to 12\n  while reading metadata key 'k'"},
    {"UnknownElementType", [](auto& p) { p.records[0] = record("k", array, array_of(99, 1, "x")); }, ErrorCode::bad_header,
     "@37: value type: got 99, expected 0 to 12"},
    {"BooleanOf2", [](auto& p) { p.records[0] = record("k", boolean, "\x02"); }, ErrorCode::bad_header,
     "@37: boolean: got 2, expected 0 or 1"},
    {"DuplicateKey", [](auto& p) { p.records[1] = p.records[0]; }, ErrorCode::duplicate_name,
     "metadata key: got it twice, expected it once\n  while reading metadata key 'general.architecture'"},
    {"AlignmentOf0", [](auto& p) { p.records[0] = record("general.alignment", u32, le<uint32_t>(0)); }, ErrorCode::bad_header,
     "alignment: got 0, expected a power of two"},
    {"AlignmentOf48", [](auto& p) { p.records[0] = record("general.alignment", u32, le<uint32_t>(48)); }, ErrorCode::bad_header,
     "alignment: got 48, expected a power of two"},
    {"AlignmentOfAnotherType", [](auto& p) { p.records[0] = record("general.alignment", u64, le<uint64_t>(32)); },
     ErrorCode::bad_header, "alignment: got value type 10, expected 4 (u32)"},
    {"NoDimensions", [](auto& p) { p.tensors[0] = tensor("x", {}, 0, 0); }, ErrorCode::bad_header,
     "tensor 'x': dimension count: got 0, expected 1 to 4"},
    {"FiveDimensions",
     [](auto& p) {
       p.tensors[0] = tensor("x", {32, 1, 1, 1, 1}, 0, 0);
     },
     ErrorCode::bad_header, "tensor 'x': dimension count: got 5, expected 1 to 4"},
    {"ZeroDimension",
     [](auto& p) {
       p.tensors[0] = tensor("x", {32, 0}, 0, 0);
     },
     ErrorCode::bad_header, "tensor 'x': dimension 1: got 0, expected at least 1"},
    {"ElementCountOverflow",
     [](auto& p) {
       p.tensors[0] = tensor("x", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0);
     },
     ErrorCode::size_overflow, "tensor 'x': element count overflows: got shape [4294967296,4294967296]"},
    {"ByteSizeOverflow",
     [](auto& p) {
       p.tensors[0] = tensor("x", {uint64_t{1} << 32, uint64_t{1} << 30}, 0, 0);
     },
     ErrorCode::size_overflow, "tensor 'x': byte size overflows"},
    {"RowNotAMultipleOfTheBlock",
     [](auto& p) {
       p.tensors[0] = tensor("x", {48, 2}, 8, 0);
     },
     ErrorCode::shape_mismatch, "tensor 'x': last axis of a q8_0 tensor: got 48, expected a multiple of 32"},
    {"MisalignedOffset", [](auto& p) { p.tensors[0] = tensor("x", {32}, 0, 16); }, ErrorCode::bad_offset,
     "tensor 'x': data offset: got 16, expected a multiple of 32"},
    {"DataPastTheEnd", [](auto& p) { p.tensors[1] = tensor("x", {33}, 0, 160); }, ErrorCode::bad_offset,
     "tensor 'x': data ends past end of file: got end "},
    {"OffsetPastTheEnd", [](auto& p) { p.tensors[1] = tensor("x", {1}, 0, uint64_t{1} << 62); }, ErrorCode::bad_offset,
     "tensor 'x': data ends past end of file: got end "},
    {"OffsetOverflow", [](auto& p) { p.tensors[1] = tensor("x", {1}, 0, ~uint64_t{31}); }, ErrorCode::size_overflow,
     "tensor 'x': end of data: got "},
    {"Overlap", [](auto& p) { p.tensors[1] = tensor("x", {32}, 0, 128); }, ErrorCode::bad_offset,
     "tensor 'x': data overlaps tensor 'token_embd.weight': got begin "},
    {"SameOffset", [](auto& p) { p.tensors[1] = tensor("x", {32}, 0, 0); }, ErrorCode::bad_offset, "data overlaps tensor "},
    {"DuplicateTensor", [](auto& p) { p.tensors[1] = tensor("token_embd.weight", {32}, 0, 160); }, ErrorCode::duplicate_name,
     "tensor 'token_embd.weight': tensor name: got it twice, expected it once"},
    {"AbsurdTensorNameLength", [](auto& p) { p.tensors[0] = le(uint64_t{1} << 40) + std::string(64, 'n'); },
     ErrorCode::bad_header, "length of a tensor name: got 1099511627776, expected 1 to 65535"},
};

INSTANTIATE_TEST_SUITE_P(Rows, MalformedGguf, testing::ValuesIn(kRows), [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace transload
