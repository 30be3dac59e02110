// Keeps an output folder away from what the same run reads.
#pragma once

#include <filesystem>
#include <vector>

namespace transload {

// Throws usage when `destination` is empty, is one of `sources` or holds one of them, symbolic links followed or not.
void refuse_destination_over(const std::filesystem::path& destination, const std::vector<std::filesystem::path>& sources);

}  // namespace transload
