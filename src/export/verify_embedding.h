// Every embedding row the host looks up, held against the checkpoint's.
#pragma once

#include <optional>

#include "export/bundle_runner.h"
#include "export/verify_compare.h"
#include "export/verify_digests.h"
#include "runtime/weight_matrix.h"
#include "transload/decoder_model.h"
#include "transload/verify.h"

namespace transload {

struct EmbeddingCheck {
  Difference difference;
  std::optional<VerifyFailure> failure;  // names the tensor of the manifest and the first row that differs
};

EmbeddingCheck compare_embedding(const BundleRunner& runner, const DecoderModel& model, WeightStore& store,
                                 const Manifest& manifest, const Tolerance& tolerance);

}  // namespace transload
