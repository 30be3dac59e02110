// Opening checkpoints: real ones of several shards, and folders and indices that do not hold together.
#include "transload/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "error_matchers.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/scratch_folder.h"

namespace transload {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const fs::path kDecoders = fs::path(TRANSLOAD_TEST_DATA) / "decoders";

// A file of U8 tensors of one element each.
std::string shard(const std::vector<std::string>& names) {
  std::vector<SafetensorsEntry> entries;
  for (const std::string& name : names) entries.push_back({name, DType::u8, {1}});
  const SafetensorsLayout layout = plan_safetensors(entries);
  return layout.header + std::string(names.size(), '\0');
}

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  return names;
}

std::vector<std::string> files_of(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const auto& file : checkpoint.files()) names.push_back(file->name());
  return names;
}

TEST(Checkpoint, OpensAFolderOfThreeShards) {
  const fs::path folder = kDecoders / "spark_3shard_fp32";
  const Checkpoint checkpoint = Checkpoint::open(folder);
  EXPECT_EQ(checkpoint.format(), CheckpointFormat::safetensors);
  EXPECT_THAT(files_of(checkpoint), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                                "model-00003-of-00003.safetensors"));
  EXPECT_EQ(checkpoint.tensor_bytes_total(), 1015040U);  // metadata.total_size of its index
  EXPECT_EQ(checkpoint.directory(), folder);
  EXPECT_EQ(checkpoint.config_file(), "config.json");
  EXPECT_TRUE(checkpoint.config()->find("num_hidden_layers")->is_integer());
  EXPECT_EQ(checkpoint.gguf_metadata(), nullptr);
  EXPECT_EQ(checkpoint.header_digest(0).size(), 32U);
  EXPECT_NE(checkpoint.header_digest(0), checkpoint.header_digest(1));
  const TensorInfo* embedding = checkpoint.find_tensor("model.embedding.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dtype, DType::f32);
  EXPECT_EQ(embedding->file->name(), "model-00001-of-00003.safetensors");
  EXPECT_EQ(checkpoint.find_tensor("model.embedding"), nullptr);
  EXPECT_EQ(checkpoint.find_tensor("zzz"), nullptr);
  EXPECT_TRUE(std::is_sorted(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                             [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; }));
}

TEST(Checkpoint, TakesModelSafetensorsAloneWhenOtherFilesLieBesideIt) {
  const Checkpoint checkpoint = Checkpoint::open(kDecoders / "llama");
  EXPECT_THAT(files_of(checkpoint), ElementsAre("model.safetensors"));
  EXPECT_EQ(checkpoint.find_tensor("lm_head.weight")->dtype, DType::bf16);
}

TEST(Checkpoint, OpensOneFileBesideItsConfig) {
  const Checkpoint checkpoint = Checkpoint::open(kDecoders / "llama" / "model.safetensors");
  EXPECT_EQ(checkpoint.directory(), kDecoders / "llama");
  EXPECT_EQ(names_of(checkpoint), names_of(Checkpoint::open(kDecoders / "llama")));
  EXPECT_NE(checkpoint.config()->find("model_type"), nullptr);
}

TEST(Checkpoint, TakesTheConfigItIsGiven) {
  const Checkpoint checkpoint = Checkpoint::open(kDecoders / "llama", kDecoders / "llama" / "config_v4.json");
  EXPECT_EQ(checkpoint.config_file(), "config_v4.json");
  EXPECT_THAT([] { Checkpoint::open(kDecoders / "llama", kDecoders / "llama" / "absent.json"); },
              Fails(ErrorCode::file_missing, HasSubstr("absent.json")));
}

