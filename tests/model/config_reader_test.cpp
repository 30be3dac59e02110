// ConfigReader: types and ranges, faults collected, fields nobody read.
#include "model/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(ConfigReader, GivesTheValuesOfAWellFormedConfig) {
  const Json config = parse_json(R"({"n": 3, "x": 0.5, "b": true, "s": "silu", "list": [1, 2.5], "names": ["a"], "ids": [7, 8],
                                     "id": 9, "nothing": null})",
                                 "config.json");
  ConfigReader reader(config, "config.json");
  EXPECT_EQ(reader.u32("n"), 3U);
  EXPECT_EQ(reader.number("x"), 0.5);
  EXPECT_TRUE(reader.boolean("b", false));
  EXPECT_TRUE(reader.boolean("absent", true));
  EXPECT_EQ(reader.text("s"), "silu");
  EXPECT_THAT(reader.numbers("list"), ElementsAre(1.0, 2.5));
  EXPECT_THAT(reader.texts("names"), ElementsAre("a"));
  EXPECT_THAT(reader.integers_or_one("ids"), ElementsAre(7, 8));
  EXPECT_THAT(reader.integers_or_one("id"), ElementsAre(9));
  EXPECT_FALSE(reader.maybe_u32("nothing").has_value());
  EXPECT_FALSE(reader.has("nothing"));
  EXPECT_NO_THROW(reader.finish());
}

TEST(ConfigReader, ReportsMissingAndInvalidFieldsTogether) {
  const Json config = parse_json(R"({"a": "three", "b": 0, "c": 5000000000, "d": -1})", "config.json");
  ConfigReader reader(config, "config.json");
  reader.u32("gone");
  reader.u32("a");
  reader.u32("b");
  reader.u32("c");
  reader.number("a");
  reader.u32("d", 0, 9);
  EXPECT_THAT([&] { reader.finish(); },
              Fails(ErrorCode::config_missing,
                    AllOf(HasSubstr("config.json: 6 faults"), HasSubstr("field 'gone': missing: got none, expected an integer"),
                          HasSubstr("field 'a': wrong type: got \"three\", expected an integer"),
                          HasSubstr("field 'b': out of range: got 0, expected 1 to 1073741824"),
                          HasSubstr("field 'c': out of range: got 5000000000"),
                          HasSubstr("field 'a': wrong type: got \"three\", expected a number"),
                          HasSubstr("field 'd': out of range: got -1, expected 0 to 9"))));
}

TEST(ConfigReader, ReportsUnknownAndUnsupportedFieldsTogetherByDottedPath) {
  const Json config =
      parse_json(R"({"alpha": 1, "nothing": null, "torch_dtype": "bfloat16", "act": "relu", "inner": {"beta": 2, "used": 1}})",
                 "config.json");
  ConfigReader reader(config, "config.json");
  reader.expect("act", "silu");
  auto inner = reader.maybe_object("inner");
  ASSERT_TRUE(inner.has_value());
  inner->u32("used");
  EXPECT_THAT(reader.unknown_fields(), ElementsAre("alpha", "inner.beta"));
  EXPECT_THAT([&] { inner->finish(); },
              Fails(ErrorCode::config_unsupported,
                    AllOf(HasSubstr("field 'act': not supported: got \"relu\", expected \"silu\""), HasSubstr("field 'alpha'"),
                          HasSubstr("field 'inner.beta'"), Not(HasSubstr("torch_dtype")), Not(HasSubstr("nothing")))));
}

TEST(ConfigReader, ReportsBrokenFieldsBeforeUnsupportedOnes) {
  const Json config = parse_json(R"({"alpha": 1})", "config.json");
  ConfigReader reader(config, "config.json");
  reader.number("gone");
  EXPECT_THAT([&] { reader.finish(); }, Fails(ErrorCode::config_missing, Not(HasSubstr("alpha"))));
}

TEST(ConfigReader, ExpectTakesTheSameNumberInEitherSpelling) {
  const Json config = parse_json(R"({"tp": 1.0})", "config.json");
  ConfigReader reader(config, "config.json");
  reader.expect("tp", 1);
  EXPECT_NO_THROW(reader.finish());
}

TEST(ConfigReader, KnowsHarmlessFieldsInModelConfigsOnly) {
  const Json config = parse_json(R"({"text_config": {"use_cache": true}, "rope": {"use_cache": true}})", "config.json");
  ConfigReader reader(config, "config.json");
  reader.maybe_config("text_config");
  reader.maybe_object("rope");
  EXPECT_THAT(reader.unknown_fields(), ElementsAre("rope.use_cache"));
}

TEST(ConfigReader, RefusesAConfigThatIsNoObject) {
  const Json config = parse_json("[1]", "config.json");
  ConfigReader reader(config, "config.json");
  EXPECT_THAT([&] { reader.finish(); }, Fails(ErrorCode::config_invalid, HasSubstr("got array, expected an object")));
}

TEST(ConfigReader, RefusesSwitchesThatAreHarmlessOnlyWhenOff) {
  for (const char* text : {R"({"is_decoder": false, "rope_interleaved": false, "pruned_heads": {}})"}) {
    const Json config = parse_json(text, "config.json");
    EXPECT_THAT(ConfigReader(config, "config.json").unknown_fields(), ElementsAre());
  }
  const Json config =
      parse_json(R"({"is_encoder_decoder": true, "rope_interleaved": true, "pruned_heads": {"0": [1]}})", "config.json");
  EXPECT_THAT(ConfigReader(config, "config.json").unknown_fields(),
              ElementsAre("is_encoder_decoder", "rope_interleaved", "pruned_heads"));
}

}  // namespace
}  // namespace transload
