// The JSON parser's limits and messages, the writer's form, and that one undoes the other.
#include "io/json.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "error_matchers.h"

namespace transload {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ParseJson, ReadsEveryKind) {
  const Json value = parse_json(R"( {"a": [null, true, false, 7, -7, 1.5, "x\u00e9\n"], "b": {}} )", "f");
  ASSERT_TRUE(value.is_object());
  EXPECT_EQ(value.object().front().first, "a");
  const Json::Array& a = value.find("a")->array();
  EXPECT_TRUE(a[0].is_null());
  EXPECT_TRUE(a[1].boolean());
  EXPECT_FALSE(a[2].boolean());
  EXPECT_EQ(a[3].integer(), 7);
  EXPECT_EQ(a[4].integer(), -7);
  EXPECT_EQ(a[5].number(), 1.5);
  EXPECT_EQ(a[6].string(), "xé\n");
  EXPECT_TRUE(value.find("b")->object().empty());
  EXPECT_EQ(value.find("c"), nullptr);
  EXPECT_EQ(a[3].find("c"), nullptr);
}

TEST(ParseJson, KeepsIntegersExact) {
  const Json value =
      parse_json("[9223372036854775807, -9223372036854775808, 9223372036854775808, 18446744073709551616, 9007199254740993]", "f");
  const Json::Array& a = value.array();
  EXPECT_EQ(a[0].integer(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(a[1].integer(), std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(a[2].is_integer());
  EXPECT_EQ(a[2].number(), 0x1p63);
  EXPECT_EQ(a[3].number(), 0x1p64);
  EXPECT_EQ(a[4].integer(), 9007199254740993);
}

TEST(ParseJson, AllowsSixtyFourLevelsAndNoMore) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(64), "f"));
  EXPECT_THAT([&] { parse_json(nested(65), "f"); },
              Fails(ErrorCode::bad_json, StartsWith("f@64: JSON nested too deep: got level 65, expected at most 64")));
  EXPECT_THAT([&] { parse_json(nested(100'000), "f"); }, Fails(ErrorCode::bad_json, HasSubstr("f@64: ")));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT([&] { parse_json(objects, "f"); }, Fails(ErrorCode::bad_json, HasSubstr("f@320: ")));
}

TEST(ParseJson, BoundsTheValuesOfATextByCount) {
  const auto list = [](size_t count) {
    std::string text = "[";
    for (size_t i = 1; i < count; ++i) text += "1,";
    return text + "1]";
  };
  EXPECT_EQ(parse_json(list(100'000), "f").array().size(), 100'000U);
  EXPECT_THAT([&] { parse_json(list(4'000'001), "f"); },
              Fails(ErrorCode::bad_json, HasSubstr(": JSON of too many values: got more than 4000000")));
}

TEST(ParseJson, RefusesNumbersBeyondTheRangeOfADouble) {
  EXPECT_THAT([&] { parse_json("[1e400]", "f"); },
              Fails(ErrorCode::bad_json, HasSubstr("malformed JSON: got a number beyond the range of a double")));
  EXPECT_THAT([&] { parse_json("[-1e400]", "f"); }, Fails(ErrorCode::bad_json, testing::Not(HasSubstr("json.exception"))));
}

struct MalformedRow {
  const char* name;
  std::string text;
  uint64_t position;
  const char* message;
};

void PrintTo(const MalformedRow& row, std::ostream* out) { *out << row.name; }

class MalformedJson : public testing::TestWithParam<MalformedRow> {};

TEST_P(MalformedJson, IsRefusedAtItsAbsoluteOffset) {
  constexpr uint64_t kBase = 1000;
  const MalformedRow& row = GetParam();
  try {
    parse_json(row.text, "config.json", kBase);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_json);
    EXPECT_EQ(error.site().offset, kBase + row.position) << error.what();
    EXPECT_THAT(error.what(), AllOf(StartsWith("config.json@"), HasSubstr(row.message)));
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, MalformedJson,
    testing::Values(
        MalformedRow{"empty", "", 0, "got the end of the text"},
        MalformedRow{"cut_object", R"({"a": 1)", 7, "got the end of the text"},
        MalformedRow{"cut_string", R"(["abc)", 5, "got the end of the text"},
        MalformedRow{"trailing", "{} x", 3, "invalid literal"}, MalformedRow{"two_values", "{}{}", 2, "expected end of input"},
        MalformedRow{"trailing_comma", "[1,]", 3, "unexpected ']'"}, MalformedRow{"comment", "[1 /* x */]", 3, "invalid literal"},
        MalformedRow{"single_quotes", "{'a': 1}", 1, "invalid literal"},
        MalformedRow{"nan", R"({"a": NaN})", 6, "got the literal 'NaN', expected a finite number"},
        MalformedRow{"infinity", "[1, Infinity]", 4, "got the literal 'Infinity'"},
        MalformedRow{"minus_infinity", "[-Infinity]", 2, "got the literal 'Infinity'"},
        MalformedRow{"overflow", "[1e999]", 5, "a number beyond the range of a double"},
        MalformedRow{"leading_zero", "[01]", 2, "unexpected number"}, MalformedRow{"hexadecimal", "[0x1]", 2, "invalid literal"},
        MalformedRow{"broken_utf8", "[\"a\xff\"]", 3, "UTF-8"}, MalformedRow{"overlong_utf8", "[\"\xc0\x80\"]", 2, "UTF-8"},
        MalformedRow{"lone_surrogate", R"(["\ud800"])", 8, "surrogate"},
        MalformedRow{"control_byte", "[\"a\nb\"]", 3, "control character"},
        MalformedRow{"zero_byte", std::string("{}\0 x", 5), 2, "got a zero byte"},
        MalformedRow{"duplicate", R"({"a": 1, "b": 2, "a": 3})", 17, "duplicate JSON key: got 'a' twice"},
        MalformedRow{"nested_duplicate", R"([{"x": {"k": 0,"k": 0}}])", 15, "got 'k' twice"},
        MalformedRow{"escaped_duplicate", R"({"ab\"\\": 1, "\u0061b\"\\": 2})", 14, "twice"},
        MalformedRow{"empty_duplicate", R"({"":1,"":2})", 6, "got '' twice"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(ParseJson, AllowsOneKeyInSeveralObjects) {
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 1}})", "f"));
}

// 200,000 members: a quadratic search for duplicates would take minutes.
TEST(ParseJson, FindsADuplicateAmongManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"key" + std::to_string(i) + "\":0,";
  const size_t position = text.size();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT([&] { parse_json(text + "\"key77\":1}", "f"); },
              Fails(ErrorCode::bad_json, HasSubstr("f@" + std::to_string(position) + ": duplicate JSON key: got 'key77' twice")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(ParseJson, CutsLongTokensInMessages) {
  EXPECT_THAT(([] { parse_json("[\"" + std::string(1'000'000, 'x') + "\n\"]", "f"); }),
              Fails(ErrorCode::bad_json, testing::SizeIs(testing::Lt(500))));
}

TEST(WriteJson, IndentsOrKeepsOneLine) {
  Json value;
  value.set("a", Json::Array{Json(1), Json(2.0), Json(Json::Array{})});
  value.set("b", Json::Object{{"c", nullptr}, {"d", true}});
  value.set("e", Json::Object{});
  EXPECT_EQ(write_json(value),
            "{\n  \"a\": [\n    1,\n    2.0,\n    []\n  ],\n  \"b\": {\n    \"c\": null,\n    \"d\": true\n  },\n  \"e\": {}\n}");
  EXPECT_EQ(write_json(value, 0), R"({"a":[1,2.0,[]],"b":{"c":null,"d":true},"e":{}})");
}

TEST(WriteJson, EscapesWhatJsonMust) {
  EXPECT_EQ(write_json(Json(std::string_view("\"\\\n\t\r\x01\0é", 9))), "\"\\\"\\\\\\n\\t\\r\\u0001\\u0000é\"");
  EXPECT_EQ(write_json(Json("a\xff\xed\xa0")), "\"a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

// The second column is what Python's repr prints.
TEST(WriteJson, WritesDoublesAsPythonDoes) {
  const std::pair<double, const char*> rows[] = {{0.0, "0.0"},
                                                 {-0.0, "-0.0"},
                                                 {1.0, "1.0"},
                                                 {0.1, "0.1"},
                                                 {1e-6, "1e-06"},
                                                 {1e-5, "1e-05"},
                                                 {0.0001, "0.0001"},
                                                 {1234567.0, "1234567.0"},
                                                 {1e15, "1000000000000000.0"},
                                                 {1e16, "1e+16"},
                                                 {123456789012345680.0, "1.2345678901234568e+17"},
                                                 {1e22, "1e+22"},
                                                 {1.5e300, "1.5e+300"},
                                                 {5e-324, "5e-324"},
                                                 {1.0 / 3, "0.3333333333333333"},
                                                 {std::numeric_limits<double>::max(), "1.7976931348623157e+308"}};
  for (const auto& [value, text] : rows) EXPECT_EQ(write_json(Json(value)), text);
}

TEST(WriteJson, RefusesWhatJsonCannotHold) {
  EXPECT_THAT([] { write_json(Json(std::nan(""))); }, Fails(ErrorCode::internal, HasSubstr("finite")));
}

// Random values of every kind; doubles from random bits, strings from random code points.
class RandomJson {
 public:
  explicit RandomJson(uint32_t seed) : random_(seed) {}

  Json value(int depth) {
    switch (random_() % (depth < 4 ? 8 : 6)) {
      case 0:
        return {};
      case 1:
        return Json(random_() % 2 == 0);
      case 2:
        return Json(static_cast<int64_t>(random_() << 32 ^ random_()) >> random_() % 64);
      case 3:
      case 4:
        return Json(number());
      case 5:
        return Json(string());
      case 6: {
        Json::Array array(random_() % 6);
        for (Json& element : array) element = value(depth + 1);
        return Json(std::move(array));
      }
      default: {
        Json object{Json::Object()};
        const uint64_t count = random_() % 6;
        for (uint64_t i = 0; i < count; ++i) object.set(string(), value(depth + 1));
        return object;
      }
    }
  }

 private:
  double number() {
    while (true) {
      const auto bits = static_cast<uint64_t>(random_()) << 32 ^ random_();
      if (const auto value = std::bit_cast<double>(bits); std::isfinite(value)) return value;
    }
  }

  std::string string() {
    static constexpr const char* kPieces[] = {"a", "\"", "\\", "\n", "/", "é", "模", "😀", "\x01", "\x7f", " "};
    std::string text;
    const uint64_t count = random_() % 8;
    for (uint64_t i = 0; i < count; ++i) text += kPieces[random_() % std::size(kPieces)];
    return text;
  }

  std::mt19937_64 random_;
};

TEST(Json, SurvivesWritingAndReading) {
  RandomJson random(11);
  for (int i = 0; i < 5000; ++i) {
    const Json value = random.value(0);
    for (const int indent : {0, 2}) ASSERT_EQ(parse_json(write_json(value, indent), "round trip"), value) << write_json(value);
  }
}

TEST(Json, SetReplacesInPlaceOrAppends) {
  Json value;
  value.set("a", 1);
  value.set("b", 2);
  value.set("a", "new");
  EXPECT_EQ(write_json(value, 0), R"({"a":"new","b":2})");
}

TEST(Json, StoresUnsignedExactlyWhenItFits) {
  EXPECT_EQ(Json(uint64_t{1} << 62).integer(), int64_t{1} << 62);
  EXPECT_EQ(Json(uint64_t{1} << 63).number(), 0x1p63);
}

TEST(Json, RefusesAccessByTheWrongKind) {
  EXPECT_THAT([] { (void)Json("x").integer(); }, Fails(ErrorCode::internal, HasSubstr("got string, expected integer")));
  EXPECT_THAT([] { (void)Json(1.5).integer(); }, Fails(ErrorCode::internal, HasSubstr("got float, expected integer")));
  EXPECT_THAT([] { (void)Json().object(); }, Fails(ErrorCode::internal, HasSubstr("got null, expected object")));
  EXPECT_EQ(Json(3).number(), 3.0);
}

}  // namespace
}  // namespace transload