TEST(Checkpoint, ReadsTheStoredBytes) {
  const Checkpoint checkpoint = Checkpoint::open(kDecoders / "llama");
  const TensorInfo& norm = *checkpoint.find_tensor("model.norm.weight");
  std::vector<std::byte> bytes(norm.bytes);
  norm.file->read_at(norm.offset, bytes);
  const std::string whole = read_text_file(kDecoders / "llama" / "model.safetensors");
  EXPECT_EQ(whole.substr(norm.offset, norm.bytes), std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

TEST(Checkpoint, OpensGgufByPathByFolderAndByMagic) {
  const fs::path stored = kDecoders / "llama_gguf_f16" / "model.gguf";
  const Checkpoint by_path = Checkpoint::open(stored);
  EXPECT_EQ(by_path.format(), CheckpointFormat::gguf);
  EXPECT_EQ(by_path.config(), nullptr);
  EXPECT_EQ(by_path.gguf_metadata()->find("general.architecture")->string(), "llama");
  const ScratchFolder folder;
  fs::copy_file(stored, folder.path() / "sha256-0123");
  EXPECT_EQ(Checkpoint::open(folder.path() / "sha256-0123").format(), CheckpointFormat::gguf);
  fs::rename(folder.path() / "sha256-0123", folder.path() / "a.gguf");
  EXPECT_EQ(names_of(Checkpoint::open(folder.path())), names_of(by_path));
  EXPECT_NE(Checkpoint::open(stored, kDecoders / "llama_gguf_f16" / "config.json").config(), nullptr);
}

// A folder with a config and two shards 'a' and 'b'; each test spoils one thing.
class ShardedFolder : public testing::Test {
 protected:
  ShardedFolder() {
    folder_.write("config.json", R"({"model_type": "llama"})");
    folder_.write("a.safetensors", shard({"t1", "t2"}));
    folder_.write("b.safetensors", shard({"t3"}));
  }

  void write_index(const std::string& weight_map) const {
    folder_.write("model.safetensors.index.json", fmt::format(R"({{"metadata": {{}}, "weight_map": {}}})", weight_map));
  }
  auto opening() const {
    return [this] { Checkpoint::open(folder_.path()); };
  }

  ScratchFolder folder_;
};

TEST_F(ShardedFolder, OpensWithAndWithoutIndex) {
  EXPECT_THAT(names_of(Checkpoint::open(folder_.path())), ElementsAre("t1", "t2", "t3"));
  write_index(R"({"t1": "a.safetensors", "t2": "a.safetensors", "t3": "b.safetensors"})");
  EXPECT_THAT(names_of(Checkpoint::open(folder_.path())), ElementsAre("t1", "t2", "t3"));
}

TEST_F(ShardedFolder, ReadsOnlyTheFilesOfTheIndex) {
  folder_.write("other.safetensors", shard({"t1"}));
  write_index(R"({"t1": "a.safetensors", "t2": "a.safetensors", "t3": "b.safetensors"})");
  EXPECT_THAT(files_of(Checkpoint::open(folder_.path())), ElementsAre("a.safetensors", "b.safetensors"));
}

TEST_F(ShardedFolder, FollowsSymbolicLinksAsHubCachesUseThem) {
  const ScratchFolder blobs;
  fs::rename(folder_.path() / "b.safetensors", blobs.path() / "0123abcd");
  fs::create_symlink(blobs.path() / "0123abcd", folder_.path() / "b.safetensors");
  EXPECT_THAT(names_of(Checkpoint::open(folder_.path())), ElementsAre("t1", "t2", "t3"));
}

TEST_F(ShardedFolder, RefusesATensorInTwoShards) {
  folder_.write("b.safetensors", shard({"t3", "t1"}));
  const auto complaint = Fails(ErrorCode::duplicate_name, AllOf(StartsWith("b.safetensors@"), HasSubstr("tensor 't1': "),
                                                                HasSubstr("also in 'a.safetensors'")));
  EXPECT_THAT(opening(), complaint);
  write_index(R"({"t1": "a.safetensors", "t2": "a.safetensors", "t3": "b.safetensors"})");
  EXPECT_THAT(opening(), complaint);
}

TEST_F(ShardedFolder, NamesAllMissingShardsTogether) {
  write_index(R"({"t1": "a.safetensors", "t2": "gone1.safetensors", "t3": "gone2.safetensors"})");
  EXPECT_THAT(opening(),
              Fails(ErrorCode::file_missing, AllOf(StartsWith("model.safetensors.index.json: 2 faults"),
                                                   HasSubstr("'gone1.safetensors'"), HasSubstr("'gone2.safetensors'"))));
}

TEST_F(ShardedFolder, NamesTensorsThatTheIndexPlacesWrongly) {
  write_index(R"({"t1": "b.safetensors", "t2": "a.safetensors", "t3": "b.safetensors", "t4": "b.safetensors"})");
  EXPECT_THAT(opening(), Fails(ErrorCode::tensor_missing,
                               AllOf(StartsWith("model.safetensors.index.json: 2 faults"),
                                     HasSubstr("tensor 't1': got it in 'a.safetensors', expected it in 'b.safetensors'"),
                                     HasSubstr("tensor 't4': got no such tensor, expected it in 'b.safetensors'"))));
}

TEST_F(ShardedFolder, NamesTensorsThatTheIndexLeavesOut) {
  write_index(R"({"t1": "a.safetensors", "t3": "b.safetensors"})");
  EXPECT_THAT(opening(), Fails(ErrorCode::bad_header, HasSubstr("tensor 't2' of 'a.safetensors' is not in the index")));
}

TEST_F(ShardedFolder, NamesTheFaultyShard) {
  folder_.write("b.safetensors", shard({"t3"}) + "x");
  EXPECT_THAT(opening(),
              Fails(ErrorCode::bad_offset, AllOf(StartsWith("b.safetensors@"), HasSubstr("bytes behind the last tensor"))));
}

TEST_F(ShardedFolder, NamesAMissingConfig) {
  fs::remove(folder_.path() / "config.json");
  EXPECT_THAT(opening(), Fails(ErrorCode::file_missing, HasSubstr("config.json: no such file or folder")));
}

TEST_F(ShardedFolder, RefusesAConfigThatIsNoObject) {
  folder_.write("config.json", "[]");
  EXPECT_THAT(opening(), Fails(ErrorCode::config_invalid, HasSubstr("config.json: config: got array, expected an object")));
  folder_.write("config.json", "{\"a\": NaN}");
  EXPECT_THAT(opening(), Fails(ErrorCode::bad_json, StartsWith("config.json@6: ")));
}

TEST_F(ShardedFolder, RefusesAShardThatIsAFolder) {
  fs::create_directory(folder_.path() / "c.safetensors");
  EXPECT_THAT(opening(), Fails(ErrorCode::io_failure, AllOf(HasSubstr("c.safetensors"), HasSubstr("got a folder"))));
}

struct IndexRow {
  const char* name;
  std::string text;
  ErrorCode code;
  std::string message;
};

void PrintTo(const IndexRow& row, std::ostream* out) { *out << row.name; }

class MalformedIndex : public ShardedFolder, public testing::WithParamInterface<IndexRow> {};

TEST_P(MalformedIndex, IsRefused) {
  folder_.write("model.safetensors.index.json", GetParam().text);
  EXPECT_THAT(opening(),
              Fails(GetParam().code, AllOf(StartsWith("model.safetensors.index.json"), HasSubstr(GetParam().message))));
}

IndexRow file_row(const char* name, const char* file, std::string shown) {
  return {name, fmt::format(R"({{"weight_map": {{"t1": {}}}}})", file), ErrorCode::bad_header,
          fmt::format("tensor 't1': file of the tensor: got {}, expected the name of a file in the same folder", shown)};
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedIndex,
    testing::Values(IndexRow{"not_json", "weight_map", ErrorCode::bad_json, "@0: malformed JSON"},
                    IndexRow{"empty", "", ErrorCode::bad_json, "@0: "},
                    IndexRow{"array", "[]", ErrorCode::bad_header, "'weight_map': got nothing"},
                    IndexRow{"no_map", "{}", ErrorCode::bad_header, "'weight_map': got nothing, expected an object"},
                    IndexRow{"map_is_string", R"({"weight_map": "a"})", ErrorCode::bad_header, "'weight_map': got string"},
                    IndexRow{"map_is_empty", R"({"weight_map": {}})", ErrorCode::bad_header, "got no entries"},
                    IndexRow{"duplicate_tensor", R"({"weight_map": {"t1": "a.safetensors", "t1": "b.safetensors"}})",
                             ErrorCode::bad_json, "@39: duplicate JSON key: got 't1' twice"},
                    IndexRow{"missing_file", R"({"weight_map": {"t1": "c.safetensors"}})", ErrorCode::file_missing,
                             "no such file: 'c.safetensors'"},
                    file_row("parent", R"("../a.safetensors")", "'../a.safetensors'"),
                    file_row("subfolder", R"("sub/a.safetensors")", "'sub/a.safetensors'"),
                    file_row("absolute", R"("/etc/passwd")", "'/etc/passwd'"), file_row("backslash", R"("..\\a")", "'..\\a'"),
                    file_row("dots", R"("..")", "'..'"), file_row("dot", R"(".")", "'.'"), file_row("empty_name", R"("")", "''"),
                    file_row("zero_byte", R"("a.safetensors\u0000x")", "'a.safetensors\\x00x'"),
                    file_row("number", "3", "integer"), file_row("null", "null", "null")),
    [](const auto& row) { return std::string(row.param.name); });

TEST(Checkpoint, SaysThatItNeedsSafetensors) {
  const ScratchFolder folder;
  folder.write("config.json", "{}");
  EXPECT_THAT([&] { Checkpoint::open(folder.path()); },
              Fails(ErrorCode::file_missing, HasSubstr("no checkpoint in the folder: got none, expected 'model.safetensors'")));
  const fs::path pickle = folder.write("pytorch_model.bin", "PK");
  for (const fs::path& path : {folder.path(), pickle}) {
    EXPECT_THAT([&] { Checkpoint::open(path); },
                Fails(ErrorCode::file_missing, HasSubstr("got 'pytorch_model.bin', expected .safetensors or .gguf")));
  }
  EXPECT_THAT([&] { Checkpoint::open(folder.path() / "config.json"); },
              Fails(ErrorCode::file_missing, HasSubstr("got 'config.json'")));
}

TEST(Checkpoint, SaysThatABundleIsNone) {
  const ScratchFolder folder;
  for (const char* name : {"contract.json", "config.json", "host.safetensors", "tokenizer.gguf", "weights.bin"}) {
    folder.write(name, "{}");
    EXPECT_THAT(
        [&] { Checkpoint::open(folder.path()); },
        Fails(ErrorCode::file_missing, HasSubstr("an exported bundle, no checkpoint: got 'contract.json' in the folder")));
  }
}

TEST(Checkpoint, AsksWhichOfSeveralCheckpoints) {
  const ScratchFolder folder;
  folder.write("a.gguf", "GGUF");
  folder.write("b.gguf", "GGUF");
  EXPECT_THAT([&] { Checkpoint::open(folder.path()); },
              Fails(ErrorCode::usage, HasSubstr("got 2 GGUF and 0 safetensors files, expected the path of one")));
  EXPECT_THAT([] { Checkpoint::open(kDecoders / "llama_gguf_f16"); },
              Fails(ErrorCode::usage, HasSubstr("got 1 GGUF and 1 safetensors files")));
}

TEST(Checkpoint, NamesAPathThatIsNotThere) {
  EXPECT_THAT([] { Checkpoint::open("/nonexistent/model"); },
              Fails(ErrorCode::file_missing,
                    EndsWith("/nonexistent/model: no such file or folder: got nothing at this path, expected a file")));
}

}  // namespace
}  // namespace transload
