// Keeps an output folder away from what the same run reads.
#pragma once

#include <filesystem>
#include <vector>

#include "transload/checkpoint.h"

namespace transload {

// What an export of `checkpoint` reads: replacing a folder that holds any of it would destroy the checkpoint. Hub caches link
// files from elsewhere, so the folder counts as well as the files.
std::vector<std::filesystem::path> sources_of(const Checkpoint& checkpoint);

// Throws usage when `destination` is empty, is one of `sources` or holds one of them, symbolic links followed or not.
void refuse_destination_over(const std::filesystem::path& destination, const std::vector<std::filesystem::path>& sources);

}  // namespace transload
