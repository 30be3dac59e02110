// The report on a TensorRT-LLM checkpoint, as JSON and for a terminal.
#include <fmt/format.h>

#include <cmath>

#include "export/summary_parts.h"
#include "io/json.h"
#include "io/whole_file.h"
#include "transload/verify_trtllm.h"

namespace transload {
namespace {

Json blocks_json(const VerifyTrtllmReport& report) {
  const bool is_baked = report.quantisation.find("baked") != std::string::npos;
  Json::Array out;
  for (const TrtllmBlockResult& block : report.blocks) {
    out.push_back(
        Json::Object{{"block", block.block},
                     {"layer", block.layer},
                     {"relative", std::isfinite(block.relative) ? Json(block.relative) : Json()},
                     {"allowed", block.allowed},
                     {"quantisation", is_baked && std::isfinite(block.quantisation) ? Json(block.quantisation) : Json()}});
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
  std::string text;
  const auto line = [&](const std::string& content) { text += content + "\n"; };
  line(fmt::format("checkpoint: {}", report.folder));
  if (!report.architecture.empty()) {
    line(fmt::format("model: {}, format {}, {}, quantisation {}, tp {}, pp {}, moe_ep {}", report.architecture, report.format,
                     report.dtype, report.quantisation, report.mapping.tensor, report.mapping.pipeline, report.mapping.expert));
  }
  if (report.digests_checked > 0) line(fmt::format("digests: {} checked", report.digests_checked));
  if (report.tensors_compared > 0) {
    line(
        fmt::format("tensors: {} compared with {}, {} bytes", report.tensors_compared, report.checkpoint, report.bytes_compared));
  }
  if (!report.worst_tensor.empty()) {
    line(
        fmt::format("quantised weights: at most {:.4g} steps off, of 1 allowed, in {}", report.worst_steps, report.worst_tensor));
  }
  for (const TrtllmBlockResult& block : report.blocks) {
    line(fmt::format("block {} of layer {}: relative error {:.2e}, of {:.0e} allowed{}", block.block, block.layer, block.relative,
                     block.allowed,
                     block.quantisation > 0 ? fmt::format(", and {:.2e} by quantisation", block.quantisation) : ""));
  }
  for (const std::string& note : report.notes) line("note: " + note);
  line(report.failure ? "FAILED: " + *report.failure : std::string("verified"));
  return text;
}

}  // namespace transload
