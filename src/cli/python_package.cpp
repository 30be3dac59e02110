// Hands over to a module of the Python package, for what needs a tokenizer.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "cli/command.h"
#include "transload/error.h"

namespace transload::cli {
namespace {

// Only a missing package is explained here; every other error is the module's own to report. The current folder is no place to
// import from: it may hold anything that is called transload.
constexpr const char* kProgram = R"(
import importlib, os, sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
try:
    module = importlib.import_module(sys.argv[1])
except ModuleNotFoundError as error:
    sys.stderr.write(f"transload: text needs the Python package: got no module '{error.name}' in {sys.executable}, expected "
                     "'transload' with tokenizers and jinja2 (TRANSLOAD_PYTHON names another Python; --prompt-ids needs none)\n")
    sys.exit(5)
sys.exit(module.main(sys.argv[2:]))
)";

// The file of this process, so that the package calls the same build again.
std::string own_path() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "transload" : path.string();
}

}  // namespace

int run_python_module(const std::string& module, const std::vector<std::string>& arguments) {
  const char* chosen = std::getenv("TRANSLOAD_PYTHON");
  std::vector<std::string> words{
      chosen != nullptr && *chosen != '\0' ? chosen : "python3", "-c", kProgram, module, "--command", own_path()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(pointers.front(), pointers.data());
  throw Error(ErrorCode::io_failure, fmt::format("cannot start '{}': {} (text needs Python; TRANSLOAD_PYTHON names another one)",
                                                 words.front(), std::generic_category().message(errno)));
}

}  // namespace transload::cli
