// The version compiled into the library.
#include "transload/version.h"

namespace transload {

const char* version() { return TRANSLOAD_VERSION; }

}  // namespace transload
