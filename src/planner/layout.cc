#include "planner/layout.h"

#include <algorithm>
#include <glaze/glaze.hpp>

#include "base/write_json.h"

namespace linkcpp {
namespace {

struct Refusal {
  std::string refused;
};

template <class T>
Result<T> Read(std::string_view json, std::string_view what) {
  T value;
  const std::string buffer(json);
  if (const auto error =
          glz::read<glz::opts{.error_on_unknown_keys = true, .error_on_missing_keys = true}>(value, buffer)) {
    std::string why = glz::format_error(error, buffer);
    return Fail(FaultCode::kRefused, "not {}: {}", what, why.substr(0, why.find('\n')));
  }
  return value;
}

}  // namespace

std::string ToJson(const LayoutRequest& request) {
  return WriteJson(request);
}
Result<LayoutRequest> ParseLayoutRequest(std::string_view json) {
  return Read<LayoutRequest>(json, "a request to lay out a model");
}
std::string ToJson(const std::vector<LaidOut>& laid_out) {
  return WriteJson(laid_out);
}
std::string RefusalJson(std::string_view why) {
  return WriteJson(Refusal{.refused = std::string(why)});
}
Result<std::vector<LaidOut>> ParseLaidOut(std::string_view json) {
  if (json.starts_with('{')) {
    const auto refusal = Read<Refusal>(json, "an account of buffers");
    return Fail(refusal ? FaultCode::kRefused : FaultCode::kMalformed, "{}",
                refusal ? refusal->refused : refusal.error().text);
  }
  auto laid_out = Read<std::vector<LaidOut>>(json, "an account of buffers");
  if (!laid_out) return Fail(FaultCode::kMalformed, "{}", laid_out.error().text);
  constexpr std::uint64_t kMost = 1ull << 50;
  for (const LaidOut& one : *laid_out) {
    if (std::max({one.model_bytes, one.context_bytes, one.compute_bytes}) > kMost)
      return Fail(FaultCode::kMalformed, "an account of buffers with {} of a petabyte", one.buffer_type);
  }
  return laid_out;
}

}  // namespace linkcpp
