// Token files: every form that is read, and one clear refusal for what is none.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "error_matchers.h"
#include "io/safetensors.h"
#include "transload/evaluate.h"

namespace transload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class TokenFile : public testing::Test {
 protected:
  TokenFile() : folder_(std::filesystem::temp_directory_path() / ("transload_tokens_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~TokenFile() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path file(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  std::filesystem::path tensor_file(const std::string& tensor, DType dtype, const std::string& bytes) {
    const SafetensorsLayout layout = plan_safetensors({{tensor, dtype, {bytes.size() / 4}}});
    return file("ids.safetensors", layout.header + bytes);
  }

  std::filesystem::path folder_;
};

TEST_F(TokenFile, ReadsNumbersWithBlanksCommasOrLineEndsBetween) {
  for (const char* text :
       {"1 22 333", "1,22,333", " 1,\n22\r\n333\n", "[1, 22, 333]", "[\n 1,\n 22,\n 333\n]\n", "\t1\t22\t333"}) {
    EXPECT_THAT(read_token_file(file("ids.txt", text)), ElementsAre(1, 22, 333)) << text;
  }
  EXPECT_THAT(read_token_file(file("ids.txt", "0 2147483647")), ElementsAre(0, 2147483647));
  for (const char* text : {"", "\n", "[]", "[ ]"}) EXPECT_THAT(read_token_file(file("ids.txt", text)), IsEmpty()) << text;
}

TEST_F(TokenFile, ReadsTheTensorTokens) {
  EXPECT_THAT(read_token_file(tensor_file("tokens", DType::i32, std::string("\5\0\0\0\0\1\0\0", 8))), ElementsAre(5, 256));
}

TEST_F(TokenFile, RefusesWhatIsNoNumberWithItsOffset) {
  struct Row {
    const char* text;
    const char* got;
    const char* place;
  };
  const Row rows[] = {{"1 two 3", "got 'two', expected token ids", "@2: "},
                      {"1 -2", "got '-2'", "@2: "},
                      {"1.5", "got '1.5'", "@0: "},
                      {"1 0x10", "got '0x10'", "@2: "},
                      {"2147483648", "got '2147483648'", "@0: "},
                      {"1;2", "got '1;2'", "@0: "},
                      {"+1", "got '+1'", "@0: "},
                      {"[1, 2", "got '[1'", "@0: "},
                      {"1, 2]", "got '2]'", "@3: "},
                      {"[", "got '['", "@0: "},
                      {"[[1]]", "got '[1]]'", "@1: "},
                      {"{\"ids\": 1}", "got '{\"ids\":'", "@0: "}};
  for (const Row& row : rows) {
    EXPECT_THAT([&] { read_token_file(file("ids.txt", row.text)); },
                Fails(ErrorCode::config_invalid, testing::AllOf(HasSubstr(row.got), HasSubstr(row.place))))
        << row.text;
  }
}

TEST_F(TokenFile, RefusesMoreIdsThanATextCouldHold) {
  constexpr uint64_t kCount = (uint64_t{1} << 26) + 1;
  const SafetensorsLayout layout = plan_safetensors({{"tokens", DType::i32, {kCount}}});
  const auto path = file("ids.safetensors", layout.header);
  std::filesystem::resize_file(path, layout.header.size() + 4 * kCount);  // without data
  EXPECT_THAT([&] { read_token_file(path); },
              Fails(ErrorCode::bad_header, HasSubstr("too many token ids: got 67108865, expected at most 67108864")));
}

TEST_F(TokenFile, RefusesFilesThatAreNone) {
  EXPECT_THAT([&] { read_token_file(folder_ / "gone.txt"); }, Fails(ErrorCode::file_missing, HasSubstr("gone.txt")));
  EXPECT_THAT([&] { read_token_file(folder_ / "gone.safetensors"); }, Fails(ErrorCode::file_missing, HasSubstr("gone")));
  EXPECT_THAT([&] { read_token_file(folder_); }, Fails(ErrorCode::io_failure, HasSubstr("a folder")));
  EXPECT_THAT([&] { read_token_file(file("short.safetensors", "12")); }, Fails(ErrorCode::bad_header, HasSubstr("short")));
  EXPECT_THAT([&] { read_token_file(tensor_file("ids", DType::i32, "abcd")); },
              Fails(ErrorCode::tensor_missing, HasSubstr("tensor 'tokens'")));
  EXPECT_THAT([&] { read_token_file(tensor_file("tokens", DType::f32, "abcd")); },
              Fails(ErrorCode::dtype_mismatch, HasSubstr("got f32, expected i32")));
}

}  // namespace
}  // namespace transload
