// The version of the library and the command; CMake reads it from here.
#pragma once

#define TRANSLOAD_VERSION "0.1.0"

namespace transload {

// TRANSLOAD_VERSION, as compiled into the library.
const char* version();

}  // namespace transload
