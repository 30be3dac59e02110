// The safetensors container: what it reads, and one row for each way in which a file can lie.
#include "io/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "error_matchers.h"
#include "io/hash.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

SafetensorsHeader read(const ScratchFolder& folder, std::string_view bytes) {
  return read_safetensors(InputFile::open(folder.write("m.safetensors", bytes)));
}

TEST(Safetensors, ReadsNamesShapesAndAbsoluteOffsets) {
  const ScratchFolder folder;
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
                             R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}   )";
  const std::string bytes = safetensors_bytes(header, 28);
  const SafetensorsHeader read_back = read(folder, bytes);
  ASSERT_EQ(read_back.tensors.size(), 2U);
  const TensorInfo& a = read_back.tensors[0];
  const TensorInfo& b = read_back.tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::bf16);
  EXPECT_EQ(a.offset, 8 + header.size());
  EXPECT_EQ(a.bytes, 4U);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.shape, (Shape{2, 3}));
  EXPECT_EQ(b.offset, 8 + header.size() + 4);
  EXPECT_EQ(b.bytes, 24U);
  EXPECT_EQ(b.file->name(), "m.safetensors");
  EXPECT_EQ(read_back.metadata.find("format")->string(), "pt");
  EXPECT_EQ(read_back.digest, digest_of(std::string_view(bytes).substr(0, 8 + header.size())));
}

TEST(Safetensors, AllowsEmptyTensorsScalarsAndEmptyFiles) {
  const ScratchFolder folder;
  const auto header = read(folder, safetensors_bytes(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                                     R"("z":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                                                     R"("e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}})",
                                                     8));
  ASSERT_EQ(header.tensors.size(), 3U);
  EXPECT_EQ(header.tensors[0].name, "z");
  EXPECT_EQ(header.tensors[1].name, "s");
  EXPECT_EQ(header.tensors[1].bytes, 8U);
  EXPECT_TRUE(read(folder, safetensors_bytes("{}", 0)).tensors.empty());
}

TEST(Safetensors, ReadsEveryDtypeThatItWrites) {
  const ScratchFolder folder;
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!is_block(dtype)) entries.push_back({fmt::format("t.{}", dtype_name(dtype)), dtype, {3, 5}});
  }
  ASSERT_EQ(entries.size(), 15U);
  const SafetensorsLayout layout = plan_safetensors(entries, Json(Json::Object{{"format", "pt"}}));
  EXPECT_EQ(layout.header.size() % 8, 0U);
  const auto header = read(folder, layout.header + std::string(layout.file_bytes - layout.header.size(), 'x'));
  ASSERT_EQ(header.tensors.size(), entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(header.tensors[i].name, entries[i].name);
    EXPECT_EQ(header.tensors[i].dtype, entries[i].dtype);
    EXPECT_EQ(header.tensors[i].shape, entries[i].shape);
    EXPECT_EQ(header.tensors[i].offset, layout.offsets[i]);
  }
  EXPECT_EQ(header.metadata.find("format")->string(), "pt");
}

TEST(Safetensors, RefusesToWriteWhatItCannotHold) {
  EXPECT_THAT(([] { plan_safetensors({{"q", DType::q4_0, {32}}}); }), Fails(ErrorCode::format_limit, HasSubstr("got q4_0")));
  EXPECT_THAT(([] {
                plan_safetensors({{"a", DType::f32, {1}}, {"a", DType::f32, {1}}});
              }),
              Fails(ErrorCode::duplicate_name, HasSubstr("'a'")));
  EXPECT_THAT(([] {
                plan_safetensors({{"__metadata__", DType::f32, {1}}});
              }),
              Fails(ErrorCode::duplicate_name, HasSubstr("two")));
}

struct MalformedRow {
  const char* name;
  std::string bytes;
  ErrorCode code;
  std::string site;  // how the message starts
  std::string message;
};

void PrintTo(const MalformedRow& row, std::ostream* out) { *out << row.name; }

// A file with one tensor 't'; the data starts at 8 + the length of the header.
MalformedRow entry_row(const char* name, std::string_view entry, size_t data_bytes, ErrorCode code, std::string message) {
  return {name, safetensors_bytes(fmt::format(R"({{"t":{}}})", entry), data_bytes), code,
          "m.safetensors@8: tensor 't': ", std::move(message)};
}

