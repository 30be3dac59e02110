// Compares the embedding tables of bundle and checkpoint in blocks of rows.
#include "export/verify_embedding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/matmul.h"

namespace transload {
namespace {

constexpr uint64_t kBlockRows = 256;

// Rows of both tables, block by block: `visit(first_row, got, expected)` until it returns false.
template <typename Visit>
void for_blocks(const BundleRunner& runner, const WeightMatrix& table, const Visit& visit) {
  std::vector<int32_t> ids;
  std::vector<float> expected;
  for (uint64_t first = 0; first < table.rows; first += kBlockRows) {
    ids.resize(std::min(kBlockRows, table.rows - first));
    std::iota(ids.begin(), ids.end(), static_cast<int32_t>(first));
    expected.resize(ids.size() * table.columns);
    for (uint64_t i = 0; i < ids.size(); ++i) read_row(table, first + i, expected.data() + i * table.columns);
    const std::vector<float> got = runner.embedding_rows(ids);
    if (!visit(first, got, expected)) return;
  }
}

std::string tensor_at(const Manifest& manifest, const EmbeddingPlace& place) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.file == place.file && tensor.offset == place.offset) return tensor.name;
  }
  return "embedding";
}

}  // namespace

EmbeddingCheck compare_embedding(const BundleRunner& runner, const DecoderModel& model, WeightStore& store,
                                 const Manifest& manifest, const Tolerance& tolerance) {
  const WeightMatrix table = store.matrix(model.embedding);
  DifferenceSum sum;
  for_blocks(runner, table, [&](uint64_t, const std::vector<float>& got, const std::vector<float>& expected) {
    sum.add(got, expected);
    return true;
  });
  EmbeddingCheck check{sum.result(), std::nullopt};
  if (tolerance.holds(check.difference)) return check;

  const EmbeddingPlace& place = *runner.contract().embedding;
  // Rows of tokens that were never trained are tiny, so rows are judged at the scale of the table.
  const double largest = tolerance.relative * (check.difference.scale > 0 ? check.difference.scale : 1);
  for_blocks(runner, table, [&](uint64_t first, const std::vector<float>& got, const std::vector<float>& expected) {
    for (uint64_t i = 0; i < got.size(); ++i) {
      if (std::abs(static_cast<double>(got[i]) - expected[i]) <= largest) continue;
      VerifyFailure failure;
      failure.tensor = tensor_at(manifest, place);
      failure.file = place.file;
      failure.what =
          fmt::format("embedding row of token {}: {}", first + i / table.columns,
                      difference_text(closeness_of(check.difference), tolerance, got[i], expected[i], i % table.columns));
      check.failure = std::move(failure);
      return false;
    }
    return true;
  });
  if (!check.failure) {
    check.failure = VerifyFailure{
        tensor_at(manifest, place),
        {},
        {},
        place.file,
        {},
        fmt::format("embedding rows: SQNR {:.1f} dB (at least {:.0f})", check.difference.sqnr_db, tolerance.sqnr_floor_db)};
  }
  return check;
}

}  // namespace transload
