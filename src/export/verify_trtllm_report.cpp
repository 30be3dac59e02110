// The report on a TensorRT-LLM checkpoint, as JSON and for a terminal.
#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "base/grouped.h"
#include "export/summary_parts.h"
#include "export/verify_report.h"
#include "io/json.h"
#include "io/whole_file.h"
#include "transload/verify_trtllm.h"

namespace transload {
namespace {

Json blocks_json(const VerifyTrtllmReport& report) {
  Json::Array out;
  for (const TrtllmBlockResult& block : report.blocks) {
    out.push_back(Json::Object{
        {"block", block.block},
        {"layer", block.layer ? Json(*block.layer) : Json()},
        {"relative", std::isfinite(block.relative) ? Json(block.relative) : Json()},
        {"allowed", block.allowed},
        {"quantisation", block.quantisation && std::isfinite(*block.quantisation) ? Json(*block.quantisation) : Json()},
        {"values", block.values},
        {"not_comparable", block.not_comparable}});
  }
  return out;
}

}  // namespace

std::string verify_trtllm_json(const VerifyTrtllmReport& report) {
  const TrtllmMapping& mapping = report.mapping;
  return write_json(
      Json::Object{{"passed", report.passed()},
                   {"folder", report.folder},
                   {"checkpoint", report.checkpoint.empty() ? Json() : Json(report.checkpoint)},
                   {"architecture", report.architecture},
                   {"format", report.format},
                   {"dtype", report.dtype},
                   {"quantisation", report.quantisation},
                   {"mapping", Json::Object{{"tp", mapping.tensor}, {"pp", mapping.pipeline}, {"moe_ep", mapping.expert}}},
                   {"digests_checked", report.digests_checked},
                   {"bytes_hashed", report.bytes_hashed},
                   {"tensors_compared", report.tensors_compared},
                   {"bytes_compared", report.bytes_compared},
                   {"worst_steps", report.worst_steps},
                   {"worst_tensor", report.worst_tensor.empty() ? Json() : Json(report.worst_tensor)},
                   {"blocks", blocks_json(report)},
                   {"notes", strings_json(report.notes)},
                   {"failure", report.failure ? Json(*report.failure) : Json()},
                   {"seconds", report.seconds}});
}

void write_verify_trtllm_report(const std::filesystem::path& path, const VerifyTrtllmReport& report) {
  write_file_whole(path, verify_trtllm_json(report) + "\n");
}

std::string verify_trtllm_text(const VerifyTrtllmReport& report) {
  std::string text = fmt::format("folder     {}\n", report.folder);
  const auto line = [&](std::string_view label, const std::string& content) {
    text += fmt::format("{:<10} {}\n", label, content);
  };
  if (!report.checkpoint.empty()) line("checkpoint", report.checkpoint);
  if (!report.architecture.empty()) {
    line("model",
         fmt::format("{}, format {}, {}, quantisation {}, tp {}, pp {}, moe_ep {}", report.architecture, report.format,
                     report.dtype, report.quantisation, report.mapping.tensor, report.mapping.pipeline, report.mapping.expert));
  }
  line("digests", fmt::format("{} over {} bytes", grouped(report.digests_checked), grouped(report.bytes_hashed)));
  if (report.tensors_compared > 0) {
    line("tensors", fmt::format("{} compared, {} bytes", grouped(report.tensors_compared), grouped(report.bytes_compared)));
  }
  if (!report.worst_tensor.empty()) {
    line("weights",
         fmt::format("at most {:.4g} quantisation steps off (1 is allowed), in {}", report.worst_steps, report.worst_tensor));
  }
  for (const TrtllmBlockResult& block : report.blocks) {
    const std::string layer = block.layer ? fmt::format(" of layer {}", *block.layer) : "";
    const std::string quantisation =
        block.quantisation ? fmt::format("; {:.2e} to the unquantised block", *block.quantisation) : "";
    line("block", fmt::format("{}{}: relative error {}, at most {:.0e} allowed{}", block.block, layer, error_text(block.relative),
                              block.allowed, quantisation));
  }
  for (const std::string& note : report.notes) text += fmt::format("note: {}\n", note);
  if (report.failure) return text + fmt::format("verification failed: {}\n", *report.failure);
  return text + (report.checkpoint.empty() ? "verification passed: digests and structure only\n"
                                           : "verification passed: the rank files hold what the checkpoint gives\n");
}

}  // namespace transload
