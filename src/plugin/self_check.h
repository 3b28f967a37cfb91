// Does this host read our tables as we laid them out? Asked once at load, through ggml's public accessors only.
#pragma once

#include <ggml-backend.h>

#include <string_view>

#include "base/result.h"

namespace linkcpp {

// kRefused: an accessor returned something else than what we set; the text names it and the host's ggml version.
Result<void> SelfCheck(ggml_backend_reg_t reg, ggml_backend_buffer_type_t type, std::string_view name,
                       std::size_t alignment);

}  // namespace linkcpp