// Several tensors of dtype U8 with the given [begin, end) and as many elements; header padded to 192 bytes, so data starts at
// 200.
MalformedRow layout_row(const char* name, const std::vector<std::pair<int, int>>& ranges, size_t data_bytes, std::string site,
                        std::string message) {
  std::string header = "{";
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto& [begin, end] = ranges[i];
    header += fmt::format(R"({}"t{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", i == 0 ? "" : ",", i,
                          std::abs(end - begin), begin, end);
  }
  header += "}";
  header.resize(192, ' ');
  return {name, safetensors_bytes(header, data_bytes), ErrorCode::bad_offset, "m.safetensors@" + site, std::move(message)};
}

std::string with_length(uint64_t length, std::string_view rest) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes + std::string(rest);
}

std::vector<MalformedRow> malformed_rows() {
  using enum ErrorCode;
  std::vector<MalformedRow> rows = {
      {"empty_file", "", bad_header, "m.safetensors@0: ", "got 0 bytes, expected at least the 8"},
      {"seven_bytes", "1234567", bad_header, "m.safetensors@0: ", "got 7 bytes"},
      {"no_header", with_length(0, ""), bad_header, "m.safetensors@8: ", "expected a JSON object"},
      {"length_past_end", with_length(3, "{}"), bad_header,
       "m.safetensors@0: ", "got length 3, expected at most 2 (incomplete download?)"},
      {"length_huge", with_length(~uint64_t{0}, "{}"), bad_header,
       "m.safetensors@0: ", "got 18446744073709551615, expected at most 100000000"},
      {"length_above_limit", with_length(100'000'001, "{}"), bad_header, "m.safetensors@0: ", "got 100000001"},
      {"not_json", safetensors_bytes("{wrong", 0), bad_json, "m.safetensors@9: ", "malformed JSON"},
      {"cut_json", safetensors_bytes(R"({"t":)", 0), bad_json, "m.safetensors@13: ", "got the end of the text"},
      {"array", safetensors_bytes("[1]", 0), bad_header, "m.safetensors@8: ", "does not start with '{'"},
      {"leading_space", safetensors_bytes(" {}", 0), bad_header, "m.safetensors@8: ", "does not start with '{'"},
      {"not_utf8", safetensors_bytes("{\"\xff\":0}", 0), bad_json, "m.safetensors@10: ", "UTF-8"},
      {"deep_nesting", safetensors_bytes("{\"t\":" + std::string(100'000, '['), 0), bad_json,
       "m.safetensors@76: ", "got level 65, expected at most 64"},
      {"trailing_json", safetensors_bytes("{}{}", 0), bad_json, "m.safetensors@10: ", "expected end of input"},
      {"duplicate_tensor",
       safetensors_bytes(
           R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       bad_json, "m.safetensors@61: ", "duplicate JSON key: got 't' twice"},
      {"duplicate_key_in_entry", safetensors_bytes(R"({"t":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2]}})", 2),
       bad_json, "m.safetensors@39: ", "duplicate JSON key: got 'shape' twice"},
      {"metadata_number", safetensors_bytes(R"({"__metadata__":{"a":1}})", 0), bad_header,
       "m.safetensors@8: ", "'__metadata__' key 'a': got integer, expected a string"},
      {"metadata_array", safetensors_bytes(R"({"__metadata__":[]})", 0), bad_header,
       "m.safetensors@8: ", "got array, expected an object"},
  };
  const auto entry = [&](const char* name, std::string_view text, size_t data, ErrorCode code, std::string message) {
    rows.push_back(entry_row(name, text, data, code, std::move(message)));
  };
  entry("entry_not_object", "3", 0, bad_header, "entry: got integer, expected an object");
  entry("missing_dtype", R"({"shape":[1],"data_offsets":[0,1]})", 1, bad_header, "expected 'dtype'");
  entry("missing_shape", R"({"dtype":"U8","data_offsets":[0,1]})", 1, bad_header, "expected 'shape'");
  entry("missing_offsets", R"({"dtype":"U8","shape":[1]})", 1, bad_header, "expected 'data_offsets'");
  entry("unknown_key", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]})", 1, bad_header, "got 'strides'");
  entry("dtype_number", R"({"dtype":7,"shape":[1],"data_offsets":[0,1]})", 1, bad_header,
        "'dtype': got integer, expected a string");
  entry("dtype_lower_case", R"({"dtype":"f32","shape":[1],"data_offsets":[0,4]})", 4, dtype_unsupported, "got 'f32'");
  entry("dtype_f4", R"({"dtype":"F4","shape":[2],"data_offsets":[0,1]})", 1, dtype_unsupported, "got 'F4', expected F64");
  entry("dtype_e8m0", R"({"dtype":"F8_E8M0","shape":[2],"data_offsets":[0,2]})", 2, dtype_unsupported, "got 'F8_E8M0'");
  entry("shape_not_array", R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", 1, bad_header, "'shape': got integer");
  entry("negative_dimension", R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1, bad_header, "dimension: got -1");
  entry("float_dimension", R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", 1, bad_header, "dimension: got 1.0");
  entry("huge_dimension", R"({"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]})", 1, bad_header,
        "got 9.223372036854776e+18, expected an integer from 0");
  entry("string_dimension", R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", 1, bad_header, "dimension: got string");
  entry("shape_overflow", R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,1]})", 1, size_overflow,
        "got shape [4294967296,4294967296]");
  entry("shape_overflow_to_zero", R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0, size_overflow,
        "element count overflows");
  entry("bytes_overflow", R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", 0, size_overflow,
        "got shape [2305843009213693952] f64");
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  entry("rank", fmt::format(R"({{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}})", ones), 1, bad_header,
        "got 33, expected at most 32");
  entry("offsets_not_array", R"({"dtype":"U8","shape":[1],"data_offsets":1})", 1, bad_header, "'data_offsets': got integer");
  entry("three_offsets", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})", 1, bad_header, "got 3 elements");
  entry("negative_offset", R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 1, bad_offset, "data offset: got -1");
  entry("float_offset", R"({"dtype":"U8","shape":[1],"data_offsets":[0,1.0]})", 1, bad_offset, "data offset: got 1.0");
  entry("size_mismatch", R"({"dtype":"BF16","shape":[3,5],"data_offsets":[0,28]})", 28, bad_offset,
        "byte size does not match shape [3,5] bf16: got 28, expected 30");

  rows.push_back(layout_row("decreasing", {{4, 0}}, 4,
                            "204: tensor 't0': ", "data ends before it begins: got end 200, expected at least 204"));
  rows.push_back(
      layout_row("hole_at_start", {{1, 5}}, 5, "200: tensor 't0': ", "hole before the data: got start 201, expected 200"));
  rows.push_back(layout_row("hole", {{0, 4}, {5, 9}}, 9, "204: tensor 't1': ", "got start 205, expected 204"));
  rows.push_back(layout_row("overlap", {{0, 4}, {3, 7}}, 7,
                            "203: tensor 't1': ", "overlaps the tensor before it: got start 203, expected 204"));
  rows.push_back(layout_row("inside", {{0, 8}, {2, 4}}, 8, "202: tensor 't1': ", "overlaps"));
  rows.push_back(layout_row("same_range", {{0, 4}, {0, 4}}, 4, "200: tensor 't1': ", "overlaps"));
  rows.push_back(layout_row("truncated", {{0, 4}, {4, 8}}, 7, "204: tensor 't1': ",
                            "data ends past the end of the file: got end 208, expected at most 207 (incomplete download?)"));
  rows.push_back(layout_row("no_data", {{0, 4}}, 0, "200: tensor 't0': ", "got end 204, expected at most 200"));
  rows.push_back(
      layout_row("trailing_bytes", {{0, 4}}, 5, "204: ", "bytes behind the last tensor: got file end 205, expected 204"));
  return rows;
}

class MalformedSafetensors : public testing::TestWithParam<MalformedRow> {};

TEST_P(MalformedSafetensors, IsRefusedWithItsSite) {
  const ScratchFolder folder;
  const MalformedRow& row = GetParam();
  EXPECT_THAT([&] { read(folder, row.bytes); }, Fails(row.code, AllOf(StartsWith(row.site), HasSubstr(row.message))));
}

INSTANTIATE_TEST_SUITE_P(Table, MalformedSafetensors, testing::ValuesIn(malformed_rows()),
                         [](const auto& row) { return std::string(row.param.name); });

// Every prefix of a good file is refused: no read ever leaves the file.
TEST(Safetensors, RefusesEveryPrefixOfAFile) {
  const ScratchFolder folder;
  const std::string bytes = safetensors_bytes(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  EXPECT_NO_THROW(read(folder, bytes));
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_THROW(read(folder, bytes.substr(0, size)), Error) << size;
}

}  // namespace
}  // namespace transload
